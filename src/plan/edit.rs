//! What does another manifest change of a pod that is there? The one answer for the planner, which acts on it, and for
//! `coracle plan`, which tells it beforehand (part A7 of the kubelet's behaviour as coracle has it).

use std::sync::Arc;

use super::event::Asked;
use super::state::{ContainerState, Image, Role};
use super::{Action, PodState, Time, probe};
use crate::spec::fixed::{Parts, differences};
use crate::spec::{ContainerSpec, PodSpec, uid};

/// What becomes of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// Nothing.
    None,
    /// It goes on, with these changes.
    InPlace(Changes),
    /// It is stopped and made anew, because these fields changed (their paths).
    Replace(Vec<String>),
}

/// What can change while a pod runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Paths of fields that apply at once, without anything being restarted.
    pub live: Vec<String>,
    /// Containers that run from another image from now on.
    pub images: Vec<ImageChange>,
}

/// Another image for a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageChange {
    /// The container.
    pub container: String,
    /// The image so far, as written.
    pub from: String,
    /// The new one.
    pub to: String,
}

/// What `new` changes of a pod as it is now.
pub fn of_pod(pod: &PodState, new: &PodSpec) -> Edit {
    match between(&pod.spec, new) {
        // All is done, so that another image can only mean: do it again with that.
        Edit::InPlace(changes) if !changes.images.is_empty() && pod.complete() => {
            let all = new.all_containers();
            let changed = all.filter(|c| changes.images.iter().any(|i| i.container == c.name));
            let paths = changed.map(|c| format!("{}.image", path_of(new, c)));
            Edit::Replace(paths.collect())
        }
        edit @ (Edit::None | Edit::InPlace(_) | Edit::Replace(_)) => edit,
    }
}

/// What `new` changes of a pod that was admitted as `old`, of the same name.
pub fn between(old: &PodSpec, new: &PodSpec) -> Edit {
    let own;
    let old = match old.ephemeral_containers.is_empty() {
        true => old,
        // They are not the manifest's affair.
        false => {
            own = old.without_ephemeral();
            &own
        }
    };
    if old.manifest == new.manifest {
        return Edit::None;
    }
    let (before, after) = (Parts::of(&old.manifest), Parts::of(&new.manifest));
    let mut fixed = differences(&before.fixed, &after.fixed);
    // One that is worked out may be another than with a former version, and is kept then.
    if old.uid != new.uid && !(uid::is_derived(&old.uid) && uid::is_derived(&new.uid)) {
        fixed.insert(0, "metadata.uid".to_owned());
    }
    if !fixed.is_empty() {
        return Edit::Replace(fixed);
    }
    let pairs = old.all_containers().zip(new.all_containers());
    let images = pairs.filter(|(old, new)| old.image != new.image);
    let images = images.map(|(old, new)| ImageChange {
        container: new.name.clone(),
        from: old.image.clone(),
        to: new.image.clone(),
    });
    let mut live = differences(&before.changeable, &after.changeable);
    live.retain(|path| !path.ends_with("].image"));
    let changes = Changes {
        live,
        images: images.collect(),
    };
    if changes == Changes::default() {
        return Edit::None;
    }
    Edit::InPlace(changes)
}

/// `spec.initContainers[1]`.
fn path_of(pod: &PodSpec, container: &ContainerSpec) -> String {
    let at = |list: &[ContainerSpec]| list.iter().position(|c| c.name == container.name);
    match (at(&pod.init_containers), at(&pod.containers)) {
        (Some(index), _) => format!("spec.initContainers[{index}]"),
        (None, index) => format!("spec.containers[{}]", index.unwrap_or(0)),
    }
}

impl ContainerSpec {
    /// What a run that is started now is asked with.
    pub(super) fn asked(&self, attempt: u32) -> Asked {
        Asked {
            attempt,
            image: self.image.clone(),
            again: false,
        }
    }
}

impl ContainerState {
    /// What its newest run was asked with.
    pub(super) fn asked(&self) -> Option<&Asked> {
        let attempt = self.run.attempt()?;
        self.asked.as_ref().filter(|asked| asked.attempt == attempt)
    }

    /// What the next agent has to know of that.
    pub fn all_asked(&self) -> Vec<Asked> {
        self.asked.iter().chain(&self.starting).cloned().collect()
    }

    /// Whether its newest run is from another image than is wanted now. Init containers do their work once, from
    /// whatever image they began with.
    pub fn is_outdated(&self, spec: &ContainerSpec) -> bool {
        self.role != Role::Init && self.asked().is_some_and(|asked| asked.image != spec.image)
    }

    /// Whether its newest run has ended for another one to take its place.
    pub(super) fn is_replaced(&self, spec: Option<&ContainerSpec>) -> bool {
        let asked_again = self.asked().is_some_and(|asked| asked.again);
        asked_again || spec.is_some_and(|spec| self.is_outdated(spec))
    }
}

impl PodState {
    /// From now on the pod is to be as this says, which changes nothing that would need another pod.
    pub(super) fn take_edit(&mut self, new: &Arc<PodSpec>, now: Time) {
        let new = &match self.spec.ephemeral_containers.is_empty() {
            true => Arc::clone(new),
            false => Arc::new(new.with_ephemeral_of(&self.spec)),
        };
        let old = std::mem::replace(&mut self.spec, Arc::clone(new));
        let looking_for = match &self.in_flight {
            Some(Action::EnsureImage { container, .. }) => Some(container.clone()),
            Some(
                Action::CreateSandbox { .. }
                | Action::StartContainer { .. }
                | Action::Signal { .. }
                | Action::RemoveSandbox { .. },
            )
            | None => None,
        };
        let specs = old.all_containers().zip(new.all_containers());
        for ((old, new), container) in specs.zip(&mut self.containers) {
            probe::edited(container, (old, new), now);
            if (&old.image, old.pull_policy) != (&new.image, new.pull_policy) {
                container.image = Image::Unknown;
                container.start_error = None;
                self.image_edited |= looking_for.as_ref() == Some(&new.name);
            }
            if old.image != new.image {
                // What another image came to is no reason to wait with this one.
                container.backoff = None;
                container.permitted = None;
            }
        }
    }
}
