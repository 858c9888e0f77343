//! Stages of a pod's life: init containers and sidecars before and beside the regular containers.

use super::*;

/// The volumes of every container of a staged pod: a folder of the test at /s for the story, one of the pod at /v.
const VOLUMES: &str =
    "    volumeMounts: [{name: story, mountPath: /s}, {name: v, mountPath: /v}]\n";

/// Runs until it gets the stop signal; writes its start and its end into the story.
pub(super) const STAY: &str = "echo $NAME up >> /s/story; trap 'echo $NAME end >> /s/story; exit 0' TERM; \
                    while :; do sleep 1 & wait $!; done";

/// Runs until the test opens the gate.
const GATE: &str = "echo $NAME start >> /s/story; read x < /s/gate; echo $NAME end >> /s/story";

/// One container: name, script and more of its YAML, indented by four.
pub(super) type Part<'a> = (&'a str, &'a str, &'a str);

/// A pod of these init and regular containers; `more` is YAML put below `spec`.
pub(super) fn staged(
    agent: &Agent,
    name: &str,
    more: &str,
    init: &[Part],
    main: &[Part],
) -> String {
    let story = story_dir(agent, name);
    fs::create_dir_all(&story).expect("temp dir");
    let list = |title: &str, parts: &[Part]| {
        let mut text = format!("  {title}:\n");
        for (name, script, more) in parts {
            let script = serde_json::to_string(script).expect("a string");
            text.push_str(&format!(
                "  - name: {name}\n    image: busybox:test\n    command: [sh, -c, {script}]\n    \
                 env: [{{name: NAME, value: {name}}}]\n{VOLUMES}{more}"
            ));
        }
        text
    };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 5\n{more}  \
         volumes:\n  - {{name: v, emptyDir: {{}}}}\n  - {{name: story, hostPath: {{path: \"{}\"}}}}\n{}{}",
        story.display(),
        list("initContainers", init),
        list("containers", main)
    )
}

pub(super) fn story_dir(agent: &Agent, name: &str) -> std::path::PathBuf {
    agent.root.join(format!("story-{name}"))
}

/// The lines that the containers of a pod have written, in order.
pub(super) fn story(agent: &Agent, name: &str) -> Vec<String> {
    let text = fs::read_to_string(story_dir(agent, name).join("story")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Makes the gate of a pod before the pod exists.
fn make_gate(agent: &Agent, name: &str) {
    fs::create_dir_all(story_dir(agent, name)).expect("temp dir");
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
    nix::unistd::mkfifo(&story_dir(agent, name).join("gate"), mode).expect("a fifo");
}

/// Lets the container pass that waits at the gate now, or is the first to come.
fn open_gate(agent: &Agent, name: &str) {
    fs::write(story_dir(agent, name).join("gate"), "go\n").expect("a fifo");
}

/// Status of an init or regular container.
pub(super) fn status<'p>(pod: &'p Value, container: &str) -> &'p Value {
    let lists = ["initContainerStatuses", "containerStatuses"];
    let all = lists
        .iter()
        .filter_map(|list| pod["status"][list].as_array());
    let found = all.flatten().find(|status| status["name"] == container);
    found.unwrap_or(&Value::Null)
}

pub(super) fn runs(pod: &Value, container: &str) -> bool {
    !status(pod, container)["state"]["running"].is_null()
}

pub(super) fn condition<'p>(pod: &'p Value, kind: &str) -> &'p Value {
    let all = pod["status"]["conditions"].as_array();
    let found = all.and_then(|all| all.iter().find(|one| one["type"] == kind));
    found.unwrap_or(&Value::Null)
}

fn uid_of(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().expect("uid")
}

#[test]
fn init_containers_run_one_after_the_other_and_pass_on_their_files() {
    let agent = Agent::start();
    let first =
        "echo one start >> /s/story; echo 1 > /v/data; echo in the log; echo one end >> /s/story";
    let second = "echo two start >> /s/story; echo 2 >> /v/data; echo two end >> /s/story";
    let main = format!("cat /v/data; {STAY}");
    let init = [("one", first, ""), ("two", second, "")];
    agent.write(
        "a.yaml",
        &staged(&agent, "a", "", &init, &[("main", &main, "")]),
    );
    let pod = agent.wait_pod("a", |pod| runs(pod, "main"));
    for name in ["one", "two"] {
        let ended = &status(&pod, name)["state"]["terminated"];
        assert_eq!(
            (&ended["reason"], &ended["exitCode"]),
            (&"Completed".into(), &0.into())
        );
        assert_eq!(status(&pod, name)["ready"], true, "{name}");
    }
    assert_eq!(condition(&pod, "Initialized")["status"], "True");
    let begin = &story(&agent, "a")[..4];
    assert_eq!(begin, ["one start", "one end", "two start", "two end"]);
    assert_eq!(follow_until(&agent, &["logs", "-f", "a"], "2"), "1\n2\n");
    assert_eq!(agent.ok(&["logs", "a", "-c", "one"]), "in the log\n");
    assert!(agent.ok(&["get", "pods"]).contains("1/1"));
    let page = agent.ok(&["describe", "pod", "a"]);
    let (before, after) = page.split_once("\nContainers:").expect("two sections");
    assert!(
        before.contains("\nInit Containers:\n  one:") && after.contains("  main:"),
        "{page}"
    );
    // Of a container that has ended for good only its record is kept.
    let uid = uid_of(&pod);
    let state = agent.root.join("root/pods").join(uid).join("containers");
    assert!(!state.join("one/layer-0").exists() && state.join("main/layer-0").exists());
    assert!(
        agent
            .root
            .join(format!("run/pods/{uid}/records/one.json"))
            .exists()
    );
    let group = agent.cgroup_path("memory", &format!("besteffort/pod{uid}"), "c-one");
    assert!(!group.exists(), "{}", group.display());
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn while_an_init_container_runs_the_status_shows_how_far_the_pod_is() {
    let agent = Agent::start();
    make_gate(&agent, "a");
    let init = [("one", "true", ""), ("two", GATE, "")];
    agent.write(
        "a.yaml",
        &staged(&agent, "a", "", &init, &[("main", STAY, "")]),
    );
    let pod = agent.wait_pod("a", |pod| runs(pod, "two"));
    assert_eq!(pod["status"]["phase"], "Pending");
    assert_eq!(
        status(&pod, "main")["state"]["waiting"]["reason"],
        "PodInitializing"
    );
    let initialized = condition(&pod, "Initialized");
    assert_eq!(initialized["reason"], "ContainersNotInitialized");
    assert_eq!(
        initialized["message"],
        "containers with incomplete status: [two]"
    );
    assert!(agent.ok(&["get", "pods"]).contains("Init:1/2"));
    open_gate(&agent, "a");
    agent.wait_running("a");
}

#[test]
fn a_failing_init_container_ends_a_pod_that_is_never_restarted() {
    let agent = Agent::start();
    let never = "  restartPolicy: Never\n";
    let init = [("one", "exit 3", ""), ("two", STAY, "")];
    agent.write(
        "a.yaml",
        &staged(&agent, "a", never, &init, &[("main", STAY, "")]),
    );
    let pod = agent.wait_phase("a", "Failed");
    assert_eq!(status(&pod, "one")["state"]["terminated"]["exitCode"], 3);
    assert_eq!(status(&pod, "one")["restartCount"], 0);
    for name in ["two", "main"] {
        assert_eq!(
            status(&pod, name)["state"]["waiting"]["reason"],
            "PodInitializing"
        );
    }
    assert_eq!(story(&agent, "a"), Vec::<String>::new());
    assert!(agent.ok(&["get", "pods"]).contains("Init:Error"));
}

#[test]
fn a_failing_init_container_restarts_with_back_off_until_it_succeeds() {
    let agent = Agent::start();
    let on_failure = "  restartPolicy: OnFailure\n";
    let second_time = "[ -e /v/tried ] && exit 0; touch /v/tried; exit 1";
    let init = [("one", second_time, "")];
    agent.write(
        "a.yaml",
        &staged(&agent, "a", on_failure, &init, &[("main", STAY, "")]),
    );
    agent.write(
        "b.yaml",
        &staged(
            &agent,
            "b",
            "",
            &[("one", "exit 1", "")],
            &[("main", STAY, "")],
        ),
    );
    let pod = agent.wait_running("a");
    assert_eq!(status(&pod, "one")["restartCount"], 1);
    assert_eq!(
        status(&pod, "one")["lastState"]["terminated"]["exitCode"],
        1
    );
    let pod = agent.wait_pod("b", |pod| {
        status(pod, "one")["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    });
    assert_eq!(pod["status"]["phase"], "Pending");
    assert!(
        agent
            .ok(&["get", "pod", "b"])
            .contains("Init:CrashLoopBackOff")
    );
}

#[test]
fn killing_the_agent_while_init_containers_run_repeats_none_of_them() {
    let agent = Agent::start();
    make_gate(&agent, "a");
    let count = "echo one >> /s/story";
    let init = [
        ("one", count, ""),
        ("two", GATE, ""),
        ("three", "echo three >> /s/story", ""),
    ];
    agent.write(
        "a.yaml",
        &staged(&agent, "a", "", &init, &[("main", STAY, "")]),
    );
    agent.wait_pod("a", |pod| runs(pod, "two"));
    for _ in 0..3 {
        agent.kill_and_restart();
        agent.wait_pod("a", |pod| runs(pod, "two"));
    }
    open_gate(&agent, "a");
    let pod = agent.wait_running("a");
    agent.kill_and_restart();
    let again = agent.wait_running("a");
    assert_eq!(status(&again, "one"), status(&pod, "one"));
    for name in ["one", "two", "three", "main"] {
        assert_eq!(status(&again, name)["restartCount"], 0, "{name}");
    }
    let seen = story(&agent, "a");
    assert_eq!(seen[..4], ["one", "two start", "two end", "three"]);
    assert!(seen.len() <= 5, "{seen:?}");
}

#[test]
fn killing_the_agent_at_random_moments_repeats_no_init_container() {
    let agent = Agent::start();
    let note = "echo $NAME >> /s/story";
    let init = [("one", note, ""), ("two", note, ""), ("three", note, "")];
    // A fixed sequence of pauses, so that a failure can be reproduced.
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..8 {
        let name = format!("p{round}");
        let text = staged(&agent, &name, "", &init, &[("main", STAY, "")]);
        agent.write("p.yaml", &text);
        for _ in 0..3 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            std::thread::sleep(Duration::from_millis(random % 150)); // The moment of the kill is the test's input.
            agent.kill_and_restart();
        }
        let pod = agent.wait_running(&name);
        agent.wait_line_of_story(&name, "main up", 1);
        assert_eq!(story(&agent, &name), ["one", "two", "three", "main up"]);
        assert_eq!(status(&pod, "three")["restartCount"], 0, "{pod:#}");
    }
}

#[test]
fn an_init_container_that_ends_while_no_agent_runs_is_not_repeated() {
    let agent = Agent::start();
    make_gate(&agent, "a");
    let init = [("one", GATE, "")];
    agent.write(
        "a.yaml",
        &staged(&agent, "a", "", &init, &[("main", STAY, "")]),
    );
    agent.wait_pod("a", |pod| runs(pod, "one"));
    agent.signal(Signal::SIGKILL);
    agent.wait();
    open_gate(&agent, "a");
    agent.launch();
    let pod = agent.wait_running("a");
    assert_eq!(status(&pod, "one")["restartCount"], 0);
    let starts = story(&agent, "a")
        .iter()
        .filter(|line| *line == "one start")
        .count();
    assert_eq!(starts, 1);
}

#[test]
fn a_pod_whose_shim_was_killed_begins_again_with_its_init_containers() {
    let agent = Agent::start();
    let init = [
        ("one", "echo one >> /s/story", ""),
        ("two", "echo two >> /s/story", ""),
    ];
    agent.write(
        "a.yaml",
        &staged(&agent, "a", "", &init, &[("main", STAY, "")]),
    );
    agent.wait_running("a");
    agent.wait_line_of_story("a", "main up", 1);
    kill_shim(&agent, "a");
    let pod = agent.wait_pod("a", |pod| {
        runs(pod, "main") && status(pod, "main")["restartCount"] == 1
    });
    assert_eq!(status(&pod, "two")["restartCount"], 1);
    let seen = story(&agent, "a");
    assert_eq!(seen[..5], ["one", "two", "main up", "one", "two"]);
}

#[test]
fn a_shim_killed_in_the_init_phase_makes_that_phase_begin_again() {
    let agent = Agent::start();
    make_gate(&agent, "a");
    let init = [("one", "echo one >> /s/story", ""), ("two", GATE, "")];
    agent.write(
        "a.yaml",
        &staged(&agent, "a", "", &init, &[("main", STAY, "")]),
    );
    agent.wait_pod("a", |pod| runs(pod, "two"));
    agent.wait_line_of_story("a", "two start", 1);
    kill_shim(&agent, "a");
    agent.wait_pod("a", |pod| {
        runs(pod, "two") && status(pod, "two")["restartCount"] == 1
    });
    open_gate(&agent, "a");
    let pod = agent.wait_running("a");
    assert_eq!(status(&pod, "one")["restartCount"], 1);
    assert_eq!(
        status(&pod, "main")["restartCount"],
        0,
        "it has not run before"
    );
    let seen = story(&agent, "a");
    assert_eq!(
        seen[..5],
        ["one", "two start", "one", "two start", "two end"]
    );
}

#[test]
fn a_pod_that_is_removed_in_its_init_phase_leaves_no_trace() {
    let agent = Agent::start();
    let init = [
        ("side", STAY, "    restartPolicy: Always\n"),
        ("stuck", STAY, ""),
    ];
    agent.write(
        "a.yaml",
        &staged(&agent, "a", "", &init, &[("main", STAY, "")]),
    );
    agent.wait_pod("a", |pod| runs(pod, "stuck"));
    agent.wait_line_of_story("a", "stuck up", 1);
    agent.wait_line_of_story("a", "side up", 1);
    agent.remove("a.yaml");
    agent.wait_gone("a");
    let seen = story(&agent, "a");
    assert!(
        seen.contains(&"stuck end".to_owned()) && seen.contains(&"side end".to_owned()),
        "{seen:?}"
    );
    assert!(!seen.contains(&"main up".to_owned()), "{seen:?}");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn an_init_containers_missing_image_is_reported_and_delays_later_containers() {
    let agent = Agent::start();
    let text = staged(
        &agent,
        "a",
        "",
        &[("one", "true", "")],
        &[("main", STAY, "")],
    );
    let never = "image: absent:1\n    imagePullPolicy: Never";
    agent.write("a.yaml", &text.replacen("image: busybox:test", never, 1));
    let pod = agent.wait_pod("a", |pod| {
        status(pod, "one")["state"]["waiting"]["reason"] == "ErrImageNeverPull"
    });
    assert_eq!(
        status(&pod, "main")["state"]["waiting"]["reason"],
        "PodInitializing"
    );
    assert!(
        agent
            .ok(&["get", "pods"])
            .contains("Init:ErrImageNeverPull")
    );
    assert!(
        agent
            .ok(&["get", "events", "-o", "json"])
            .contains("spec.initContainers{one}")
    );
}

#[test]
fn after_a_power_cut_a_pod_begins_with_its_init_containers() {
    let agent = Agent::start();
    let init = [("one", "echo one >> /s/story", "")];
    agent.write(
        "a.yaml",
        &staged(&agent, "a", "", &init, &[("main", STAY, "")]),
    );
    agent.wait_running("a");
    agent.wait_line_of_story("a", "main up", 1);
    agent.power_cut();
    agent.launch();
    agent.wait_line_of_story("a", "main up", 2);
    assert_eq!(story(&agent, "a"), ["one", "main up", "one", "main up"]);
    let pod = agent.wait_running("a");
    assert_eq!(
        status(&pod, "one")["restartCount"],
        1,
        "the logs are still there"
    );
}

impl Agent {
    /// Waits until a pod's containers have written this line so many times.
    pub(super) fn wait_line_of_story(&self, pod: &str, line: &str, times: usize) {
        let begin = std::time::Instant::now();
        while story(self, pod).iter().filter(|l| *l == line).count() < times {
            assert!(
                begin.elapsed() < PATIENCE,
                "never `{line}`: {:?}",
                story(self, pod)
            );
            std::thread::sleep(Duration::from_millis(5)); // It is the container's own file; no event reports that it grows.
        }
    }
}
