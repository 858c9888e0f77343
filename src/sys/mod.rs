//! What does Linux need? Thin syscall wrappers.

pub mod clock_sync;
pub mod fd_passing;
pub mod overlay_check;
pub mod pty_size;
pub mod signal;
