//! `coracle exec`: runs a program in a container.

use std::process::ExitCode;

use serde_json::json;

use super::args::ExecArgs;
use super::client::Client;
use super::container;
use super::error::{CliError, Result};
use super::pod_path;
use super::session::{self, Manner};
use super::target::pod_of;
use crate::api::{MAX_BODY, encode};

/// A longer command is the body of the request: the agent reads a head of 32 KiB.
const MAX_QUERY_BYTES: usize = 16 << 10;

pub(super) fn run(client: &Client, args: &ExecArgs) -> Result<ExitCode> {
    let pod = pod_of(client, &args.namespace.namespace, &args.pod)?;
    let given = args.container.as_deref();
    let container = container::of(client, &args.namespace.namespace, &pod, given)?;
    let manner = Manner {
        stdin: args.stdin,
        tty: session::gets_terminal(args.stdin, args.tty),
        detachable: false,
    };
    let mut path = path(args, manner, (&pod, &container));
    let query: String = args
        .command
        .iter()
        .map(|word| format!("&command={}", encode(word)))
        .collect();
    if query.len() <= MAX_QUERY_BYTES {
        path.push_str(&query);
        return session::run(client, (&path, ""), manner);
    }
    let body = json!({ "command": args.command }).to_string();
    if body.len() > MAX_BODY {
        return Err(CliError::new(format!(
            "the command is too long ({} bytes as JSON, at most {MAX_BODY})",
            body.len()
        ))
        .hint("pass on data by `exec -i`, or copy it into the container by `coracle cp`"));
    }
    session::run(client, (&path, &body), manner)
}

fn path(args: &ExecArgs, manner: Manner, (pod, container): (&str, &str)) -> String {
    let mut path = format!(
        "{}/exec?stdin={}&tty={}&container={}",
        pod_path(&args.namespace.namespace, pod),
        manner.stdin,
        manner.tty,
        encode(container)
    );
    if let Some((columns, rows)) = session::size().filter(|_| manner.tty) {
        path.push_str(&format!("&cols={columns}&rows={rows}"));
    }
    path
}
