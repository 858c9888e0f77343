//! The cgroup file systems: one tree on v2, one for each controller on v1; the same relative path in each.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{CgroupError, join};
use crate::sys::file;
use crate::sys::{cgroup, mount};
use crate::types::InOrder;

/// Which interface the kernel offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Controllers mounted one by one (also hybrid).
    V1,
    /// The unified hierarchy.
    V2,
}

/// Controllers on v1 in which every pod gets a cgroup.
const V1_CONTROLLERS: [&str; 9] = [
    "cpu", "cpuacct", "cpuset", "memory", "pids", "devices", "freezer", "blkio", "hugetlb",
];

/// Controllers on v2 that are enabled for pods; the first two are required.
const V2_CONTROLLERS: [&str; 6] = ["cpu", "memory", "pids", "cpuset", "io", "hugetlb"];
const REQUIRED: usize = 2;

/// The files of cpu limits.
const CPU_LIMITS: [&str; 3] = ["cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"];

/// Files that are missing on some kernels, where their values have no meaning.
const NOT_EVERYWHERE: [&str; 7] = [
    "pids.max",
    "memory.min",
    "memory.low",
    "memory.high",
    "memory.oom.group",
    "memory.swap.max",
    "memory.memsw.limit_in_bytes",
];

/// How long processes may take to die after SIGKILL.
const KILL_PATIENCE_MS: u64 = 5_000;

/// The mounted hierarchies that coracle uses.
#[derive(Debug, Clone)]
pub struct Hierarchies {
    mode: Mode,
    mounts: Vec<(PathBuf, Vec<String>)>,
    /// The files written, for tests.
    #[cfg(test)]
    log: std::sync::Arc<std::sync::Mutex<Vec<String>>>,
}

impl Hierarchies {
    /// Reads the mount table.
    pub fn detect() -> Result<Self, CgroupError> {
        let table = mount::table().map_err(|source| CgroupError::Access {
            action: "read".into(),
            path: "/proc/self/mountinfo".into(),
            source,
        })?;
        let mut v1: Vec<(PathBuf, Vec<String>)> = Vec::new();
        for entry in table.iter().filter(|entry| entry.kind == "cgroup") {
            let controllers: Vec<String> = entry
                .super_options
                .iter()
                .filter(|o| V1_CONTROLLERS.contains(&o.as_str()))
                .cloned()
                .collect();
            let known = v1.iter().any(|(_, have)| *have == controllers);
            if !controllers.is_empty() && !known {
                v1.push((entry.target.clone(), controllers));
            }
        }
        if v1
            .iter()
            .any(|(_, controllers)| controllers.iter().any(|c| c == "memory"))
        {
            return Ok(Self {
                mode: Mode::V1,
                mounts: v1,
                #[cfg(test)]
                log: Default::default(),
            });
        }
        let Some(unified) = table.iter().find(|entry| entry.kind == "cgroup2") else {
            return Err(CgroupError::Unusable(
                "neither cgroup2 nor a v1 memory controller is mounted".into(),
            ));
        };
        let offered =
            file::read_text(unified.target.join("cgroup.controllers")).unwrap_or_default();
        let controllers: Vec<String> = offered.split_whitespace().map(str::to_owned).collect();
        for needed in &V2_CONTROLLERS[..REQUIRED] {
            if !controllers.iter().any(|c| c == needed) {
                return Err(CgroupError::Unusable(format!(
                    "the kernel does not offer the `{needed}` controller"
                )));
            }
        }
        Ok(Self {
            mode: Mode::V2,
            mounts: vec![(unified.target.clone(), controllers)],
            #[cfg(test)]
            log: Default::default(),
        })
    }

    /// Whether the kernel has a controller that pods can do without.
    pub fn has(&self, controller: &str) -> bool {
        let mut all = self.mounts.iter().flat_map(|(_, controllers)| controllers);
        all.any(|name| name == controller)
    }

    /// v1 or v2.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Every mount point.
    pub fn mounts(&self) -> impl Iterator<Item = &Path> {
        self.mounts.iter().map(|(mount, _)| mount.as_path())
    }

    /// On v1: each controller's name and the folder of `path` in its hierarchy.
    pub fn v1_folders(&self, path: &str) -> Vec<(String, PathBuf)> {
        if self.mode == Mode::V2 {
            return Vec::new();
        }
        let folders = self.mounts.iter().flat_map(|(mount, controllers)| {
            let folder = join(mount, path);
            controllers
                .iter()
                .map(move |name| (name.clone(), folder.clone()))
        });
        folders.collect()
    }

    /// Moves the caller's process to its own cgroup. A failure only costs the time that this would save.
    pub fn warm_up(&self) {
        let own = file::read_text("/proc/self/cgroup").unwrap_or_default();
        let Some((mount, controllers)) = self.mounts.first() else {
            return;
        };
        let path = own.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (names, path) = rest.split_once(':')?;
            let v1 = controllers.iter().any(|c| names.split(',').any(|n| n == c));
            (v1 || (self.mode == Mode::V2 && names.is_empty())).then_some(path)
        });
        if let Some(path) = path {
            let _ = fs::write(join(mount, path).join("cgroup.procs"), "0");
        }
    }

    /// The own cgroup on v2 if systemd started this process as a service: `/system.slice/coracle.service`.
    pub fn delegated_root(&self) -> Option<String> {
        if self.mode == Mode::V1 || std::env::var_os("INVOCATION_ID").is_none() {
            return None;
        }
        let text = file::read_text("/proc/self/cgroup").ok()?;
        let own = text.lines().find_map(|line| line.strip_prefix("0::"))?;
        let own = own.strip_suffix("/agent").unwrap_or(own);
        own.ends_with(".service").then(|| own.to_owned())
    }

    /// Makes a leaf: no controllers are enabled below it.
    pub fn make(&self, path: &str) -> Result<(), CgroupError> {
        for (mount, controllers) in &self.mounts {
            let folder = join(mount, path);
            make_dirs(&folder)?;
            if controllers.iter().any(|c| c == "cpuset") && self.mode == Mode::V1 {
                inherit_cpuset(mount, path)?;
            }
        }
        Ok(())
    }

    /// Makes an inner node: on v2 its children get the controllers.
    pub fn make_inner(&self, path: &str) -> Result<(), CgroupError> {
        self.make(path)?;
        if self.mode == Mode::V2 {
            for (mount, controllers) in &self.mounts {
                enable_controllers(mount, path, controllers)?;
            }
        }
        Ok(())
    }

    /// Moves a process.
    pub fn join(&self, path: &str, pid: u32) -> Result<(), CgroupError> {
        for mount in self.mounts() {
            write_file(&join(mount, path).join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Writes a file in the hierarchy of its controller. A missing hierarchy is an error only for values that are a
    /// limit.
    pub fn write(&self, path: &str, file: &str, value: &str) -> Result<(), CgroupError> {
        let Some(target) = self.file(path, file) else {
            if matches!(value, "max" | "-1") || NOT_EVERYWHERE.contains(&file) {
                return Ok(());
            }
            let controller = file.split('.').next().unwrap_or(file);
            return Err(CgroupError::Unusable(format!(
                "the `{controller}` controller is not mounted"
            )));
        };
        #[cfg(test)]
        self.log
            .lock()
            .expect("no panic holds this lock")
            .push(format!("{path}/{file}"));
        let unbounded = value.starts_with("max") || value == "-1";
        match write_file(&target, value) {
            // The file is missing on kernels without CONFIG_CFS_BANDWIDTH or CONFIG_SWAP (or with swapaccount=0),
            // or before 4.19 (oom.group).
            Err(CgroupError::Access { source, .. })
                if source.kind() == io::ErrorKind::NotFound
                    && (unbounded || NOT_EVERYWHERE.contains(&file)) =>
            {
                Ok(())
            }
            Err(CgroupError::Access { source, .. })
                if source.kind() == io::ErrorKind::NotFound
                    && CPU_LIMITS.contains(&file)
                    && target.parent().is_some_and(Path::is_dir) =>
            {
                let what = "limits of processor time (CONFIG_CFS_BANDWIDTH)";
                Err(CgroupError::Lacking(what))
            }
            other => other,
        }
    }

    /// Reads a file in the hierarchy of its controller.
    pub fn read(&self, path: &str, file: &str) -> Result<String, CgroupError> {
        let target = self.file(path, file).ok_or_else(|| {
            let controller = file.split('.').next().unwrap_or(file);
            CgroupError::Unusable(format!("the `{controller}` controller is not mounted"))
        })?;
        file::read_text(&target).map_err(|source| CgroupError::Access {
            action: "read".into(),
            path: target,
            source,
        })
    }

    /// Whether the cgroup exists.
    pub fn exists(&self, path: &str) -> bool {
        self.mounts().any(|mount| join(mount, path).is_dir())
    }

    /// Whether a process is in it or below.
    pub fn has_processes(&self, path: &str) -> bool {
        let mut mounts = self.mounts();
        mounts.any(|mount| !cgroup::processes(&join(mount, path)).is_empty())
    }

    /// Kills everything at or below `path`, and waits for the end.
    pub fn kill(&self, path: &str) -> Result<(), CgroupError> {
        let mut waited = 0;
        loop {
            let mut alive: Vec<i32> = self
                .mounts()
                .flat_map(|mount| cgroup::processes(&join(mount, path)))
                .collect();
            alive.order();
            alive.dedup();
            if alive.is_empty() {
                return Ok(());
            }
            // In each round, because a group may freeze itself or one below it until its processes are gone.
            for mount in self.mounts() {
                cgroup::thaw(&join(mount, path));
            }
            if self.mode == Mode::V2 {
                // Absent before Linux 5.14; then the loop below does the work.
                let _ = fs::write(join(&self.mounts[0].0, path).join("cgroup.kill"), "1");
            }
            for pid in alive {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
            if waited >= KILL_PATIENCE_MS {
                return Err(CgroupError::Access {
                    action: "empty".into(),
                    path: path.into(),
                    source: io::Error::new(io::ErrorKind::TimedOut, "processes survive SIGKILL"),
                });
            }
            // The kernel offers no event for "the last process of this v1 cgroup is gone".
            std::thread::sleep(Duration::from_millis(2));
            waited += 2;
        }
    }

    /// Removes a subtree in every hierarchy, deepest first.
    pub fn remove(&self, path: &str) -> Result<(), CgroupError> {
        let mut first_error = None;
        for mount in self.mounts() {
            if let Err(error) = remove_below(&join(mount, path)) {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    fn file(&self, path: &str, file: &str) -> Option<PathBuf> {
        let controller = file.split('.').next().unwrap_or(file);
        Some(self.folder(path, controller)?.join(file))
    }

    /// The folder of this controller, if it is mounted.
    pub(super) fn folder(&self, path: &str, controller: &str) -> Option<PathBuf> {
        let (mount, _) = match self.mode {
            Mode::V2 => self.mounts.first()?,
            Mode::V1 => self
                .mounts
                .iter()
                .find(|(_, controllers)| controllers.iter().any(|c| c == controller))?,
        };
        Some(join(mount, path))
    }
}

fn make_dirs(folder: &Path) -> Result<(), CgroupError> {
    fs::create_dir_all(folder).map_err(|source| CgroupError::Access {
        action: "make".into(),
        path: folder.to_owned(),
        source,
    })
}

fn write_file(path: &Path, value: &str) -> Result<(), CgroupError> {
    // One write call: cgroup files take a value whole or not at all.
    fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(|source| CgroupError::Access {
            action: format!("write `{value}` to"),
            path: path.to_owned(),
            source,
        })
}

/// A new v1 cpuset is empty and takes no process until it has cpus and memory nodes.
fn inherit_cpuset(mount: &Path, path: &str) -> Result<(), CgroupError> {
    let mut folder = mount.to_owned();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        let parent = folder.clone();
        folder.push(part);
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let own = file::read_text(folder.join(file)).unwrap_or_default();
            if own.trim().is_empty() {
                let value = file::read_text(parent.join(file)).unwrap_or_default();
                write_file(&folder.join(file), value.trim())?;
            }
        }
    }
    Ok(())
}

fn enable_controllers(mount: &Path, path: &str, controllers: &[String]) -> Result<(), CgroupError> {
    let mut folder = mount.to_owned();
    let mut levels = vec![folder.clone()];
    for part in path.split('/').filter(|part| !part.is_empty()) {
        folder.push(part);
        levels.push(folder.clone());
    }
    for level in levels {
        let file = level.join("cgroup.subtree_control");
        let enabled = file::read_text(&file).unwrap_or_default();
        let on = |name: &str| enabled.split_whitespace().any(|word| word == name);
        for name in V2_CONTROLLERS
            .iter()
            .filter(|name| controllers.iter().any(|c| c == *name) && !on(name))
        {
            let result = write_file(&file, &format!("+{name}"));
            if V2_CONTROLLERS[..REQUIRED].contains(name) {
                result?;
            }
        }
    }
    Ok(())
}

fn remove_below(folder: &Path) -> Result<(), CgroupError> {
    cgroup::remove_folder(folder).map_err(|source| CgroupError::Access {
        action: "remove".into(),
        path: folder.to_owned(),
        source,
    })
}

#[cfg(test)]
impl Hierarchies {
    /// Plain files in a folder.
    pub(super) fn in_folder(folder: &Path, mode: Mode) -> Self {
        let names = V2_CONTROLLERS.into_iter().chain(["cpuacct"]);
        let controllers = names.map(str::to_owned).collect();
        Self {
            mode,
            mounts: vec![(folder.to_owned(), controllers)],
            log: Default::default(),
        }
    }

    /// The files written since the last call.
    pub(super) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().expect("no panic holds this lock"))
    }
}
