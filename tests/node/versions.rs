//! Other versions of coracle, kept as binaries in `tests/versions`: an agent takes over the pods that an older one has
//! made, and the older one takes over those that the newer one made.

use std::process::Command;
use std::sync::Arc;

use super::*;

/// Writes a kept binary into the agent's folder.
fn unpack(agent: &Agent, version: &str) -> std::path::PathBuf {
    let packed = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/versions");
    let path = agent.root.join(format!("coracle-{version}"));
    let packed = fs::File::open(format!("{packed}/{version}.xz")).expect("a kept binary");
    let to = fs::File::create(&path).expect("temp dir");
    let mut xz = Command::new("xz");
    let done = xz.arg("-dc").stdin(packed).stdout(to).status();
    assert!(done.expect("install xz-utils").success());
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&path, mode).expect("own file");
    path
}

/// A pod with a sidecar, probes by exec, a volume and a hook.
fn manifest(name: &str) -> String {
    let stay = "echo up; trap 'echo told to end; exit 0' TERM; while :; do sleep 1 & wait $!; done";
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 5\n  \
         volumes: [{{name: v, emptyDir: {{}}}}]\n  initContainers:\n  - name: side\n    image: busybox:test\n    \
         restartPolicy: Always\n    command: [sh, -c, \"{stay}\"]\n    \
         volumeMounts: [{{name: v, mountPath: /v}}]\n  containers:\n  - name: main\n    image: busybox:test\n    \
         command: [sh, -c, \"touch /v/ready /v/alive; {stay}\"]\n    \
         volumeMounts: [{{name: v, mountPath: /v}}]\n    \
         readinessProbe: {{exec: {{command: [cat, /v/ready]}}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 1}}\n    \
         livenessProbe: {{exec: {{command: [cat, /v/alive]}}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 1}}\n    \
         lifecycle: {{preStop: {{exec: {{command: [touch, /v/prestop]}}}}}}\n"
    )
}

fn is_ready(pod: &Value) -> bool {
    let all = pod["status"]["conditions"].as_array();
    all.is_some_and(|all| {
        all.iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "True")
    })
}

fn restarts(pod: &Value) -> i64 {
    pod["status"]["containerStatuses"][0]["restartCount"]
        .as_i64()
        .expect("a count")
}

/// The first process of a container, on the node.
fn pid(agent: &Agent, name: &str, container: &str) -> String {
    let pod = agent.pod(name);
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let record = agent
        .root
        .join(format!("run/pods/{uid}/records/{container}.json"));
    let record: Value = serde_json::from_slice(&fs::read(record).expect("a record")).expect("JSON");
    record["pid"].to_string()
}

/// Everything that goes through a shim works for this agent: exec, logs, probes, a restart, a stop.
fn works(agent: &Agent, name: &str) {
    assert_eq!(
        agent.ok(&["exec", name, "-c", "side", "--", "echo", "here"]),
        "here\n"
    );
    agent.wait_line(name, "up");
    agent.ok(&["exec", name, "--", "rm", "/v/ready"]);
    agent.wait_pod(name, |pod| !is_ready(pod));
    agent.ok(&["exec", name, "--", "touch", "/v/ready"]);
    let before = restarts(&agent.wait_pod(name, is_ready));
    // The liveness probe has it stopped, with its hook, and started again in the same shim.
    let uid = agent.pod(name)["metadata"]["uid"].clone();
    agent.ok(&["exec", name, "--", "rm", "/v/alive"]);
    let pod = agent.wait_pod(name, |pod| restarts(pod) > before && is_ready(pod));
    assert_eq!(
        (&pod["metadata"]["uid"], restarts(&pod)),
        (&uid, before + 1)
    );
    let files = agent.ok(&["exec", name, "--", "ls", "/v"]);
    assert_eq!(
        files, "alive\nprestop\nready\n",
        "the hook ran, the volume stayed"
    );
    assert!(
        agent
            .ok(&["logs", name, "--previous"])
            .contains("told to end")
    );
}

/// Pods of the one version's shims under the other version's agent, and the way back.
fn take_turns(old: &str) {
    let agent = Agent::prepare(Arc::new(common::netns::Netns::new()), &[], None);
    let (old, new) = (
        unpack(&agent, old),
        common::coracle().get_program().to_owned(),
    );
    agent.use_program(&old);
    agent.launch();
    agent.ok(&[
        "image",
        "import",
        common::archive().to_str().expect("utf-8"),
    ]);
    for name in ["kept", "used", "ended"] {
        agent.write(&format!("{name}.yaml"), &manifest(name));
    }
    for name in ["kept", "used", "ended"] {
        agent.wait_pod(name, is_ready);
    }
    // The first probe may come before the file that it looks for.
    let at_first = restarts(&agent.pod("kept"));
    for (program, made) in [(new.as_ref(), "new"), (old.as_path(), "old")] {
        let before = [pid(&agent, "kept", "main"), pid(&agent, "kept", "side")];
        agent.kill();
        agent.use_program(program);
        agent.launch();
        agent.wait_pod("kept", is_ready);
        let after = [pid(&agent, "kept", "main"), pid(&agent, "kept", "side")];
        assert_eq!(
            after, before,
            "{made}: the agent is replaced, the pod is not"
        );
        works(&agent, "used");
        // This one leaves in order, its shim with it.
        agent.remove("ended.yaml");
        agent.wait_gone("ended");
        // And those of this agent's shims, for the other one.
        agent.write("ended.yaml", &manifest("ended"));
        agent.wait_pod("ended", is_ready);
        agent.ok(&["delete", "pod", "used"]);
        agent.wait_pod("used", is_ready);
        works(&agent, "used");
    }
    assert_eq!(restarts(&agent.pod("kept")), at_first);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn version_0_2_and_this_one_take_over_each_others_pods() {
    take_turns("0.2.0");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn version_0_1_and_this_one_take_over_each_others_pods() {
    take_turns("0.1.0");
}
