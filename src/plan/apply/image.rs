//! Facts about images: ready, failed, or the store changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::event::{ImageFailure, Pulled};
use super::super::notice::Notices;
use super::super::pull;
use super::super::state::{Fallback, Image, Retry};
use super::super::{Action, Notice, PodState, Stamp, Time, status};
use super::IMAGE_RETRY_MS;
use crate::spec::{ContainerSpec, PodSpec, PullPolicy, Reason};

pub(super) fn image_ready(
    pod: &mut PodState,
    name: &str,
    (image_id, volumes): (&str, &BTreeMap<String, String>),
    pulled: &BTreeMap<String, Pulled>,
    now: Stamp,
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
    container.fallback = fallback(pulled, now);
    let spec = Arc::clone(&pod.spec);
    let Some(container) = spec.container(name) else {
        return;
    };
    let mut notices = Notices::new(out, pod);
    for (image, _) in images_of(&spec, container).map(|(_, image)| image) {
        let (reason, text) = match pulled.get(image) {
            None => (
                Reason::Pulled,
                format!(
                    "Container image \"{image}\" already present on machine and can be accessed by the pod"
                ),
            ),
            Some(Pulled::Now {
                took_ms,
                waited_ms,
                size_bytes,
            }) => (
                Reason::Pulled,
                format!(
                    "Successfully pulled image \"{image}\" in {} ({} including waiting). Image size: {size_bytes} bytes.",
                    status::go_duration(*took_ms),
                    status::go_duration(*waited_ms),
                ),
            ),
            Some(Pulled::Unreachable(why)) => (Reason::UsingStoredImage, stored(image, why)),
        };
        notices.container(name, reason, text);
    }
}

/// What is shown while a container runs stored images that may be old.
fn fallback(pulled: &BTreeMap<String, Pulled>, now: Stamp) -> Option<Fallback> {
    let why = pulled.iter().find_map(|(image, pulled)| match pulled {
        Pulled::Unreachable(why) => Some(stored(image, why)),
        Pulled::Now { .. } => None,
    });
    why.map(|message| Fallback {
        since: now.wall,
        message,
    })
}

fn stored(image: &str, why: &str) -> String {
    format!("Using the stored image \"{image}\": {why}")
}

/// Records the progress of the pull that the container waits for.
pub(super) fn pulling(pod: &mut PodState, name: &str, image: &str, (percent, bytes): (u8, u64)) {
    let looking = matches!(&pod.in_flight, Some(action) if is_image_of(action, name));
    if looking && pull::is_wanted(pod) {
        pod.look_up.pulling = Some((image.to_owned(), percent, bytes));
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
    let (mut retry, former) = match pod.container(name).map(|c| &c.image) {
        Some(Image::Failed { retry, failure, .. }) => (*retry, Some(*failure)),
        Some(Image::Unknown | Image::Ready { .. }) | None => (Retry::default(), None),
    };
    let again = retry.failures > 0;
    match failure {
        ImageFailure::Window { opens_in_ms } => {
            retry.at = now.plus(opens_in_ms.min(IMAGE_RETRY_MS.1));
        }
        ImageFailure::NeverPull
        | ImageFailure::Inspect
        | ImageFailure::Pull
        | ImageFailure::Signature => {
            retry.fail(now, IMAGE_RETRY_MS.0, IMAGE_RETRY_MS.1);
        }
    }
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
    if !pull::is_wanted(pod) {
        return;
    }
    let (image, _) = missing;
    let (reason, text) = status::image_failure(image, failure, message, false);
    let mut notices = Notices::new(out, pod);
    match failure {
        ImageFailure::NeverPull => {
            notices.container(name, Reason::ErrImageNeverPull, text);
        }
        ImageFailure::Inspect => notices.container(name, Reason::InspectFailed, text),
        // Nothing has failed, and each look finds the same.
        ImageFailure::Window { .. } => {
            if !matches!(former, Some(ImageFailure::Window { .. })) {
                notices.container(name, Reason::BackOffPull, text);
            }
            return;
        }
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

/// Images of these names were added to the store, or any may have been: containers that wait for one look again.
pub(super) fn images_changed(pod: &mut PodState, names: Option<&BTreeSet<String>>, now: Stamp) {
    let specs = Arc::clone(&pod.spec);
    let sought = match &pod.in_flight {
        Some(Action::EnsureImage { container, .. }) => Some(container.clone()),
        Some(_) | None => None,
    };
    for (container, spec) in pod.containers.iter_mut().zip(specs.all_containers()) {
        let mounted = specs.image_volumes_of(spec).map(|(_, of)| &of.image_name);
        let mut needed = mounted.chain([&spec.image_name]);
        // What a digest means has other names in the store.
        let is_there = |names: &BTreeSet<String>| {
            needed.any(|name| name.digest.is_some() || names.contains(&name.to_string()))
        };
        if !names.is_none_or(is_there) {
            continue;
        }
        // The answer that is under way may be stale.
        pod.look_up.store_changed |= sought.as_ref() == Some(&container.name);
        if let Image::Failed { retry, .. } = &mut container.image {
            retry.at = retry.at.min(now.time);
        }
    }
}
