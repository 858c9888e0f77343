//! Facts about images: ready, failed, or the store changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::event::{ImageFailure, Pulled};
use super::super::notice::Notices;
use super::super::state::{Image, Retry};
use super::super::{Action, Notice, PodState, Stamp, Time, status};
use super::IMAGE_RETRY_MS;
use crate::spec::{ContainerSpec, PodSpec, PullPolicy, Reason};

pub(super) fn image_ready(
    pod: &mut PodState,
    name: &str,
    (image_id, volumes): (&str, &BTreeMap<String, String>),
    pulled: &BTreeMap<String, Pulled>,
    out: &mut Vec<Notice>,
) {
    if !pod.answered(|a| is_image_of(a, name)) || pod.look_up.edited {
        return;
    }
    let Some(container) = pod.container_mut(name) else {
        return;
    };
    container.image = Image::Ready {
        id: image_id.to_owned(),
        volumes: volumes.clone(),
    };
    let spec = Arc::clone(&pod.spec);
    let Some(container) = spec.container(name) else {
        return;
    };
    let mut notices = Notices::new(out, pod);
    for (image, _) in images_of(&spec, container).map(|(_, image)| image) {
        let text = match pulled.get(image) {
            None => format!("Container image \"{image}\" already present on machine"),
            Some(Pulled {
                took_ms,
                waited_ms,
                size_bytes,
            }) => format!(
                "Successfully pulled image \"{image}\" in {} ({} including waiting). Image size: {size_bytes} bytes.",
                status::go_duration(*took_ms),
                status::go_duration(*waited_ms),
            ),
        };
        notices.container(name, Reason::Pulled, text);
    }
}

/// The images that a container needs, as written, with their pull policies: those of its image volumes by the volumes'
/// names, then its own.
fn images_of<'p>(
    pod: &'p PodSpec,
    container: &'p ContainerSpec,
) -> impl Iterator<Item = (Option<&'p str>, (&'p str, PullPolicy))> {
    let volumes = pod.image_volumes_of(container);
    let volumes = volumes.map(|(name, of)| (Some(name), (of.image.as_str(), of.pull_policy)));
    let own = (container.image.as_str(), container.pull_policy);
    volumes.chain(std::iter::once((None, own)))
}

/// Containers of the pod that need the same image share its result.
pub(super) fn image_failed(
    pod: &mut PodState,
    (name, volume): (&str, Option<&str>),
    (failure, message): (ImageFailure, &str),
    now: Time,
    out: &mut Vec<Notice>,
) {
    if !pod.answered(|a| is_image_of(a, name)) || pod.look_up.edited {
        return;
    }
    let specs = Arc::clone(&pod.spec);
    let asked = specs.container(name);
    let missing = asked.and_then(|c| images_of(&specs, c).find(|(of, _)| *of == volume));
    let Some((_, missing)) = missing else {
        return;
    };
    let mut retry = match pod.container(name).map(|c| &c.image) {
        Some(Image::Failed { retry, .. }) => *retry,
        Some(Image::Unknown | Image::Ready { .. }) | None => Retry::default(),
    };
    let again = retry.failures > 0;
    retry.fail(now, IMAGE_RETRY_MS.0, IMAGE_RETRY_MS.1);
    if std::mem::take(&mut pod.look_up.store_changed) {
        retry.at = now;
    }
    for (container, other) in pod.containers.iter_mut().zip(specs.all_containers()) {
        let same = images_of(&specs, other).find(|(_, image)| *image == missing);
        let found = matches!(container.image, Image::Ready { .. });
        let wanted = !container.run.is_running() || container.is_outdated(other);
        if let Some((volume, _)) = same.filter(|_| !found && wanted) {
            container.image = Image::Failed {
                volume: volume.map(str::to_owned),
                failure,
                message: message.to_owned(),
                retry,
            };
        }
    }
    let (image, _) = missing;
    let (reason, text) = status::image_failure(image, failure, message, false);
    let mut notices = Notices::new(out, pod);
    match failure {
        ImageFailure::NeverPull => {
            notices.container(name, Reason::ErrImageNeverPull, text);
        }
        ImageFailure::Inspect => notices.container(name, Reason::InspectFailed, text),
        ImageFailure::Pull | ImageFailure::Signature => {
            let text = format!("Failed to pull image \"{image}\": {message}");
            notices.container(name, Reason::Failed, text);
        }
    }
    notices.container(name, Reason::Failed, format!("Error: {reason}"));
    if again && matches!(failure, ImageFailure::Pull | ImageFailure::Signature) {
        let text = format!("Back-off pulling image \"{image}\"");
        notices.container(name, Reason::BackOffPull, text);
        let text = "Error: ImagePullBackOff".to_owned();
        notices.container(name, Reason::Failed, text);
    }
}

fn is_image_of(action: &Action, name: &str) -> bool {
    matches!(action, Action::EnsureImage { container, .. } if container == name)
}

pub(super) fn images_changed(pod: &mut PodState, now: Stamp) {
    pod.look_up.store_changed = matches!(pod.in_flight, Some(Action::EnsureImage { .. }));
    for container in &mut pod.containers {
        if let Image::Failed { retry, .. } = &mut container.image {
            retry.at = retry.at.min(now.time);
        }
    }
}
