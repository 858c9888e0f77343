//! How far the rollout of a document is.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::stage;
use crate::plan::state::Flag;
use crate::plan::{Stamp, Time, Wall};
use crate::spec::Workload;

/// How far a document's pods are. All but the figures is kept for an agent restart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    pub(super) revision: Arc<str>,
    /// The number of wanted pods.
    pub(super) replicas: usize,
    /// The best so far: pods of the current template that are there, that were available, and pods of earlier ones that are
    /// gone.
    pub(super) best: (usize, usize, usize),
    /// Since when it is so.
    pub(super) since: Time,
    /// It was too long without progress.
    pub(super) failed: bool,
    /// All pods are of the current template and available.
    pub(super) complete: bool,
    /// How many pods there are.
    #[serde(skip)]
    pub(super) figures: stage::Figures,
    /// How many there should be.
    #[serde(skip)]
    pub(super) replicas_here: usize,
    /// Its file pauses it.
    #[serde(default)]
    pub(super) paused: bool,
    /// When its file began or ceased to pause it last.
    #[serde(default)]
    pub(super) pause_turned: Wall,
    /// How many pods of the current template were let in.
    pub(super) let_in: usize,
    /// It had failed when another number of pods was asked for: what goes or stays for that is no progress.
    #[serde(skip)]
    pub(super) renumbered: bool,
    /// The last time that former pods were brought back while the rollout stood still.
    #[serde(skip)]
    pub(super) brought_back: Option<Time>,
    /// The good template is in force until its pods are back.
    #[serde(default)]
    pub(super) resumed: bool,
    /// The node keeps pods of it down (`away.rs`).
    #[serde(default)]
    pub(super) kept_away: bool,
    /// Enough pods are available.
    pub(super) available: Flag,
    /// It is complete, or makes progress.
    pub(super) progressing: Flag,
}

impl Progress {
    pub(super) fn new(workload: &Workload, now: Stamp) -> Self {
        let flag = |yes| Flag {
            yes,
            since: now.wall,
        };
        Self {
            revision: workload.revision.clone(),
            replicas: workload.pods.len(),
            best: (0, 0, 0),
            since: now.time,
            failed: false,
            complete: false,
            figures: stage::Figures::default(),
            replicas_here: 0,
            paused: workload.paused,
            pause_turned: match workload.paused {
                true => now.wall,
                false => Wall::default(),
            },
            let_in: 0,
            renumbered: false,
            brought_back: None,
            resumed: false,
            kept_away: false,
            available: flag(false),
            progressing: flag(true),
        }
    }

    /// Whether the good template was in force, for its pods to come back.
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// The file asks for this now.
    pub(super) fn asked(&mut self, workload: &Workload, now: Stamp) {
        let same = self.revision == workload.revision;
        let was_paused = std::mem::replace(&mut self.paused, workload.paused);
        if was_paused != workload.paused {
            self.pause_turned = now.wall;
        }
        let resumed = was_paused && !workload.paused;
        if same && self.replicas == workload.pods.len() {
            if resumed {
                // The time of the pause does not count.
                (self.since, self.failed) = (now.time, false);
            }
            return;
        }
        let fresh = Self::new(workload, now);
        // Another number is no reason to try again what has failed.
        let stays_failed = same && self.failed && !workload.rollback;
        *self = Self {
            since: if stays_failed { self.since } else { now.time },
            failed: stays_failed,
            renumbered: stays_failed,
            let_in: match same {
                true => self.let_in.min(workload.pods.len()),
                false => 0,
            },
            // A rollout that was complete stays complete.
            complete: same && self.complete,
            brought_back: (self.brought_back).filter(|_| self.replicas == workload.pods.len()),
            pause_turned: self.pause_turned,
            resumed: self.resumed,
            available: self.available,
            progressing: self.progressing,
            ..fresh
        };
    }
}
