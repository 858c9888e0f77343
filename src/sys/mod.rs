//! What does Linux need? Thin syscall wrappers; all `unsafe` of the crate lives here.

pub mod capability;
pub mod openat;
pub mod xattr;
