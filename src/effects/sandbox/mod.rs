//! Sandboxes: directories, cgroups, volumes, the shim of a pod, and the containers in it.
//!
//! Blocking parts are plain functions that the node runs off its loop. Everything may be repeated after a crash at
//! any line.

mod capabilities;
mod container;
mod device;
mod environment;
mod etc_files;
mod garbage;
mod oci;
mod references;
mod remove;
mod resolver;
mod shim_client;
mod user;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use smol::io::AsyncReadExt;

use crate::config::{Config, Current};
use crate::effects::app_armor::AppArmorError;
use crate::effects::cgroup::{CgroupError, Cgroups};
use crate::effects::configuration::CurrentConfiguration;
use crate::effects::facts::NodeFacts;
use crate::effects::user_namespace::{self, UserNamespaceError};
use crate::effects::volume::{self, VolumeFailure};
use crate::layout::Layout;
use crate::network::{Network, NetworkError};
use crate::shim::protocol::ShimConfig;
use crate::spec::{IdRange, PodSpec, PodUid};
use crate::sys::file::{self, Durability};
use crate::sys::{allocator, tree};
use crate::types::Gather;

pub use container::{ContainerOrder, PrepareError, start_request};
pub use remove::{Leave, unseen_exit};
pub use shim_client::{Exited, ShimClient};

/// An error of making, using or removing a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A volume is not available.
    #[error(transparent)]
    Volume(#[from] VolumeFailure),
    /// The pod's network failed.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The pod's user namespace cannot be made.
    #[error("could not set up the user namespace")]
    UserNamespace(#[from] UserNamespaceError),
    /// A cgroup could not be made or removed.
    #[error("could not set up cgroups")]
    Cgroup(#[from] CgroupError),
    /// A file or folder of the pod could not be made or removed.
    #[error("could not {action} `{}`", path.display())]
    Access {
        /// The operation: `make`, `write`, `remove`.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The shim could not be started or reached.
    #[error("could not {action} the pod's shim")]
    Shim {
        /// The operation: `start`, `connect to`.
        action: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// `setHostnameAsFQDN` with a name that the kernel does not accept.
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long (64 characters is \
         the max, {length} characters requested)", length = fqdn.len()
    )]
    HostnameTooLong {
        /// The name.
        fqdn: String,
    },
}

/// Why a container's configuration is invalid (`CreateContainerConfigError`).
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Neither image nor manifest names a program.
    #[error("no command specified: neither the image nor the manifest names a program to run")]
    NoCommand,
    /// The image does not have the user.
    #[error("unable to find user {user}: no matching entries in passwd file")]
    NoSuchUser {
        /// As named by the image.
        user: String,
    },
    /// A security rule forbids it.
    #[error("{0}")]
    Refused(String),
    /// A ConfigMap, a Secret, or a key of them or of a file is missing.
    #[error("{0}")]
    Reference(String),
    /// The seccomp profile file is not available.
    #[error("cannot load seccomp profile \"{}\": {source}", path.display())]
    Seccomp {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The AppArmor profile is not available.
    #[error(transparent)]
    AppArmor(#[from] AppArmorError),
    /// A sub-path cannot be resolved.
    #[error("{0}")]
    SubPath(String),
    /// A file of the container could not be written.
    #[error("could not {action} `{}`: {source}", path.display())]
    Access {
        /// The operation: `make`, `write`.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// More than a shim ever writes to its standard output, which is nothing.
const MOST_NOISE: u64 = 4096;

/// The context of all sandbox effects; one for each node.
#[derive(Debug, Clone)]
pub struct Sandboxes {
    /// The settings fixed at the start.
    pub config: Arc<Config>,
    /// The settings that can change.
    pub settings: Current,
    /// The configuration documents in force.
    pub configuration: CurrentConfiguration,
    /// The cgroup tree.
    pub cgroups: Arc<Cgroups>,
    /// The pods' network.
    pub network: Network,
    /// The binary of shims: a view of the own binary that no container can write to.
    pub binary: Arc<OwnedFd>,
}

impl Sandboxes {
    fn layout(&self) -> &Layout {
        &self.config.layout
    }

    /// Blocking. Removes an earlier sandbox, and makes the folder that marks this one for an agent restart.
    pub fn begin(&self, spec: &PodSpec) -> Result<(), SandboxError> {
        self.clear(&spec.uid)?;
        let folder = self.layout().pod_run(&spec.uid).dir;
        file::make_dirs(&folder, 0o700).map_err(|source| access("make", &folder, source))
    }

    /// Blocking. Sets up the pod's network, or on the host network its ports, and with the network the user namespace that
    /// owns it. Returns the pod's own addresses.
    pub fn connect(
        &self,
        spec: &PodSpec,
        users: Option<IdRange>,
    ) -> Result<Vec<IpAddr>, SandboxError> {
        if spec.host_network {
            self.network.claim_ports(spec)?;
            return Ok(Vec::new());
        }
        Ok(self.network.attach_with(spec, users)?.ips)
    }

    /// Blocking. Removes the pod's network.
    pub fn disconnect(&self, uid: &PodUid) -> Result<(), SandboxError> {
        Ok(self.network.detach(uid)?)
    }

    /// Blocking. Makes everything that a shim expects, and saves the pod's manifest.
    pub fn prepare(
        &self,
        spec: &PodSpec,
        node: &NodeFacts,
        users: Option<IdRange>,
    ) -> Result<(), SandboxError> {
        let (run, state) = (
            self.layout().pod_run(&spec.uid),
            self.layout().pod_state(&spec.uid),
        );
        for folder in [&run.dir, &run.records(), &run.subpaths(), &state.dir] {
            file::make_dirs(folder, 0o700).map_err(|source| access("make", folder, source))?;
        }
        if let Some(users) = users {
            let bundles = self.layout().bundles(&spec.uid);
            user_namespace::open_way(self.layout(), users.first, &[&run.dir, &bundles])?;
        }
        // Writable layers of earlier runs (a lost sandbox, a reboot) are not needed any more.
        let layers = state.dir.join("containers");
        tree::remove(&layers).map_err(|source| access("remove", &layers, source))?;
        let finished = run.finished();
        file::remove_file(&finished).map_err(|source| access("remove", &finished, source))?;
        write(&run.manifest(), spec.manifest.json().as_bytes(), 0o600)?;
        let sources = volume::Sources {
            configuration: &self.configuration,
            node,
        };
        volume::ensure(self.layout(), spec, &sources)?;
        let logs = self
            .layout()
            .pod_logs(&spec.key.namespace, &spec.key.name, &spec.uid);
        file::make_dirs(&logs, 0o755).map_err(|source| access("make", &logs, source))?;
        let cgroup = self.cgroups.ensure_pod(spec)?;
        let domain = self.domain(spec);
        let hostname = etc_files::hostname(spec, domain.as_deref());
        if hostname.len() > 64 {
            return Err(SandboxError::HostnameTooLong { fqdn: hostname });
        }
        let shim = ShimConfig {
            pod: spec.uid.to_string(),
            run_dir: run.dir.clone(),
            cgroup,
            network: (!spec.host_network).then(|| self.layout().netns(&spec.uid)),
            netns_dir: self.layout().netns_dir(),
            new_ipc: !spec.host_ipc,
            share_processes: spec.share_processes,
            users,
            hostname: (!spec.host_network).then_some(hostname),
            sysctls: spec.sysctls.clone(),
        };
        write(
            &run.shim_config(),
            &serde_json::to_vec(&shim).expect("plain data"),
            0o600,
        )
    }

    /// Blocking. Writes the files of volumes again whose sources have changed; the pod has a sandbox.
    pub fn refresh_volumes(&self, spec: &PodSpec, node: &NodeFacts) -> Result<(), VolumeFailure> {
        let sources = volume::Sources {
            configuration: &self.configuration,
            node,
        };
        volume::refresh(self.layout(), spec, &sources)
    }

    /// Starts the shim of a prepared pod and waits until it listens.
    pub async fn start_shim(&self, spec: &PodSpec) -> Result<(Child, ShimClient), SandboxError> {
        let run = self.layout().pod_run(&spec.uid);
        let shim = |action| move |source| SandboxError::Shim { action, source };
        file::remove_file(&run.shim_socket()).map_err(shim("replace the socket of"))?;
        let log = shim_log(&run.shim_log()).map_err(shim("open the log of"))?;
        let mut child = Command::new(format!("/proc/self/fd/{}", self.binary.as_raw_fd()))
            .arg("shim")
            .arg(run.shim_config())
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env(allocator::TUNABLES.0, allocator::TUNABLES.1)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(shim("start"))?;
        // The shim closes its standard output once it listens; if it dies first, that closes too.
        let ready = child.stdout.take().expect("standard output is piped");
        let ready = smol::Async::new(ready).map_err(shim("wait for"))?;
        let mut ready = ready.take(MOST_NOISE);
        let _ = ready.read_to_end(&mut Vec::new()).await;
        match ShimClient::connect(&run.shim_socket()) {
            Ok(client) => Ok((child, client)),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                let said = file::read_text(run.shim_log()).unwrap_or_default();
                match last_error(&said) {
                    Some(text) => Err(SandboxError::Shim {
                        action: "start",
                        source: io::Error::other(text),
                    }),
                    None => Err(error),
                }
            }
        }
    }

    /// Blocking. The next attempt numbers of containers that left logs behind (the kubelet's `pkg/kubelet/kuberuntime`).
    pub fn next_attempts(&self, spec: &PodSpec) -> std::collections::BTreeMap<String, u32> {
        let key = &spec.key;
        let logs = |name: &str| {
            self.layout()
                .container_logs(&key.namespace, &key.name, &spec.uid, name)
        };
        let newest = |name: &str| {
            let entries = fs::read_dir(logs(name)).ok()?;
            let number =
                |name: std::ffi::OsString| name.to_str()?.split('.').next()?.parse::<u32>().ok();
            entries
                .flatten()
                .filter_map(|entry| number(entry.file_name()))
                .max()
        };
        spec.all_containers()
            .filter_map(|c| Some((c.name.clone(), newest(&c.name)? + 1)))
            .gather()
    }
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), SandboxError> {
    file::replace(path, bytes, mode, Durability::Process)
        .map_err(|source| access("write", path, source))
}

fn access(action: &'static str, path: &Path, source: io::Error) -> SandboxError {
    SandboxError::Access {
        action,
        path: path.to_owned(),
        source,
    }
}

fn shim_log(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
}

/// The last error in the shim's log, with its causes, in one line.
fn last_error(log: &str) -> Option<String> {
    let lines: Vec<&str> = log.lines().map(str::trim).collect();
    let begin = lines.iter().rposition(|line| line.starts_with("error: "));
    let parts = &lines[begin.unwrap_or(lines.len().saturating_sub(1))..];
    let bare = |line: &&str| {
        let line = line.strip_prefix("error: ").unwrap_or(line);
        line.strip_prefix("caused by: ").unwrap_or(line).to_owned()
    };
    let parts: Vec<String> = parts.iter().map(bare).collect();
    (!parts.is_empty()).then(|| parts.join(": "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_that_could_not_write_a_sysctl_says_which() {
        let path = "could not write sysctl `/proc/sys/net/netfilter/nf_conntrack_max`";
        let log = format!("warning: slow\nerror: {path}\n  caused by: Permission denied\n");
        let said = format!("{path}: Permission denied");
        assert_eq!(last_error(&log).as_deref(), Some(said.as_str()));
        assert_eq!(last_error("killed\n").as_deref(), Some("killed"));
        assert_eq!(last_error(""), None);
    }
}
