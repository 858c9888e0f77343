//! The output of `coracle get`: objects in the chosen format, one table for each kind.

use serde_json::{Value, json};

use super::super::args::{GetArgs, Resource};
use super::super::error::{CliError, Result};
use super::super::table::Table;
use super::format::Format;
use super::rows::table;
use super::{is_kubernetes, is_namespaced};
use crate::api::event_columns;
use crate::spec::read_object;
use crate::sys::clock;

/// Formats objects for one call of `get`.
#[derive(Debug)]
pub(super) struct Printer<'a> {
    args: &'a GetArgs,
    format: Format,
    table: Table,
    header_done: bool,
}

impl<'a> Printer<'a> {
    pub(super) fn new(args: &'a GetArgs) -> Result<Self> {
        Ok(Self {
            args,
            format: Format::parse(args.list.output.as_deref())?,
            table: Table::default(),
            header_done: args.list.no_headers,
        })
    }

    pub(super) fn is_table(&self) -> bool {
        matches!(
            self.format,
            Format::Table | Format::Wide | Format::Name | Format::Columns(_)
        )
    }

    pub(super) fn print(&mut self, items: Vec<(Resource, Value)>, single: bool) -> Result<String> {
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
            Format::JsonPath(template) => {
                let printed = template.print(&whole(items));
                printed.map_err(|why| CliError::new("could not print the template").because(why))
            }
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

    /// Formats one table for each kind; names are prefixed with the kind if there are several.
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
        let (mut header, mut rows) = table(resource, items, wide, all);
        // The name is the first column, or comes after the namespace.
        let first = usize::from(all && is_namespaced(resource));
        for (row, item) in rows.iter_mut().zip(items) {
            if self.args.interval {
                let now = clock::timestamp();
                row[first] = event_columns::interval(&read_object(item).unwrap_or_default(), now);
            } else if with_kind && header.get(first).is_some_and(|title| title == "NAME") {
                row[first] = name(resource, item);
            }
        }
        if is_kubernetes(resource) {
            self.add_labels(&mut header, &mut rows, items);
        }
        if std::mem::replace(&mut self.header_done, true) {
            header.clear();
        }
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        self.table.render(&header, &rows)
    }

    /// Adds the columns of `-L` and `--show-labels`, as kubectl does.
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

/// Formats `pod/web`.
fn name(resource: Resource, item: &Value) -> String {
    let name = match resource {
        Resource::Images => return item["id"].as_str().unwrap_or_default().to_owned(),
        Resource::Files => return item["path"].as_str().unwrap_or_default().to_owned(),
        _ => item["metadata"]["name"].as_str().unwrap_or_default(),
    };
    format!("{}/{name}", singular(resource))
}

/// The kind as it is written before an object's name, with its group.
pub(in crate::cli) fn singular(resource: Resource) -> &'static str {
    match resource {
        Resource::Pods => "pod",
        Resource::Services => "service",
        Resource::Endpoints => "endpoints",
        Resource::PriorityClasses => "priorityclass.scheduling.k8s.io",
        Resource::ConfigMaps => "configmap",
        Resource::Secrets => "secret",
        Resource::ServiceAccounts => "serviceaccount",
        Resource::Namespaces => "namespace",
        Resource::Claims => "persistentvolumeclaim",
        Resource::Volumes => "persistentvolume",
        Resource::Nodes => "node",
        Resource::Deployments => "deployment.apps",
        Resource::StatefulSets => "statefulset.apps",
        Resource::DaemonSets => "daemonset.apps",
        Resource::ReplicaSets => "replicaset.apps",
        Resource::ReplicationControllers => "replicationcontroller",
        Resource::Jobs => "job.batch",
        Resource::CronJobs => "cronjob.batch",
        Resource::Events => "event",
        Resource::Images => "image",
        Resource::Files => "file",
    }
}

/// Formats `app=web,tier=front`, or `<none>`.
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let error = print("get po -o jsonpath={.items[9].n}").unwrap_err();
        assert_eq!(error.exit_code(), 1);
        let error = error.to_string();
        assert!(
            error.contains("array index out of bounds: index 9, length 3"),
            "{error}"
        );
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
