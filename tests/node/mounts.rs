//! Mounts as nodes have them: shared, behind links, hung, made by containers, and left by an earlier boot.

use std::fs;
use std::os::unix::fs::symlink;

use super::common::{Agent, PATIENCE, archive, netns, shell_pod};
use super::configuration::run;
use super::events::wait_event;
use super::{SLEEP, main_status};

/// The number of mounts right at a path.
fn mounts_at(path: &std::path::Path) -> usize {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("proc");
    let path = path.to_str().expect("utf-8");
    let at = table.lines().filter_map(|line| line.split(' ').nth(4));
    at.filter(|at| *at == path).count()
}

/// A mount of a file server that never answers, until this is dropped.
struct Hung {
    at: std::path::PathBuf,
    server: Option<fs::File>,
}

impl Hung {
    fn mount(at: std::path::PathBuf) -> Self {
        use std::os::fd::AsRawFd;
        fs::create_dir_all(&at).expect("temp dir");
        let mut device = fs::File::options();
        let server = device
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .expect("FUSE");
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            server.as_raw_fd()
        );
        let (kind, none) = (Some("fuse"), nix::mount::MsFlags::empty());
        nix::mount::mount(kind, &at, kind, none, Some(options.as_str())).expect("mounted");
        let server = Some(server);
        Self { at, server }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // What waits for it ends.
        self.server.take();
        let _ = nix::mount::umount2(&self.at, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_file_server_that_does_not_answer_holds_up_its_own_pods_only() {
    let agent = Agent::start();
    let hung = Hung::mount(agent.root.join("hung"));
    let mount = "    volumeMounts: [{name: far, mountPath: /far}]\n";
    // More than may start at once.
    for number in 0..6 {
        let path = hung.at.join(if number % 2 == 0 { "" } else { "below" });
        let volume = format!(
            "  hostNetwork: true\n  volumes: [{{name: far, hostPath: {{path: {}}}}}]\n",
            path.display()
        );
        let pod = shell_pod(&format!("far{number}"), SLEEP, &volume, mount);
        agent.write(&format!("far{number}.yaml"), &pod);
    }
    wait_event(&agent, |event| {
        let said = event["message"].as_str().unwrap_or_default();
        event["reason"] == "FailedMount"
            && said.ends_with("hung/below does not answer: its file server may be away")
    });
    let good = shell_pod("good", SLEEP, "  hostNetwork: true\n", "");
    agent.write("good.yaml", &good);
    agent.wait_running("good");
    agent.remove("far1.yaml");
    agent.wait_gone("far1");
    drop(hung);
    fs::create_dir_all(agent.root.join("hung/below")).expect("temp dir");
    agent.wait_running("far0");
    for number in [0, 2, 3, 4, 5] {
        agent.remove(&format!("far{number}.yaml"));
        agent.wait_gone(&format!("far{number}"));
    }
}

#[test]
fn a_run_directory_behind_a_link_is_mounted_once_and_pods_go_on_after_agent_restarts() {
    let agent = Agent::prepare(std::sync::Arc::new(netns::Netns::new()), &[], None);
    fs::create_dir(agent.root.join("real")).expect("temp dir");
    symlink(agent.root.join("real"), agent.root.join("run")).expect("temp dir");
    agent.launch();
    agent.ok(&["image", "import", archive().to_str().expect("utf-8")]);
    let config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {key: one}\n";
    agent.write("config.yaml", config);
    let volumes =
        "  volumes: [{name: m, emptyDir: {medium: Memory}}, {name: c, configMap: {name: c}}]\n";
    let mounts = "    volumeMounts: [{name: m, mountPath: /m}, {name: c, mountPath: /c}]\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, volumes, mounts));
    agent.wait_running("a");
    for _ in 0..2 {
        agent.kill_and_restart();
        agent.wait_running("a");
    }
    for part in ["real/pods", "real/configuration"] {
        assert_eq!(mounts_at(&agent.root.join(part)), 1, "{part}");
    }
    agent.ok(&["restart", "a"]);
    agent.wait_running("a");
    assert_eq!(run(&agent, "a", "cat /c/key"), "one");
    agent.remove("a.yaml");
    agent.wait_gone("a");
    let left = fs::read_dir(agent.root.join("real/pods")).expect("it is there");
    assert_eq!(left.count(), 0);
}

#[test]
fn a_mount_that_a_container_left_in_a_volume_does_not_keep_its_pod() {
    let agent = Agent::start();
    let script = "mount -t tmpfs left /disk && mount -t tmpfs left /memory ; sleep 1000";
    let volumes =
        "  volumes: [{name: disk, emptyDir: {}}, {name: memory, emptyDir: {medium: Memory}}]\n";
    // Right in the volume, so that it is the volume of the other container, too.
    let script = script
        .replace("/disk", "/disk/in")
        .replace("/memory", "/memory/in");
    let script = format!("mkdir -p /disk/in /memory/in; {script}");
    let mounts = "    securityContext: {privileged: true}\n    volumeMounts:\n    - {name: disk, mountPath: /disk, mountPropagation: \
                  Bidirectional}\n    - {name: memory, mountPath: /memory, mountPropagation: Bidirectional}\n  - name: other\n    \
                  image: busybox:test\n    command: [sleep, \"1000\"]\n    volumeMounts:\n    - {name: disk, mountPath: /disk, \
                  mountPropagation: HostToContainer}\n    - {name: memory, mountPath: /memory, mountPropagation: HostToContainer}\n";
    agent.write("a.yaml", &shell_pod("a", &script, volumes, mounts));
    agent.wait_running("a");
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let count = "grep -c '/in tmpfs' /proc/mounts || true";
        let seen = agent.ok(&["exec", "a", "-c", "other", "--", "sh", "-c", count]);
        if seen == "2\n" {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{seen}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
    agent.write("a.yaml", &shell_pod("a", SLEEP, volumes, ""));
    agent.wait_running("a");
}

/// Agents of monitoring have the node's /proc at /proc, and LXCFS has files of its own there.
#[test]
fn the_nodes_proc_and_files_in_proc_can_be_mounted_there_and_nothing_else() {
    let agent = Agent::start();
    let meminfo = agent.root.join("meminfo");
    fs::write(&meminfo, "MemTotal: 1234 kB\n").expect("written");
    let volume = |path: &str| format!("  volumes: [{{name: v, hostPath: {{path: {path}}}}}]\n");
    let mount = |at: &str| format!("    volumeMounts: [{{name: v, mountPath: {at}}}]\n");
    let script = "cat /proc/sys/kernel/osrelease; echo 1 >/proc/sys/kernel/panic || echo kept; exec sleep 1000";
    let whole = shell_pod("whole", script, &volume("/proc"), &mount("/proc"));
    agent.write("whole.yaml", &whole);
    let path = meminfo.to_str().expect("utf-8");
    let file = shell_pod(
        "file",
        "cat /proc/meminfo; exec sleep 1000",
        &volume(path),
        &mount("/proc/meminfo"),
    );
    agent.write("file.yaml", &file);
    let etc = shell_pod("etc", SLEEP, &volume("/etc"), &mount("/proc"));
    agent.write("etc.yaml", &etc);
    agent.wait_running("whole");
    agent.wait_line("whole", "kept");
    agent.wait_running("file");
    agent.wait_line("file", "MemTotal: 1234 kB");
    // The processes are those of the node.
    let pid = std::process::id();
    agent.ok(&["exec", "whole", "--", "test", "-d", &format!("/proc/{pid}")]);
    wait_event(&agent, |event| {
        let message = event["message"].as_str().unwrap_or_default();
        event["involvedObject"]["name"] == "etc" && message.contains("is not of type proc")
    });
}

#[test]
fn a_run_directory_that_outlived_a_reboot_counts_as_empty() {
    let agent = Agent::start();
    let pod = shell_pod("a", SLEEP, "  hostNetwork: true\n", "");
    agent.write("a.yaml", &pod);
    let before = agent.wait_running("a");
    let kept = agent.root.join("kept");
    let run_dir = agent.root.join("run");
    agent.kill();
    // What is mounted in it does not outlive a reboot.
    let mut copy = std::process::Command::new("cp");
    let copied = copy.arg("-ax").args([&run_dir, &kept]).status();
    assert!(copied.expect("cp runs").success());
    agent.machine_goes_down();
    fs::rename(&kept, &run_dir).expect("renamed");
    fs::write(run_dir.join("boot-id"), "of an earlier boot").expect("written");
    let shutdown = r#"{"asked_by":"Command","since":{"time":1,"wall":1},"groups":[],"turn":0,"turn_since":1,"ended":null}"#;
    fs::write(run_dir.join("shutdown.json"), shutdown).expect("written");
    agent.launch();
    let pod = agent.wait_pod("a", |pod| {
        let status = main_status(pod);
        !status["state"]["running"].is_null()
            && status["containerID"] != main_status(&before)["containerID"]
    });
    assert_eq!(pod["metadata"]["uid"], before["metadata"]["uid"]);
    assert!(!run_dir.join("shutdown.json").exists());
    assert!(agent.log().contains("has outlived a reboot"));
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}
