//! Coracle shows what a real kubelet showed. The pods' statuses were recorded from kubelet v1.36 (one status on each
//! line, in `fixtures/recorded`); a whole agent runs the same pods with real containers, all at once.
//!
//! The test compares the order of the statuses: phase, conditions with reasons and messages, states of containers, restart
//! counts, `ready`, `started`. It leaves out times, ids, and the node's name behind the pod's name (A3). Deliberate
//! differences:
//!
//! - The kubelet syncs once a second, so a status that it showed for less than that may be missing on either side.
//! - The exit of a run that will start again: the kubelet shows it until its next sync, coracle goes on to the back-off
//!   at once. After a kill for a probe the kubelet shows no exit if it restarts the container in the same sync.
//! - A run of a second or less may be missing on both sides.
//! - The kubelet starts a pod's containers together and shows them afterwards, coracle shows each start.
//! - The kubelet may remove the sandbox of a finished pod before it shows the pod's end.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::Agent;
use serde_json::{Value, json};

/// How much of each recording is played, in seconds.
const UNTIL_S: f64 = 16.5;

/// One status as a line.
#[derive(Debug, Clone, PartialEq)]
struct Shown {
    line: String,
    /// Whether the other side may never have shown it.
    passing: bool,
}

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/recorded")
}

/// A state without times; the pod's `name_namespace(uid)` becomes `POD`.
fn state(state: &Value) -> String {
    let Some((kind, fields)) = state.as_object().and_then(|s| s.iter().next()) else {
        return "-".to_owned();
    };
    let mut text = kind.clone();
    for field in ["reason", "message", "exitCode", "signal"] {
        if !fields[field].is_null() {
            text += &format!(" {}", fields[field]);
        }
    }
    match (text.find(" pod="), text.rfind(')')) {
        (Some(from), Some(to)) => format!("{} POD{}", &text[..from], &text[to + 1..]),
        _ => text,
    }
}

/// All containers of a status.
fn containers(status: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["init", "ctr"].into_iter();
    lists.flat_map(|list| status[list].as_array().into_iter().flatten())
}

/// The starts of runs that ended so soon that a status may never have shown them.
fn brief(statuses: &[Value]) -> BTreeSet<(String, String)> {
    let ends = |c: &Value| {
        [&c[1], &c[2]].map(|state| {
            let end = &state["terminated"];
            let (from, to) = (second(&end["startedAt"])?, second(&end["finishedAt"])?);
            (to - from <= 1).then(|| (c[0].to_string(), end["startedAt"].to_string()))
        })
    };
    let all = statuses.iter().flat_map(containers);
    all.flat_map(ends).flatten().collect()
}

/// A story's statuses in the form in which they are compared.
fn shown(always: bool, statuses: &[Value]) -> Vec<Shown> {
    let brief = brief(statuses);
    statuses
        .iter()
        .map(|status| {
            let mut line = format!(
                "{} {} {}",
                status["phase"], status["reason"], status["message"]
            );
            for condition in status["cond"].as_array().into_iter().flatten() {
                line += &format!("; {condition}");
            }
            let mut passing = false;
            for c in containers(status) {
                let (now, last) = (state(&c[1]), state(&c[2]));
                line += &format!("; {} {now} < {last} {} {} {}", c[0], c[3], c[4], c[5]);
                let started = c[1]["running"]["startedAt"].to_string();
                passing |= brief.contains(&(c[0].to_string(), started));
            }
            let mains: Vec<&Value> = status["ctr"].as_array().into_iter().flatten().collect();
            let ends = |c: &&Value| !c[1]["terminated"].is_null();
            let waits = |c: &&Value| c[1]["waiting"]["reason"] == "ContainerCreating";
            let begun = mains.iter().filter(|c| !waits(c)).count();
            passing |= always && mains.iter().any(ends) || (1..mains.len()).contains(&begun);
            Shown { line, passing }
        })
        .collect()
}

/// A pod of coracle's in the form of the recordings.
fn recorded_form(pod: &Value) -> Value {
    let status = &pod["status"];
    let list = |field: &str| status[field].as_array().cloned().unwrap_or_default();
    let conditions = list("conditions");
    let conditions = conditions
        .iter()
        .map(|c| json!([c["type"], c["status"], c["reason"], c["message"]]));
    let containers = |field: &str| -> Vec<Value> {
        let all = list(field);
        let shown = all.iter().map(|c| {
            json!([
                c["name"],
                c["state"],
                c["lastState"],
                c["restartCount"],
                c["ready"],
                c["started"]
            ])
        });
        shown.collect()
    };
    json!({
        "phase": status["phase"], "reason": status["reason"], "message": status["message"],
        "cond": conditions.collect::<Vec<_>>(),
        "init": containers("initContainerStatuses"), "ctr": containers("containerStatuses"),
    })
}

/// The recorded statuses of a case.
fn recorded(case: &str) -> Vec<Value> {
    let text = fs::read_to_string(fixtures().join(case).join("timeline.jsonl")).expect("recorded");
    let lines = text.lines();
    lines
        .map(|l| serde_json::from_str(l).expect("JSON"))
        .collect()
}

/// A recording up to its limit: each status, and for how long it was shown.
fn recording(all: &[Value], always: bool) -> Vec<(Shown, f64)> {
    let at = |i: usize| {
        all.get(i)
            .map_or(f64::INFINITY, |s| s["t"].as_f64().expect("t"))
    };
    let shown = shown(always, all).into_iter().enumerate();
    let within = shown.filter(|(i, _)| at(*i) <= UNTIL_S);
    within
        .map(|(i, shown)| (shown, at(i + 1) - at(i)))
        .collect()
}

const SANDBOX: &str = r#"["PodReadyToStartContainers","True",null,null]"#;
const NO_SANDBOX: &str = r#"["PodReadyToStartContainers","False",null,null]"#;

/// The differences: statuses that were never shown here, and ones that the kubelet never showed.
fn differences(recorded: &[(Shown, f64)], ours: &[Shown]) -> Vec<String> {
    let mut found = vec![];
    let mut from = 0;
    for (wanted, lasted) in recorded.iter().filter(|(s, _)| !s.passing) {
        match ours[from..].iter().position(|s| s.line == wanted.line) {
            Some(at) => from += at,
            None if *lasted < 1.0 => {}
            None => found.push(format!("not shown: {}", wanted.line)),
        }
    }
    for one in ours.iter().filter(|s| !s.passing) {
        let known = |line: &str| recorded.iter().any(|(r, _)| r.line == line);
        let finished = one.line.starts_with("\"Succeeded\"") || one.line.starts_with("\"Failed\"");
        let removed = one.line.replace(SANDBOX, NO_SANDBOX);
        if !(known(&one.line) || finished && known(&removed)) {
            found.push(format!("not the kubelet's: {}", one.line));
        }
    }
    found
}

/// A time in whole seconds.
fn second(time: &Value) -> Option<i64> {
    let time: k8s_openapi::jiff::Timestamp = time.as_str()?.parse().ok()?;
    Some(time.as_second())
}

/// Seconds between the end of each run and the start of the next, by the number of the restart.
fn gaps(statuses: &[Value]) -> BTreeMap<u64, i64> {
    let gap = |c: &Value| {
        let started = second(&c[1]["running"]["startedAt"])?;
        let finished = second(&c[2]["terminated"]["finishedAt"])?;
        Some((c[3].as_u64()?, started - finished))
    };
    let all = statuses
        .iter()
        .flat_map(|s| s["ctr"].as_array().into_iter().flatten());
    all.filter_map(gap).collect()
}

#[test]
fn statuses_come_in_the_order_recorded_from_a_kubelet() {
    let agent = Agent::start();
    let folders = fs::read_dir(fixtures()).expect("fixtures");
    let mut cases: Vec<String> = folders
        .map(|entry| {
            entry
                .expect("entry")
                .file_name()
                .into_string()
                .expect("name")
        })
        .collect();
    cases.sort();
    assert!(!cases.is_empty());
    let mut watch = agent.watch("/api/v1/pods?watch=true");
    let mut always = BTreeMap::new();
    for case in &cases {
        let path = fixtures().join(case).join("pod.json");
        let text = fs::read_to_string(path).expect("a manifest");
        let text = text.replace("localhost/busybox:1", "busybox:test");
        let pod: Value = serde_json::from_str(&text).expect("JSON");
        let policy = pod["spec"]["restartPolicy"].as_str();
        always.insert(case.clone(), policy.is_none_or(|policy| policy == "Always"));
        agent.write(&format!("{case}.json"), &text);
    }
    let mut ours: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let deadline = Instant::now() + Duration::from_secs(90);
    // The slowest story: a third run after a back-off of 10 s.
    let third = |seen: &BTreeMap<String, Vec<Value>>, case: &str| {
        seen.get(case).is_some_and(|all| {
            all.iter()
                .any(|s| s["ctr"][0][3] == 2 && !s["ctr"][0][1]["running"].is_null())
        })
    };
    let over = |seen: &BTreeMap<String, Vec<Value>>, case: &str| {
        let last = seen.get(case).and_then(|all| all.last());
        last.is_some_and(|s| {
            s["cond"][0] == json!(["PodReadyToStartContainers", "False", null, null])
        })
    };
    while !(third(&ours, "crashloop")
        && third(&ours, "live-exec-fail")
        && third(&ours, "startup-fail")
        && over(&ours, "never-mixed")
        && over(&ours, "init-fail-never")
        && over(&ours, "sidecar-complete"))
    {
        assert!(Instant::now() < deadline, "the stories end: {ours:#?}");
        let pod = &watch.next().expect("the agent reports")["object"];
        let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
        ours.entry(name).or_default().push(recorded_form(pod));
    }
    let mut different = String::new();
    for case in &cases {
        let seen = &ours[case];
        let mut lines = shown(always[case], seen);
        lines.dedup_by(|a, b| a.line == b.line);
        let kubelets = recorded(case);
        let mut recorded = recording(&kubelets, always[case]);
        // The part of the recording that has been played so far.
        let last = lines.last().expect("shown").line.clone();
        if let Some(end) = recorded.iter().position(|(s, _)| s.line == last) {
            recorded.truncate(end + 1);
        }
        let found = differences(&recorded, &lines);
        if !found.is_empty() {
            let all: Vec<&str> = lines.iter().map(|s| s.line.as_str()).collect();
            let (found, all) = (found.join("\n  "), all.join("\n  "));
            writeln!(different, "{case}:\n  {found}\n all of it:\n  {all}").expect("text");
        }
        let kubelets = gaps(&kubelets);
        for (restart, gap) in gaps(seen) {
            let theirs = kubelets.get(&restart).copied().unwrap_or(0);
            // The kubelet rounds up and adds up to half of the wait; a table test checks the wait itself.
            assert!(
                gap <= theirs + 3,
                "{case}: restart {restart} after {gap} s, not {theirs} s"
            );
            assert!(
                theirs < 10 || gap >= 9,
                "{case}: restart {restart} after {gap} s, not {theirs} s"
            );
        }
    }
    assert!(different.is_empty(), "{different}");
}
