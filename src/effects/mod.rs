//! stub

pub mod seccomp;
