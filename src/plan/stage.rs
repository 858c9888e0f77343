//! How far a pod is. Everything here follows from the containers' newest runs, so none of it is stored (Kubernetes
//! docs: Pod Lifecycle; the kubelet's `pkg/kubelet/kuberuntime`).
//!
//! ```text
//! init containers, one after the other ──► regular containers ──► complete ──► sidecars stop ──► finished
//!        │ fails for good ──────────────────────────────────────────▲
//! ```

use std::sync::Arc;

use super::health::Health;
use super::run::{OfRun, Run};
use super::state::{ContainerState, Role, Sandbox};
use super::{PodState, hook, probe, restart};
use crate::spec::{ContainerSpec, RestartPolicy};

impl ContainerState {
    /// Whether it runs and has come up: field `started` of its status.
    pub fn started(&self) -> bool {
        self.run.running().is_some_and(|run| run.started)
    }

    /// What is saved of a running container's probes for an agent restart.
    pub fn health(&self) -> Option<OfRun<Health>> {
        let run = self.run.running()?;
        Some(OfRun {
            attempt: run.attempt,
            of: Health {
                started: run.started,
                ready: run.ready,
                unproved: run.tracks.unproved(),
                proved: run.tracks.proved,
                streaks: run.tracks.streaks(),
                firsts: run.tracks.firsts(),
            },
        })
    }

    /// Field `ready` of its status.
    pub fn ready(&self) -> bool {
        match self.role {
            Role::Init => self.done_well(),
            Role::Sidecar | Role::Main => self.run.running().is_some_and(|run| run.ready),
            // Ephemeral containers have no readiness, and none is needed.
            Role::Ephemeral => false,
        }
    }

    /// Whether this init container is done in this round.
    pub(super) fn done_well(&self) -> bool {
        let ended = self.current().and_then(Run::ended);
        ended.is_some_and(|e| e.exit.code == 0 && !e.exit.oom_killed)
    }
}

impl PodState {
    /// The containers of the manifest and their specs.
    pub(super) fn each(
        &self,
    ) -> impl DoubleEndedIterator<Item = (&ContainerSpec, &ContainerState)> {
        let inits = self.spec.init_containers.len();
        let (inits, mains) = self.containers.split_at(inits);
        let inits = self.spec.init_containers.iter().zip(inits);
        inits.chain(self.spec.containers.iter().zip(mains))
    }

    /// Updates the readiness that follows from the probes.
    pub(super) fn note_health(&mut self) {
        let specs = Arc::clone(&self.spec);
        for (spec, c) in specs.all_containers().zip(&mut self.containers) {
            if let Some(run) = c.run.running_mut() {
                run.up = hook::is_up(spec, run);
                run.started = probe::has_started(spec, run);
                run.ready = probe::is_ready(spec, run);
            }
        }
    }

    /// Init containers and sidecars.
    pub fn inits(&self) -> &[ContainerState] {
        &self.containers[..self.spec.init_containers.len()]
    }

    /// Regular containers.
    pub fn mains(&self) -> &[ContainerState] {
        let inits = self.spec.init_containers.len();
        &self.containers[inits..inits + self.spec.containers.len()]
    }

    /// The containers of the manifest: they decide what becomes of the pod.
    pub fn of_manifest(&self) -> &[ContainerState] {
        let inits = self.spec.init_containers.len();
        &self.containers[..inits + self.spec.containers.len()]
    }

    /// Ephemeral containers, added while the pod runs.
    pub fn ephemerals(&self) -> &[ContainerState] {
        &self.containers[self.of_manifest().len()..]
    }

    /// Whether regular containers may start: the last init container is done, or a regular one ran in this round.
    pub fn is_initialized(&self) -> bool {
        let through = self.inits().last().is_none_or(|last| match last.role {
            Role::Init | Role::Main | Role::Ephemeral => last.done_well(),
            Role::Sidecar => last.started(),
        });
        through || self.mains().iter().any(|c| c.current().is_some())
    }

    /// Whether this container, if it does not run, starts (again).
    pub fn wants_start(&self, container: &ContainerState) -> bool {
        self.stopping().is_none() && self.left_to_run(container)
    }

    /// Like [`PodState::wants_start`], without regard to the pod as a whole. A running container does not start
    /// again.
    pub(super) fn left_to_run(&self, c: &ContainerState) -> bool {
        let possible = match c.role {
            Role::Init | Role::Main => !self.over() && !self.init_failed(),
            Role::Sidecar | Role::Ephemeral => !self.complete(),
        };
        possible && self.again(c)
    }

    /// Whether the end of its newest run makes this container start (again).
    fn again(&self, c: &ContainerState) -> bool {
        if c.run.ended().is_none() {
            return c.run == Run::None;
        }
        let replaced = || c.is_replaced(self.spec.container(&c.name));
        if c.removed_in_place() || c.restored() || replaced() {
            return true;
        }
        match c.role {
            Role::Sidecar => true,
            Role::Ephemeral => false,
            Role::Init => c.stale() || self.retries(c),
            Role::Main if !c.stale() => self.allows(c),
            // In a new sandbox all containers start, except those that are done.
            Role::Main => self.allows(c) || self.policy(c) != RestartPolicy::OnFailure,
        }
    }

    /// Whether an exited init container runs again in this round: it failed, and the policy retries it.
    fn retries(&self, c: &ContainerState) -> bool {
        // An OOM kill is a failure whatever the exit code.
        let oom = c.run.ended().is_some_and(|e| e.exit.oom_killed);
        !c.done_well() && (self.allows(c) || oom && self.policy(c) != RestartPolicy::Never)
    }

    /// Whether policy and rules restart an exited container.
    fn allows(&self, c: &ContainerState) -> bool {
        let spec = self.spec.container(&c.name);
        let (Some(spec), Some(ended)) = (spec, c.run.ended()) else {
            return false;
        };
        let code = ended.exit.code;
        spec.restart_rules.iter().any(|rule| rule.matches(code))
            || restart::wanted(
                spec.restart_policy.unwrap_or(self.spec.restart_policy),
                &ended.exit,
            )
    }

    pub(super) fn policy(&self, c: &ContainerState) -> RestartPolicy {
        let own = self.spec.container(&c.name).and_then(|s| s.restart_policy);
        own.unwrap_or(self.spec.restart_policy)
    }

    /// Whether the pod is beyond restarts: a pod that has failed, or that is never restarted and lost its sandbox,
    /// starts no container, whatever its containers' own policies.
    pub(super) fn over(&self) -> bool {
        match self.sandbox {
            _ if self.verdict.is_some() => true,
            Sandbox::Removed => true,
            Sandbox::Lost => {
                self.spec.restart_policy == RestartPolicy::Never
                    && self.of_manifest().iter().any(|c| c.current().is_some())
            }
            Sandbox::None | Sandbox::Ready { .. } => false,
        }
    }

    /// Whether an init container failed for good: the pod has failed.
    pub fn init_failed(&self) -> bool {
        let failed = |c: &ContainerState| {
            let ended = c.current().is_some_and(|run| run.ended().is_some());
            c.role == Role::Init && ended && !c.done_well() && !self.retries(c)
        };
        self.inits().iter().any(failed)
    }

    /// Whether only sidecars and ephemeral containers are left to run: they are stopped, and the pod finishes.
    pub fn complete(&self) -> bool {
        let done = |c: &ContainerState| c.run.ended().is_some() && !self.again(c);
        let done = self.init_failed() || self.mains().iter().all(done);
        self.over() || done && !self.restarts_all()
    }

    /// Whether every container ended and none will start again, without regard to the pod as a whole.
    pub fn finished(&self) -> bool {
        !self.any_running() && self.complete()
    }

    /// Whether the pod counts as ready.
    pub(super) fn all_ready(&self) -> bool {
        let counts = |c: &&ContainerState| c.role != Role::Init;
        self.of_manifest()
            .iter()
            .filter(counts)
            .all(ContainerState::ready)
    }

    /// Condition `Initialized`.
    pub(super) fn shows_initialized(&self) -> bool {
        let through = |c: &ContainerState| !incomplete(c);
        let ran = |c: &ContainerState| c.current().is_some() || c.removed_in_place();
        self.inits().iter().all(through) || self.mains().iter().any(ran)
    }
}

/// Whether an init container or sidecar keeps the pod from being initialized.
pub(super) fn incomplete(c: &ContainerState) -> bool {
    match c.role {
        Role::Init => !c.done_well(),
        Role::Sidecar => !c.started(),
        Role::Main | Role::Ephemeral => false,
    }
}
