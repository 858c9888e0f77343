//! The end of a Job, which comes in two steps as upstream: it is decided, and its pods stop; once they are gone, it has
//! ended.

use serde::{Deserialize, Serialize};

use super::Own;
use crate::plan::Stamp;
use crate::spec::Reason;

/// Why a Job can fail.
const FAILURES: [Reason; 5] = [
    Reason::BackoffLimitExceeded,
    Reason::JobDeadlineExceeded,
    Reason::PodFailurePolicy,
    Reason::MaxFailedIndexesExceeded,
    Reason::FailedIndexes,
];

/// How a Job ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) complete: bool,
    pub(super) reason: String,
    pub(super) message: String,
    /// When it was decided.
    pub(super) at: Stamp,
    #[serde(default)]
    pub(super) last_pods: LastPods,
}

/// The pods that were there when the end was decided and were not over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) enum LastPods {
    /// It is not known: a former version did not wait for them.
    #[default]
    Unknown,
    /// They stop.
    Stopping,
    /// They are gone since then.
    Gone(Stamp),
}

impl End {
    /// When the Job had ended; `None` while pods of it stop.
    pub(super) fn over(&self) -> Option<Stamp> {
        match self.last_pods {
            LastPods::Unknown => Some(self.at),
            LastPods::Stopping => None,
            LastPods::Gone(at) => Some(at),
        }
    }

    /// Takes note of the pods that are left.
    pub(super) fn note_left(&mut self, own: &[Own<'_>], now: Stamp) {
        let is_left = own.iter().any(|own| own.over.is_none());
        if self.last_pods == LastPods::Stopping && !is_left {
            // The clock may not be set yet after a reboot.
            let wall = now.wall.max(self.at.wall);
            self.last_pods = LastPods::Gone(Stamp { wall, ..now });
        }
    }

    /// The machine has rebooted.
    pub(super) fn rebooted(&mut self, now: Stamp) {
        self.at.time = now.time;
        if let LastPods::Gone(at) = &mut self.last_pods {
            at.time = now.time;
        }
    }

    /// Reason and message of its event.
    pub(super) fn event(&self) -> (Reason, String) {
        let reason = FAILURES.into_iter().find(|r| r.as_str() == self.reason);
        match reason.filter(|_| !self.complete) {
            Some(reason) => (reason, self.message.clone()),
            None => (Reason::Completed, "Job completed".to_owned()),
        }
    }
}
