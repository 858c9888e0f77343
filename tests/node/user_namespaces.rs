//! User namespaces: a pod with `hostUsers: false` has ids of its own, which have no rights on the node, and sees its volumes
//! with the ids that it expects.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::configuration::run;
use super::settings::configured;
use super::*;

pub(crate) const OWN: &str = "  hostUsers: false\n";

/// The first of a pod's ids on the node, as the kernel says for its main process, and their number.
pub(crate) fn range(agent: &Agent, pod: &str) -> (u32, u32) {
    let pid = pid_of(agent, &agent.pod(pod));
    let maps = ["uid_map", "gid_map"].map(|map| {
        let map = fs::read_to_string(format!("/proc/{pid}/{map}")).expect("it runs");
        let fields = map
            .split_whitespace()
            .map(|field| field.parse().expect("a number"));
        let fields: Vec<u32> = fields.collect();
        assert_eq!((fields.len(), fields[0]), (3, 0), "{map}");
        (fields[1], fields[2])
    });
    assert_eq!(maps[0], maps[1]);
    maps[0]
}

/// A path in the container's root filesystem, as seen from the node.
pub(crate) fn inside(agent: &Agent, pod: &str, path: &str) -> PathBuf {
    let pid = pid_of(agent, &agent.pod(pod));
    PathBuf::from(format!("/proc/{pid}/root{path}"))
}

pub(crate) fn owner(path: &Path) -> (u32, u32) {
    let found =
        fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (found.uid(), found.gid())
}

#[test]
fn a_container_is_root_of_its_own_ids_and_has_no_rights_on_the_node() {
    let agent = Agent::start();
    let container = "    securityContext: {capabilities: {add: [SYS_ADMIN, NET_ADMIN, MKNOD]}, seccompProfile: \
                     {type: Unconfined}}\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, OWN, container));
    let pod = agent.wait_running("a");
    let node: Value =
        serde_json::from_str(&agent.ok(&["get", "nodes", "-o", "json"])).expect("JSON");
    assert!(
        node.to_string().contains("\"userNamespaces\":true"),
        "{node}"
    );
    let (first, count) = range(&agent, "a");
    assert!(first >= 65_536 && first % 65_536 == 0, "{first}");
    assert_eq!(count, 65_536);
    // The container's main process, and a program of exec.
    let map = format!("{:>10} {first:>10} {count:>10}\n", 0);
    assert_eq!(run(&agent, "a", "cat /proc/1/uid_map"), map);
    assert_eq!(
        run(&agent, "a", "cat /proc/self/uid_map /proc/self/gid_map"),
        map.repeat(2)
    );
    assert_eq!(run(&agent, "a", "id -u; id -g; id -G"), "0\n0\n0\n");
    let pid = pid_of(&agent, &pod);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    assert!(
        status.contains(&format!("Uid:\t{first}\t{first}\t{first}\t{first}\n")),
        "{status}"
    );
    assert!(
        status.contains(&format!("Gid:\t{first}\t{first}\t{first}\t{first}\n")),
        "{status}"
    );
    assert!(!status.contains("Groups:\t0"), "{status}");
    // Exec'd programs are in the same namespaces, all of which are the pod's.
    let kinds = "for kind in user ipc uts net mnt pid; do readlink /proc/PID/ns/$kind; done";
    let own = run(&agent, "a", &kinds.replace("PID", "self"));
    assert_eq!(run(&agent, "a", &kinds.replace("PID", "1")), own);
    for kind in ["user", "ipc", "uts", "net", "mnt", "pid"] {
        let nodes = fs::read_link(format!("/proc/self/ns/{kind}")).expect("a link");
        assert!(!own.contains(&*nodes.to_string_lossy()), "{kind}: {own}");
    }

    // What root makes is root's inside, and one of the pod's ids' outside.
    run(
        &agent,
        "a",
        "echo x >/made; mkdir /etc/new; chown 7:8 /etc/new; stat -c %u:%g /bin/busybox /made | uniq",
    );
    assert_eq!(
        run(&agent, "a", "stat -c %u:%g / /made /etc/new /bin"),
        "0:0\n0:0\n7:8\n0:0\n"
    );
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let upper = agent
        .root
        .join(format!("root/pods/{uid}/containers/main/layer-0/upper"));
    assert_eq!(owner(&upper.join("made")), (first, first));
    assert_eq!(owner(&upper.join("etc/new")), (first + 7, first + 8));
    assert_eq!(owner(&inside(&agent, "a", "/bin/busybox")), (first, first));

    // Files of the image can be changed, renamed and removed.
    let change = "chmod 700 /bin/wc && mv /bin/wc /bin/wc2 && rm /bin/uname && ls /bin/wc /bin/uname 2>/dev/null; \
                  stat -c %u:%g:%a /bin/wc2; mv /etc/new /etc/newer && echo moved";
    assert_eq!(run(&agent, "a", change), "0:0:700\nmoved\n");

    // The capabilities are those of the namespace: enough for its own, nothing for the node's.
    let allowed =
        "mkdir /m && mount -t tmpfs none /m && umount /m && ip link add d type dummy && echo fine";
    let allowed = allowed.replace(
        "ip link add d type dummy",
        "ip addr add 192.0.2.9/32 dev lo",
    );
    assert_eq!(run(&agent, "a", &allowed), "fine\n");
    for attempt in [
        "mknod /tmp/d b 1 0",
        "mknod /tmp/d c 10 237",
        "mount -t ext4 /dev/vda /m",
        "mount -t debugfs none /m",
        "mount -t cgroup -o devices none /m",
        "echo 1 >/proc/sys/kernel/panic",
        "echo b >/proc/sysrq-trigger",
        "mount -o remount,rw /proc/sys && echo 1 >/proc/sys/kernel/panic",
        "umount /proc/sys && echo 1 >/proc/sys/kernel/panic",
        "chown 70000 /made",
        "chroot /proc/1/root/../.. /bin/sh -c 'test -e /work'",
    ] {
        let said = run(
            &agent,
            "a",
            &format!("if ({attempt}) 2>/dev/null; then echo done; else echo refused; fi"),
        );
        assert_eq!(said, "refused\n", "{attempt}");
    }
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_program_of_exec_is_confined_like_the_container_in_a_user_namespace() {
    let agent = Agent::start();
    let pod = format!("{OWN}  securityContext: {{supplementalGroups: [4000], fsGroup: 2000}}\n");
    let container = "    securityContext:\n      runAsUser: 1000\n      runAsGroup: 3000\n      \
                     readOnlyRootFilesystem: true\n      allowPrivilegeEscalation: false\n      \
                     capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}\n";
    let status = security::STATUS;
    let script = format!("{status}; exec sleep 1000");
    agent.write("a.yaml", &shell_pod("a", &script, &pod, container));
    agent.wait_running("a");
    let own = follow_until(&agent, &["logs", "-f", "a"], "END");
    assert_eq!(own, run(&agent, "a", status));
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
fn pods_have_different_ids_and_keep_them_until_they_are_gone() {
    let agent = Agent::start();
    for name in ["a", "b"] {
        agent.write(&format!("{name}.yaml"), &shell_pod(name, SLEEP, OWN, ""));
    }
    agent.wait_running("a");
    agent.wait_running("b");
    let (a, b) = (range(&agent, "a"), range(&agent, "b"));
    assert!(a.0.abs_diff(b.0) >= 65_536, "{a:?} {b:?}");
    // Neither a new agent, nor a new run, nor a new sandbox changes them.
    agent.kill_and_restart();
    assert_eq!((range(&agent, "a"), range(&agent, "b")), (a, b));
    agent.write("c.yaml", &shell_pod("c", SLEEP, OWN, ""));
    agent.wait_running("c");
    let c = range(&agent, "c");
    assert!(c != a && c != b, "{a:?} {b:?} {c:?}");
    assert_eq!(
        run(&agent, "a", "id -u; touch /made; stat -c %u /made"),
        "0\n0\n"
    );
    let runs = |count: u32| {
        agent.wait_pod("a", |pod| {
            main_status(pod)["restartCount"] == count
                && !main_status(pod)["state"]["running"].is_null()
        })
    };
    // It ends with its container.
    agent.cli(&["exec", "a", "--", "kill", "1"]);
    runs(1);
    assert_eq!(range(&agent, "a"), a);
    kill_shim(&agent, "a");
    runs(2);
    assert_eq!(range(&agent, "a"), a);
    // The ids of a pod that is gone are free.
    agent.remove("a.yaml");
    agent.wait_gone("a");
    agent.write("d.yaml", &shell_pod("d", SLEEP, OWN, ""));
    agent.wait_running("d");
    assert_eq!(range(&agent, "d"), a);
    for name in ["b", "c", "d"] {
        agent.remove(&format!("{name}.yaml"));
        agent.wait_gone(name);
    }
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn the_settings_say_how_many_ids_a_pod_has() {
    let (agent, _) = configured("userNamespaces: {idsPerPod: 131072}\n");
    let user = "  securityContext: {runAsUser: 100000, runAsGroup: 131071}\n";
    agent.write(
        "a.yaml",
        &shell_pod("a", SLEEP, &format!("{OWN}{user}"), ""),
    );
    agent.wait_running("a");
    let (first, count) = range(&agent, "a");
    assert_eq!((first % 131_072, count), (0, 131_072));
    assert_eq!(run(&agent, "a", "id -u; id -g"), "100000\n131071\n");
    let user = user.replace("131071", "131072");
    agent.write(
        "b.yaml",
        &shell_pod("b", SLEEP, &format!("{OWN}{user}"), ""),
    );
    let pod = agent.wait_pod("b", |pod| {
        main_status(pod)["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    });
    let message = &main_status(&pod)["state"]["waiting"]["message"];
    assert_eq!(
        message,
        "group 131072 does not exist in the pod: with `hostUsers: false` it has the ids 0 to 131071 \
         (`userNamespaces.idsPerPod`)"
    );
}

#[test]
fn all_of_proc_is_there_for_a_container_that_asks_for_it() {
    let agent = Agent::start();
    let unmasked = "    securityContext: {procMount: Unmasked}\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, OWN, ""));
    agent.write("b.yaml", &shell_pod("b", SLEEP, OWN, unmasked));
    agent.wait_running("a");
    agent.wait_running("b");
    let mounts = "grep -c ' /proc/' /proc/self/mountinfo; stat -c %F /proc/keys";
    let masked = run(&agent, "a", mounts);
    assert!(
        masked.ends_with("character special file\n") && !masked.starts_with("0\n"),
        "{masked}"
    );
    assert_eq!(run(&agent, "b", mounts), "0\nregular empty file\n");
    // A container of containers needs it: only where nothing is hidden may a new /proc be mounted.
    let nested = "unshare -Urpfm --mount-proc sh -c 'echo $$ >/proc/self/oom_score_adj; cat /proc/self/uid_map | tr -s \" \"'";
    let script = format!("{nested} 2>&1 || echo refused");
    let seccomp =
        "    securityContext: {procMount: Unmasked, seccompProfile: {type: Unconfined}}\n";
    agent.write("c.yaml", &shell_pod("c", SLEEP, OWN, seccomp));
    let masked = "    securityContext: {seccompProfile: {type: Unconfined}}\n";
    agent.write("d.yaml", &shell_pod("d", SLEEP, OWN, masked));
    agent.wait_running("c");
    agent.wait_running("d");
    let said = run(&agent, "c", &script);
    assert!(!said.contains("refused"), "{said}");
    let said = run(&agent, "d", &script);
    assert!(said.contains("refused"), "{said}");
}

#[test]
fn probes_hooks_terminals_and_shared_processes_work_in_a_user_namespace() {
    let agent = Agent::start();
    let container = "    tty: true\n    stdin: true\n    readinessProbe: {exec: {command: [sh, -c, 'test $(id -u) = 1000 && \
                     grep -qv \" 4294967295\" /proc/self/uid_map && test -e /tmp/hooked']}, periodSeconds: 1}\n    \
                     lifecycle: {postStart: {exec: {command: [sh, -c, 'id -u >/tmp/hooked']}}}\n    \
                     securityContext: {runAsUser: 1000}\n  \
                     - {name: other, image: 'busybox:test', command: [sleep, '4321']}\n";
    let pod = format!("{OWN}  shareProcessNamespace: true\n");
    agent.write("a.yaml", &shell_pod("a", SLEEP, &pod, container));
    let ready = |pod: &Value| main_status(pod)["ready"] == true;
    let pod = agent.wait_pod("a", ready);
    let (first, _) = range(&agent, "a");
    let main = ["exec", "a", "-c", "main", "--", "sh", "-c"];
    let say = |script: &str| agent.ok(&[&main[..], &[script]].concat());
    assert_eq!(
        say("cat /tmp/hooked; stat -c %u /tmp/hooked; cat /proc/1/comm"),
        "1000\n1000\npause\n"
    );
    assert!(say("ps").contains("sleep 4321"));
    // The pause process belongs to nobody of the containers.
    let pid = pid_of(&agent, &pod);
    let status = fs::read_to_string(format!("/proc/{pid}/root/proc/1/status")).expect("it runs");
    assert!(
        status.contains(&format!("Uid:\t{0}\t{0}\t{0}\t{0}", first + 65_535)),
        "{status}"
    );
    // Programs open their terminal by name, as their own user.
    let terminal = "stat -c %u /dev/console; echo heard >/dev/console && echo written";
    assert_eq!(say(terminal), "1000\nwritten\n");
    // A container that is added with a target joins its processes, as root of the same ids.
    let debug = [
        "debug",
        "a",
        "--image",
        "busybox:test",
        "-c",
        "dbg",
        "--target",
        "main",
        "-q",
        "--",
        "sh",
        "-c",
    ];
    agent.ok(&[
        &debug[..],
        &[&format!("cat /proc/self/uid_map; ps; echo END; {SLEEP}")],
    ]
    .concat());
    agent.wait_pod("a", |pod| {
        !pod["status"]["ephemeralContainerStatuses"][0]["state"]["running"].is_null()
    });
    let said = follow_until(&agent, &["logs", "-f", "a", "-c", "dbg"], "END");
    assert!(
        said.contains("sleep 4321") && said.contains(&first.to_string()),
        "{said}"
    );
    let more = [
        "debug",
        "a",
        "--image",
        "busybox:test",
        "--profile",
        "sysadmin",
        "--",
        "true",
    ];
    let refused = agent.cli(&more);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(why.contains("hostUsers: false"), "{why}");
    agent.kill_and_restart();
    agent.wait_pod("a", ready);
    assert!(say("ps").contains("sleep 4321"));
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn copies_go_both_ways_with_the_ids_of_the_pod() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, OWN, ""));
    agent.wait_running("a");
    run(
        &agent,
        "a",
        "mkdir /d && echo one >/d/file && chown 12:34 /d/file && chmod 640 /d/file",
    );
    let here = agent.root.join("here");
    let at = |name: &str| here.join(name).to_str().expect("utf-8").to_owned();
    fs::create_dir_all(&here).expect("temp dir");
    agent.ok(&["cp", "a:/d", &at("d")]);
    let text = fs::read_to_string(at("d/file")).expect("copied");
    assert_eq!(text, "one\n");
    std::os::unix::fs::chown(at("d/file"), Some(1234), Some(5678)).expect("root");
    agent.ok(&["cp", &at("d/file"), "a:/new"]);
    let seen = run(&agent, "a", "stat -c '%u:%g %a' /new && cat /new");
    assert_eq!(seen, "1234:5678 640\none\n");
    let (first, count) = range(&agent, "a");
    let on_the_node = owner(&inside(&agent, "a", "/new"));
    assert_eq!(on_the_node, (first + 1234, first + 5678));
    // An id that the pod does not have.
    std::os::unix::fs::chown(at("d/file"), Some(count), None).expect("root");
    let output = agent.cli(&["cp", &at("d/file"), "a:/other"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && said.contains("owners are not kept"),
        "{said}"
    );
    assert_eq!(run(&agent, "a", "stat -c %u:%g /other"), "0:0\n");
}

#[test]
fn sysctls_and_low_ports_are_the_pods_own() {
    let agent = Agent::start();
    let pod = format!(
        "{OWN}  securityContext: {{sysctls: [{{name: net.ipv4.ip_unprivileged_port_start, value: '99'}}, {{name: \
         kernel.shm_rmid_forced, value: '1'}}]}}\n"
    );
    agent.write("a.yaml", &shell_pod("a", SLEEP, &pod, ""));
    agent.wait_running("a");
    let read = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shm_rmid_forced";
    assert_eq!(run(&agent, "a", read), "99\n1\n");
    let node = fs::read_to_string("/proc/sys/kernel/shm_rmid_forced").expect("readable");
    assert_eq!(node, "0\n");
    let low = "nc -l -p 80 >/tmp/heard & until nc -w1 127.0.0.1 80 </etc/hostname 2>/dev/null; do :; done; wait; \
               cat /tmp/heard; hostname";
    assert_eq!(run(&agent, "a", low), "a\na\n");
}

#[test]
fn a_device_belongs_to_the_owner_it_has_on_the_node() {
    let agent = Agent::start();
    let annotation = "coracle.dev/devices: '/dev/zero:/dev/own/zero:r'";
    let pod = shell_pod("a", SLEEP, OWN, "");
    let pod = pod.replace(
        "\nspec:",
        &format!("\n  annotations: {{{annotation}}}\nspec:"),
    );
    agent.write("a.yaml", &pod);
    agent.wait_running("a");
    let script = "stat -c '%u:%g %t:%T' /dev/own/zero; head -c 3 /dev/own/zero | wc -c; \
                  (mknod /tmp/zero c 1 5) 2>/dev/null || echo refused";
    assert_eq!(run(&agent, "a", script), "0:0 1:5\n3\nrefused\n");
}

#[test]
fn what_is_read_only_stays_so_for_a_container_that_may_mount() {
    let agent = Agent::start();
    let host = agent.root.join("host");
    fs::create_dir_all(host.join("sub")).expect("made");
    let pod = format!(
        "{OWN}  volumes:\n  - {{name: host, hostPath: {{path: {}}}}}\n",
        host.display()
    );
    let container = "    securityContext: {capabilities: {add: [SYS_ADMIN]}, seccompProfile: {type: Unconfined}}\n    \
                     volumeMounts:\n    - {name: host, mountPath: /first, readOnly: true}\n    \
                     - {name: host, mountPath: /host}\n    - {name: host, mountPath: /host/sub, readOnly: true}\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, &pod, container));
    agent.wait_running("a");
    for path in ["/first", "/host/sub"] {
        let attempt = format!(
            "mount -o remount,rw,bind {path} 2>/dev/null; mkdir -p /m; mount --bind {path} /m && \
             mount -o remount,rw,bind /m 2>/dev/null; for place in {path} /m; do touch $place/x 2>/dev/null && \
             echo written; done; umount /m && echo END"
        );
        assert_eq!(run(&agent, "a", &attempt), "END\n", "{path}");
    }
    assert!(!host.join("x").exists() && !host.join("sub/x").exists());
    run(&agent, "a", "touch /host/x && mount -t tmpfs none /m");
    assert!(host.join("x").exists());
}

/// Puts the state directory on an overlay, which cannot be shown with other ids.
const ON_AN_OVERLAY: &str = "for word; do [ \"$last\" = --root ] && root=$word; last=$word; done; \
                             mkdir -p $root $root-parts && mount -t tmpfs parts $root-parts && \
                             mkdir $root-parts/lower $root-parts/upper $root-parts/work && \
                             mount -t overlay -o lowerdir=$root-parts/lower,upperdir=$root-parts/upper,workdir=$root-parts/work \
                             overlay $root && exec \"$@\"";

#[test]
fn a_pod_waits_and_says_why_on_a_node_that_cannot_give_it_ids_of_its_own() {
    let agent = Agent::prepare(
        std::sync::Arc::new(common::netns::Netns::new()),
        &[],
        Some(ON_AN_OVERLAY),
    );
    agent.launch();
    agent.write("a.yaml", &shell_pod("a", SLEEP, OWN, ""));
    let held = agent.wait_pod("a", |pod| pod["status"]["reason"] == "UserNamespaces");
    let root = agent.root.join("root");
    let why = format!(
        "Cannot run a pod with `hostUsers: false`: `{}`: its file system cannot be shown with other ids",
        root.display()
    );
    let message = held["status"]["message"].as_str().expect("a message");
    assert!(message.starts_with(&why), "{message}");
    let feature = "\"userNamespaces\":";
    let node: Value =
        serde_json::from_str(&agent.ok(&["get", "nodes", "-o", "json"])).expect("JSON");
    assert!(
        node.to_string().contains(&format!("{feature}false")),
        "{node}"
    );
}
