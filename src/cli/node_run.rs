//! How does `coracle run` become the agent? Its flags are handed on, and whatever kept it from starting is told.

use std::process::ExitCode;

use super::args::RunArgs;
use super::error::{CliError, Result};
use crate::node::{self, StartError};

pub(super) fn run(args: RunArgs) -> Result<ExitCode> {
    node::run(args).map_err(|error| {
        let told = CliError::of(&error);
        match hint(&error) {
            Some(hint) => told.hint(hint),
            None => told,
        }
    })
}

fn hint(error: &StartError) -> Option<&'static str> {
    match error {
        StartError::NotRoot => Some("use sudo"),
        StartError::AlreadyRunning { .. } => {
            Some("stop it first, or give this one its own --root, --run-dir and --log-dir")
        }
        StartError::SwapIsOn => Some("`swapoff -a`, or `failSwapOn: false` in the settings"),
        StartError::CgroupV1 => {
            Some("`failCgroupV1: false` in the settings: coracle works with both")
        }
        StartError::OverReserved(_) => {
            Some("ask for less in `systemReserved`, `kubeReserved` and `evictionHard`")
        }
        StartError::Cgroup(_) => Some("`coracle doctor` tells what is missing"),
        StartError::Config(_)
        | StartError::Flag { .. }
        | StartError::Access { .. }
        | StartError::Images(_)
        | StartError::Api(_)
        | StartError::System { .. } => None,
    }
}
