//! What happens after kills and meddling: what is in use is mended, what is not is removed.

use std::fs;
use std::sync::Arc;

use crate::node::{BRIDGE, all_talk, connect, inside, ip, links, live, on_a_node, run, talk, uid};

#[test]
fn the_next_agent_keeps_live_pods_and_removes_the_others() {
    on_a_node(|node| {
        let former = node.network();
        let (one, two) = (node.pod("one"), node.pod("two"));
        let stays = former.attach(&one).expect("attached");
        former.attach(&two).expect("attached");
        drop(former);

        let network = node.network();
        let found = network.recover(&live(&[&one]));
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
fn rules_of_a_former_agent_go_if_no_pod_is_left_and_come_back_if_some_are() {
    on_a_node(|node| {
        let tables = || run("nft", "list tables");
        let pod = node.pod_with_port("one", 8080);
        node.network().attach(&pod).expect("attached");
        assert!(tables().contains(&format!("inet {BRIDGE}")), "{}", tables());
        run("nft", "flush ruleset");
        node.network().recover(&live(&[&pod]));
        let rules = run("nft", "list ruleset");
        assert!(rules.contains("8080"), "{rules}");
        let network = node.network();
        network.recover(&[]);
        assert!(!tables().contains(BRIDGE), "{}", tables());
        network.attach(&pod).expect("attached");
        assert!(tables().contains(BRIDGE), "{}", tables());
    });
}

#[test]
fn the_next_agent_removes_whatever_a_kill_left_half_done() {
    on_a_node(|node| {
        let former = node.network();
        let pods = ["pin", "veth", "file", "file-without-mount"].map(|name| node.pod(name));
        let mut names = Vec::new();
        for pod in &pods {
            let before = links();
            former.attach(pod).expect("attached");
            let new = links().into_iter().find(|name| !before.contains(name));
            names.push(new.expect("an interface"));
        }
        // A pin without interface, an interface without pin, an allocation without either, the file of a pin only.
        let file = |name| node.settings.layout.pod_run(&uid(name)).network();
        ip(&format!("link del {}", names[0]));
        fs::remove_file(file("pin")).expect("removed");
        coracle::sys::netns::unpin(&node.pin(&pods[1])).expect("unpinned");
        fs::remove_file(file("veth")).expect("removed");
        ip(&format!("link del {}", names[2]));
        coracle::sys::netns::unpin(&node.pin(&pods[2])).expect("unpinned");
        coracle::sys::netns::unpin(&node.pin(&pods[3])).expect("unpinned");
        fs::write(node.pin(&pods[3]), "").expect("a file");
        // The kernel takes interfaces away some time after the last pin of their namespace.
        assert!(node.leftovers().len() >= 4, "{:?}", node.leftovers());
        drop(former);

        let network = node.network();
        assert!(network.recover(&[]).is_empty());
        assert_eq!(node.leftovers(), [""; 0]);
        for pod in &pods {
            network.attach(pod).expect("attached");
        }
    });
}

#[test]
fn a_pod_is_attached_whatever_is_left_of_it() {
    on_a_node(|node| {
        let pod = node.pod("one");
        node.network().attach(&pod).expect("attached");
        // An agent that recovered nothing finds interface, pin and file there.
        let again = node.network().attach(&pod).expect("attached");
        all_talk(&[&again]);
    });
}

#[test]
fn a_pod_that_could_not_be_attached_is_nobody_elses_trouble() {
    on_a_node(|node| {
        let network = node.network();
        let pod = node.pod("one");
        let in_the_way = node.pin(&pod).join("file");
        fs::create_dir_all(&in_the_way).expect("a folder");
        network.attach(&pod).expect_err("no place for the pin");
        network.reconcile().expect("nothing to mend");
        assert_eq!(network.traffic().len(), 0);
        fs::remove_dir_all(node.pin(&pod)).expect("removed");
        let attached = network.attach(&pod).expect("attached");
        all_talk(&[&attached]);
    });
}

#[test]
fn a_bridge_deleted_by_hand_comes_back_with_everything_on_it() {
    on_a_node(|node| {
        let network = node.network();
        let one = network.attach(&node.pod("one")).expect("attached");
        let two = network.attach(&node.pod("two")).expect("attached");
        ip(&format!("link del {BRIDGE}"));
        network.reconcile().expect("mended");
        all_talk(&[&one, &two]);
        ip(&format!("link del {BRIDGE}"));
        let three = network.attach(&node.pod("three")).expect("attached");
        network.reconcile().expect("mended");
        all_talk(&[&one, &three]);
    });
}

/// An LLDP frame, which no bridge passes on, with somebody's hardware address as its sender.
const SEND_TO_THE_LINK: &str = "
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(('eth0', 0))
sender = bytes.fromhex(sys.argv[1].replace(':', ''))
s.send(bytes.fromhex('0180c200000e') + sender + bytes.fromhex('88cc') + bytes(50))
";

#[test]
fn a_pod_does_not_turn_anothers_traffic_by_frames_for_the_bridge_itself() {
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
        // Behind which of its ports the bridge thinks that a pod is.
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
            // A pod's kernel says a word of its own now and then when its interface is new.
            assert!(begun.elapsed().as_secs() < 30, "it believes the frame");
        }
        network.reconcile().expect("mended");
        all_talk(&[&one, &two]);
        assert!(!turned(), "it has seen the pod");
        assert_eq!(links(), before);
        // A bridge that was just made is deaf to such frames from the start.
        ip(&format!("link del {BRIDGE}"));
        network.reconcile().expect("mended");
        all_talk(&[&one]);
        assert!(!turned());
    });
}

#[test]
fn whatever_is_changed_by_hand_is_put_right_and_one_pod_does_not_stop_the_others() {
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
        network.reconcile().expect("mended");
        all_talk(&attached.each_ref());
        let seen = inside(&attached[1], || ip("link show eth0")) + &ip("addr");
        assert_eq!(seen.matches("mtu 1300").count(), 7, "{seen}");
        assert!(!seen.contains("10.9.9.9"), "{seen}");

        // Interface and pin of one are gone for good; the others are mended all the same.
        ip(&format!("link del {}", names[0]));
        coracle::sys::netns::unpin(&node.pin(&pods[0])).expect("unpinned");
        ip(&format!("link set {} down", names[1]));
        let error = network.reconcile().expect_err("one cannot be mended");
        assert!(error.to_string().contains("default/gone"), "{error}");
        all_talk(&[&attached[1], &attached[2]]);
    });
}

#[test]
fn an_interface_that_somebody_renamed_is_made_anew() {
    on_a_node(|node| {
        let network = node.network();
        let attached = network.attach(&node.pod("one")).expect("attached");
        let name = links().into_iter().find(|name| name.starts_with("vc"));
        let name = name.expect("an interface");
        ip(&format!("link set {name} down"));
        ip(&format!("link set {name} name other"));
        network.reconcile().expect("mended");
        assert!(links().contains(&name), "{:?}", links());
        assert!(!links().contains(&"other".to_owned()), "{:?}", links());
        all_talk(&[&attached]);
    });
}

#[test]
fn the_way_to_the_pods_comes_back_after_all_routes_of_the_bridge_were_flushed() {
    on_a_node(|node| {
        let network = node.network();
        let attached = network.attach(&node.pod("one")).expect("attached");
        let routes = || {
            ip(&format!("route show dev {BRIDGE}")) + &ip(&format!("-6 route show dev {BRIDGE}"))
        };
        let before = routes();
        ip(&format!("route flush dev {BRIDGE}"));
        ip(&format!("-6 route flush dev {BRIDGE}"));
        network.reconcile().expect("mended");
        let after = routes();
        let own = before.lines().filter(|line| !line.starts_with("fe80"));
        for line in own {
            assert!(after.contains(line), "`{line}` is not in {after}");
        }
        all_talk(&[&attached]);
    });
}

#[test]
fn pods_come_and_are_mended_after_ipv6_was_switched_off_under_them() {
    on_a_node(|node| {
        let one = node.pod("one");
        let network = node.network();
        let attached = network.attach(&one).expect("attached");
        for name in ["all", "default"] {
            let switch = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
            fs::write(switch, "1").expect("a switch");
        }
        network.reconcile().expect("as far as there is something");
        ip(&format!("link del {BRIDGE}"));
        let two = network.attach(&node.pod("two")).expect("attached");
        network.reconcile().expect("mended");
        let (client, to) = (&two, attached.ips[0]);
        talk(&attached, to, |to| inside(client, || connect(to)));
        drop(network);
        // Rules of the next agent are in force, and its name server has somewhere to listen.
        let network = node.network();
        assert_eq!(network.recover(&[Arc::new(one)]).len(), 1);
        assert!(ip("-br link").contains(BRIDGE));
        let own = network.reach().expect("a bridge").own;
        assert!(own.len() == 1 && own[0].is_ipv4(), "{own:?}");
    });
}

#[test]
fn without_pods_nothing_is_made_and_nothing_is_asked() {
    on_a_node(|node| {
        let network = node.network();
        assert!(network.recover(&[]).is_empty());
        network.reconcile().expect("nothing to do");
        network.detach(&uid("never-there")).expect("nothing to do");
        assert!(network.traffic().is_empty() && network.own_addresses().is_empty());
        assert_eq!(links(), ["lo", "wire", "eth0"]);
        assert!(!node.settings.layout.network().exists());
    });
}
