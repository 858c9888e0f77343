//! What of a container's earlier runs is still of use? Its newest run's log and those of a few before it (the kubelet's
//! container GC, kubelet-behaviour §10.5). A run's writable layer and message file are of no use once it has ended: nobody
//! can look into it any more, and its message is in its record. What a pod has beside that goes with the pod.

use super::PodState;
use super::state::{ContainerState, Run};

/// What is kept of one container's runs; what is of runs with smaller numbers is to be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Which container.
    pub container: String,
    /// The first run whose log is kept.
    pub logs_from: u32,
    /// The first run whose writable layer and message file are kept.
    pub files_from: u32,
}

/// What is kept of each container that has something to lose. `max_dead` runs that ended keep their logs beside the
/// newest run, whatever that has come to.
pub fn kept(pod: &PodState, max_dead: u32) -> Vec<Kept> {
    let of = |c: &ContainerState| Kept {
        container: c.name.clone(),
        logs_from: logs_from(c, max_dead),
        files_from: match c.run {
            Run::Running { attempt, .. } => attempt,
            Run::None | Run::Ended(_) => c.next_attempt,
        },
    };
    let all = pod.containers.iter().map(of);
    // Logs are kept for at least as long as files.
    all.filter(|k| k.files_from > 0).collect()
}

fn logs_from(container: &ContainerState, max_dead: u32) -> u32 {
    let Some(newest) = container.run.attempt() else {
        // Runs of a boot before this one left theirs.
        return container.next_attempt.saturating_sub(max_dead);
    };
    if max_dead == 0 {
        return newest;
    }
    // Numbers may be missing between the two.
    let before = container.previous.as_ref().map(|ended| ended.attempt);
    before
        .unwrap_or(newest.saturating_sub(1))
        .saturating_sub(max_dead - 1)
}
