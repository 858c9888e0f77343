//! An update whose process is killed in the middle: all of it is there, or nothing.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use coracle::network::firewall::Firewall;
use coracle::spec::Protocol;

use crate::world::{World, host_port, inside, pod, rules};

const NETNS: &str = "CORACLE_FIREWALL_NETNS";

/// Not a test by itself: this is the process that is killed.
#[test]
fn endless_updates_for_the_test_that_kills_them() {
    let Ok(netns) = std::env::var(NETNS) else {
        return;
    };
    inside(&netns, || {
        let firewall = Firewall::default();
        firewall.update(rules).unwrap();
        for number in (10_u16..250).cycle() {
            let (uid, pod) = pod(number, &[host_port(Protocol::Tcp, None, number, 80)]);
            let toggle = |rules: &mut coracle::network::firewall::Ruleset| {
                if rules.pods.remove(&uid).is_none() {
                    rules.pods.insert(uid.clone(), pod.clone());
                }
            };
            firewall.update(toggle).unwrap();
            println!("done");
        }
    });
}

#[test]
fn a_killed_update_is_there_as_a_whole_or_not_at_all() {
    let world = World::new();
    for round in 0..10 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "crash::endless_updates_for_the_test_that_kills_them",
                "--nocapture",
            ])
            .env(NETNS, &world.node)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let updates = lines
            .map_while(Result::ok)
            .filter(|line| line.contains("done"));
        assert_eq!(updates.take(1 + round * 3).count(), 1 + round * 3);
        child.kill().unwrap();
        child.wait().unwrap();
        // In one look: the `nft` that the process has started may still be at work.
        let both = world.run(&world.node, "nft list ruleset");
        let count = |what: &str| both.matches(what).count();
        // Each pod has one port, and four addresses with its interface's name (one more as numbers).
        let ports = count(" . 80");
        let pods = count("\"vcab") - count("\"vcab*\"");
        assert_eq!(pods, (ports / 2 + 2) * 6, "{both}");
    }
}
