//! CronJobs as tables, and over clocks that do as they like.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::Workloads;
use super::super::tests::World;
use crate::plan::event::Desired;
use crate::plan::stop::Target;
use crate::plan::{Event, NodeFact};
use crate::spec::{PodKey, WorkloadKey, WorkloadKind};
use crate::types::{Time, Wall};

fn document(schedule: &str, spec: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: c}}\nspec:\n  schedule: '{schedule}'\n  timeZone: UTC\n{spec}  \
         jobTemplate:\n    metadata: {{labels: {{of: cron}}}}\n    spec:\n      \
         template:\n        metadata: {{labels: {{letter: a}}}}\n        spec:\n          restartPolicy: \
         Never\n          containers: [{{name: main, image: i}}]\n"
    )
}

/// Minutes of the wall clock in these tests begin in 2026.
const START: i64 = 1_767_225_600;

impl World {
    /// A world whose clock shows this second after [`START`].
    fn at(seconds: i64) -> Self {
        let mut world = Self::new();
        world.now.wall = Wall((START + seconds) * 1_000_000);
        world
    }

    /// The clock is set.
    fn set(&mut self, seconds: i64) {
        self.now.wall = Wall((START + seconds) * 1_000_000);
        self.tell(Event::Node(NodeFact::ClockSet));
        self.keep();
    }

    /// What is known gets to the disk.
    fn keep(&mut self) {
        let changes = self.state.workloads.crons.changes;
        if self.state.workloads.crons.kept != changes {
            self.tell(Event::Node(NodeFact::CronsKept(changes)));
        }
    }

    /// Time passes, on both clocks.
    fn later(&mut self, seconds: i64) {
        self.now.wall.0 += seconds * 1_000_000;
        self.pass(u64::try_from(seconds).unwrap() * 1_000);
        self.keep();
    }

    /// The minutes after [`START`] whose Jobs there are.
    fn minutes(&self) -> Vec<i64> {
        let records = self.state.workloads.crons.records.values();
        let times = records.flat_map(|record| record.runs.keys());
        times.map(|at| at.div_euclid(60) - START / 60).collect()
    }

    fn finish(&mut self, code: i32) {
        for name in self.running() {
            self.end(&name, code);
        }
        self.keep();
    }

    fn cron_status(&self) -> serde_json::Value {
        let asked = self.state.workloads.asked.as_ref().unwrap();
        let mut crons = asked.workloads.values().filter(|w| w.cron.is_some());
        self.state
            .workloads
            .crons
            .status(crons.next().unwrap())
            .unwrap()
    }

    /// Another agent, which knows what was kept.
    fn reboot(&self) -> Self {
        let mut next = Self::new();
        next.now.wall = self.now.wall;
        next.now.time = Time(5);
        let jobs = serde_json::to_vec(&self.state.workloads.jobs.records()).unwrap();
        let crons = serde_json::to_vec(&self.state.workloads.crons.records()).unwrap();
        let jobs: Vec<_> = serde_json::from_slice(&jobs).unwrap();
        let crons: Vec<_> = serde_json::from_slice(&crons).unwrap();
        next.state.workloads = Workloads::with_jobs(&jobs, true, next.now).with_crons(&crons);
        next
    }
}

#[test]
fn each_change_of_a_file_is_a_generation() {
    let mut world = World::at(10);
    let generation = |world: &World| {
        let asked = world.state.workloads.asked.as_ref().unwrap();
        let key = asked.workloads.keys().next().unwrap();
        super::super::status::generation(&world.state, key)
    };
    world.read(&document("*/5 * * * *", ""));
    world.read(&document("*/5 * * * *", ""));
    assert_eq!(generation(&world), 1);
    world.read(&document("*/5 * * * *", "  suspend: true\n"));
    assert_eq!(generation(&world), 2);
    world.keep();
    let mut next = world.reboot();
    next.read(&document("*/5 * * * *", "  suspend: true\n"));
    assert_eq!(generation(&next), 2);
    next.read(&document("*/6 * * * *", ""));
    assert_eq!(generation(&next), 3);
}

#[test]
fn a_run_begins_when_it_is_due_and_on_disk_and_nothing_wakes_before() {
    let mut world = World::at(10);
    let text = document("*/5 * * * *", "");
    world.read(&text);
    world.keep();
    assert_eq!(
        world.minutes(),
        [0i64; 0],
        "what was before the file is not missed"
    );
    let wake = world.state.workloads.wake.unwrap().since(world.now.time);
    assert!((290_000..290_010).contains(&wake), "{wake}");
    world.now.wall.0 += 290_010_000;
    world.pass(290_010);
    assert_eq!((world.minutes(), world.running().len()), (vec![5], 0));
    world.keep();
    let name = format!("c-{}-0-0", START / 60 + 5);
    assert_eq!(world.running(), std::slice::from_ref(&name));
    let status = world.cron_status();
    assert_eq!(status["lastScheduleTime"], "2026-01-01T00:05:00Z");
    assert_eq!(status["active"][0]["name"], name[..name.len() - 4]);
    world.end(&name, 0);
    assert_eq!(world.cron_status()["active"], serde_json::Value::Null);
    let said = world.said();
    let job = &name[..name.len() - 4];
    for expected in [
        format!("SuccessfulCreate: Created job {job}"),
        format!("SuccessfulCreate: Created pod: {name}"),
        "Completed: Job completed".to_owned(),
        format!("SawCompletedJob: Saw completed job: {job}, condition: Complete"),
    ] {
        assert!(said.contains(&expected), "{expected}: {said:?}");
    }
    let job = WorkloadKey {
        kind: WorkloadKind::Job,
        namespace: "default".into(),
        name: job.into(),
    };
    let made = &world.state.workloads.crons.made[&job];
    let shown: serde_json::Value = serde_json::from_str(&made.workload.manifest.text()).unwrap();
    let metadata = &shown["metadata"];
    assert_eq!(metadata["ownerReferences"][0]["kind"], "CronJob");
    assert_eq!(metadata["labels"]["of"], "cron");
    assert_eq!(
        metadata["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"],
        "2026-01-01T00:05:00Z"
    );
    let key = PodKey::new("default", name);
    let mut pods = world.state.pods.values();
    let pod = pods.find(|pod| pod.spec.key == key).unwrap();
    assert_eq!(pod.spec.workload.as_ref(), Some(&job));
}

#[test]
fn a_clock_that_jumps_runs_nothing_twice() {
    let mut world = World::at(30);
    world.read(&document(
        "* * * * *",
        "  successfulJobsHistoryLimit: 100\n",
    ));
    world.later(60);
    world.finish(0);
    assert_eq!(world.minutes(), [1]);
    // Days ahead: one run, with a warning.
    world.said();
    let days = 3 * 1440;
    world.set(days * 60 + 30);
    world.finish(0);
    assert_eq!(world.minutes(), [1, days]);
    assert!(
        world
            .said()
            .iter()
            .any(|said| said.starts_with("TooManyMissedTimes"))
    );
    // Back: what ran does not run again, what did not runs.
    world.set(100);
    world.finish(0);
    assert_eq!(world.minutes(), [1, days]);
    world.later(60);
    world.finish(0);
    assert_eq!(world.minutes(), [1, 2, days]);
    // An hour back, before there was this CronJob: it goes on, but not where it has been.
    world.set(-3_600 + 10);
    world.later(60);
    world.finish(0);
    assert_eq!(world.minutes(), [-59, 1, 2, days]);
    world.set(70);
    world.finish(0);
    assert_eq!(world.minutes(), [-59, 1, 2, days]);
    world.set(130);
    world.later(60);
    world.finish(0);
    assert_eq!(world.minutes(), [-59, 1, 2, 3, days]);
}

#[test]
fn times_that_are_missed_count_as_far_as_the_deadline_reaches() {
    for (deadline, many) in [("", true), ("  startingDeadlineSeconds: 200\n", false)] {
        let mut world = World::at(30);
        world.read(&document("* * * * *", deadline));
        world.set(3 * 86_400 + 30);
        let said = world.said();
        let warned = said
            .iter()
            .any(|said| said.starts_with("TooManyMissedTimes"));
        assert_eq!(
            (world.minutes(), warned),
            (vec![3 * 1440], many),
            "{deadline}"
        );
        // What was missed before that is free if the clock goes back.
        world.finish(0);
        world.set(100);
        world.finish(0);
        world.later(60);
        assert_eq!(world.minutes(), [1, 2, 3 * 1440], "{deadline}");
    }
}

/// A machine whose clock is ahead after each start, until a time server sets it.
#[test]
fn a_clock_that_is_ahead_at_each_boot_keeps_no_run_from_its_time() {
    const MONTH: i64 = 30 * 86_400;
    let ahead = |how, boot| match how {
        "more and more" => (boot + 1) * MONTH,
        "less and less" => (50 - boot) * MONTH,
        "here and there" => (boot * 7_919 % 41 + 1) * MONTH,
        _ => 6 * MONTH + boot * 600,
    };
    for how in [
        "more and more",
        "less and less",
        "here and there",
        "the same",
    ] {
        let text = document("*/5 * * * *", "  successfulJobsHistoryLimit: 100\n");
        let mut world = World::at(0);
        world.read(&text);
        for boot in 0..40 {
            world = world.reboot();
            world.now.wall = Wall((START + ahead(how, boot)) * 1_000_000);
            world.read(&text);
            world.keep();
            world.finish(0);
            let right = boot * 600;
            world.set(right);
            world.later(310);
            world.finish(0);
            let minute = right / 60 + 5;
            assert!(world.minutes().contains(&minute), "{how}: boot {boot}");
        }
    }
}

#[test]
fn what_was_missed_while_the_machine_was_off_runs_once_if_its_deadline_allows() {
    for (deadline, expected) in [
        ("", vec![60]),
        ("  startingDeadlineSeconds: 600\n", vec![60]),
        ("  startingDeadlineSeconds: 200\n", vec![]),
    ] {
        let text = document("0 * * * *", deadline);
        let mut world = World::at(30);
        world.read(&text);
        let mut next = world.reboot();
        next.now.wall = Wall((START + 3_900) * 1_000_000);
        next.read(&text);
        next.keep();
        assert_eq!(next.minutes(), expected, "{deadline}");
        let missed = next
            .said()
            .iter()
            .any(|said| said.starts_with("MissSchedule"));
        assert_eq!(missed, expected.is_empty());
        next.finish(0);
        let mut third = next.reboot();
        third.read(&text);
        third.keep();
        assert_eq!((third.minutes(), third.running().len()), (expected, 0));
    }
}

#[test]
fn a_clock_that_is_not_set_yet_says_nothing() {
    let text = document("0 * * * *", "");
    let mut world = World::at(30);
    world.read(&text);
    let mut next = world.reboot();
    next.now.wall = Wall(900_000_000);
    next.read(&text);
    assert_eq!((next.minutes(), next.state.workloads.wake), (vec![], None));
    let before = next.state.workloads.crons.changes;
    next.later(7_200);
    assert_eq!(next.state.workloads.crons.changes, before);
    assert_eq!(next.said().len(), 1, "one event, not one at each look");
    // It is set: the run that was missed meanwhile.
    next.set(3 * 3_600 + 5);
    assert_eq!(next.minutes(), [180]);
    // A new CronJob on a machine whose clock was never right has missed nothing.
    let mut new = World::new();
    new.read(&text);
    new.set(3 * 3_600 + 5);
    assert_eq!(new.minutes(), [0i64; 0]);
}

#[test]
fn a_run_at_work_has_others_wait_or_goes_for_them() {
    for (policy, after, running) in [
        ("Allow", vec![1, 2], 2),
        ("Forbid", vec![1], 1),
        ("Replace", vec![2], 1),
    ] {
        let mut world = World::at(30);
        world.read(&document(
            "* * * * *",
            &format!("  concurrencyPolicy: {policy}\n"),
        ));
        world.later(60);
        world.later(60);
        assert_eq!(
            (world.minutes(), world.running().len()),
            (after, running),
            "{policy}"
        );
        if policy == "Forbid" {
            assert_eq!(world.state.workloads.wake, None, "its end is what matters");
            let said = world.said();
            let waits = |said: &&String| said.starts_with("JobAlreadyActive");
            assert_eq!(said.iter().filter(waits).count(), 1, "{said:?}");
            world.finish(0);
            assert_eq!((world.minutes(), world.running().len()), (vec![1, 2], 1));
        }
    }
}

#[test]
fn pods_that_still_stop_have_the_next_run_wait() {
    for policy in ["Forbid", "Replace"] {
        let text = document("* * * * *", &format!("  concurrencyPolicy: {policy}\n"));
        let limit = "    spec:\n      activeDeadlineSeconds: 40\n      template";
        let text = text.replace("    spec:\n      template", limit);
        let mut world = World::at(10);
        world.read(&text);
        world.later(60);
        world.later(40);
        assert_eq!((world.running().len(), world.names().len()), (0, 1));
        world.later(20);
        if policy == "Replace" {
            assert_eq!(
                world.minutes(),
                [2],
                "as upstream, it does not wait for pods"
            );
            continue;
        }
        assert_eq!((world.minutes(), world.names().len()), (vec![1], 1));
        let said = world.said();
        let has = |said: &[String], what: &str| said.iter().any(|said| said.starts_with(what));
        assert!(has(&said, "JobAlreadyActive"), "{said:?}");
        assert!(!has(&said, "SawCompletedJob"), "{said:?}");
        assert_eq!(world.cron_status()["active"].as_array().unwrap().len(), 1);
        // A reboot takes its pods along.
        let mut next = world.reboot();
        next.read(&text);
        next.keep();
        assert_eq!((next.minutes(), next.running().len()), (vec![1, 2], 1));
        world.gone();
        world.keep();
        assert_eq!((world.minutes(), world.running().len()), (vec![1, 2], 1));
        let said = world.said();
        assert!(has(&said, "SawCompletedJob"), "{said:?}");
    }
}

#[test]
fn old_jobs_go_with_their_pods() {
    let mut world = World::at(30);
    let text = document(
        "* * * * *",
        "  successfulJobsHistoryLimit: 2\n  failedJobsHistoryLimit: 0\n",
    );
    let once = "    spec:\n      backoffLimit: 0\n      template";
    world.read(&text.replace("    spec:\n      template", once));
    for code in [0, 0, 1, 0] {
        world.later(60);
        world.finish(code);
    }
    assert_eq!(world.minutes(), [2, 4]);
    world.gone();
    assert_eq!(world.names().len(), 2);
    assert_eq!(world.state.workloads.jobs.records().len(), 2);
    // Without its file nothing is left.
    world.read("");
    world.gone();
    let crons = &world.state.workloads.crons;
    assert_eq!((world.names().len(), crons.records().len()), (0, 0));
    assert_eq!(world.state.workloads.jobs.records().len(), 0);
}

#[test]
fn a_suspended_one_waits_and_another_schedule_has_missed_nothing() {
    let mut world = World::at(30);
    world.read(&document("* * * * *", "  suspend: true\n"));
    world.later(300);
    assert_eq!(
        (world.minutes(), world.state.workloads.wake),
        (vec![], None)
    );
    // As upstream: what was passed over while it was suspended is missed.
    world.read(&document("* * * * *", ""));
    assert_eq!(world.minutes(), [5]);
    world.read(&document("4,30 * * * *", ""));
    world.keep();
    assert_eq!(world.minutes(), [5]);
}

#[test]
fn pods_go_with_a_file_that_went_while_no_agent_ran() {
    let mut world = World::at(30);
    world.read_all(&document("* * * * *", ""));
    world.keep();
    world.later(60);
    assert_eq!(world.running().len(), 1);
    let next = world.reboot();
    let none = |complete| {
        Event::Node(NodeFact::DesiredChanged(Desired {
            complete,
            ..Desired::default()
        }))
    };
    (world.state.workloads, world.state.desired) = (next.state.workloads, None);
    world.tell(none(false));
    assert_eq!(world.live(), 1, "another file may have it");
    world.tell(none(true));
    assert_eq!(world.live(), 0);
}

#[test]
fn a_stopped_one_begins_nothing_until_it_is_started() {
    let targets = || {
        let key = WorkloadKey {
            kind: WorkloadKind::CronJob,
            namespace: "default".into(),
            name: "c".into(),
        };
        BTreeSet::from([Target::Workload(key)])
    };
    let mut world = World::at(30);
    world.read(&document("* * * * *", ""));
    world.tell(Event::Node(NodeFact::StopRequested {
        targets: targets(),
        grace_ms: None,
    }));
    world.later(300);
    assert_eq!(
        (world.minutes(), world.state.workloads.wake),
        (vec![], None)
    );
    world.tell(Event::Node(NodeFact::StartRequested { targets: targets() }));
    world.keep();
    assert_eq!(world.minutes(), [5]);
}

#[derive(Debug, Clone)]
enum Step {
    Later(i64),
    Set(i64),
    Reboot,
    Unset,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1i64..900).prop_map(Step::Later),
        2 => (-20_000i64..200_000).prop_map(Step::Set),
        1 => Just(Step::Reboot),
        1 => Just(Step::Unset),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_time_runs_twice_and_one_look_runs_one(steps in prop::collection::vec(step(), 1..30)) {
        let text = document("*/5 * * * *", "  successfulJobsHistoryLimit: 1\n");
        let mut world = World::at(0);
        world.read(&text);
        let mut ran = BTreeSet::new();
        let mut last = BTreeSet::new();
        for step in steps {
            match step {
                Step::Later(seconds) => world.later(seconds),
                Step::Set(seconds) => world.set(seconds),
                Step::Reboot => {
                    world = world.reboot();
                    world.read(&text);
                    world.keep();
                }
                Step::Unset => {
                    world.now.wall = Wall(1_000_000);
                    world.tell(Event::Node(NodeFact::ClockSet));
                    world.keep();
                }
            }
            let now: BTreeSet<i64> = world.minutes().into_iter().collect();
            let new: Vec<i64> = now.difference(&last).copied().collect();
            prop_assert!(new.len() <= 1, "{new:?} at once");
            for minute in new {
                prop_assert!(ran.insert(minute), "{minute} twice");
                prop_assert_eq!(minute.rem_euclid(5), 0);
                prop_assert!(world.now.wall.0 >= (START + minute * 60) * 1_000_000, "{minute} too soon");
            }
            world.finish(0);
            last = world.minutes().into_iter().collect();
        }
    }
}
