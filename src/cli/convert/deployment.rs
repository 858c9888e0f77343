//! A service that wants several pods (`deploy.replicas`, `scale`): a Deployment instead of a Pod.

use super::tree::{Entries, document, find_mut, map, map_of_texts, number, remove, scalar, set};
use super::work::{Pod, Work};
use crate::spec::value::Value;

/// How many pods a service is to have, if it says so and it is not one.
pub(super) fn replicas(service: &Value) -> Option<u32> {
    let deploy = service.get("deploy").and_then(|d| scalar(d, "replicas"));
    let written = deploy.or_else(|| scalar(service, "scale"))?;
    written.parse().ok().filter(|number| *number != 1)
}

/// Takes from a pod what several of a kind cannot have. `policy` is when it would restart.
pub(super) fn suit(work: &Work<'_>, policy: &str, pod: &mut Pod) {
    if policy != "Always" {
        let what = format_args!("restart policy {policy}: pods of a Deployment always restart");
        work.lost(&mut pod.spec, what);
    }
    for container in &mut pod.containers {
        let Value::Map(fields) = container else {
            continue;
        };
        let Some(Value::List(ports)) = find_mut(fields, "ports") else {
            continue;
        };
        for port in ports {
            let host = port.get("hostPort").and_then(Value::scalar_text);
            if let (Value::Map(port), Some(host)) = (port, host) {
                remove(port, "hostPort");
                remove(port, "hostIP");
                let what = format_args!(
                    "port {host} of the node: one pod only can have it; a Service with `type: NodePort` reaches all"
                );
                work.lost(port, what);
            }
        }
    }
}

/// The Deployment of pods with this metadata and spec. They are found by their label `app`.
pub(super) fn of(
    metadata: Entries,
    app: &str,
    replicas: u32,
    own: Entries,
    spec: Entries,
) -> Value {
    let labels = map_of_texts(&[("app", app)]);
    let mut whole = Entries::new();
    set(&mut whole, "replicas", number(replicas));
    set(&mut whole, "selector", map([("matchLabels", labels)]));
    let template = map([("metadata", Value::Map(own)), ("spec", Value::Map(spec))]);
    set(&mut whole, "template", template);
    document("apps/v1", "Deployment", metadata, whole)
}
