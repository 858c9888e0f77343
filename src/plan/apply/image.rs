//! Facts about images: ready, failed, or the store changed.

use super::super::event::ImageFailure;
use super::super::notice::Notices;
use super::super::state::{Image, Retry};
use super::super::{Action, Notice, PodState, Stamp, Time, status};
use super::IMAGE_RETRY_MS;
use crate::spec::Reason;

pub(super) fn image_ready(pod: &mut PodState, name: &str, image_id: &str, out: &mut Vec<Notice>) {
    if !pod.answered(|a| is_image_of(a, name)) || pod.look_up.edited {
        return;
    }
    let image = pod
        .spec
        .container(name)
        .map_or_else(String::new, |c| c.image.clone());
    if let Some(container) = pod.container_mut(name) {
        container.image = Image::Ready {
            id: image_id.to_owned(),
        };
        Notices::new(out, pod).container(
            name,
            Reason::Pulled,
            format!("Container image \"{image}\" already present on machine"),
        );
    }
}

/// Containers of the pod that need the same image share its result.
pub(super) fn image_failed(
    pod: &mut PodState,
    name: &str,
    (failure, message): (ImageFailure, &str),
    now: Time,
    out: &mut Vec<Notice>,
) {
    if !pod.answered(|a| is_image_of(a, name)) {
        return;
    }
    let Some(spec) = pod
        .spec
        .container(name)
        .cloned()
        .filter(|_| !pod.look_up.edited)
    else {
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
    let pod_spec = std::sync::Arc::clone(&pod.spec);
    for (container, other) in pod.containers.iter_mut().zip(pod_spec.all_containers()) {
        let same = other.image == spec.image && other.pull_policy == spec.pull_policy;
        let found = matches!(container.image, Image::Ready { .. });
        let wanted = !container.run.is_running() || container.is_outdated(other);
        if same && !found && wanted {
            container.image = Image::Failed {
                failure,
                message: message.to_owned(),
                retry,
            };
        }
    }
    let (reason, text) = status::image_failure(&spec.image, failure, message, false);
    let mut notices = Notices::new(out, pod);
    match failure {
        ImageFailure::NeverPull => {
            notices.container(name, Reason::ErrImageNeverPull, text);
        }
        ImageFailure::Inspect => notices.container(name, Reason::InspectFailed, text),
        ImageFailure::Pull => {
            let text = format!("Failed to pull image \"{}\": {message}", spec.image);
            notices.container(name, Reason::Failed, text);
        }
    }
    notices.container(name, Reason::Failed, format!("Error: {reason}"));
    if again && failure == ImageFailure::Pull {
        let text = format!("Back-off pulling image \"{}\"", spec.image);
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
