//! What of a pod's state outlives the agent. [`PodMemory::of`] is the only way out of the state, [`PodMemory::restore`]
//! the only way back: a new field takes a line in each. It has nothing that shims and records know of runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::after::Waiting;
use super::condition::{Flags, Foreign};
use super::event::{Evictions, Hooks, Kill, Verdict};
use super::health::Health;
use super::probe::Tracks;
use super::recovered::{RecoveredContainer, RecoveredRun};
use super::restart::CrashBackoff;
use super::round::Round;
use super::run::{Asked, Course, Ended, OfRun, Past, Run, Running, Stop};
use super::state::{ContainerState, Retry, Stage, StartError, Stopping};
use super::{PodState, Stamp, Time};
use crate::spec::{ContainerSpec, PodResources};
use crate::types::Gather;

/// The memory of a pod, as it is saved. Its times count from the boot. Losing it costs counters and what was under way.
/// A field that is missing in the file gets its default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodMemory {
    /// When the pod was first seen; `None`: not known.
    pub created: Option<Stamp>,
    /// Crash back-off, by container.
    pub backoff: BTreeMap<String, CrashBackoff>,
    /// Runs that failed by themselves, by container.
    pub failures: BTreeMap<String, u32>,
    /// Containers that could not be created, and why.
    pub start_errors: BTreeMap<String, StartError>,
    /// Its waits for its sandbox.
    pub waits: SandboxWaits,
    /// The rounds of containers that have had more than one.
    pub rounds: BTreeMap<String, Round>,
    /// The health of running containers.
    pub health: BTreeMap<String, OfRun<Health>>,
    /// What the newest runs were started with, and those being started.
    pub asked: BTreeMap<String, Vec<OfRun<Asked>>>,
    /// The number of the run before the newest one, by container, if a client's restart had ended it.
    pub on_request: BTreeMap<String, u32>,
    /// The progress of hooks that have begun.
    pub hooks: BTreeMap<String, OfRun<Hooks>>,
    /// The resources in the pod's cgroup; `None`: those it was admitted with.
    pub actuated: Option<PodResources>,
    /// The kills of running containers.
    pub kills: BTreeMap<String, OfRun<Kill>>,
    /// Set if the pod is to go.
    pub stopping: Option<Stopping>,
    /// Set if it has failed.
    pub verdict: Option<Verdict>,
    /// Its recent evictions.
    pub evictions: Evictions,
    /// How far it is with what it starts after.
    pub waiting: Waiting,
    /// When its sidecars began to be stopped.
    pub finishing: Option<Time>,
    /// The conditions that clients have set; `None`: not known.
    pub foreign: Option<Vec<Foreign>>,
    /// Its own conditions; `None`: not known.
    pub flags: Option<Flags>,
}

/// The waits of a pod for its sandbox, as they are saved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxWaits {
    /// Between attempts to make it.
    pub create: Retry,
    /// Between sandboxes that get lost soon after they were made.
    pub lost: Retry,
    /// When it became ready; `None` if it was not.
    pub ready_since: Option<Time>,
}

impl PodMemory {
    /// The memory of this pod.
    pub fn of(pod: &PodState) -> Self {
        Self {
            created: Some(pod.created),
            backoff: each(pod, |c| c.backoff),
            failures: each(pod, |c| (c.failures > 0).then_some(c.failures)),
            start_errors: each(pod, |c| c.start_error.clone()),
            waits: pod.sandbox_waits(),
            rounds: each(pod, |c| (c.round != Round::default()).then_some(c.round)),
            health: each(pod, ContainerState::health),
            asked: each(pod, |c| Some(c.all_asked())),
            on_request: each(pod, |c| {
                let previous = c.previous.as_ref().filter(|ended| ended.on_request)?;
                Some(previous.attempt)
            }),
            hooks: each(pod, |c| {
                let hooks = c.hooks().filter(|hooks| !hooks.is_new())?;
                of_newest(c, hooks.resting())
            }),
            actuated: Some(pod.resizing.actuated),
            kills: each(pod, |c| of_newest(c, *c.kill()?)),
            stopping: pod.stopping(),
            verdict: pod.verdict.clone(),
            evictions: pod.evictions,
            waiting: pod.waiting.clone(),
            finishing: pod.finishing(),
            foreign: Some(pod.foreign.clone()),
            flags: Some(pod.flags),
        }
    }

    /// Restores a pod that was just admitted, with what is left of its containers. The caller restores
    /// [`PodMemory::flags`] last.
    pub(super) fn restore(&self, pod: &mut PodState, left: &BTreeMap<String, RecoveredContainer>) {
        let spec = pod.spec.clone();
        for (spec, container) in spec.all_containers().zip(&mut pod.containers) {
            if let Some(left) = left.get(&container.name) {
                self.restore_container(spec, container, left);
            }
        }
        (pod.retries.create, pod.retries.lost) = (self.waits.create, self.waits.lost);
        pod.resizing.actuated = self.actuated.unwrap_or(spec.resources);
        pod.stage = match (self.stopping, self.finishing) {
            (Some(stopping), _) => Stage::Stopping(stopping),
            (None, finishing) => Stage::Admitted { finishing },
        };
        pod.verdict.clone_from(&self.verdict);
        pod.evictions = self.evictions;
        pod.waiting.clone_from(&self.waiting);
        if let Some(foreign) = &self.foreign {
            pod.foreign.clone_from(foreign);
        }
    }

    fn restore_container(
        &self,
        spec: &ContainerSpec,
        container: &mut ContainerState,
        left: &RecoveredContainer,
    ) {
        let name = &*container.name;
        let backoff = self.backoff.get(name).copied();
        let round = self.rounds.get(name).copied().unwrap_or_default();
        let spent = left.newest.as_ref();
        let spent = spent.map_or(0, |newest| newest.attempt.saturating_add(1));
        container.next_attempt = spent.max(round.first);
        container.failures = self.failures.get(name).copied().unwrap_or(0);
        container.start_error = self.start_errors.get(name).cloned();
        (container.backoff, container.round) = (backoff, round);
        let Some(newest) = &left.newest else {
            return;
        };
        let attempt = newest.attempt;
        container.previous = left.previous.as_ref().map(|exit| Ended {
            attempt: attempt.saturating_sub(1),
            image_id: newest.image_id.clone(),
            exit: exit.clone(),
            on_request: attempt
                .checked_sub(1)
                .is_some_and(|former| self.ended_on_request(name, former)),
        });
        let course = self.course(name, spec, newest);
        let Some(exit) = &newest.exit else {
            // Probes that are not remembered start over, at once.
            let health = self.health.get(name).and_then(|h| h.of(attempt));
            let kill = self.kills.get(name).and_then(|kill| kill.of(attempt));
            container.run = Run::Running(Box::new(Running {
                kill: kill.copied(),
                tracks: Tracks::recovered(&spec.probes, newest.started.time, health),
                course,
                ..Running::new(attempt, newest.image_id.clone(), newest.pid, newest.started)
            }));
            return;
        };
        // A permit given after this exit was for a start that never came about: it is still good.
        if backoff.is_some_and(|b| b.permitted > exit.finished.time) {
            container.permitted = Some(container.next_attempt);
        }
        container.run = Run::Ended(Box::new(Past {
            ended: Ended {
                attempt,
                image_id: newest.image_id.clone(),
                exit: exit.clone(),
                on_request: course.on_request(),
            },
            course,
        }));
    }

    /// Whether a client's restart had ended this run, the newest one or the one before.
    fn ended_on_request(&self, name: &str, attempt: u32) -> bool {
        let mut asked = self.asked.get(name).into_iter().flatten();
        let asked = asked.find_map(|asked| asked.of(attempt));
        self.on_request.get(name) == Some(&attempt) || asked.is_some_and(|asked| asked.on_request)
    }

    /// The course of this run.
    fn course(&self, name: &str, spec: &ContainerSpec, run: &RecoveredRun) -> Course {
        let mut asked = self.asked.get(name).into_iter().flatten();
        // Without a record of it, it is as it was admitted.
        let asked = asked.find_map(|asked| asked.of(run.attempt).cloned());
        let mut asked = asked.unwrap_or_else(|| spec.asked());
        asked.effective.clone_from(&run.effective);
        let hooks = self.hooks.get(name).and_then(|hooks| hooks.of(run.attempt));
        Course {
            asked: Some(asked),
            hooks: hooks.map(Hooks::resting).unwrap_or_default(),
            stop: Stop {
                asked: run.stop_sent,
                sent: run.stop_sent,
                ..Stop::default()
            },
        }
    }
}

/// Labels something with the number of the container's newest run.
fn of_newest<T>(container: &ContainerState, of: T) -> Option<OfRun<T>> {
    let attempt = container.run.attempt()?;
    Some(OfRun { attempt, of })
}

/// What `get` returns for each container, by name.
fn each<T>(pod: &PodState, get: impl Fn(&ContainerState) -> Option<T>) -> BTreeMap<String, T> {
    let all = pod.containers.iter();
    all.filter_map(|c| Some((c.name.clone(), get(c)?))).gather()
}
