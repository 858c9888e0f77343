//! The real server on a real socket, with the command line's own client.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::thread::JoinHandle;

use k8s_openapi::api::core::v1::{Pod, Service};
use serde_json::{Value, json};
use smol::channel::{Receiver, Sender};

use super::door::Patience;
use super::exec_frame as frame;
use super::*;
use crate::cli::client::Client;
use crate::layout::Layout;
use crate::shim::protocol::{Message, Reply, Request, VERSION};
use crate::spec::Severity;
use crate::sys::fdpass;
use crate::types::Stamp;

/// A server with its directory; both are removed after the test.
pub(super) struct Server {
    pub(super) dir: PathBuf,
    pub(super) client: Client,
    pub(super) store: Arc<Store>,
    pub(super) commands: Receiver<Command>,
    stop: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(super) fn start(name: &str) -> Self {
        Self::start_with(name, Patience::default())
    }

    pub(super) fn start_with(name: &str, patience: Patience) -> Self {
        let dir = std::env::temp_dir().join(format!("coracle-api-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let layout = Layout {
            root: dir.join("root"),
            run_dir: dir.clone(),
            log_dir: dir.join("logs"),
        };
        let socket = layout.api_socket();
        let listener = listen(&socket).unwrap();
        let store = Arc::new(Store::new());
        let (sender, commands) = smol::channel::bounded(4);
        let context = Context {
            store: store.clone(),
            commands: sender,
            layout,
            node_name: "box".into(),
        };
        let (stop, stopped) = smol::channel::bounded::<()>(1);
        let thread = std::thread::spawn(move || {
            smol::block_on(smol::future::or(
                async { drop(server::serve_with(listener, context, patience).await) },
                async { stopped.recv().await.unwrap_or_default() },
            ));
        });
        Self {
            dir,
            client: Client { socket },
            store,
            commands,
            stop,
            thread: Some(thread),
        }
    }

    pub(super) fn get(&self, path: &str) -> Value {
        self.client.get(path).unwrap()
    }

    pub(super) fn refusal(&self, method: &str, path: &str) -> String {
        self.client
            .json(method, path, None)
            .unwrap_err()
            .to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.try_send(());
        self.thread.take().map(JoinHandle::join);
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

pub(super) fn pod(name: &str, phase: &str) -> Pod {
    let state = json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } });
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": { "app": name } },
        "spec": { "containers": [{ "name": "c", "image": "i" }], "nodeName": "box" },
        "status": { "phase": phase, "containerStatuses": [{ "name": "c", "image": "i", "imageID": "",
                    "ready": true, "restartCount": 0, "state": state }] },
    }))
    .unwrap()
}

pub(super) fn next(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> (String, String) {
    let change: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    (
        text(&change["type"]),
        text(&change["object"]["metadata"]["name"]),
    )
}

pub(super) fn pair(what: &str, name: &str) -> (String, String) {
    (what.to_owned(), name.to_owned())
}

#[test]
fn lists_and_objects_are_what_kubernetes_clients_expect() {
    let server = Server::start("list");
    server.store.upsert_pod(pod("web", "Running"));
    server.store.upsert_pod(pod("db", "Pending"));
    let list = server.get("/api/v1/pods?labelSelector=app%3Dweb");
    assert_eq!(list["kind"], "PodList");
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    let one = server.get("/api/v1/namespaces/default/pods/web");
    assert_eq!(
        (&one["kind"], &one["apiVersion"]),
        (&json!("Pod"), &json!("v1"))
    );
    assert_eq!(server.get("/api")["versions"], json!(["v1"]));
    assert_eq!(
        server.get("/api/v1/namespaces")["items"][0]["metadata"]["name"],
        "default"
    );
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let list = server.get(budgets);
    assert_eq!(
        (&list["kind"], &list["items"]),
        (&json!("PodDisruptionBudgetList"), &json!([]))
    );
    let refused = server.refusal("GET", &format!("{budgets}/web"));
    assert!(refused.contains("\"web\" not found"), "{refused}");
    assert_eq!(server.get("/version")["minor"], "36");
}

#[test]
fn a_stored_node_is_shown_with_a_current_heartbeat() {
    let server = Server::start("node");
    let node = json!({ "metadata": { "name": "box", "uid": "box" },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    server.store.set_node(serde_json::from_value(node).unwrap());
    let stored = || server.store.list(store::Kind::Nodes).1[0].json();
    let before = stored();
    // No node answers commands in this test.
    let one = server.get("/api/v1/nodes/box");
    assert!(matches!(
        server.commands.try_recv(),
        Ok(Command::LookAtNode { .. })
    ));
    let list = server.get("/api/v1/nodes");
    for shown in [&one, &list["items"][0]] {
        let condition = &shown["status"]["conditions"][0];
        let beat = condition["lastHeartbeatTime"].as_str().expect("a time");
        assert!(beat.starts_with("20") && beat.ends_with('Z'), "{beat}");
        assert_eq!(condition["status"], "True");
    }
    assert_eq!(stored(), before, "watchers have nothing to hear of");
    assert_eq!(
        server.refusal("GET", "/api/v1/nodes/other").lines().count(),
        1
    );
}

#[test]
fn services_are_listed_watched_and_gone_when_they_are_no_longer_set() {
    let server = Server::start("services");
    let service = |name: &str, ip: &str| -> Service {
        let json = json!({"apiVersion": "v1", "kind": "Service", "spec": {"clusterIP": ip},
            "metadata": {"name": name, "namespace": "shop"}});
        serde_json::from_value(json).unwrap()
    };
    let (web, db) = (service("web", "10.0.0.1"), service("db", "10.0.0.2"));
    server.store.set_services(&[web.clone(), db]);
    let list = server.get("/api/v1/services");
    assert_eq!(list["kind"], "ServiceList");
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    let one = server.get("/api/v1/namespaces/shop/services/web");
    assert_eq!(one["spec"]["clusterIP"], "10.0.0.1");
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    server.store.set_services(std::slice::from_ref(&web));
    server.store.set_services(std::slice::from_ref(&web));
    server.store.set_services(&[service("web", "10.0.0.9")]);
    let path = format!("/api/v1/namespaces/shop/services?watch=true&resourceVersion={version}");
    let mut lines = server.client.send("GET", &path, None).unwrap().body.lines();
    assert_eq!(next(&mut lines), pair("DELETED", "db"));
    assert_eq!(next(&mut lines), pair("MODIFIED", "web"));
    assert_eq!(server.get("/api/v1/endpoints")["items"], json!([]));
}

#[test]
fn refusals_are_status_objects_with_the_right_codes() {
    let server = Server::start("refuse");
    let table = [
        (
            "GET",
            "/api/v1/namespaces/default/pods/no",
            "pods \"no\" not found",
        ),
        ("GET", "/nonsense", "could not find the requested resource"),
        ("GET", "/openapi/v3", "`coracle explain`"),
        (
            "GET",
            "/apis/apps/v1/namespaces/a/deployments/b/scale",
            "in the manifest file",
        ),
        ("PUT", "/api/v1/pods", "does not allow this method"),
        ("PATCH", "/api/v1/pods", "`coracle rollout`"),
        (
            "GET",
            "/api/v1/pods?labelSelector=a+in+(",
            "unable to parse",
        ),
        (
            "GET",
            "/api/v1/namespaces/default/pods/no/log",
            "pods \"no\" not found",
        ),
    ];
    for (method, path, expected) in table {
        let error = server.refusal(method, path);
        assert!(error.contains(expected), "{method} {path}: {error}");
    }
    assert!(matches!(
        listen(&server.client.socket),
        Err(ServeError::InUse { .. })
    ));
}

#[test]
fn a_watch_goes_on_where_a_list_ended() {
    let server = Server::start("watch");
    server.store.upsert_pod(pod("old", "Running"));
    let version = server.get("/api/v1/pods")["metadata"]["resourceVersion"].clone();
    server.store.upsert_pod(pod("new", "Pending"));
    server.store.upsert_pod(pod("old", "Running"));
    let path = format!(
        "/api/v1/pods?watch=true&resourceVersion={}",
        version.as_str().unwrap()
    );
    let mut lines = server.client.send("GET", &path, None).unwrap().body.lines();
    assert_eq!(next(&mut lines), pair("ADDED", "new"));
    server.store.upsert_pod(pod("new", "Running"));
    assert_eq!(next(&mut lines), pair("MODIFIED", "new"));
    server.store.remove_pod("default", "new", "another uid");
    server.store.remove_pod("default", "old", "uid-old");
    assert_eq!(next(&mut lines), pair("DELETED", "old"));
}

#[test]
fn an_object_that_no_longer_matches_is_gone_for_the_watcher() {
    let server = Server::start("unmatch");
    server.store.upsert_pod(pod("web", "Running"));
    let path = "/api/v1/pods?watch=1&fieldSelector=status.phase%3DRunning";
    let mut lines = server.client.send("GET", path, None).unwrap().body.lines();
    assert_eq!(next(&mut lines), pair("ADDED", "web"));
    server.store.upsert_pod(pod("web", "Failed"));
    assert_eq!(next(&mut lines), pair("DELETED", "web"));
}

#[test]
fn a_watch_from_a_list_has_no_deletions_of_what_was_not_in_it() {
    let server = Server::start("unselected");
    server.store.upsert_pod(pod("web", "Running"));
    server.store.upsert_pod(pod("late", "Running"));
    let list = server.get("/api/v1/pods?labelSelector=app%3Dother");
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    // Both change while nobody watches. The second one gets other labels: it may have been in the list.
    let mut changed = pod("web", "Running");
    changed.metadata.annotations = Some([("a".to_owned(), "b".to_owned())].into());
    server.store.upsert_pod(changed);
    let mut labelled = pod("late", "Running");
    labelled.metadata.labels = Some([("app".to_owned(), "new".to_owned())].into());
    server.store.upsert_pod(labelled);
    let path = format!("/api/v1/pods?watch=1&labelSelector=app%3Dother&resourceVersion={version}");
    let mut lines = server.client.send("GET", &path, None).unwrap().body.lines();
    assert_eq!(next(&mut lines), pair("DELETED", "late"));
    let mut selected = pod("web", "Running");
    selected.metadata.labels = Some([("app".to_owned(), "other".to_owned())].into());
    server.store.upsert_pod(selected);
    assert_eq!(next(&mut lines), pair("ADDED", "web"));
}

#[test]
fn too_old_a_version_is_gone() {
    let server = Server::start("gone");
    let path = "/api/v1/pods?watch=true&resourceVersion=7";
    let mut lines = server.client.send("GET", path, None).unwrap().body.lines();
    let error: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(
        (&error["type"], &error["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );
    assert!(lines.next().is_none());
}

#[test]
fn the_same_event_is_counted_up() {
    let server = Server::start("events");
    let record = EventRecord {
        namespace: "default".into(),
        name: "web".into(),
        uid: "u".into(),
        kind: ObjectKind::Pod,
        field_path: "spec.containers{c}".into(),
        type_: Severity::Warning,
        reason: "BackOff".into(),
        message: "again".into(),
        annotations: BTreeMap::new(),
        at: Stamp::default(),
    };
    server.store.push_event(&record);
    server.store.push_event(&record);
    let list =
        server.get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dweb");
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(list["items"][0]["count"], 2);
    for (selector, number) in [
        (
            "involvedObject.kind=Pod,involvedObject.name=web,involvedObject.apiVersion=v1",
            1,
        ),
        (
            "involvedObject.uid=u,source=coracle,reportingComponent=coracle",
            1,
        ),
        (
            "involvedObject.fieldPath=spec.containers{c},type!=Normal",
            1,
        ),
        ("involvedObject.kind=Node", 0),
        ("source=kubelet", 0),
    ] {
        let list = server.get(&format!(
            "/api/v1/events?fieldSelector={}",
            encode(selector)
        ));
        assert_eq!(
            list["items"].as_array().unwrap().len(),
            number,
            "{selector}"
        );
    }
}

#[test]
fn compaction_keeps_all_objects() {
    let server = Server::start("compact");
    let record = |name: &str| EventRecord {
        namespace: "default".into(),
        name: name.into(),
        uid: "u".into(),
        kind: ObjectKind::Pod,
        field_path: String::new(),
        type_: Severity::Normal,
        reason: "Said".into(),
        message: format!("\"{name}\" ä\n\u{7}"),
        annotations: BTreeMap::from([("a".into(), "b".into())]),
        at: Stamp::default(),
    };
    for number in 0..20 {
        server.store.push_event(&record(&format!("p{number}")));
    }
    let before = server.get("/api/v1/events");
    let lines = server.store.event_lines();
    server.store.upsert_pod(pod("web", "Running"));
    server.store.upsert_pod(pod("db", "Running"));
    let pods = server.get("/api/v1/pods?fieldSelector=status.phase=Running,spec.nodeName=box");
    let seen = pods["metadata"]["resourceVersion"].as_str().unwrap();
    server.store.remove_pod("default", "db", "uid-db");
    server.store.compact();
    let kept = server.get("/api/v1/pods?fieldSelector=status.phase=Running,spec.nodeName=box");
    assert_eq!(kept["items"][0], pods["items"][1]);
    let path = format!("/api/v1/pods?watch=1&labelSelector=app=db&resourceVersion={seen}");
    let mut changes = server.client.send("GET", &path, None).unwrap().body.lines();
    assert_eq!(next(&mut changes), pair("DELETED", "db"));
    assert_eq!(server.get("/api/v1/events")["items"], before["items"]);
    assert_eq!(server.store.event_lines(), lines);
    let version = before["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("/api/v1/events?watch=1&resourceVersion={version}");
    let mut changes = server.client.send("GET", &path, None).unwrap().body.lines();
    server.store.push_event(&record("p3"));
    let change: Value = serde_json::from_str(&changes.next().unwrap().unwrap()).unwrap();
    assert_eq!(
        (&change["type"], &change["object"]["count"]),
        (&json!("MODIFIED"), &json!(2))
    );
}

#[test]
fn deleting_is_a_command_to_the_node() {
    let server = Server::start("delete");
    server.store.upsert_pod(pod("web", "Running"));
    let commands = server.commands.clone();
    let node = std::thread::spawn(move || match commands.recv_blocking().unwrap() {
        Command::DeletePod {
            name,
            grace_ms,
            force,
            reply,
            ..
        } => {
            reply.try_send(Ok(())).unwrap();
            (name, grace_ms, force)
        }
        other => panic!("{other:?}"),
    });
    let options = json!({ "gracePeriodSeconds": 5 });
    let path = "/api/v1/namespaces/default/pods/web";
    let answer = server.client.json("DELETE", path, Some(&options)).unwrap();
    assert_eq!(answer["metadata"]["name"], "web");
    assert_eq!(node.join().unwrap(), ("web".to_owned(), Some(5000), false));
}

#[test]
fn a_file_whose_name_is_not_utf8_is_listed_like_any_other() {
    use std::os::unix::ffi::OsStrExt as _;
    let server = Server::start("file-names");
    let file = |name: &[u8]| FileStatus {
        documents: Default::default(),
        path: std::path::Path::new("/manifests").join(std::ffi::OsStr::from_bytes(name)),
        state: FileState::Loaded,
        pods: Vec::new(),
        errors: Vec::new(),
        warnings: Vec::new(),
        modified: None,
    };
    server
        .store
        .set_files(vec![file(b"a\xffb.yaml"), file(b"c.yaml")]);
    let listed = server.get("/coracle/v1/files");
    assert_eq!(listed["items"][0]["path"], "/manifests/a\u{fffd}b.yaml");
    assert_eq!(listed["items"][1]["path"], "/manifests/c.yaml");
}

#[test]
fn logs_come_from_the_containers_files() {
    let server = Server::start("logs");
    server.store.upsert_pod(pod("web", "Running"));
    let dir = server.dir.join("logs/default_web_uid-web/c");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("0.log"), "2026-01-01T00:00:00Z stdout F hello\n").unwrap();
    let path = "/api/v1/namespaces/default/pods/web/log";
    let mut body = server
        .client
        .send("GET", &format!("{path}?follow=true"), None)
        .unwrap()
        .body;
    let mut first = [0; 6];
    body.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"hello\n");
    server.store.remove_pod("default", "web", "uid-web");
    assert_eq!(body.read(&mut first).unwrap(), 0);
    server.store.upsert_pod(pod("web", "Running"));
    let error = server.refusal("GET", &format!("{path}?previous=true"));
    assert!(
        error.contains("previous terminated container \"c\" in pod \"web\" not found"),
        "{error}"
    );
    let error = server.refusal("GET", &format!("{path}?container=x"));
    assert!(
        error.contains("container \"x\" not found in pod \"web\", choose one of: [c]"),
        "{error}"
    );
}

/// One session of a shim: runs the program in the test's own process context, with the descriptors it gets.
fn shim_session(listener: &UnixListener) {
    let (mut socket, _) = listener.accept().unwrap();
    let send = |mut socket: &UnixStream, message: &Message| {
        let body = serde_json::to_vec(message).unwrap();
        let length = u32::try_from(body.len()).unwrap();
        socket.write_all(&length.to_be_bytes()).unwrap();
        socket.write_all(&body).unwrap();
    };
    let (hello, _) = shim_request(&mut socket);
    assert!(matches!(hello, Request::Hello { .. }));
    let hello = Reply::Hello {
        version: VERSION,
        pid: 1,
        containers: Default::default(),
        kept: Vec::new(),
    };
    send(&socket, &Message::Reply(hello));
    let (request, fds) = shim_request(&mut socket);
    let Request::Exec(exec) = request else {
        panic!("{request:?}");
    };
    let mut fds = fds.into_iter();
    let mut io = || Stdio::from(fds.next().unwrap());
    let mut command = std::process::Command::new(&exec.argv[0]);
    command
        .args(&exec.argv[1..])
        .stdin(io())
        .stdout(io())
        .stderr(io());
    let mut child = command.spawn().unwrap();
    drop(command);
    send(
        &socket,
        &Message::Reply(Reply::ExecStarted { pid: child.id() }),
    );
    let code = child.wait().unwrap().code().unwrap();
    send(&socket, &Message::ExecExited { code });
}

fn shim_request(socket: &mut UnixStream) -> (Request, Vec<OwnedFd>) {
    let mut head = [0; 4];
    let mut fds = Vec::new();
    let got = fdpass::receive(socket.as_fd(), &mut head, &mut fds).unwrap();
    socket.read_exact(&mut head[got..]).unwrap();
    let mut body = vec![0; u32::from_be_bytes(head) as usize];
    socket.read_exact(&mut body).unwrap();
    (serde_json::from_slice(&body).unwrap(), fds)
}

#[test]
fn exec_carries_input_output_and_the_exit_code() {
    let server = Server::start("exec");
    server.store.upsert_pod(pod("web", "Running"));
    let run = server.dir.join("pods/uid-web");
    std::fs::create_dir_all(&run).unwrap();
    let listener = UnixListener::bind(run.join("shim.sock")).unwrap();
    let shim = std::thread::spawn(move || shim_session(&listener));
    let script = encode("cat; echo err >&2; exit 7");
    let path = format!(
        "/api/v1/namespaces/default/pods/web/exec?stdin=true&command=sh&command=-c&command={script}"
    );
    let (mut write, mut read) = server.client.upgrade(&path, frame::PROTOCOL).unwrap();
    write
        .write_all(&frame::header(frame::STDIN, b"hi"))
        .unwrap();
    write.write_all(b"hi").unwrap();
    write
        .write_all(&frame::header(frame::CLOSE_STDIN, b""))
        .unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = loop {
        let mut head = [0; 5];
        read.read_exact(&mut head).unwrap();
        let (channel, length) = frame::parse_header(head).unwrap();
        let mut data = vec![0; length];
        read.read_exact(&mut data).unwrap();
        match channel {
            frame::STDOUT => out.extend(data),
            frame::STDERR => err.extend(data),
            _ => break serde_json::from_slice::<frame::ExecStatus>(&data).unwrap(),
        }
    };
    assert_eq!((out, err), (b"hi".to_vec(), b"err\n".to_vec()));
    assert_eq!(status.exit_code, Some(7));
    shim.join().unwrap();
}
