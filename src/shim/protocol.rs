//! The protocol between agent and shim. Length-prefixed JSON over a unix stream socket at
//! [`crate::layout::PodRunDir::shim_socket`]: four bytes big-endian length, then one [`Request`] (agent to shim) or
//! [`Message`] (shim to agent). File descriptors travel as SCM_RIGHTS on the first byte of a frame.
//!
//! A shim serves any number of connections and handles one request at a time: a request in flight is finished
//! before a new connection's `Hello` is answered. Versions: both sides send theirs in `Hello`; a shim keeps serving
//! agents of its own major version, and fields are only ever added.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::spec::{HookKind, IdRange, ProbeKind};
use crate::types::{Effective, Exit, Stamp, StopSignal, Time};

/// Version of this protocol.
pub const VERSION: u32 = 1;

/// Name of the link to the joined process namespace in a bundle: a container's, or the pod's.
pub const TARGET_LINK: &str = "pid-namespace";

/// The file of a bundle that has its seccomp filter, as the kernel takes it.
pub const FILTER_FILE: &str = "seccomp.bpf";

/// Name of the link to the pod's user namespace in a bundle, if the pod has one.
pub const USERS_LINK: &str = "user-namespace";

/// Longest frame in bytes; a longer one is a protocol error and closes the connection.
pub const MAX_FRAME: usize = 1 << 20;

/// The configuration of a shim: `coracle shim <path of this as JSON>`. Written by the agent (0600) before the
/// start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShimConfig {
    /// The pod's UID.
    pub pod: String,
    /// The pod's runtime folder (`layout::PodRunDir`): socket, records, libcontainer state.
    pub run_dir: PathBuf,
    /// Absolute cgroup path below each hierarchy's mount, of the pod: `/coracle/pods/burstable/pod<uid>`. The shim
    /// joins `<this>/shim` first of all (the folder exists) and reads OOM counts below it.
    pub cgroup: String,
    /// The network namespace to join, as a path; `None`: the node's. Containers inherit the shim's.
    pub network: Option<PathBuf>,
    /// The folder where other pods' namespaces are pinned. The shim unmounts its copies of these, which would
    /// otherwise keep the namespaces alive.
    pub netns_dir: PathBuf,
    /// Own IPC namespace.
    pub new_ipc: bool,
    /// One process namespace for all containers.
    #[serde(default)]
    pub share_processes: bool,
    /// The ids of the pod's user namespace, which its network namespace belongs to; `None`: it has none.
    #[serde(default)]
    pub users: Option<IdRange>,
    /// Own UTS namespace with this hostname.
    pub hostname: Option<String>,
    /// Namespaced sysctls to set after the namespaces are made: name with dots, value.
    pub sysctls: Vec<(String, String)>,
}

/// A request of the agent. Every request except `Exec` is answered by exactly one [`Message::Reply`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// First on every connection. → `Reply::Hello`. With `subscribe`, exits are reported on this connection.
    Hello {
        /// The agent's version.
        version: u32,
        /// Whether to report exits.
        subscribe: bool,
    },
    /// Create and start a container. → `Reply::Started` | `Reply::Failed`. Starting an attempt that already runs or
    /// has ended returns its state; an older attempt than the newest is refused.
    Start(Box<StartRequest>),
    /// Signal a container. → `Reply::Signalled`, also when it has already ended or another attempt is current.
    Signal {
        /// The container's name.
        container: String,
        /// The attempt number.
        attempt: u32,
        /// `Stop` goes to the first process, `Kill` to the whole cgroup.
        signal: StopSignal,
    },
    /// Run a program in a running container. Uses a connection of its own. With it come three file descriptors
    /// (stdin, stdout, stderr) unless `tty`. → `Reply::ExecStarted` (with the pty master as file descriptor if
    /// `tty`) | `Reply::Failed`, later `Message::ExecExited`. When the connection closes first, the program is
    /// killed, unless it is kept ([`ExecRequest::keep`]).
    Exec(Box<ExecRequest>),
    /// Attach to a running container's standard streams. Uses a connection of its own. With it come two file
    /// descriptors for the container's output: standard output and standard error; a container with a terminal has
    /// only the first. → `Reply::Attached` | `Reply::Failed`, later `Message::ExecExited` when the container ends.
    /// When the connection closes first, the container goes on.
    Attach(Box<AttachRequest>),
    /// The client attached on this connection writes no more; with `stdinOnce` the container's input ends. →
    /// `Reply::Done`
    EndInput,
    /// Kill all remaining processes, remove all mounts, and exit after answering. → `Reply::Done`
    Shutdown,
}

/// A message of the shim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// Answer to the previous request.
    Reply(Reply),
    /// A container ended; its record was written before this.
    Exited {
        /// The container's name.
        container: String,
        /// The attempt number.
        attempt: u32,
        /// How it ended.
        exit: Exit,
    },
    /// A program started by `Exec` ended, or the container of an `Attach`.
    ExecExited {
        /// Exit code; 128 + n for death by signal n.
        code: i32,
    },
    /// A kept program ended, possibly before it was asked for again.
    KeptEnded(Box<KeptEnd>),
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// The shim's identity and state.
    Hello {
        /// The shim's protocol version.
        version: u32,
        /// Its process id.
        pid: u32,
        /// Its containers by name.
        containers: BTreeMap<String, ContainerRecord>,
        /// The programs it keeps; absent if its version keeps none.
        #[serde(default)]
        kept: Vec<KeptProgram>,
    },
    /// The container was started (it may already have ended).
    Started(Box<ContainerRecord>),
    /// When the signal was first sent to that attempt.
    Signalled {
        /// Boot time of the first `Stop` or `Kill`.
        at: Time,
    },
    /// The program runs.
    ExecStarted {
        /// Its process id on the node.
        pid: u32,
    },
    /// From now on the container's output follows. With a terminal its master comes too, to be written to and
    /// resized but not read; otherwise the write end of standard input, if that was requested.
    Attached {
        /// Whether the container has a terminal.
        tty: bool,
        /// The size of the run's current log, whose content was written before.
        #[serde(default)]
        log_bytes: u64,
    },
    /// Done.
    Done,
    /// The request failed; nothing is left of the try.
    Failed {
        /// The step that failed.
        step: FailedStep,
        /// The whole chain of causes in one line.
        message: String,
    },
}

/// The step at which a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailedStep {
    /// The request is invalid (unknown container, wrong attempt, bad frame).
    Request,
    /// A sub-path of a volume: what the manifest asks for is not there, or leads elsewhere.
    Config,
    /// Mounts, rootfs, cgroup, seccomp.
    Create,
    /// The program could not be executed.
    Run,
}

/// A container to start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartRequest {
    /// Container name.
    pub container: String,
    /// Attempt number; one more than the last.
    pub attempt: u32,
    /// The image's config digest, kept in the record.
    pub image_id: String,
    /// Bundle folder; `config.json` in it is the OCI runtime spec with `root.path` = `rootfs`, complete but for
    /// the pod's namespaces (inherited from the shim) and sub-path mounts.
    pub bundle: PathBuf,
    /// The number of mounts of the OCI spec, the first ones, that are the runtime's own (`/proc`, `/dev`, …) rather
    /// than the pod's; absent in requests of older agents.
    #[serde(default)]
    pub fixed_mounts: Option<usize>,
    /// Unpacked layers, topmost first.
    pub layers: Vec<PathBuf>,
    /// Folder for this attempt's writable layer; `upper` and `work` are made in it, and it is removed when the
    /// next attempt starts or the pod ends.
    pub writable_layer: PathBuf,
    /// Sub-paths of volumes to bind before the start; the OCI spec names `target` as the mount's source.
    pub sub_paths: Vec<SubPath>,
    /// The directories the image asks for.
    #[serde(default)]
    pub image_volumes: Option<ImageVolumes>,
    /// The images to mount for its volumes, before its sub-paths are bound; the OCI spec names `target` as the
    /// mount's source. None in requests of older agents.
    #[serde(default)]
    pub volume_images: Vec<VolumeImage>,
    /// Folder of log files.
    pub log_dir: PathBuf,
    /// Rotate at this size; 0 = never.
    pub log_max_bytes: u64,
    /// The maximum number of files, including the current one.
    pub log_max_files: u32,
    /// Termination message file on the node.
    pub termination_message: PathBuf,
    /// Take the end of the log if that file is empty and the exit code is not 0.
    pub termination_message_from_logs: bool,
    /// Number of the signal for `StopSignal::Stop`.
    pub stop_signal: i32,
    /// What its record says about that signal and its user.
    #[serde(default)]
    pub effective: Effective,
    /// `oom_score_adj` of the first process.
    pub oom_score_adj: i32,
    /// Keep stdin open (otherwise `/dev/null`).
    pub stdin: bool,
    /// Give it a terminal.
    pub tty: bool,
    /// The input ends when the first client that attaches to it ends its own.
    #[serde(default)]
    pub stdin_once: bool,
    /// Its devices, if the pod has a user namespace.
    #[serde(default)]
    pub device_files: Vec<DeviceFile>,
    /// Name of the running container whose process namespace this one joins: the shim makes [`TARGET_LINK`] in the
    /// bundle a link to it, which the OCI spec names.
    #[serde(default)]
    pub target: Option<String>,
    /// The bundle has the filter of its seccomp profile, ready to load ([`FILTER_FILE`]).
    #[serde(default)]
    pub own_filter: bool,
}

/// A device of the node in a container with a user namespace, where `config.json` cannot name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFile {
    /// Its path in the container.
    pub path: PathBuf,
    /// A block device; otherwise a character device.
    pub block: bool,
    /// Its major number.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
    /// Permissions.
    pub mode: u32,
    /// Owner, as seen in the container.
    pub uid: u32,
    /// Group, as seen in the container.
    pub gid: u32,
}

/// Directories of an image that are writable and outlive the container (`VOLUME`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageVolumes {
    /// Where their data is kept; `upper` and `work` are made in it.
    pub folder: PathBuf,
    /// Absolute paths in the image.
    pub paths: Vec<PathBuf>,
}

/// The files of an image as a volume, read-only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeImage {
    /// Where to mount it.
    pub target: PathBuf,
    /// Its unpacked layers, topmost first.
    pub layers: Vec<PathBuf>,
}

/// One sub-path of a volume, bound so that no symlink in it can lead outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubPath {
    /// The volume's root on the node.
    pub volume: PathBuf,
    /// Relative path in it; made as a directory if absent.
    pub path: PathBuf,
    /// Where to bind it.
    pub target: PathBuf,
    /// The name of the mount, for messages; absent in requests of older agents.
    #[serde(default)]
    pub mount: String,
}

/// A program to run in a container: with the container's namespaces, cgroup, user, capabilities and seccomp.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// Container name.
    pub container: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Added to the container's environment.
    pub env: Vec<String>,
    /// Make a terminal in the container's devpts.
    pub tty: bool,
    /// Its first size: columns, rows.
    pub size: Option<(u16, u16)>,
    /// The program goes on when the connection closes, and the shim holds its result. Of the three file descriptors
    /// only standard input is used: the program's output comes with its end ([`Message::KeptEnded`]). Asking again
    /// for the same program joins it; there is no second one. A shim from before this field treats it as any other
    /// program.
    #[serde(default)]
    pub keep: Option<Keep>,
    /// Instead of a program the shim's own code runs, with everything else as for a program. A shim from before this
    /// field runs `argv`.
    #[serde(default)]
    pub copy: Option<Copy>,
}

/// Files to copy as a tar stream, see `coracle::copy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Copy {
    /// To standard output.
    Out {
        /// A file or directory.
        path: String,
    },
    /// From standard input.
    In {
        /// Where to.
        path: String,
        /// What the file or directory is called; `None`: the contents of one.
        name: Option<String>,
        /// Keep owners and permissions, as far as the container may.
        keep: bool,
    },
}

/// How a program is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// Its purpose. A run of a container has at most one program for each purpose.
    pub purpose: Purpose,
    /// The container's attempt; any other than the current one is refused.
    pub attempt: u32,
    /// It is killed after this many milliseconds.
    pub timeout_ms: Option<u64>,
}

/// The purpose of a kept program. The result of a hook is held until its container ends, that of a probe until it
/// was delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// A lifecycle hook.
    Hook(HookKind),
    /// A probe.
    Probe(ProbeKind),
}

/// A program that the shim keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptProgram {
    /// Container name.
    pub container: String,
    /// The container's attempt.
    pub attempt: u32,
    /// Its purpose.
    pub purpose: Purpose,
    /// Whether it has ended.
    pub ended: bool,
}

/// How a kept program ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptEnd {
    /// Exit code; 128 + n for death by signal n.
    pub code: i32,
    /// Whether it was killed at its deadline.
    pub timed_out: bool,
    /// The beginning of its standard output.
    pub output: String,
    /// The beginning of its standard error.
    pub errors: String,
    /// When it ended.
    pub at: Time,
}

/// A container to attach to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachRequest {
    /// Container name.
    pub container: String,
    /// Also write to its standard input or terminal.
    pub stdin: bool,
}

/// The state of a container. Also the format of the record files in [`crate::layout::PodRunDir::records`]
/// (`<container>.json`), written by temp and rename before anything in them is reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerRecord {
    /// Container name.
    pub container: String,
    /// Newest attempt.
    pub attempt: u32,
    /// Its image's config digest.
    pub image_id: String,
    /// Process id of its first process (as the node sees it).
    pub pid: u32,
    /// Start time of that process from `/proc/<pid>/stat`, so that a reused pid is noticed.
    pub pid_start: u64,
    /// When it started.
    pub started: Stamp,
    /// The decisions of its start.
    #[serde(default)]
    pub effective: Effective,
    /// When a stop signal was first sent.
    pub stop_sent: Option<Time>,
    /// How it ended.
    pub exit: Option<Exit>,
    /// How the previous attempt ended.
    pub previous: Option<Exit>,
}
