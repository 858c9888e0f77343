//! What Kubernetes' own conformance and node e2e tests ask about volumes, configuration, environment and security
//! contexts (`test/e2e/common/{storage,node}`), asked of a real agent: one pod for each question, all of a topic at
//! once. A title is that of the upstream test.

#[path = "conformance/directories.rs"]
mod directories;
#[path = "conformance/downward.rs"]
mod downward;
#[path = "conformance/files.rs"]
mod files;
#[path = "conformance/programs.rs"]
mod programs;

use std::fmt::Write as _;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use serde_json::Value;

use super::common::Agent;
use super::configuration::wait_mount_failure;
use super::main_status;

/// What must become of a pod.
enum Answer {
    /// It ends well, and its container has printed this.
    Says(String),
    /// Its container ends with this code and termination message.
    Ends(i64, String),
    /// Its container waits for this reason, with a message that contains this.
    Waits(&'static str, String),
    /// It waits for a volume: the end of the event's message.
    Unmounted(String),
    /// Its manifest is refused with this text.
    Refused(String),
}

/// A question: a pod of one container that runs a script.
struct Row {
    title: String,
    script: String,
    /// Entries of `metadata`, `spec` and of the container, in YAML's flow style.
    metadata: Vec<String>,
    pod: Vec<String>,
    container: Vec<String>,
    answer: Answer,
}

impl Row {
    fn of(title: impl Into<String>, script: impl Into<String>, answer: Answer) -> Self {
        Self {
            title: title.into(),
            script: script.into(),
            metadata: Vec::new(),
            pod: Vec::new(),
            container: Vec::new(),
            answer,
        }
    }

    fn says(title: impl Into<String>, script: impl Into<String>, said: impl Into<String>) -> Self {
        Self::of(title, script, Answer::Says(said.into()))
    }

    fn metadata(mut self, entry: impl Into<String>) -> Self {
        self.metadata.push(entry.into());
        self
    }

    fn pod(mut self, entry: impl Into<String>) -> Self {
        self.pod.push(entry.into());
        self
    }

    fn container(mut self, entry: impl Into<String>) -> Self {
        self.container.push(entry.into());
        self
    }

    /// Mounts a volume of this source at `/v`.
    fn volume(self, source: &str) -> Self {
        self.mounted(source, "")
    }

    /// The same, with more entries for the mount.
    fn mounted(self, source: &str, entries: &str) -> Self {
        self.pod(format!("volumes: [{{name: v, {source}}}]"))
            .container(format!(
                "volumeMounts: [{{name: v, mountPath: /v, {entries}}}]"
            ))
    }

    fn manifest(&self, name: &str, host: &str) -> String {
        let script = serde_json::to_string(&self.script).expect("a string");
        let all = |entries: &[String]| {
            let entries = entries.iter().map(|entry| format!(", {entry}"));
            entries.collect::<String>()
        };
        let (metadata, pod) = (all(&self.metadata), all(&self.pod));
        let container = all(&self.container);
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}{metadata}}}\nspec: {{restartPolicy: Never, \
             terminationGracePeriodSeconds: 1{pod}, containers: [{{name: main, image: 'busybox:test', command: [sh, \
             -c, {script}]{container}}}]}}\n"
        )
        .replace("HOST", host)
    }

    /// Waits for the answer; returns what is wrong with it.
    fn check(&self, agent: &Agent, name: &str, host: &str) -> Result<(), String> {
        let fill = |text: &str| text.replace("HOST", host).replace("POD", name);
        match &self.answer {
            Answer::Says(said) => {
                let pod = agent.wait_pod(name, is_settled);
                let log = agent.cli(&["logs", name]);
                let found = String::from_utf8_lossy(&log.stdout).into_owned();
                let ended = pod["status"]["phase"] == "Succeeded";
                compare((ended, found), (true, fill(said)), &pod)
            }
            Answer::Ends(code, message) => {
                let pod = agent.wait_pod(name, is_settled);
                let ended = &main_status(&pod)["state"]["terminated"];
                let found = ended["message"].as_str().unwrap_or_default().to_owned();
                let code = Some(*code);
                compare(
                    (ended["exitCode"].as_i64(), found),
                    (code, fill(message)),
                    &pod,
                )
            }
            Answer::Waits(reason, message) => {
                let pod = agent.wait_pod(name, is_settled);
                let waiting = &main_status(&pod)["state"]["waiting"];
                let found = waiting["message"].as_str().unwrap_or_default();
                match waiting["reason"] == *reason && found.contains(&fill(message)) {
                    true => Ok(()),
                    false => Err(format!("waits with {waiting}: {}", main_status(&pod))),
                }
            }
            Answer::Unmounted(message) => {
                wait_mount_failure(agent, &fill(message));
                Ok(())
            }
            Answer::Refused(text) => {
                let files = agent.ok(&["get", "files", "-o", "json"]);
                match files.contains(&fill(text)) {
                    true => Ok(()),
                    false => Err(format!("not refused: {files}")),
                }
            }
        }
    }
}

/// Whether a pod has finished, or its container waits for a reason.
fn is_settled(pod: &Value) -> bool {
    let phase = &pod["status"]["phase"];
    let reason = &main_status(pod)["state"]["waiting"]["reason"];
    let transient = ["ContainerCreating", "PodInitializing"];
    phase == "Succeeded"
        || phase == "Failed"
        || reason
            .as_str()
            .is_some_and(|reason| !transient.contains(&reason))
}

fn compare<T: PartialEq + std::fmt::Debug>(found: T, wanted: T, pod: &Value) -> Result<(), String> {
    match found == wanted {
        true => Ok(()),
        false => Err(format!("{found:?}, not {wanted:?}: {}", main_status(pod))),
    }
}

/// The documents that rows refer to.
const DOCUMENTS: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: test}\n\
    data: {data-1: value-1, data-2: value-2, data-3: value-3}\n---\n\
    apiVersion: v1\nkind: Secret\nmetadata: {name: test}\n\
    stringData: {data-1: value-1, data-2: value-2, data-3: value-3}\n---\n\
    apiVersion: v1\nkind: Secret\nmetadata: {name: test, namespace: other}\nstringData: {data-1: other}\n---\n\
    apiVersion: v1\nkind: ConfigMap\nmetadata: {name: binary}\ndata: {text: text}\nbinaryData: {dump: 3q2+7w==}\n";

/// Things of the node that rows mount.
fn make_host(agent: &Agent) -> PathBuf {
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};
    let host = agent.root.join("host");
    fs::create_dir_all(host.join("dir/sub")).expect("made");
    fs::write(host.join("file"), "of the node\n").expect("written");
    drop(UnixListener::bind(host.join("socket")).expect("bound"));
    for (name, kind, device) in [
        ("char", SFlag::S_IFCHR, makedev(1, 3)),
        ("block", SFlag::S_IFBLK, makedev(7, 200)),
    ] {
        mknod(&host.join(name), kind, Mode::S_IRUSR, device).expect("made");
    }
    host
}

/// Asks all questions at once.
fn ask(rows: &[Row]) {
    let agent = Agent::start();
    let host = make_host(&agent);
    let host = host.to_str().expect("utf-8");
    agent.write("documents.yaml", DOCUMENTS);
    let names: Vec<String> = (0..rows.len()).map(|index| format!("q{index}")).collect();
    for (row, name) in rows.iter().zip(&names) {
        agent.write(&format!("{name}.yaml"), &row.manifest(name, host));
    }
    let mut wrong = String::new();
    for (row, name) in rows.iter().zip(&names) {
        if let Err(why) = row.check(&agent, name, host) {
            // Writing to a String cannot fail.
            let _ = writeln!(wrong, "- {}: {why}", row.title);
        }
    }
    assert!(wrong.is_empty(), "of {} pods:\n{wrong}", rows.len());
    for name in &names {
        agent.remove(&format!("{name}.yaml"));
    }
    for name in &names {
        agent.wait_gone(name);
    }
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}
