//! The effective limits of a pod, as people see them.

use super::*;

const LIMITS: &str =
    "    resources: {limits: {cpu: 100m, memory: 32Mi}, requests: {cpu: 50m, memory: 16Mi}}\n";

#[test]
fn a_pod_is_described_with_the_current_values_of_its_cgroups() {
    let agent = Agent::start();
    agent.write(
        "web.yaml",
        &shell_pod(
            "web",
            SLEEP,
            "  overhead: {cpu: 10m, memory: 8Mi}\n",
            LIMITS,
        ),
    );
    let pod = agent.wait_running("web");
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let values = |whose: &str| {
        let text = agent.ok(&["describe", "pod", "web", "-o", "json"]);
        let all: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(all["pod"]["metadata"]["name"], "web");
        let item = all["cgroups"].as_array().expect("a list").iter();
        let mut item = item.filter(|item| item["container"].as_str().unwrap_or("") == whose);
        item.next().expect("it has a cgroup").clone()
    };
    let value = |item: &Value, file: &str| {
        let mut all = item["values"].as_array().expect("a list").iter();
        all.find(|value| value["file"] == file).expect(file).clone()
    };
    let v2 = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let (file, controller) = match v2 {
        true => ("memory.max", ""),
        false => ("memory.limit_in_bytes", "memory"),
    };
    for (whose, mib) in [("", 32 + 8), ("main", 32)] {
        let limit = value(&values(whose), file);
        assert_eq!(limit["found"], (mib << 20).to_string(), "{limit}");
        assert_eq!(limit["holds"], true);
    }
    // A change by another program is shown.
    let path = values("main")["path"].as_str().expect("a path").to_owned();
    assert!(path.ends_with(&format!("pod{uid}/c-main")), "{path}");
    let below = path.split_once("pods/").expect("below the agent's").1;
    fs::write(agent.cgroup_path(controller, below, file), "16777216").expect("written");
    assert_eq!(value(&values("main"), file)["holds"], false);
    let page = agent.ok(&["describe", "pod", "web"]);
    let line = format!("{}  (is to be {})", 16 << 20, 32 << 20);
    assert!(page.contains(&line), "{page}");
    assert!(page.contains("\nCgroups:\n  Pod: "), "{page}");
    let refused = agent.cli(&["describe", "service", "x", "-o", "json"]);
    assert_eq!(refused.status.code(), Some(2));
}

/// On cgroup v1 and v2: controller, file, value.
fn first_or_second<'t>(v1: [&'t str; 2], v2: &'t str) -> [&'t str; 2] {
    match std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        true => ["", v2],
        false => v1,
    }
}

#[test]
fn all_pods_together_have_what_is_not_reserved_and_classes_share_it_by_their_requests() {
    let agent = Agent::prepare(std::sync::Arc::new(common::netns::Netns::new()), &[], None);
    let file = agent.root.join("config.yaml");
    let settings = "kind: KubeletConfiguration\nsystemReserved: {memory: 100Mi, pid: '100'}\n\
                    enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /none\n";
    fs::write(&file, settings).expect("written");
    let agent = agent.with_flags(&["--config", file.to_str().expect("utf-8")]);
    agent.launch();
    let archive = common::archive().to_str().expect("utf-8");
    agent.ok(&["image", "import", archive]);
    let info = fs::read_to_string("/proc/meminfo").expect("there");
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total = total.expect("there").trim().trim_end_matches(" kB");
    let total: u64 = total.parse::<u64>().expect("a number") << 10;
    let [controller, limit] = first_or_second(["memory", "memory.limit_in_bytes"], "memory.max");
    let all = agent.cgroup_file(controller, "", limit);
    assert_eq!(all, (total - (100 << 20)).to_string());
    let events = agent.ok(&["get", "events"]);
    for said in [
        "NodeAllocatableEnforced",
        "Updated Node Allocatable limit across pods",
        "FailedNodeAllocatableEnforcement",
        "Failed to enforce System Reserved Cgroup Limits on \"/none\": cgroup `/none` does not exist",
    ] {
        assert!(events.contains(said), "{said}: {events}");
    }
    let [controller, share] = first_or_second(["cpu", "cpu.shares"], "cpu.weight");
    let burstable = || agent.cgroup_file(controller, "burstable", share);
    // 50m each.
    let two = match controller {
        "" => "4",
        _ => "102",
    };
    for name in ["a", "b"] {
        agent.write(&format!("{name}.yaml"), &shell_pod(name, SLEEP, "", LIMITS));
        agent.wait_running(name);
    }
    assert_eq!(burstable(), two);
}

#[test]
fn containers_that_end_at_once_do_not_cause_warnings_about_their_cgroups() {
    let agent = Agent::start();
    let names: Vec<String> = (0..60).map(|n| format!("c{n}")).collect();
    let mut pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: brief}\nspec:\n  restartPolicy: Never\n  containers:\n"
        .to_owned();
    let limits = LIMITS.replace("50m", "1m").replace("16Mi", "1Mi");
    for name in &names {
        pod += &format!(
            "  - name: {name}\n    image: busybox:test\n    command: [\"true\"]\n{limits}"
        );
    }
    agent.write("brief.yaml", &pod);
    agent.wait_phase("brief", "Succeeded");
    // An end may be known before the start is reported.
    super::events::wait_event(&agent, |event| event["message"] == "Started container c59");
    let events = agent.request("/api/v1/namespaces/default/events").0;
    assert!(!events.contains("CgroupMismatch"), "{events}");
}
