//! Devices that containers ask for: a container starts when its devices are there, its pod shows one that goes, and
//! the container restarts when it is back, if its manifest asks for that (`coracle help devices`).
//!
//! ```text
//! missing ──► there: the container starts ──► gone: DevicesReady=False ──► back: DevicesReady=True (, restart)
//! ```
//!
//! The node watches `/dev` and reports what there is of each request. A run has what its start found; a device that
//! was unplugged and plugged in again is another file, even if it has the same numbers.

use std::collections::BTreeMap;

use super::notice::Notices;
use super::state::{ContainerState, Role};
use super::{Notice, PodState, Stamp, Time};
use crate::spec::{ContainerSpec, DeviceRequest, Devices, PodSpec, Reason};
use crate::types::{DeviceNode, DeviceSight};

/// What the node has found of a pod's requests, by their names.
pub type Sights = BTreeMap<String, DeviceSight>;

/// The devices of a pod, as they were seen last.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// What was found; empty: not looked for yet.
    pub sights: Sights,
    /// When.
    at: Time,
}

/// Why a container does not have its devices: a reason and a sentence.
type Why = (Reason, String);

/// What its containers ask for, if they do. Ephemeral containers take what there is, because they are there to find
/// out what is wrong.
fn requests<'p>(
    pod: &'p PodSpec,
    c: &ContainerState,
) -> Option<impl Iterator<Item = &'p DeviceRequest> + use<'p>> {
    let devices: &Devices = pod
        .devices
        .as_deref()
        .filter(|_| c.role != Role::Ephemeral)?;
    let spec: &'p ContainerSpec = pod.container(&c.name)?;
    Some(devices.of(&spec.name))
}

/// The nodes that the newest run was started with for a request.
fn granted<'c>(c: &'c ContainerState, request: &DeviceRequest) -> &'c [DeviceNode] {
    let devices = c.asked().map(|asked| &asked.effective.devices);
    let nodes = devices.and_then(|devices| devices.get(&request.name));
    nodes.map_or(&[], Vec::as_slice)
}

impl Seen {
    /// Why the container cannot start; `Err`: it is not known yet whether it can.
    fn lack(&self, pod: &PodSpec, c: &ContainerState) -> Result<Option<Why>, ()> {
        for request in requests(pod, c).into_iter().flatten() {
            match self.sights.get(&request.name) {
                None => return Err(()),
                Some(DeviceSight::There(_)) => {}
                Some(DeviceSight::Missing(_)) if request.optional => {}
                Some(DeviceSight::Missing(why)) => {
                    let text = format!("waiting for a device: {why}");
                    return Ok(Some((Reason::DeviceMissing, text)));
                }
                Some(DeviceSight::Refused(why)) => {
                    return Ok(Some((Reason::DeviceRefused, why.clone())));
                }
            }
        }
        Ok(None)
    }

    /// What the running container had and is not there any more, as a sentence.
    fn loss(&self, pod: &PodSpec, c: &ContainerState) -> Option<String> {
        let losses = requests(pod, c)?.flat_map(|request| {
            let sight = self.sights.get(&request.name);
            let now = sight.map(|sight| sight.nodes().unwrap_or_default());
            let had = granted(c, request).iter();
            had.filter_map(move |node| lost(node, now?))
        });
        let losses: Vec<String> = losses.collect();
        (!losses.is_empty()).then(|| losses.join(", "))
    }

    /// Whether a device came since the container started, for which it is to restart.
    fn brings_back(&self, pod: &PodSpec, c: &ContainerState) -> bool {
        if c.run.running().is_none_or(|run| run.began.time >= self.at) {
            return false;
        }
        let mut all = requests(pod, c).into_iter().flatten();
        all.any(|request| {
            let sight = self.sights.get(&request.name);
            let now = sight.and_then(DeviceSight::nodes).unwrap_or_default();
            let had = granted(c, request);
            request.restart && now.iter().any(|node| !had.contains(node))
        })
    }
}

/// How a device that a container has is not there any more, if so.
fn lost(node: &DeviceNode, now: &[DeviceNode]) -> Option<String> {
    match now.iter().find(|other| other.path == node.path) {
        None => Some(format!("`{}` is gone", node.path)),
        Some(other) if other.is_same_device(node) => None,
        Some(other) => Some(format!(
            "`{}` is now {}, and the container has {}",
            node.path,
            other.numbers(),
            node.numbers()
        )),
    }
}

impl PodState {
    /// Whether a device keeps this container from starting.
    pub(super) fn lacks_devices(&self, c: &ContainerState) -> bool {
        self.devices.lack(&self.spec, c) != Ok(None)
    }

    /// Why a device keeps this container from starting, if one does.
    pub(super) fn device_trouble(&self, c: &ContainerState) -> Option<Why> {
        self.devices.lack(&self.spec, c).ok().flatten()
    }

    /// What is wrong with the container's devices, whether it runs or is to run.
    fn trouble_of(&self, seen: &Seen, c: &ContainerState) -> Option<Why> {
        match c.run.is_running() {
            true => {
                let loss = seen.loss(&self.spec, c)?;
                Some((Reason::DeviceMissing, loss))
            }
            false if self.wants_start(c) => seen.lack(&self.spec, c).ok().flatten(),
            false => None,
        }
    }

    /// Condition `DevicesReady`, with a message; `None`: not known.
    pub(super) fn devices_ready(&self) -> Option<Result<(), Why>> {
        if self.devices.sights.is_empty() {
            return None;
        }
        let all = self.of_manifest().iter();
        let troubles = all.filter_map(|c| Some((c, self.trouble_of(&self.devices, c)?)));
        let troubles: Vec<(Reason, String)> = troubles
            .map(|(c, (reason, text))| (reason, format!("container {}: {text}", c.name)))
            .collect();
        let Some((reason, _)) = troubles.first() else {
            return Some(Ok(()));
        };
        let texts: Vec<&str> = troubles.iter().map(|(_, text)| text.as_str()).collect();
        Some(Err((*reason, texts.join("; "))))
    }

    /// Whether a device came back for which this container is to restart.
    pub(super) fn device_is_back(&self, c: &ContainerState) -> bool {
        self.spec.devices.is_some() && self.devices.brings_back(&self.spec, c)
    }

    /// Records what the node has found.
    pub(super) fn devices_seen(&mut self, sights: &Sights, now: Stamp, out: &mut Vec<Notice>) {
        let seen = Seen {
            sights: sights.clone(),
            at: now.time,
        };
        let known = std::mem::replace(&mut self.devices, seen);
        let mut notices = Notices::new(out, self);
        for c in self.of_manifest() {
            let (before, after) = (
                self.trouble_of(&known, c),
                self.trouble_of(&self.devices, c),
            );
            match (before, after) {
                (before, Some(after)) if before.as_ref() != Some(&after) => {
                    notices.container(&c.name, after.0, after.1);
                }
                (Some(_), None) => {
                    let text = format!("Devices of container {} are there", c.name);
                    notices.container(&c.name, Reason::DevicesReady, text);
                }
                (_, Some(_)) | (None, None) => {}
            }
        }
        // What failed to start for want of a device is tried again at once.
        let spec = self.spec.clone();
        for c in &mut self.containers {
            let mut all = requests(&spec, c).into_iter().flatten();
            let changed =
                all.any(|request| known.sights.get(&request.name) != sights.get(&request.name));
            if let Some(error) = c.start_error.as_mut().filter(|_| changed) {
                error.retry.at = now.time;
            }
        }
    }
}
