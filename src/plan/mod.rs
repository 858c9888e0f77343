//! What happens next? The pure core: facts go in, decisions come out, nothing is done and no clock is read.
//!
//! [`NodeState::apply`] records facts and never decides. [`plan()`] decides, never changes anything and cannot fail.
//! [`status::pod`] turns state into what people see, [`network::view`] into whom pods can talk to. Time is data ([`Time`], [`Stamp`]).
//!
//! ```text
//! Event ──► apply.rs ──► NodeState ──► decide.rs ──► Plan { actions, wake_at }
//!              │             └───────► status.rs ──► Pod as people see it
//!              └─► Notice (a Kubernetes event)
//! ```

pub mod action;
mod admit;
pub mod apply;
pub mod classes;
pub mod condition;
pub mod cordon;
pub mod decide;
pub mod edit;
pub mod event;
pub mod fit;
pub mod former;
pub mod garbage;
pub mod hold;
pub mod hook;
pub mod incarnation;
pub mod kill;
pub mod network;
pub mod notice;
mod order;
mod preempt;
pub mod pressure;
pub mod preview;
pub mod probe;
pub mod resize;
pub mod restart;
pub mod retry;
mod room;
mod round;
pub mod shutdown;
mod stage;
pub mod state;
pub mod status;
pub mod verdict;

pub use crate::spec::{Stamp, Time, Wall};
pub use action::{Action, Plan};
pub use decide::{plan, plan_pod};
pub use event::Event;
pub use notice::Notice;
pub use order::urgent_first;
pub use state::{NodeState, PodState, Settings};
