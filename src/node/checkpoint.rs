//! What must an agent's successor know that no shim remembers? Start time and back-off of each pod,
//! that it is being stopped, which runs count. All of it counts
//! from the boot, so it lies on tmpfs and costs no flash. Losing it costs counters, nothing else.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::plan::condition::{Flags, Foreign};
use crate::plan::event::{
    Asked, CrashBackoff, Evictions, Health, Hooks, Kill, Round, SandboxWaits, Verdict,
};
use crate::plan::state::{StartError, Stopping};
use crate::spec::{PodResources, Stamp, Time};
use crate::sys::file::{self, Durability};

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    /// When the pod was first seen.
    pub(super) created: Option<Stamp>,
    /// Crash back-off by container.
    pub(super) backoff: BTreeMap<String, CrashBackoff>,
    /// Why containers could not be created.
    #[serde(default)]
    pub(super) start_errors: BTreeMap<String, StartError>,
    /// The pod's waits for its sandbox.
    #[serde(default)]
    pub(super) waits: SandboxWaits,
    /// Which runs count, of containers of which not all do.
    #[serde(default)]
    pub(super) rounds: BTreeMap<String, Round>,
    /// What probes have shown, of running containers.
    #[serde(default)]
    pub(super) health: BTreeMap<String, Health>,
    /// What the newest runs of containers were asked with, and those being started.
    #[serde(default)]
    pub(super) asked: BTreeMap<String, Vec<Asked>>,
    /// How far hooks have come, of containers that have some.
    #[serde(default)]
    pub(super) hooks: BTreeMap<String, Hooks>,
    /// What the pod's cgroup was given last.
    #[serde(default)]
    pub(super) actuated: Option<PodResources>,
    /// Which containers are being ended.
    #[serde(default)]
    pub(super) kills: BTreeMap<String, Kill>,
    /// That the pod is to go.
    #[serde(default)]
    pub(super) stopping: Option<Stopping>,
    /// That it has failed.
    #[serde(default)]
    pub(super) verdict: Option<Verdict>,
    /// How often it was evicted lately.
    #[serde(default)]
    pub(super) evictions: Evictions,
    /// Since when its sidecars are being stopped.
    #[serde(default)]
    pub(super) finishing: Option<Time>,
    /// The conditions others have set.
    #[serde(default)]
    pub(super) foreign: Option<Vec<Foreign>>,
    /// Its own conditions.
    #[serde(default)]
    pub(super) flags: Option<Flags>,
}

/// Reads it; an absent or broken one is as good as empty.
pub(super) fn read(path: &Path) -> Checkpoint {
    let Ok(bytes) = file::read_record(path) else {
        return Checkpoint::default();
    };
    serde_json::from_slice(&bytes).unwrap_or_else(|error| {
        tracing::warn!(
            "checkpoint `{}` is broken ({error}), ignoring",
            path.display()
        );
        Checkpoint::default()
    })
}

/// Writes it; `false` if the pod has no folder (yet, or any more).
pub(super) fn write(path: &Path, checkpoint: &Checkpoint) -> bool {
    let bytes = serde_json::to_vec(checkpoint).expect("plain data");
    match file::replace(path, &bytes, 0o600, Durability::Process) {
        Ok(()) => true,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!("could not write `{}`: {error}, going on", path.display());
            }
            false
        }
    }
}
