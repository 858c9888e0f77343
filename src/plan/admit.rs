//! The pods that exist. A pod is added when a manifest asks for it and no older pod has its name (`hold.rs`), or when the
//! agent finds it at its start. It is stopped when no manifest asks for it any more, when its manifest needs a new pod, or
//! when a client deletes it.

use std::sync::Arc;

use super::apply::{count_loss, end_run};
use super::edit::{self, Edit};
use super::event::Desired;
use super::notice::Notices;
use super::recovered::{Recovered, RecoveredSandbox};
use super::round::Begun;
use super::run::Run;
use super::state::{ContainerState, Sandbox, Stage, Stopping};
use super::{NodeState, Notice, PodState, Stamp, condition, hook, workload};
use crate::spec::{PodUid, Reason, RestartPolicy};
use crate::types::{Ascending, Exit, Gather};

impl NodeState {
    /// From now on these pods are wanted.
    pub(super) fn want(&mut self, desired: &Desired, now: Stamp, out: &mut Vec<Notice>) {
        self.network_changes += 1;
        self.forget_stops(desired);
        let desired = self.incarnate(desired);
        let (incarnations, touched) = (&mut self.incarnations, &mut self.touched);
        let asked = |pod: &PodState| {
            let of = pod.spec.workload.as_ref();
            of.is_some_and(|of| desired.workloads.contains_key(of))
        };
        let end = |pod: &mut PodState, out: &mut Vec<Notice>| {
            if asked(pod) {
                workload::notice::deleted(pod, out);
            }
            stop(pod, None, now);
        };
        self.pods.retain(|uid, pod| {
            let exists = pod.hold().is_none() || desired.pods.contains_key(uid);
            if !exists {
                if asked(pod) {
                    workload::notice::deleted(pod, out);
                }
                incarnations.ended(pod, Some(&desired));
                touched.push(uid.clone());
            }
            exists
        });
        let mut wanted = Ascending::of(&desired.pods);
        for (uid, pod) in &mut self.pods {
            let spec = wanted.get(uid);
            let told = pod.pending.is_some() || pod.flags.resize_pending.is_none();
            if told && spec.is_some_and(|spec| Arc::ptr_eq(spec, pod.wanted())) {
                // As after the fact before this one ([`NodeState::unsettled`]).
                continue;
            }
            touched.push(uid.clone());
            match spec {
                None => end(pod, out),
                Some(_) if pod.stopping().is_some() => {}
                Some(spec) if Arc::ptr_eq(spec, pod.wanted()) => {}
                Some(spec) if pod.hold().is_some() => pod.edit_held(spec, now),
                Some(spec) => match edit::of_pod(pod, spec) {
                    Edit::Replace(_) => end(pod, out),
                    Edit::None | Edit::InPlace(_) => {
                        let old = Arc::clone(&pod.spec);
                        pod.take_edit(spec, now);
                        condition::edited(pod, &old, now.wall);
                        pod.note_health();
                        pod.note_conditions(now);
                    }
                },
            }
            if pod.pending.is_none() {
                pod.flags.resize_pending = None;
            }
            pod.settle(now, out);
        }
        self.desired = Some(desired);
        self.note_order();
        self.admit_resizes(now, out);
        self.admit(now, out);
    }

    pub(super) fn delete_requested(&mut self, uid: &PodUid, grace_ms: Option<u64>, now: Stamp) {
        let named = self.pods.get(uid).map(|pod| pod.spec.key.clone());
        self.sent_away(&named.into_iter().gather());
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        if pod.hold().is_some() {
            // There is nothing to stop: the next pod waits in its place, if its UID is new.
            if self.has_own_uid(uid)
                && let Some(held) = self.pods.remove(uid)
            {
                self.incarnation_ended(&held);
            }
            return;
        }
        match &mut pod.stage {
            Stage::Held(_) | Stage::Admitted { .. } => {
                self.network_changes += 1;
                stop(pod, grace_ms, now);
            }
            Stage::Stopping(stopping) => {
                let asked = grace_ms.unwrap_or(pod.spec.grace_ms);
                stopping.asked_ms = stopping.asked_ms.min(asked);
            }
        }
    }

    pub(super) fn pod_recovered(
        &mut self,
        recovered: &Recovered,
        now: Stamp,
        out: &mut Vec<Notice>,
    ) {
        let uid = recovered.spec.uid.clone();
        if self.pods.contains_key(&uid) {
            return;
        }
        let memory = &recovered.memory;
        let created = memory.created.unwrap_or(now);
        let mut pod = PodState::new(Arc::clone(&recovered.spec), created);
        memory.restore(&mut pod, &recovered.containers);
        match &recovered.sandbox {
            RecoveredSandbox::Ready { ips } => {
                pod.ips.clone_from(ips);
                let since = memory.waits.ready_since.unwrap_or(now.time);
                pod.sandbox = Sandbox::Ready { since };
            }
            RecoveredSandbox::Removed => {
                pod.sandbox = Sandbox::Removed;
                end_lost_runs(&mut pod, now);
            }
            RecoveredSandbox::Lost => {
                pod.sandbox = Sandbox::Lost;
                if let Some(since) = memory.waits.ready_since {
                    count_loss(&mut pod, since, now.time);
                }
                end_lost_runs(&mut pod, now);
            }
        }
        for (container, left) in &recovered.containers {
            pod.join_probes(container, &left.held_probes, now.time);
            hook::recover_held(&mut pod, container, &left.held_hooks, now.time, out);
        }
        pod.repeat_lost_hooks(now.time);
        if recovered.sandbox == RecoveredSandbox::Lost
            && pod.stopping().is_none()
            && !pod.finished()
        {
            sandbox_changed(&pod, out);
        }
        if let Some(flags) = memory.flags {
            pod.flags = flags;
            pod.settle(now, out);
        } else {
            // Conditions that were not saved are as old as the last change of a container.
            let wall = last_change(pod.of_manifest(), &pod);
            pod.settle(Stamp { wall, ..now }, out);
        }
        self.pods.insert(uid, pod);
        self.note_order();
        self.network_changes += 1;
    }
}

/// The pod is to go. A grace period given replaces the pod's own. No effect on a pod that already goes.
pub(super) fn stop(pod: &mut PodState, grace_ms: Option<u64>, now: Stamp) {
    if pod.stopping().is_none() {
        pod.stage = Stage::Stopping(Stopping {
            since: now,
            asked_ms: grace_ms.unwrap_or(pod.spec.grace_ms),
        });
    }
}

/// The shim is gone: what ran has ended, and its exit code is unknown.
pub(super) fn end_lost_runs(pod: &mut PodState, now: Stamp) {
    for container in &mut pod.containers {
        if let Some(run) = container.run.running() {
            let (attempt, image_id, began) = (run.attempt, run.image_id.clone(), run.began);
            end_run(container, attempt, image_id, Exit::lost(began, now));
        }
    }
    let ran = pod.of_manifest().iter().any(|c| c.current().is_some());
    let over = (ran || pod.sandbox == Sandbox::Removed) && !pod.init_failed();
    if over && pod.spec.restart_policy == RestartPolicy::Never && pod.verdict.is_none() {
        // A pod that is never restarted does not get a second sandbox: containers not yet started never will be
        // (the kubelet's `pkg/kubelet/kuberuntime`).
        let never = |c: &&mut ContainerState| c.run == Run::None || c.restored();
        for container in pod.containers.iter_mut().filter(never) {
            let attempt = container.next_attempt;
            end_run(container, attempt, String::new(), Exit::lost(now, now));
        }
    }
    if pod.sandbox == Sandbox::Lost && !pod.complete() {
        let begun = match pod.restarts_all() {
            true => Begun::InPlace,
            false => Begun::Lost,
        };
        pod.begin_round(begun, now.time);
    }
}

pub(super) fn sandbox_changed(pod: &PodState, out: &mut Vec<Notice>) {
    Notices::new(out, pod).pod(
        Reason::SandboxChanged,
        "Pod sandbox changed, it will be killed and re-created.".to_owned(),
    );
}

/// The newest moment at which one of these containers started or ended.
fn last_change(containers: &[ContainerState], pod: &PodState) -> super::Wall {
    let stamps = containers.iter().filter_map(|c| match &c.run {
        Run::None => None,
        Run::Running(run) => Some(run.began.wall),
        Run::Ended(past) => Some(past.ended.exit.finished.wall),
    });
    stamps.max().unwrap_or(pod.created.wall)
}
