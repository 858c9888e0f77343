//! Exits of containers, shared by planner, shim and effects.

use serde::{Deserialize, Serialize};

use super::{Stamp, Wall};

/// The exit of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code, 0–255; 128 + n for death by signal n.
    pub code: i32,
    /// The signal that ended it, if any.
    pub signal: Option<i32>,
    /// Whether the kernel killed a process in its cgroup for lack of memory.
    pub oom_killed: bool,
    /// The termination message, at most 4096 bytes.
    pub message: String,
    /// When the process started.
    pub started: Stamp,
    /// When it ended.
    pub finished: Stamp,
}

/// Message of a run whose exit was not observed; the kubelet's sentence.
pub const LOST_MESSAGE: &str = "The container could not be located when the pod was terminated";

/// Message of a run that was interrupted when the machine went down.
pub const CUT_SHORT_MESSAGE: &str = "The node went down while the container was running";

impl Exit {
    /// The assumed exit of a run that was interrupted when the machine went down (`Unknown`), as containerd reports it
    /// after a reboot.
    pub fn cut_short(started: Stamp, now: Stamp) -> Self {
        Self {
            code: 255,
            message: CUT_SHORT_MESSAGE.to_owned(),
            ..Self::lost(started, now)
        }
    }

    /// Whether the run was interrupted when the machine went down.
    pub fn is_cut_short(&self) -> bool {
        self.code == 255 && self.signal.is_none() && self.message == CUT_SHORT_MESSAGE
    }

    /// The assumed exit of a run that was lost with its shim (`ContainerStatusUnknown`).
    pub fn lost(started: Stamp, now: Stamp) -> Self {
        Self {
            code: 137,
            signal: None,
            oom_killed: false,
            message: LOST_MESSAGE.to_owned(),
            started,
            finished: now,
        }
    }

    /// The exit of a container whose program could not be executed (`StartError`). It has no start time. This tells it
    /// from a program that exits with 128 itself, also after an agent restart.
    pub fn not_started(message: String, now: Stamp) -> Self {
        Self {
            code: 128,
            signal: None,
            oom_killed: false,
            message,
            started: Stamp::default(),
            finished: now,
        }
    }

    /// Whether the program could not be executed; see [`Exit::not_started`].
    pub fn is_start_error(&self) -> bool {
        self.code == 128 && self.signal.is_none() && self.started.wall == Wall(0)
    }

    /// Whether the run was lost with its shim.
    pub fn is_lost(&self) -> bool {
        self.code == 137 && self.signal.is_none() && self.message == LOST_MESSAGE
    }
}

/// The two steps of stopping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StopSignal {
    /// The container's stop signal (the image's STOPSIGNAL, else SIGTERM), to its first process.
    Stop,
    /// SIGKILL, to its whole cgroup.
    Kill,
}
