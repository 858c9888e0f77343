//! Jobs as tables, and over all small numbers.

use std::collections::BTreeSet;

use super::super::Workloads;
use super::super::tests::World;
use super::JobRecord;
use crate::plan::event::Desired;
use crate::plan::{Event, NodeFact, RunFact, Wall};
use crate::spec::convert::{ConvertContext, documents};
use crate::types::Exit;

#[path = "editions_test.rs"]
mod editions_test;
#[path = "node_test.rs"]
mod node_test;

/// A Job; `spec` are lines of its `spec`.
fn document(policy: &str, spec: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: j}}\nspec:\n{spec}  template:\n    metadata: {{labels: {{letter: a}}}}\n    spec:\n      restartPolicy: \
         {policy}\n      containers: [{{name: main, image: i}}]\n"
    )
}

impl World {
    /// The names of the pods that run.
    pub(in crate::plan::workload) fn running(&self) -> Vec<String> {
        let pods = self.state.pods.values();
        let running =
            pods.filter(|pod| pod.stopping().is_none() && pod.containers[0].run.is_running());
        let mut names: Vec<String> = running.map(|pod| pod.spec.key.name.to_string()).collect();
        names.sort();
        names
    }

    pub(in crate::plan::workload) fn names(&self) -> Vec<String> {
        let pods = self.state.pods.values();
        let mut names: Vec<String> = pods.map(|pod| pod.spec.key.name.to_string()).collect();
        names.sort();
        names
    }

    /// The container of this pod ends.
    pub(in crate::plan::workload) fn end(&mut self, name: &str, code: i32) {
        let exit = Exit {
            code,
            signal: None,
            oom_killed: false,
            message: String::new(),
            started: self.now,
            finished: self.now,
        };
        self.exit(name, exit);
    }

    fn exit(&mut self, name: &str, exit: Exit) {
        let mut pods = self.state.pods.values();
        let pod = pods.find(|pod| *pod.spec.key.name == *name).expect("a pod");
        let container = &pod.containers[0];
        let attempt = container.run.attempt().expect("it runs");
        let instance = pod.instance(&container.name, attempt);
        self.tell(Event::Run {
            instance,
            fact: RunFact::Exited { exit },
        });
    }

    /// Type and reason of the condition, if there is one.
    fn outcome(&self) -> String {
        let conditions = self.status()["conditions"].clone();
        let mut conditions = conditions.as_array().unwrap().iter().rev();
        let none = serde_json::Value::Null;
        let condition = conditions.find(|c| c["status"] == "True").unwrap_or(&none);
        match condition["type"].as_str() {
            Some(kind) => format!("{kind} {}", condition["reason"].as_str().unwrap()),
            None => String::new(),
        }
    }

    /// Another agent, which knows what was kept; with `rebooted` without the pods of this one.
    fn next_agent(&self, rebooted: bool) -> Self {
        let mut next = Self::new();
        next.now = self.now;
        if rebooted {
            next.now.time.0 = 5;
        } else {
            next.state.pods = self.state.pods.clone();
        }
        let kept = serde_json::to_vec(&self.state.workloads.jobs.records()).unwrap();
        let kept: Vec<_> = serde_json::from_slice(&kept).unwrap();
        next.state.workloads = Workloads::with_jobs(&kept, rebooted, next.now);
        next
    }
}

#[test]
fn indexes_succeed_one_after_the_other_and_then_it_is_complete() {
    let mut world = World::new();
    world.read(&document("Never", "  completions: 3\n  parallelism: 2\n"));
    assert_eq!(world.running(), ["j-0-0", "j-1-0"]);
    world.end("j-1-0", 0);
    assert_eq!(world.running(), ["j-0-0", "j-2-0"]);
    assert_eq!(world.status()["active"], 2);
    world.end("j-0-0", 0);
    world.end("j-2-0", 0);
    assert_eq!(world.outcome(), "Complete CompletionsReached");
    assert_eq!(world.status()["succeeded"], 3);
    // Its pods stay for their logs, and nothing starts again.
    world.pass(10_000_000);
    assert_eq!((world.names().len(), world.running().len()), (3, 0));
}

#[test]
fn a_failed_pod_is_followed_by_another_after_a_pause_up_to_the_limit() {
    let mut world = World::new();
    world.read(&document("Never", "  backoffLimit: 2\n"));
    for (number, wait) in [(0, 10_000), (1, 20_000)] {
        world.end(&format!("j-0-{number}"), 1);
        world.pass(wait - 1);
        assert_eq!(world.running(), [""; 0]);
        // The number goes on with another agent.
        world = world.next_agent(false);
        world.read(&document("Never", "  backoffLimit: 2\n"));
        assert_eq!(world.running(), [""; 0]);
        world.pass(1);
        assert_eq!(world.running(), [format!("j-0-{}", number + 1)]);
    }
    world.end("j-0-2", 1);
    assert_eq!(world.outcome(), "Failed BackoffLimitExceeded");
    assert_eq!(world.status()["failed"], 3);
    world.pass(10_000_000);
    assert_eq!(world.running(), [""; 0]);
}

#[test]
fn restarts_in_place_count_against_the_limit() {
    let mut world = World::new();
    world.read(&document("OnFailure", "  backoffLimit: 2\n"));
    world.end("j-0-0", 1);
    assert_eq!(world.running(), ["j-0-0"], "the first restart is immediate");
    world.end("j-0-0", 1);
    world.pass(10_000);
    world.gone();
    assert_eq!(world.outcome(), "Failed BackoffLimitExceeded");
    assert_eq!(world.names(), [""; 0]);
}

#[test]
fn it_ends_after_its_deadline_and_its_pods_go_after_their_time() {
    let mut world = World::new();
    let spec = "  activeDeadlineSeconds: 60\n  ttlSecondsAfterFinished: 30\n  completions: 2\n  parallelism: 1\n";
    world.read(&document("Never", spec));
    world.end("j-0-0", 0);
    world.pass(60_000);
    assert_eq!(world.outcome(), "FailureTarget DeadlineExceeded");
    assert_eq!(world.status()["failed"], 1, "the pod that is removed");
    world.pass(40_000);
    world.gone();
    assert_eq!(world.outcome(), "Failed DeadlineExceeded");
    world.pass(29_999);
    world.gone();
    assert_eq!(
        world.names(),
        ["j-0-0"],
        "what succeeded stays for its logs"
    );
    world.pass(1);
    world.gone();
    assert_eq!(world.names(), [""; 0]);
    assert_eq!(world.outcome(), "Failed DeadlineExceeded");
}

#[test]
fn a_suspended_job_has_no_pods_and_goes_on_where_it_was() {
    let mut world = World::new();
    let spec = |yes: bool| {
        document(
            "Never",
            &format!("  completions: 2\n  parallelism: 1\n  suspend: {yes}\n"),
        )
    };
    world.read(&spec(false));
    world.end("j-0-0", 0);
    world.read(&spec(true));
    assert_eq!(world.outcome(), "Suspended JobSuspended");
    world.gone();
    assert_eq!(world.running(), [""; 0]);
    world.read(&spec(false));
    assert_eq!(world.running(), ["j-1-0"]);
    assert_eq!(world.status()["succeeded"], 1);
}

#[test]
fn an_index_that_fails_too_often_does_not_stop_the_others() {
    let mut world = World::new();
    let spec = "  completions: 4\n  parallelism: 4\n  completionMode: Indexed\n  backoffLimitPerIndex: 1\n";
    world.read(&document("Never", spec));
    let pod = world
        .state
        .pods
        .values()
        .find(|pod| *pod.spec.key.name == *"j-2-0")
        .unwrap();
    let annotations = pod.spec.manifest.metadata().annotations.unwrap();
    assert_eq!(annotations["batch.kubernetes.io/job-completion-index"], "2");
    let hostname = pod.spec.given_hostname.as_deref();
    assert_eq!(hostname, Some("j-2"));
    for name in ["j-0-0", "j-2-0", "j-3-0"] {
        world.end(name, 0);
    }
    world.end("j-1-0", 1);
    world.pass(10_000);
    world.end("j-1-1", 1);
    assert_eq!(world.outcome(), "Failed FailedIndexes");
    let status = world.status();
    assert_eq!(status["completedIndexes"], "0,2,3");
    assert_eq!(status["failedIndexes"], "1");
}

#[test]
fn the_success_of_an_index_does_not_end_the_pause_of_another() {
    let mut world = World::new();
    let spec = "  completions: 2\n  parallelism: 2\n  completionMode: Indexed\n  backoffLimitPerIndex: 3\n";
    world.read(&document("Never", spec));
    world.end("j-0-0", 1);
    world.pass(3_000);
    world.end("j-1-0", 0);
    world.pass(6_000);
    assert!(world.running().is_empty(), "{:?}", world.running());
    world.pass(1_000);
    assert_eq!(world.running(), ["j-0-1"]);
    world.end("j-0-1", 1);
    let mut next = world.next_agent(true);
    next.read(&document("Never", spec));
    next.pass(19_000);
    assert!(next.running().is_empty(), "{:?}", next.running());
    next.pass(1_000);
    assert_eq!(next.running(), ["j-0-2"]);
}

#[test]
fn rules_say_what_a_failed_pod_means() {
    let rules = |action: &str| {
        let spec = format!(
            "  backoffLimit: 0\n  podFailurePolicy: {{rules: [{{action: {action}, onExitCodes: {{operator: In, values: [42]}}}}]}}\n"
        );
        document("Never", &spec)
    };
    let after = |action: &str, code: i32| {
        let mut world = World::new();
        world.read(&rules(action));
        world.end("j-0-0", code);
        world
    };
    assert_eq!(after("FailJob", 42).outcome(), "Failed PodFailurePolicy");
    assert_eq!(after("FailJob", 1).outcome(), "Failed BackoffLimitExceeded");
    assert_eq!(after("Count", 42).outcome(), "Failed BackoffLimitExceeded");
    let mut world = after("Ignore", 42);
    assert_eq!((world.outcome().as_str(), world.running().len()), ("", 0));
    world.pass(10_000);
    assert_eq!(world.running(), ["j-0-1"], "after a pause, like any other");
}

#[test]
fn some_indexes_are_enough_if_a_rule_says_so() {
    let spec = |rules: &str| {
        let spec = format!(
            "  completions: 4\n  parallelism: 4\n  completionMode: Indexed\n  successPolicy: {{rules: [{rules}]}}\n"
        );
        document("Never", &spec)
    };
    let text = spec("{succeededIndexes: '0', succeededCount: 1}, {succeededCount: 3}");
    for (ended, wanted) in [
        (&["j-0-0"][..], "Matched rules at index 0"),
        (&["j-1-0", "j-3-0", "j-2-0"], "Matched rules at index 1"),
    ] {
        let mut world = World::new();
        world.read(&text);
        for name in ended {
            assert_eq!(world.outcome(), "");
            world.end(name, 0);
        }
        // It is complete once the others are gone, also if no event said so.
        assert_eq!(world.outcome(), "SuccessCriteriaMet SuccessPolicy");
        assert!(world.status()["completionTime"].is_null());
        for rebooted in [false, true] {
            let mut next = world.next_agent(rebooted);
            next.read(&text);
            assert_eq!(next.outcome().starts_with("Complete"), rebooted);
            next.gone();
            assert_eq!(next.outcome(), "Complete SuccessPolicy");
        }
        world.pass(5_000);
        let decided = world.status()["conditions"].clone();
        world.gone();
        assert_eq!(world.outcome(), "Complete SuccessPolicy");
        let status = world.status();
        assert_eq!(status["conditions"][0], decided[0]);
        let at = &status["conditions"][1]["lastTransitionTime"];
        assert_eq!(&status["completionTime"], at);
        let kinds = ["SuccessCriteriaMet", "Complete"];
        for (condition, kind) in status["conditions"].as_array().unwrap().iter().zip(kinds) {
            assert_eq!(condition["type"], kind);
            assert_eq!(condition["message"], wanted);
        }
        // The others count as nothing.
        assert_eq!(
            (world.names().len(), &status["failed"]),
            (ended.len(), &0.into())
        );
        for rebooted in [false, true] {
            let mut next = world.next_agent(rebooted);
            next.read(&text);
            assert_eq!(next.outcome(), "Complete SuccessPolicy");
            assert!(next.running().is_empty());
        }
    }
    // With another policy the Job starts afresh.
    let mut world = World::new();
    world.read(&text);
    world.end("j-0-0", 0);
    world.read(&spec("{succeededIndexes: 1-2}"));
    world.gone();
    assert_eq!(world.running().len(), 4);
}

#[test]
fn without_completions_one_success_is_enough() {
    let mut world = World::new();
    world.read(&document("Never", "  parallelism: 2\n"));
    assert_eq!(world.running(), ["j-0-0", "j-1-0"]);
    world.end("j-0-0", 0);
    assert_eq!(world.running(), ["j-1-0"], "no other starts");
    world.end("j-1-0", 0);
    assert_eq!(world.outcome(), "Complete CompletionsReached");
}

/// Whatever pods do, and whenever the agent dies: no more than wanted at once, no index runs again after its success, and
/// it ends.
#[test]
fn every_job_ends() {
    for completions in 1..4_usize {
        for parallelism in 1..4_usize {
            for script in 0..64_u32 {
                run(completions, parallelism, script);
            }
        }
    }
}

fn run(completions: usize, parallelism: usize, script: u32) {
    let text = document(
        "Never",
        &format!("  completions: {completions}\n  parallelism: {parallelism}\n  backoffLimit: 3\n"),
    );
    let what = format!("{completions} {parallelism} {script:06b}");
    let mut world = World::new();
    world.read(&text);
    let mut succeeded = BTreeSet::new();
    for turn in 0..40_u32 {
        let running = world.running();
        assert!(running.len() <= parallelism, "{what}: {running:?}");
        let Some(name) = running.first().cloned() else {
            if !world.outcome().is_empty() {
                break;
            }
            world.pass(600_000);
            continue;
        };
        let index = name.rsplit('-').nth(1).unwrap().to_owned();
        assert!(!succeeded.contains(&index), "{what}: {name} runs again");
        let good = script >> (turn % 6) & 1 == 1;
        world.end(&name, i32::from(!good));
        if good {
            succeeded.insert(index);
        }
        if turn % 3 == 0 {
            world = world.next_agent(turn % 2 == 0);
            world.read(&text);
        }
    }
    world.gone();
    let complete = succeeded.len() == completions;
    let wanted = if complete { "Complete" } else { "Failed" };
    assert!(
        world.outcome().starts_with(wanted),
        "{what}: {}",
        world.outcome()
    );
}

#[test]
fn what_makes_no_job_is_refused() {
    for (policy, spec, wanted) in [
        (
            "Always",
            "",
            "Unsupported value: \"Always\": supported values: \"OnFailure\", \"Never\"",
        ),
        (
            "Never",
            "  completionMode: Indexed\n",
            "when completion mode is Indexed",
        ),
        (
            "Never",
            "  backoffLimitPerIndex: 1\n",
            "requires indexed job",
        ),
        (
            "Never",
            "  completions: -1\n",
            "must be greater than or equal to 0",
        ),
        (
            "Never",
            "  completions: 10001\n",
            "must be less than or equal to 10000 on one node",
        ),
        (
            "Never",
            "  successPolicy: {rules: []}\n",
            "requires indexed completion mode",
        ),
        (
            "Never",
            "  completions: 3\n  completionMode: Indexed\n  successPolicy: {}\n",
            "at least one rules must be specified",
        ),
        (
            "Never",
            "  completions: 3\n  completionMode: Indexed\n  successPolicy: {rules: [{}]}\n",
            "at least one of succeededCount or succeededIndexes must be specified",
        ),
        (
            "Never",
            "  completions: 3\n  completionMode: Indexed\n  successPolicy: {rules: [{succeededCount: 4}]}\n",
            "must be less than or equal to 3 (the number of specified completions)",
        ),
        (
            "Never",
            "  completions: 3\n  completionMode: Indexed\n  successPolicy: {rules: [{succeededIndexes: 0-1, succeededCount: 3}]}\n",
            "must be less than or equal to 2 (the number of indexes in the specified succeededIndexes field)",
        ),
        (
            "Never",
            "  completions: 3\n  completionMode: Indexed\n  successPolicy: {rules: [{succeededIndexes: 0-3}]}\n",
            "error parsing succeededIndexes: too large index: \"3\"",
        ),
        ("Never", "  managedBy: example.com/other\n", "managedBy"),
        ("Never", "  replicas: 1\n", "unknown field"),
        (
            "OnFailure",
            "  podFailurePolicy: {rules: []}\n",
            "only \"Never\" is supported when podFailurePolicy is specified",
        ),
        (
            "Never",
            "  podFailurePolicy: {rules: [{action: FailIndex, onExitCodes: {operator: In, values: [1]}}]}\n",
            "requires the backoffLimitPerIndex to be set",
        ),
        (
            "Never",
            "  podFailurePolicy: {rules: [{action: Count, onExitCodes: {containerName: mian, operator: In, values: [1]}}]}\n",
            "must be one of the container or initContainer names in the pod template",
        ),
        (
            "Never",
            "  podFailurePolicy: {rules: [{action: Count, onExitCodes: {operator: In, values: [0]}}]}\n",
            "must not be 0 for the In operator",
        ),
        (
            "Never",
            "  podFailurePolicy: {rules: [{action: Count, onExitCodes: {operator: In, values: [2, 1]}}]}\n",
            "must be ordered",
        ),
        (
            "Never",
            "  podFailurePolicy: {rules: [{action: Count, onExitCodes: {operator: In, values: [2, 2]}}]}\n",
            "Duplicate value: 2",
        ),
        (
            "Never",
            "  podReplacementPolicy: TerminatingOrFailed\n  podFailurePolicy: {rules: []}\n",
            "supported values: \"Failed\"",
        ),
        (
            "Never",
            "  completions: 2\n  completionMode: Indexed\n  backoffLimitPerIndex: 1\n  maxFailedIndexes: 3\n",
            "must be less than or equal to completions",
        ),
        (
            "OnFailure",
            "  completions: 2\n  completionMode: Indexed\n  backoffLimitPerIndex: 1\n",
            "only \"Never\" is supported when backoffLimitPerIndex is specified",
        ),
    ] {
        let text = document(policy, spec);
        let errors = documents(text.as_bytes(), "f", &ConvertContext::of("n")).expect_err(spec);
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(
            errors.iter().any(|error| error.contains(wanted)),
            "{spec}: {errors:?}"
        );
    }
}

#[test]
fn the_host_name_of_the_last_index_fits() {
    let read = |name: &str, completions: u32| {
        let spec = format!("  completions: {completions}\n  completionMode: Indexed\n");
        let text = document("Never", &spec).replacen("name: j", &format!("name: {name}"), 1);
        assert!(text.contains(name));
        documents(text.as_bytes(), "f", &ConvertContext::of("n")).map(|_| ())
    };
    let name = "j".repeat(61);
    read(&name, 10).expect("it has 63 characters");
    let errors = read(&name, 11).expect_err("it has 64");
    let wanted = format!("will not able to create pod with invalid DNS label: {name}-10");
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(errors.iter().any(|e| e.contains(&wanted)), "{errors:?}");
}

#[test]
fn indexes_are_written_as_ranges() {
    let text = |numbers: &[u32]| super::ranges::ranges(&numbers.iter().copied().collect());
    assert_eq!(text(&[]), "");
    assert_eq!(text(&[1, 3, 4, 5, 7]), "1,3-5,7");
    assert_eq!(text(&[0, 1]), "0,1");
    for numbers in [&[][..], &[0, 1], &[1, 3, 4, 5, 7], &[9_999]] {
        let record = JobRecord {
            succeeded: numbers.iter().copied().collect(),
            ..JobRecord::default()
        };
        let kept = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<JobRecord>(&kept).unwrap(), record);
    }
    for bad in ["x", "1-", "0-4000000000", "-3"] {
        let kept = serde_json::to_string(&JobRecord::default()).unwrap();
        let kept = kept.replacen(r#""succeeded":"""#, &format!(r#""succeeded":"{bad}""#), 1);
        assert!(
            kept.contains(bad) && serde_json::from_str::<JobRecord>(&kept).is_err(),
            "{bad}"
        );
    }
}
