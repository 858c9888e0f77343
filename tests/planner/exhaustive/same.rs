//! When two stories are the same: nothing else can come of them.

use std::hash::{Hash, Hasher};

use super::Story;

impl Story {
    /// Whether the same is known and under way as in the other story.
    pub(super) fn knows_as(&self, other: &Story) -> bool {
        let under_way = |s: &Story| (s.wanted, s.going, s.probing.len(), s.hooking.len());
        let (a, b) = (&self.state, &other.state);
        under_way(self) == under_way(other)
            && (&a.settings, &a.desired) == (&b.settings, &b.desired)
            && (&a.shutdown, &a.cordon) == (&b.shutdown, &b.cordon)
            && a.pods == b.pods
    }
}

/// Everything that can make a difference later in the story.
pub(super) fn fingerprint(story: &Story) -> u64 {
    let pods = story.state.pods.values().map(|p| {
        (
            p.sandbox,
            &p.containers,
            &p.in_flight,
            &p.stage,
            p.look_up.clone(),
            (&p.spec.containers[0].image, p.spec.resources, &p.resizing),
            &p.verdict,
            p.retries,
        )
    });
    let text = format!(
        "{:?}{:?}",
        pods.collect::<Vec<_>>(),
        (
            story.now,
            (
                &story.state.shutdown,
                &story.state.cordon,
                &story.state.settings.capacity,
            ),
            story.wanted,
            story.going,
            &story.ran,
            (&story.probing, &story.hooking, story.kills),
        )
    );
    let mut hasher = std::hash::DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
