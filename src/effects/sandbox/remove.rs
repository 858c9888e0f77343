//! The removal of a pod. Every step is tried, even after a failed one.

use std::fs;
use std::path::Path;

use super::{SandboxError, Sandboxes, access};
use crate::shim::protocol::ContainerRecord;
use crate::spec::{PodKey, PodUid};
use crate::sys::file::Durability;
use crate::sys::{clock, file, mount, tree};
use crate::types::{Exit, Stamp, Time, Wall};

/// What to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// Volumes, logs and records.
    Remains,
    /// Logs and records.
    Logs,
    /// Nothing.
    Nothing,
}

impl Sandboxes {
    /// Blocking. Kills the remaining processes in the pod's cgroups and removes the cgroups. The shim's mounts end
    /// with it.
    pub fn clear(&self, uid: &PodUid) -> Result<(), SandboxError> {
        let mut result = Ok(());
        for path in self.pod_cgroups(uid) {
            let killed = self
                .cgroups
                .kill(&path)
                .and_then(|()| self.cgroups.remove(&path));
            result = result.and(killed.map_err(SandboxError::from));
        }
        let run = self.layout().pod_run(uid);
        end_records(&run.records());
        let bundles = self.layout().bundles(uid);
        for folder in [
            run.libcontainer(),
            bundles,
            run.former_bundles(),
            run.subpaths(),
        ] {
            result = result
                .and(tree::remove(&folder).map_err(|source| access("remove", &folder, source)));
        }
        for path in [run.shim_socket(), run.shim_config()] {
            result = result
                .and(file::remove_file(&path).map_err(|source| access("remove", &path, source)));
        }
        result
    }

    /// Blocking. Removes the volumes of a pod without a sandbox, on disk and in memory.
    pub fn remove_volumes(&self, uid: &PodUid) -> Result<(), SandboxError> {
        let in_memory = self.layout().pod_run(uid).dir.join("volumes");
        let on_disk = self.layout().pod_state(uid).dir.join("volumes");
        // Mounts by containers reach the node with `mountPropagation: Bidirectional`.
        for path in [&in_memory, &on_disk] {
            mount::unmount_below(path).map_err(|source| access("unmount below", path, source))?;
        }
        let written = self.layout().projected_volumes(uid);
        let removed = [in_memory, on_disk, written]
            .map(|path| tree::remove(&path).map_err(|source| access("remove", &path, source)));
        removed.into_iter().collect()
    }

    /// Blocking. After `clear`: removes what is on disk. Writable layers always go; `Leave` says what stays.
    pub fn remove_files(
        &self,
        uid: &PodUid,
        key: &PodKey,
        leave: Leave,
    ) -> Result<(), SandboxError> {
        let (run, state) = (self.layout().pod_run(uid), self.layout().pod_state(uid));
        let mut trees = vec![state.dir.join("containers")];
        let mut result = match leave {
            Leave::Remains => Ok(()),
            Leave::Logs | Leave::Nothing => self.remove_volumes(uid),
        };
        if leave == Leave::Nothing {
            // Logs first, the runtime folder last: while it exists, a restarted agent knows that this pod is being
            // removed.
            let logs = self.layout().pod_logs(&key.namespace, &key.name, uid);
            trees.extend([logs, state.dir]);
        }
        if result.is_ok() {
            for path in trees {
                result = result
                    .and(tree::remove(&path).map_err(|source| access("remove", &path, source)));
            }
        }
        if result.is_ok() && leave == Leave::Nothing {
            result = tree::remove(&run.dir).map_err(|source| access("remove", &run.dir, source));
        }
        result
    }

    fn pod_cgroups(&self, uid: &PodUid) -> Vec<String> {
        self.cgroups
            .pods()
            .into_iter()
            .filter(|(found, _)| found == uid)
            .map(|(_, path)| path)
            .collect()
    }
}

/// Ends the records of runs whose exit was not observed: otherwise an agent restart would take those runs for
/// alive.
fn end_records(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let record = file::read_record(&path).ok();
        let record =
            record.and_then(|bytes| serde_json::from_slice::<ContainerRecord>(&bytes).ok());
        let Some(mut record) = record.filter(|record| record.exit.is_none()) else {
            continue;
        };
        record.exit = Some(unseen_exit(&record));
        let bytes = serde_json::to_vec(&record).expect("plain data");
        // On a full tmpfs the run counts as lost a second time, which is harmless.
        let _ = file::replace(&path, &bytes, 0o600, Durability::Process);
    }
}

/// The assumed end of a run whose exit was not observed.
pub fn unseen_exit(record: &ContainerRecord) -> Exit {
    let now = Stamp {
        time: Time(clock::boot_ms()),
        wall: Wall(clock::wall_us()),
    };
    Exit::lost(record.started, now)
}
