//! The parts of the Node object that are made when a client asks, such as the heartbeat: nothing has to wake up in
//! between.

use std::time::Duration;

use hyper::body::Bytes;
use serde_json::Value;

use super::command::Command;
use super::routes::ask;
use super::server::Context;
use crate::sys::clock;

/// The version of the kubelet whose behaviour clients may expect, and coracle's own.
pub fn version() -> String {
    format!("v1.36.0+coracle-{}", env!("CARGO_PKG_VERSION"))
}

/// The architecture as Go, and so Kubernetes, names it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Deadline for updating the node: a stuck disk must not keep clients from seeing the rest.
const PATIENCE: Duration = Duration::from_secs(1);

/// Has the node update its Node object. If the agent is stopping or too slow, the stored object is shown unchanged.
pub(crate) async fn look(context: &Context) {
    let looked = async {
        let _ = ask(context, |reply| Command::LookAtNode { reply }).await;
    };
    let waited = async {
        smol::Timer::after(PATIENCE).await;
    };
    smol::future::or(looked, waited).await;
}

/// Returns the stored node with a current heartbeat.
pub(crate) fn alive(stored: &Bytes) -> Bytes {
    let mut node: Value = serde_json::from_slice(stored).unwrap_or_default();
    let now = clock::timestamp()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    for condition in node["status"]["conditions"]
        .as_array_mut()
        .into_iter()
        .flatten()
    {
        condition["lastHeartbeatTime"] = now.clone().into();
    }
    Bytes::from(node.to_string())
}
