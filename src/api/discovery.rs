//! API discovery: the version, groups with their resources, and namespaces.

use serde_json::{Value, json};

use super::node;
use super::resource::RESOURCES;
use super::server::Context;
use super::store::Kind;

/// Returns the discovery document at this path, if it is one.
pub(crate) fn document(segments: &[&str]) -> Option<Value> {
    Some(match segments {
        ["version"] => version(),
        ["api"] => {
            json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] })
        }
        ["apis"] => {
            json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [policy(), scheduling()] })
        }
        ["apis", "policy"] => group(policy()),
        ["apis", "scheduling.k8s.io"] => group(scheduling()),
        ["apis", "policy", "v1"] => resource_list("policy/v1", Vec::new()),
        ["apis", "scheduling.k8s.io", "v1"] => resource_list("scheduling.k8s.io/v1", Vec::new()),
        ["api", "v1"] => resource_list("v1", core()),
        _ => return None,
    })
}

fn group(mut group: Value) -> Value {
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    group
}

fn version() -> Value {
    let arch = node::architecture();
    json!({ "major": "1", "minor": "36", "gitVersion": node::version(),
            "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "",
            "platform": format!("linux/{arch}"), "coracleVersion": env!("CARGO_PKG_VERSION") })
}

/// The group of priority classes.
fn scheduling() -> Value {
    let version = json!({ "groupVersion": "scheduling.k8s.io/v1", "version": "v1" });
    json!({ "name": "scheduling.k8s.io", "versions": [version], "preferredVersion": version })
}

/// The group of evictions. kubectl looks for it before it evicts.
fn policy() -> Value {
    let version = json!({ "groupVersion": "policy/v1", "version": "v1" });
    json!({ "name": "policy", "versions": [version], "preferredVersion": version })
}

/// The resources of a group: those of the table, and `more`, by name.
fn resource_list(group: &str, more: Vec<Value>) -> Value {
    let of_group = RESOURCES.iter().filter(|resource| resource.group == group);
    let listed = of_group.map(|resource| {
        json!({ "name": resource.plural, "singularName": resource.object.to_lowercase(),
                "kind": resource.object, "namespaced": resource.namespaced,
                "verbs": resource.verbs, "shortNames": [resource.short] })
    });
    let mut resources: Vec<Value> = listed.chain(more).collect();
    resources.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": resources })
}

/// What the core group has beside the table: namespaces, which are made of the objects in them, and subresources.
fn core() -> Vec<Value> {
    let mut eviction = subresource("pods/eviction", "Eviction", &["create"]);
    eviction["group"] = "policy".into();
    eviction["version"] = "v1".into();
    vec![
        json!({ "name": "namespaces", "singularName": "namespace", "kind": "Namespace", "namespaced": false,
                "verbs": ["get", "list"], "shortNames": ["ns"] }),
        eviction,
        subresource(
            "pods/ephemeralcontainers",
            "Pod",
            &["get", "patch", "update"],
        ),
        subresource("pods/log", "Pod", &["get"]),
        subresource("pods/status", "Pod", &["get", "patch"]),
    ]
}

fn subresource(name: &str, kind: &str, verbs: &[&str]) -> Value {
    json!({ "name": name, "singularName": "", "kind": kind, "namespaced": true, "verbs": verbs, "shortNames": [] })
}

/// The list of namespaces: those with objects, and `default`.
pub(crate) fn namespaces(context: &Context) -> Value {
    let items: Vec<Value> = namespace_names(context)
        .iter()
        .map(|name| namespace_object(name))
        .collect();
    let version = context.store.list(Kind::Nodes).0.to_string();
    json!({ "kind": "NamespaceList", "apiVersion": "v1", "metadata": { "resourceVersion": version }, "items": items })
}

/// A namespace with objects, or `default`.
pub(crate) fn namespace(context: &Context, name: &str) -> Option<Value> {
    let known = namespace_names(context).iter().any(|known| known == name);
    known.then(|| namespace_object(name))
}

fn namespace_names(context: &Context) -> Vec<String> {
    let (_, pods) = context.store.list(Kind::Pods);
    let (_, services) = context.store.list(Kind::Services);
    let all = pods.iter().chain(&services);
    let mut names: Vec<String> = all.map(|object| object.key.0.clone()).collect();
    names.push("default".to_owned());
    names.sort();
    names.dedup();
    names
}

fn namespace_object(name: &str) -> Value {
    json!({ "kind": "Namespace", "apiVersion": "v1",
            "metadata": { "name": name, "labels": { "kubernetes.io/metadata.name": name } },
            "spec": { "finalizers": [] }, "status": { "phase": "Active" } })
}
