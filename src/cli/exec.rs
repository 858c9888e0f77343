//! `coracle exec`: runs a program in a container.

use std::process::ExitCode;

use super::args::ExecArgs;
use super::client::Client;
use super::container;
use super::error::Result;
use super::pod_path;
use super::session::{self, Manner};
use super::target::pod_of;
use crate::api::encode;

pub(super) fn run(client: &Client, args: &ExecArgs) -> Result<ExitCode> {
    let manner = Manner {
        stdin: args.stdin,
        tty: args.tty,
        detachable: false,
    };
    let pod = pod_of(client, &args.namespace.namespace, &args.pod)?;
    let given = args.container.as_deref();
    let container = container::of(client, &args.namespace.namespace, &pod, given)?;
    session::run(client, &path(args, &pod, &container), manner)
}

fn path(args: &ExecArgs, pod: &str, container: &str) -> String {
    let mut path = format!(
        "{}/exec?stdin={}&tty={}&container={}",
        pod_path(&args.namespace.namespace, pod),
        args.stdin,
        args.tty,
        encode(container)
    );
    if let Some((columns, rows)) = session::size().filter(|_| args.tty) {
        path.push_str(&format!("&cols={columns}&rows={rows}"));
    }
    for word in &args.command {
        path.push_str(&format!("&command={}", encode(word)));
    }
    path
}
