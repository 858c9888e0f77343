//! The volume with a token that a cluster adds to each pod: `kubectl get pod -o yaml` prints it. There is no API server to
//! log in to, so it is left out, with a warning. One that people have written themselves is refused (`projected`).

use k8s_openapi::api::core::v1::{PodSpec, Volume};

use super::error::{Path, Report};

/// The first part of its name; the admission plug-in `ServiceAccount` adds letters.
const NAME: &str = "kube-api-access-";

fn is_token(volume: &Volume) -> bool {
    let sources = volume.projected.as_ref().and_then(|p| p.sources.as_ref());
    let mut sources = sources.into_iter().flatten();
    volume.name.starts_with(NAME) && sources.any(|source| source.service_account_token.is_some())
}

/// Leaves out the volume, and where containers mount it.
pub(super) fn leave_out(spec: &mut PodSpec, path: &Path<'_>, report: &Report) {
    let volumes = spec.volumes.as_deref().unwrap_or_default();
    let Some(index) = volumes.iter().position(is_token) else {
        return;
    };
    let list = path.field("volumes");
    report.warn(
        &list.index(index),
        "accepted, but there is no API server to log in to: pods get no token",
    );
    let removed = spec.volumes.as_mut().map(|volumes| volumes.remove(index));
    let name = removed.map(|volume| volume.name).unwrap_or_default();
    let containers = spec.init_containers.iter_mut().flatten();
    for container in containers.chain(&mut spec.containers) {
        if let Some(mounts) = &mut container.volume_mounts {
            mounts.retain(|mount| mount.name != name);
        }
    }
}
