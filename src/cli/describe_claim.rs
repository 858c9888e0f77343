//! `coracle describe pvc` and `describe pv`: laid out as kubectl's.

use k8s_openapi::api::core::v1::Event;
use serde_json::Value;

use super::args::DescribeResource;
use super::client::Client;
use super::describe_node::event_table;
use super::error::Result;
use super::put;
use super::sheet::Sheet;
use crate::api::configuration_columns::modes;
use crate::api::encode;
use crate::spec::read_object;
use crate::sys::clock;
use crate::types::InOrder;

pub(super) fn run(
    client: &Client,
    kind: DescribeResource,
    namespace: &str,
    names: &[String],
) -> Result<()> {
    for (index, name) in names.iter().enumerate() {
        let (ns, path) = (encode(namespace), encode(name));
        let page = match kind {
            DescribeResource::Claim => {
                let place = format!("/api/v1/namespaces/{ns}");
                let claim = client.get(&format!("{place}/persistentvolumeclaims/{path}"))?;
                let pods = client.get(&format!("{place}/pods"))?;
                let events = events(client, &place, "PersistentVolumeClaim", name)?;
                claim_page(&claim, users(&pods, name), &events)
            }
            _ => {
                let volume = client.get(&format!("/api/v1/persistentvolumes/{path}"))?;
                let events = events(client, "/api/v1", "PersistentVolume", name)?;
                volume_page(&volume, &events)
            }
        };
        let gap = if index > 0 { "\n\n" } else { "" };
        put(format!("{gap}{page}").as_bytes())?;
    }
    Ok(())
}

/// The events about an object in this place of the API.
pub(super) fn events(client: &Client, place: &str, kind: &str, name: &str) -> Result<Vec<Event>> {
    let field = format!("involvedObject.kind={kind},involvedObject.name={name}");
    let found = client.get(&format!("{place}/events?fieldSelector={}", encode(&field)))?;
    let items = found["items"].as_array().into_iter().flatten();
    Ok(items.filter_map(read_object).collect())
}

/// The names of the pods with this claim, sorted.
fn users(pods: &Value, claim: &str) -> Vec<String> {
    let pods = pods["items"].as_array().into_iter().flatten();
    let uses = |pod: &&Value| {
        let volumes = pod["spec"]["volumes"].as_array();
        let mut volumes = volumes.into_iter().flatten();
        volumes.any(|volume| volume["persistentVolumeClaim"]["claimName"] == *claim)
    };
    let mut names: Vec<String> = pods
        .filter(uses)
        .map(|pod| text(&pod["metadata"]["name"]))
        .collect();
    names.order();
    names
}

fn claim_page(claim: &Value, users: Vec<String>, events: &[Event]) -> String {
    let (metadata, spec, status) = (&claim["metadata"], &claim["spec"], &claim["status"]);
    let mut page = Sheet::default();
    page.line(0, ["Name:", &text(&metadata["name"])]);
    page.line(0, ["Namespace:", &text(&metadata["namespace"])]);
    page.line(0, ["StorageClass:", &text(&spec["storageClassName"])]);
    page.line(0, ["Status:", &text(&status["phase"])]);
    page.line(0, ["Volume:", &text(&spec["volumeName"])]);
    page.list("Labels:", pairs(&metadata["labels"], "="));
    page.list("Annotations:", pairs(&metadata["annotations"], ": "));
    page.line(0, ["Finalizers:", "[]"]);
    page.line(0, ["Capacity:", &text(&status["capacity"]["storage"])]);
    page.line(0, ["Access Modes:", &modes(&status["accessModes"])]);
    page.line(0, ["VolumeMode:", &text(&spec["volumeMode"])]);
    page.list("Used By:", users);
    event_table(&mut page, events, clock::timestamp());
    page.render()
}

fn volume_page(volume: &Value, events: &[Event]) -> String {
    let (metadata, spec, status) = (&volume["metadata"], &volume["spec"], &volume["status"]);
    let claim = match spec["claimRef"]["name"].as_str() {
        Some(name) => format!("{}/{name}", text(&spec["claimRef"]["namespace"])),
        None => String::new(),
    };
    let mut page = Sheet::default();
    page.line(0, ["Name:", &text(&metadata["name"])]);
    page.list("Labels:", pairs(&metadata["labels"], "="));
    page.list("Annotations:", pairs(&metadata["annotations"], ": "));
    page.line(0, ["Finalizers:", "[]"]);
    page.line(0, ["StorageClass:", &text(&spec["storageClassName"])]);
    page.line(0, ["Status:", &text(&status["phase"])]);
    page.line(0, ["Claim:", &claim]);
    let policy = text(&spec["persistentVolumeReclaimPolicy"]);
    page.line(0, ["Reclaim Policy:", &policy]);
    page.line(0, ["Access Modes:", &modes(&spec["accessModes"])]);
    page.line(0, ["VolumeMode:", &text(&spec["volumeMode"])]);
    page.line(0, ["Capacity:", &text(&spec["capacity"]["storage"])]);
    node_affinity(&mut page, &spec["nodeAffinity"]["required"]);
    page.line(0, ["Message:", &text(&status["message"])]);
    page.line(0, ["Source:"]);
    let (local, host) = (&spec["local"], &spec["hostPath"]);
    if local.is_object() {
        let kind = "LocalVolume (a persistent volume backed by local storage on a node)";
        page.line(2, ["Type:", kind]);
        page.line(2, ["Path:", &text(&local["path"])]);
    } else {
        page.line(2, ["Type:", "HostPath (bare host directory volume)"]);
        page.line(2, ["Path:", &text(&host["path"])]);
        let kind = host["type"].as_str().unwrap_or("<none>");
        page.line(2, ["HostPathType:", kind]);
    }
    event_table(&mut page, events, clock::timestamp());
    page.render()
}

/// The terms of a volume's node affinity: one requirement a line.
fn node_affinity(page: &mut Sheet, required: &Value) {
    let terms = required["nodeSelectorTerms"].as_array();
    let Some(terms) = terms.filter(|terms| !terms.is_empty()) else {
        page.line(0, ["Node Affinity:", "<none>"]);
        return;
    };
    page.line(0, ["Node Affinity:", ""]);
    page.line(1, ["Required Terms:", ""]);
    for (index, term) in terms.iter().enumerate() {
        let title = format!("Term {index}:");
        let rules = term["matchExpressions"].as_array().into_iter().flatten();
        let rules: Vec<String> = rules.map(requirement).collect();
        let none = || "<none>".to_owned();
        let mut rules = rules.into_iter();
        page.line(2, [&title, &rules.next().unwrap_or_else(none)]);
        rules.for_each(|rule| page.line(2, ["", &rule]));
    }
}

/// `kubernetes.io/hostname in [box]`.
fn requirement(rule: &Value) -> String {
    let values = rule["values"].as_array().into_iter().flatten().map(text);
    let values: Vec<String> = values.collect();
    let operator = text(&rule["operator"]).to_lowercase();
    let key = text(&rule["key"]);
    match values.is_empty() {
        true => format!("{key} {operator}"),
        false => format!("{key} {operator} [{}]", values.join(", ")),
    }
}

fn pairs(map: &Value, between: &str) -> Vec<String> {
    let entries = map.as_object().into_iter().flatten();
    entries
        .map(|(key, value)| format!("{key}{between}{}", text(value)))
        .collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_claim_is_described_as_by_kubectl() {
        let claim = json!({
            "metadata": { "name": "data", "namespace": "shop", "labels": { "a": "1", "b": "2\nStatus: Lost" } },
            "spec": { "volumeName": "pvc-shop-data", "volumeMode": "Filesystem", "storageClassName": "fast" },
            "status": { "phase": "Bound", "accessModes": ["ReadWriteOncePod"], "capacity": { "storage": "1Gi" } },
        });
        let pods = json!({ "items": [
            { "metadata": { "name": "web" }, "spec": { "volumes": [{ "persistentVolumeClaim": { "claimName": "data" } }] } },
            { "metadata": { "name": "none" }, "spec": {} },
            { "metadata": { "name": "db" }, "spec": { "volumes": [
                { "emptyDir": {} }, { "persistentVolumeClaim": { "claimName": "data" } }] } },
        ] });
        assert_eq!(
            claim_page(&claim, users(&pods, "data"), &[]),
            "Name:          data\n\
             Namespace:     shop\n\
             StorageClass:  fast\n\
             Status:        Bound\n\
             Volume:        pvc-shop-data\n\
             Labels:        a=1\n\
             \x20              b=2\\nStatus: Lost\n\
             Annotations:   <none>\n\
             Finalizers:    []\n\
             Capacity:      1Gi\n\
             Access Modes:  RWOP\n\
             VolumeMode:    Filesystem\n\
             Used By:       db\n\
             \x20              web\n\
             Events:        <none>\n"
        );
        let pending = json!({ "metadata": { "name": "d", "namespace": "n" }, "status": { "phase": "Pending" } });
        let page = claim_page(&pending, Vec::new(), &[]);
        assert!(
            page.contains("\nCapacity:\nAccess Modes:\nVolumeMode:\nUsed By:       <none>\n"),
            "{page}"
        );
    }

    #[test]
    fn a_volume_is_described_as_by_kubectl() {
        let mut volume = json!({
            "metadata": { "name": "pv" },
            "spec": {
                "capacity": { "storage": "10Gi" }, "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
                "persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem",
                "hostPath": { "path": "/mnt/data" }, "claimRef": { "namespace": "shop", "name": "data" },
            },
            "status": { "phase": "Bound" },
        });
        assert_eq!(
            volume_page(&volume, &[]),
            "Name:            pv\n\
             Labels:          <none>\n\
             Annotations:     <none>\n\
             Finalizers:      []\n\
             StorageClass:\n\
             Status:          Bound\n\
             Claim:           shop/data\n\
             Reclaim Policy:  Retain\n\
             Access Modes:    RWO,ROX\n\
             VolumeMode:      Filesystem\n\
             Capacity:        10Gi\n\
             Node Affinity:   <none>\n\
             Message:\n\
             Source:\n\
             \x20   Type:          HostPath (bare host directory volume)\n\
             \x20   Path:          /mnt/data\n\
             \x20   HostPathType:  <none>\n\
             Events:            <none>\n"
        );
        volume["spec"]["hostPath"] = Value::Null;
        volume["spec"]["local"] = json!({ "path": "/disks/a" });
        volume["spec"]["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "kubernetes.io/hostname", "operator": "In", "values": ["box", "bow"] },
            { "key": "ssd", "operator": "Exists" }] }] } });
        let page = volume_page(&volume, &[]);
        assert!(
            page.contains(
                "Capacity:          10Gi\nNode Affinity:\n  Required Terms:\n    Term 0:        kubernetes.io/hostname in [box, bow]\n                   ssd exists\nMessage:\n"
            ),
            "{page}"
        );
        assert!(page.contains("    Type:  LocalVolume (a persistent volume backed by local storage on a node)\n    Path:  /disks/a\n"), "{page}");
    }
}
