//! Which images go? Those that nobody uses: the longest unused first, until there is room; and those unused for too long
//! (kubelet-behaviour §10.4). What a manifest asks for counts as used, also while it does not run: on a node with nobody
//! near it may not come back. Preloaded images never go.

use super::super::Time;
use crate::spec::usage::Space;

/// When images are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImagePolicy {
    /// Younger ones are left alone.
    pub min_age_ms: u64,
    /// Unused for longer, they go; 0: never for that.
    pub max_age_ms: u64,
    /// In use from which on room is made, percent; 100: never.
    pub high_percent: u8,
    /// Down to this.
    pub low_percent: u8,
}

/// One image of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFacts {
    /// Its config's digest.
    pub id: String,
    /// How much it takes.
    pub size_bytes: u64,
    /// A container runs from it, or a manifest asks for it.
    pub used: bool,
    /// It never goes.
    pub preloaded: bool,
    /// When this agent first knew of it.
    pub first_seen: Time,
    /// When it was in use last, as far as this agent knows.
    pub last_used: Option<Time>,
}

/// How much room is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// None: only what was unused for too long goes.
    Age,
    /// So many bytes.
    Bytes(u64),
    /// All there is to be had.
    All,
}

impl ImagePolicy {
    /// What part of the file system is in use, in percent, rounded up.
    pub fn used_percent(space: Space) -> u8 {
        let free = u128::from(space.available) * 100;
        let free = free.checked_div(space.capacity.into()).unwrap_or(100);
        100 - u8::try_from(free.min(100)).unwrap_or(100)
    }

    /// How much is to go from a file system as full as this; `None` if there is no reason to look.
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

/// The images that go now, in that order. `since`: when this agent began to look.
pub fn doomed(
    images: &[ImageFacts],
    policy: &ImagePolicy,
    goal: Goal,
    (since, now): (Time, Time),
) -> Vec<String> {
    let unused = |image: &&ImageFacts| !image.used && !image.preloaded;
    let mut unused: Vec<&ImageFacts> = images.iter().filter(unused).collect();
    unused.sort_by_key(|image| (image.last_used, image.first_seen, &image.id));
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
