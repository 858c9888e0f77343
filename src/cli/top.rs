//! `coracle top`: the agent's current measurements in kubectl's columns.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::process::ExitCode;

use serde_json::Value;

use super::args::{SortBy, TopArgs, TopCommand, TopNodeArgs, TopPodArgs};
use super::client::Client;
use super::error::{CliError, Result};
use super::put;
use super::table::Table;
use crate::api::encode;
use crate::types::quantity::Quantity;
use crate::types::{Gather, InOrder};

/// The agent's path for measurements.
const SUMMARY: &str = "/stats/summary?only_cpu_and_memory=true";

const MI: u64 = 1 << 20;

/// The usage in one line of the table.
#[derive(Debug, PartialEq, Eq)]
struct Usage {
    namespace: String,
    pod: String,
    /// Container name, with `--containers`.
    container: Option<String>,
    /// Thousandths of a CPU, rounded up.
    cpu_milli: u64,
    memory_bytes: u64,
}

pub(super) fn run(client: &Client, args: &TopArgs) -> Result<ExitCode> {
    match &args.command {
        TopCommand::Pods(args) => pods(client, args),
        TopCommand::Nodes(args) => nodes(client, args),
    }
}

fn pods(client: &Client, args: &TopPodArgs) -> Result<ExitCode> {
    let namespace = &args.namespace.namespace;
    if args.all_namespaces && args.name.is_some() {
        return Err(CliError::usage(
            "a resource cannot be retrieved by name across all namespaces",
        ));
    }
    let path = match args.all_namespaces {
        true => "/api/v1/pods".to_owned(),
        false => format!("/api/v1/namespaces/{}/pods", encode(namespace)),
    };
    let chosen = match &args.name {
        Some(name) => vec![client.get(&format!("{path}/{}", encode(name)))?],
        None => {
            let selector = args.selector.as_deref().unwrap_or_default();
            let list = client.get(&format!("{path}?labelSelector={}", encode(selector)))?;
            list["items"].as_array().cloned().unwrap_or_default()
        }
    };
    let chosen: BTreeSet<&str> = chosen
        .iter()
        .filter_map(|pod| pod["metadata"]["uid"].as_str())
        .gather();
    let summary = client.get(SUMMARY)?;
    let rows = rows(&summary, &chosen, args);
    if rows.is_empty() {
        if let Some(name) = &args.name {
            return Err(
                CliError::new(format!("Metrics not available for pod {namespace}/{name}"))
                    .hint("it has no container that runs"),
            );
        }
        match args.all_namespaces {
            true => eprintln!("No resources found"),
            false => eprintln!("No resources found in {namespace} namespace."),
        }
        return Ok(ExitCode::SUCCESS);
    }
    put(pod_table(&rows, args).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the usage of the pods with these UIDs, or of their containers, in the wanted order.
fn rows(summary: &Value, chosen: &BTreeSet<&str>, args: &TopPodArgs) -> Vec<Usage> {
    let all = summary["pods"].as_array().into_iter().flatten();
    let mut rows = Vec::new();
    for pod in all {
        let of = &pod["podRef"];
        let text = |name: &str| of[name].as_str().unwrap_or_default().to_owned();
        if !chosen.contains(of["uid"].as_str().unwrap_or_default()) {
            continue;
        }
        let row = |container: Option<String>, of: &Value| Usage {
            namespace: text("namespace"),
            pod: text("name"),
            container,
            cpu_milli: milli(of),
            memory_bytes: memory(of),
        };
        let containers = pod["containers"].as_array().map(Vec::as_slice);
        let containers = containers.unwrap_or_default();
        let each = containers
            .iter()
            .map(|of| row(of["name"].as_str().map(str::to_owned), of));
        if args.containers {
            rows.extend(each);
        } else if !containers.is_empty() {
            rows.push(row(None, pod));
        }
    }
    match args.sort_by {
        Some(SortBy::Cpu) => rows.order_by_key(|row| Reverse(row.cpu_milli)),
        Some(SortBy::Memory) => rows.order_by_key(|row| Reverse(row.memory_bytes)),
        None => rows.order_by(|a, b| {
            (&a.namespace, &a.pod, &a.container).cmp(&(&b.namespace, &b.pod, &b.container))
        }),
    }
    rows
}

fn milli(of: &Value) -> u64 {
    of["cpu"]["usageNanoCores"]
        .as_u64()
        .unwrap_or(0)
        .div_ceil(1_000_000)
}

fn memory(of: &Value) -> u64 {
    of["memory"]["workingSetBytes"].as_u64().unwrap_or(0)
}

fn pod_table(rows: &[Usage], args: &TopPodArgs) -> String {
    let mut header = vec!["CPU(cores)", "MEMORY(bytes)"];
    match args.containers {
        true => drop(header.splice(0..0, ["POD", "NAME"])),
        false => header.insert(0, "NAME"),
    }
    if args.all_namespaces {
        header.insert(0, "NAMESPACE");
    }
    let cells = rows.iter().map(|row| {
        let namespace = args.all_namespaces.then(|| row.namespace.clone());
        let figures = [
            format!("{}m", row.cpu_milli),
            format!("{}Mi", row.memory_bytes / MI),
        ];
        let names = [Some(row.pod.clone()), row.container.clone()];
        let names = namespace.into_iter().chain(names.into_iter().flatten());
        names.chain(figures).collect()
    });
    let cells: Vec<Vec<String>> = cells.collect();
    if args.no_headers {
        header.clear();
    }
    Table::default().render(&header, &cells)
}

fn nodes(client: &Client, args: &TopNodeArgs) -> Result<ExitCode> {
    let name = match &args.name {
        Some(name) => name.clone(),
        None => {
            let list = client.get("/api/v1/nodes")?;
            let name = list["items"][0]["metadata"]["name"].as_str();
            name.unwrap_or_default().to_owned()
        }
    };
    let node = client.get(&format!("/api/v1/nodes/{}", encode(&name)))?;
    let summary = client.get(SUMMARY)?;
    put(node_table(&name, &node, &summary, args).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Formats the node's usage, as percentages of allocatable or of capacity.
fn node_table(name: &str, node: &Value, summary: &Value, args: &TopNodeArgs) -> String {
    let whole = match args.show_capacity {
        true => &node["status"]["capacity"],
        false => &node["status"]["allocatable"],
    };
    let part = |used: u64, resource: &str, per_unit: i128| {
        let whole = whole[resource].as_str();
        let whole = whole.and_then(|text| Quantity::parse(text).ok());
        let whole = whole.map_or(0, Quantity::nano);
        let nano = i128::from(used) * per_unit * 100;
        let percent = nano.checked_div(whole);
        percent.map_or_else(|| "<unknown>".to_owned(), |percent| format!("{percent}%"))
    };
    let (cpu, memory) = (milli(&summary["node"]), memory(&summary["node"]));
    let row = vec![
        name.to_owned(),
        format!("{cpu}m"),
        part(cpu, "cpu", 1_000_000),
        format!("{}Mi", memory / MI),
        part(memory, "memory", 1_000_000_000),
    ];
    let mut header = vec!["NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"];
    if args.no_headers {
        header.clear();
    }
    Table::default().render(&header, &[row])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::args::NamespaceArgs;

    fn usage(nano_cores: u64, memory_mi: u64) -> Value {
        json!({ "cpu": { "usageNanoCores": nano_cores }, "memory": { "workingSetBytes": memory_mi * MI + 5 } })
    }

    fn named(name: &str, mut of: Value) -> Value {
        of["name"] = name.into();
        of
    }

    fn summary() -> Value {
        let pod = |name: &str, uid: &str, mut of: Value, containers: Value| {
            of["podRef"] = json!({ "name": name, "namespace": "default", "uid": uid });
            of["containers"] = containers;
            of
        };
        let containers = json!([
            named("one", usage(1, 3)),
            named("two", usage(20_000_000, 2))
        ]);
        json!({ "node": usage(500_000_000, 1024), "pods": [
            pod("web", "1", usage(20_000_001, 5), containers),
            pod("db", "2", usage(3_000_000, 70), json!([named("main", usage(3_000_000, 70))])),
            pod("none", "3", usage(0, 0), json!([])),
            pod("other", "4", usage(0, 0), json!([named("main", usage(0, 0))])),
        ] })
    }

    fn args() -> TopPodArgs {
        TopPodArgs {
            name: None,
            namespace: NamespaceArgs {
                namespace: "default".to_owned(),
            },
            all_namespaces: false,
            containers: false,
            sort_by: None,
            selector: None,
            no_headers: false,
        }
    }

    #[test]
    fn pods_are_shown_in_kubectls_columns() {
        let chosen = BTreeSet::from(["1", "2", "3"]);
        let by = |sort_by| TopPodArgs { sort_by, ..args() };
        for (args, expected) in [
            (
                args(),
                "NAME   CPU(cores)   MEMORY(bytes)\ndb     3m           70Mi\nweb    21m          5Mi\n",
            ),
            (
                by(Some(SortBy::Cpu)),
                "NAME   CPU(cores)   MEMORY(bytes)\nweb    21m          5Mi\ndb     3m           70Mi\n",
            ),
            (
                TopPodArgs {
                    no_headers: true,
                    all_namespaces: true,
                    ..by(Some(SortBy::Memory))
                },
                "default   db    3m    70Mi\ndefault   web   21m   5Mi\n",
            ),
            (
                TopPodArgs {
                    containers: true,
                    ..args()
                },
                "POD   NAME   CPU(cores)   MEMORY(bytes)\ndb    main   3m           70Mi\n\
                 web   one    1m           3Mi\nweb   two    20m          2Mi\n",
            ),
        ] {
            let rows = rows(&summary(), &chosen, &args);
            assert_eq!(pod_table(&rows, &args), expected);
        }
    }

    #[test]
    fn the_node_is_shown_with_its_part_of_what_there_is() {
        let node = json!({ "status": { "capacity": { "cpu": "2", "memory": "4Gi" },
            "allocatable": { "cpu": "1500m", "memory": "3Gi" } } });
        for (show_capacity, expected) in [
            (false, "box   500m   33%   1024Mi   33%\n"),
            (true, "box   500m   25%   1024Mi   25%\n"),
        ] {
            let args = TopNodeArgs {
                name: None,
                show_capacity,
                no_headers: true,
            };
            assert_eq!(node_table("box", &node, &summary(), &args), expected);
        }
        let args = TopNodeArgs {
            name: None,
            show_capacity: false,
            no_headers: false,
        };
        let shown = node_table("box", &json!({}), &summary(), &args);
        let expected = "NAME   CPU(cores)   CPU(%)      MEMORY(bytes)   MEMORY(%)\n\
                        box    500m         <unknown>   1024Mi          <unknown>\n";
        assert_eq!(shown, expected);
    }
}
