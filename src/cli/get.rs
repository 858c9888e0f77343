//! How is a list shown? `coracle get`: tables as kubectl prints them, or the objects as JSON, YAML, names, templates.

use std::process::ExitCode;

use k8s_openapi::api::core::v1::{Endpoints, Event, Node, Pod, Service};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::args::{GetArgs, Resource};
use super::client::Client;
use super::error::{CliError, Result};
use super::table::{Table, size};
use super::{jsonpath, put};
use crate::api::pod_columns::{self, human_age};
use crate::api::{FileStatus, ImageRow, encode};
use crate::api::{event_columns, node_columns, service_columns};

pub(super) fn run(client: &Client, args: &GetArgs) -> Result<ExitCode> {
    let mut printer = Printer::new(args)?;
    if args.list.watch {
        if !is_kubernetes(args.resource) {
            return Err(CliError::usage(
                "only pods, services, endpoints, priorityclasses, nodes and events can be watched",
            ));
        }
        return watch(client, args, &mut printer);
    }
    let (items, single) = fetch(client, args)?;
    if items.is_empty() && printer.is_table() {
        let place = match (args.list.all_namespaces, args.resource) {
            (false, resource) if is_namespaced(resource) => {
                format!(" in {} namespace", args.list.namespace.namespace)
            }
            _ => String::new(),
        };
        eprintln!("No resources found{place}.");
        return Ok(ExitCode::SUCCESS);
    }
    put(printer.print(items, single)?.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Whether it is an object of Kubernetes' API, with metadata.
fn is_kubernetes(resource: Resource) -> bool {
    match resource {
        Resource::Pods
        | Resource::Services
        | Resource::Endpoints
        | Resource::Nodes
        | Resource::PriorityClasses
        | Resource::Events => true,
        Resource::Images | Resource::Files => false,
    }
}

fn is_namespaced(resource: Resource) -> bool {
    is_kubernetes(resource) && !matches!(resource, Resource::Nodes | Resource::PriorityClasses)
}

/// Path of the list.
fn collection(args: &GetArgs) -> String {
    let ns = encode(&args.list.namespace.namespace);
    match (args.resource, args.list.all_namespaces) {
        (Resource::Pods, true) => "/api/v1/pods".to_owned(),
        (Resource::Pods, false) => format!("/api/v1/namespaces/{ns}/pods"),
        (Resource::Services, true) => "/api/v1/services".to_owned(),
        (Resource::Services, false) => format!("/api/v1/namespaces/{ns}/services"),
        (Resource::Endpoints, true) => "/api/v1/endpoints".to_owned(),
        (Resource::Endpoints, false) => format!("/api/v1/namespaces/{ns}/endpoints"),
        (Resource::Events, true) => "/api/v1/events".to_owned(),
        (Resource::Events, false) => format!("/api/v1/namespaces/{ns}/events"),
        (Resource::Nodes, _) => "/api/v1/nodes".to_owned(),
        (Resource::PriorityClasses, _) => "/apis/scheduling.k8s.io/v1/priorityclasses".to_owned(),
        (Resource::Images, _) => "/coracle/v1/images".to_owned(),
        (Resource::Files, _) => "/coracle/v1/files".to_owned(),
    }
}

fn selectors(args: &GetArgs) -> String {
    let label = args.selector.as_deref().unwrap_or_default();
    let field = args.field_selector.as_deref().unwrap_or_default();
    format!(
        "labelSelector={}&fieldSelector={}",
        encode(label),
        encode(field)
    )
}

/// The objects, and whether exactly one was asked for by name.
fn fetch(client: &Client, args: &GetArgs) -> Result<(Vec<Value>, bool)> {
    let path = collection(args);
    if is_kubernetes(args.resource) && !args.names.is_empty() {
        if args.list.all_namespaces {
            return Err(CliError::usage(
                "a resource cannot be retrieved by name across all namespaces",
            ));
        }
        let items: Result<Vec<Value>> = args
            .names
            .iter()
            .map(|name| client.get(&format!("{path}/{}", encode(name))))
            .collect();
        return Ok((items?, args.names.len() == 1));
    }
    let mut list = client.get(&format!("{path}?{}", selectors(args)))?;
    let mut items = match list["items"].take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    for wanted in &args.names {
        if !items.iter().any(|item| is_named(item, wanted)) {
            return Err(CliError::new(format!("`{wanted}` not found")).code(3));
        }
    }
    if !args.names.is_empty() {
        items.retain(|item| args.names.iter().any(|wanted| is_named(item, wanted)));
    }
    Ok((items, false))
}

/// Images go by name or digest, files by path.
fn is_named(item: &Value, wanted: &str) -> bool {
    let names = item["names"].as_array().into_iter().flatten();
    let mut all = names.chain([&item["id"], &item["path"]]);
    all.any(|name| {
        name.as_str().is_some_and(|name| {
            name == wanted
                || name.ends_with(&format!("/{wanted}"))
                || name.strip_prefix("sha256:") == Some(wanted)
        })
    })
}

fn watch(client: &Client, args: &GetArgs, printer: &mut Printer<'_>) -> Result<ExitCode> {
    loop {
        let mut path = format!("{}?watch=true&{}", collection(args), selectors(args));
        if let [name] = &args.names[..] {
            let field = format!("metadata.name={name}");
            path = format!(
                "{}?watch=true&fieldSelector={}",
                collection(args),
                encode(&field)
            );
        }
        let response = client.send("GET", &path, None)?;
        for line in response.body.lines() {
            let line = line.map_err(|e| CliError::new("lost the agent").because(e))?;
            let mut change: Value = serde_json::from_str(&line)
                .map_err(|e| CliError::new("the agent's answer is not JSON").because(e))?;
            let kind = change["type"].as_str().unwrap_or_default();
            match kind {
                "ERROR" => break,
                "BOOKMARK" => continue,
                _ => {}
            }
            let object = change["object"].take();
            put(printer.print(vec![object], true)?.as_bytes())?;
        }
    }
}

/// How to print.
#[derive(Debug)]
struct Printer<'a> {
    args: &'a GetArgs,
    format: Format<'a>,
    table: Table,
    header_done: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format<'a> {
    Table,
    Wide,
    Json,
    Yaml,
    Name,
    JsonPath(&'a str),
}

impl<'a> Printer<'a> {
    fn new(args: &'a GetArgs) -> Result<Self> {
        let format = match args.list.output.as_deref() {
            None => Format::Table,
            Some("wide") => Format::Wide,
            Some("json") => Format::Json,
            Some("yaml") => Format::Yaml,
            Some("name") => Format::Name,
            Some(other) => match other.strip_prefix("jsonpath=") {
                Some(template) => Format::JsonPath(template),
                None => {
                    return Err(CliError::usage(format!("unknown output format `{other}`"))
                        .hint("one of wide, json, yaml, name, jsonpath=TEMPLATE"));
                }
            },
        };
        Ok(Self {
            args,
            format,
            table: Table::default(),
            header_done: args.list.no_headers,
        })
    }

    fn is_table(&self) -> bool {
        matches!(self.format, Format::Table | Format::Wide | Format::Name)
    }

    fn print(&mut self, mut items: Vec<Value>, single: bool) -> Result<String> {
        let whole = |items: &mut Vec<Value>| match (single, items.pop()) {
            (true, Some(one)) => one,
            (_, last) => {
                items.extend(last);
                json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": items })
            }
        };
        let bad = |e: &dyn std::fmt::Display| CliError::new("could not print").because(e);
        match self.format {
            Format::Json => {
                let text = serde_json::to_string_pretty(&whole(&mut items)).map_err(|e| bad(&e))?;
                Ok(format!("{text}\n"))
            }
            Format::Yaml => serde_yaml::to_string(&whole(&mut items)).map_err(|e| bad(&e)),
            Format::JsonPath(template) => {
                jsonpath::evaluate(template, &whole(&mut items)).map_err(CliError::usage)
            }
            Format::Name => Ok(items
                .iter()
                .map(|item| format!("{}\n", self.name(item)))
                .collect()),
            Format::Table | Format::Wide => Ok(self.rows(&items)),
        }
    }

    fn name(&self, item: &Value) -> String {
        let named = |kind: &str| {
            format!(
                "{kind}/{}",
                item["metadata"]["name"].as_str().unwrap_or_default()
            )
        };
        match self.args.resource {
            Resource::Pods => named("pod"),
            Resource::Services => named("service"),
            Resource::Endpoints => named("endpoints"),
            Resource::PriorityClasses => named("priorityclass.scheduling.k8s.io"),
            Resource::Nodes => named("node"),
            Resource::Events => named("event"),
            Resource::Images => item["id"].as_str().unwrap_or_default().to_owned(),
            Resource::Files => item["path"].as_str().unwrap_or_default().to_owned(),
        }
    }

    fn rows(&mut self, items: &[Value]) -> String {
        let wide = self.format == Format::Wide;
        let (header, mut rows) = table(
            self.args.resource,
            items,
            wide,
            self.args.list.all_namespaces,
        );
        if self.args.interval {
            let now = Timestamp::now();
            let at = usize::from(self.args.list.all_namespaces);
            for (row, item) in rows.iter_mut().zip(items) {
                row[at] = event_columns::interval(&typed(item).unwrap_or_default(), now);
            }
        }
        let mut header: Vec<String> = header.iter().map(|title| (*title).to_owned()).collect();
        if is_kubernetes(self.args.resource) {
            self.add_labels(&mut header, &mut rows, items);
        }
        if std::mem::replace(&mut self.header_done, true) {
            header.clear();
        }
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        self.table.render(&header, &rows)
    }

    /// The columns of `-L` and `--show-labels`, as kubectl has them.
    fn add_labels(&self, header: &mut Vec<String>, rows: &mut [Vec<String>], items: &[Value]) {
        for label in &self.args.label_columns {
            let title = label.rsplit('/').next().unwrap_or_default();
            header.push(title.to_uppercase());
        }
        if self.args.show_labels {
            header.push("LABELS".to_owned());
        }
        for (row, item) in rows.iter_mut().zip(items) {
            let labels = &item["metadata"]["labels"];
            let wanted = self.args.label_columns.iter();
            row.extend(wanted.map(|label| labels[label].as_str().unwrap_or_default().to_owned()));
            if self.args.show_labels {
                row.push(all_labels(labels));
            }
        }
    }
}

/// `app=web,tier=front`, or `<none>`.
fn all_labels(labels: &Value) -> String {
    let pairs = labels.as_object().into_iter().flatten();
    let pairs: Vec<String> = pairs
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    match pairs.is_empty() {
        true => "<none>".to_owned(),
        false => pairs.join(","),
    }
}

/// Makes the cells of one object: wide or not, as of now.
type Row = fn(&Value, bool, Timestamp) -> Vec<String>;

/// Header and rows of a kind of object.
pub(super) fn table(
    resource: Resource,
    items: &[Value],
    wide: bool,
    namespaces: bool,
) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let now = Timestamp::now();
    let (mut header, wide_header, row): (Vec<&str>, &[&str], Row) = match resource {
        Resource::Pods => (
            vec!["NAME", "READY", "STATUS", "RESTARTS", "AGE"],
            &["IP", "NODE", "READINESS GATES"],
            pod,
        ),
        Resource::Services => (
            vec![
                "NAME",
                "TYPE",
                "CLUSTER-IP",
                "EXTERNAL-IP",
                "PORT(S)",
                "AGE",
            ],
            &["SELECTOR"],
            service,
        ),
        Resource::Endpoints => (vec!["NAME", "ENDPOINTS", "AGE"], &[], endpoints),
        Resource::Nodes => (
            node_columns::TITLES[..node_columns::NARROW].to_vec(),
            &node_columns::TITLES[node_columns::NARROW..],
            node,
        ),
        Resource::PriorityClasses => (
            vec!["NAME", "VALUE", "GLOBAL-DEFAULT", "AGE", "PREEMPTIONPOLICY"],
            &[],
            priority_class,
        ),
        Resource::Events if wide => (event_columns::TITLES.to_vec(), &[], event),
        Resource::Events => (
            event_columns::NARROW
                .map(|at| event_columns::TITLES[at])
                .to_vec(),
            &[],
            event,
        ),
        Resource::Images => (
            vec!["IMAGE", "ID", "SIZE", "IN USE", "PRELOADED"],
            &["CREATED"],
            image,
        ),
        Resource::Files => (
            vec!["FILE", "STATE", "PODS", "ERRORS", "WARNINGS"],
            &["FIRST PROBLEM"],
            file,
        ),
    };
    if wide {
        header.extend(wide_header);
    }
    let namespaced = namespaces && is_namespaced(resource);
    if namespaced {
        header.insert(0, "NAMESPACE");
    }
    let rows = items.iter().map(|item| {
        let mut cells = row(item, wide, now);
        if namespaced {
            let ns = item["metadata"]["namespace"].as_str().unwrap_or_default();
            cells.insert(0, ns.to_owned());
        }
        cells
    });
    (header, rows.collect())
}

fn typed<T: serde::de::DeserializeOwned>(item: &Value) -> Option<T> {
    T::deserialize(item).ok()
}

fn pod(item: &Value, wide: bool, now: Timestamp) -> Vec<String> {
    let row = pod_columns::row(&typed::<Pod>(item).unwrap_or_default(), now);
    let mut cells = vec![row.name, row.ready, row.status, row.restarts, row.age];
    if wide {
        cells.extend([row.ip, row.node, row.gates]);
    }
    cells
}

fn service(item: &Value, wide: bool, now: Timestamp) -> Vec<String> {
    let row = service_columns::service(&typed::<Service>(item).unwrap_or_default(), now);
    let mut cells = row.to_vec();
    if !wide {
        cells.pop();
    }
    cells
}

fn endpoints(item: &Value, _: bool, now: Timestamp) -> Vec<String> {
    let endpoints = typed::<Endpoints>(item).unwrap_or_default();
    service_columns::endpoints(&endpoints, now).to_vec()
}

fn priority_class(item: &Value, _: bool, now: Timestamp) -> Vec<String> {
    let class = typed::<PriorityClass>(item).unwrap_or_default();
    pod_columns::priority_class(&class, now).to_vec()
}

fn node(item: &Value, wide: bool, now: Timestamp) -> Vec<String> {
    let row = node_columns::row(&typed::<Node>(item).unwrap_or_default(), now);
    row[..if wide {
        row.len()
    } else {
        node_columns::NARROW
    }]
        .to_vec()
}

fn event(item: &Value, wide: bool, now: Timestamp) -> Vec<String> {
    let event = typed::<Event>(item).unwrap_or_default();
    let row = event_columns::row(&event, now);
    match wide {
        true => row.to_vec(),
        false => event_columns::NARROW.map(|at| row[at].clone()).to_vec(),
    }
}

fn yes(flag: bool) -> String {
    if flag { "yes" } else { "no" }.to_owned()
}

fn image(item: &Value, wide: bool, now: Timestamp) -> Vec<String> {
    let Some(row) = typed::<ImageRow>(item) else {
        return Vec::new();
    };
    let id = row.id.strip_prefix("sha256:").unwrap_or(&row.id);
    let mut cells = vec![
        match row.names.is_empty() {
            true => "<none>".to_owned(),
            false => row.names.join(","),
        },
        id.chars().take(12).collect(),
        size(row.size_bytes),
        yes(row.in_use),
        yes(row.preloaded),
    ];
    if wide {
        let created = row.created.and_then(|c| c.parse::<Timestamp>().ok());
        cells.push(match created {
            None => "<none>".to_owned(),
            // Reproducible builds stamp their images so.
            Some(at) if at == Timestamp::UNIX_EPOCH => "<unknown>".to_owned(),
            Some(at) => human_age(at, now),
        });
    }
    cells
}

fn file(item: &Value, wide: bool, _: Timestamp) -> Vec<String> {
    let Some(file) = typed::<FileStatus>(item) else {
        return Vec::new();
    };
    let pods: Vec<String> = file.pods.iter().map(ToString::to_string).collect();
    let mut cells = vec![
        file.path.display().to_string(),
        file.state.as_str().to_owned(),
        match pods.is_empty() {
            true => "<none>".to_owned(),
            false => pods.join(","),
        },
        file.errors.len().to_string(),
        file.warnings.len().to_string(),
    ];
    if wide {
        let problem = file.errors.first().or(file.warnings.first());
        cells.push(problem.cloned().unwrap_or_else(|| "<none>".to_owned()));
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(resource: Resource, item: Value) -> Vec<String> {
        table(resource, &[item], true, false).1.remove(0)
    }

    #[test]
    fn an_image_of_the_epoch_has_no_known_age() {
        for (created, expected) in [
            (json!("1970-01-01T00:00:00Z"), "<unknown>"),
            (Value::Null, "<none>"),
            (json!(Timestamp::now().to_string()), "0s"),
        ] {
            let image = json!({ "id": "sha256:1", "names": [], "size_bytes": 1, "created": created,
                                "preloaded": false, "in_use": false });
            let row = shown(Resource::Images, image);
            assert_eq!(row.last().map(String::as_str), Some(expected));
        }
    }

    #[test]
    fn labels_are_shown_as_columns_and_whole() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            get: GetArgs,
        }
        let item =
            |name: &str, labels: Value| json!({ "metadata": { "name": name, "labels": labels } });
        let line = "get priorityclasses --show-labels -L tier,example.com/app";
        let line = <Line as clap::Parser>::parse_from(line.split(' '));
        let mut printer = Printer::new(&line.get).unwrap();
        let items = vec![
            item("a", json!({ "example.com/app": "web", "tier": "front" })),
            item("b", Value::Null),
        ];
        let text = printer.print(items, false).unwrap();
        let ends: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().skip(4).collect())
            .collect();
        assert_eq!(ends[0], ["PREEMPTIONPOLICY", "TIER", "APP", "LABELS"]);
        assert!(
            text.contains(" front   web   example.com/app=web,tier=front\n"),
            "{text}"
        );
        assert!(text.ends_with(" <none>\n"), "{text}");
    }
}
