//! coracle: one static binary that turns a Linux box into a node running Kubernetes Pods from files.
//!
//! The floor plan, in reading order. Each folder is a room that answers one question; `src/README.md` says who may
//! use whom, and a test enforces it.

pub mod config;
pub mod layout;

/// What can others see? HTTP on a unix socket.
pub mod api;
/// What does a person type?
pub mod cli;
/// How is it done? Idempotent effects without policy.
pub mod effects;
/// Who does it, and when? The event loop.
pub mod node;
/// What happens next? Pure: events in, state and actions out.
pub mod plan;
/// Who holds the pod? The per-pod process.
pub mod shim;
/// What is wanted? Pure: manifest bytes in, valid-by-construction pods or a list of errors out.
pub mod spec;
/// What does Linux need? Thin syscall wrappers.
pub mod sys;

/// An error and all its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Transparent wrappers say the same as what they wrap.
        let said = error.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}
