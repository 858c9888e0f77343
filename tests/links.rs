//! Interfaces and addresses of pods, and their removal without leftovers. Needs root: every test has a node of its own,
//! a network namespace, and checks the kernel's state.

#![allow(clippy::print_stdout, unreachable_pub, missing_docs, reason = "a test")]

#[path = "links/attach.rs"]
mod attach;
#[path = "links/mending.rs"]
mod mending;
#[path = "links/node.rs"]
mod node;
#[path = "pods/mod.rs"]
mod pods;
#[path = "links/ranges.rs"]
mod ranges;
