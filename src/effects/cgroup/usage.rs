//! How much memory and how many processes are there in a cgroup? What is kept of files and was not used lately does not
//! count as used (kubelet-behaviour §10.1, working set).

use super::{Cgroups, Mode};
use crate::spec::usage::Space;
use crate::spec::{PodSpec, PodUid, QosClass};

/// v1 says this much, less a page, where there is no limit.
const NO_LIMIT: u64 = 1 << 62;

impl Cgroups {
    /// Blocking. Bytes charged to a pod and used lately; `None` if it has no cgroup.
    pub fn pod_memory(&self, qos: QosClass, uid: &PodUid) -> Option<u64> {
        self.working_set(&self.pod_path(qos, uid))
    }

    /// Blocking. The same of a container.
    pub fn container_memory(&self, pod: &PodSpec, container: &str) -> Option<u64> {
        let pod = self.pod_path(pod.qos, &pod.uid);
        self.working_set(&self.container_path(&pod, container))
    }

    /// Blocking. Processes of a pod, threads counted one by one.
    pub fn pod_processes(&self, qos: QosClass, uid: &PodUid) -> Option<u64> {
        self.number(&self.pod_path(qos, uid), "pids.current")
    }

    /// Blocking. Memory of the node, of which there is so much: on v1 by its root cgroup; that of v2 has no such figures,
    /// there what is not free by `/proc/meminfo` counts.
    pub fn node_memory(&self, total_bytes: u64, free_bytes: u64) -> Option<Space> {
        let used = match self.mode() {
            Mode::V1 => self.working_set("/")?,
            Mode::V2 => {
                let used = total_bytes.saturating_sub(free_bytes);
                used.saturating_sub(self.inactive_file("/")?)
            }
        };
        Some(Space {
            available: total_bytes.saturating_sub(used),
            capacity: total_bytes,
        })
    }

    /// Blocking. Memory of all pods together, if that is bounded.
    pub fn pods_memory(&self) -> Option<Space> {
        let file = match self.mode() {
            Mode::V1 => "memory.limit_in_bytes",
            Mode::V2 => "memory.max",
        };
        let limit = self.number(&self.pods_path(), file);
        let capacity = limit.filter(|limit| *limit < NO_LIMIT)?;
        let used = self.working_set(&self.pods_path())?;
        Some(Space {
            available: capacity.saturating_sub(used),
            capacity,
        })
    }

    /// Blocking. Bytes charged to all pods together.
    pub fn pods_charged(&self) -> Option<u64> {
        self.charged(&self.pods_path())
    }

    fn working_set(&self, path: &str) -> Option<u64> {
        let inactive = self.inactive_file(path).unwrap_or(0);
        Some(self.charged(path)?.saturating_sub(inactive))
    }

    fn charged(&self, path: &str) -> Option<u64> {
        let file = match self.mode() {
            Mode::V1 => "memory.usage_in_bytes",
            Mode::V2 => "memory.current",
        };
        self.number(path, file)
    }

    fn inactive_file(&self, path: &str) -> Option<u64> {
        let name = match self.mode() {
            Mode::V1 => "total_inactive_file",
            Mode::V2 => "inactive_file",
        };
        let text = self.hierarchies.read(path, "memory.stat").ok()?;
        let mut values = text.lines().filter_map(|line| line.split_once(' '));
        values.find(|(n, _)| *n == name)?.1.parse().ok()
    }

    /// `None` also for `max`.
    fn number(&self, path: &str, file: &str) -> Option<u64> {
        let text = self.hierarchies.read(path, file).ok()?;
        text.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::{LimitSettings, SwapSettings};
    use super::*;

    fn tree(mode: Mode, files: &[(&str, &str)]) -> (Cgroups, std::path::PathBuf) {
        let name = format!("coracle-usage-{mode:?}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        for (path, text) in files {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let settings = LimitSettings {
            pod_pids: None,
            quota_period_us: 100_000,
            quota: true,
            swap: SwapSettings {
                behavior: crate::config::Swap::NoSwap,
                memory_bytes: 0,
                swap_bytes: 0,
            },
            memory: None,
            oom_group: true,
        };
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
            let (cgroups, dir) = tree(mode, files);
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
            assert_eq!(cgroups.pods_memory(), space(150, 600));
            assert_eq!(cgroups.pods_charged(), Some(500));
            let uid = PodUid::from("u");
            assert_eq!(cgroups.pod_memory(QosClass::BestEffort, &uid), Some(0));
            assert_eq!(cgroups.pod_processes(QosClass::BestEffort, &uid), Some(3));
            assert_eq!(cgroups.pod_processes(QosClass::Burstable, &uid), None);
            fs::remove_dir_all(dir).unwrap();
        }
    }

    #[test]
    fn pods_that_are_not_bounded_say_so() {
        for (mode, file, text) in [
            (Mode::V1, "memory.limit_in_bytes", "9223372036854771712\n"),
            (Mode::V2, "memory.max", "max\n"),
        ] {
            let (cgroups, dir) = tree(mode, &[(&format!("coracle/pods/{file}"), text)]);
            assert_eq!(cgroups.pods_memory(), None);
            fs::remove_dir_all(dir).unwrap();
        }
    }
}
