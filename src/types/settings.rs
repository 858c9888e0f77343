//! Settings that the planner goes by as they are written, without a translation.

use serde::{Deserialize, Serialize};

/// Pods of one range of priorities, which stop together at a node shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Pods of this priority and above, up to that of the next group. The lowest group has those below it, too.
    pub priority: i32,
    /// The group's time in seconds; with 0 its pods are stopped and not waited for.
    pub seconds: u64,
}

/// The containers that may swap (KEP-2400; `coracle help differences`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Swapping {
    /// `NoSwap`: none. Also if the node has no swap.
    #[default]
    Off,
    /// `LimitedSwap`: those of Burstable pods whose memory request is not their limit, in proportion to the request.
    Burstable,
    /// `UnlimitedSwap`: all, without a limit.
    All,
}

/// The rules of image garbage collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImagePolicy {
    /// Younger images are kept.
    pub min_age_ms: u64,
    /// Images unused for longer are removed; 0: no limit.
    pub max_age_ms: u64,
    /// Disk use that starts a collection, percent; 100: never.
    pub high_percent: u8,
    /// Disk use at which a collection stops, percent.
    pub low_percent: u8,
}

/// The limits on pulls of pods (`registryPullQPS`, `registryBurst`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Pulls a second; 0: no limit.
    pub qps: u32,
    /// Pulls at once after a rest.
    pub burst: u32,
}
