use std::io::Write;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use coracle::effects::probe::Outcome;
use coracle::spec::{HttpGet, ProbeHandler};

use super::servers::{Server, always, closed, endless, serve};
use super::{ask, failure, success};

const LATE: &str = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";

fn get(port: u16) -> HttpGet {
    HttpGet {
        tls: false,
        host: None,
        port,
        path: "/health?x=y".to_owned(),
        headers: Vec::new(),
    }
}

fn fetch(get: HttpGet, timeout_ms: u64) -> Outcome {
    ask(&ProbeHandler::HttpGet(get), timeout_ms)
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}/health?x=y")
}

fn response(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
}

#[test]
fn the_status_decides() {
    let warning = Outcome::Warning("Probe terminated redirects, Response body: hm".to_owned());
    let failed = |code| failure(&format!("HTTP probe failed with statuscode: {code}"));
    let table = [
        ("200 OK", success("hm")),
        ("299 Fine", success("hm")),
        ("300 Multiple", warning.clone()),
        ("302 No Location", warning),
        ("400 Bad Request", failed(400)),
        ("404 Not Found", failed(404)),
        ("500 Internal", failed(500)),
        ("503 Unavailable", failed(503)),
    ];
    for (status, expected) in table {
        let port = always(&response(status, "", "hm"));
        assert_eq!(fetch(get(port), 2000), expected, "{status}");
    }
}

#[test]
fn a_request_has_the_kubelets_headers() {
    let (sender, heads) = mpsc::channel();
    let port = serve(move |stream, head| {
        let _ = sender.send(head.to_owned());
        let _ = stream.write_all(response("200 OK", "", "").as_bytes());
    });
    let asked = |headers: &[(&str, &str)]| {
        let owned = headers.iter();
        let headers = owned
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect();
        let get = HttpGet {
            headers,
            ..get(port)
        };
        assert_eq!(fetch(get, 2000), success(""));
        let head = heads.recv().unwrap();
        let mut lines: Vec<String> = head.trim_end().split("\r\n").map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let own = format!("Host: 127.0.0.1:{port}");
    let line = "GET /health?x=y HTTP/1.1";
    let usual = [
        "Accept: */*",
        "Connection: close",
        line,
        &own,
        "User-Agent: kube-probe/1.36",
    ];
    assert_eq!(asked(&[]), usual);
    let given = [
        ("x-a", "1"),
        ("X-A", "2"),
        ("host", "example.org"),
        ("user-agent", "me"),
        ("accept", ""),
        ("content-length", "7"),
    ];
    let other = [
        "Connection: close",
        line,
        "Host: example.org",
        "User-Agent: me",
        "X-A: 1",
        "X-A: 2",
    ];
    assert_eq!(asked(&given), other);
}

#[test]
fn redirects_are_followed_on_the_same_host_only() {
    let port = serve(|stream, head| {
        let path = head.split(' ').nth(1).unwrap_or_default();
        let (status, location) = match path {
            "/health?x=y" => ("302 Found", "/b"),
            "/b" => ("301 Moved", "c"),
            "/c" => ("308 Permanent", ""),
            "/away" => ("307 Temporary", "http://elsewhere.invalid/"),
            "/ftp" => ("307 Temporary", "ftp://127.0.0.1/"),
            "/loop" => ("303 See Other", "/loop"),
            _ => ("200 OK", ""),
        };
        let headers = match location {
            "" => String::new(),
            location => format!("Location: {location}\r\n"),
        };
        let _ = stream.write_all(response(status, &headers, path).as_bytes());
    });
    let at = |path: &str| {
        let path = path.to_owned();
        fetch(HttpGet { path, ..get(port) }, 2000)
    };
    let warning = |body| {
        let text = format!("Probe terminated redirects, Response body: {body}");
        Outcome::Warning(text)
    };
    assert_eq!(at("/health?x=y"), warning("/c"));
    assert_eq!(at("/away"), warning("/away"));
    assert_eq!(
        at("/loop"),
        failure("Get \"/loop\": stopped after 10 redirects")
    );
    let ftp = "Get \"ftp://127.0.0.1/\": unsupported protocol scheme \"ftp\"";
    assert_eq!(at("/ftp"), failure(ftp));
    assert_eq!(at("/fine"), success("/fine"));
}

#[test]
fn a_missing_or_broken_answer_is_reported_in_gos_words() {
    let port = closed();
    let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    let text = format!("Get \"{}\": {refused}", url(port));
    assert_eq!(fetch(get(port), 1000), failure(&text));
    let hung = || serve(|_, _| std::thread::sleep(Duration::from_secs(5)));
    let broken = "net/http: HTTP/1.x transport connection broken: malformed HTTP response";
    let large = "net/http: server response headers exceeded 65536 bytes; aborted";
    let pause = Duration::from_millis(1);
    let long_answer = "the answer is longer than 262144 bytes";
    let long = format!("X-Y: {}\r\n", "z".repeat(1000));
    let table = [
        (hung(), LATE),
        (
            endless("HTTP/1.1 200 OK\r\n", "X: y\r\n", Duration::from_millis(50)),
            LATE,
        ),
        (endless("HTTP/1.1 200 OK\r\n", &long, pause), large),
        // Broken in its first packet: what arrives later is read again at the end of the headers only.
        (endless("HTTP/1.1 2000", "0", pause), broken),
        (
            endless("", "HTTP/1.1 100 Continue\r\n\r\n", Duration::ZERO),
            long_answer,
        ),
        (always(""), "EOF"),
        (always("SSH-2.0-OpenSSH_9.2\r\n"), broken),
    ];
    for (port, text) in table {
        // A server that does answer gets a longer timeout.
        let timeout_ms = if text == LATE { 500 } else { 10_000 };
        let text = format!("Get \"{}\": {text}", url(port));
        assert_eq!(fetch(get(port), timeout_ms), failure(&text));
    }
}

#[test]
fn ten_kibibytes_of_a_body_are_read() {
    let begin = "HTTP/1.1 200 OK\r\n\r\n";
    let port = endless(begin, &"a".repeat(4096), Duration::ZERO);
    assert_eq!(fetch(get(port), 2000), success(&"a".repeat(10 << 10)));
    let late =
        "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
    let port = endless(begin, "a", Duration::from_millis(20));
    assert_eq!(fetch(get(port), 500), Outcome::Unread(late.to_owned()));
    let port = always("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort");
    let cut = Outcome::Unread("unexpected EOF".to_owned());
    assert_eq!(fetch(get(port), 2000), cut);
}

#[test]
fn an_answer_may_have_thousands_of_headers() {
    for (header, count) in [("X-Padded: 12345\r\n", 3500), ("x:\r\n", 4000)] {
        let port = always(&response("200 OK", &header.repeat(count), "hm"));
        assert_eq!(fetch(get(port), 2000), success("hm"));
    }
}

const HTTPS: &str = r#"
import http.server, ssl
class Fine(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"secret")
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Fine)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain("cert", "key")
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
"#;

fn https(kind: &[&str]) -> Server {
    Server::python(HTTPS, |folder| {
        let made = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-nodes",
                "-subj",
                "/CN=nobody",
                "-days",
                "-1",
            ])
            .args(["-keyout", "key", "-out", "cert", "-newkey"])
            .args(kind)
            .current_dir(folder)
            .output()
            .expect("install `openssl`");
        // Older versions cannot make certificates that were never valid.
        if !made.status.success() {
            let made = Command::new("openssl")
                .args(["req", "-x509", "-nodes", "-subj", "/CN=nobody"])
                .args(["-keyout", "key", "-out", "cert", "-newkey"])
                .args(kind)
                .current_dir(folder)
                .output()
                .unwrap();
            assert!(made.status.success(), "{made:?}");
        }
    })
}

#[test]
fn every_certificate_is_accepted() {
    let curve = ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
    let large = ["ec", "-pkeyopt", "ec_paramgen_curve:P-521"];
    for kind in [&["rsa:2048"][..], &curve, &large, &["ed448"]] {
        let server = https(kind);
        let secure = HttpGet {
            tls: true,
            ..get(server.port)
        };
        assert_eq!(fetch(secure, 3000), success("secret"));
    }
}

#[test]
fn a_server_without_tls_is_reported() {
    let port = always(&response("400 Bad Request", "", ""));
    let secure = HttpGet {
        tls: true,
        ..get(port)
    };
    let text = format!(
        "Get \"https://127.0.0.1:{port}/health?x=y\": http: server gave HTTP response to HTTPS client"
    );
    assert_eq!(fetch(secure, 6000), failure(&text));
}
