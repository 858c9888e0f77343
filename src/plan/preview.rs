//! What would become of a pod if its manifest were this one? `coracle plan` asks; nothing is decided here that the planner
//! would decide in another way.

use super::edit::{self, Edit};
use super::hold::Rejection;
use super::resize::Refusal;
use super::room::Capacity;
use super::{NodeState, PodState};
use crate::spec::{PodKey, PodSpec};

/// What would become of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preview {
    /// There is none of that name, or nothing of it yet: it is made.
    Create {
        /// Why it would not be let in now, if so.
        hold: Option<Held>,
    },
    /// One of that name is being stopped: it is made when that one is gone.
    CreateAfter {
        /// Why it would not be let in then, as things are now.
        hold: Option<Held>,
    },
    /// There is one, which goes on or makes room.
    Edit {
        /// How.
        edit: Edit,
        /// Why other cpu and memory would have to wait, if so.
        waits: Option<Refusal>,
        /// Why the new pod that takes its place would not be let in, as things are now.
        hold: Option<Held>,
    },
}

/// Why a pod would not be let in at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Why.
    pub rejection: Rejection,
    /// Who would be ended to make room for it. If nobody, it waits.
    pub victims: Vec<PodKey>,
}

impl NodeState {
    /// What would become of this pod.
    pub fn preview(&self, new: &PodSpec) -> Preview {
        let mut named = self.pods.values().filter(|p| p.spec.key == new.key);
        let Some(pod) = named.next() else {
            return Preview::Create {
                hold: self.hold_of(new),
            };
        };
        if pod.stopping.is_some() {
            return Preview::CreateAfter {
                hold: self.hold_of(new),
            };
        }
        // What it waits for already is what its manifest says now.
        let now = PodState {
            spec: pod.wanted().clone(),
            ..pod.clone()
        };
        let edit = edit::of_pod(&now, new);
        let (waits, hold) = match &edit {
            Edit::None => (
                self.refusal(pod, new),
                pod.hold.is_some().then(|| self.hold_of(new)),
            ),
            // It may be edited in any way.
            Edit::Replace(_) | Edit::InPlace(_) if pod.hold.is_some() => {
                return Preview::Create {
                    hold: self.hold_of(new),
                };
            }
            Edit::Replace(_) => (None, Some(self.hold_of(new))),
            Edit::InPlace(_) => (self.refusal(pod, new), None),
        };
        Preview::Edit {
            edit,
            waits,
            hold: hold.flatten(),
        }
    }

    /// Why this pod would not be let in when the one of its name is gone.
    fn hold_of(&self, new: &PodSpec) -> Option<Held> {
        let mut then = self.clone();
        then.pods.retain(|_, pod| pod.spec.key != new.key);
        let nothing = Capacity::default();
        Some(Held {
            rejection: then.rejection(new, &nothing)?,
            victims: then.would_end(new, &nothing),
        })
    }
}
