//! Tests of `Zone` and `answer`: queries as a table. Invalid queries are in `query_test.rs`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use domain::base::iana::{Class, Rcode, Rtype};
use domain::base::{Message, MessageBuilder, Name, ParsedRecord};
use domain::rdata::AllRecordData;

use super::answer::{Knowledge, Outcome, answer};
use super::query::{Query, Transport};
use super::zone::Zone;
use crate::spec::cluster::{ClusterView, Endpoint, PodEntry, ServiceEntry};
use crate::spec::{PodKey, Protocol, ServiceAddress, ServicePort, ServiceSpec, TargetPort};

fn key(name: &str) -> PodKey {
    let (namespace, name) = name.split_once('/').unwrap();
    PodKey::new(namespace, name)
}

fn ips(text: &str) -> Vec<IpAddr> {
    text.split_whitespace()
        .map(|ip| ip.parse().unwrap())
        .collect()
}

fn pod(name: &str, addresses: &str) -> PodEntry {
    PodEntry {
        key: key(name),
        ips: ips(addresses),
        host_network: addresses.starts_with("192.0.2."),
        hostname: String::new(),
        subdomain: None,
        ready: true,
    }
}

fn service(
    name: &str,
    address: ServiceAddress,
    ports: &[(&str, Protocol, u16)],
    endpoints: Vec<Endpoint>,
) -> ServiceEntry {
    let ports = ports
        .iter()
        .map(|(name, protocol, port)| ServicePort {
            name: (*name).to_owned(),
            protocol: *protocol,
            port: *port,
            target: TargetPort::Number(*port),
            node_port: None,
        })
        .collect();
    ServiceEntry {
        spec: Arc::new(ServiceSpec {
            families: crate::spec::Families::All { v6_first: false },
            key: key(name),
            selector: BTreeMap::new(),
            address,
            ports,
            aliases: Vec::new(),
            with_unready: false,
            client_affinity: false,
            warnings: Vec::new(),
        }),
        endpoints,
    }
}

fn endpoint(pod: &str, hostname: Option<&str>, addresses: &str, ports: &[Option<u16>]) -> Endpoint {
    Endpoint {
        pod: key(pod),
        hostname: hostname.map(str::to_owned),
        ips: ips(addresses),
        ports: ports.to_vec(),
    }
}

fn external(name: &str, target: &str) -> ServiceEntry {
    let address = ServiceAddress::External(target.to_owned());
    service(name, address, &[], Vec::new())
}

/// A node with some of everything.
fn zone() -> Zone {
    use Protocol::{Tcp, Udp};
    let pods = vec![
        pod("default/web-0", "10.88.0.2 fd00::2"),
        pod("default/web-1", "10.88.0.3"),
        pod("default/alone", "10.88.0.4"),
        pod("ops/agent", "192.0.2.1"),
        pod("ops/other", "192.0.2.1"),
        pod("ops/alone", "192.0.2.2"),
    ];
    let db = vec![
        endpoint(
            "default/web-0",
            Some("web-0"),
            "10.88.0.2 fd00::2",
            &[Some(5432)],
        ),
        endpoint("default/web-1", None, "10.88.0.3", &[None]),
    ];
    let many = (0..100)
        .map(|n| endpoint("default/web-1", None, &format!("10.88.1.{n}"), &[Some(80)]))
        .collect();
    let mut services = vec![
        service(
            "default/web",
            ServiceAddress::Any,
            &[("http", Tcp, 80), ("dns", Udp, 53)],
            Vec::new(),
        ),
        service(
            "default/db",
            ServiceAddress::Headless,
            &[("sql", Tcp, 5432)],
            db,
        ),
        service("default/none", ServiceAddress::Headless, &[], Vec::new()),
        service(
            "default/many",
            ServiceAddress::Headless,
            &[("", Tcp, 80)],
            many,
        ),
        external("default/ext", "www.example.com"),
        external("default/camera", "192.0.2.30"),
        external("default/near", "web.default.svc.cluster.local"),
        external("default/loop", "loop.default.svc.cluster.local"),
    ];
    for (at, names) in [
        (0, &["shared"][..]),
        (1, &["app_db", "chat.example.com", "shared"]),
        (2, &["also-none"]),
    ] {
        let names = names.iter().map(|name| (*name).to_owned());
        Arc::make_mut(&mut services[at].spec).aliases = names.collect();
    }
    let addresses = BTreeMap::from([(key("default/web"), ips("10.99.0.1 fd99::1"))]);
    let mut zone = Zone::new("cluster.local", &ClusterView { pods, services }, &addresses);
    zone.set_name_servers(&ips("10.88.0.1"));
    zone
}

pub(super) fn question(name: &str, rtype: Rtype) -> Vec<u8> {
    let mut builder = MessageBuilder::new_vec();
    builder.header_mut().set_id(0x1234);
    builder.header_mut().set_rd(true);
    let mut builder = builder.question();
    builder
        .push((Name::vec_from_str(name).unwrap(), rtype))
        .unwrap();
    builder.finish()
}

/// The same with an OPT record.
pub(super) fn with_edns(question: &[u8], bytes: u16, version: u8) -> Vec<u8> {
    let mut all = question.to_vec();
    all[11] += 1;
    all.extend_from_slice(&[0, 0, 41]);
    all.extend_from_slice(&bytes.to_be_bytes());
    all.extend_from_slice(&[0, version, 0, 0, 0, 0]);
    all
}

pub(super) fn outcome(question: &[u8], transport: Transport, turn: usize) -> Outcome {
    let ranges = [
        "10.88.0.0/16".parse().unwrap(),
        "fd00::/64".parse().unwrap(),
    ];
    let known = Knowledge {
        zone: &zone(),
        ranges: &ranges,
        complete: true,
        turn,
    };
    answer(known, question, transport)
}

pub(super) fn reply(question: &[u8], transport: Transport) -> Vec<u8> {
    match outcome(question, transport, 0) {
        Outcome::Answer(reply) => reply,
        other => panic!("{other:?} is no answer"),
    }
}

/// Code and records; of each section, `|` between them.
fn show(reply: &[u8]) -> String {
    let message = Message::from_slice(reply).unwrap();
    let mut text = message.header().rcode().to_string();
    let mut section = Some(message.answer().unwrap());
    while let Some(records) = section {
        text.push_str(" |");
        for record in records {
            let record: ParsedRecord<'_, [u8]> = record.unwrap();
            if record.rtype() == Rtype::OPT {
                text.push_str(" OPT");
                continue;
            }
            assert!(record.ttl().as_secs() <= 5);
            let owner = record.owner().to_string();
            let record = record.into_any_record::<AllRecordData<_, _>>().unwrap();
            write!(text, " {owner} {} {};", record.rtype(), record.data()).unwrap();
        }
        section = records.next_section().unwrap();
    }
    text
}

/// The answer to a query in short: the zone's name is left out.
fn said(name: &str, rtype: Rtype) -> String {
    let name = name.replace('~', "cluster.local");
    match outcome(&question(&name, rtype), Transport::Tcp, 0) {
        Outcome::Answer(reply) => show(&reply)
            .replace("cluster.local", "~")
            .replace("~ SOA ns.dns.~. hostmaster.~. 1 7200 1800 86400 5;", "SOA"),
        Outcome::Forward => "forward".to_owned(),
        Outcome::Follow(links) => format!("follow {}", links.target()),
        Outcome::Ignore => "ignore".to_owned(),
    }
}

const NODATA: &str = "NOERROR | | SOA |";
const NO_NAME: &str = "NXDOMAIN | | SOA |";

#[test]
fn pods_have_their_names_and_their_addresses_as_names() {
    let cases = [
        (
            "web-0.default.pod.~",
            Rtype::A,
            "NOERROR | web-0.default.pod.~ A 10.88.0.2; | |",
        ),
        (
            "web-0.default.pod.~",
            Rtype::AAAA,
            "NOERROR | web-0.default.pod.~ AAAA fd00::2; | |",
        ),
        (
            "WEB-1.Default.pod.~",
            Rtype::A,
            "NOERROR | WEB-1.Default.pod.~ A 10.88.0.3; | |",
        ),
        ("web-1.default.pod.~", Rtype::AAAA, NODATA),
        (
            "10-88-0-3.default.pod.~",
            Rtype::A,
            "NOERROR | 10-88-0-3.default.pod.~ A 10.88.0.3; | |",
        ),
        (
            "fd00--2.default.pod.~",
            Rtype::AAAA,
            "NOERROR | fd00--2.default.pod.~ AAAA fd00::2; | |",
        ),
        ("10-88-0-9.default.pod.~", Rtype::A, NO_NAME),
        ("10-88-0-3.ops.pod.~", Rtype::A, NO_NAME),
        ("web-9.default.pod.~", Rtype::A, NO_NAME),
        ("x.web-0.default.pod.~", Rtype::A, NO_NAME),
    ];
    check(&cases);
}

#[test]
fn services_with_an_address_have_names_and_ports() {
    let cases = [
        (
            "web.default.svc.~",
            Rtype::A,
            "NOERROR | web.default.svc.~ A 10.99.0.1; | |",
        ),
        (
            "web.default.svc.~",
            Rtype::AAAA,
            "NOERROR | web.default.svc.~ AAAA fd99::1; | |",
        ),
        ("web.default.svc.~", Rtype::TXT, NODATA),
        (
            "_http._tcp.web.default.svc.~",
            Rtype::SRV,
            "NOERROR | _http._tcp.web.default.svc.~ SRV 0 100 80 web.default.svc.~; | | web.default.svc.~ A 10.99.0.1; web.default.svc.~ AAAA fd99::1;",
        ),
        ("_http._udp.web.default.svc.~", Rtype::SRV, NO_NAME),
        ("_tcp.web.default.svc.~", Rtype::SRV, NODATA),
        ("web.ops.svc.~", Rtype::A, NO_NAME),
        (
            "1.0.99.10.in-addr.arpa",
            Rtype::PTR,
            "NOERROR | 1.0.99.10.in-addr.arpa PTR web.default.svc.~.; | |",
        ),
    ];
    check(&cases);
}

#[test]
fn headless_services_stand_for_their_pods() {
    let cases = [
        (
            "db.default.svc.~",
            Rtype::A,
            "NOERROR | db.default.svc.~ A 10.88.0.2; db.default.svc.~ A 10.88.0.3; | |",
        ),
        (
            "db.default.svc.~",
            Rtype::AAAA,
            "NOERROR | db.default.svc.~ AAAA fd00::2; | |",
        ),
        (
            "web-0.db.default.svc.~",
            Rtype::A,
            "NOERROR | web-0.db.default.svc.~ A 10.88.0.2; | |",
        ),
        (
            "10-88-0-3.db.default.svc.~",
            Rtype::A,
            "NOERROR | 10-88-0-3.db.default.svc.~ A 10.88.0.3; | |",
        ),
        ("10-88-0-2.db.default.svc.~", Rtype::A, NO_NAME),
        (
            "_sql._tcp.db.default.svc.~",
            Rtype::SRV,
            "NOERROR | _sql._tcp.db.default.svc.~ SRV 0 50 5432 web-0.db.default.svc.~; | | web-0.db.default.svc.~ A 10.88.0.2; web-0.db.default.svc.~ AAAA fd00::2;",
        ),
        ("none.default.svc.~", Rtype::A, NO_NAME),
    ];
    check(&cases);
}

#[test]
fn aliases_stand_for_all_services_that_have_them() {
    let cases = [
        (
            "App_DB.default.svc.~",
            Rtype::A,
            "NOERROR | App_DB.default.svc.~ A 10.88.0.2; App_DB.default.svc.~ A 10.88.0.3; | |",
        ),
        (
            "chat.example.com.default.svc.~",
            Rtype::AAAA,
            "NOERROR | chat.example.com.default.svc.~ AAAA fd00::2; | |",
        ),
        // Names in between do not exist, and no other namespace has them.
        ("example.com.default.svc.~", Rtype::A, NO_NAME),
        ("app_db.ops.svc.~", Rtype::A, NO_NAME),
        ("chat.example.com", Rtype::A, "forward"),
        (
            "shared.default.svc.~",
            Rtype::A,
            "NOERROR | shared.default.svc.~ A 10.99.0.1; shared.default.svc.~ A 10.88.0.2; shared.default.svc.~ A 10.88.0.3; | |",
        ),
        ("also-none.default.svc.~", Rtype::A, NO_NAME),
    ];
    check(&cases);
}

#[test]
fn pods_know_the_node_by_the_names_of_podman_and_docker() {
    let cases = [
        (
            "host.containers.internal",
            Rtype::A,
            "NOERROR | host.containers.internal A 10.88.0.1; | |",
        ),
        (
            "Host.Docker.internal",
            Rtype::A,
            "NOERROR | Host.Docker.internal A 10.88.0.1; | |",
        ),
        ("docker.internal", Rtype::A, "forward"),
        ("host.docker.internal.default.svc.~", Rtype::A, NO_NAME),
    ];
    check(&cases);
    let nodata = said("host.docker.internal", Rtype::AAAA);
    assert!(nodata.starts_with("NOERROR | | "), "{nodata}");
}

#[test]
fn addresses_have_the_names_of_services_before_those_of_pods() {
    let cases = [
        (
            "2.0.88.10.in-addr.arpa",
            Rtype::PTR,
            "NOERROR | 2.0.88.10.in-addr.arpa PTR web-0.db.default.svc.~.; | |",
        ),
        (
            "4.0.88.10.IN-ADDR.arpa",
            Rtype::PTR,
            "NOERROR | 4.0.88.10.IN-ADDR.arpa PTR alone.default.pod.~.; | |",
        ),
        (
            "9.0.88.10.in-addr.arpa",
            Rtype::PTR,
            "NXDOMAIN | | in-addr.arpa SOA ns.dns.~. hostmaster.~. 1 7200 1800 86400 5; |",
        ),
        // The node's own address, and addresses outside the ranges.
        ("1.2.0.192.in-addr.arpa", Rtype::PTR, "forward"),
        ("2.2.0.192.in-addr.arpa", Rtype::PTR, "forward"),
        ("8.8.8.8.in-addr.arpa", Rtype::PTR, "forward"),
        ("888.0.88.10.in-addr.arpa", Rtype::PTR, "forward"),
        (
            "2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa",
            Rtype::PTR,
            "NOERROR | 2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa PTR web-0.db.default.svc.~.; | |",
        ),
    ];
    check(&cases);
}

#[test]
fn services_may_stand_for_other_names() {
    let cases = [
        ("ext.default.svc.~", Rtype::A, "follow www.example.com"),
        (
            "ext.default.svc.~",
            Rtype::CNAME,
            "NOERROR | ext.default.svc.~ CNAME www.example.com.; | |",
        ),
        (
            "ext.default.svc.~",
            Rtype::MX,
            "NOERROR | ext.default.svc.~ CNAME www.example.com.; | |",
        ),
        (
            "near.default.svc.~",
            Rtype::A,
            "NOERROR | near.default.svc.~ CNAME web.default.svc.~.; web.default.svc.~ A 10.99.0.1; | |",
        ),
        ("loop.default.svc.~", Rtype::A, "SERVFAIL | | |"),
        (
            "camera.default.svc.~",
            Rtype::A,
            "NOERROR | camera.default.svc.~ A 192.0.2.30; | |",
        ),
    ];
    check(&cases);
}

#[test]
fn the_zone_speaks_of_itself_and_ancestors_of_names_exist() {
    let cases = [
        (
            "dns-version.~",
            Rtype::TXT,
            "NOERROR | dns-version.~ TXT \"1.1.0\"; | |",
        ),
        ("~", Rtype::SOA, "NOERROR | SOA | |"),
        ("~", Rtype::NS, "NOERROR | ~ NS ns.dns.~.; | |"),
        ("ns.dns.~", Rtype::A, "NOERROR | ns.dns.~ A 10.88.0.1; | |"),
        ("~", Rtype::A, NODATA),
        ("svc.~", Rtype::A, NODATA),
        ("ops.svc.~", Rtype::A, NODATA),
        ("default.pod.~", Rtype::A, NODATA),
        ("nowhere.svc.~", Rtype::A, NO_NAME),
        ("www.example.com.default.svc.~", Rtype::A, NO_NAME),
        ("www.example.com", Rtype::A, "forward"),
        ("xcluster.local", Rtype::A, "forward"),
        ("local", Rtype::A, "forward"),
        (".", Rtype::NS, "forward"),
    ];
    check(&cases);
}

fn check(cases: &[(&str, Rtype, &str)]) {
    for (name, rtype, expected) in cases {
        assert_eq!(said(name, *rtype), *expected, "{name} {rtype}");
        let asked = question(&name.replace('~', "cluster.local"), *rtype);
        if let Outcome::Answer(plain) = outcome(&asked, Transport::Tcp, 0) {
            let reply = reply(&with_edns(&asked, 1232, 0), Transport::Tcp);
            assert_eq!(show(&reply), show(&plain) + " OPT", "{name} {rtype}");
        }
    }
}

#[test]
fn several_addresses_take_turns_to_be_first() {
    let asked = question("db.default.svc.cluster.local", Rtype::A);
    let firsts: Vec<String> = (0..4)
        .map(|turn| match outcome(&asked, Transport::Udp, turn) {
            Outcome::Answer(reply) => show(&reply).split_whitespace().nth(4).unwrap().to_owned(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        firsts,
        ["10.88.0.2;", "10.88.0.3;", "10.88.0.2;", "10.88.0.3;"]
    );
}

#[test]
fn an_answer_that_is_too_long_says_so_and_comes_by_tcp() {
    let asked = question("many.default.svc.cluster.local", Rtype::A);
    for (asked, limit) in [
        (asked.clone(), 512),
        (with_edns(&asked, 100, 0), 512),
        (with_edns(&asked, 1000, 0), 1000),
        (with_edns(&asked, 65535, 0), 1232),
    ] {
        let reply = reply(&asked, Transport::Udp);
        assert!(reply.len() <= limit);
        let message = Message::from_slice(&reply).unwrap();
        assert!(message.header().tc() && message.header_counts().ancount() == 0);
        assert_eq!(message.opt().is_some(), asked[11] > 0);
    }
    let reply = reply(&asked, Transport::Tcp);
    let message = Message::from_slice(&reply).unwrap();
    assert!(!message.header().tc() && message.header_counts().ancount() == 100);
}

#[test]
fn number_spelling_and_flags_come_back() {
    let asked = question("wEb.DEFAULT.svc.cluster.LOCAL", Rtype::A);
    let reply = reply(&asked, Transport::Udp);
    assert_eq!(reply[12..asked.len()], asked[12..]);
    let header = Message::from_slice(&reply).unwrap().header();
    assert_eq!(header.id(), 0x1234);
    assert!(header.qr() && header.aa() && header.rd() && header.ra() && !header.tc());
}

#[test]
fn what_another_server_says_follows_the_name_that_led_there() {
    let asked = question("ext.default.svc.cluster.local", Rtype::A);
    let Outcome::Follow(links) = outcome(&asked, Transport::Udp, 0) else {
        panic!("the name leads to another server");
    };
    let query = Query::read(&asked, Transport::Udp).unwrap();
    let link = "NOERROR | ext.default.svc.cluster.local CNAME www.example.com.;";
    assert_eq!(show(&links.finish(&query, None)), format!("{link} | |"));

    let upstream = question("www.example.com", Rtype::A);
    let upstream = Message::from_slice(&upstream).unwrap();
    let mut builder = MessageBuilder::new_vec()
        .start_answer(upstream, Rcode::NOERROR)
        .unwrap();
    let name = upstream.sole_question().unwrap().into_qname();
    let address = domain::rdata::A::new([192, 0, 2, 7].into());
    builder.push((name, Class::IN, 1, address)).unwrap();
    let upstream = builder.into_message();
    assert_eq!(
        show(&links.finish(&query, Some(upstream.for_slice()))),
        format!("{link} www.example.com A 192.0.2.7; | |")
    );
}

#[test]
fn until_all_names_are_known_none_is_said_to_be_missing() {
    let zone = zone();
    let code = |name: &str, complete| {
        let known = Knowledge {
            zone: &zone,
            ranges: &[],
            complete,
            turn: 0,
        };
        let asked = question(name, Rtype::A);
        match answer(known, &asked, Transport::Udp) {
            Outcome::Answer(reply) => reply[3] & 15,
            other => panic!("{name}: {other:?}"),
        }
    };
    let (missing, there) = ("no.default.svc.cluster.local", "ns.dns.cluster.local");
    assert_eq!((code(missing, false), code(missing, true)), (2, 3));
    assert_eq!((code(there, false), code(there, true)), (0, 0));
}

#[test]
fn a_zone_without_a_domain_knows_no_names_and_long_names_are_left_out() {
    let long = "a.".repeat(120) + "b";
    let view = ClusterView {
        pods: vec![pod(&format!("default/{long}"), "10.88.0.2")],
        services: Vec::new(),
    };
    for domain in ["", ".", "cluster.local", "cluster.local."] {
        let zone = Zone::new(domain, &view, &BTreeMap::new());
        let known = Knowledge {
            zone: &zone,
            ranges: &[],
            complete: true,
            turn: 0,
        };
        let asked = question("pod.cluster.local", Rtype::A);
        let ours = answer(known, &asked, Transport::Udp) != Outcome::Forward;
        assert_eq!(ours, domain.len() > 1, "{domain}");
    }
}
