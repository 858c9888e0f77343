//! Logs of several containers and pods by `coracle logs`.

use super::*;

/// A Deployment whose pods have two containers that each say a word.
const WEB: &str = "apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: one, image: 'busybox:test', command: [sh, -c, 'seq 20; echo one; exec sleep 1000']}
      - {name: two, image: 'busybox:test', command: [sh, -c, 'echo two; exec sleep 1000']}
";

const JOB: &str = "apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: 'busybox:test', command: [echo, done]}]
";

fn wait(agent: &Agent, what: &str, condition: &str) {
    for wanted in ["create", condition] {
        agent.ok(&["wait", what, &format!("--for={wanted}"), "--timeout=60s"]);
    }
}

/// The pods' names.
fn pods(agent: &Agent, selector: &str) -> Vec<String> {
    let names = agent.ok(&["get", "pods", "-l", selector, "-o", "name"]);
    names.lines().map(str::to_owned).collect()
}

#[test]
fn logs_of_several_pods_come_one_after_the_other_or_are_followed_together() {
    let agent = Agent::start();
    agent.write("web.yaml", WEB);
    wait(&agent, "deployment/web", "condition=Available");
    let web = pods(&agent, "app=web");
    assert_eq!(web.len(), 2);
    // Until everything is in the logs.
    for (container, last) in [("one", "one"), ("two", "two")] {
        for pod in &web {
            let name = pod.trim_start_matches("pod/");
            follow_until(&agent, &["logs", "-f", name, "-c", container], last);
        }
    }
    let output = agent.cli(&["logs", "-l", "app=web"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        said.lines().count(),
        20,
        "the last ten lines of each: {said}"
    );
    assert_eq!(said.lines().filter(|line| *line == "one").count(), 2);
    let noted = String::from_utf8_lossy(&output.stderr);
    assert!(
        noted.contains("Defaulted container \"one\" of pod"),
        "{noted}"
    );
    let all = agent.ok(&[
        "logs",
        "deployment/web",
        "--all-pods",
        "--all-containers",
        "--tail",
        "1",
    ]);
    for pod in &web {
        for container in ["one", "two"] {
            let line = format!("[{pod}/{container}] {container}");
            assert!(all.lines().any(|found| found == line), "no {line} in {all}");
        }
    }
    let one = agent.ok(&["logs", "deployment/web", "-c", "two"]);
    assert_eq!(one, "two\n", "one pod only");

    let mut followed = exec_logs(
        &agent,
        &[
            "-l",
            "app=web",
            "--all-containers",
            "--prefix",
            "-f",
            "--max-log-requests=8",
        ],
    );
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(
        followed.stdout.take().expect("piped"),
    ));
    let mut missing: Vec<String> = web.iter().map(|pod| format!("[{pod}/one] one")).collect();
    while !missing.is_empty() {
        let line = lines.next().expect("it goes on").expect("text");
        missing.retain(|wanted| *wanted != line);
    }
    // It goes on with the pods of a rollout.
    let mut one = exec_logs(&agent, &["deployment/web", "-c", "two", "-f"]);
    let said = one.stdout.take().expect("piped");
    let mut of_one = std::io::BufRead::lines(std::io::BufReader::new(said));
    let mut next = || of_one.next().expect("it goes on").expect("text");
    assert_eq!(next(), "two");
    let new = WEB
        .replace("echo one;", "echo three;")
        .replace("echo two;", "echo four;");
    agent.write("web.yaml", &new);
    while next() != "four" {}
    let mut missing = 4;
    while missing > 0 {
        let line = lines.next().expect("it goes on").expect("text");
        missing -= usize::from(line.ends_with("/one] three") || line.ends_with("/two] four"));
    }
    agent.ok(&["rollout", "status", "deployment/web", "--timeout=60s"]);
    let web = pods(&agent, "app=web");

    // It ends with the last container.
    agent.remove("web.yaml");
    for pod in &web {
        agent.wait_gone(pod.trim_start_matches("pod/"));
    }
    while lines.next().is_some() {}
    assert!(followed.wait().expect("own child").success());
    while of_one.next().is_some() {}
    assert!(one.wait().expect("own child").success());

    let output = agent.cli(&["logs", "-l", "app=none"]);
    assert!(output.status.success() && output.stdout.is_empty());
    let noted = String::from_utf8_lossy(&output.stderr);
    assert_eq!(noted, "No resources found in default namespace.\n");
}

#[test]
fn a_selector_is_followed_into_the_pod_that_replaces_its_last_one() {
    let agent = Agent::start();
    let bare = "apiVersion: v1
kind: Pod
metadata: {name: bare, labels: {app: bare}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: 'busybox:test', command: [sh, -c, 'echo up; exec sleep 1000']}]
";
    let only = WEB
        .replace("web", "only")
        .replace("replicas: 2", "replicas: 1");
    for (name, text, container, what, condition) in [
        ("bare", bare, "main", "pod/bare", "condition=Ready"),
        (
            "only",
            &only,
            "two",
            "deployment/only",
            "condition=Available",
        ),
    ] {
        let (file, selector) = (format!("{name}.yaml"), format!("app={name}"));
        agent.write(&file, text);
        wait(&agent, what, condition);
        let first = pods(&agent, &selector).remove(0);
        let mut followed = exec_logs(&agent, &["-l", &selector, "-c", container, "-f"]);
        let said = followed.stdout.take().expect("piped");
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(said));
        let mut next = || lines.next().expect("it goes on").expect("text");
        let line = next();
        agent.ok(&["delete", &first]);
        assert_eq!(next(), line, "the new pod of {name}");
        agent.remove(&file);
        assert!(lines.next().is_none(), "{name} is gone");
        assert!(followed.wait().expect("own child").success());
    }
    // A pod that has ended does not come again.
    let done = bare
        .replace("bare", "done")
        .replace("; exec sleep 1000", "")
        .replace("spec:", "spec:\n  restartPolicy: Never");
    agent.write("done.yaml", &done);
    agent.wait_phase("done", "Succeeded");
    assert_eq!(agent.ok(&["logs", "-l", "app=done", "-f"]), "up\n");
}

#[test]
fn a_damaged_compressed_log_costs_its_own_lines_only_and_is_said() {
    let agent = Agent::start();
    agent.write(
        "a.yaml",
        &shell_pod("a", "echo up; exec sleep 1000", "", ""),
    );
    let uid = agent.wait_running("a")["metadata"]["uid"].clone();
    agent.wait_line("a", "up");
    let uid = uid.as_str().expect("a uid");
    let folder = agent.root.join(format!("logs/default_a_{uid}/main"));
    let void = "0.log.20200101-000000.gz";
    fs::write(folder.join(void), "").expect("written");
    for more in [&[][..], &["--tail=9"], &["--since=1h", "--timestamps"]] {
        let read = agent.cli(&[&["logs", "a"], more].concat());
        let said = String::from_utf8_lossy(&read.stdout);
        assert!(read.status.success() && said.ends_with("up\n"), "{read:?}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let noted = String::from_utf8_lossy(&read.stderr);
        let warning = format!("warning: lines of the log are missing: {void} could not be read\n");
        assert_eq!(noted, warning);
    }
    let log = agent.log();
    assert!(log.contains("could not read all of log"), "{log}");
}

fn exec_logs(agent: &Agent, args: &[&str]) -> std::process::Child {
    coracle()
        .arg("logs")
        .args(args)
        .env("CORACLE_SOCKET", agent.socket())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("coracle runs")
}

#[test]
fn what_is_followed_is_limited_and_errors_end_it_unless_they_are_ignored() {
    let agent = Agent::start();
    agent.write("web.yaml", WEB);
    agent.write("once.yaml", JOB);
    wait(&agent, "job/once", "condition=Complete");
    assert_eq!(agent.ok(&["logs", "job/once"]), "done\n");
    wait(&agent, "deployment/web", "condition=Available");
    let args = [
        "logs",
        "-l",
        "app=web",
        "--all-containers",
        "-f",
        "--max-log-requests",
        "3",
    ];
    let output = agent.cli(&args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("attempting to follow 4 log streams, but maximum allowed concurrency is 3"),
        "{said}"
    );
    let absent = ["logs", "-l", "app=web", "-c", "absent"];
    let output = agent.cli(&absent);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("container \"absent\" not found"), "{said}");
    assert_eq!(output.status.code(), Some(3));
    assert!(
        agent
            .cli(&[&absent[..], &["--ignore-errors"]].concat())
            .status
            .success()
    );
    for args in [&["logs"][..], &["logs", "a", "-l", "x=y"]] {
        assert_eq!(agent.cli(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn without_a_container_the_first_is_meant_or_that_of_kubectls_annotation() {
    let agent = Agent::start();
    let second = "  - name: second\n    image: busybox:test\n    command: [sh, -c, 'echo from second; exec sleep 1000']\n";
    let text = shell_pod("a", "echo from main; exec sleep 1000", "", second);
    agent.write("a.yaml", &text);
    agent.wait_running("a");
    let said = agent.cli(&["logs", "a"]);
    assert_eq!(String::from_utf8_lossy(&said.stdout), "from main\n");
    let told = "Defaulted container \"main\" of pod a out of: main, second\n";
    assert_eq!(String::from_utf8_lossy(&said.stderr), told);
    let said = agent.cli(&["exec", "a", "--", "true"]);
    assert_eq!(String::from_utf8_lossy(&said.stderr), told);
    let annotation = "metadata:\n  annotations: {kubectl.kubernetes.io/default-container: second}";
    agent.write("a.yaml", &text.replacen("metadata:", annotation, 1));
    agent.ok(&[
        "wait",
        "pod/a",
        "--for=jsonpath={.metadata.annotations.kubectl\\.kubernetes\\.io/default-container}=second",
        "--timeout=60s",
    ]);
    let said = agent.cli(&["logs", "a"]);
    assert_eq!(String::from_utf8_lossy(&said.stdout), "from second\n");
    assert_eq!(String::from_utf8_lossy(&said.stderr), "");
    agent.ok(&["exec", "a", "--", "touch", "/tmp/of-second"]);
    agent.ok(&[
        "exec",
        "a",
        "-c",
        "second",
        "--",
        "test",
        "-e",
        "/tmp/of-second",
    ]);
}

/// A service of those pods.
const FRONT: &str = "apiVersion: v1
kind: Service
metadata: {name: front}
spec: {clusterIP: None, selector: {app: web}, ports: [{port: 80}]}
";

#[test]
fn services_and_selectors_stand_for_pods_and_a_second_word_for_a_container() {
    let agent = Agent::start();
    agent.write("web.yaml", WEB);
    agent.write("front.yaml", FRONT);
    wait(&agent, "deployment/web", "condition=Available");
    let web = pods(&agent, "app=web");
    for pod in &web {
        follow_until(&agent, &["logs", "-f", pod, "two"], "two");
    }
    for target in [&web[0], "deployment/web", "svc/front"] {
        let said = agent.ok(&["logs", target, "two", "--tail", "1"]);
        assert_eq!(said, "two\n", "{target}");
    }
    let all = agent.ok(&["logs", "service/front", "--all-pods", "-c", "two"]);
    assert_eq!(all.lines().count(), 2, "{all}");
    follow_until(&agent, &["logs", "-f", "svc/front", "two"], "two");
    let name = agent.ok(&["exec", "svc/front", "-c", "one", "--", "hostname"]);
    assert!(web.contains(&format!("pod/{}", name.trim())), "{name}");
    let absent = agent.cli(&["logs", &web[0], "absent"]);
    let said = String::from_utf8_lossy(&absent.stderr);
    assert!(
        !absent.status.success() && said.contains("as with -c"),
        "{said}"
    );

    let described = |args: &[&str]| {
        let text = agent.ok(&[&["describe"], args].concat());
        let names = text.lines().filter(|line| line.starts_with("Name: "));
        names.count()
    };
    assert_eq!(described(&["pods", "-l", "app=web"]), 2);
    assert_eq!(described(&["pods,svc", "-A"]), 3);
    assert_eq!(described(&["pods", "-l", "app=other"]), 0);

    let delete = |args: &[&str]| agent.cli(&[&["delete", "pods"], args].concat());
    assert!(delete(&["none", "--ignore-not-found"]).status.success());
    assert_eq!(delete(&["none"]).status.code(), Some(3));
    let late = delete(&[&web[0][4..], "--grace-period=10", "--timeout=1s"]);
    let said = String::from_utf8_lossy(&late.stderr);
    assert_eq!(late.status.code(), Some(1), "{said}");
    assert!(
        said.contains("timed out waiting for the condition on pods/"),
        "{said}"
    );
    let done = delete(&["-l", "app=web", "--timeout", "60s"]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{said}");
    assert_eq!(said.matches(" deleted").count(), 2, "{said}");
}

#[test]
fn what_a_file_defines_already_is_not_saved_again() {
    let agent = Agent::start();
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: app}\n";
    agent.write("all.yaml", map);
    agent.ok(&["wait", "configmap/app", "--for=create", "--timeout=60s"]);
    let refused = agent.cli(&["create", "configmap", "app", "--save"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("is already defined by `all.yaml`"), "{said}");
    assert!(!agent.root.join("manifests/app-configmap.yaml").exists());
    agent.ok(&["create", "configmap", "other", "--save"]);
    agent.ok(&["wait", "configmap/other", "--for=create", "--timeout=60s"]);
}
