//! `coracle attach`: a container's output, and input to it.

use std::process::ExitCode;

use serde_json::Value;

use super::args::AttachArgs;
use super::client::Client;
use super::container;
use super::error::Result;
use super::pod_path;
use super::session::{self, Manner};
use super::target::pod_of;
use crate::api::encode;

pub(super) fn run(client: &Client, args: &AttachArgs) -> Result<ExitCode> {
    let pod = &*pod_of(client, &args.namespace.namespace, &args.pod)?;
    let path = pod_path(&args.namespace.namespace, pod);
    let shown = client.get(&path)?;
    let container = match &args.container {
        Some(container) => container.clone(),
        None => container::announced(&shown, pod),
    };
    let has_tty = has_terminal(&shown, &container);
    if args.tty && !has_tty {
        eprintln!("error: Unable to use a TTY - container {container} did not allocate one");
    }
    let manner = Manner {
        stdin: args.stdin,
        tty: has_tty,
        detachable: true,
    };
    to(client, (&path, Some(&container)), manner, args.quiet, false)
}

/// Attaches to a running container; with `logs`, prints its earlier output first.
pub(super) fn to(
    client: &Client,
    (pod, container): (&str, Option<&str>),
    manner: Manner,
    quiet: bool,
    logs: bool,
) -> Result<ExitCode> {
    let mut path = format!(
        "{pod}/attach?stdin={}&tty={}&logs={logs}",
        manner.stdin, manner.tty
    );
    if let Some(container) = container {
        path.push_str(&format!("&container={}", encode(container)));
    }
    if let Some((columns, rows)) = session::size().filter(|_| manner.tty) {
        path.push_str(&format!("&cols={columns}&rows={rows}"));
    }
    if manner.is_raw() && !quiet {
        eprintln!(
            "All commands and output from this session will be recorded in container logs, including credentials and \
             sensitive information passed through the command prompt.\n\
             If you don't see a command prompt, try pressing enter. Detach with ctrl-p ctrl-q."
        );
    }
    session::run(client, (&path, ""), manner)
}

/// Whether the container has a terminal.
fn has_terminal(pod: &Value, container: &str) -> bool {
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    let mut all = lists
        .iter()
        .filter_map(|list| pod["spec"][list].as_array())
        .flatten();
    all.any(|c| c["name"] == container && c["tty"] == true)
}
