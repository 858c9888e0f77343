//! Image garbage collection: unused images go, the longest unused first until there is room, and those unused for
//! too long (Kubernetes docs: Garbage Collection). An image that a manifest names counts as used, even while its
//! pod does not run: an offline node may not get it back. Preloaded images are never removed.

use super::super::Time;
pub use crate::types::ImagePolicy;
use crate::types::InOrder;
use crate::types::usage::Space;

/// One image of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFacts {
    /// The digest of its config.
    pub id: String,
    /// Its size on disk.
    pub size_bytes: u64,
    /// Whether a container runs from it or a manifest names it.
    pub used: bool,
    /// Whether it is preloaded, and so never removed.
    pub preloaded: bool,
    /// When this agent first saw it.
    pub first_seen: Time,
    /// When it was last in use, as far as this agent knows.
    pub last_used: Option<Time>,
}

/// How much space to free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// No space: remove only what was unused for too long.
    Age,
    /// A number of bytes.
    Bytes(u64),
    /// As much as possible.
    All,
}

impl ImagePolicy {
    /// The used share of the file system, in percent, rounded up.
    pub fn used_percent(space: Space) -> u8 {
        let free = u128::from(space.available) * 100;
        let free = free.checked_div(space.capacity.into()).unwrap_or(100);
        100 - u8::try_from(free.min(100)).unwrap_or(100)
    }

    /// How much to free on a file system with this much space; `None` if no collection is due.
    pub(super) fn goal(&self, space: Space) -> Option<Goal> {
        let full = space.capacity > 0 && Self::used_percent(space) >= self.high_percent;
        if full && self.high_percent < 100 {
            let free = u128::from(space.capacity) * u128::from(100 - self.low_percent) / 100;
            let free = u64::try_from(free).unwrap_or(u64::MAX);
            return Some(Goal::Bytes(free.saturating_sub(space.available)));
        }
        (self.max_age_ms > 0).then_some(Goal::Age)
    }
}

/// The images to remove now, in that order. `since`: when this agent began to watch.
pub fn doomed(
    images: &[ImageFacts],
    policy: &ImagePolicy,
    goal: Goal,
    (since, now): (Time, Time),
) -> Vec<String> {
    let unused = |image: &&ImageFacts| !image.used && !image.preloaded;
    let mut unused: Vec<&ImageFacts> = images.iter().filter(unused).collect();
    unused.order_by_key(|image| (image.last_used, image.first_seen, &image.id));
    let idle_ms = |image: &ImageFacts| {
        let known = image.first_seen.max(since);
        now.since(image.last_used.unwrap_or(known).max(since))
    };
    let (mut found, mut freed) = (Vec::new(), 0_u64);
    for image in unused {
        let old = policy.max_age_ms > 0 && idle_ms(image) > policy.max_age_ms;
        let wanted = match goal {
            Goal::Age => false,
            Goal::Bytes(bytes) => freed < bytes,
            Goal::All => true,
        };
        if old || wanted && now.since(image.first_seen) >= policy.min_age_ms {
            freed = freed.saturating_add(image.size_bytes);
            found.push(image.id.clone());
        }
    }
    found
}
