//! Connections to ports of pods by `coracle port-forward`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Stdio};

use super::*;

/// A client that forwards, and the local ports that it has announced on IPv4.
struct Forward {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    ports: Vec<u16>,
}

impl Forward {
    fn start(agent: &Agent, args: &[&str], count: usize) -> Self {
        let mut child = coracle()
            .arg("port-forward")
            .args(args)
            .args(["--address", "127.0.0.1"])
            .env("CORACLE_SOCKET", agent.socket())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("coracle runs");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut ports = Vec::new();
        while ports.len() < count {
            let mut line = String::new();
            let length = lines.read_line(&mut line).expect("read");
            assert!(length > 0, "it ended: {}", said(&mut child));
            let port = line.strip_prefix("Forwarding from 127.0.0.1:");
            let port = port.and_then(|rest| rest.split(' ').next());
            ports.push(port.expect(&line).parse().expect("a port"));
        }
        Self {
            child,
            lines,
            ports,
        }
    }

    fn connect(&self, index: usize) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.ports[index])).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream
    }

    /// Sends this, ends the own side, and reads to the other's end.
    fn ask(&self, index: usize, text: &[u8]) -> Vec<u8> {
        let mut stream = self.connect(index);
        stream.write_all(text).expect("sent");
        stream.shutdown(Shutdown::Write).expect("open");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        answer
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rest of what a client says.
fn said(child: &mut Child) -> String {
    let mut text = String::new();
    let mut errors = child.stderr.take().expect("piped");
    errors.read_to_string(&mut text).expect("text");
    text
}

/// A pod that echoes on the port, and serves its name on the next one, on its loopback interface only.
fn echo(name: &str, port: u16, more: &str) -> String {
    let script = format!(
        "nc -ll -p {port} -e cat & mkdir /www; echo {name} >/www/name; httpd -p 127.0.0.1:{} -h /www; \
         until nc -w1 127.0.0.1 {port} </dev/null; do sleep 0.1; done; echo up; {SLEEP}",
        port + 1
    );
    let ports = format!("    ports: [{{name: echo, containerPort: {port}}}]\n");
    let pod = shell_pod(name, &script, more, &ports);
    pod.replacen("metadata:\n", "metadata:\n  labels: {app: echo}\n", 1)
}

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: front}\n\
    spec: {selector: {app: echo}, ports: [{port: 80, targetPort: echo}]}\n";

#[test]
fn a_local_port_leads_to_the_pods_loopback() {
    let agent = Agent::start();
    agent.write("a.yaml", &echo("a", 7000, ""));
    agent.write("front.yaml", SERVICE);
    agent.wait_running("a");
    agent.wait_line("a", "up");
    for args in [["a", ":7000"], ["pod/a", ":echo"], ["svc/front", ":80"]] {
        let forward = Forward::start(&agent, &args, 1);
        assert_eq!(
            forward.ask(0, b"there and back"),
            b"there and back",
            "{args:?}"
        );
    }
    // Much at a time, many at a time, and both sides at their own pace.
    let mut forward = Forward::start(&agent, &["a", ":7000", ":7009", ":7001"], 3);
    let much: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let mut stream = forward.connect(0);
    std::thread::scope(|scope| {
        let mut writer = stream.try_clone().expect("duplicated");
        let much = &much;
        scope.spawn(move || {
            writer.write_all(much).expect("sent");
            writer.shutdown(Shutdown::Write).expect("open");
        });
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        assert!(answer == *much, "{} bytes", answer.len());
    });
    // As many as there are places; further clients wait for theirs. The pod's server takes one at a time.
    let mut many: Vec<TcpStream> = Vec::new();
    for number in 0..64_u8 {
        let mut stream = forward.connect(0);
        stream.write_all(&[number]).expect("sent");
        stream.read_exact(&mut [0]).expect("an answer");
        many.push(stream);
    }
    let mut late = forward.connect(0);
    late.write_all(b"late").expect("sent");
    for (number, stream) in many.iter_mut().enumerate().rev() {
        stream
            .write_all(format!("{number:3}").as_bytes())
            .expect("sent");
        let mut answer = [0; 3];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer, format!("{number:3}").as_bytes());
    }
    late.set_nonblocking(true).expect("open");
    let waiting = late.read(&mut [0]).expect_err("it waits");
    assert_eq!(waiting.kind(), std::io::ErrorKind::WouldBlock);
    late.set_nonblocking(false).expect("open");
    drop(many);
    let mut answer = [0; 4];
    late.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"late");
    drop(late);
    let page = forward.ask(2, b"GET /name HTTP/1.0\r\n\r\n");
    assert!(
        page.ends_with(b"\r\n\r\na\n"),
        "{}",
        String::from_utf8_lossy(&page)
    );
    // A port on which nothing listens: the connection is closed, the others go on.
    assert_eq!(forward.ask(1, b""), b"");
    assert_eq!(forward.ask(0, b"still"), b"still");
    forward.child.kill().expect("own child");
    let errors = said(&mut forward.child);
    let words = format!(
        "an error occurred forwarding {} -> 7009: error forwarding port 7009 to pod a: failed to connect to \
         localhost:7009 inside the pod, IPv4: Connection refused",
        forward.ports[1]
    );
    assert!(errors.contains(&words), "{errors}");
    let mut lines = String::new();
    forward.lines.read_to_string(&mut lines).expect("text");
    let handled = format!("Handling connection for {}", forward.ports[0]);
    assert!(lines.matches(&handled).count() >= 67, "{lines}");
}

#[test]
fn nothing_is_left_of_connections_whose_client_was_killed() {
    let agent = Agent::start();
    agent.write("a.yaml", &echo("a", 7000, ""));
    agent.wait_running("a");
    agent.wait_line("a", "up");
    let descriptors = || {
        fs::read_dir(format!("/proc/{}/fd", agent.pid()))
            .expect("it runs")
            .count()
    };
    let threads = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", agent.pid())).expect("it runs");
        let names = tasks.map(|task| task.expect("read").path().join("comm"));
        let names = names.map(|comm| fs::read_to_string(comm).unwrap_or_default());
        names.collect::<Vec<String>>()
    };
    let before = (descriptors(), threads());
    let forward = Forward::start(&agent, &["a", ":7000"], 1);
    let mut streams = Vec::new();
    for _ in 0..20 {
        let mut stream = forward.connect(0);
        stream.write_all(b"x").expect("sent");
        stream.read_exact(&mut [0]).expect("an answer");
        streams.push(stream);
    }
    assert!(descriptors() >= before.0 + 40);
    drop(forward);
    let end = std::time::Instant::now() + PATIENCE;
    while descriptors() > before.0 || threads().len() > before.1.len() {
        let now = (descriptors(), threads());
        assert!(
            std::time::Instant::now() < end,
            "{now:?}, before: {before:?}"
        );
        std::thread::sleep(Duration::from_millis(50)); // There is no event to wait for.
    }
    for mut stream in streams {
        // Its end, or a reset.
        assert!(!matches!(stream.read(&mut [0]), Ok(1)));
    }
}

#[test]
fn pods_on_the_host_network_are_reached_too_and_a_pod_that_is_gone_ends_it() {
    let agent = Agent::start();
    agent.write("a.yaml", &echo("a", 7000, "  hostNetwork: true\n"));
    agent.wait_running("a");
    agent.wait_line("a", "up");
    let mut forward = Forward::start(&agent, &["a", ":7000"], 1);
    let mut stream = forward.connect(0);
    stream.write_all(b"x").expect("sent");
    stream.read_exact(&mut [0]).expect("an answer");
    agent.kill_and_restart();
    agent.wait_answer();
    assert_eq!(forward.ask(0, b"again"), b"again", "a new agent takes over");
    agent.remove("a.yaml");
    let status = forward.child.wait().expect("own child");
    assert_eq!(status.code(), Some(1));
    assert!(said(&mut forward.child).ends_with("error: lost connection to pod\n"));
}

#[test]
fn what_cannot_be_forwarded_is_named() {
    let agent = Agent::start();
    agent.write("a.yaml", &echo("a", 7000, ""));
    agent.write(
        "b.yaml",
        &shell_pod("b", "exit 0", "  restartPolicy: Never\n", ""),
    );
    agent.write("front.yaml", SERVICE);
    agent.wait_running("a");
    agent.wait_phase("b", "Succeeded");
    for (args, words, code) in [
        (["c", "80"], "pods \"c\" not found", 3),
        (["svc/none", "80"], "services \"none\" not found", 3),
        (
            ["b", "80"],
            "pod is not running. Current status=Succeeded",
            1,
        ),
        (["svc/front", "81"], "service front has no port 81", 1),
        (["a", "x"], "pod a has no port named `x`", 1),
        (["a", "0"], "`0` is no port", 2),
        (["node/x", "80"], "no ports to forward to at `node/x`", 2),
    ] {
        let output = agent.cli(&[&["port-forward"], &args[..]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(words), "{args:?}: {said}");
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    }
    let held = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = format!("{}:7000", held.local_addr().expect("bound").port());
    let output = agent.cli(&["port-forward", "a", &port, "--address", "127.0.0.1"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("Unable to listen on port"), "{said}");
    assert!(
        said.contains("unable to listen on any of the requested ports"),
        "{said}"
    );
    // kubectl's protocol is refused by name.
    let (body, _) = agent.request("/api/v1/namespaces/default/pods/a/portforward?ports=80");
    assert!(body.contains("use `coracle port-forward`"), "{body}");
}
