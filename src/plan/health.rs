//! What probes have shown of a run, as it is saved for an agent restart.

use serde::{Deserialize, Serialize};

use super::Time;

/// What the probes of one run have shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// It has passed its startup probe, if it has one.
    pub started: bool,
    /// It has passed its readiness probe, if it has one.
    pub ready: bool,
    /// Its readiness or liveness probe was edited, and has not succeeded since.
    #[serde(default)]
    pub unproved: bool,
    /// When an edited probe succeeded first.
    #[serde(default)]
    pub proved: Option<Time>,
    /// Recent outcomes to the contrary, not often enough to count.
    #[serde(default)]
    pub streaks: Streaks,
    /// When each probe first ran.
    #[serde(default)]
    pub firsts: Firsts,
}

/// When the probes of one run first ran; failures soon after that do not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firsts {
    /// The startup probe.
    pub startup: Option<Time>,
    /// The liveness probe.
    pub liveness: Option<Time>,
    /// The readiness probe.
    pub readiness: Option<Time>,
}

/// Outcomes that change a probe's result if more of them follow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streaks {
    /// Failures of the startup probe.
    pub startup: Option<Streak>,
    /// Failures of the liveness probe.
    pub liveness: Option<Streak>,
    /// Failures of the readiness probe where it had passed, successes where it had not.
    pub readiness: Option<Streak>,
}

/// Equal outcomes of one probe in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streak {
    /// The outcome.
    pub well: bool,
    /// How often it came.
    pub times: u32,
    /// When the next probe is due: an agent that restarts does not probe faster than it should.
    pub next: Time,
}
