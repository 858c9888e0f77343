//! Recovery after kills, and repair of outside changes: what is in use is repaired, what is not is removed.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use coracle::spec::{IdRange, PodSpec};
use coracle::sys::user_namespace;

use crate::node::{
    BRIDGE, all_talk, connect, inside, ip, links, on_a_node, recover, run, talk, uid,
};

#[test]
fn a_restarted_agent_keeps_live_pods_and_removes_the_others() {
    on_a_node(|node| {
        let earlier = node.network();
        let (one, two) = (node.pod("one"), node.pod("two"));
        let stays = earlier.attach(&one).expect("attached");
        earlier.attach(&two).expect("attached");
        drop(earlier);

        let network = node.network();
        let found = recover(&network, &[&one]);
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [(one.uid.clone(), stays.ips.clone())]
        );
        let left = node.leftovers();
        assert_eq!(
            left.len(),
            3,
            "interface, pin and file of one pod: {left:?}"
        );
        let again = network.attach(&two).expect("attached");
        assert_ne!(again.ips, stays.ips);
        all_talk(&[&stays, &again]);
    });
}

#[test]
fn after_an_agent_restart_rules_are_removed_if_no_pod_is_left_and_restored_if_one_is() {
    on_a_node(|node| {
        let tables = || run("nft", "list tables");
        let pod = node.pod_with_port("one", 8080);
        node.network().attach(&pod).expect("attached");
        assert!(tables().contains(&format!("inet {BRIDGE}")), "{}", tables());
        run("nft", "flush ruleset");
        recover(&node.network(), &[&pod]);
        let rules = run("nft", "list ruleset");
        assert!(rules.contains("8080"), "{rules}");
        let network = node.network();
        recover(&network, &[]);
        assert!(!tables().contains(BRIDGE), "{}", tables());
        network.attach(&pod).expect("attached");
        assert!(tables().contains(BRIDGE), "{}", tables());
    });
}

#[test]
fn a_restarted_agent_removes_everything_that_a_kill_left_incomplete() {
    on_a_node(|node| {
        let earlier = node.network();
        let pods = ["pin", "veth", "file", "file-without-mount"].map(|name| node.pod(name));
        let mut names = Vec::new();
        for pod in &pods {
            let before = links();
            earlier.attach(pod).expect("attached");
            let new = links().into_iter().find(|name| !before.contains(name));
            names.push(new.expect("an interface"));
        }
        // The four cases: a pin without an interface, an interface without a pin, an allocation without either, only
        // the file of a pin.
        let file = |name| node.settings.layout.pod_run(&uid(name)).network();
        ip(&format!("link del {}", names[0]));
        fs::remove_file(file("pin")).expect("removed");
        coracle::sys::netns::unpin(&node.pin(&pods[1])).expect("unpinned");
        fs::remove_file(file("veth")).expect("removed");
        ip(&format!("link del {}", names[2]));
        coracle::sys::netns::unpin(&node.pin(&pods[2])).expect("unpinned");
        coracle::sys::netns::unpin(&node.pin(&pods[3])).expect("unpinned");
        fs::write(node.pin(&pods[3]), "").expect("a file");
        // The kernel removes interfaces some time after the last pin of their namespace.
        assert!(node.leftovers().len() >= 4, "{:?}", node.leftovers());
        drop(earlier);

        let network = node.network();
        assert!(recover(&network, &[]).is_empty());
        assert_eq!(node.leftovers(), [""; 0]);
        for pod in &pods {
            network.attach(pod).expect("attached");
        }
    });
}

#[test]
fn a_pod_is_attached_whatever_leftovers_it_has() {
    on_a_node(|node| {
        let pod = node.pod("one");
        node.network().attach(&pod).expect("attached");
        // An agent that has recovered nothing finds interface, pin and file in place.
        let again = node.network().attach(&pod).expect("attached");
        all_talk(&[&again]);
    });
}

#[test]
fn a_pod_that_could_not_be_attached_does_not_affect_others() {
    on_a_node(|node| {
        let network = node.network();
        let pod = node.pod("one");
        let in_the_way = node.pin(&pod).join("file");
        fs::create_dir_all(&in_the_way).expect("a folder");
        network.attach(&pod).expect_err("no place for the pin");
        network.reconcile().expect("nothing to repair");
        assert_eq!(network.traffic().len(), 0);
        fs::remove_dir_all(node.pin(&pod)).expect("removed");
        let attached = network.attach(&pod).expect("attached");
        all_talk(&[&attached]);
    });
}

#[test]
fn a_bridge_deleted_by_hand_is_made_again_with_everything_on_it() {
    on_a_node(|node| {
        let network = node.network();
        let one = network.attach(&node.pod("one")).expect("attached");
        let two = network.attach(&node.pod("two")).expect("attached");
        ip(&format!("link del {BRIDGE}"));
        network.reconcile().expect("repaired");
        all_talk(&[&one, &two]);
        ip(&format!("link del {BRIDGE}"));
        let three = network.attach(&node.pod("three")).expect("attached");
        network.reconcile().expect("repaired");
        all_talk(&[&one, &three]);
    });
}

#[test]
fn a_network_that_belongs_to_a_user_namespace_is_attached_and_mended_like_others() {
    on_a_node(|node| {
        let earlier = node.network();
        let (pod, other) = (node.pod("own"), node.pod("other"));
        let range = IdRange {
            first: 131_072,
            count: 65_536,
        };
        let own = earlier.attach_with(&pod, Some(range)).expect("attached");
        let other = [&other].map(|pod| earlier.attach(pod).expect("attached"));
        let owner = |pod: &PodSpec| {
            let pin = fs::File::open(node.pin(pod)).expect("a pin");
            let owner = user_namespace::owner(pin.as_fd()).expect("it has one");
            fs::File::from(owner).metadata().expect("open").ino()
        };
        let users = owner(&pod);
        let node_users = fs::metadata("/proc/self/ns/user").expect("there").ino();
        assert_ne!(users, node_users);
        assert_eq!(owner(&node.pod("other")), node_users);
        all_talk(&[&own, &other[0]]);
        // Without its interface, a live pod gets another in the same namespace.
        for name in links().iter().filter(|name| name.starts_with("vc")) {
            ip(&format!("link del {name}"));
        }
        drop(earlier);
        let network = node.network();
        recover(&network, &[&pod, &node.pod("other")]);
        all_talk(&[&own, &other[0]]);
        assert_eq!(owner(&pod), users);
        let again = network.attach_with(&pod, Some(range)).expect("attached");
        all_talk(&[&again, &other[0]]);
        assert_ne!(owner(&pod), node_users);
    });
}

/// Sends an LLDP frame, which no bridge forwards, with a given hardware address as its sender.
const SEND_TO_THE_LINK: &str = "
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(('eth0', 0))
sender = bytes.fromhex(sys.argv[1].replace(':', ''))
s.send(bytes.fromhex('0180c200000e') + sender + bytes.fromhex('88cc') + bytes(50))
";

#[test]
fn a_pod_cannot_redirect_another_pods_traffic_by_frames_for_the_bridge_itself() {
    on_a_node(|node| {
        let network = node.network();
        let one = network.attach(&node.pod("one")).expect("attached");
        let two = network.attach(&node.pod("two")).expect("attached");
        let mac = |pod| {
            inside(pod, || {
                let shown = ip("-o link show eth0");
                let words = shown.split(' ').skip_while(|word| *word != "link/ether");
                words.skip(1).take(1).collect::<String>()
            })
        };
        // The bridge's port at which it has learned a pod's address.
        let port = |pod| {
            let (mac, all) = (mac(pod), run("bridge", &format!("fdb show br {BRIDGE}")));
            let line = all.lines().find(|line| line.starts_with(&mac))?;
            Some(line.split(' ').nth(2).expect("a port").to_owned())
        };
        let turned = || {
            let of_two = mac(&two);
            let sent = inside(&one, || {
                let mut python = std::process::Command::new("python3");
                python.args(["-c", SEND_TO_THE_LINK, &of_two]).status()
            });
            assert!(sent.expect("python3").success());
            port(&two) == port(&one)
        };
        let before = links();
        ip(&format!(
            "link set {BRIDGE} type bridge no_linklocal_learn 0"
        ));
        all_talk(&[&one]);
        let begun = std::time::Instant::now();
        while !turned() {
            // While its interface is new, the pod's kernel sends packets of its own, which undo the learned entry.
            assert!(
                begun.elapsed().as_secs() < 30,
                "the bridge never learns from the frame"
            );
        }
        network.reconcile().expect("repaired");
        all_talk(&[&one, &two]);
        assert!(
            !turned(),
            "the repaired bridge does not learn from the frame"
        );
        assert_eq!(links(), before);
        // A new bridge ignores such frames from the start.
        ip(&format!("link del {BRIDGE}"));
        network.reconcile().expect("repaired");
        all_talk(&[&one]);
        assert!(!turned());
    });
}

#[test]
fn changes_by_hand_are_repaired_and_one_broken_pod_does_not_stop_the_repair_of_others() {
    on_a_node(|node| {
        let network = node.network();
        let pods = ["gone", "one", "two"].map(|name| node.pod(name));
        let attached = pods
            .each_ref()
            .map(|pod| network.attach(pod).expect("attached"));
        let names: Vec<String> = links()
            .into_iter()
            .filter(|n| n.starts_with("vc"))
            .collect();
        ip(&format!("addr flush dev {BRIDGE}"));
        ip(&format!("addr add 10.9.9.9/24 dev {BRIDGE}"));
        ip(&format!("link set {BRIDGE} down"));
        ip("link set eth0 mtu 1300");
        ip("link set wire mtu 1300");
        ip(&format!("link set {} nomaster", names[1]));
        ip(&format!("link del {}", names[2]));
        network.reconcile().expect("repaired");
        all_talk(&attached.each_ref());
        let seen = inside(&attached[1], || ip("link show eth0")) + &ip("addr");
        assert_eq!(seen.matches("mtu 1300").count(), 7, "{seen}");
        assert!(!seen.contains("10.9.9.9"), "{seen}");

        // The interface and the pin of one pod are gone for good; the others are repaired all the same.
        ip(&format!("link del {}", names[0]));
        coracle::sys::netns::unpin(&node.pin(&pods[0])).expect("unpinned");
        ip(&format!("link set {} down", names[1]));
        let error = network.reconcile().expect_err("one pod cannot be repaired");
        assert!(error.to_string().contains("default/gone"), "{error}");
        all_talk(&[&attached[1], &attached[2]]);
    });
}

#[test]
fn a_renamed_interface_is_made_again() {
    on_a_node(|node| {
        let network = node.network();
        let attached = network.attach(&node.pod("one")).expect("attached");
        let name = links().into_iter().find(|name| name.starts_with("vc"));
        let name = name.expect("an interface");
        ip(&format!("link set {name} down"));
        ip(&format!("link set {name} name other"));
        network.reconcile().expect("repaired");
        assert!(links().contains(&name), "{:?}", links());
        assert!(!links().contains(&"other".to_owned()), "{:?}", links());
        all_talk(&[&attached]);
    });
}

#[test]
fn flushed_routes_of_the_bridge_are_restored() {
    on_a_node(|node| {
        let network = node.network();
        let attached = network.attach(&node.pod("one")).expect("attached");
        let routes = || {
            ip(&format!("route show dev {BRIDGE}")) + &ip(&format!("-6 route show dev {BRIDGE}"))
        };
        let before = routes();
        ip(&format!("route flush dev {BRIDGE}"));
        ip(&format!("-6 route flush dev {BRIDGE}"));
        network.reconcile().expect("repaired");
        let after = routes();
        let own = before.lines().filter(|line| !line.starts_with("fe80"));
        for line in own {
            assert!(after.contains(line), "`{line}` is not in {after}");
        }
        all_talk(&[&attached]);
    });
}

#[test]
fn pods_are_attached_and_repaired_after_ipv6_was_disabled_on_the_running_node() {
    on_a_node(|node| {
        let one = node.pod("one");
        let network = node.network();
        let attached = network.attach(&one).expect("attached");
        for name in ["all", "default"] {
            let switch = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
            fs::write(switch, "1").expect("a switch");
        }
        network.reconcile().expect("the rest is repaired");
        ip(&format!("link del {BRIDGE}"));
        let two = network.attach(&node.pod("two")).expect("attached");
        network.reconcile().expect("repaired");
        let (client, to) = (&two, attached.ips[0]);
        talk(&attached, to, |to| inside(client, || connect(to)));
        drop(network);
        // After an agent restart rules are in force, and the name server has an address to listen on.
        let network = node.network();
        assert_eq!(recover(&network, &[&one]).len(), 1);
        assert!(ip("-br link").contains(BRIDGE));
        let own = network.reach().expect("a bridge").own;
        assert!(own.len() == 1 && own[0].is_ipv4(), "{own:?}");
    });
}

#[test]
fn without_pods_nothing_is_made() {
    on_a_node(|node| {
        let network = node.network();
        assert!(recover(&network, &[]).is_empty());
        network.reconcile().expect("nothing to do");
        network.detach(&uid("never-there")).expect("nothing to do");
        assert!(network.traffic().is_empty() && network.own_addresses().is_empty());
        assert_eq!(links(), ["lo", "wire", "eth0"]);
        assert!(!node.settings.layout.network().exists());
    });
}
