//! One run of a container. A container's newest run moves `None → Running → Ended → Running → …`; attempts only grow.
//! What belongs to a run lives in it and goes with it.

use serde::{Deserialize, Serialize};

use super::hook::Hooks;
use super::kill::Kill;
use super::probe::Tracks;
use super::state::Retry;
use super::{Stamp, Time};
use crate::spec::ContainerResources;
use crate::types::{Effective, Exit};

/// A container's newest run.
#[derive(Debug, Clone, PartialEq)]
pub enum Run {
    /// It never ran.
    None,
    /// It runs.
    Running(Box<Running>),
    /// It ended.
    Ended(Box<Past>),
}

/// A run whose process is thought to be there.
#[derive(Debug, Clone, PartialEq)]
pub struct Running {
    /// Its number.
    pub attempt: u32,
    /// The image's config digest.
    pub image_id: String,
    /// Its first process.
    pub pid: u32,
    /// When it started.
    pub began: Stamp,
    /// What it was asked with, and how far its hooks and its stop are.
    pub course: Course,
    /// Set while it is being ended.
    pub kill: Option<Kill>,
    /// What its probes have shown.
    pub tracks: Tracks,
    /// Whether it is through with its `postStart` hook; until then it is shown as being created.
    pub up: bool,
    /// Whether it has started, by its startup probe.
    pub started: bool,
    /// Whether it is ready, by its readiness probe.
    pub ready: bool,
}

/// A run that ended, and what later decisions need of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Past {
    /// How it ended.
    pub ended: Ended,
    /// What it was asked with, and how far its hooks and its stop came.
    pub course: Course,
}

/// How a run ended, as it is shown and saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Its number.
    pub attempt: u32,
    /// The image's config digest.
    pub image_id: String,
    /// The exit.
    pub exit: Exit,
    /// Whether a client had asked for a restart: it is no crash.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_request: bool,
}

/// What was asked of a run, and how far its hooks and its stop came.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Course {
    /// What it was asked with; `None`: not known.
    pub asked: Option<Asked>,
    /// How far its hooks have come.
    pub hooks: Hooks,
    /// How far signalling it has come.
    pub stop: Stop,
}

impl Course {
    /// Whether the run was ended because a client asked for a restart.
    pub fn on_request(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.on_request)
    }
}

/// What a run was started with; its manifest may have changed since. Saved before the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The image, as written in the manifest.
    pub image: String,
    /// cpu and memory, with later resizes; `None`: saved by an agent that did not know of resizes.
    #[serde(default)]
    pub resources: Option<ContainerResources>,
    /// What its start decided; empty before.
    #[serde(default)]
    pub effective: Effective,
    /// It is ended to be replaced, whatever the restart policies. Saved before the first signal.
    #[serde(default)]
    pub again: bool,
    /// It is ended because a client asked for a restart: its end is no crash.
    #[serde(default)]
    pub on_request: bool,
}

/// How far stopping a run has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stop {
    /// When a signal was first asked for.
    pub asked: Option<Time>,
    /// When the stop signal was first sent.
    pub sent: Option<Time>,
    /// When SIGKILL was sent last.
    pub killed: Option<Time>,
    /// Waits after signals that could not be sent.
    pub retry: Retry,
}

/// Something of one run, with the run's number. To be saved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OfRun<T> {
    /// The run's number.
    pub attempt: u32,
    /// What belongs to it.
    #[serde(flatten)]
    pub of: T,
}

impl<T> OfRun<T> {
    /// What belongs to this run, if it is the one.
    pub(super) fn of(&self, attempt: u32) -> Option<&T> {
        (self.attempt == attempt).then_some(&self.of)
    }
}

impl Running {
    /// A run that has just started, without probes.
    pub fn new(attempt: u32, image_id: String, pid: u32, began: Stamp) -> Self {
        Self {
            attempt,
            image_id,
            pid,
            began,
            course: Course::default(),
            kill: None,
            tracks: Tracks::default(),
            up: false,
            started: false,
            ready: false,
        }
    }
}

impl Run {
    /// Whether a process is thought to be there.
    pub fn is_running(&self) -> bool {
        self.running().is_some()
    }

    /// The run, while it runs.
    pub fn running(&self) -> Option<&Running> {
        match self {
            Self::Running(running) => Some(running),
            Self::None | Self::Ended(_) => None,
        }
    }

    pub(super) fn running_mut(&mut self) -> Option<&mut Running> {
        match self {
            Self::Running(running) => Some(running),
            Self::None | Self::Ended(_) => None,
        }
    }

    /// How it ended, if it did.
    pub fn ended(&self) -> Option<&Ended> {
        match self {
            Self::None | Self::Running(_) => None,
            Self::Ended(past) => Some(&past.ended),
        }
    }

    /// The run's number, if it ever ran.
    pub fn attempt(&self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Running(running) => Some(running.attempt),
            Self::Ended(past) => Some(past.ended.attempt),
        }
    }

    /// The config digest of its image, if it ever ran.
    pub fn image_id(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::Running(running) => Some(&running.image_id),
            Self::Ended(past) => Some(&past.ended.image_id),
        }
    }

    /// What it was asked with, and how far its hooks and its stop came, if it ever ran.
    pub fn course(&self) -> Option<&Course> {
        match self {
            Self::None => None,
            Self::Running(running) => Some(&running.course),
            Self::Ended(past) => Some(&past.course),
        }
    }

    pub(super) fn course_mut(&mut self) -> Option<&mut Course> {
        match self {
            Self::None => None,
            Self::Running(running) => Some(&mut running.course),
            Self::Ended(past) => Some(&mut past.course),
        }
    }
}
