//! A device is unplugged and plugged in again, and the node reports what it sees to the pods that ask for it.

use coracle::plan::run::Run;
use coracle::plan::state::Role;
use coracle::types::{DeviceNode, DeviceSight};

use super::*;
use crate::world::PORT;

impl Sim {
    /// The device comes, goes, or is another one from now on.
    pub(super) fn replug(&mut self) {
        self.world.replug();
        self.report_devices();
    }

    /// What the node's watch does: each pod hears what there is, whenever that has changed and in that order.
    pub(super) fn report_devices(&mut self) {
        let asks = |pod: &PodState| {
            let over = pod.hold().is_some() || pod.stopping().is_some() || pod.finished();
            pod.spec.devices.is_some() && !over
        };
        let pods = self.state.pods.iter();
        let asking: BTreeSet<PodUid> = pods
            .filter(|(_, pod)| asks(pod))
            .map(|(uid, _)| uid.clone())
            .collect();
        self.reported.retain(|uid, _| asking.contains(uid));
        let now = self.world.sight();
        for uid in asking {
            if self.reported.get(&uid) != Some(&now) {
                self.reported.insert(uid.clone(), now.clone());
                self.world.report_device(uid, now.clone());
            }
        }
    }

    /// No container starts before the node has seen its device.
    pub(super) fn check_device(&self, pod: &PodState, name: &str) {
        let container = pod.container(name).unwrap();
        if pod.spec.devices.is_none() || container.role == Role::Ephemeral {
            return;
        }
        let seen = pod.devices.sights.get(PORT);
        let there = seen.is_some_and(|sight| sight.nodes().is_some());
        assert!(there, "{name} starts without its device: {seen:?}");
    }

    /// Whether the planner has seen another device than this run has.
    pub(super) fn is_replugged(pod: &PodState, had: &[DeviceNode]) -> bool {
        let seen = pod.devices.sights.get(PORT);
        let seen = seen.and_then(DeviceSight::nodes).unwrap_or_default();
        seen.iter().any(|node| !had.contains(node))
    }

    /// Every container has the device that is there now, and its pod shows that.
    pub(super) fn check_devices_converged(&self, pod: &PodState) {
        let Some(devices) = &pod.spec.devices else {
            return;
        };
        let restarts = devices.each().any(|request| request.restart);
        let now = self.world.sight();
        assert_eq!(pod.devices.sights.get(PORT), Some(&now), "{pod:?}");
        for c in pod.containers.iter().filter(|c| c.role != Role::Ephemeral) {
            let Run::Running(run) = &c.run else { continue };
            let had = run
                .course
                .asked
                .as_ref()
                .unwrap()
                .effective
                .devices
                .get(PORT);
            let same = had.map(Vec::as_slice) == now.nodes();
            let ends = c.kill().is_some();
            assert!(same || ends || !restarts, "{} has {had:?}: {pod:?}", c.name);
        }
        if restarts && !pod.any_running() {
            let shown = pod.flags.devices.expect("it asks for a device");
            assert!(shown.yes, "{pod:?}");
        }
    }
}
