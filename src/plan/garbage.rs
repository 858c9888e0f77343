//! What is kept of a container's earlier runs: the log of its newest run and those of a few runs before it (the
//! kubelet's container GC, Kubernetes docs: Garbage Collection). A run's writable layer and message file are
//! removed once it has ended: no process can read the layer any more, and the message is in the run's record.
//! Everything else of a pod is removed with it.

use super::PodState;
use super::state::ContainerState;

/// What is kept of one container's runs. Files of runs with smaller numbers are removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The container's name.
    pub container: String,
    /// The first run whose log is kept.
    pub logs_from: u32,
    /// The first run whose writable layer and message file are kept.
    pub files_from: u32,
}

/// What is kept of each container that has something to remove. `max_dead` ended runs keep their logs beside the
/// newest run.
pub fn kept(pod: &PodState, max_dead: u32) -> Vec<Kept> {
    let of = |c: &ContainerState| Kept {
        container: c.name.clone(),
        logs_from: logs_from(c, max_dead),
        files_from: c.run.running().map_or(c.next_attempt, |run| run.attempt),
    };
    let all = pod.containers.iter().map(of);
    // Logs are kept for at least as long as files.
    all.filter(|k| k.files_from > 0).collect()
}

fn logs_from(container: &ContainerState, max_dead: u32) -> u32 {
    let Some(newest) = container.run.attempt() else {
        // Files of runs before the reboot.
        return container.next_attempt.saturating_sub(max_dead);
    };
    if max_dead == 0 {
        return newest;
    }
    // Attempt numbers between the two may be missing.
    let before = container.previous.as_ref().map(|ended| ended.attempt);
    before
        .unwrap_or(newest.saturating_sub(1))
        .saturating_sub(max_dead - 1)
}
