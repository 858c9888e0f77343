//! Which pods may use a private image that the node has (`imagePullCredentialsVerificationPolicy`).

use std::path::{Path, PathBuf};

use super::proxy::Deed;
use super::pull::{events, pod, pull_secret};
use super::registry::Registry;
use super::settings::{configured, wait_log};
use super::*;

/// `user:password`, which the registry lets in, and `user:hunter2`.
const RIGHT: &str = "dXNlcjpwYXNzd29yZA==";
const WRONG: &str = "dXNlcjpodW50ZXIy";

const POLICY: &str = "imagePullCredentialsVerificationPolicy";
const REFUSED: &str =
    "the node has the image, but only for pods whose credentials its registry has accepted";

/// `busybox:test` is what the registry's image is: without it layers are downloaded.
fn forget_layers(agent: &Agent) {
    agent.ok(&["image", "rm", "busybox:test"]);
}

/// An agent with these settings, their file, and a registry that asks for a login.
fn private(settings: &str) -> (Agent, PathBuf, Registry) {
    let (agent, file) = configured(settings);
    let registry = Registry::start(&agent);
    registry.ask_for_login();
    (agent, file, registry)
}

fn set(agent: &Agent, file: &Path, policy: &str) {
    let text = format!("kind: KubeletConfiguration\n{POLICY}: {policy}\n");
    fs::write(file, text).expect("written");
    wait_log(agent, &format!("{POLICY}: \"{policy}\""));
}

/// A pod with a pull policy and pull secrets.
fn with_secrets(name: &str, (image, policy): (&str, &str), secrets: &str) -> String {
    let secrets = format!("  imagePullSecrets: [{secrets}]\n  containers:");
    pod(name, image, policy).replacen("  containers:", &secrets, 1)
}

/// Starts a pod `a` with the secret `right`, which pulls the registry's image; returns the image's name.
fn pull_by_a(agent: &Agent, registry: &Registry) -> String {
    let name = registry.name();
    agent.write("right.yaml", &pull_secret("right", registry, RIGHT));
    let a = with_secrets("a", (&name, "IfNotPresent"), "{name: right}");
    agent.write("a.yaml", &a);
    agent.wait_running("a");
    name
}

/// The image by its digest.
fn by_digest(agent: &Agent, name: &str) -> String {
    let shown = agent.ok(&["image", "inspect", name]);
    let at = shown.find("@sha256:").expect("a digest");
    format!("{}{}", name.trim_end_matches(":1"), &shown[at..at + 72])
}

fn waits_for(pod: &Value, reason: &str) -> bool {
    main_status(pod)["state"]["waiting"]["reason"] == reason
}

/// Waits until a pod has failed to get its image; returns the message.
fn wait_refused(agent: &Agent, name: &str) -> String {
    let shown = agent.wait_pod(name, |pod| {
        waits_for(pod, "ErrImagePull") || waits_for(pod, "ImagePullBackOff")
    });
    let message = &main_status(&shown)["state"]["waiting"]["message"];
    message.as_str().unwrap_or_default().to_owned()
}

fn stop(registry: &Registry) {
    let answer = || Deed::Answer(503, vec![], b"{}".to_vec());
    registry.proxy.rule(move |_| answer());
}

/// The record of the image that was pulled.
fn record(agent: &Agent) -> (PathBuf, Value) {
    let records = fs::read_dir(agent.root.join("root/images/records")).expect("records");
    let mut found = records.flatten().map(|entry| {
        let text = fs::read_to_string(entry.path()).expect("a record");
        (entry.path(), serde_json::from_str(&text).expect("JSON"))
    });
    found
        .find(|(_, record): &(_, Value)| !record["access"].is_null())
        .expect("an image that was pulled for a pod")
}

#[test]
fn a_stored_private_image_is_for_pods_with_credentials() {
    let (agent, file, registry) = private("");
    let name = pull_by_a(&agent, &registry);
    registry.proxy.reset();
    agent.write("b.yaml", &pod("b", &name, "IfNotPresent"));
    let message = wait_refused(&agent, "b");
    assert!(
        message.contains("refuses access") && message.contains(REFUSED),
        "{message}"
    );
    // Its digest is no way round, nor is a wrong password, nor a secret of that name in a different namespace.
    let pinned = by_digest(&agent, &name);
    agent.write("pinned.yaml", &pod("pinned", &pinned, "IfNotPresent"));
    wait_refused(&agent, "pinned");
    agent.write("wrong.yaml", &pull_secret("wrong", &registry, WRONG));
    let wrong = with_secrets("w", (&name, "IfNotPresent"), "{name: wrong}");
    agent.write("w.yaml", &wrong);
    wait_refused(&agent, "w");
    let foreign = pull_secret("right, namespace: shop", &registry, WRONG);
    agent.write("foreign.yaml", &foreign);
    let far = with_secrets("far", (&name, "IfNotPresent"), "{name: right}");
    let far = far.replacen("name: far", "name: far\n  namespace: shop", 1);
    agent.write("far.yaml", &far);
    let path = "/api/v1/namespaces/shop/pods?watch=true";
    let refused = |change: Value| waits_for(&change["object"], "ImagePullBackOff");
    assert!(agent.watch(path).any(refused), "{}", agent.log());
    assert_eq!(registry.proxy.blob_bytes(), 0, "no layer was fetched again");

    // With `Never` no registry is asked, and the pod does not learn that the image is there.
    registry.proxy.reset();
    agent.write("never.yaml", &pod("never", &name, "Never"));
    let shown = agent.wait_pod("never", |pod| waits_for(pod, "ErrImageNeverPull"));
    let text = format!("Container image \"{name}\" is not present with pull policy of Never");
    assert_eq!(
        main_status(&shown)["state"]["waiting"]["message"],
        text.as_str()
    );
    // A change of the policy counts at once, also for those that wait.
    set(&agent, &file, "NeverVerify");
    agent.write("free.yaml", &pod("free", &name, "Never"));
    for pod_name in ["free", "never", "b"] {
        agent.wait_running(pod_name);
    }
    set(&agent, &file, "NeverVerifyPreloadedImages");
    agent.write("again.yaml", &pod("again", &name, "IfNotPresent"));
    wait_refused(&agent, "again");
}

#[test]
fn what_a_registry_has_accepted_once_counts_while_it_is_away_and_after_a_restart() {
    let (agent, _, registry) = private("");
    let name = pull_by_a(&agent, &registry);
    agent.write("same.yaml", &pull_secret("same", &registry, RIGHT));
    stop(&registry);
    registry.proxy.reset();
    let run = |pod: &str, policy: &str, secrets: &str| {
        let pod_file = format!("{pod}.yaml");
        agent.write(&pod_file, &with_secrets(pod, (&name, policy), secrets));
        agent.wait_running(pod);
    };
    run("b", "IfNotPresent", "{name: same}");
    run("n", "Never", "{name: right}");
    agent.kill_and_restart();
    agent.wait_running("a");
    run("c", "IfNotPresent", "{name: same}");
    // The same secret with a new password counts, and the new password from then on.
    agent.write("right.yaml", &pull_secret("right", &registry, WRONG));
    run("d", "IfNotPresent", "{name: right}");
    agent.write("turned.yaml", &pull_secret("turned", &registry, WRONG));
    run("e", "IfNotPresent", "{name: turned}");
    assert!(registry.proxy.asked().is_empty());
    let present = format!(
        "Container image \"{name}\" already present on machine and can be accessed by the pod"
    );
    assert!(events(&agent, "b").contains(&("Pulled".to_owned(), present)));
    // One that had no access gets none, whatever `Always` may use while its registry is away.
    for (pod_name, policy) in [("f", "IfNotPresent"), ("g", "Always")] {
        agent.write(&format!("{pod_name}.yaml"), &pod(pod_name, &name, policy));
        let message = wait_refused(&agent, pod_name);
        assert!(
            message.contains("503") && message.contains(REFUSED),
            "{message}"
        );
    }
    run("h", "Always", "{name: same}");
    let (path, record) = record(&agent);
    let text = record.to_string();
    for secret in ["password", "hunter2", RIGHT, WRONG] {
        assert!(!text.contains(secret), "{text}");
    }
    let by = record["access"][name.trim_end_matches(":1")]["secrets"].as_array();
    assert_eq!(by.map(Vec::len), Some(3), "{text}");
    use std::os::unix::fs::MetadataExt;
    let store = path.ancestors().nth(2).expect("the store");
    assert_eq!(
        fs::metadata(store).expect("the store").mode() & 0o777,
        0o700
    );
}

#[test]
fn a_pod_that_waits_for_the_same_pull_needs_credentials_too() {
    let (agent, _, registry) = private("");
    forget_layers(&agent);
    let name = registry.name();
    begin_slow_pull(&agent, &registry, 16 << 10);
    agent.write("b.yaml", &pod("b", &name, "IfNotPresent"));
    agent.wait_running("a");
    wait_refused(&agent, "b");
}

/// Has pod `a` pull with the right credentials, so many bytes each 20 ms.
fn begin_slow_pull(agent: &Agent, registry: &Registry, bytes: usize) {
    agent.write("right.yaml", &pull_secret("right", registry, RIGHT));
    let login = format!("Basic {RIGHT}");
    registry
        .proxy
        .rule(move |ask| match ask.header("authorization") {
            Some(found) if found == login && ask.is_blob() => {
                Deed::Drip(bytes, Duration::from_millis(20))
            }
            Some(found) if found == login => Deed::Pass,
            _ => Deed::Answer(
                401,
                vec![("WWW-Authenticate", "Basic realm=r".to_owned())],
                b"{}".to_vec(),
            ),
        });
    let a = with_secrets("a", (&registry.name(), "IfNotPresent"), "{name: right}");
    agent.write("a.yaml", &a);
    agent.wait_pod("a", |pod| {
        let message = main_status(pod)["state"]["waiting"]["message"].as_str();
        message.is_some_and(|text| text.starts_with("Pulling image"))
    });
}

#[test]
fn an_image_whose_pull_was_cut_short_is_for_no_pod_until_its_registry_is_asked() {
    let (agent, _, registry) = private("");
    let name = pull_by_a(&agent, &registry);
    agent.remove("a.yaml");
    agent.wait_gone("a");
    agent.signal(Signal::SIGKILL);
    agent.wait();
    // As it is after a power cut between the import and the answer whose credentials were accepted.
    let (path, mut cut) = record(&agent);
    let repository = name.trim_end_matches(":1");
    cut["access"][repository] = serde_json::json!({});
    fs::write(&path, cut.to_string()).expect("written");
    agent.launch();
    agent.write(
        "n.yaml",
        &with_secrets("n", (&name, "Never"), "{name: right}"),
    );
    agent.wait_pod("n", |pod| waits_for(pod, "ErrImageNeverPull"));
    agent.write("b.yaml", &pod("b", &name, "IfNotPresent"));
    wait_refused(&agent, "b");
    registry.proxy.reset();
    let c = with_secrets("c", (&name, "IfNotPresent"), "{name: right}");
    agent.write("c.yaml", &c);
    agent.wait_running("c");
    assert_eq!(registry.proxy.blob_bytes(), 0);
    let (_, whole) = record(&agent);
    let first = &whole["access"][repository]["secrets"][0];
    assert_eq!(first["name"], "right", "{whole}");
}

#[test]
fn an_interrupted_download_leaves_nothing_for_other_pods() {
    let (agent, _, registry) = private("");
    forget_layers(&agent);
    let name = registry.name();
    begin_slow_pull(&agent, &registry, 8 << 10);
    agent.kill_and_restart();
    agent.write("b.yaml", &pod("b", &name, "IfNotPresent"));
    wait_refused(&agent, "b");
    registry.ask_for_login();
    agent.wait_running("a");
    agent.write("c.yaml", &pod("c", &name, "Never"));
    agent.wait_pod("c", |pod| waits_for(pod, "ErrImageNeverPull"));
}

#[test]
fn an_image_of_a_listed_repository_is_for_all_pods() {
    let (agent, file, registry) = private("");
    let name = pull_by_a(&agent, &registry);
    let repository = name.trim_end_matches(":1");
    let listed = |patterns: &str| {
        format!(
            "{POLICY}: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: {patterns}\n"
        )
    };
    let mut number = 0;
    let mut try_it = |patterns: &str, allowed: bool| {
        number += 1;
        fs::write(
            &file,
            format!("kind: KubeletConfiguration\n{}", listed(patterns)),
        )
        .expect("written");
        wait_log(
            &agent,
            &format!("Allowlist: {patterns}").replace('\'', "\""),
        );
        let pod_name = format!("p{number}");
        agent.write(
            &format!("{pod_name}.yaml"),
            &pod(&pod_name, &name, "IfNotPresent"),
        );
        match allowed {
            true => drop(agent.wait_running(&pod_name)),
            false => drop(wait_refused(&agent, &pod_name)),
        }
    };
    try_it(&format!("['{repository}/x']"), false);
    try_it(&format!("['{repository}']"), true);
    let registry_of = repository.trim_end_matches("busybox");
    try_it("['127.0.0.1/*']", false);
    // A digest under a repository that the image never had does not count.
    let digest = by_digest(&agent, &name);
    let made_up = digest.replace(registry_of, "docker.io/library/other-");
    agent.write("made-up.yaml", &pod("made-up", &made_up, "Never"));
    try_it(&format!("['{registry_of}*','docker.io/*']"), true);
    agent.write("again.yaml", &pod("again", &made_up, "Never"));
    agent.write("by-digest.yaml", &pod("by-digest", &digest, "Never"));
    for pod_name in ["made-up", "again"] {
        agent.wait_pod(pod_name, |pod| waits_for(pod, "ErrImageNeverPull"));
    }
    agent.wait_running("by-digest");
}

#[test]
fn a_preloaded_image_is_for_all_pods_unless_all_images_are_verified() {
    let (agent, file, registry) = private("");
    let name = registry.name();
    let archive = common::archive().to_str().expect("utf-8");
    agent.ok(&["image", "import", "--name", &name, archive]);
    registry.proxy.reset();
    agent.write("a.yaml", &pod("a", &name, "IfNotPresent"));
    agent.wait_running("a");
    assert!(registry.proxy.asked().is_empty());
    set(&agent, &file, "AlwaysVerify");
    for (pod_name, policy) in [("b", "IfNotPresent"), ("c", "Always")] {
        agent.write(&format!("{pod_name}.yaml"), &pod(pod_name, &name, policy));
        let message = wait_refused(&agent, pod_name);
        assert!(message.contains(REFUSED), "{message}");
    }
    agent.write("n.yaml", &pod("n", &name, "Never"));
    agent.wait_pod("n", |pod| waits_for(pod, "ErrImageNeverPull"));
    agent.write("right.yaml", &pull_secret("right", &registry, RIGHT));
    let d = with_secrets("d", (&name, "IfNotPresent"), "{name: right}");
    agent.write("d.yaml", &d);
    agent.wait_running("d");
    // What the registry has accepted counts without it, and the image stays preloaded.
    stop(&registry);
    agent.write(
        "e.yaml",
        &with_secrets("e", (&name, "Never"), "{name: right}"),
    );
    agent.wait_running("e");
    // Those that were refused may ask again at any time.
    for refused in ["b", "c"] {
        agent.remove(&format!("{refused}.yaml"));
        agent.wait_gone(refused);
    }
    set(&agent, &file, "NeverVerifyPreloadedImages");
    registry.proxy.reset();
    agent.write("f.yaml", &pod("f", &name, "IfNotPresent"));
    agent.write("g.yaml", &pod("g", &name, "Always"));
    for pod_name in ["f", "g"] {
        agent.wait_running(pod_name);
    }
    assert!(
        registry.proxy.asked().is_empty(),
        "it is still the archive's"
    );
}

#[test]
fn an_image_pulled_by_the_node_is_for_all_pods() {
    let auth = std::env::temp_dir().join(format!("coracle-node-{}.json", std::process::id()));
    let settings = format!("coracle: {{registryAuthFile: {}}}\n", auth.display());
    let (agent, _, registry) = private(&settings);
    let address = registry.proxy.address.to_string();
    let text = serde_json::json!({ "auths": { address: { "auth": RIGHT } } });
    fs::write(&auth, text.to_string()).expect("written");
    let name = registry.name();
    agent.write("a.yaml", &pod("a", &name, "IfNotPresent"));
    agent.wait_running("a");
    fs::remove_file(&auth).expect("removed");
    let (path, before) = record(&agent);
    assert_eq!(
        before["access"][name.trim_end_matches(":1")]["everyone"],
        true
    );
    let changed = || fs::metadata(&path).and_then(|found| found.modified());
    let written = changed().expect("a record");
    stop(&registry);
    registry.proxy.reset();
    agent.write("b.yaml", &pod("b", &name, "IfNotPresent"));
    agent.write("c.yaml", &pod("c", &name, "Never"));
    for pod_name in ["b", "c"] {
        agent.wait_running(pod_name);
    }
    assert!(registry.proxy.asked().is_empty());
    assert_eq!(changed().expect("a record"), written, "nothing was written");
}

#[test]
fn a_person_opens_a_private_image_by_a_name_or_a_pull_and_removes_what_is_known_of_it() {
    let (agent, _, registry) = private("");
    let name = pull_by_a(&agent, &registry);
    // A name that a person gives is for all pods; the image's own is as before.
    agent.ok(&["image", "tag", &name, "shop:1"]);
    agent.write("tagged.yaml", &pod("tagged", "shop:1", "Never"));
    agent.wait_running("tagged");
    agent.write("b.yaml", &pod("b", &name, "Never"));
    agent.wait_pod("b", |pod| waits_for(pod, "ErrImageNeverPull"));
    agent.write("c.yaml", &pod("c", &name, "IfNotPresent"));
    wait_refused(&agent, "c");
    let login = agent.root.join("login.json");
    let address = registry.proxy.address.to_string();
    let text = serde_json::json!({ "auths": { address: { "auth": RIGHT } } });
    fs::write(&login, text.to_string()).expect("written");
    let pull = |name: &str| {
        let login = login.to_str().expect("utf-8");
        agent.ok(&["image", "pull", "--authfile", login, name]);
    };
    pull(&name);
    // It is tried again at once.
    agent.wait_running("c");
    // A pod that pulls it once more takes it from no other.
    agent.write(
        "always.yaml",
        &with_secrets("always", (&name, "Always"), "{name: right}"),
    );
    agent.wait_running("always");
    stop(&registry);
    agent.write("e.yaml", &pod("e", &name, "Never"));
    agent.wait_running("e");
    registry.ask_for_login();
    let (at, known) = record(&agent);
    let digests = known["digests"].as_array().expect("digests");
    // The archive's manifest comes first.
    let in_registry = digests.last().and_then(Value::as_str).expect("a digest");
    let digest = format!("{}@{in_registry}", name.trim_end_matches(":1"));
    for pod in ["a", "b", "c", "e", "always", "tagged"] {
        agent.remove(&format!("{pod}.yaml"));
        agent.wait_gone(pod);
    }
    for name in [name.as_str(), "shop:1", "busybox:test"] {
        agent.ok(&["image", "rm", name]);
    }
    assert!(!at.exists(), "the record goes with the image");
    agent.write("d.yaml", &pod("d", &name, "IfNotPresent"));
    let message = wait_refused(&agent, "d");
    assert!(!message.contains(REFUSED), "{message}");
    // A pull by digest opens it, too, and a pod that pulls it next takes it from no other.
    pull(&digest);
    agent.write(
        "f.yaml",
        &with_secrets("f", (&name, "Always"), "{name: right}"),
    );
    agent.wait_running("f");
    agent.write("g.yaml", &pod("g", &digest, "Never"));
    agent.wait_running("g");
}

#[test]
fn an_image_of_an_earlier_version_stays_for_all_pods_when_a_pod_pulls_it_again() {
    let (agent, _, registry) = private("");
    let name = pull_by_a(&agent, &registry);
    let digest = by_digest(&agent, &name);
    agent.signal(Signal::SIGKILL);
    agent.wait();
    // An earlier version records no access.
    let (path, mut earlier) = record(&agent);
    earlier["access"] = Value::Null;
    fs::write(&path, earlier.to_string()).expect("written");
    agent.launch();
    let always = with_secrets("always", (&name, "Always"), "{name: right}");
    agent.write("always.yaml", &always);
    agent.wait_running("always");
    let (_, now) = record(&agent);
    let access = &now["access"][name.trim_end_matches(":1")];
    assert_eq!(access["secrets"][0]["name"], "right", "{now}");
    for (pod_name, image) in [("b", &name), ("c", &digest)] {
        agent.write(&format!("{pod_name}.yaml"), &pod(pod_name, image, "Never"));
        agent.wait_running(pod_name);
    }
}

#[test]
fn the_credentials_that_count_are_those_for_the_manifest_not_for_the_layers() {
    let (agent, _, registry) = private("");
    forget_layers(&agent);
    let name = registry.name();
    agent.write("right.yaml", &pull_secret("right", &registry, RIGHT));
    agent.write("layers.yaml", &pull_secret("layers", &registry, WRONG));
    let config = std::sync::Mutex::new(None);
    // One login is for all but the layers, the other for blobs only.
    registry.proxy.rule(move |ask| {
        let login = ask.header("authorization").unwrap_or_default();
        let mut config = config.lock().expect("no panic");
        let allowed = match login.strip_prefix("Basic ") {
            Some(RIGHT) if ask.is_blob() => *config.get_or_insert(ask.path.clone()) == ask.path,
            Some(RIGHT) => true,
            Some(WRONG) => ask.is_blob(),
            _ => false,
        };
        let challenge = vec![("WWW-Authenticate", "Basic realm=r".to_owned())];
        match allowed {
            true => Deed::Pass,
            false => Deed::Answer(401, challenge, b"{}".to_vec()),
        }
    });
    let both = "{name: right}, {name: layers}";
    agent.write("a.yaml", &with_secrets("a", (&name, "IfNotPresent"), both));
    agent.wait_running("a");
    assert!(registry.proxy.blob_bytes() > 100_000, "layers were fetched");
    let secrets = record(&agent).1["access"][name.trim_end_matches(":1")]["secrets"].clone();
    let names: Vec<_> = secrets.as_array().into_iter().flatten().collect();
    assert_eq!((names.len(), &names[0]["name"]), (1, &"right".into()));
}

#[test]
fn what_is_wrong_elsewhere_takes_an_image_from_no_pod() {
    let folder = std::env::temp_dir().join(format!("coracle-odd-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let (auth, conf) = (folder.join("auth.json"), folder.join("registries.conf"));
    let settings = format!(
        "coracle: {{registryAuthFile: {}, registriesConf: [{}]}}\n",
        auth.display(),
        conf.display()
    );
    let (agent, _, registry) = private(&settings);
    let name = pull_by_a(&agent, &registry);
    let address = registry.proxy.address;
    stop(&registry);
    // Neither of these secrets can be used for this registry.
    let token = pull_secret("token", &registry, RIGHT).replace("\"auth\":", "\"identitytoken\":");
    agent.write("token.yaml", &token);
    let odd = pull_secret("odd", &registry, RIGHT);
    let odd = odd.replace(&format!("{{\"{address}\""), &format!("[{{\"{address}\""));
    agent.write("odd.yaml", &odd.replace("}}}'", "}}]}'"));
    let secrets = "{name: token}, {name: odd}, {name: right}";
    let blocked = format!("[[registry]]\nlocation = \"{address}\"\nblocked = true\n");
    for (number, (auth_text, conf_text)) in [("{", ""), ("{}", "nonsense ["), ("{}", &blocked)]
        .into_iter()
        .enumerate()
    {
        fs::write(&auth, auth_text).expect("written");
        fs::write(&conf, conf_text).expect("written");
        let pod_name = format!("p{number}");
        let text = with_secrets(&pod_name, (&name, "Never"), secrets);
        agent.write(&format!("{pod_name}.yaml"), &text);
        agent.wait_running(&pod_name);
    }
    agent.write(
        "n.yaml",
        &with_secrets("n", (&name, "Never"), "{name: token}, {name: odd}"),
    );
    agent.wait_pod("n", |pod| waits_for(pod, "ErrImageNeverPull"));
    fs::remove_dir_all(&folder).expect("removed");
}
