//! How did containers end before the machine was switched off? It is shown (`lastState`), and their runs are counted on;
//! nothing is decided by it: everything starts afresh.

use std::collections::BTreeMap;

use super::PodState;
use super::state::{Ended, Role};

/// How each container ended last, to be remembered for the next boot; nothing of a pod that is to go.
pub fn ends(pod: &PodState) -> impl Iterator<Item = (&str, &Ended)> {
    let stays = pod.stopping.is_none();
    let all = pod.containers.iter();
    let own = all.filter(move |container| stays && container.role != Role::Ephemeral);
    own.filter_map(|container| {
        let newest = container.run.ended().or(container.previous.as_ref());
        let ended = newest.or(container.former.as_ref())?;
        Some((&*container.name, ended))
    })
}

/// They ended so in an earlier boot, unless they have run since. Moments of that boot mean nothing in this one.
pub(super) fn remember(pod: &mut PodState, ends: &BTreeMap<String, Ended>) {
    for container in &mut pod.containers {
        let Some(ended) = ends.get(&container.name) else {
            continue;
        };
        let newest = container.run.attempt();
        if newest.is_none_or(|newest| newest > ended.attempt) {
            let next = ended.attempt.saturating_add(1);
            container.next_attempt = container.next_attempt.max(next);
            container.former = Some(ended.clone());
        }
    }
}
