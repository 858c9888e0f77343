//! Trials of bundles' new generations: what is kept meanwhile, and what a failure leads back to.

use std::time::Instant;

use super::bundle_generations::MOVING;
use super::bundles::{Site, pod, versioned};
use super::registry::Registry;
use super::*;

impl Site {
    /// Bundles of one pod, each with a build of its own of the image.
    fn generations(&self, all: &[(&str, &str)]) {
        let registry = Registry::start(&self.agent);
        for (build, script) in all {
            self.push_build(&registry, build);
            let pod = shell_pod("moving", script, "", "").replace("busybox:test", MOVING);
            self.bundle(build, &[("moving.yaml", pod)], &[]);
        }
    }

    /// The builds whose images are left once all others are pruned.
    fn builds_kept<'b>(&self, of: &[&'b str]) -> Vec<&'b str> {
        self.agent.ok(&["image", "prune", "--all", "--force"]);
        let listed = self.agent.ok(&["image", "ls", "-q"]);
        let is_there = |build: &&str| listed.contains(&self.build_id(build));
        of.iter().copied().filter(is_there).collect()
    }
}

/// The numbers of the generations that are kept: in force, before it, and before that.
fn kept(bundle: &Value) -> Vec<u64> {
    let all = ["current", "previous", "beforePrevious"];
    let numbers = all.map(|which| bundle[which]["generation"].as_u64());
    numbers.into_iter().flatten().collect()
}

/// Two good generations and a bad one; the agent may be killed while that is on trial.
fn a_bad_generation_costs_none_of_the_former_ones(kill: bool) {
    let site = Site::new();
    let all = ["one", "two", "bad", "good"];
    site.generations(&[
        ("one", SLEEP),
        ("two", SLEEP),
        ("bad", "exit 1"),
        ("good", SLEEP),
    ]);
    let agent = &site.agent;
    site.apply_ok("one", &[]);
    site.wait_build("one");
    site.apply_ok("two", &[]);
    site.wait_build("two");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| site.apply("bad", &["--ready-within", "8s"]));
        let tried = site.wait_bundle(|bundle| !bundle["trial"].is_null());
        assert_eq!(kept(&tried), [3, 2, 1], "{tried}");
        let shown = agent.ok(&["bundle", "ls"]);
        assert!(shown.contains(" 2,1 "), "{shown}");
        if kill {
            agent.kill();
            let left = waits.join().expect("the client ends");
            assert!(!left.status.success());
            agent.launch();
        }
        assert_eq!(site.builds_kept(&all), ["one", "two", "bad"]);
    });
    let back = site.wait_bundle(|bundle| !bundle["failed"].is_null());
    assert_eq!(kept(&back), [2, 1], "{back}");
    assert_eq!(back["failed"]["generation"], 3);
    site.wait_build("two");
    agent.ok(&["bundle", "rollback"]);
    site.wait_build("one");
    assert_eq!(kept(&site.ls()[0]), [1, 2]);

    // After a trial that ends well, there are two again.
    let said = site.apply_ok("good", &["--ready-within", "8s"]);
    assert!(said.ends_with("all pods are ready\n"), "{said}");
    site.wait_build("good");
    let passed = &site.ls()[0];
    assert_eq!(kept(passed), [4, 1], "{passed}");
    let folders = fs::read_dir(agent.root.join("root/bundles/site")).expect("listed");
    let folders = folders.flatten().filter(|entry| entry.path().is_dir());
    assert_eq!(folders.count(), 2);
    // Containers that ran the others may be removed a moment later.
    let deadline = Instant::now() + PATIENCE;
    while site.builds_kept(&all) != ["one", "good"] {
        assert!(Instant::now() < deadline, "{}", agent.log());
    }
}

#[test]
fn a_generation_that_fails_its_trial_leaves_the_two_that_there_were() {
    a_bad_generation_costs_none_of_the_former_ones(false);
}

#[test]
fn an_agent_that_is_killed_during_a_trial_keeps_three_generations() {
    a_bad_generation_costs_none_of_the_former_ones(true);
}

/// How long the trial is that the node interrupts.
const WITHIN: Duration = Duration::from_secs(8);

/// A trial during which the node keeps its pods down for longer than it may take, and lets them run again. The agent may
/// be killed meanwhile.
fn the_node_keeps_pods_down(begin: &[&[&str]], end: &[&str], kill: bool) {
    let site = Site::new();
    let probe = "    readinessProbe: {exec: {command: [test, -e, /ok]}, periodSeconds: 1}\n";
    let slow = versioned("web", "2", SLEEP) + probe;
    let registry = Registry::start(&site.agent);
    site.bundle("good", &[("web.yaml", pod("web", "1"))], &[]);
    site.bundle("slow", &[("web.yaml", slow)], &[]);
    drop(registry);
    let agent = &site.agent;
    site.apply_ok("good", &[]);
    site.wait_version("web", "1");
    let within = format!("{}s", WITHIN.as_secs());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| site.apply("slow", &["--ready-within", &within]));
        site.wait_version("web", "2");
        for args in begin {
            agent.ok(args);
        }
        let state = agent.root.join("root/bundles/site/state.json");
        let deadline = Instant::now() + PATIENCE;
        while !fs::read_to_string(&state)
            .expect("a state")
            .contains("\"rests\": true")
        {
            assert!(Instant::now() < deadline, "{}", agent.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        // The time itself is what must not count.
        std::thread::sleep(WITHIN / 2);
        if kill {
            agent.kill_and_restart();
        }
        std::thread::sleep(WITHIN);
        let bundle = &site.ls()[0];
        assert!(!bundle["trial"].is_null(), "{bundle}\n{}", agent.log());
        agent.ok(end);
        site.wait_version("web", "2");
        agent.ok(&["exec", "web", "--", "touch", "/ok"]);
        let ended = site.wait_bundle(|bundle| bundle["trial"].is_null());
        assert_eq!(kept(&ended), [2, 1], "{ended}\n{}", agent.log());
        assert_eq!(ended["failed"], Value::Null, "{ended}");
        let waited = waits.join().expect("the client ends");
        assert_eq!(waited.status.success(), !kill, "{waited:?}");
    });
}

#[test]
fn a_drain_during_a_trial_takes_no_time_of_it() {
    the_node_keeps_pods_down(&[&["drain"]], &["uncordon"], false);
}

#[test]
fn a_drain_over_an_agent_restart_takes_no_time_of_a_trial() {
    the_node_keeps_pods_down(&[&["drain"]], &["uncordon"], true);
}

#[test]
fn a_cordon_that_keeps_a_pod_away_takes_no_time_of_a_trial() {
    let begin: [&[&str]; 2] = [&["cordon"], &["delete", "pod", "web"]];
    the_node_keeps_pods_down(&begin, &["uncordon"], false);
}

#[test]
fn a_shutdown_that_is_cancelled_takes_no_time_of_a_trial() {
    the_node_keeps_pods_down(&[&["shutdown"]], &["shutdown", "--cancel"], false);
}
