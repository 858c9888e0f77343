use super::*;

fn runs(of: &[(&str, &str)]) -> BTreeMap<String, String> {
    of.iter()
        .map(|(c, r)| ((*c).to_owned(), (*r).to_owned()))
        .collect()
}

fn expected(runs: BTreeMap<String, String>) -> BTreeMap<String, Expected> {
    let name = "default/web".to_owned();
    BTreeMap::from([("u1".to_owned(), Expected { name, runs })])
}

/// An agent that is up for a minute, with one pod.
fn up(ready: bool, runs: &[(&str, Option<&str>)]) -> SeenAgent {
    let runs = runs
        .iter()
        .map(|(c, r)| ((*c).to_owned(), r.map(str::to_owned)))
        .collect();
    let pod = SeenPod {
        ready,
        succeeded: false,
        runs,
    };
    SeenAgent::Up {
        for_ms: 60_000,
        pods: BTreeMap::from([("u1".to_owned(), pod)]),
    }
}

fn young(agent: SeenAgent, for_ms: u64) -> SeenAgent {
    match agent {
        SeenAgent::Up { pods, .. } => SeenAgent::Up { for_ms, pods },
        other => other,
    }
}

#[test]
fn a_trial_ends_by_what_is_seen() {
    let same = up(true, &[("main", Some("0@a"))]);
    let unready = up(false, &[("main", Some("0@a"))]);
    let none = SeenAgent::Up {
        for_ms: 60_000,
        pods: BTreeMap::new(),
    };
    let done = SeenAgent::Up {
        for_ms: 60_000,
        pods: BTreeMap::from([(
            "u1".to_owned(),
            SeenPod {
                succeeded: true,
                ..SeenPod::default()
            },
        )]),
    };
    // What is seen, (seconds spent of 120, starts, boots), the verdict: `ok`, `…awaited`, or why it goes back.
    let same_boot = [
        ("all as before", same.clone(), (40, 1, 0), "ok"),
        (
            "up since a moment",
            young(same.clone(), 29_999),
            (40, 1, 0),
            "…all pods are as before",
        ),
        ("one crash, then fine", same.clone(), (40, 2, 0), "ok"),
        ("two crashes", same.clone(), (4, 3, 0), "crashed twice"),
        (
            "two crashes, down",
            SeenAgent::Down,
            (4, 3, 0),
            "crashed twice",
        ),
        (
            "not up yet",
            SeenAgent::Down,
            (119, 1, 0),
            "…does not answer",
        ),
        (
            "never up",
            SeenAgent::Down,
            (120, 1, 0),
            "does not answer within 120 s",
        ),
        (
            "stopped by hand, for long",
            SeenAgent::Stopped,
            (500, 1, 0),
            "…the agent is stopped",
        ),
        (
            "not ready now",
            unready.clone(),
            (119, 1, 0),
            "…pod default/web is not ready",
        ),
        (
            "not ready in time",
            unready.clone(),
            (120, 1, 0),
            "not ready within 120 s",
        ),
        (
            "healthy at the last moment",
            same.clone(),
            (120, 1, 0),
            "ok",
        ),
        (
            "the pod is gone",
            none.clone(),
            (1, 1, 0),
            "pod default/web is gone",
        ),
        ("the pod is done", done, (60, 1, 0), "ok"),
        (
            "restarted",
            up(true, &[("main", Some("1@b"))]),
            (1, 1, 0),
            "was restarted",
        ),
        ("ended", up(true, &[]), (1, 1, 0), "has ended"),
        ("ended well", up(true, &[("main", None)]), (60, 1, 0), "ok"),
        (
            "third power cut",
            same.clone(),
            (1, 1, 3),
            "the machine went down",
        ),
    ];
    check(&expected(runs(&[("main", "0@a")])), &same_boot);
    let after_reboot = [
        (
            "other runs, ready",
            up(true, &[("main", Some("1@z"))]),
            (40, 1, 1),
            "ok",
        ),
        (
            "the pod is not there yet",
            none.clone(),
            (40, 1, 1),
            "…pod default/web is not ready",
        ),
        (
            "the pod does not come",
            none,
            (120, 1, 1),
            "not ready within 120 s",
        ),
    ];
    check(&expected(BTreeMap::new()), &after_reboot);
}

type Case<'a> = (&'a str, SeenAgent, (u64, u32, u32), &'a str);

fn check(expected: &BTreeMap<String, Expected>, cases: &[Case<'_>]) {
    for (what, agent, (spent, starts, boots), wanted) in cases {
        let trial = Trial {
            expected,
            within_ms: 120_000,
            spent_ms: spent * 1000,
            starts: *starts,
            boots: *boots,
            asked_back: false,
        };
        match (trial.judge(agent), wanted.strip_prefix('…')) {
            (Verdict::Confirm, _) => assert_eq!(*wanted, "ok", "{what}"),
            (Verdict::GoOn(said), Some(wanted)) => assert!(said.contains(wanted), "{what}: {said}"),
            (Verdict::GoBack(said), None) => assert!(said.contains(wanted), "{what}: {said}"),
            (other, _) => panic!("{what}: {other:?}"),
        }
        let asked = Trial {
            asked_back: true,
            ..trial
        };
        assert!(matches!(asked.judge(agent), Verdict::GoBack(_)), "{what}");
    }
}

#[test]
fn the_time_to_settle_follows_the_time_there_is() {
    for (within, wanted) in [
        (1_000, 5_000),
        (40_000, 10_000),
        (120_000, 30_000),
        (3_600_000, 30_000),
    ] {
        assert_eq!(settle_ms(within), wanted);
    }
}
