//! Annotation `coracle.dev/after` on a real node: other pods, paths, mounts and units.

use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;
use common::bus::Bus;
use nix::mount::{MsFlags, mount, umount};

/// A pod that starts after this, with more lines of its container.
fn after(name: &str, items: &str, more: &str) -> String {
    let pod = shell_pod(name, SLEEP, "", more);
    let named = format!("name: {name}");
    assert!(pod.contains(&named), "{pod}");
    let with = format!("name: {name}\n  annotations: {{coracle.dev/after: '{items}'}}");
    match pod.contains(&format!("{{{named}}}")) {
        true => pod.replacen(
            &format!("{{{named}}}"),
            &format!("{{{named}, annotations: {{coracle.dev/after: '{items}'}}}}"),
            1,
        ),
        false => pod.replacen(&named, &with, 1),
    }
}

fn write(agent: &Agent, name: &str, items: &str) {
    agent.write(&format!("{name}.yaml"), &after(name, items, ""));
}

/// Waits until the pod is held with exactly this message.
fn wait_held(agent: &Agent, name: &str, what: &str) {
    let text = format!("The pod waits: {what}.");
    let held = agent.wait_pod(name, |pod| {
        let status = &pod["status"];
        status["reason"] == "WaitingForDependencies" && status["message"] == *text
    });
    assert_eq!(held["status"]["phase"], "Pending");
}

/// A readiness probe that succeeds once the file `/tmp/ready` is there.
const PROBE: &str =
    "    readinessProbe: {periodSeconds: 1, exec: {command: [test, -e, /tmp/ready]}}\n";

fn clean_up(agent: &Agent, names: &[&str]) {
    for name in names {
        agent.remove(&format!("{name}.yaml"));
    }
    for name in names {
        agent.wait_gone(name);
    }
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_pod_waits_for_another_once_also_over_agent_restarts_and_again_after_a_boot() {
    let agent = Agent::start();
    write(&agent, "web", "db:ready");
    wait_held(&agent, "web", "pod `default/db` does not exist");
    agent.kill_and_restart();
    agent.write("db.yaml", &shell_pod("db", SLEEP, "", PROBE));
    agent.wait_running("db");
    wait_held(&agent, "web", "pod `default/db` is not ready");
    let shown = agent.ok(&["get", "pods"]);
    assert!(shown.contains("WaitingForDependencies"), "{shown}");
    let boot = agent.ok(&["boot"]);
    let line = boot.lines().find(|line| line.contains("default/web"));
    let line = line.unwrap_or_else(|| panic!("{boot}"));
    assert!(
        line.contains("default/db:ready") && line.ends_with("(still missing)"),
        "{boot}"
    );
    agent.ok(&["exec", "db", "--", "touch", "/tmp/ready"]);
    let pid = pid_of(&agent, &agent.wait_running("web"));
    // What happens to the other pod later is no reason to wait.
    agent.remove("db.yaml");
    agent.wait_gone("db");
    agent.kill_and_restart();
    assert_eq!(pid_of(&agent, &agent.wait_running("web")), pid);
    let boot: Value = serde_json::from_str(&agent.ok(&["boot", "-o", "json"])).expect("JSON");
    let item = &boot["items"][0]["items"][0];
    assert_eq!(
        (&item["after"], &item["state"]),
        (&"default/db:ready".into(), &"there".into())
    );
    let (waited, admitted) = (
        &boot["items"][0]["waitedSeconds"],
        &boot["items"][0]["admittedSeconds"],
    );
    assert!(
        waited.as_f64() > Some(0.0) && admitted.as_f64() > waited.as_f64(),
        "{boot}"
    );
    agent.power_cut();
    agent.launch();
    wait_held(&agent, "web", "pod `default/db` does not exist");
    agent.write("db.yaml", &shell_pod("db", SLEEP, "", ""));
    agent.wait_running("web");
    clean_up(&agent, &["web", "db"]);
}

#[test]
fn a_time_out_starts_the_pod_and_plan_names_what_is_missing() {
    let agent = Agent::start();
    let file = agent.root.join("late.yaml");
    fs::write(&file, after("late", "db?timeout=1s&then=start", "")).expect("temp dir");
    let planned = agent.cli(&["plan", file.to_str().expect("utf-8")]);
    let planned = String::from_utf8_lossy(&planned.stdout).into_owned();
    let text = "waits for admission (WaitingForDependencies): The pod waits: pod `default/db` does not exist.";
    assert!(planned.contains(text), "{planned}");
    write(&agent, "late", "db?timeout=1s&then=start");
    write(&agent, "stays", "db?timeout=1s");
    agent.wait_running("late");
    let events = agent.ok(&["get", "events"]);
    for text in [
        "`default/db` was not there after 1s. The pod starts without it.",
        "`default/db` was not there after 1s. The pod goes on waiting.",
    ] {
        assert!(events.contains(text), "{events}");
    }
    wait_held(&agent, "stays", "pod `default/db` does not exist");
    let boot = agent.ok(&["boot"]);
    assert_eq!(boot.matches("(timed out)").count(), 2, "{boot}");
    clean_up(&agent, &["late", "stays"]);
}

#[test]
fn files_devices_and_mounts_are_noticed_when_they_appear() {
    let agent = Agent::start();
    let top = agent.root.join("outside");
    let path = |name: &str| top.join(name).to_str().expect("utf-8").to_owned();
    let items = format!(
        "file:{}, device:{}, mount:{}, device:/dev/null",
        path("a/b/file"),
        path("link"),
        path("mnt")
    );
    write(&agent, "web", &items);
    let missing = [
        format!("file `{}` is not there", path("a/b/file")),
        format!("device `{}` is not there", path("link")),
        format!("nothing is mounted at `{}`", path("mnt")),
    ];
    wait_held(&agent, "web", &missing.join("; "));
    fs::create_dir_all(top.join("a/b")).expect("made");
    fs::write(top.join("a/b/file"), "").expect("written");
    wait_held(&agent, "web", &missing[1..].join("; "));
    // A link to nothing is not there, and neither is a regular file.
    symlink("target", top.join("link")).expect("made");
    fs::write(top.join("target"), "").expect("written");
    fs::create_dir(top.join("mnt")).expect("made");
    fs::remove_file(top.join("a/b/file")).expect("removed");
    wait_held(&agent, "web", &missing.join("; "));
    fs::write(top.join("a/b/file"), "").expect("written");
    fs::remove_file(top.join("target")).expect("removed");
    symlink("/dev/zero", top.join("target")).expect("made");
    wait_held(&agent, "web", &missing[2]);
    let folder = top.join("mnt");
    let tmpfs = |at: &Path| {
        mount(
            Some("none"),
            at,
            Some("tmpfs"),
            MsFlags::empty(),
            None::<&str>,
        )
        .expect("mounted");
    };
    tmpfs(&folder);
    agent.wait_running("web");
    umount(&folder).expect("unmounted");
    agent.wait_running("web");
    clean_up(&agent, &["web"]);
}

#[test]
fn a_pod_that_asks_for_it_is_stopped_when_a_mount_goes_and_comes_back_with_it() {
    let agent = Agent::start();
    let folder = agent.root.join("mnt");
    fs::create_dir(&folder).expect("made");
    let tmpfs = || {
        mount(
            Some("none"),
            &folder,
            Some("tmpfs"),
            MsFlags::empty(),
            None::<&str>,
        )
        .expect("mounted");
    };
    tmpfs();
    write(&agent, "web", &format!("mount:{}?again", folder.display()));
    let first = agent.wait_running("web");
    // A new agent has to find out first what there is.
    agent.kill_and_restart();
    assert_eq!(
        pid_of(&agent, &agent.wait_running("web")),
        pid_of(&agent, &first)
    );
    umount(&folder).expect("unmounted");
    wait_held(
        &agent,
        "web",
        &format!("nothing is mounted at `{}`", folder.display()),
    );
    let events = agent.ok(&["get", "events"]);
    assert!(events.contains("DependencyLost"), "{events}");
    tmpfs();
    let second = agent.wait_running("web");
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    clean_up(&agent, &["web"]);
    umount(&folder).expect("unmounted");
}

#[test]
fn units_are_asked_of_systemd_and_without_it_the_pod_waits_and_says_so() {
    let bus = Bus::serve("order", 700, false);
    let agent = Agent::prepare(std::sync::Arc::new(common::netns::Netns::new()), &[], None);
    agent.launch();
    agent.ok(&[
        "image",
        "import",
        common::archive().to_str().expect("utf-8"),
    ]);
    write(&agent, "web", "unit:modem.service");
    let text = "unit `modem.service` is not active";
    let silent = format!("{text} (systemd cannot be asked over the system bus)");
    wait_held(&agent, "web", &silent);
    agent.kill();
    let agent = agent.with_bus(&bus);
    agent.launch();
    wait_held(&agent, "web", &format!("{text} (systemd has no such unit)"));
    bus.set_units("activating");
    wait_held(&agent, "web", text);
    bus.set_units("active");
    agent.wait_running("web");
    clean_up(&agent, &["web"]);
}

#[test]
fn the_clock_is_waited_for_if_it_is_not_synchronised() {
    let agent = Agent::start();
    write(&agent, "web", "time-sync");
    match coracle::sys::clock_sync::is_synchronized() {
        true => drop(agent.wait_running("web")),
        false => wait_held(&agent, "web", "the clock is not synchronised"),
    }
    clean_up(&agent, &["web"]);
}

#[test]
fn a_circle_is_refused_and_running_pods_go_on() {
    let agent = Agent::start();
    write(&agent, "a", "time-sync?timeout=100ms&then=start");
    write(&agent, "b", "a");
    let pids = ["a", "b"].map(|name| pid_of(&agent, &agent.wait_running(name)));
    write(&agent, "a", "b");
    // The second time a new agent reads the files.
    for marker in ["one", "two"] {
        agent.write(&format!("{marker}.yaml"), &shell_pod(marker, SLEEP, "", ""));
        agent.wait_running(marker);
        let files = agent.ok(&["get", "files", "-o", "json"]);
        assert!(
            files.contains("a.yaml: pods wait for each other in a circle"),
            "{files}"
        );
        assert_eq!(
            ["a", "b"].map(|name| pid_of(&agent, &agent.wait_running(name))),
            pids
        );
        agent.kill_and_restart();
    }
    let folder = agent.root.join("manifests");
    let checked = agent.cli(&["validate", folder.to_str().expect("utf-8")]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(!checked.status.success());
    assert_eq!(said.matches("in a circle").count(), 2, "{said}");
    clean_up(&agent, &["a", "b", "one", "two"]);
}

#[test]
fn a_pod_waits_until_another_has_completed() {
    let agent = Agent::start();
    write(&agent, "web", "step:complete");
    let script = "while ! test -e /tmp/done; do sleep 0.1; done";
    let step = shell_pod("step", script, "  restartPolicy: OnFailure\n", "");
    agent.write("step.yaml", &step);
    agent.wait_running("step");
    wait_held(&agent, "web", "pod `default/step` has not completed");
    agent.kill_and_restart();
    wait_held(&agent, "web", "pod `default/step` has not completed");
    agent.ok(&["exec", "step", "--", "touch", "/tmp/done"]);
    let pid = pid_of(&agent, &agent.wait_running("web"));
    agent.kill_and_restart();
    assert_eq!(pid_of(&agent, &agent.wait_running("web")), pid);
    clean_up(&agent, &["web", "step"]);
}
