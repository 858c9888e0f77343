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
    let left = agent.ok(&["get", "pods", "-l", "app=enough", "-o", "name"]);
    assert_eq!(left, "pod/enough-1-0\n");
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
fn a_job_has_failed_once_its_pods_are_gone() {
    let agent = agent();
    let text = |spec: &str| {
        let script = "trap 'until test -e /out/go; do sleep 0.1; done; exit 0' TERM; touch /out/up; while :; do sleep 0.1; done";
        let text = job("slow", spec, script).replace("PeriodSeconds: 1\n", "PeriodSeconds: 600\n");
        format!(
            "{text}        readinessProbe: {{periodSeconds: 1, exec: {{command: [test, -e, /out/up]}}}}\n        volumeMounts: [{{name: out, mountPath: /out}}]\n      volumes: [{{name: out, hostPath: {{path: {}}}}}]\n",
            agent.root.display()
        )
    };
    agent.write("slow.yaml", &text(""));
    agent.ok(&["wait", "pod/slow-0-0", "--for=create", "--timeout=60s"]);
    let ready = "--for=condition=Ready";
    agent.ok(&["wait", "pod/slow-0-0", ready, "--timeout=60s"]);
    agent.write("slow.yaml", &text("  activeDeadlineSeconds: 1\n"));
    let table = "/apis/batch/v1/namespaces/default/jobs?watch=true";
    let mut jobs = agent.watch(table).map(|event| event["object"].clone());
    let fails = jobs.find(|job| !job["status"]["conditions"][0].is_null());
    let fails = fails.expect("it is about to fail");
    let conditions = &fails["status"]["conditions"];
    assert_eq!(conditions[0]["type"], "FailureTarget");
    assert!(conditions[1].is_null(), "{fails}");
    let uid = fails["metadata"]["uid"].as_str().expect("a UID");
    let chosen = |label: &str| agent.ok(&["get", "pods", "-o", "name", "-l", label]);
    for name in ["controller-uid", "batch.kubernetes.io/controller-uid"] {
        let label = format!("{name}={uid}");
        assert_eq!(chosen(&label), "pod/slow-0-0\n", "{name}");
    }
    let page = agent.ok(&["get", "job", "slow"]);
    assert!(page.contains("FailureTarget"), "{page}");
    // Another agent waits for it, too.
    agent.kill();
    agent.launch();
    agent.ok(&["wait", "job/slow", "--for=create", "--timeout=60s"]);
    let page = agent.ok(&["get", "job", "slow"]);
    assert!(page.contains("FailureTarget"), "{page}");
    fs::write(agent.root.join("go"), "").expect("a file");
    let failed = "--for=condition=failed";
    agent.ok(&["wait", "job/slow", failed, "--timeout=60s"]);
    assert_eq!(chosen("app=slow"), "");
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
    assert!(agent.ok(&["get", "files"]).contains("<none>"));
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

#[test]
fn a_cron_job_runs_what_it_has_missed_once() {
    let agent = agent();
    let cron = format!(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: tick}}\nspec:\n  schedule: '0 0 1 * *'\n  timeZone: UTC\n  \
         jobTemplate:\n    spec:\n      template:\n        spec:\n          restartPolicy: Never\n          volumes: \
         [{{name: out, hostPath: {{path: {}}}}}]\n          containers:\n          - name: main\n            image: \
         busybox:test\n            command: [sh, -c, 'echo $HOSTNAME >>/out/runs; echo tock']\n            volumeMounts: \
         [{{name: out, mountPath: /out}}]\n",
        agent.root.display()
    );
    let path = agent.root.join("tick-planned.yaml");
    std::fs::write(&path, &cron).expect("written");
    let planned = agent.cli(&["plan", path.to_str().expect("utf-8")]);
    assert_eq!(planned.status.code(), Some(1), "{planned:?}");
    let planned = String::from_utf8(planned.stdout).expect("text");
    let times = planned.strip_prefix("cronjob default/tick: created\n    next runs: ");
    let times: Vec<&str> = times.expect(&planned).trim_end().split(", ").collect();
    assert_eq!(times.len(), 3, "{planned}");
    assert!(
        times.iter().all(|at| at.ends_with("-01T00:00:00Z")),
        "{planned}"
    );
    agent.write("tick.yaml", &cron);
    let table = "/apis/batch/v1/namespaces/default/cronjobs?watch=true";
    let shown = |wanted: &dyn Fn(&Value) -> bool| {
        let found = agent.watch(table).map(|event| event["object"].clone());
        let mut found = found.filter(|object| wanted(&object["status"]));
        found.next().expect("it is shown")
    };
    // It is known since now: nothing is missed.
    let first = shown(&|status| status.is_object());
    assert!(first["status"]["lastScheduleTime"].is_null(), "{first}");
    assert!(agent.ok(&["get", "cj"]).contains("<none>"));

    // Stopped by a client; then as if the machine had been off for two months.
    agent.ok(&["stop", "cronjob/tick"]);
    agent.signal(nix::sys::signal::Signal::SIGTERM);
    agent.wait();
    let path = agent.root.join("root/jobs.json");
    let mut kept: Value =
        serde_json::from_slice(&std::fs::read(&path).expect("a record")).expect("JSON");
    let settled = &mut kept["crons"][0][1]["settled"];
    let since = settled[0][0].as_i64().expect("a time") - 62 * 86_400;
    *settled = serde_json::json!([[since, since]]);
    std::fs::write(&path, kept.to_string()).expect("written");
    agent.launch();
    agent.write("calm.yaml", &shell_pod("calm", SLEEP, "", ""));
    agent.wait_running("calm");
    let stopped = agent.ok(&["get", "cronjob.batch/tick"]);
    assert!(
        stopped.contains("True") && !stopped.contains("tick-"),
        "{stopped}"
    );
    assert!(!agent.ok(&["get", "jobs", "-o", "name"]).contains("tick"));
    agent.ok(&["start", "cronjob/tick"]);
    let done = shown(&|status| status["lastSuccessfulTime"].is_string());
    let last = done["status"]["lastScheduleTime"].as_str().expect("a time");
    assert!(last.ends_with("-01T00:00:00Z"), "{done}");
    let runs = || std::fs::read_to_string(agent.root.join("runs")).expect("it ran");
    let pod = runs().trim().to_owned();
    let job = pod.strip_suffix("-0-0").expect("its name").to_owned();
    let list: Value =
        serde_json::from_str(&agent.ok(&["get", "job", &job, "-o", "json"])).expect("JSON");
    let owner = &list["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], done["metadata"]["uid"]);
    assert_eq!(
        agent.pod(&pod)["metadata"]["ownerReferences"][0]["uid"],
        list["metadata"]["uid"]
    );
    assert_eq!(agent.ok(&["logs", &format!("job/{job}")]), "tock\n");
    assert_eq!(agent.ok(&["logs", "cronjob/tick"]), "tock\n");
    let missing = agent.cli(&["rollout", "restart", "deployment/nope"]);
    assert_eq!(
        String::from_utf8_lossy(&missing.stderr),
        "error: deployments.apps \"nope\" not found\n"
    );
    let page = agent.ok(&["describe", "cronjob", "tick"]);
    assert!(
        page.contains("SuccessfulCreate") && page.contains("SawCompletedJob"),
        "{page}"
    );

    // Another agent knows, also without anything that a reboot removes.
    agent.kill();
    for pod in std::fs::read_dir(agent.root.join("run/pods")).expect("a folder") {
        std::fs::remove_file(pod.expect("an entry").path().join("pod.json")).expect("each has one");
    }
    agent.launch();
    agent.write(
        "other.yaml",
        &cron
            .replace("tick", "other")
            .replace("echo $HOSTNAME", "echo other"),
    );
    shown(&|status| status["lastSuccessfulTime"].is_string());
    assert!(agent.ok(&["get", "jobs"]).contains(&job));
    assert_eq!(runs(), format!("{pod}\n"));
    // Without its file nothing is left.
    agent.write("tick.yaml", "");
    agent.ok(&[
        "wait",
        &format!("job/{job}"),
        "--for=delete",
        "--timeout=1m",
    ]);

    // One by hand.
    agent.ok(&["create", "job", "by-hand", "--from=cronjob/other", "--save"]);
    agent.ok(&["wait", "job/by-hand", "--for=create", "--timeout=60s"]);
    agent.ok(&[
        "wait",
        "job/by-hand",
        "--for=condition=complete",
        "--timeout=60s",
    ]);
    assert_eq!(agent.ok(&["logs", "job/by-hand"]), "tock\n");
}
