//! Node shutdown on the node's side. logind, a command or SIGPWR requests it; the planner decides which pods stop;
//! this file saves the progress, shows it, and reports it to waiting clients (KEP-2000; KEP-2712).

mod lock;

use std::path::Path;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use smol::channel::{Receiver, Sender, bounded};

use super::{Node, metrics};
use crate::api::{CommandError, CommandErrorKind, Metric};
use crate::plan::event::{AskedBy, Event, Group, NodeFact, Shutdown};
use crate::plan::shutdown::members;
use crate::plan::status;
use crate::spec::Reason;
use crate::sys::file::{self, Durability};
use crate::types::Wall;

pub(super) use lock::{Lock, ask, keep};

/// Lines buffered for a slow client; beyond that it misses some in between, not the end.
const LINES: usize = 64;

/// The node's part of the shutdown, beside the planner's state.
#[derive(Debug)]
pub(super) struct NodeShutdown {
    /// The shutdown as written last.
    written: Option<Shutdown>,
    /// The clients that follow it.
    waiting: Vec<Sender<String>>,
    /// When the newest shutdown began and ended; 0: none, or not yet.
    times: (Wall, Wall),
    /// The task that writes the times; the next one waits for it.
    writing: Option<smol::Task<()>>,
    /// Whether logind announced that the machine goes down.
    preparing: bool,
    /// The lock that holds the machine up.
    lock: Lock,
}

impl NodeShutdown {
    /// Blocking. Restores a shutdown from before the agent restart.
    pub(super) fn new(state_file: &Path, lock: Lock) -> Self {
        Self {
            written: None,
            waiting: Vec::new(),
            times: read_times(state_file),
            writing: None,
            preparing: false,
            lock,
        }
    }

    /// The settings may have changed.
    pub(super) fn settings_changed(&self) {
        self.lock.look_again();
    }

    pub(super) fn metrics(&self) -> [Metric; 2] {
        [
            metrics::gauge(
                "kubelet_graceful_shutdown_start_time_seconds",
                "Last graceful shutdown start time since unix epoch in seconds",
                metrics::one(seconds(self.times.0)),
            ),
            metrics::gauge(
                "kubelet_graceful_shutdown_end_time_seconds",
                "Last graceful shutdown end time since unix epoch in seconds",
                metrics::one(seconds(self.times.1)),
            ),
        ]
    }
}

impl Node {
    /// Restores a shutdown in progress. Called when its pods are known.
    pub(super) fn resume_shutdown(&mut self) {
        let path = self.tools.config.layout.shutdown();
        let Ok(bytes) = file::read_record(&path) else {
            return;
        };
        match serde_json::from_slice::<Shutdown>(&bytes) {
            Ok(shutdown) => {
                tracing::info!("resuming the node shutdown in progress");
                let ended = shutdown.ended.map_or(Wall(0), |at| at.wall);
                self.shutdown.times = (shutdown.since.wall, ended);
                self.shutdown.written = Some(shutdown.clone());
                self.record(&Event::Node(NodeFact::ShutdownRecovered(shutdown)));
                self.write_times();
                self.show_node();
            }
            Err(error) => tracing::warn!("`{}` is broken ({error}), ignoring", path.display()),
        }
    }

    /// The machine goes down, or stays up after all.
    pub(super) fn logind_says(&mut self, preparing: bool) {
        self.shutdown.preparing = preparing;
        let asked_by = self.state.shutdown.as_ref().map(|s| s.asked_by);
        match (preparing, asked_by) {
            (true, None) => {
                if let Err(error) = self.begin_shutdown(AskedBy::Logind) {
                    tracing::warn!("the machine goes down, but pods are not stopped: {error}");
                }
            }
            (false, Some(AskedBy::Logind)) => {
                self.record(&Event::Node(NodeFact::ShutdownCancelled))
            }
            (true, Some(AskedBy::Logind | AskedBy::Command))
            | (false, Some(AskedBy::Command) | None) => {}
        }
        self.let_go();
    }

    /// SIGPWR.
    pub(super) fn power_fails(&mut self) {
        if let Err(error) = self.begin_shutdown(AskedBy::Command) {
            tracing::warn!("SIGPWR received, but pods are not stopped: {error}");
        }
    }

    fn begin_shutdown(&mut self, asked_by: AskedBy) -> Result<(), CommandError> {
        let groups = self.tools.sandboxes.settings.now().shutdown.clone();
        if groups.is_empty() {
            return Err(CommandError {
                kind: CommandErrorKind::Conflict,
                message: "graceful shutdown is off: set shutdownGracePeriod, or \
                          shutdownGracePeriodByPodPriority, in the settings"
                    .to_owned(),
            });
        }
        self.record(&Event::Node(NodeFact::ShutdownBegun { groups, asked_by }));
        Ok(())
    }

    /// Begins a shutdown for a client, which reads the progress. If one is in progress, the client follows that.
    pub(super) fn shutdown_for(&mut self) -> Result<Receiver<String>, CommandError> {
        if self.state.shutdown.is_none() {
            self.begin_shutdown(AskedBy::Command)?;
        }
        let (sender, receiver) = bounded(LINES);
        for line in self.shutdown.written.iter().flat_map(progress) {
            let _ = sender.try_send(line);
        }
        if self
            .state
            .shutdown
            .as_ref()
            .is_some_and(|s| s.ended.is_none())
        {
            self.shutdown.waiting.push(sender);
        }
        Ok(receiver)
    }

    pub(super) fn cancel_shutdown(&mut self) -> Result<(), CommandError> {
        let refuse = |message: &str| {
            Err(CommandError {
                kind: CommandErrorKind::Conflict,
                message: message.to_owned(),
            })
        };
        if self.state.shutdown.is_none() {
            return refuse("the node is not shutting down");
        }
        if self.shutdown.preparing {
            return refuse(
                "the whole machine is shutting down, which cannot be cancelled any more",
            );
        }
        self.record(&Event::Node(NodeFact::ShutdownCancelled));
        Ok(())
    }

    /// `GET /coracle/v1/shutdown`, without the part that only logind knows: see [`ask`].
    pub(super) fn show_shutdown(&self) -> Value {
        let shutdown = self.state.shutdown.as_ref();
        let groups = match shutdown {
            Some(shutdown) => shutdown.groups.clone(),
            None => self.tools.sandboxes.settings.now().shutdown.clone(),
        };
        let members = members(&self.state, &groups);
        let of = |(group, pods): (&Group, &Vec<_>)| {
            let name = |pod: &&crate::plan::PodState| pod.spec.key.to_string();
            json!({
                "priority": group.priority,
                "shutdownGracePeriodSeconds": group.seconds,
                "pods": pods.iter().map(name).collect::<Vec<_>>(),
            })
        };
        json!({
            "groups": groups.iter().zip(&members).map(of).collect::<Vec<_>>(),
            "totalSeconds": groups.iter().map(|group| group.seconds).sum::<u64>(),
            "underWay": shutdown.map(|s| json!({
                "since": status::time(s.since.wall),
                "turn": s.turn,
                "ended": s.ended.map(|at| status::time(at.wall)),
            })),
        })
    }

    /// After each fact: saves the progress of the shutdown before anything is done about it, and reports it.
    pub(super) fn note_shutdown(&mut self) {
        if self.shutdown.written == self.state.shutdown {
            return;
        }
        let before = std::mem::replace(&mut self.shutdown.written, self.state.shutdown.clone());
        let path = self.tools.config.layout.shutdown();
        let written = match &self.state.shutdown {
            Some(shutdown) => {
                let bytes = serde_json::to_vec(shutdown).expect("plain data");
                file::replace(&path, &bytes, 0o600, Durability::Process)
            }
            None => file::remove_file(&path),
        };
        if let Err(error) = written {
            tracing::warn!("could not write `{}`: {error}, going on", path.display());
        }
        let lines = |shutdown: &Option<Shutdown>| shutdown.iter().flat_map(progress).count();
        let known = lines(&before);
        for line in self.state.shutdown.iter().flat_map(progress).skip(known) {
            self.shutdown.waiting.retain(|client| !client.is_closed());
            for client in &self.shutdown.waiting {
                let _ = client.try_send(line.clone());
            }
        }
        match (&before, &self.state.shutdown) {
            (None, Some(shutdown)) => {
                self.shutdown.times = (shutdown.since.wall, Wall(0));
                self.report_shutdown("Shutdown manager detected shutdown event");
            }
            (Some(_), None) => {
                self.report_shutdown("Shutdown manager detected shutdown cancellation");
                let line = json!({ "type": "cancelled" }).to_string();
                for client in self.shutdown.waiting.drain(..) {
                    let _ = client.try_send(line.clone());
                }
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        let ended = self.state.shutdown.as_ref().and_then(|s| s.ended);
        if let Some(at) = ended.filter(|_| self.shutdown.times.1 == Wall(0)) {
            tracing::info!("all pods had time to stop");
            self.shutdown.times.1 = at.wall;
            self.shutdown.waiting.clear();
        }
        if before.as_ref().is_none_or(|s| s.ended != ended) {
            self.write_times();
        }
        self.let_go();
    }

    fn report_shutdown(&mut self, message: &str) {
        tracing::info!("{message}");
        self.shown.node_event(Reason::Shutdown, message);
        self.show_node();
    }

    /// No client has to wait for the pods any more; their state is on disk.
    fn let_go(&mut self) {
        let over = self
            .state
            .shutdown
            .as_ref()
            .is_none_or(|s| s.ended.is_some());
        if self.shutdown.preparing && over {
            let (writing, lock) = (self.shutdown.writing.take(), self.shutdown.lock.clone());
            super::spawn(async move {
                if let Some(writing) = writing {
                    writing.await;
                }
                lock.release();
            });
        }
    }

    /// Beside the loop: a disk may be slow.
    fn write_times(&mut self) {
        let path = self.tools.config.layout.shutdown_state();
        let (times, before) = (self.shutdown.times, self.shutdown.writing.take());
        self.shutdown.writing = Some(super::task(async move {
            if let Some(before) = before {
                before.await;
            }
            let text = json!({ "startTime": rfc3339(times.0), "endTime": rfc3339(times.1) });
            let wrote = super::unblock(move || {
                let bytes = text.to_string().into_bytes();
                let wrote = file::replace(&path, &bytes, 0o644, Durability::PowerCut);
                wrote.map_err(|error| (path, error))
            });
            if let Err((path, error)) = wrote.await {
                tracing::warn!("could not write `{}`: {error}, going on", path.display());
            }
        }));
    }
}

/// The progress as lines for clients: one for each group that had its turn, and the end.
fn progress(shutdown: &Shutdown) -> impl Iterator<Item = String> {
    let groups = shutdown.groups.iter().take(shutdown.turn + 1);
    let groups = groups.map(
        |group| json!({ "type": "group", "priority": group.priority, "seconds": group.seconds }),
    );
    let end = shutdown.ended.map(|_| json!({ "type": "ended" }));
    groups.chain(end).map(|line| line.to_string())
}

/// Go's zero time stands for none.
fn rfc3339(wall: Wall) -> String {
    match wall {
        Wall(0) => "0001-01-01T00:00:00Z".to_owned(),
        Wall(us) => Timestamp::from_microsecond(us)
            .unwrap_or_default()
            .to_string(),
    }
}

fn read_times(path: &Path) -> (Wall, Wall) {
    let text = file::read_record(path).unwrap_or_default();
    let value: Value = serde_json::from_slice(&text).unwrap_or_default();
    let time = |name: &str| {
        let time: Option<Timestamp> = value[name].as_str().and_then(|text| text.parse().ok());
        Wall(time.map_or(0, |time| time.as_microsecond().max(0)))
    };
    (time("startTime"), time("endTime"))
}

#[expect(clippy::cast_precision_loss, reason = "seconds since 1970")]
fn seconds(wall: Wall) -> f64 {
    wall.0 as f64 / 1e6
}
