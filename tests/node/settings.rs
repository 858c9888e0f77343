//! Settings that change while pods run, and priorities from manifests.

use std::sync::Arc;

use super::*;
use common::netns::Netns;

pub(super) fn wait_log(agent: &Agent, words: &str) {
    let deadline = std::time::Instant::now() + common::PATIENCE;
    while !agent.log().contains(words) {
        assert!(
            std::time::Instant::now() < deadline,
            "no `{words}` in {}",
            agent.log()
        );
        std::thread::sleep(Duration::from_millis(20)); // The log is a file.
    }
}

fn configz(agent: &Agent) -> Value {
    let shown = agent.ok(&["config", "print", "-o", "json"]);
    serde_json::from_str(&shown).expect("JSON")
}

/// The seconds of a crashing container's back-off, as its pod's status shows them.
fn back_off(pod: &Value) -> Option<u64> {
    let waiting = &main_status(pod)["state"]["waiting"];
    let message = waiting["message"].as_str()?;
    let text = message.strip_prefix("back-off ")?.split(' ').next()?;
    let (minutes, rest) = text.split_once('m').unwrap_or(("0", text));
    let seconds: u64 = rest.trim_end_matches('s').parse().ok()?;
    Some(minutes.parse::<u64>().ok()? * 60 + seconds)
}

fn text(path: &std::path::Path) -> String {
    path.to_str().expect("utf-8").to_owned()
}

/// An agent with these settings, and the file that has them.
pub(super) fn configured(settings: &str) -> (Agent, std::path::PathBuf) {
    let agent = Agent::prepare(Arc::new(Netns::new()), &[], None);
    let folder = agent.root.join("etc");
    fs::create_dir_all(folder.join("config.d")).expect("temp dir");
    let quiet = folder.join("config.d/00.conf");
    fs::write(quiet, common::NEVER_SHORT).expect("written");
    let file = folder.join("config.yaml");
    fs::write(&file, format!("kind: KubeletConfiguration\n{settings}")).expect("written");
    let agent = agent.with_flags(&[
        "--config",
        &text(&file),
        "--config-dir",
        &text(&folder.join("config.d")),
    ]);
    agent.launch();
    agent.ok(&[
        "image",
        "import",
        common::archive().to_str().expect("utf-8"),
    ]);
    (agent, file)
}

#[test]
fn the_reduced_back_off_begins_with_a_second() {
    let gate = "featureGates: {ReduceDefaultCrashLoopBackOffDecay: true}\n";
    let (agent, _) = configured(gate);
    agent.write("crash.yaml", &shell_pod("crash", "exit 1", "", ""));
    // With the default back-off the third restart would take a minute.
    for seconds in [1, 2, 4] {
        agent.wait_pod("crash", |pod| back_off(pod) == Some(seconds));
    }
}

#[test]
fn changed_settings_take_effect_at_once_without_effect_on_pods() {
    let (agent, file) = configured("podPidsLimit: 77\n");
    let folder = file.parent().expect("a folder");
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let before = agent.wait_running("a");
    agent.write("crash.yaml", &shell_pod("crash", "exit 1", "", ""));
    agent.wait_pod("crash", |pod| back_off(pod) == Some(10));
    let printed = |words: &str| {
        let shown = agent.ok(&["config", "print"]);
        let squeezed: Vec<&str> = shown.split_whitespace().collect();
        assert!(squeezed.join(" ").contains(words), "{words}: {shown}");
    };
    printed(&format!("podPidsLimit: 77 # {}:2", file.display()));
    printed("maxContainerRestartPeriod: 300s # default");

    // Replaced as by an editor: a new file takes the old one's place. The log names what cannot change.
    let new = folder.join(".config.yaml.new");
    let changed = "kind: KubeletConfiguration\npodPidsLimit: 78\ncrashLoopBackOff: {maxContainerRestartPeriod: 2s}\n";
    fs::write(&new, changed).expect("written");
    fs::rename(&new, &file).expect("renamed");
    agent.wait_pod("crash", |pod| back_off(pod) == Some(2));
    wait_log(&agent, "podPidsLimit: 78");
    wait_log(&agent, "takes effect at the next start");
    printed(&format!(
        "podPidsLimit: 77 # {file}:2; from the next start on 78 ({file}:2)",
        file = file.display()
    ));
    printed(&format!(
        "maxContainerRestartPeriod: 2s # {}:3",
        file.display()
    ));
    let events = agent.ok(&["get", "events"]);
    for reason in ["ConfigurationChanged", "ConfigurationPending"] {
        assert!(events.contains(reason), "{events}");
    }

    // A broken file changes nothing, and is reported.
    fs::write(&file, "kind: KubeletConfiguration\nmaxPods: -1\n").expect("written");
    wait_log(
        &agent,
        "invalid configuration: maxPods (--max-pods) -1 must not be a negative number",
    );
    printed("maxContainerRestartPeriod: 2s");
    let answer = configz(&agent);
    let problem = answer["coracle"]["problem"].as_str().unwrap_or_default();
    assert!(problem.contains("config.yaml:2:1"), "{answer}");
    assert!(
        agent
            .ok(&["get", "events"])
            .contains("InvalidConfiguration")
    );
    let doctor = agent.cli(&["doctor"]);
    let doctor = String::from_utf8_lossy(&doctor.stdout);
    let mut lines = doctor.lines();
    let line = lines.find(|line| line.starts_with("warn  settings"));
    assert!(
        line.is_some_and(|l| l.contains("config.yaml:2:1")),
        "{doctor}"
    );

    // An agent still starts with a broken file, but not with a different file that cannot be read.
    agent.signal(Signal::SIGKILL);
    agent.wait();
    agent.launch();
    wait_log(&agent, "invalid settings; using the last valid ones");
    printed("maxContainerRestartPeriod: 2s");
    printed("podPidsLimit: 78");
    let broken = |agent: &Agent| {
        configz(agent)["coracle"]["problem"]
            .as_str()
            .map(str::to_owned)
    };
    let deadline = std::time::Instant::now() + common::PATIENCE;
    while broken(&agent).is_none_or(|problem| !problem.contains("config.yaml:2:1")) {
        assert!(std::time::Instant::now() < deadline, "{}", agent.log());
        std::thread::sleep(Duration::from_millis(20)); // Clients cannot watch settings.
    }
    let root = agent.root.join("root");
    let other = coracle()
        .args([
            "run",
            "--config",
            "/nonexistent.yaml",
            "--root",
            &text(&root),
        ])
        .output()
        .expect("coracle runs");
    let said = String::from_utf8_lossy(&other.stderr);
    assert_eq!(other.status.code(), Some(1), "{said}");
    assert!(
        said.contains("could not read settings from `/nonexistent.yaml`"),
        "{said}"
    );

    // The valid file is back, and a drop-in sets more.
    fs::write(&file, "podPidsLimit: 77\n").expect("written");
    fs::write(folder.join("config.d/10.conf"), "maxPods: 20\n").expect("written");
    wait_log(&agent, "maxPods: 20");
    assert_eq!(configz(&agent)["kubeletconfig"]["maxPods"], 20);
    assert_eq!(configz(&agent)["coracle"]["problem"], Value::Null);

    agent.signal(Signal::SIGHUP);
    wait_log(&agent, "the settings were read again, nothing has changed");
    let after = agent.wait_running("a");
    assert_eq!(main_status(&after)["restartCount"], 0);
    assert_eq!(pid_of(&agent, &before), pid_of(&agent, &after));
}

/// Neither closes a file, and the second one comes before the first one was read.
#[test]
fn drop_ins_that_are_removed_or_linked_one_after_the_other_are_read() {
    let (agent, _) = configured("maxPods: 10\n");
    let (folder, targets) = (
        agent.root.join("etc/config.d"),
        agent.root.join("etc/targets"),
    );
    fs::create_dir(&targets).expect("temp dir");
    let wait_for = |max_pods: u64, per_core: u64| {
        let deadline = std::time::Instant::now() + common::PATIENCE;
        loop {
            let shown = configz(&agent);
            let config = &shown["kubeletconfig"];
            if config["maxPods"] == max_pods && config["podsPerCore"] == per_core {
                return;
            }
            assert!(
                std::time::Instant::now() < deadline,
                "{shown}\n{}",
                agent.log()
            );
            std::thread::sleep(Duration::from_millis(50)); // No client is told of settings.
        }
    };
    let names = ["30-a.conf", "40-b.conf"];
    let texts = ["maxPods: 40\n", "podsPerCore: 33\n"];
    for (name, text) in names.iter().zip(texts) {
        let text = format!("kind: KubeletConfiguration\n{text}");
        fs::write(targets.join(name), text).expect("written");
        std::os::unix::fs::symlink(format!("../targets/{name}"), folder.join(name))
            .expect("linked");
        std::thread::sleep(Duration::from_millis(200));
    }
    wait_for(40, 33);
    // What a link leads to.
    fs::write(
        targets.join(names[0]),
        "kind: KubeletConfiguration\nmaxPods: 41\n",
    )
    .expect("written");
    wait_for(41, 33);
    for name in names {
        fs::remove_file(folder.join(name)).expect("removed");
        std::thread::sleep(Duration::from_millis(200));
    }
    wait_for(10, 0);
}

#[test]
fn a_changed_priority_class_applies_to_its_pods_without_a_restart() {
    let agent = Agent::start();
    let pod =
        shell_pod("a", SLEEP, "", "").replacen("spec:", "spec:\n  priorityClassName: gold", 1);
    agent.write("a.yaml", &pod);
    let rejected = |agent: &Agent| {
        agent
            .ok(&["get", "files", "-o", "wide"])
            .contains("Not found: \"gold\"")
    };
    let deadline = std::time::Instant::now() + common::PATIENCE;
    while !rejected(&agent) {
        assert!(std::time::Instant::now() < deadline, "never rejected");
        std::thread::sleep(Duration::from_millis(20)); // Clients cannot watch files.
    }
    let class = |value: u32| {
        format!(
            "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {{name: gold}}\nvalue: {value}\n\
             preemptionPolicy: Never\n"
        )
    };
    agent.write("classes.yaml", &class(1000));
    let before = agent.wait_running("a");
    assert_eq!(before["spec"]["priority"], 1000);
    assert_eq!(before["spec"]["preemptionPolicy"], "Never");
    agent.write("classes.yaml", &class(2000));
    let after = agent.wait_pod("a", |pod| pod["spec"]["priority"] == 2000);
    assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert_eq!(main_status(&after)["restartCount"], 0);
    assert_eq!(pid_of(&agent, &before), pid_of(&agent, &after));
    let rows = agent.ok(&["get", "pc"]);
    let row = rows
        .lines()
        .find(|row| row.starts_with("gold"))
        .expect("listed");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        (cells[1], cells[2], cells[4]),
        ("2000", "false", "Never"),
        "{rows}"
    );
    assert!(rows.contains("system-node-critical"), "{rows}");
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn urgent_pods_start_first_when_many_wait() {
    let agent = Agent::start();
    agent.signal(Signal::SIGTERM);
    agent.wait();
    let class = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: urgent}\nvalue: 1000\n";
    agent.write("classes.yaml", class);
    const EACH: usize = 12;
    for number in 0..EACH {
        for (name, more) in [
            ("any", "  hostNetwork: true\n"),
            (
                "urgent",
                "  hostNetwork: true\n  priorityClassName: urgent\n",
            ),
        ] {
            let name = format!("{name}{number}");
            agent.write(&format!("{name}.yaml"), &shell_pod(&name, SLEEP, more, ""));
        }
    }
    agent.launch();
    for number in 0..EACH {
        agent.wait_running(&format!("any{number}"));
        agent.wait_running(&format!("urgent{number}"));
    }
    let list = agent.ok(&["get", "events", "-o", "json"]);
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let items = list["items"].as_array().expect("items");
    let started = items.iter().filter(|event| event["reason"] == "Started");
    let names: Vec<&str> = started
        .filter_map(|event| event["involvedObject"]["name"].as_str())
        .collect();
    assert_eq!(names.len(), 2 * EACH, "{names:?}");
    // A start under way is not interrupted for a more urgent one, so only the average order counts.
    let places = |of: &str| -> usize {
        let all = names.iter().enumerate();
        all.filter(|(_, name)| name.starts_with(of))
            .map(|(at, _)| at)
            .sum()
    };
    let (urgent, any) = (places("urgent"), places("any"));
    assert!(urgent * 3 < any * 2, "{names:?}");
}
