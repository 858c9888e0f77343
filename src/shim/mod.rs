//! The shim: one single-threaded process for each pod, re-executed from the same binary. It is the parent of the
//! pod's containers, reads their output, and is the only code that calls libcontainer.
//!
//! Reading order: [`run`] sets the process up ([`setup`]) and enters the loop of [`server`]; [`pod`] answers requests
//! and reaps; [`container`] starts a container ([`bundle`], [`rootfs`], [`image_volumes`], [`binds`], [`streams`],
//! [`executor`], [`status`], [`tighten`]), [`exec`] a program in one, which [`kept`] holds for hooks and probes, or a [`copy`] of files;
//! [`pause`] holds the process namespace of containers that share one, [`user_namespace`] shows mounts with the ids of a pod
//! that has its own; [`log`], [`log_file`] and [`rotate`] write its output, [`exit`] tells how it ended. [`protocol`] and [`frame`] are shared with
//! the agent.
//!
//! Signals: SIGCHLD, SIGHUP, SIGINT and SIGTERM are blocked and read from a descriptor. HUP and INT are ignored.
//! TERM comes from a system that shuts down (it reaches the containers as well): the shim leaves once none of them
//! runs.

pub mod frame;
pub mod protocol;

mod attach;
mod binds;
mod bundle;
mod connection;
mod container;
mod copy;
mod error;
mod exec;
mod executor;
mod exit;
mod filter;
mod groups;
mod image_volumes;
mod kept;
mod log;
mod log_file;
mod pause;
mod pod;
mod record;
mod rootfs;
mod rotate;
mod server;
mod setup;
mod stamp;
mod status;
mod streams;
mod tap;
mod tighten;
mod user_namespace;
mod volume_images;

use std::path::Path;

pub use error::ShimError;

/// Holds a pod until it is shut down. `config_path` is a [`protocol::ShimConfig`] as JSON. Must be called before
/// the process has a second thread.
pub fn run(config_path: &Path) -> Result<(), ShimError> {
    let config = setup::read_config(config_path)?;
    let (hierarchies, users) = setup::enter(&config)?;
    let signals = setup::watch_signals()?;
    let listener = setup::listen(&config.run_dir)?;
    status::install();
    setup::announce()?;
    server::serve(pod::Pod::new(config, hierarchies, users), listener, signals)
}

/// Writes one line to the shim's own log, which is its standard error. A full disk must not stop a pod.
fn warn(message: std::fmt::Arguments<'_>) {
    use std::io::Write;
    let (seconds, nanos) = crate::sys::clock::wall_ns();
    let stamp = stamp::rfc3339_nano(seconds, nanos);
    let _ = writeln!(std::io::stderr(), "{stamp} {message}");
}
