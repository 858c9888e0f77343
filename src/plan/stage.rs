//! How far is a pod? Everything here follows from the containers' newest runs, so nothing of it has to be remembered
//! (kubelet-behaviour §2.4, §2.5, §3.4, §4.2).
//!
//! ```text
//! init containers, one after the other ──► regular containers ──► complete ──► sidecars stop ──► finished
//!        │ fails for good ──────────────────────────────────────────▲
//! ```

use std::sync::Arc;

use super::event::Health;
use super::state::{ContainerState, Role, Run, Sandbox};
use super::{PodState, hook, probe, restart};
use crate::spec::{ContainerSpec, RestartPolicy};

impl ContainerState {
    /// Whether it runs and has come up: field `started` of its status.
    pub fn started(&self) -> bool {
        self.run.is_running() && self.started
    }

    /// What the next agent has to know of a running container's probes.
    pub fn health(&self) -> Option<Health> {
        let attempt = self.run.attempt().filter(|_| self.run.is_running())?;
        let (started, ready) = (self.started, self.ready);
        Some(Health {
            attempt,
            started,
            ready,
            streaks: self.tracks.streaks(),
            firsts: self.tracks.firsts(),
        })
    }

    /// Field `ready` of its status.
    pub fn ready(&self) -> bool {
        match self.role {
            Role::Init => self.done_well(),
            Role::Sidecar | Role::Main => self.run.is_running() && self.ready,
            // Nobody asks, and nobody waits for it.
            Role::Ephemeral => false,
        }
    }

    /// Whether this init container has done its work in this round.
    pub(super) fn done_well(&self) -> bool {
        let ended = self.current().and_then(Run::ended);
        ended.is_some_and(|e| e.exit.code == 0 && !e.exit.oom_killed)
    }
}

impl PodState {
    /// The containers of the manifest and what is wanted of them.
    pub(super) fn each(
        &self,
    ) -> impl DoubleEndedIterator<Item = (&ContainerSpec, &ContainerState)> {
        let inits = self.spec.init_containers.len();
        let (inits, mains) = self.containers.split_at(inits);
        let inits = self.spec.init_containers.iter().zip(inits);
        inits.chain(self.spec.containers.iter().zip(mains))
    }

    /// Notes what the probes' results come to.
    pub(super) fn note_health(&mut self) {
        let specs = Arc::clone(&self.spec);
        for (spec, c) in specs.all_containers().zip(&mut self.containers) {
            c.up = c.run.is_running() && hook::is_up(spec, c);
            c.started = probe::has_started(spec, c);
            c.ready = probe::is_ready(spec, c);
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

    /// Containers the manifest asks for: they decide what becomes of the pod.
    pub fn of_manifest(&self) -> &[ContainerState] {
        let inits = self.spec.init_containers.len();
        &self.containers[..inits + self.spec.containers.len()]
    }

    /// Containers added while the pod runs.
    pub fn ephemerals(&self) -> &[ContainerState] {
        &self.containers[self.of_manifest().len()..]
    }

    /// Whether regular containers may start: the last init container is through, or one of them ran in this round.
    pub fn is_initialized(&self) -> bool {
        let through = self.inits().last().is_none_or(|last| match last.role {
            Role::Init | Role::Main | Role::Ephemeral => last.done_well(),
            Role::Sidecar => last.started(),
        });
        through || self.mains().iter().any(|c| c.current().is_some())
    }

    /// Whether this container, if it does not run, is to be started (again).
    pub fn wants_start(&self, container: &ContainerState) -> bool {
        self.stopping.is_none() && self.left_to_run(container)
    }

    /// As [`PodState::wants_start`], the pod itself being left alone. Of one that runs there is nothing to start again.
    pub(super) fn left_to_run(&self, c: &ContainerState) -> bool {
        let possible = match c.role {
            Role::Init | Role::Main => !self.over() && !self.init_failed(),
            Role::Sidecar | Role::Ephemeral => !self.complete(),
        };
        possible && self.again(c)
    }

    /// Whether what its newest run has come to makes this container start (again).
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
            // A new sandbox is for everybody but those that have done their work.
            Role::Main => self.allows(c) || self.policy(c) != RestartPolicy::OnFailure,
        }
    }

    /// Whether an init container that has ended runs again in this round: it failed, which the policy forgives.
    fn retries(&self, c: &ContainerState) -> bool {
        // Killed for memory is a failure whatever the exit code.
        let oom = c.run.ended().is_some_and(|e| e.exit.oom_killed);
        !c.done_well() && (self.allows(c) || oom && self.policy(c) != RestartPolicy::Never)
    }

    /// Whether policy and rules let an exited container start again.
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

    /// A pod that has failed, or that is never restarted and lost its sandbox, starts nothing any more, whatever its
    /// containers' own policies.
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

    /// Whether nothing but sidecars and ephemeral containers is left to run: they are stopped, and the pod finishes.
    pub fn complete(&self) -> bool {
        let done = |c: &ContainerState| c.run.ended().is_some() && !self.again(c);
        let done = self.init_failed() || self.mains().iter().all(done);
        self.over() || done && !self.restarts_all()
    }

    /// Whether every container ended and none will start again, the pod itself being left alone.
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
