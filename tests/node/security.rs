//! Security contexts: what is asked for is in force, for programs of `exec` as well, or the pod waits and says why.

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::*;

/// What a process may do, in the kernel's words.
pub(super) const STATUS: &str = "grep -E '^(Uid|Gid|Groups|Cap...|NoNewPrivs|Seccomp):' /proc/self/status; cat /proc/timer_list 2>/dev/null | wc -c; \
                      touch /x 2>/dev/null || echo read-only; echo END";

#[test]
fn a_program_of_exec_is_confined_like_the_container() {
    let agent = Agent::start();
    let pod = "  securityContext: {supplementalGroups: [4000], supplementalGroupsPolicy: Strict, fsGroup: 2000}\n";
    let container = "    securityContext:\n      runAsUser: 1000\n      runAsGroup: 3000\n      \
                     readOnlyRootFilesystem: true\n      allowPrivilegeEscalation: false\n      \
                     capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}\n";
    let script = format!("{STATUS}; exec sleep 1000");
    agent.write("a.yaml", &shell_pod("a", &script, pod, container));
    agent.wait_running("a");
    let own = follow_until(&agent, &["logs", "-f", "a"], "END");
    let node: Value =
        serde_json::from_str(&agent.ok(&["get", "nodes", "-o", "json"])).expect("JSON");
    let node = node.to_string();
    for feature in [
        "\"supplementalGroupsPolicy\":true",
        "\"recursiveReadOnlyMounts\":true",
    ] {
        assert!(node.contains(feature), "{node}");
    }
    let program = agent.ok(&["exec", "a", "--", "sh", "-c", STATUS]);
    assert_eq!(own, program);
    for line in [
        "Uid:\t1000\t1000\t1000\t1000",
        "Gid:\t3000\t3000\t3000\t3000",
        "Groups:\t2000 3000 4000",
        "CapBnd:\t0000000000000400",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "read-only",
    ] {
        assert!(own.contains(line), "no `{line}` in:\n{own}");
    }
}

#[test]
fn containers_that_share_processes_see_each_other_even_after_an_agent_restart() {
    let agent = Agent::start();
    let other = "  - {name: other, image: 'busybox:test', command: [sleep, '4321']}\n";
    let manifest = shell_pod("a", SLEEP, "  shareProcessNamespace: true\n", other);
    agent.write("a.yaml", &manifest);
    agent.wait_running("a");
    let seen = || agent.ok(&["exec", "a", "-c", "main", "--", "ps"]);
    let before = seen();
    assert!(before.contains("sleep 4321"), "{before}");
    assert_eq!(
        agent.ok(&["exec", "a", "-c", "main", "--", "cat", "/proc/1/comm"]),
        "pause\n"
    );
    let line = agent.ok(&["exec", "a", "-c", "main", "--", "cat", "/proc/1/cmdline"]);
    assert_eq!(line.trim_end_matches('\0'), "/pause");
    agent.kill_and_restart();
    agent.wait_running("a");
    assert!(seen().contains("sleep 4321"));
    // A container's new run joins the same processes.
    let kill = "kill -9 $(ps | grep 'sleep 4321' | grep -v grep | awk '{print $1}')";
    agent.ok(&["exec", "a", "-c", "main", "--", "sh", "-c", kill]);
    agent.wait_pod("a", |pod| {
        let statuses = pod["status"]["containerStatuses"].as_array();
        let mut statuses = statuses.into_iter().flatten();
        statuses.any(|status| {
            status["name"] == "other"
                && status["restartCount"] == 1
                && !status["state"]["running"].is_null()
        })
    });
    assert!(seen().contains("sleep 4321"));
    // With the shim its process namespace ends, and a new one comes.
    kill_shim(&agent, "a");
    agent.wait_pod("a", |pod| {
        let statuses = pod["status"]["containerStatuses"].as_array();
        let mut statuses = statuses.into_iter().flatten();
        statuses.all(|status| {
            let count = if status["name"] == "other" { 2 } else { 1 };
            status["restartCount"] == count && !status["state"]["running"].is_null()
        })
    });
    assert!(seen().contains("sleep 4321"));
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn an_unsafe_sysctl_is_set_where_the_settings_allow_it_and_waits_elsewhere() {
    let sysctl = "  securityContext: {sysctls: [{name: net.core.somaxconn, value: '77'}]}\n";
    let manifest = shell_pod("a", SLEEP, sysctl, "");
    let agent = Agent::start();
    agent.write("a.yaml", &manifest);
    let held = agent.wait_pod("a", |pod| pod["status"]["reason"] == "SysctlForbidden");
    let why = "forbidden sysctl: \"net.core.somaxconn\" not allowlisted";
    assert!(
        held["status"]
            .to_string()
            .contains(&why.replace('"', "\\\"")),
        "{held}"
    );
    drop(agent);
    let (agent, _) = settings::configured("allowedUnsafeSysctls: ['net.core.*']\n");
    agent.write("a.yaml", &manifest);
    agent.wait_running("a");
    let path = "/proc/sys/net/core/somaxconn";
    assert_eq!(agent.ok(&["exec", "a", "--", "cat", path]), "77\n");
}

#[test]
fn a_pod_with_an_app_armor_profile_waits_unless_the_kernel_has_app_armor() {
    let agent = Agent::start();
    let profile = "  securityContext: {appArmorProfile: {type: RuntimeDefault}}\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, profile, ""));
    if coracle::effects::app_armor::is_enabled() {
        agent.wait_running("a");
        for path in ["/proc/1/attr/current", "/proc/self/attr/current"] {
            let label = agent.ok(&["exec", "a", "--", "cat", path]);
            assert_eq!(label, "coracle-default (enforce)\n");
        }
        return;
    }
    let held = agent.wait_pod("a", |pod| pod["status"]["reason"] == "AppArmor");
    let why = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
    assert!(held.to_string().contains(why), "{held}");
}

#[test]
fn a_volume_that_is_read_only_with_all_below_it_hides_no_writable_mount() {
    let agent = Agent::start();
    let volume = agent.root.join("volume");
    let below = volume.join("below");
    fs::create_dir_all(&below).expect("made");
    let tmpfs = Some("tmpfs");
    mount(tmpfs, &below, tmpfs, MsFlags::empty(), Some("size=64k")).expect("mounted");
    let volumes = format!(
        "  volumes:\n  - {{name: v, hostPath: {{path: {}}}}}\n",
        volume.display()
    );
    let mounts = "    volumeMounts:\n    - {name: v, mountPath: /top, readOnly: true}\n    \
                  - {name: v, mountPath: /all, readOnly: true, recursiveReadOnly: Enabled}\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, &volumes, mounts));
    let pod = agent.wait_running("a");
    let script = "for f in /top/x /top/below/x /all/x /all/below/x; do touch $f 2>/dev/null && echo $f; done; true";
    let written = agent.ok(&["exec", "a", "--", "sh", "-c", script]);
    let shown = &main_status(&pod)["volumeMounts"];
    umount2(&below, MntFlags::MNT_DETACH).expect("unmounted");
    assert_eq!(written, "/top/below/x\n");
    assert_eq!(shown[1]["recursiveReadOnly"], "Enabled", "{shown}");
}

const RESTRICTED: &str = "coracle: {podSecurity: restricted}\n";

#[test]
fn a_manifest_that_violates_the_nodes_standard_is_refused_and_one_that_meets_it_runs() {
    let (agent, _) = settings::configured(RESTRICTED);
    let plain = shell_pod("a", SLEEP, "", "");
    let expected = "violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false (container \"main\" \
                    must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \
                    \"main\" must set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or \
                    container \"main\" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container \
                    \"main\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")";
    let said = |output: std::process::Output| {
        assert!(!output.status.success());
        [output.stdout, output.stderr]
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .concat()
    };
    let file = agent.root.join("a.yaml");
    fs::write(&file, &plain).expect("written");
    let plan = said(agent.cli(&["plan", file.to_str().expect("utf-8")]));
    assert!(plan.contains(expected), "{plan}");
    agent.write("a.yaml", &plain);
    let hardened = "  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}\n";
    let own =
        "    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}\n";
    agent.write("b.yaml", &shell_pod("b", SLEEP, hardened, own));
    agent.wait_running("b");
    let files = agent.ok(&["get", "files", "-o", "json"]);
    assert!(files.contains(&expected.replace('"', "\\\"")), "{files}");
    // A container that is added to a pod has to meet it, too.
    let debug = said(agent.cli(&["debug", "b", "--image", "busybox:test", "-c", "dbg", "-q"]));
    assert!(
        debug.contains("violates PodSecurity \"restricted:latest\""),
        "{debug}"
    );
    assert!(debug.contains("container \"dbg\""), "{debug}");
}

#[test]
fn a_stricter_standard_leaves_running_pods_alone_until_their_manifest_changes() {
    let (agent, file) = settings::configured("maxPods: 10\n");
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let pid = pid_of(&agent, &agent.wait_running("a"));
    let settings = fs::read_to_string(&file).expect("settings");
    fs::write(&file, settings + RESTRICTED).expect("written");
    agent.kill_and_restart();
    assert_eq!(pid_of(&agent, &agent.wait_running("a")), pid);
    // A container that ends starts again as before.
    let killed = nix::unistd::Pid::from_raw(i32::try_from(pid).expect("a pid"));
    nix::sys::signal::kill(killed, Signal::SIGKILL).expect("killed");
    let again = agent.wait_pod("a", |pod| {
        main_status(pod)["restartCount"] == 1 && !main_status(pod)["state"]["running"].is_null()
    });
    // An edit that violates the standard changes nothing; one that meets it replaces the pod.
    agent.write(
        "a.yaml",
        &shell_pod("a", SLEEP, "", "    workingDir: /tmp\n"),
    );
    let hardened = "  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}\n";
    let own =
        "    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}\n";
    agent.write("b.yaml", &shell_pod("b", SLEEP, hardened, own));
    agent.wait_running("b");
    let files = agent.ok(&["get", "files"]);
    assert!(files.contains("Rejected"), "{files}");
    assert_eq!(
        agent.wait_running("a")["metadata"]["uid"],
        again["metadata"]["uid"]
    );
    agent.write("a.yaml", &shell_pod("a", SLEEP, hardened, own));
    agent.wait_pod("a", |pod| {
        pod["metadata"]["uid"] != again["metadata"]["uid"] && pod["status"]["phase"] == "Running"
    });
}

#[test]
fn an_empty_dir_belongs_to_the_pods_group_and_still_does_in_a_new_sandbox() {
    let agent = Agent::start();
    let pod = "  securityContext: {runAsUser: 1000, runAsGroup: 3000, fsGroup: 2000}\n  volumes:\n  \
               - {name: disk, emptyDir: {}}\n  - {name: memory, emptyDir: {medium: Memory}}\n";
    let mounts = "    volumeMounts:\n    - {name: disk, mountPath: /disk}\n    - {name: memory, mountPath: /memory}\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, pod, mounts));
    agent.wait_running("a");
    let script = "mkdir -p /disk/d; for d in /disk /disk/d /memory; do touch $d/f; stat -c '%a %u %g' $d $d/f; done; id -G";
    let exec = |script: &str| agent.ok(&["exec", "a", "--", "sh", "-c", script]);
    let expected = "2777 0 2000\n644 1000 2000\n2755 1000 2000\n644 1000 2000\n3777 0 2000\n644 1000 2000\n3000 2000\n";
    assert_eq!(exec(script), expected);
    // What the pod itself took away from its group comes back with the sandbox, if the volume's root shows it.
    let pods = agent.root.join("root/pods");
    let uid = agent.wait_running("a")["metadata"]["uid"]
        .as_str()
        .expect("uid")
        .to_owned();
    let disk = pods.join(uid).join("volumes/kubernetes.io~empty-dir/disk");
    for path in [disk.clone(), disk.join("d/f")] {
        std::os::unix::fs::chown(path, None, Some(1)).expect("changed");
    }
    kill_shim(&agent, "a");
    agent.wait_pod("a", |pod| {
        main_status(pod)["restartCount"] == 1 && !main_status(pod)["state"]["running"].is_null()
    });
    assert_eq!(
        exec("stat -c '%a %g' /disk /disk/d/f"),
        "2777 2000\n664 2000\n"
    );
}
