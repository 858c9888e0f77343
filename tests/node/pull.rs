//! Pulls through a whole agent, from Debian's `docker-registry`.

use std::process::{Command, Stdio};
use std::time::Instant;

use super::proxy::{self, Deed};
use super::registry::Registry;
use super::*;

#[test]
fn an_image_is_pulled_listed_and_not_pulled_twice() {
    let agent = Agent::start_with(&[]);
    let registry = Registry::start(&agent);
    let name = registry.name();
    let pulled = agent.cli(&["image", "pull", &name]);
    assert!(pulled.status.success(), "{pulled:?}");
    let id = String::from_utf8_lossy(&pulled.stdout).trim().to_owned();
    assert!(id.starts_with("sha256:") && id.len() == 71, "{id}");
    let said = String::from_utf8_lossy(&pulled.stderr);
    assert!(
        said.contains("Copying blob ") && said.contains("Unpacking layer 1/1"),
        "{said}"
    );
    assert!(agent.ok(&["image", "ls"]).contains("busybox"));
    registry.proxy.reset();
    let lines = agent.ok(&["image", "pull", "-o", "json", &name]);
    let last: Value = serde_json::from_str(lines.lines().last().expect("a line")).expect("JSON");
    assert_eq!(
        (&last["id"], &last["unchanged"]),
        (&Value::from(id.as_str()), &Value::from(true))
    );
    assert_eq!(registry.proxy.blob_bytes(), 0);
    let quiet = agent.cli(&["image", "pull", "--quiet", &name]);
    assert_eq!(
        (quiet.stdout, quiet.stderr.len()),
        (format!("{id}\n").into_bytes(), 0)
    );
    // A pod runs from it.
    let pod = shell_pod("a", SLEEP, "", "").replace("busybox:test", &name);
    agent.write("a.yaml", &pod);
    agent.wait_running("a");
}

#[test]
fn a_pull_that_cannot_be_done_says_why_and_what_to_do() {
    let agent = Agent::start_with(&[]);
    let registry = Registry::start(&agent);
    let missing = format!("{}/nothing:1", registry.proxy.address);
    for (args, parts) in [
        (
            vec!["image", "pull", missing.as_str()],
            [
                "error: could not pull",
                "manifest `1` is not in the registry",
                "hint: check the name and the tag",
            ],
        ),
        (
            vec!["image", "pull", "Not/A Name"],
            ["error: could not pull `Not/A Name`", "caused by: ", ""],
        ),
        (
            vec![
                "image",
                "pull",
                "--platform",
                "windows/amd64",
                missing.as_str(),
            ],
            ["only Linux images run here", "linux/arm/v7", ""],
        ),
        (
            vec![
                "image",
                "pull",
                "--authfile",
                "/nowhere/auth.json",
                missing.as_str(),
            ],
            ["`/nowhere/auth.json`: no such file", "", ""],
        ),
    ] {
        let refused = agent.cli(&args);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success(), "{args:?}");
        assert!(
            parts.iter().all(|part| said.contains(part)),
            "{args:?}: {said}"
        );
    }
}

#[test]
fn credentials_come_from_the_nodes_file_from_another_or_from_standard_input() {
    let auth = std::env::temp_dir().join(format!("coracle-auth-{}.json", std::process::id()));
    let settings = format!(
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\ncoracle: {{registryAuthFile: {}}}\n",
        auth.display()
    );
    let agent = Agent::prepare(std::sync::Arc::new(common::netns::Netns::new()), &[], None);
    fs::write(agent.root.join("config.d/50-auth.conf"), settings).expect("written");
    agent.launch();
    let registry = Registry::start(&agent);
    registry.ask_for_login();
    let name = registry.name();
    let refused = agent.cli(&["image", "pull", &name]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        said.contains("refuses access to `busybox`") && said.contains("/etc/coracle/auth.json"),
        "{said}"
    );
    let text = |auth: &str| {
        serde_json::json!({ "auths": { registry.proxy.address.to_string(): { "auth": auth } } })
            .to_string()
    };
    let given = agent.root.join("given.json");
    fs::write(&given, text("dXNlcjpwYXNzd29yZA==")).expect("written");
    agent.ok(&[
        "image",
        "pull",
        "--authfile",
        given.to_str().expect("utf-8"),
        &name,
    ]);
    agent.ok(&["image", "rm", &name]);
    let mut child = coracle()
        .args(["image", "pull", "--creds-stdin", &name])
        .env("CORACLE_SOCKET", agent.socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("coracle runs");
    let mut input = child.stdin.take().expect("piped");
    std::io::Write::write_all(&mut input, b"user:password\n").expect("read");
    drop(input);
    assert!(child.wait().expect("own child").success());
    agent.ok(&["image", "rm", &name]);
    fs::write(&auth, text("dXNlcjpwYXNzd29yZA==")).expect("written");
    agent.ok(&["image", "pull", &name]);
    agent.ok(&["image", "rm", &name]);
    fs::write(&auth, r#"{"auths": {"x": {"identitytoken": 7}}}"#).expect("written");
    let refused = agent.cli(&["image", "pull", &name]);
    fs::remove_file(&auth).expect("removed");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("it is not valid: line 1"), "{said}");
    assert!(!agent.log().contains("password"), "{}", agent.log());
}

/// A Secret with this login for a registry, in base64.
pub(crate) fn pull_secret(name: &str, registry: &Registry, auth: &str) -> String {
    let address = registry.proxy.address;
    let document = serde_json::json!({ "auths": { address.to_string(): { "auth": auth } } });
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\ntype: kubernetes.io/dockerconfigjson\n\
         stringData: {{.dockerconfigjson: '{document}'}}\n"
    )
}

#[test]
fn pull_secrets_of_a_pod_or_its_service_account_are_tried_in_turn() {
    let agent = Agent::start_with(&[]);
    let registry = Registry::start(&agent);
    registry.ask_for_login();
    // `user:hunter2`, which the registry does not know, and `user:password`.
    agent.write(
        "wrong.yaml",
        &pull_secret("wrong", &registry, "dXNlcjpodW50ZXIy"),
    );
    let pod = |name: &str, secrets: &str| {
        let more = format!("  imagePullSecrets: [{secrets}]\n");
        shell_pod(name, SLEEP, &more, "").replace("busybox:test", &registry.name())
    };
    agent.write("a.yaml", &pod("a", "{name: wrong}, {name: right}"));
    let text = "Unable to retrieve some image pull secrets (right); attempting to pull the image may not succeed.";
    events::wait_event(&agent, |event| {
        event["reason"] == "FailedToRetrieveImagePullSecret" && event["message"] == *text
    });
    let waiting = agent.wait_pod("a", |pod| {
        let why = &main_status(pod)["state"]["waiting"];
        why["reason"] == "ErrImagePull" || why["reason"] == "ImagePullBackOff"
    });
    let waiting = waiting.to_string();
    assert!(waiting.contains("refuses access"), "{waiting}");
    // It starts as soon as the Secret is there, before its back-off is over.
    let right = pull_secret("right", &registry, "dXNlcjpwYXNzd29yZA==");
    agent.write("right.yaml", &right);
    agent.wait_running("a");
    agent.remove("a.yaml");
    agent.wait_gone("a");
    agent.ok(&["image", "rm", &registry.name()]);
    // Without secrets of its own a pod has those of its service account.
    let account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: default}\nimagePullSecrets: [{name: right}]\n";
    agent.write("account.yaml", account);
    agent.write("b.yaml", &pod("b", ""));
    agent.wait_running("b");
    let shown = [
        agent.log(),
        agent.ok(&["get", "pods", "-o", "json"]),
        agent.ok(&["get", "events", "-o", "json"]),
        agent.ok(&["get", "secrets", "-o", "yaml"]),
    ];
    for text in shown {
        for secret in [
            "password",
            "hunter2",
            "dXNlcjpwYXNzd29yZA",
            "dXNlcjpodW50ZXIy",
        ] {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
    }
}

#[test]
fn what_has_arrived_survives_ctrl_c_and_the_agent() {
    common::heed_interrupts();
    let agent = Agent::start_with(&[]);
    let registry = Registry::start(&agent);
    let name = registry.name();
    agent.ok(&["image", "pull", &name]);
    let whole = registry.proxy.blob_bytes();
    agent.ok(&["image", "rm", &name]);
    registry.proxy.reset();
    registry.proxy.rule(|ask| match ask.is_blob() {
        true => Deed::Drip(8 << 10, Duration::from_millis(10)),
        false => Deed::Pass,
    });
    let pull = || {
        coracle()
            .args(["image", "pull", "--quiet", &name])
            .env("CORACLE_SOCKET", agent.socket())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("coracle runs")
    };
    let mut child = pull();
    registry.wait_bytes(whole / 3);
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("pid"));
    nix::sys::signal::kill(pid, Signal::SIGINT).expect("it is there");
    child.wait().expect("own child");
    let mut child = pull();
    registry.wait_bytes(whole * 2 / 3);
    agent.kill_and_restart();
    assert!(!child.wait().expect("own child").success());
    registry.proxy.rule(|_| Deed::Pass);
    agent.ok(&["image", "pull", &name]);
    let sent = registry.proxy.blob_bytes();
    // Two interruptions: what was on its way each time.
    assert!(
        sent >= whole && sent <= whole + (256 << 10),
        "{sent} of {whole} bytes"
    );
    let left = agent
        .root
        .join("root/images/pulls")
        .read_dir()
        .expect("a folder")
        .count();
    assert_eq!(left, 0);
}

/// What happened to a pod, by reason and message.
pub(crate) fn events(agent: &Agent, pod: &str) -> Vec<(String, String)> {
    let list: Value =
        serde_json::from_str(&agent.ok(&["get", "events", "-o", "json"])).expect("JSON");
    let items = list["items"].as_array().expect("items").iter();
    let of = items.filter(|event| event["involvedObject"]["name"] == pod);
    let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
    of.map(|event| (text(event, "reason"), text(event, "message")))
        .collect()
}

pub(crate) fn pod(name: &str, image: &str, policy: &str) -> String {
    let more = format!("    imagePullPolicy: {policy}\n");
    shell_pod(name, SLEEP, "", &more).replace("busybox:test", image)
}

#[test]
fn a_pod_pulls_what_the_node_lacks_once_for_all_and_says_so() {
    let agent = Agent::start_with(&[]);
    let registry = Registry::start(&agent);
    let name = registry.name();
    for pod_name in ["a", "b", "c"] {
        agent.write(
            &format!("{pod_name}.yaml"),
            &pod(pod_name, &name, "IfNotPresent"),
        );
    }
    for pod_name in ["a", "b", "c"] {
        agent.wait_running(pod_name);
        let events = events(&agent, pod_name);
        let said = |reason: &str| {
            events
                .iter()
                .find(|(of, _)| of == reason)
                .map(|(_, text)| text.clone())
        };
        assert_eq!(
            said("Pulling"),
            Some(format!("Pulling image \"{name}\"")),
            "{events:?}"
        );
        let pulled = said("Pulled").expect("an event");
        let begins = format!("Successfully pulled image \"{name}\" in ");
        assert!(
            pulled.starts_with(&begins) && pulled.contains(" including waiting). Image size: "),
            "{pulled}"
        );
    }
    let blobs: Vec<_> = registry
        .proxy
        .asked()
        .into_iter()
        .filter(|ask| ask.is_blob())
        .collect();
    assert_eq!(blobs.len(), 2, "config and layer, once: {blobs:?}");
    // What is there is used without a network.
    registry.proxy.reset();
    agent.write("d.yaml", &pod("d", &name, "IfNotPresent"));
    agent.wait_running("d");
    assert!(registry.proxy.asked().is_empty());
    let present = format!(
        "Container image \"{name}\" already present on machine and can be accessed by the pod"
    );
    assert!(events(&agent, "d").contains(&("Pulled".to_owned(), present)));
    // `Always` asks whether the registry has a newer one.
    agent.write("e.yaml", &pod("e", &name, "Always"));
    agent.wait_running("e");
    assert_eq!(registry.proxy.blob_bytes(), 0);
    assert!(
        registry
            .proxy
            .asked()
            .iter()
            .any(|ask| ask.method == "HEAD")
    );
}

#[test]
fn always_uses_an_archives_image_and_never_does_not_pull() {
    let agent = Agent::start();
    let registry = Registry::start(&agent);
    agent.write("a.yaml", &pod("a", "busybox:test", "Always"));
    agent.wait_running("a");
    agent.write("b.yaml", &pod("b", &registry.name(), "Never"));
    agent.wait_pod("b", |pod| {
        main_status(pod)["state"]["waiting"]["reason"] == "ErrImageNeverPull"
    });
    assert!(registry.proxy.asked().is_empty());
}

#[test]
fn a_pull_that_fails_backs_off_and_goes_on_when_the_registry_is_back() {
    let agent = Agent::start_with(&[]);
    let registry = Registry::start(&agent);
    let name = registry.name();
    registry
        .proxy
        .rule(|_| Deed::Answer(500, vec![], b"{}".to_vec()));
    agent.write("a.yaml", &pod("a", &name, "IfNotPresent"));
    let shown = agent.wait_pod("a", |pod| {
        main_status(pod)["state"]["waiting"]["reason"] == "ErrImagePull"
    });
    let message = main_status(&shown)["state"]["waiting"]["message"].to_string();
    assert!(message.contains("the server answered 500"), "{message}");
    let failed = events(&agent, "a")
        .into_iter()
        .find(|(reason, _)| reason == "Failed");
    let failed = failed.expect("an event").1;
    assert!(
        failed.starts_with(&format!("Failed to pull image \"{name}\": ")),
        "{failed}"
    );
    registry.proxy.rule(|_| Deed::Pass);
    agent.ok(&["retry", "a"]);
    agent.wait_running("a");
}

#[test]
fn pulls_take_turns_and_too_many_at_once_wait_for_their_back_off() {
    let agent = Agent::prepare(std::sync::Arc::new(common::netns::Netns::new()), &[], None);
    let settings = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nregistryPullQPS: 1\n\
                    registryBurst: 2\n";
    fs::write(agent.root.join("config.d/50-pulls.conf"), settings).expect("written");
    agent.launch();
    let registry = Registry::start(&agent);
    registry.push("other:1");
    registry.push("third:1");
    let names = ["busybox", "other", "third"];
    let text = names.map(|name| {
        let image = format!("{}/{name}:1", registry.proxy.address);
        pod(name, &image, "IfNotPresent")
    });
    agent.write("all.yaml", &text.join("\n---\n"));
    for name in names {
        agent.wait_running(name);
    }
    let late = |name: &&str| {
        let said = events(&agent, name);
        said.iter().any(|(_, text)| {
            text.ends_with("pull QPS exceeded") || text.contains("pull QPS exceeded (")
        })
    };
    let late = names.iter().filter(|name| late(name)).count();
    assert_eq!(late, 1, "two pulls may begin, not three");
    // Each image was done before the next began.
    let asked = registry.proxy.asked();
    let paths = asked.iter().filter_map(|ask| ask.path.strip_prefix("/v2/"));
    let mut order: Vec<&str> = paths.filter_map(|path| path.split('/').next()).collect();
    order.retain(|name| !name.is_empty());
    order.dedup();
    assert_eq!(order.len(), 3, "{order:?}");
}

#[test]
fn a_pod_that_goes_does_not_wait_for_its_pull() {
    let agent = Agent::start_with(&[]);
    let registry = Registry::start(&agent);
    let name = registry.name();
    registry.proxy.rule(|ask| match ask.is_blob() {
        true => Deed::Hang,
        false => Deed::Pass,
    });
    agent.write("a.yaml", &pod("a", &name, "IfNotPresent"));
    let deadline = Instant::now() + PATIENCE;
    while !registry.proxy.asked().iter().any(proxy::Ask::is_blob) {
        assert!(Instant::now() < deadline, "it pulls");
        std::thread::sleep(Duration::from_millis(5));
    }
    agent.remove("a.yaml");
    let begun = Instant::now();
    agent.wait_gone("a");
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "a stalled pull takes a minute"
    );
}

#[test]
fn mirrors_aliases_and_blocks_of_registries_conf_act_at_the_next_pull() {
    let agent = Agent::prepare(std::sync::Arc::new(common::netns::Netns::new()), &[], None);
    let file = agent.root.join("registries.conf");
    let settings = format!(
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\ncoracle: {{registriesConf: [{}]}}\n",
        file.display()
    );
    fs::write(agent.root.join("config.d/50-mirrors.conf"), settings).expect("written");
    agent.launch();
    let registry = Registry::start(&agent);
    let conf = |text: &str| fs::write(&file, text).expect("written");
    // The registry of the name does not exist here.
    conf(&format!(
        "[[registry]]\nlocation = \"shop.invalid\"\n[[registry.mirror]]\nlocation = \"127.0.0.1:1\"\n[[registry.mirror]]\n\
         location = \"{}\"\n[[registry]]\nlocation = \"blocked.invalid\"\nblocked = true\n[aliases]\nbox = \
         \"shop.invalid/busybox\"\n",
        registry.proxy.address
    ));
    let pod = |image: &str| shell_pod("mirrored", SLEEP, "", "").replace("busybox:test", image);
    agent.write("a.yaml", &pod("shop.invalid/busybox:1"));
    agent.wait_running("mirrored");
    assert!(agent.ok(&["image", "ls"]).contains("shop.invalid/busybox"));
    let log = agent.log();
    assert!(
        log.contains("a mirror could not serve `shop.invalid/busybox:1`: 127.0.0.1:1/busybox:1: "),
        "{log}"
    );
    // The short name is the image of its alias, under its own name.
    let aliased = shell_pod("aliased", SLEEP, "", "").replace("busybox:test", "box:1");
    agent.write("b.yaml", &aliased);
    agent.wait_running("aliased");
    let details = agent.ok(&["image", "inspect", "box:1"]);
    assert!(details.contains("library/box:1"), "{details}");
    let refused = |expected: &str, name: &str| {
        let pulled = agent.cli(&["image", "pull", name]);
        let said = String::from_utf8_lossy(&pulled.stderr);
        assert!(
            !pulled.status.success() && said.contains(expected),
            "{said}"
        );
    };
    refused(
        "the registry `blocked.invalid` is blocked by registries.conf",
        "blocked.invalid/busybox:1",
    );
    conf("[[registry]]\nlocation = \"blocked.invalid\"\nblokced = true\n");
    refused(
        "line 3: unknown field `blokced`",
        "blocked.invalid/busybox:1",
    );
}

/// Gives an image of the registry one more layer, with the file `/extra`, under another name.
pub(crate) fn push_with_layer(registry: &Registry, dir: &std::path::Path, name: &str) {
    let layout = format!("{}:x", dir.join("layout").display());
    let (from, to) = (
        format!("oci:{layout}"),
        format!("docker://127.0.0.1:5000/{name}"),
    );
    let archive = format!("docker-archive:{}", common::archive().display());
    fs::write(dir.join("extra"), "extra").expect("written");
    let file = dir.join("extra");
    let file = file.to_str().expect("utf-8");
    let run = |program: &str, args: &[&str]| {
        let done = registry
            .netns
            .run(|| Command::new(program).args(args).output());
        let done = done.unwrap_or_else(|why| panic!("{program}: {why}; apt-get install {program}"));
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{program} {args:?}: {said}");
    };
    let quiet = ["--insecure-policy", "copy", "--quiet"];
    run("skopeo", &[&quiet[..], &[&archive, &from]].concat());
    run("umoci", &["insert", "--image", &layout, file, "/extra"]);
    let plain = "--dest-tls-verify=false";
    run("skopeo", &[&quiet[..], &[plain, &from, &to]].concat());
}

#[test]
fn a_repair_downloads_only_the_layers_whose_contents_are_damaged() {
    let agent = Agent::start_with(&[]);
    let registry = Registry::start(&agent);
    push_with_layer(&registry, &agent.root, "two:1");
    let name = format!("{}/two:1", registry.proxy.address);
    agent.ok(&["image", "pull", "--quiet", &name]);
    agent.ok(&["image", "tag", &name, "extra:1"]);
    let before = agent.ok(&["image", "ls", "-o", "json"]);
    let (root, run) = (agent.root.join("root"), agent.root.join("run"));
    let fsck = |more: &[&str]| {
        let place = ["fsck", "--root", root.to_str().expect("utf-8")];
        let run = ["--run-dir", run.to_str().expect("utf-8")];
        // The agent that pulls again is the one of that directory.
        let looked = common::coracle()
            .args([&place[..], &run, more].concat())
            .env_remove("CORACLE_SOCKET")
            .output()
            .expect("coracle runs");
        let said = String::from_utf8_lossy(&looked.stdout).into_owned();
        (looked.status.code(), said)
    };
    let damage = || {
        let layers = fs::read_dir(root.join("images/layers")).expect("layers");
        let mut files = layers
            .flatten()
            .map(|layer| layer.path().join("diff/extra"));
        let file = files.find(|file| file.exists()).expect("the file");
        fs::write(file, "EXTRA").expect("written");
    };
    let (code, said) = fsck(&["--deep"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.ends_with("contents of 2 layers compared\n"), "{said}");

    damage();
    assert_eq!(fsck(&[]).0, Some(0), "sizes are as they were");
    let (code, said) = fsck(&["--deep"]);
    assert_eq!(code, Some(1));
    assert!(
        said.contains("has other contents than were unpacked"),
        "{said}"
    );
    registry.proxy.reset();
    let (code, said) = fsck(&["--deep", "--repair"]);
    assert_eq!(code, Some(0), "{said}");
    let regained = format!(
        "regained  {name}, docker.io/library/extra:1 from {}\n",
        registry.proxy.address
    );
    assert!(said.contains(&regained), "{said}");
    let bytes = registry.proxy.blob_bytes();
    assert!(bytes < 20_000, "{bytes} bytes of an image of a megabyte");
    assert_eq!(fsck(&["--deep"]).0, Some(0));
    assert_eq!(agent.ok(&["image", "ls", "-o", "json"]), before);

    damage();
    agent.signal(Signal::SIGTERM);
    agent.wait();
    let (code, said) = fsck(&["--deep", "--repair", "-o", "json"]);
    assert_eq!(code, Some(1), "{said}");
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let error = said["regained"][0]["error"].to_string();
    assert!(
        error.contains(&format!("`coracle image pull {name}`")),
        "{said}"
    );
}
