//! `activeDeadlineSeconds`, the limit of a pod's life, also across an agent restart.

use super::*;

#[test]
fn a_pod_fails_at_its_deadline_and_stays_so() {
    let agent = Agent::start();
    let script = "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 1 & wait $!; done";
    let more = "  activeDeadlineSeconds: 3\n";
    agent.write("short.yaml", &shell_pod("short", script, more, ""));
    let begun = agent.wait_running("short");
    agent.wait_line("short", "up");
    agent.kill_and_restart();
    let failed = agent.wait_phase("short", "Failed");
    assert_eq!(failed["status"]["reason"], "DeadlineExceeded");
    assert_eq!(
        failed["status"]["startTime"], begun["status"]["startTime"],
        "the deadline counts from the pod's start"
    );
    let ended = agent.wait_pod("short", |pod| {
        main_status(pod)["state"]["terminated"].is_object()
    });
    let over = &main_status(&ended)["state"]["terminated"];
    assert_eq!(over["exitCode"], 0, "it gets the stop signal first: {over}");
    agent.wait_line("short", "asked");
    let (events, _) = agent.request("/api/v1/namespaces/default/events");
    assert!(events.contains("Pod was active on the node longer than the specified deadline"));

    agent.kill_and_restart();
    let after = agent.wait_phase("short", "Failed");
    assert_eq!(after["status"]["reason"], "DeadlineExceeded");
    assert_eq!(main_status(&after)["restartCount"], 0);
    agent.remove("short.yaml");
    agent.wait_gone("short");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}
