//! The name server on real sockets, queried by real programs, each test in its own network namespace: `dig`, and the
//! resolvers of busybox, glibc and musl. Other servers are dnsmasq and sockets that misbehave.

mod names_world;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use coracle::network::names::{Reach, Sockets};

use names_world::{
    Dnsmasq, SERVER, SERVER_6, STRANGER, UPSTREAM, UPSTREAM_2, address_answer, ip, odd_server,
    world, zone,
};

#[test]
fn dig_is_answered_by_udp_and_tcp_at_both_addresses() {
    world(
        || (),
        |world| {
            assert_eq!(world.port, None);
            for way in [
                "",
                "+tcp",
                "@fd00:88::1",
                "+tcp @fd00:88::1",
                "+noedns",
                "-b 10.88.0.9",
            ] {
                let short = |asked: &str| world.short(&format!("{way} {asked}"));
                assert_eq!(
                    short("web.default.svc.cluster.local A"),
                    "10.99.0.1",
                    "{way}"
                );
                assert_eq!(short("WEB.default.svc.cluster.local AAAA"), "fd99::1");
                assert_eq!(
                    short("db.default.svc.cluster.local"),
                    "10.88.1.0 10.88.1.1 10.88.1.2"
                );
                assert_eq!(short("-x 10.99.0.1"), "web.default.svc.cluster.local.");
                assert_eq!(short("-x 10.88.1.2"), "web-2.db.default.svc.cluster.local.");
                assert_eq!(short("dns-version.cluster.local TXT"), "\"1.1.0\"");
                assert_eq!(
                    short("_sql._tcp.web.default.svc.cluster.local SRV"),
                    "0 100 5432 web.default.svc.cluster.local."
                );
                assert_eq!(short("ns.dns.cluster.local A"), SERVER);
                assert_eq!(
                    world.status(&format!("{way} no.default.svc.cluster.local")),
                    "NXDOMAIN",
                    "{way}"
                );
            }
        },
    );
}

#[test]
fn a_change_of_the_zone_is_seen_at_once_and_long_answers_come_by_tcp() {
    world(
        || (),
        |world| {
            world.names.set_zone(zone(200));
            let all = world.short("+noedns db.default.svc.cluster.local");
            assert_eq!(all.split(' ').count(), 200, "dig asks again by TCP");
            let cut = world.dig("+noedns +ignore db.default.svc.cluster.local");
            assert!(cut.contains("flags: qr aa tc rd ra"), "{cut}");
            world.names.set_zone(zone(1));
            assert_eq!(world.short("db.default.svc.cluster.local"), "10.88.1.0");
        },
    );
}

#[test]
fn resolvers_of_busybox_glibc_and_musl_find_pods_services_and_outside_names() {
    world(
        || (),
        |world| {
            world.set_upstream(&[UPSTREAM]);
            let _dnsmasq = Dnsmasq::start(UPSTREAM, &["--bind-interfaces"]);
            let musl = world.folder.join("lookup");
            let source = world.folder.join("lookup.c");
            fs::write(&source, MUSL_LOOKUP).unwrap();
            let words = ["musl-gcc", "-static", "-o"].map(str::to_owned);
            let built = Command::new(&words[0])
                .args(&words[1..])
                .arg(&musl)
                .arg(&source)
                .status();
            assert!(built.expect("musl-gcc: install musl-tools").success());

            let musl = musl.to_str().unwrap().to_owned();
            let cases = [
                ("web", vec!["10.99.0.1", "fd99::1"]),
                ("web.default", vec!["10.99.0.1", "fd99::1"]),
                (
                    "web.default.svc.cluster.local",
                    vec!["10.99.0.1", "fd99::1"],
                ),
                ("db", vec!["10.88.1.0", "10.88.1.1", "10.88.1.2"]),
                ("web-1.db", vec!["10.88.1.1"]),
                ("web-2.default.pod.cluster.local", vec!["10.88.1.2"]),
                ("www.example.com", vec!["192.0.2.80", "2001:db8::80"]),
                ("ext", vec!["192.0.2.80", "2001:db8::80"]),
            ];
            for (name, addresses) in cases {
                let glibc = world.in_pod(&["getent", "ahosts", name]);
                let musl = world.in_pod(&[&musl, name]);
                for address in &addresses {
                    assert!(glibc.contains(address), "glibc: {name}: {glibc}");
                    assert!(musl.contains(address), "musl: {name}: {musl}");
                }
                // Busybox's own resolver uses the search list only for names without a dot.
                let full = match name.contains('.') {
                    true if name.ends_with("com") || name.ends_with("local") => name.to_owned(),
                    _ => format!(
                        "{}.default.svc.cluster.local",
                        name.trim_end_matches(".default")
                    ),
                };
                let busybox = world.in_pod(&["busybox", "nslookup", &full]);
                for address in &addresses {
                    assert!(busybox.contains(address), "busybox: {full}: {busybox}");
                }
            }
            for program in [vec!["getent", "ahosts", "nobody"], vec![&musl, "nobody"]] {
                let said = world.in_pod(&program);
                assert!(!said.contains("10."), "{said}");
            }
        },
    );
}

/// Prints all addresses of a name, as musl finds them.
const MUSL_LOOKUP: &str = r#"
#include <stdio.h>
#include <netdb.h>
int main(int count, char **words) {
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found;
    int failed = getaddrinfo(words[1], "80", &hints, &found);
    if (failed) { puts(gai_strerror(failed)); return 1; }
    for (; found; found = found->ai_next) {
        char text[200];
        getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, 0, 0, NI_NUMERICHOST);
        puts(text);
    }
    return 0;
}
"#;

#[test]
fn upstream_servers_may_be_missing_and_may_go_and_come_back() {
    world(
        || (),
        |world| {
            let quick = |expected: &str| {
                let began = Instant::now();
                for way in ["", "+tcp"] {
                    assert_eq!(world.status(&format!("{way} www.example.com")), expected);
                }
                assert!(
                    began.elapsed() < Duration::from_secs(3),
                    "{:?}",
                    began.elapsed()
                );
            };
            quick("SERVFAIL");
            // Without its target an alias would look like a name that does not exist.
            let alias = "ext.default.svc.cluster.local";
            assert_eq!(world.status(alias), "SERVFAIL");
            world.set_upstream(&[UPSTREAM]);
            quick("SERVFAIL");
            // A server without a route, and the name server itself, are never queried.
            world.set_upstream(&["198.51.100.1", SERVER, SERVER_6]);
            quick("SERVFAIL");
            world.set_upstream(&[UPSTREAM]);
            for _ in 0..2 {
                let dnsmasq = Dnsmasq::start(UPSTREAM, &["--bind-interfaces"]);
                quick("NOERROR");
                assert_eq!(world.short("www.example.com"), "192.0.2.80");
                assert_eq!(world.status("nobody.example.com"), "NXDOMAIN");
                assert_eq!(
                    world.short("ext.default.svc.cluster.local"),
                    "192.0.2.80 www.example.com."
                );
                let big = world.short("+noedns big.example.com TXT");
                assert_eq!(big.len(), 4 * 252 + 3, "by TCP, because it does not fit");
                assert!(
                    world
                        .dig("+noedns +ignore big.example.com TXT")
                        .contains(" tc ")
                );
                drop(dnsmasq);
                quick("SERVFAIL");
                assert_eq!(world.short("web.default.svc.cluster.local"), "10.99.0.1");
            }
        },
    );
}

#[test]
fn the_next_server_is_tried_if_one_is_silent_or_refuses_and_a_silent_one_rests() {
    world(
        || (),
        |world| {
            world.set_upstream(&[UPSTREAM_2, UPSTREAM]);
            odd_server(UPSTREAM_2, |_, _, _| ());
            let _dnsmasq = Dnsmasq::start(UPSTREAM, &["--bind-interfaces"]);
            for _ in 0..2 {
                assert_eq!(world.short("www.example.com"), "192.0.2.80");
            }
            let began = Instant::now();
            assert_eq!(world.short("www.example.com"), "192.0.2.80");
            assert!(
                began.elapsed() < Duration::from_secs(1),
                "it is queried first now"
            );
            // Without servers of its own, dnsmasq refuses names that it does not know.
            assert_eq!(world.status("www.example.org"), "SERVFAIL");
        },
    );
}

#[test]
fn only_the_answer_to_the_query_is_accepted() {
    world(
        || (),
        |world| {
            world.set_upstream(&[UPSTREAM_2]);
            let stranger = UdpSocket::bind((STRANGER, 53)).unwrap();
            odd_server(UPSTREAM_2, move |socket, question, client| {
                let wrong = |change: fn(&mut Vec<u8>)| {
                    let mut answer = address_answer(question, 66);
                    change(&mut answer);
                    answer
                };
                let _ = stranger.send_to(&address_answer(question, 66), client);
                for answer in [
                    wrong(|a| a[0] ^= 1),
                    wrong(|a| a[13] ^= 1),
                    wrong(|a| a[2] = 1),
                    wrong(|a| a.truncate(11)),
                    wrong(|a| a.truncate(20)),
                    address_answer(question, 1),
                ] {
                    let _ = socket.send_to(&answer, client);
                }
            });
            let said = world.dig("wWw.Example.Com");
            assert!(
                said.contains("192.0.2.1\n") && !said.contains(".66"),
                "{said}"
            );
            assert!(said.contains("wWw.Example.Com.\t"), "{said}");
        },
    );
}

#[test]
fn another_port_serves_every_query_if_port_53_is_taken() {
    world(
        || {
            let taken = TcpListener::bind(("::", 53)).unwrap();
            let also = UdpSocket::bind(("0.0.0.0", 1053)).unwrap();
            std::mem::forget((taken, also));
        },
        |world| {
            assert_eq!(world.port, Some(10053));
            for way in ["", "+tcp", "@fd00:88::1", "+tcp @fd00:88::1"] {
                let asked = format!("{way} web.default.svc.cluster.local");
                assert_eq!(world.short(&asked), "10.99.0.1", "{way}");
            }
        },
    );
}

#[test]
fn clients_outside_the_node_are_refused() {
    world(
        || (),
        |world| {
            world.set_upstream(&[UPSTREAM]);
            let _dnsmasq = Dnsmasq::start(UPSTREAM, &["--bind-interfaces"]);
            for way in ["", "+tcp"] {
                for name in ["www.example.com", "web.default.svc.cluster.local"] {
                    let status = world.status(&format!("{way} -b {STRANGER} {name}"));
                    assert_eq!(status, "REFUSED", "{way} {name}");
                }
            }
            let reach = Reach {
                own: vec![ip(SERVER)],
                ranges: vec!["203.0.113.0/24".parse().unwrap()],
            };
            world.names.set_reach(reach);
            assert_eq!(
                world.status(&format!("-b {STRANGER} www.example.com")),
                "NOERROR"
            );
        },
    );
}

#[test]
fn one_client_cannot_use_up_the_servers_capacity() {
    world(
        || (),
        |world| {
            world.set_upstream(&[UPSTREAM_2]);
            odd_server(UPSTREAM_2, |_, _, _| ());
            // Queries that get no answer: the first 64 wait, the others are refused at once.
            let socket = UdpSocket::bind((SERVER, 0)).unwrap();
            socket.connect((SERVER, 53)).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_secs(3)))
                .unwrap();
            let mut question = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            question.extend_from_slice(b"\x07example\x03com\x00\x00\x01\x00\x01");
            for number in 0..100 {
                question[1] = number;
                socket.send(&question).unwrap();
            }
            let mut answer = [0; 512];
            for _ in 64..100 {
                socket.recv(&mut answer).unwrap();
                assert_eq!((answer[3] & 15, answer[1] >= 64), (2, true));
            }
            // Local names are still answered, and the queries of other clients wait for their answers.
            assert_eq!(world.short("web.default.svc.cluster.local"), "10.99.0.1");

            // Connections: sixteen stay open, the next is closed. A second client still gets one.
            let connect = || TcpStream::connect((SERVER, 53)).unwrap();
            let mut open: Vec<TcpStream> = (0..16).map(|_| connect()).collect();
            let mut next = connect();
            assert!(matches!(next.read(&mut answer), Ok(0) | Err(_)), "closed");
            assert_eq!(
                world.short("+tcp -b 10.88.0.9 web.default.svc.cluster.local"),
                "10.99.0.1"
            );
            // A message that is too long ends the connection and frees its slot.
            open[0].write_all(&[0xff, 0xff]).unwrap();
            assert!(matches!(open[0].read(&mut answer), Ok(0) | Err(_)));
            open.clear();
            let answered =
                (0..100).any(|_| world.short("+tcp web.default.svc.cluster.local") == "10.99.0.1");
            assert!(answered, "slots are freed");
        },
    );
}

#[test]
fn the_server_starts_before_its_addresses_are_there() {
    world(
        || (),
        |_| {
            let missing = [ip("10.77.0.1"), ip("fd00:77::1")];
            let (sockets, port) = Sockets::bind(&missing).unwrap();
            assert_eq!(port, None);
            // A new agent can have the port as soon as the old agent is gone.
            drop(sockets);
            assert_eq!(Sockets::bind(&missing).unwrap().1, None);
        },
    );
}

#[test]
fn another_name_server_can_start_later_if_port_53_was_left_to_it() {
    world(
        || (),
        |world| {
            let addresses = [ip("10.88.0.9")];
            let (sockets, port) = Sockets::bind_apart(&addresses).unwrap();
            assert_eq!(port, Some(1053));
            let serving = world.names.clone();
            thread::spawn(move || smol::block_on(serving.serve(sockets)));
            let _dnsmasq = Dnsmasq::start(
                UPSTREAM,
                &["--bind-interfaces", "--listen-address=10.88.0.9"],
            );
            let asked = "@10.88.0.9 +tcp web.default.svc.cluster.local";
            assert_eq!(world.short(&format!("{asked} -p 1053")), "10.99.0.1");
            assert_eq!(world.status(asked), "REFUSED", "dnsmasq answers here");
        },
    );
}
