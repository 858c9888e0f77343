//! Changes of ConfigMaps and Secrets: what failed for want of one is tried again at once. Series of waits stay as they
//! are, so that the next failure waits longer.

use std::collections::BTreeSet;

use super::super::event::{ImageFailure, StartFailure};
use super::super::state::Image;
use super::super::{Action, PodState, Time};
use crate::spec::{ObjectKey, pull_secrets};

/// Records that these objects have changed.
pub(super) fn changed(pod: &mut PodState, objects: &BTreeSet<ObjectKey>, now: Time) {
    let has_changed = |key: &ObjectKey| objects.contains(key);
    if pull_secrets::references(&pod.spec).iter().any(has_changed) {
        retry_pulls(pod, now);
    }
    if !pod
        .spec
        .references()
        .iter()
        .any(|key| objects.contains(key))
    {
        return;
    }
    pod.retries.create.at = pod.retries.create.at.min(now);
    for container in &mut pod.containers {
        if let Some(error) = &mut container.start_error
            && error.failure == StartFailure::Config
        {
            error.retry.at = error.retry.at.min(now);
        }
    }
    // What is under way may have read the old ones.
    pod.configuration_changed = matches!(
        pod.in_flight,
        Some(Action::CreateSandbox { .. } | Action::StartContainer { .. })
    );
}

/// A pull that was refused may succeed with other credentials.
fn retry_pulls(pod: &mut PodState, now: Time) {
    for container in &mut pod.containers {
        if let Image::Failed {
            failure: ImageFailure::Pull,
            retry,
            ..
        } = &mut container.image
        {
            retry.at = retry.at.min(now);
        }
    }
}

/// Returns when to try again something that failed and would be tried again at `at`.
pub(super) fn retry_at(pod: &mut PodState, at: Time, now: Time) -> Time {
    match std::mem::take(&mut pod.configuration_changed) {
        true => at.min(now),
        false => at,
    }
}
