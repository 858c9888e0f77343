//! Bundles through a whole agent: made from a registry, applied where there is none.

use std::path::PathBuf;

use super::registry::Registry;
use super::*;

/// The image in the bundles; the registry is in the agent's network.
pub(crate) const IMAGE: &str = "127.0.0.1:5000/busybox:1";

/// An agent, and bundles to apply.
pub(crate) struct Site {
    pub(crate) agent: Agent,
}

impl Site {
    pub(crate) fn new() -> Self {
        let agent = Agent::start_with(&[]);
        Self { agent }
    }

    /// Writes manifests and makes a bundle `site` of them; the registry is gone afterwards.
    pub(crate) fn bundles(&self, all: &[(&str, &[(&str, String)])]) {
        let registry = Registry::start(&self.agent);
        for (archive, files) in all {
            let dir = self.agent.root.join("bundles").join(archive);
            fs::create_dir_all(&dir).expect("temp dir");
            for (name, text) in *files {
                fs::write(dir.join(name), text).expect("written");
            }
            self.create(archive, &dir);
        }
        drop(registry);
    }

    fn create(&self, archive: &str, dir: &std::path::Path) {
        self.create_with(archive, dir, &[]);
    }

    pub(crate) fn create_with(&self, archive: &str, dir: &std::path::Path, more: &[&str]) {
        let out = self.archive(archive);
        let (out, dir) = (out.to_str().expect("utf-8"), dir.to_str().expect("utf-8"));
        let mut args = vec!["bundle", "create", "-o", out];
        if !more.contains(&"--name") {
            args.extend(["--name", "site"]);
        }
        args.extend(more);
        args.push(dir);
        let made = self.agent.netns.run(|| coracle().args(&args).output());
        let made = made.expect("coracle runs");
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "{said}");
        assert!(said.contains("127.0.0.1:5000/"), "{said}");
        assert!(!PathBuf::from(format!("{out}.parts")).exists());
    }

    pub(crate) fn archive(&self, name: &str) -> PathBuf {
        self.agent.root.join(format!("{name}.tar"))
    }

    pub(crate) fn apply(&self, archive: &str, more: &[&str]) -> std::process::Output {
        let path = self.archive(archive);
        let mut args = vec!["bundle", "apply", path.to_str().expect("utf-8")];
        args.extend(more);
        self.agent.cli(&args)
    }

    pub(crate) fn apply_ok(&self, archive: &str, more: &[&str]) -> String {
        let applied = self.apply(archive, more);
        let said = String::from_utf8_lossy(&applied.stderr);
        assert!(applied.status.success(), "{said}\n{}", self.agent.log());
        String::from_utf8_lossy(&applied.stdout).into_owned()
    }

    pub(crate) fn ls(&self) -> Value {
        let listed = self.agent.ok(&["bundle", "ls", "-o", "json"]);
        serde_json::from_str::<Value>(&listed).expect("JSON")["items"].take()
    }

    /// Waits until the pod is of that version.
    pub(crate) fn wait_version(&self, pod: &str, version: &str) {
        self.agent.wait_pod(pod, |found| {
            found["metadata"]["annotations"]["version"] == version
                && found["metadata"]["deletionTimestamp"].is_null()
                && !main_status(found)["state"]["running"].is_null()
        });
    }

    /// Waits until the bundle is as wanted.
    pub(crate) fn wait_bundle(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            let bundle = self.ls()[0].take();
            if wanted(&bundle) {
                return bundle;
            }
            assert!(
                std::time::Instant::now() < deadline,
                "{bundle}\n{}",
                self.agent.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn images(&self) -> usize {
        let listed = self.agent.ok(&["image", "ls", "-q"]);
        listed.lines().count()
    }
}

/// A pod from the bundle's image whose command has its version, so that another version is another pod.
pub(crate) fn pod(name: &str, version: &str) -> String {
    versioned(name, version, SLEEP)
}

pub(crate) fn versioned(name: &str, version: &str, script: &str) -> String {
    shell_pod(name, &format!("V={version}; {script}"), "", "")
        .replace("busybox:test", IMAGE)
        .replace(
            "metadata:\n",
            &format!("metadata:\n  annotations: {{version: \"{version}\"}}\n"),
        )
}

#[test]
fn a_bundle_is_applied_without_a_registry_replaced_as_a_whole_and_rolled_back() {
    let site = Site::new();
    site.bundles(&[
        (
            "one",
            &[("web.yaml", pod("web", "1")), ("log.yaml", pod("log", "1"))],
        ),
        // The pod has moved to another file, and the other one is gone.
        ("two", &[("a.yaml", pod("web", "2"))]),
    ]);
    let agent = &site.agent;
    assert_eq!(site.images(), 0);
    assert_eq!(
        site.apply_ok("one", &[]),
        "bundle site: generation 1 is in force\n"
    );
    site.wait_version("web", "1");
    site.wait_version("log", "1");
    assert_eq!(site.images(), 1);
    assert_eq!(
        site.apply_ok("one", &[]),
        "bundle site: generation 1 is in force already\n"
    );
    let bundles = site.ls();
    assert_eq!(bundles[0]["name"], "site");
    assert_eq!(bundles[0]["current"]["images"][0], IMAGE);
    assert_eq!(bundles[0]["previous"], Value::Null);

    assert_eq!(
        site.apply_ok("two", &[]),
        "bundle site: generation 2 is in force\n"
    );
    site.wait_version("web", "2");
    agent.wait_gone("log");
    assert_eq!(site.ls()[0]["previous"]["generation"], 1);
    assert_eq!(
        agent.ok(&["bundle", "rollback"]),
        "bundle site: generation 1 is in force\n"
    );
    site.wait_version("web", "1");
    site.wait_version("log", "1");

    // It survives the agent; and what it needs is never collected.
    agent.kill_and_restart();
    site.wait_version("web", "1");
    agent.ok(&["image", "prune", "--all", "--force"]);
    assert_eq!(site.images(), 1);
    agent.ok(&["bundle", "rm", "--force", "site"]);
    agent.wait_gone("web");
    agent.wait_gone("log");
    assert_eq!(site.ls(), Value::from(Vec::<Value>::new()));
    // The rest of a pod that is gone may be removed a moment later.
    let deadline = std::time::Instant::now() + PATIENCE;
    while site.images() > 0 {
        assert!(std::time::Instant::now() < deadline, "{}", agent.log());
        agent.ok(&["image", "prune", "--all", "--force"]);
    }
    assert_eq!(
        fs::read_dir(agent.root.join("root/bundles"))
            .expect("a directory")
            .count(),
        0
    );
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_bundle_that_cannot_take_effect_changes_nothing() {
    let site = Site::new();
    let agent = &site.agent;
    site.bundles(&[
        ("good", &[("web.yaml", pod("web", "1"))]),
        // Each file is valid by itself; the second one's pod has another file.
        (
            "bad",
            &[
                ("other.yaml", pod("other", "2")),
                ("web.yaml", pod("own", "2")),
            ],
        ),
    ]);
    site.apply_ok("good", &[]);
    site.wait_version("web", "1");
    agent.write("own.yaml", &pod("own", "of the directory"));
    site.wait_version("own", "of the directory");
    let refused = site.apply("bad", &[]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(
        said.contains("nothing has changed") && said.contains("already defined by `own.yaml`"),
        "{said}"
    );
    let planned = agent.cli(&[
        "bundle",
        "plan",
        site.archive("bad").to_str().expect("utf-8"),
    ]);
    assert_eq!(planned.status.code(), Some(2), "{planned:?}");
    assert_eq!(site.ls()[0]["current"]["generation"], 1);
    site.wait_version("web", "1");
    assert!(agent.cli(&["get", "pod", "other"]).status.code() == Some(3));
    // What is no bundle says so, and a bundle cut off is refused.
    let whole = fs::read(site.archive("bad")).expect("the bundle");
    fs::write(site.archive("cut"), &whole[..whole.len() / 2]).expect("written");
    fs::copy(common::archive(), site.archive("image")).expect("copied");
    for (archive, part) in [("cut", "truncated"), ("image", "is not a bundle")] {
        let refused = site.apply(archive, &[]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && said.contains(part),
            "{archive}: {said}"
        );
    }
    agent.remove("own.yaml");
    agent.wait_gone("own");
    site.apply_ok("bad", &[]);
    site.wait_version("own", "2");
    agent.wait_gone("web");
    // The former generation cannot take effect any more either.
    agent.write("taken.yaml", &pod("web", "of the directory"));
    site.wait_version("web", "of the directory");
    let refused = agent.cli(&["bundle", "rollback"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{said}");
    assert!(
        said.contains("nothing has changed") && said.contains("already defined by `taken.yaml`"),
        "{said}"
    );
    assert_eq!(site.ls()[0]["current"]["generation"], 2);
    site.wait_version("own", "2");
    agent.remove("taken.yaml");
    agent.wait_gone("web");
    agent.ok(&["bundle", "rollback"]);
    site.wait_version("web", "1");
}

#[test]
fn a_plan_shows_what_a_bundle_would_change() {
    let site = Site::new();
    site.bundles(&[
        (
            "one",
            &[("web.yaml", pod("web", "1")), ("log.yaml", pod("log", "1"))],
        ),
        ("two", &[("web.yaml", pod("web", "2"))]),
    ]);
    let plan = |archive: &str| {
        let path = site.archive(archive);
        let planned = site
            .agent
            .cli(&["bundle", "plan", path.to_str().expect("utf-8")]);
        (
            planned.status.code(),
            String::from_utf8_lossy(&planned.stdout).into_owned(),
        )
    };
    let (code, text) = plan("one");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("pod default/web: created"), "{text}");
    assert_eq!(site.images(), 0, "a plan imports nothing");
    site.apply_ok("one", &[]);
    site.wait_version("web", "1");
    site.wait_version("log", "1");
    assert_eq!(plan("one").0, Some(0));
    let dry = site.apply("two", &["--dry-run"]);
    let (code, text) = plan("two");
    assert_eq!(
        (dry.status.code(), dry.stdout),
        (Some(1), text.clone().into_bytes())
    );
    assert_eq!(code, Some(1));
    assert!(
        text.contains("pod default/web: replaced by a new pod"),
        "{text}"
    );
    assert!(
        text.contains("pod default/log: stopped and removed"),
        "{text}"
    );
    assert_eq!(site.ls()[0]["current"]["generation"], 1);
}

#[test]
fn an_agent_that_is_killed_while_it_applies_runs_one_generation_wholly() {
    let site = Site::new();
    site.bundles(&[
        (
            "one",
            &[("a.yaml", pod("a", "1")), ("b.yaml", pod("b", "1"))],
        ),
        (
            "two",
            &[("a.yaml", pod("a", "2")), ("b.yaml", pod("b", "2"))],
        ),
    ]);
    let agent = &site.agent;
    site.apply_ok("one", &[]);
    site.wait_version("a", "1");
    let mut seen = std::collections::BTreeSet::new();
    for (round, archive) in ["two", "one"].iter().cycle().take(10).enumerate() {
        std::thread::scope(|scope| {
            let applying = scope.spawn(|| site.apply(archive, &[]));
            // At another point each time.
            std::thread::sleep(Duration::from_millis(20 * round as u64));
            agent.kill();
            let _ = applying.join();
        });
        agent.launch();
        let now = site.ls();
        let files = agent.root.join("root/bundles/site");
        let generation = now[0]["current"]["generation"]
            .as_u64()
            .expect("a generation");
        let text = fs::read_to_string(files.join(format!("{generation}/manifests/a.yaml")))
            .expect("a.yaml");
        let version = if text.contains("V=2") { "2" } else { "1" };
        site.wait_version("a", version);
        site.wait_version("b", version);
        seen.insert(version);
        // Beside them is their state, which may be replaced just now.
        let kept = fs::read_dir(&files).expect("listed").flatten();
        let kept = kept.filter(|entry| entry.path().is_dir()).count();
        assert!(kept <= 2, "generations: {kept}");
        // It can be applied at once, and rolled back.
        site.apply_ok(archive, &[]);
    }
    assert!(!seen.is_empty());
    // Killed at two points that a round may not meet: before a state, and after a generation.
    agent.kill();
    let bundles = agent.root.join("root/bundles");
    for left in ["site/99/manifests", "site/.new", "first/1/manifests"] {
        fs::create_dir_all(bundles.join(left)).expect("made");
    }
    agent.launch();
    assert!(!bundles.join("site/99").exists() && !bundles.join("site/.new").exists());
    assert!(!bundles.join("first").exists());
    agent.ok(&["bundle", "rm", "--force", "site"]);
    agent.wait_gone("a");
    agent.wait_gone("b");
}

#[test]
fn a_generation_whose_pods_are_not_ready_in_time_is_taken_back() {
    let site = Site::new();
    let never = versioned("web", "2", "exit 1");
    site.bundles(&[
        ("good", &[("web.yaml", pod("web", "1"))]),
        ("never", &[("web.yaml", never)]),
        ("better", &[("web.yaml", pod("web", "3"))]),
    ]);
    let agent = &site.agent;
    let said = site.apply_ok("good", &["--ready-within", "60s"]);
    assert!(
        said.ends_with("bundle site: all pods are ready\n"),
        "{said}"
    );
    assert_eq!(site.ls()[0]["trial"], Value::Null);
    let failed = site.apply("never", &["--ready-within", "8s"]);
    let said = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    assert!(
        said.contains("generation 2 was not ready within 8s: default/web")
            && said.contains("generation 1 is in force again"),
        "{said}"
    );
    site.wait_version("web", "1");
    let bundle = &site.ls()[0];
    assert_eq!(bundle["failed"]["generation"], 2);
    assert_eq!(
        bundle["previous"],
        Value::Null,
        "it is not brought back by hand"
    );
    assert!(agent.ok(&["get", "events"]).contains("BundleFailed"));
    let said = site.apply_ok("better", &["--ready-within", "60s"]);
    assert!(said.contains("generation 3"), "{said}");
    assert_eq!(site.ls()[0]["failed"], Value::Null);
}

#[test]
fn a_trial_goes_on_when_the_agent_restarts() {
    let site = Site::new();
    site.bundles(&[
        ("good", &[("web.yaml", pod("web", "1"))]),
        ("never", &[("web.yaml", versioned("web", "2", "exit 1"))]),
    ]);
    let agent = &site.agent;
    site.apply_ok("good", &[]);
    site.wait_version("web", "1");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| site.apply("never", &["--ready-within", "4s"]));
        agent.wait_pod("web", |pod| {
            pod["metadata"]["annotations"]["version"] == "2"
        });
        agent.kill();
        let left = waits.join().expect("the client ends");
        assert!(!left.status.success());
    });
    agent.launch();
    site.wait_version("web", "1");
    assert_eq!(site.ls()[0]["failed"]["generation"], 2);
}

/// Makes a key pair by openssl: `NAME.key` and `NAME.pub`.
pub(crate) fn key_pair(dir: &std::path::Path, name: &str) -> (String, String) {
    let file = |end: &str| {
        dir.join(format!("{name}.{end}"))
            .to_str()
            .expect("utf-8")
            .to_owned()
    };
    let (private, public) = (file("key"), file("pub"));
    for args in [
        vec![
            "ecparam",
            "-name",
            "prime256v1",
            "-genkey",
            "-noout",
            "-out",
            &private,
        ],
        vec!["ec", "-in", &private, "-pubout", "-out", &public],
    ] {
        let made = std::process::Command::new("openssl").args(&args).output();
        let made = made.expect("openssl: apt-get install openssl");
        assert!(made.status.success(), "{args:?}");
    }
    (private, public)
}

#[test]
fn only_what_the_key_signed_is_applied_where_one_is_demanded() {
    let site = Site::new();
    let agent = &site.agent;
    let (own, public) = key_pair(&agent.root, "own");
    let (strange, _) = key_pair(&agent.root, "strange");
    let files = [("web.yaml", pod("web", "1"))];
    let registry = Registry::start(agent);
    for (archive, key) in [
        ("signed", Some(&own)),
        ("strange", Some(&strange)),
        ("unsigned", None),
    ] {
        let dir = agent.root.join("bundles").join(archive);
        fs::create_dir_all(&dir).expect("temp dir");
        fs::write(dir.join(files[0].0), &files[0].1).expect("written");
        let more: Vec<&str> = key
            .iter()
            .flat_map(|key| ["--sign-by", key.as_str()])
            .collect();
        site.create_with(archive, &dir, &more);
    }
    drop(registry);
    let refused = |archive: &str, more: &[&str], part: &str| {
        let refused = site.apply(archive, more);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && said.contains(part),
            "{archive}: {said}"
        );
    };
    refused("unsigned", &["--key", &public], "it has no signature");
    refused(
        "strange",
        &["--key", &public],
        "none of its signatures was made for it with that key",
    );
    refused("signed", &["--key", &own], "could not use key");
    assert_eq!(site.ls(), Value::from(Vec::<Value>::new()));
    site.apply_ok("signed", &["--key", &public]);
    site.wait_version("web", "1");
    // The same by a setting.
    let settings = format!(
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\ncoracle: {{bundleKey: {public}}}\n"
    );
    fs::write(agent.root.join("config.d/50-key.conf"), settings).expect("written");
    agent.kill_and_restart();
    refused("unsigned", &[], "it has no signature");
    site.apply_ok("signed", &[]);
    site.apply_ok(
        "strange",
        &[
            "--key",
            &agent.root.join("strange.pub").display().to_string(),
        ],
    );
}

#[test]
fn a_bundle_in_a_registry_is_fetched_and_its_signature_with_it() {
    let site = Site::new();
    let agent = &site.agent;
    let (own, public) = key_pair(&agent.root, "own");
    let registry = Registry::start(agent);
    let dir = agent.root.join("bundles");
    for version in ["1", "2"] {
        fs::create_dir_all(&dir).expect("temp dir");
        fs::write(dir.join("web.yaml"), pod("web", version)).expect("written");
        site.create_with(version, &dir, &["--sign-by", &own]);
        let index = archived(&site.archive(version), "index.json");
        let tag = index["manifests"][1]["annotations"]["org.opencontainers.image.ref.name"].clone();
        let tag = tag.as_str().expect("a signature");
        for (name, to) in [("site", version), (tag, tag)] {
            let from = format!("oci-archive:{}:{name}", site.archive(version).display());
            registry.copy(&from, &format!("site:{to}"));
        }
    }
    let address = registry.proxy.address;
    let name = |version: &str| format!("{address}/site:{version}");
    let apply = |version: &str| agent.cli(&["bundle", "apply", "--key", &public, &name(version)]);
    let applied = apply("1");
    assert!(applied.status.success(), "{applied:?}");
    site.wait_version("web", "1");
    // Of the second one only documents are fetched: the layers are there.
    registry.proxy.reset();
    let applied = apply("2");
    assert!(applied.status.success(), "{applied:?}");
    assert!(
        registry.proxy.blob_bytes() < 20_000,
        "{}",
        registry.proxy.blob_bytes()
    );
    site.wait_version("web", "2");
    let none = apply("3");
    let said = String::from_utf8_lossy(&none.stderr);
    assert!(
        !none.status.success() && said.contains("is not in the registry"),
        "{said}"
    );
    let image = agent.cli(&["bundle", "apply", &registry.name()]);
    let said = String::from_utf8_lossy(&image.stderr);
    assert!(said.contains("it is no bundle"), "{said}");
    drop(registry);
    let gone = apply("1");
    assert!(!gone.status.success(), "{gone:?}");
    site.wait_version("web", "2");
}

/// A JSON document of an archive.
pub(crate) fn archived(archive: &std::path::Path, part: &str) -> Value {
    let read = std::process::Command::new("tar")
        .arg("-xOf")
        .arg(archive)
        .arg(part)
        .output();
    serde_json::from_slice(&read.expect("tar runs").stdout).expect("JSON")
}
