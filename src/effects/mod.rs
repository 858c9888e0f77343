//! How is it done? Idempotent effects without policy.

pub mod image;
