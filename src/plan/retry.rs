//! What does a pod wait for before it tries again? Somebody who has mended the cause need not wait along: his wish ends
//! the waits there are, and leaves every series of waits as it is, so that the next failure waits longer.

use std::fmt;

use super::state::{ContainerState, Image, Sandbox};
use super::verdict::Cause;
use super::{PodState, Settings, Time, restart};

/// A wait that somebody can end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// This container crashed: `CrashLoopBackOff`.
    Crash(String),
    /// This container could not be created.
    Create(String),
    /// This container's image was not to be had.
    Image(String),
    /// The sandbox could not be made, or got lost again and again.
    Sandbox,
    /// What is left of the pod could not be removed.
    Removal,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crash(name) => write!(f, "container {name} is started now"),
            Self::Create(name) => write!(f, "container {name} is created now"),
            Self::Image(name) => write!(f, "the image of container {name} is looked for now"),
            Self::Sandbox => write!(f, "the sandbox is made now"),
            Self::Removal => write!(f, "what is left of it is removed now"),
        }
    }
}

/// Why there is nothing to wait for, as a sentence.
pub fn idle(pod: &PodState, container: Option<&str>) -> String {
    let name = &pod.spec.key.name;
    let cause = pod.verdict.as_ref().map(|verdict| verdict.cause);
    let runs = |c: &ContainerState| c.run.is_running();
    let one = container.and_then(|name| pod.container(name));
    if let Some(hold) = &pod.hold {
        format!("pod {name} waits to be let in: {}", hold.message)
    } else if pod.stopping.is_some() {
        format!("pod {name} is being stopped and waits for nothing")
    } else if let Some(Cause::Evicted | Cause::OverLimit) = cause {
        format!("pod {name} was evicted, and is started again later; delete it to run it now")
    } else if pod.finished() {
        format!("pod {name} has finished; delete it to run it again")
    } else if let Some(one) = one.filter(|c| runs(c)) {
        format!("container {} of pod {name} is running", one.name)
    } else if container.is_none() && pod.mains().iter().all(runs) {
        format!("all containers of pod {name} are running")
    } else {
        format!("pod {name} waits for nothing that could be tried again")
    }
}

/// What the pod waits for, or this container of it alone.
pub fn waits(pod: &PodState, container: Option<&str>, settings: &Settings, now: Time) -> Vec<Wait> {
    let mut found = Vec::new();
    let removes = pod.stopping.is_some() || pod.finished();
    let created = matches!(pod.sandbox, Sandbox::Ready { .. });
    if container.is_none() && !created && !removes {
        let at = pod.create_retry.at.max(pod.lost_retry.at);
        found.extend((at > now).then_some(Wait::Sandbox));
    }
    if container.is_none() && removes && pod.remove_retry.at > now {
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
                pod.create_retry.at = now;
                pod.lost_retry.at = now;
            }
            Wait::Removal => pod.remove_retry.at = now,
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
