//! How is it done? Idempotent `ensure_*`/`remove_*` without policy: no retries, no waiting for better times, no
//! logging above debug. What went wrong is returned, and the planner decides.

pub mod cgroup;
pub(crate) mod exec;
pub mod figures;
pub mod image;
pub mod logind;
pub mod network;
pub mod probe;
pub mod sandbox;
pub mod seccomp;
pub mod usage;
pub mod volume;
