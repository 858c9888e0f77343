//! The planner's wishes are right: the invariants of `tests/README.md`, checked against the world.

use coracle::plan::action::Keep;
use coracle::plan::event::{HookOrder, Kill, KillReason, ProbeOrder};
use coracle::plan::run::Run;
use coracle::plan::state::{ContainerState, Role};
use coracle::plan::verdict::Cause;
use coracle::plan::{Action, Event, NodeFact, PodState, garbage, shutdown, status};
use coracle::spec::{HookKind, PodUid, ProbeKind, RestartAction, RestartPolicy};
use coracle::types::StopSignal;

use super::{Going, Sim, pods};
use crate::world::Disk;

impl Sim {
    /// Only running containers are probed; liveness and readiness probes wait until the container has come up.
    pub(super) fn check_probe(&self, order: &ProbeOrder) {
        let pod = &self.state.pods[&order.instance.pod];
        let container = pod.container(&order.instance.container).unwrap();
        assert!(container.run.is_running(), "{order:?}");
        assert_eq!(container.run.attempt(), Some(order.instance.attempt));
        let startup = order.probe == ProbeKind::Startup;
        assert_eq!(startup, !container.started(), "{order:?}");
        let sidecar = container.role == Role::Sidecar;
        let stays = pod.stopping().is_none() || order.probe == ProbeKind::Readiness || sidecar;
        assert!(stays, "{order:?}");
    }

    /// A hook runs once, for a running container; preStop is the first step of a kill that leaves time for it.
    pub(super) fn check_hook(&self, order: &HookOrder) {
        let pod = &self.state.pods[&order.instance.pod];
        let c = pod.container(&order.instance.container).unwrap();
        assert!(c.run.is_running(), "{order:?}");
        assert_eq!(c.run.attempt(), Some(order.instance.attempt));
        assert_eq!(
            c.stop().asked,
            None,
            "hooks run before the stop signal: {order:?}"
        );
        match order.hook {
            HookKind::PostStart => {
                assert!(c.kill().is_none() && !c.started(), "{order:?}");
                assert_eq!(c.hooks().unwrap().post_start.done, None, "once: {order:?}");
            }
            HookKind::PreStop => {
                let kill = c.kill().expect("preStop runs only in a kill");
                assert_ne!(kill.reason, KillReason::InPlace, "{order:?}");
                assert!(!kill.at_once, "{order:?}");
                assert_eq!(c.hooks().unwrap().pre_stop.done, None, "once: {order:?}");
            }
        }
    }

    pub(super) fn check_action(&mut self, action: &Action) {
        let uid = action.pod().clone();
        assert!(
            self.in_flight.insert(uid.clone()),
            "one action at a time: {action:?}"
        );
        let disk = self.world.disk.get(&uid);
        assert_eq!(
            self.state.pods[&uid].hold(),
            None,
            "the pod is held: {action:?}"
        );
        match action {
            Action::CreateSandbox { .. } => {
                self.check_may_start(action);
                self.check_job_start(&self.state.pods[&uid].spec);
                assert!(
                    disk.is_none_or(|d| !d.removed),
                    "a finished pod does not run again: {action:?}"
                );
                assert!(
                    !self.spent.contains(&uid),
                    "the UID of another pod: {action:?}"
                );
                let name = &self.state.pods[&uid].spec.key;
                let held = |(other, d): (&PodUid, &Disk)| *other != uid && d.spec.key == *name;
                assert!(
                    !self.world.disk.iter().any(held),
                    "names are unique: {action:?}"
                );
            }
            Action::EnsureImage { .. } => self.check_may_start(action),
            Action::StartContainer { instance, .. } => {
                self.check_may_start(action);
                let pod = &self.state.pods[&uid];
                check_order(pod, &instance.container);
                self.check_device(pod, &instance.container);
                let container = pod.container(&instance.container).unwrap();
                let once = container.role != Role::Ephemeral || container.run == Run::None;
                assert!(once, "an ephemeral container runs once: {action:?}");
                let name = instance.container.clone();
                self.check_restart(&name, &uid, instance.attempt);
                self.check_pace(&name, &uid);
            }
            Action::Signal {
                instance, signal, ..
            } => {
                let pod = &self.state.pods[&uid];
                let container = pod.container(&instance.container).unwrap();
                let kill = container.kill().expect("a signal belongs to a kill");
                assert_eq!(container.run.attempt(), Some(instance.attempt));
                let restarts = pod.restarts_all() && *signal == StopSignal::Kill;
                let beside = matches!(container.role, Role::Sidecar | Role::Ephemeral);
                let finishes = pod.complete() && (beside || pod.verdict.is_some());
                let run = (uid.clone(), container.name.clone(), instance.attempt);
                let failed = self.failed.get(&run).copied();
                let going = match self.going.get(&uid).copied() {
                    // A container whose kill began before its pod had to go gets no more time than it had.
                    Some(going) if pod.verdict.is_some() => Going {
                        grace_ms: going.grace_ms.min(kill.grace_ms.max(2_000)),
                        ..going
                    },
                    Some(going) => going,
                    None if pod.verdict.is_some() => self.check_shutdown(pod, kill),
                    None if restarts => return,
                    None if !pod.complete() => {
                        assert!(
                            failed.is_some(),
                            "only a failed probe or hook kills: {action:?}"
                        );
                        Going {
                            since: self.world.now,
                            grace_ms: failed.unwrap(),
                        }
                    }
                    None => {
                        assert!(
                            finishes,
                            "only a pod that goes away is signalled: {action:?}"
                        );
                        // The grace period in the manifest may have changed since.
                        let grace_ms = kill.grace_ms.max(2_000);
                        // The container gets no more time if the pod has to go while it ends.
                        self.failed.entry(run).or_insert(grace_ms);
                        Going {
                            since: pod.finishing().unwrap().0,
                            grace_ms,
                        }
                    }
                };
                // A container whose kill began because its pod had nothing left to do gets no more time than it had.
                let finished = kill.reason == KillReason::Stopping && kill.since.0 < going.since;
                let had = kill.grace_ms.max(2_000);
                let grace_ms = match finished {
                    true => going.grace_ms.min(had),
                    false => going.grace_ms,
                };
                let going = Going { grace_ms, ..going };
                // The time after the stop signal is at least 2 s; the time before it may be shorter.
                let waits = pod.stopping().map(|s| s.grace_ms());
                let stopped = pod.verdict.is_some().then_some(kill.grace_ms);
                let waits = waits.unwrap_or(kill.grace_ms).min(going.grace_ms);
                let waits = stopped.map_or(waits, |ms| waits.min(ms));
                // A kill that began again ends with its pod's turn in a shutdown. A restart, on request or for a device, may have
                // begun with less time than the pod has.
                let course = container.run.course().unwrap();
                let requested = course.asked.as_ref().is_some_and(|a| a.on_request);
                let waits = match kill.again {
                    0 if !requested && kill.since.0 >= going.since => waits,
                    _ => waits.min(kill.grace_ms),
                };
                // The pod may have been finishing before it had to go.
                let since = going.since.min(kill.since.0);
                let expired = self.world.now >= since + waits;
                let sidecar = container.role == Role::Sidecar;
                let waits = sidecar
                    && (finishes || pod.stopping().is_some())
                    && container.stop().asked.is_none()
                    && going.grace_ms > 0;
                if waits && !expired {
                    check_turn(pod, container);
                }
                // A container whose kill began for a probe before its pod had to go gets no more time than it had.
                let grace_ms = match failed {
                    Some(0) => 0,
                    _ if sidecar && expired => going.grace_ms.min(2_000),
                    Some(had) => going.grace_ms.min(had),
                    None => going.grace_ms,
                };
                // A hook uses its part of the grace period before the stop signal.
                let hooked = container.hooks().unwrap().pre_stop.begun.is_some();
                let grace_ms = match hooked {
                    true => grace_ms.min(2_000),
                    false => grace_ms,
                };
                let whole = kill.since.0 + kill.grace_ms;
                assert!(
                    *signal == StopSignal::Stop || kill.at_once || self.world.now >= whole,
                    "SIGKILL came before the whole grace period: {action:?}, {kill:?}"
                );
                let going = Going { grace_ms, ..going };
                let key = (uid.clone(), instance.container.clone(), instance.attempt);
                let record = disk.and_then(|d| d.records.get(&instance.container));
                let sent = record
                    .and_then(|r| r.newest.as_ref())
                    .filter(|n| n.attempt == instance.attempt)
                    .and_then(|n| n.stop_sent)
                    .map(|t| t.0);
                let first = sent.or_else(|| self.first_stop.get(&key).copied());
                match signal {
                    StopSignal::Stop => {
                        self.first_stop.entry(key).or_insert(self.world.now);
                        assert!(going.grace_ms > 0, "no grace means SIGKILL at once");
                    }
                    // A container whose kill began before its pod restarted in place gets no more time after that.
                    StopSignal::Kill => assert!(
                        going.grace_ms == 0
                            || kill.at_once && pod.restarts_all()
                            || first.is_some_and(|f| self.world.now >= f + going.grace_ms),
                        "SIGKILL only after the grace period: {action:?}, {first:?}, {going:?}"
                    ),
                }
            }
            Action::Resize { to, containers, .. } => {
                self.check_may_start(action);
                let pod = &self.state.pods[&uid];
                assert_eq!(*to, pod.spec.resources);
                for (name, figures) in containers {
                    assert_eq!(*figures, pod.spec.container(name).unwrap().resources);
                    let c = pod.container(name).unwrap();
                    let has = disk.unwrap().records[name].figures;
                    let restarts = pod.spec.container(name).unwrap().resize_restarts.memory;
                    let differs = has.memory_limit_bytes != figures.memory_limit_bytes;
                    // An earlier try that failed halfway may have done it already.
                    let live = c.run.is_running() && pod.resizing.retry.failures == 0;
                    assert!(
                        !(live && restarts && differs),
                        "this container restarts instead: {action:?}"
                    );
                }
            }
            Action::RemoveSandbox { keep, .. } => {
                let going = self.going.contains_key(&uid);
                let verdict = self.state.pods[&uid].verdict.as_ref();
                let returns = verdict.is_some_and(|v| v.cause == Cause::Preempted || v.returning);
                assert_eq!(
                    *keep == Keep::Nothing,
                    going || returns,
                    "a pod that goes is removed entirely: {action:?}"
                );
            }
        }
    }

    /// No container gets a stop signal before its group's turn; returns the terms of the kill.
    fn check_shutdown(&self, pod: &PodState, kill: &Kill) -> Going {
        let verdict = pod.verdict.as_ref().unwrap();
        // The verdict may be from an earlier shutdown.
        if let Some(shutdown) = &self.state.shutdown
            && verdict.since.time >= shutdown.since.time
            && verdict.cause == Cause::NodeShutdown
        {
            let group = shutdown::group_of(&shutdown.groups, pod);
            assert!(group <= shutdown.turn, "{shutdown:?}: {pod:?}");
        }
        assert!(kill.grace_ms <= verdict.grace_ms.max(1_000), "{pod:?}");
        Going {
            since: kill.since.0,
            grace_ms: match kill.at_once {
                true => 0,
                false => kill.grace_ms.max(2_000),
            },
        }
    }

    fn check_may_start(&self, action: &Action) {
        let uid = action.pod();
        let pod = &self.state.pods[uid];
        assert!(pod.verdict.is_none(), "the pod was stopped: {action:?}");
        self.check_not_stopped(action);
        let down = self.state.shutdown.as_ref();
        assert!(
            down.is_none_or(|down| pod.created.time <= down.since.time),
            "the pod came after the shutdown began: {action:?}"
        );
        if matches!(action, Action::CreateSandbox { .. }) {
            self.check_may_be_here(action);
        }
        assert!(
            !self.going.contains_key(uid),
            "nothing starts in a pod that goes away: {action:?}"
        );
        assert!(self.is_wanted(uid), "only wanted pods start: {action:?}");
    }

    /// Restart policy and crash back-off, computed a second time.
    pub(super) fn check_restart(&mut self, name: &str, uid: &PodUid, attempt: u32) {
        let pod = &self.state.pods[uid];
        let container = pod.container(name).unwrap();
        let Some(ended) = container.run.ended() else {
            return;
        };
        let spec = pod.spec.container(name).unwrap();
        let own = spec.restart_policy;
        let key = (uid.clone(), name.to_owned());
        // Whatever the policy, a running container has to run from the wanted image.
        let asked = container.run.course().unwrap().asked.clone().unwrap();
        assert!(container.run.attempt() < Some(attempt));
        let replaced = asked.again || container.is_outdated(spec);
        if is_swept(container) {
            return;
        }
        match pod.spec.restart_policy {
            _ if own.is_some() || replaced => {}
            RestartPolicy::Always => {}
            RestartPolicy::OnFailure => assert_ne!(ended.exit.code, 0, "{uid}/{name} ended well"),
            RestartPolicy::Never => panic!("{uid}/{name} is never restarted"),
        }
        let finished = ended.exit.finished.time.0;
        // After a kill for a probe, the exit before it counts; after a kill for its hook, its own exit does.
        let run = (uid.clone(), name.to_owned(), ended.attempt);
        let record = self.world.disk.get(uid).and_then(|d| d.records.get(name));
        let newest = record.and_then(|r| r.newest.as_ref());
        let stopped = newest.is_some_and(|n| n.attempt == ended.attempt && n.stop_sent.is_some());
        let hook_failed = container.hook_failure().is_some();
        let killed = !container.stale() && (stopped || self.first_stop.contains_key(&run));
        let killed = killed && !hook_failed;
        let before = container.previous.as_ref();
        let lasted = before.map(|b| finished - b.exit.finished.time.0);
        // An evicted pod leaves its delays to the pod that replaces it.
        if killed && lasted.is_none() && container.backoff.is_none() {
            // This start costs no back-off, even if it never happens and is permitted again.
            let free = (0, self.world.now, attempt);
            self.backoff.entry(key).or_insert(free).2 = attempt;
            return;
        }
        let waived = container.backoff.is_some_and(|b| b.waived);
        assert!(
            !waived || self.retried.contains(uid),
            "no client asked for a retry"
        );
        let settings = &self.state.settings;
        let longest = settings.max_restart_period_ms;
        // An evicted pod leaves its delays to the pod that replaces it; `check_pace` shows that this suffices.
        let inherited = container.backoff;
        let inherited = inherited.map(|backoff| (backoff.delay_ms, backoff.permitted.0, 0));
        let next = match self.backoff.get(&key).or(inherited.as_ref()) {
            // A start that the agent permitted may never have happened. The next agent does not know that, and permits it again.
            Some((_, _, permitted)) if *permitted >= attempt => return,
            Some((delay, permitted, _)) if finished.saturating_sub(*permitted) <= 600_000 => {
                let delay = *delay.min(&longest);
                assert!(
                    waived || killed && lasted >= Some(delay) || self.world.now >= finished + delay,
                    "{uid}/{name}: restarted {} ms after its end, back-off is {delay} ms",
                    self.world.now - finished
                );
                let next = match delay {
                    0 => settings.initial_restart_period_ms,
                    _ => delay * 2,
                };
                next.min(longest)
            }
            Some(_) | None => settings.initial_restart_period_ms.min(longest),
        };
        self.backoff.insert(key, (next, self.world.now, attempt));
    }

    /// Nothing starts more than 20 times in ten minutes of failing.
    fn check_pace(&mut self, name: &str, uid: &PodUid) {
        let container = self.state.pods[uid].container(name).unwrap();
        let key = (self.state.pods[uid].spec.key.clone(), name.to_owned());
        let ended = container.run.ended();
        let lasted = ended.map_or(0, |e| e.exit.finished.time.since(e.exit.started.time));
        let starts = self.starts.entry(key).or_default();
        if lasted > 600_000 || self.retried.contains(uid) {
            starts.clear();
        }
        let now = self.world.now;
        starts.push(now);
        starts.retain(|at| at + 600_000 > now);
        let usual = self.state.settings.max_restart_period_ms >= 300_000;
        let most = starts.len();
        assert!(!usual || most <= 20, "{uid}/{name}: {most} starts");
    }

    /// A kill gets longer only for a hook that was lost with its agent, at most three times.
    pub(super) fn check_kills(&mut self) {
        for (uid, pod) in &self.state.pods {
            for c in &pod.containers {
                let Some((kill, attempt)) = c.kill().copied().zip(c.run.attempt()) else {
                    continue;
                };
                let run = (uid.clone(), c.name.clone(), attempt);
                let old = self.kills.insert(run, kill).unwrap_or(kill);
                assert!(kill.grace_ms <= old.grace_ms, "{old:?}, {kill:?}");
                assert!(old.since <= kill.since, "{old:?}, {kill:?}");
                let again = kill.again - old.again;
                assert!(again > 0 || old.since == kill.since, "{old:?}, {kill:?}");
                assert!(kill.again <= 3, "{kill:?}");
            }
        }
    }

    /// Checks the status of the pods that this event may have changed.
    pub(super) fn check_status(&mut self, event: &Event) {
        if let Event::Node(NodeFact::Observed(_))
        | Event::Node(NodeFact::ReliefBegun(_))
        | Event::Node(NodeFact::Reclaimed)
        | Event::Node(NodeFact::Alarmed)
        | Event::Node(NodeFact::ImageLacksRoom) = event
        {
            return;
        }
        let node = status::NodeFacts::default();
        let about = |uid: &PodUid| event.pod().is_none_or(|pod| pod == uid);
        for (uid, pod) in self.state.pods.iter().filter(|(uid, _)| about(uid)) {
            let shown = status::pod(pod, &node, &self.state.settings);
            let status = shown.status.unwrap();
            let phase = status.phase.unwrap();
            let cause = pod.verdict.as_ref().map(|verdict| verdict.cause);
            if cause == Some(Cause::RejectedAtShutdown) {
                assert_eq!(status.conditions, None, "{uid}: it shows only the refusal");
                assert_eq!(status.container_statuses, None, "{uid}");
                continue;
            }
            let finished = pod.finished();
            if finished {
                assert!(phase == "Succeeded" || phase == "Failed", "{uid}: {phase}");
            }
            check_kept(pod);
            let rules = pod.spec.all_containers().flat_map(|c| &c.restart_rules);
            let mut actions = rules.map(|r| r.action);
            let more = actions.any(|a| a == RestartAction::RestartAllContainers);
            let conditions = status.conditions.unwrap();
            let of = |type_: &str| conditions.iter().find(|c| c.type_ == type_);
            let said = self.opened.get(uid);
            let own = conditions.len() - usize::from(said.is_some());
            let waits = pod.pending.as_ref().is_some_and(|p| p.refusal.is_some());
            let more = usize::from(more) + usize::from(waits);
            let more = more + usize::from(pod.flags.resizing.is_some());
            let more = more + usize::from(pod.spec.devices.is_some());
            let stale = pod.containers.iter().any(|c| c.fallback.is_some());
            assert_eq!(of("coracle.dev/ImagesCurrent").is_some(), stale);
            let more = more + usize::from(stale);
            let disrupted = pod.verdict.as_ref().is_some_and(|v| v.cause.disrupts());
            assert_eq!(own, 5 + more + usize::from(disrupted));
            let word = |yes: bool| if yes { "True" } else { "False" };
            let gate = of(pods::GATE).map(|c| c.status.as_str());
            assert_eq!(
                gate,
                said.map(|open| word(*open)),
                "{uid}: the gate shows what was set"
            );
            let open = pod.spec.readiness_gates.is_empty() || said == Some(&true);
            let ready = open && of("ContainersReady").unwrap().status == "True";
            assert_eq!(of("Ready").unwrap().status, word(ready), "{uid}");
            let inits = status.init_container_statuses.into_iter().flatten();
            let all = inits.chain(status.container_statuses.into_iter().flatten());
            let added = status.ephemeral_container_statuses.into_iter().flatten();
            for c in all.chain(added) {
                let s = c.state.unwrap();
                let states = usize::from(s.running.is_some())
                    + usize::from(s.waiting.is_some())
                    + usize::from(s.terminated.is_some());
                assert_eq!(states, 1, "{uid}/{}: one state", c.name);
                let key = (uid.clone(), c.name);
                let old = self.restarts.insert(key, c.restart_count).unwrap_or(0);
                assert!(
                    old <= c.restart_count,
                    "{uid}: restartCount never decreases"
                );
            }
        }
    }
}

/// The clean-up removes nothing that is in use, nor the logs that people read first.
fn check_kept(pod: &PodState) {
    for kept in garbage::kept(pod, 1) {
        let c = pod.container(&kept.container).unwrap();
        let starting = match &pod.in_flight {
            Some(Action::StartContainer { instance, .. }) if instance.container == c.name => {
                // Its exit may have come first.
                Some(instance.attempt).filter(|attempt| *attempt >= c.next_attempt)
            }
            _ => None,
        };
        let running = c.run.attempt().filter(|_| c.run.is_running());
        let used = starting.into_iter().chain(running);
        assert!(
            used.clone().all(|n| kept.files_from <= n),
            "{kept:?}: {used:?} in use"
        );
        let newest = used.chain(c.run.attempt());
        assert!(
            newest.clone().all(|n| kept.logs_from <= n),
            "{kept:?}: {newest:?}"
        );
    }
}

/// No container starts before the init containers ahead of it have finished, in this round.
fn check_order(pod: &PodState, name: &str) {
    let at = pod.containers.iter().position(|c| c.name == name).unwrap();
    if pod.containers[at].role == Role::Ephemeral {
        return;
    }
    let ran = pod.mains().iter().any(|c| c.current().is_some());
    for earlier in pod.inits().iter().take(at) {
        let ended = earlier.current().and_then(Run::ended);
        let through = match earlier.role {
            Role::Init => ended.is_some_and(|e| e.exit.code == 0),
            Role::Sidecar | Role::Main | Role::Ephemeral => earlier.current().is_some() || ran,
        };
        let c = &pod.containers[at];
        let beside = c.role == Role::Sidecar && c.current().is_some();
        assert!(through || beside, "{name} starts before {}", earlier.name);
    }
}

/// A sidecar gets its stop signal when the containers it serves are gone.
fn check_turn(pod: &PodState, sidecar: &ContainerState) {
    let at = pod.containers.iter().position(|c| c.name == sidecar.name);
    for (i, c) in pod.containers.iter().enumerate() {
        let serves = c.role == Role::Main || c.role == Role::Sidecar && Some(i) > at;
        let gone = !c.run.is_running();
        assert!(!serves || gone, "{} stops before {}", sidecar.name, c.name);
    }
}

/// Whether its newest run ended because of its pod, or on request, so that its own exits cause no wait.
pub(super) fn is_swept(c: &ContainerState) -> bool {
    let follows = c.removed_in_place() && !c.round.fired;
    let asked = c.run.course().and_then(|course| course.asked.as_ref());
    let requested = c.run.ended().is_some() && asked.is_some_and(|asked| asked.on_request);
    requested || follows || c.restored() || c.stale() && c.role != Role::Main && !c.round.fired
}
