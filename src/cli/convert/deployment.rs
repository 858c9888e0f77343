//! A service that wants several pods (`deploy.replicas`, `scale`): a Deployment instead of a Pod.

use super::tree::{Entries, map, number, scalar, text};
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
        let ports = fields.iter_mut().filter(|(key, _)| key == "ports");
        for port in ports.flat_map(|(_, ports)| match ports {
            Value::List(ports) => &mut ports[..],
            _ => &mut [],
        }) {
            let Some(host) = scalar(port, "hostPort") else {
                continue;
            };
            port.remove("hostPort");
            port.remove("hostIP");
            if let Value::Map(port) = port {
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
    let labels = map([("app", text(app))]);
    let template = map([("metadata", Value::Map(own)), ("spec", Value::Map(spec))]);
    let spec = map([
        ("replicas", number(replicas)),
        ("selector", map([("matchLabels", labels)])),
        ("template", template),
    ]);
    map([
        ("apiVersion", text("apps/v1")),
        ("kind", text("Deployment")),
        ("metadata", Value::Map(metadata)),
        ("spec", spec),
    ])
}
