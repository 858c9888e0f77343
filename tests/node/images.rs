//! Images that are there, come later, or never come.

use super::*;

#[test]
fn an_image_that_is_not_there_is_named_with_the_way_out_and_found_once_imported() {
    let agent = Agent::start_with(&[]);
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let never = shell_pod("never", SLEEP, "", "    imagePullPolicy: Never\n");
    agent.write("never.yaml", &never);
    let pod = agent.wait_pod("a", |pod| {
        main_status(pod)["state"]["waiting"]["reason"] == "ErrImagePull"
    });
    let message = main_status(&pod)["state"]["waiting"]["message"].to_string();
    assert!(message.contains("coracle image import"), "{message}");
    agent.wait_pod("never", |pod| {
        main_status(pod)["state"]["waiting"]["reason"] == "ErrImageNeverPull"
    });
    agent.ok(&[
        "image",
        "import",
        common::archive().to_str().expect("utf-8"),
    ]);
    agent.wait_running("a");
    agent.wait_running("never");
    assert!(agent.ok(&["get", "images"]).contains("busybox"));
}

#[test]
fn an_archive_in_the_preload_folder_is_imported_by_itself() {
    let agent = Agent::start_with(&[]);
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    let staged = agent.root.join("preload/.busybox.tar");
    fs::copy(common::archive(), &staged).expect("copied");
    fs::rename(staged, agent.root.join("preload/busybox.tar")).expect("renamed");
    agent.wait_running("a");
}

#[test]
fn a_pod_waits_for_an_image_that_is_being_imported_at_the_start() {
    let agent = Agent::start_with(&[]);
    agent.signal(Signal::SIGTERM);
    agent.wait();
    fs::copy(common::archive(), agent.root.join("preload/busybox.tar")).expect("copied");
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.launch();
    agent.wait_running("a");
    let events = agent.ok(&["get", "events"]);
    assert!(!events.contains("ErrImagePull"), "{events}");
}

#[test]
fn an_image_in_use_is_neither_removed_nor_pruned() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let refused = agent.cli(&["image", "rm", "busybox:test"]);
    assert!(!refused.status.success(), "a container runs from it");
    agent.ok(&["image", "prune", "-a", "-f"]);
    assert!(agent.ok(&["image", "ls"]).contains("busybox"));
    agent.remove("a.yaml");
    agent.wait_gone("a");
    agent.ok(&["image", "rm", "busybox:test"]);
    assert!(!agent.ok(&["image", "ls"]).contains("busybox"));
}
