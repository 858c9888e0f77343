//! coracle: one static binary that turns a Linux box into a node running Kubernetes Pods from files.
//!
//! The floor plan, in reading order. Each folder is a room with one job; `src/README.md` says which room may use which,
//! and a test enforces it.

pub mod config;
pub mod layout;

/// The Kubernetes API over HTTP on a unix socket.
pub mod api;
/// The command line.
pub mod cli;
/// Files in and out of containers.
mod copy;
/// What the agent does to the machine: idempotent, without policy.
pub mod effects;
/// The image store, archives, and the worker that unpacks them.
pub mod images;
/// The manual, by topic.
pub mod manual;
/// The pod network: the bridge, addresses, packet rules and the name server.
pub mod network;
/// The agent: one event loop that feeds facts to the planner and carries out what it answers.
pub mod node;
/// The planner. Pure: events in, state and actions out.
pub mod plan;
/// The process that holds a pod.
pub mod shim;
/// Manifests. Pure: bytes in, valid pods or a list of errors out.
pub mod spec;
/// Thin wrappers of system calls.
pub mod sys;
/// The vocabulary that all rooms share: moments, ends of containers, amounts. Plain data.
pub mod types;

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
