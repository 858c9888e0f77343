//! What is wanted? Manifest bytes become [`PodSpec`]s that cannot be wrong, or a list of everything that is wrong.
//!
//! Pure: no I/O, no clock, no async. The only door in is [`convert::documents`] followed by [`convert::pod`].

pub mod exit;
pub mod pod;
pub mod time;

pub use exit::{Exit, StopSignal};
pub use pod::*;
pub use time::{Stamp, Time, Wall};
