//! `dryRun=All`, which must change nothing wherever it is given, and patches of fields that cannot be patched.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use super::server_test::{Server, pod};
use super::*;

/// Sends a raw request; returns the answer's status and body.
fn request(server: &Server, line: &str, kind: &str, body: &[u8]) -> (u16, Value) {
    let mut stream = UnixStream::connect(&server.client.socket).unwrap();
    let head = format!(
        "{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_default())
}

fn furnished(name: &str) -> Server {
    let server = Server::start(name);
    server.store.upsert_pod(pod("web", "Running"));
    let node = json!({ "metadata": { "name": "box", "labels": { "a": "b" } } });
    server.store.set_node(serde_json::from_value(node).unwrap());
    server
}

const POD: &str = "/api/v1/namespaces/default/pods/web";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const JSON: &str = "application/json";

#[test]
fn a_dry_run_shows_the_outcome_and_sends_the_node_nothing() {
    let server = furnished("dry-run");
    let unknown =
        b"k8s\0\x0a\x13\x0a\x02v1\x12\x0dDeleteOptions\x12\x05\x2a\x03All\x1a\x00\x22\x00";
    let grace = json!({ "gracePeriodSeconds": 7, "dryRun": ["All"] }).to_string();
    let gone = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_string();
    for (line, kind, body) in [
        (format!("DELETE {POD}?dryRun=All"), JSON, &b""[..]),
        (format!("DELETE {POD}"), JSON, grace.as_bytes()),
        (format!("DELETE {POD}"), PROTOBUF, &unknown[..]),
    ] {
        let (status, shown) = request(&server, &line, kind, body);
        assert_eq!(
            (status, gone(&shown)),
            (200, true),
            "{line} {kind}: {shown}"
        );
    }
    let (status, shown) = request(&server, &format!("DELETE {POD}"), JSON, grace.as_bytes());
    assert_eq!(
        (status, &shown["metadata"]["deletionGracePeriodSeconds"]),
        (200, &json!(7))
    );

    let evict = format!("POST {POD}/eviction");
    let eviction = |name: &str, dry: &[&str]| {
        json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": name, "namespace": "default" },
                "deleteOptions": { "dryRun": dry } })
        .to_string()
    };
    let part = |tag: &str, part: &str| {
        let length = char::from(u8::try_from(part.len()).unwrap());
        format!("{tag}{length}{part}")
    };
    let message = |name: &str, dry: &str| {
        let metadata = part("\x0a", &part("\x0a", name));
        let options = part("\x12", &part("\x2a", dry));
        let meta = part("\x0a", "policy/v1") + &part("\x12", "Eviction");
        let message = part("\x12", &(metadata + &options));
        format!("k8s\0{}{message}", part("\x0a", &meta))
    };
    for (line, body, expected) in [
        (evict.clone(), message("web", "All"), 201),
        (format!("{evict}?dryRun=All"), message("web", "All"), 201),
        (evict.clone(), message("web", "Some"), 422),
        (evict.clone(), message("other", "All"), 400),
        (
            evict.clone(),
            message("web", "All").replace("Eviction", "Evacuate"),
            400,
        ),
        (evict.clone(), "k8s\0\u{12}\u{3}a".to_owned(), 415),
    ] {
        let (status, answer) = request(&server, &line, PROTOBUF, body.as_bytes());
        assert_eq!(status, expected, "{line} {body:?}: {answer}");
    }
    let (status, answer) = request(
        &server,
        &format!("POST {POD}/eviction"),
        "application/cbor",
        b"\xa0",
    );
    assert_eq!(status, 415, "{answer}");
    for (line, body, expected) in [
        (evict.clone(), eviction("web", &["All"]), 201),
        (format!("{evict}?dryRun=All"), eviction("web", &[]), 201),
        (evict.clone(), eviction("web", &["Some"]), 422),
        (evict.clone(), eviction("other", &["All"]), 400),
        (evict.clone(), "[]".to_owned(), 400),
        (evict.clone(), String::new(), 400),
        (
            format!("POST {POD}2/eviction"),
            eviction("web2", &["All"]),
            404,
        ),
    ] {
        let (status, answer) = request(&server, &line, JSON, body.as_bytes());
        assert_eq!(status, expected, "{line} {body}: {answer}");
    }

    let cordon = br#"{"spec":{"unschedulable":true}}"#;
    let (status, node) = request(&server, "PATCH /api/v1/nodes/box?dryRun=All", MERGE, cordon);
    assert_eq!(
        (status, &node["spec"]["unschedulable"]),
        (200, &json!(true))
    );

    let condition = br#"{"status":{"conditions":[{"type":"a/b","status":"True"}]}}"#;
    let line = format!("PATCH {POD}/status?dryRun=All&fieldManager=me");
    let (status, shown) = request(&server, &line, STRATEGIC, condition);
    assert_eq!(
        (status, &shown["status"]["conditions"][0]["type"]),
        (200, &json!("a/b"))
    );
    assert!(server.commands.is_empty(), "nothing is asked of the node");
    let list = server.get("/api/v1/pods");
    assert_eq!(list["items"][0]["status"]["conditions"], Value::Null);
    assert!(!gone(&list["items"][0]));

    let commands = server.commands.clone();
    let node = std::thread::spawn(move || match commands.recv_blocking().unwrap() {
        Command::SetEphemeral { dry_run, reply, .. } => {
            reply.try_send(Ok(())).unwrap();
            dry_run
        }
        other => panic!("{other:?}"),
    });
    let debugger = br#"{"spec":{"ephemeralContainers":[{"name":"d","image":"i"}]}}"#;
    let line = format!("PATCH {POD}/ephemeralcontainers?dryRun=All");
    let (status, shown) = request(&server, &line, STRATEGIC, debugger);
    assert_eq!(
        (status, &shown["spec"]["ephemeralContainers"][0]["name"]),
        (200, &json!("d"))
    );
    assert!(
        node.join().unwrap(),
        "the node knows that it is a rehearsal"
    );
}

#[test]
fn a_dry_run_is_refused_where_impossible_or_unknown() {
    let server = furnished("no-rehearsal");
    for line in [
        "POST /coracle/v1/shutdown",
        "DELETE /coracle/v1/shutdown",
        "POST /coracle/v1/images/import",
        "POST /coracle/v1/images/prune",
        "POST /coracle/v1/images/tag",
        "POST /coracle/v1/namespaces/default/pods/web/retry",
        "POST /api/v1/namespaces/default/pods/web/exec",
        "GET /api/v1/namespaces/default/pods/web/exec",
        "POST /api/v1/namespaces/default/pods/web/attach",
    ] {
        let (status, error) = request(&server, &format!("{line}?dryRun=All"), JSON, b"{}");
        assert_eq!(status, 400, "{line}");
        let text = error["message"].as_str().unwrap();
        assert!(text.contains("cannot be rehearsed"), "{line}: {text}");
        let (status, _) = request(&server, &format!("{line}?dryRun=Some"), JSON, b"{}");
        assert_eq!(status, 422, "{line}");
    }
    let image = "DELETE /coracle/v1/images?name=x&dryRun=All";
    assert_eq!(request(&server, image, JSON, b"").0, 400);
    for (line, options) in [
        (format!("DELETE {POD}"), "DeleteOptions"),
        (format!("PATCH {POD}/status"), "PatchOptions"),
        (format!("PUT {POD}/ephemeralcontainers"), "UpdateOptions"),
        ("PATCH /api/v1/nodes/box".to_owned(), "PatchOptions"),
        ("POST /coracle/v1/images/prune".to_owned(), "CreateOptions"),
    ] {
        for (query, said) in [
            ("dryRun=all", "all"),
            ("dryRun=", ""),
            ("dryRun=All&dryRun=x", "x"),
        ] {
            let (status, error) = request(&server, &format!("{line}?{query}"), MERGE, b"{}");
            let text = format!(
                "{options}.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: \"{said}\": supported values: \"All\""
            );
            assert_eq!(
                (status, &error["message"]),
                (422, &json!(text)),
                "{line}?{query}"
            );
        }
    }
    assert!(server.commands.is_empty(), "nothing is asked of the node");
}

#[test]
fn a_deletion_checks_its_preconditions() {
    let server = furnished("preconditions");
    let version = server.get(POD)["metadata"]["resourceVersion"].clone();
    for (preconditions, status) in [
        (json!({ "uid": "uid-web" }), 200),
        (json!({ "uid": "uid-web", "resourceVersion": version }), 200),
        (json!({ "uid": "another" }), 409),
        (json!({ "resourceVersion": "1" }), 409),
    ] {
        let body = json!({ "preconditions": preconditions, "dryRun": ["All"] }).to_string();
        let answer = request(&server, &format!("DELETE {POD}"), JSON, body.as_bytes());
        assert_eq!(answer.0, status, "{preconditions}: {}", answer.1);
    }
}

#[test]
fn a_patch_of_what_cannot_be_patched_is_refused_by_name() {
    let server = furnished("patches");
    let put = json!({ "metadata": { "name": "web" }, "spec": { "restartPolicy": "Never" } });
    let status = format!("{POD}/status");
    let added = format!("{POD}/ephemeralcontainers");
    for (line, kind, body, field) in [
        (
            "PATCH /api/v1/nodes/box".to_owned(),
            MERGE,
            json!({ "metadata": { "labels": { "x": "y" } } }),
            "metadata.labels.x",
        ),
        (
            "PATCH /api/v1/nodes/box?dryRun=All".to_owned(),
            STRATEGIC,
            json!({ "spec": { "taints": [{ "key": "k", "effect": "NoSchedule" }] } }),
            "spec.taints",
        ),
        (
            format!("PATCH {status}"),
            STRATEGIC,
            json!({ "status": { "phase": "Failed" } }),
            "status.phase",
        ),
        (
            format!("PATCH {status}"),
            MERGE,
            json!({ "metadata": { "labels": { "x": "y" } } }),
            "metadata.labels.x",
        ),
        (
            format!("PATCH {status}"),
            STRATEGIC,
            json!({ "status": { "conditions": [{ "type": "a/b", "status": "True", "why": "so" }] } }),
            "status.conditions[0].why",
        ),
        (
            format!("PATCH {status}"),
            "application/json-patch+json",
            json!([{ "op": "add", "path": "/metadata/annotations", "value": { "a": "b" } }]),
            "metadata.annotations",
        ),
        (
            format!("PATCH {added}"),
            STRATEGIC,
            json!({ "spec": { "containers": [{ "name": "c", "image": "j" }] } }),
            "spec.containers",
        ),
        (format!("PUT {added}"), JSON, put, "spec.restartPolicy"),
    ] {
        let (status, error) = request(&server, &line, kind, body.to_string().as_bytes());
        let text = error["message"].as_str().unwrap_or_default();
        assert_eq!(status, 422, "{line} {body}: {text}");
        assert!(
            text.starts_with(&format!("{field}: Forbidden")),
            "{line}: {text}"
        );
    }
    assert!(server.commands.is_empty(), "nothing is asked of the node");
    let as_it_is = json!({ "metadata": { "labels": { "a": "b" } } }).to_string();
    let (status, _) = request(
        &server,
        "PATCH /api/v1/nodes/box",
        MERGE,
        as_it_is.as_bytes(),
    );
    assert_eq!(status, 200, "it is so already");
}
