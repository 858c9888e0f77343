//! How do agent and shim talk? Length-prefixed JSON over a unix stream socket at [`crate::layout::PodRunDir::shim_socket`]:
//! four bytes big-endian length, then one [`Request`] (agent to shim) or [`Message`] (shim to agent). File
//! descriptors travel as SCM_RIGHTS on the first byte of a frame.
//!
//! A shim serves any number of connections and handles one request at a time: a request in flight is finished before
//! a new connection's `Hello` is answered. Versions: both sides say theirs in `Hello`; a shim keeps serving agents
//! of its own major version, fields are only ever added.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::spec::{Effective, Exit, Stamp, StopSignal, Time};

/// Version of this protocol.
pub const VERSION: u32 = 1;

/// Name of the link to the joined process namespace in a bundle.
pub const TARGET_LINK: &str = "pid-namespace";

/// Longest frame in bytes; a longer one is a protocol error and closes the connection.
pub const MAX_FRAME: usize = 1 << 20;

/// What a shim is started with: `coracle shim <path of this as JSON>`. Written by the agent (0600) before the start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShimConfig {
    /// The pod's UID.
    pub pod: String,
    /// The pod's runtime folder (`layout::PodRunDir`): socket, records, libcontainer state.
    pub run_dir: PathBuf,
    /// Absolute cgroup path below each hierarchy's mount, of the pod: `/coracle/pods/burstable/pod<uid>`. The shim
    /// joins `<this>/shim` first of all (the folder exists) and reads OOM counts below it.
    pub cgroup: String,
    /// The network namespace to join, as a path; `None`: the node's. Containers inherit what the shim has.
    pub network: Option<PathBuf>,
    /// Where other pods' namespaces are pinned. The shim lets go of its copies of these mounts, or it would keep those
    /// namespaces alive.
    pub netns_dir: PathBuf,
    /// Own IPC namespace.
    pub new_ipc: bool,
    /// Own UTS namespace with this hostname.
    pub hostname: Option<String>,
    /// Namespaced sysctls to set after the namespaces are made: name with dots, value.
    pub sysctls: Vec<(String, String)>,
}

/// Agent to shim. Every request but `Exec` is answered by exactly one [`Message::Reply`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// First on every connection. → `Reply::Hello`. With `subscribe`, exits are then told on this connection.
    Hello {
        /// The agent's version.
        version: u32,
        /// Whether to be told of exits.
        subscribe: bool,
    },
    /// Create and start a container. → `Reply::Started` | `Reply::Failed`. Starting an attempt that already
    /// runs or has ended answers with what is known of it; an older attempt than known is refused.
    Start(Box<StartRequest>),
    /// Signal a container. → `Reply::Signalled`, also when it has already ended or another attempt is current.
    Signal {
        /// Container.
        container: String,
        /// Attempt.
        attempt: u32,
        /// `Stop` goes to the first process, `Kill` to the whole cgroup.
        signal: StopSignal,
    },
    /// Run a program in a running container. Uses a connection of its own. With it come three file descriptors
    /// (stdin, stdout, stderr) unless `tty`. → `Reply::ExecStarted` (with the pty master as file descriptor if
    /// `tty`) | `Reply::Failed`, later `Message::ExecExited`. When the connection closes first, the program is
    /// killed.
    Exec(Box<ExecRequest>),
    /// Take part in a running container's standard streams. Uses a connection of its own. With it come two file
    /// descriptors for what the container writes: standard output and standard error; a container with a terminal has
    /// only the first. → `Reply::Attached` | `Reply::Failed`, later `Message::ExecExited` when the container ends.
    /// When the connection closes first, the container goes on.
    Attach(Box<AttachRequest>),
    /// Who is attached on this connection writes no more; with `stdinOnce` the container's input is at its end.
    /// → `Reply::Done`
    EndInput,
    /// Kill what still runs, remove all mounts, and exit after answering. → `Reply::Done`
    Shutdown,
}

/// Shim to agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// Answer to the request before.
    Reply(Reply),
    /// A container ended; its record was written before this.
    Exited {
        /// Container.
        container: String,
        /// Attempt.
        attempt: u32,
        /// How.
        exit: Exit,
    },
    /// A program started by `Exec` ended, or the container of an `Attach`.
    ExecExited {
        /// Exit code; 128 + n for death by signal n.
        code: i32,
    },
}

/// Answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Who the shim is and what it holds.
    Hello {
        /// The shim's protocol version.
        version: u32,
        /// Its process id.
        pid: u32,
        /// Its containers by name.
        containers: BTreeMap<String, ContainerRecord>,
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
    /// From now on the container's output comes. With a terminal its master comes too, to be written to and resized
    /// but not read; else the writing end of standard input, if that was asked for.
    Attached {
        /// The container has a terminal.
        tty: bool,
        /// What was written before are so many bytes of the run's current log.
        #[serde(default)]
        log_bytes: u64,
    },
    /// Done.
    Done,
    /// It could not be done; nothing is left of the try.
    Failed {
        /// At which step.
        step: FailedStep,
        /// The whole chain of causes in one line.
        message: String,
    },
}

/// At which step a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailedStep {
    /// The request makes no sense (unknown container, wrong attempt, bad frame).
    Request,
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
    /// How many of the OCI spec's mounts, the first ones, are the runtime's own (`/proc`, `/dev`, …) and none of what
    /// the pod asks for; absent if an older agent did not tell.
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
    /// Folder of log files.
    pub log_dir: PathBuf,
    /// Rotate at this size; 0 = never.
    pub log_max_bytes: u64,
    /// Keep so many files, the current one included.
    pub log_max_files: u32,
    /// Termination message file on the node.
    pub termination_message: PathBuf,
    /// Take the end of the log if that file is empty and the exit code is not 0.
    pub termination_message_from_logs: bool,
    /// Number of the signal for `StopSignal::Stop`.
    pub stop_signal: i32,
    /// What its record tells of that and of its user.
    #[serde(default)]
    pub effective: Effective,
    /// `oom_score_adj` of the first process.
    pub oom_score_adj: i32,
    /// Keep stdin open (otherwise `/dev/null`).
    pub stdin: bool,
    /// Give it a terminal.
    pub tty: bool,
    /// The input ends with that of the first who attaches and writes.
    #[serde(default)]
    pub stdin_once: bool,
    /// Name of the running container whose process namespace is to be joined: the shim makes [`TARGET_LINK`] in the
    /// bundle a link to it, which the OCI spec names.
    #[serde(default)]
    pub target: Option<String>,
}

/// Directories of an image that are writable and outlive the container (`VOLUME`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageVolumes {
    /// Where what is written to them is kept; `upper` and `work` are made in it.
    pub folder: PathBuf,
    /// Absolute paths in the image.
    pub paths: Vec<PathBuf>,
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
}

/// A container to attach to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachRequest {
    /// Container name.
    pub container: String,
    /// Also write to its standard input or terminal.
    pub stdin: bool,
}

/// What is known of a container. Also the format of the record files in [`crate::layout::PodRunDir::records`]
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
    /// What its start decided.
    #[serde(default)]
    pub effective: Effective,
    /// When a stop signal was first sent.
    pub stop_sent: Option<Time>,
    /// How it ended.
    pub exit: Option<Exit>,
    /// How the attempt before ended.
    pub previous: Option<Exit>,
}
