//! What a Job's pods mean for it: which of them succeeded, which failures count, and how the Job ends by that.

use super::end::{End, LastPods};
use super::{JobRecord, Own, restarts};
use crate::plan::state::Role;
use crate::plan::{PodState, Stamp};
use crate::spec::RestartPolicy;
use crate::spec::workload::job::{Action, Job, When};

impl JobRecord {
    /// The number of failed pods.
    pub(super) fn failed(&self) -> u32 {
        self.failures
            .values()
            .fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Takes note of the pods that have ended since.
    pub(super) fn count(&mut self, job: &Job, own: &[Own<'_>], now: Stamp) {
        if self.ended.is_some() {
            return;
        }
        for own in own {
            let Some(succeeded) = own.over else { continue };
            let next = self.next.get(&own.index).copied().unwrap_or(0);
            if own.number < next || self.succeeded.contains(&own.index) {
                continue;
            }
            if succeeded {
                self.succeeded.insert(own.index);
                self.next.remove(&own.index);
                self.index_failed_at.remove(&own.index);
                (self.in_row, self.failed_at) = (0, None);
                continue;
            }
            self.next.insert(own.index, own.number.saturating_add(1));
            // Also one that is ignored must not be started again and again without a pause.
            self.pause(job, own.index, now);
            let fits = job.rules.iter().enumerate();
            let mut fits = fits
                .filter_map(|(at, rule)| Some((at, rule.action, fits_rule(&rule.when, own.pod)?)));
            let rule = fits.next();
            let action = rule
                .as_ref()
                .map_or(Action::Count, |(_, action, _)| *action);
            if action == Action::Ignore {
                continue;
            }
            self.fails(job, own.index, action == Action::FailIndex);
            if let Some((at, Action::FailJob, why)) = rule {
                let message = format!("{why} matching FailJob rule at index {at}");
                let end = || failed("PodFailurePolicy", message, now);
                self.ended.get_or_insert_with(end);
            }
        }
    }

    /// The next pod of this index has to wait.
    pub(super) fn pause(&mut self, job: &Job, index: u32, now: Stamp) {
        self.in_row = self.in_row.saturating_add(1);
        self.failed_at = Some(now.time);
        if job.backoff_limit_per_index.is_some() {
            self.index_failed_at.insert(index, now.time);
        }
    }

    /// A pod of this index has failed, and counts. `at_once`: so has the index.
    pub(super) fn fails(&mut self, job: &Job, index: u32, at_once: bool) {
        let failures = self.failures.entry(index).or_default();
        *failures = failures.saturating_add(1);
        let limit = job.backoff_limit_per_index;
        if at_once || limit.is_some_and(|limit| *failures > limit) {
            self.failed_indexes.insert(index);
            self.index_failed_at.remove(&index);
        }
    }

    /// Counts the pods that the end of the Job removes: they have failed, as upstream counts them.
    pub(super) fn count_removed(&mut self, own: &[Own<'_>]) {
        for own in own.iter().filter(|own| own.runs()) {
            let failures = self.failures.entry(own.index).or_default();
            *failures = failures.saturating_add(1);
        }
    }

    /// How the Job ends, if it does.
    pub(super) fn end(&self, job: &Job, own: &[Own<'_>], now: Stamp) -> Option<End> {
        if let Some(ended) = &self.ended {
            return Some(ended.clone());
        }
        let running = || own.iter().filter(|own| own.over.is_none());
        let in_place =
            running().filter(|own| own.pod.spec.restart_policy == RestartPolicy::OnFailure);
        let restarts = in_place
            .map(|own| restarts(own.pod).saturating_add(self.former_restarts(own)))
            .fold(0, u32::saturating_add);
        let too_many = restarts > 0 && restarts >= job.backoff_limit;
        let complete = match job.completions {
            Some(wanted) => self.succeeded.len() >= wanted as usize,
            None => !self.succeeded.is_empty() && running().next().is_none(),
        };
        let enough = job
            .success
            .iter()
            .position(|rule| rule.is_met(&self.succeeded));
        let over =
            |wanted: u32| self.succeeded.len() + self.failed_indexes.len() >= wanted as usize;
        let many = |most: u32| self.failed_indexes.len() > most as usize;
        let (reason, message) = match () {
            () if complete && enough.is_none() => {
                let message = "Reached expected number of succeeded pods".to_owned();
                return Some(succeeded("CompletionsReached", message, now));
            }
            () if too_many || self.failed() > job.backoff_limit => (
                "BackoffLimitExceeded",
                "Job has reached the specified backoff limit",
            ),
            () if self.ends_at(job).is_some_and(|at| at <= now.time) => (
                "DeadlineExceeded",
                "Job was active longer than specified deadline",
            ),
            () if job.max_failed_indexes.is_some_and(many) => (
                "MaxFailedIndexesExceeded",
                "Job has exceeded the specified maximal number of failed indexes",
            ),
            () if !self.failed_indexes.is_empty() && job.completions.is_some_and(over) => {
                ("FailedIndexes", "Job has failed indexes")
            }
            // As upstream, a failure at the same time takes precedence.
            () => {
                let message = format!("Matched rules at index {}", enough?);
                return Some(succeeded("SuccessPolicy", message, now));
            }
        };
        Some(failed(reason, message.to_owned(), now))
    }
}

fn succeeded(reason: &str, message: String, at: Stamp) -> End {
    End {
        complete: true,
        ..failed(reason, message, at)
    }
}

fn failed(reason: &str, message: String, at: Stamp) -> End {
    End {
        complete: false,
        reason: reason.to_owned(),
        message,
        at,
        last_pods: LastPods::Stopping,
    }
}

/// Why a failed pod fits a rule, if it does.
fn fits_rule(when: &When, pod: &PodState) -> Option<String> {
    let key = &pod.spec.key;
    match when {
        When::ExitCodes {
            container,
            not,
            codes,
        } => {
            let named = pod.containers.iter().filter(|c| {
                c.role != Role::Ephemeral && container.as_ref().is_none_or(|name| *name == c.name)
            });
            let mut ended = named.filter_map(|c| Some((&c.name, c.run.ended()?.exit.code)));
            let (name, code) =
                ended.find(|(_, code)| *code != 0 && codes.contains(code) != *not)?;
            Some(format!(
                "Container {name} for pod {key} failed with exit code {code}"
            ))
        }
        When::Conditions(wanted) => {
            let has = |(type_, status): &&(String, String)| {
                let mut all = pod.foreign.iter().map(|foreign| &foreign.condition);
                all.any(|condition| {
                    condition.type_ == *type_ && condition.status.as_str() == *status
                })
            };
            let (type_, _) = wanted.iter().find(has)?;
            Some(format!("Pod {key} has condition {type_}"))
        }
    }
}
