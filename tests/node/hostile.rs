//! Containers that attack the agent's files, and images that attack the node.

use sha2::{Digest, Sha256};

use super::*;

/// The resident memory of the agent in kB: current and maximum.
fn memory(agent: &Agent) -> (u64, u64) {
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid())).expect("it runs");
    let figure = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name));
        let figure = line.expect(name).split_whitespace().nth(1);
        figure.expect(name).parse().expect(name)
    };
    (figure("VmRSS:"), figure("VmHWM:"))
}

#[test]
fn a_container_cannot_make_the_agent_grow_by_its_etc_files() {
    let agent = Agent::start();
    agent.write("quiet.yaml", &shell_pod("quiet", SLEEP, "", ""));
    agent.wait_running("quiet");
    let (before, _) = memory(&agent);
    // Each run checks its files, and leaves 3 GB of holes in everything it may write.
    let files = "/etc/hosts /etc/hostname /etc/resolv.conf /dev/termination-log";
    let script = format!(
        "grep -q managed /etc/hosts && hostname | diff - /etc/hostname && wc -c {files} | tail -n 1; \
         ls -l /proc/self/exe > /dev/null; for f in {files}; do truncate -s 3G $f; done; exit 1"
    );
    let limits = "    resources: {limits: {memory: 32Mi}}\n    terminationMessagePolicy: FallbackToLogsOnError\n";
    agent.write("a.yaml", &shell_pod("a", &script, "", limits));
    let again = |count: u64| {
        agent.wait_pod("a", |pod| {
            let status = main_status(pod);
            status["restartCount"].as_u64() >= Some(count)
                && status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        })
    };
    let pod = again(1);
    agent.kill_and_restart();
    agent.wait_running("quiet");
    agent.ok(&["retry", "a"]);
    again(2);
    let (after, most) = memory(&agent);
    assert!(
        most < before + 40_000,
        "{before} kB, then {after} kB, {most} kB at most"
    );
    let log = agent.ok(&["logs", "a", "--previous"]);
    let size: u64 = log
        .split_whitespace()
        .next()
        .expect(&log)
        .parse()
        .expect(&log);
    assert!(size < 10_000, "the files are restored: {log}");
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let hosts = agent.root.join("root/pods").join(uid).join("etc-hosts");
    assert_eq!(fs::metadata(hosts).expect("there").len(), 3 << 30);
    agent.remove("a.yaml");
    agent.wait_gone("a");
}

/// An archive of an image with busybox and these entries. An entry with a target is a symlink.
pub(super) fn archive(
    agent: &Agent,
    name: &str,
    config: Value,
    entries: &[(&str, Option<&str>)],
) -> String {
    let busybox = fs::read("/bin/busybox").expect("package busybox-static");
    let mut layer = tar::Builder::new(Vec::new());
    let add = |tar: &mut tar::Builder<Vec<u8>>, path: &str, mode: u32, data: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.set_size(data.len() as u64);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_mode(mode);
        tar.append_data(&mut header, path, data)
            .expect("into memory");
    };
    add(&mut layer, "bin/sh", 0o755, &busybox);
    for (path, target) in entries {
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_mode(0o755);
        match target {
            Some(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                layer
                    .append_link(&mut header, path, target)
                    .expect("into memory");
            }
            None => add(&mut layer, path, 0o644, path.as_bytes()),
        }
    }
    let layer = layer.into_inner().expect("into memory");
    save(agent, name, config, &[layer])
}

/// A layer of directories (paths that end in `/`) and files: path, mode, owner, content.
pub(super) fn layer(entries: &[(&str, u32, u64, &[u8])]) -> Vec<u8> {
    let mut layer = tar::Builder::new(Vec::new());
    for (path, mode, owner, data) in entries {
        let mut header = tar::Header::new_ustar();
        if path.ends_with('/') {
            header.set_entry_type(tar::EntryType::Directory);
        }
        header.set_size(data.len() as u64);
        header.set_mode(*mode);
        header.set_uid(*owner);
        header.set_gid(*owner);
        header.set_mtime(0);
        layer
            .append_data(&mut header, path, *data)
            .expect("into memory");
    }
    layer.into_inner().expect("into memory")
}

/// An archive of an image `<name>:1` with these layers, lowest first.
pub(super) fn save(agent: &Agent, name: &str, config: Value, layers: &[Vec<u8>]) -> String {
    let id = |layer: &Vec<u8>| {
        let digest = Sha256::digest(layer);
        let hex = digest.iter().map(|byte| format!("{byte:02x}"));
        format!("sha256:{}", hex.collect::<String>())
    };
    let ids: Vec<String> = layers.iter().map(id).collect();
    let files: Vec<String> = (0..layers.len()).map(|at| format!("{at}.tar")).collect();
    let add = |tar: &mut tar::Builder<Vec<u8>>, path: &str, data: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.set_size(data.len() as u64);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_mode(0o644);
        tar.append_data(&mut header, path, data)
            .expect("into memory");
    };
    let mut document = serde_json::json!({
        "architecture": arch(), "os": "linux",
        "rootfs": { "type": "layers", "diff_ids": ids },
    });
    document["config"] = config;
    let manifest = serde_json::json!([{
        "Config": "config.json", "RepoTags": [format!("{name}:1")], "Layers": files,
    }]);
    let mut tar = tar::Builder::new(Vec::new());
    add(&mut tar, "config.json", document.to_string().as_bytes());
    for (file, layer) in files.iter().zip(layers) {
        add(&mut tar, file, layer);
    }
    add(&mut tar, "manifest.json", manifest.to_string().as_bytes());
    let path = agent.root.join(format!("{name}.tar"));
    fs::write(&path, tar.into_inner().expect("into memory")).expect("written");
    path.to_str().expect("utf-8").to_owned()
}

fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[test]
fn an_image_with_symlinks_for_folders_runs_and_leaves_the_node_unchanged() {
    let agent = Agent::start();
    let host = agent.root.join("host");
    fs::create_dir_all(&host).expect("temp dir");
    for name in ["ptmx", "null", "hosts", "termination-log"] {
        fs::write(host.join(name), "the node's own").expect("written");
    }
    let target = host.to_str().expect("utf-8");
    for link in ["dev", "etc", "proc", "sys", "run", "var", "data"] {
        let image = archive(&agent, link, serde_json::json!({}), &[(link, Some(target))]);
        agent.ok(&["image", "import", &image]);
        let volumes = "  volumes:\n  - {name: v, emptyDir: {}}\n";
        let mounts =
            "    volumeMounts:\n    - {name: v, mountPath: /data/y}\n    workingDir: /var/work\n";
        let script = "[ -c /dev/null ] && grep -q managed /etc/hosts && echo fine > /dev/termination-log && echo x > /data/y/x; \
                      exit 3";
        let pod = shell_pod(link, script, volumes, mounts);
        let pod = pod.replace("busybox:test", &format!("{link}:1"));
        agent.write(&format!("{link}.yaml"), &pod);
    }
    for link in ["dev", "etc", "proc", "sys", "run", "var", "data"] {
        let pod = agent.wait_pod(link, |pod| {
            main_status(pod)["restartCount"].as_u64() >= Some(1)
                && main_status(pod)["lastState"]["terminated"]["exitCode"] == 3
        });
        let message = &main_status(&pod)["lastState"]["terminated"]["message"];
        assert_eq!(message, "fine\n", "{link}");
    }
    let mut names: Vec<_> = fs::read_dir(&host)
        .expect("there")
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["hosts", "null", "ptmx", "termination-log"]);
    for name in names {
        assert_eq!(
            fs::read_to_string(host.join(name)).expect("there"),
            "the node's own"
        );
    }
}

#[test]
fn a_volume_of_an_image_is_a_writable_folder_that_is_removed_with_the_pod() {
    let agent = Agent::start();
    let config = serde_json::json!({"Volumes": {"/data": {}, "/covered/": {}}});
    let image = archive(
        &agent,
        "vol",
        config,
        &[("data/given", None), ("covered/given", None)],
    );
    agent.ok(&["image", "import", &image]);
    let read_only = "    securityContext: {readOnlyRootFilesystem: true}\n    volumeMounts:\n    - {name: v, mountPath: /covered}\n";
    let volumes = "  volumes:\n  - {name: v, emptyDir: {}}\n";
    let script = format!(
        "cat /data/given; echo; ls /covered; echo run >> /data/runs; grep -c run /data/runs; \
         [ $(grep -c run /data/runs) = 1 ] && exit 1; {SLEEP}"
    );
    let pod = |name: &str, script: &str, more: &str, container: &str| {
        shell_pod(name, script, more, container).replace("busybox:test", "vol:1")
    };
    agent.write("a.yaml", &pod("a", &script, volumes, read_only));
    agent.wait_pod("a", |pod| {
        main_status(pod)["restartCount"] == 1 && !main_status(pod)["state"]["running"].is_null()
    });
    agent.wait_line("a", "2");
    let said = agent.ok(&["logs", "a"]);
    assert_eq!(
        said, "data/given\n2\n",
        "the folder has the image's files and those that were written"
    );
    assert_eq!(agent.ok(&["logs", "a", "--previous"]), "data/given\n1\n");
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());

    let limit = "    resources: {limits: {ephemeral-storage: 2Mi}}\n";
    let fill = format!("dd if=/dev/zero of=/data/x bs=1M count=4; {SLEEP}");
    agent.write("full.yaml", &pod("full", &fill, "", limit));
    agent.wait_pod("full", |pod| pod["status"]["reason"] == "Evicted");
}
