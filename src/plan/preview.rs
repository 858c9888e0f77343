//! What would become of a pod if its manifest were this one? `coracle plan` asks; nothing is decided here that the planner
//! would decide in another way.

use super::edit::{self, Edit};
use super::resize::Refusal;
use super::{NodeState, PodState};
use crate::spec::PodSpec;

/// What would become of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preview {
    /// There is none of that name: it is made.
    Create,
    /// One of that name is being stopped: it is made when that one is gone.
    CreateAfter,
    /// There is one, which goes on or makes room.
    Edit {
        /// How.
        edit: Edit,
        /// Why other cpu and memory would have to wait, if so.
        waits: Option<Refusal>,
    },
}

impl NodeState {
    /// What would become of this pod.
    pub fn preview(&self, new: &PodSpec) -> Preview {
        let mut named = self.pods.values().filter(|p| p.spec.key == new.key);
        let Some(pod) = named.next() else {
            return Preview::Create;
        };
        if pod.stopping.is_some() {
            return Preview::CreateAfter;
        }
        // What it waits for already is what its manifest says now.
        let now = PodState {
            spec: pod.wanted().clone(),
            ..pod.clone()
        };
        let edit = edit::of_pod(&now, new);
        let waits = match &edit {
            Edit::Replace(_) => None,
            Edit::None | Edit::InPlace(_) => self.refusal(pod, new),
        };
        Preview::Edit { edit, waits }
    }
}
