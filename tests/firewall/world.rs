//! A node with a bridge, two pods and a neighbour on its uplink, each a network namespace; and programs in them that
//! report which address they saw.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use coracle::network::firewall::{HostPort, PodRules, Ruleset, ServiceRoute};
use coracle::spec::{PodUid, Protocol};
use nix::sched::{CloneFlags, setns};

/// An answer that takes longer counts as none.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// The names of the namespaces, which are removed when this is dropped.
pub(crate) struct World {
    pub(crate) node: String,
    pub(crate) a: String,
    pub(crate) b: String,
    pub(crate) remote: String,
}

const SCRIPT: &str = r#"
set -e
for n in $N $A $B $R; do ip netns add $n; ip -n $n link set lo up; done
ip -n $N link add coracle0 address 0a:58:0a:4d:00:01 type bridge
ip -n $N link set coracle0 up
ip -n $N addr add 10.77.0.1/20 dev coracle0
ip -n $N addr add fd77::1/64 dev coracle0 nodad
pod() {
    ip netns exec $1 sysctl -qw net.ipv6.conf.default.accept_dad=0
    ip -n $N link add vcab$2 type veth peer name eth0 netns $1 address 0a:58:0a:4d:00:0$2
    ip -n $N link set vcab$2 master coracle0 up
    ip -n $N link set vcab$2 type bridge_slave hairpin on
    ip -n $1 link set eth0 up
    ip -n $1 addr add 10.77.0.$2/20 dev eth0
    ip -n $1 addr add fd77::$2/64 dev eth0 nodad
    ip -n $1 route add default via 10.77.0.1
    ip -n $1 route add default via fd77::1
}
pod $A 2
pod $B 3
ip -n $N link add up0 type veth peer name eth0 netns $R
ip -n $N link set up0 up
ip -n $R link set eth0 up
ip -n $N addr add 192.0.2.1/24 dev up0
ip -n $N addr add 2001:db8::1/64 dev up0 nodad
ip -n $R addr add 192.0.2.2/24 dev eth0
ip -n $R addr add 2001:db8::2/64 dev eth0 nodad
ip -n $R route add 10.96.0.0/20 via 192.0.2.1
ip -n $R route add fd96::/112 via 2001:db8::1
ip -n $N route add 10.96.0.0/20 dev coracle0
ip -n $N route add fd96::/112 dev coracle0
ip -n $N -6 route add local ::1/128 dev coracle0 table local metric 2048
ip netns exec $N sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.coracle0.route_localnet=1
ip netns exec $N sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0
ip netns exec $N sh -c 'for f in /proc/sys/net/bridge/bridge-nf-call-ip*tables; do if [ -e $f ]; then echo 0 >$f; fi; done'
"#;

impl World {
    pub(crate) fn new() -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = |part| format!("cfw{}-{number}-{part}", std::process::id());
        let world = Self {
            node: name("n"),
            a: name("a"),
            b: name("b"),
            remote: name("r"),
        };
        let output = Command::new("sh")
            .args(["-c", SCRIPT])
            .envs([
                ("N", &world.node),
                ("A", &world.a),
                ("B", &world.b),
                ("R", &world.remote),
            ])
            .output()
            .expect("sh");
        assert!(
            output.status.success(),
            "{}: is `iproute2` installed?",
            show(&output)
        );
        world
    }

    /// Runs a program in a namespace.
    pub(crate) fn run(&self, netns: &str, command: &str) -> String {
        let output = Command::new("ip")
            .args(["netns", "exec", netns, "sh", "-c", command])
            .output()
            .expect("ip");
        assert!(output.status.success(), "`{command}`: {}", show(&output));
        String::from_utf8(output.stdout).expect("text")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for netns in [&self.node, &self.a, &self.b, &self.remote] {
            let _ = Command::new("ip").args(["netns", "del", netns]).output();
        }
    }
}

fn show(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Runs a function on a thread in a namespace.
pub(crate) fn inside<T: Send>(netns: &str, f: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        scope
            .spawn(|| {
                enter(netns);
                f()
            })
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn enter(netns: &str) {
    let file = File::open(Path::new("/run/netns").join(netns)).expect("a namespace");
    setns(file, CloneFlags::CLONE_NEWNET).expect("setns");
}

/// Answers on a port of both families and transports with its own name and the client's address. Ends with the test.
pub(crate) fn serve(netns: &str, name: &'static str, port: u16) {
    let any: SocketAddr = format!("[::]:{port}").parse().expect("an address");
    let (tcp, udp) = inside(netns, || {
        (
            TcpListener::bind(any).expect("tcp"),
            UdpSocket::bind(any).expect("udp"),
        )
    });
    let answer = move |peer: SocketAddr| format!("{name} {}", peer.ip().to_canonical());
    thread::spawn(move || {
        while let Ok((mut stream, peer)) = tcp.accept() {
            let _ = stream.write_all(answer(peer).as_bytes());
        }
    });
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, peer)) = udp.recv_from(&mut buffer) {
            let _ = udp.send_to(answer(peer).as_bytes(), peer);
        }
    });
}

/// Makes a request over TCP.
pub(crate) fn tcp(netns: &str, to: &str) -> Result<String, ErrorKind> {
    let to: SocketAddr = to.parse().expect("an address");
    inside(netns, || {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE).map_err(|e| e.kind())?;
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut text = String::new();
        stream.read_to_string(&mut text).map_err(|e| e.kind())?;
        Ok(text)
    })
}

/// Makes a request over UDP.
pub(crate) fn udp(netns: &str, to: &str) -> Result<String, ErrorKind> {
    Asker::new(netns, to).ask(PATIENCE)
}

/// A UDP client that keeps its port.
pub(crate) struct Asker(UdpSocket);

impl Asker {
    pub(crate) fn new(netns: &str, to: &str) -> Self {
        let to: SocketAddr = to.parse().expect("an address");
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = inside(netns, || {
            let socket = UdpSocket::bind(any).expect("udp");
            socket.connect(to).expect("connect");
            socket
        });
        Self(socket)
    }

    pub(crate) fn ask(&self, patience: Duration) -> Result<String, ErrorKind> {
        self.0.set_read_timeout(Some(patience)).expect("a timeout");
        let mut buffer = [0; 64];
        let asked = self.0.send(b"?").and_then(|_| self.0.recv(&mut buffer));
        let length = asked.map_err(|e| e.kind())?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }
}

/// The rules of the node with pods `a` (.2) and `b` (.3).
pub(crate) fn rules(rules: &mut Ruleset) {
    rules.bridge = "coracle0".to_owned();
    rules.veth_prefix = "vcab".to_owned();
    rules.pod_cidrs = ["10.77.0.1/20", "fd77::1/64"]
        .map(|r| r.parse().expect("a range"))
        .to_vec();
    rules.service_cidrs = ["10.96.0.0/20", "fd96::/112"]
        .map(|r| r.parse().expect("a range"))
        .to_vec();
    rules.pods.extend([pod(2, &[]), pod(3, &[])]);
}

/// A pod's part of the rules.
pub(crate) fn pod(number: u16, ports: &[HostPort]) -> (PodUid, PodRules) {
    let [high, low] = number.to_be_bytes();
    let rules = PodRules {
        veth: format!("vcab{number:x}"),
        mac: [0x0a, 0x58, 10, 77, high, low],
        ips: vec![
            IpAddr::from([10, 77, high, low]),
            format!("fd77::{number:x}").parse().expect("an address"),
        ],
        host_ports: ports.to_vec(),
    };
    (PodUid::from(format!("uid-{number}").as_str()), rules)
}

pub(crate) fn host_port(protocol: Protocol, host_ip: Option<&str>, port: u16, to: u16) -> HostPort {
    HostPort {
        protocol,
        host_ip: host_ip.map(|ip| ip.parse().expect("an address")),
        port,
        to,
    }
}

pub(crate) fn service(port: u16, node_port: Option<u16>, endpoints: &[&str]) -> ServiceRoute {
    ServiceRoute {
        name: format!("default/web:{port}"),
        addresses: vec![
            "10.96.0.7".parse().expect("v4"),
            "fd96::7".parse().expect("v6"),
        ],
        protocol: Protocol::Tcp,
        port,
        node_port,
        endpoints: endpoints
            .iter()
            .map(|at| at.parse().expect("an endpoint"))
            .collect(),
        affinity: false,
    }
}
