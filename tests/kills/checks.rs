//! What has to hold all the time, and what has to hold at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{STEADY, World, is_ready};
use crate::common::{Agent, PATIENCE};

/// The shortest back-off of a container that crashes, in seconds.
const BACKOFF: f64 = 1.0;
/// How far a container's clock may be behind: `/proc/uptime` counts hundredths.
const BLUR: f64 = 0.01;

impl World {
    /// Differs between any two runs of a container of the pod.
    pub(super) fn identity(&self, name: &str) -> Value {
        let pod = self.agent.pod(name);
        let uid = pod["metadata"]["uid"].as_str().expect("uid");
        let folder = self.agent.root.join(format!("run/pods/{uid}/records"));
        let mut records = BTreeMap::new();
        for entry in fs::read_dir(folder).expect("records").flatten() {
            if entry.path().extension().is_some_and(|e| e == "json") {
                let record = fs::read(entry.path()).expect("whole");
                let record: Value = serde_json::from_slice(&record).expect("JSON");
                records.insert(
                    entry.file_name().to_string_lossy().into_owned(),
                    json!([record["pid"], record["pid_start"], record["attempt"]]),
                );
            }
        }
        json!([uid, pod["status"]["startTime"], records])
    }

    /// All events of the steady pods.
    pub(super) fn events_of_steady(&self) -> Vec<String> {
        let list = self.agent.ok(&["get", "events", "-o", "json"]);
        let list: Value = serde_json::from_str(&list).expect("JSON");
        let items = list["items"].as_array().expect("items");
        let of_steady = items.iter().filter(|e| {
            let name = e["involvedObject"]["name"].as_str().unwrap_or_default();
            // The edits of this pod are reported as events.
            name != "labelled" && STEADY.contains(&name)
        });
        let row = |e: &Value| {
            let what = [
                &e["metadata"]["name"],
                &e["reason"],
                &e["count"],
                &e["lastTimestamp"],
            ];
            json!(what).to_string()
        };
        let mut rows: Vec<String> = of_steady.map(row).collect();
        rows.sort();
        rows
    }

    /// The names of all pods.
    pub(super) fn names(&self) -> BTreeSet<String> {
        let list = self.agent.ok(&["get", "pods", "-o", "name"]);
        let name = |line: &str| line.trim_start_matches("pod/").to_owned();
        list.lines().map(name).collect()
    }

    /// No two pods with user namespaces have an id in common.
    fn check_ids(&self, round: u32) {
        let mut owners = BTreeMap::new();
        let pods = fs::read_dir(self.agent.root.join("run/pods")).expect("pods");
        for entry in pods.flatten() {
            // A pod that comes or goes may have no shim.
            let config = fs::read(entry.path().join("shim.json")).unwrap_or_default();
            let config: Value = serde_json::from_slice(&config).unwrap_or_default();
            if let Some(first) = config["users"]["first"].as_u64() {
                let other = owners.insert(first, entry.file_name());
                assert_eq!(other, None, "round {round}: {first} belongs to {entry:?}");
            }
        }
        assert!(!owners.is_empty(), "round {round}: `plain-2` has ids");
    }

    /// Checks what has to hold all the time; call it while an agent answers.
    pub(super) fn check(&mut self, round: u32) {
        for (name, before) in &self.steady {
            let now = self.identity(name);
            assert_eq!(&now, before, "round {round}: {name} is the same");
            let pod = self.agent.pod(name);
            assert!(is_ready(&pod), "round {round}: {name} stays ready: {pod:#}");
        }
        self.check_ids(round);
        let list = self.agent.ok(&["get", "pods", "-o", "json"]);
        let list: Value = serde_json::from_str(&list).expect("JSON");
        for pod in list["items"].as_array().expect("items") {
            self.check_counts(pod, round);
            self.one_process_each(pod["metadata"]["uid"].as_str().expect("a uid"));
        }
        for (name, phase) in [("well", "Succeeded"), ("badly", "Failed")] {
            let now = &self.agent.pod(name)["status"]["phase"];
            assert_eq!(now, phase, "round {round}: {name}");
            let runs = self.runs(name, "main").len();
            assert_eq!(runs, 1, "round {round}: {name} runs once");
        }
        let hooks = ["began", "ends"].map(|hook| self.runs("hooked", hook).len());
        assert_eq!(
            hooks,
            [1, 0],
            "round {round}: postStart ran once, preStop did not"
        );
        self.one_shim_each(round);
    }

    fn one_shim_each(&self, round: u32) {
        let all: BTreeMap<i32, String> = processes_of(&self.agent)
            .into_iter()
            .filter(|(_, line)| line.contains(" shim "))
            .collect();
        // A shim's child looks like the shim until it calls exec.
        let is_child = |pid| parent(pid).is_none_or(|parent| all.contains_key(&parent));
        let shims = all.iter().filter(|(pid, _)| !is_child(**pid));
        let mut pods = BTreeSet::new();
        for (pid, line) in shims {
            let first = pods.insert(line);
            assert!(first, "round {round}: {pid} is a second shim of {line}");
        }
    }

    /// Restart counts only grow.
    fn check_counts(&mut self, pod: &Value, round: u32) {
        let name = &pod["metadata"]["name"];
        let uid = pod["metadata"]["uid"].as_str().expect("a uid");
        for part in ["initContainerStatuses", "containerStatuses"] {
            for c in pod["status"][part].as_array().into_iter().flatten() {
                let container = c["name"].as_str().expect("a name").to_owned();
                let count = c["restartCount"].as_i64().expect("a count");
                let key = (uid.to_owned(), container.clone());
                let old = self.restarts.insert(key, count).unwrap_or(0);
                assert!(
                    count >= old,
                    "round {round}: {name}/{container} restarted {count} times after {old}"
                );
            }
        }
    }

    /// In each container's cgroup there is at most one process that is the first of its container.
    fn one_process_each(&self, uid: &str) {
        let mut folders = self.agent.cgroup_folders();
        folders.retain(|f| {
            f.to_string_lossy().contains(uid)
                && f.file_name()
                    .is_some_and(|n| n.to_string_lossy().starts_with("c-"))
        });
        for folder in folders {
            let processes = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            let first = |pid: &&str| {
                let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                let numbers = status.lines().find_map(|l| l.strip_prefix("NSpid:"));
                numbers.is_some_and(|n| n.split_whitespace().last() == Some("1"))
            };
            let firsts: Vec<&str> = processes.lines().filter(first).collect();
            assert!(firsts.len() <= 1, "{}: {firsts:?}", folder.display());
        }
    }

    /// When each run of a container began, in seconds since the boot.
    fn runs(&self, name: &str, container: &str) -> Vec<f64> {
        let file: PathBuf = self.agent.root.join(format!("runs/{name}.{container}"));
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines()
            .map(|line| line.parse().expect("seconds"))
            .collect()
    }

    /// After the kills, every pod is in the state it should be in, and has run as often as it should.
    pub(super) fn check_end(&self) {
        self.check_ended();
        self.check_restarted();
        self.agent.wait_running("deleted");
        let runs = self.runs("deleted", "main").len();
        assert_eq!(runs, 1 + self.deleted, "one run more than it was stopped");
        for name in ["one", "two", "main"] {
            assert_eq!(self.runs("inits", name).len(), 1, "inits/{name}");
        }
        let wanted = |pod: &Value| {
            let env = &pod["spec"]["containers"][0]["env"][0]["value"];
            let state = &pod["status"]["containerStatuses"][0]["state"];
            *env == *self.variable && !state["running"].is_null()
        };
        self.agent.wait_pod("edited", wanted);
        self.check_images();
        let edited = |pod: &Value| pod["metadata"]["labels"]["edit"] == *self.label;
        self.agent.wait_pod("labelled", edited);
        for guest in &self.guests {
            self.agent.wait_running(guest);
        }
        let files = fs::read_dir(self.agent.root.join("manifests")).expect("there");
        let file_name = |file: fs::DirEntry| file.file_name().to_string_lossy().into_owned();
        let expected: BTreeSet<String> = files
            .flatten()
            .map(|file| file_name(file).trim_end_matches(".yaml").to_owned())
            .collect();
        let deadline = Instant::now() + PATIENCE;
        while self.names() != expected {
            assert!(Instant::now() < deadline, "{:?}", self.names());
            std::thread::sleep(Duration::from_millis(20)); // No single event says that all pods are there.
        }
    }

    /// Only the container whose image was edited started again, at most once for each edit.
    fn check_images(&self) {
        let pod = self.agent.wait_pod("imaged", |pod| {
            let status = pod["status"]["containerStatuses"].as_array();
            let main = status.and_then(|all| all.iter().find(|c| c["name"] == "main"));
            main.is_some_and(|c| c["image"] == self.image && !c["state"]["running"].is_null())
        });
        assert_eq!(self.runs("imaged", "other").len(), 1, "{pod:#}");
        let runs = self.runs("imaged", "main").len();
        eprintln!("imaged: {runs} runs");
        assert!(
            runs <= self.edits as usize,
            "{runs} runs for {} edits",
            self.edits
        );
    }

    fn check_ended(&self) {
        self.agent.wait_phase("late", "Succeeded");
        self.agent.wait_phase("job", "Succeeded");
        self.agent.wait_phase("fallen", "Failed");
        for (name, container) in [
            ("late", "main"),
            ("job", "main"),
            ("job", "side"),
            ("fallen", "main"),
        ] {
            assert_eq!(self.runs(name, container).len(), 1, "{name}/{container}");
        }
    }

    /// Each counted run has one line, and no run is earlier than back-off allows.
    fn check_restarted(&self) {
        for (name, container) in [
            ("crash", "main"),
            ("rules", "main"),
            ("sick", "main"),
            ("stuck", "init"),
        ] {
            self.agent.wait_pod(name, |pod| {
                let stages = ["containerStatuses", "initContainerStatuses"];
                let status = &pod["status"][stages[usize::from(container == "init")]][0];
                let restarts = restarts(status);
                let runs = self.runs(name, container).len();
                assert!(
                    runs.abs_diff(restarts + 1) <= 1, // A run may begin between the two readings.
                    "{name}: {runs} runs, {restarts} restarts"
                );
                runs == restarts + 1
            });
            let runs = self.runs(name, container);
            eprintln!("{name}: {} runs", runs.len());
            assert!(runs.len() > 2, "{name} restarts");
            // The first restart does not wait.
            for pair in runs[1..].windows(2) {
                let gap = pair[1] - pair[0];
                assert!(gap >= BACKOFF - BLUR, "{name} after {gap} s: {runs:?}");
            }
        }
        assert_eq!(self.runs("stuck", "main").len(), 0, "its init never ended");
        let pod = self.agent.wait_running("victim");
        let count = restarts(&pod["status"]["containerStatuses"][0]);
        let runs = self.runs("victim", "main").len();
        // A shim may have been killed before its program began, or there was no shim to kill.
        assert!(
            runs <= count + 1 && count <= self.orphaned,
            "victim: {runs} runs, {count} restarts, {} shims killed",
            self.orphaned
        );
    }
}

fn restarts(status: &Value) -> usize {
    let count = status["restartCount"].as_u64().expect("a count");
    usize::try_from(count).expect("few")
}

fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let number = status.lines().find_map(|l| l.strip_prefix("PPid:"))?;
    number.trim().parse().ok()
}

/// Processes whose command line names this agent's folders: pid and command line, sorted by the latter.
pub(super) fn processes_of(agent: &Agent) -> Vec<(i32, String)> {
    let root = agent.root.display().to_string();
    let all = fs::read_dir("/proc").expect("proc").flatten();
    let mut found: Vec<(i32, String)> = all
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read_to_string(entry.path().join("cmdline")).ok()?;
            Some((pid, line.replace('\0', " ").trim_end().to_owned()))
        })
        .filter(|(_, line)| line.contains(&root))
        .collect();
    found.sort_by(|a, b| a.1.cmp(&b.1));
    found
}
