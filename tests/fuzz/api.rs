//! Requests: arbitrary bytes over a connection to the real server in this thread, with nearly valid paths, queries,
//! selectors, patches and protobuf.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use coracle::api::{Context, Store, listen, serve};
use coracle::layout::Layout;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol::net::unix::UnixStream;

use super::mutate::{self, Random};
use super::{Entrance, fuzz};

/// Most requests are answered at once; watches and unfinished requests never end.
const SHORT: Duration = Duration::from_millis(5);
/// The machine may be busy.
const LONG: Duration = Duration::from_secs(20);

const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"];

const PATHS: [&str; 22] = [
    "/api",
    "/apis",
    "/version",
    "/healthz",
    "/openapi/v3",
    "/api/v1",
    "/api/v1/pods",
    "/api/v1/namespaces/default/pods",
    "/api/v1/namespaces/default/pods/web",
    "/api/v1/namespaces/default/pods/web/log",
    "/api/v1/namespaces/default/pods/web/exec",
    "/api/v1/namespaces/default/pods/web/attach",
    "/api/v1/namespaces/default/pods/web/portforward",
    "/api/v1/namespaces/default/pods/web/status",
    "/api/v1/namespaces/default/pods/web/ephemeralcontainers",
    "/api/v1/namespaces/default/pods/web/eviction",
    "/api/v1/nodes/n",
    "/api/v1/nodes/n/proxy/stats/summary",
    "/api/v1/events",
    "/coracle/v1/shutdown",
    "/coracle/v1/images",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
];

const QUERIES: [&str; 18] = [
    "watch=true",
    "labelSelector=app=web,tier notin (a,b),!x",
    "fieldSelector=metadata.name=web,status.phase!=Running",
    "limit=1",
    "continue=abc",
    "resourceVersion=1",
    "resourceVersionMatch=Exact",
    "sendInitialEvents=true",
    "timeoutSeconds=0",
    "tailLines=3",
    "limitBytes=10",
    "sinceTime=2026-01-01T00:00:00Z",
    "follow=true",
    "container=main",
    "command=sh&command=-c&stdout=true",
    "dryRun=All",
    "gracePeriodSeconds=0",
    "fieldManager=x&force=true",
];

const TYPES: [&str; 8] = [
    "application/json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/json-patch+json",
    "application/apply-patch+yaml",
    "application/vnd.kubernetes.protobuf",
    "text/plain",
    "",
];

const BODIES: [&str; 8] = [
    r#"{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0,"preconditions":{"uid":"u"}}"#,
    r#"{"metadata":{"resourceVersion":"1"},"status":{"conditions":[{"type":"a.b/Up","status":"True","reason":"R"}]}}"#,
    r#"[{"op":"test","path":"/status/conditions/0/type","value":"x"},{"op":"add","path":"/spec/unschedulable","value":true}]"#,
    r#"{"spec":{"unschedulable":true,"$setElementOrder/taints":[],"taints":[{"$patch":"delete","key":"a"}]}}"#,
    r#"{"spec":{"ephemeralContainers":[{"name":"debug","image":"busybox","command":["sh"],"targetContainerName":"main"}]}}"#,
    r#"{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"web"},"deleteOptions":{"dryRun":["All"]}}"#,
    "k8s\u{0}\n\u{13}\n\u{2}v1\u{12}\rDeleteOptions\u{12}\u{2}\u{8}\u{5}",
    "",
];

fn escaped(text: &str) -> String {
    text.replace(' ', "%20")
}

fn make(random: &mut Random) -> Vec<u8> {
    let body = random.choose(&BODIES);
    let body = match serde_json::from_str(body) {
        Ok(tree) if random.once_in(2) => mutate::tree(random, &tree).to_string().into_bytes(),
        _ => mutate::bytes(random, body.as_bytes(), &[]),
    };
    let queries: Vec<String> = (0..random.below(3))
        .map(|_| escaped(random.choose(&QUERIES)))
        .collect();
    let target = format!("{}?{}", random.choose(&PATHS), queries.join("&"));
    let target = match random.once_in(2) {
        true => String::from_utf8_lossy(&mutate::bytes(
            random,
            target.as_bytes(),
            &["%2", "%ff", "/", "&="],
        ))
        .into_owned(),
        false => target,
    };
    let length = match random.once_in(10) {
        true => random.below(1 << 40),
        false => body.len(),
    };
    let upgrade = match random.once_in(6) {
        true => {
            "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n"
        }
        false => "Connection: close\r\n",
    };
    let head = format!(
        "{} {target} HTTP/1.1\r\nHost: x\r\n{upgrade}Accept: application/json;as=Table;v=v1;g=meta.k8s.io\r\n\
         Content-Type: {}\r\nContent-Length: {length}\r\n\r\n",
        random.choose(&METHODS),
        random.choose(&TYPES)
    );
    let mut all = head.into_bytes();
    all.extend(body);
    match random.once_in(4) {
        true => mutate::bytes(random, &all, &["\r\n", ": ", "chunked"]),
        false => all,
    }
}

/// Sends the input, and reads until nothing more has come for this long.
async fn ask(socket: &Path, input: &[u8], hang_up: bool, patience: Duration) -> Vec<u8> {
    let Ok(mut stream) = UnixStream::connect(socket).await else {
        return Vec::new();
    };
    let _ = stream.write_all(input).await;
    if hang_up {
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    let mut said = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let silence = async {
            // Watches and followed logs never end by themselves.
            smol::Timer::after(patience).await;
            Ok(0)
        };
        match smol::future::or(stream.read(&mut buffer), silence).await {
            Ok(0) | Err(_) => return said,
            Ok(length) if said.len() < 1 << 20 => said.extend_from_slice(&buffer[..length]),
            Ok(_) => return said,
        }
    }
}

#[test]
fn api() {
    let entrance = Entrance {
        name: "api",
        share: 180,
        most_bytes: 48 << 20,
        most_time: Duration::from_secs(3),
    };
    let dir = std::env::temp_dir().join(format!("coracle-fuzz-api-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let layout = Layout {
        root: dir.join("root"),
        run_dir: dir.clone(),
        log_dir: dir.join("logs"),
    };
    let socket = layout.api_socket();
    let store = Arc::new(Store::new());
    let pod = json!({"metadata": {"name": "web", "namespace": "default", "uid": "u", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "i"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "main", "ready": true, "restartCount": 1,
            "image": "i", "imageID": "", "state": {"running": {}}}]}});
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    store.upsert_pod(pod);
    let (commands, received) = smol::channel::bounded(16);
    let context = Context {
        store,
        commands,
        layout,
        node_name: "n".into(),
    };
    let executor = smol::LocalExecutor::new();
    let listener = listen(&socket).expect("a socket");
    executor.spawn(serve(listener, context)).detach();
    // Commands get no answer, as from a stopping node.
    executor
        .spawn(async move { while received.recv().await.is_ok() {} })
        .detach();
    let (mut asked, mut answers) = (0u32, BTreeSet::new());
    fuzz(entrance, make, |input| {
        let said =
            smol::block_on(executor.run(ask(&socket, input, input.len().is_multiple_of(2), SHORT)));
        // A request in HTTP/1.0 is answered in HTTP/1.0.
        let begins = said.is_empty() || said.starts_with(b"HTTP/1.");
        assert!(begins, "{:?}", String::from_utf8_lossy(&said));
        answers.extend(said.get(9..12).map(<[u8]>::to_vec));
        asked += 1;
        if asked.is_multiple_of(64) {
            let sound = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            let said = smol::block_on(executor.run(ask(&socket, sound, false, LONG)));
            assert!(
                said.starts_with(b"HTTP/1.1 200 "),
                "the server still answers"
            );
        }
    });
    let many = super::number("CORACLE_FUZZ_ONLY").is_none();
    assert!(answers.len() > 5 || !many, "{answers:?}");
    drop(executor);
    std::fs::remove_dir_all(dir).expect("a folder");
}
