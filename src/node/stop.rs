//! Pods that clients stop, start and restart. The planner decides; this file checks what clients ask for, saves what
//! is stopped, and answers once that is on disk.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Node;
use super::commands::Reply;
use crate::api::{CommandError, CommandErrorKind};
use crate::plan::event::{Event, NodeFact, PodFact};
use crate::plan::stop::{MAX_STOPS, Stops, Target};
use crate::plan::{PodState, restart_request, retry};
use crate::spec::WorkloadKind;

fn conflict(message: String) -> CommandError {
    CommandError {
        kind: CommandErrorKind::Conflict,
        message,
    }
}

impl Node {
    /// Restores what was stopped before the agent restart or reboot. Called when its pods are known and before any is
    /// admitted.
    pub(super) fn resume_stops(&mut self) {
        let path = self.tools.config.layout.stops();
        if let Some(stops) = self.stops.recover(&path) {
            self.record(&Event::Node(NodeFact::StopsRecovered(stops)));
        }
    }

    /// After each fact: starts to save what is stopped. An agent that takes its pods along forgets nothing.
    pub(super) fn note_stops(&mut self) {
        if !self.leaving {
            let stops = Some(&self.state.stops).filter(|stops| !stops.is_empty());
            self.stops.keep(stops, self.tools.config.layout.stops());
        }
    }

    /// Once every file could be read: forgets the stops of what no file asks for.
    pub(super) fn forget_stray_stops(&mut self) {
        let targets = self.state.stray_stops();
        if !targets.is_empty() {
            self.record(&Event::Node(NodeFact::StartRequested { targets }));
        }
    }

    /// Stops these or starts them; answers, once it is on disk, which of them that changed.
    pub(super) fn stop_or_start(
        &mut self,
        targets: BTreeSet<Target>,
        (stop, grace_ms): (bool, Option<u64>),
        reply: Reply<Value>,
    ) {
        let refused = (targets.iter()).find_map(|target| self.may_not(target, stop));
        let room = MAX_STOPS.saturating_sub(self.state.stops.len());
        let refused = refused.or_else(|| {
            let full = stop && targets.len() > room;
            full.then(|| conflict(format!("no more than {MAX_STOPS} can be stopped at a time")))
        });
        if let Some(refused) = refused {
            let _ = reply.try_send(Err(refused));
            return;
        }
        let changed: Vec<Value> = (targets.iter())
            .map(|target| {
                let (name, namespace) = target.shown();
                tracing::info!(
                    "{name} of namespace {namespace} is {} by command",
                    if stop { "stopped" } else { "started" }
                );
                let changed = match stop {
                    true => !self.state.stops.has(target),
                    false => self.is_down(target),
                };
                json!({ "name": name, "changed": changed })
            })
            .collect();
        let fact = match stop {
            true => NodeFact::StopRequested { targets, grace_ms },
            false => NodeFact::StartRequested { targets },
        };
        self.record(&Event::Node(fact));
        self.stops.when_written(move |written| {
            let _ = reply.try_send(written.map(|()| json!({ "items": changed })));
        });
    }

    /// Whether this is stopped, or, of a document, any of its pods.
    fn is_down(&self, target: &Target) -> bool {
        let stops = &self.state.stops;
        let own = |pod: &&PodState| match target {
            Target::Workload(key) => pod.spec.workload.as_ref() == Some(key),
            Target::Pod(_) => false,
        };
        let mut own = self.state.pods.values().filter(own);
        stops.has(target) || own.any(|pod| stops.of(&pod.spec).is_some())
    }

    /// Everything of this namespace that is stopped.
    pub(super) fn stopped_in(&self, namespace: &str) -> BTreeSet<Target> {
        let all = self.state.stops.targets();
        let here = all.filter(|target| target.shown().1 == namespace);
        here.cloned().collect()
    }

    /// Why this cannot be stopped or started.
    fn may_not(&self, target: &Target, stop: bool) -> Option<CommandError> {
        let key = match target {
            _ if !stop && self.state.stops.has(target) => return None,
            Target::Pod(key) => key,
            Target::Workload(key) => {
                let desired = self.state.desired.as_ref();
                let known = desired.is_some_and(|desired| desired.workloads.contains_key(key));
                return (!known).then(|| CommandError {
                    kind: CommandErrorKind::NotFound,
                    message: format!("{} not found", target.shown().0),
                });
            }
        };
        let pod = match self.find(&key.namespace, &key.name) {
            Ok(pod) => pod,
            Err(error) => return Some(error),
        };
        let owner = pod.spec.workload.clone();
        let job = owner.filter(|owner| owner.kind == WorkloadKind::Job);
        match self.state.stops.of(&pod.spec) {
            Some(by) if by != *target && !stop => Some(conflict(format!(
                "pod {} is down because {} was stopped; `{}` starts it",
                key.name,
                by.shown().0,
                by.remedy()
            ))),
            _ => job.map(|job| {
                let verb = if stop { "stop" } else { "start" };
                conflict(format!(
                    "pod {} belongs to a Job, which makes others for it; `coracle {verb} job/{}` is for all of them",
                    key.name, job.name
                ))
            }),
        }
    }

    /// Restarts a pod's containers, or one of them; answers, once that is saved, which, and how often each had been
    /// restarted before.
    pub(super) fn restart_pod(
        &mut self,
        (namespace, name): (&str, &str),
        container: Option<String>,
        grace_ms: Option<u64>,
    ) -> Result<Value, CommandError> {
        let pod = self.find(namespace, name)?;
        let uid = pod.spec.uid.clone();
        if let Some(unknown) = container.as_ref().filter(|c| pod.container(c).is_none()) {
            return Err(CommandError {
                kind: CommandErrorKind::Invalid,
                message: format!("container {unknown} is not valid for pod {name}"),
            });
        }
        if self.state.shutdown.is_some() {
            return Err(conflict("the node is shutting down".to_owned()));
        }
        let only = container.as_deref();
        let now = super::now().time;
        let running: Vec<&str> = restart_request::restartable(pod, only).collect();
        let waits = retry::waits(pod, only, &self.state.settings, now);
        if running.is_empty() && waits.is_empty() {
            return Err(conflict(nothing_to_restart(pod, only)));
        }
        let waiting = pod.of_manifest().iter().filter(|c| {
            let chosen = only.is_none_or(|only| only == c.name);
            chosen && !c.run.is_running() && pod.wants_start(c) && pod.is_initialized()
        });
        let names = running
            .iter()
            .copied()
            .chain(waiting.map(|c| c.name.as_str()));
        let before: Vec<Value> = names
            .filter_map(|name| pod.container(name))
            .map(|c| json!({ "name": c.name, "restartCount": c.restart_count(), "ran": c.run.attempt() }))
            .collect();
        self.record(&Event::Pod {
            uid: uid.clone(),
            fact: PodFact::RestartRequested {
                container,
                grace_ms,
            },
        });
        self.publish(&uid);
        if !self.saved.has_checkpoint(&self.state.pods[&uid]) {
            return Err(CommandError {
                kind: CommandErrorKind::Failed,
                message: format!(
                    "pod {name} restarts, but could not be saved: an agent restart may forget it"
                ),
            });
        }
        Ok(json!({ "uid": uid.as_str(), "containers": before }))
    }
}

/// Why nothing of the pod can be restarted, as a sentence.
fn nothing_to_restart(pod: &PodState, container: Option<&str>) -> String {
    let name = &pod.spec.key.name;
    match container {
        _ if pod.hold().is_some() || pod.stopping().is_some() || pod.finished() => {
            retry::idle(pod, container)
        }
        Some(container) => format!("container {container} of pod {name} is not running"),
        None => format!("no container of pod {name} is running yet"),
    }
}

/// What is stopped, as it is on disk.
pub(super) type KeptStops = super::kept::Kept<Stops>;
