//! Attached pods: what they have, and that nothing is left once they are detached.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use std::{fs, thread};

use coracle::network::watch::Watch;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::node::{BRIDGE, all_talk, connect, inside, ip, links, on_a_node, talk};

#[test]
fn pods_reach_each_other_and_the_node_over_both_families() {
    on_a_node(|node| {
        let network = node.network();
        let one = network.attach(&node.pod("one")).expect("attached");
        let two = network.attach(&node.pod("two")).expect("attached");
        assert_eq!(one.ips.len(), 2, "IPv4 and IPv6: {:?}", one.ips);
        all_talk(&[&one, &two]);
        // The pods reach the node at the bridge, too.
        for gateway in network.own_addresses() {
            let listener = std::net::TcpListener::bind((gateway, 0)).expect("a listener");
            let to = listener.local_addr().expect("its address");
            inside(&one, || connect(to));
        }
        assert_eq!(
            network.name_servers().expect("the bridge is there"),
            network.own_addresses()
        );
    });
}

#[test]
fn an_interface_has_the_mtu_of_the_uplink_and_a_default_route_for_each_family() {
    on_a_node(|node| {
        let network = node.network();
        let pod = network.attach(&node.pod("one")).expect("attached");
        let seen = inside(&pod, || ip("addr") + &ip("route") + &ip("-6 route"));
        for expected in ["mtu 1400", "link/ether 0a:58:0a:", "default via 10."] {
            assert!(seen.contains(expected), "{expected}: {seen}");
        }
        assert!(seen.contains("default via fd"), "{seen}");
        assert!(!seen.contains("tentative"), "{seen}");
        assert!(seen.contains("lo: <LOOPBACK,UP"), "{seen}");
    });
}

#[test]
fn a_pod_that_is_attached_again_keeps_its_address_and_gets_a_new_namespace() {
    on_a_node(|node| {
        let network = node.network();
        let pod = node.pod("one");
        let first = network.attach(&pod).expect("attached");
        inside(&first, || ip("link add left type veth peer name over"));
        let second = network.attach(&pod).expect("attached again");
        assert_eq!(first, second);
        let seen = inside(&second, links);
        assert!(!seen.contains(&"left".to_owned()), "{seen:?}");
        talk(&second, second.ips[0], connect);
    });
}

#[test]
fn a_hundred_pods_are_attached_and_detached_and_leave_nothing() {
    on_a_node(|node| {
        let network = node.network();
        let pods: Vec<_> = (0..100).map(|i| node.pod(&format!("p{i}"))).collect();
        let half = pods.len() / 2;
        let ips: Vec<_> = thread::scope(|scope| {
            let attach = |list| {
                let network = &network;
                scope.spawn(move || {
                    let attached = |pod| network.attach(pod).expect("attached").ips;
                    Vec::from_iter(<[_]>::iter(list).map(attached))
                })
            };
            let (one, two) = (attach(&pods[..half]), attach(&pods[half..]));
            [one.join().expect("attached"), two.join().expect("attached")].concat()
        });
        let mut different: Vec<_> = ips.iter().flatten().collect();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), 2 * pods.len());
        for pod in &pods {
            network.detach(&pod.uid).expect("detached");
            network.detach(&pod.uid).expect("detached already");
        }
        assert_eq!(node.leftovers(), [""; 0]);
    });
}

#[test]
fn a_host_port_belongs_to_one_pod_until_it_is_detached() {
    on_a_node(|node| {
        let network = node.network();
        let (web, api) = (
            node.pod_with_port("web", 8080),
            node.pod_with_port("api", 8080),
        );
        network.attach(&web).expect("attached");
        for refused in [network.attach(&api).map(|_| ()), network.claim_ports(&api)] {
            let error = refused.expect_err("taken");
            assert_eq!(
                error.to_string(),
                "host port 8080/TCP is already used by pod default/web"
            );
        }
        network.detach(&web.uid).expect("detached");
        network.claim_ports(&api).expect("free");
        let error = network.attach(&web).expect_err("claimed");
        assert_eq!(
            error.to_string(),
            "host port 8080/TCP is already used by pod default/api"
        );
        network.detach(&api.uid).expect("released");
        network.attach(&web).expect("free again");
    });
}

#[test]
fn a_host_port_leads_to_the_pod_from_the_node_itself_and_from_pods() {
    on_a_node(|node| {
        let network = node.network();
        let web = network
            .attach(&node.pod_with_port("web", 8080))
            .expect("attached");
        let other = network.attach(&node.pod("other")).expect("attached");
        let listen = || TcpListener::bind("[::]:80").expect("a listener");
        let listener = inside(&web, listen);
        let mut addresses = network.own_addresses();
        for address in ["127.0.0.1", "::1", "192.0.2.2"] {
            addresses.push(address.parse().expect("an address"));
        }
        for address in addresses {
            let to = SocketAddr::new(address, 8080);
            connect(to);
            listener.accept().expect("a client of the node");
            if !address.is_loopback() {
                for client in [&web, &other] {
                    inside(client, || connect(to));
                    listener.accept().expect("a client in a pod");
                }
            }
        }
    });
}

#[test]
fn traffic_is_counted_from_the_pods_side() {
    on_a_node(|node| {
        let network = node.network();
        let pod = node.pod("one");
        let attached = network.attach(&pod).expect("attached");
        let before = network.traffic()[&pod.uid];
        inside(&attached, || {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket");
            let to = (network.own_addresses()[0], 9);
            for _ in 0..10 {
                // The node may refuse the datagram: nothing listens there.
                let _refused = socket.send_to(&[0; 1000], to);
            }
        });
        // The first ones wait for the neighbour's address, and no event tells of counters.
        let deadline = Instant::now() + Duration::from_secs(30);
        let (after, sent) = loop {
            let after = network.traffic()[&pod.uid];
            let sent = after.tx_bytes - before.tx_bytes;
            if sent > 4_000 {
                break (after, sent);
            }
            assert!(Instant::now() < deadline, "{before:?} {after:?}");
            thread::sleep(Duration::from_millis(10));
        };
        let received = after.rx_bytes - before.rx_bytes;
        assert!(received < sent, "{before:?} {after:?}");
        assert_eq!(network.traffic().len(), 1);
    });
}

#[test]
fn a_change_of_links_and_addresses_is_reported() {
    on_a_node(|node| {
        let watch = Watch::open().expect("a socket");
        assert_eq!(watch.drain().expect("nothing"), Default::default());
        ip("addr add 198.51.100.1/24 dev eth0");
        let mut ready = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut ready, PollTimeout::from(10_000_u16)), Ok(1));
        let change = watch.drain().expect("a change");
        assert!(change.addresses && !change.links, "{change:?}");
        let network = node.network();
        network.attach(&node.pod("one")).expect("attached");
        let change = watch.drain().expect("a change");
        assert!(change.addresses && change.links, "{change:?}");
        fs::write("/proc/sys/net/ipv4/ip_forward", "0").expect("a switch");
        assert!(watch.drain().expect("a change").links, "forwarding");
        network.reconcile().expect("repaired");
        let forwards = fs::read_to_string("/proc/sys/net/ipv4/ip_forward");
        assert_eq!(forwards.expect("a switch").trim(), "1");
    });
}

/// Otherwise each check would cause the next one.
#[test]
fn a_check_that_finds_nothing_to_repair_changes_nothing() {
    on_a_node(|node| {
        let network = node.network();
        let pod = network.attach(&node.pod("one")).expect("attached");
        talk(&pod, pod.ips[1], connect);
        let watch = Watch::open().expect("a socket");
        network.reconcile().expect("nothing to repair");
        assert_eq!(watch.drain().expect("nothing"), Default::default());
        let routes = ip("-6 route show table local");
        assert!(
            routes.contains(&format!("local ::1 dev {BRIDGE}")),
            "{routes}"
        );
    });
}

/// There is no assertion about time, because the machine is shared. `--nocapture` shows the figures.
#[test]
fn figures_of_attach_and_detach() {
    on_a_node(|node| {
        let network = node.network();
        let mut times = Vec::new();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_test_writer()
            .finish();
        let _parts_of_each = tracing::subscriber::set_default(subscriber);
        let begin = Instant::now();
        network.attach(&node.pod("first")).expect("attached");
        println!("first pod, with the bridge: {:?}", begin.elapsed());
        let pods: Vec<_> = (0..50).map(|i| node.pod(&format!("p{i}"))).collect();
        for pod in &pods {
            let begin = Instant::now();
            network.attach(pod).expect("attached");
            times.push(begin.elapsed());
        }
        times.sort_unstable();
        println!("attach: median {:?}, slowest {:?}", times[25], times[49]);
        let begin = Instant::now();
        network.reconcile().expect("nothing to repair");
        println!(
            "reconcile of 51 pods, nothing to repair: {:?}",
            begin.elapsed()
        );
        let mut times = Vec::new();
        for pod in &pods {
            let begin = Instant::now();
            network.detach(&pod.uid).expect("detached");
            times.push(begin.elapsed());
        }
        times.sort_unstable();
        println!("detach: median {:?}, slowest {:?}", times[25], times[49]);
    });
}
