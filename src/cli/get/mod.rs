//! `coracle get`: lists as kubectl's tables, or objects as JSON, YAML, names or templates.

mod format;
mod printer;
mod rows;
mod sort;

use std::process::ExitCode;

use serde::Deserialize as _;
use serde_json::Value;

use super::args::{GetArgs, Resource};
use super::client::Client;
use super::error::{CliError, Result};
use super::put;
use super::similar::{nothing_in, with_hint};
use super::target::targets;
use crate::api::{VolumeRow, encode};
use crate::spec::WorkloadKind;
use printer::Printer;

pub(super) use format::FORMAT_WORDS;
pub(super) use printer::singular;
pub(super) use rows::{USED_BY, table};

pub(super) fn run(client: &Client, args: &GetArgs) -> Result<ExitCode> {
    let asked = targets::<Resource>(&with_all(&args.what))?;
    let named = asked.iter().map(|(_, names)| names.len()).sum::<usize>();
    check_names(args, named)?;
    let mut printer = Printer::new(args)?;
    let sorted_by = args.sort_by.as_deref().map(sort::column).transpose()?;
    if args.list.watch {
        let [(resource, names)] = &asked[..] else {
            return Err(CliError::usage("only one kind can be watched at a time"));
        };
        if !is_kubernetes(*resource) {
            return Err(CliError::usage("images and files cannot be watched"));
        }
        if args.sort_by.is_some() {
            eprintln!("warning: changes come in their own order: --sort-by has no effect with -w");
        }
        return watch(client, args, (*resource, names), &mut printer);
    }
    let mut found = Found::default();
    for (resource, names) in &asked {
        fetch(client, args, (*resource, names), &mut found)?;
    }
    if args.ignore_not_found {
        found.errors.retain(|error| error.exit_code() != NOT_FOUND);
    }
    if named == 1 && asked.len() == 1 && found.items.is_empty() {
        // A single error is the whole answer.
        if let Some(error) = found.errors.pop() {
            return Err(error);
        }
    }
    let nothing = found.items.is_empty() && found.errors.is_empty();
    if nothing && args.ignore_not_found {
        return Ok(ExitCode::SUCCESS);
    }
    if nothing && printer.is_table() {
        let namespaced = asked.iter().any(|(resource, _)| is_namespaced(*resource));
        match namespaced && !args.list.all_namespaces {
            true => nothing_in(client, &args.list.namespace.namespace),
            false => eprintln!("No resources found."),
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let (Some(path), Some(by)) = (&args.sort_by, &sorted_by)
        && let Err(error) = sort::sort_by(path, by, &mut found.items)
    {
        for error in found.errors {
            eprintln!("{}", with_hint(client, error));
        }
        return Err(error);
    }
    if printer.is_table() {
        add_use(client, &mut found.items);
    }
    let single = named == 1 && asked.len() == 1 && is_kubernetes(asked[0].0);
    if !found.items.is_empty() || !printer.is_table() {
        put(printer.print(found.items, single)?.as_bytes())?;
    }
    let code = found.errors.first().map(CliError::exit_code);
    for error in found.errors {
        eprintln!("{}", with_hint(client, error));
    }
    Ok(code.map_or(ExitCode::SUCCESS, ExitCode::from))
}

/// Refuses names together with what chooses objects in another way.
fn check_names(args: &GetArgs, named: usize) -> Result<()> {
    if named == 0 {
        return Ok(());
    }
    if args.selector.is_some() || args.field_selector.is_some() {
        return Err(CliError::usage(
            "a name cannot be provided when a selector is specified",
        ));
    }
    if args.list.all_namespaces {
        return Err(CliError::usage(
            "a resource cannot be retrieved by name across all namespaces",
        ));
    }
    Ok(())
}

/// Exit code: an object does not exist.
const NOT_FOUND: u8 = 3;

/// Replaces kubectl's word for what people look for first.
fn with_all(what: &[String]) -> Vec<String> {
    const ALL: &str = "pods,services,deployments,statefulsets,daemonsets,replicasets,replicationcontrollers,jobs,cronjobs";
    let mut what = what.to_vec();
    if let Some(first) = what.first_mut() {
        let kinds = first.split(',');
        let kinds = kinds.map(|kind| if kind == "all" { ALL } else { kind });
        *first = kinds.collect::<Vec<_>>().join(",");
    }
    what
}

/// Objects that were found, and errors for the others.
#[derive(Debug, Default)]
struct Found {
    items: Vec<(Resource, Value)>,
    errors: Vec<CliError>,
}

/// A kind and the wanted names; no names: all.
type Asked<'a> = (Resource, &'a [String]);

/// Whether the agent serves it as a Kubernetes object, with metadata.
pub(super) fn is_kubernetes(resource: Resource) -> bool {
    match resource {
        Resource::Pods
        | Resource::Services
        | Resource::Endpoints
        | Resource::Nodes
        | Resource::PriorityClasses
        | Resource::ConfigMaps
        | Resource::Secrets
        | Resource::ServiceAccounts
        | Resource::Namespaces
        | Resource::Claims
        | Resource::Volumes
        | Resource::Deployments
        | Resource::StatefulSets
        | Resource::DaemonSets
        | Resource::ReplicaSets
        | Resource::ReplicationControllers
        | Resource::Jobs
        | Resource::CronJobs
        | Resource::Events => true,
        Resource::Images | Resource::Files => false,
    }
}

fn is_namespaced(resource: Resource) -> bool {
    let none = [
        Resource::Nodes,
        Resource::PriorityClasses,
        Resource::Namespaces,
        Resource::Volumes,
    ];
    is_kubernetes(resource) && !none.contains(&resource)
}

/// Returns the path of the list of a namespace, or of all.
pub(in crate::cli) fn collection(resource: Resource, namespace: Option<&str>) -> String {
    let plural = match resource {
        Resource::Pods => "pods",
        Resource::Services => "services",
        Resource::Endpoints => "endpoints",
        Resource::Events => "events",
        Resource::ConfigMaps => "configmaps",
        Resource::Secrets => "secrets",
        Resource::ServiceAccounts => "serviceaccounts",
        Resource::Namespaces => "namespaces",
        Resource::Claims => "persistentvolumeclaims",
        Resource::Volumes => "persistentvolumes",
        Resource::Nodes => "nodes",
        Resource::Deployments => "deployments",
        Resource::StatefulSets => "statefulsets",
        Resource::DaemonSets => "daemonsets",
        Resource::ReplicaSets => "replicasets",
        Resource::ReplicationControllers => "replicationcontrollers",
        Resource::Jobs => "jobs",
        Resource::CronJobs => "cronjobs",
        Resource::PriorityClasses => {
            return "/apis/scheduling.k8s.io/v1/priorityclasses".to_owned();
        }
        Resource::Images => return "/coracle/v1/images".to_owned(),
        Resource::Files => return "/coracle/v1/files".to_owned(),
    };
    let group = match resource.workload().map(WorkloadKind::version) {
        Some("v1") | None => "api/v1".to_owned(),
        Some(version) => format!("apis/{version}"),
    };
    match namespace.filter(|_| is_namespaced(resource)) {
        Some(namespace) => format!("/{group}/namespaces/{}/{plural}", encode(namespace)),
        None => format!("/{group}/{plural}"),
    }
}

/// The namespace that is asked for; `None`: all.
fn namespace(args: &GetArgs) -> Option<&str> {
    let list = &args.list;
    (!list.all_namespaces).then_some(list.namespace.namespace.as_str())
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

/// Fetches the objects; a missing object adds an error and the others are still shown.
fn fetch(client: &Client, args: &GetArgs, asked: Asked<'_>, found: &mut Found) -> Result<()> {
    let (resource, names) = asked;
    let path = collection(resource, namespace(args));
    if is_kubernetes(resource) && !names.is_empty() {
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
            let error = CliError::new(format!("`{wanted}` not found")).code(NOT_FOUND);
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

/// Adds to claims what their files take, for the table. What is unknown stays unknown.
fn add_use(client: &Client, items: &mut [(Resource, Value)]) {
    let is_claim = |(resource, _): &(Resource, Value)| *resource == Resource::Claims;
    if !items.iter().any(is_claim) {
        return;
    }
    let answer = client
        .json("GET", "/coracle/v1/volumes", None)
        .unwrap_or_default();
    let volumes = Vec::<VolumeRow>::deserialize(&answer["items"]).unwrap_or_default();
    for (_, item) in items.iter_mut().filter(|item| is_claim(item)) {
        let metadata = &item["metadata"];
        let its = |row: &&VolumeRow| {
            metadata["namespace"] == *row.namespace && metadata["name"] == *row.claim
        };
        if let Some(row) = volumes.iter().find(its) {
            item[rows::USED] = row.used_bytes.into();
        }
    }
}

/// Images match by name or digest, files by path.
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
    let list = collection(resource, namespace(args));
    for name in names {
        // A watch of what does not exist would wait without a word.
        match client.get(&format!("{list}/{}", encode(name))) {
            Err(error) if error.exit_code() == NOT_FOUND && args.ignore_not_found => {}
            looked => drop(looked?),
        }
    }
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
            if !is_wanted(&object, names) {
                continue;
            }
            put(printer.print(vec![(resource, object)], true)?.as_bytes())?;
        }
    }
}

/// Whether the object has one of these names; no names: all are wanted.
fn is_wanted(object: &Value, names: &[String]) -> bool {
    let name = object["metadata"]["name"].as_str();
    names.is_empty() || names.iter().any(|wanted| name == Some(wanted))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::json;

    use super::super::args::{Cli, Command};
    use super::*;

    #[test]
    fn names_are_not_mixed_with_selectors() {
        let client = Client {
            socket: "/nonexistent/coracle.sock".into(),
        };
        for (line, refused) in [
            ("get pod a -l x=y", Some("selector")),
            ("get pod a -w -l x=y", Some("selector")),
            (
                "get pod/a --field-selector status.phase=Running",
                Some("selector"),
            ),
            ("get pod a -A", Some("across all namespaces")),
            ("get pod a -A -w", Some("across all namespaces")),
            ("get pods -A -l x=y", None),
            ("get pod a b -w", None),
        ] {
            let words = ["coracle"].into_iter().chain(line.split(' '));
            let Command::Get(args) = Cli::try_parse_from(words).unwrap().command else {
                panic!("it is `get`");
            };
            let error = run(&client, &args).unwrap_err();
            assert_eq!(error.exit_code() == 2, refused.is_some(), "{line}: {error}");
            assert!(
                error.to_string().contains(refused.unwrap_or("")),
                "{line}: {error}"
            );
        }
    }

    #[test]
    fn a_watch_shows_the_named_objects_alone() {
        let pod = json!({ "metadata": { "name": "web" } });
        for (names, wanted) in [
            (&[][..], true),
            (&["web"], true),
            (&["db", "web"], true),
            (&["db", "api"], false),
        ] {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(is_wanted(&pod, &names), wanted, "{names:?}");
        }
    }
}
