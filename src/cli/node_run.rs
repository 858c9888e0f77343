//! `coracle run`: hands the flags to the agent, and reports with a hint why it could not start.

use std::process::ExitCode;

use super::args::{RunArgs, flags};
use super::error::{CliError, Result};
use super::upgrade;
use crate::config::{Effective, Files};
use crate::node::{self, StartError};
use crate::sys::allocator;

pub(super) fn run(args: RunArgs) -> Result<ExitCode> {
    allocator::start_again_tuned();
    let files = Files::new(args.config.clone(), args.config_dir.clone());
    let flags = flags::given(args)?;
    // An agent with settings that are refused does not start: the next one tidies up.
    let read = files
        .read()
        .and_then(|texts| Effective::build(&texts, &flags));
    if let Ok(effective) = read {
        upgrade::undo_if_cut_off(&effective.config.layout.root);
    }
    node::run(files, flags).map_err(|error| {
        let failed = CliError::of(&error);
        if let StartError::NewerState { folder, version, .. } = &error {
            let folder = folder.display();
            return failed.hint(format!(
                "install coracle {version} or newer again; or begin without it: `mv {folder} {folder}.newer` sets \
                 everything aside, volumes and images too"
            ));
        }
        match hint(&error) {
            Some(hint) => failed.hint(hint),
            None => failed,
        }
    })
}

fn hint(error: &StartError) -> Option<&'static str> {
    match error {
        StartError::NotRoot => Some("use sudo"),
        StartError::AlreadyRunning { .. } => {
            Some("stop it first, or start this one with its own --root, --run-dir and --log-dir")
        }
        StartError::SwapIsOn => Some("`swapoff -a`, or `failSwapOn: false` in the settings"),
        StartError::CgroupV1 => {
            Some("`failCgroupV1: false` in the settings: coracle works with both")
        }
        StartError::OverReserved(_) => {
            Some("reserve less in `systemReserved`, `kubeReserved` and `evictionHard`")
        }
        StartError::Cgroup(_) => Some("`coracle doctor` shows what is missing"),
        StartError::Config(_)
        | StartError::NewerState { .. }
        | StartError::Access { .. }
        | StartError::Images(_)
        | StartError::Api(_)
        | StartError::System { .. } => None,
    }
}
