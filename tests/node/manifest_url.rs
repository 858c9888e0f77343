//! Manifests from a web server.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use super::*;

/// What the server answers: a status and an `ETag`, and the body.
type Answer = Arc<Mutex<(u16, &'static str, String)>>;

/// A web server in the agent's network. It notes the heads of requests.
struct Server {
    address: std::net::SocketAddr,
    answer: Answer,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(agent: &Agent, body: &str) -> Self {
        let listener = agent.netns.run(|| TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("a port");
        let server = Self {
            address: listener.local_addr().expect("bound"),
            answer: Arc::new(Mutex::new((200, "\"1\"", body.to_owned()))),
            asked: Arc::default(),
        };
        let (answer, asked) = (server.answer.clone(), server.asked.clone());
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let Ok(mut connection) = connection else {
                    return;
                };
                let mut head = String::new();
                let mut lines = BufReader::new(connection.try_clone().expect("a socket"));
                while lines.read_line(&mut head).unwrap_or(0) > 2 {}
                let (status, etag, body) = answer.lock().unwrap().clone();
                let held = format!("if-none-match: {etag}");
                let same = head.to_lowercase().contains(&held);
                let (status, body) = match same && status == 200 {
                    true => (304, String::new()),
                    false => (status, body),
                };
                asked.lock().unwrap().push(head);
                let length = body.len();
                let _ = write!(
                    connection,
                    "HTTP/1.1 {status} X\r\nETag: {etag}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
            }
        });
        server
    }

    fn set(&self, status: u16, etag: &'static str, body: &str) {
        *self.answer.lock().unwrap() = (status, etag, body.to_owned());
    }

    /// Waits for the answer to another request, and the one after it: then the first has had its effect.
    fn wait_asked(&self) {
        let now = self.asked.lock().unwrap().len();
        let deadline = std::time::Instant::now() + PATIENCE;
        while self.asked.lock().unwrap().len() < now + 2 {
            assert!(std::time::Instant::now() < deadline, "it asks again");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn manifests_of_a_web_server_run_change_and_outlive_it() {
    let agent = Agent::prepare(Arc::new(common::netns::Netns::new()), &[], None);
    let pod = |name: &str| shell_pod(name, SLEEP, "", "");
    let server = Server::start(&agent, &pod("a"));
    let settings = format!(
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nstaticPodURL: http://{}/pods\n\
         staticPodURLHeader: {{Authorization: [Bearer hunter2]}}\nhttpCheckFrequency: 1s\n",
        server.address
    );
    fs::write(agent.root.join("config.d/50-url.conf"), settings).expect("written");
    agent.launch();
    let archive = common::archive();
    agent.ok(&["image", "import", archive.to_str().expect("utf-8")]);
    agent.wait_running("a");
    let head = server.asked.lock().unwrap()[0].to_lowercase();
    assert!(
        head.starts_with("get /pods http/1.1") && head.contains("authorization: bearer hunter2"),
        "{head}"
    );
    for shown in [
        agent.log(),
        agent.ok(&["config", "print"]),
        agent.ok(&["config", "print", "-o", "json"]),
    ] {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    assert!(agent.ok(&["config", "print"]).contains("<masked>"));
    // Another pod comes, and none goes.
    let list = |names: &[&str]| {
        names
            .iter()
            .map(|name| pod(name))
            .collect::<Vec<_>>()
            .join("\n---\n")
    };
    server.set(200, "\"2\"", &list(&["a", "b"]));
    agent.wait_running("b");
    // What is broken, missing or empty changes nothing.
    for (status, etag, body) in [
        (200, "\"3\"", "kind: Pod\n"),
        (404, "\"4\"", ""),
        (200, "\"5\"", ""),
        (500, "\"6\"", ""),
    ] {
        server.set(status, etag, body);
        server.wait_asked();
    }
    let log = agent.log();
    assert!(
        log.contains("keeping its last good manifests")
            && log.contains("zero-length data received"),
        "{log}"
    );
    for name in ["a", "b"] {
        agent.wait_running(name);
    }
    // The last good copy is enough for a start, too.
    agent.kill();
    agent.launch();
    agent.wait_running("b");
    server.set(200, "\"7\"", &list(&["b"]));
    agent.wait_gone("a");
}
