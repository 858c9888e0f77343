//! Memory and processes in a cgroup. Inactive page cache does not count as used (Kubernetes docs: Node-pressure
//! Eviction, working set).

use super::figures::{field, number};
use super::{Cgroups, Mode};
use crate::spec::{PodSpec, PodUid, QosClass};
use crate::types::usage::Space;

impl Cgroups {
    /// Blocking. The working set of a pod in bytes; `None` if it has no cgroup.
    pub fn pod_memory(&self, qos: QosClass, uid: &PodUid) -> Option<u64> {
        self.working_set(&self.pod_path(qos, uid))
    }

    /// Blocking. The working set of a container.
    pub fn container_memory(&self, pod: &PodSpec, container: &str) -> Option<u64> {
        let pod = self.pod_path(pod.qos, &pod.uid);
        self.working_set(&self.container_path(&pod, container))
    }

    /// Blocking. Processes and threads of a pod.
    pub fn pod_processes(&self, qos: QosClass, uid: &PodUid) -> Option<u64> {
        number(&self.text(&self.pod_path(qos, uid), "pids.current")?)
    }

    /// Blocking. The node's memory, available and in all: on v1 by its root cgroup. The root of v2 has no such
    /// figures, so all that is not free by `/proc/meminfo` counts.
    pub fn node_memory(&self, total_bytes: u64, free_bytes: u64) -> Option<Space> {
        let used = match self.mode() {
            Mode::V1 => self.working_set("/")?,
            Mode::V2 => {
                let used = total_bytes.saturating_sub(free_bytes);
                used.saturating_sub(field(&self.text("/", "memory.stat")?, "inactive_file")?)
            }
        };
        Some(Space {
            available: total_bytes.saturating_sub(used),
            capacity: total_bytes,
        })
    }

    /// Blocking. Memory of all pods together, if that is limited, and the bytes charged to them.
    pub fn pods_memory(&self) -> (Option<Space>, Option<u64>) {
        let Some(memory) = self.memory_of(&self.pods_path()) else {
            return (None, None);
        };
        let space = memory.limit_bytes.map(|capacity| Space {
            available: capacity.saturating_sub(memory.working_set_bytes),
            capacity,
        });
        (space, Some(memory.usage_bytes))
    }

    fn working_set(&self, path: &str) -> Option<u64> {
        Some(self.memory_of(path)?.working_set_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::LimitSettings;
    use super::*;

    fn tree(name: &str, mode: Mode, files: &[(&str, &str)]) -> (Cgroups, std::path::PathBuf) {
        let name = format!("coracle-usage-{name}-{mode:?}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        for (path, text) in files {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let settings = LimitSettings::default();
        (Cgroups::in_folder(&dir, mode, settings), dir)
    }

    #[test]
    fn figures_are_read_of_either_kind_of_cgroup() {
        let pod = "coracle/pods/besteffort/podu";
        let v1 = [
            ("memory.usage_in_bytes", "900\n"),
            ("memory.stat", "inactive_file 1\ntotal_inactive_file 200\n"),
            ("coracle/pods/memory.usage_in_bytes", "500"),
            ("coracle/pods/memory.stat", "total_inactive_file 50"),
            ("coracle/pods/memory.limit_in_bytes", "600"),
            (&format!("{pod}/memory.usage_in_bytes"), "70"),
            (&format!("{pod}/memory.stat"), "total_inactive_file 100"),
            (&format!("{pod}/pids.current"), "3\n"),
        ];
        let v2 = [
            ("memory.stat", "file 7\ninactive_file 200\n"),
            ("coracle/pods/memory.current", "500"),
            ("coracle/pods/memory.stat", "inactive_file 50"),
            ("coracle/pods/memory.max", "600"),
            (&format!("{pod}/memory.current"), "70"),
            (&format!("{pod}/memory.stat"), "inactive_file 100"),
            (&format!("{pod}/pids.current"), "3\n"),
        ];
        for (mode, files) in [(Mode::V1, &v1[..]), (Mode::V2, &v2[..])] {
            let (cgroups, dir) = tree("read", mode, files);
            let space = |available, capacity| {
                Some(Space {
                    available,
                    capacity,
                })
            };
            assert_eq!(
                cgroups.node_memory(1_000, 100),
                space(300, 1_000),
                "{mode:?}"
            );
            assert_eq!(cgroups.pods_memory(), (space(150, 600), Some(500)));
            let uid = PodUid::from("u");
            assert_eq!(cgroups.pod_memory(QosClass::BestEffort, &uid), Some(0));
            assert_eq!(cgroups.pod_processes(QosClass::BestEffort, &uid), Some(3));
            assert_eq!(cgroups.pod_processes(QosClass::Burstable, &uid), None);
            fs::remove_dir_all(dir).unwrap();
        }
    }

    #[test]
    fn pods_that_are_not_bounded_say_so() {
        let v1 = [
            (
                "coracle/pods/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            ("coracle/pods/memory.usage_in_bytes", "7\n"),
            ("coracle/pods/memory.stat", "cache 0\n"),
        ];
        let v2 = [
            ("coracle/pods/memory.max", "max\n"),
            ("coracle/pods/memory.current", "7\n"),
            ("coracle/pods/memory.stat", "anon 0\n"),
        ];
        for (mode, files) in [(Mode::V1, &v1), (Mode::V2, &v2)] {
            let (cgroups, dir) = tree("unbounded", mode, files);
            assert_eq!(cgroups.pods_memory(), (None, Some(7)), "{mode:?}");
            fs::remove_dir_all(dir).unwrap();
        }
    }
}
