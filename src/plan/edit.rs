//! What does another manifest change of a pod that is there? The one answer for the planner, which acts on it, and for
//! `coracle plan`, which tells it beforehand (part A7 of the kubelet's behaviour as coracle has it).

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

use super::event::Asked;
use super::resize::Pending;
use super::state::{ContainerState, Image, Role};
use super::{Action, PodState, Stamp, probe};
use crate::spec::fixed::{Parts, differences};
use crate::spec::{ContainerSpec, Effective, PodSpec, uid};

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
    /// Containers that get another amount of cpu or memory.
    pub resizes: Vec<ResizeChange>,
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
    /// Whether the container is restarted for it if it runs: init containers are not.
    pub restarts: bool,
}

/// Another amount of cpu or memory for a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResizeChange {
    /// The container.
    pub container: String,
    /// `requests.cpu`, `limits.memory`, …
    pub field: String,
    /// The amount so far, as written; `None` if there was none.
    pub from: Option<String>,
    /// The new one.
    pub to: Option<String>,
    /// Whether the container is restarted for it if it runs.
    pub restarts: bool,
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
    let is_init = |c: &ContainerSpec| new.init_containers.iter().any(|i| i.name == c.name);
    let images = pairs.filter(|(old, new)| old.image != new.image);
    let images = images.map(|(old, new)| ImageChange {
        container: new.name.clone(),
        from: old.image.clone(),
        to: new.image.clone(),
        restarts: new.is_sidecar() || !is_init(new),
    });
    let mut live = differences(&before.changeable, &after.changeable);
    live.retain(|path| !path.ends_with("].image"));
    let resizes: Vec<_> = resizes(old, new).collect();
    for resized in new.all_containers() {
        if resizes.iter().any(|r| r.container == resized.name) {
            let path = format!("{}.resources", path_of(new, resized));
            live.retain(|other| !other.starts_with(&path));
        }
    }
    let changes = Changes {
        live,
        images: images.collect(),
        resizes,
    };
    if changes == Changes::default() {
        return Edit::None;
    }
    Edit::InPlace(changes)
}

/// What is another amount, not only written in another way.
fn resizes(old: &PodSpec, new: &PodSpec) -> impl Iterator<Item = ResizeChange> {
    let before = written(old).zip(old.manifest_containers());
    let pairs = before.zip(written(new).zip(new.manifest_containers()));
    pairs.flat_map(|((old_written, old), (new_written, new))| {
        let (was, is) = (old.resources, new.resources);
        let restarts = new.resize_restarts;
        let rows = [
            (
                "requests",
                "cpu",
                was.cpu_request_milli != is.cpu_request_milli,
                restarts.cpu,
            ),
            (
                "limits",
                "cpu",
                was.cpu_limit_milli != is.cpu_limit_milli,
                restarts.cpu,
            ),
            (
                "requests",
                "memory",
                was.memory_request_bytes != is.memory_request_bytes,
                restarts.memory,
            ),
            (
                "limits",
                "memory",
                was.memory_limit_bytes != is.memory_limit_bytes,
                restarts.memory,
            ),
        ];
        let changed = rows.into_iter().filter(|(.., changed, _)| *changed);
        changed.map(|(map, name, _, restarts)| ResizeChange {
            container: new.name.clone(),
            field: format!("{map}.{name}"),
            from: amount(old_written, map, name),
            to: amount(new_written, map, name),
            restarts,
        })
    })
}

/// The containers as the manifest has them, in the order of [`PodSpec::manifest_containers`].
fn written(pod: &PodSpec) -> impl Iterator<Item = &core::Container> {
    let spec = pod.manifest.spec.iter();
    spec.flat_map(|spec| {
        spec.init_containers
            .iter()
            .flatten()
            .chain(&spec.containers)
    })
}

fn amount(container: &core::Container, map: &str, name: &str) -> Option<String> {
    let resources = container.resources.as_ref()?;
    let amounts = match map {
        "limits" => &resources.limits,
        _ => &resources.requests,
    };
    Some(amounts.as_ref()?.get(name)?.0.clone())
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
            resources: Some(self.resources),
            effective: Effective::default(),
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
    pub(super) fn take_edit(&mut self, new: &Arc<PodSpec>, now: Stamp) {
        let new = &match self.spec.ephemeral_containers.is_empty() {
            true => Arc::clone(new),
            false => Arc::new(new.with_ephemeral_of(&self.spec)),
        };
        let former = self.pending.take();
        let old = Arc::clone(&self.spec);
        self.spec = Arc::clone(new);
        if !old.has_resources_of(new) {
            // Whether there is room is looked at when all edits are known.
            self.spec = Arc::new(new.with_resources_of(&old));
            let same = former.filter(|p| p.spec.has_resources_of(new));
            self.pending = Some(Pending {
                spec: Arc::clone(new),
                since: same.as_ref().map_or(now, |p| p.since),
                refusal: same.and_then(|p| p.refusal),
            });
        }
        let looking_for = match &self.in_flight {
            Some(Action::EnsureImage { container, .. }) => Some(container.clone()),
            Some(
                Action::CreateSandbox { .. }
                | Action::StartContainer { .. }
                | Action::Resize { .. }
                | Action::Signal { .. }
                | Action::RemoveSandbox { .. },
            )
            | None => None,
        };
        let specs = old.all_containers().zip(new.all_containers());
        for ((old, new), container) in specs.zip(&mut self.containers) {
            probe::edited(container, (old, new), now.time);
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
