//! A node among other hosts: `node` - `lan` (switch and router) - `remote` and `other`, with a host `far` behind the
//! router. No host has a route to the pods: traffic that reaches pods was sent to the node's address.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use super::common::archives::Image;
use super::common::netns::Netns;
use super::common::{Agent, PATIENCE, archive, coracle};

pub(crate) const NODE4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10));
pub(crate) const NODE6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x10));
pub(crate) const REMOTE4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 11));
pub(crate) const REMOTE6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x11));
pub(crate) const OTHER4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 12));
pub(crate) const FAR4: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
pub(crate) const FAR6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1));

/// The differences of a world from the default one.
#[derive(Default)]
pub(crate) struct Plan {
    /// Lines of the agent's settings file.
    pub(crate) config: &'static str,
    pub(crate) flags: &'static [&'static str],
    /// See `Agent::prepare`.
    pub(crate) wrapper: Option<&'static str>,
    /// The node has no interface but `lo`.
    pub(crate) alone: bool,
    /// IPv6 is switched off before the agent starts.
    pub(crate) without_ipv6: bool,
    /// MTU of the uplink.
    pub(crate) mtu: Option<u32>,
    /// `ip` commands run in the node before the agent starts.
    pub(crate) node_setup: &'static [&'static str],
    /// The node's resolver file; `remote`'s address if none is given.
    pub(crate) resolv_conf: Option<&'static str>,
    /// Images beside busybox.
    pub(crate) images: &'static [Image],
}

/// A complete world.
pub(crate) struct World {
    pub(crate) agent: Agent,
    pub(crate) remote: Netns,
    pub(crate) other: Netns,
    pub(crate) lan: Netns,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Plan {
            images: &[Image::Python],
            ..Plan::default()
        })
    }

    pub(crate) fn with(plan: Plan) -> Self {
        let node = Netns::new();
        let (lan, remote, other) = (Netns::new(), Netns::new(), Netns::new());
        lay_cables(&lan);
        plug(&lan, &remote, "remote", "192.0.2.11/24", "2001:db8::11/64");
        plug(&lan, &other, "other", "192.0.2.12/24", "2001:db8::12/64");
        if plan.without_ipv6 {
            for name in ["all", "default", "lo"] {
                node.set_sysctl(&format!("ipv6/conf/{name}/disable_ipv6"), "1");
            }
        }
        if !plan.alone {
            let six = if plan.without_ipv6 {
                ""
            } else {
                "2001:db8::10/64"
            };
            plug(&lan, &node, "node", "192.0.2.10/24", six);
            if let Some(mtu) = plan.mtu {
                node.ip(&format!("link set uplink mtu {mtu}"));
            }
        }
        for line in plan.node_setup {
            node.ip(line);
        }
        let agent = start(node, &plan);
        Self {
            agent,
            remote,
            other,
            lan,
        }
    }

    pub(crate) fn node(&self) -> &Netns {
        &self.agent.netns
    }

    /// Starts a pod and waits until its first container reports that it listens.
    pub(crate) fn start_server(&self, name: &str, manifest: &str) -> Vec<IpAddr> {
        self.agent.write(&format!("{name}.yaml"), manifest);
        let pod = self.agent.wait_running(name);
        self.agent.wait_line(name, "listening");
        addresses(&pod)
    }

    /// Asks a server from inside a pod made from the python image.
    pub(crate) fn ask_from_pod(
        &self,
        pod: &str,
        protocol: &str,
        to: SocketAddr,
    ) -> Result<String, String> {
        let (ip, port) = (to.ip().to_string(), to.port().to_string());
        let args = [
            "exec", pod, "--", "python3", "-c", ASK, protocol, &ip, &port,
        ];
        let output = self.agent.cli(&args);
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() {
            Ok(said)
        } else {
            Err(format!("{said}{}", String::from_utf8_lossy(&output.stderr)))
        }
    }
}

fn start(node: Netns, plan: &Plan) -> Agent {
    let agent = Agent::prepare(Arc::new(node), plan.flags, plan.wrapper);
    let resolv_conf = agent.root.join("resolv.conf");
    let text = plan.resolv_conf.unwrap_or("nameserver 192.0.2.11\n");
    fs::write(&resolv_conf, text).expect("temp dir");
    let config = format!(
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nresolvConf: {}\n{}",
        resolv_conf.display(),
        plan.config
    );
    let file = agent.root.join("config.yaml");
    fs::write(&file, config).expect("temp dir");
    let agent = agent.with_flags(&["--config", file.to_str().expect("utf-8")]);
    agent.launch();
    let busybox = archive().to_str().expect("utf-8");
    agent.ok(&["image", "import", busybox]);
    for image in plan.images {
        agent.ok(&["image", "import", image.archive().to_str().expect("utf-8")]);
    }
    agent
}

/// The switch with the router on it.
fn lay_cables(lan: &Netns) {
    lan.ip("link add lan type bridge");
    lan.ip("addr add 192.0.2.1/24 dev lan");
    lan.ip("addr add 2001:db8::1/64 dev lan nodad");
    lan.ip("addr add 198.51.100.1/32 dev lo");
    lan.ip("addr add 2001:db8:ffff::1/128 dev lo nodad");
    lan.ip("link set lan up");
    lan.set_sysctl("ipv4/ip_forward", "1");
    lan.set_sysctl("ipv6/conf/all/forwarding", "1");
}

/// A cable from the switch to a host, whose end is called `uplink`, with addresses and default routes.
fn plug(lan: &Netns, host: &Netns, name: &str, ip4: &str, ip6: &str) {
    let path = host.path();
    lan.ip(&format!(
        "link add to-{name} type veth peer name uplink netns {path}"
    ));
    lan.ip(&format!("link set to-{name} master lan up"));
    host.ip("link set uplink up");
    host.ip(&format!("addr add {ip4} dev uplink"));
    host.ip("route add default via 192.0.2.1");
    if !ip6.is_empty() {
        host.ip(&format!("addr add {ip6} dev uplink nodad"));
        host.ip("-6 route add default via 2001:db8::1");
    }
}

/// A pod's addresses, from its JSON.
pub(crate) fn addresses(pod: &serde_json::Value) -> Vec<IpAddr> {
    let ips = pod["status"]["podIPs"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    ips.iter()
        .map(|ip| ip["ip"].as_str().and_then(|ip| ip.parse().ok()))
        .map(|ip| ip.expect("an address"))
        .collect()
}

pub(crate) fn at(ip: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(ip, port)
}

/// Asks a `who` server over TCP: the answer is its name and the client's address as it sees it.
pub(crate) fn ask_tcp(to: SocketAddr) -> io::Result<String> {
    let limit = Duration::from_secs(2);
    let mut stream = TcpStream::connect_timeout(&to, limit)?;
    stream.set_read_timeout(Some(limit))?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said.trim().to_owned())
}

/// The same over UDP.
pub(crate) fn ask_udp(to: SocketAddr) -> io::Result<String> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    socket.connect(to)?;
    socket.send(b"who?")?;
    let mut buffer = [0; 256];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).trim().to_owned())
}

/// Asks over UDP, always from the same port.
pub(crate) fn from_one_port(
    host: &Netns,
    to: SocketAddr,
) -> impl Fn() -> Result<String, String> + use<> {
    let socket = host.run(|| UdpSocket::bind(("0.0.0.0", 0)));
    let socket = socket.expect("bound");
    let limit = Duration::from_millis(200);
    socket.set_read_timeout(Some(limit)).expect("timeout");
    move || {
        let mut buffer = [0; 64];
        let asked = socket.send_to(b"who?", to);
        let length = asked.and_then(|_| socket.recv(&mut buffer));
        let length = length.map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }
}

/// Gets a page by HTTP, with its head.
pub(crate) fn get_page(to: SocketAddr, path: &str) -> io::Result<String> {
    let limit = Duration::from_secs(2);
    let mut stream = TcpStream::connect_timeout(&to, limit)?;
    stream.set_read_timeout(Some(limit))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}

/// Asks with both protocols.
pub(crate) fn ask_both(to: SocketAddr) -> [io::Result<String>; 2] {
    [ask_tcp(to), ask_udp(to)]
}

/// Asks until the wanted answer comes; returns how long that took.
pub(crate) fn ask_until(
    host: &Netns,
    to: SocketAddr,
    wanted: impl Fn(&io::Result<String>) -> bool + Sync,
) -> Duration {
    let start = Instant::now();
    host.run(|| {
        loop {
            let answer = ask_tcp(to);
            if wanted(&answer) {
                return start.elapsed();
            }
            assert!(start.elapsed() < PATIENCE, "{to}: {answer:?}");
            std::thread::sleep(Duration::from_millis(10)); // No event reports that a connection would work.
        }
    })
}

/// A `who` server at addresses of a host beside the node, until the test's process ends. It is bound to each address,
/// so that an answer over UDP comes from the address that was asked.
pub(crate) fn serve_on(host: &Netns, name: &'static str, ips: &[IpAddr], port: u16) {
    for ip in ips {
        let (listener, socket) = host.run(|| {
            let listener = TcpListener::bind((*ip, port)).expect("the port is free");
            (
                listener,
                UdpSocket::bind((*ip, port)).expect("the port is free"),
            )
        });
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                if let Ok(peer) = stream.peer_addr() {
                    let text = format!("{name} {}\n", peer.ip());
                    let _ = stream.write_all(text.as_bytes());
                }
            }
        });
        std::thread::spawn(move || {
            let mut buffer = [0; 16];
            while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
                let text = format!("{name} {}\n", peer.ip());
                let _ = socket.send_to(text.as_bytes(), peer);
            }
        });
    }
}

/// Answers with its name and the client's address, over TCP and UDP, IPv4 and IPv6: arguments name and port.
const WHO: &str = r#"
import socket, sys, threading
name, port = sys.argv[1], int(sys.argv[2])
def say(peer): return f"{name} {peer[0].removeprefix('::ffff:')}\n".encode()
def open_socket(kind):
    s = socket.socket(socket.AF_INET6, kind)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("::", port))
    return s
tcp, udp = open_socket(socket.SOCK_STREAM), open_socket(socket.SOCK_DGRAM)
tcp.listen(64)
def datagrams():
    while True:
        _, peer = udp.recvfrom(512)
        udp.sendto(say(peer), peer)
threading.Thread(target=datagrams, daemon=True).start()
print("listening", flush=True)
while True:
    stream, peer = tcp.accept()
    with stream: stream.sendall(say(peer))
"#;

/// Asks a `who` server: arguments tcp or udp, address, port.
const ASK: &str = r#"
import socket, sys
kind = socket.SOCK_DGRAM if sys.argv[1] == "udp" else socket.SOCK_STREAM
family, _, _, _, to = socket.getaddrinfo(sys.argv[2], int(sys.argv[3]), type=kind)[0]
s = socket.socket(family, kind)
s.settimeout(2)
s.connect(to)
if kind == socket.SOCK_DGRAM: s.send(b"who?")
print(s.recv(512).decode().strip())
"#;

/// A pod that runs a `who` server. `more` is YAML below `spec`, `container` YAML below the container, both indented.
pub(crate) fn who_pod(name: &str, port: u16, more: &str, container: &str) -> String {
    who_pod_with(name, "", port, more, container)
}

/// The same with labels, as `{app: x}`.
pub(crate) fn who_pod_with(
    name: &str,
    labels: &str,
    port: u16,
    more: &str,
    container: &str,
) -> String {
    let script = serde_json::to_string(WHO).expect("a string");
    let labels = if labels.is_empty() { "{}" } else { labels };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  labels: {labels}\nspec:\n  \
         terminationGracePeriodSeconds: 0\n{more}  containers:\n  - name: main\n    image: python:test\n    \
         command: [\"python3\", \"-c\", {script}, \"{name}\", \"{port}\"]\n{container}"
    )
}

/// A name server on a host beside the node; killed when dropped.
pub(crate) struct NameServer(Child);

impl NameServer {
    /// Starts a server that resolves `name`, which ends in `.test`, to `address`, and nothing else.
    pub(crate) fn start(host: &Netns, name: &str, address: &str) -> Self {
        let record = format!("--host-record={name},{address}");
        let mut command = Command::new("dnsmasq");
        command
            .args([
                "--keep-in-foreground",
                "--no-hosts",
                "--no-resolv",
                "--conf-file=/dev/null",
                "--user=root",
            ])
            .args(["--pid-file=", "--log-facility=-", "--local=/test/", &record])
            .stderr(Stdio::piped());
        let mut child = host
            .run(|| command.spawn())
            .expect("dnsmasq runs: install package dnsmasq-base");
        let stderr = child.stderr.take().expect("piped");
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        assert!(
            lines.any(|line| line.contains("started")),
            "dnsmasq does not start"
        );
        // Reads on, so that dnsmasq never waits for its log.
        std::thread::spawn(move || lines.for_each(drop));
        Self(child)
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program in a pod; returns whether it succeeded, and its output.
pub(crate) fn exec(agent: &Agent, pod: &str, command: &[&str]) -> (bool, String) {
    let mut args = vec!["exec", pod, "--"];
    args.extend(command);
    let output = coracle()
        .args(&args)
        .env("CORACLE_SOCKET", agent.socket())
        .output()
        .expect("coracle runs");
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    (output.status.success(), said)
}

/// Waits until the agent's events contain a text.
pub(crate) fn wait_event(agent: &Agent, wanted: &str) -> String {
    wait_for(&format!("an event with `{wanted}`"), || {
        let events = agent.ok(&["get", "events", "-A", "-o", "json"]);
        if events.contains(wanted) {
            Ok(events)
        } else {
            Err(events)
        }
    })
}

/// Polls for something that no event reports.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) => assert!(Instant::now() < deadline, "no {what} in time; last: {seen}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
