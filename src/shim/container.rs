//! The start of a container through libcontainer, and its cleanup.
//!
//! libcontainer changes its caller (working directory, dumpable flag), leaks descriptors and children when it
//! fails, and loses causes; all of that is corrected here, around the only calls to it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use libcontainer::container::Container as Engine;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::binds::Late;
use super::bundle::{self, Bundle};
use super::executor::Program;
use super::filter::Filter;
use super::groups::Lent;
use super::log::Log;
use super::protocol::{ContainerRecord, StartRequest};
use super::status::{Said, Status};
use super::streams::Streams;
use super::user_namespace::Users;
use super::{ShimError, binds, image_volumes, rootfs, setup, tighten, warn};
use crate::chain;
use crate::layout;
use crate::sys::cgroup::{self, Hierarchy};
use crate::sys::file;
use crate::sys::{allocator, clock, process, tree};
use crate::types::{Stamp, Time, Wall};

/// The shim's state of one container: its newest attempt.
pub(super) struct Container {
    pub(super) record: ContainerRecord,
    pub(super) request: StartRequest,
    /// The container's cgroup.
    pub(super) group: String,
    /// OOM kills counted in it before the start.
    pub(super) oom_before: u64,
    pub(super) log: Log,
    /// The writing end of its standard input, if kept open.
    pub(super) stdin: Option<OwnedFd>,
    /// If it has a filter of the agent's: the capabilities that its document names and it does not have.
    pub(super) lent: Option<Vec<u32>>,
}

/// Both clocks now.
pub(super) fn now() -> Stamp {
    Stamp {
        time: Time(clock::boot_ms()),
        wall: Wall(clock::wall_us()),
    }
}

/// The paths for every start of a pod.
pub(super) struct Place<'a> {
    pub(super) run_dir: &'a Path,
    pub(super) hierarchies: &'a [Hierarchy],
    pub(super) users: Option<&'a Users>,
}

impl Place<'_> {
    fn states(&self) -> PathBuf {
        self.run_dir.join("libcontainer")
    }

    /// Creates and starts a container. An error leaves nothing behind.
    pub(super) fn start(&self, request: StartRequest) -> Result<Container, ShimError> {
        let text = bundle::read(&request.bundle)?;
        let mut bundle = Bundle::parse(&request.bundle, &text)?;
        let group = bundle.linux.cgroups_path.clone();
        let before = own_fds();
        let result = rootfs::prepare(&request, &bundle.cwd, self.users)
            .and_then(|root| {
                image_volumes::prepare(&request, &mut bundle, root.as_fd(), self.users)?;
                if let Some(users) = self.users {
                    users.show_mounts(&request, &mut bundle)?;
                }
                let filter = Filter::take(&request, &mut bundle)?;
                let groups = Lent::take(&mut bundle)?;
                let late = binds::settle(&request, &mut bundle, root.as_fd())?;
                Ok((late, filter, groups))
            })
            .and_then(|prepared| self.launch(&request, &mut bundle, prepared));
        // Dropped before memory is given back.
        drop(bundle);
        drop(text);
        process_restored();
        match result {
            Ok(launched) => Ok(Container {
                record: launched.record,
                oom_before: launched.oom_before,
                log: launched.log,
                stdin: launched.stdin,
                request,
                group,
                lent: launched.lent,
            }),
            Err(error) => {
                close_leaked(&before);
                reap_leaked();
                self.remove(&request, &group);
                Err(error)
            }
        }
    }

    /// Ends and removes everything of an attempt except its writable layer: processes, cgroup, libcontainer's
    /// state, mounts.
    pub(super) fn remove(&self, request: &StartRequest, group: &str) {
        self.remove_state(&request.container, group);
        if let Err(error) = rootfs::unmount_all(request) {
            warn(format_args!("{}, ignoring", chain(&error)));
        }
    }

    /// Removes libcontainer's files of a container: its own `delete` fails for ever on nested cgroups.
    pub(super) fn remove_state(&self, container: &str, group: &str) {
        cgroup::kill(self.hierarchies, group);
        cgroup::remove(self.hierarchies, group);
        let state = self.states().join(container);
        if let Err(error) = tree::remove(&state) {
            warn(format_args!(
                "could not remove `{}`: {error}, ignoring",
                state.display()
            ));
        }
    }

    fn launch(
        &self,
        request: &StartRequest,
        bundle: &mut Bundle<'_>,
        (late, filter, groups): (Late, Option<Filter>, Option<Lent>),
    ) -> Result<Launched, ShimError> {
        let oom_before = cgroup::oom_kills(self.hierarchies, &bundle.linux.cgroups_path);
        let status = Status::open()?;
        let mut user = bundle.user;
        if let Some(users) = self.users {
            user.uid = users.on_node(user.uid)?;
            user.gid = users.on_node(user.gid)?;
        }
        let mut streams = Streams::open(request, user, self.run_dir)?;
        let lent = filter.as_ref().map(|filter| filter.lent().to_vec());
        let program = Program {
            status: status.number(),
            complete: late.is_empty(),
            cwd: late.cwd().map(Path::to_owned),
            filter,
        };
        let mut engine = match self.create(request, program, &mut streams) {
            Ok(engine) => engine,
            Err(error) => return Err(explain(status.read(), error)),
        };
        let pid = engine.pid().map_or(0, |pid| pid.as_raw());
        bundle.groups_are_inherited = false;
        let (linux, changed) = (&bundle.linux, groups.is_some() || late.cwd().is_some());
        let launched =
            tighten::deny_devices(self.hierarchies, &linux.cgroups_path, &linux.resources)
                .and_then(|()| tighten::close_device_folders(pid, &linux.devices))
                .and_then(|()| match changed {
                    // `exec` programs enter the container's working directory, with its groups.
                    true => bundle.write(late.cwd().unwrap_or(&bundle.cwd)),
                    false => Ok(()),
                })
                .and_then(|()| late.attach(pid, self.users))
                .and_then(|()| {
                    let state = self.states().join(&request.container);
                    seal(&state).map_err(ShimError::path("restrict", &state))
                })
                .and_then(|()| self.begin(request, &mut engine, status, streams));
        if launched.is_err() {
            end(pid);
        }
        let (record, log, stdin) = launched?;
        Ok(Launched {
            record,
            oom_before,
            log,
            stdin,
            lent,
        })
    }

    fn create(
        &self,
        request: &StartRequest,
        program: Program,
        streams: &mut Streams,
    ) -> Result<Engine, String> {
        let states = self.states();
        file::make_dirs(&states, 0o700)
            .map_err(|error| format!("could not make `{}`: {error}", states.display()))?;
        let mut builder = ContainerBuilder::new(request.container.clone(), SyscallType::default())
            .with_root_path(states)
            .map_err(|error| chain(&error))?
            .with_executor(program);
        if let Some(path) = streams.console_path() {
            builder = builder.with_console_socket(Some(path));
        }
        if let Some([stdin, stdout, stderr]) = streams.inner.take() {
            builder = builder
                .with_stdin(stdin)
                .with_stdout(stdout)
                .with_stderr(stderr);
        }
        builder
            .as_init(&request.bundle)
            .with_systemd(false)
            .build()
            .map_err(|error| chain(&error))
    }

    fn begin(
        &self,
        request: &StartRequest,
        engine: &mut Engine,
        status: Status,
        streams: Streams,
    ) -> Result<(ContainerRecord, Log, Option<OwnedFd>), ShimError> {
        let pid = engine.pid().map_or(0, |pid| pid.as_raw());
        let (stdout, stderr, stdin) = streams.outer()?;
        set_oom_score(pid, request.oom_score_adj);
        let pid_start = start_time(pid).map_err(ShimError::system("read the start time"))?;
        let started = now();
        if let Err(error) = engine.start() {
            return Err(explain(status.read(), chain(&error)));
        }
        if let Some(message) = status.read().run {
            return Err(ShimError::Run(message));
        }
        let record = ContainerRecord {
            container: request.container.clone(),
            attempt: request.attempt,
            image_id: request.image_id.clone(),
            pid: u32::try_from(pid).unwrap_or(0),
            pid_start,
            started,
            effective: request.effective.clone(),
            stop_sent: None,
            exit: None,
            previous: None,
        };
        let log = Log::new(
            layout::log_file(&request.log_dir, request.attempt),
            request.log_max_bytes,
            request.log_max_files,
            stdout,
            stderr,
        );
        Ok((record, log, stdin))
    }
}

struct Launched {
    record: ContainerRecord,
    oom_before: u64,
    log: Log,
    stdin: Option<OwnedFd>,
    lent: Option<Vec<u32>>,
}

/// Makes libcontainer's files readable by root alone: they contain the container's environment, and their modes
/// follow the umask, which containers' mount points need as it is. Files that are rewritten keep their mode.
fn seal(state: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    for entry in fs::read_dir(state)?.flatten() {
        fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o600))?;
    }
    fs::set_permissions(state, fs::Permissions::from_mode(0o700))
}

/// The best known reason of a failure, from the children's messages.
fn explain(said: Said, error: String) -> ShimError {
    match said {
        Said { run: Some(run), .. } => ShimError::Run(run),
        Said {
            event: Some(event),
            errno,
            ..
        } => {
            let errno = errno.map_or_else(String::new, |errno| format!(": {errno}"));
            ShimError::Create(format!("{error}: {event}{errno}"))
        }
        _ => ShimError::Create(error),
    }
}

fn set_oom_score(pid: i32, score: i32) {
    if let Err(error) = fs::write(format!("/proc/{pid}/oom_score_adj"), score.to_string()) {
        warn(format_args!(
            "could not set oom_score_adj of {pid} to {score}: {error}, ignoring"
        ));
    }
}

/// Field 22 of `/proc/<pid>/stat`.
fn start_time(pid: i32) -> io::Result<u64> {
    let text = file::read_text(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may contain anything, also parentheses.
    text.rsplit(") ")
        .next()
        .and_then(|rest| rest.split(' ').nth(19))
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Restores what libcontainer changed in its caller.
fn process_restored() {
    let _ = std::env::set_current_dir("/");
    setup::restore_oom_score();
    allocator::trim();
}

/// Kills a child and waits for it.
fn end(pid: i32) {
    if pid <= 0 {
        return;
    }
    let _ = process::kill(pid, libc::SIGKILL);
    while waitpid(Pid::from_raw(pid), None) == Err(nix::Error::EINTR) {}
}

fn own_fds() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Closes the sockets and pipes leaked by a failed create. Folders stay: a library keeps its handle on `/proc` for
/// good.
fn close_leaked(before: &[i32]) {
    if before.is_empty() {
        return;
    }
    for fd in own_fds() {
        let link = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        let link = link.to_string_lossy();
        let leaked = link.starts_with("socket:") || link.starts_with("pipe:");
        if leaked && !before.contains(&fd) {
            process::close_leaked(fd);
        }
    }
}

/// Kills and reaps the children leaked by a failed create, found by the names that libcontainer gives them.
fn reap_leaked() {
    let children = file::read_text("/proc/thread-self/children").unwrap_or_default();
    for pid in children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
    {
        let name = file::read_text(format!("/proc/{pid}/comm")).unwrap_or_default();
        if name.starts_with("youki:") {
            end(pid);
        }
    }
}

/// Reaps one exited child, if there is one.
pub(super) fn reap_next() -> Option<nix::sys::wait::WaitStatus> {
    loop {
        match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
            Ok(nix::sys::wait::WaitStatus::StillAlive) => return None,
            Ok(status) => return Some(status),
            Err(nix::Error::EINTR) => {}
            Err(_) => return None,
        }
    }
}
