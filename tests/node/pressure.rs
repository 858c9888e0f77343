//! Node pressure: the pod that causes it is evicted, the others go on undisturbed.

use std::os::fd::AsFd;
use std::sync::Arc;

use coracle::effects::cgroup::{Cgroups, LimitSettings, Mode};
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sha2::{Digest, Sha256};

use super::*;
use common::netns::Netns;

/// An agent with only these settings, on a disk of its own of this size if one is given.
fn agent_with(settings: &str, disk_bytes: Option<u64>) -> Agent {
    let agent = Agent::prepare(Arc::new(Netns::new()), &[], None);
    let dir = agent.root.join("own.d");
    fs::create_dir_all(&dir).expect("temp dir");
    let head = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n";
    fs::write(dir.join("own.conf"), format!("{head}{settings}")).expect("written");
    if let Some(bytes) = disk_bytes {
        let root = agent.root.join("root");
        fs::create_dir_all(&root).expect("temp dir");
        let size = format!("size={bytes}");
        let none = None::<&str>;
        mount(
            none,
            &root,
            Some("tmpfs"),
            MsFlags::empty(),
            Some(size.as_str()),
        )
        .expect("mounted");
    }
    let agent = agent.with_flags(&["--config-dir", dir.to_str().expect("utf-8")]);
    agent.launch();
    let archive = common::archive().to_str().expect("utf-8");
    agent.ok(&["image", "import", archive]);
    agent
}

fn is_evicted(pod: &Value) -> bool {
    pod["status"]["phase"] == "Failed" && pod["status"]["reason"] == "Evicted"
}

/// Waits until the pod is evicted; returns the message.
fn wait_evicted(agent: &Agent, name: &str) -> String {
    let pod = agent.wait_pod(name, is_evicted);
    let message = pod["status"]["message"].as_str().expect("a message");
    message.to_owned()
}

/// A condition of the node: status and reason.
fn condition(agent: &Agent, type_: &str) -> (String, String) {
    let (text, _) = agent.request("/api/v1/nodes/test-node");
    let node: Value = serde_json::from_str(&text).expect("JSON");
    let mut all = node["status"]["conditions"]
        .as_array()
        .expect("some")
        .iter();
    let found = all.find(|c| c["type"] == type_).expect("shown");
    let word = |name: &str| found[name].as_str().expect("text").to_owned();
    (word("status"), word("reason"))
}

/// Waits until the node shows this condition.
fn wait_condition(agent: &Agent, type_: &str, status: &str) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while condition(agent, type_).0 != status {
        assert!(std::time::Instant::now() < deadline, "{}", agent.log());
        std::thread::sleep(Duration::from_millis(50)); // This test does not watch nodes.
    }
}

fn has_event(agent: &Agent, reason: &str, words: &str) {
    let (events, _) = agent.request("/api/v1/namespaces/default/events");
    let events: Value = serde_json::from_str(&events).expect("JSON");
    let mut all = events["items"].as_array().expect("a list").iter();
    let is = |e: &Value| {
        e["reason"] == reason && e["message"].as_str().is_some_and(|m| m.contains(words))
    };
    assert!(all.any(is), "no {reason}: {events:#}");
}

/// Asserts that the pod runs as before.
fn unharmed(agent: &Agent, before: &Value) {
    let name = before["metadata"]["name"].as_str().expect("a name");
    assert_eq!(pid_of(agent, &agent.pod(name)), pid_of(agent, before));
    assert_eq!(
        agent.ok(&["exec", name, "--", "echo", "well"]).trim(),
        "well"
    );
}

const NOTHING: &str = "evictionHard: {}\nimageGCHighThresholdPercent: 100\n";

#[test]
fn a_pod_that_outgrows_its_volume_is_evicted_loses_the_volume_and_starts_again() {
    let agent = agent_with(NOTHING, None);
    agent.write("fine.yaml", &shell_pod("fine", SLEEP, "", ""));
    let fine = agent.wait_running("fine");
    let volumes = "  volumes:\n  - {name: v, emptyDir: {sizeLimit: 4Mi}}\n";
    let mount = "    volumeMounts: [{name: v, mountPath: /v}]\n";
    let script =
        format!("echo before; dd if=/dev/zero of=/v/file bs=1M count=6 2>/dev/null; {SLEEP}");
    agent.write("full.yaml", &shell_pod("full", &script, volumes, mount));
    let message = wait_evicted(&agent, "full");
    assert_eq!(
        message,
        "Usage of EmptyDir volume \"v\" exceeds the limit \"4Mi\". "
    );
    has_event(&agent, "Evicted", &message);
    let pod = agent.pod("full");
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let deadline = std::time::Instant::now() + PATIENCE;
    while agent
        .root
        .join("root/pods")
        .join(uid)
        .join("volumes")
        .exists()
    {
        assert!(std::time::Instant::now() < deadline, "its volume stays");
        std::thread::sleep(Duration::from_millis(20)); // No event reports it.
    }
    assert_eq!(
        agent.ok(&["logs", "full"]).trim(),
        "before",
        "the log of an evicted pod can be read"
    );
    let (metrics, _) = agent.request("/metrics");
    let counted = "kubelet_evictions{eviction_signal=\"emptydirfs.limit\"} 1\n";
    assert!(metrics.contains(counted), "{metrics}");
    agent.wait_running("full");
    unharmed(&agent, &fine);
}

#[test]
fn a_container_that_writes_more_than_its_ephemeral_storage_is_evicted() {
    let agent = agent_with(NOTHING, None);
    let limit = "    resources: {limits: {ephemeral-storage: 2Mi}}\n";
    let files = [
        ("layer", "/file"),
        ("hosts", "/etc/hosts"),
        ("hostname", "/etc/hostname"),
        ("resolver", "/etc/resolv.conf"),
        ("message", "/dev/termination-log"),
    ];
    for (name, file) in files {
        let script = format!("dd if=/dev/zero of={file} bs=1M count=4 2>/dev/null; {SLEEP}");
        agent.write(
            &format!("{name}.yaml"),
            &shell_pod(name, &script, "", limit),
        );
    }
    let whole = "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ";
    for (name, file) in files {
        assert_eq!(wait_evicted(&agent, name), whole, "{file}");
    }
}

/// An archive with an image of one file.
fn unused_image(agent: &Agent) -> std::path::PathBuf {
    let build = |entries: &[(&str, &[u8])]| {
        let mut tar = tar::Builder::new(Vec::new());
        for (name, data) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o644);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            header.set_size(data.len() as u64);
            tar.append_data(&mut header, name, *data)
                .expect("in memory");
        }
        tar.into_inner().expect("in memory")
    };
    let layer = build(&[("file", b"nobody needs it")]);
    let digest = Sha256::digest(&layer);
    let digest: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    let architecture = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    };
    let config = serde_json::json!({
        "architecture": architecture, "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    let names = br#"[{"Config":"config.json","RepoTags":[],"Layers":["layer.tar"]}]"#;
    let archive = build(&[
        ("manifest.json", names),
        ("config.json", config.to_string().as_bytes()),
        ("layer.tar", &layer),
    ]);
    let path = agent.root.join("unused.tar");
    fs::write(&path, archive).expect("temp dir");
    path
}

#[test]
fn unused_images_are_removed_before_the_pod_that_fills_the_disk_is_evicted() {
    const MI: u64 = 1 << 20;
    let settings = "evictionHard: {nodefs.available: 100Mi}\nevictionPressureTransitionPeriod: 3s\n\
        imageMinimumGCAge: 1ms\nimageGCHighThresholdPercent: 100\n";
    let agent = agent_with(settings, Some(300 * MI));
    let unused = unused_image(&agent);
    let unused = unused.to_str().expect("utf-8");
    agent.ok(&["image", "import", "--name", "unused:1", unused]);
    agent.write(
        "fine.yaml",
        &shell_pod("fine", SLEEP, "  priority: 7\n", ""),
    );
    let fine = agent.wait_running("fine");
    let script = format!("sleep 1; dd if=/dev/zero of=/file bs=1M count=220 2>/dev/null; {SLEEP}");
    agent.write("filler.yaml", &shell_pod("filler", &script, "", ""));
    let message = wait_evicted(&agent, "filler");
    let begin =
        "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: ";
    assert!(message.starts_with(begin), "{message}");
    let end = "request is 0, has larger consumption of ephemeral-storage. ";
    assert!(
        message.contains("Container main was using 2") && message.ends_with(end),
        "{message}"
    );
    assert_eq!(
        condition(&agent, "DiskPressure").1,
        "KubeletHasDiskPressure"
    );
    has_event(
        &agent,
        "EvictionThresholdMet",
        "Attempting to reclaim ephemeral-storage",
    );
    has_event(
        &agent,
        "NodeHasDiskPressure",
        "Node test-node status is now: NodeHasDiskPressure",
    );
    wait_condition(&agent, "DiskPressure", "False");
    has_event(&agent, "NodeHasNoDiskPressure", "status is now");
    let images = agent.ok(&["image", "ls"]);
    assert!(
        images.contains("busybox"),
        "an image in use stays: {images}"
    );
    assert!(!images.contains("unused"), "{images}");
    let (metrics, _) = agent.request("/metrics");
    let removed = "kubelet_image_garbage_collected_total{reason=\"space\"} 1\n";
    assert!(metrics.contains(removed), "{metrics}");
    unharmed(&agent, &fine);
}

#[test]
fn a_fork_bomb_hits_its_limit_and_does_not_affect_other_pods() {
    let agent = agent_with(&format!("{NOTHING}podPidsLimit: 40\n"), None);
    agent.write("fine.yaml", &shell_pod("fine", SLEEP, "", ""));
    let fine = agent.wait_running("fine");
    let script = "while :; do sleep 1000 & done";
    agent.write("bomb.yaml", &shell_pod("bomb", script, "", ""));
    agent.wait_running("bomb");
    let uid = agent.pod("bomb")["metadata"]["uid"].clone();
    let uid = uid.as_str().expect("uid");
    let logs = agent.root.join(format!("logs/default_bomb_{uid}/main"));
    let says = |path: std::path::PathBuf| {
        fs::read_to_string(path).is_ok_and(|text| text.contains("can't fork"))
    };
    let deadline = std::time::Instant::now() + PATIENCE;
    while !fs::read_dir(&logs).is_ok_and(|all| all.flatten().any(|entry| says(entry.path()))) {
        assert!(
            std::time::Instant::now() < deadline,
            "the limit is never reached"
        );
        std::thread::sleep(Duration::from_millis(20)); // The run that logs it may end at once, so all logs are read.
    }
    unharmed(&agent, &fine);
}

#[test]
fn the_pod_with_most_processes_is_evicted_when_process_ids_run_short() {
    let read = |path: &str| -> u64 {
        let text = fs::read_to_string(path).expect("procfs");
        text.trim().parse().expect("a number")
    };
    let largest = read("/proc/sys/kernel/pid_max").min(read("/proc/sys/kernel/threads-max"));
    let loadavg = fs::read_to_string("/proc/loadavg").expect("procfs");
    let (_, running) = loadavg
        .split(' ')
        .nth(3)
        .and_then(|f| f.split_once('/'))
        .expect("running/all");
    let available = largest - running.parse::<u64>().expect("a number");
    // Other processes start and end on this machine, too.
    let settings = format!(
        "evictionHard: {{pid.available: '{}'}}\nevictionPressureTransitionPeriod: 1h\nimageGCHighThresholdPercent: 100\n",
        available - 700
    );
    let agent = agent_with(&settings, None);
    agent.write("fine.yaml", &shell_pod("fine", SLEEP, "", ""));
    let fine = agent.wait_running("fine");
    let script = format!("for i in $(seq 1100); do sleep 1000 & done; {SLEEP}");
    agent.write("many.yaml", &shell_pod("many", &script, "", ""));
    let message = wait_evicted(&agent, "many");
    let begin = "The node was low on resource: pids. Threshold quantity: ";
    assert!(message.starts_with(begin), "{message}");
    assert_eq!(
        condition(&agent, "PIDPressure").1,
        "KubeletHasInsufficientPID"
    );
    unharmed(&agent, &fine);
}

/// Limits the memory of all of an agent's pods together.
fn bound_pods(agent: &Agent, bytes: u64) {
    let v1 = format!(
        "/sys/fs/cgroup/memory{}/pods/memory.limit_in_bytes",
        agent.cgroup
    );
    let v2 = format!("/sys/fs/cgroup{}/pods/memory.max", agent.cgroup);
    let file = if fs::exists(&v1).unwrap_or(false) {
        v1
    } else {
        v2
    };
    fs::write(&file, bytes.to_string()).expect(&file);
}

/// The memory of the machine, in MiB.
fn memory_mib() -> u64 {
    let info = fs::read_to_string("/proc/meminfo").expect("there");
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total = total.and_then(|rest| rest.trim().strip_suffix(" kB"));
    total.and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") >> 10
}

#[test]
fn a_pod_that_takes_all_memory_is_evicted_before_the_kernel_kills_and_stays_evicted_over_an_agent_restart()
 {
    // All pods together have 400 MiB.
    let settings = format!(
        "evictionHard: {{memory.available: 100Mi}}\nevictionPressureTransitionPeriod: 20s\n\
         imageGCHighThresholdPercent: 100\nsystemReserved: {{memory: {}Mi}}\n",
        memory_mib() - 400
    );
    let agent = agent_with(&settings, None);
    agent.write("fine.yaml", &shell_pod("fine", SLEEP, "", ""));
    let fine = agent.wait_running("fine");
    let volumes = "  volumes:\n  - {name: v, emptyDir: {medium: Memory}}\n";
    let mount =
        "    volumeMounts: [{name: v, mountPath: /v}]\n    resources: {requests: {memory: 10Mi}}\n";
    let script =
        format!("sleep 1; dd if=/dev/zero of=/v/file bs=1M count=330 2>/dev/null; {SLEEP}");
    agent.write("hog.yaml", &shell_pod("hog", &script, volumes, mount));
    let message = wait_evicted(&agent, "hog");
    let begin = "The node was low on resource: memory. Threshold quantity: 100Mi, available: ";
    assert!(message.starts_with(begin), "{message}");
    assert!(message.contains("Container main was using 3"), "{message}");
    let end = "request is 10Mi, has larger consumption of memory. ";
    assert!(message.ends_with(end), "{message}");
    let used = message.split("was using ").nth(1).expect("it says so");
    let used = used.split(',').next().expect("not empty");
    let events = agent.ok(&["get", "events", "-o", "json"]);
    let events: Value = serde_json::from_str(&events).expect("JSON");
    let mut events = events["items"].as_array().expect("a list").iter();
    let event = events.find(|event| event["reason"] == "Evicted");
    assert_eq!(
        event.expect("it is reported")["metadata"]["annotations"],
        serde_json::json!({ "offending_containers": "main", "offending_containers_usage": used, "starved_resource": "memory" })
    );
    assert_eq!(
        condition(&agent, "MemoryPressure").1,
        "KubeletHasInsufficientMemory"
    );
    agent.kill_and_restart();
    let pod = agent.pod("hog");
    assert!(is_evicted(&pod), "{pod:#}");
    assert_eq!(pod["status"]["message"], message.as_str());
    let conditions = pod["status"]["conditions"].as_array().expect("some");
    let disrupted = conditions.iter().find(|c| c["type"] == "DisruptionTarget");
    assert_eq!(disrupted.expect("shown")["reason"], "TerminationByKubelet");
    unharmed(&agent, &fine);
    // A manifest still asks for it, so it is recreated when the node has recovered.
    agent.wait_running("hog");
}

#[test]
fn the_kernels_alarm_fires_when_pods_reach_the_level_or_their_limit() {
    const MI: u64 = 1 << 20;
    let agent = Agent::prepare(Arc::new(Netns::new()), &[], None);
    let settings = LimitSettings::default();
    let cgroups = Cgroups::open(Some(&agent.cgroup), settings).expect("cgroups");
    let mut alarm = cgroups.alarm().expect("the kernel takes it");
    assert!(!alarm.fired(), "nothing has happened");
    let folder = match cgroups.mode() {
        Mode::V1 => format!("/sys/fs/cgroup/memory{}/pods", agent.cgroup),
        Mode::V2 => format!("/sys/fs/cgroup{}/pods", agent.cgroup),
    };
    if cgroups.mode() == Mode::V2 {
        bound_pods(&agent, 8 * MI);
    }
    let (_, charged) = cgroups.pods_memory();
    let charged = charged.expect("a figure");
    let level = Some(charged + 8 * MI);
    cgroups.set_alarm(&mut alarm, level).expect("taken");
    let script = format!(
        "mkdir {folder}/hog && echo $$ > {folder}/hog/cgroup.procs && exec dd if=/dev/zero of=/dev/null bs=32M count=1"
    );
    // On v2 the kernel kills it.
    std::process::Command::new("sh")
        .args(["-c", &script])
        .output()
        .expect("sh runs");
    let fd = alarm.as_fd();
    let patience = PollTimeout::try_from(PATIENCE).expect("short");
    let called = poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], patience);
    assert_eq!(called, Ok(1), "the alarm does not fire");
    assert!(alarm.fired());
    cgroups.set_alarm(&mut alarm, None).expect("taken");
    assert!(!alarm.fired(), "once");
}
