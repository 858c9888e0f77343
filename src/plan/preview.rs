//! The preview of an edited manifest, for `coracle plan`. It asks the planner's own functions, so that both decide
//! alike.

use super::edit::{self, Edit};
use super::hold::Rejection;
use super::resize::Refusal;
use super::room::Capacity;
use super::{NodeState, PodState};
use crate::spec::{PodKey, PodSpec};

/// What would become of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preview {
    /// It does not exist yet: it is created.
    Create {
        /// Why it would be held, if so.
        hold: Option<Held>,
    },
    /// A pod of that name is being stopped: the new one is created when that one is gone.
    CreateAfter {
        /// Why it would be held then, as things are now.
        hold: Option<Held>,
    },
    /// It exists, and is changed or replaced.
    Edit {
        /// The effect of the edit.
        edit: Edit,
        /// Why a change of cpu and memory would have to wait, if so.
        waits: Option<Refusal>,
        /// Why the new pod that replaces it would be held, as things are now.
        hold: Option<Held>,
    },
}

/// Why a pod would be held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The reason.
    pub rejection: Rejection,
    /// The pods that would be preempted for it. If there are none, it waits.
    pub victims: Vec<PodKey>,
}

impl NodeState {
    /// Predicts the effect of this manifest.
    pub fn preview(&self, new: &PodSpec) -> Preview {
        let mut named = self.pods.values().filter(|p| p.spec.key == new.key);
        let Some(pod) = named.next() else {
            return Preview::Create {
                hold: self.hold_of(new),
            };
        };
        if pod.stopping().is_some() {
            return Preview::CreateAfter {
                hold: self.hold_of(new),
            };
        }
        // A pending resize is part of its manifest already.
        let now = PodState {
            spec: pod.wanted().clone(),
            ..pod.clone()
        };
        let edit = edit::of_pod(&now, new);
        let (waits, hold) = match &edit {
            Edit::None => (
                self.refusal(pod, new),
                pod.hold().is_some().then(|| self.hold_of(new)),
            ),
            // A held pod may be edited in any way.
            Edit::Replace(_) | Edit::InPlace(_) if pod.hold().is_some() => {
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

    /// Why this pod would be held once the existing one of its name is gone.
    fn hold_of(&self, new: &PodSpec) -> Option<Held> {
        let mut then = self.clone();
        then.pods.retain(|_, pod| pod.spec.key != new.key);
        let nothing = Capacity::default();
        let refused = || then.rejection(new, &nothing);
        Some(Held {
            rejection: refused().or_else(|| then.would_wait(new))?,
            victims: then.would_end(new, &nothing),
        })
    }
}
