//! Rollouts that are taken back, by themselves and by clients, and pods that are restarted one after the other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::common::{Agent, coracle, shell_pod};
use super::workloads::{SLEEP, agent, document, pods, wait_rolled_out, wait_status};

/// The same document with the annotation.
fn annotated(text: &str) -> String {
    let metadata = "metadata: {name: web, annotations: {coracle.dev/rollback: \"true\"}}";
    text.replacen("metadata: {name: web}", metadata, 1)
}

fn deployment(script: &str, container: &str) -> String {
    let spec = "  replicas: 2\n  progressDeadlineSeconds: 4\n";
    annotated(&document("Deployment", "web", script, spec, container))
}

/// Waits until what is in force has proved good, and the disk knows: a slow one needs its time for that.
pub(crate) fn wait_good(agent: &Agent, document: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        let shown = agent.ok(&["rollout", "history", document, "-o", "json"]);
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        let last = shown["revisions"].as_array().and_then(|all| all.last());
        let hash = last.and_then(|last| last["hash"].as_str()).expect("one");
        let kept = fs::read_to_string(agent.root.join("root/revisions.json"));
        let good = format!("\"good\":\"{hash}\"");
        if kept.is_ok_and(|kept| kept.contains(&good)) {
            return;
        }
    }
    panic!("{document} is never good: {}", agent.log());
}

/// Waits until the revision with this number is in force.
fn wait_revision(agent: &Agent, number: u64) {
    let path = "{.metadata.annotations.deployment\\.kubernetes\\.io/revision}";
    agent.ok(&[
        "wait",
        "deploy/web",
        &format!("--for=jsonpath={path}={number}"),
        "--timeout=1m",
    ]);
}

/// Waits until what was before an edit is in force again and well.
fn wait_taken_back(agent: &Agent) -> Value {
    wait_status(agent, "deployments", "web", |status| {
        let all = ["replicas", "updatedReplicas", "availableReplicas"];
        let message = status["conditions"][1]["message"].as_str();
        all.iter().all(|field| status[field] == 2)
            && message.is_some_and(|text| text.contains("is in force until the document changes"))
    })
}

/// Runs a command that is sent after a save, but before the agent can have noticed the save.
fn right_after(agent: &Agent, save: impl FnOnce(), args: &[&str]) -> String {
    agent.signal(Signal::SIGSTOP);
    save();
    let mut command = coracle();
    let command = command.args(args).env("CORACLE_SOCKET", agent.socket());
    let command = command.stdout(Stdio::piped()).spawn();
    let command = command.expect("the program starts");
    let process = Path::new("/proc").join(command.id().to_string());
    // It has a connection, and sleeps until the agent answers.
    let asks = || {
        let status = fs::read_to_string(process.join("status")).expect("it runs");
        let mut open = fs::read_dir(process.join("fd")).expect("it runs");
        let is_socket = |target: PathBuf| target.to_string_lossy().starts_with("socket:");
        status.contains("State:\tS")
            && open.any(|fd| fs::read_link(fd.expect("it runs").path()).is_ok_and(is_socket))
    };
    let end = Instant::now() + Duration::from_secs(60);
    while !asks() {
        assert!(Instant::now() < end, "it asks nothing");
    }
    agent.signal(Signal::SIGCONT);
    let output = command.wait_with_output().expect("its output");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn what_was_saved_before_a_command_is_known_to_it() {
    let agent = agent();
    let status = ["rollout", "status", "deployment/web", "--timeout=2m"];
    let text = |round: u32| {
        let label = format!("labels: {{app: web, round: \"{round}\"}}");
        let text = document("Deployment", "web", SLEEP, "  replicas: 2\n", "");
        text.replacen("labels: {app: web}", &label, 1)
    };
    for round in 0..3 {
        let shown = right_after(&agent, || agent.write("web.yaml", &text(round)), &status);
        assert!(shown.contains("Waiting for deployment"), "{shown}");
        let selector = format!("round={round}");
        let pods = agent.ok(&["get", "pods", "-l", &selector, "-o", "name"]);
        assert_eq!(pods.lines().count(), 2, "{pods}");
    }
    let gone = ["wait", "--for=delete", "deployment/web", "--timeout=2m"];
    right_after(&agent, || agent.remove("web.yaml"), &gone);
    let pod = shell_pod("one", SLEEP, "", "");
    let ready = ["wait", "--for=condition=Ready", "pod/one", "--timeout=2m"];
    right_after(&agent, || agent.write("one.yaml", &pod), &ready);
}

#[test]
fn a_rollout_with_a_broken_image_or_a_crash_loop_is_taken_back() {
    let agent = agent();
    agent.write("web.yaml", &deployment(SLEEP, ""));
    wait_rolled_out(&agent, "web", 2);
    wait_good(&agent, "deployment/web");
    let good = pods(&agent, "web");
    let broken = deployment(SLEEP, "").replace("busybox:test", "busybox:none");
    for (edit, killed, why) in [
        (deployment("exit 1", ""), false, "CrashLoopBackOff"),
        (broken, true, "ErrImage"),
    ] {
        agent.write("web.yaml", &edit);
        if killed {
            wait_status(&agent, "deployments", "web", |status| {
                status["updatedReplicas"] == 1
            });
            agent.kill_and_restart();
        }
        let shown = wait_taken_back(&agent);
        assert_eq!(pods(&agent, "web"), good);
        let progressing = &shown["status"]["conditions"][1];
        assert_eq!(progressing["status"], "False");
        assert_eq!(progressing["reason"], "ProgressDeadlineExceeded");
        let note = progressing["message"].as_str().expect("a message");
        assert!(note.contains("not ready within 4s"), "{note}");
        assert!(note.contains(why) || note.contains("Running"), "{note}");
        let files = agent.ok(&["get", "files", "-o", "wide"]);
        assert!(files.contains("RolledBack"), "{files}");
        assert!(files.contains("not ready within 4s"), "{files}");
    }
    let page = agent.ok(&["describe", "deployment", "web"]);
    assert!(page.contains("RolledBack"), "{page}");
    assert!(page.contains("is brought back"), "{page}");
    let said = agent.cli(&["rollout", "status", "deployment/web", "--timeout", "1m"]);
    assert_eq!(said.status.code(), Some(1));
    let said = String::from_utf8(said.stderr).expect("utf-8");
    assert!(
        said.contains("deployment \"web\" exceeded its progress deadline"),
        "{said}"
    );
    // The file as it is would change nothing, and nothing is tried again.
    let path = agent.root.join("manifests/web.yaml");
    agent.ok(&["plan", path.to_str().expect("utf-8")]);
    agent.kill_and_restart();
    wait_taken_back(&agent);
    assert_eq!(pods(&agent, "web"), good);
    agent.power_cut();
    agent.launch();
    wait_taken_back(&agent);
    assert_eq!(pods(&agent, "web"), good);
    let once = agent.log().matches("is brought back").count();
    assert_eq!(once, 2, "{}", agent.log());
    let mode = fs::metadata(agent.root.join("root/revisions.json")).expect("it is there");
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777,
        0o600
    );
    // A file that says something else has a trial of its own.
    agent.write(
        "web.yaml",
        &deployment(SLEEP, "        env: [{name: V, value: c}]\n"),
    );
    wait_revision(&agent, 6);
    wait_rolled_out(&agent, "web", 2);
    assert!(pods(&agent, "web").is_disjoint(&good));
    assert!(!agent.ok(&["get", "files"]).contains("RolledBack"));
}

#[test]
fn a_reboot_in_a_rollout_ends_with_the_former_template() {
    let agent = agent();
    agent.write("web.yaml", &deployment(SLEEP, ""));
    wait_rolled_out(&agent, "web", 2);
    wait_good(&agent, "deployment/web");
    let good = pods(&agent, "web");
    agent.write("web.yaml", &deployment("exit 1", ""));
    wait_status(&agent, "deployments", "web", |status| {
        status["updatedReplicas"] == 1
    });
    agent.power_cut();
    agent.launch();
    wait_taken_back(&agent);
    assert_eq!(pods(&agent, "web"), good);
}

#[test]
fn former_pods_come_back_beside_a_broken_template_after_a_power_cut() {
    let agent = agent();
    let text = |script: &str| {
        let spec = "  replicas: 2\n  progressDeadlineSeconds: 4\n";
        document("Deployment", "web", script, spec, "")
    };
    agent.write("web.yaml", &text(SLEEP));
    wait_rolled_out(&agent, "web", 2);
    wait_good(&agent, "deployment/web");
    let good = pods(&agent, "web");
    agent.write("web.yaml", &text("exit 1"));
    let stands = |status: &Value| {
        let reason = &status["conditions"][1]["reason"];
        status["updatedReplicas"] == 1
            && status["availableReplicas"] == 2
            && reason == "ProgressDeadlineExceeded"
    };
    wait_status(&agent, "deployments", "web", stands);
    for _ in 0..2 {
        agent.power_cut();
        agent.launch();
        wait_status(&agent, "deployments", "web", stands);
        assert!(pods(&agent, "web").is_superset(&good));
        assert!(!agent.ok(&["get", "files"]).contains("RolledBack"));
    }
    // A person who stops it in between gets the same.
    agent.ok(&["stop", "deployment/web"]);
    agent.ok(&["start", "deployment/web"]);
    wait_status(&agent, "deployments", "web", stands);
    assert!(pods(&agent, "web").is_superset(&good));
    agent.write("web.yaml", &text("exec sleep 1000"));
    wait_rolled_out(&agent, "web", 2);
    assert!(pods(&agent, "web").is_disjoint(&good));
}

#[test]
fn former_pods_come_back_beside_what_a_client_rolls_out_after_a_power_cut() {
    let agent = agent();
    let text = |script: &str, deadline: &str| {
        let spec = format!("  replicas: 2\n{deadline}");
        document("Deployment", "web", script, &spec, "")
    };
    let soon = "  progressDeadlineSeconds: 4\n";
    agent.write("web.yaml", &text("exit 1", soon));
    wait_status(&agent, "deployments", "web", |status| {
        status["updatedReplicas"] == 2
    });
    agent.write("web.yaml", &text(SLEEP, soon));
    wait_rolled_out(&agent, "web", 2);
    wait_good(&agent, "deployment/web");
    let good = pods(&agent, "web");
    // Back to what never worked.
    agent.ok(&["rollout", "undo", "deployment/web"]);
    wait_revision(&agent, 3);
    let stands = |status: &Value| {
        let reason = &status["conditions"][1]["reason"];
        status["updatedReplicas"] == 1
            && status["availableReplicas"] == 2
            && reason == "ProgressDeadlineExceeded"
    };
    wait_status(&agent, "deployments", "web", stands);
    for _ in 0..2 {
        agent.power_cut();
        agent.launch();
        wait_status(&agent, "deployments", "web", stands);
        assert!(pods(&agent, "web").is_superset(&good));
        let files = agent.ok(&["get", "files", "-o", "wide"]);
        let note =
            "revision 2 was undone by a client; revision 3 is in force until the document changes";
        assert!(files.contains(note), "{files}");
    }
    let history = agent.ok(&["rollout", "history", "deployment/web"]);
    assert!(
        history.contains("2         <none>\n3         <none>\n"),
        "{history}"
    );
    // Any other text ends that. A restart that has had no time to begin goes on, too.
    agent.write("web.yaml", &text(SLEEP, ""));
    wait_rolled_out(&agent, "web", 2);
    wait_good(&agent, "deployment/web");
    assert_eq!(pods(&agent, "web"), good);
    agent.ok(&["rollout", "restart", "deployment/web"]);
    agent.power_cut();
    agent.launch();
    wait_status(&agent, "deployments", "web", |status| {
        status["updatedReplicas"] == 1 && status["availableReplicas"] == 3
    });
    assert!(pods(&agent, "web").is_superset(&good));
    wait_rolled_out(&agent, "web", 2);
    assert!(pods(&agent, "web").is_disjoint(&good));
}

#[test]
fn a_stateful_set_is_taken_back_in_place() {
    let agent = agent();
    let text = |script: &str| {
        let spec = "  replicas: 2\n";
        let text = annotated(&document("StatefulSet", "web", script, spec, ""));
        let within = "\"true\", coracle.dev/rollback-within: 4s";
        text.replacen("\"true\"", within, 1)
    };
    agent.write("web.yaml", &text(SLEEP));
    let ready = |status: &Value| status["availableReplicas"] == 2 && status["updatedReplicas"] == 2;
    wait_status(&agent, "statefulsets", "web", ready);
    wait_good(&agent, "sts/web");
    agent.write("web.yaml", &text("exit 1"));
    let back = |status: &Value| ready(status) && status["conditions"][0]["status"] == "False";
    wait_status(&agent, "statefulsets", "web", back);
    let said = agent.cli(&["rollout", "status", "sts/web"]);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let said = agent.ok(&["events", "--for", "statefulset/web"]);
    assert!(said.contains("RolledBack"), "{said}");
}

#[test]
fn clients_follow_undo_and_restart_rollouts() {
    let agent = agent();
    let version = |letter: &str| {
        let spec = "  replicas: 2\n  minReadySeconds: 0\n";
        let env = format!("        env: [{{name: V, value: {letter}}}]\n");
        let text = document("Deployment", "web", SLEEP, spec, &env);
        let cause = format!(
            "metadata: {{name: web, annotations: {{kubernetes.io/change-cause: version {letter}}}}}"
        );
        text.replacen("metadata: {name: web}", &cause, 1)
    };
    let rollout = |args: &[&str]| agent.ok(&[&["rollout"], args].concat());
    let running = |letter: &str| {
        for pod in pods(&agent, "web") {
            let said = agent.ok(&["exec", &pod, "--", "sh", "-c", "echo $V"]);
            assert_eq!(said, format!("{letter}\n"));
        }
    };
    let wait = || {
        wait_rolled_out(&agent, "web", 2);
        let said = rollout(&["status", "deployment", "web"]);
        assert_eq!(said, "deployment \"web\" successfully rolled out\n");
    };
    for (number, letter) in [(1, "a"), (2, "b")] {
        agent.write("web.yaml", &version(letter));
        // Until the file is read, the revision before is shown as rolled out.
        agent.ok(&["wait", "deploy/web", "--for=create", "--timeout=1m"]);
        wait_revision(&agent, number);
        agent.ok(&["rollout", "status", "deployment/web", "--timeout", "1m"]);
        wait();
    }
    assert_eq!(
        rollout(&["history", "deployment/web"]),
        "deployment.apps/web\nREVISION  CHANGE-CAUSE\n1         version a\n2         version b\n\n"
    );
    let one = rollout(&["history", "deploy/web", "--revision", "1"]);
    assert!(
        one.starts_with("deployment.apps/web with revision #1\nPod Template:\n"),
        "{one}"
    );
    assert!(one.contains("busybox:test"), "{one}");
    let failed = |args: &[&str], text: &str| {
        let said = agent.cli(args);
        let error = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(
            !said.status.success() && error.contains(text),
            "{args:?}: {said:?}"
        );
    };
    failed(
        &["rollout", "history", "deploy/web", "--revision", "9"],
        "unable to find the specified revision",
    );
    failed(
        &["rollout", "undo", "deploy/web", "--to-revision", "9"],
        "unable to find specified revision 9 in history",
    );
    failed(
        &["rollout", "undo", "deploy/none"],
        "deployments.apps \"none\" not found",
    );
    failed(&["rollout", "pause", "deploy/web"], "web.yaml");
    failed(
        &["rollout", "status", "pod/web"],
        "no status viewer has been implemented for pod",
    );
    assert_eq!(
        rollout(&["undo", "deploy/web", "--to-revision", "2"]),
        "deployment.apps/web skipped rollback (current template already matches revision 2)\n"
    );

    assert_eq!(
        rollout(&["undo", "deployment/web"]),
        "deployment.apps/web rolled back\n"
    );
    wait_status(&agent, "deployments", "web", |status| {
        status["updatedReplicas"] == 1 || status["updatedReplicas"] == 2
    });
    wait_revision(&agent, 3);
    wait();
    running("a");
    let undone = pods(&agent, "web");
    let files = agent.ok(&["get", "files", "-o", "wide"]);
    assert!(
        files.contains("RolledBack") && files.contains("undone by a client"),
        "{files}"
    );
    agent.kill_and_restart();
    wait();
    assert_eq!(pods(&agent, "web"), undone);

    assert_eq!(
        rollout(&["restart", "deployment", "web"]),
        "deployment.apps/web restarted\n"
    );
    wait_revision(&agent, 4);
    wait();
    running("a");
    let restarted = pods(&agent, "web");
    assert!(restarted.is_disjoint(&undone));
    agent.power_cut();
    agent.launch();
    wait();
    assert_eq!(pods(&agent, "web"), restarted);
    running("a");
    // The file decides again once it says something else.
    agent.write("web.yaml", &version("c"));
    wait_revision(&agent, 5);
    wait();
    running("c");
    agent.remove("web.yaml");
    for pod in pods(&agent, "web") {
        agent.wait_gone(&pod);
    }
    failed(
        &["rollout", "history", "deploy/web"],
        "deployments.apps \"web\" not found",
    );
}

#[test]
fn the_edit_of_a_pod_is_taken_back() {
    let agent = agent();
    let text = |script: &str, annotations: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, annotations: {{a: b{annotations}}}}}\nspec:\n  \
             terminationGracePeriodSeconds: 1\n  containers:\n  - {{name: main, image: 'busybox:test', command: [sh, -c, \
             \"{script}\"]}}\n"
        )
    };
    let back = ", coracle.dev/rollback: \"true\", coracle.dev/rollback-within: 4s";
    agent.write("web.yaml", &text(SLEEP, ""));
    let ready = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let ready = conditions.any(|c| c["type"] == "Ready" && c["status"] == "True");
        let command = pod["spec"]["containers"][0]["command"][2].as_str();
        ready && command == Some(SLEEP) && pod["metadata"]["deletionTimestamp"].is_null()
    };
    agent.wait_pod("web", ready);
    // The annotation comes with the edit.
    let bad = text("exit 1", back);
    agent.write("web.yaml", &bad);
    agent.wait_pod("web", |pod| !ready(pod));
    agent.wait_pod("web", ready);
    let files = agent.ok(&["get", "files", "-o", "wide"]);
    assert!(files.contains("RolledBack"), "{files}");
    assert!(
        files.contains("pod default/web: revision 2 was not ready within 4s"),
        "{files}"
    );
    let page = agent.ok(&["describe", "pod", "web"]);
    assert!(page.contains("RolledBack"), "{page}");
    agent.power_cut();
    agent.launch();
    agent.wait_pod("web", ready);
    let files = agent.ok(&["get", "files"]);
    assert!(files.contains("RolledBack"), "{files}");
    let history = agent.ok(&["rollout", "history", "pod/web"]);
    assert!(
        history.contains("2         <none>\n3         <none>\n"),
        "{history}"
    );
    // Another edit that works stays.
    agent.write("web.yaml", &text(SLEEP, &format!("{back}, c: d")));
    agent.wait_pod("web", |pod| {
        pod["metadata"]["annotations"]["c"] == "d" && ready(pod)
    });
    assert!(!agent.ok(&["get", "files"]).contains("RolledBack"));
}

#[test]
fn a_file_broken_in_a_rollout_keeps_documents_and_old_pods_over_an_agent_restart() {
    let agent = agent();
    let spec = "  replicas: 3\n";
    let text = |script: &str, probe: &str| document("Deployment", "web", script, spec, probe);
    let set = |script: &str, probe: &str| document("StatefulSet", "db", script, spec, probe);
    agent.write("web.yaml", &text(SLEEP, ""));
    agent.write("db.yaml", &set(SLEEP, ""));
    wait_rolled_out(&agent, "web", 3);
    let ready = |status: &Value| status["availableReplicas"] == 3 && status["updatedReplicas"] == 3;
    wait_status(&agent, "statefulsets", "db", ready);
    let before = [pods(&agent, "web"), pods(&agent, "db")];
    // Never ready.
    let probe = "        readinessProbe: {exec: {command: [\"false\"]}}\n";
    let script = format!("true; {SLEEP}");
    let edited = [text(&script, probe), set(&script, probe)];
    agent.write("web.yaml", &edited[0]);
    agent.write("db.yaml", &edited[1]);
    wait_status(&agent, "deployments", "web", |status| {
        status["replicas"] == 4 && status["readyReplicas"] == 3
    });
    wait_status(&agent, "statefulsets", "db", |status| {
        status["updatedReplicas"] == 1 && status["readyReplicas"] == 2
    });
    for (file, text) in [("web.yaml", &edited[0]), ("db.yaml", &edited[1])] {
        agent.write(file, &format!("{text}: : broken\n"));
        super::configuration::wait_rejected(&agent, file);
    }
    for _ in 0..2 {
        agent.kill_and_restart();
        super::configuration::wait_rejected(&agent, "web.yaml");
        super::configuration::wait_rejected(&agent, "db.yaml");
        let web = wait_status(&agent, "deployments", "web", |status| {
            status["readyReplicas"] == 3 && status["replicas"] == 4
        });
        assert_eq!(web["metadata"]["generation"], 2);
        wait_status(&agent, "statefulsets", "db", |status| {
            status["readyReplicas"] == 2
        });
        assert!(pods(&agent, "web").is_superset(&before[0]));
        assert_eq!(pods(&agent, "db"), before[1]);
    }
    // It goes on where it was.
    agent.write("web.yaml", &text(SLEEP, ""));
    agent.write("db.yaml", &set(SLEEP, ""));
    wait_rolled_out(&agent, "web", 3);
    wait_status(&agent, "statefulsets", "db", ready);
    assert_eq!(pods(&agent, "web"), before[0]);
}
