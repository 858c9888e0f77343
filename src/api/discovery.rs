//! API discovery: the version, and groups with their resources.

use serde_json::{Value, json};

use super::resource::RESOURCES;
use super::{build, node};
use crate::types::InOrder;

/// Returns the discovery document at this path, if it is one.
pub(crate) fn document(segments: &[&str]) -> Option<Value> {
    Some(match segments {
        ["version"] => version(),
        ["api"] => {
            json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] })
        }
        ["apis"] => {
            json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [apps(), batch(), policy(), scheduling()] })
        }
        ["apis", "apps"] => group(apps()),
        ["apis", "batch"] => group(batch()),
        ["apis", "policy"] => group(policy()),
        ["apis", "scheduling.k8s.io"] => group(scheduling()),
        ["apis", "apps", "v1"] => resource_list("apps/v1", Vec::new()),
        ["apis", "batch", "v1"] => resource_list("batch/v1", Vec::new()),
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
            "gitCommit": build::COMMIT, "gitTreeState": "", "buildDate": build::date(), "goVersion": "", "compiler": "",
            "platform": format!("linux/{arch}"), "coracleVersion": env!("CARGO_PKG_VERSION") })
}

/// The group of documents that stand for pods.
fn apps() -> Value {
    let version = json!({ "groupVersion": "apps/v1", "version": "v1" });
    json!({ "name": "apps", "versions": [version], "preferredVersion": version })
}

/// The group of Jobs.
fn batch() -> Value {
    let version = json!({ "groupVersion": "batch/v1", "version": "v1" });
    json!({ "name": "batch", "versions": [version], "preferredVersion": version })
}

/// The group of priority classes.
fn scheduling() -> Value {
    let version = json!({ "groupVersion": "scheduling.k8s.io/v1", "version": "v1" });
    json!({ "name": "scheduling.k8s.io", "versions": [version], "preferredVersion": version })
}

/// The group of evictions, and of PodDisruptionBudgets. kubectl looks for it before it evicts.
fn policy() -> Value {
    let version = json!({ "groupVersion": "policy/v1", "version": "v1" });
    json!({ "name": "policy", "versions": [version], "preferredVersion": version })
}

/// The resources of a group: those of the table, and `more`, by name.
fn resource_list(group: &str, more: Vec<Value>) -> Value {
    let of_group = RESOURCES.iter().filter(|resource| resource.group == group);
    let listed = of_group.map(|resource| {
        let short = Some(resource.short).filter(|short| !short.is_empty());
        json!({ "name": resource.plural, "singularName": resource.object.to_lowercase(),
                "kind": resource.object, "namespaced": resource.namespaced,
                "verbs": resource.verbs, "shortNames": short.as_slice(),
                "categories": resource.categories() })
    });
    let mut resources: Vec<Value> = listed.chain(more).collect();
    resources.order_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": resources })
}

/// What the core group has beside the table: subresources.
fn core() -> Vec<Value> {
    let mut eviction = subresource("pods/eviction", "Eviction", &["create"]);
    eviction["group"] = "policy".into();
    eviction["version"] = "v1".into();
    vec![
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The entry of a resource.
    fn entry(path: &[&str], name: &str) -> Value {
        let document = document(path).expect("a document");
        let all = document["resources"].as_array().expect("a list");
        let mut all = all.iter().filter(|resource| resource["name"] == name);
        all.next().expect("it is listed").clone()
    }

    #[test]
    fn kubectl_get_all_finds_what_it_shows_in_a_cluster() {
        let all = json!(["all"]);
        for (path, name, expected) in [
            (&["api", "v1"][..], "pods", &all),
            (&["api", "v1"], "services", &all),
            (&["api", "v1"], "replicationcontrollers", &all),
            (&["api", "v1"], "configmaps", &json!([])),
            (&["apis", "apps", "v1"], "deployments", &all),
            (&["apis", "apps", "v1"], "statefulsets", &all),
            (&["apis", "batch", "v1"], "cronjobs", &all),
        ] {
            assert_eq!(&entry(path, name)["categories"], expected, "{name}");
        }
    }

    #[test]
    fn no_group_is_without_resources() {
        let groups = document(&["apis"]).expect("a document");
        for group in groups["groups"].as_array().expect("a list") {
            let version = group["preferredVersion"]["groupVersion"].as_str();
            let path = format!("apis/{}", version.expect("a version"));
            let path: Vec<&str> = path.split('/').collect();
            let listed = document(&path).expect("a document");
            assert_ne!(listed["resources"], json!([]), "{path:?}");
        }
        let budgets = entry(&["apis", "policy", "v1"], "poddisruptionbudgets");
        assert_eq!(budgets["verbs"], json!(["get", "list", "watch"]));
    }
}
