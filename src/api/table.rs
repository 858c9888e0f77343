//! `meta.k8s.io/v1` Tables for `kubectl get`, with the columns that kubectl's users know.

use k8s_openapi::api::core::v1::{Endpoints, Event, Node, Pod, Service};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::error::ApiError;
use super::object::Object;
use super::query::Query;
use super::store::Kind;
use super::{
    configuration_columns, event_columns, node_columns, pod_columns, service_columns,
    workload_columns,
};
use crate::spec::read_object;
use crate::sys::clock;

/// How much of its object a row includes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Include {
    Nothing,
    Metadata,
    Whole,
}

impl Include {
    /// Parses the parameter `includeObject`.
    pub(crate) fn of(query: &Query) -> Result<Self, ApiError> {
        match query.get("includeObject") {
            None | Some("" | "Metadata") => Ok(Self::Metadata),
            Some("None") => Ok(Self::Nothing),
            Some("Object") => Ok(Self::Whole),
            Some(other) => Err(ApiError::bad_request(format!(
                "includeObject: Unsupported value: \"{other}\": supported values: \"Metadata\", \"None\", \"Object\""
            ))),
        }
    }

    fn shown(self, whole: Value) -> Value {
        match self {
            Self::Nothing => Value::Null,
            Self::Metadata => partial(&whole),
            Self::Whole => whole,
        }
    }
}

/// `kind` of an object of which only the metadata is shown.
pub(crate) const PARTIAL: &str = "PartialObjectMetadata";

/// `apiVersion` of Tables and partial objects.
pub(crate) const META: &str = "meta.k8s.io/v1";

/// Returns an object with nothing but its metadata.
pub(crate) fn partial(whole: &Value) -> Value {
    json!({ "kind": PARTIAL, "apiVersion": META, "metadata": whole["metadata"] })
}

/// Formats the objects as a `Table` in JSON.
pub(crate) fn of<'a>(
    kind: Kind,
    version: u64,
    include: Include,
    objects: impl IntoIterator<Item = &'a Object>,
) -> Vec<u8> {
    let whole = |object: &Object| {
        serde_json::from_slice(&super::read::shown(kind, object)).unwrap_or_default()
    };
    table(
        kind,
        &version.to_string(),
        include,
        objects.into_iter().map(whole),
    )
}

/// Formats a bookmark as a `Table` with one almost empty row.
pub(crate) fn bookmark(kind: Kind, include: Include, object: Value) -> Vec<u8> {
    let version = object["metadata"]["resourceVersion"].clone();
    table(
        kind,
        version.as_str().unwrap_or_default(),
        include,
        [object],
    )
}

fn table(
    kind: Kind,
    version: &str,
    include: Include,
    objects: impl IntoIterator<Item = Value>,
) -> Vec<u8> {
    let now = clock::timestamp();
    let definitions: Vec<Value> = columns(kind)
        .iter()
        .map(|(name, priority)| {
            let format = if *name == "Name" { "name" } else { "" };
            json!({ "name": name, "type": "string", "format": format, "description": name, "priority": priority })
        })
        .collect();
    let rows: Vec<Value> = objects
        .into_iter()
        .map(|whole| json!({ "cells": cells(kind, &whole, now), "object": include.shown(whole) }))
        .collect();
    json!({ "kind": "Table", "apiVersion": META,
            "metadata": { "resourceVersion": version },
            "columnDefinitions": definitions, "rows": rows })
    .to_string()
    .into_bytes()
}

/// The columns' names and priorities. Those of priority 1 are shown by `-o wide`.
fn columns(kind: Kind) -> &'static [(&'static str, u8)] {
    match kind {
        Kind::Pods => &[
            ("Name", 0),
            ("Ready", 0),
            ("Status", 0),
            ("Restarts", 0),
            ("Age", 0),
            ("IP", 1),
            ("Node", 1),
            ("Readiness Gates", 1),
        ],
        Kind::Nodes => &[
            ("Name", 0),
            ("Status", 0),
            ("Roles", 0),
            ("Age", 0),
            ("Version", 0),
            ("Internal-IP", 1),
            ("External-IP", 1),
            ("OS-Image", 1),
            ("Kernel-Version", 1),
            ("Container-Runtime", 1),
        ],
        Kind::Events => &[
            ("Last Seen", 0),
            ("Type", 0),
            ("Reason", 0),
            ("Object", 0),
            ("Subobject", 1),
            ("Source", 1),
            ("Message", 0),
            ("First Seen", 1),
            ("Count", 1),
            ("Name", 1),
        ],
        Kind::Services => &[
            ("Name", 0),
            ("Type", 0),
            ("Cluster-IP", 0),
            ("External-IP", 0),
            ("Port(s)", 0),
            ("Age", 0),
            ("Selector", 1),
        ],
        Kind::Endpoints => &[("Name", 0), ("Endpoints", 0), ("Age", 0)],
        Kind::PriorityClasses => &[
            ("Name", 0),
            ("Value", 0),
            ("Global-Default", 0),
            ("Age", 0),
            ("PreemptionPolicy", 0),
        ],
        Kind::ConfigMaps => &[("Name", 0), ("Data", 0), ("Age", 0)],
        Kind::Secrets => &[("Name", 0), ("Type", 0), ("Data", 0), ("Age", 0)],
        Kind::ServiceAccounts => &[("Name", 0), ("Secrets", 0), ("Age", 0)],
        Kind::Namespaces => &[("Name", 0), ("Status", 0), ("Age", 0)],
        Kind::Claims => &[
            ("Name", 0),
            ("Status", 0),
            ("Volume", 0),
            ("Capacity", 0),
            ("Access Modes", 0),
            ("StorageClass", 0),
            ("VolumeAttributesClass", 0),
            ("Age", 0),
            ("VolumeMode", 1),
        ],
        Kind::Volumes => &[
            ("Name", 0),
            ("Capacity", 0),
            ("Access Modes", 0),
            ("Reclaim Policy", 0),
            ("Status", 0),
            ("Claim", 0),
            ("StorageClass", 0),
            ("VolumeAttributesClass", 0),
            ("Reason", 0),
            ("Age", 0),
            ("VolumeMode", 1),
        ],
        Kind::Budgets => &[
            ("Name", 0),
            ("Min Available", 0),
            ("Max Unavailable", 0),
            ("Allowed Disruptions", 0),
            ("Age", 0),
        ],
        Kind::Workloads(kind) => workload_columns::columns(kind),
    }
}

fn cells(kind: Kind, object: &Value, now: Timestamp) -> Vec<String> {
    match kind {
        Kind::Pods => {
            let pod: Pod = read_object(object).unwrap_or_default();
            let row = pod_columns::row(&pod, now);
            vec![
                row.name,
                row.ready,
                row.status,
                row.restarts,
                row.age,
                row.ip,
                row.node,
                row.gates,
            ]
        }
        Kind::Nodes => {
            let node: Node = read_object(object).unwrap_or_default();
            node_columns::row(&node, now).to_vec()
        }
        Kind::Events => {
            let event: Event = read_object(object).unwrap_or_default();
            event_columns::row(&event, now).to_vec()
        }
        Kind::Services => {
            let service: Service = read_object(object).unwrap_or_default();
            service_columns::service(&service, now).to_vec()
        }
        Kind::Endpoints => {
            let endpoints: Endpoints = read_object(object).unwrap_or_default();
            service_columns::endpoints(&endpoints, now).to_vec()
        }
        Kind::PriorityClasses => {
            let class: PriorityClass = read_object(object).unwrap_or_default();
            pod_columns::priority_class(&class, now).to_vec()
        }
        Kind::ConfigMaps => configuration_columns::config_map(object, now).to_vec(),
        Kind::Secrets => configuration_columns::secret(object, now).to_vec(),
        Kind::ServiceAccounts => configuration_columns::service_account(object, now).to_vec(),
        Kind::Namespaces => configuration_columns::namespace(object, now).to_vec(),
        Kind::Claims => configuration_columns::claim(object, now).to_vec(),
        Kind::Volumes => configuration_columns::volume(object, now).to_vec(),
        // There are none.
        Kind::Budgets => Vec::new(),
        Kind::Workloads(kind) => workload_columns::row(kind, object, now),
    }
}
