//! How does `coracle run` reach the agent? Through the one call in this file.

use std::process::ExitCode;

use super::args::RunArgs;
use super::error::{CliError, Result};

/// The single call site of the node agent: `crate::node::run(args)` belongs here.
pub(super) fn run(args: RunArgs) -> Result<ExitCode> {
    Err(CliError::new("this build has no node agent")
        .because(format!("asked to run with {args:?}")))
}
