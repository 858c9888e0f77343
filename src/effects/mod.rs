//! The effects: idempotent `ensure_*` and `remove_*` functions without policy. They do not retry, do not wait for
//! better times, and log nothing above debug. Errors are returned, and the planner decides.

pub mod app_armor;
pub mod black_box;
pub mod bus;
pub mod cgroup;
pub mod configuration;
pub mod credential;
pub mod device;
pub(crate) mod exec;
pub mod facts;
pub mod figures;
pub mod former_secrets;
pub mod log_lines;
pub mod logind;
pub mod mask;
pub mod outside;
pub mod probe;
pub mod sandbox;
pub mod seccomp;
pub mod usage;
pub mod user_namespace;
pub mod volume;
