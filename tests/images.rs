//! Imports of image archives. Needs root: layers hold devices, owners and `trusted.*` attributes. Every import starts
//! the real worker.

#![allow(clippy::print_stdout, unreachable_pub, missing_docs, reason = "a test")]

#[path = "images/check.rs"]
mod check;
#[path = "images/crash.rs"]
mod crash;
#[path = "images/fixture.rs"]
mod fixture;
#[path = "images/formats.rs"]
mod formats;
#[path = "images/hostile.rs"]
mod hostile;
#[path = "images/layers.rs"]
mod layers;
#[path = "images/rules.rs"]
mod rules;
#[path = "images/saved.rs"]
mod saved;
#[path = "images/sent.rs"]
mod sent;
#[path = "common/signing.rs"]
#[allow(dead_code, reason = "registries have their own tests")]
mod signing;
#[path = "images/trust.rs"]
mod trust;
