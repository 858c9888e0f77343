//! Defaults. Fills in what the API server and the kubelet's file source would (Kubernetes docs: Static Pods), in the
//! manifest itself. Idempotent.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, HTTPGetAction, Pod, Probe, ResourceRequirements, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::app_armor;
use super::pod::ImageName;
use super::pod::PodUid;
use super::projected::DEFAULT_MODE;
use super::resources::is_sound;
use crate::types::quantity::Quantity;

/// Annotation with the pod's UID.
const HASH: &str = "kubernetes.io/config.hash";
/// Annotation with the pod's source.
const SOURCE: &str = "kubernetes.io/config.source";

/// Fills in every default that does not need the UID.
pub(crate) fn pod(pod: &mut Pod, node_name: &str) {
    let metadata = &mut pod.metadata;
    // A manifest read from an API server has this, but it is not true here.
    metadata.creation_timestamp = None;
    metadata.deletion_timestamp = None;
    metadata.deletion_grace_period_seconds = None;
    metadata.managed_fields = None;
    metadata.resource_version = None;
    metadata.self_link = None;
    if metadata.namespace.as_deref().is_none_or(str::is_empty) {
        metadata.namespace = Some("default".to_owned());
    }
    let Some(spec) = &mut pod.spec else { return };
    spec.node_name = Some(node_name.to_owned());
    text(&mut spec.restart_policy, "Always");
    text(&mut spec.dns_policy, "ClusterFirst");
    text(&mut spec.scheduler_name, "default-scheduler");
    spec.termination_grace_period_seconds.get_or_insert(30);
    spec.enable_service_links.get_or_insert(true);
    spec.security_context.get_or_insert_default();
    let host_network = spec.host_network == Some(true);
    for each in spec.volumes.iter_mut().flatten() {
        volume(each);
    }
    let init = spec.init_containers.iter_mut().flatten();
    for each in init.chain(&mut spec.containers) {
        container(each, host_network);
    }
    super::pod_level::fill_in_requests(spec);
    if let Some(resources) = &mut spec.resources {
        requests(resources);
    }
    app_armor::fill_in(metadata.annotations.as_ref(), spec);
}

/// Writes the UID where the kubelet writes it.
pub(crate) fn identity(metadata: &mut ObjectMeta, uid: &PodUid, template: &PodUid) {
    metadata.uid = Some(uid.to_string());
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(HASH.to_owned(), template.to_string());
    annotations.insert(SOURCE.to_owned(), "file".to_owned());
}

fn text(field: &mut Option<String>, default: &str) {
    if field.as_deref().is_none_or(str::is_empty) {
        *field = Some(default.to_owned());
    }
}

fn volume(volume: &mut Volume) {
    // A volume without a source is an emptyDir; the name is the only field that is not a source.
    let bare = Volume {
        name: volume.name.clone(),
        ..Volume::default()
    };
    if *volume == bare {
        volume.empty_dir = Some(Default::default());
    }
    if let Some(image) = &mut volume.image
        && image.pull_policy.as_deref().is_none_or(str::is_empty)
        && let Ok(name) = ImageName::parse(image.reference.as_deref().unwrap_or_default())
    {
        image.pull_policy = Some(name.default_pull_policy().as_str().to_owned());
    }
    if let Some(host_path) = &mut volume.host_path {
        host_path.type_.get_or_insert_default();
    }
    files(volume);
    if let Some(limit) = volume
        .empty_dir
        .as_mut()
        .and_then(|e| e.size_limit.as_mut())
    {
        canonical(limit);
    }
}

/// Fills in the defaults of volumes of files that the node writes.
fn files(volume: &mut Volume) {
    let modes = [
        volume.config_map.as_mut().map(|v| &mut v.default_mode),
        volume.secret.as_mut().map(|v| &mut v.default_mode),
        volume.downward_api.as_mut().map(|v| &mut v.default_mode),
        volume.projected.as_mut().map(|v| &mut v.default_mode),
    ];
    for mode in modes.into_iter().flatten() {
        mode.get_or_insert(DEFAULT_MODE);
    }
    let downward = volume.downward_api.iter_mut();
    let downward = downward.flat_map(|v| v.items.iter_mut().flatten());
    let projected = volume.projected.iter_mut();
    let projected = projected.flat_map(|v| v.sources.iter_mut().flatten());
    let projected = projected.flat_map(|source| source.downward_api.iter_mut());
    let projected = projected.flat_map(|v| v.items.iter_mut().flatten());
    for file in downward.chain(projected) {
        if let Some(field) = &mut file.field_ref {
            text(&mut field.api_version, "v1");
        }
        if let Some(resource) = &mut file.resource_field_ref {
            canonical(resource.divisor.get_or_insert(Written("0".to_owned())));
        }
    }
}

/// Fills in a container's defaults.
pub(crate) fn container(container: &mut Container, host_network: bool) {
    if container
        .image_pull_policy
        .as_deref()
        .is_none_or(str::is_empty)
    {
        let image = container.image.as_deref().unwrap_or_default();
        if let Ok(name) = ImageName::parse(image) {
            container.image_pull_policy = Some(name.default_pull_policy().as_str().to_owned());
        }
    }
    text(
        &mut container.termination_message_path,
        "/dev/termination-log",
    );
    text(&mut container.termination_message_policy, "File");
    for port in container.ports.iter_mut().flatten() {
        text(&mut port.protocol, "TCP");
        // A wrong number is reported where it was written.
        let sound = u16::try_from(port.container_port).is_ok();
        if host_network && sound && port.host_port.unwrap_or(0) == 0 {
            port.host_port = Some(port.container_port);
        }
    }
    requests(container.resources.get_or_insert_default());
    [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ]
    .into_iter()
    .flatten()
    .for_each(probe);
    if let Some(lifecycle) = &mut container.lifecycle {
        [&mut lifecycle.post_start, &mut lifecycle.pre_stop]
            .into_iter()
            .flatten()
            .filter_map(|hook| hook.http_get.as_mut())
            .for_each(page);
    }
    for variable in container.env.iter_mut().flatten() {
        if let Some(from) = &mut variable.value_from {
            if let Some(field) = &mut from.field_ref {
                text(&mut field.api_version, "v1");
            }
            if let Some(resource) = &mut from.resource_field_ref {
                canonical(resource.divisor.get_or_insert(Written("0".to_owned())));
            }
        }
    }
}

/// Copies limits to missing requests. An invalid limit is not copied, so that it is reported only where it was written.
fn requests(resources: &mut ResourceRequirements) {
    if let Some(limits) = &resources.limits {
        let requests = resources.requests.get_or_insert_default();
        for (name, limit) in limits {
            if !requests.contains_key(name) && is_sound(name, limit) {
                requests.insert(name.clone(), limit.clone());
            }
        }
    }
    for map in [&mut resources.limits, &mut resources.requests] {
        map.iter_mut()
            .flat_map(BTreeMap::values_mut)
            .for_each(canonical);
    }
}

/// Rewrites a quantity in the API server's spelling; validation reports an invalid one.
fn canonical(written: &mut Written) {
    if let Ok(quantity) = Quantity::parse(&written.0) {
        written.0 = quantity.to_string();
    }
}

fn probe(probe: &mut Probe) {
    for (field, default) in [
        (&mut probe.timeout_seconds, 1),
        (&mut probe.period_seconds, 10),
        (&mut probe.success_threshold, 1),
        (&mut probe.failure_threshold, 3),
    ] {
        if field.unwrap_or(0) == 0 {
            *field = Some(default);
        }
    }
    if let Some(get) = &mut probe.http_get {
        page(get);
    }
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn page(get: &mut HTTPGetAction) {
    text(&mut get.path, "/");
    text(&mut get.scheme, "HTTP");
}
