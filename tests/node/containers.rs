//! Isolation, sharing and limits of containers, and their removal whatever they have done.

use super::*;

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
fn a_frozen_container_is_killed_when_its_shim_was_killed() {
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

#[test]
fn a_very_deep_volume_and_writable_layer_are_removed_and_the_agent_survives() {
    let agent = Agent::start();
    let volumes = "  volumes:\n  - {name: v, emptyDir: {}}\n";
    let mounts = "    volumeMounts:\n    - {name: v, mountPath: /v}\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, volumes, mounts));
    let pod = agent.wait_running("a");
    let before = agent.pid();
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let state = agent.root.join("root/pods").join(uid);
    nest(&state.join("volumes/kubernetes.io~empty-dir/v"), 8_000);
    nest(&state.join("containers/main/layer-0/upper"), 8_000);
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
    agent.request("/healthz");
    assert_eq!(agent.pid(), before);
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
fn a_container_can_neither_inspect_a_process_that_enters_it_nor_write_its_binary() {
    let agent = Agent::start();
    // Reads the descriptors of every process that appears beside it.
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
        "the binary stays read-only even once nothing runs from it"
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
        // No pod swaps unless the node's settings allow it: the limit of memory and swap together is that of memory.
        let both = agent.cgroup_path("memory", &container, "memory.memsw.limit_in_bytes");
        if let Ok(both) = fs::read_to_string(both) {
            assert_eq!(both.trim(), "67108864");
        }
    } else {
        for group in [&pod_group, &container] {
            assert_eq!(agent.cgroup_file("memory", group, "memory.max"), "67108864");
            assert_eq!(agent.cgroup_file("cpu", group, "cpu.max"), "50000 100000");
        }
    }
}

/// The limit of a container that is to be killed for its memory. It is larger than what the shim has mapped of its file,
/// which is large in test builds: where nothing may lower an `oom_score_adj`, the kernel would kill the shim instead.
pub(super) const HOG_LIMIT: &str = "    resources: {limits: {memory: 64Mi}}\n";

#[test]
fn a_container_over_its_memory_limit_is_shown_as_oom_killed() {
    let agent = Agent::start();
    let hog = "x=a; while :; do x=$x$x; done";
    agent.write(
        "hog.yaml",
        &shell_pod("hog", hog, "  restartPolicy: Never\n", HOG_LIMIT),
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
        assert!(!log.contains("root:"), "the node's /etc is visible:\n{log}");
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
fn the_settings_file_limits_processes_and_settings_without_effect_are_reported() {
    let path = std::env::temp_dir().join(format!("coracle-settings-{}.yaml", std::process::id()));
    let text = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\npodPidsLimit: 77\nport: 10250\n";
    fs::write(&path, text).expect("written");
    let agent = Agent::start_with(&["--config", path.to_str().expect("utf-8")]);
    fs::remove_file(&path).expect("removed");
    agent.ok(&[
        "image",
        "import",
        common::archive().to_str().expect("utf-8"),
    ]);
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let pod = agent.wait_running("a");
    let group = format!(
        "besteffort/pod{}",
        pod["metadata"]["uid"].as_str().expect("uid")
    );
    assert_eq!(agent.cgroup_file("pids", &group, "pids.max"), "77");
    assert!(
        agent.log().contains("settings without effect here: port"),
        "{}",
        agent.log()
    );
}

/// The value of a process; `None` if it is gone.
fn oom_score_adj(pid: u64) -> Option<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok()?;
    text.trim().parse().ok()
}

#[test]
fn an_agent_without_systemd_sets_its_own_oom_score_and_no_container_has_it() {
    // To raise the value above that of the tests needs no capability. To lower it the kernel may refuse, and the log
    // reports that.
    let own = oom_score_adj(std::process::id().into()).expect("our own");
    for wanted in [own + 7, -999] {
        let path = std::env::temp_dir().join(format!("coracle-oom-{}.yaml", std::process::id()));
        fs::write(
            &path,
            format!("kind: KubeletConfiguration\noomScoreAdj: {wanted}\n"),
        )
        .expect("written");
        let agent = Agent::start_with(&["--config", path.to_str().expect("utf-8")]);
        fs::remove_file(&path).expect("removed");
        let found = oom_score_adj(u64::try_from(agent.pid()).expect("a pid"));
        let refused = agent
            .log()
            .contains("could not set the agent's own oom_score_adj");
        assert_eq!(found != Some(wanted), refused, "{found:?}: {}", agent.log());
        assert!(!refused || wanted < own, "{}", agent.log());
        let archive = common::archive().to_str().expect("utf-8");
        agent.ok(&["image", "import", archive]);
        agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
        agent.wait_running("a");
        let script = "cat /proc/1/oom_score_adj /proc/self/oom_score_adj";
        assert_eq!(
            agent.ok(&["exec", "a", "--", "sh", "-c", script]),
            "1000\n1000\n"
        );
    }
}

#[test]
fn one_pod_cannot_take_all_process_ids_and_all_pods_leave_some_to_the_node() {
    let number = |path: &str| -> u64 {
        let text = fs::read_to_string(path).expect("procfs");
        text.trim().parse().expect("a number")
    };
    let most = number("/proc/sys/kernel/pid_max").min(number("/proc/sys/kernel/threads-max"));
    for enforced in ["", "enforceNodeAllocatable: [none]\n"] {
        let path = std::env::temp_dir().join(format!("coracle-most-{}.yaml", std::process::id()));
        fs::write(&path, format!("kind: KubeletConfiguration\n{enforced}")).expect("written");
        let agent = Agent::start_with(&["--config", path.to_str().expect("utf-8")]);
        fs::remove_file(&path).expect("removed");
        agent.ok(&[
            "image",
            "import",
            common::archive().to_str().expect("utf-8"),
        ]);
        agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
        let pod = agent.wait_running("a");
        let all: u64 = agent
            .cgroup_file("pids", "", "pids.max")
            .parse()
            .expect("bounded");
        assert!(
            all + most / 10 <= most && all >= most / 2,
            "{all} of {most}"
        );
        let group = format!(
            "besteffort/pod{}",
            pod["metadata"]["uid"].as_str().expect("uid")
        );
        let one: u64 = agent
            .cgroup_file("pids", &group, "pids.max")
            .parse()
            .expect("bounded");
        assert!(one <= all / 2, "{one} of {all}");
        let shown = agent.ok(&["config", "print"]);
        assert!(shown.contains(&format!("podPidsLimit: {one} ")), "{shown}");
    }
}

#[test]
fn a_mount_made_in_a_bidirectional_volume_reaches_the_node() {
    let agent = Agent::start();
    let host = agent.root.join("shared");
    fs::create_dir_all(&host).expect("temp dir");
    let none = None::<&str>;
    let flags = nix::mount::MsFlags::MS_BIND;
    nix::mount::mount(Some(&host), &host, none, flags, none).expect("mounted");
    let flags = nix::mount::MsFlags::MS_SHARED;
    nix::mount::mount(none, &host, none, flags, none).expect("shared");
    let script = format!("mkdir -p /v/in && mount -t tmpfs inner /v/in && echo mounted; {SLEEP}");
    let more = format!(
        "    securityContext: {{privileged: true}}\n    volumeMounts: [{{name: v, mountPath: /v, mountPropagation: \
         Bidirectional}}]\n  volumes: [{{name: v, hostPath: {{path: {}}}}}]\n",
        host.display()
    );
    agent.write("a.yaml", &shell_pod("a", &script, "", &more));
    agent.wait_running("a");
    follow_until(&agent, &["logs", "-f", "a"], "mounted");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("proc");
    let inner = host.join("in").display().to_string();
    assert!(
        mounts
            .lines()
            .any(|line| line.split(' ').nth(4) == Some(&inner)),
        "{mounts}"
    );
}

#[test]
fn a_container_whose_seccomp_profile_is_not_available_is_refused() {
    let agent = Agent::start();
    let security =
        "    securityContext: {seccompProfile: {type: Localhost, localhostProfile: none.json}}\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", security));
    let pod = agent.wait_pod("a", |pod| {
        main_status(pod)["state"]["waiting"]["message"].is_string()
    });
    let waiting = &main_status(&pod)["state"]["waiting"];
    assert_eq!(waiting["reason"], "CreateContainerConfigError", "{waiting}");
    assert!(
        waiting["message"].to_string().contains("none.json"),
        "{waiting}"
    );
}
