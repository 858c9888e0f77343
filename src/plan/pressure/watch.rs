//! The kernel's memory watch between inspections: it signals a rising use, and slows down the pods that take more.

use super::{Condition, Pressure, Threshold};

/// Pods that take more memory are slowed down for this long after a threshold is met: meanwhile a pod is evicted.
pub const BRAKE_MS: u64 = 5_000;
/// The kernel signals when this share of all memory is used beyond a threshold, so that the inspection finds the
/// threshold met; or half of the threshold, if that is less.
const BEYOND_SHARE: u64 = 256;

/// The kernel's memory watch until the next inspection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// Signal when all pods together are charged this many bytes, which meets a threshold; and slow down pods that
    /// take more, where possible. Every hard memory threshold has such a level: a fast consumer would not leave
    /// time for another inspection.
    At(u64),
    /// Keep the current watch: a threshold was met a short while ago, and a pod is being evicted for it.
    AsBefore,
    /// No watch.
    Nothing,
}

impl Pressure {
    /// The memory watch that follows from the newest figures.
    pub fn watch(&self) -> Watch {
        let Some(seen) = &self.seen else {
            return Watch::Nothing;
        };
        let node = &seen.figures.node;
        // Soft thresholds can wait for the next inspection.
        let urgent = |t: &Threshold| t.signal.condition() == Condition::Memory && t.grace_ms == 0;
        let met = self.met.iter().filter(|met| urgent(&met.threshold));
        if let Some(since) = met.map(|met| met.since).min() {
            return match seen.at.since(since) < BRAKE_MS {
                true => Watch::AsBefore,
                false => Watch::Nothing,
            };
        }
        let thresholds = self.policy.thresholds.iter();
        let left = thresholds.filter(|t| urgent(t)).filter_map(|t| {
            let space = t.signal.space(node)?;
            let kept = t.quantity(space);
            let beyond = (space.capacity / BEYOND_SHARE).min(kept / 2);
            Some(space.available.saturating_sub(kept).saturating_add(beyond))
        });
        match (left.min(), node.pods_charged_bytes) {
            (Some(left), Some(charged)) => Watch::At(charged.saturating_add(left)),
            (Some(_), None) | (None, _) => Watch::Nothing,
        }
    }
}
