//! What is the kernel to do about memory between looks? Call, and slow down whoever takes what is left.

use super::{Condition, Pressure, Threshold};

/// Pods that take more memory are slowed down for this long after a threshold is met: meanwhile somebody goes.
pub const BRAKE_MS: u64 = 5_000;
/// The kernel calls when this part of all memory is used beyond a threshold, so that a look then finds it met; or half of
/// what the threshold keeps, if that is less.
const BEYOND_SHARE: u64 = 256;

/// What the kernel is to do about memory until the next look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// Call when so many bytes are charged to all pods together, by when a threshold is met; and slow down whoever takes
    /// more, where it can. There is always such a level: who takes memory fast would not leave time for another look.
    At(u64),
    /// As before: one is met since a short while, and somebody goes for it.
    AsBefore,
    /// Nothing.
    Nothing,
}

impl Pressure {
    /// What the kernel is to do about memory until the next look.
    pub fn watch(&self) -> Watch {
        let Some(seen) = &self.seen else {
            return Watch::Nothing;
        };
        let node = &seen.figures.node;
        // Soft ones are in no such hurry.
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
