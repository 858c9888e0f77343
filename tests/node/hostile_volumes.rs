//! Volumes with hostile content: whatever a container puts into them, the node writes and reads nothing outside.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::common::{Agent, PATIENCE, shell_pod};
use super::configuration::run;
use super::events::wait_event;
use super::{SLEEP, main_status};

/// A folder of the node that no pod may read or change.
struct Treasure {
    folder: PathBuf,
    before: BTreeMap<PathBuf, String>,
}

impl Treasure {
    fn new(agent: &Agent) -> Self {
        let folder = agent.root.join("treasure");
        fs::create_dir_all(folder.join("below")).expect("made");
        for name in ["secret", "below/secret", "data", "..data"] {
            fs::write(folder.join(name), "NODE='the node'\n").expect("written");
            let path = folder.join(name);
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            fs::set_permissions(path, mode).expect("changed");
        }
        let before = seen(&folder);
        Self { folder, before }
    }

    fn path(&self) -> String {
        self.folder.display().to_string()
    }

    fn assert_untouched(&self) {
        assert_eq!(seen(&self.folder), self.before);
    }
}

/// Everything below a folder: kind, mode, owners and content.
fn seen(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let own = fs::symlink_metadata(&folder).expect("there");
        let shown = format!("{:o} {} {}", own.mode(), own.uid(), own.gid());
        found.insert(folder.clone(), shown);
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let (path, data) = (entry.path(), entry.metadata().expect("there"));
            if data.is_dir() {
                folders.push(path);
                continue;
            }
            let text = match data.is_file() {
                true => fs::read_to_string(&path).expect("text"),
                false => String::new(),
            };
            let shown = format!("{:o} {} {} {text}", data.mode(), data.uid(), data.gid());
            found.insert(path, shown);
        }
    }
    found
}

/// Where the node keeps a pod's `emptyDir`.
fn empty_dir(agent: &Agent, pod: &Value, volume: &str) -> PathBuf {
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let volumes = agent.root.join("root/pods").join(uid).join("volumes");
    volumes.join("kubernetes.io~empty-dir").join(volume)
}

#[test]
fn a_folder_that_is_swapped_with_a_symlink_while_sub_paths_are_bound_leads_nowhere() {
    let agent = Agent::start();
    let treasure = Treasure::new(&agent);
    let outside = treasure.path();
    // The same name is a folder, a link to the node's folder, a link upwards, a file and nothing, by turns.
    let swap = format!(
        "cd /v; while :; do mkdir -p real/below; mv real sub; rm -rf sub; ln -s {outside} sub; rm -rf sub; : > sub; \
         rm -rf sub; mkdir -p sub; ln -s {outside} sub/below; rm -rf sub; \
         ln -s ../../../../../../../../../..{outside} link; mv link sub; rm -rf sub; done 2>/dev/null"
    );
    let volumes = "  volumes: [{name: v, emptyDir: {}}]\n";
    // Each run writes where its mounts lead, and says what it sees there.
    let script = "for at in /a /b; do echo hacked > $at/new; cat $at/secret $at/below/secret $at $at/new; done 2>/dev/null | \
                  grep -q 'the node' && exit 7; exit 1";
    let mounts = "    volumeMounts:\n    - {name: v, mountPath: /a, subPath: sub}\n    - {name: v, mountPath: /b, subPathExpr: sub/below}\n";
    let other = format!(
        "  - {{name: swapper, image: 'busybox:test', command: [sh, -c, {}], volumeMounts: [{{name: v, mountPath: /v}}]}}\n",
        serde_json::to_string(&swap).expect("a string")
    );
    agent.write(
        "a.yaml",
        &(shell_pod("a", script, volumes, mounts) + &other),
    );
    // Some starts find a link, and fail; others find a folder of the volume.
    let (mut runs, mut failures) = (0, 0);
    let deadline = std::time::Instant::now() + PATIENCE;
    while runs < 5 || failures < 5 {
        let pod = agent.wait_pod("a", |pod| {
            let reason = &main_status(pod)["state"]["waiting"]["reason"];
            reason
                .as_str()
                .is_some_and(|reason| reason != "ContainerCreating")
        });
        let status = &main_status(&pod);
        let ended = &status["lastState"]["terminated"];
        assert_ne!(ended["exitCode"], 7, "the container saw a file of the node");
        runs = status["restartCount"].as_u64().unwrap_or_default();
        let waiting = &status["state"]["waiting"];
        failures += u64::from(waiting["reason"] == "CreateContainerConfigError");
        treasure.assert_untouched();
        let in_time = std::time::Instant::now() < deadline;
        assert!(in_time, "{runs} runs, {failures} failures, {waiting}");
        agent.cli(&["retry", "a"]);
    }
    agent.remove("a.yaml");
    agent.wait_gone("a");
    treasure.assert_untouched();
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn links_pipes_and_devices_in_a_volume_that_is_given_to_a_group_lead_nowhere() {
    let agent = Agent::start();
    let treasure = Treasure::new(&agent);
    let outside = treasure.path();
    let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec:\n  accessModes: \
                 [ReadWriteOnce]\n  resources: {requests: {storage: 1Gi}}\n";
    agent.write("claim.yaml", claim);
    let volumes = "  volumes:\n  - {name: e, emptyDir: {}}\n  - {name: c, persistentVolumeClaim: {claimName: data}}\n";
    let mounts = "    volumeMounts: [{name: e, mountPath: /e}, {name: c, mountPath: /c}]\n    securityContext: {privileged: true}\n";
    let fill = format!(
        "for v in /e /c; do cd $v; ln -s {outside} folder; ln -s {outside}/secret file; ln -s . self; ln -s .. up; \
         ln -s loop loop; mkfifo pipe; mknod zero c 1 5; mknod disk b 7 0; mkdir -m 0 closed; echo x > plain; \
         chmod 4711 plain; ln plain hard; ln -s /proc/self/root root; done; echo filled; {SLEEP}"
    );
    agent.write("a.yaml", &shell_pod("a", &fill, volumes, mounts));
    let pod = agent.wait_running("a");
    agent.wait_line("a", "filled");
    let of_claim = agent.root.join("root/claims/default_data/data");
    let volume = empty_dir(&agent, &pod, "e");
    // Another pod that uses the claim gives it to its group.
    let group = format!("  securityContext: {{fsGroup: 4711}}\n{volumes}");
    agent.write("b.yaml", &shell_pod("b", SLEEP, &group, mounts));
    agent.wait_running("b");
    treasure.assert_untouched();
    let of = |name: &str| fs::symlink_metadata(of_claim.join(name)).expect("there");
    for name in [
        "folder", "file", "pipe", "zero", "disk", "closed", "plain", "hard", "root",
    ] {
        assert_eq!(of(name).gid(), 4711, "{name}");
    }
    assert!(of("pipe").file_type().is_fifo() && of("file").file_type().is_symlink());
    // The node's own devices and files did not change with those links.
    assert_eq!(fs::metadata("/proc/self/root").expect("there").gid(), 0);
    // Both pods go, with all of it, and nothing that links lead to goes with them.
    for name in ["a", "b"] {
        agent.remove(&format!("{name}.yaml"));
        agent.wait_gone(name);
    }
    assert!(!volume.exists());
    treasure.assert_untouched();
    agent.ok(&["volume", "rm", "--force", "data"]);
    assert!(!of_claim.exists());
    treasure.assert_untouched();
}

#[test]
fn a_file_with_variables_and_a_termination_message_are_read_from_plain_files_only() {
    let agent = Agent::start();
    let treasure = Treasure::new(&agent);
    let outside = treasure.path();
    let volumes = "  volumes: [{name: v, emptyDir: {}}]\n";
    for (name, setup) in [
        ("pipe", "mkfifo /v/env".to_owned()),
        ("link", format!("ln -s {outside}/secret /v/env")),
        (
            "climb",
            format!("ln -s ../../../../../../../../../../..{outside}/secret /v/env"),
        ),
        ("folder", "mkdir /v/env".to_owned()),
        ("device", "mknod /v/env c 1 5".to_owned()),
        ("large", "truncate -s 3G /v/env".to_owned()),
        ("proc", "ln -s /proc/self/environ /v/env".to_owned()),
    ] {
        let script = serde_json::to_string(&setup).expect("a string");
        let init = format!(
            "{volumes}  initContainers: [{{name: setup, image: 'busybox:test', command: [sh, -c, {script}], \
             securityContext: {{privileged: true}}, volumeMounts: [{{name: v, mountPath: /v}}]}}]\n"
        );
        let env = "    env: [{name: NODE, valueFrom: {fileKeyRef: {volumeName: v, path: env, key: NODE}}}]\n";
        agent.write(
            &format!("{name}.yaml"),
            &shell_pod(name, "echo $NODE", &init, env),
        );
    }
    // The message file is the container's to change: into anything, at any moment.
    let path = "    terminationMessagePath: /v/message\n    volumeMounts: [{name: v, mountPath: /v}]\n    securityContext: {privileged: true}\n";
    for (name, script) in [
        (
            "over",
            format!("rm -f /v/message; ln -s {outside}/secret /v/message; exit 3"),
        ),
        (
            "unmount",
            format!(
                "umount /v/message; rm -f /v/message; ln -s {outside}/secret /v/message; exit 3"
            ),
        ),
        (
            "fifo",
            "umount /v/message; rm -f /v/message; mkfifo /v/message; exit 3".to_owned(),
        ),
        (
            "huge",
            "truncate -s 3G /v/message; printf end >> /v/message; exit 3".to_owned(),
        ),
    ] {
        let more = format!("  restartPolicy: Never\n{volumes}");
        agent.write(
            &format!("{name}.yaml"),
            &shell_pod(name, &script, &more, path),
        );
    }
    for name in ["pipe", "link", "climb", "folder", "device", "large", "proc"] {
        let pod = agent.wait_pod(name, |pod| {
            main_status(pod)["state"]["waiting"]["reason"] == "CreateContainerConfigError"
        });
        assert!(!pod.to_string().contains("the node"), "{name}: {pod:#}");
    }
    for name in ["over", "unmount", "fifo", "huge"] {
        let pod = agent.wait_phase(name, "Failed");
        let ended = &main_status(&pod)["state"]["terminated"];
        assert_eq!(ended["exitCode"], 3, "{name}");
        let message = ended["message"].as_str().unwrap_or_default();
        assert!(
            !message.contains("the node") && message.len() <= 4096,
            "{name}: {message:.100}"
        );
    }
    treasure.assert_untouched();
}

#[test]
fn keys_that_lead_out_of_a_volume_are_refused_wherever_they_come_from() {
    let agent = Agent::start();
    let treasure = Treasure::new(&agent);
    let mut wrong = Vec::new();
    for (number, key) in (0..).zip(["..", "../x", "..data", "a/b", ".", "", "/etc/x", "..2026"]) {
        for kind in ["ConfigMap", "Secret"] {
            let name = format!("k{number}-{}", kind.to_lowercase());
            let data = match kind {
                "Secret" => "stringData",
                _ => "data",
            };
            let text = format!(
                "apiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}}}\n{data}: {{{key:?}: x}}\n"
            );
            agent.write(&format!("{name}.yaml"), &text);
            wrong.push(name);
        }
    }
    agent.write(
        "m.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {k: x}\n",
    );
    for (number, path) in (0..).zip(["..", "../x", "a/../../x", "/x", "..data/x"]) {
        let name = format!("p{number}");
        let volumes = format!(
            "  volumes: [{{name: v, configMap: {{name: m, items: [{{key: k, path: {path}}}]}}}}]\n"
        );
        agent.write(
            &format!("{name}.yaml"),
            &shell_pod(&name, SLEEP, &volumes, ""),
        );
        wrong.push(name);
    }
    agent.write("marker.yaml", &shell_pod("marker", SLEEP, "", ""));
    agent.wait_running("marker");
    let files = agent.ok(&["get", "files", "--no-headers"]);
    for name in &wrong {
        let file = format!("{name}.yaml");
        let line = files.lines().find(|line| line.contains(&file));
        assert!(
            line.is_some_and(|line| line.contains("Rejected")),
            "{file}: {files}"
        );
    }
    treasure.assert_untouched();
}

#[test]
fn ten_thousand_keys_are_mounted_changed_and_removed_in_time() {
    let agent = Agent::start();
    let map = |value: &str| {
        let mut text =
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: many}\ndata:\n".to_owned();
        for number in 0..10_000 {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  key-{number:05}: {value}");
        }
        text
    };
    agent.write("many.yaml", &map("one"));
    let volumes = "  volumes: [{name: v, configMap: {name: many}}, {name: w, projected: {sources: [{configMap: {name: many}}]}}]\n";
    let mounts = "    volumeMounts: [{name: v, mountPath: /v}, {name: w, mountPath: /w}]\n    envFrom: [{configMapRef: {name: none, optional: true}}]\n";
    let began = std::time::Instant::now();
    agent.write("a.yaml", &shell_pod("a", SLEEP, volumes, mounts));
    agent.wait_running("a");
    assert_eq!(
        run(&agent, "a", "ls /v | wc -l; cat /w/key-09999"),
        "10000\none"
    );
    agent.write("many.yaml", &map("two"));
    while run(&agent, "a", "cat /v/key-00000 /w/key-09999") != "twotwo" {
        assert!(began.elapsed() < PATIENCE, "the change takes too long");
        // A change of files is not announced.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn nothing_is_made_where_a_symlink_leads_that_has_taken_the_place_of_a_host_path() {
    let agent = Agent::start();
    let treasure = Treasure::new(&agent);
    // A container that has the folder above leaves such links.
    let shared = agent.root.join("shared");
    fs::create_dir_all(&shared).expect("made");
    let link = shared.join("link");
    std::os::unix::fs::symlink(treasure.folder.join("made"), &link).expect("made");
    for (name, kind) in [
        ("folder", "DirectoryOrCreate"),
        ("file", "FileOrCreate"),
        ("any", ""),
    ] {
        let volumes = format!(
            "  volumes: [{{name: v, hostPath: {{path: {}, type: '{kind}'}}}}]\n",
            link.display()
        );
        let mounts = "    volumeMounts: [{name: v, mountPath: /v}]\n";
        agent.write(
            &format!("{name}.yaml"),
            &shell_pod(name, SLEEP, &volumes, mounts),
        );
        wait_event(&agent, |event| {
            event["reason"] == "FailedMount" && event["involvedObject"]["name"] == name
        });
        treasure.assert_untouched();
    }
}
