//! Images that are there, come later, or never come.

use std::io::Write;
use std::process::{Child, Stdio};
use std::time::Instant;

use super::*;

#[test]
fn a_missing_image_is_reported_with_advice_and_found_once_it_is_imported() {
    let agent = Agent::start_with(&[]);
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let never = shell_pod("never", SLEEP, "", "    imagePullPolicy: Never\n");
    agent.write("never.yaml", &never);
    let pod = agent.wait_pod("a", |pod| {
        main_status(pod)["state"]["waiting"]["reason"] == "ErrImagePull"
    });
    let message = main_status(&pod)["state"]["waiting"]["message"].to_string();
    assert!(message.contains("coracle image import"), "{message}");
    let preload = agent.root.join("preload");
    let preload = preload.to_str().expect("utf-8");
    assert!(message.contains(preload), "the folder in force: {message}");
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
fn an_archive_in_a_preload_directory_is_imported_automatically() {
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
fn an_image_in_use_is_neither_removed_nor_pruned() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let refused = agent.cli(&["image", "rm", "busybox:test"]);
    assert!(!refused.status.success(), "a container runs from it");
    agent.ok(&["image", "prune", "-a", "-f"]);
    assert!(agent.ok(&["image", "ls"]).contains("busybox"));
    let id = agent.ok(&["image", "ls", "-q"]);
    let refused = agent.cli(&["image", "rm", "-f", id.trim()]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("`coracle stop POD`"),
        "{said}"
    );
    // Its name may go: what runs from it keeps its files.
    assert!(
        agent
            .ok(&["image", "rm", "-f", "busybox:test"])
            .starts_with("untagged ")
    );
    agent.ok(&["exec", "a", "--", "ls", "/bin/busybox"]);
    agent.ok(&["image", "tag", id.trim(), "busybox:test"]);
    agent.remove("a.yaml");
    agent.wait_gone("a");
    agent.ok(&["image", "rm", "busybox:test"]);
    assert!(!agent.ok(&["image", "ls"]).contains("busybox"));
}

#[test]
fn an_image_gets_more_names_and_is_shown_in_full() {
    let agent = Agent::start();
    // A pod that waits for a name starts as soon as an image has it.
    let pod = shell_pod("a", SLEEP, "", "").replace("busybox:test", "shop/web:2");
    agent.write("a.yaml", &pod);
    agent.wait_pod("a", |pod| {
        main_status(pod)["state"]["waiting"]["reason"] == "ErrImagePull"
    });
    let tagged = agent.ok(&["image", "tag", "busybox:test", "shop/web:2"]);
    assert_eq!(tagged, "tagged docker.io/shop/web:2\n");
    agent.wait_running("a");
    let shown: Value =
        serde_json::from_str(&agent.ok(&["image", "inspect", "busybox:test", "shop/web:2"]))
            .expect("JSON");
    assert_eq!(shown[0], shown[1]);
    let names = ["docker.io/library/busybox:test", "docker.io/shop/web:2"];
    assert_eq!(shown[0]["RepoTags"], serde_json::json!(names));
    let layers = shown[0]["RootFS"]["Layers"].as_array().expect("layers");
    let steps: Value =
        serde_json::from_str(&agent.ok(&["image", "history", "shop/web:2", "-o", "json"]))
            .expect("JSON");
    let filled = |step: &&Value| step["size"].as_u64() > Some(0);
    let steps = steps.as_array().expect("steps");
    assert_eq!(steps.iter().filter(filled).count(), layers.len());
    assert_eq!(steps[0]["id"], shown[0]["Id"]);
    for (args, why) in [
        (
            &["image", "tag", "none:1", "x:1"][..],
            "no image `docker.io/library/none:1`",
        ),
        (&["image", "tag", "busybox:test", "Bad:1"], "Bad:1"),
        (&["image", "history", "none:1"], "no image"),
        (&["image", "inspect", "none:1"], "no image"),
    ] {
        let refused = agent.cli(args);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            !refused.status.success() && said.contains(why),
            "{args:?}: {said}"
        );
    }
    // By this name the pod finds its image again.
    let refused = agent.cli(&["image", "rm", "shop/web:2"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("a pod or a manifest asks for"),
        "{said}"
    );
    // With the other name the image stays.
    agent.ok(&["image", "rm", "busybox:test"]);
    assert!(agent.ok(&["image", "ls"]).contains("docker.io/shop/web:2"));
}

#[test]
fn after_a_power_cut_damaged_images_are_removed_and_imported_again() {
    let agent = Agent::start_with(&[]);
    fs::copy(common::archive(), agent.root.join("preload/busybox.tar")).expect("copied");
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let of_node = |agent: &Agent| -> Vec<String> {
        let list = agent.ok(&["get", "events", "-o", "json"]);
        let list: Value = serde_json::from_str(&list).expect("JSON");
        let items = list["items"].as_array().expect("items");
        let node = items
            .iter()
            .filter(|e| e["involvedObject"]["kind"] == "Node");
        node.map(|e| e["reason"].as_str().expect("text").to_owned())
            .filter(|reason| reason != "NodeAllocatableEnforced")
            .collect()
    };
    assert_eq!(of_node(&agent), ["Starting"]);

    agent.power_cut();
    agent.launch();
    agent.wait_running("a");
    assert_eq!(
        of_node(&agent),
        ["Starting", "Rebooted", "UncleanShutdown"],
        "nothing was damaged"
    );
    let store = agent.root.join("root/images");
    agent.power_cut();
    let layers = fs::read_dir(store.join("layers")).expect("a folder");
    let layer = layers.flatten().next().expect("a layer").path();
    fs::write(layer.join("diff/bin/busybox"), "").expect("emptied");
    let root = agent.root.join("root");
    let look = |more: &[&str]| {
        let root = ["fsck", "--root", root.to_str().expect("utf-8")];
        let looked = agent.cli(&[&root, more].concat());
        assert_eq!(looked.status.code(), Some(1), "{looked:?}");
        String::from_utf8_lossy(&looked.stdout).into_owned()
    };
    let said: Value = serde_json::from_str(&look(&["-o", "json"])).expect("JSON");
    assert_eq!((&said["images"], &said["layers"]), (&1.into(), &1.into()));
    let found = said["findings"].as_array().expect("a list");
    let message = found[0]["message"].as_str().expect("text");
    let end = "differs from what was unpacked";
    assert!(message.starts_with("layer sha256:") && message.ends_with(end));
    let expected = serde_json::json!([{
        "kind": "Layer",
        "path": layer,
        "image": "docker.io/library/busybox:test",
        "message": message,
        "repaired": false,
    }]);
    assert_eq!(said["findings"], expected);
    let said = look(&[]);
    assert!(
        said.contains("docker.io/library/busybox:test: layer sha256:"),
        "{said}"
    );
    // A check of the file system may leave such an entry, which must not keep the rest from being repaired.
    fs::create_dir(store.join("refs/dir.json")).expect("a folder");
    agent.launch();
    agent.wait_running("a");
    assert!(!store.join("refs/dir.json").exists());
    assert_eq!(
        of_node(&agent),
        [
            "Starting",
            "Rebooted",
            "UncleanShutdown",
            "ImageDamaged",
            "ImageDamaged"
        ]
    );

    // The agent is stopped, then the machine is switched off.
    agent.signal(Signal::SIGTERM);
    agent.wait();
    let mark = agent.root.join("root/boot.json");
    let text = fs::read_to_string(&mark).expect("written at the end");
    let mark_of = |text: &str| -> Value { serde_json::from_str(text).expect("JSON") };
    let boot = mark_of(&text)["boot_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    fs::write(&mark, text.replace(&boot, "another")).expect("written");
    fs::remove_file(agent.root.join("run/events.log")).expect("there");
    agent.launch();
    assert_eq!(of_node(&agent), ["Starting", "Rebooted"]);
}

/// A client that sends an archive on its standard input.
fn sender(agent: &Agent) -> Child {
    coracle()
        .args(["image", "import", "-"])
        .env("CORACLE_SOCKET", agent.socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("coracle runs")
}

#[test]
fn an_archive_is_read_from_standard_input_and_an_image_name_is_not_taken_for_a_file() {
    let agent = Agent::start_with(&[]);
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let mut client = sender(&agent);
    let archive = fs::read(common::archive()).expect("it was made");
    let mut input = client.stdin.take().expect("piped");
    input.write_all(&archive).expect("the agent takes it");
    drop(input);
    let done = client.wait_with_output().expect("own child");
    assert!(done.status.success(), "{done:?}");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        said.contains("imported docker.io/library/busybox:test"),
        "{said}"
    );
    agent.wait_running("a");

    let mut client = sender(&agent);
    let mut input = client.stdin.take().expect("piped");
    // The client may end before it has taken everything.
    let _ = input.write_all(&[b'x'; 1 << 20]);
    drop(input);
    let done = client.wait_with_output().expect("own child");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        !done.status.success() && said.contains("is not an image archive"),
        "{said}"
    );

    let refused = agent.cli(&["image", "import", "nginx:1.25"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("there is no such file"), "{said}");
    assert!(
        said.contains("docker://docker.io/library/nginx:1.25"),
        "{said}"
    );
    let refused = agent.cli(&["image", "import", "./nginx.tar"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("No such file") && !said.contains("registries"),
        "{said}"
    );
}

/// The number of files in the store's folder of unfinished imports.
fn unfinished(agent: &Agent) -> usize {
    let folder = agent.root.join("root/images/tmp");
    fs::read_dir(folder).map_or(0, Iterator::count)
}

fn wait_unfinished(agent: &Agent, wanted: bool) {
    let deadline = Instant::now() + PATIENCE;
    while (unfinished(agent) > 0) != wanted {
        assert!(
            Instant::now() < deadline,
            "unfinished: {}",
            unfinished(agent)
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_import_ends_with_its_client() {
    let agent = Agent::start_with(&[]);
    let tar = |entries: &[(&str, &[u8])]| {
        let mut tar = tar::Builder::new(Vec::new());
        for (name, data) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_size(data.len() as u64);
            header.set_mode(0o644);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            tar.append_data(&mut header, name, *data)
                .expect("into memory");
        }
        tar
    };
    // A layer of 4 GB, so that the import takes its time.
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut header = tar::Header::new_gnu();
    header.set_size(4 << 30);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_path("zeros").expect("short");
    header.set_cksum();
    packed.write_all(header.as_bytes()).expect("into memory");
    for _ in 0..512 {
        packed.write_all(&vec![0; 8 << 20]).expect("into memory");
    }
    let layer = packed.finish().expect("into memory");
    let config = serde_json::json!({
        "architecture": match std::env::consts::ARCH { "aarch64" => "arm64", _ => "amd64" },
        "os": "linux", "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", "0".repeat(64))]},
    });
    let manifest = br#"[{"Config":"config.json","RepoTags":["big:1"],"Layers":["layer.tar"]}]"#;
    let archive = tar(&[
        ("config.json", config.to_string().as_bytes()),
        ("layer.tar", &layer),
        ("manifest.json", manifest),
    ]);
    let archive = archive.into_inner().expect("into memory");
    let path = agent.root.join("big.tar");
    fs::write(&path, &archive).expect("temp dir");
    let mut client = coracle()
        .args(["image", "import", path.to_str().expect("utf-8")])
        .env("CORACLE_SOCKET", agent.socket())
        .stdout(Stdio::null())
        .spawn()
        .expect("coracle runs");
    wait_unfinished(&agent, true);
    client.kill().expect("own child");
    client.wait().expect("own child");
    wait_unfinished(&agent, false);
    assert!(!agent.ok(&["image", "ls"]).contains("big"));

    let mut client = sender(&agent);
    let mut input = client.stdin.take().expect("piped");
    input
        .write_all(&archive[..archive.len() / 2])
        .expect("the agent takes it");
    wait_unfinished(&agent, true);
    client.kill().expect("own child");
    client.wait().expect("own child");
    wait_unfinished(&agent, false);

    // If the agent is killed, the import ends as if the client had gone.
    let mut client = coracle()
        .args(["image", "import", path.to_str().expect("utf-8")])
        .env("CORACLE_SOCKET", agent.socket())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("coracle runs");
    wait_unfinished(&agent, true);
    agent.signal(Signal::SIGKILL);
    agent.wait();
    client.wait().expect("own child");
    wait_unfinished(&agent, false);
}

#[test]
fn images_are_saved_and_listed_with_their_users() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let file = agent.root.join("saved.tar");
    let path = file.to_str().expect("utf-8");
    let said = agent.ok(&["image", "save", "busybox:test", "-o", path]);
    assert!(said.starts_with("saved busybox:test to "), "{said}");
    let imported = agent.ok(&["image", "import", path, "--name", "again:1"]);
    let list: Value =
        serde_json::from_str(&agent.ok(&["image", "ls", "-o", "json"])).expect("JSON");
    let [image] = list.as_array().expect("a list").as_slice() else {
        panic!("it is the same image: {list}");
    };
    let id = image["id"].as_str().expect("an id");
    assert!(imported.contains(id), "{imported}");
    let user = serde_json::json!([{ "namespace": "default", "pod": "a", "container": "main" }]);
    assert_eq!((&image["users"], &image["in_use"]), (&user, &true.into()));
    let wide = agent.ok(&["image", "ls", "-o", "wide"]);
    assert!(
        wide.contains("USED BY") && wide.contains("default/a"),
        "{wide}"
    );
    let digest = image["digest"].as_str().expect("a digest");
    let shown = agent.ok(&["image", "ls", "--digests"]);
    assert!(
        shown.contains(digest) && !shown.contains("USED BY"),
        "{shown}"
    );
    // By a short id, to a pipe whose reader leaves.
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_coracle"));
    command.args(["image", "save", &id[7..19]]);
    command.env("CORACLE_SOCKET", agent.socket());
    let mut child = command.stdout(Stdio::piped()).spawn().expect("run");
    let mut start = [0; 1000];
    let mut output = child.stdout.take().expect("a pipe");
    std::io::Read::read_exact(&mut output, &mut start).expect("the start");
    drop(output);
    assert!(!child.wait().expect("ended").success());
    let missing = agent.cli(&["image", "save", "busybox:test", "none:1"]);
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert_eq!(
        (missing.status.code(), missing.stdout.len()),
        (Some(3), 0),
        "{said}"
    );
    assert!(
        said.contains("no image `docker.io/library/none:1`"),
        "{said}"
    );
}

#[test]
fn a_repair_imports_preloaded_archives_again() {
    let agent = Agent::start_with(&[]);
    let archive = agent.root.join("preload/busybox.tar");
    let staged = agent.root.join("preload/.busybox.tar");
    fs::copy(common::archive(), &staged).expect("copied");
    fs::rename(staged, &archive).expect("renamed");
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    agent.write(
        "done.yaml",
        &shell_pod("done", "exit 0", "  restartPolicy: Never\n", ""),
    );
    let done = agent.wait_phase("done", "Succeeded")["metadata"]["uid"].clone();
    let (root, run) = (agent.root.join("root"), agent.root.join("run"));
    let finished = format!("pods/{}/finished", done.as_str().expect("a uid"));
    let deadline = std::time::Instant::now() + common::PATIENCE;
    while !run.join(&finished).exists() {
        assert!(std::time::Instant::now() < deadline, "{}", agent.log());
        std::thread::sleep(Duration::from_millis(20)); // No client sees the removal of a sandbox.
    }
    // Without flags it looks where the agent has its images and pods.
    let fsck = |more: &[&str]| agent.cli(&[&["fsck"], more].concat());
    let layers = fs::read_dir(root.join("images/layers")).expect("a folder");
    let layer = layers.flatten().next().expect("a layer").path();
    let refused = fsck(&["--deep", "--repair"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("pods are running") && said.contains("removed: default/a\n"),
        "{said}"
    );
    agent.remove("a.yaml");
    agent.wait_gone("a");
    // A bit flips in a file; all its names have the same content.
    let busybox = layer.join("diff/bin/busybox");
    let mut bytes = fs::read(&busybox).expect("read");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&busybox, bytes).expect("written");
    assert!(fsck(&[]).status.success(), "sizes are as they were");
    let looked = fsck(&["--deep"]);
    assert_eq!(looked.status.code(), Some(1), "{looked:?}");
    let said = String::from_utf8_lossy(&looked.stderr).into_owned();
    assert!(said.contains("`coracle fsck --deep --repair`"), "{said}");
    let repaired = fsck(&["--deep", "--repair"]);
    let said = String::from_utf8_lossy(&repaired.stdout).into_owned();
    assert!(repaired.status.success(), "{repaired:?}");
    let regained = format!(
        "regained  docker.io/library/busybox:test from {}\n",
        archive.display()
    );
    assert!(said.contains(&regained), "{said}");
    assert!(fsck(&["--deep"]).status.success());
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
}

#[test]
fn directories_of_lower_layers_keep_their_owners_under_files_of_upper_ones() {
    let agent = Agent::start();
    let busybox = fs::read("/bin/busybox").expect("package busybox-static");
    let lower = super::hostile::layer(&[
        ("./", 0o755, 7, b""),
        ("bin/sh", 0o755, 0, &busybox),
        ("bin/stat", 0o755, 0, &busybox),
        ("home/user/", 0o700, 1000, b""),
    ]);
    let upper = super::hostile::layer(&[("home/user/app", 0o644, 0, b"")]);
    let layers = [lower, upper];
    let config = serde_json::json!({"User": "1000:1000"});
    let image = super::hostile::save(&agent, "homes", config, &layers);
    agent.ok(&["image", "import", &image]);
    let script = "echo x >/home/user/made && stat -c '%n %a %u %g' / /home /home/user /home/user/app; \
                  stat -c %u:%g /v/home/user";
    let expected =
        "/ 755 7 7\n/home 755 0 0\n/home/user 700 1000 1000\n/home/user/app 644 0 0\n1000:1000\n";
    let volume = "  restartPolicy: Never\n  volumes: [{name: v, image: {reference: 'homes:1'}}]\n";
    for (name, more) in [("a", ""), ("b", super::user_namespaces::OWN)] {
        let mount = "    volumeMounts: [{name: v, mountPath: /v}]\n";
        let pod = shell_pod(name, script, &format!("{volume}{more}"), mount);
        agent.write(
            &format!("{name}.yaml"),
            &pod.replace("busybox:test", "homes:1"),
        );
        agent.wait_pod(name, |pod| {
            pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed"
        });
        assert_eq!(agent.ok(&["logs", name]), expected, "{name}");
    }
}
