//! Retries on request: what a pod waits for before it tries again. A person who has fixed the cause can end the
//! current waits. Every series of waits stays as it is, so that the next failure waits longer.

use std::fmt;

use super::state::{ContainerState, Image, Sandbox};
use super::verdict::Cause;
use super::{PodState, Settings, Time, restart};
use crate::spec::WorkloadKind;

/// How long a pod waits for a running import before it reports its image as missing.
pub const IMPORT_PATIENCE_MS: u64 = 30_000;

/// A wait that can be ended on request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// This container crashed: `CrashLoopBackOff`.
    Crash(String),
    /// This container could not be created.
    Create(String),
    /// This container's image was not available.
    Image(String),
    /// The sandbox could not be created, or got lost again and again.
    Sandbox,
    /// The rest of the pod could not be removed.
    Removal,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crash(name) => write!(f, "starting container {name} now"),
            Self::Create(name) => write!(f, "creating container {name} now"),
            Self::Image(name) => write!(f, "looking for the image of container {name} now"),
            Self::Sandbox => write!(f, "creating the sandbox now"),
            Self::Removal => write!(f, "removing the rest of the pod now"),
        }
    }
}

/// Why the pod has no wait to end, as a sentence.
pub fn idle(pod: &PodState, container: Option<&str>) -> String {
    let name = &pod.spec.key.name;
    let cause = pod.verdict.as_ref().map(|verdict| verdict.cause);
    let runs = |c: &ContainerState| c.run.is_running();
    let one = container.and_then(|name| pod.container(name));
    if let Some(hold) = pod.hold() {
        format!("pod {name} waits for admission: {}", hold.message)
    } else if pod.stopping().is_some() {
        format!("pod {name} is being stopped and waits for nothing")
    } else if let Some(Cause::Evicted | Cause::OverLimit) = cause {
        format!("pod {name} was evicted and starts again later; delete it to run it now")
    } else if pod.finished() && of_job(pod) {
        // Without the pod its result is lost, and nothing runs instead.
        format!(
            "pod {name} has finished; its Job runs again under another name, or after its file has changed"
        )
    } else if pod.finished() {
        format!("pod {name} has finished; delete it to run it again")
    } else if let Some(one) = one.filter(|c| runs(c)) {
        format!("container {} of pod {name} is running", one.name)
    } else if container.is_none() && pod.mains().iter().all(runs) {
        format!("all containers of pod {name} are running")
    } else {
        format!("pod {name} waits for nothing that can be retried")
    }
}

fn of_job(pod: &PodState) -> bool {
    let workload = pod.spec.workload.as_ref();
    workload.is_some_and(|key| key.kind == WorkloadKind::Job)
}

/// What the pod, or this container of it alone, waits for.
pub fn waits(pod: &PodState, container: Option<&str>, settings: &Settings, now: Time) -> Vec<Wait> {
    let mut found = Vec::new();
    let removes = pod.stopping().is_some() || pod.finished();
    let created = matches!(pod.sandbox, Sandbox::Ready { .. });
    if container.is_none() && !created && !removes {
        let at = pod.retries.create.at.max(pod.retries.lost.at);
        found.extend((at > now).then_some(Wait::Sandbox));
    }
    if container.is_none() && removes && pod.retries.remove.at > now {
        found.push(Wait::Removal);
    }
    let wanted = |name: &str| container.is_none_or(|only| only == name);
    for c in pod.containers.iter().filter(|c| wanted(&c.name)) {
        if !pod.wants_start(c) {
            continue;
        }
        let name = || c.name.clone();
        if restart::earliest(c, pod.waits(settings)) > now {
            found.push(Wait::Crash(name()));
        }
        if c.start_error().is_some_and(|e| e.retry.at > now) {
            found.push(Wait::Create(name()));
        }
        if matches!(&c.image, Image::Failed { retry, .. } if retry.at > now) {
            found.push(Wait::Image(name()));
        }
    }
    found
}

/// Ends what [`waits`] finds.
pub(super) fn retry(pod: &mut PodState, container: Option<&str>, settings: &Settings, now: Time) {
    for wait in waits(pod, container, settings, now) {
        match wait {
            Wait::Sandbox => {
                pod.retries.create.at = now;
                pod.retries.lost.at = now;
            }
            Wait::Removal => pod.retries.remove.at = now,
            Wait::Crash(name) => {
                let backoff = pod.container_mut(&name).and_then(|c| c.backoff.as_mut());
                if let Some(backoff) = backoff {
                    backoff.waived = true;
                }
            }
            Wait::Create(name) => {
                let error = pod
                    .container_mut(&name)
                    .and_then(|c| c.start_error.as_mut());
                if let Some(error) = error {
                    error.retry.at = now;
                }
            }
            Wait::Image(name) => {
                if let Some(c) = pod.container_mut(&name)
                    && let Image::Failed { retry, .. } = &mut c.image
                {
                    retry.at = now;
                }
            }
        }
    }
}
