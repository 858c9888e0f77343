//! Fetches from registries: Debian's `docker-registry`, behind a proxy that does everything that networks and bad
//! servers do. Every fetch starts the real worker. Needs root: imports make devices and owners.

#![allow(
    clippy::print_stdout,
    unreachable_pub,
    missing_docs,
    dead_code,
    reason = "a test"
)]

#[path = "registry/access.rs"]
mod access;
#[path = "registry/archive.rs"]
mod archive;
#[path = "registry/confined.rs"]
mod confined;
#[path = "registry/faults.rs"]
mod faults;
#[path = "images/fixture.rs"]
mod fixture;
#[path = "registry/formats.rs"]
mod formats;
#[path = "registry/hostile.rs"]
mod hostile;
#[path = "registry/mirrors.rs"]
mod mirrors;
#[path = "common/netns.rs"]
mod netns;
#[path = "registry/proxy.rs"]
mod proxy;
#[path = "registry/resume.rs"]
mod resume;
#[path = "common/signing.rs"]
mod signing;
#[path = "registry/stages.rs"]
mod stages;
#[path = "registry/trust.rs"]
mod trust;
#[path = "registry/world.rs"]
mod world;
