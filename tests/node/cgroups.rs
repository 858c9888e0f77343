//! Can people see what bounds a pod, as the kernel tells it?

use super::*;

const LIMITS: &str =
    "    resources: {limits: {cpu: 100m, memory: 32Mi}, requests: {cpu: 50m, memory: 16Mi}}\n";

#[test]
fn a_pod_is_described_with_the_values_of_its_cgroups_as_they_are_now() {
    let agent = Agent::start();
    agent.write("web.yaml", &shell_pod("web", SLEEP, "", LIMITS));
    let pod = agent.wait_running("web");
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let values = |whose: &str| {
        let text = agent.ok(&["describe", "pod", "web", "-o", "json"]);
        let all: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(all["pod"]["metadata"]["name"], "web");
        let item = all["cgroups"].as_array().expect("a list").iter();
        let mut item = item.filter(|item| item["container"].as_str().unwrap_or("") == whose);
        item.next().expect("it has a cgroup").clone()
    };
    let value = |item: &Value, file: &str| {
        let mut all = item["values"].as_array().expect("a list").iter();
        all.find(|value| value["file"] == file).expect(file).clone()
    };
    let v2 = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let (file, controller) = match v2 {
        true => ("memory.max", ""),
        false => ("memory.limit_in_bytes", "memory"),
    };
    for whose in ["", "main"] {
        let limit = value(&values(whose), file);
        assert_eq!(limit["found"], (32 << 20).to_string(), "{limit}");
        assert_eq!(limit["holds"], true);
    }
    // Nobody may change it behind the agent's back without being seen.
    let path = values("main")["path"].as_str().expect("a path").to_owned();
    assert!(path.ends_with(&format!("pod{uid}/c-main")), "{path}");
    let below = path.split_once("pods/").expect("below the agent's").1;
    fs::write(agent.cgroup_path(controller, below, file), "16777216").expect("written");
    assert_eq!(value(&values("main"), file)["holds"], false);
    let page = agent.ok(&["describe", "pod", "web"]);
    let line = format!("{}  (is to be {})", 16 << 20, 32 << 20);
    assert!(page.contains(&line), "{page}");
    assert!(page.contains("\nCgroups:\n  Pod: "), "{page}");
    let refused = agent.cli(&["describe", "service", "x", "-o", "json"]);
    assert_eq!(refused.status.code(), Some(2));
}
