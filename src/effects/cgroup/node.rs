//! The limits of all pods together, and of the system's and the kubelet's programs beside them (Kubernetes docs:
//! Resource Management, Reserve Compute Resources).

use super::{CgroupError, Cgroups, Limits, Mode};
use crate::spec::HugePages;

/// The limits of a cgroup that contains many others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeLimits {
    /// cpu shares in thousandths of a core; `None` leaves the file alone.
    pub cpu_milli: Option<u64>,
    /// Memory; inside `None`: no limit.
    pub memory_bytes: Option<Option<u64>>,
    /// Processes; inside `None`: no limit.
    pub pids: Option<Option<u64>>,
    /// Huge pages; inside `None`: no limit.
    pub huge_pages: Option<Option<HugePages>>,
}

/// The requests of all admitted pods together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QosRequests {
    /// cpu of Burstable pods, in thousandths of a core.
    pub burstable_cpu_milli: u64,
    /// Memory of Burstable pods in bytes.
    pub burstable_memory_bytes: u64,
    /// Memory of Guaranteed pods in bytes.
    pub guaranteed_memory_bytes: u64,
}

impl Cgroups {
    /// Blocking. Limits all pods together.
    pub fn limit_pods(&self, limits: NodeLimits) -> Result<(), CgroupError> {
        self.write(&format!("{}/pods", self.root), &Limits::node(limits))
    }

    /// Blocking. Limits an existing cgroup outside coracle's tree: `/system.slice`.
    pub fn limit_others(&self, path: &str, limits: NodeLimits) -> Result<(), CgroupError> {
        let path = format!("/{}", path.trim_matches('/'));
        match self.hierarchies.exists(&path) {
            true => self.write(&path, &Limits::node(limits)),
            false => Err(CgroupError::Absent { path }),
        }
    }

    /// Blocking. Sets the cpu shares of the QoS classes, and where memory is protected, their protection.
    pub fn share_among_classes(&self, requests: QosRequests) -> Result<(), CgroupError> {
        let burstable = format!("{}/pods/burstable", self.root);
        self.write(&burstable, &Limits::cpu(requests.burstable_cpu_milli))?;
        if self.settings.memory.is_none_or(|rule| !rule.tiered) || self.mode() == Mode::V1 {
            return Ok(());
        }
        let (own, others) = (
            requests.burstable_memory_bytes,
            requests.guaranteed_memory_bytes,
        );
        let pods = format!("{}/pods", self.root);
        let all = own.saturating_add(others).to_string();
        self.hierarchies.write(&pods, "memory.min", &all)?;
        self.hierarchies
            .write(&burstable, "memory.low", &own.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::super::{LimitSettings, MemoryProtection};
    use super::*;
    use crate::spec::PageSize;

    struct Tree(PathBuf);

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    impl Tree {
        /// With empty files of these names in each cgroup.
        fn new(name: &str, files: &[&str]) -> Self {
            let root = format!("coracle-node-{name}-{}", std::process::id());
            let root = std::env::temp_dir().join(root);
            for cgroup in ["coracle/pods/burstable", "coracle/pods", "system.slice"] {
                fs::create_dir_all(root.join(cgroup)).expect("temp dir");
                for file in files {
                    fs::write(root.join(cgroup).join(file), "").expect("file");
                }
            }
            Self(root)
        }

        fn cgroups(&self, mode: Mode, tiered: bool) -> Cgroups {
            let settings = LimitSettings {
                memory: tiered.then_some(MemoryProtection {
                    throttling_factor: 0.9,
                    tiered: true,
                    allocatable_bytes: 1 << 30,
                    page_bytes: 4096,
                }),
                ..LimitSettings::default()
            };
            Cgroups::in_folder(&self.0, mode, settings)
        }

        fn read(&self, file: &str) -> String {
            fs::read_to_string(self.0.join(file)).expect(file)
        }
    }

    const V1: [&str; 4] = [
        "cpu.shares",
        "memory.limit_in_bytes",
        "hugetlb.2MB.limit_in_bytes",
        "pids.max",
    ];
    const V2: [&str; 6] = [
        "cpu.weight",
        "memory.max",
        "hugetlb.2MB.max",
        "memory.min",
        "memory.low",
        "pids.max",
    ];

    #[test]
    fn all_pods_and_others_are_bounded_on_both_versions() {
        let size = PageSize::from_kib(2048).expect("not 0");
        let limits = NodeLimits {
            cpu_milli: Some(2_000),
            memory_bytes: Some(Some(1 << 30)),
            pids: Some(Some(1_000)),
            huge_pages: Some(Some([(size, 4 << 20)].into())),
        };
        let none = NodeLimits {
            cpu_milli: None,
            memory_bytes: Some(None),
            pids: Some(None),
            huge_pages: Some(None),
        };
        for (mode, files, values, unbounded) in [
            (
                Mode::V1,
                &V1[..],
                ["2048", "1073741824", "4194304", "1000"],
                "-1",
            ),
            (
                Mode::V2,
                &V2[..],
                ["79", "1073741824", "4194304", "1000"],
                "max",
            ),
        ] {
            let name = format!("all-{mode:?}");
            let tree = Tree::new(&name, files);
            let cgroups = tree.cgroups(mode, false);
            cgroups.limit_pods(limits.clone()).unwrap();
            cgroups
                .limit_others("system.slice", limits.clone())
                .unwrap();
            for folder in ["coracle/pods", "system.slice"] {
                let last = files.len() - 1;
                for (file, value) in [files[0], files[1], files[2], files[last]]
                    .iter()
                    .zip(values)
                {
                    assert_eq!(tree.read(&format!("{folder}/{file}")), value, "{mode:?}");
                }
            }
            // Removed limits are taken back, too.
            cgroups.limit_pods(none.clone()).unwrap();
            for file in &files[1..3] {
                assert_eq!(tree.read(&format!("coracle/pods/{file}")), unbounded);
            }
            let absent = cgroups.limit_others("/none", limits.clone()).unwrap_err();
            assert_eq!(absent.to_string(), "cgroup `/none` does not exist");
        }
    }

    #[test]
    fn burstable_pods_share_cpu_by_their_requests_and_keep_their_memory_where_that_is_protected() {
        let requests = QosRequests {
            burstable_cpu_milli: 500,
            burstable_memory_bytes: 20,
            guaranteed_memory_bytes: 300,
        };
        let tree = Tree::new("classes", &V2);
        let file = |file: &str| tree.read(&format!("coracle/pods/{file}"));
        tree.cgroups(Mode::V2, false)
            .share_among_classes(requests)
            .unwrap();
        assert_eq!(file("burstable/cpu.weight"), "20");
        assert_eq!(file("memory.min"), "");
        tree.cgroups(Mode::V2, true)
            .share_among_classes(requests)
            .unwrap();
        assert_eq!(file("memory.min"), "320");
        assert_eq!(file("burstable/memory.low"), "20");
        let old = Tree::new("classes-v1", &V1);
        old.cgroups(Mode::V1, true)
            .share_among_classes(requests)
            .unwrap();
        assert_eq!(old.read("coracle/pods/burstable/cpu.shares"), "512");
    }
}
