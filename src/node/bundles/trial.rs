//! The trials of new generations, on the node's side. The planner judges; this file sees which pods are ready, and
//! carries the verdict out.

use std::collections::BTreeMap;

use super::apply::{self, ApplyError};
use super::disk::{Failed, Folder, State};
use super::{ChangeError, Known};
use crate::node::{Node, now, spawn};
use crate::plan::bundle::{self, Verdict};
use crate::spec::Reason;

/// A verdict that could not be carried out is tried again after this long.
const AGAIN_MS: u64 = 10_000;

impl Node {
    /// Judges all trials; after every turn, for any event may have made a pod ready.
    pub(in crate::node) fn judge_trials(&mut self) {
        let now = now().time;
        let mut steady = BTreeMap::new();
        let mut wake = None;
        let mut verdicts = Vec::new();
        for (name, known) in &self.bundles.all {
            let Some(trial) = &known.state.trial else {
                continue;
            };
            let at = match self.bundles.busy.get(name) {
                Some(again) if now < *again => *again,
                _ if self.is_kept_away(name, known) => {
                    let resting = trial.resting(&self.bundles.boot, now);
                    let Some(resting) = resting.map(Verdict::Record) else {
                        // Its end is an event.
                        continue;
                    };
                    verdicts.push((name.clone(), known.state.current, resting));
                    now.plus(AGAIN_MS)
                }
                _ => {
                    let unready = self.unready(name, known);
                    let of = (name.clone(), known.state.current);
                    let since = unready.as_ref().filter(|unready| unready.is_empty());
                    let since = since.map(|_| *self.bundles.steady.get(&of).unwrap_or(&now));
                    steady.extend(since.map(|since| (of, since)));
                    match trial.judge(unready.as_deref(), since, &self.bundles.boot, now) {
                        Verdict::Wait(at) => at,
                        verdict => {
                            verdicts.push((name.clone(), known.state.current, verdict));
                            now.plus(AGAIN_MS)
                        }
                    }
                }
            };
            wake = Some(wake.map_or(at, |other: crate::types::Time| other.min(at)));
        }
        self.bundles.wake = wake;
        self.bundles.steady = steady;
        for (name, generation, verdict) in verdicts {
            self.bundles.busy.insert(name.clone(), now.plus(AGAIN_MS));
            self.carry_out(name, generation, verdict);
        }
    }

    /// Whether pods of a bundle are missing because the node keeps them down by itself.
    fn is_kept_away(&self, name: &str, known: &Known) -> bool {
        let folder = Folder::of(&self.tools.config.layout.manifest_bundles(), name);
        let manifests = folder.manifests(known.state.current);
        let files = known.current.files.iter();
        let loaded = files.filter_map(|file| self.manifests.file(&manifests.join(file)));
        let mut pods = loaded.flat_map(|loaded| loaded.pods.iter());
        let is_missing = |pod| bundle::unready(&self.state, pod).is_some();
        self.state.shutdown.is_some()
            || pods.any(|pod| self.state.is_kept_away(pod) && is_missing(pod))
    }

    /// The pods of a bundle that are not ready, for people; `None`: its manifests have not been read yet.
    fn unready(&self, name: &str, known: &Known) -> Option<Vec<String>> {
        let folder = Folder::of(&self.tools.config.layout.manifest_bundles(), name);
        let manifests = folder.manifests(known.state.current);
        self.state.desired.as_ref()?;
        if !self.manifests.bundled.contains_key(&manifests) {
            return None;
        }
        let mut unready = Vec::new();
        for file in &known.current.files {
            match self.manifests.file(&manifests.join(file)) {
                Some(loaded) => unready.extend(
                    loaded
                        .pods
                        .iter()
                        .filter_map(|pod| bundle::unready(&self.state, pod)),
                ),
                None => unready.push(format!("{file} (not in effect)")),
            }
        }
        Some(unready)
    }

    fn carry_out(&mut self, name: String, generation: u64, verdict: Verdict) {
        match verdict {
            Verdict::Wait(_) => {}
            Verdict::Record(trial) => self.change_trial(name, generation, |state| State {
                trial: Some(trial),
                ..state
            }),
            Verdict::Passed => {
                tracing::info!("bundle {name}: all pods of generation {generation} are ready");
                self.change_trial(name, generation, State::passed);
            }
            Verdict::Failed { why } => self.fail(name, generation, why),
        }
    }

    fn change_trial(
        &self,
        name: String,
        generation: u64,
        change: impl FnOnce(State) -> State + Send + 'static,
    ) {
        let tools = self.tools.clone();
        spawn(async move {
            let of = name.clone();
            let changed = tools.change_bundle_now(&name, move |_, state| {
                Ok(change(of_generation(&of, generation, state)?))
            });
            match changed.await {
                Ok(_) | Err(ChangeError::Busy(_)) => {}
                Err(error) => tracing::warn!("{}, trying again", crate::chain(&error)),
            }
        });
    }

    /// Takes a generation back. Without a former one it stays, and also if it was in force before its trial.
    fn fail(&mut self, name: String, generation: u64, why: String) {
        let known = self.bundles.all.get(&name);
        let former = known.and_then(|known| known.state.former());
        let digest = known
            .map(|known| known.current.digest.clone())
            .unwrap_or_default();
        let message = match former {
            Some(former) => format!(
                "Bundle {name}: generation {generation} was {why}; generation {former} is brought back"
            ),
            None => format!("Bundle {name}: generation {generation} was {why}; it stays in force"),
        };
        if self.bundles.reported.insert((name.clone(), generation)) {
            tracing::warn!("{message}");
            self.shown.node_event(Reason::BundleFailed, &message);
        }
        let tools = self.tools.clone();
        spawn(async move {
            // A generation that failed must go; what cannot come back is better missing than that it stays.
            let left_out = match former {
                Some(_) => apply::former_refusals(&tools, &name).await,
                None => Ok(Vec::new()),
            };
            let of = name.clone();
            let changed = tools.change_bundle_now(&name, move |folder, state| {
                let state = of_generation(&of, generation, state)?;
                let failed = Failed {
                    generation,
                    digest,
                    why,
                };
                Ok(without_missing(folder, state.failed(failed)))
            });
            match changed.await {
                Ok(state) => say_left_out(&name, state.current, left_out),
                Err(ChangeError::Busy(_)) => {}
                Err(error) => tracing::warn!("{}, trying again", crate::chain(&error)),
            }
        });
    }
}

/// Logs what does not come back of a generation that does.
fn say_left_out(name: &str, generation: u64, left_out: Result<Vec<String>, ApplyError>) {
    // A check that was not possible is no news: the files say the same once they are read.
    let left_out = left_out.unwrap_or_default();
    if !left_out.is_empty() {
        tracing::warn!(
            "bundle {name}: generation {generation} is in force again without these manifests: {}; the rest goes on",
            left_out.join("; ")
        );
    }
}

/// The state without a former generation that is not there: an agent of the version before removes the third one.
fn without_missing(folder: &Folder, state: State) -> State {
    State {
        previous: state.previous.filter(|former| folder.has(*former)),
        ..state
    }
}

/// The state, if that generation is on trial still.
fn of_generation(name: &str, generation: u64, state: Option<State>) -> Result<State, ChangeError> {
    let state = state.ok_or_else(|| ChangeError::Missing(name.to_owned()))?;
    match state.current == generation && state.trial.is_some() {
        true => Ok(state),
        false => Err(ChangeError::Changed(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::disk::Record;
    use super::*;

    /// The version before knows neither the third generation nor that it is to stay.
    #[test]
    fn a_third_generation_that_an_older_agent_removed_is_not_brought_back() {
        let dir = std::env::temp_dir().join(format!("coracle-third-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let folder = Folder::of(&dir, "site");
        for _ in 1..=3 {
            folder.write(None, &Record::default(), &[]).unwrap();
        }
        let text = r#"{"current": 3, "previous": 2, "failed": null, "trial":
            {"withinMs": 1000, "spentMs": 0, "boot": "b", "at": 0}}"#;
        std::fs::write(dir.join("site/state.json"), text).unwrap();
        let state = folder.state().unwrap().unwrap();
        assert_eq!((state.previous, state.before_previous), (Some(2), None));
        let state = State {
            before_previous: Some(1),
            ..state
        };
        folder.commit(&state).unwrap();
        assert_eq!(folder.state().unwrap(), Some(state.clone()));
        let failed = || {
            let failed = Failed {
                generation: 3,
                digest: String::new(),
                why: String::new(),
            };
            let state = without_missing(&folder, state.clone().failed(failed));
            (state.current, state.previous)
        };
        assert_eq!(failed(), (2, Some(1)));
        std::fs::remove_dir_all(dir.join("site/1")).unwrap();
        assert_eq!(failed(), (2, None));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
