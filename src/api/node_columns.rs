//! kubectl's columns of a node, by its printer's rules; used for Tables of the API and by the command line.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;

use super::pod_columns::age_of;
use crate::types::InOrder;

/// The titles of [`row`]; the sixth and later ones are for wide output.
pub const TITLES: [&str; 10] = [
    "NAME",
    "STATUS",
    "ROLES",
    "AGE",
    "VERSION",
    "INTERNAL-IP",
    "EXTERNAL-IP",
    "OS-IMAGE",
    "KERNEL-VERSION",
    "CONTAINER-RUNTIME",
];

/// Number of columns that are always shown.
pub const NARROW: usize = 5;

/// The columns of `kubectl get nodes -o wide`.
pub fn row(node: &Node, now: Timestamp) -> [String; 10] {
    let status = node.status.clone().unwrap_or_default();
    let address = |wanted: &str| {
        let mut all = status.addresses.iter().flatten();
        let found = all.find(|address| address.type_ == wanted);
        found.map_or_else(|| "<none>".to_owned(), |found| found.address.clone())
    };
    let (internal, external) = (address("InternalIP"), address("ExternalIP"));
    let conditions = status.conditions.iter().flatten();
    let ready = conditions.clone().find(|c| c.type_ == "Ready");
    let mut state = match ready.map(|c| c.status.as_str()) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true) {
        state.push_str(",SchedulingDisabled");
    }
    let info = status.node_info.unwrap_or_default();
    let or = |text: String, other: &str| match text.is_empty() {
        true => other.to_owned(),
        false => text,
    };
    [
        node.metadata.name.clone().unwrap_or_default(),
        state,
        roles(node),
        age_of(node.metadata.creation_timestamp.as_ref().map(|t| t.0), now),
        info.kubelet_version,
        internal,
        external,
        or(info.os_image, "<unknown>"),
        or(info.kernel_version, "<unknown>"),
        or(info.container_runtime_version, "<unknown>"),
    ]
}

/// Returns the roles from the node's labels.
pub fn roles(node: &Node) -> String {
    let labels = node.metadata.labels.iter().flatten();
    let mut roles: Vec<&str> = labels
        .filter_map(
            |(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
                Some(role) => Some(role),
                None => (key == "kubernetes.io/role").then_some(value.as_str()),
            },
        )
        .filter(|role| !role.is_empty())
        .collect();
    roles.order();
    match roles.is_empty() {
        true => "<none>".to_owned(),
        false => roles.join(","),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_shown_as_kubectl_does() {
        let bare = json!({ "metadata": { "name": "box" } });
        let full = json!({
            "metadata": { "name": "box", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": { "node-role.kubernetes.io/gateway": "", "kubernetes.io/role": "edge" } },
            "spec": { "unschedulable": true },
            "status": { "conditions": [{ "type": "DiskPressure", "status": "True" }, { "type": "Ready", "status": "True" }],
                "addresses": [{ "type": "InternalIP", "address": "192.0.2.7" }, { "type": "InternalIP", "address": "::7" },
                    { "type": "Hostname", "address": "box" }],
                "nodeInfo": { "kubeletVersion": "v1", "osImage": "An OS", "kernelVersion": "6.1",
                    "containerRuntimeVersion": "c://2", "architecture": "", "bootID": "", "kubeProxyVersion": "",
                    "machineID": "", "operatingSystem": "", "systemUUID": "" } } });
        let not_ready = json!({ "metadata": { "name": "box" },
            "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
        let now: Timestamp = "2026-01-03T05:00:00Z".parse().unwrap();
        for (node, expected) in [
            (
                bare,
                "box|Unknown|<none>|<unknown>||<none>|<none>|<unknown>|<unknown>|<unknown>",
            ),
            (
                full,
                "box|Ready,SchedulingDisabled|edge,gateway|2d5h|v1|192.0.2.7|<none>|An OS|6.1|c://2",
            ),
            (
                not_ready,
                "box|NotReady|<none>|<unknown>||<none>|<none>|<unknown>|<unknown>|<unknown>",
            ),
        ] {
            let node: Node = serde_json::from_value(node).unwrap();
            assert_eq!(row(&node, now).join("|"), expected);
        }
    }
}
