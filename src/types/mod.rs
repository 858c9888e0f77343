//! The vocabulary of all rooms: times, exits of containers, amounts, settings. Plain data, without rules about pods.

pub mod black_box;
pub mod image_access;
pub mod quantity;
pub mod upgrade;
pub mod usage;

mod device;
mod effective;
mod exit;
mod order;
mod packed;
mod pull_window;
mod service_range;
mod settings;
mod size;
mod sorted;
mod time;

pub use device::{DeviceNode, DeviceSight};
pub use effective::{Effective, LinuxUser};
pub use exit::{CUT_SHORT_MESSAGE, Exit, LOST_MESSAGE, StopSignal};
pub use order::{Ascending, Gather, InOrder, merge};
pub use packed::{PackedText, SharedText};
pub use pull_window::{PullHours, PullWindow};
pub use service_range::ServiceRange;
pub use settings::{Group, ImagePolicy, Rate, Swapping};
pub use size::size;
pub use sorted::SortedMap;
pub use time::{Stamp, Time, Wall, duration_ms};
