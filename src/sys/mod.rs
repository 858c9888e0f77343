//! What does Linux need? Thin wrappers around system calls; all `unsafe` lives here. No policy, no Kubernetes words.

pub mod clock;
pub mod file;
pub mod mount;
