//! Generations of bundles: which images their pods run, and what each one leaves to the next.

use std::path::Path;
use std::process::Command;

use super::bundles::{IMAGE, Site, archived, key_pair};
use super::registry::Registry;
use super::*;

/// An image whose tag means another build in each bundle.
pub(crate) const MOVING: &str = "127.0.0.1:5000/moving:1";

impl Site {
    /// Gives `MOVING` another image, which has this in its variable `BUILD`.
    pub(crate) fn push_build(&self, registry: &Registry, build: &str) {
        let layout = self.agent.root.join(format!("layout-{build}"));
        let image = format!("{}:x", layout.display());
        let archive = format!("docker-archive:{}", common::archive().display());
        let run = |program: &str, args: &[&str]| {
            let done = Command::new(program).args(args).output();
            let done = done.unwrap_or_else(|why| panic!("{program}: {why}: apt-get install it"));
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{program} {args:?}: {said}");
        };
        let to = format!("oci:{image}");
        run(
            "skopeo",
            &["--insecure-policy", "copy", "--quiet", &archive, &to],
        );
        let variable = format!("BUILD={build}");
        run(
            "umoci",
            &["config", "--image", &image, "--config.env", &variable],
        );
        registry.copy(&to, "moving:1");
    }

    /// Makes a bundle of these manifests.
    pub(crate) fn bundle(&self, archive: &str, files: &[(&str, String)], more: &[&str]) {
        let dir = self.agent.root.join("bundles").join(archive);
        fs::create_dir_all(&dir).expect("temp dir");
        for (name, text) in files {
            fs::write(dir.join(name), text).expect("written");
        }
        self.create_with(archive, &dir, more);
    }

    /// Makes a bundle of another name, of one pod with `MOVING`.
    fn other(&self, archive: &str, name: &str) {
        self.bundle(
            archive,
            &[("own.yaml", pod("own", MOVING))],
            &["--name", name],
        );
    }

    /// Two bundles of the same manifests: `moving` has another build in each, `still` has not.
    fn builds(&self) {
        let files = [
            ("moving.yaml", pod("moving", MOVING)),
            ("still.yaml", pod("still", IMAGE)),
        ];
        let registry = Registry::start(&self.agent);
        for build in ["one", "two"] {
            self.push_build(&registry, build);
            self.bundle(build, &files, &[]);
        }
    }

    /// Waits until `moving` runs this build.
    pub(crate) fn wait_build(&self, build: &str) {
        let id = self.build_id(build);
        self.agent.wait_pod("moving", |pod| {
            let status = main_status(pod);
            status["imageID"] == id.as_str() && !status["state"]["running"].is_null()
        });
        let said = ["exec", "moving", "--", "sh", "-c", "echo $BUILD"];
        assert_eq!(self.agent.ok(&said), format!("{build}\n"));
    }

    /// The config's digest of a build.
    pub(crate) fn build_id(&self, build: &str) -> String {
        let layout = self.agent.root.join(format!("layout-{build}"));
        let read = |path: &Path| -> Value {
            serde_json::from_slice(&fs::read(path).expect("a document")).expect("JSON")
        };
        let index = read(&layout.join("index.json"));
        let digest = index["manifests"][0]["digest"].as_str().expect("a digest");
        let manifest = read(&layout.join("blobs").join(digest.replace(':', "/")));
        let id = manifest["config"]["digest"].as_str().expect("a digest");
        id.to_owned()
    }

    /// How often the container of a pod was started again, and when it was last.
    fn starts(&self, pod: &str) -> (u64, Value) {
        let pod = self.agent.wait_running(pod);
        let status = main_status(&pod);
        let count = status["restartCount"].as_u64().expect("a count");
        (count, status["state"]["running"]["startedAt"].clone())
    }
}

/// Has the container of a pod end; the command may end with it.
fn end(agent: &Agent, pod: &str) {
    agent.cli(&["exec", pod, "--", "sh", "-c", "kill 1"]);
}

/// A pod whose manifest is the same in each generation.
fn pod(name: &str, image: &str) -> String {
    shell_pod(name, SLEEP, "", "").replace("busybox:test", image)
}

#[test]
fn a_pod_runs_the_image_that_its_generation_means_by_an_unchanged_tag() {
    let site = Site::new();
    site.builds();
    let agent = &site.agent;
    site.apply_ok("one", &[]);
    site.wait_build("one");
    let still = site.starts("still");

    let path = site.archive("two");
    let planned = agent.cli(&["bundle", "plan", path.to_str().expect("utf-8")]);
    let said = String::from_utf8_lossy(&planned.stdout);
    assert_eq!(planned.status.code(), Some(1), "{said}");
    assert!(
        said.contains("container main: image 127.0.0.1:5000/moving:1 ("),
        "{said}"
    );
    let said = site.apply_ok("two", &["--ready-within", "60s"]);
    assert!(said.ends_with("all pods are ready\n"), "{said}");
    site.wait_build("two");
    assert_eq!(site.starts("still"), still);
    assert_eq!(site.starts("moving").0, 1);

    // Whatever the name means by now.
    agent.ok(&["image", "tag", IMAGE, MOVING]);
    end(agent, "moving");
    agent.wait_pod("moving", |pod| main_status(pod)["restartCount"] == 2);
    site.wait_build("two");
    agent.kill_and_restart();
    site.wait_build("two");
    assert_eq!(site.starts("moving").0, 2);

    agent.ok(&["bundle", "rollback"]);
    site.wait_build("one");
    assert_eq!(site.starts("still"), still);
    assert_eq!(site.ls()[0]["current"]["generation"], 1);
}

#[test]
fn two_bundles_cannot_mean_different_images_by_one_name() {
    let site = Site::new();
    let agent = &site.agent;
    let registry = Registry::start(agent);
    let files = [("moving.yaml", pod("moving", MOVING))];
    site.push_build(&registry, "one");
    site.bundle("one", &files, &[]);
    site.other("same", "other");
    site.push_build(&registry, "two");
    site.bundle("two", &files, &[]);
    site.other("else", "other");
    drop(registry);
    site.apply_ok("one", &[]);
    site.apply_ok("same", &[]);
    let refused = |archive: &str, more: &[&str], other: &str| {
        let refused = site.apply(archive, more);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success(), "{said}");
        let (one, two) = (site.build_id("one"), site.build_id("two"));
        for part in [
            &format!("its image `{MOVING}` is {two}, and in bundle `{other}`"),
            &format!("means {one}"),
            &format!("coracle bundle rm {other}"),
        ] {
            assert!(said.contains(part), "{said}");
        }
    };
    refused("two", &[], "other");
    refused("else", &["--dry-run"], "site");
    site.wait_build("one");
    // Nor by a rollback.
    agent.ok(&["bundle", "rm", "--force", "other"]);
    site.apply_ok("two", &[]);
    site.apply_ok("else", &[]);
    let refused = agent.cli(&["bundle", "rollback", "site"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("in bundle `other`"),
        "{said}"
    );
    site.wait_build("two");
    agent.wait_running("own");
}

#[test]
fn a_signed_bundle_stands_for_its_images_and_others_follow_the_policy() {
    let agent = Agent::prepare(std::sync::Arc::new(common::netns::Netns::new()), &[], None);
    let file = agent.root.join("policy.json");
    let settings = format!(
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\ncoracle: {{signaturePolicy: {}}}\n",
        file.display()
    );
    fs::write(agent.root.join("config.d/50-policy.conf"), settings).expect("written");
    let policy = |default: &str, transport: &str, scope: &str, requirement: Value| {
        let policy = serde_json::json!({
            "default": [{ "type": default }],
            "transports": { (transport): { (scope): [requirement] } },
        });
        fs::write(&file, policy.to_string()).expect("written");
    };
    let (accept, reject) = ("insecureAcceptAnything", "reject");
    let repository = "127.0.0.1:5000/busybox";
    agent.launch();
    let site = Site { agent };
    let agent = &site.agent;
    let (own, public) = key_pair(&agent.root, "own");
    let (_, strange) = key_pair(&agent.root, "strange");
    let registry = Registry::start(agent);
    let files = [("web.yaml", pod("web", IMAGE))];
    site.bundle("signed", &files, &["--sign-by", &own]);
    site.bundle("unsigned", &files, &[]);
    let more = [
        ("web.yaml", pod("web", IMAGE)),
        ("log.yaml", pod("log", IMAGE)),
    ];
    site.bundle("more", &more, &["--sign-by", &own]);
    drop(registry);
    let refused = |archive: &str, more: &[&str], part: &str| {
        let refused = site.apply(archive, more);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && said.contains(part),
            "{archive}: {said}"
        );
    };
    let again = |restarts: u64| {
        end(agent, "web");
        agent.wait_pod("web", |pod| main_status(pod)["restartCount"] == restarts);
    };

    // What is signed by this key, under this name, may run.
    let signed = serde_json::json!({ "type": "sigstoreSigned", "keyPath": strange });
    policy(accept, "docker", repository, signed);
    refused(
        "unsigned",
        &[],
        &format!("`{IMAGE}` is not trusted: it has no signature"),
    );
    assert_eq!(site.ls(), Value::from(Vec::<Value>::new()));
    site.apply_ok("signed", &["--key", &public]);
    agent.wait_running("web");
    again(1);
    agent.wait_running("web");

    policy(
        accept,
        "docker",
        repository,
        serde_json::json!({ "type": reject }),
    );
    refused("more", &["--key", &public], "of the policy rejects it");
    again_refused(agent);

    // An archive's own rule takes precedence, also when its pods start.
    let folder = agent.root.to_str().expect("utf-8");
    policy(
        reject,
        "oci-archive",
        folder,
        serde_json::json!({ "type": accept }),
    );
    agent.ok(&["bundle", "rm", "--force", "site"]);
    agent.wait_gone("web");
    site.apply_ok("unsigned", &[]);
    agent.wait_running("web");
    again(1);
}

/// Has the container of `web` end; it must not start again.
fn again_refused(agent: &Agent) {
    end(agent, "web");
    agent.wait_pod("web", |pod| {
        let message = main_status(pod)["state"]["waiting"]["message"].as_str();
        message.is_some_and(|message| message.contains("of the policy rejects it"))
    });
}

#[test]
fn a_bundle_that_is_in_force_already_is_looked_at_and_stays() {
    let site = Site::new();
    let agent = &site.agent;
    let registry = Registry::start(agent);
    let probe = "    readinessProbe: {exec: {command: [test, -e, /ok]}, periodSeconds: 1, failureThreshold: 1}\n";
    for version in ["one", "two"] {
        let script = format!("V={version}; touch /ok; {SLEEP}");
        let web = shell_pod("web", &script, "", probe).replace("busybox:test", IMAGE);
        site.bundle(version, &[("web.yaml", web)], &[]);
    }
    drop(registry);
    let ready = |wanted: &str| {
        agent.wait_pod("web", |pod| {
            let conditions = pod["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|c| c["type"] == "Ready" && c["status"] == wanted)
        });
    };
    let exec = |command: &str| drop(agent.ok(&["exec", "web", "--", "sh", "-c", command]));
    site.apply_ok("one", &[]);
    site.apply_ok("two", &["--ready-within", "60s"]);
    exec("rm /ok");
    ready("False");
    let failed = site.apply("two", &["--ready-within", "2s"]);
    let said = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    let expected = "generation 2 was not ready within 2s: default/web (Running); it stays in force";
    assert!(said.contains(expected), "{said}");
    let bundle = &site.ls()[0];
    assert_eq!(
        (
            &bundle["current"]["generation"],
            &bundle["previous"]["generation"]
        ),
        (&2.into(), &1.into())
    );
    assert_eq!(bundle["failed"]["generation"], 2);
    exec("touch /ok");
    assert_eq!(
        site.apply_ok("two", &["--ready-within", "60s"]),
        "bundle site: generation 2 is in force already\nbundle site: all pods are ready\n"
    );
    assert_eq!(site.ls()[0]["failed"], Value::Null);
    assert_eq!(
        agent.ok(&["bundle", "rollback"]),
        "bundle site: generation 1 is in force\n"
    );
}

#[test]
fn a_bundle_whose_images_were_removed_by_force_is_mended_and_keeps_its_former_generation() {
    let site = Site::new();
    site.builds();
    let agent = &site.agent;
    site.apply_ok("one", &[]);
    site.apply_ok("two", &[]);
    site.wait_build("two");
    let force = ["image", "rm", "--force", &site.build_id("two")];
    // Not from below a container.
    let refused = agent.cli(&force);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("container `main` of pod `default/moving` runs"),
        "{said}"
    );
    site.wait_build("two");
    agent.ok(&["stop", "moving"]);
    agent.ok(&force);
    agent.ok(&["start", "--wait=false", "moving"]);
    agent.wait_pod("moving", |pod| {
        let message = main_status(pod)["state"]["waiting"]["message"].as_str();
        message.is_some_and(|message| message.contains("came with its bundle: apply that again"))
    });
    assert_eq!(
        site.apply_ok("two", &[]),
        "bundle site: generation 2 is in force already\n"
    );
    site.wait_build("two");
    assert_eq!(site.ls()[0]["previous"]["generation"], 1);
    agent.ok(&["bundle", "rollback"]);
    site.wait_build("one");
}

/// The manifests of the images in a bundle, by name.
fn manifests(archive: &Path) -> std::collections::BTreeMap<String, Value> {
    let blob = |of: &Value| {
        let digest = of["digest"].as_str().expect("a digest");
        archived(archive, &format!("blobs/{}", digest.replace(':', "/")))
    };
    let bundle = blob(&archived(archive, "index.json")["manifests"][0]);
    let parts = bundle["manifests"].as_array().expect("parts");
    let images = parts.iter().filter_map(|part| {
        let name = part["annotations"]["io.containerd.image.name"].as_str()?;
        Some((name.to_owned(), blob(part)))
    });
    images.collect()
}

#[test]
fn a_bundle_is_made_of_what_the_store_has_with_and_without_an_agent() {
    const PLAIN: &str = "127.0.0.1:5000/plain:1";
    let site = Site::new();
    let agent = &site.agent;
    let registry = Registry::start(agent);
    // An image whose layers are not compressed.
    let layout = format!("oci:{}:x", agent.root.join("plain").display());
    let made = Command::new("skopeo")
        .args([
            "--insecure-policy",
            "copy",
            "--quiet",
            "--dest-oci-accept-uncompressed-layers",
        ])
        .arg(format!("docker-archive:{}", common::archive().display()))
        .arg(&layout)
        .output();
    assert!(made.expect("skopeo").status.success());
    registry.copy(&layout, "plain:1");
    let files = [("a.yaml", pod("a", PLAIN)), ("b.yaml", pod("b", IMAGE))];
    site.bundle("pulled", &files, &[]);
    let dir = agent.root.join("bundles/pulled");
    let create = |archive: &str, pull: &str| {
        let path = site.archive(archive);
        let place = [path.to_str().expect("utf-8"), dir.to_str().expect("utf-8")];
        agent.cli(&[
            "bundle", "create", "--pull", pull, "--name", "site", "-o", place[0], place[1],
        ])
    };
    let none = create("none", "never");
    let said = String::from_utf8_lossy(&none.stderr);
    assert!(
        !none.status.success() && said.contains("--pull missing"),
        "{said}"
    );
    for image in [PLAIN, IMAGE] {
        agent.ok(&["image", "pull", image]);
    }
    drop(registry);
    let pulled = manifests(&site.archive("pulled"));
    for (archive, pull) in [("never", "never"), ("missing", "missing")] {
        let made = create(archive, pull);
        assert!(made.status.success(), "{made:?}");
        let stored = manifests(&site.archive(archive));
        assert_eq!(stored[PLAIN]["layers"].as_array().expect("layers").len(), 1);
        assert_eq!(
            stored[PLAIN]["layers"][0]["digest"],
            pulled[PLAIN]["layers"][0]["digest"]
        );
        for image in [PLAIN, IMAGE] {
            assert_eq!(
                stored[image]["config"]["digest"],
                pulled[image]["config"]["digest"]
            );
        }
    }
    let away = create("away", "always");
    assert!(!away.status.success(), "{away:?}");

    // The store of this node in its usual place, and no agent.
    agent.kill();
    let place = r#"mount -t tmpfs none /var/lib && mkdir /var/lib/coracle && mount --bind "$0" /var/lib/coracle && exec "$@""#;
    let disk = Command::new("unshare")
        .args(["--mount", "sh", "-c", place])
        .arg(agent.root.join("root"))
        .arg(env!("CARGO_BIN_EXE_coracle"))
        .args([
            "bundle", "create", "--pull", "never", "--name", "site", "-o",
        ])
        .arg(site.archive("disk"))
        .arg(&dir)
        .env("CORACLE_SOCKET", agent.root.join("none.sock"))
        .output()
        .expect("unshare runs");
    assert!(disk.status.success(), "{disk:?}");
    let bytes = |archive: &str| fs::read(site.archive(archive)).expect("a bundle");
    assert!(bytes("disk") == bytes("never"), "the same bundle");

    let other = Site::new();
    fs::copy(site.archive("never"), other.archive("site")).expect("copied");
    other.apply_ok("site", &[]);
    other.agent.wait_running("a");
    other.agent.wait_running("b");
}

/// What an agent that did not know of pins left on disk makes no pod restart.
#[test]
fn a_pod_that_runs_its_generations_image_already_is_not_restarted() {
    let site = Site::new();
    site.builds();
    let agent = &site.agent;
    site.apply_ok("one", &[]);
    site.wait_build("one");
    let before = (site.starts("moving"), site.starts("still"));
    agent.kill();
    for entry in fs::read_dir(agent.root.join("run/pods")).expect("pods") {
        let path = entry.expect("a pod").path().join("pod.json");
        let text = fs::read_to_string(&path).expect("pod.json");
        let mut pod: Value = serde_json::from_str(&text).expect("JSON");
        let annotations = pod["metadata"]["annotations"].as_object_mut();
        let removed = annotations
            .expect("annotations")
            .remove("coracle.dev/images");
        assert!(removed.is_some(), "{text}");
        fs::write(&path, pod.to_string()).expect("written");
    }
    agent.launch();
    agent.wait_pod("moving", |pod| {
        pod["metadata"]["annotations"]["coracle.dev/images"].is_string()
    });
    assert_eq!((site.starts("moving"), site.starts("still")), before);
}

/// A pod with a claim of this size.
fn with_claim(version: &str, size: &str) -> String {
    let claim = super::claims::sized("data", size);
    let mounted = "  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]\n";
    let text = super::bundles::pod("web", version);
    let (meta, spec) = text.split_once("spec:\n").expect("a spec");
    format!("{claim}---\n{meta}spec:\n{mounted}{spec}")
}

#[test]
fn a_generation_with_a_smaller_claim_comes_back_with_the_claim_as_it_is() {
    let site = Site::new();
    site.bundles(&[
        ("one", &[("web.yaml", with_claim("1", "1Gi"))]),
        ("two", &[("web.yaml", with_claim("2", "2Gi"))]),
        ("three", &[("web.yaml", with_claim("3", "1Gi"))]),
    ]);
    let agent = &site.agent;
    // After a restart pods are shown before documents.
    let wait_size = || {
        let path = "jsonpath={.items[0].status.capacity.storage}";
        let deadline = std::time::Instant::now() + PATIENCE;
        while agent.ok(&["get", "pvc", "-o", path]) != "2Gi" {
            assert!(std::time::Instant::now() < deadline, "{}", agent.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    for (archive, version) in [("one", "1"), ("two", "2")] {
        site.apply_ok(archive, &[]);
        site.wait_version("web", version);
    }
    wait_size();
    agent.ok(&["bundle", "rollback"]);
    site.wait_version("web", "1");
    agent.kill_and_restart();
    site.wait_version("web", "1");
    wait_size();
    // One that was never in force says so before.
    let path = site.archive("three");
    let planned = agent.cli(&["bundle", "plan", path.to_str().expect("utf-8")]);
    let said = String::from_utf8([planned.stderr, planned.stdout].concat()).expect("utf-8");
    assert!(
        said.contains("claim `default/data` keeps its size of 2Gi"),
        "{said}"
    );
    site.apply_ok("three", &[]);
    site.wait_version("web", "3");
    wait_size();
}
