//! `coracle describe`, and what it says of pods: laid out as kubectl's, plus the state of the manifest file.

use std::fmt::Write as _;
use std::process::ExitCode;

use k8s_openapi::api::core::v1::{Container, Event, Pod, PodSpec, PodStatus, Volume};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::args::{DescribeArgs, DescribeResource};
use super::client::Client;
use super::describe_container::containers;
use super::error::{CliError, Result};
use super::similar::nothing_in;
use super::table::{Table, one_line};
use super::target::{Targets, targets};
use super::{describe_cgroups, get, pod_path, put};
use crate::api::{FileStatus, encode, event_columns};
use crate::spec::{ephemeral, read_object};
use crate::sys::clock;

pub(super) fn run(client: &Client, args: &DescribeArgs) -> Result<ExitCode> {
    let asked = targets::<DescribeResource>(&args.what)?;
    check(args, &asked)?;
    let mut shown = Shown::default();
    for (kind, names) in &asked {
        if !names.is_empty() {
            shown.gap(args)?;
            let namespace = &args.namespace.namespace;
            describe(client, args, *kind, (namespace, names))?;
            continue;
        }
        for (namespace, name) in all(client, args, *kind)? {
            shown.gap(args)?;
            match describe(client, args, *kind, (&namespace, &[name])) {
                // It has gone meanwhile.
                Err(error) if error.missing().is_some() => {}
                done => done?,
            }
        }
    }
    match (shown.any, args.all_namespaces) {
        (true, _) => {}
        (false, true) => eprintln!("No resources found."),
        (false, false) => nothing_in(client, &args.namespace.namespace),
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses names together with what chooses objects in another way, and JSON of other objects than pods.
fn check(args: &DescribeArgs, asked: &Targets<DescribeResource>) -> Result<()> {
    let named = asked.iter().any(|(_, names)| !names.is_empty());
    if named && args.selector.is_some() {
        let error = "a name cannot be provided when a selector is specified";
        return Err(CliError::usage(error));
    }
    if named && args.all_namespaces {
        let error = "a resource cannot be retrieved by name across all namespaces";
        return Err(CliError::usage(error));
    }
    let other = |(kind, _): &(DescribeResource, Vec<String>)| *kind != DescribeResource::Pod;
    match args.output.is_some() && asked.iter().any(other) {
        true => Err(CliError::usage("-o is for pods only")
            .hint("`coracle get` shows other objects with -o json")),
        false => Ok(()),
    }
}

/// What was printed so far.
#[derive(Debug, Default)]
struct Shown {
    any: bool,
}

impl Shown {
    /// Separates what follows from what was printed before. Each line of JSON is by itself.
    fn gap(&mut self, args: &DescribeArgs) -> Result<()> {
        match std::mem::replace(&mut self.any, true) && args.output.is_none() {
            true => put(b"\n\n"),
            false => Ok(()),
        }
    }
}

/// The namespaces and names of all objects of a kind that are asked for.
fn all(
    client: &Client,
    args: &DescribeArgs,
    kind: DescribeResource,
) -> Result<Vec<(String, String)>> {
    let Some(resource) = kind.listed() else {
        return Err(CliError::usage("name the object to describe"));
    };
    let namespace = Some(&*args.namespace.namespace).filter(|_| !args.all_namespaces);
    let selector = encode(args.selector.as_deref().unwrap_or_default());
    let path = get::collection(resource, namespace);
    let list = client.get(&format!("{path}?labelSelector={selector}"))?;
    let items = list["items"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(items
        .map(|item| &item["metadata"])
        .map(|metadata| (text(&metadata["namespace"]), text(&metadata["name"])))
        .collect())
}

/// Describes objects of one kind.
fn describe(
    client: &Client,
    args: &DescribeArgs,
    kind: DescribeResource,
    (ns, names): (&str, &[String]),
) -> Result<()> {
    match kind {
        DescribeResource::Node => super::describe_node::run(client, names),
        DescribeResource::ConfigMap
        | DescribeResource::Secret
        | DescribeResource::ServiceAccount
        | DescribeResource::Namespace => {
            super::describe_configuration::run(client, kind, ns, names)
        }
        DescribeResource::Claim | DescribeResource::Volume => {
            super::describe_claim::run(client, kind, ns, names)
        }
        DescribeResource::Deployment
        | DescribeResource::StatefulSet
        | DescribeResource::DaemonSet
        | DescribeResource::ReplicaSet
        | DescribeResource::ReplicationController
        | DescribeResource::Job
        | DescribeResource::CronJob => match kind.workload() {
            Some(of) => super::describe_workload::run(client, of, ns, names),
            None => Ok(()),
        },
        DescribeResource::Service => super::describe_service::run(client, ns, names),
        DescribeResource::Pod => pods(client, args.output.is_some(), ns, names),
    }
}

fn pods(client: &Client, as_json: bool, ns: &str, names: &[String]) -> Result<()> {
    for (index, name) in names.iter().enumerate() {
        let pod = client.get(&pod_path(ns, name))?;
        // Includes events of earlier pods of that name: users ask why one was evicted when the next one already runs.
        let field = format!("involvedObject.kind=Pod,involvedObject.name={name}");
        let path = format!(
            "/api/v1/namespaces/{}/events?fieldSelector={}",
            encode(ns),
            encode(&field)
        );
        let events = client.get(&path)?;
        let files = client.get("/coracle/v1/files")?;
        let cgroups = describe_cgroups::ask(client, ns, name)?;
        if as_json {
            let all = json!({ "pod": pod, "events": events["items"], "files": files["items"],
                              "cgroups": cgroups["items"] });
            put(format!("{all}\n").as_bytes())?;
            continue;
        }
        let files = Vec::<FileStatus>::deserialize(&files["items"]).unwrap_or_default();
        let pod: Pod =
            read_object(&pod).ok_or_else(|| CliError::new("the agent's answer is not a pod"))?;
        let events = events["items"].as_array().cloned().unwrap_or_default();
        let gap = if index > 0 { "\n\n" } else { "" };
        put(format!("{gap}{}", page(&pod, &events, &files, &cgroups)).as_bytes())?;
    }
    Ok(())
}

/// Lines `Key:  value`, aligned within a block, as kubectl's tab writer does. Control characters are escaped: containers and
/// manifests choose some of the values. Only line breaks stay, with the next line indented as the first.
pub(super) struct Page(pub(super) String);

impl Page {
    pub(super) fn line(&mut self, indent: usize, key: &str, value: impl std::fmt::Display) {
        let key = format!("{:indent$}{}:", "", one_line(key));
        let width = 18 + indent;
        let gap = if key.len() < width { "" } else { "  " };
        self.value(&format!("{key:<width$}{gap}"), width, &value.to_string());
    }

    /// Adds a value behind this text, its further lines indented.
    fn value(&mut self, head: &str, indent: usize, value: &str) {
        let mut lines = value.trim_end().lines();
        let text = format!("{head}{}", one_line(lines.next().unwrap_or_default()));
        self.0.push_str(text.trim_end());
        self.0.push('\n');
        for line in lines {
            let text = format!("{:indent$}{}", "", one_line(line));
            self.0.push_str(text.trim_end());
            self.0.push('\n');
        }
    }

    /// Adds a key with several values, one a line.
    fn list(&mut self, indent: usize, key: &str, values: impl IntoIterator<Item = String>) {
        let mut values = values.into_iter();
        self.line(
            indent,
            key,
            values.next().unwrap_or_else(|| "<none>".to_owned()),
        );
        for value in values {
            let pad = 18 + indent;
            self.value(&" ".repeat(pad), pad, &value);
        }
    }
}

pub(super) fn text(value: Option<&String>) -> &str {
    value
        .filter(|v| !v.is_empty())
        .map_or("<none>", String::as_str)
}

pub(super) fn time(at: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>) -> String {
    at.map_or_else(
        || "<unknown>".to_owned(),
        |t| t.0.strftime("%a, %d %b %Y %H:%M:%S +0000").to_string(),
    )
}

pub(super) fn page(pod: &Pod, events: &[Value], files: &[FileStatus], cgroups: &Value) -> String {
    let mut page = Page(String::new());
    let (spec, status) = (
        pod.spec.clone().unwrap_or_default(),
        pod.status.clone().unwrap_or_default(),
    );
    header(&mut page, pod);
    let empty = Vec::new();
    if let Some(init) = spec.init_containers.as_ref().filter(|i| !i.is_empty()) {
        let statuses = status.init_container_statuses.as_ref().unwrap_or(&empty);
        containers(&mut page, ("Init Containers", &spec), init, statuses);
    }
    let statuses = status.container_statuses.as_ref().unwrap_or(&empty);
    containers(&mut page, ("Containers", &spec), &spec.containers, statuses);
    if let Some(added) = spec.ephemeral_containers.as_ref().filter(|a| !a.is_empty()) {
        let statuses = status.ephemeral_container_statuses.as_ref();
        let shown: Vec<Container> = added.iter().map(ephemeral::as_container).collect();
        let title = ("Ephemeral Containers", &spec);
        containers(&mut page, title, &shown, statuses.unwrap_or(&empty));
    }
    readiness_gates(&mut page, &spec, &status);
    page.0.push_str("Conditions:\n");
    let rows: Vec<Vec<String>> = status
        .conditions
        .iter()
        .flatten()
        .map(|c| vec![format!("  {}", c.type_), c.status.clone()])
        .collect();
    page.0
        .push_str(&Table::default().render(&["  Type", "Status"], &rows));
    match spec.volumes.as_ref().is_none_or(Vec::is_empty) {
        true => page.line(0, "Volumes", "<none>"),
        false => page.0.push_str("Volumes:\n"),
    }
    for volume in spec.volumes.iter().flatten() {
        describe_volume(&mut page, volume);
    }
    page.line(0, "QoS Class", text(status.qos_class.as_ref()));
    page.0.push_str(&describe_cgroups::section(cgroups));
    manifest_file(&mut page, pod, files);
    event_table(&mut page, events);
    page.0
}

fn readiness_gates(page: &mut Page, spec: &PodSpec, status: &PodStatus) {
    let gates = spec.readiness_gates.iter().flatten();
    let row = |type_: &str| {
        let mut all = status.conditions.iter().flatten();
        let found = all.find(|c| c.type_ == type_).map(|c| c.status.clone());
        vec![
            format!("  {type_}"),
            found.unwrap_or_else(|| "<none>".to_owned()),
        ]
    };
    let rows: Vec<Vec<String>> = gates.map(|gate| row(&gate.condition_type)).collect();
    if !rows.is_empty() {
        page.0.push_str("Readiness Gates:\n");
        page.0
            .push_str(&Table::default().render(&["  Type", "Status"], &rows));
    }
}

fn header(page: &mut Page, pod: &Pod) {
    let meta = &pod.metadata;
    let (spec, status) = (
        pod.spec.clone().unwrap_or_default(),
        pod.status.clone().unwrap_or_default(),
    );
    page.line(0, "Name", text(meta.name.as_ref()));
    page.line(0, "Namespace", text(meta.namespace.as_ref()));
    page.line(0, "Priority", spec.priority.unwrap_or(0));
    if let Some(class) = &spec.priority_class_name {
        page.line(0, "Priority Class Name", class);
    }
    let node = text(spec.node_name.as_ref());
    match &status.host_ip {
        Some(ip) => page.line(0, "Node", format!("{node}/{ip}")),
        None => page.line(0, "Node", node),
    }
    page.line(0, "Start Time", time(status.start_time.as_ref()));
    let pairs =
        |map: &Option<std::collections::BTreeMap<String, String>>, sign: &str| -> Vec<String> {
            map.iter()
                .flatten()
                .map(|(k, v)| format!("{k}{sign}{v}"))
                .collect()
        };
    page.list(0, "Labels", pairs(&meta.labels, "="));
    page.list(0, "Annotations", pairs(&meta.annotations, ": "));
    let phase = text(status.phase.as_ref());
    match &meta.deletion_timestamp {
        // The deletion timestamp is the end of the grace period, as everywhere in Kubernetes' API.
        Some(at) => {
            page.line(
                0,
                "Status",
                format!("Terminating (until {})", time(Some(at))),
            );
            let grace = meta.deletion_grace_period_seconds.unwrap_or_default();
            page.line(0, "Termination Grace Period", format!("{grace}s"));
        }
        None => page.line(0, "Status", phase),
    }
    if let Some(reason) = &status.reason {
        page.line(0, "Reason", reason);
    }
    if let Some(message) = &status.message {
        page.line(0, "Message", message);
    }
    page.line(0, "IP", status.pod_ip.as_deref().unwrap_or(""));
    let ips: Vec<String> = status
        .pod_ips
        .iter()
        .flatten()
        .map(|ip| ip.ip.clone())
        .collect();
    match ips.is_empty() {
        true => page.line(0, "IPs", "<none>"),
        false => {
            page.0.push_str("IPs:\n");
            ips.iter().for_each(|ip| page.line(2, "IP", ip));
        }
    }
}

fn describe_volume(page: &mut Page, volume: &Volume) {
    let _ = writeln!(page.0, "  {}:", one_line(&volume.name));
    if let Some(empty) = &volume.empty_dir {
        page.line(
            4,
            "Type",
            "EmptyDir (a temporary directory that shares a pod's lifetime)",
        );
        page.line(4, "Medium", empty.medium.as_deref().unwrap_or(""));
        let limit = empty.size_limit.as_ref().map(|q| q.0.as_str());
        page.line(4, "SizeLimit", limit.unwrap_or("<unset>"));
    } else if let Some(host) = &volume.host_path {
        page.line(4, "Type", "HostPath (bare host directory volume)");
        page.line(4, "Path", &host.path);
        page.line(4, "HostPathType", host.type_.as_deref().unwrap_or(""));
    } else if let Some(map) = &volume.config_map {
        page.line(4, "Type", "ConfigMap (a volume populated by a ConfigMap)");
        page.line(4, "Name", &map.name);
        page.line(4, "Optional", (map.optional == Some(true)).to_string());
    } else if let Some(secret) = &volume.secret {
        page.line(4, "Type", "Secret (a volume populated by a Secret)");
        page.line(4, "SecretName", secret.secret_name.as_deref().unwrap_or(""));
        page.line(4, "Optional", (secret.optional == Some(true)).to_string());
    } else if let Some(claim) = &volume.persistent_volume_claim {
        page.line(
            4,
            "Type",
            "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)",
        );
        page.line(4, "ClaimName", &claim.claim_name);
        page.line(4, "ReadOnly", (claim.read_only == Some(true)).to_string());
    } else if volume.downward_api.is_some() {
        page.line(
            4,
            "Type",
            "DownwardAPI (a volume populated by information about the pod)",
        );
    } else if volume.projected.is_some() {
        page.line(
            4,
            "Type",
            "Projected (a volume that contains injected data from multiple sources)",
        );
    } else if let Some(image) = &volume.image {
        page.line(4, "Type", "Image (a container image or OCI artifact)");
        page.line(4, "Reference", image.reference.as_deref().unwrap_or(""));
        page.line(4, "PullPolicy", image.pull_policy.as_deref().unwrap_or(""));
    } else {
        page.line(4, "Type", "<other>");
    }
}

fn manifest_file(page: &mut Page, pod: &Pod, files: &[FileStatus]) {
    let here = |file: &&FileStatus| {
        file.pods.iter().any(|key| {
            Some(&*key.name) == pod.metadata.name.as_deref()
                && Some(&*key.namespace) == pod.metadata.namespace.as_deref()
        })
    };
    for file in files.iter().filter(here) {
        page.line(
            0,
            "Manifest",
            format!(
                "{} ({})",
                one_line(&file.path.to_string_lossy()),
                file.state.as_str()
            ),
        );
        for (title, lines) in [("Errors", &file.errors), ("Warnings", &file.warnings)] {
            if !lines.is_empty() {
                page.list(2, title, lines.iter().map(|line| one_line(line)));
            }
        }
    }
}

fn event_table(page: &mut Page, events: &[Value]) {
    if events.is_empty() {
        page.line(0, "Events", "<none>");
        return;
    }
    let now = clock::timestamp();
    let rows: Vec<Vec<String>> = events
        .iter()
        .map(|event| {
            let event: Event = read_object(event).unwrap_or_default();
            let age = event_columns::interval(&event, now);
            let [_, kind, reason, .., message, _, _, _] = event_columns::row(&event, now);
            let container = event_columns::container(&event.involved_object);
            let container = container.unwrap_or("-").to_owned();
            let from = event.source.and_then(|s| s.component).unwrap_or_default();
            vec![format!("  {kind}"), reason, age, from, container, message]
        })
        .collect();
    page.0.push_str("Events:\n");
    let header = ["  Type", "Reason", "Age", "From", "Container", "Message"];
    page.0.push_str(&Table::default().render(&header, &rows));
}

#[cfg(test)]
mod tests {
    use clap::{Parser as _, ValueEnum as _};

    use super::super::args::{Cli, Command};
    use super::*;

    #[test]
    fn names_are_not_mixed_with_selectors() {
        let client = Client {
            socket: "/nonexistent/coracle.sock".into(),
        };
        for (line, words) in [
            ("pod web -l a=b", "selector is specified"),
            ("pod/web -A", "across all namespaces"),
            ("pods,svc -o json", "-o is for pods only"),
            ("pods", "could not reach the agent"),
            ("pods -l a=b -A", "could not reach the agent"),
            ("deployments -n shop", "could not reach the agent"),
            ("pods -o json", "could not reach the agent"),
        ] {
            let line_of = ["coracle", "describe"].into_iter().chain(line.split(' '));
            let Command::Describe(args) = Cli::try_parse_from(line_of).unwrap().command else {
                panic!("it is `describe`");
            };
            let error = run(&client, &args).unwrap_err().to_string();
            assert!(error.contains(words), "{line}: {error}");
        }
    }

    #[test]
    fn every_kind_can_be_listed() {
        for kind in DescribeResource::value_variants() {
            assert!(kind.listed().is_some(), "{kind:?}");
        }
    }

    #[test]
    fn a_manifests_name_cannot_add_lines_to_the_page() {
        let file = json!({ "path": "/m/a\nStatus: fine.yaml", "state": "Rejected", "modified": null,
            "pods": [{ "namespace": "default", "name": "web" }], "warnings": [],
            "errors": ["a\nb.yaml: already defined"] });
        let pod = json!({ "metadata": { "name": "web", "namespace": "default" } });
        let mut shown = Page(String::new());
        manifest_file(
            &mut shown,
            &Pod::deserialize(&pod).unwrap(),
            &[FileStatus::deserialize(&file).unwrap()],
        );
        let expected = "Manifest:         /m/a\\nStatus: fine.yaml (Rejected)\n  Errors:           a\\nb.yaml: already defined\n";
        assert_eq!(shown.0, expected);
    }

    #[test]
    fn a_value_cannot_control_the_terminal_or_add_keys() {
        let mut shown = Page(String::new());
        shown.line(2, "Message", "a\u{1b}[2J\n\nStatus: fine\r\nb\n");
        shown.list(
            0,
            "Annotations",
            ["x: 1\n2".to_owned(), "y: \u{7}\n3".to_owned()],
        );
        let expected = "  Message:          a\\u{1b}[2J\n\n                    Status: fine\n\
            \u{20}                   b\n\
            Annotations:      x: 1\n                  2\n                  y: \\u{7}\n                  3\n";
        assert_eq!(shown.0, expected);
    }

    #[test]
    fn a_pod_that_stops_is_described_with_when_its_grace_is_over() {
        let pod = json!({ "metadata": { "name": "web", "deletionTimestamp": "2026-01-01T00:00:15Z",
            "deletionGracePeriodSeconds": 15 }, "status": { "phase": "Running" } });
        let mut shown = Page(String::new());
        header(&mut shown, &Pod::deserialize(&pod).unwrap());
        let expected = "Status:           Terminating (until Thu, 01 Jan 2026 00:00:15 +0000)\n\
            Termination Grace Period:  15s\n";
        assert!(shown.0.contains(expected), "{}", shown.0);
        assert!(!shown.0.contains("Running"), "{}", shown.0);
    }

    /// `UPDATE_GOLDEN=1` rewrites the file; review the diff.
    #[test]
    fn the_page_is_laid_out_as_kubectls() {
        let pod = json!({
            "metadata": { "name": "web", "namespace": "default", "uid": "u", "labels": { "app": "web", "tier": "front" } },
            "spec": { "nodeName": "box", "volumes": [{ "name": "data", "emptyDir": {} }], "containers": [{
                "name": "c", "image": "nginx:1.25", "command": ["sh", "-c", "sleep 1\nexit"],
                "ports": [{ "containerPort": 80, "hostPort": 8080 }], "env": [{ "name": "A", "value": "b" }],
                "resources": { "limits": { "memory": "64Mi" } },
                "volumeMounts": [{ "name": "data", "mountPath": "/data", "readOnly": true }] }] },
            "status": { "phase": "Running", "qosClass": "Burstable", "startTime": "2026-01-01T00:00:00Z",
                "podIP": "10.0.0.2", "podIPs": [{ "ip": "10.0.0.2" }],
                "conditions": [{ "type": "Ready", "status": "False" }],
                "containerStatuses": [{ "name": "c", "image": "nginx:1.25", "imageID": "sha256:1", "ready": false,
                    "restartCount": 3, "state": { "waiting": { "reason": "CrashLoopBackOff", "message": "back-off" } },
                    "lastState": { "terminated": { "exitCode": 137, "reason": "OOMKilled",
                        "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:05Z" } } }] },
        });
        let file = json!([{ "path": "/etc/coracle/manifests/web.yaml", "state": "Rejected", "modified": null,
            "pods": [{ "namespace": "default", "name": "web" }], "errors": ["3:1: spec.x: unknown field"],
            "warnings": ["spec.nodeSelector has no effect"] }]);
        let pod = Pod::deserialize(&pod).unwrap();
        let files = Vec::<FileStatus>::deserialize(&file).unwrap();
        let shown = page(&pod, &[], &files, &Value::Null);
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cli/golden/describe.txt");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(golden, &shown).unwrap();
        }
        assert_eq!(shown, std::fs::read_to_string(golden).unwrap());
    }
}
