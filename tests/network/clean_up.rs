//! Leftovers of pods that are gone: there are none, whichever process was killed and when.

use std::fs;
use std::time::Duration;

use crate::common::{Agent, shell_pod};
use crate::world::*;

const SLEEP: &str = "exec sleep 1000";

/// A pod that ends as soon as it gets the stop signal.
fn quick_pod(name: &str, round: usize) -> String {
    let ports = format!(
        "    ports: [{{containerPort: 80, hostPort: {}}}]\n",
        9000 + number(name)
    );
    let text = shell_pod(name, &format!(": {round}; {SLEEP}"), "", &ports);
    text.replacen(
        "terminationGracePeriodSeconds: 2",
        "terminationGracePeriodSeconds: 0",
        1,
    )
}

fn number(name: &str) -> usize {
    name.trim_start_matches('p').parse().unwrap_or(0)
}

/// The resources that an agent holds: open files and resident memory in kB.
fn held(agent: &Agent) -> (usize, usize) {
    let pid = agent.pid();
    let files = fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("it runs")
        .count();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("a size");
    let memory = line
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number");
    (files, memory)
}

/// The number of lines of the namespace's rules with their elements, which exist even without a pod.
fn rules(world: &World) -> usize {
    world.node().ok("nft", &["list", "ruleset"]).lines().count()
}

#[test]
fn five_hundred_starts_and_stops_leave_nothing() {
    let world = World::with(Plan::default());
    let agent = &world.agent;
    let names: Vec<String> = (0..25).map(|index| format!("p{index}")).collect();
    let mut early = None;
    for round in 0..20 {
        let before: Vec<_> = names.iter().map(|name| uid(agent, name, round)).collect();
        for name in &names {
            agent.write(&format!("{name}.yaml"), &quick_pod(name, round));
        }
        for (name, old) in names.iter().zip(before) {
            agent.wait_pod(name, |pod| {
                let new = pod["metadata"]["uid"].as_str() != old.as_deref();
                new && !pod["status"]["containerStatuses"][0]["state"]["running"].is_null()
            });
        }
        // After some rounds everything permanent has been made.
        if round == 4 {
            early = Some((held(agent), rules(&world), world.node().links().len()));
        }
    }
    let ((files, memory), lines, links) = early.expect("enough rounds");
    let (files_now, memory_now) = held(agent);
    assert!(files_now <= files + 5, "open files: {files} -> {files_now}");
    assert!(
        memory_now <= memory + 4096,
        "memory: {memory} kB -> {memory_now} kB"
    );
    assert_eq!(world.node().links().len(), links);
    assert_eq!(rules(&world), lines);
    for name in &names {
        agent.remove(&format!("{name}.yaml"));
    }
    for name in &names {
        agent.wait_gone(name);
    }
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

/// The pod's uid, if it already existed before this round.
fn uid(agent: &Agent, name: &str, round: usize) -> Option<String> {
    (round > 0).then(|| {
        agent.pod(name)["metadata"]["uid"]
            .as_str()
            .expect("a uid")
            .to_owned()
    })
}

#[test]
fn agents_killed_while_pods_start_leave_nothing() {
    let world = World::with(Plan::default());
    let agent = &world.agent;
    // A fixed sequence of pauses, so that a failure can be reproduced.
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..20 {
        for index in 0..4 {
            agent.write(
                &format!("p{index}.yaml"),
                &quick_pod(&format!("p{index}"), round),
            );
        }
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::thread::sleep(Duration::from_millis(random % 50)); // The moment of the kill is the test's input.
        agent.kill_and_restart();
    }
    let mut all = std::collections::BTreeSet::new();
    for index in 0..4 {
        let pod = agent.wait_running(&format!("p{index}"));
        all.extend(addresses(&pod));
    }
    assert_eq!(all.len(), 8, "no two pods share an address: {all:?}");
    let links = world.node().links();
    let veths = links.iter().filter(|link| link.starts_with("vc"));
    assert_eq!(veths.count(), 4, "{links:?}");
    for index in 0..4 {
        agent.remove(&format!("p{index}.yaml"));
    }
    for index in 0..4 {
        agent.wait_gone(&format!("p{index}"));
    }
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn the_network_of_a_killed_shim_is_removed() {
    let world = World::with(Plan::default());
    let agent = &world.agent;
    agent.write("p0.yaml", &quick_pod("p0", 0));
    let pod = agent.wait_running("p0");
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let shim = agent.cgroup_file(
        "memory",
        &format!("besteffort/pod{uid}/shim"),
        "cgroup.procs",
    );
    let shim = shim
        .lines()
        .next()
        .and_then(|pid| pid.parse().ok())
        .expect("a pid");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(shim),
        nix::sys::signal::Signal::SIGKILL,
    )
    .expect("there");
    let again = agent.wait_pod("p0", |pod| {
        pod["status"]["containerStatuses"][0]["restartCount"] == 1
            && !pod["status"]["containerStatuses"][0]["state"]["running"].is_null()
    });
    assert_eq!(addresses(&again), addresses(&pod), "the same address");
    let veths = world
        .node()
        .links()
        .iter()
        .filter(|link| link.starts_with("vc"))
        .count();
    assert_eq!(veths, 1);
    agent.remove("p0.yaml");
    agent.wait_gone("p0");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_reboot_while_pods_start_leaves_nothing_that_keeps_them_from_starting() {
    let world = World::with(Plan::default());
    let agent = &world.agent;
    for round in 0..4_u64 {
        for index in 0..4 {
            agent.write(
                &format!("p{index}.yaml"),
                &quick_pod(&format!("p{index}"), 0),
            );
        }
        std::thread::sleep(Duration::from_millis(20 * round)); // The moment of the cut is the test's input.
        agent.power_cut();
        agent.launch();
    }
    for index in 0..4 {
        agent.wait_running(&format!("p{index}"));
        agent.remove(&format!("p{index}.yaml"));
    }
    for index in 0..4 {
        agent.wait_gone(&format!("p{index}"));
    }
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}
