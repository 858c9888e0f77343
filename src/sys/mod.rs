//! What does Linux need? Thin syscall wrappers, and all `unsafe` of the crate.

pub mod beneath;
pub mod cgroup_join;
pub mod clock;
pub mod fdpass;
pub mod loopback;
pub mod process;
pub mod pty;
pub mod signals;
