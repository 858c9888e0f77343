//! What the watcher sees of the agent and its pods, and how it has the agent restarted: by systemd, by OpenRC, or by
//! an init of the node's own that starts the agent again when it ends.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::super::client::Client;
use super::super::error::{CliError, Result};
use super::super::install::{SERVICE, properties, systemctl, systemd_runs};
use super::record::former_of;
use crate::layout::Layout;
use crate::sys::{clock, file, process};
use crate::types::upgrade::{Expected, SeenAgent, SeenPod};

/// The watcher's unit.
pub(in crate::cli) const WATCHER: &str = "coracle-upgrade.service";

/// How long an agent may take for each part of an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a killed agent may take to end, in milliseconds.
const STOP_MS: u64 = 5_000;

/// What a unit says that waits for a file.
const CONDITION: &str = "ConditionPathExists=";

/// Where OpenRC has coracle's script.
const OPENRC: &str = "/etc/init.d/coracle";

/// The pods and the agent's process; `None` if it does not answer.
pub(super) fn pods(client: &Client) -> Option<(Value, i32)> {
    client.get_within("/api/v1/pods", PATIENCE).ok()
}

/// The pods that have to be as they are now: the ready ones. A container that was restarted lately may be restarted
/// again, and a pod of a Job may end or be replaced at any time, without anything being wrong with the agent.
pub(super) fn expected(list: &Value, steady_us: i64, now_us: i64) -> BTreeMap<String, Expected> {
    let mut all = BTreeMap::new();
    for pod in list["items"].as_array().into_iter().flatten() {
        let (uid, meta) = (text(&pod["metadata"]["uid"]), &pod["metadata"]);
        let owners = meta["ownerReferences"].as_array().into_iter().flatten();
        let of_job = owners.into_iter().any(|owner| owner["kind"] == "Job");
        if !is_ready(pod) || of_job || meta["deletionTimestamp"].is_string() {
            continue;
        }
        let mut runs = BTreeMap::new();
        let mut restless = false;
        for container in statuses(pod) {
            let since = text(&container["state"]["running"]["startedAt"]);
            if since.is_empty() {
                continue;
            }
            let began = since
                .parse()
                .map_or(0, |t: jiff::Timestamp| t.as_microsecond());
            restless |= container["restartCount"].as_i64() > Some(0) && now_us - began < steady_us;
            runs.insert(text(&container["name"]).to_owned(), run_of(container));
        }
        if !restless && !runs.is_empty() {
            let name = format!("{}/{}", text(&meta["namespace"]), text(&meta["name"]));
            all.insert(uid.to_owned(), Expected { name, runs });
        }
    }
    all
}

/// The pods as they are.
fn seen(list: &Value) -> BTreeMap<String, SeenPod> {
    let items = list["items"].as_array().into_iter().flatten();
    items
        .map(|pod| {
            let mut found = SeenPod {
                ready: is_ready(pod),
                succeeded: pod["status"]["phase"] == "Succeeded",
                ..SeenPod::default()
            };
            for container in statuses(pod) {
                let name = text(&container["name"]).to_owned();
                let state = &container["state"];
                if state["running"].is_object() {
                    found.runs.insert(name, Some(run_of(container)));
                } else if state["terminated"]["exitCode"] == 0 {
                    found.runs.insert(name, None);
                } else if container["restartCount"].as_i64() > Some(0)
                    || state["terminated"].is_object()
                {
                    found
                        .runs
                        .insert(name, Some(format!("{} ended", run_of(container))));
                }
            }
            (text(&pod["metadata"]["uid"]).to_owned(), found)
        })
        .collect()
}

/// What identifies a run of a container, in any version: its number and its start.
fn run_of(container: &Value) -> String {
    let started = text(&container["state"]["running"]["startedAt"]);
    format!("{}@{started}", container["restartCount"])
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| {
        all.iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "True")
    })
}

/// Containers and sidecars.
fn statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    ["containerStatuses", "initContainerStatuses"]
        .into_iter()
        .flat_map(|list| pod["status"][list].as_array().into_iter().flatten())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The watcher's eyes and hands.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) client: Client,
    pub(super) layout: Layout,
    pub(super) program: PathBuf,
    /// The agent that answers: its process, and since when.
    up: Option<(i32, u64)>,
    /// The agent that answered last runs the former program.
    former: bool,
}

/// The agent as its supervisor sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Started {
    /// Grows with each start; 0: never started.
    pub(super) mark: u64,
    /// It was stopped on purpose.
    pub(super) stopped: bool,
    /// It stops the pods, because the machine goes down.
    pub(super) goes_down: bool,
}

impl Host {
    pub(super) fn new(client: Client, layout: Layout, program: PathBuf) -> Self {
        Self {
            client,
            layout,
            program,
            up: None,
            former: false,
        }
    }

    /// Whether the agent that answered last was one of the former program.
    pub(super) fn is_former(&self) -> bool {
        self.former
    }

    /// The process of the agent that answers; 0 without one.
    pub(super) fn agent_pid(&self) -> i32 {
        pods(&self.client).map_or(0, |(_, pid)| pid)
    }

    /// The newest start of the agent.
    pub(super) fn started(&self) -> Started {
        let goes_down = self.layout.shutdown().exists();
        if !systemd_runs() {
            let mark = u64::try_from(self.agent_pid()).unwrap_or(0);
            return Started {
                mark,
                stopped: false,
                goes_down,
            };
        }
        let shown = properties(SERVICE, "ExecMainStartTimestampMonotonic,ActiveState");
        let of = |name: &str| {
            let mut lines = shown.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
        };
        Started {
            mark: of("ExecMainStartTimestampMonotonic")
                .and_then(|n| n.parse().ok())
                .unwrap_or(0),
            stopped: of("ActiveState") == Some("inactive"),
            goes_down,
        }
    }

    /// The agent, unless it is still the old one.
    pub(super) fn look(&mut self, old_pid: i32) -> SeenAgent {
        let now = clock::boot_ms();
        let found = pods(&self.client);
        let pid = found.as_ref().map_or(0, |(_, pid)| *pid);
        self.former = pid > 0 && runs(pid, &former_of(&self.program));
        match found {
            Some((list, pid)) if pid != old_pid && !self.former => {
                let since = match self.up {
                    Some((same, since)) if same == pid => since,
                    Some(_) | None => now,
                };
                self.up = Some((pid, since));
                SeenAgent::Up {
                    for_ms: now.saturating_sub(since),
                    pods: seen(&list),
                }
            }
            Some(_) | None => {
                self.up = None;
                SeenAgent::Down
            }
        }
    }

    /// Whether the agent that answers runs the installed program.
    pub(super) fn runs_program(&self) -> bool {
        let pid = self.agent_pid();
        pid > 0 && runs(pid, &self.program)
    }

    /// Has the agent replaced by one that runs the installed program. With `kill`, it would stop its pods if it were
    /// asked to end.
    pub(super) fn restart(&self, kill: bool) -> Result<()> {
        if systemd_runs() {
            if kill {
                systemctl(&["kill", "--kill-who=main", "--signal=KILL", SERVICE])?;
                // Not `restart`: that would ask an agent to end that is back already.
                return systemctl(&["start", "--no-block", SERVICE]);
            }
            return systemctl(&["restart", "--no-block", SERVICE]);
        }
        let pid = self.agent_pid();
        if pid > 0 {
            let signal = if kill { libc::SIGKILL } else { libc::SIGTERM };
            return end(pid, signal);
        }
        // One that hangs would never make room for another.
        for pid in agents_of_replaced(&self.program) {
            end(pid, libc::SIGKILL)?;
        }
        // None is there: the supervisor may have given up.
        if Path::new(OPENRC).exists() {
            let _ = Command::new("rc-service")
                .args(["coracle", "restart"])
                .output();
        }
        Ok(())
    }

    /// Stops the agent without its pods, so that it writes nothing more, also if it does not answer. Without systemd the
    /// init starts another one, of the program that is installed by now.
    pub(super) fn stop(&self, kill: bool) -> Result<()> {
        if !systemd_runs() {
            let pid = self.agent_pid();
            let mut agents = agents_of_replaced(&self.program);
            if pid > 0 && !runs(pid, &self.program) && !agents.contains(&pid) {
                agents.push(pid);
            }
            for pid in &agents {
                end(*pid, libc::SIGKILL)?;
            }
            let begun = clock::boot_ms();
            let is_there = |pid: &i32| fs::metadata(format!("/proc/{pid}/exe")).is_ok();
            while agents.iter().any(is_there) && clock::boot_ms() - begun < STOP_MS {
                std::thread::sleep(Duration::from_millis(20));
            }
            return Ok(());
        }
        if kill {
            let _ = systemctl(&["kill", "--kill-who=main", "--signal=KILL", SERVICE]);
        }
        systemctl(&["stop", SERVICE])
    }
}

fn end(pid: i32, signal: i32) -> Result<()> {
    process::kill(pid, signal).map_err(|e| CliError::new("could not end the agent").because(e))
}

/// Whether a process runs a program.
pub(in crate::cli) fn runs(pid: i32, program: &Path) -> bool {
    let running = fs::metadata(format!("/proc/{pid}/exe"));
    match (running, fs::metadata(program)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// The agents of the program that was there before the installed one, also those that do not answer: one at its start
/// may write its records already.
fn agents_of_replaced(program: &Path) -> Vec<i32> {
    let mut replaced = program.as_os_str().to_owned();
    replaced.push(" (deleted)");
    let all = procfs::process::all_processes().into_iter().flatten();
    let agents = all.flatten().filter(|process| {
        let is_of = process.exe().is_ok_and(|exe| exe == replaced);
        let words = is_of.then(|| process.cmdline().unwrap_or_default());
        let words = words.iter().flatten().take_while(|word| *word != "--");
        words.skip(1).any(|word| word == "run")
    });
    agents.map(|process| process.pid).collect()
}

/// Checks that systemd knows the watcher of this program.
pub(super) fn unit_is_there(program: &Path) -> Result<()> {
    let shown = properties(WATCHER, "ExecStart");
    let Some(path) = starts(&shown) else {
        return Err(CliError::new(format!("the unit {WATCHER} is missing"))
            .hint("`coracle install` puts it in place"));
    };
    let former = former_of(program);
    match Path::new(path) == former {
        true => Ok(()),
        false => Err(CliError::new(format!(
            "the unit {WATCHER} starts `{path}`, and the agent's former program would be `{}`",
            former.display()
        ))
        .hint(
            "`coracle.service` has to start the program itself, not a link to it, and both units the same one",
        )),
    }
}

/// Checks that the watcher's unit, which an upgrade leaves as it is, starts for a trial in this folder: former ones
/// ask for a record in the usual folder.
pub(super) fn unit_finds(state: &Path) -> Result<()> {
    let shown = properties(WATCHER, "FragmentPath");
    let path = shown.trim().trim_start_matches("FragmentPath=");
    let unit = file::read_text(path).unwrap_or_default();
    match asks_for_other(&unit, state) {
        None => Ok(()),
        Some(other) => Err(CliError::new(format!(
            "the unit {WATCHER} starts only for a trial in `{other}`, and this one would be in `{}`",
            state.display()
        ))
        .hint(format!("remove the line `{CONDITION}{other}` of `{path}`, then `systemctl daemon-reload`"))),
    }
}

/// The record that a unit asks for, if it is not that of this folder.
fn asks_for_other<'a>(unit: &'a str, state: &Path) -> Option<&'a str> {
    let mut asked = unit.lines().filter_map(|line| line.strip_prefix(CONDITION));
    asked.find(|path| path.ends_with("/trial.json") && Path::new(path) != state.join("trial.json"))
}

/// The program of a unit as systemctl shows it: `ExecStart={ path=PROGRAM ; argv[]=... }`.
fn starts(shown: &str) -> Option<&str> {
    let (path, _) = shown.split_once("path=")?.1.split_once(" ;")?;
    Some(path)
}

/// Starts the watcher beside this process: the former program.
pub(super) fn start_watcher(state: &Path, program: &Path) -> Result<()> {
    if systemd_runs() {
        return systemctl(&["start", "--no-block", WATCHER]);
    }
    let former = former_of(program);
    Command::new(&former)
        .args(["upgrade", "--watch", "--state"])
        .arg(state)
        // It outlives this terminal.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map(drop)
        .map_err(|e| CliError::new(format!("could not start `{}`", former.display())).because(e))
}

#[cfg(test)]
#[path = "host_test.rs"]
mod tests;
