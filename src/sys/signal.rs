//! How does this process take signals?

use std::io;

use nix::sys::signal::{SigHandler, Signal, signal};

/// Lets SIGPIPE end the process, as it does for programs that are not written in Rust.
pub fn default_sigpipe() -> io::Result<()> {
    // SAFETY: the default action runs no code of ours.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }?;
    Ok(())
}
