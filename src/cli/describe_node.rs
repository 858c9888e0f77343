//! `coracle describe node`: laid out as kubectl's.

use k8s_openapi::api::core::v1::{
    Container, Event, Node, NodeStatus, NodeSystemInfo, Pod, PodSpec, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use std::collections::BTreeMap;

use super::client::Client;
use super::error::{CliError, Result};
use super::put;
use super::sheet::Sheet;
use crate::api::pod_columns::age_of;
use crate::api::{encode, event_columns, node_columns};
use crate::spec::read_object;
use crate::sys::clock;
use crate::types::Gather;
use crate::types::quantity::Quantity;

pub(super) fn run(client: &Client, names: &[String]) -> Result<()> {
    let bad = || CliError::new("the agent's answer is not a node");
    let nodes = match names.is_empty() {
        true => match client.get("/api/v1/nodes")?["items"].take() {
            Value::Array(nodes) => nodes,
            _ => Vec::new(),
        },
        false => {
            let names = names.iter();
            let get = |name: &String| client.get(&format!("/api/v1/nodes/{}", encode(name)));
            names.map(get).collect::<Result<_>>()?
        }
    };
    for (index, node) in nodes.iter().enumerate() {
        let node: Node = read_object(node).ok_or_else(bad)?;
        let name = node.metadata.name.clone().unwrap_or_default();
        let field = format!("involvedObject.kind=Node,involvedObject.name={name}");
        let events = client.get(&format!("/api/v1/events?fieldSelector={}", encode(&field)))?;
        let pods = client.get("/api/v1/pods")?;
        let gap = if index > 0 { "\n\n" } else { "" };
        let page = page(&node, &typed(&pods), &typed(&events), clock::timestamp());
        put(format!("{gap}{page}").as_bytes())?;
    }
    Ok(())
}

fn typed<T: serde::de::DeserializeOwned>(list: &Value) -> Vec<T> {
    let items = list["items"].as_array().into_iter().flatten();
    items.filter_map(read_object).collect()
}

/// Formats the whole page.
fn page(node: &Node, pods: &[Pod], events: &[Event], now: Timestamp) -> String {
    let none = NodeStatus::default();
    let status = node.status.as_ref().unwrap_or(&none);
    let mut sheet = Sheet::default();
    header(&mut sheet, node);
    conditions(&mut sheet, status);
    sheet.line(0, ["Addresses:"]);
    for address in status.addresses.iter().flatten() {
        sheet.line(1, [&format!("{}:", address.type_), &address.address]);
    }
    for (title, amounts) in [
        ("Capacity:", &status.capacity),
        ("Allocatable:", &status.allocatable),
    ] {
        sheet.line(0, [title]);
        for (name, amount) in amounts.iter().flatten() {
            sheet.line(1, [&format!("{name}:"), &amount.0]);
        }
    }
    if let Some(info) = &status.node_info {
        system(&mut sheet, info);
    }
    if let Some(id) = node.spec.as_ref().and_then(|s| s.provider_id.as_ref()) {
        sheet.line(0, ["ProviderID:", id]);
    }
    let over = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        !matches!(phase, Some("Succeeded" | "Failed"))
    };
    let pods: Vec<&Pod> = pods.iter().filter(over).collect();
    let allocatable = status.allocatable.clone().unwrap_or_default();
    let sums = pod_table(&mut sheet, &pods, &allocatable, now);
    allocated(&mut sheet, &sums, &allocatable);
    event_table(&mut sheet, events, now);
    sheet.render()
}

fn time(at: Option<&Time>) -> String {
    at.map_or_else(
        || "<unknown>".to_owned(),
        |t| t.0.strftime("%a, %d %b %Y %H:%M:%S +0000").to_string(),
    )
}

fn header(sheet: &mut Sheet, node: &Node) {
    let meta = &node.metadata;
    let pairs = |map: &Option<BTreeMap<String, String>>, sign: &str| -> Vec<String> {
        let all = map.iter().flatten();
        all.map(|(k, v)| format!("{k}{sign}{v}")).collect()
    };
    let spec = node.spec.clone().unwrap_or_default();
    let taints = spec.taints.iter().flatten().map(|taint| {
        let value = taint.value.as_deref().filter(|value| !value.is_empty());
        let value = value.map(|value| format!("={value}")).unwrap_or_default();
        format!("{}{value}:{}", taint.key, taint.effect)
    });
    sheet.line(0, ["Name:", meta.name.as_deref().unwrap_or_default()]);
    sheet.line(0, ["Roles:", &node_columns::roles(node)]);
    sheet.list("Labels:", pairs(&meta.labels, "="));
    sheet.list("Annotations:", pairs(&meta.annotations, ": "));
    let created = time(meta.creation_timestamp.as_ref());
    sheet.line(0, ["CreationTimestamp:", &created]);
    sheet.list("Taints:", taints.collect());
    let unschedulable = spec.unschedulable.unwrap_or(false).to_string();
    sheet.line(0, ["Unschedulable:", &unschedulable]);
}

fn conditions(sheet: &mut Sheet, status: &NodeStatus) {
    sheet.line(0, ["Conditions:"]);
    sheet.titles(&[
        "Type",
        "Status",
        "LastHeartbeatTime",
        "LastTransitionTime",
        "Reason",
        "Message",
    ]);
    for condition in status.conditions.iter().flatten() {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let cells = [
            condition.type_.clone(),
            condition.status.clone(),
            time(condition.last_heartbeat_time.as_ref()),
            time(condition.last_transition_time.as_ref()),
            text(&condition.reason),
            text(&condition.message),
        ];
        sheet.line(1, cells);
    }
}

fn system(sheet: &mut Sheet, info: &NodeSystemInfo) {
    sheet.line(0, ["System Info:"]);
    for (key, value) in [
        ("Machine ID:", &info.machine_id),
        ("System UUID:", &info.system_uuid),
        ("Boot ID:", &info.boot_id),
        ("Kernel Version:", &info.kernel_version),
        ("OS Image:", &info.os_image),
        ("Operating System:", &info.operating_system),
        ("Architecture:", &info.architecture),
        (
            "Container Runtime Version:",
            &info.container_runtime_version,
        ),
        ("Kubelet Version:", &info.kubelet_version),
        ("Kube-Proxy Version:", &info.kube_proxy_version),
    ] {
        sheet.line(1, [key, value]);
    }
    let swap = info.swap.as_ref().and_then(|swap| swap.capacity);
    if let Some(bytes) = swap {
        sheet.line(1, ["Swap Capacity:", &bytes.to_string()]);
    }
}

/// Quantities by resource.
type Sums = BTreeMap<String, Quantity>;

/// Requests and limits of all pods.
#[derive(Default)]
struct Asked {
    requests: Sums,
    limits: Sums,
}

fn pod_table(
    sheet: &mut Sheet,
    pods: &[&Pod],
    allocatable: &BTreeMap<String, Written>,
    now: Timestamp,
) -> Asked {
    let total = format!("({} in total)", pods.len());
    sheet.line(0, ["Non-terminated Pods:", &total]);
    let titles = [
        "Namespace",
        "Name",
        "",
        "CPU Requests",
        "CPU Limits",
        "Memory Requests",
        "Memory Limits",
        "Age",
    ];
    sheet.titles(&titles);
    let mut all = Asked::default();
    for pod in pods {
        let asked = asked(pod.spec.as_ref());
        let part = |sums: &Sums, name: &str| share(sums.get(name), allocatable.get(name));
        let meta = &pod.metadata;
        sheet.line(
            1,
            [
                meta.namespace.clone().unwrap_or_default(),
                meta.name.clone().unwrap_or_default(),
                String::new(),
                part(&asked.requests, "cpu"),
                part(&asked.limits, "cpu"),
                part(&asked.requests, "memory"),
                part(&asked.limits, "memory"),
                age_of(meta.creation_timestamp.as_ref().map(|t| t.0), now),
            ],
        );
        add(&mut all.requests, &asked.requests);
        add(&mut all.limits, &asked.limits);
    }
    all
}

/// `100m (5%)`
fn share(amount: Option<&Quantity>, whole: Option<&Written>) -> String {
    let whole = whole.and_then(|whole| Quantity::parse(&whole.0).ok());
    let nano = amount.map_or(0, |amount| amount.nano());
    let percent = whole.and_then(|whole| nano.saturating_mul(100).checked_div(whole.nano()));
    let text = amount.map_or_else(|| "0".to_owned(), ToString::to_string);
    format!("{text} ({}%)", percent.unwrap_or(0))
}

fn allocated(sheet: &mut Sheet, all: &Asked, allocatable: &BTreeMap<String, Written>) {
    sheet.line(0, ["Allocated resources:"]);
    sheet.line(
        1,
        ["(Total limits may be over 100 percent, i.e., overcommitted.)"],
    );
    sheet.titles(&["Resource", "Requests", "Limits"]);
    let first = ["cpu", "memory", "ephemeral-storage"].map(str::to_owned);
    let huge = allocatable.keys().filter(|n| n.starts_with("hugepages-"));
    for name in first.into_iter().chain(huge.cloned()) {
        let whole = allocatable.get(&name);
        let requests = share(all.requests.get(&name), whole);
        let limits = share(all.limits.get(&name), whole);
        sheet.line(1, [name, requests, limits]);
    }
}

/// Sums a pod's requests: the sum of its containers or the largest init container with the sidecars before it,
/// whichever is more; pod-level resources replace it (Kubernetes docs: Resource Management).
fn asked(spec: Option<&PodSpec>) -> Asked {
    let Some(spec) = spec else {
        return Asked::default();
    };
    let of = |pick: fn(&ResourceRequirements) -> &Option<BTreeMap<String, Written>>| {
        let read = |container: &Container| {
            let resources = container.resources.as_ref();
            resources.map_or_else(Sums::new, |r| parsed(pick(r)))
        };
        let (mut sum, mut sidecars, mut most) = (Sums::new(), Sums::new(), Sums::new());
        spec.containers.iter().for_each(|c| add(&mut sum, &read(c)));
        for init in spec.init_containers.iter().flatten() {
            let own = read(init);
            let mut then = sidecars.clone();
            add(&mut then, &own);
            larger(&mut most, &then);
            if init.restart_policy.as_deref() == Some("Always") {
                add(&mut sidecars, &own);
            }
        }
        add(&mut sum, &sidecars);
        larger(&mut sum, &most);
        sum.extend(
            spec.resources
                .as_ref()
                .map_or_else(Sums::new, |r| parsed(pick(r))),
        );
        sum
    };
    let mut asked = Asked {
        requests: of(|r| &r.requests),
        limits: of(|r| &r.limits),
    };
    let overhead = parsed(&spec.overhead);
    add(&mut asked.requests, &overhead);
    // Overhead adds to a limit only where there is one.
    let limited = overhead.into_iter();
    let limited = limited.filter(|(name, _)| asked.limits.contains_key(name));
    let limited: Sums = limited.gather();
    add(&mut asked.limits, &limited);
    asked
}

fn parsed(amounts: &Option<BTreeMap<String, Written>>) -> Sums {
    let all = amounts.iter().flatten();
    all.filter_map(|(name, text)| Some((name.clone(), Quantity::parse(&text.0).ok()?)))
        .gather()
}

fn add(sums: &mut Sums, more: &Sums) {
    for (name, amount) in more {
        let sum = sums.get(name).map_or(*amount, |sum| sum.plus(*amount));
        sums.insert(name.clone(), sum);
    }
}

fn larger(sums: &mut Sums, others: &Sums) {
    for (name, amount) in others {
        let known = sums
            .get(name)
            .is_some_and(|sum| sum.nano() >= amount.nano());
        if !known {
            sums.insert(name.clone(), *amount);
        }
    }
}

pub(super) fn event_table(sheet: &mut Sheet, events: &[Event], now: Timestamp) {
    if events.is_empty() {
        sheet.line(0, ["Events:", "<none>"]);
        return;
    }
    sheet.line(0, ["Events:"]);
    sheet.titles(&["Type", "Reason", "Age", "From", "Message"]);
    for event in events {
        let age = event_columns::interval(event, now);
        let [_, kind, reason, .., message, _, _, _] = event_columns::row(event, now);
        let from = event.source.clone().and_then(|s| s.component);
        sheet.line(1, [kind, reason, age, from.unwrap_or_default(), message]);
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize as _;

    use serde_json::json;

    use super::*;

    fn node() -> Node {
        let condition = |type_: &str, status: &str, reason: &str, message: &str| {
            json!({ "type": type_, "status": status, "reason": reason, "message": message,
                "lastHeartbeatTime": "2026-01-02T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z" })
        };
        let amounts = |cpu: &str, memory: &str| {
            json!({ "cpu": cpu, "memory": memory, "pods": "110",
                "ephemeral-storage": "100Gi", "hugepages-1Gi": "0", "hugepages-2Mi": "16Mi" })
        };
        let node = json!({
            "metadata": { "name": "box", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": { "kubernetes.io/arch": "arm64", "kubernetes.io/hostname": "box" } },
            "spec": { "unschedulable": true, "taints": [{ "key": "edge", "value": "yes", "effect": "NoSchedule" }] },
            "status": {
                "conditions": [
                    condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
                    condition("Ready", "True", "KubeletReady", "kubelet is posting ready status") ],
                "addresses": [{ "type": "InternalIP", "address": "192.0.2.7" }, { "type": "Hostname", "address": "box" }],
                "capacity": amounts("4", "8Gi"), "allocatable": amounts("3900m", "7Gi"),
                "nodeInfo": { "machineID": "m", "systemUUID": "s", "bootID": "b", "kernelVersion": "6.1", "osImage": "An OS",
                    "operatingSystem": "linux", "architecture": "arm64", "containerRuntimeVersion": "libcontainer://0",
                    "kubeletVersion": "v1.36.0", "kubeProxyVersion": "", "swap": { "capacity": 1024 } } } });
        Node::deserialize(&node).unwrap()
    }

    fn pod(name: &str, phase: &str, spec: Value) -> Pod {
        let pod = json!({ "metadata": { "name": name, "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": spec, "status": { "phase": phase } });
        Pod::deserialize(&pod).unwrap()
    }

    fn container(requests: Value, limits: Value) -> Value {
        json!({ "name": "c", "resources": { "requests": requests, "limits": limits } })
    }

    /// `UPDATE_GOLDEN=1` rewrites the file; review the diff.
    #[test]
    fn the_page_is_laid_out_as_kubectls() {
        let busy = container(
            json!({ "cpu": "500m", "memory": "1Gi", "hugepages-2Mi": "4Mi" }),
            json!({ "memory": "2Gi", "hugepages-2Mi": "4Mi" }),
        );
        let pods = [
            pod("web", "Running", json!({ "containers": [busy] })),
            pod(
                "idle",
                "Pending",
                json!({ "containers": [{ "name": "c" }] }),
            ),
            pod("over", "Succeeded", json!({ "containers": [busy] })),
        ];
        let event = json!({ "type": "Warning", "reason": "Rebooted", "message": "Node box has been rebooted",
            "lastTimestamp": "2026-01-01T23:00:00Z", "source": { "component": "coracle" },
            "involvedObject": {}, "metadata": {} });
        let events = [Event::deserialize(&event).unwrap()];
        let now = "2026-01-02T00:00:00Z".parse().unwrap();
        let shown = page(&node(), &pods, &events, now);
        let golden = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/src/cli/golden/describe_node.txt"
        );
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(golden, &shown).unwrap();
        }
        assert_eq!(shown, std::fs::read_to_string(golden).unwrap());
    }

    #[test]
    fn a_pod_asks_for_what_it_needs_at_any_time() {
        let cpu = |amount: &str| container(json!({ "cpu": amount }), json!({ "cpu": amount }));
        let sidecar = |amount: &str| {
            let mut sidecar = cpu(amount);
            sidecar["restartPolicy"] = "Always".into();
            sidecar
        };
        for (sentence, spec, requests, limits) in [
            (
                "nothing",
                json!({ "containers": [{ "name": "c" }] }),
                "0 (0%)",
                "0 (0%)",
            ),
            (
                "its containers together",
                json!({ "containers": [cpu("100m"), cpu("290m")] }),
                "390m (10%)",
                "390m (10%)",
            ),
            (
                "an init container that needs more",
                json!({ "containers": [cpu("100m")], "initContainers": [sidecar("1"), cpu("950m")] }),
                "1950m (50%)",
                "1950m (50%)",
            ),
            (
                "sidecars stay",
                json!({ "containers": [cpu("950m")], "initContainers": [cpu("1"), sidecar("1")] }),
                "1950m (50%)",
                "1950m (50%)",
            ),
            (
                "figures of its own, and what it costs itself",
                json!({ "containers": [cpu("1")], "resources": { "requests": { "cpu": "2" }, "limits": { "cpu": "3" } },
                    "overhead": { "cpu": "100m" } }),
                "2100m (53%)",
                "3100m (79%)",
            ),
        ] {
            let spec = PodSpec::deserialize(&spec).unwrap();
            let asked = asked(Some(&spec));
            let whole = Written("3900m".to_owned());
            let shown = |sums: &Sums| share(sums.get("cpu"), Some(&whole));
            assert_eq!(shown(&asked.requests), requests, "{sentence}");
            assert_eq!(shown(&asked.limits), limits, "{sentence}");
        }
    }
}
