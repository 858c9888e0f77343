//! A node with a name server in its own network namespace, the names it serves, and other servers beside it.
#![allow(unreachable_pub, missing_docs, reason = "one test crate uses it")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use coracle::network::names::{Names, Reach, Sockets, Zone};
use coracle::spec::cluster::{ClusterView, Endpoint, PodEntry, ServiceEntry};
use coracle::spec::{PodKey, Protocol, ServiceAddress, ServicePort, ServiceSpec, TargetPort};
use nix::sched::{CloneFlags, unshare};

pub const SERVER: &str = "10.88.0.1";
pub const SERVER_6: &str = "fd00:88::1";
/// An address outside the node's ranges.
pub const STRANGER: &str = "203.0.113.9";
/// The address where dnsmasq runs.
pub const UPSTREAM: &str = "192.0.2.53";
/// A second upstream server that the node might have.
pub const UPSTREAM_2: &str = "192.0.2.54";

/// A node with a name server, in its own namespace.
pub struct World {
    pub names: Arc<Names>,
    pub folder: PathBuf,
    pub port: Option<u16>,
}

/// Runs a test on a thread with its own network, which the threads and programs it starts share.
pub fn world(before: impl FnOnce() + Send + 'static, test: impl FnOnce(World) + Send + 'static) {
    let ended = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("tests run as root");
        coracle::sys::loopback::up().unwrap();
        for address in [SERVER, "10.88.0.9", STRANGER, UPSTREAM, UPSTREAM_2] {
            run(&[
                "ip",
                "address",
                "add",
                &format!("{address}/32"),
                "dev",
                "lo",
            ]);
        }
        run(&[
            "ip",
            "address",
            "add",
            &format!("{SERVER_6}/128"),
            "dev",
            "lo",
        ]);
        before();
        test(World::new());
    });
    if let Err(panic) = ended.join() {
        std::panic::resume_unwind(panic);
    }
}

impl World {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
            "names-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        fs::create_dir_all(&folder).unwrap();
        let own: Vec<IpAddr> = vec![ip(SERVER), ip(SERVER_6)];
        let reach = Reach {
            own: own.clone(),
            ranges: vec!["10.88.0.0/16".parse().unwrap()],
        };
        let names = Names::new("cluster.local", folder.join("node.conf"), reach);
        names.set_zone(zone(3));
        let (sockets, port) = Sockets::bind(&own).unwrap();
        let serving = names.clone();
        thread::spawn(move || smol::block_on(serving.serve(sockets)));
        Self {
            names,
            folder,
            port,
        }
    }

    /// The node's resolv.conf names these servers from now on.
    pub fn set_upstream(&self, servers: &[&str]) {
        let lines: String = servers
            .iter()
            .map(|s| format!("nameserver {s}\n"))
            .collect();
        let next = self.folder.join("node.conf.next");
        fs::write(&next, lines).unwrap();
        fs::rename(next, self.folder.join("node.conf")).unwrap();
    }

    /// The output of `dig`.
    pub fn dig(&self, arguments: &str) -> String {
        let port = self.port.unwrap_or(53).to_string();
        let mut command = Command::new("dig");
        command.args(["-p", &port, "+time=8", "+tries=1", "+nocookie"]);
        if !arguments.contains('@') {
            command.arg(format!("@{SERVER}"));
        }
        command.args(arguments.split_whitespace());
        let out = command.output().expect("dig: install bind9-dnsutils");
        String::from_utf8(out.stdout).unwrap()
    }

    /// The sorted lines of `dig +short`.
    pub fn short(&self, arguments: &str) -> String {
        let text = self.dig(&format!("+short {arguments}"));
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        lines.join(" ")
    }

    pub fn status(&self, arguments: &str) -> String {
        let text = self.dig(arguments);
        let found = text
            .split_once("status: ")
            .and_then(|(_, rest)| rest.split(',').next());
        found.unwrap_or(&text).to_owned()
    }

    /// Runs a program with the resolv.conf of a pod.
    pub fn in_pod(&self, program: &[&str]) -> String {
        let conf = self.folder.join("pod.conf");
        let text = format!(
            "search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver {SERVER}\noptions ndots:5\n"
        );
        fs::write(&conf, text).unwrap();
        let out = Command::new("unshare")
            .args([
                "-m",
                "sh",
                "-c",
                "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"",
            ])
            .arg(conf)
            .args(program)
            .output()
            .unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn run(words: &[&str]) {
    let status = Command::new(words[0]).args(&words[1..]).status().unwrap();
    assert!(status.success(), "{words:?}");
}

pub fn key(name: &str) -> PodKey {
    PodKey::new("default", name)
}

/// Pods `web-0`, …, behind the headless service `db`, a service `web`, and an external one.
pub fn zone(pods: u8) -> Zone {
    let pods: Vec<PodEntry> = (0..pods)
        .map(|n| PodEntry {
            key: key(&format!("web-{n}")),
            ips: vec![Ipv4Addr::new(10, 88, 1, n).into()],
            host_network: false,
            hostname: format!("web-{n}"),
            subdomain: None,
            ready: true,
        })
        .collect();
    let endpoints = pods.iter().map(|pod| Endpoint {
        pod: pod.key.clone(),
        hostname: Some(pod.hostname.clone()),
        ips: pod.ips.clone(),
        ports: vec![Some(5432)],
    });
    let external = ServiceAddress::External("www.example.com".to_owned());
    let services = vec![
        service("db", ServiceAddress::Headless, endpoints.collect()),
        service("ext", external, Vec::new()),
        service("web", ServiceAddress::Any, Vec::new()),
    ];
    let addresses = BTreeMap::from([(key("web"), vec![ip("10.99.0.1"), ip("fd99::1")])]);
    Zone::new("cluster.local", &ClusterView { pods, services }, &addresses)
}

pub fn service(name: &str, address: ServiceAddress, endpoints: Vec<Endpoint>) -> ServiceEntry {
    let port = ServicePort {
        name: "sql".to_owned(),
        protocol: Protocol::Tcp,
        port: 5432,
        target: TargetPort::Number(5432),
        node_port: None,
    };
    let spec = ServiceSpec {
        families: coracle::spec::Families::All { v6_first: false },
        key: key(name),
        selector: BTreeMap::new(),
        address,
        ports: vec![port],
        aliases: Vec::new(),
        with_unready: false,
        client_affinity: false,
        warnings: Vec::new(),
    };
    ServiceEntry {
        spec: Arc::new(spec),
        endpoints,
    }
}

/// A real resolver that knows `example.com`. It ends when this is dropped.
pub struct Dnsmasq(Child);

impl Dnsmasq {
    pub fn start(address: &str, more: &[&str]) -> Self {
        let big = format!(
            "--txt-record=big.example.com{}",
            format!(",{}", "x".repeat(250)).repeat(4)
        );
        let mut child = Command::new("dnsmasq")
            .args([
                "--keep-in-foreground",
                "--conf-file=/dev/null",
                "--no-resolv",
                "--no-hosts",
            ])
            .args([
                "--pid-file",
                "--user=root",
                "--log-facility=-",
                "--local=/example.com/",
            ])
            .args([
                "--address=/www.example.com/192.0.2.80",
                "--address=/www.example.com/2001:db8::80",
            ])
            .arg(big)
            .arg(format!("--listen-address={address}"))
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .expect("dnsmasq: install dnsmasq-base");
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut lines = log.lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("started")), "dnsmasq starts");
        // A full pipe must not stop it.
        thread::spawn(move || lines.for_each(drop));
        Self(child)
    }
}

impl Drop for Dnsmasq {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server that passes each query to `reply`, which may answer any address.
pub fn odd_server(address: &str, reply: impl Fn(&UdpSocket, &[u8], SocketAddr) + Send + 'static) {
    let socket = UdpSocket::bind((address, 53)).unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((bytes, client)) = socket.recv_from(&mut buffer) {
            reply(&socket, &buffer[..bytes], client);
        }
    });
}

/// The answer to a query: one address with this last octet.
pub fn address_answer(question: &[u8], octet: u8) -> Vec<u8> {
    let end = 12 + question[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
    let mut answer = question[..end].to_vec();
    (answer[2], answer[3], answer[7], answer[11]) = (0x81, 0x80, 1, 0);
    answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, octet]);
    answer
}
