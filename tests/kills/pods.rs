//! The pods of the test: one of each kind, guests that come and go, and what happens to them.

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::checks::processes_of;
use super::{IMAGES, STEADY, World, is_ready};

/// Stays, and ends at the stop signal.
const STAYS: &str = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done";
/// Takes a moment to end.
const SLOW: &str = "trap 'sleep 0.3; exit 0' TERM; while :; do sleep 1 & wait $!; done";

/// Name, script, and further fields of the container.
type Container<'a> = (&'a str, &'a str, Value);

fn plain(script: &str) -> [Container<'_>; 1] {
    [("main", script, json!({}))]
}

fn policy(policy: &str) -> Value {
    json!({ "spec": { "restartPolicy": policy } })
}

/// A user namespace of its own, or the node's.
fn own_users(own: bool) -> Value {
    json!({ "spec": { "hostUsers": !own } })
}

fn sidecar() -> Container<'static> {
    ("side", STAYS, json!({ "restartPolicy": "Always" }))
}

/// Hooks that record that they ran, as the containers do when they begin.
fn hooks(name: &str) -> Value {
    let tell = |what: &str| {
        let script = format!("read up idle < /proc/uptime; echo $up >> /runs/{name}.{what}");
        json!({ "exec": { "command": ["sh", "-c", script] } })
    };
    json!({ "lifecycle": { "postStart": tell("began"), "preStop": tell("ends") } })
}

impl World {
    /// Writes a pod whose containers record when they begin. The first `inits` of them are init containers.
    fn put(&self, name: &str, inits: usize, containers: &[Container], more: &Value) {
        let container = |(container, script, more): &Container| {
            let script = format!(
                "read up idle < /proc/uptime; echo $up >> /runs/{name}.{container}; {script}"
            );
            let mut made = json!({ "name": container, "image": "busybox:test", "command": ["sh", "-c", script],
                                   "volumeMounts": [{ "name": "runs", "mountPath": "/runs" }] });
            merge(&mut made, more);
            made
        };
        let all: Vec<Value> = containers.iter().map(container).collect();
        let (inits, mains) = all.split_at(inits);
        let mut manifest = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": {
            "terminationGracePeriodSeconds": 3, "initContainers": inits, "containers": mains,
            "volumes": [{ "name": "runs", "hostPath": { "path": self.agent.root.join("runs") } }] } });
        merge(&mut manifest, more);
        self.agent
            .write(&format!("{name}.yaml"), &manifest.to_string());
    }

    /// Writes all pods, and waits until those that stay are ready.
    pub(super) fn begin(&mut self) {
        self.steady_pods();
        self.ending_pods();
        self.failing_pods();
        self.put("deleted", 0, &plain(SLOW), &json!({}));
        self.put("fallen", 0, &plain(STAYS), &policy("Never"));
        let staged = [("init", "true", json!({})), ("main", STAYS, json!({}))];
        self.put("victim", 1, &staged, &own_users(true));
        self.edit_variable();
        self.edit_image();
        for name in STEADY.iter().chain(&["fallen", "victim", "imaged"]) {
            self.agent.wait_pod(name, is_ready);
        }
        self.agent.ok(&[
            "debug",
            "debugged",
            "--image=busybox:test",
            "-c",
            "tool",
            "--",
            "sh",
            "-c",
            STAYS,
        ]);
        self.agent.wait_pod("debugged", |pod| {
            !pod["status"]["ephemeralContainerStatuses"][0]["state"]["running"].is_null()
        });
        for (name, phase) in [("well", "Succeeded"), ("badly", "Failed")] {
            self.agent.wait_phase(name, phase);
        }
        self.steady = STEADY
            .iter()
            .map(|name| ((*name).to_owned(), self.identity(name)))
            .collect();
    }

    fn steady_pods(&mut self) {
        for name in ["plain-0", "plain-1"] {
            self.put(name, 0, &plain(STAYS), &json!({}));
        }
        self.put("plain-2", 0, &plain(STAYS), &own_users(true));
        let on_node = json!({ "spec": { "hostNetwork": true } });
        self.put("on-node", 0, &plain(STAYS), &on_node);
        let staged = [
            ("one", "true", json!({})),
            ("two", "sleep 0.1", json!({})),
            ("main", STAYS, json!({})),
        ];
        self.put("inits", 2, &staged, &json!({}));
        let three = [
            sidecar(),
            ("main", STAYS, json!({})),
            ("other", STAYS, json!({})),
        ];
        self.put("sidecar", 1, &three, &json!({}));
        let probe =
            json!({ "exec": { "command": ["true"] }, "periodSeconds": 1, "timeoutSeconds": 20 });
        let probes =
            json!({ "startupProbe": probe, "readinessProbe": probe, "livenessProbe": probe });
        self.put("probed", 0, &[("main", STAYS, probes)], &json!({}));
        self.put("hooked", 0, &[("main", STAYS, hooks("hooked"))], &json!({}));
        self.put("debugged", 0, &plain(STAYS), &json!({}));
        self.edit_label();
    }

    /// Some end before the first kill, some between kills.
    fn ending_pods(&self) {
        self.put("well", 0, &plain("exit 0"), &policy("Never"));
        self.put("badly", 0, &plain("exit 3"), &policy("Never"));
        self.put("late", 0, &plain("sleep 4; exit 0"), &policy("OnFailure"));
        let job = [sidecar(), ("main", "sleep 3", json!({}))];
        self.put("job", 1, &job, &policy("Never"));
    }

    fn failing_pods(&self) {
        self.put("crash", 0, &plain("exit 1"), &json!({}));
        let staged = [("init", "exit 1", json!({})), ("main", STAYS, json!({}))];
        self.put("stuck", 1, &staged, &json!({}));
        let rule =
            json!([{ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }]);
        let rules = json!({ "restartPolicy": "Never", "restartPolicyRules": rule });
        let rules = [("main", "sleep 0.5; exit 42", rules)];
        self.put("rules", 0, &rules, &policy("Never"));
        let probe =
            json!({ "exec": { "command": ["false"] }, "periodSeconds": 1, "failureThreshold": 2 });
        let sick = [("main", STAYS, json!({ "livenessProbe": probe }))];
        self.put("sick", 0, &sick, &json!({}));
    }

    /// An edit that applies to the running pod.
    fn edit_label(&mut self) {
        self.edits += 1;
        self.label = self.edits.to_string();
        let label = json!({ "metadata": { "labels": { "edit": self.label } } });
        self.put("labelled", 0, &plain(STAYS), &label);
    }

    /// An edit that replaces the pod.
    fn edit_variable(&mut self) {
        self.edits += 1;
        self.variable = self.edits.to_string();
        let variable = json!({ "env": [{ "name": "EDIT", "value": self.variable }] });
        self.put("edited", 0, &[("main", STAYS, variable)], &json!({}));
    }

    /// An edit that restarts one of the pod's containers, from the image by its other name.
    fn edit_image(&mut self) {
        self.edits += 1;
        self.image = IMAGES[self.edits as usize % 2];
        let image = json!({ "image": self.image });
        let two = [("main", STAYS, image), ("other", STAYS, json!({}))];
        self.put("imaged", 0, &two, &json!({}));
    }

    /// Something changes, whether an agent is there or not.
    pub(super) fn disturb(&mut self) {
        match self.random.below(9) {
            0 => self.edit_label(),
            1 => self.edit_variable(),
            2 => {
                self.kill_shim("victim");
                self.orphaned += 1;
            }
            3 | 4 if self.guests.len() < 5 => {
                let name = format!("guest-{}", self.next_guest);
                self.next_guest += 1;
                let scripts = ["exec sleep 1000", SLOW, STAYS];
                let script = scripts[self.random.below(3)];
                let mut short = own_users(self.next_guest.is_multiple_of(2));
                short["spec"]["terminationGracePeriodSeconds"] = json!(1);
                self.put(&name, 0, &[("main", script, hooks(&name))], &short);
                self.guests.push(name);
            }
            3..=6 if !self.guests.is_empty() => {
                let index = self.random.below(self.guests.len());
                let name = self.guests.remove(index);
                self.agent.remove(&format!("{name}.yaml"));
            }
            7 => self.edit_image(),
            _ => {}
        }
    }

    /// Kills the shim of a pod, if there is one.
    pub(super) fn kill_shim(&self, name: &str) {
        for (pid, line) in processes_of(&self.agent) {
            let config = line.split(' ').find(|word| word.ends_with("/shim.json"));
            let Some(folder) = config.and_then(|c| c.strip_suffix("shim.json")) else {
                continue;
            };
            let manifest = std::fs::read(format!("{folder}pod.json")).unwrap_or_default();
            let manifest: Value = serde_json::from_slice(&manifest).unwrap_or_default();
            if manifest["metadata"]["name"] == name {
                // It may have ended by now.
                let _ = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }

    /// Deletes a pod whose file stays, and does not wait for its end.
    pub(super) fn delete(&mut self) {
        self.agent.wait_running("deleted");
        self.agent.ok(&["delete", "pod", "deleted", "--wait=false"]);
        self.deleted += 1;
    }
}

/// Puts all fields of `more` into `into`.
fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more.clone(),
    }
}
