//! `types`, `spec` and `plan` as they are in coracle, and nothing else.

/// What happens next.
#[path = "../../../src/plan/mod.rs"]
pub mod plan;
/// What is wanted.
#[path = "../../../src/spec/mod.rs"]
pub mod spec;
/// The words that all rooms share.
#[path = "../../../src/types/mod.rs"]
pub mod types;
