//! A Job's status, as upstream shows it.

use serde_json::{Value, json};

use super::ranges::ranges;
use super::{Jobs, own};
use crate::plan::state::Flag;
use crate::plan::workload::is_ready;
use crate::plan::{NodeState, status};
use crate::spec::Workload;
use crate::spec::workload::job::Job;

impl Jobs {
    /// The Job's `status`; `None` before the files were read.
    pub(in crate::plan::workload) fn status(
        &self,
        state: &NodeState,
        workload: &Workload,
        job: &Job,
    ) -> Option<Value> {
        let record = self.records.get(&workload.key)?;
        let own = own(state, workload);
        let running: Vec<_> = own.iter().filter(|own| own.runs()).collect();
        let ready = running.iter().filter(|own| is_ready(own.pod));
        let going = own.iter().filter(|own| own.pod.stopping().is_some());
        let mut shown = json!({
            "active": running.len(),
            "ready": ready.count(),
            "terminating": going.count(),
            "succeeded": record.succeeded.len(),
            "failed": record.failed(),
            "uncountedTerminatedPods": {},
        });
        if let Some(started) = record.started {
            shown["startTime"] = json!(status::time(started.wall));
        }
        if job.indexed {
            shown["completedIndexes"] = json!(ranges(&record.succeeded));
            if job.backoff_limit_per_index.is_some() {
                shown["failedIndexes"] = json!(ranges(&record.failed_indexes));
            }
        }
        let mut conditions = Vec::new();
        if let Some(suspended) = record.suspended {
            let (reason, message) = match suspended.yes {
                true => ("JobSuspended", "Job suspended"),
                false => ("JobResumed", "Job resumed"),
            };
            conditions.push(condition("Suspended", suspended, reason, message));
        }
        if let Some(end) = &record.ended {
            let kinds = match end.complete {
                true => ["SuccessCriteriaMet", "Complete"],
                false => ["FailureTarget", "Failed"],
            };
            // As upstream, the second condition waits for the last pod.
            let times = [Some(end.at), end.over()];
            for (kind, at) in kinds.into_iter().zip(times) {
                let since = at.map(|at| Flag {
                    yes: true,
                    since: at.wall,
                });
                let one = since.map(|since| condition(kind, since, &end.reason, &end.message));
                conditions.extend(one);
            }
            if let Some(at) = end.over().filter(|_| end.complete) {
                shown["completionTime"] = json!(status::time(at.wall));
            }
        }
        shown["conditions"] = json!(conditions);
        Some(shown)
    }
}

fn condition(kind: &str, flag: Flag, reason: &str, message: &str) -> Value {
    let at = status::time(flag.since);
    json!({
        "type": kind,
        "status": if flag.yes { "True" } else { "False" },
        "reason": reason,
        "message": message,
        "lastProbeTime": at,
        "lastTransitionTime": at,
    })
}
