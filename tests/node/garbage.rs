//! Leftovers of a pod, whose number does not grow with its restarts.

use super::*;

/// Every path below the agent's folders and in its cgroups that concerns pods, with run numbers and times removed from
/// the names, so that only their count matters.
fn footprint(agent: &Agent) -> Vec<String> {
    let mut all = Vec::new();
    for part in ["run/pods", "run/netns", "root/pods", "logs"] {
        walk(&agent.root.join(part), &mut all);
    }
    all.extend(
        agent
            .cgroup_folders()
            .iter()
            .map(|p| p.display().to_string()),
    );
    let digits = |c: char| if c.is_ascii_digit() { '#' } else { c };
    let mut all: Vec<String> = all
        .iter()
        .map(|p| p.chars().map(digits).collect())
        .collect();
    for path in &mut all {
        while path.contains("##") {
            *path = path.replace("##", "#");
        }
    }
    // Files that the pod itself writes there do not count.
    all.retain(|path| !path.contains("/kubernetes.io~empty-dir/v/"));
    // The unfinished write of a record, perhaps of an agent that was killed: there is one at most, and the next write
    // takes its place.
    all.retain(|path| !path.ends_with("/.exits.json.tmp"));
    all.sort();
    all
}

fn assert_same(found: &[String], expected: &[String]) {
    let more: Vec<_> = found.iter().filter(|p| !expected.contains(p)).collect();
    let less: Vec<_> = expected.iter().filter(|p| !found.contains(p)).collect();
    assert!(
        found == expected,
        "more: {more:#?}, less: {less:#?}, {} and {}",
        found.len(),
        expected.len()
    );
}

fn walk(folder: &std::path::Path, all: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        all.push(entry.path().display().to_string());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), all);
        }
    }
}

/// The number of mounts that the pod's shim sees.
fn mounts(agent: &Agent, pod: &Value) -> usize {
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let shim = agent.cgroup_file(
        "memory",
        &format!("besteffort/pod{uid}/shim"),
        "cgroup.procs",
    );
    let shim = shim.lines().next().expect("the shim").to_owned();
    let mounts = fs::read_to_string(format!("/proc/{shim}/mountinfo")).expect("it lives");
    let ours = agent.root.display().to_string();
    mounts.lines().filter(|line| line.contains(&ours)).count()
}

#[test]
fn a_hundred_restarts_leave_no_more_behind_than_a_few() {
    let agent = Agent::start();
    // Each time all containers start again, at once because of `wait_run`; certain runs wait until the test lets them
    // go on.
    let script = "n=$(cat /v/n 2>/dev/null || echo 0); n=$((n+1)); echo $n > /v/n; echo run $n | tee /dev/termination-log; \
                  dd if=/dev/zero of=/big bs=1k count=64 2>/dev/null; mkdir -p /deep/er; \
                  if [ -e /v/stop$n ]; then echo at $n; until [ -e /v/go$n ]; do sleep 0.02; done; fi; exit 42";
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: loop}}\nspec:\n  terminationGracePeriodSeconds: 1\n  volumes: [{{name: v, \
         emptyDir: {{}}}}]\n  initContainers:\n  - {{name: early, image: busybox:test, command: [sh, -c, \"echo i > /made; touch \
         /v/stop10 /v/stop110\"], volumeMounts: [{{name: v, mountPath: /v}}]}}\n  containers:\n  - name: main\n    image: \
         busybox:test\n    terminationMessagePolicy: FallbackToLogsOnError\n    command: [sh, -c, {script:?}]\n    volumeMounts: [{{name: v, mountPath: \
         /v}}, {{name: v, mountPath: /sub, subPath: below}}]\n    restartPolicy: Never\n    restartPolicyRules:\n    - {{action: RestartAllContainers, exitCodes: \
         {{operator: In, values: [42]}}}}\n"
    );
    agent.write("loop.yaml", &manifest);
    wait_run(&agent, 10);
    let pod = agent.pod("loop");
    let few = settled(&agent);
    let few_mounts = mounts(&agent, &pod);
    // The container ends once it sees the file, perhaps with this program still in it: the result says nothing.
    agent.cli(&["exec", "loop", "-c", "main", "--", "touch", "/v/go10"]);
    wait_run(&agent, 110);
    let after = agent.pod("loop");
    assert_eq!(main_status(&after)["restartCount"], 109);
    let many = settled(&agent);
    assert_same(&many, &few);
    assert_eq!(mounts(&agent, &after), few_mounts);
    assert_eq!(
        agent.ok(&["logs", "loop", "-c", "main", "-p"]).trim(),
        "run 109",
        "the log of the run before can still be read"
    );
    // A restarted agent finds nothing to remove.
    agent.kill_and_restart();
    agent.wait_running("loop");
    assert_same(&settled(&agent), &few);
    let events = agent.ok(&["get", "events", "--no-headers"]);
    assert!(
        events.lines().count() < 40,
        "repeated events are counted, not listed:\n{events}"
    );
    agent.remove("loop.yaml");
    agent.wait_gone("loop");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

/// Waits until the pod's run of that number waits; none before it has waited for its back-off.
fn wait_run(agent: &Agent, run: u32) {
    let restarts = i64::from(run) - 1;
    agent.wait_pod("loop", |pod| {
        let status = main_status(pod);
        if status["state"]["waiting"]["reason"] == "CrashLoopBackOff" {
            agent.cli(&["retry", "loop"]);
        }
        status["restartCount"] == restarts && !status["state"]["running"].is_null()
    });
    agent.wait_line("loop", &format!("at {run}"));
}

/// The footprint once the removal of garbage is done: runs before the last two have no log, and there is one layer.
fn settled(agent: &Agent) -> Vec<String> {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let found = footprint(agent);
        let count = |part: &str| found.iter().filter(|path| path.contains(part)).count();
        let logs = found
            .iter()
            .filter(|path| path.ends_with(".log") && path.contains("/main/"))
            .count();
        if count("/upper") > 0
            && logs == 2
            && found.iter().filter(|p| p.ends_with("layer-#")).count() == 1
        {
            return found;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "the garbage is never removed: {found:#?}"
        );
        std::thread::sleep(Duration::from_millis(20)); // No event reports the removal of files.
    }
}

#[test]
fn pods_that_have_ended_and_are_removed_leave_nothing() {
    let agent = Agent::start();
    let mut first = Vec::new();
    for round in 0..12 {
        let name = format!("job-{round}");
        let file = format!("{name}.yaml");
        let script = "echo done; echo x > /file; exit 0";
        agent.write(
            &file,
            &shell_pod(&name, script, "  restartPolicy: Never\n", ""),
        );
        agent.wait_phase(&name, "Succeeded");
        assert_eq!(
            agent.ok(&["logs", &name]),
            "done\n",
            "while its file is there"
        );
        agent.remove(&file);
        agent.wait_gone(&name);
        if round == 1 {
            first = descriptors(&agent);
        }
    }
    let deadline = std::time::Instant::now() + PATIENCE;
    // Connections of clients that are gone are closed a little later; no event reports it.
    while descriptors(&agent).len() > first.len() {
        let all = descriptors(&agent);
        let late = std::time::Instant::now() >= deadline;
        assert!(!late, "first {first:#?}, then {all:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

/// The agent's open descriptors.
fn descriptors(agent: &Agent) -> Vec<std::path::PathBuf> {
    let folder = fs::read_dir(format!("/proc/{}/fd", agent.pid())).expect("it lives");
    let targets = folder.flatten().map(|entry| fs::read_link(entry.path()));
    targets.flatten().collect()
}
