//! Spoofing: a pod cannot pretend to be another. Forged frames leave one pod; the other pod and the node report which
//! of them arrived.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use coracle::network::firewall::Firewall;

use crate::world::{World, inside, rules};

/// Prints the marks of incoming frames, up to the last one.
const LISTEN: &str = r#"
import socket, sys, re
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind((sys.argv[1], 0))
print("ready", flush=True)
while True:
    frame, where = s.recvfrom(65535)
    if where[2] == socket.PACKET_OUTGOING: continue
    for mark in re.findall(rb"<([a-z0-9 -]+)>", frame):
        print(mark.decode(), flush=True)
        if mark == b"end": sys.exit()
"#;

/// Sends frames, each with a mark in it. `0a:58:0a:4d:00:02`, 10.77.0.2 and fd77::2 are the pod's own.
const SEND: &str = r#"
import socket, struct
from ipaddress import ip_address
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("eth0", 0))
ALL = b"\xff" * 6
OWN, OTHER = bytes.fromhex("0a580a4d0002"), bytes.fromhex("0a580a4d0003")
def total(data):
    data += b"\0" * (len(data) % 2)
    n = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while n >> 16: n = (n & 0xffff) + (n >> 16)
    return ~n & 0xffff
def frame(kind, body, mac=OWN): s.send(ALL + mac + struct.pack("!H", kind) + body)
def v4(mark, source, mac=OWN, ports=(5000, 5001), pre=b""):
    data = b"<" + mark.encode() + b">"
    udp = struct.pack("!HHHH", *ports, 8 + len(data), 0) + data
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0, ip_address(source).packed, ip_address("10.77.0.3").packed)
    head = head[:10] + struct.pack("!H", total(head)) + head[12:]
    s.send(ALL + mac + pre + struct.pack("!H", 0x800) + head + udp)
def v6(mark, source, next=17, body=b"\x13\x88\x13\x89\0\x08\0\0", mac=OWN, target="ff02::1"):
    body += b"<" + mark.encode() + b">"
    src, dst = ip_address(source).packed, ip_address(target).packed
    if next == 58:
        body = body[:2] + struct.pack("!H", total(src + dst + struct.pack("!II", len(body), 58) + body)) + body[4:]
    frame(0x86dd, struct.pack("!IHBB", 6 << 28, len(body), next, 255) + src + dst + body, mac)
def arp(mark, mac, source, sender=OWN):
    frame(0x806, struct.pack("!HHBBH6s4s6s4s", 1, 0x800, 6, 4, 1, mac, ip_address(source).packed, b"\0" * 6, ip_address("10.77.0.3").packed) + b"<" + mark.encode() + b">", sender)
LL = "fe80::858:aff:fe4d:2"
nd = lambda kind, target: struct.pack("!BBHI", kind, 0, 0, 0x20000000) + ip_address(target).packed
v4("own4", "10.77.0.2")
v4("other4", "10.77.0.3"); v4("bridge4", "10.77.0.1"); v4("outside4", "8.8.8.8"); v4("none4", "0.0.0.0"); v4("loop4", "127.0.0.1")
v4("mac4", "10.77.0.2", OTHER)
v4("dhcp", "10.77.0.2", ports=(67, 68))
v4("vlan", "10.77.0.2", pre=b"\x81\0\0\x05"); v4("vlan0", "10.77.0.2", pre=b"\x81\0\0\0"); v4("qinq", "10.77.0.2", pre=b"\x88\xa8\0\x05\x81\0\0\x05")
arp("own arp", OWN, "10.77.0.2")
arp("other arp", OWN, "10.77.0.1"); arp("mac arp", OTHER, "10.77.0.2"); arp("frame arp", OWN, "10.77.0.2", OTHER)
v6("own6", "fd77::2"); v6("own ll", LL)
v6("other6", "fd77::3"); v6("mac6", "fd77::2", mac=OTHER); v6("other ll", "fe80::1"); v6("none6", "::")
v6("own na", "fd77::2", 58, nd(136, "fd77::2")); v6("own ll na", LL, 58, nd(136, LL))
v6("other na", "fd77::2", 58, nd(136, "fd77::1"))
v6("ext na", "fd77::2", 60, b"\x3a\0\x01\x04\0\0\0\0" + nd(136, "fd77::1"))
v6("own ns", "fd77::2", 58, nd(135, "fd77::3"))
v6("own dad", "::", 58, nd(135, "fd77::2")); v6("other dad", "::", 58, nd(135, "fd77::3"))
v6("ra", LL, 58, struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0))
v6("redirect", LL, 58, nd(137, "fd77::3") + ip_address("fd77::3").packed)
v6("dhcp6", "fd77::2", 17, struct.pack("!HHHH", 547, 546, 8, 0))
frame(0x88cc, b"<lldp>"); frame(0x0026, b"\x42\x42\x03" + b"<stp>" + b"\0" * 40)
v4("end", "10.77.0.2")
"#;

/// The marks that arrive at the other pod and at the node.
fn arrivals(world: &World) -> [Vec<String>; 2] {
    let listeners = [(&world.b, "eth0"), (&world.node, "coracle0")].map(|(netns, device)| {
        let mut listener = python(netns, LISTEN, &[device]);
        let mut child = listener.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut lines = output.lines().map_while(Result::ok);
        assert_eq!(lines.next().as_deref(), Some("ready"));
        (child, lines)
    });
    let sent = python(&world.a, SEND, &[]).output().unwrap();
    let complaint = String::from_utf8_lossy(&sent.stderr);
    assert!(sent.status.success(), "{complaint}");
    listeners.map(|(mut child, lines)| {
        let seen = lines.collect();
        child.wait().unwrap();
        seen
    })
}

fn python(netns: &str, script: &str, args: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", netns, "python3", "-c", script]);
    command.args(args);
    command
}

#[test]
fn nothing_arrives_that_a_pod_sends_from_foreign_addresses() {
    let world = World::new();
    let firewall = Firewall::default();
    let [unprotected, _] = arrivals(&world);
    inside(&world.node, || firewall.update(rules).unwrap());
    let own = [
        "own4",
        "own arp",
        "own6",
        "own ll",
        "own na",
        "own ll na",
        "own ns",
        "own dad",
        "end",
    ];
    assert_eq!(arrivals(&world), [own, own]);
    let foreign = unprotected
        .iter()
        .filter(|mark| !own.contains(&mark.as_str()));
    assert_eq!(foreign.count(), 25, "{unprotected:?}");
}
