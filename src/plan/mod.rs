//! The pure core: facts go in, decisions come out. It does no I/O and reads no clock.
//!
//! [`NodeState::apply`] records facts and never decides. [`Agenda::next`] decides and changes nothing.
//! [`status::pod`] turns state into the shown status, [`network::view`] into the endpoints of services. Time is
//! data ([`Time`], [`Stamp`]).
//!
//! ```text
//! Event ──► agenda.rs ──► apply ──► NodeState ──► agenda.rs ──► Step { Record | Begin(Task) | WakeAt | Rest }
//!                           │           └───────► status ─────► Pod as people see it
//!                           └─► Notice (a Kubernetes event)
//! ```

pub mod action;
mod admit;
pub mod after;
pub mod agenda;
pub mod apply;
pub mod black_box;
pub mod bundle;
pub mod claims;
pub mod classes;
pub mod condition;
pub mod cordon;
pub mod decide;
pub mod device;
pub mod edit;
pub mod event;
pub mod fit;
pub mod former;
pub mod garbage;
pub mod health;
pub mod hold;
pub mod hook;
pub mod incarnation;
pub mod kill;
pub mod memory;
pub mod network;
pub mod notice;
pub mod poll;
mod preempt;
pub mod preload;
pub mod pressure;
pub mod preview;
pub mod probe;
pub mod pull;
pub mod recovered;
pub mod resize;
pub mod restart;
pub mod restart_request;
pub mod retry;
mod room;
pub mod round;
pub mod run;
pub mod shutdown;
mod stage;
pub mod state;
pub mod status;
pub mod stop;
pub mod user_namespace;
pub mod verdict;
pub mod workload;

pub use action::Action;
pub use agenda::{Agenda, Step, Task};
pub use event::{Event, NodeFact, PodFact, RunFact};
pub use notice::Notice;
pub use state::{NodeState, PodState, Settings};

use crate::types::{Stamp, Time, Wall};
