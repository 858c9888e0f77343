//! How Jobs end and wait, and the kinds of documents that stand for pods without a rollout, with real containers.

use super::workloads::{agent, document, pods, wait_ended};
use super::*;

/// A Job whose pods are not restarted in place.
fn job(name: &str, spec: &str, script: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n{spec}  template:\n    metadata: {{labels: \
         {{app: {name}}}}}\n    spec:\n      restartPolicy: Never\n      terminationGracePeriodSeconds: 1\n      \
         containers:\n      - name: main\n        image: busybox:test\n        command: [sh, -c, {script:?}]\n"
    )
}

/// Why a Job has ended.
fn reason(job: &Value) -> &str {
    let conditions = job["status"]["conditions"].as_array().expect("a list");
    let mut ended = conditions.iter().filter(|c| c["type"] != "Suspended");
    let ended = ended.next().expect("it has ended");
    ended["reason"].as_str().expect("a reason")
}

#[test]
fn a_job_ends_by_its_deadline_and_by_its_rules_and_the_status_names_it() {
    let agent = agent();
    agent.write(
        "late.yaml",
        &job("late", "  activeDeadlineSeconds: 1\n", SLEEP),
    );
    let late = wait_ended(&agent, "late");
    assert_eq!(
        (reason(&late), &late["status"]["failed"]),
        ("DeadlineExceeded", &1.into())
    );
    let rule = "  podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: In, values: [42]}}]}\n";
    agent.write("rule.yaml", &job("rule", rule, "exit 42"));
    let failed = wait_ended(&agent, "rule");
    assert_eq!(reason(&failed), "PodFailurePolicy");
    assert_eq!(failed["status"]["failed"], 1);
    // One of three is enough; the others stop.
    let enough = "  completions: 3\n  parallelism: 3\n  completionMode: Indexed\n  successPolicy: {rules: [{succeededIndexes: '1'}]}\n";
    let first = "test $JOB_COMPLETION_INDEX = 1 || exec sleep 1000000";
    agent.write("enough.yaml", &job("enough", enough, first));
    let done = wait_ended(&agent, "enough");
    assert_eq!(
        (reason(&done), &done["status"]["completedIndexes"]),
        ("SuccessPolicy", &"1".into())
    );
    agent.ok(&[
        "wait",
        "pod/enough-0-0",
        "pod/enough-2-0",
        "--for=delete",
        "--timeout=60s",
    ]);
    assert_eq!(
        agent.ok(&["get", "job/enough", "-o", "jsonpath={.status.failed}"]),
        "0"
    );
    // One that is ignored is followed by another, which succeeds.
    let ignore = rule.replace("FailJob", "Ignore");
    let limit = format!("  backoffLimit: 0\n{ignore}");
    let mark = agent.root.join("again");
    let script = "test -e /out/again || { touch /out/again; exit 42; }";
    let mount = format!(
        "        volumeMounts: [{{name: out, mountPath: /out}}]\n      volumes: [{{name: out, hostPath: {{path: {}}}}}]\n",
        agent.root.display()
    );
    agent.write("again.yaml", &(job("again", &limit, script) + &mount));
    let done = wait_ended(&agent, "again");
    assert!(mark.exists());
    assert_eq!(
        (reason(&done), &done["status"]["failed"]),
        ("CompletionsReached", &0.into())
    );
    let status = agent.cli(&["status"]);
    assert_eq!(status.status.code(), Some(1));
    let page = String::from_utf8(status.stdout).expect("text");
    for part in [
        "job late",
        "DeadlineExceeded",
        "job rule",
        "coracle describe job late",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("job again"), "{page}");
}

#[test]
fn a_suspended_job_has_no_pods_until_its_file_says_otherwise() {
    let agent = agent();
    agent.write("wait.yaml", &job("wait", "  suspend: true\n", "echo done"));
    agent.ok(&["wait", "job/wait", "--for=create", "--timeout=60s"]);
    agent.ok(&[
        "wait",
        "job/wait",
        "--for=condition=Suspended",
        "--timeout=60s",
    ]);
    assert!(pods(&agent, "wait").is_empty());
    agent.write("wait.yaml", &job("wait", "  suspend: false\n", "echo done"));
    assert_eq!(reason(&wait_ended(&agent, "wait")), "CompletionsReached");
    assert_eq!(agent.ok(&["logs", "job.batch/wait"]), "done\n");
}

#[test]
fn kinds_without_a_rollout_run_their_pods() {
    let agent = agent();
    let set = document("ReplicaSet", "set", SLEEP, "  replicas: 2\n", "");
    let old = document("ReplicationController", "old", SLEEP, "", "");
    let old = old
        .replace("apps/v1", "v1")
        .replace("{matchLabels: {app: old}}", "{app: old}");
    let here = document("DaemonSet", "here", SLEEP, "", "");
    let elsewhere = document("DaemonSet", "elsewhere", SLEEP, "", "");
    let elsewhere = elsewhere.replace(
        "terminationGracePeriodSeconds",
        "nodeSelector: {place: elsewhere}\n      terminationGracePeriodSeconds",
    );
    agent.write("all.yaml", &[set, old, here, elsewhere].join("---\n"));
    agent.ok(&[
        "wait",
        "daemonset/elsewhere",
        "--for=create",
        "--timeout=60s",
    ]);
    for (name, ready) in [
        ("replicaset.apps/set", "{.status.readyReplicas}=2"),
        ("rc/old", "{.status.readyReplicas}=1"),
        ("daemonset/here", "{.status.numberReady}=1"),
        ("daemonset/elsewhere", "{.status.desiredNumberScheduled}=0"),
    ] {
        let wanted = format!("--for=jsonpath={ready}");
        agent.ok(&["wait", name, &wanted, "--timeout=60s"]);
    }
    let number = |name: &str| pods(&agent, name).len();
    assert_eq!(
        ["set", "old", "here", "elsewhere"].map(number),
        [2, 1, 1, 0]
    );
    let page = agent.ok(&["get", "all"]);
    for part in [
        "replicaset.apps/set",
        "replicationcontroller/old",
        "daemonset.apps/here",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let sorted = |path: &str| {
        let by = format!("--sort-by={path}");
        let names = agent.ok(&["get", "pods", &by, "-o", "name"]);
        names.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let names = sorted(".metadata.name");
    assert!(names.len() == 4 && names.is_sorted(), "{names:?}");
    let by_owner = sorted("{.metadata.ownerReferences[0].kind}");
    assert!(by_owner[0].starts_with("pod/here-"), "{by_owner:?}");
    assert_eq!(agent.ok(&["get", "rs/none", "--ignore-not-found"]), "");
    agent.remove("all.yaml");
    agent.ok(&["wait", "pod", "--all", "--for=delete", "--timeout=60s"]);
}

#[test]
fn what_is_complete_stays_so_when_an_agent_takes_its_pods_along() {
    let agent = Agent::start_with(&["--stop-pods-on-exit"]);
    agent.ok(&[
        "image",
        "import",
        common::archive().to_str().expect("utf-8"),
    ]);
    let log = agent.root.join("runs");
    fs::write(&log, "").expect("a file");
    let text = job("once", "", "echo run >>/runs").replace(
        "      containers:",
        &format!(
            "      volumes: [{{name: runs, hostPath: {{path: {}}}}}]\n      containers:",
            log.display()
        ),
    );
    let text = text + "        volumeMounts: [{name: runs, mountPath: /runs}]\n";
    agent.write("once.yaml", &text);
    assert_eq!(reason(&wait_ended(&agent, "once")), "CompletionsReached");
    agent.signal(Signal::SIGTERM);
    assert!(agent.wait().success());
    agent.launch();
    assert_eq!(reason(&wait_ended(&agent, "once")), "CompletionsReached");
    // What is asked for after it has run.
    agent.write("next.yaml", &job("next", "", "true"));
    wait_ended(&agent, "next");
    assert_eq!(fs::read_to_string(&log).expect("a file"), "run\n");
}
