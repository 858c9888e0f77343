//! The properties of the node, and the resource usage of its pods.

use std::path::Path;

use super::*;

const MI: u64 = 1 << 20;

/// Two containers: one uses a fifth of a processor at most, one holds memory and has written to disk.
fn busy() -> String {
    let hold = "dd if=/dev/zero of=/dev/shm/held bs=1M count=24; dd if=/dev/zero of=/made bs=1M count=3; \
                dd if=/dev/zero of=/data/made bs=1M count=5; sync; echo held; sleep 1000";
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: busy, labels: {{app: busy}}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  \
         volumes: [{{name: data, emptyDir: {{}}}}]\n  containers:\n  - name: burn\n    image: busybox:test\n    command: [sh, -c, \
         \"while :; do :; done\"]\n    resources: {{limits: {{cpu: 200m}}}}\n  - name: hold\n    image: busybox:test\n    \
         command: [sh, -c, {hold:?}]\n    resources: {{requests: {{cpu: 100m, memory: 32Mi}}, limits: {{memory: 64Mi}}}}\n    \
         volumeMounts: [{{name: data, mountPath: /data}}]\n"
    )
}

fn wait_held(agent: &Agent) {
    agent.wait_running("busy");
    let mut child = coracle()
        .args(["logs", "-f", "busy", "-c", "hold"])
        .env("CORACLE_SOCKET", agent.socket())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("coracle runs");
    let lines =
        std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().expect("piped")));
    let said = lines.map_while(Result::ok).any(|line| line == "held");
    child.kill().expect("own child");
    child.wait().expect("own child");
    assert!(said, "{}", agent.log());
}

fn json(agent: &Agent, path: &str) -> Value {
    let (body, status) = agent.request(path);
    assert!(status.ends_with("200 OK"), "{path}: {status}");
    serde_json::from_str(&body).expect("JSON")
}

fn number(value: &Value) -> u64 {
    let whole = value.as_u64();
    whole.unwrap_or_else(|| panic!("{value} is a whole number"))
}

#[test]
fn a_pod_that_uses_cpu_and_memory_is_measured() {
    let agent = Agent::start();
    agent.write("busy.yaml", &busy());
    agent.write("idle.yaml", &shell_pod("idle", SLEEP, "", ""));
    wait_held(&agent);
    agent.wait_running("idle");

    let summary = json(&agent, "/stats/summary");
    let node = &summary["node"];
    assert_eq!(node["nodeName"], "test-node");
    assert!(number(&node["memory"]["workingSetBytes"]) > 10 * MI);
    assert!(number(&node["cpu"]["usageNanoCores"]) > 0);
    assert!(number(&node["fs"]["capacityBytes"]) > number(&node["fs"]["usedBytes"]));
    assert!(number(&node["rlimit"]["maxpid"]) > number(&node["rlimit"]["curproc"]));
    let psi = node["memory"]["psi"]["some"]["avg10"].as_f64();
    let kernel_reports = Path::new("/proc/pressure/memory").exists();
    assert_eq!(psi.is_some(), kernel_reports, "{node:#}");
    let pods = summary["pods"].as_array().expect("pods");
    assert_eq!(pods.len(), 2);
    let of = |name: &str| {
        let found = pods.iter().find(|pod| pod["podRef"]["name"] == name);
        found.expect("it is measured")
    };
    let pod = of("busy");
    let container = |name: &str| {
        let mut all = pod["containers"].as_array().expect("containers").iter();
        all.find(|c| c["name"] == name).expect("it runs")
    };
    let rate = number(&container("burn")["cpu"]["usageNanoCores"]);
    assert!((20_000_000..400_000_000).contains(&rate), "{rate}");
    let hold = container("hold");
    let memory = &hold["memory"];
    let set = number(&memory["workingSetBytes"]);
    assert!((24 * MI..64 * MI).contains(&set), "{memory:#}");
    assert_eq!(number(&memory["availableBytes"]), 64 * MI - set);
    let rootfs = number(&hold["rootfs"]["usedBytes"]);
    assert!((3 * MI..4 * MI).contains(&rootfs), "{hold:#}");
    assert!(number(&hold["logs"]["usedBytes"]) > 0);
    let volume = &pod["volume"][0];
    assert_eq!(volume["name"], "data");
    assert!((5 * MI..6 * MI).contains(&number(&volume["usedBytes"])));
    assert!(number(&pod["ephemeral-storage"]["usedBytes"]) >= rootfs + 5 * MI);
    assert_eq!(pod["network"]["name"], "eth0");
    assert!(number(&pod["process_stats"]["process_count"]) >= 3);
    assert!(number(&of("idle")["cpu"]["usageNanoCores"]) < rate);

    let brief = json(&agent, "/stats/summary?only_cpu_and_memory=true");
    let pod = &brief["pods"][0];
    for left_out in ["network", "volume", "ephemeral-storage", "process_stats"] {
        assert_eq!(pod[left_out], Value::Null, "{left_out}");
    }
    assert_eq!(brief["node"]["fs"], Value::Null);
    assert!(number(&pod["cpu"]["usageCoreNanoSeconds"]) > 0);

    let top = agent.ok(&["top", "pods", "--sort-by", "cpu"]);
    let lines: Vec<Vec<&str>> = top
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0], ["NAME", "CPU(cores)", "MEMORY(bytes)"]);
    assert_eq!((lines[1][0], lines[2][0]), ("busy", "idle"), "{top}");
    assert_ne!(lines[1][1], "0m", "{top}");
    let held: u64 = lines[1][2].trim_end_matches("Mi").parse().expect("MiB");
    assert!((24..64).contains(&held), "{top}");
    let one = agent.ok(&[
        "top",
        "pod",
        "-A",
        "--containers",
        "-l",
        "app=busy",
        "--no-headers",
    ]);
    let names: Vec<&str> = one
        .lines()
        .filter_map(|l| l.split_whitespace().nth(2))
        .collect();
    assert_eq!(names, ["burn", "hold"], "{one}");
    let node = agent.ok(&["top", "node"]);
    assert!(node.starts_with("NAME        CPU(cores)"), "{node}");
    assert!(node.contains("test-node   "), "{node}");
}

#[test]
fn usage_is_served_in_prometheus_format() {
    let agent = Agent::start();
    agent.write("busy.yaml", &busy());
    wait_held(&agent);
    let (text, _) = agent.request("/metrics/resource");
    let value = |wanted: &str| -> f64 {
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix(wanted)?.strip_prefix(' '));
        let value = line.unwrap_or_else(|| panic!("{wanted} is in {text}"));
        value.parse().expect("a number")
    };
    let burn = "{container=\"burn\",namespace=\"default\",pod=\"busy\"}";
    assert!(value(&format!("container_cpu_usage_seconds_total{burn}")) > 0.0);
    assert!(value(&format!("container_start_time_seconds{burn}")) > 1.7e9);
    let pod = value("pod_memory_working_set_bytes{namespace=\"default\",pod=\"busy\"}");
    assert!(pod > 24e6, "{pod}");
    assert!(value("node_cpu_usage_seconds_total") > 1.0);
    assert!(value("node_memory_working_set_bytes") > pod);
    assert_eq!(value("resource_scrape_error"), 0.0);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let name = name.split('{').next().expect("a name");
        assert!(text.contains(&format!("# TYPE {name} ")), "{line}");
    }
    let (text, _) = agent.request("/metrics");
    for line in [
        "kubelet_active_pods{static=\"true\"} 1",
        "kubelet_pod_pending_resizes{reason=\"infeasible\"} 0",
        "kubelet_pod_in_progress_resizes 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    assert!(text.contains("kubelet_cgroup_version "), "{text}");
    let (text, _) = agent.request("/metrics/cadvisor");
    assert!(
        text.contains("container_memory_rss{container=\"hold\""),
        "{text}"
    );
    assert!(
        text.contains("container_network_receive_bytes_total{"),
        "{text}"
    );
}

#[test]
fn starts_exits_and_restarts_of_containers_and_pods_are_counted() {
    let agent = Agent::start();
    let init = "  restartPolicy: Never\n  initContainers: [{name: first, image: busybox:test, command: [\"true\"]}]\n";
    agent.write("a.yaml", &shell_pod("a", "exit 3", init, ""));
    // Its end takes so long that its successor has a different `startTime`.
    let slow = "trap 'sleep 1; exit 4' TERM; echo up; while :; do sleep 0.1; done";
    agent.write("b.yaml", &shell_pod("b", slow, "", ""));
    agent.write(
        "c.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: c}\nspec:\n  containers:\n  - {name: main, image: 'no:where', \
         imagePullPolicy: Never}\n",
    );
    agent.wait_phase("a", "Failed");
    let old = agent.wait_running("b");
    agent.wait_line("b", "up");
    agent.ok(&["delete", "pod", "b"]);
    agent.wait_pod("b", |new| {
        new["status"]["phase"] == "Running"
            && new["status"]["startTime"] != old["status"]["startTime"]
    });
    let never = |pod: &Value| {
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        waiting["reason"] == "ErrImageNeverPull"
    };
    agent.wait_pod("c", never);
    let (text, _) = agent.request("/metrics");
    for line in [
        "kubelet_node_name{node=\"test-node\"} 1",
        "kubelet_desired_pods{static=\"true\"} 3",
        "kubelet_active_pods{static=\"true\"} 2",
        "kubelet_working_pods{lifecycle=\"sync\",config=\"desired\",static=\"true\"} 2",
        "kubelet_working_pods{lifecycle=\"terminated\",config=\"desired\",static=\"true\"} 1",
        "kubelet_managed_ephemeral_containers 0",
        "kubelet_started_pods_total 4",
        "kubelet_restarted_pods_total{static=\"true\"} 1",
        "kubelet_started_containers_total{container_type=\"container\"} 3",
        "kubelet_started_containers_total{container_type=\"init_container\"} 1",
        "kubelet_terminated_containers_total{container_type=\"container\",exit_code=\"3\",reason=\"Error\"} 1",
        "kubelet_terminated_containers_total{container_type=\"container\",exit_code=\"4\",reason=\"Error\"} 1",
        "kubelet_terminated_containers_total{container_type=\"init_container\",exit_code=\"0\",reason=\"Completed\"} 1",
        "# TYPE kubelet_pod_start_duration_seconds histogram",
        "kubelet_pod_start_duration_seconds_bucket{le=\"3600\"} 3",
        "kubelet_pod_start_duration_seconds_count 3",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    let errors = "kubelet_started_containers_errors_total{code=\"ErrImageNeverPull\",container_type=\"container\"} ";
    assert!(text.contains(errors), "{text}");
}

#[test]
fn the_node_is_shown_and_described_as_by_kubectl() {
    let agent = Agent::prepare(std::sync::Arc::new(common::netns::Netns::new()), &[], None);
    let reserved = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n\
                    systemReserved: {cpu: 10m, memory: 64Mi}\n";
    fs::write(agent.root.join("config.d/10-reserved.conf"), reserved).expect("temp dir");
    agent.launch();
    let archive = common::archive().to_str().expect("utf-8");
    agent.ok(&["image", "import", archive]);
    agent.write("busy.yaml", &busy());
    wait_held(&agent);
    let node = json(&agent, "/api/v1/nodes/test-node");
    let status = &node["status"];
    let conditions = status["conditions"].as_array().expect("conditions");
    let shown: Vec<String> = conditions
        .iter()
        .map(|c| format!("{} {}", c["type"], c["status"]).replace('"', ""))
        .collect();
    let expected = [
        "MemoryPressure False",
        "DiskPressure False",
        "PIDPressure False",
        "Ready True",
    ];
    assert_eq!(shown, expected);
    for name in ["cpu", "memory", "ephemeral-storage", "pods"] {
        assert!(status["capacity"][name].is_string(), "{name}: {status:#}");
        assert!(
            status["allocatable"][name].is_string(),
            "{name}: {status:#}"
        );
    }
    let amount = |of: &str, name: &str| {
        let text = status[of][name].as_str().expect("a quantity");
        coracle::types::quantity::Quantity::parse(text)
            .expect("a quantity")
            .ceil_milli()
    };
    let kept = |name: &str| amount("capacity", name) - amount("allocatable", name);
    assert_eq!(
        (kept("cpu"), kept("memory")),
        // What the settings reserve, and what the eviction thresholds of all tests keep free.
        (10, (64 + 16) * 1000 * i128::from(MI))
    );
    let images = &status["images"];
    assert_eq!(images[0]["names"][0], "docker.io/library/busybox:test");
    let runtime = status["nodeInfo"]["containerRuntimeVersion"].as_str();
    assert!(runtime.is_some_and(|version| version.starts_with("libcontainer://")));
    // The heartbeat is that of each request, and changes nothing that watchers would be sent.
    let again = json(&agent, "/api/v1/nodes/test-node");
    assert_eq!(
        node["metadata"]["resourceVersion"],
        again["metadata"]["resourceVersion"]
    );
    assert!(again["status"]["conditions"][0]["lastHeartbeatTime"].is_string());

    let table = agent.ok(&["get", "nodes", "-o", "wide"]);
    let titles = table.lines().next().expect("titles");
    let titles: Vec<&str> = titles.split_whitespace().collect();
    assert_eq!(
        titles.join(" "),
        "NAME STATUS ROLES AGE VERSION INTERNAL-IP EXTERNAL-IP OS-IMAGE KERNEL-VERSION CONTAINER-RUNTIME"
    );
    assert!(table.contains("test-node   Ready    <none>"), "{table}");
    let version = agent.ok(&[
        "get",
        "node",
        "test-node",
        "-o",
        "jsonpath={.status.nodeInfo.kubeletVersion}",
    ]);
    assert!(version.starts_with("v1.36.0+coracle-"), "{version}");
    assert_eq!(
        agent.ok(&["get", "nodes", "-o", "name"]),
        "node/test-node\n"
    );

    let page = agent.ok(&["describe", "node"]);
    for part in [
        "Name:               test-node\n",
        "Unschedulable:      false\n",
        "KubeletHasNoDiskPressure",
        "Non-terminated Pods:          (1 in total)\n",
        "Allocated resources:\n",
        "  cpu                300m (",
        "Starting",
    ] {
        assert!(page.contains(part), "{part} in {page}");
    }
    let unknown = agent.cli(&["describe", "node", "another"]);
    assert_eq!(unknown.status.code(), Some(3));

    // The node's age counts from its first agent, not from the running one.
    let created = node["metadata"]["creationTimestamp"].clone();
    agent.kill_and_restart();
    let after = json(&agent, "/api/v1/nodes/test-node");
    assert_eq!(after["metadata"]["creationTimestamp"], created);
}

#[test]
fn an_agent_refuses_to_start_if_its_reservations_leave_nothing_for_pods() {
    let agent = Agent::prepare(std::sync::Arc::new(common::netns::Netns::new()), &[], None);
    let config = agent.root.join("config.yaml");
    fs::write(&config, "systemReserved: {memory: 100Ti}\n").expect("temp dir");
    let output = agent
        .command()
        .arg("--config")
        .arg(&config)
        .output()
        .expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    let expected =
        "invalid Node Allocatable configuration. Resource \"memory\" has a reservation of ";
    assert!(errors.contains(expected), "{errors}");
}
