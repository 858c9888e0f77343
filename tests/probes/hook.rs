use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use coracle::effects::probe::{HookResult, Target, run_hook};
use coracle::shim::protocol::Purpose;
use coracle::spec::{Hook, HookKind, HttpGet, convert};

use super::servers::closed;

/// Runs a hook of a pod `p`.
fn go(hook: &Hook) -> HookResult {
    let json = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}"#;
    let pod = convert::admitted(json.as_bytes()).expect("a pod");
    let target = Target {
        ip: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        instead: None,
        shim_socket: "/nowhere/shim.sock".into(),
        container: "c".to_owned(),
        attempt: 0,
        purpose: Purpose::Hook(HookKind::PreStop),
    };
    smol::block_on(run_hook(hook, &target, &pod))
}

fn get(port: u16, tls: bool) -> Hook {
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Hook::HttpGet(HttpGet {
        tls,
        host: None,
        port,
        path: "/bye".to_owned(),
        headers: vec![header("authorization", "Bearer s"), header("X-A", "1")],
    })
}

/// A server without TLS, which gives this answer after a while, and passes on the requests that it got.
fn plain(answer: &'static str, after: Duration) -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, heads) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                head.push(byte[0]);
                // This is the first byte of a TLS handshake.
                if head == [0x16] {
                    break;
                }
            }
            if head != [0x16] {
                std::thread::sleep(after); // The page takes long.
                let _ = sender.send(String::from_utf8_lossy(&head).into_owned());
            }
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (port, heads)
}

const GONE: &str = "HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n";

#[test]
fn any_answer_is_a_success_however_late() {
    let (port, heads) = plain(GONE, Duration::from_millis(1500));
    let begin = Instant::now();
    assert_eq!(go(&get(port, false)), HookResult::default());
    assert!(begin.elapsed() >= Duration::from_millis(1500));
    let head = heads.recv().unwrap();
    assert!(head.starts_with("GET /bye HTTP/1.1\r\n"), "{head}");
    for line in [
        "User-Agent: kube-lifecycle/1.36",
        "Authorization: Bearer s",
        "X-A: 1",
    ] {
        assert!(
            head.lines().any(|l| l.eq_ignore_ascii_case(line)),
            "{line} in {head}"
        );
    }
}

#[test]
fn a_server_without_tls_gets_a_plain_request_without_secrets() {
    let (port, heads) = plain(GONE, Duration::ZERO);
    let result = go(&get(port, true));
    assert_eq!(result.failure, None);
    assert_eq!(result.fell_back, Some(format!("127.0.0.1:{port}")));
    let head = heads.recv().unwrap().to_ascii_lowercase();
    assert!(
        head.contains("x-a: 1") && !head.contains("bearer"),
        "{head}"
    );
}

#[test]
fn failures_are_reported_in_the_kubelets_words() {
    let port = closed();
    let of = "for Container \"c\" in Pod \"p_n(u)\" failed - error:";
    let table = [
        (
            get(port, false),
            format!(
                "HTTP lifecycle hook (/bye) {of} Get \"http://127.0.0.1:{port}/bye\": dial tcp 127.0.0.1:{port}: connect: \
                 connection refused"
            ),
        ),
        (
            Hook::TcpSocket,
            "Cannot run handler: invalid handler: tcpSocket".to_owned(),
        ),
    ];
    for (hook, text) in table {
        assert_eq!(go(&hook).failure, Some(text));
    }
    let exec = go(&Hook::Exec(vec!["ls".to_owned(), "/".to_owned()]));
    let failure = exec.failure.expect("there is no shim");
    let begin = format!("Exec lifecycle hook ([ls /]) {of} ");
    assert!(
        failure.starts_with(&begin) && failure.ends_with(", message: \"\""),
        "{failure}"
    );
}
