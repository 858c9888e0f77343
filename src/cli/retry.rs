//! `coracle retry`: makes a pod retry now what it waits for.

use std::process::ExitCode;

use super::args::RetryArgs;
use super::client::Client;
use super::error::Result;
use super::put;
use super::target::pod_of;
use crate::api::encode;

pub(super) fn run(client: &Client, args: &RetryArgs) -> Result<ExitCode> {
    let name = pod_of(client, &args.namespace.namespace, &args.pod)?;
    let (ns, pod) = (encode(&args.namespace.namespace), encode(&name));
    let container = args.container.iter();
    let query: String = container
        .map(|c| format!("?container={}", encode(c)))
        .collect();
    let path = format!("/coracle/v1/namespaces/{ns}/pods/{pod}/retry{query}");
    let answer = client.json("POST", &path, None)?;
    let done = answer["message"].as_str().unwrap_or_default();
    put(format!("pod/{name}: {done}\n").as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
