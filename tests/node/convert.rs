//! A compose project that is converted, and runs.

use super::*;

const PROJECT: &str = "include: [store/compose.yaml]
services:
  worker:
    image: busybox:test
    restart: always
    command: sh -c 'while ! wget -qO- http://app_store:8080/name; do sleep 0.1; done; exec sleep 1000'
    stop_grace_period: 1s
    deploy: {replicas: 2}
    depends_on: {app_store: {condition: service_healthy}}
";

const STORE: &str = "services:
  app_store:
    image: busybox:test
    restart: always
    command: httpd -f -p 8080 -h /www
    volumes: ['./www:/www:ro']
    healthcheck: {test: 'wget -qO- http://127.0.0.1:8080/name', interval: 1s}
";

#[test]
fn a_compose_project_with_replicas_and_included_files_runs() {
    let agent = Agent::start();
    let project = agent.root.join("project");
    fs::create_dir_all(project.join("store/www")).expect("a new folder");
    for (file, text) in [
        ("compose.yaml", PROJECT),
        ("store/compose.yaml", STORE),
        ("store/www/name", "from the store\n"),
    ] {
        fs::write(project.join(file), text).expect("written");
    }
    let given = project.join("compose.yaml");
    let manifests = agent.root.join("manifests");
    let said = agent.cli(&[
        "convert",
        given.to_str().expect("utf-8"),
        "-o",
        manifests.to_str().expect("utf-8"),
    ]);
    assert!(said.status.success() && said.stderr.is_empty(), "{said:?}");
    for condition in ["create", "condition=Available"] {
        let wanted = format!("--for={condition}");
        agent.ok(&["wait", "deployment/worker", &wanted, "--timeout=60s"]);
    }
    let workers = agent.ok(&["get", "pods", "-l", "app=worker", "-o", "name"]);
    assert_eq!(workers.lines().count(), 2, "{workers}");
    for worker in workers.lines() {
        follow_until(&agent, &["logs", "-f", worker], "from the store");
    }
}
