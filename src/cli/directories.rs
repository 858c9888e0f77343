//! The directories of this machine's agent, from the running agent, else from its systemd unit and the settings.

use std::path::{Path, PathBuf};

use clap::Parser;
use serde_json::Value;

use super::args::{Cli, Command, DEFAULT_SOCKET, RunArgs};
use super::client::{Client, SOON};
use super::install::{SERVICE, properties};
use crate::config::{Effective, Files};
use crate::layout::Layout;

/// Directories and where they were found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) layout: Layout,
    /// Directory of manifests.
    pub(super) manifests: PathBuf,
    /// Settings in the files; the defaults if those are invalid.
    pub(super) effective: Effective,
    /// Where the directories are from, e.g. `the running agent`.
    pub(super) source: &'static str,
    /// Why the directories may be wrong.
    pub(super) doubt: Option<String>,
    /// Why the files of the settings are refused.
    pub(super) refused: Option<String>,
}

/// State, runtime and log directory.
type Given = (Option<PathBuf>, Option<PathBuf>, Option<PathBuf>);

/// Returns the given directories, and the agent's for the others.
pub(super) fn find(client: &Client, given: Given) -> Found {
    found(client, running(client), given)
}

/// The same where the agent is known not to answer.
pub(super) fn find_without_answer(client: &Client) -> Found {
    found(client, None, (None, None, None))
}

fn found(client: &Client, running: Option<Running>, given: Given) -> Found {
    let unit = unit();
    let (files, of_unit) = match &unit {
        Some(run) => (Files::new(run.config.clone(), run.config_dir.clone()), true),
        None => (Files::new(None, None), false),
    };
    let read = files
        .read()
        .and_then(|texts| Effective::build(&texts, &[]))
        .map_err(|error| crate::chain(&error));
    let doubt = read.as_ref().err().cloned();
    let effective = read.unwrap_or_default();
    let mut found = Found {
        layout: effective.config.layout.clone(),
        manifests: effective.config.manifests.clone(),
        effective,
        source: match of_unit {
            true => "the unit and the settings",
            false => "the settings",
        },
        refused: doubt.clone(),
        doubt,
    };
    if let Some(run) = unit {
        found.take((run.root, run.run_dir, run.log_dir));
        found.manifests = run.manifests.unwrap_or(found.manifests);
    }
    match running {
        Some((manifests, policy, refused, given)) => {
            found.effective.config.registries.policy = policy;
            (found.source, found.doubt) = ("the running agent", None);
            found.refused = refused;
            found.manifests = manifests;
            found.take(given);
        }
        // A socket given by --socket shows where its agent's runtime directory is.
        None if client.socket != Path::new(DEFAULT_SOCKET) => {
            found.take((None, client.socket.parent().map(Path::to_owned), None));
        }
        None => {}
    }
    found.take(given);
    found
}

impl Found {
    fn take(&mut self, (root, run, log): Given) {
        let layout = &mut self.layout;
        for (place, given) in [
            (&mut layout.root, root),
            (&mut layout.run_dir, run),
            (&mut layout.log_dir, log),
        ] {
            if let Some(path) = given {
                *place = path;
            }
        }
    }
}

/// What an agent says: see [`running`].
type Running = (PathBuf, PathBuf, Option<String>, Given);

/// Asks the agent behind the socket for manifests, the policy for images, why it refuses its settings' files, and directories.
fn running(client: &Client) -> Option<Running> {
    let (shown, _) = client.get_within("/configz", SOON).ok()?;
    let config = &shown["kubeletconfig"];
    let path = |value: &Value| value.as_str().map(PathBuf::from);
    let root = path(&config["coracle"]["rootDir"])?;
    let run_dir = path(&config["coracle"]["runDir"])?;
    let given = (Some(root), Some(run_dir), path(&config["podLogsDir"]));
    let policy = path(&config["coracle"]["signaturePolicy"])?;
    let refused = shown["coracle"]["problem"].as_str().map(str::to_owned);
    Some((path(&config["staticPodPath"])?, policy, refused, given))
}

/// Reads the flags of `ExecStart=` in the agent's systemd unit.
fn unit() -> Option<RunArgs> {
    flags(&properties(SERVICE, "ExecStart"))
}

/// Parses `ExecStart={ path=… ; argv[]=coracle run … ; ignore_errors=no ; … }`.
fn flags(shown: &str) -> Option<RunArgs> {
    let (_, rest) = shown.split_once("argv[]=")?;
    let words = rest.split(" ; ").next()?.split_whitespace();
    match Cli::try_parse_from(words).ok()?.command {
        Command::Run(args) => Some(args),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_of_the_unit_are_read_as_systemd_shows_them() {
        let shown = "ExecStart={ path=/usr/local/bin/coracle ; argv[]=/usr/local/bin/coracle run --root /data/c --run-dir \
                     /run/c ; ignore_errors=no ; start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) ; status=0/0 }\n";
        let found = flags(shown).expect("a command of ours");
        assert_eq!(found.root, Some("/data/c".into()));
        assert_eq!(found.run_dir, Some("/run/c".into()));
        assert_eq!(found.log_dir, None);
        for other in [
            "",
            "ExecStart=\n",
            "ExecStart={ path=/bin/x ; argv[]=/bin/x --y ; }",
        ] {
            assert_eq!(flags(other), None, "{other}");
        }
    }
}
