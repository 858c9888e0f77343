//! Watches as informers use them: existing objects, the bookmark after them, and later changes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde_json::{Value, json};

use super::server_test::{Server, next, pair, pod};
use super::*;
use crate::spec::Severity;
use crate::types::Stamp;

const INITIAL: &str =
    "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

fn lines(server: &Server, path: &str) -> impl Iterator<Item = Value> + use<> {
    let body = server.client.send("GET", path, None).unwrap().body;
    body.lines()
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
}

/// One object of each kind.
fn furnish(store: &Store) {
    fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }
    let meta = json!({ "name": "web", "namespace": "default" });
    store.set_node(of(json!({ "metadata": { "name": "box" } })));
    store.upsert_pod(pod("web", "Running"));
    store.set_services(&[of::<Service>(json!({ "metadata": meta }))]);
    store.set_endpoints(&[of::<Endpoints>(json!({ "metadata": meta }))]);
    store.set_priority_classes(&[of::<PriorityClass>(
        json!({ "metadata": { "name": "p" }, "value": 1 }),
    )]);
    store.push_event(&event("Started"));
}

fn event(reason: &str) -> EventRecord {
    EventRecord {
        namespace: "default".into(),
        name: "web".into(),
        uid: "u".into(),
        kind: ObjectKind::Pod,
        field_path: String::new(),
        type_: Severity::Normal,
        reason: reason.into(),
        message: "it did".into(),
        annotations: BTreeMap::new(),
        at: Stamp::default(),
    }
}

#[test]
fn existing_objects_come_first_and_then_a_bookmark_of_the_right_kind() {
    let server = Server::start("initial");
    furnish(&server.store);
    for (path, kind, group) in [
        ("/api/v1/pods", "Pod", "v1"),
        ("/api/v1/namespaces/default/pods", "Pod", "v1"),
        ("/api/v1/nodes", "Node", "v1"),
        ("/api/v1/events", "Event", "v1"),
        ("/api/v1/services", "Service", "v1"),
        ("/api/v1/endpoints", "Endpoints", "v1"),
        (
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            "PriorityClass",
            "scheduling.k8s.io/v1",
        ),
    ] {
        for version in [
            "",
            "&resourceVersion=",
            "&resourceVersion=0",
            "&resourceVersion=7",
        ] {
            let mut lines = lines(&server, &format!("{path}?watch=1&{INITIAL}{version}"));
            let first = lines.next().unwrap();
            assert_eq!(first["type"], "ADDED", "{path}{version}: {first}");
            let mark = lines.next().unwrap();
            assert_eq!(mark["type"], "BOOKMARK", "{path}{version}");
            let object = &mark["object"];
            assert_eq!(
                (&object["kind"], &object["apiVersion"]),
                (&json!(kind), &json!(group))
            );
            let metadata = &object["metadata"];
            assert_eq!(
                metadata["annotations"],
                json!({ "k8s.io/initial-events-end": "true" })
            );
            let version: u64 = metadata["resourceVersion"]
                .as_str()
                .unwrap()
                .parse()
                .unwrap();
            let of_first = first["object"]["metadata"]["resourceVersion"]
                .as_str()
                .unwrap();
            assert!(version >= of_first.parse().unwrap());
        }
    }
    // No matching object is a beginning, too, and later changes are reported.
    let path = format!("/api/v1/pods?watch=1&{INITIAL}&labelSelector=app%3Ddb");
    let mut lines = lines(&server, &path);
    assert_eq!(lines.next().unwrap()["type"], "BOOKMARK");
    server.store.upsert_pod(pod("other", "Running"));
    server.store.upsert_pod(pod("db", "Running"));
    let added = lines.next().unwrap();
    assert_eq!(
        (&added["type"], &added["object"]["metadata"]["name"]),
        (&json!("ADDED"), &json!("db"))
    );
}

#[test]
fn a_watch_in_tables_marks_its_beginning_in_a_table() {
    let server = Server::start("initial-table");
    furnish(&server.store);
    for (include, kind) in [
        ("", json!("PartialObjectMetadata")),
        ("&includeObject=Object", json!("Pod")),
        ("&includeObject=None", Value::Null),
    ] {
        let mut stream = UnixStream::connect(&server.client.socket).unwrap();
        let head = format!(
            "GET /api/v1/pods?watch=1&{INITIAL}{include} HTTP/1.1\r\nHost: x\r\n\
             Accept: application/json;as=Table;v=v1;g=meta.k8s.io\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let lines = BufReader::new(stream).lines().map(Result::unwrap);
        // The other lines are the answer's head and chunk sizes.
        let mut lines = lines.filter(|line| line.starts_with('{'));
        let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap()).unwrap() };
        let (added, mark) = (next(), next());
        assert_eq!(
            (&added["type"], &mark["type"]),
            (&json!("ADDED"), &json!("BOOKMARK"))
        );
        for event in [&added, &mark] {
            assert_eq!(event["object"]["kind"], "Table");
            assert_eq!(
                event["object"]["rows"][0]["object"]["kind"], kind,
                "{include}"
            );
        }
        assert!(mark["object"]["metadata"]["resourceVersion"].is_string());
        if kind != Value::Null {
            let annotations = &mark["object"]["rows"][0]["object"]["metadata"]["annotations"];
            assert_eq!(annotations["k8s.io/initial-events-end"], "true");
        }
    }
}

#[test]
fn a_client_that_asks_for_metadata_gets_nothing_else() {
    let server = Server::start("partial");
    server.store.upsert_pod(pod("web", "Running"));
    let ask = |path: &str, as_: &str| {
        let mut stream = UnixStream::connect(&server.client.socket).unwrap();
        let head = format!(
            "GET /api/v1/{path} HTTP/1.0\r\n\
             Accept: application/json;as={as_};g=meta.k8s.io;v=v1\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let lines = BufReader::new(stream).lines().map(Result::unwrap);
        let mut lines = lines.filter(|line| line.starts_with('{'));
        move || -> Value { serde_json::from_str(&lines.next().unwrap()).unwrap() }
    };
    let one = "PartialObjectMetadata";
    let is_partial = |object: &Value| {
        assert_eq!(object["kind"], one);
        assert_eq!(object["apiVersion"], "meta.k8s.io/v1");
        assert_eq!(object.as_object().unwrap().len(), 3, "{object}");
    };
    let list = ask("pods", "PartialObjectMetadataList")();
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert!(list["metadata"]["resourceVersion"].is_string());
    is_partial(&list["items"][0]);
    assert_eq!(list["items"][0]["metadata"]["name"], "web");
    is_partial(&ask("namespaces/default/pods/web", one)());
    let mut watch = ask(&format!("pods?watch=1&{INITIAL}"), one);
    for what in ["ADDED", "BOOKMARK"] {
        let event = watch();
        assert_eq!(event["type"], what);
        is_partial(&event["object"]);
    }
}

#[test]
fn without_initial_events_only_later_changes_are_reported() {
    let server = Server::start("no-initial");
    server.store.upsert_pod(pod("old", "Running"));
    let path = "/api/v1/pods?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
    let mut lines = server.client.send("GET", path, None).unwrap().body.lines();
    server.store.upsert_pod(pod("new", "Running"));
    server.store.upsert_pod(pod("old", "Failed"));
    let seen = [next(&mut lines), next(&mut lines)];
    // The watch may have begun between the two.
    assert_eq!(seen[1], pair("MODIFIED", "old"));
    assert_eq!(seen[0], pair("ADDED", "new"));
}

#[test]
fn a_version_from_the_future_is_too_old() {
    let server = Server::start("future");
    let future = server.store.version() + 1_000_000_000;
    for options in [INITIAL, ""] {
        let path = format!("/api/v1/pods?watch=1&{options}&resourceVersion={future}");
        let error = lines(&server, &path).next().unwrap();
        assert_eq!(
            (&error["type"], &error["object"]["code"]),
            (&json!("ERROR"), &json!(410))
        );
    }
    let refused = server.refusal("GET", &format!("/api/v1/pods?resourceVersion={future}"));
    assert!(refused.contains("Too large resource version"), "{refused}");
    let refused = server.refusal("GET", "/api/v1/pods?watch=1&sendInitialEvents=true");
    assert!(
        refused.contains("ListOptions.meta.k8s.io \"\" is invalid"),
        "{refused}"
    );
}

#[test]
fn an_object_that_stopped_matching_since_the_list_is_deleted() {
    let server = Server::start("since-list");
    server.store.upsert_pod(pod("web", "Running"));
    server.store.upsert_pod(pod("db", "Running"));
    let filter = "fieldSelector=status.phase%3DRunning";
    let list = server.get(&format!("/api/v1/pods?{filter}"));
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    server.store.upsert_pod(pod("web", "Failed"));
    let path = format!("/api/v1/pods?watch=1&{filter}&resourceVersion={version}");
    let mut lines = server.client.send("GET", &path, None).unwrap().body.lines();
    assert_eq!(next(&mut lines), pair("DELETED", "web"));
    server.store.upsert_pod(pod("db", "Failed"));
    assert_eq!(next(&mut lines), pair("DELETED", "db"));
    server.store.upsert_pod(pod("web", "Pending"));
    server.store.upsert_pod(pod("web", "Running"));
    assert_eq!(next(&mut lines), pair("ADDED", "web"));
}

#[test]
fn an_object_that_begins_to_match_is_added() {
    let server = Server::start("begins");
    server.store.upsert_pod(pod("web", "Pending"));
    server.store.upsert_pod(pod("db", "Running"));
    let path = "/api/v1/pods?watch=1&fieldSelector=status.phase%3DRunning";
    let mut lines = server.client.send("GET", path, None).unwrap().body.lines();
    assert_eq!(next(&mut lines), pair("ADDED", "db"));
    for (phase, what) in [
        ("Running", "ADDED"),
        ("Failed", "DELETED"),
        ("Running", "ADDED"),
    ] {
        server.store.upsert_pod(pod("web", phase));
        assert_eq!(next(&mut lines), pair(what, "web"));
    }
    let mut other = pod("web", "Running");
    other.metadata.labels = None;
    server.store.upsert_pod(other);
    assert_eq!(next(&mut lines), pair("MODIFIED", "web"));
}

#[test]
fn the_watch_of_one_object_says_nothing_of_others() {
    let server = Server::start("one-object");
    server.store.upsert_pod(pod("web", "Running"));
    server.store.upsert_pod(pod("db", "Running"));
    for filter in [
        "fieldSelector=metadata.name%3Dweb",
        "fieldSelector=metadata.name!%3Ddb,metadata.namespace%3Ddefault",
    ] {
        let list = server.get(&format!("/api/v1/pods?{filter}"));
        let version = list["metadata"]["resourceVersion"].as_str().unwrap();
        server.store.upsert_pod(pod("db", "Failed"));
        server.store.upsert_pod(pod("web", "Failed"));
        let path = format!("/api/v1/pods?watch=1&{filter}&resourceVersion={version}");
        let mut lines = server.client.send("GET", &path, None).unwrap().body.lines();
        assert_eq!(next(&mut lines), pair("MODIFIED", "web"));
        server.store.upsert_pod(pod("db", "Running"));
        server.store.upsert_pod(pod("web", "Running"));
        assert_eq!(next(&mut lines), pair("MODIFIED", "web"));
    }
}

#[test]
fn a_deletion_is_reported_with_the_version_of_the_deletion() {
    let server = Server::start("deletion");
    server.store.upsert_pod(pod("web", "Running"));
    let version = |object: &Value| {
        let version = object["metadata"]["resourceVersion"].as_str().unwrap();
        version.parse::<u64>().unwrap()
    };
    let mut seen = lines(&server, "/api/v1/pods?watch=1");
    let added = seen.next().unwrap();
    server.store.remove_pod("default", "web", "uid-web");
    let now = server.store.version();
    let deleted = seen.next().unwrap();
    assert_eq!(deleted["type"], "DELETED");
    assert_eq!(deleted["object"]["metadata"]["uid"], "uid-web");
    assert_eq!(version(&deleted["object"]), now);
    assert!(version(&added["object"]) < now);

    // A pod that is replaced by one of the same name is deleted first.
    server.store.upsert_pod(pod("web", "Running"));
    let added = seen.next().unwrap();
    let mut other = pod("web", "Running");
    other.metadata.uid = Some("other".into());
    server.store.upsert_pod(other);
    let (deleted, next) = (seen.next().unwrap(), seen.next().unwrap());
    assert_eq!(
        (&deleted["type"], &next["type"]),
        (&json!("DELETED"), &json!("ADDED"))
    );
    let versions = [&added, &deleted, &next].map(|seen| version(&seen["object"]));
    assert!(
        versions.is_sorted_by(|one, other| one < other),
        "{versions:?}"
    );

    // A watch from the version of a deletion begins after it.
    server.store.remove_pod("default", "web", "other");
    let gone = version(&seen.next().unwrap()["object"]);
    server.store.upsert_pod(pod("new", "Running"));
    let path = format!("/api/v1/pods?watch=1&resourceVersion={gone}");
    let next = lines(&server, &path).next().unwrap();
    assert_eq!(
        (&next["type"], &next["object"]["metadata"]["name"]),
        (&json!("ADDED"), &json!("new"))
    );
}

#[test]
fn a_watch_ends_in_time_with_the_version_it_got_to() {
    let server = Server::start("end");
    server.store.upsert_pod(pod("web", "Running"));
    let path = "/api/v1/pods?watch=1&timeoutSeconds=1";
    assert_eq!(lines(&server, path).count(), 1);
    let all: Vec<Value> = lines(&server, &format!("{path}&allowWatchBookmarks=true")).collect();
    assert_eq!(all.len(), 2);
    assert_eq!(all[1]["type"], "BOOKMARK");
    assert_eq!(all[1]["object"]["metadata"]["annotations"], Value::Null);
    let version = all[1]["object"]["metadata"]["resourceVersion"]
        .as_str()
        .unwrap();
    assert_eq!(version, server.store.version().to_string());
}
