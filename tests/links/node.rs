//! A node for one test: a network namespace with an uplink, and directories of its own.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use coracle::layout::Layout;
use coracle::network::{Attached, Network, NetworkSettings};
use coracle::spec::{ContainerPort, PodSpec, PodUid, Protocol, RestartPolicy};
use coracle::sys::netns;
use ipnet::IpNet;

use crate::pods;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The name of the bridge of every node.
pub const BRIDGE: &str = "testbr0";

/// One node; `work` runs inside its namespace.
pub struct Node {
    pub settings: NetworkSettings,
    root: PathBuf,
}

/// Runs a test on a node of its own, with an uplink `eth0`, and checks that it leaves no mount.
pub fn on_a_node(work: impl FnOnce(&Node) + Send) {
    assert!(
        nix::unistd::geteuid().is_root(),
        "these tests make network namespaces: run them as root"
    );
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("coracle-links-{}-{number}", std::process::id());
    let root = std::env::temp_dir().join(name);
    let layout = Layout {
        root: root.join("root"),
        run_dir: root.join("run"),
        log_dir: root.join("log"),
    };
    fs::create_dir_all(layout.pods_run_dir()).expect("a run directory");
    let node = Node {
        settings: NetworkSettings {
            layout,
            bridge: BRIDGE.to_owned(),
            pod_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
        },
        root,
    };
    let node = &node;
    let done = thread::scope(|scope| {
        let inside = scope.spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a namespace");
            ip("link set lo up");
            // Not of kind dummy, which many kernels lack.
            ip("link add eth0 mtu 1400 type veth peer name wire mtu 1400");
            ip("link set eth0 up");
            ip("link set wire up");
            ip("addr add 192.0.2.2/24 dev eth0");
            ip("route add default via 192.0.2.1");
            work(node);
        });
        inside.join()
    });
    let _best_effort = coracle::sys::mount::unmount_below(&node.root);
    let _best_effort = fs::remove_dir_all(&node.root);
    if let Err(panic) = done {
        std::panic::resume_unwind(panic);
    }
}

impl Node {
    /// The network of a new agent.
    pub fn network(&self) -> Network {
        Network::new(self.settings.clone())
    }

    /// A network whose pods have these ranges.
    pub fn network_with(&self, pod_cidrs: &[&str]) -> Network {
        let mut settings = self.settings.clone();
        settings.pod_cidrs = nets(pod_cidrs);
        Network::new(settings)
    }

    /// A pod whose folder exists, as at the time when it is attached.
    pub fn pod(&self, name: &str) -> PodSpec {
        let pod = pods::pod(&format!("uid-{name}"), name, RestartPolicy::Always, &["c"]);
        let folder = self.settings.layout.pod_run(&pod.uid).dir;
        fs::create_dir_all(folder).expect("the pod's folder");
        pod
    }

    /// Such a pod with a port of the node.
    pub fn pod_with_port(&self, name: &str, port: u16) -> PodSpec {
        let mut pod = self.pod(name);
        pod.containers[0].ports.push(ContainerPort {
            name: None,
            container_port: 80,
            host_port: Some(port),
            host_ip: None,
            protocol: Protocol::Tcp,
        });
        pod
    }

    /// All that coracle has made: interfaces, pins, allocation files.
    pub fn leftovers(&self) -> Vec<String> {
        let mut found: Vec<String> = links()
            .into_iter()
            .filter(|name| name.starts_with("vc"))
            .collect();
        let layout = &self.settings.layout;
        for entry in fs::read_dir(layout.netns_dir()).into_iter().flatten() {
            found.push(entry.expect("an entry").path().display().to_string());
        }
        for entry in fs::read_dir(layout.pods_run_dir()).into_iter().flatten() {
            let file = entry.expect("an entry").path().join("network.json");
            if file.exists() {
                found.push(file.display().to_string());
            }
        }
        found
    }

    /// The path of a pod's pin.
    pub fn pin(&self, pod: &PodSpec) -> PathBuf {
        self.settings.layout.netns(&pod.uid)
    }
}

/// Runs `ip` in the caller's namespace.
pub fn ip(arguments: &str) -> String {
    run("ip", arguments)
}

/// Runs a program with arguments; it must succeed.
pub fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; install iproute2"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The names of all interfaces.
pub fn links() -> Vec<String> {
    ip("-o link")
        .lines()
        .filter_map(|line| line.split(": ").nth(1))
        .map(|name| name.split('@').next().unwrap_or(name).to_owned())
        .collect()
}

/// Runs `work` in a pod's namespace.
pub fn inside<T: Send>(pod: &Attached, work: impl FnOnce() -> T + Send) -> T {
    netns::enter(&pod.netns, || Ok(()), |(), _| Ok::<_, io::Error>(work()))
        .expect("the pod's namespace")
}

/// Sends text to a pod's address and checks that it comes back. The listener is in `server`.
pub fn talk(server: &Attached, address: IpAddr, connect: impl FnOnce(SocketAddr) -> TcpStream) {
    let listener =
        inside(server, || TcpListener::bind(SocketAddr::new(address, 0))).expect("a listener");
    let to = listener.local_addr().expect("its address");
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut client, _) = listener.accept().expect("a client");
            let mut text = [0; 5];
            client.read_exact(&mut text).expect("a text");
            client.write_all(&text).expect("an answer");
        });
        let mut client = connect(to);
        client.write_all(b"hello").expect("sent");
        let mut text = [0; 5];
        client.read_exact(&mut text).expect("an answer");
        assert_eq!(&text, b"hello");
    });
}

/// Connects from the caller's namespace.
pub fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&to, Duration::from_secs(10))
        .unwrap_or_else(|error| panic!("{to}: {error}"));
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a deadline");
    stream
}

/// Checks that all pods reach each other and themselves, and that the node reaches the pods, at every address.
pub fn all_talk(pods: &[&Attached]) {
    for server in pods {
        for address in &server.ips {
            talk(server, *address, connect);
            for client in pods {
                talk(server, *address, |to| inside(client, || connect(to)));
            }
        }
    }
}

pub fn nets(list: &[&str]) -> Vec<IpNet> {
    list.iter()
        .map(|net| net.parse().expect("a range"))
        .collect()
}

/// Recovers the network with these live pods; returns their addresses.
pub fn recover(network: &Network, live: &[&PodSpec]) -> BTreeMap<PodUid, Vec<IpAddr>> {
    let live: Vec<Arc<PodSpec>> = live.iter().map(|pod| Arc::new((*pod).clone())).collect();
    let mut found = BTreeMap::new();
    network.recover(&live, |addresses| found = addresses);
    found
}

pub fn uid(name: &str) -> PodUid {
    PodUid::from(format!("uid-{name}").as_str())
}
