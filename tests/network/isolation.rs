//! Isolation: what a pod cannot do to others.

use crate::common::shell_pod;
use crate::world::*;

/// Sends frames with a foreign sender: arguments are the foreign IPv4 address, the target's address and its hardware
/// address. Nothing answers these frames; the target counts what arrives.
const SPOOF: &str = r#"
import socket, struct, sys
def checksum(b):
    s = sum(struct.unpack(f"!{len(b)//2}H", b))
    while s >> 16: s = (s & 0xffff) + (s >> 16)
    return ~s & 0xffff
foreign, target, mac = sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3].replace(":", ""))
own = bytes.fromhex(open("/sys/class/net/eth0/address").read().strip().replace(":", "")) if len(sys.argv) < 5 else bytes.fromhex(sys.argv[4].replace(":", ""))
payload = b"spoofed!"
udp = struct.pack("!HHHH", 7, 8000, 8 + len(payload), 0) + payload
head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0, socket.inet_aton(foreign), socket.inet_aton(target))
head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("eth0", 0x0800))
for _ in range(3): s.send(mac + own + b"\x08\x00" + head + udp)
print("sent")
"#;

/// Prints the sender of each datagram.
const LISTEN: &str = r#"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("0.0.0.0", 8000))
print("listening", flush=True)
while True:
    data, peer = s.recvfrom(512)
    print("from", peer[0], data.decode(), flush=True)
"#;

fn python(name: &str, script: &str, container: &str) -> String {
    let script = serde_json::to_string(script).expect("a string");
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  \
         containers:\n  - name: main\n    image: python:test\n    command: [python3, -c, {script}]\n{container}"
    )
}

/// The hardware address of `eth0` in a pod.
fn mac(world: &World, pod: &str) -> String {
    let text = exec(&world.agent, pod, &["ip", "link", "show", "eth0"]).1;
    let mut words = text
        .split_whitespace()
        .skip_while(|word| *word != "link/ether");
    words
        .nth(1)
        .unwrap_or_else(|| panic!("no address: {text}"))
        .to_owned()
}

#[test]
fn a_pod_with_raw_sockets_cannot_send_with_a_foreign_address() {
    let world = World::new();
    let raw = "    securityContext: {capabilities: {add: [NET_RAW]}}\n";
    let forever = "import signal; print('listening', flush=True); signal.pause()";
    let attacker = world.start_server("attacker", &python("attacker", forever, raw));
    let friend = world.start_server("friend", &python("friend", forever, ""));
    let target = world.start_server("target", &python("target", LISTEN, ""));
    let to = (target[0].to_string(), mac(&world, "target"));
    let own = mac(&world, "attacker");
    let send = |from: &str, hardware: &str| {
        let args = ["python3", "-c", SPOOF, from, &to.0, &to.1, hardware];
        let (fine, said) = exec(&world.agent, "attacker", &args);
        assert!(fine, "{said}");
    };
    send(&friend[0].to_string(), &own);
    send(&attacker[0].to_string(), &mac(&world, "friend"));
    send("192.0.2.77", &own);
    // The true address arrives, and was sent after all the false ones.
    send(&attacker[0].to_string(), &own);
    world
        .agent
        .wait_line("target", &format!("from {} spoofed!", attacker[0]));
    let log = world.agent.ok(&["logs", "target"]);
    assert!(
        !log.contains(&friend[0].to_string()) && !log.contains("192.0.2.77"),
        "{log}"
    );
}

#[test]
fn no_socket_of_agent_or_shim_is_reachable_in_a_pod() {
    let world = World::with(Plan::default());
    let script = "find / -xdev -type s 2>/dev/null; find /run /var/run /dev /tmp -type s 2>/dev/null; cat \
                  /proc/net/unix; echo done; exec sleep 1000";
    world.agent.write("a.yaml", &shell_pod("a", script, "", ""));
    world.agent.wait_running("a");
    world.agent.wait_line("a", "done");
    let log = world.agent.ok(&["logs", "a"]);
    let sockets = log
        .lines()
        .filter(|line| line.contains('/') || line.contains('@'));
    assert_eq!(sockets.collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(!log.contains("coracle"), "{log}");
}

#[test]
fn a_pod_cannot_change_the_nodes_network() {
    let world = World::with(Plan::default());
    let more = "    securityContext: {capabilities: {add: [NET_ADMIN, NET_RAW]}}\n";
    world
        .agent
        .write("a.yaml", &shell_pod("a", "exec sleep 1000", "", more));
    let ips = addresses(&world.agent.wait_running("a"));
    let links = world.node().links();
    assert!(
        !exec(
            &world.agent,
            "a",
            &["sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward"]
        )
        .0
    );
    // With NET_ADMIN a pod may break its own interface, but no other.
    exec(
        &world.agent,
        "a",
        &["ip", "addr", "add", "192.0.2.10/24", "dev", "eth0"],
    );
    exec(&world.agent, "a", &["ip", "link", "set", "eth0", "down"]);
    assert_eq!(world.node().links(), links);
    assert_eq!(world.node().sysctl("ipv4/ip_forward"), "1");
    assert_eq!(addresses(&world.agent.pod("a")), ips);
}

#[test]
fn pods_cannot_reach_the_nodes_loopback_although_it_is_routed_for_host_ports() {
    let world = World::new();
    let ports = "    ports: [{containerPort: 8000, hostPort: 9000}]\n";
    world.start_server("a", &who_pod("a", 8000, "", ports));
    let _listener = world
        .node()
        .run(|| std::net::TcpListener::bind(("127.0.0.1", 7777)));
    let script = "ip route add 127.0.0.7/32 via $(ip route | awk '/default/ {print $3}')";
    exec(&world.agent, "a", &["sh", "-c", script]);
    let local = "127.0.0.7".parse().expect("an address");
    assert!(world.ask_from_pod("a", "tcp", at(local, 7777)).is_err());
}

#[test]
fn a_network_policy_is_refused_by_name() {
    let world = World::with(Plan::default());
    let text = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: deny-all}\nspec: {podSelector: {}}\n";
    world.agent.write("policy.yaml", text);
    world
        .agent
        .write("a.yaml", &shell_pod("a", "exec sleep 1000", "", ""));
    world.agent.wait_running("a");
    let files = world.agent.ok(&["get", "files", "-o", "json"]);
    assert!(
        files.contains("NetworkPolicy") && files.contains("Rejected"),
        "{files}"
    );
}
