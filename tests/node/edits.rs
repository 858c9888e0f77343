//! Edits of the manifests of running pods.

use super::demands::wait_until;
use super::events::wait_event;
use super::stages::{STAY, runs, staged, status};
use super::*;

/// Asserts that the pod's one container still runs, as the same process.
fn assert_untouched(agent: &Agent, before: &Value, after: &Value) {
    assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert_eq!(main_status(after)["restartCount"], 0, "{after}");
    assert_eq!(pid_of(agent, before), pid_of(agent, after));
}

/// The process id of a container's first process, from its shim's record.
pub(super) fn pid(agent: &Agent, pod: &Value, container: &str) -> i64 {
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let path = agent
        .root
        .join(format!("run/pods/{uid}/records/{container}.json"));
    let record = fs::read_to_string(path).expect("a record");
    let record: Value = serde_json::from_str(&record).expect("JSON");
    record["pid"].as_i64().expect("pid")
}

#[test]
fn a_new_image_restarts_only_its_container_and_only_once_it_is_imported() {
    let agent = Agent::start();
    let never = "  restartPolicy: Never\n";
    let story = |image: &str| {
        let text = staged(
            &agent,
            "a",
            never,
            &[("first", "echo first >> /s/story", "")],
            &[("main", STAY, ""), ("other", STAY, "")],
        );
        let at = text.find("name: main\n").expect("main");
        text[..at].to_owned() + &text[at..].replacen("busybox:test", image, 1)
    };
    agent.write("a.yaml", &story("busybox:test"));
    let before = agent.wait_running("a");
    // The image is missing, so the container that serves goes on.
    agent.write("a.yaml", &story("busybox:other"));
    let events = |text: &str| agent.ok(&["get", "events"]).contains(text);
    wait_event(&agent, |event| {
        let message = event["message"].as_str().unwrap_or_default();
        message.contains("Failed to pull image \"busybox:other\"")
    });
    let now = agent.pod("a");
    assert_eq!(pid(&agent, &before, "main"), pid(&agent, &now, "main"));
    assert_eq!(status(&now, "main")["image"], "busybox:test");
    assert!(!runs(&now, "first"));
    // The agent is killed before the new container starts.
    agent.signal(Signal::SIGKILL);
    agent.wait();
    agent.launch();
    agent.wait_pod("a", |_| true);
    let archive = common::archive().to_str().expect("UTF-8").to_owned();
    agent.ok(&["image", "import", &archive, "--name", "busybox:other"]);
    let after = agent.wait_pod("a", |pod| {
        runs(pod, "main") && status(pod, "main")["image"] == "busybox:other"
    });
    assert_eq!(status(&after, "main")["restartCount"], 1, "{after}");
    assert_eq!(
        status(&after, "main")["lastState"]["terminated"]["exitCode"],
        0
    );
    assert_eq!(pid(&agent, &before, "other"), pid(&agent, &after, "other"));
    assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert!(events(
        "Container main definition changed, will be restarted"
    ));
    let lines = super::stages::story(&agent, "a");
    assert_eq!(lines.iter().filter(|line| *line == "first").count(), 1);
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn labels_grace_and_probes_change_in_the_running_pod_and_outlast_an_agent_restart_and_a_broken_file()
 {
    let agent = Agent::start();
    let script = format!("touch /tmp/ok; {SLEEP}");
    let first = shell_pod("web", &script, "", "");
    agent.write("web.yaml", &first);
    let before = agent.wait_running("web");
    let label = |text: &str| text.replacen("metadata:", "metadata:\n  labels: {tier: front}", 1);
    let labelled = label(&first);
    agent.write("web.yaml", &labelled);
    let labels = |pod: &Value| pod["metadata"]["labels"]["tier"] == "front";
    let after = agent.wait_pod("web", labels);
    assert_untouched(&agent, &before, &after);
    let probe = "    readinessProbe: {exec: {command: [cat, /tmp/ok]}, periodSeconds: 1, failureThreshold: 1}\n";
    let probed = label(&shell_pod("web", &script, "", probe));
    agent.write("web.yaml", &probed);
    agent.wait_pod("web", |pod| {
        !pod["spec"]["containers"][0]["readinessProbe"].is_null()
    });
    agent.ok(&["exec", "web", "--", "rm", "/tmp/ok"]);
    agent.wait_pod("web", |pod| main_status(pod)["ready"] == false);
    agent.ok(&["exec", "web", "--", "touch", "/tmp/ok"]);
    agent.wait_pod("web", |pod| main_status(pod)["ready"] == true);
    // The restarted agent knows the edits although the file is broken by now.
    agent.signal(Signal::SIGKILL);
    agent.wait();
    agent.write("web.yaml", "broken: [");
    agent.launch();
    let after = agent.wait_pod("web", |pod| {
        labels(pod) && main_status(pod)["ready"] == true
    });
    assert!(!after["spec"]["containers"][0]["readinessProbe"].is_null());
    assert_untouched(&agent, &before, &after);
    agent.remove("web.yaml");
    agent.wait_gone("web");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

/// The output of `coracle plan`, and its exit code.
fn planned(agent: &Agent, file: &str, text: &str) -> (String, Option<i32>) {
    let folder = agent.root.join("planned");
    fs::create_dir_all(&folder).expect("temp dir");
    let path = folder.join(file);
    fs::write(&path, text).expect("temp dir");
    let [output, same] =
        ["plan", "diff"].map(|verb| agent.cli(&[verb, path.to_str().expect("UTF-8")]));
    assert_eq!(output, same, "two names of one command");
    fs::remove_dir_all(&folder).expect("temp dir");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let text = text.replace(&format!("{}/", folder.display()), "");
    (text, output.status.code())
}

#[test]
fn a_plan_predicts_the_effect_of_saving_the_file() {
    let agent = Agent::start();
    let more = "    resources: {limits: {cpu: 100m, memory: 32Mi}}\n";
    let first = shell_pod("web", SLEEP, "", more);
    let (text, code) = planned(&agent, "web.yaml", &first);
    assert_eq!(
        (text.as_str(), code),
        ("pod default/web: created\n", Some(1))
    );
    agent.write("web.yaml", &first);
    let before = agent.wait_running("web");
    let (text, code) = planned(&agent, "web.yaml", &(first.clone() + "# a word\n"));
    assert_eq!(
        (text.as_str(), code),
        ("pod default/web: unchanged\n", Some(0))
    );
    let edited = first
        .replacen("metadata:", "metadata:\n  labels: {tier: front}", 1)
        .replacen("memory: 32Mi", "memory: 48Mi", 1);
    let (text, code) = planned(&agent, "web.yaml", &edited);
    let expected = "pod default/web: changed while it runs\n    metadata.labels\n    \
                    container main: requests.memory 32Mi -> 48Mi, without a restart\n    \
                    container main: limits.memory 32Mi -> 48Mi, without a restart\n";
    assert_eq!((text.as_str(), code), (expected, Some(1)));
    agent.write("web.yaml", &edited);
    let after = agent.wait_pod("web", |pod| {
        main_status(pod)["resources"]["limits"]["memory"] == "48Mi"
            && pod["metadata"]["labels"]["tier"] == "front"
    });
    assert_untouched(&agent, &before, &after);
    let other = edited.replacen("busybox:test", "busybox:other", 1);
    let (text, code) = planned(&agent, "web.yaml", &other);
    let expected = "pod default/web: changed while it runs\n    \
                    container main: image busybox:test -> busybox:other, restarts it\n";
    assert_eq!((text.as_str(), code), (expected, Some(1)));
    let new = edited.replacen(
        "    resources:",
        "    env: [{name: A, value: b}]\n    resources:",
        1,
    );
    let (text, code) = planned(&agent, "web.yaml", &new);
    let expected = "pod default/web: replaced by a new pod, for these fields cannot change while it runs\n    \
                    spec.containers[0].env\n";
    assert_eq!((text.as_str(), code), (expected, Some(1)));
    // In another file the pod would be defined twice; without its document it is removed.
    let (text, code) = planned(&agent, "b.yaml", &edited);
    let expected = "error: b.yaml: pod `default/web` is already defined by `web.yaml`\n  \
                    hint: as the next version of `web.yaml`: coracle plan - < b.yaml\n";
    assert_eq!((text.as_str(), code), (expected, Some(2)));
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec:\n  selector: {tier: front}\n  \
                   ports: [{port: 80}]\n";
    let (text, code) = planned(&agent, "web.yaml", service);
    let expected = "pod default/web: stopped and removed\nservice default/s: created\n";
    assert_eq!((text.as_str(), code), (expected, Some(1)));
    let (text, code) = planned(&agent, "web.yaml", "kind: [");
    assert!(text.starts_with("error: "), "{text}");
    assert_eq!(code, Some(2));
    let now = agent.pod("web");
    assert_untouched(&agent, &before, &now);
}

#[test]
fn a_manifest_on_a_disk_that_is_away_keeps_its_pod() {
    let agent = Agent::start();
    let disk = agent.root.join("disk");
    fs::create_dir_all(&disk).expect("temp dir");
    fs::write(disk.join("a.yaml"), shell_pod("a", SLEEP, "", "")).expect("temp dir");
    let link = agent.root.join("manifests/a.yaml");
    std::os::unix::fs::symlink(disk.join("a.yaml"), &link).expect("temp dir");
    let before = agent.wait_running("a");
    fs::rename(&disk, agent.root.join("away")).expect("temp dir");
    // Any other change has the directory looked at.
    agent.write("b.yaml", &shell_pod("b", SLEEP, "", ""));
    agent.wait_running("b");
    let says_so = || {
        let files = agent.ok(&["get", "files", "-o", "json"]);
        files.contains("a.yaml: No such file or directory")
    };
    wait_until("the file is shown with the error", says_so);
    assert_untouched(&agent, &before, &agent.pod("a"));
    fs::rename(agent.root.join("away"), &disk).expect("temp dir");
    agent.write("b.yaml", "");
    agent.wait_gone("b");
    wait_until("the error is over", || !says_so());
    assert_untouched(&agent, &before, &agent.pod("a"));
    fs::remove_file(&link).expect("a link");
    agent.wait_gone("a");
}

#[test]
fn a_pod_whose_document_moves_runs_on_also_over_an_agent_restart_and_a_copy_that_stalls() {
    let agent = Agent::start();
    let pod = |name: &str| shell_pod(name, SLEEP, "", "");
    let both = |one: &str, other: &str| format!("{}---\n{}", pod(one), pod(other));
    agent.write("a.yaml", &pod("z"));
    agent.write("b.yaml", &both("x", "k"));
    let before = agent.wait_running("x");
    let settled = |marker: &str| {
        agent.write("marker.yaml", &pod(marker));
        agent.wait_running(marker);
        assert_untouched(&agent, &before, &agent.wait_running("x"));
        agent.ok(&["get", "files"])
    };
    agent.write("a.yaml", &both("z", "x"));
    assert!(settled("refused").contains("Rejected"));
    agent.write("b.yaml", &pod("k"));
    let files = settled("moved");
    assert!(!files.contains("Rejected"), "{files}");

    agent.write("0.yaml", &shell_pod("x", "exit 1", "", ""));
    assert!(settled("second").contains("Rejected"));
    agent.kill_and_restart();
    assert!(settled("restarted").contains("Rejected"));
    agent.remove("0.yaml");

    let mut copy = fs::File::create(agent.root.join("manifests/a.yaml")).expect("created");
    std::io::Write::write_all(&mut copy, pod("z").as_bytes()).expect("written");
    // Longer than a file settles. A file that is not taken is not announced.
    std::thread::sleep(Duration::from_millis(1500));
    settled("stalled");
    let rest = format!("---\n{}", pod("x"));
    std::io::Write::write_all(&mut copy, rest.as_bytes()).expect("written");
    drop(copy);
    let files = settled("whole");
    assert!(!files.contains("Rejected"), "{files}");
}

#[test]
fn a_pod_that_an_edit_replaced_keeps_uid_and_volumes_over_a_power_cut() {
    let agent = Agent::start();
    let text = |word: &str| {
        let command =
            format!("echo {word} >> /d/n; trap 'exit 0' TERM; while :; do sleep 0.2; done");
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n  - name: main\n    image: \
             busybox:test\n    command: [sh, -c, {command:?}]\n    volumeMounts: [{{name: d, mountPath: /d}}]\n  \
             volumes: [{{name: d, emptyDir: {{}}}}]\n"
        )
    };
    let wait_written = |words: &str| {
        wait_until(words, || {
            let said = agent.cli(&["exec", "p", "--", "cat", "/d/n"]).stdout;
            said == words.as_bytes()
        });
        agent.pod("p")["metadata"]["uid"].clone()
    };
    agent.write("p.yaml", &text("one"));
    let first = wait_written("one\n");
    agent.write("p.yaml", &text("two"));
    let second = wait_written("two\n");
    assert_ne!(first, second);
    agent.power_cut();
    agent.launch();
    assert_eq!(wait_written("two\ntwo\n"), second);
}
