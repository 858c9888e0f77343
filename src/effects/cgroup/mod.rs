//! The cgroup tree, which limits the processes of pods and finds them again:
//! `<root>/pods/{,burstable,besteffort}/pod<uid>/<container>`, the same on cgroup v2 and on v1 (where it exists
//! once in every hierarchy).
//!
//! Invariant: everything below `<root>/pods` is coracle's; nothing outside `<root>` is ever written, except that
//! on v2 controllers are enabled on the way down to it.

mod alarm;
mod devices;
mod figures;
mod hierarchy;
mod huge_pages;
mod limits;
mod memory;
mod node;
mod resize;
mod swap;
mod usage;
mod values;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::spec::{ContainerSpec, PodSpec, PodUid, QosClass};
use crate::sys::bpf::Device;
use crate::sys::cgroup;

pub use alarm::Alarm;
use devices::Devices;
pub(in crate::effects) use figures::field;
pub use figures::{CpuTime, Memory, Pressure, Stall, Swap, Usage};
pub use hierarchy::{Hierarchies, Mode};
use huge_pages::HugePageFiles;
pub use limits::Limits;
pub use memory::MemoryProtection;
pub use node::{NodeLimits, QosRequests};
pub use resize::ResizeError;
pub use swap::SwapSettings;
pub use values::{Value, Values};

/// An error of the cgroup tree.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No hierarchy is mounted, or a required controller is missing.
    #[error("no usable cgroup hierarchy: {0}")]
    Unusable(String),
    /// The kernel is built without it.
    #[error("the kernel has no {0}")]
    Lacking(&'static str),
    /// A cgroup named in the settings does not exist.
    #[error("cgroup `{path}` does not exist")]
    Absent {
        /// Its path below the mounts.
        path: String,
    },
    /// A file or folder of the tree could not be read, written or removed.
    #[error("could not {action} cgroup file `{}`", path.display())]
    Access {
        /// The operation: `make`, `write 100 to`.
        action: String,
        /// The path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// Settings that shape limits; the same for all pods of a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LimitSettings {
    /// `pids.max` of each pod.
    pub pod_pids: Option<u64>,
    /// cpu quota period.
    pub quota_period_us: u64,
    /// Whether cpu limits become quotas.
    pub quota: bool,
    /// The swap settings.
    pub swap: SwapSettings,
    /// The memory protection on cgroup v2; `None`: none.
    pub memory: Option<MemoryProtection>,
    /// Whether an OOM kill takes all processes of a container, on cgroup v2; otherwise it takes one.
    pub oom_group: bool,
}

/// A kubelet's defaults.
impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            pod_pids: None,
            quota_period_us: 100_000,
            quota: true,
            swap: SwapSettings {
                behavior: crate::types::Swapping::Off,
                memory_bytes: 0,
                swap_bytes: 0,
            },
            memory: None,
            oom_group: true,
        }
    }
}

/// The agent's tree.
#[derive(Debug, Clone)]
pub struct Cgroups {
    hierarchies: Hierarchies,
    root: String,
    /// Whether the agent moved to `<root>/agent`, and that root belongs to coracle alone.
    leaves_own: bool,
    settings: LimitSettings,
    devices: Devices,
    huge_pages: HugePageFiles,
}

impl Cgroups {
    /// Finds the mounted hierarchies and makes `<root>/pods`. `parent` names the root; without it the root is the
    /// own cgroup if systemd delegated it, otherwise `/coracle`. On v2 without a named root the agent then moves
    /// itself to `<root>/agent`, because an inner cgroup cannot hold processes.
    pub fn open(parent: Option<&str>, settings: LimitSettings) -> Result<Self, CgroupError> {
        let hierarchies = Hierarchies::detect()?;
        let delegated = hierarchies.delegated_root();
        let leaves_own = parent.is_none() && delegated.is_none() && hierarchies.mode() == Mode::V2;
        let root = match parent {
            Some(parent) => format!("/{}", parent.trim_matches('/')),
            None => delegated.unwrap_or_else(|| "/coracle".to_owned()),
        };
        let devices = Devices::of(hierarchies.mode());
        let mut cgroups = Self {
            hierarchies,
            root,
            leaves_own,
            settings,
            devices,
            huge_pages: HugePageFiles::default(),
        };
        if cgroups.mode() == Mode::V2 && parent.is_none() {
            let agent = format!("{}/agent", cgroups.root);
            cgroups.hierarchies.make(&agent)?;
            cgroups.hierarchies.join(&agent, std::process::id())?;
        }
        for level in ["pods", "pods/burstable", "pods/besteffort"] {
            cgroups
                .hierarchies
                .make_inner(&format!("{}/{level}", cgroups.root))?;
        }
        cgroups.huge_pages = cgroups.huge_page_files();
        cgroups.write(
            &format!("{}/pods/besteffort", cgroups.root),
            &Limits::shares(2),
        )?;
        Ok(cgroups)
    }

    /// Blocking. Starts the kernel's grace period that the first move of a process after a pause waits for (about
    /// 15 ms), by moving the agent to its own cgroup. A pod that starts meanwhile finds it over, or nearly so.
    pub fn warm_up(&self) {
        self.hierarchies.warm_up();
    }

    /// cgroup v1 or v2.
    pub fn mode(&self) -> Mode {
        self.hierarchies.mode()
    }

    /// Why containers' device access cannot be restricted, if so.
    pub fn devices_open(&self) -> Option<&str> {
        self.devices.unruled()
    }

    /// The root below each hierarchy's mount: `/coracle`.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// A pod's path: `/coracle/pods/burstable/pod<uid>`.
    pub fn pod_path(&self, qos: QosClass, uid: &PodUid) -> String {
        match qos {
            QosClass::Guaranteed => format!("{}/pods/pod{uid}", self.root),
            QosClass::Burstable => format!("{}/pods/burstable/pod{uid}", self.root),
            QosClass::BestEffort => format!("{}/pods/besteffort/pod{uid}", self.root),
        }
    }

    /// Makes the pod's cgroup with its limits, and that of its shim. Returns the pod's path.
    pub fn ensure_pod(&self, spec: &PodSpec) -> Result<String, CgroupError> {
        let path = self.pod_path(spec.qos, &spec.uid);
        self.hierarchies.make_inner(&path)?;
        self.write(&path, &Limits::pod(spec, spec.resources, self.settings))?;
        self.hierarchies.make(&format!("{path}/shim"))?;
        Ok(path)
    }

    /// Makes a container's cgroup below its pod's `path` with its limits, and returns its path. A privileged
    /// container may open every device; `devices` are those of another one, if it has devices of its own.
    pub fn ensure_container(
        &self,
        path: &str,
        (pod, container): (&PodSpec, &ContainerSpec),
        devices: Option<&[Device]>,
    ) -> Result<String, CgroupError> {
        let path = self.container_path(path, &container.name);
        self.hierarchies.make(&path)?;
        let (name, own) = (&container.name, container.resources);
        let limits = Limits::container(pod, name, own, pod.resources, self.settings);
        self.write(&path, &limits)?;
        if !container.security.privileged {
            for mount in self.hierarchies.mounts() {
                self.devices.rule(&join(mount, &path), devices)?;
            }
        }
        Ok(path)
    }

    /// A container's path below its pod's.
    pub fn container_path(&self, pod: &str, name: &str) -> String {
        // With a prefix, because a container may be called `shim`.
        format!("{pod}/c-{name}")
    }

    /// On v1: each controller's name and the folder of `path` in its hierarchy; nothing on v2.
    pub fn v1_folders(&self, path: &str) -> Vec<(String, PathBuf)> {
        self.hierarchies.v1_folders(path)
    }

    /// Kills every process at or below `path` and waits until they are gone (at most five seconds).
    pub fn kill(&self, path: &str) -> Result<(), CgroupError> {
        self.hierarchies.kill(path)
    }

    /// Removes `path` and everything below it in every hierarchy; a missing one is fine.
    pub fn remove(&self, path: &str) -> Result<(), CgroupError> {
        self.hierarchies.remove(path)
    }

    /// Blocking. Removes the cgroups above pods, once there are no pods. A cgroup that is not empty stays, as does
    /// a systemd unit's.
    pub fn dismantle(&self) {
        if self.leaves_own {
            // The agent leaves the cgroup that was made for it.
            let _ = self.hierarchies.join("/", std::process::id());
            for mount in self.hierarchies.mounts() {
                let _ = cgroup::remove_folder(&join(mount, &format!("{}/agent", self.root)));
            }
        }
        cgroup::dismantle(&cgroup::hierarchies().unwrap_or_default(), &self.root);
    }

    /// The paths of all pods found in the tree, with their UIDs.
    pub fn pods(&self) -> BTreeSet<(PodUid, String)> {
        let mut found = BTreeSet::new();
        for level in ["/pods", "/pods/burstable", "/pods/besteffort"] {
            let level = format!("{}{level}", self.root);
            for mount in self.hierarchies.mounts() {
                for folder in cgroup::children(&join(mount, &level)) {
                    let name = folder.file_name().unwrap_or_default().to_string_lossy();
                    if let Some(uid) = name.strip_prefix("pod") {
                        found.insert((PodUid::from(uid), format!("{level}/{name}")));
                    }
                }
            }
        }
        found
    }

    fn write(&self, path: &str, limits: &Limits) -> Result<(), CgroupError> {
        for (file, value) in limits.files(self.mode()) {
            self.hierarchies.write(path, file, &value)?;
        }
        for (file, value) in self.huge_page_values(limits) {
            self.hierarchies.write(path, file, &value)?;
        }
        Ok(())
    }

    /// The limit files of huge pages, the same in any cgroup below the root.
    fn huge_page_files(&self) -> HugePageFiles {
        let pods = format!("{}/pods", self.root);
        let folder = self.hierarchies.folder(&pods, huge_pages::CONTROLLER);
        folder.map_or_else(HugePageFiles::default, |folder| {
            HugePageFiles::look(self.mode(), &folder)
        })
    }

    /// Those files with the values of these limits.
    fn huge_page_values(&self, limits: &Limits) -> Vec<(&str, String)> {
        let limit = limits.huge_pages.as_ref();
        limit.map_or_else(Vec::new, |limit| self.huge_pages.values(self.mode(), limit))
    }
}

fn join(mount: &Path, path: &str) -> PathBuf {
    mount.join(path.trim_start_matches('/'))
}

#[cfg(test)]
impl Cgroups {
    /// A tree of plain files.
    fn in_folder(folder: &Path, mode: Mode, settings: LimitSettings) -> Self {
        let mut cgroups = Self {
            hierarchies: Hierarchies::in_folder(folder, mode),
            root: "/coracle".to_owned(),
            leaves_own: false,
            settings,
            devices: Devices::of(Mode::V1),
            huge_pages: HugePageFiles::default(),
        };
        cgroups.huge_pages = cgroups.huge_page_files();
        cgroups
    }

    /// Writes a pod's files as they are while it runs.
    fn write_limits(&self, spec: &PodSpec) {
        let pod = self.pod_path(spec.qos, &spec.uid);
        let limits = Limits::pod(spec, spec.resources, self.settings);
        self.write(&pod, &limits).expect("temp dir");
        for container in &spec.containers {
            let (name, resources) = (&container.name, container.resources);
            let limits = Limits::container(spec, name, resources, spec.resources, self.settings);
            let path = self.container_path(&pod, &container.name);
            self.write(&path, &limits).expect("temp dir");
        }
    }
}
