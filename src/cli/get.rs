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
use super::target::targets;
use super::{jsonpath, put};
use crate::api::pod_columns::{self, human_age};
use crate::api::{FileStatus, ImageRow, encode};
use crate::api::{event_columns, node_columns, service_columns};

pub(super) fn run(client: &Client, args: &GetArgs) -> Result<ExitCode> {
    let asked = targets::<Resource>(&args.what)?;
    let mut printer = Printer::new(args)?;
    if args.list.watch {
        let [(resource, names)] = &asked[..] else {
            return Err(CliError::usage("only one kind can be watched at a time"));
        };
        if !is_kubernetes(*resource) {
            return Err(CliError::usage(
                "only pods, services, endpoints, priorityclasses, nodes and events can be watched",
            ));
        }
        return watch(client, args, (*resource, names), &mut printer);
    }
    let mut found = Found::default();
    for (resource, names) in &asked {
        fetch(client, args, (*resource, names), &mut found)?;
    }
    let named = asked.iter().map(|(_, names)| names.len()).sum::<usize>();
    if named == 1 && asked.len() == 1 && found.items.is_empty() {
        // Alone it is the whole answer.
        if let Some(error) = found.errors.pop() {
            return Err(error);
        }
    }
    if found.items.is_empty() && found.errors.is_empty() && printer.is_table() {
        let namespaced = asked.iter().any(|(resource, _)| is_namespaced(*resource));
        let place = match namespaced && !args.list.all_namespaces {
            true => format!(" in {} namespace", args.list.namespace.namespace),
            false => String::new(),
        };
        eprintln!("No resources found{place}.");
        return Ok(ExitCode::SUCCESS);
    }
    let single = named == 1 && asked.len() == 1 && is_kubernetes(asked[0].0);
    if !found.items.is_empty() || !printer.is_table() {
        put(printer.print(found.items, single)?.as_bytes())?;
    }
    let code = found.errors.first().map(CliError::exit_code);
    for error in &found.errors {
        eprintln!("{error}");
    }
    Ok(code.map_or(ExitCode::SUCCESS, ExitCode::from))
}

/// What was found of what was asked for, and why the rest was not.
#[derive(Debug, Default)]
struct Found {
    items: Vec<(Resource, Value)>,
    errors: Vec<CliError>,
}

/// A kind, and which of it; no names: all.
type Asked<'a> = (Resource, &'a [String]);

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
fn collection(args: &GetArgs, resource: Resource) -> String {
    let ns = encode(&args.list.namespace.namespace);
    match (resource, args.list.all_namespaces) {
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

/// Adds the objects; one that is not there is an error beside the others.
fn fetch(client: &Client, args: &GetArgs, asked: Asked<'_>, found: &mut Found) -> Result<()> {
    let (resource, names) = asked;
    let path = collection(args, resource);
    if is_kubernetes(resource) && !names.is_empty() {
        if args.list.all_namespaces {
            return Err(CliError::usage(
                "a resource cannot be retrieved by name across all namespaces",
            ));
        }
        for name in names {
            match client.get(&format!("{path}/{}", encode(name))) {
                Ok(item) => found.items.push((resource, item)),
                Err(error) => found.errors.push(error),
            }
        }
        return Ok(());
    }
    let mut list = client.get(&format!("{path}?{}", selectors(args)))?;
    let mut items = match list["items"].take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    for wanted in names {
        if !items.iter().any(|item| is_named(item, wanted)) {
            let error = CliError::new(format!("`{wanted}` not found")).code(3);
            found.errors.push(error);
        }
    }
    if !names.is_empty() {
        items.retain(|item| names.iter().any(|wanted| is_named(item, wanted)));
    }
    found
        .items
        .extend(items.into_iter().map(|item| (resource, item)));
    Ok(())
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

fn watch(
    client: &Client,
    args: &GetArgs,
    (resource, names): Asked<'_>,
    printer: &mut Printer<'_>,
) -> Result<ExitCode> {
    let list = collection(args, resource);
    loop {
        let mut path = format!("{list}?watch=true&{}", selectors(args));
        if let [name] = names {
            let field = format!("metadata.name={name}");
            path = format!("{list}?watch=true&fieldSelector={}", encode(&field));
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
            put(printer.print(vec![(resource, object)], true)?.as_bytes())?;
        }
    }
}

/// How to print.
#[derive(Debug)]
struct Printer<'a> {
    args: &'a GetArgs,
    format: Format,
    table: Table,
    header_done: bool,
}

#[derive(Debug, PartialEq)]
enum Format {
    Table,
    Wide,
    Json,
    Yaml,
    Name,
    JsonPath(jsonpath::Template),
    Columns(Vec<(String, jsonpath::Column)>),
}

impl Format {
    fn parse(given: Option<&str>) -> Result<Self> {
        let (word, rest) = match given.unwrap_or_default().split_once('=') {
            Some((word, rest)) => (word, Some(rest)),
            None => (given.unwrap_or_default(), None),
        };
        Ok(match (word, rest) {
            ("", None) => Self::Table,
            ("wide", None) => Self::Wide,
            ("json", None) => Self::Json,
            ("yaml", None) => Self::Yaml,
            ("name", None) => Self::Name,
            ("jsonpath", Some(template)) => {
                Self::JsonPath(jsonpath::Template::parse(template).map_err(CliError::usage)?)
            }
            ("custom-columns", Some(columns)) => Self::Columns(custom_columns(columns)?),
            ("jsonpath" | "custom-columns", None) => {
                return Err(
                    CliError::usage(format!("`-o {word}` needs what to print")).hint(
                        "-o jsonpath='{.metadata.name}', -o custom-columns=NAME:.metadata.name",
                    ),
                );
            }
            (
                "go-template"
                | "template"
                | "go-template-file"
                | "templatefile"
                | "jsonpath-file"
                | "jsonpath-as-json"
                | "custom-columns-file"
                | "kyaml",
                _,
            ) => {
                return Err(CliError::usage(format!(
                    "output format `{word}` of kubectl is not supported"
                ))
                .hint(FORMATS));
            }
            _ => {
                let word = given.unwrap_or_default();
                return Err(
                    CliError::usage(format!("unknown output format `{word}`")).hint(FORMATS)
                );
            }
        })
    }
}

const FORMATS: &str =
    "one of wide, json, yaml, name, jsonpath=TEMPLATE, custom-columns=TITLE:PATH,…";

/// `NAME:.metadata.name,IMAGES:.spec.containers[*].image`
fn custom_columns(text: &str) -> Result<Vec<(String, jsonpath::Column)>> {
    let column = |column: &str| {
        let bad = |why: String| {
            CliError::usage(format!("`{column}` is no column: {why}"))
                .hint("write each as TITLE:PATH")
        };
        let pair = column
            .split_once(':')
            .filter(|(title, _)| !title.is_empty());
        let (title, path) = pair.ok_or_else(|| bad("it has no title and path".to_owned()))?;
        let path = jsonpath::Column::parse(path).map_err(bad)?;
        Ok((title.to_owned(), path))
    };
    jsonpath::split_columns(text)
        .into_iter()
        .map(column)
        .collect()
}

impl<'a> Printer<'a> {
    fn new(args: &'a GetArgs) -> Result<Self> {
        Ok(Self {
            args,
            format: Format::parse(args.list.output.as_deref())?,
            table: Table::default(),
            header_done: args.list.no_headers,
        })
    }

    fn is_table(&self) -> bool {
        matches!(
            self.format,
            Format::Table | Format::Wide | Format::Name | Format::Columns(_)
        )
    }

    fn print(&mut self, items: Vec<(Resource, Value)>, single: bool) -> Result<String> {
        let whole = |items: Vec<(Resource, Value)>| {
            let mut items: Vec<Value> = items.into_iter().map(|(_, item)| item).collect();
            match (single, items.pop()) {
                (true, Some(one)) => one,
                (_, last) => {
                    items.extend(last);
                    json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": items })
                }
            }
        };
        let bad = |e: &dyn std::fmt::Display| CliError::new("could not print").because(e);
        match &self.format {
            Format::Json => {
                let text = serde_json::to_string_pretty(&whole(items)).map_err(|e| bad(&e))?;
                Ok(format!("{text}\n"))
            }
            Format::Yaml => serde_yaml::to_string(&whole(items)).map_err(|e| bad(&e)),
            Format::JsonPath(template) => Ok(template.print(&whole(items))),
            Format::Name => Ok(items
                .iter()
                .map(|(resource, item)| format!("{}\n", name(*resource, item)))
                .collect()),
            Format::Columns(columns) => {
                let cells = |(_, item): &(Resource, Value)| {
                    columns.iter().map(|(_, path)| path.cell(item)).collect()
                };
                let rows: Vec<Vec<String>> = items.iter().map(cells).collect();
                let header: Vec<&str> = match std::mem::replace(&mut self.header_done, true) {
                    true => Vec::new(),
                    false => columns.iter().map(|(title, _)| title.as_str()).collect(),
                };
                Ok(self.table.render(&header, &rows))
            }
            Format::Table | Format::Wide => Ok(self.tables(items)),
        }
    }

    /// One table for each kind; of several kinds the names have theirs before them.
    fn tables(&mut self, items: Vec<(Resource, Value)>) -> String {
        let mut groups: Vec<(Resource, Vec<Value>)> = Vec::new();
        for (resource, item) in items {
            match groups.last_mut() {
                Some((last, group)) if *last == resource => group.push(item),
                Some(_) | None => groups.push((resource, vec![item])),
            }
        }
        let several = groups.iter().any(|(resource, _)| *resource != groups[0].0);
        let mut pages = Vec::new();
        for (resource, items) in groups {
            pages.push(self.rows(resource, &items, several));
            if several {
                self.table = Table::default();
                self.header_done = self.args.list.no_headers;
            }
        }
        pages.join("\n")
    }

    fn rows(&mut self, resource: Resource, items: &[Value], with_kind: bool) -> String {
        let wide = self.format == Format::Wide;
        let all = self.args.list.all_namespaces;
        let (header, mut rows) = table(resource, items, wide, all);
        // The first column, or behind the namespace.
        let first = usize::from(all && is_namespaced(resource));
        for (row, item) in rows.iter_mut().zip(items) {
            if self.args.interval {
                let now = Timestamp::now();
                row[first] = event_columns::interval(&typed(item).unwrap_or_default(), now);
            } else if with_kind && header.get(first) == Some(&"NAME") {
                row[first] = name(resource, item);
            }
        }
        let mut header: Vec<String> = header.iter().map(|title| (*title).to_owned()).collect();
        if is_kubernetes(resource) {
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

/// `pod/web`.
fn name(resource: Resource, item: &Value) -> String {
    let kind = match resource {
        Resource::Pods => "pod",
        Resource::Services => "service",
        Resource::Endpoints => "endpoints",
        Resource::PriorityClasses => "priorityclass.scheduling.k8s.io",
        Resource::Nodes => "node",
        Resource::Events => "event",
        Resource::Images => return item["id"].as_str().unwrap_or_default().to_owned(),
        Resource::Files => return item["path"].as_str().unwrap_or_default().to_owned(),
    };
    let name = item["metadata"]["name"].as_str().unwrap_or_default();
    format!("{kind}/{name}")
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
        let items = items
            .into_iter()
            .map(|item| (Resource::PriorityClasses, item));
        let text = printer.print(items.collect(), false).unwrap();
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

    #[test]
    fn several_kinds_are_several_tables_and_columns_may_be_chosen() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            get: GetArgs,
        }
        let of = |resource: Resource, name: &str| {
            (
                resource,
                json!({ "metadata": { "name": name }, "n": [1, 2] }),
            )
        };
        let items = || {
            vec![
                of(Resource::Pods, "a"),
                of(Resource::Pods, "b"),
                of(Resource::PriorityClasses, "c"),
            ]
        };
        let print = |line: &str| {
            let line = <Line as clap::Parser>::parse_from(line.split(' '));
            Printer::new(&line.get).and_then(|mut printer| printer.print(items(), false))
        };
        let text = print("get po,pc").unwrap();
        let lines: Vec<&str> = text
            .lines()
            .map(|line| line.split(' ').next().unwrap_or_default())
            .collect();
        let expected = [
            "NAME",
            "pod/a",
            "pod/b",
            "",
            "NAME",
            "priorityclass.scheduling.k8s.io/c",
        ];
        assert_eq!(lines, expected, "{text}");
        let text = print("get po -o custom-columns=NAME:.metadata.name,N:.n[0,1],NO:.no").unwrap();
        assert_eq!(
            text.lines()
                .next()
                .unwrap()
                .split_whitespace()
                .collect::<Vec<_>>(),
            ["NAME", "N", "NO"]
        );
        assert_eq!(
            text.lines()
                .nth(2)
                .unwrap()
                .split_whitespace()
                .collect::<Vec<_>>(),
            ["b", "1,2", "<none>"]
        );
        let names = print("get po -o jsonpath={.items[*].metadata.name}").unwrap();
        assert_eq!(names, "a b c");
        for (line, words) in [
            (
                "get po -o go-template={{.x}}",
                "`go-template` of kubectl is not supported",
            ),
            ("get po -o jsonpath", "`-o jsonpath` needs what to print"),
            ("get po -o jsonpath={.a", "lacks `}`"),
            ("get po -o custom-columns=NAME", "`NAME` is no column"),
            ("get po -o xml", "unknown output format `xml`"),
        ] {
            let error = print(line).unwrap_err();
            assert!(error.to_string().contains(words), "{line}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }
}
