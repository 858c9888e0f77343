//! The rows of kubectl's tables: which columns a kind has, and how its objects fill them.

use k8s_openapi::api::core::v1::{Endpoints, Event, Node, Pod, Service};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::Value;

use super::super::args::Resource;
use super::super::table::size;
use super::is_namespaced;
use crate::api::pod_columns::{self, human_age};
use crate::api::{FileState, FileStatus, ImageRow, ImageUser};
use crate::api::{
    configuration_columns, event_columns, node_columns, service_columns, workload_columns,
};
use crate::spec::{WorkloadKind, read_object};
use crate::sys::clock;
use crate::types::Gather;

/// The field of a claim that has what its files take, in bytes. No client but this one ever sees it.
pub(super) const USED: &str = "coracle.dev/used";

/// Makes the cells of one object; the flag is `-o wide`.
type Row = fn(&Value, bool, Timestamp) -> Vec<String>;

/// The titles and rows of documents that stand for pods.
fn workloads(
    kind: WorkloadKind,
    items: &[Value],
    wide: bool,
    now: Timestamp,
) -> (Vec<String>, Vec<Vec<String>>) {
    let columns = workload_columns::columns(kind).iter();
    let shown: Vec<_> = columns
        .filter(|(_, priority)| wide || *priority == 0)
        .collect();
    let header = shown.iter().map(|(title, _)| title.to_uppercase());
    let rows = items.iter().map(|item| {
        let mut cells = workload_columns::row(kind, item, now);
        cells.truncate(shown.len());
        cells
    });
    (header.collect(), rows.collect())
}

/// Makes the header and rows for objects of one kind.
pub(in crate::cli) fn table(
    resource: Resource,
    items: &[Value],
    wide: bool,
    namespaces: bool,
) -> (Vec<String>, Vec<Vec<String>>) {
    let now = clock::timestamp();
    let (mut header, mut rows) = match resource.workload() {
        Some(kind) => workloads(kind, items, wide, now),
        None => others(resource, items, wide, now),
    };
    if namespaces && is_namespaced(resource) {
        header.insert(0, "NAMESPACE".to_owned());
        for (cells, item) in rows.iter_mut().zip(items) {
            let ns = item["metadata"]["namespace"].as_str().unwrap_or_default();
            cells.insert(0, ns.to_owned());
        }
    }
    (header, rows)
}

fn others(
    resource: Resource,
    items: &[Value],
    wide: bool,
    now: Timestamp,
) -> (Vec<String>, Vec<Vec<String>>) {
    let (mut header, wide_header, row) = columns(resource, wide);
    if wide {
        header.extend(wide_header);
    }
    let header = header.into_iter().map(str::to_owned);
    let rows = items.iter().map(|item| row(item, wide, now));
    (header.collect(), rows.collect())
}

/// The title of the pods that use an image.
pub(in crate::cli) const USED_BY: &str = "USED BY";

/// The titles, those that `-o wide` adds, and what makes a row.
fn columns(resource: Resource, wide: bool) -> (Vec<&'static str>, &'static [&'static str], Row) {
    match resource {
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
        Resource::ConfigMaps => (vec!["NAME", "DATA", "AGE"], &[], |item, _, now| {
            configuration_columns::config_map(item, now).to_vec()
        }),
        Resource::Secrets => (vec!["NAME", "TYPE", "DATA", "AGE"], &[], |item, _, now| {
            configuration_columns::secret(item, now).to_vec()
        }),
        Resource::ServiceAccounts => (vec!["NAME", "SECRETS", "AGE"], &[], |item, _, now| {
            configuration_columns::service_account(item, now).to_vec()
        }),
        Resource::Namespaces => (vec!["NAME", "STATUS", "AGE"], &[], |item, _, now| {
            configuration_columns::namespace(item, now).to_vec()
        }),
        Resource::Claims => (
            vec![
                "NAME",
                "STATUS",
                "VOLUME",
                "CAPACITY",
                "ACCESS MODES",
                "STORAGECLASS",
                "VOLUMEATTRIBUTESCLASS",
                "AGE",
                "USED",
            ],
            &["VOLUMEMODE"],
            claim,
        ),
        Resource::Volumes => (
            vec![
                "NAME",
                "CAPACITY",
                "ACCESS MODES",
                "RECLAIM POLICY",
                "STATUS",
                "CLAIM",
                "STORAGECLASS",
                "VOLUMEATTRIBUTESCLASS",
                "REASON",
                "AGE",
            ],
            &["VOLUMEMODE"],
            |item, wide, now| narrowed(&configuration_columns::volume(item, now), wide),
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
            &[USED_BY, "CREATED"],
            image,
        ),
        Resource::Deployments
        | Resource::StatefulSets
        | Resource::DaemonSets
        | Resource::ReplicaSets
        | Resource::ReplicationControllers
        | Resource::Jobs
        | Resource::CronJobs => (Vec::new(), &[], |_, _, _| Vec::new()),
        Resource::Files => (
            vec!["FILE", "STATE", "PODS", "DOCUMENTS", "ERRORS", "WARNINGS"],
            &["KINDS", "FIRST PROBLEM"],
            file,
        ),
    }
}

/// The cells without the last one, which only wide tables have.
fn narrowed(cells: &[String], wide: bool) -> Vec<String> {
    let end = cells.len() - usize::from(!wide);
    cells[..end].to_vec()
}

fn pod(item: &Value, wide: bool, now: Timestamp) -> Vec<String> {
    let row = pod_columns::row(&read_object::<Pod>(item).unwrap_or_default(), now);
    let mut cells = vec![row.name, row.ready, row.status, row.restarts, row.age];
    if wide {
        if let Some(pulling) = row.pulling {
            cells[2] = pulling;
        }
        cells.extend([row.ip, row.node, row.gates]);
    }
    cells
}

fn claim(item: &Value, wide: bool, now: Timestamp) -> Vec<String> {
    let mut cells = narrowed(&configuration_columns::claim(item, now), wide);
    let used = item[USED].as_u64();
    let used = used.map_or_else(|| "<unknown>".to_owned(), size);
    // A column of its own beside kubectl's.
    cells.insert(cells.len() - usize::from(wide), used);
    cells
}

fn service(item: &Value, wide: bool, now: Timestamp) -> Vec<String> {
    let row = service_columns::service(&read_object::<Service>(item).unwrap_or_default(), now);
    let mut cells = row.to_vec();
    if !wide {
        cells.pop();
    }
    cells
}

fn endpoints(item: &Value, _: bool, now: Timestamp) -> Vec<String> {
    let endpoints = read_object::<Endpoints>(item).unwrap_or_default();
    service_columns::endpoints(&endpoints, now).to_vec()
}

fn priority_class(item: &Value, _: bool, now: Timestamp) -> Vec<String> {
    let class = read_object::<PriorityClass>(item).unwrap_or_default();
    pod_columns::priority_class(&class, now).to_vec()
}

fn node(item: &Value, wide: bool, now: Timestamp) -> Vec<String> {
    let row = node_columns::row(&read_object::<Node>(item).unwrap_or_default(), now);
    row[..if wide {
        row.len()
    } else {
        node_columns::NARROW
    }]
        .to_vec()
}

fn event(item: &Value, wide: bool, now: Timestamp) -> Vec<String> {
    let event = read_object::<Event>(item).unwrap_or_default();
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
    let Ok(row) = ImageRow::deserialize(item) else {
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
        cells.push(users(&row.users));
        let created = row.created.and_then(|c| c.parse::<Timestamp>().ok());
        cells.push(match created {
            None => "<none>".to_owned(),
            // Reproducible builds set the epoch as creation time.
            Some(at) if at == Timestamp::UNIX_EPOCH => "<unknown>".to_owned(),
            Some(at) => human_age(at, now),
        });
    }
    cells
}

/// The pods that use an image, each once.
fn users(users: &[ImageUser]) -> String {
    let pods = users
        .iter()
        .map(|user| format!("{}/{}", user.namespace, user.pod));
    let pods: std::collections::BTreeSet<String> = pods.gather();
    match pods.is_empty() {
        true => "<none>".to_owned(),
        false => pods.into_iter().collect::<Vec<_>>().join(","),
    }
}

fn file(item: &Value, wide: bool, _: Timestamp) -> Vec<String> {
    let Ok(file) = FileStatus::deserialize(item) else {
        return Vec::new();
    };
    let pods: Vec<String> = file.pods.iter().map(ToString::to_string).collect();
    let documents = &file.documents.0;
    let mut cells = vec![
        file.path.display().to_string(),
        file.state.as_str().to_owned(),
        match pods.is_empty() {
            true => "<none>".to_owned(),
            false => pods.join(","),
        },
        match documents.is_empty() && file.state == FileState::Rejected {
            true => "<unknown>".to_owned(),
            false => {
                let numbers = documents.iter().map(|(_, number)| number);
                numbers.sum::<usize>().to_string()
            }
        },
        file.errors.len().to_string(),
        file.warnings.len().to_string(),
    ];
    if wide {
        let kinds: Vec<String> = documents
            .iter()
            .map(|(kind, number)| format!("{number} {kind}"))
            .collect();
        cells.push(match kinds.is_empty() {
            true => "<none>".to_owned(),
            false => kinds.join(", "),
        });
        let problem = file.errors.first().or(file.warnings.first());
        cells.push(problem.cloned().unwrap_or_else(|| "<none>".to_owned()));
    }
    cells
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
    fn the_pods_that_use_an_image_are_shown_once_each() {
        let user = |pod: &str, container: &str| json!({ "namespace": "shop", "pod": pod, "container": container });
        for (users, expected) in [
            (json!([]), "<none>"),
            (
                json!([user("web", "a"), user("web", "b"), user("db", "a")]),
                "shop/db,shop/web",
            ),
        ] {
            let image = json!({ "id": "sha256:1", "names": [], "size_bytes": 1, "created": null,
                                "preloaded": false, "in_use": true, "users": users });
            let row = shown(Resource::Images, image);
            assert_eq!(row[row.len() - 2], expected);
        }
    }
}
