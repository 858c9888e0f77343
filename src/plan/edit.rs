//! The effect of a changed manifest on an existing pod. The planner acts on this answer, and `coracle plan` shows
//! it beforehand (`coracle help differences`).

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

use super::resize::Pending;
use super::run::{Asked, Course, OfRun};
use super::state::{ContainerState, Image, Role};
use super::verdict::Cause;
use super::{Action, PodState, Stamp, probe};
use crate::spec::fixed::{Parts, differences};
use crate::spec::{ContainerSpec, PodSpec, pinned, uid};
use crate::types::Effective;

/// The field that ends a pod after a time.
const DEADLINE: &str = "spec.activeDeadlineSeconds";

/// The effect of an edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// The pod is unchanged.
    None,
    /// The pod stays, with these changes.
    InPlace(Changes),
    /// The pod is stopped and recreated, because these fields changed (their paths).
    Replace(Vec<String>),
}

/// The changes that a running pod can take.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Paths of fields that apply at once without a restart.
    pub live: Vec<String>,
    /// Containers with a new image.
    pub images: Vec<ImageChange>,
    /// Containers with new cpu or memory.
    pub resizes: Vec<ResizeChange>,
}

/// A container's change of image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageChange {
    /// The container's name.
    pub container: String,
    /// The image before, as written.
    pub from: String,
    /// The image after, as written.
    pub to: String,
    /// Whether the container is restarted for it if it runs: init containers are not.
    pub restarts: bool,
}

/// A container's change of cpu or memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResizeChange {
    /// The container's name.
    pub container: String,
    /// `requests.cpu`, `limits.memory`, …
    pub field: String,
    /// The amount before, as written; `None` if there was none.
    pub from: Option<String>,
    /// The amount after, as written.
    pub to: Option<String>,
    /// Whether the container is restarted for it if it runs.
    pub restarts: bool,
}

/// The effect of `new` on a pod in its current state.
pub fn of_pod(pod: &PodState, new: &PodSpec) -> Edit {
    match between(&pod.spec, new) {
        // All containers are done, so the change can only mean: run again with it.
        Edit::InPlace(changes) if pod.complete() => {
            let paths = run_again(pod, new, &changes);
            match paths.is_empty() {
                true => Edit::InPlace(changes),
                false => Edit::Replace(paths),
            }
        }
        edit @ (Edit::None | Edit::InPlace(_) | Edit::Replace(_)) => edit,
    }
}

/// The changes for which a pod whose containers are all done runs again: of images, cpu and memory, and of the deadline that
/// ended it.
fn run_again(pod: &PodState, new: &PodSpec, changes: &Changes) -> Vec<String> {
    let (images, resizes) = (&changes.images, &changes.resizes);
    let mut paths = Vec::new();
    for container in new.all_containers() {
        let path = path_of(new, container);
        if images.iter().any(|i| i.container == container.name) {
            paths.push(format!("{path}.image"));
        }
        let own = resizes.iter().filter(|r| r.container == container.name);
        paths.extend(own.map(|resize| format!("{path}.resources.{}", resize.field)));
    }
    let verdict = pod.verdict.as_ref();
    let is_late = verdict.is_some_and(|verdict| verdict.cause == Cause::DeadlineExceeded);
    let live = changes.live.iter();
    paths.extend(live.filter(|path| is_late && *path == DEADLINE).cloned());
    paths
}

/// The effect of `new` on a pod of the same name that was admitted as `old`.
pub fn between(old: &PodSpec, new: &PodSpec) -> Edit {
    let own;
    let old = match old.ephemeral_containers.is_empty() {
        true => old,
        // The manifest does not set these.
        false => {
            own = old.without_ephemeral();
            &own
        }
    };
    if old.manifest == new.manifest {
        return Edit::None;
    }
    let (before, after) = (
        Parts::of(&old.manifest.pod()),
        Parts::of(&new.manifest.pod()),
    );
    let mut fixed = differences(&before.fixed, &after.fixed);
    // A derived UID may differ from an earlier version's, and is then kept.
    if old.uid != new.uid && !(uid::is_derived(&old.uid) && uid::is_derived(&new.uid)) {
        fixed.insert(0, "metadata.uid".to_owned());
    }
    if !fixed.is_empty() {
        return Edit::Replace(fixed);
    }
    let volumes = changed_volumes(old, new);
    if !volumes.is_empty() {
        return Edit::Replace(volumes);
    }
    let pairs = old.all_containers().zip(new.all_containers());
    let is_init = |c: &ContainerSpec| new.init_containers.iter().any(|i| i.name == c.name);
    let images = pairs.filter(|(old, new)| !old.has_image_of(new));
    let images = images.map(|(old, new)| ImageChange {
        container: new.name.clone(),
        from: shown(old, new),
        to: shown(new, old),
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

/// The paths of image volumes with another image by the same name: what is mounted does not change.
fn changed_volumes(old: &PodSpec, new: &PodSpec) -> Vec<String> {
    let volumes = old.volumes.iter().zip(&new.volumes).enumerate();
    let changed = volumes.filter(|(_, (was, is))| {
        let images = (old.image_volume(&was.name)).zip(new.image_volume(&is.name));
        images.is_some_and(|(was, is)| pinned::differ(was.pinned.as_ref(), is.pinned.as_ref()))
    });
    changed
        .map(|(index, _)| format!("spec.volumes[{index}].image"))
        .collect()
}

/// A container's image as written; with its id where another one has the same name.
fn shown(container: &ContainerSpec, other: &ContainerSpec) -> String {
    match &container.pinned {
        Some(id) if container.image == other.image => {
            let short: String = id.trim_start_matches("sha256:").chars().take(12).collect();
            format!("{} ({short})", container.image)
        }
        Some(_) | None => container.image.clone(),
    }
}

/// Resources that differ in amount, not only in notation.
fn resizes(old: &PodSpec, new: &PodSpec) -> impl Iterator<Item = ResizeChange> {
    let before = written(old).into_iter().zip(old.manifest_containers());
    let after = written(new).into_iter().zip(new.manifest_containers());
    let pairs = before.zip(after);
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
        changed.map(move |(map, name, _, restarts)| ResizeChange {
            container: new.name.clone(),
            field: format!("{map}.{name}"),
            from: amount(&old_written, map, name),
            to: amount(&new_written, map, name),
            restarts,
        })
    })
}

/// The containers of the manifest, in the order of [`PodSpec::manifest_containers`].
fn written(pod: &PodSpec) -> Vec<core::Container> {
    let spec = pod.manifest.spec();
    let mut all = spec.init_containers.unwrap_or_default();
    all.extend(spec.containers);
    all
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
    /// The resources and image that a run started now gets.
    pub(super) fn asked(&self) -> Asked {
        Asked {
            image: self.image.clone(),
            resources: Some(self.resources),
            effective: Effective::default(),
            again: false,
            on_request: false,
        }
    }
}

impl ContainerState {
    /// The resources and image of the newest run.
    pub(super) fn asked(&self) -> Option<&Asked> {
        self.run.course()?.asked.as_ref()
    }

    /// What is saved for an agent restart: the newest run's, and that of the run being started.
    pub fn all_asked(&self) -> Vec<OfRun<Asked>> {
        let newest = self.run.attempt().zip(self.asked().cloned());
        let newest = newest.map(|(attempt, of)| OfRun { attempt, of });
        newest.into_iter().chain(self.starting.clone()).collect()
    }

    /// Whether the newest run has another image than its spec. Init containers do their work once, with whatever
    /// image they began.
    pub fn is_outdated(&self, spec: &ContainerSpec) -> bool {
        let runs = self.run.image_id().filter(|id| !id.is_empty());
        let differs = |pin: &Arc<str>| runs.is_some_and(|id| *id != **pin);
        let other = self.asked().is_some_and(|asked| asked.image != spec.image)
            || spec.pinned.as_ref().is_some_and(differs);
        self.role != Role::Init && other
    }

    /// Whether the newest run was ended to change its image.
    pub(super) fn is_replaced(&self, spec: Option<&ContainerSpec>) -> bool {
        let asked_again = self.asked().is_some_and(|asked| asked.again);
        asked_again || spec.is_some_and(|spec| self.is_outdated(spec))
    }

    /// Whether the newest run was ended because a client asked for a restart.
    pub(super) fn ended_on_request(&self) -> bool {
        self.run.course().is_some_and(Course::on_request)
    }
}

impl PodState {
    /// Gives the pod a new spec that needs no new pod.
    pub(super) fn take_edit(&mut self, new: &Arc<PodSpec>, now: Stamp) {
        let new = &match self.spec.ephemeral_containers.is_empty() {
            true => Arc::clone(new),
            false => Arc::new(new.with_ephemeral_of(&self.spec)),
        };
        let former = self.pending.take();
        let old = Arc::clone(&self.spec);
        self.spec = Arc::clone(new);
        if !old.has_resources_of(new) {
            // Room is checked once all edits are recorded.
            self.spec = Arc::new(new.with_resources_of(&old));
            // After an agent restart no resize is pending until the manifests are read again.
            let before = self.flags.resize_pending.filter(|_| former.is_none());
            let same = former.filter(|p| p.spec.has_resources_of(new));
            let since = same.as_ref().map(|p| p.since).or(before);
            let since = *self.flags.resize_pending.insert(since.unwrap_or(now));
            self.pending = Some(Pending {
                spec: Arc::clone(new),
                since,
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
            let of =
                |spec: &ContainerSpec| (spec.image.clone(), spec.pinned.clone(), spec.pull_policy);
            if of(old) != of(new) {
                container.image = Image::Unknown;
                container.start_error = None;
                self.look_up.edited |= looking_for.as_ref() == Some(&new.name);
            }
            if !old.has_image_of(new) {
                // A failure of the previous image does not delay the new one.
                container.backoff = None;
                container.permitted = None;
            }
        }
    }
}
