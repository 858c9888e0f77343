//! What happens next? The pure core: facts go in, decisions come out, nothing is done and no clock is read.
//!
//! [`NodeState::apply`] records facts and never decides. [`plan()`] decides, never changes anything and cannot fail.
//! [`status::pod`] turns state into what people see. Time is data ([`Time`], [`Stamp`]).

pub mod action;
pub mod event;
pub mod state;

pub use crate::spec::{Stamp, Time, Wall};
pub use action::{Action, Plan};
pub use event::Event;
pub use state::NodeState;
