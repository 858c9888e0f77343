//! What does Linux need? Thin syscall wrappers.

pub mod fd_passing;
pub mod pty_size;
