//! Container starts and stops: hooks, stop signals, and termination messages.

use std::process::Command;

use super::events::wait_event;
use super::stages::{STAY, runs, staged, status, story};
use super::*;

/// The time in seconds of the first line `<uptime> <what>` in the pod's story.
fn time_of(agent: &Agent, pod: &str, what: &str) -> f64 {
    let lines = story(agent, pod);
    let found = lines.iter().find_map(|line| {
        let (at, said) = line.split_once(' ')?;
        (said == what).then(|| at.parse().expect("seconds"))
    });
    found.unwrap_or_else(|| panic!("no line `{what}`: {lines:?}"))
}

fn wait_recorded(agent: &Agent, pod: &str, what: &str, times: usize) {
    let begin = std::time::Instant::now();
    let is_it = |line: &&String| line.split_once(' ').is_some_and(|(_, said)| said == what);
    while story(agent, pod).iter().filter(is_it).count() < times {
        assert!(begin.elapsed() < PATIENCE, "no line `{what}`");
        std::thread::sleep(Duration::from_millis(5)); // It is the container's own file; no event reports that it grows.
    }
}

/// A shell command that writes this with the time.
fn record(what: &str) -> String {
    format!("echo \"$(cut -d\" \" -f1 /proc/uptime) {what}\" >> /s/story")
}

/// A shell script that runs until it gets this signal, and records both.
fn stays_until(signal: &str) -> String {
    let (up, end) = (record("$NAME up"), record(&format!("$NAME {signal}")));
    format!("trap '{end}; exit 0' {signal}; {up}; while :; do sleep 1 & wait $!; done")
}

fn exec(script: &str) -> String {
    let script = serde_json::to_string(script).expect("a string");
    format!("{{exec: {{command: [sh, -c, {script}]}}}}")
}

fn lifecycle(post_start: &str, pre_stop: &str) -> String {
    format!("    lifecycle: {{postStart: {post_start}, preStop: {pre_stop}}}\n")
}

fn pre_stop(hook: &str) -> String {
    format!("    lifecycle: {{preStop: {hook}}}\n")
}

fn events(agent: &Agent) -> String {
    agent.request("/api/v1/namespaces/default/events").0
}

fn uptime() -> f64 {
    let text = fs::read_to_string("/proc/uptime").expect("/proc");
    let first = text.split(' ').next().expect("two numbers");
    first.parse().expect("a number")
}

#[test]
fn exec_http_and_sleep_hooks_run_at_the_start_and_before_the_stop_signal() {
    let agent = Agent::start();
    let page = |what: &str| format!("{{httpGet: {{port: 8080, path: \"/cgi-bin/hook?{what}\"}}}}");
    // A sidecar, so that it runs before and after the others. Its page records the client.
    let cgi = format!(
        "#!/bin/sh\n{}\nprintf \"Status: 404 Not Found\\r\\n\\r\\n\"\n",
        record("$QUERY_STRING $HTTP_USER_AGENT")
    );
    let serve = format!(
        "mkdir -p /v/cgi-bin; echo \"$CGI\" > /v/cgi-bin/hook; chmod 755 /v/cgi-bin/hook; httpd -p 8080 -h /v; {}",
        stays_until("TERM")
    );
    let sidecar = format!(
        "    restartPolicy: Always\n    startupProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 1}}\n{}",
        pre_stop(&exec(&record("web hook")))
    );
    let stays = stays_until("TERM");
    let nap = "{sleep: {seconds: 1}}";
    let (begin, end) = (record("begin hook"), record("end hook"));
    let main = [
        ("nap", stays.as_str(), lifecycle(nap, nap)),
        ("page", &stays, lifecycle(&page("start"), &page("stop"))),
        (
            "prog",
            &stays,
            lifecycle(&exec(&begin), &exec(&format!("{end}; sleep 1"))),
        ),
    ];
    let main = main
        .each_ref()
        .map(|(name, script, more)| (*name, *script, more.as_str()));
    let pod = staged(&agent, "a", "", &[("web", &serve, &sidecar)], &main);
    let cgi = serde_json::to_string(&cgi).expect("a string");
    let own = "{name: NAME, value: web}";
    let pod = pod.replace(own, &format!("{own}, {{name: CGI, value: {cgi}}}"));
    agent.write("a.yaml", &pod);
    agent.wait_running("a");
    for name in ["nap", "page", "prog"] {
        wait_recorded(&agent, "a", &format!("{name} up"), 1);
    }
    let removed = uptime();
    agent.remove("a.yaml");
    agent.wait_gone("a");

    let at = |what: &str| time_of(&agent, "a", what);
    assert!(
        at("prog up") >= at("nap up") + 0.9,
        "a sleep delays later containers"
    );
    assert!(
        at("start kube-lifecycle/1.36") <= at("prog up"),
        "so does a page"
    );
    assert!(at("begin hook") <= removed);
    assert!(at("stop kube-lifecycle/1.36") <= at("page TERM"));
    assert!(
        at("nap TERM") >= removed + 0.9,
        "the sleep ends before the signal"
    );
    assert!(
        at("prog TERM") >= at("end hook") + 0.9,
        "the program ends before the signal"
    );
    assert!(
        at("web hook") < at("nap TERM"),
        "a sidecar's hook runs at the start"
    );
    for name in ["nap", "page", "prog"] {
        assert!(
            at("web TERM") >= at(&format!("{name} TERM")),
            "a sidecar ends last: {name}"
        );
    }
    let said = events(&agent);
    assert!(
        !said.contains("Hook"),
        "any answer counts as success: {said}"
    );
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_pre_stop_program_that_hangs_has_the_grace_even_over_agent_restarts_unless_a_client_wants_less()
{
    let agent = Agent::start();
    let hangs = pre_stop(&exec(&format!("{}; exec sleep 1000", record("hook"))));
    let stays = stays_until("TERM");
    let pods = [("a", "5"), ("shorter", "60"), ("forced", "60")];
    for (name, grace) in pods {
        let pod = staged(&agent, name, "", &[], &[("main", &stays, &hangs)]);
        let grace = format!("terminationGracePeriodSeconds: {grace}");
        let pod = pod.replace("terminationGracePeriodSeconds: 5", &grace);
        agent.write(&format!("{name}.yaml"), &pod);
    }
    for (name, _) in pods {
        agent.wait_running(name);
        wait_recorded(&agent, name, "main up", 1);
    }
    for (name, _) in pods {
        agent.remove(&format!("{name}.yaml"));
    }
    for (name, _) in pods {
        wait_recorded(&agent, name, "hook", 1);
    }
    agent.kill_and_restart();
    let begin = std::time::Instant::now();
    agent.ok(&["delete", "pod", "forced", "--force", "--grace-period", "0"]);
    agent.ok(&["delete", "pod", "shorter", "--grace-period", "1"]);
    agent.wait_gone("a");
    assert!(begin.elapsed() < Duration::from_secs(40), "not a minute");
    let count_of = |name: &str, what: &str| {
        let lines = story(&agent, name);
        lines.iter().filter(|line| line.ends_with(what)).count()
    };
    assert_eq!(count_of("a", " hook"), 1, "it goes on without an agent");
    let waited = time_of(&agent, "a", "main TERM") - time_of(&agent, "a", "hook");
    assert!((4.5..15.0).contains(&waited), "the clock went on: {waited}");
    for name in ["shorter", "forced"] {
        assert_eq!(
            count_of(name, " main TERM"),
            1,
            "{name}: it gets the stop signal first"
        );
    }
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

/// Runs pod `a` with this preStop hook, removes it, and waits until the hook runs.
fn stop_until_hook(agent: &Agent, hook: &str, grace_s: u32) {
    let main = [("main", &*stays_until("TERM"), &*pre_stop(hook))];
    let pod = staged(agent, "a", "", &[], &main);
    let grace = format!("terminationGracePeriodSeconds: {grace_s}");
    agent.write(
        "a.yaml",
        &pod.replace("terminationGracePeriodSeconds: 5", &grace),
    );
    wait_recorded(agent, "a", "main up", 1);
    agent.remove("a.yaml");
    wait_recorded(agent, "a", "hook", 1);
}

#[test]
fn a_pre_stop_program_survives_an_agent_restart() {
    let agent = Agent::start();
    let hook = exec(&format!(
        "{}; sleep 5; {}",
        record("hook"),
        record("hooked")
    ));
    stop_until_hook(&agent, &hook, 8);
    std::thread::sleep(Duration::from_secs(4)); // The moment of the kill is the test's input.
    agent.kill_and_restart();
    agent.wait_gone("a");
    let lines = story(&agent, "a");
    let said: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.split(' ').nth(1))
        .collect();
    assert_eq!(said, ["main", "hook", "hooked", "main"], "{lines:?}");
    assert!(!events(&agent).contains("FailedPreStopHook"), "{lines:?}");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn the_result_of_a_hook_that_ends_while_no_agent_runs_is_reported() {
    let agent = Agent::start();
    let hook = exec(&format!(
        "{}; sleep 2; echo trouble >&2; {}; exit 3",
        record("hook"),
        record("hooked")
    ));
    stop_until_hook(&agent, &hook, 60);
    agent.kill();
    wait_recorded(&agent, "a", "hooked", 1);
    agent.launch();
    let failed = |event: &Value| event["reason"] == "FailedPreStopHook";
    let event = wait_event(&agent, failed);
    let text = event["message"].as_str().expect("a text");
    assert!(text.contains("exited with 3: trouble"), "{text}");
    agent.wait_gone("a");
    let lines = story(&agent, "a");
    let hooks = lines.iter().filter(|line| line.ends_with(" hook")).count();
    assert_eq!(hooks, 1, "{lines:?}");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_container_is_up_when_its_post_start_program_is_done_even_over_an_agent_restart() {
    let agent = Agent::start();
    let wait = format!(
        "{}; until test -e /s/go; do usleep 20000; done",
        record("hook")
    );
    let more = format!("    lifecycle: {{postStart: {}}}\n", exec(&wait));
    let main = [("one", STAY, more.as_str()), ("two", STAY, "")];
    agent.write("a.yaml", &staged(&agent, "a", "", &[], &main));
    wait_recorded(&agent, "a", "hook", 1);
    let pod = agent.pod("a");
    let waits = |name: &str| status(&pod, name)["state"]["waiting"]["reason"].clone();
    assert_eq!(
        (waits("one"), waits("two")),
        ("ContainerCreating".into(), "ContainerCreating".into())
    );
    assert_eq!(pod["status"]["phase"], "Pending");
    agent.kill_and_restart();
    assert!(!runs(&agent.pod("a"), "two"), "it waits for the hook");
    fs::write(agent.root.join("story-a/go"), "").expect("temp dir");
    let pod = agent.wait_pod("a", |pod| runs(pod, "one") && runs(pod, "two"));
    assert_eq!(status(&pod, "one")["restartCount"], 0);
    agent.kill_and_restart();
    agent.wait_pod("a", |pod| runs(pod, "one") && runs(pod, "two"));
    agent.remove("a.yaml");
    agent.wait_gone("a");
    let hooks = story(&agent, "a");
    let hooks = hooks.iter().filter(|line| line.ends_with(" hook")).count();
    assert_eq!(hooks, 1, "a completed hook is not repeated");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_container_whose_post_start_program_fails_is_stopped_and_started_again() {
    let agent = Agent::start();
    let script = "echo w''hy; echo b''ad >&2; test -e /s/good || { touch /s/good; exit 3; }";
    let more = lifecycle(
        &exec(script),
        &exec(&format!("{}; sleep 1", record("stopped"))),
    );
    agent.write(
        "a.yaml",
        &staged(&agent, "a", "", &[], &[("main", STAY, &more)]),
    );
    let pod = agent.wait_pod("a", |pod| {
        status(pod, "main")["state"]["waiting"]["reason"] == "PostStartHookError"
    });
    let message = &status(&pod, "main")["state"]["waiting"]["message"];
    let message = message.as_str().expect("a message");
    let begin = format!(
        "Exec lifecycle hook ([sh -c {script}]) for Container \"main\" in Pod \"a_default("
    );
    assert!(message.starts_with(&begin), "{message}");
    let end = "exited with 3: bad, message: \"why\\nbad\\n\"";
    assert!(message.ends_with(end), "{message}");
    let pod = agent.wait_pod("a", |pod| runs(pod, "main"));
    assert_eq!(status(&pod, "main")["restartCount"], 1);
    wait_recorded(&agent, "a", "stopped", 1);
    let said = events(&agent);
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let of = |reason: &str| {
        let mut all = said["items"].as_array().expect("a list").iter();
        let event = all.find(|event| event["reason"] == reason);
        event.map(|event| event["message"].as_str().unwrap_or_default().to_owned())
    };
    let failed = of("FailedPostStartHook").expect("reported");
    assert_eq!(failed, format!("PostStartHook failed: {message}"));
    assert!(agent.log().contains(&failed), "{}", agent.log());
    let killing = "Container main failed postStart hook, will be restarted";
    assert_eq!(of("Killing").as_deref(), Some(killing));
}

/// The busybox image with a stop signal of its own, by the name `signal:test`.
fn image_with_stop_signal(agent: &Agent) -> String {
    let script = "mkdir \"$2\"; cd \"$2\"; tar xf \"$1\"; config=$(ls *.json | grep -v manifest); \
                  sed -i 's/\"config\":{/&\"StopSignal\":\"SIGUSR2\",/' $config; \
                  id=$(sha256sum $config | cut -d' ' -f1); mv $config $id.json; \
                  sed -i \"s/$config/$id.json/; s/busybox:test/signal:test/\" manifest.json; tar cf image.tar *";
    let folder = agent.root.join("signal");
    let mut make = Command::new("sh");
    make.args(["-euc", script, "sh"])
        .arg(common::archive())
        .arg(&folder);
    assert!(make.status().expect("sh runs").success());
    folder.join("image.tar").display().to_string()
}

#[test]
fn the_stop_signal_comes_from_the_manifest_or_the_image() {
    let agent = Agent::start();
    agent.ok(&["image", "import", &image_with_stop_signal(&agent)]);
    let script = |signal: &str| {
        let stays = stays_until(signal);
        let others = ["TERM", "USR1", "USR2"]
            .into_iter()
            .filter(|other| *other != signal);
        let others: String = others
            .map(|other| format!("trap {:?} {other}; ", record("wrong")))
            .collect();
        format!("{others}{stays}")
    };
    let (one, two) = (script("USR1"), script("USR2"));
    let main = [
        (
            "one",
            one.as_str(),
            "    lifecycle: {stopSignal: SIGUSR1}\n",
        ),
        ("two", &two, ""),
    ];
    let pod = staged(&agent, "a", "  os: {name: linux}\n", &[], &main);
    agent.write("a.yaml", &pod.replace("busybox:test", "signal:test"));
    let pod = agent.wait_running("a");
    assert_eq!(status(&pod, "one")["stopSignal"], "SIGUSR1");
    assert_eq!(status(&pod, "two")["stopSignal"], "SIGUSR2");
    wait_recorded(&agent, "a", "one up", 1);
    wait_recorded(&agent, "a", "two up", 1);
    agent.remove("a.yaml");
    agent.wait_gone("a");
    wait_recorded(&agent, "a", "one USR1", 1);
    wait_recorded(&agent, "a", "two USR2", 1);
    assert!(
        !story(&agent, "a")
            .iter()
            .any(|line| line.ends_with("wrong"))
    );
}

#[test]
fn a_containers_termination_message_is_the_end_of_its_file_or_of_its_log() {
    let agent = Agent::start();
    let from_log = "    terminationMessagePolicy: FallbackToLogsOnError\n";
    let file = "head -c 5000 /dev/zero | tr '\\0' x > /dev/termination-log; echo end >> /dev/termination-log";
    let lines = "i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo line $i; done; exit 1";
    let both = "echo log; echo file > /dev/termination-log; exit 1";
    let main = [
        ("file", file, ""),
        (
            "elsewhere",
            "echo there > /tmp/last",
            "    terminationMessagePath: /tmp/last\n",
        ),
        ("lines", lines, from_log),
        (
            "long",
            "head -c 5000 /dev/zero | tr '\\0' y; exit 1",
            from_log,
        ),
        ("both", both, from_log),
        ("well", "echo log", from_log),
        ("quiet", "echo log; exit 1", ""),
    ];
    let pod = staged(&agent, "a", "  restartPolicy: Never\n", &[], &main);
    agent.write("a.yaml", &pod);
    let pod = agent.wait_phase("a", "Failed");
    let message = |name: &str| {
        let ended = &status(&pod, name)["state"]["terminated"];
        assert!(ended.is_object(), "{name} has ended");
        ended["message"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(message("file"), format!("{}end\n", "x".repeat(4092)));
    assert_eq!(message("elsewhere"), "there\n");
    let last: String = (21..=100).map(|n| format!("line {n}\n")).collect();
    assert_eq!(message("lines"), last);
    assert_eq!(message("long"), "y".repeat(2048));
    assert_eq!(message("both"), "file\n");
    assert_eq!(
        (message("well"), message("quiet")),
        (String::new(), String::new())
    );
}
