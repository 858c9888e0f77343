//! Documents that stand for pods: what runs of them, how they are rolled out, and what clients see.

use std::collections::BTreeSet;

use serde_json::Value;

use super::common::{Agent, archive};

pub(super) const SLEEP: &str = "trap 'exit 0' TERM; sleep 1000 & wait";

/// An agent with an image.
pub(super) fn agent() -> Agent {
    let agent = Agent::start();
    agent.ok(&["image", "import", archive().to_str().expect("utf-8")]);
    agent
}

/// A document whose pods run this script.
pub(super) fn document(
    kind: &str,
    name: &str,
    script: &str,
    spec: &str,
    container: &str,
) -> String {
    format!(
        "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n{spec}  selector: {{matchLabels: {{app: \
         {name}}}}}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n    spec:\n      terminationGracePeriodSeconds: \
         5\n      containers:\n      - name: main\n        image: busybox:test\n        command: \
         [sh, -c, \"{script}\"]\n{container}"
    )
}

/// Waits until the status of a document is as wanted.
pub(super) fn wait_status(
    agent: &Agent,
    plural: &str,
    name: &str,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    let path = format!("/apis/apps/v1/namespaces/default/{plural}?watch=true");
    let mut seen = Value::Null;
    for event in agent.watch(&path) {
        let object = &event["object"];
        if object["metadata"]["name"] != name || event["type"] == "DELETED" {
            continue;
        }
        seen = object["status"].clone();
        if wanted(&seen) {
            return object.clone();
        }
    }
    panic!("{plural}/{name} never gets there: {seen}\n{}", agent.log());
}

/// Waits until so many pods are up to date and available, and no other is there.
pub(super) fn wait_rolled_out(agent: &Agent, name: &str, replicas: u64) -> Value {
    wait_status(agent, "deployments", name, |status| {
        let all = ["replicas", "updatedReplicas", "availableReplicas"];
        all.iter().all(|field| status[field] == replicas)
    })
}

/// The names of the pods of a document that are not on their way out.
pub(super) fn pods(agent: &Agent, app: &str) -> BTreeSet<String> {
    let list = agent.ok(&["get", "pods", "-l", &format!("app={app}"), "-o", "json"]);
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let items = list["items"].as_array().expect("a list").iter();
    let live = items.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    let names = live.map(|pod| pod["metadata"]["name"].as_str().expect("a name"));
    names.map(str::to_owned).collect()
}

/// Waits until a Job has ended.
pub(super) fn wait_ended(agent: &Agent, name: &str) -> Value {
    for event in agent.watch("/apis/batch/v1/namespaces/default/jobs?watch=true") {
        let object = &event["object"];
        let conditions = object["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let ended = conditions.any(|c| c["type"] == "Complete" || c["type"] == "Failed");
        if object["metadata"]["name"] == name && ended {
            return object.clone();
        }
    }
    panic!("job/{name} never ends: {}", agent.log());
}

#[test]
fn a_command_waits_for_conditions_values_and_ends() {
    let agent = agent();
    let timed_out = |args: &[&str]| {
        let output = agent.cli(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        String::from_utf8(output.stderr).expect("utf-8")
    };
    let said = timed_out(&["wait", "pod/web", "--for=create", "--timeout=0"]);
    assert!(
        said.contains("timed out waiting for the condition on pod/web"),
        "{said}"
    );
    let missing = agent.cli(&["wait", "pod/web", "--for=condition=Ready"]);
    assert_eq!(missing.status.code(), Some(3), "{missing:?}");
    let ready =
        "      readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 1}\n";
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, labels: {{app: web}}}}\nspec:\n  terminationGracePeriodSeconds: \
         1\n  containers:\n    - name: main\n      image: busybox:test\n      command: [sh, -c, \"{SLEEP}\"]\n{ready}"
    );
    let meanwhile = |args: &[&str], event: &dyn Fn()| {
        let said = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| agent.ok(args));
            event();
            waiting.join().expect("it ends")
        });
        assert_eq!(said, "pod/web condition met\n");
    };
    meanwhile(
        &["wait", "pod/web", "--for=create", "--timeout=1m"],
        &|| {
            agent.write("web.yaml", &pod);
        },
    );
    let running = "--for=jsonpath={.status.phase}=Running";
    agent.ok(&["wait", "pod", "-l", "app=web", running, "--timeout=1m"]);
    let said = timed_out(&[
        "wait",
        "pod/web",
        "--for=condition=Ready",
        "--timeout=500ms",
    ]);
    assert!(said.contains("coracle describe pod/web"), "{said}");
    agent.ok(&["exec", "web", "--", "touch", "/tmp/ready"]);
    agent.ok(&[
        "wait",
        "pod",
        "--all",
        "--for=condition=Ready",
        "--timeout=1m",
    ]);
    meanwhile(
        &["wait", "pod/web", "--for=delete", "--timeout=1m"],
        &|| {
            agent.remove("web.yaml");
        },
    );
    // What is not there is gone, and needs no line.
    agent.ok(&["wait", "pod/web", "--for=delete"]);
}

#[test]
fn a_job_runs_until_it_is_complete_and_not_again() {
    let agent = agent();
    let job = |name: &str, spec: &str, script: &str| {
        format!(
            "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n{spec}  template:\n    spec:\n      \
             restartPolicy: Never\n      volumes: [{{name: out, hostPath: {{path: {}}}}}]\n      containers:\n      - \
             name: main\n        image: busybox:test\n        command: [sh, -c, '{script}']\n        volumeMounts: \
             [{{name: out, mountPath: /out}}]\n",
            agent.root.display()
        )
    };
    let sum = job(
        "sum",
        "  completions: 3\n  parallelism: 2\n  completionMode: Indexed\n",
        "echo $HOSTNAME $JOB_COMPLETION_INDEX >>/out/runs",
    );
    agent.write("sum.yaml", &sum);
    let done = wait_ended(&agent, "sum");
    let status = &done["status"];
    assert_eq!(status["conditions"][1]["type"], "Complete", "{status}");
    assert_eq!(
        (&status["succeeded"], &status["completedIndexes"]),
        (&3.into(), &"0-2".into())
    );
    let runs = || {
        let text = std::fs::read_to_string(agent.root.join("runs")).expect("they ran");
        let lines: BTreeSet<String> = text.lines().map(str::to_owned).collect();
        (text.lines().count(), lines)
    };
    let wanted = ["sum-0 0", "sum-1 1", "sum-2 2"].map(str::to_owned);
    assert_eq!(runs(), (3, BTreeSet::from(wanted)));
    let table = agent.ok(&["get", "jobs"]);
    assert!(
        table.contains("Complete") && table.contains("3/3"),
        "{table}"
    );
    let page = agent.ok(&["describe", "job", "sum"]);
    assert!(
        page.contains("0 Active (0 Ready) / 3 Succeeded / 0 Failed"),
        "{page}"
    );

    // A failing one ends, too, and its logs are there.
    agent.write(
        "bad.yaml",
        &job("bad", "  backoffLimit: 0\n", "echo no luck; exit 3"),
    );
    let failed = wait_ended(&agent, "bad");
    assert_eq!(
        failed["status"]["conditions"][0]["reason"],
        "BackoffLimitExceeded"
    );
    assert_eq!(agent.ok(&["logs", "job/bad"]), "no luck\n");

    // Another agent knows, also without anything that a reboot removes.
    agent.kill();
    for pod in std::fs::read_dir(agent.root.join("run/pods")).expect("a folder") {
        let manifest = pod.expect("an entry").path().join("pod.json");
        std::fs::remove_file(manifest).expect("each has one");
    }
    agent.launch();
    agent.write("bad.yaml", "");
    let again = wait_ended(&agent, "sum");
    assert_eq!(again["status"]["succeeded"], 3);
    agent.write("last.yaml", &job("last", "", "echo last >>/out/runs"));
    wait_ended(&agent, "last");
    assert_eq!(runs().0, 4, "nothing ran again");
    assert!(agent.ok(&["get", "pods"]).contains("last-0-0"));
    let page = agent.ok(&["get", "all"]);
    assert!(page.contains("job.batch/sum"), "{page}");
    let page = agent.ok(&["describe", "job/sum"]);
    assert!(page.contains("Job completed"), "{page}");
    assert!(page.contains("Created pod: sum-"), "{page}");
}

#[test]
fn a_deployment_is_rolled_out_and_survives_its_agent() {
    let agent = agent();
    let version = |letter: &str| {
        document(
            "Deployment",
            "web",
            SLEEP,
            "  replicas: 2\n  minReadySeconds: 0\n",
            &format!("        env: [{{name: V, value: {letter}}}]\n"),
        )
    };
    agent.write("web.yaml", &version("a"));
    let shown = wait_rolled_out(&agent, "web", 2);
    assert_eq!(
        shown["status"]["conditions"][0]["reason"],
        "MinimumReplicasAvailable"
    );
    let first = pods(&agent, "web");
    assert_eq!(first.len(), 2);
    let table = agent.ok(&["get", "all"]);
    assert!(table.contains("deployment.apps/web"), "{table}");
    assert!(table.contains("2/2     2            2"), "{table}");
    let owner = agent.pod(first.first().expect("one"))["metadata"]["ownerReferences"][0].clone();
    assert_eq!(owner["uid"], shown["metadata"]["uid"]);

    let said = agent.ok(&["events", "--for", "deployment/web"]);
    assert!(said.contains("ScalingReplicaSet"), "{said}");
    assert!(said.contains("deployment/web"), "{said}");
    assert!(said.contains("from 0 to 2"), "{said}");

    // The same pods after an agent restart, and no condition has changed.
    agent.kill_and_restart();
    let again = wait_rolled_out(&agent, "web", 2);
    assert_eq!(pods(&agent, "web"), first);
    assert_eq!(again["status"]["conditions"], shown["status"]["conditions"]);
    assert_eq!(
        said.lines().count(),
        agent.ok(&["events", "--for", "deploy/web"]).lines().count()
    );

    // A new template has other pods; those before it go. The agent dies in between.
    agent.write("web.yaml", &version("b"));
    wait_status(&agent, "deployments", "web", |status| {
        status["updatedReplicas"] == 1
    });
    agent.kill_and_restart();
    wait_rolled_out(&agent, "web", 2);
    let second = pods(&agent, "web");
    assert_eq!(second.len(), 2);
    assert!(second.is_disjoint(&first), "{second:?}");
    for pod in &second {
        assert_eq!(agent.ok(&["exec", pod, "--", "sh", "-c", "echo $V"]), "b\n");
    }

    // Commands take the document's name for one of its pods.
    let said = agent.ok(&["exec", "deployment/web", "--", "sh", "-c", "echo $V"]);
    assert_eq!(said, "b\n");
    agent.ok(&["logs", "deploy/web"]);
    let page = agent.ok(&["describe", "deployment", "web"]);
    assert!(
        page.contains("2 desired | 2 updated | 2 total | 2 available"),
        "{page}"
    );
    for pod in &second {
        assert!(page.contains(pod.as_str()), "{page}");
    }
    assert!(page.contains("Scaled down replica set web-"), "{page}");
    let of = "--field-selector=involvedObject.kind=Deployment";
    let events = agent.ok(&["get", "events", of, "-o", "json"]);
    let events: Value = serde_json::from_str(&events).expect("JSON");
    let about = &events["items"][0]["involvedObject"];
    assert_eq!(about["apiVersion"], "apps/v1");
    assert_eq!(about["uid"], shown["metadata"]["uid"]);
    let missing = agent.cli(&["logs", "sts/none"]);
    let missing = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(missing.contains("\"none\" not found"), "{missing}");

    // A deleted pod comes back under its name.
    let one = second.first().expect("one");
    agent.ok(&["delete", "pod", one]);
    wait_rolled_out(&agent, "web", 2);
    agent.remove("web.yaml");
    for pod in &second {
        agent.wait_gone(pod);
    }
    assert_eq!(agent.ok(&["get", "deployments", "-o", "name"]), "");
}

#[test]
fn a_rollout_that_fails_stops_and_the_pods_before_it_go_on() {
    let agent = agent();
    let spec = "  replicas: 3\n  progressDeadlineSeconds: 2\n";
    agent.write("web.yaml", &document("Deployment", "web", SLEEP, spec, ""));
    wait_rolled_out(&agent, "web", 3);
    let good = pods(&agent, "web");
    agent.write(
        "web.yaml",
        &document("Deployment", "web", "exit 1", spec, ""),
    );
    let stopped = |status: &Value| {
        let progressing = &status["conditions"][1];
        progressing["reason"] == "ProgressDeadlineExceeded" && status["availableReplicas"] == 3
    };
    wait_status(&agent, "deployments", "web", stopped);
    assert!(pods(&agent, "web").is_superset(&good));
    agent.kill_and_restart();
    wait_status(&agent, "deployments", "web", stopped);
    assert!(pods(&agent, "web").is_superset(&good));
    // The former template back: its pods were there all the time.
    agent.write("web.yaml", &document("Deployment", "web", SLEEP, spec, ""));
    wait_rolled_out(&agent, "web", 3);
    assert_eq!(pods(&agent, "web"), good);
}

#[test]
fn where_old_and_new_cannot_stand_side_by_side_the_old_one_goes_first() {
    let agent = agent();
    let port = "        ports: [{containerPort: 80, hostPort: 18080}]\n";
    let version = |letter: &str| {
        let env = format!("{port}        env: [{{name: V, value: {letter}}}]\n");
        document("Deployment", "web", SLEEP, "", &env)
    };
    agent.write("web.yaml", &version("a"));
    wait_rolled_out(&agent, "web", 1);
    let first = pods(&agent, "web");
    agent.write("web.yaml", &version("b"));
    first.iter().for_each(|pod| agent.wait_gone(pod));
    wait_rolled_out(&agent, "web", 1);
    assert!(pods(&agent, "web").is_disjoint(&first));
}

#[test]
fn a_document_in_two_files_is_refused_in_the_second() {
    let agent = agent();
    agent.write("a.yaml", &document("DaemonSet", "one", SLEEP, "", ""));
    wait_status(&agent, "daemonsets", "one", |status| {
        status["numberReady"] == 1
    });
    agent.write("b.yaml", &document("DaemonSet", "one", "exit 1", "", ""));
    let refused = || agent.ok(&["get", "files", "-o", "wide"]);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !refused().contains("daemonset default/one is already defined by") {
        assert!(std::time::Instant::now() < deadline, "{}", refused());
    }
    assert_eq!(pods(&agent, "one").len(), 1);
}

#[test]
fn what_pods_run_without_is_passed_over_beside_them_with_a_warning() {
    let agent = agent();
    let ingress = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: web}\nspec: {rules: []}\n";
    let chart = format!(
        "{ingress}---\n{}",
        document("DaemonSet", "web", SLEEP, "", "")
    );
    agent.write("app.env", "LEVEL=debug\nNAME=web\n");
    agent.write("ingress.yaml", ingress);
    agent.write("chart.yaml", &chart);
    wait_status(&agent, "daemonsets", "web", |status| {
        status["numberReady"] == 1
    });
    let files = agent.ok(&["get", "files", "-o", "json"]);
    let files: Value = serde_json::from_str(&files).expect("JSON");
    let files = files["items"].as_array().expect("a list");
    let file = |name: &str| {
        let mut named = files.iter().filter(|file| {
            let path = file["path"].as_str().expect("a path");
            path.ends_with(name)
        });
        named.next()
    };
    assert!(file("app.env").is_none(), "{files:?}");
    let chart = file("chart.yaml").expect("it is read");
    let warning = chart["warnings"][0].as_str().expect("a warning");
    assert!(
        warning.contains("chart.yaml:2:1: kind: Ingress is not supported"),
        "{warning}"
    );
    assert_eq!(chart["errors"].as_array().map_or(0, Vec::len), 0);
    let alone = file("ingress.yaml").expect("it is read");
    assert!(alone["errors"][0].as_str().is_some(), "{alone}");
}

#[test]
fn what_is_shown_of_a_document_is_a_manifest_again() {
    let agent = agent();
    // As people write it, and as clients that know the types of fields refuse to read it.
    let container = "        stdin: no\n        resources: {limits: {cpu: 1}}\n";
    let none = "  replicas: 0\n";
    let mut all = String::new();
    for (kind, spec) in [
        ("Deployment", none),
        ("StatefulSet", none),
        ("DaemonSet", ""),
    ] {
        let name = kind.to_lowercase();
        all += &document(kind, &name, SLEEP, spec, container);
        all += "---\n";
    }
    let pod = "{metadata: {labels: {a: b}}, spec: {restartPolicy: Never, containers: [{name: main, image: busybox:test}], \
               volumes: [{name: c, configMap: {name: c, defaultMode: 0440}}]}}";
    all += &format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: job}}\nspec: {{suspend: yes, backoffLimit: 2.0, template: {pod}}}\n\
         ---\napiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: cronjob}}\n\
         spec: {{schedule: '@yearly', suspend: yes, jobTemplate: {{spec: {{template: {pod}}}}}}}\n"
    );
    agent.write("all.yaml", &all);
    for kind in ["deployment", "statefulset", "daemonset", "job", "cronjob"] {
        let name = format!("{kind}/{kind}");
        agent.ok(&["wait", "--for=create", &name, "--timeout=1m"]);
        let shown = agent.ok(&["get", &name, "-o", "yaml"]);
        let file = agent.root.join("shown.yaml");
        std::fs::write(&file, &shown).expect("temp dir");
        let said = agent.ok(&["validate", file.to_str().expect("utf-8")]);
        assert!(said.contains(": ok: "), "{said}\n{shown}");
        assert!(!said.contains("warning"), "{said}\n{shown}");
        if kind.ends_with("job") {
            let shown = agent.ok(&["get", &name, "-o", "jsonpath={.spec.suspend}"]);
            assert_eq!(shown, "true");
        }
    }
}

#[test]
fn a_job_is_shown_as_complete_and_its_pod_removed_once_that_is_on_disk() {
    let agent = agent();
    let job = format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: once}}\nspec:\n  ttlSecondsAfterFinished: 0\n  template:\n    \
         spec:\n      restartPolicy: Never\n      volumes: [{{name: out, hostPath: {{path: {}}}}}]\n      containers:\n      \
         - name: main\n        image: busybox:test\n        command: [sh, -c, 'until test -e /out/go; do sleep 0.1; \
         done']\n        volumeMounts: [{{name: out, mountPath: /out}}]\n",
        agent.root.display()
    );
    agent.write("once.yaml", &job);
    let wait = |wanted: &str| {
        let shown = agent.watch("/api/v1/pods?watch=true");
        let mut phases = shown.map(|event| event["object"]["status"]["phase"].clone());
        assert!(phases.any(|phase| phase == wanted), "a pod is {wanted}");
    };
    wait("Running");
    // A disk that takes its time: the record is written to a pipe that has no reader yet.
    let record = agent.root.join("root/.jobs.json.tmp");
    nix::unistd::mkfifo(&record, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    std::fs::write(agent.root.join("go"), "").expect("written");
    wait("Succeeded");
    let job: Value =
        serde_json::from_str(&agent.ok(&["get", "job", "once", "-o", "json"])).expect("JSON");
    assert_eq!(job["status"]["succeeded"], 0, "{job}");
    let name = agent.ok(&["get", "pods", "-o", "name"]);
    assert!(name.starts_with("pod/once-0"), "it is still there: {name}");
    let mut reader = std::fs::OpenOptions::new();
    let reader = std::os::unix::fs::OpenOptionsExt::custom_flags(&mut reader, libc::O_NONBLOCK);
    let _reader = reader.read(true).open(&record).expect("the pipe");
    std::fs::remove_file(&record).expect("it is there");
    let done = wait_ended(&agent, "once");
    assert_eq!(done["status"]["succeeded"], 1, "{done}");
    agent.wait_gone(name.trim().trim_start_matches("pod/"));
}

#[test]
fn a_deployment_that_is_paused_when_it_comes_has_no_pods_until_it_goes_on() {
    let agent = agent();
    let text = |paused: bool| {
        let spec = format!("  replicas: 2\n  paused: {paused}\n");
        document("Deployment", "web", SLEEP, &spec, "")
    };
    let paused = |replicas: u64| {
        wait_status(&agent, "deployments", "web", |status| {
            let progressing = &status["conditions"][1];
            progressing["reason"] == "DeploymentPaused"
                && progressing["status"] == "Unknown"
                && status["replicas"] == replicas
                && status["availableReplicas"] == replicas
        })
    };
    agent.write("web.yaml", &text(true));
    paused(0);
    agent.kill_and_restart();
    paused(0);
    agent.power_cut();
    agent.launch();
    paused(0);
    assert_eq!(pods(&agent, "web"), BTreeSet::new());
    agent.write("web.yaml", &text(false));
    wait_rolled_out(&agent, "web", 2);
    let started = pods(&agent, "web");
    // One that is paused later keeps its pods.
    agent.write("web.yaml", &text(true));
    paused(2);
    agent.power_cut();
    agent.launch();
    paused(2);
    assert_eq!(pods(&agent, "web"), started);
}
