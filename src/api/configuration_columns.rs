//! kubectl's columns of configuration documents, by its printer's rules; used for Tables of the API and by the command
//! line.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::pod_columns::age_of;

/// NAME, DATA, AGE.
pub fn config_map(map: &Value, now: Timestamp) -> [String; 3] {
    let count = entries(&map["data"]) + entries(&map["binaryData"]);
    [name(map), count.to_string(), age(map, now)]
}

/// NAME, TYPE, DATA, AGE.
pub fn secret(secret: &Value, now: Timestamp) -> [String; 4] {
    let kind = secret["type"].as_str().unwrap_or_default();
    let count = entries(&secret["data"]);
    [
        name(secret),
        kind.to_owned(),
        count.to_string(),
        age(secret, now),
    ]
}

/// NAME, SECRETS, AGE.
pub fn service_account(account: &Value, now: Timestamp) -> [String; 3] {
    let secrets = account["secrets"].as_array().map_or(0, Vec::len);
    [name(account), secrets.to_string(), age(account, now)]
}

/// NAME, STATUS, AGE.
pub fn namespace(namespace: &Value, now: Timestamp) -> [String; 3] {
    let phase = namespace["status"]["phase"].as_str().unwrap_or_default();
    [name(namespace), phase.to_owned(), age(namespace, now)]
}

/// NAME, STATUS, VOLUME, CAPACITY, ACCESS MODES, STORAGECLASS, VOLUMEATTRIBUTESCLASS, AGE and, in wide tables,
/// VOLUMEMODE.
pub fn claim(claim: &Value, now: Timestamp) -> [String; 9] {
    let (spec, status) = (&claim["spec"], &claim["status"]);
    [
        name(claim),
        text(&status["phase"]),
        text(&spec["volumeName"]),
        text(&status["capacity"]["storage"]),
        modes(&status["accessModes"]),
        text(&spec["storageClassName"]),
        "<unset>".to_owned(),
        age(claim, now),
        text(&spec["volumeMode"]),
    ]
}

/// NAME, CAPACITY, ACCESS MODES, RECLAIM POLICY, STATUS, CLAIM, STORAGECLASS, VOLUMEATTRIBUTESCLASS, REASON, AGE and,
/// in wide tables, VOLUMEMODE.
pub fn volume(volume: &Value, now: Timestamp) -> [String; 11] {
    let (spec, status) = (&volume["spec"], &volume["status"]);
    let claim = &spec["claimRef"];
    let claim = match claim["name"].as_str() {
        Some(name) => format!("{}/{name}", text(&claim["namespace"])),
        None => String::new(),
    };
    [
        name(volume),
        text(&spec["capacity"]["storage"]),
        modes(&spec["accessModes"]),
        text(&spec["persistentVolumeReclaimPolicy"]),
        text(&status["phase"]),
        claim,
        text(&spec["storageClassName"]),
        "<unset>".to_owned(),
        String::new(),
        age(volume, now),
        text(&spec["volumeMode"]),
    ]
}

/// Access modes in kubectl's abbreviations: `RWO,ROX`.
pub fn modes(list: &Value) -> String {
    let short = |mode: &Value| match mode.as_str() {
        Some("ReadWriteOnce") => "RWO",
        Some("ReadOnlyMany") => "ROX",
        Some("ReadWriteMany") => "RWX",
        Some("ReadWriteOncePod") => "RWOP",
        _ => "",
    };
    let list: Vec<&str> = list.as_array().into_iter().flatten().map(short).collect();
    list.join(",")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn entries(map: &Value) -> usize {
    map.as_object().map_or(0, serde_json::Map::len)
}

pub(super) fn name(object: &Value) -> String {
    text(&object["metadata"]["name"])
}

pub(super) fn age(object: &Value, now: Timestamp) -> String {
    let created = object["metadata"]["creationTimestamp"].as_str();
    age_of(created.and_then(|text| text.parse().ok()), now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_are_kubectls() {
        let now: Timestamp = "2026-01-01T00:02:05Z".parse().expect("a time");
        let meta = json!({ "name": "x", "creationTimestamp": "2026-01-01T00:00:00Z" });
        let map = json!({ "metadata": meta, "data": { "a": "1" }, "binaryData": { "b": "MQ==" } });
        assert_eq!(config_map(&map, now), ["x", "2", "2m5s"]);
        let tls = json!({ "metadata": meta, "type": "Opaque", "data": { "a": "" } });
        assert_eq!(secret(&tls, now), ["x", "Opaque", "1", "2m5s"]);
        let bare = json!({ "metadata": { "name": "x" }, "status": { "phase": "Active" } });
        assert_eq!(service_account(&bare, now), ["x", "0", "<unknown>"]);
        assert_eq!(namespace(&bare, now), ["x", "Active", "<unknown>"]);
    }
}
