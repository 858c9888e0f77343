//! Pods with files of their own whose edits are taken back if they are not ready in time. The rules are those of a
//! bundle's new generation (`plan/bundle.rs`).

use std::collections::BTreeMap;

use super::revisions::{Histories, Subject};
use crate::plan::bundle::{self, Trial, Verdict};
use crate::plan::event::Desired;
use crate::plan::{NodeState, Notice, Time, status};
use crate::spec::{PodSpec, Reason};

/// So many pods are named in a sentence.
const MAX_NAMED: usize = 3;

impl Histories {
    /// The revision in force has its whole time again.
    pub(super) fn spare(&mut self, subject: &Subject) {
        if let Subject::Pod(key) = subject {
            self.steady.remove(key);
        }
        if let Some(history) = self.all.get_mut(subject)
            && history.trial.take().is_some()
        {
            self.changes += 1;
            self.progress_changes += 1;
        }
    }
}

/// Judges all pods on trial. Returns when the next judgement is due if nothing happens.
pub(super) fn judge(
    histories: &mut Histories,
    state: &NodeState,
    asked: &Desired,
    now: Time,
    out: &mut Vec<Notice>,
) -> Option<Time> {
    let mut wake: Option<Time> = None;
    let pods = asked.pods.values();
    for pod in pods.filter(|pod| asked.editions.contains_key(&pod.key)) {
        let at = one(histories, state, pod, now, out);
        wake = wake.into_iter().chain(at).min();
    }
    wake
}

fn one(
    histories: &mut Histories,
    state: &NodeState,
    pod: &PodSpec,
    now: Time,
    out: &mut Vec<Notice>,
) -> Option<Time> {
    let subject = Subject::Pod(pod.key.clone());
    let history = histories.of(&subject)?;
    let hash = history.revisions.last()?.hash.clone();
    if state.stops.of(pod).is_some() {
        histories.steady.remove(&pod.key);
        return None;
    }
    let is_good = history.good.as_ref() == Some(&hash);
    if history.is_pending() || is_good && history.trial.is_none() {
        histories.steady.remove(&pod.key);
        return None;
    }
    let within_ms = pod.rollback_within_ms().unwrap_or(0);
    let trial = history.trial.as_deref().cloned();
    // Without a former one that was good there is no way back, and its time does not count.
    let timed = !is_good && history.good.is_some();
    if state.is_kept_away(pod) {
        histories.steady.remove(&pod.key);
        histories.rest(&subject, now);
        return None;
    }
    let unready = unready(state, pod);
    if unready.is_some() && !timed {
        histories.steady.remove(&pod.key);
        return None;
    }
    let begun = trial.is_none();
    let trial = trial.unwrap_or_else(|| Trial::new(within_ms, histories.boot(), now));
    if begun && timed {
        histories.set_trial(&subject, trial.clone());
    }
    let unready: Vec<String> = unready.into_iter().collect();
    let since = match unready.is_empty() {
        true => Some(*histories.steady.entry(pod.key.clone()).or_insert(now)),
        false => {
            histories.steady.remove(&pod.key);
            None
        }
    };
    match trial.judge(Some(&unready), since, histories.boot(), now) {
        Verdict::Wait(at) => Some(at),
        Verdict::Record(trial) => {
            let left = trial.within_ms.saturating_sub(trial.spent_ms);
            let at = now.plus(left.min(trial.step_ms()));
            histories.set_trial(&subject, trial);
            Some(at)
        }
        Verdict::Passed => {
            histories.passed(&subject, &hash);
            None
        }
        Verdict::Failed { .. } => {
            let message = histories.fail(&subject, &why(trial.within_ms, &unready))?;
            let here = state.pods.values().find(|here| here.spec.key == pod.key);
            out.push(Notice {
                workload: None,
                key: pod.key.clone(),
                uid: here.map_or(&pod.uid, |here| &here.spec.uid).clone(),
                field_path: None,
                reason: Reason::RolledBack,
                message,
                annotations: BTreeMap::new(),
            });
            None
        }
    }
}

/// Why something is taken back: the end of a sentence.
pub(super) fn why(within_ms: u64, unready: &[String]) -> String {
    let named = unready.iter().take(MAX_NAMED).map(String::as_str);
    let mut named = named.collect::<Vec<_>>().join(", ");
    if unready.len() > MAX_NAMED {
        named += &format!(" and {} more", unready.len() - MAX_NAMED);
    }
    let seconds = within_ms.div_ceil(1000);
    match named.is_empty() {
        true => format!("not ready within {seconds}s"),
        false => format!("not ready within {seconds}s: {named}"),
    }
}

/// Why this pod is not ready, with what its first container waits for.
pub(super) fn unready(state: &NodeState, wanted: &PodSpec) -> Option<String> {
    let why = bundle::unready(state, wanted)?;
    let mut named = state.pods.values().filter(|pod| pod.spec.key == wanted.key);
    let pod = named.find(|pod| pod.stopping().is_none() && pod.hold().is_none());
    let waits = pod.and_then(|pod| status::waiting(pod, &state.settings));
    Some(match waits {
        Some(reason) => format!("{} ({reason})", wanted.key),
        None => why,
    })
}
