//! How did containers end before the machine was switched off? It is shown (`lastState`), and their runs are counted on;
//! nothing is decided by it: everything starts afresh.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::run::Ended;
use super::state::{ContainerState, Role};
use super::{PodState, Stamp};
use crate::types::Exit;

/// A run that has not ended, to be remembered in case nothing but the next boot tells of its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Began {
    /// Its number.
    pub attempt: u32,
    /// The image's config digest.
    pub image_id: String,
    /// When it started.
    pub started: Stamp,
}

impl Began {
    /// How it is taken to have ended when the machine went down under it.
    pub fn cut_short(self, now: Stamp) -> Ended {
        Ended {
            attempt: self.attempt,
            image_id: self.image_id,
            exit: Exit::cut_short(self.started, now),
            on_request: false,
        }
    }
}

/// The containers whose runs are worth remembering: none of a pod that is to go.
fn remembered(pod: &PodState) -> impl Iterator<Item = &ContainerState> {
    let stays = pod.stopping().is_none();
    let all = pod.containers.iter();
    all.filter(move |container| stays && container.role != Role::Ephemeral)
}

/// The runs of a pod that have not ended.
pub fn running(pod: &PodState) -> impl Iterator<Item = (&str, Began)> {
    remembered(pod).filter_map(|container| {
        let run = container.run.running()?;
        let began = Began {
            attempt: run.attempt,
            image_id: run.image_id.clone(),
            started: run.began,
        };
        Some((&*container.name, began))
    })
}

/// How each container ended last, to be remembered for the next boot; nothing of a pod that is to go.
pub fn ends(pod: &PodState) -> impl Iterator<Item = (&str, &Ended)> {
    remembered(pod).filter_map(|container| {
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
