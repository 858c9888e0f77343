//! Devices that are mounted as paths of the node: a warning where a container cannot open them.

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::device;
use super::error::{Path, Report};

/// What `/dev` has for everybody, or what is no device.
const OTHERS: [&str; 6] = ["disk", "hugepages", "initctl", "log", "mqueue", "shm"];

/// Warns of devices that are mounted into containers without privileges: the cgroup opens none but those of annotations,
/// here as under a kubelet.
pub(super) fn warn(metadata: &ObjectMeta, spec: &PodSpec, path: &Path<'_>, report: &Report) {
    let keys = metadata.annotations.iter().flatten().map(|(key, _)| key);
    let of_pod =
        |key: &String| device::is_annotation(key) && !key.starts_with(device::OF_CONTAINER);
    if keys.clone().any(of_pod) {
        return;
    }
    let is_given = |container: &Container| {
        let mut named = keys
            .clone()
            .filter_map(|key| key.strip_prefix(device::OF_CONTAINER));
        let security = container.security_context.as_ref();
        security.is_some_and(|security| security.privileged == Some(true))
            || named.any(|name| name == container.name)
    };
    let inits = spec.init_containers.iter().flatten();
    let all: Vec<&Container> = inits.chain(&spec.containers).collect();
    for (number, volume) in spec.volumes.iter().flatten().enumerate() {
        let Some(host) = &volume.host_path else {
            continue;
        };
        let kind = host.type_.as_deref().unwrap_or_default();
        let is_device = ["CharDevice", "BlockDevice"].contains(&kind)
            || kind != "Socket" && is_of_devices(&host.path);
        let mounts = |container: &&&Container| {
            let mut mounts = container.volume_mounts.iter().flatten();
            mounts.any(|mount| mount.name == volume.name)
        };
        let without = all
            .iter()
            .filter(mounts)
            .find(|container| !is_given(container));
        if let Some(container) = without.filter(|_| is_device) {
            let at = path.field("volumes");
            let at = at.index(number);
            let what = format_args!(
                "`{}` is not privileged and cannot open devices by their paths; the annotation `{}` gives it \
                 those that it names (coracle help devices)",
                container.name,
                device::ANNOTATION,
            );
            report.warn(&at.field("hostPath").field("path"), what);
        }
    }
}

/// Whether a path is `/dev`, or a device or a folder of them below.
fn is_of_devices(path: &str) -> bool {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let first = (parts.next(), parts.next());
    match first {
        (Some("dev"), None) => true,
        (Some("dev"), Some(name)) => {
            let in_dev = format!("/dev/{name}");
            !device::is_taken(&in_dev) && !OTHERS.contains(&name)
        }
        _ => false,
    }
}
