//! Which pods exist? A pod comes to be when a manifest asks for it and nobody older holds its name (`hold.rs`), or when a
//! former agent left it; it starts to go when no manifest asks for it any more, when its manifest became another one, or when
//! somebody asks for that.

use std::sync::Arc;

use super::apply::{count_loss, end_run};
use super::condition;
use super::edit::{self, Edit};
use super::event::{Desired, Recovered, RecoveredContainer, RecoveredSandbox};
use super::hook::Hooks;
use super::notice::{Kind, Notices};
use super::probe::Tracks;
use super::round::Begun;
use super::state::{ContainerState, Ended, Run, Sandbox, Stop, Stopping};
use super::{NodeState, Notice, PodState, Stamp};
use crate::spec::{ContainerSpec, Exit, PodUid, Probes, RestartPolicy};

impl NodeState {
    pub(super) fn desired_changed(&mut self, desired: &Desired, now: Stamp, out: &mut Vec<Notice>) {
        self.network_changes += 1;
        let desired = &self.incarnate(desired);
        let incarnations = &mut self.incarnations;
        self.pods.retain(|uid, pod| {
            let exists = pod.hold.is_none() || desired.pods.contains_key(uid);
            if !exists {
                incarnations.ended(pod);
            }
            exists
        });
        for (uid, pod) in &mut self.pods {
            match desired.pods.get(uid) {
                None => stop(pod, None, now),
                Some(spec) if Arc::ptr_eq(spec, pod.wanted()) || pod.stopping.is_some() => {}
                Some(spec) if pod.hold.is_some() => pod.edit_held(spec, now),
                Some(spec) => match edit::of_pod(pod, spec) {
                    Edit::Replace(_) => stop(pod, None, now),
                    Edit::None | Edit::InPlace(_) => {
                        let old = Arc::clone(&pod.spec);
                        pod.take_edit(spec, now);
                        condition::edited(pod, &old, now.wall);
                        pod.note_health();
                        pod.note_conditions(now);
                    }
                },
            }
            pod.settle(now, out);
        }
        self.desired = Some(desired.clone());
        self.admit_resizes(now, out);
        self.admit(now, out);
    }

    pub(super) fn delete_requested(&mut self, uid: &PodUid, grace_ms: Option<u64>, now: Stamp) {
        let named = self.pods.get(uid).map(|pod| &pod.spec.key);
        if let (Some(cordon), Some(key)) = (&mut self.cordon, named) {
            cordon.sent_away(key);
        }
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        if pod.hold.is_some() {
            // There is nothing to stop: the next one waits in its place, if that is another.
            if self.has_own_uid(uid)
                && let Some(held) = self.pods.remove(uid)
            {
                self.incarnation_ended(&held);
            }
            return;
        }
        match &mut pod.stopping {
            None => {
                self.network_changes += 1;
                stop(pod, grace_ms, now);
            }
            Some(stopping) => {
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
        let mut pod = PodState::new(Arc::clone(&recovered.spec), recovered.created);
        for (spec, container) in recovered.spec.all_containers().zip(&mut pod.containers) {
            if let Some(known) = recovered.containers.get(&container.name) {
                recover_container(spec, container, known);
                recover_health(container, &spec.probes, known);
            }
        }
        pod.verdict.clone_from(&recovered.verdict);
        pod.evictions = recovered.evictions;
        let waits = recovered.waits;
        (pod.create_retry, pod.lost_retry) = (waits.create, waits.lost);
        match &recovered.sandbox {
            RecoveredSandbox::Ready { ips } => {
                pod.ips.clone_from(ips);
                let since = waits.ready_since.unwrap_or(now.time);
                pod.sandbox = Sandbox::Ready { since };
            }
            RecoveredSandbox::Removed => {
                pod.sandbox = Sandbox::Removed;
                end_lost_runs(&mut pod, now);
            }
            RecoveredSandbox::Lost => {
                pod.sandbox = Sandbox::Lost;
                if let Some(since) = waits.ready_since {
                    count_loss(&mut pod, since, now.time);
                }
                end_lost_runs(&mut pod, now);
            }
        }
        pod.stopping = recovered.stopping;
        pod.finishing = recovered.finishing;
        pod.repeat_lost_hooks(now.time);
        pod.resizing.actuated = recovered.actuated.unwrap_or(recovered.spec.resources);
        if recovered.sandbox == RecoveredSandbox::Lost && pod.stopping.is_none() && !pod.finished()
        {
            sandbox_changed(&pod, out);
        }
        if let Some(foreign) = &recovered.foreign {
            pod.foreign.clone_from(foreign);
        }
        if let Some(flags) = recovered.flags {
            pod.flags = flags;
            pod.settle(now, out);
        } else {
            // Without a memory of them, conditions are as old as the newest change of a container.
            let wall = last_change(pod.of_manifest(), &pod);
            pod.settle(Stamp { wall, ..now }, out);
        }
        self.pods.insert(uid, pod);
        self.network_changes += 1;
    }
}

/// The pod is to go. A grace period given replaces the pod's own. No effect on a pod that already goes.
pub(super) fn stop(pod: &mut PodState, grace_ms: Option<u64>, now: Stamp) {
    if pod.stopping.is_none() {
        pod.stopping = Some(Stopping {
            since: now,
            asked_ms: grace_ms.unwrap_or(pod.spec.grace_ms),
        });
    }
}

fn recover_container(
    spec: &ContainerSpec,
    container: &mut ContainerState,
    known: &RecoveredContainer,
) {
    container.backoff = known.backoff;
    container.round = known.round;
    let spent = known.newest.as_ref();
    let spent = spent.map_or(0, |newest| newest.attempt.saturating_add(1));
    container.next_attempt = spent.max(known.round.first);
    container.start_error.clone_from(&known.start_error);
    let Some(newest) = &known.newest else {
        return;
    };
    container.previous = known.previous.as_ref().map(|exit| Ended {
        attempt: newest.attempt.saturating_sub(1),
        image_id: newest.image_id.clone(),
        exit: exit.clone(),
    });
    container.asked = known
        .asked
        .iter()
        .find(|a| a.attempt == newest.attempt)
        .cloned();
    // Without a word of it, it is as it was admitted.
    container.asked = container
        .asked
        .take()
        .or_else(|| Some(spec.asked(newest.attempt)));
    if let Some(asked) = &mut container.asked {
        asked.effective.clone_from(&newest.effective);
    }
    container.hooks = Hooks::recovered(known.hooks.as_ref(), newest.attempt);
    container.kill = known.kill.filter(|kill| kill.attempt == newest.attempt);
    container.stop = Stop {
        asked: newest.stop_sent,
        sent: newest.stop_sent,
        ..Stop::default()
    };
    container.run = match &newest.exit {
        None => Run::Running {
            attempt: newest.attempt,
            image_id: newest.image_id.clone(),
            pid: newest.pid,
            started: newest.started,
        },
        Some(exit) => {
            container.kill = None;
            // A permit given after this exit was for a start that never came about: it is still good.
            if known
                .backoff
                .is_some_and(|b| b.permitted > exit.finished.time)
            {
                container.permitted = Some(container.next_attempt);
            }
            Run::Ended(Ended {
                attempt: newest.attempt,
                image_id: newest.image_id.clone(),
                exit: exit.clone(),
            })
        }
    };
}

/// What a former agent knew of the run that runs; else its probes begin anew, at once.
fn recover_health(container: &mut ContainerState, probes: &Probes, known: &RecoveredContainer) {
    if let Run::Running {
        attempt, started, ..
    } = container.run
    {
        let health = known.health.as_ref().filter(|h| h.attempt == attempt);
        container.tracks = Tracks::recovered(probes, started.time, health);
    }
}

/// The shim is gone: what ran has ended in a way nobody saw.
pub(super) fn end_lost_runs(pod: &mut PodState, now: Stamp) {
    for container in &mut pod.containers {
        if let Run::Running {
            attempt,
            image_id,
            started,
            ..
        } = &container.run
        {
            let (attempt, image_id, started) = (*attempt, image_id.clone(), *started);
            end_run(container, attempt, image_id, Exit::lost(started, now));
        }
    }
    let ran = pod.of_manifest().iter().any(|c| c.current().is_some());
    let over = (ran || pod.sandbox == Sandbox::Removed) && !pod.init_failed();
    if over && pod.spec.restart_policy == RestartPolicy::Never && pod.verdict.is_none() {
        // A pod that is never restarted does not get a second sandbox: containers not yet started never will be
        // (kubelet-behaviour §2.4).
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
        Kind::Normal,
        "SandboxChanged",
        "Pod sandbox changed, it will be killed and re-created.".to_owned(),
    );
}

/// The newest moment at which one of these containers started or ended.
fn last_change(containers: &[ContainerState], pod: &PodState) -> super::Wall {
    let stamps = containers.iter().filter_map(|c| match &c.run {
        Run::None => None,
        Run::Running { started, .. } => Some(started.wall),
        Run::Ended(ended) => Some(ended.exit.finished.wall),
    });
    stamps.max().unwrap_or(pod.created.wall)
}
