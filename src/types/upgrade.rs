//! The trial of a new program: what has to be as it was before, and whether the trial goes on. The former program
//! decides by this, so that nothing of the new one is needed to go back.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The agent's starts in one boot that end the trial: the first one and two crashes.
const MAX_STARTS: u32 = 3;

/// The boots in which a trial may be interrupted, after the one in which it began.
const MAX_BOOTS: u32 = 2;

/// A pod that was ready before the new program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// `namespace/name`.
    pub name: String,
    /// Its containers that ran, each with what identifies the run. Empty after a reboot, which ends all runs.
    pub runs: BTreeMap<String, String>,
}

/// A pod as it is now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenPod {
    /// It is ready.
    pub ready: bool,
    /// It has ended well, and is not to run again.
    pub succeeded: bool,
    /// Its containers that run, each with what identifies the run; `None`: the container has ended well.
    pub runs: BTreeMap<String, Option<String>>,
}

/// The agent as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeenAgent {
    /// It was stopped on purpose, or it stops the pods because the machine goes down.
    Stopped,
    /// It does not answer.
    Down,
    /// It answers.
    Up {
        /// Since when, in milliseconds.
        for_ms: u64,
        /// The pods by UID.
        pods: BTreeMap<String, SeenPod>,
    },
}

/// How far a trial is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial<'a> {
    /// The pods that were ready before, by UID.
    pub expected: &'a BTreeMap<String, Expected>,
    /// How long it may take, in milliseconds.
    pub within_ms: u64,
    /// How long it has taken while the agent was meant to run, in milliseconds.
    pub spent_ms: u64,
    /// The starts of the new agent in this boot.
    pub starts: u32,
    /// How often the machine was started since the trial began.
    pub boots: u32,
    /// A person asked to go back.
    pub asked_back: bool,
}

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The new program stays.
    Confirm,
    /// Look again later; what is awaited.
    GoOn(String),
    /// Go back to the former program; why.
    GoBack(String),
}

/// How long an agent has to be up, with all pods, before it is confirmed: a quarter of the trial, 5 s to 30 s.
pub fn settle_ms(within_ms: u64) -> u64 {
    (within_ms / 4).clamp(5_000, 30_000)
}

impl Trial<'_> {
    /// Decides by what is seen now.
    pub fn judge(&self, agent: &SeenAgent) -> Verdict {
        if self.asked_back {
            return Verdict::GoBack("it was asked for".to_owned());
        }
        if *agent == SeenAgent::Stopped {
            return Verdict::GoOn("the agent is stopped".to_owned());
        }
        if self.starts >= MAX_STARTS {
            return Verdict::GoBack("the new agent crashed twice".to_owned());
        }
        if self.boots > MAX_BOOTS {
            let why = format!("the machine went down {MAX_BOOTS} times more during the trial");
            return Verdict::GoBack(why);
        }
        let waiting = match agent {
            SeenAgent::Stopped | SeenAgent::Down => "the new agent does not answer".to_owned(),
            SeenAgent::Up { for_ms, pods } => match self.pods(pods) {
                Err(lost) => return Verdict::GoBack(lost),
                Ok(Some(waiting)) => waiting,
                Ok(None) if *for_ms >= settle_ms(self.within_ms) => return Verdict::Confirm,
                Ok(None) => "all pods are as before; the agent has to stay up".to_owned(),
            },
        };
        match self.spent_ms >= self.within_ms {
            true => Verdict::GoBack(format!("{waiting} within {} s", self.within_ms / 1000)),
            false => Verdict::GoOn(waiting),
        }
    }

    /// What is not as before yet; an error if that cannot come back.
    fn pods(&self, seen: &BTreeMap<String, SeenPod>) -> Result<Option<String>, String> {
        let mut unready = Vec::new();
        for (uid, expected) in self.expected {
            let name = &expected.name;
            let Some(pod) = seen.get(uid) else {
                match expected.runs.is_empty() {
                    // After a reboot the manifests may not be read yet.
                    true => unready.push(name.as_str()),
                    false => return Err(format!("pod {name} is gone")),
                }
                continue;
            };
            if pod.succeeded {
                continue;
            }
            for (container, run) in &expected.runs {
                match pod.runs.get(container) {
                    Some(Some(now)) if now == run => {}
                    Some(None) => {}
                    Some(Some(_)) => {
                        return Err(format!("container {container} of pod {name} was restarted"));
                    }
                    None => return Err(format!("container {container} of pod {name} has ended")),
                }
            }
            if !pod.ready {
                unready.push(name.as_str());
            }
        }
        Ok(unready.first().map(|first| match unready.len() {
            1 => format!("pod {first} is not ready"),
            n => format!("{n} pods are not ready, among them {first}"),
        }))
    }
}

#[cfg(test)]
#[path = "upgrade_test.rs"]
mod tests;
