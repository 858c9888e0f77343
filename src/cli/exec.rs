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
    let pod = pod_of(client, &args.namespace.namespace, &args.pod)?;
    let given = args.container.as_deref();
    let container = container::of(client, &args.namespace.namespace, &pod, given)?;
    let manner = Manner {
        stdin: args.stdin,
        tty: session::gets_terminal(args.stdin, args.tty),
        detachable: false,
    };
    session::run(client, &path(args, manner, (&pod, &container)), manner)
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
    for word in &args.command {
        path.push_str(&format!("&command={}", encode(word)));
    }
    path
}
