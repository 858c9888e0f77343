//! Complete nodes: real agents, real shims, real containers.

#[path = "node/admission.rs"]
mod admission;
#[path = "node/agents.rs"]
mod agents;
#[path = "node/attach.rs"]
mod attach;
#[path = "node/black_box.rs"]
mod black_box;
#[path = "node/bundle_generations.rs"]
mod bundle_generations;
#[path = "node/bundle_poll.rs"]
mod bundle_poll;
#[path = "node/bundle_trials.rs"]
mod bundle_trials;
#[path = "node/bundles.rs"]
mod bundles;
#[path = "node/cgroups.rs"]
mod cgroups;
#[path = "node/claims.rs"]
mod claims;
#[path = "node/clients.rs"]
mod clients;
mod common;
#[path = "node/completion.rs"]
mod completion;
#[path = "node/conditions.rs"]
mod conditions;
#[path = "node/configuration.rs"]
mod configuration;
#[path = "node/conformance.rs"]
mod conformance;
#[path = "node/containers.rs"]
mod containers;
#[path = "node/convert.rs"]
mod convert;
#[path = "node/copy.rs"]
mod copy;
#[path = "node/cordon.rs"]
mod cordon;
#[path = "node/deadlines.rs"]
mod deadlines;
#[path = "node/debug.rs"]
mod debug;
#[path = "node/demands.rs"]
mod demands;
#[path = "node/devices.rs"]
mod devices;
#[path = "node/edits.rs"]
mod edits;
#[path = "node/encrypted.rs"]
mod encrypted;
#[path = "node/events.rs"]
mod events;
#[path = "node/examples.rs"]
mod examples;
#[path = "node/exec.rs"]
mod exec;
#[path = "node/exits.rs"]
mod exits;
#[path = "node/figures.rs"]
mod figures;
#[path = "node/garbage.rs"]
mod garbage;
#[path = "node/health.rs"]
mod health;
#[path = "node/hooks.rs"]
mod hooks;
#[path = "node/hostile.rs"]
mod hostile;
#[path = "node/hostile_volumes.rs"]
mod hostile_volumes;
#[path = "node/huge_pages.rs"]
mod huge_pages;
#[path = "node/image_volumes.rs"]
mod image_volumes;
#[path = "node/images.rs"]
mod images;
#[path = "node/jobs.rs"]
mod jobs;
#[path = "node/logs.rs"]
mod logs;
#[path = "node/manifest_url.rs"]
mod manifest_url;
#[path = "node/mounts.rs"]
mod mounts;
#[path = "node/order.rs"]
mod order;
#[path = "node/port_forward.rs"]
mod port_forward;
#[path = "node/pressure.rs"]
mod pressure;
#[path = "node/probes.rs"]
mod probes;
#[path = "registry/proxy.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "another test uses the rest"
)]
mod proxy;
#[path = "node/pull.rs"]
mod pull;
#[path = "node/pull_credentials.rs"]
mod pull_credentials;
#[path = "node/pull_policy.rs"]
mod pull_policy;
#[path = "node/pull_room.rs"]
mod pull_room;
#[path = "node/registry.rs"]
mod registry;
#[path = "node/report.rs"]
mod report;
#[path = "node/resize.rs"]
mod resize;
#[path = "node/restart_rules.rs"]
mod restart_rules;
#[path = "node/rollouts.rs"]
mod rollouts;
#[path = "node/security.rs"]
mod security;
#[path = "node/services.rs"]
mod services;
#[path = "node/settings.rs"]
mod settings;
#[path = "node/shutdown.rs"]
mod shutdown;
#[path = "node/sidecar_stages.rs"]
mod sidecar_stages;
#[path = "node/sidecars.rs"]
mod sidecars;
#[path = "common/signing.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "another test uses the rest"
)]
mod signing;
#[path = "node/stages.rs"]
mod stages;
#[path = "node/stateful_sets.rs"]
mod stateful_sets;
#[path = "node/stop.rs"]
mod stop;
#[path = "node/trust.rs"]
mod trust;
#[path = "node/uninstall.rs"]
mod uninstall;
#[path = "node/upgrade.rs"]
mod upgrade;
#[path = "node/user_namespace_volumes.rs"]
mod user_namespace_volumes;
#[path = "node/user_namespaces.rs"]
mod user_namespaces;
#[path = "node/versions.rs"]
mod versions;
#[path = "node/web.rs"]
mod web;
#[path = "node/workloads.rs"]
mod workloads;

use std::fs;
use std::time::Duration;

use common::{Agent, PATIENCE, coracle, netns, shell_pod};
use nix::sys::signal::Signal;
use serde_json::Value;

const SLEEP: &str = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done";

fn main_status(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

/// The process id of the pod's first process, from its shim's record.
fn pid_of(agent: &Agent, pod: &Value) -> i64 {
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let record = fs::read_to_string(agent.root.join(format!("run/pods/{uid}/records/main.json")))
        .expect("a record");
    serde_json::from_str::<Value>(&record).expect("JSON")["pid"]
        .as_i64()
        .expect("pid")
}

#[test]
fn a_pod_starts_from_its_file_and_leaves_no_trace_when_it_is_removed() {
    let agent = Agent::start();
    agent.write(
        "web.yaml",
        &shell_pod("web", &format!("echo hello; {SLEEP}"), "", ""),
    );
    let pod = agent.wait_running("web");
    assert_eq!(pod["status"]["phase"], "Running");
    assert_eq!(pod["status"]["qosClass"], "BestEffort");
    let ready = pod["status"]["conditions"].as_array().expect("conditions");
    assert!(
        ready
            .iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "True"),
        "{ready:?}"
    );
    assert_eq!(
        follow_until(&agent, &["logs", "-f", "web"], "hello"),
        "hello\n"
    );
    assert!(agent.ok(&["get", "pods"]).contains("Running"));
    agent.remove("web.yaml");
    agent.wait_gone("web");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_crashing_container_restarts_at_once_and_then_backs_off() {
    let agent = Agent::start();
    agent.write(
        "crash.yaml",
        &shell_pod("crash", "echo run; exit 7", "", ""),
    );
    let pod = agent.wait_pod("crash", |pod| {
        main_status(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
            && main_status(pod)["restartCount"] == 1
    });
    let status = main_status(&pod);
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 7);
    let message = status["state"]["waiting"]["message"]
        .as_str()
        .expect("a message");
    assert!(
        message.starts_with("back-off 10s restarting failed container=main pod=crash_default("),
        "{message}"
    );
    assert_eq!(pod["status"]["phase"], "Running");
    assert!(agent.ok(&["get", "pods"]).contains("CrashLoopBackOff"));
    assert_eq!(agent.ok(&["logs", "crash", "--previous"]), "run\n");
}

/// The process that holds a BestEffort pod.
fn shim_of(agent: &Agent, pod: &str) -> nix::unistd::Pid {
    let pod = agent.pod(pod);
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let group = format!("besteffort/pod{uid}/shim");
    let shim = agent.cgroup_file("memory", &group, "cgroup.procs");
    let shim = shim.lines().next().expect("the shim is in its cgroup");
    nix::unistd::Pid::from_raw(shim.parse().expect("pid"))
}

fn kill_shim(agent: &Agent, pod: &str) {
    nix::sys::signal::kill(shim_of(agent, pod), Signal::SIGKILL).expect("the shim is there");
}

#[test]
fn a_pod_whose_shim_was_killed_starts_again() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let before = agent.wait_running("a");
    kill_shim(&agent, "a");
    assert_eq!(main_status(&before)["restartCount"], 0);
    let after = agent.wait_pod("a", |pod| {
        main_status(pod)["restartCount"] == 1 && !main_status(pod)["state"]["running"].is_null()
    });
    assert_eq!(
        main_status(&after)["lastState"]["terminated"]["exitCode"],
        137
    );
    assert_eq!(
        main_status(&after)["lastState"]["terminated"]["reason"],
        "ContainerStatusUnknown"
    );
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_broken_edit_does_not_touch_the_pod_even_across_an_agent_restart() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let pid = pid_of(&agent, &agent.wait_running("a"));
    agent.write(
        "a.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  contaners: []\n",
    );
    agent.write("marker.yaml", &shell_pod("marker", SLEEP, "", ""));
    agent.wait_running("marker");
    let files = agent.ok(&["get", "files"]);
    assert!(files.contains("Rejected"), "{files}");
    let files = agent.ok(&["get", "files", "-o", "json"]);
    assert!(files.contains("did you mean `containers`?"), "{files}");
    assert_eq!(pid_of(&agent, &agent.wait_running("a")), pid);
    agent.kill_and_restart();
    assert_eq!(
        pid_of(&agent, &agent.wait_running("a")),
        pid,
        "an agent that never saw the good version leaves the pod alone, too"
    );
}

#[test]
fn a_second_file_with_a_pods_name_is_refused_and_both_files_are_named() {
    let agent = Agent::start();
    agent.write("b.yaml", &shell_pod("same", SLEEP, "", ""));
    let pid = pid_of(&agent, &agent.wait_running("same"));
    agent.write("a.yaml", &shell_pod("same", "exit 1", "", ""));
    agent.write("marker.yaml", &shell_pod("marker", SLEEP, "", ""));
    agent.wait_running("marker");
    let files = agent.ok(&["get", "files", "-o", "json"]);
    assert!(
        files.contains("a.yaml: pod `default/same` is already defined by `b.yaml`"),
        "{files}"
    );
    assert_eq!(pid_of(&agent, &agent.wait_running("same")), pid);
}

#[test]
fn an_edit_replaces_the_pod_after_the_old_one_has_ended() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let old = agent.wait_running("a");
    agent.write(
        "a.yaml",
        &shell_pod("a", &format!("echo new; {SLEEP}"), "", ""),
    );
    let new = agent.wait_pod("a", |pod| {
        pod["metadata"]["uid"] != old["metadata"]["uid"]
            && !main_status(pod)["state"]["running"].is_null()
    });
    assert_eq!(main_status(&new)["restartCount"], 0);
    assert_eq!(follow_until(&agent, &["logs", "-f", "a"], "new"), "new\n");
}

#[test]
fn a_deleted_pod_starts_again_because_its_file_is_still_there() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let pid = pid_of(&agent, &agent.wait_running("a"));
    agent.ok(&["delete", "pod", "a"]);
    let again = agent.wait_running("a");
    assert_ne!(pid_of(&agent, &again), pid);
    agent.ok(&["delete", "pod", "a", "--force", "--grace-period", "0"]);
    agent.wait_running("a");
}

#[test]
fn a_container_that_ignores_term_is_killed_after_its_grace() {
    let agent = Agent::start();
    agent.write(
        "a.yaml",
        &shell_pod(
            "a",
            "trap '' TERM; echo up; while :; do sleep 1; done",
            "",
            "",
        ),
    );
    agent.wait_running("a");
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

/// Freezes the pod's containers from the host, as an operator or a container with the rights could.
fn freeze(agent: &Agent, uid: &str, below: &str) {
    let group = format!("besteffort/pod{uid}/{below}");
    let v1 = agent.cgroup_path("freezer", &group, "freezer.state");
    let (file, value, seen, done) = if v1.exists() {
        (v1.clone(), "FROZEN", v1, "FROZEN")
    } else {
        let folder = |file: &str| agent.cgroup_path("", &group, file);
        (
            folder("cgroup.freeze"),
            "1",
            folder("cgroup.events"),
            "frozen 1",
        )
    };
    fs::write(&file, value).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let start = std::time::Instant::now();
    while !fs::read_to_string(&seen).expect("readable").contains(done) {
        assert!(
            start.elapsed() < PATIENCE,
            "{} does not freeze",
            file.display()
        );
    }
}

/// Runs `mkdir d; cd d` so often that the path exceeds any buffer and the depth any stack.
fn nest(top: &std::path::Path, depth: usize) {
    use nix::fcntl::{OFlag, open, openat};
    use nix::sys::stat::{Mode, mkdirat};
    let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut at = open(top, flags, Mode::empty()).expect("the volume is there");
    for _ in 0..depth {
        mkdirat(&at, "d", Mode::from_bits_truncate(0o755)).expect("made");
        at = openat(&at, "d", flags, Mode::empty()).expect("there");
    }
}

#[test]
fn restart_policies_end_pods_as_on_a_kubelet() {
    let agent = Agent::start();
    for (name, policy, script, phase) in [
        ("ok", "Never", "exit 0", "Succeeded"),
        ("bad", "Never", "exit 9", "Failed"),
        ("once", "OnFailure", "exit 0", "Succeeded"),
    ] {
        agent.write(
            &format!("{name}.yaml"),
            &shell_pod(name, script, &format!("  restartPolicy: {policy}\n"), ""),
        );
        let pod = agent.wait_phase(name, phase);
        assert_eq!(main_status(&pod)["restartCount"], 0, "{name}");
    }
    let table = agent.ok(&["get", "pods"]);
    assert!(
        table.contains("Completed") && table.contains("Error"),
        "{table}"
    );
}

/// Reads a command's output up to a line that equals `last`, then kills the command.
fn follow_until(agent: &Agent, args: &[&str], last: &str) -> String {
    use std::io::BufRead;
    let mut child = coracle()
        .args(args)
        .env("CORACLE_SOCKET", agent.socket())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("coracle runs");
    let mut text = String::new();
    for line in std::io::BufReader::new(child.stdout.take().expect("piped")).lines() {
        let line = line.expect("utf-8");
        text.push_str(&line);
        text.push('\n');
        if line == last {
            break;
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    text
}

#[test]
fn health_metrics_node_and_events_are_served_in_kubernetes_terms() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    assert_eq!(agent.request("/healthz").0, "ok");
    let (metrics, _) = agent.request("/metrics");
    assert!(metrics.contains("kubelet_running_pods 1\n"), "{metrics}");
    assert!(
        metrics.contains("kubelet_started_containers_total{container_type=\"container\"} 1\n"),
        "{metrics}"
    );
    let (node, _) = agent.request("/api/v1/nodes/test-node");
    let node: Value = serde_json::from_str(&node).expect("JSON");
    let conditions = node["status"]["conditions"].as_array().expect("some");
    let types: Vec<_> = conditions.iter().map(|c| c["type"].as_str()).collect();
    let expected = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"];
    assert_eq!(types, expected.map(Some));
    let (events, _) = agent.request("/api/v1/namespaces/default/events");
    for reason in ["Pulled", "Created", "Started", "Starting"] {
        assert!(
            events.contains(&format!("\"reason\":\"{reason}\"")),
            "no {reason} in {events}"
        );
    }
    let (missing, status) = agent.request("/api/v1/namespaces/default/pods/nope");
    assert!(status.contains("404"), "{status}");
    assert!(missing.contains("\"kind\":\"Status\""), "{missing}");
}

#[test]
fn a_stuck_shim_is_replaced_and_delays_no_other_pod() {
    let agent = Agent::start();
    agent.write("stuck.yaml", &shell_pod("stuck", SLEEP, "", ""));
    agent.write("fine.yaml", &shell_pod("fine", SLEEP, "", ""));
    agent.wait_running("stuck");
    let fine = pid_of(&agent, &agent.wait_running("fine"));
    let shim = shim_of(&agent, "stuck");
    nix::sys::signal::kill(shim, Signal::SIGSTOP).expect("the shim is there");
    agent.kill_and_restart();
    assert_eq!(pid_of(&agent, &agent.wait_running("fine")), fine);
    agent.wait_pod("stuck", |pod| {
        main_status(pod)["restartCount"] == 1 && !main_status(pod)["state"]["running"].is_null()
    });
}

/// Starts `coracle exec` with pipes for its input and output.
fn exec(agent: &Agent, args: &[&str]) -> std::process::Child {
    use std::process::Stdio;
    coracle()
        .arg("exec")
        .args(args)
        .env("CORACLE_SOCKET", agent.socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("coracle runs")
}

/// The rest of a client's output, and its exit code. A client that does not end in time is killed.
fn output_in_time(mut child: std::process::Child) -> (Vec<u8>, Option<i32>) {
    use std::io::Read;
    let mut stdout = child.stdout.take().expect("piped");
    let (done, wait) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        let read = stdout.read_to_end(&mut said);
        let _ = done.send(());
        read.map(|_| said).expect("read")
    });
    let in_time = wait.recv_timeout(PATIENCE);
    if in_time.is_err() {
        child.kill().expect("own child");
    }
    let said = reader.join().expect("read");
    assert!(
        in_time.is_ok(),
        "the client does not end; it wrote {} bytes",
        said.len()
    );
    (said, child.wait().expect("own child").code())
}

/// Writes to a client's input on a thread, until all is written or the client is gone; then closes it.
fn feed(child: &mut std::process::Child, length: usize) -> std::thread::JoinHandle<()> {
    use std::io::Write;
    let mut stdin = child.stdin.take().expect("piped");
    std::thread::spawn(move || {
        let _ = stdin.write_all(&vec![b'x'; length]);
    })
}

/// The number of open pipes of a pod's shim: each attached client adds two.
fn shim_pipes(agent: &Agent, pod: &str) -> usize {
    let open = fs::read_dir(format!("/proc/{}/fd", shim_of(agent, pod))).expect("the shim runs");
    let targets = open.flatten();
    let targets = targets.filter_map(|fd| fs::read_link(fd.path()).ok());
    targets
        .filter(|target| target.to_string_lossy().starts_with("pipe:"))
        .count()
}

/// Waits until `clients` clients are attached to a pod whose shim has `base` pipes without them.
fn wait_attached(agent: &Agent, pod: &str, base: usize, clients: usize) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while shim_pipes(agent, pod) != base + 2 * clients {
        assert!(
            std::time::Instant::now() < deadline,
            "{clients} clients are not attached"
        );
        std::thread::sleep(Duration::from_millis(5)); // No event reports a shim's descriptors.
    }
}

/// The number of the agent's open pipes.
fn pipes(agent: &Agent) -> usize {
    let open = fs::read_dir(format!("/proc/{}/fd", agent.pid())).expect("the agent runs");
    let targets = open
        .flatten()
        .filter_map(|fd| fs::read_link(fd.path()).ok());
    targets
        .filter(|target| target.to_string_lossy().starts_with("pipe:"))
        .count()
}
