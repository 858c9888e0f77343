//! ConfigMaps and Secrets: as variables and as files in real containers, while they change, go and come back.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::common::{Agent, shell_pod};
use super::events::wait_event;
use super::{SLEEP, main_status};

const CONFIG: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: app}\ndata:\n  color: blue\n  app.conf: |\n    listen 80\nbinaryData: {blob: /wAB}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {password: hunter2}\ndata: {user: YWRtaW4=}\n";

const VARIABLES: &str = "    envFrom:\n    - {prefix: S_, secretRef: {name: key}}\n    - {configMapRef: {name: none, optional: true}}\n    env:\n    - {name: COLOR, valueFrom: {configMapKeyRef: {name: app, key: color}}}\n    - {name: PASSWORD, valueFrom: {secretKeyRef: {name: key, key: password}}}\n    - {name: NONE, valueFrom: {secretKeyRef: {name: key, key: none, optional: true}}}\n    - {name: URL, value: \"http://$(S_user):$(PASSWORD)@$(COLOR)\"}\n    - {name: UID_OF_POD, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}\n";

const MOUNTS: &str = "    volumeMounts:\n    - {name: map, mountPath: /map}\n    - {name: map, mountPath: /etc/app.conf, subPath: app.conf}\n    - {name: secret, mountPath: /secret}\n    - {name: all, mountPath: /all}\n";

const VOLUMES: &str = "  volumes:\n  - {name: map, configMap: {name: app}}\n  - name: secret\n    secret: {secretName: key, defaultMode: 0400, items: [{key: password, path: deep/pw, mode: 0440}, {key: user, path: user}]}\n  - name: all\n    projected:\n      sources:\n      - configMap: {name: app, items: [{key: color, path: color}]}\n      - secret: {name: key, items: [{key: user, path: user}]}\n      - secret: {name: missing, optional: true}\n      - downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}, {path: cpu, resourceFieldRef: {containerName: main, resource: requests.cpu, divisor: 1m}}]}\n";

fn pod(name: &str) -> String {
    let container = format!("{VARIABLES}{MOUNTS}    resources: {{requests: {{cpu: 50m}}}}\n");
    let text = shell_pod(name, SLEEP, VOLUMES, &container);
    text.replacen(
        "metadata:",
        "metadata:\n  labels: {app: web, tier: \"a\"}",
        1,
    )
}

/// What a command in the pod prints.
pub(super) fn run(agent: &Agent, pod: &str, script: &str) -> String {
    agent.ok(&["exec", pod, "--", "sh", "-c", script])
}

/// Waits for an event of the pod with this message.
pub(super) fn wait_mount_failure(agent: &Agent, message: &str) {
    let message = format!("MountVolume.SetUp failed for volume {message}");
    wait_event(agent, |event| {
        event["reason"] == "FailedMount" && event["message"] == *message
    });
}

/// Waits until this file is rejected.
pub(super) fn wait_rejected(agent: &Agent, file: &str) {
    let deadline = std::time::Instant::now() + super::common::PATIENCE;
    loop {
        let table = agent.ok(&["get", "files", "--no-headers"]);
        let mut lines = table.lines();
        if lines.any(|line| line.contains(file) && line.contains("Rejected")) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{table}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Waits until this script prints what is wanted; a change of files is not announced.
pub(super) fn wait_for(agent: &Agent, pod: &str, script: &str, wanted: &str) {
    let deadline = std::time::Instant::now() + super::common::PATIENCE;
    while run(agent, pod, script) != wanted {
        assert!(
            std::time::Instant::now() < deadline,
            "{:?}",
            run(agent, pod, script)
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn variables_and_files_come_from_config_maps_secrets_and_the_pod() {
    let agent = Agent::start();
    agent.write("config.yaml", CONFIG);
    agent.write("a.yaml", &pod("a"));
    let status = agent.wait_running("a");
    let url = "echo $COLOR $PASSWORD $S_user $URL [${NONE-unset}] $UID_OF_POD";
    let uid = status["metadata"]["uid"].as_str().expect("uid").to_owned();
    assert_eq!(
        run(&agent, "a", url),
        format!("blue hunter2 admin http://admin:hunter2@blue [unset] {uid}\n")
    );
    assert_eq!(
        run(&agent, "a", "cat /map/color /map/app.conf /etc/app.conf"),
        "bluelisten 80\nlisten 80\n"
    );
    assert_eq!(run(&agent, "a", "od -An -tx1 /map/blob"), " ff 00 01\n");
    let modes = "stat -L -c '%a %u %n' /map /map/color /secret/deep /secret/deep/pw /secret/user";
    assert_eq!(
        run(&agent, "a", modes),
        "755 0 /map\n644 0 /map/color\n755 0 /secret/deep\n440 0 /secret/deep/pw\n400 0 /secret/user\n"
    );
    assert_eq!(run(&agent, "a", "readlink /map/color"), "..data/color\n");
    assert_eq!(
        run(
            &agent,
            "a",
            "cd /all; cat color; echo; cat user; echo; cat labels; echo; cat cpu; ls"
        ),
        "blue\nadmin\napp=\"web\"\ntier=\"a\"\n50color\ncpu\nlabels\nuser\n"
    );
    let refused = agent.cli(&["exec", "a", "--", "sh", "-c", "echo x >/map/color"]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Read-only file system"));
}

#[test]
fn files_follow_a_change_and_are_never_seen_half_changed() {
    let agent = Agent::start();
    agent.write("config.yaml", CONFIG);
    agent.write("a.yaml", &pod("a"));
    agent.wait_running("a");
    // A broken edit changes nothing.
    agent.write("config.yaml", &CONFIG.replace("data:", "dota:"));
    wait_rejected(&agent, "config.yaml");
    assert_eq!(run(&agent, "a", "cat /map/color"), "blue");
    agent.write(
        "config.yaml",
        &CONFIG
            .replace("blue", "red")
            .replace("hunter2", "swordfish"),
    );
    wait_for(&agent, "a", "cat /map/color", "red");
    wait_for(&agent, "a", "cat /all/color", "red");
    wait_for(&agent, "a", "cat /secret/deep/pw", "swordfish");
    // Variables and single mounted files stay as they were at the start.
    assert_eq!(run(&agent, "a", "echo $COLOR"), "blue\n");
    assert_eq!(main_status(&agent.pod("a"))["restartCount"], 0);
    // An edit of the labels, which applies in place, shows in the file.
    agent.write("a.yaml", &pod("a").replace("app: web", "app: shop"));
    wait_for(&agent, "a", "head -n 1 /all/labels", "app=\"shop\"\n");
    // What changed while no agent ran is seen by the next one.
    agent.kill();
    agent.write("config.yaml", &CONFIG.replace("blue", "green"));
    agent.launch();
    wait_for(&agent, "a", "cat /map/color", "green");
    // A removed document leaves the files, and says so.
    agent.remove("config.yaml");
    wait_mount_failure(&agent, "\"map\" : configmap \"app\" not found");
    assert_eq!(run(&agent, "a", "cat /map/color"), "green");
}

#[test]
fn a_pod_waits_for_what_it_refers_to_and_starts_by_itself() {
    let agent = Agent::start();
    agent.write("v.yaml", &shell_pod("v", SLEEP, VOLUMES, MOUNTS));
    wait_mount_failure(&agent, "\"map\" : configmap \"app\" not found");
    agent.write("e.yaml", &shell_pod("e", SLEEP, "", VARIABLES));
    let waiting = |text: &str| {
        let text = text.to_owned();
        move |pod: &serde_json::Value| {
            let waiting = &main_status(pod)["state"]["waiting"];
            waiting["reason"] == "CreateContainerConfigError" && waiting["message"] == *text
        }
    };
    agent.wait_pod("e", waiting("secret \"key\" not found"));
    agent.write("config.yaml", &CONFIG.replace("color:", "colour:"));
    agent.wait_pod(
        "e",
        waiting("couldn't find key color in ConfigMap default/app"),
    );
    agent.write("config.yaml", CONFIG);
    agent.wait_running("e");
    agent.wait_running("v");
}

#[test]
fn binary_data_is_no_variable_but_a_file() {
    let agent = Agent::start();
    agent.write("config.yaml", CONFIG);
    let all = "    envFrom: [{configMapRef: {name: app}}]\n";
    agent.write("all.yaml", &shell_pod("all", SLEEP, "", all));
    let one = |name: &str, optional: bool| {
        let key = format!("{{name: app, key: blob, optional: {optional}}}");
        let env = format!("    env: [{{name: BLOB, valueFrom: {{configMapKeyRef: {key}}}}}]\n");
        agent.write(&format!("{name}.yaml"), &shell_pod(name, SLEEP, "", &env));
    };
    one("one", false);
    one("optional", true);
    agent.wait_running("all");
    let shown = "echo $color; env | grep -c blob; echo [${BLOB-unset}]";
    assert_eq!(run(&agent, "all", shown), "blue\n0\n[unset]\n");
    agent.wait_running("optional");
    assert_eq!(run(&agent, "optional", "echo [${BLOB-unset}]"), "[unset]\n");
    agent.wait_pod("one", |pod| {
        let waiting = &main_status(pod)["state"]["waiting"];
        waiting["reason"] == "CreateContainerConfigError"
            && waiting["message"] == "couldn't find key blob in ConfigMap default/app"
    });
}

#[test]
fn secrets_are_nowhere_but_in_their_pods() {
    let agent = Agent::start();
    agent.write("config.yaml", CONFIG);
    agent.write("a.yaml", &pod("a"));
    agent.wait_running("a");
    let hidden = |what: &str, text: &str| {
        for secret in ["hunter2", "aHVudGVyMg", "YWRtaW4"] {
            assert!(!text.contains(secret), "{what} has {secret}: {text}");
        }
    };
    for args in [
        &["get", "secrets", "-o", "yaml"][..],
        &["describe", "secret", "key"],
        &["describe", "pod", "a"],
        &["get", "pods", "-o", "json"],
        &["get", "events"],
        &["get", "files", "-o", "json"],
    ] {
        hidden(&args.join(" "), &agent.ok(args));
    }
    hidden("the log", &agent.log());
    let table = agent.ok(&["get", "secrets", "--no-headers"]);
    let cells: Vec<&str> = table.split_whitespace().take(3).collect();
    assert_eq!(cells, ["key", "Opaque", "2"]);
    assert!(
        agent
            .ok(&["describe", "secret", "key"])
            .contains("password:  7 bytes\nuser:      5 bytes\n")
    );
    assert!(
        agent
            .ok(&["describe", "cm", "app"])
            .contains("color:\n----\nblue\n")
    );
    // They lie on a file system of their own, where only root sees anything, and not on disk.
    let folder = agent.root.join("run/configuration");
    let mode = |path: &Path| fs::metadata(path).expect("metadata").mode() & 0o7777;
    assert_eq!(mode(&folder.join("volumes")), 0o700);
    assert_eq!(mode(&folder.join("documents.json")), 0o600);
    for pod in folders_but(&folder.join("bundles"), &[]) {
        assert_eq!(mode(&pod), 0o700, "{}", pod.display());
    }
    let mounts = fs::read_to_string("/proc/mounts").expect("mounts");
    let line = format!(" {} tmpfs ", folder.display());
    assert!(mounts.contains(&line), "{mounts}");
    assert!(has_text(&folder.join("bundles"), b"hunter2"));
    let elsewhere = folders_but(&agent.root, &["manifests", "run"]);
    let elsewhere = elsewhere.chain(folders_but(&agent.root.join("run"), &["configuration"]));
    for other in elsewhere {
        assert!(!has_text(&other, b"hunter2"), "{}", other.display());
    }
    for pid in processes_of(&agent) {
        for file in ["cmdline", "environ"] {
            let text = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            hidden(&format!("{file} of {pid}"), &String::from_utf8_lossy(&text));
        }
    }
    // A value that is no text cannot leak through an error.
    agent.write("bad.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: bad}\nstringData: {pin: 271828, b: hunter2}\ndata: {x: 'h!nter2'}\n");
    wait_rejected(&agent, "bad.yaml");
    let files = agent.ok(&["get", "files", "-o", "json"]);
    assert!(
        files.contains("illegal base64 data at input byte 1"),
        "{files}"
    );
    for secret in ["271828", "hunter2", "h!nter2"] {
        assert!(!files.contains(secret) && !agent.log().contains(secret));
    }
}

/// The entries of a folder but for these.
fn folders_but(folder: &Path, without: &'static [&str]) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(move |path| !without.iter().any(|name| path.ends_with(name)))
}

/// The agent and its shims: the processes that have its folder in their command line.
pub(super) fn processes_of(agent: &Agent) -> Vec<i32> {
    let folder = agent.root.to_str().expect("utf-8").as_bytes().to_vec();
    let all = procfs::process::all_processes().expect("/proc").flatten();
    let ours = all.filter(|process| {
        let line = process.cmdline().unwrap_or_default().join(" ");
        line.as_bytes()
            .windows(folder.len())
            .any(|part| part == folder)
    });
    let found: Vec<i32> = ours.map(|process| process.pid).collect();
    assert!(found.len() >= 2, "{found:?}");
    found
}

/// Whether a file is this one, or lies below it, and has these bytes.
fn has_text(folder: &Path, text: &[u8]) -> bool {
    let bytes = fs::read(folder).unwrap_or_default();
    if bytes.windows(text.len()).any(|part| part == text) {
        return true;
    }
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| {
            let (path, kind) = (entry.path(), entry.file_type().expect("kind"));
            (kind.is_dir() || kind.is_file()) && has_text(&path, text)
        })
}

#[test]
fn documents_outlive_a_broken_file_and_an_agent_and_conflicts_name_both_files() {
    let agent = Agent::start();
    agent.write("config.yaml", CONFIG);
    agent.write("other.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: robot, namespace: shop}\n");
    agent.write("a.yaml", &pod("a"));
    agent.wait_running("a");
    let slip = agent.cli(&["get", "pods", "-n", "shpo"]);
    assert_eq!(
        String::from_utf8_lossy(&slip.stderr),
        "No resources found in shpo namespace.\n  hint: did you mean `-n shop`?\n"
    );
    agent.write(
        "config.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: app}\ndata: [1]\n",
    );
    wait_rejected(&agent, "config.yaml");
    agent.kill_and_restart();
    // A new container finds what was in force.
    agent.write("b.yaml", &pod("b"));
    agent.wait_running("b");
    assert_eq!(
        run(&agent, "b", "cat /map/color; echo $PASSWORD"),
        "bluehunter2\n"
    );
    agent.write("config.yaml", CONFIG);
    agent.write("second.yaml", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: app}, data: {color: pink}}\n");
    wait_rejected(&agent, "second.yaml");
    let files = agent.ok(&["get", "files", "-o", "json"]);
    assert!(
        files.contains("second.yaml: config map `default/app` is already defined by `config.yaml`"),
        "{files}"
    );
    assert_eq!(run(&agent, "b", "cat /map/color"), "blue");
    let names = agent.ok(&["get", "ns,sa", "-A", "-o", "name"]);
    assert_eq!(
        names,
        "namespace/default\nnamespace/shop\nserviceaccount/robot\n"
    );
}

#[test]
fn a_namespace_is_as_old_as_the_oldest_object_in_it() {
    let agent = Agent::start();
    let write = |name: &str, age: u64| {
        let text = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: other}}\ndata: {{a: b}}\n"
        );
        let staged = agent.root.join(name);
        fs::write(&staged, text).expect("written");
        let at = std::time::SystemTime::now() - std::time::Duration::from_secs(age);
        let file = fs::File::options().write(true).open(&staged);
        file.expect("there").set_modified(at).expect("own file");
        let place = agent.root.join(format!("manifests/{name}.yaml"));
        fs::rename(staged, place).expect("renamed");
    };
    let path = "jsonpath={.metadata.creationTimestamp}";
    let created = |what: &str| agent.ok(&["get", what, "-n", "other", "-o", path]);
    write("old", 3600);
    agent.ok(&["wait", "cm/old", "-n", "other", "--for=create"]);
    write("new", 60);
    agent.ok(&["wait", "cm/new", "-n", "other", "--for=create"]);
    assert_eq!(created("ns/other"), created("cm/old"));
    assert_ne!(created("cm/new"), created("cm/old"));
}

#[test]
fn a_plan_says_nothing_of_pods_that_are_not_there_and_of_claims() {
    let agent = Agent::start();
    let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec: {accessModes: \
                 [ReadWriteOnce], resources: {requests: {storage: SIZE}}}\n---\n";
    let volume = "  - {name: data, persistentVolumeClaim: {claimName: data}}\n";
    let restarts = "  annotations: {coracle.dev/restart-on-change: \"true\"}";
    let new = pod("eager")
        .replacen("metadata:", &format!("metadata:\n{restarts}"), 1)
        .replacen("  volumes:\n", &format!("  volumes:\n{volume}"), 1);
    assert!(new.contains(volume), "{new}");
    let file = |size: &str| claim.replace("SIZE", size) + CONFIG + "---\n" + &new;
    let planned = agent.root.join("eager.yaml");
    let plan = |text: &str| {
        fs::write(&planned, text).expect("written");
        let plan = agent.cli(&["plan", planned.to_str().expect("utf-8")]);
        String::from_utf8_lossy(&plan.stdout).into_owned()
    };
    assert_eq!(
        plan(&file("1Mi")),
        "pod default/eager: created\nconfigmap default/app: created\nsecret default/key: created\n\
         persistentvolumeclaim default/data: created\n"
    );
    agent.write("eager.yaml", &file("1Mi"));
    agent.wait_running("eager");
    assert!(
        plan(&file("2Mi")).ends_with("persistentvolumeclaim default/data: changed\n"),
        "{}",
        plan(&file("2Mi"))
    );
    agent.remove("eager.yaml");
    agent.wait_gone("eager");
}

#[test]
fn a_pod_that_restarts_on_changes_is_replaced_and_no_other() {
    let agent = Agent::start();
    agent.write("config.yaml", CONFIG);
    let restarts = "  annotations: {coracle.dev/restart-on-change: \"true\"}";
    let eager = pod("eager").replacen("metadata:", &format!("metadata:\n{restarts}"), 1);
    agent.write("eager.yaml", &eager);
    agent.write("lazy.yaml", &pod("lazy"));
    let uid = |pod: &serde_json::Value| pod["metadata"]["uid"].clone();
    let (old, lazy) = (
        uid(&agent.wait_running("eager")),
        uid(&agent.wait_running("lazy")),
    );
    agent.write("plain.yaml", &shell_pod("plain", SLEEP, "", VARIABLES));
    agent.wait_running("plain");
    let planned = agent.root.join("config.yaml");
    fs::write(&planned, CONFIG.replace("blue", "red")).expect("written");
    let plan = agent.cli(&["plan", planned.to_str().expect("utf-8")]);
    assert_eq!(
        String::from_utf8_lossy(&plan.stdout),
        "configmap default/app: changed\n    pod default/eager: replaced by a new pod\n    pod default/lazy: its files \
         follow while it runs\n    pod default/plain: used when a container starts\nsecret default/key: unchanged\n"
    );
    // The same content in other words changes nothing, nor does an agent restart.
    agent.write("config.yaml", &format!("# the same\n{CONFIG}"));
    agent.kill_and_restart();
    assert_eq!(uid(&agent.wait_running("eager")), old);
    agent.write("config.yaml", &CONFIG.replace("blue", "red"));
    let new = agent.wait_pod("eager", |pod| {
        uid(pod) != old && pod["status"]["phase"] == "Running"
    });
    assert_eq!(run(&agent, "eager", "echo $COLOR"), "red\n");
    assert_ne!(uid(&new), old);
    assert_eq!(uid(&agent.pod("lazy")), lazy);
    assert_eq!(run(&agent, "lazy", "echo $COLOR"), "blue\n");
}
