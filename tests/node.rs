//! The whole thing: real agents, real shims, real containers.

mod common;

use std::fs;
use std::time::Duration;

use common::{Agent, PATIENCE, coracle, shell_pod};
use nix::sys::signal::Signal;
use serde_json::Value;

const SLEEP: &str = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done";

fn main_status(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

/// Process id of the pod's first process, from its shim's record.
fn pid_of(agent: &Agent, pod: &Value) -> i64 {
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let record = fs::read_to_string(agent.root.join(format!("run/pods/{uid}/records/main.json")))
        .expect("a record");
    serde_json::from_str::<Value>(&record).expect("JSON")["pid"]
        .as_i64()
        .expect("pid")
}

#[test]
fn a_file_becomes_a_running_pod_and_goes_without_a_trace() {
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
fn a_crashing_container_restarts_at_once_then_backs_off() {
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

#[test]
fn pods_do_not_notice_that_their_agent_was_killed() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.write(
        "done.yaml",
        &shell_pod("done", "exit 3", "  restartPolicy: Never\n", ""),
    );
    let before = agent.wait_running("a");
    let finished = agent.wait_phase("done", "Failed");
    let pid = pid_of(&agent, &before);
    for _ in 0..5 {
        agent.kill_and_restart();
        let after = agent.wait_running("a");
        assert_eq!(pid_of(&agent, &after), pid, "the same process");
        assert_eq!(main_status(&after)["restartCount"], 0);
        assert_eq!(after["status"]["startTime"], before["status"]["startTime"]);
        let still = agent.wait_phase("done", "Failed");
        assert_eq!(
            main_status(&still)["state"],
            main_status(&finished)["state"],
            "a finished pod does not run again"
        );
    }
    agent.remove("a.yaml");
    agent.wait_gone("a");
    agent.remove("done.yaml");
    agent.wait_gone("done");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_pod_removed_while_no_agent_ran_is_stopped_gracefully_by_the_next() {
    let agent = Agent::start();
    let script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 1 & wait $!; done";
    agent.write("a.yaml", &shell_pod("a", script, "", ""));
    let pod = agent.wait_running("a");
    follow_until(&agent, &["logs", "-f", "a"], "up");
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let log = agent.root.join(format!("logs/default_a_{uid}/main/0.log"));
    let kept = agent.root.join("kept.log");
    fs::hard_link(&log, &kept).expect("the log is there");
    agent.signal(Signal::SIGKILL);
    agent.wait();
    agent.remove("a.yaml");
    agent.launch();
    agent.wait_gone("a");
    assert!(
        fs::read_to_string(kept).expect("kept").contains(" bye\n"),
        "the container had time to say good-bye"
    );
    assert_eq!(agent.leftovers(), Vec::<String>::new());
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
fn a_broken_edit_leaves_the_pod_alone_even_across_an_agent_restart() {
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
        "nor does an agent that never saw the good version"
    );
}

#[test]
fn the_second_file_with_a_pods_name_is_refused_with_both_names() {
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

/// Freezes the pod's containers from the host's side, as an operator or a container with rights could.
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

#[test]
fn a_frozen_container_is_killed_after_its_grace() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let pod = agent.wait_running("a");
    freeze(
        &agent,
        pod["metadata"]["uid"].as_str().expect("uid"),
        "c-main",
    );
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_frozen_container_whose_shim_was_killed_goes_too() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let pod = agent.wait_running("a");
    freeze(
        &agent,
        pod["metadata"]["uid"].as_str().expect("uid"),
        "c-main",
    );
    kill_shim(&agent, "a");
    agent.wait_pod("a", |pod| {
        main_status(pod)["restartCount"] == 1 && !main_status(pod)["state"]["running"].is_null()
    });
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

/// `mkdir d; cd d`, so often that no path and no stack is long enough.
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
fn a_very_deep_volume_and_writable_layer_go_and_the_agent_lives_on() {
    let agent = Agent::start();
    let volumes = "  volumes:\n  - {name: v, emptyDir: {}}\n";
    let mounts = "    volumeMounts:\n    - {name: v, mountPath: /v}\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, volumes, mounts));
    let pod = agent.wait_running("a");
    let before = agent.pid();
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let state = agent.root.join("root/pods").join(uid);
    nest(&state.join("volumes/kubernetes.io~empty-dir/v"), 40_000);
    nest(&state.join("containers/main/layer-0/upper"), 40_000);
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
    agent.request("/healthz");
    assert_eq!(agent.pid(), before);
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

#[test]
fn an_image_that_is_not_there_is_named_with_the_way_out_and_found_once_imported() {
    let agent = Agent::start_with(&[]);
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let never = shell_pod("never", SLEEP, "", "    imagePullPolicy: Never\n");
    agent.write("never.yaml", &never);
    let pod = agent.wait_pod("a", |pod| {
        main_status(pod)["state"]["waiting"]["reason"] == "ErrImagePull"
    });
    let message = main_status(&pod)["state"]["waiting"]["message"].to_string();
    assert!(message.contains("coracle image import"), "{message}");
    agent.wait_pod("never", |pod| {
        main_status(pod)["state"]["waiting"]["reason"] == "ErrImageNeverPull"
    });
    agent.ok(&[
        "image",
        "import",
        common::archive().to_str().expect("utf-8"),
    ]);
    agent.wait_running("a");
    agent.wait_running("never");
    assert!(agent.ok(&["get", "images"]).contains("busybox"));
}

#[test]
fn an_archive_in_the_preload_folder_is_imported_by_itself() {
    let agent = Agent::start_with(&[]);
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let staged = agent.root.join("preload/.busybox.tar");
    fs::copy(common::archive(), &staged).expect("copied");
    fs::rename(staged, agent.root.join("preload/busybox.tar")).expect("renamed");
    agent.wait_running("a");
}

#[test]
fn a_pod_waits_for_an_image_that_is_being_imported_at_the_start() {
    let agent = Agent::start_with(&[]);
    agent.signal(Signal::SIGTERM);
    agent.wait();
    fs::copy(common::archive(), agent.root.join("preload/busybox.tar")).expect("copied");
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.launch();
    agent.wait_running("a");
    let events = agent.ok(&["get", "events"]);
    assert!(!events.contains("ErrImagePull"), "{events}");
}

#[test]
fn exec_runs_as_the_container_does_and_returns_the_commands_code() {
    let agent = Agent::start();
    let security = "    securityContext: {runAsUser: 1000, runAsGroup: 1000, allowPrivilegeEscalation: false}\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", security));
    agent.wait_running("a");
    assert_eq!(agent.ok(&["exec", "a", "--", "id", "-u"]), "1000\n");
    assert_eq!(
        agent
            .cli(&["exec", "a", "--", "sh", "-c", "exit 42"])
            .status
            .code(),
        Some(42)
    );
    let status = agent.ok(&["exec", "a", "--", "cat", "/proc/self/status"]);
    assert!(
        status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"),
        "{status}"
    );
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    assert_eq!(
        agent
            .cli(&["exec", "a", "--", "no-such-program"])
            .status
            .code(),
        Some(127)
    );
    let mut child = coracle()
        .args(["exec", "-i", "a", "--", "cat"])
        .env("CORACLE_SOCKET", agent.socket())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("coracle runs");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), b"through and back")
        .expect("written");
    assert_eq!(
        child.wait_with_output().expect("ends").stdout,
        b"through and back"
    );
}

#[test]
fn exec_with_a_terminal_is_a_terminal_of_the_containers_own() {
    use std::io::{Read, Write};
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let size = nix::pty::Winsize {
        ws_row: 33,
        ws_col: 77,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let terminal = nix::pty::openpty(&size, None).expect("a terminal");
    let stdio = || std::process::Stdio::from(terminal.slave.try_clone().expect("duplicated"));
    let script = "tty; stty size; read line; echo got $line; exit 5";
    let mut child = coracle()
        .args(["exec", "-it", "a", "--", "sh", "-c", script])
        .env("CORACLE_SOCKET", agent.socket())
        .stdin(stdio())
        .stdout(stdio())
        .stderr(stdio())
        .spawn()
        .expect("coracle runs");
    drop(terminal.slave);
    let mut master = fs::File::from(terminal.master);
    master.write_all(b"typed\n").expect("written");
    let (mut said, mut buffer) = (String::new(), [0; 1024]);
    // Ends with EIO when the last holder of the terminal is gone.
    while let Ok(read @ 1..) = master.read(&mut buffer) {
        said.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    assert_eq!(child.wait().expect("ends").code(), Some(5), "{said}");
    for expected in ["/dev/pts/", "33 77", "got typed"] {
        assert!(said.contains(expected), "no `{expected}` in {said}");
    }
}

#[test]
fn a_container_is_confined_as_the_manifest_says() {
    let agent = Agent::start();
    let script = "grep -E 'Cap(Eff|Bnd)|Seccomp:|NoNewPrivs|SigBlk|SigIgn' /proc/self/status; \
                  cat /etc/hostname /proc/sys/kernel/hostname; cat /etc/hosts; ls /proc/acpi | wc -l; \
                  touch /x && echo writable || echo read-only; ls -l /proc/self/ns | wc -l; \
                  ip addr 2>/dev/null | grep -c lo; env; pwd; id; echo END; exec sleep 1000";
    let more = "    workingDir: /tmp\n    env:\n    - {name: A, value: a}\n    - {name: B, value: \"$(A)-b $(C)\"}\n    - \
                {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}\n    securityContext:\n      \
                readOnlyRootFilesystem: true\n      capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}\n";
    agent.write("a.yaml", &shell_pod("a", script, "", more));
    agent.wait_running("a");
    let log = follow_until(&agent, &["logs", "-f", "a"], "END");
    for expected in [
        "CapEff:\t0000000000000400",
        "CapBnd:\t0000000000000400",
        "Seccomp:\t2",
        "NoNewPrivs:\t0",
        "SigBlk:\t0000000000000000",
        "# Kubernetes-managed hosts file.",
        "read-only",
        "A=a",
        "B=a-b $(C)",
        "NODE=test-node",
        "HOSTNAME=a",
        "/tmp",
    ] {
        assert!(log.contains(expected), "no `{expected}` in:\n{log}");
    }
}

#[test]
fn a_container_sees_its_own_cgroup_and_cannot_change_it() {
    let agent = Agent::start();
    let limits = "    resources: {limits: {memory: 64Mi}}\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", limits));
    agent.wait_running("a");
    let script = "cd /sys/fs/cgroup; ls; cat memory*/memory.limit_in_bytes memory.max 2>/dev/null; \
                  for f in */cgroup.procs cgroup.procs; do [ -e $f ] && echo 0 > $f && echo CHANGED $f; done; \
                  mkdir */new 2>/dev/null && echo MADE; true";
    let seen = agent.ok(&["exec", "a", "--", "sh", "-c", script]);
    assert!(seen.contains("67108864"), "{seen}");
    for forbidden in ["CHANGED", "MADE", "systemd", "unified"] {
        assert!(!seen.contains(forbidden), "`{forbidden}` in {seen}");
    }
}

#[test]
fn what_enters_a_container_cannot_be_looked_into_and_its_binary_not_be_written() {
    let agent = Agent::start();
    // Looks at the descriptors of every process that appears beside it.
    let thief = "echo up; while :; do for p in /proc/[0-9]*; do [ $p = /proc/1 ] || ls -l $p/fd 2>/dev/null | \
                 grep -E 'socket:|signalfd|shim|memfd|coracle' >> /tmp/stolen; done; done";
    agent.write("a.yaml", &shell_pod("a", thief, "", ""));
    let pod = agent.wait_running("a");
    follow_until(&agent, &["logs", "-f", "a"], "up");
    for _ in 0..40 {
        agent.ok(&["exec", "a", "--", "true"]);
    }
    let stolen = agent.ok(&[
        "exec",
        "a",
        "--",
        "sh",
        "-c",
        "cat /tmp/stolen 2>/dev/null; true",
    ]);
    assert_eq!(
        stolen, "",
        "a process was seen with descriptors of its shim"
    );
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let shim = agent.cgroup_file(
        "memory",
        &format!("besteffort/pod{uid}/shim"),
        "cgroup.procs",
    );
    let shim = shim.lines().next().expect("the shim");
    let exe = fs::File::open(format!("/proc/{shim}/exe")).expect("the shim runs");
    let flags = nix::sys::statvfs::fstatvfs(&exe)
        .expect("a file system")
        .flags();
    assert!(
        flags.contains(nix::sys::statvfs::FsFlags::ST_RDONLY),
        "also once nothing runs from it"
    );
}

#[test]
fn limits_are_in_the_cgroups_of_pod_and_container() {
    let agent = Agent::start();
    let limits =
        "    resources: {limits: {cpu: 500m, memory: 64Mi}, requests: {cpu: 100m, memory: 32Mi}}\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", limits));
    let pod = agent.wait_running("a");
    assert_eq!(pod["status"]["qosClass"], "Burstable");
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let pod_group = format!("burstable/pod{uid}");
    let container = format!("{pod_group}/c-main");
    if std::path::Path::new("/sys/fs/cgroup/memory").is_dir() {
        for group in [&pod_group, &container] {
            assert_eq!(
                agent.cgroup_file("memory", group, "memory.limit_in_bytes"),
                "67108864"
            );
            assert_eq!(agent.cgroup_file("cpu", group, "cpu.cfs_quota_us"), "50000");
            assert_eq!(agent.cgroup_file("cpu", group, "cpu.shares"), "102");
        }
    } else {
        for group in [&pod_group, &container] {
            assert_eq!(agent.cgroup_file("memory", group, "memory.max"), "67108864");
            assert_eq!(agent.cgroup_file("cpu", group, "cpu.max"), "50000 100000");
        }
    }
}

#[test]
fn a_container_over_its_memory_limit_is_shown_as_oom_killed() {
    let agent = Agent::start();
    let limits = "    resources: {limits: {memory: 16Mi}}\n";
    let hog = "x=a; while :; do x=$x$x; done";
    agent.write(
        "hog.yaml",
        &shell_pod("hog", hog, "  restartPolicy: Never\n", limits),
    );
    let pod = agent.wait_phase("hog", "Failed");
    let terminated = &main_status(&pod)["state"]["terminated"];
    assert_eq!(terminated["reason"], "OOMKilled", "{terminated}");
    assert_eq!(terminated["exitCode"], 137);
}

#[test]
fn containers_share_volumes_network_and_shared_memory() {
    let agent = Agent::start();
    let host = agent.root.join("host");
    fs::create_dir_all(host.join("sub")).expect("temp dir");
    fs::write(host.join("sub/from-host"), "host data").expect("written");
    fs::create_dir_all(host.join("escape")).expect("temp dir");
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: two}}\nspec:\n  terminationGracePeriodSeconds: 1\n  hostname: \
         kayak\n  volumes:\n  - {{name: disk, emptyDir: {{}}}}\n  - {{name: mem, emptyDir: {{medium: Memory, \
         sizeLimit: 1Mi}}}}\n  - {{name: host, hostPath: {{path: {host}, type: Directory}}}}\n  containers:\n  - name: \
         writer\n    image: busybox:test\n    command: [sh, -c, \"echo one > /disk/f; echo two > /mem/f; echo three > \
         /dev/shm/f; echo four | nc -l -p 4444; exec sleep 1000\"]\n    volumeMounts:\n    - {{name: disk, mountPath: \
         /disk}}\n    - {{name: mem, mountPath: /mem}}\n  - name: main\n    image: busybox:test\n    command: [sh, -c, \
         \"until [ -s /dev/shm/f ]; do sleep 0.05; done; cat /disk/f /mem/f /dev/shm/f; until nc 127.0.0.1 4444; do \
         sleep 0.05; done; cat /h/from-host; echo; hostname; df -k /mem | tail -n 1 | awk '{{print $2}}'; touch /h/x || \
         echo refused; echo done; exec sleep 1000\"]\n    volumeMounts:\n    - {{name: disk, mountPath: /disk, \
         readOnly: true}}\n    - {{name: mem, mountPath: /mem}}\n    - {{name: host, mountPath: /h, subPath: sub, \
         readOnly: true}}\n",
        host = host.display()
    );
    agent.write("two.yaml", &manifest);
    agent.wait_running("two");
    let log = follow_until(&agent, &["logs", "-f", "two", "-c", "main"], "done");
    for expected in [
        "one",
        "two",
        "three",
        "four",
        "host data",
        "kayak",
        "1024",
        "refused",
    ] {
        assert!(
            log.lines().any(|line| line == expected),
            "no `{expected}` in:\n{log}"
        );
    }
    agent.remove("two.yaml");
    agent.wait_gone("two");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
    assert_eq!(
        fs::read_to_string(host.join("sub/from-host")).expect("untouched"),
        "host data"
    );
}

/// Reads a command's output until a line equals `last`, then kills it.
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
fn a_sub_path_cannot_leave_its_volume() {
    let agent = Agent::start();
    let host = agent.root.join("host");
    fs::create_dir_all(&host).expect("temp dir");
    std::os::unix::fs::symlink("/etc", host.join("link")).expect("symlink");
    let more = format!(
        "    volumeMounts: [{{name: v, mountPath: /v, subPath: link}}]\n  volumes: [{{name: v, hostPath: {{path: {}}}}}]\n",
        host.display()
    );
    agent.write(
        "a.yaml",
        &shell_pod(
            "a",
            "ls /v | head; cat /v/passwd; echo end; exec sleep 1000",
            "",
            &more,
        ),
    );
    let pod = agent.wait_pod("a", |pod| {
        !main_status(pod)["state"]["running"].is_null()
            || main_status(pod)["state"]["waiting"]["message"].is_string()
    });
    if !main_status(&pod)["state"]["running"].is_null() {
        let log = follow_until(&agent, &["logs", "-f", "a"], "end");
        assert!(
            !log.contains("root:"),
            "the node's /etc shows through:\n{log}"
        );
    }
}

#[test]
fn a_host_path_of_the_wrong_type_is_refused_in_the_kubelets_words() {
    let agent = Agent::start();
    let more = "    volumeMounts: [{name: v, mountPath: /v}]\n  volumes: [{name: v, hostPath: {path: /proc/version, type: \
                Directory}}]\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", more));
    agent.wait_pod("a", |pod| pod["status"]["phase"] == "Pending");
    let found = "hostPath type check failed: /proc/version is not a directory";
    let deadline = std::time::Instant::now() + PATIENCE;
    while !agent.ok(&["get", "events"]).contains(found) {
        assert!(
            std::time::Instant::now() < deadline,
            "{}",
            agent.ok(&["get", "events"])
        );
        std::thread::sleep(Duration::from_millis(20));
    }
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
    assert_eq!(node["status"]["conditions"][0]["type"], "Ready");
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
fn a_second_agent_on_the_same_directories_refuses() {
    let agent = Agent::start_with(&[]);
    let output = agent.command().output().expect("coracle runs");
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("another coracle agent is running"), "{text}");
}

#[test]
fn an_agent_that_is_told_to_stops_its_pods_when_it_ends() {
    let agent = Agent::start_with(&["--stop-pods-on-exit"]);
    agent.ok(&[
        "image",
        "import",
        common::archive().to_str().expect("utf-8"),
    ]);
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    agent.signal(Signal::SIGINT);
    assert!(agent.wait().success());
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_stuck_shim_is_replaced_and_holds_nobody_else_up() {
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

#[test]
fn a_pod_removed_while_the_machine_was_off_leaves_no_logs() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.write("b.yaml", &shell_pod("b", SLEEP, "", ""));
    agent.wait_running("a");
    agent.wait_running("b");
    agent.power_cut();
    agent.remove("a.yaml");
    agent.launch();
    agent.wait_running("b");
    let logs = agent.root.join("logs");
    let deadline = std::time::Instant::now() + PATIENCE;
    let names = || -> Vec<String> {
        let entries = fs::read_dir(&logs).expect("log folder").flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    };
    while names().iter().any(|name| name.starts_with("default_a_")) {
        assert!(std::time::Instant::now() < deadline, "{:?}", names());
        std::thread::sleep(Duration::from_millis(10)); // The sweep is not announced.
    }
    assert!(names().iter().any(|name| name.starts_with("default_b_")));
    // The run before the cut counts: attempt numbers are not used twice.
    assert_eq!(main_status(&agent.pod("b"))["restartCount"], 1);
}

#[test]
fn an_agent_that_ends_leaves_its_pods_running() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let pid = pid_of(&agent, &agent.wait_running("a"));
    agent.signal(Signal::SIGTERM);
    assert!(agent.wait().success());
    assert!(
        fs::metadata(format!("/proc/{pid}")).is_ok(),
        "the container runs on"
    );
    agent.launch();
    assert_eq!(pid_of(&agent, &agent.wait_running("a")), pid);
}

#[test]
fn agents_and_shims_killed_at_random_moments_leave_everything_in_order() {
    let agent = Agent::start();
    for index in 0..4 {
        agent.write(
            &format!("p{index}.yaml"),
            &shell_pod(&format!("p{index}"), SLEEP, "", ""),
        );
    }
    // A fixed sequence of pauses: a failure can be repeated.
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..12 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::thread::sleep(Duration::from_millis(random % 60)); // The moment of the kill is the test's input.
        if round % 3 == 0 {
            agent.write(
                "p0.yaml",
                &shell_pod("p0", &format!("echo {round}; {SLEEP}"), "", ""),
            );
        }
        if round == 7 {
            agent.wait_running("p3");
            kill_shim(&agent, "p3");
        }
        agent.kill_and_restart();
    }
    for index in 0..4 {
        agent.wait_running(&format!("p{index}"));
    }
    assert_eq!(
        main_status(&agent.pod("p3"))["restartCount"],
        1,
        "its shim was killed once"
    );
    for index in 1..3 {
        let pod = agent.pod(&format!("p{index}"));
        assert_eq!(
            main_status(&pod)["restartCount"],
            0,
            "an agent's death is no reason to restart: {pod:#}"
        );
    }
    for index in 0..4 {
        agent.remove(&format!("p{index}.yaml"));
    }
    for index in 0..4 {
        agent.wait_gone(&format!("p{index}"));
    }
    assert_eq!(agent.leftovers(), Vec::<String>::new());
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

/// The rest of what a client says, and its exit code. One that does not end in time is killed.
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
    assert!(in_time.is_ok(), "no end after {} bytes", said.len());
    (said, child.wait().expect("own child").code())
}

#[test]
fn exec_loses_nothing_when_its_output_is_read_slowly() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let child = exec(&agent, &["a", "--", "head", "-c", "300000", "/dev/zero"]);
    std::thread::sleep(Duration::from_millis(1500)); // How slow the reader is, is the test's input.
    let (said, code) = output_in_time(child);
    assert_eq!((said.len(), code), (300_000, Some(0)));
}

#[test]
fn exec_ends_with_its_program_although_a_child_keeps_the_output_open() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    for child in ["sleep 1000", "while :; do echo tick; sleep 0.1; done"] {
        let script = format!("({child}) & echo hi; exit 4");
        let (said, code) = output_in_time(exec(&agent, &["a", "--", "sh", "-c", &script]));
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(said.contains("hi\n"), "{said}");
        assert_eq!(code, Some(4), "{child}");
    }
}

/// Writes to a client's input on a thread, until all is taken or the client has gone; then closes it.
fn feed(child: &mut std::process::Child, length: usize) -> std::thread::JoinHandle<()> {
    use std::io::Write;
    let mut stdin = child.stdin.take().expect("piped");
    std::thread::spawn(move || {
        let _ = stdin.write_all(&vec![b'x'; length]);
    })
}

#[test]
fn exec_carries_large_input_and_still_larger_output_at_the_same_time() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let args = ["-i", "a", "--", "od", "-An", "-v", "-tx1"];
    let mut child = exec(&agent, &args);
    let feeder = feed(&mut child, 1_600_000);
    let (said, code) = output_in_time(child);
    // Sixteen bytes a line, each as a space and two digits.
    assert_eq!((said.len(), code), (100_000 * 49, Some(0)));
    feeder.join().expect("fed");
}

#[test]
fn exec_tells_how_a_program_ended_that_left_its_input_unread() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    // The child keeps the input open, and never reads it.
    let script = "exec 3<&0; sleep 1000 & echo enough; exit 3";
    let mut child = exec(&agent, &["-i", "a", "--", "sh", "-c", script]);
    let feeder = feed(&mut child, 8_000_000);
    let (said, code) = output_in_time(child);
    assert_eq!((&said[..], code), (&b"enough\n"[..], Some(3)));
    feeder.join().expect("fed");
}

/// The agent's open pipes.
fn pipes(agent: &Agent) -> usize {
    let open = fs::read_dir(format!("/proc/{}/fd", agent.pid())).expect("the agent runs");
    let targets = open
        .flatten()
        .filter_map(|fd| fs::read_link(fd.path()).ok());
    targets
        .filter(|target| target.to_string_lossy().starts_with("pipe:"))
        .count()
}

#[test]
fn a_killed_exec_client_takes_its_program_along_although_its_input_lies_unread() {
    use std::io::{Read, Write};
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let before = pipes(&agent);
    // Whoever reads this pipe sees its end when the program has ended.
    let script = "mkfifo /held; exec 9<>/held; echo up; echo held >&9; exec sleep 777";
    let mut client = exec(&agent, &["-i", "a", "--", "sh", "-c", script]);
    let mut up = [0; 3];
    let mut stdout = client.stdout.take().expect("piped");
    stdout.read_exact(&mut up).expect("the program runs");
    let mut watcher = exec(&agent, &["a", "--", "cat", "/held"]);
    let mut held = [0; 5];
    let seen = watcher.stdout.as_mut().expect("piped");
    seen.read_exact(&mut held).expect("the pipe is open");
    // Two pipes and the client's buffer hold less: the rest has reached the socket, and is more than the program's pipe
    // takes. Yet all buffers together hold it.
    let mut stdin = client.stdin.take().expect("piped");
    stdin.write_all(&[b'x'; 256 * 1024]).expect("taken");
    client.kill().expect("own child");
    client.wait().expect("own child");
    assert_eq!(output_in_time(watcher).1, Some(0));
    agent.ok(&["get", "pods"]);
    assert!(pipes(&agent) <= before, "its pipes are closed");
}

#[test]
fn exec_with_a_terminal_but_without_input_knows_the_terminals_size() {
    use std::io::Read;
    use std::process::Stdio;
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let size = nix::pty::Winsize {
        ws_row: 33,
        ws_col: 77,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let terminal = nix::pty::openpty(&size, None).expect("a terminal");
    let mut child = coracle()
        .args(["exec", "-t", "a", "--", "stty", "size"])
        .env("CORACLE_SOCKET", agent.socket())
        .stdin(Stdio::null())
        .stdout(Stdio::from(terminal.slave))
        .spawn()
        .expect("coracle runs");
    let mut master = fs::File::from(terminal.master);
    let (mut said, mut buffer) = (String::new(), [0; 1024]);
    // Ends with EIO when the last holder of the terminal is gone.
    while let Ok(read @ 1..) = master.read(&mut buffer) {
        said.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    assert!(child.wait().expect("ends").success(), "{said}");
    assert_eq!(said.trim(), "33 77");
}

#[test]
fn an_agent_survives_a_program_that_ends_before_its_input() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let mut child = exec(&agent, &["-i", "a", "--", "sh", "-c", "exit 3"]);
    let feeder = feed(&mut child, 1_000_000);
    assert_eq!(output_in_time(child).1, Some(3));
    feeder.join().expect("fed");
    agent.ok(&["get", "pods"]);
}
