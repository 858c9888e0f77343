//! What the black box keeps of an event: plain data.

use serde::{Deserialize, Serialize};

use super::Wall;

/// The longest message that is kept, in characters.
pub const MAX_MESSAGE: usize = 300;

/// Reasons of the node that are kept one by one; all others are counted.
const EACH: [&str; 2] = ["UncleanShutdown", "Rebooted"];

/// Something that happened once or, in the same way, several times.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The same in all versions of an entry; 0: not in the box yet.
    #[serde(default)]
    pub id: u64,
    /// When it happened last.
    pub at: Wall,
    /// When it happened first.
    pub first: Wall,
    /// How often.
    pub count: u32,
    /// `Error`, `OOMKilled`, `Completed`, `Evicted`, `UncleanShutdown`, ….
    pub reason: String,
    /// The sentence for people, of the newest.
    #[serde(default)]
    pub message: String,
    /// Namespace and name of the pod; empty: it is about the node.
    #[serde(default)]
    pub pod: String,
    /// The pod's UID.
    #[serde(default)]
    pub uid: String,
    /// The container that has ended; empty: it is about the pod.
    #[serde(default)]
    pub container: String,
    /// The number of the newest run.
    #[serde(default)]
    pub attempt: u32,
    /// Its exit code.
    #[serde(default)]
    pub code: i32,
    /// The boot of the newest.
    #[serde(default)]
    pub boot: String,
}

impl Entry {
    /// One that has happened once.
    pub fn new(reason: &str, message: &str, at: Wall) -> Self {
        Self {
            at,
            first: at,
            count: 1,
            reason: reason.to_owned(),
            message: message.chars().take(MAX_MESSAGE).collect(),
            ..Self::default()
        }
    }

    /// Whether it is about the same container, pod or node.
    pub fn is_about_same(&self, other: &Self) -> bool {
        (&self.pod, &self.container) == (&other.pod, &other.container)
    }

    /// Whether it is the same happening again.
    pub fn is_same(&self, other: &Self) -> bool {
        let what = |entry: &Self| (entry.reason.clone(), entry.code);
        self.is_about_same(other)
            && what(self) == what(other)
            && !EACH.contains(&self.reason.as_str())
    }

    /// Whether the run of `other` is this one's, or an earlier one.
    pub fn covers(&self, other: &Self) -> bool {
        let run = |entry: &Self| (entry.uid.clone(), entry.container.clone());
        !other.container.is_empty()
            && run(self) == run(other)
            && self.attempt >= other.attempt
            && self.at >= other.at
    }

    /// This happened again.
    #[must_use]
    pub fn again(self, newer: Self) -> Self {
        Self {
            id: self.id,
            first: self.first,
            count: self.count.saturating_add(newer.count),
            ..newer
        }
    }
}
