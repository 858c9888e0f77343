//! The usage and free resources of the node and its pods, read from cgroups, file systems and `/proc`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use super::cgroup::Cgroups;
use super::figures;
use crate::layout::{Layout, log_file};
use crate::spec::{PodKey, PodSpec};
use crate::sys::meminfo::MemInfo;
use crate::sys::{disk_usage, process};
use crate::types::usage::{ContainerUsage, DiskUsage, FileSystem, NodeUsage, PodUsage, Space};

/// The maximum number of files of one volume or layer that are counted at a time. What has more takes at least what
/// was counted. Each has a number of its own: a large volume must not end the limits of the others.
const MAX_ENTRIES: u64 = 100_000;

/// The maximum number of files of one claim that are counted.
const MAX_CLAIM_ENTRIES: u64 = 1_000_000;

/// Blocking. The node's figures; what cannot be read is left out.
pub fn of_node(layout: &Layout, cgroups: &Cgroups) -> NodeUsage {
    let info = MemInfo::read();
    let memory = match (info.bytes("MemTotal"), info.bytes("MemFree")) {
        (Some(total), Some(free)) => cgroups.node_memory(total, free),
        _ => None,
    };
    let images = layout.image_store();
    let (pods_memory, pods_charged_bytes) = cgroups.pods_memory();
    NodeUsage {
        memory,
        pods_memory,
        pods_charged_bytes,
        nodefs: file_system(&layout.root),
        imagefs: file_system(&images),
        images_apart: device(&images) != device(&layout.root),
        pids: pids(),
    }
}

/// The figures of a pod to read.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The pod.
    pub pod: Arc<PodSpec>,
    /// Names of its containers, each with its newest run.
    pub runs: Vec<(String, u32)>,
    /// Whether to read memory and processes.
    pub cgroups: bool,
    /// Whether to measure disk use.
    pub disk: bool,
}

/// Blocking. A pod's figures. Measuring disk use may take long.
pub fn of_pod(layout: &Layout, cgroups: &Cgroups, wanted: &Wanted) -> PodUsage {
    let pod = &*wanted.pod;
    let mut usage = PodUsage {
        disk: wanted.disk,
        ..PodUsage::default()
    };
    if wanted.cgroups {
        usage.memory_bytes = cgroups.pod_memory(pod.qos, &pod.uid);
        usage.processes = cgroups.pod_processes(pod.qos, &pod.uid);
    }
    let walk = |path: &Path| walk(path, MAX_ENTRIES);
    if wanted.disk {
        let files = layout.pod_state(&pod.uid).etc_files();
        usage.shared_files = taken(disk_usage::of_files(&files));
        for volume in &pod.volumes {
            if volume.source.on_disk().is_some() {
                let path = layout.pod_state(&pod.uid).empty_dir(&volume.name);
                usage.volumes.insert(volume.name.clone(), walk(&path));
            }
        }
    }
    for (name, run) in &wanted.runs {
        let mut container = ContainerUsage::default();
        if wanted.cgroups {
            container.memory_bytes = cgroups.container_memory(pod, name);
        }
        if wanted.disk {
            let state = layout.pod_state(&pod.uid);
            container.layer = walk(&state.container(name)) + walk(&state.image_volumes(name));
            container.logs = logs(layout, pod, name, *run);
        }
        usage.containers.insert(name.clone(), container);
    }
    usage
}

fn walk(path: &Path, mut most: u64) -> DiskUsage {
    taken(disk_usage::of(path, None, &mut most))
}

/// Blocking. How many bytes the files of a claim with a directory of its own take. May take long.
pub fn of_claim(layout: &Layout, claim: &PodKey) -> u64 {
    let place = layout.claim(&claim.namespace, &claim.name).join("data");
    let mut budget = MAX_CLAIM_ENTRIES;
    disk_usage::of(&place, None, &mut budget).bytes
}

/// The current log of a run and its rotated logs: their names begin alike.
fn logs(layout: &Layout, pod: &PodSpec, container: &str, run: u32) -> DiskUsage {
    let key = &pod.key;
    let folder = layout.container_logs(&key.namespace, &key.name, &pod.uid, container);
    let current = log_file(&folder, run);
    let prefix = current.file_name().unwrap_or_default();
    let own = |name: &std::ffi::OsStr| {
        let (name, prefix) = (name.as_encoded_bytes(), prefix.as_encoded_bytes());
        name.starts_with(prefix)
    };
    taken(disk_usage::of(&folder, Some(&own), &mut 1_000))
}

fn taken(found: disk_usage::Taken) -> DiskUsage {
    DiskUsage {
        bytes: found.bytes,
        inodes: found.inodes,
    }
}

fn device(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|found| found.dev())
}

fn file_system(path: &Path) -> Option<FileSystem> {
    let found = crate::sys::file_system::file_system(path)?;
    let bytes = Space {
        available: found.available_bytes,
        capacity: found.capacity_bytes,
    };
    let inodes = (found.inodes > 0).then_some(Space {
        available: found.inodes_free,
        capacity: found.inodes,
    });
    Some(FileSystem { bytes, inodes })
}

/// Threads use up process ids, too.
fn pids() -> Option<Space> {
    let capacity = process::most()?;
    Some(Space {
        available: capacity.saturating_sub(figures::running_threads()?),
        capacity,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_some_of_those_there_may_be() {
        let here = pids().expect("this is Linux");
        let some = 1..here.capacity;
        assert!(some.contains(&here.available), "{here:?}");
    }

    #[test]
    fn a_file_system_has_less_left_than_it_is_large() {
        let bytes = file_system(Path::new("/")).expect("there is one").bytes;
        assert!(bytes.capacity > 0 && bytes.available <= bytes.capacity);
        assert_eq!(file_system(Path::new("/nowhere")), None);
    }
}
