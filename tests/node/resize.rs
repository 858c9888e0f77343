//! In-place resize of cpu and memory of running containers.

use super::edits::pid;
use super::stages::{STAY, staged, status};
use super::*;

const MIB: u64 = 1 << 20;

/// A pod of `main` with these limits, which are its requests too, and `other`, which has 50m and 16 MiB.
fn two(agent: &Agent, cpu_milli: u64, memory_mib: u64, more: &str) -> String {
    let limits = |cpu: u64, memory: u64| {
        format!("    resources: {{limits: {{cpu: {cpu}m, memory: {memory}Mi}}}}\n")
    };
    let main = limits(cpu_milli, memory_mib) + more;
    staged(
        agent,
        "a",
        "",
        &[],
        &[("main", STAY, &main), ("other", STAY, &limits(50, 16))],
    )
}

/// The limits of cpu (milli) and memory (MiB) in a container's cgroup, or in the pod's if `container` is empty.
fn limits(agent: &Agent, pod: &Value, container: &str) -> (u64, u64) {
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let group = match container {
        "" => format!("pod{uid}"),
        name => format!("pod{uid}/c-{name}"),
    };
    let v1 = std::path::Path::new("/sys/fs/cgroup/memory").is_dir();
    let (cpu, memory) = match v1 {
        true => ("cpu.cfs_quota_us", "memory.limit_in_bytes"),
        false => ("cpu.max", "memory.max"),
    };
    let number = |controller: &str, file: &str| -> u64 {
        let text = agent.cgroup_file(controller, &group, file);
        let first = text.split(' ').next().expect("a word");
        first.parse().expect("a number")
    };
    (number("cpu", cpu) / 100, number("memory", memory) / MIB)
}

fn condition<'p>(pod: &'p Value, kind: &str) -> Option<&'p Value> {
    let all = pod["status"]["conditions"].as_array()?;
    all.iter().find(|c| c["type"] == kind)
}

fn settled(pod: &Value, container: &str, cpu: &str, memory: &str) -> bool {
    let status = status(pod, container);
    condition(pod, "PodResizeInProgress").is_none()
        && condition(pod, "PodResizePending").is_none()
        && status["resources"]["limits"]["cpu"] == cpu
        && status["resources"]["limits"]["memory"] == memory
        && status["allocatedResources"]["memory"] == memory
        && !status["state"]["running"].is_null()
}

#[test]
fn cpu_and_memory_change_while_containers_run_and_restart_only_those_whose_policy_says_so() {
    let agent = Agent::start();
    agent.write("a.yaml", &two(&agent, 100, 32, ""));
    let before = agent.wait_running("a");
    assert_eq!(limits(&agent, &before, "main"), (100, 32));
    assert_eq!(limits(&agent, &before, ""), (150, 48));
    for (cpu, memory) in [(200, 64), (100, 24)] {
        agent.write("a.yaml", &two(&agent, cpu, memory, ""));
        let (c, m) = (format!("{cpu}m"), format!("{memory}Mi"));
        let after = agent.wait_pod("a", |pod| settled(pod, "main", &c, &m));
        assert_eq!(limits(&agent, &after, "main"), (cpu, memory));
        assert_eq!(limits(&agent, &after, ""), (cpu + 50, memory + 16));
        assert_eq!(limits(&agent, &after, "other"), (50, 16));
        for name in ["main", "other"] {
            assert_eq!(status(&after, name)["restartCount"], 0, "{after}");
            assert_eq!(pid(&agent, &before, name), pid(&agent, &after, name));
        }
        assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
    }
    let events = agent.ok(&["get", "events"]);
    for reason in ["ResizeStarted", "ResizeCompleted"] {
        assert!(events.contains(reason), "{events}");
    }
    // From here on, a change of memory needs a restart, a change of cpu still none.
    let policy = "    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]\n";
    agent.write("a.yaml", &two(&agent, 300, 24, policy));
    let after = agent.wait_pod("a", |pod| settled(pod, "main", "300m", "24Mi"));
    assert_eq!(pid(&agent, &before, "main"), pid(&agent, &after, "main"));
    agent.write("a.yaml", &two(&agent, 300, 48, policy));
    let after = agent.wait_pod("a", |pod| settled(pod, "main", "300m", "48Mi"));
    assert_eq!(status(&after, "main")["restartCount"], 1, "{after}");
    assert_eq!(status(&after, "other")["restartCount"], 0, "{after}");
    assert_eq!(pid(&agent, &before, "other"), pid(&agent, &after, "other"));
    assert_eq!(limits(&agent, &after, "main"), (300, 48));
    assert_eq!(limits(&agent, &after, ""), (350, 64));
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn memory_in_use_is_not_taken_away_until_it_is_free() {
    let agent = Agent::start();
    agent.write("a.yaml", &two(&agent, 100, 96, ""));
    let before = agent.wait_running("a");
    let in_main = |script: &str| {
        agent.ok(&["exec", "a", "-c", "main", "--", "sh", "-c", script]);
    };
    in_main("dd if=/dev/zero of=/dev/shm/x bs=1M count=48");
    agent.write("a.yaml", &two(&agent, 100, 32, ""));
    let now = agent.wait_pod("a", |pod| {
        condition(pod, "PodResizeInProgress").is_some_and(|c| c["reason"] == "Error")
    });
    let message = &condition(&now, "PodResizeInProgress").expect("waited for")["message"];
    let message = message.as_str().expect("text");
    let expected =
        "attempting to set container \"main\" memory limit (33554432) below current usage";
    assert!(message.contains(expected), "{message}");
    assert_eq!(limits(&agent, &now, "main"), (100, 96));
    assert_eq!(
        status(&now, "main")["resources"]["limits"]["memory"],
        "96Mi"
    );
    assert_eq!(status(&now, "main")["allocatedResources"]["memory"], "32Mi");
    in_main("rm /dev/shm/x");
    let after = agent.wait_pod("a", |pod| settled(pod, "main", "100m", "32Mi"));
    assert_eq!(limits(&agent, &after, "main"), (100, 32));
    assert_eq!(pid(&agent, &before, "main"), pid(&agent, &after, "main"));
    assert!(agent.ok(&["get", "events"]).contains("ResizeError"));
    agent.remove("a.yaml");
    agent.wait_gone("a");
}

#[test]
fn a_resize_goes_on_when_the_agent_dies_in_the_middle_of_it() {
    let agent = Agent::start();
    agent.write("a.yaml", &two(&agent, 100, 32, ""));
    let before = agent.wait_running("a");
    for round in 1..=4 {
        let (cpu, memory) = (100 + 10 * round, 32 + 8 * (round % 3));
        let mut changes = agent.watch("/api/v1/pods?watch=true");
        agent.write("a.yaml", &two(&agent, cpu, memory, ""));
        // The edit is recorded; what follows from it may be under way.
        let wanted = format!("{cpu}m");
        let noted = |change: &Value| {
            change["object"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] == *wanted
        };
        changes.find(noted).expect("the edit is shown");
        agent.kill_and_restart();
        let memory_text = format!("{memory}Mi");
        let after = agent.wait_pod("a", |pod| settled(pod, "main", &wanted, &memory_text));
        assert_eq!(limits(&agent, &after, "main"), (cpu, memory));
        assert_eq!(limits(&agent, &after, ""), (cpu + 50, memory + 16));
        assert_eq!(pid(&agent, &before, "main"), pid(&agent, &after, "main"));
    }
    agent.remove("a.yaml");
    agent.wait_gone("a");
}

#[test]
fn a_resize_that_does_not_fit_waits_for_room_or_for_another_edit() {
    let agent = Agent::start();
    let node: Value =
        serde_json::from_str(&agent.ok(&["get", "nodes", "-o", "json"])).expect("JSON");
    let node = match node["items"].as_array() {
        Some(items) => items[0].clone(),
        None => node,
    };
    let memory = node["status"]["allocatable"]["memory"]
        .as_str()
        .expect("an amount");
    let all: u64 = memory
        .strip_suffix("Ki")
        .expect("Ki")
        .parse()
        .expect("a number");
    let pod = |name: &str, mib: u64| {
        let requests = format!("    resources: {{requests: {{memory: {mib}Mi}}}}\n");
        shell_pod(name, SLEEP, "", &requests)
    };
    agent.write("big.yaml", &pod("big", all / 1024 - 64));
    agent.write("a.yaml", &pod("a", 32));
    agent.wait_running("big");
    let before = agent.wait_running("a");
    let waits = |pod: &Value, reason: &str| {
        condition(pod, "PodResizePending").is_some_and(|c| c["reason"] == reason)
    };
    agent.write("a.yaml", &pod("a", all / 1024 + 1));
    let now = agent.wait_pod("a", |pod| waits(pod, "Infeasible"));
    assert_eq!(status(&now, "main")["allocatedResources"]["memory"], "32Mi");
    agent.write("a.yaml", &pod("a", 128));
    let now = agent.wait_pod("a", |pod| waits(pod, "Deferred"));
    assert_eq!(status(&now, "main")["allocatedResources"]["memory"], "32Mi");
    assert_eq!(
        now["spec"]["containers"][0]["resources"]["requests"]["memory"],
        "128Mi"
    );
    agent.remove("big.yaml");
    let after = agent.wait_pod("a", |pod| {
        condition(pod, "PodResizePending").is_none()
            && condition(pod, "PodResizeInProgress").is_none()
            && status(pod, "main")["allocatedResources"]["memory"] == "128Mi"
    });
    assert_eq!(pid_of(&agent, &before), pid_of(&agent, &after));
    let events = agent.ok(&["get", "events"]);
    for reason in ["ResizeInfeasible", "ResizeDeferred", "ResizeStarted"] {
        assert!(events.contains(reason), "{events}");
    }
    let (metrics, _) = agent.request("/metrics");
    for line in [
        "kubelet_pod_infeasible_resizes_total{reason_detail=\"insufficient_node_allocatable\"} 1",
        "kubelet_pod_resize_duration_milliseconds_bucket{success=\"true\",le=\"600000\"} 1",
        "kubelet_pod_resize_duration_milliseconds_count{success=\"true\"} 1",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} in {metrics}");
    }
}

#[test]
fn containers_without_limits_have_those_of_their_pod_also_after_an_edit() {
    let agent = Agent::start();
    let text = |cpu: u64, memory: u64| {
        let own = format!("  resources: {{limits: {{cpu: {cpu}m, memory: {memory}Mi}}}}\n");
        let all = [("main", STAY, ""), ("other", STAY, "")];
        staged(&agent, "a", &own, &[], &all)
    };
    let has = |pod: &Value, cpu: u64, memory: u64| {
        for container in ["", "main", "other"] {
            let found = limits(&agent, pod, container);
            assert_eq!(found, (cpu, memory), "{container}");
        }
    };
    agent.write("a.yaml", &text(200, 64));
    let before = agent.wait_running("a");
    has(&before, 200, 64);
    let shown = &before["status"]["resources"];
    assert_eq!(shown["requests"]["cpu"], "200m", "{shown}");
    for (cpu, memory) in [(300, 128), (100, 32)] {
        agent.write("a.yaml", &text(cpu, memory));
        let after = agent.wait_pod("a", |pod| {
            condition(pod, "PodResizeInProgress").is_none()
                && pod["status"]["resources"]["limits"]["memory"] == format!("{memory}Mi")
        });
        has(&after, cpu, memory);
        assert_eq!(pid(&agent, &before, "main"), pid(&agent, &after, "main"));
    }
}
