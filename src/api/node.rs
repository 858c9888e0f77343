//! What of the node is only known when somebody asks? That it is alive: nothing has to wake up in between to say so.

use std::time::Duration;

use hyper::body::Bytes;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::command::Command;
use super::routes::ask;
use super::server::Context;

/// The kubelet's version that others may expect the behaviour of, and the own one.
pub fn version() -> String {
    format!("v1.36.0+coracle-{}", env!("CARGO_PKG_VERSION"))
}

/// Go's name of the architecture, as Kubernetes uses it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A look should not take longer: a stuck disk must not keep people from seeing the rest.
const PATIENCE: Duration = Duration::from_secs(1);

/// Has the node look at itself, so that what is stored is what there is. One that ends, or does not get around to it, is
/// shown as it was.
pub(crate) async fn look(context: &Context) {
    let (reply, answer) = smol::channel::bounded(1);
    let looked = async {
        let _ = ask(context, Command::LookAtNode { reply }, answer).await;
    };
    let waited = async {
        smol::Timer::after(PATIENCE).await;
    };
    smol::future::or(looked, waited).await;
}

/// The stored node, alive now.
pub(crate) fn alive(stored: &Bytes) -> Bytes {
    let mut node: Value = serde_json::from_slice(stored).unwrap_or_default();
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    for condition in node["status"]["conditions"]
        .as_array_mut()
        .into_iter()
        .flatten()
    {
        condition["lastHeartbeatTime"] = now.clone().into();
    }
    Bytes::from(node.to_string())
}
