//! A container's `config.json` for the OCI runtime, written in full from explicit values: libcontainer's own
//! builders fill in defaults of their own.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use libcontainer::oci_spec::runtime::LinuxSeccomp;
use serde_json::{Value, json};

use super::ConfigError;
use super::device;
use super::environment::Process;
use super::user::User;
use crate::effects::cgroup::Mode;
use crate::effects::device::Granted;
use crate::effects::{app_armor, seccomp};
use crate::shim::protocol::DeviceFile;
use crate::spec::{ContainerSpec, MountPropagation, PodSpec, Seccomp};
use crate::sys::{file, file_system};
use crate::types::InOrder;

/// Hidden from containers, as in other container engines.
const MASKED: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

/// Visible, not writable.
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// One volume or file of the node in the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bind {
    pub(super) source: PathBuf,
    pub(super) target: String,
    pub(super) read_only: bool,
    /// Mounts below it are read-only, too.
    pub(super) read_only_below: bool,
    pub(super) propagation: MountPropagation,
    /// `nodev`, `noexec`, `nosuid`.
    pub(super) flags: Vec<String>,
}

/// The inputs of `config.json`.
#[derive(Debug)]
pub(super) struct Bundle<'a> {
    pub(super) pod: &'a PodSpec,
    pub(super) container: &'a ContainerSpec,
    pub(super) process: Process,
    pub(super) user: User,
    pub(super) capabilities: BTreeSet<String>,
    pub(super) binds: Vec<Bind>,
    /// The devices of the node that it has although it is not privileged.
    pub(super) devices: Vec<Granted>,
    pub(super) shm: PathBuf,
    pub(super) cgroup: String,
    pub(super) cgroup_mode: Mode,
    /// On v1: each controller's name and the container's folder in its hierarchy.
    pub(super) v1_cgroups: Vec<(String, PathBuf)>,
    /// The link to the process namespace of the container's target, if it has one.
    pub(super) target_link: PathBuf,
    /// The link to the pod's user namespace, if it has one.
    pub(super) users_link: PathBuf,
    /// Folder of `Localhost` seccomp profiles.
    pub(super) seccomp_profiles: PathBuf,
}

impl Bundle<'_> {
    /// The document.
    pub(super) fn config(&self) -> Result<Value, ConfigError> {
        let security = &self.container.security;
        let caps: Vec<&String> = self.capabilities.iter().collect();
        let mut process = json!({
            "terminal": self.container.tty,
            "user": {
                "uid": self.user.uid, "gid": self.user.gid, "additionalGids": self.user.groups, "umask": 0o022,
            },
            "args": self.process.args,
            "env": self.process.env,
            "cwd": self.process.cwd,
            "capabilities": {
                "bounding": caps, "effective": caps, "permitted": caps, "inheritable": [], "ambient": [],
            },
        });
        // `false` would make libcontainer load seccomp after the capabilities are gone, and fail: absent or true.
        if !security.allow_privilege_escalation {
            process["noNewPrivileges"] = json!(true);
        }
        if let Some(profile) = app_armor::profile(security)? {
            process["apparmorProfile"] = json!(profile);
        }
        let mut linux = json!({
            "namespaces": self.namespaces(),
            "cgroupsPath": self.cgroup,
            "resources": { "devices": self.device_rules() },
            "rootfsPropagation": self.root_propagation(),
        });
        if !(security.privileged || security.unmasked_proc) {
            linux["maskedPaths"] = json!(masked_paths());
            linux["readonlyPaths"] = json!(READ_ONLY);
        }
        // In a user namespace the runtime cannot make them: `Bundle::device_files`.
        let own = self.devices.iter().filter(|_| !self.pod.own_users);
        let mut devices: Vec<Value> = own.map(device::node).collect();
        if security.privileged {
            let own = |path: &Value| self.devices.iter().any(|other| *path == other.place);
            let all = node_devices(Path::new("/dev")).into_iter();
            devices.extend(all.filter(|device| !own(&device["path"])));
        }
        if !devices.is_empty() {
            linux["devices"] = json!(devices);
        }
        if let Some(profile) = self.seccomp()? {
            linux["seccomp"] = profile;
        }
        Ok(json!({
            "ociVersion": "1.0.2",
            "process": process,
            "root": { "path": "rootfs", "readonly": security.read_only_root },
            "mounts": self.mounts(),
            "linux": linux,
        }))
    }

    /// The devices that the shim makes, in a pod with a user namespace.
    pub(super) fn device_files(&self) -> Vec<DeviceFile> {
        let own = self.devices.iter().filter(|_| self.pod.own_users);
        own.map(device::file).collect()
    }

    /// Network, IPC and UTS are the shim's; only the container's own namespaces are named.
    fn namespaces(&self) -> Value {
        let mut list = vec![json!({ "type": "mount" })];
        if self.pod.own_users {
            list.push(json!({ "type": "user", "path": self.users_link }));
        }
        match &self.container.target {
            _ if self.pod.host_pid => {}
            target if target.is_some() || self.pod.share_processes => {
                list.push(json!({ "type": "pid", "path": self.target_link }))
            }
            _ => list.push(json!({ "type": "pid" })),
        }
        if self.cgroup_mode == Mode::V2 {
            list.push(json!({ "type": "cgroup" }));
        }
        json!(list)
    }

    fn root_propagation(&self) -> &'static str {
        let any = |kind| self.binds.iter().any(|bind| bind.propagation == kind);
        match () {
            () if any(MountPropagation::Bidirectional) => "shared",
            () if any(MountPropagation::HostToContainer) => "slave",
            () => "private",
        }
    }

    /// The runtime's mounts ([`Bundle::fixed_mounts`]), then those of the pod.
    fn mounts(&self) -> Value {
        let mut list = self.fixed_mounts();
        // Parents before children, whatever the order in the manifest.
        let mut binds: Vec<&Bind> = self.binds.iter().collect();
        binds.order_by_key(|bind| Path::new(&bind.target).components().count());
        list.extend(binds.into_iter().map(|bind| {
            let propagation = match bind.propagation {
                MountPropagation::None => "rprivate",
                MountPropagation::HostToContainer => "rslave",
                MountPropagation::Bidirectional => "rshared",
            };
            let access = if bind.read_only { "ro" } else { "rw" };
            let mut options = vec!["rbind", propagation, access];
            if bind.read_only_below {
                options.push("rro");
            }
            options.extend(bind.flags.iter().map(String::as_str));
            json!({
                "destination": bind.target, "type": "bind", "source": bind.source, "options": options,
            })
        }));
        json!(list)
    }

    /// The mounts of every container.
    pub(super) fn fixed_mounts(&self) -> Vec<Value> {
        let privileged = self.container.security.privileged;
        let access = if privileged { "rw" } else { "ro" };
        let mount = |target: &str, kind: &str, options: &[&str]| json!({ "destination": target, "type": kind, "source": kind, "options": options });
        let mut list = vec![
            mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
            mount(
                "/dev",
                "tmpfs",
                &["nosuid", "strictatime", "mode=755", "size=65536k"],
            ),
            mount(
                "/dev/pts",
                "devpts",
                &[
                    "nosuid",
                    "noexec",
                    "newinstance",
                    "ptmxmode=0666",
                    "mode=0620",
                    "gid=5",
                ],
            ),
            mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", access]),
            json!({
                "destination": "/dev/shm", "type": "bind", "source": self.shm, "options": ["rbind", "rprivate"],
            }),
        ];
        if file_system::has_message_queues() {
            list.push(mount(
                "/dev/mqueue",
                "mqueue",
                &["nosuid", "noexec", "nodev"],
            ));
        }
        list.extend(self.cgroup_mounts(access));
        list
    }

    /// The container's own cgroup, and nothing above it. On v1 it is bound folder by folder: libcontainer's
    /// `cgroup` mount would be writable there, and would contain the node's systemd hierarchy.
    fn cgroup_mounts(&self, access: &str) -> Vec<Value> {
        const TARGET: &str = "/sys/fs/cgroup";
        let options = ["nosuid", "noexec", "nodev", "relatime"];
        if self.cgroup_mode == Mode::V2 {
            let options = [options.as_slice(), &[access]].concat();
            return vec![
                json!({ "destination": TARGET, "type": "cgroup", "source": "cgroup", "options": options }),
            ];
        }
        let tmpfs = [options.as_slice(), &["mode=755", "size=64k"]].concat();
        let mut list = vec![
            json!({ "destination": TARGET, "type": "tmpfs", "source": "tmpfs", "options": tmpfs }),
        ];
        let bind = [options.as_slice(), &["rbind", "rprivate", access]].concat();
        list.extend(self.v1_cgroups.iter().map(|(controller, folder)| {
            let target = format!("{TARGET}/{controller}");
            json!({ "destination": target, "type": "bind", "source": folder, "options": bind })
        }));
        list
    }

    fn device_rules(&self) -> Value {
        if self.container.security.privileged {
            return json!([{ "allow": true, "access": "rwm" }]);
        }
        let mut rules = vec![json!({ "allow": false, "access": "rwm" })];
        rules.extend(self.devices.iter().map(device::rule));
        json!(rules)
    }

    /// The default seccomp profile for it, if it has that.
    pub(super) fn default_profile(&self) -> Option<LinuxSeccomp> {
        let security = &self.container.security;
        let is_default = !security.privileged && security.seccomp == Seccomp::RuntimeDefault;
        is_default.then(|| seccomp::runtime_default(&self.capabilities))
    }

    fn seccomp(&self) -> Result<Option<Value>, ConfigError> {
        match &self.container.security.seccomp {
            _ if self.container.security.privileged => Ok(None),
            Seccomp::Unconfined => Ok(None),
            Seccomp::RuntimeDefault => Ok(self
                .default_profile()
                .map(|profile| serde_json::to_value(profile).expect("a profile is plain data"))),
            Seccomp::Localhost(name) => {
                let path = self.seccomp_profiles.join(name);
                let bytes = file::read_record(&path).map_err(|source| ConfigError::Seccomp {
                    path: path.clone(),
                    source,
                })?;
                let value =
                    serde_json::from_slice(&bytes).map_err(|error| ConfigError::Seccomp {
                        path,
                        source: error.into(),
                    })?;
                Ok(Some(value))
            }
        }
    }
}

/// The fixed list, and files that let one tenant observe another through the cpu's temperature.
fn masked_paths() -> Vec<String> {
    let mut paths: Vec<String> = MASKED.iter().map(|path| (*path).to_owned()).collect();
    for entry in fs::read_dir("/sys/devices/system/cpu")
        .into_iter()
        .flatten()
        .flatten()
    {
        let throttle = entry.path().join("thermal_throttle");
        if throttle.is_dir() {
            paths.push(throttle.to_string_lossy().into_owned());
        }
    }
    paths
}

/// Every device node of the node, except terminals and those that every container has of its own.
fn node_devices(folder: &Path) -> Vec<Value> {
    const OWN: [&str; 10] = [
        "pts", "shm", "mqueue", "fd", "console", "ptmx", "null", "zero", "full", "tty",
    ];
    let mut devices = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else {
        return devices;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let own = folder == Path::new("/dev") && OWN.iter().any(|own| name == *own);
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        if own || name == "random" || name == "urandom" {
            continue;
        }
        let kind = metadata.file_type();
        if kind.is_dir() {
            devices.extend(node_devices(&entry.path()));
        } else if kind.is_char_device() || kind.is_block_device() {
            devices.push(json!({
                "path": entry.path(),
                "type": if kind.is_block_device() { "b" } else { "c" },
                "major": nix::sys::stat::major(metadata.rdev()),
                "minor": nix::sys::stat::minor(metadata.rdev()),
                "fileMode": metadata.mode() & 0o7777,
                "uid": metadata.uid(),
                "gid": metadata.gid(),
            }));
        }
    }
    devices
}
