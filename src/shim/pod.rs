//! A shim's pod: its containers, the programs run in them, and the answers to requests.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::container::{Container, Place, now, reap_next};
use super::kept::{self, Joined, Kept};
use super::log::Buffer;
use super::protocol::{
    ContainerRecord, ExecRequest, FailedStep, Keep, Message, Reply, Request, ShimConfig,
    StartRequest, TARGET_LINK, USERS_LINK, VERSION,
};
use super::user_namespace::Users;
use super::{ShimError, exec, exit, pause, record, warn};
use crate::chain;
use crate::sys::cgroup::{self, Hierarchy};
use crate::sys::process;
use crate::types::{Exit, Gather, StopSignal};

/// The pod of this shim.
pub(super) struct Pod {
    pub(super) config: ShimConfig,
    hierarchies: Vec<Hierarchy>,
    users: Option<Users>,
    pub(super) containers: BTreeMap<String, Container>,
    /// Containers whose newest start failed, shown like a run that has ended.
    failed: BTreeMap<String, ContainerRecord>,
    /// Programs by pid, and the connection that each belongs to.
    programs: BTreeMap<i32, u64>,
    /// Programs that belong to no connection.
    pub(super) kept: Kept,
    /// The first process of the namespace that all containers share, from the first start on.
    pause: Option<i32>,
}

/// An exit, and the connections to notify.
pub(super) enum Ended {
    /// Goes to all subscribers; attached connections get the exit code.
    Container(Message, Vec<u64>, i32),
    /// Goes to the connection that waits for it.
    Program(u64, Message),
}

/// An answer to a request.
pub(super) struct Answer {
    pub(super) reply: Reply,
    pub(super) fd: Option<OwnedFd>,
    /// A message that follows the reply.
    pub(super) then: Option<Message>,
    /// Whether the shim ends after it.
    pub(super) last: bool,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self {
            reply,
            fd: None,
            then: None,
            last: false,
        }
    }
}

impl Pod {
    pub(super) fn new(
        config: ShimConfig,
        hierarchies: Vec<Hierarchy>,
        users: Option<Users>,
    ) -> Self {
        Self {
            config,
            hierarchies,
            users,
            containers: BTreeMap::new(),
            failed: BTreeMap::new(),
            programs: BTreeMap::new(),
            kept: Kept::default(),
            pause: None,
        }
    }

    /// Handles a request. `connection` and `fds` matter only for programs and attached clients.
    pub(super) fn answer(
        &mut self,
        request: Request,
        connection: u64,
        fds: Vec<OwnedFd>,
        buffer: &mut Buffer,
    ) -> Answer {
        let result = match request {
            Request::Hello { version, .. } => self.hello(version).map(Answer::from),
            Request::Start(request) => self.start(*request).map(Answer::from),
            Request::Signal {
                container,
                attempt,
                signal,
            } => self.signal(&container, attempt, signal).map(Answer::from),
            Request::Exec(request) => match request.keep {
                Some(keep) => self.exec_kept(&request, keep, connection, fds),
                None => self.exec(&request, connection, &fds),
            },
            Request::Attach(request) => self.attach(&request, connection, fds),
            Request::EndInput => {
                self.end_input(connection);
                Ok(Reply::Done.into())
            }
            Request::Shutdown => {
                self.shut_down(buffer);
                Ok(Answer {
                    last: true,
                    ..Reply::Done.into()
                })
            }
        };
        result.unwrap_or_else(|error| {
            Answer::from(Reply::Failed {
                step: error.step(),
                message: chain(&error),
            })
        })
    }

    fn hello(&self, version: u32) -> Result<Reply, ShimError> {
        if version != VERSION {
            return Err(ShimError::Request(format!(
                "this shim speaks version {VERSION} of the protocol, not {version}"
            )));
        }
        let containers = self
            .containers
            .iter()
            .map(|(name, container)| (name.clone(), container.record.clone()))
            .chain(self.failed.clone())
            .gather();
        Ok(Reply::Hello {
            version: VERSION,
            pid: std::process::id(),
            containers,
            kept: self.kept.list(),
        })
    }

    fn place(&self) -> Place<'_> {
        Place {
            run_dir: &self.config.run_dir,
            hierarchies: &self.hierarchies,
            users: self.users.as_ref(),
        }
    }

    fn start(&mut self, request: StartRequest) -> Result<Reply, ShimError> {
        let name = request.container.clone();
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Err(ShimError::Request(format!(
                "`{name}` is not a container name"
            )));
        }
        if let Some(known) = self.containers.get(&name) {
            let attempt = known.record.attempt;
            if request.attempt < attempt {
                return Err(ShimError::Request(format!(
                    "attempt {} of `{name}` is older than {attempt}",
                    request.attempt
                )));
            }
            if request.attempt == attempt {
                return Ok(Reply::Started(Box::new(known.record.clone())));
            }
            if known.record.exit.is_none() {
                return Err(ShimError::Request(format!(
                    "attempt {attempt} of `{name}` still runs"
                )));
            }
        }
        let _linked = [self.link_target(&request)?, self.link_users(&request)?];
        let previous = self.exit_before(&name, request.attempt);
        let (attempt, image_id) = (request.attempt, request.image_id.clone());
        let effective = request.effective.clone();
        match self.place().start(request) {
            Ok(mut container) => {
                container.record.previous = previous;
                self.write_record(&container.record);
                let answer = Box::new(container.record.clone());
                self.failed.remove(&name);
                self.containers.insert(name, container);
                Ok(Reply::Started(answer))
            }
            Err(error) => {
                if error.step() == FailedStep::Run {
                    let exit = Exit::not_started(chain(&error), now());
                    let record = ContainerRecord {
                        container: name.clone(),
                        attempt,
                        image_id,
                        pid: 0,
                        pid_start: 0,
                        started: exit.started,
                        effective,
                        stop_sent: None,
                        exit: Some(exit),
                        previous,
                    };
                    self.write_record(&record);
                    self.failed.insert(name, record);
                }
                Err(error)
            }
        }
    }

    /// How the previous run ended, even if it belonged to another shim.
    fn exit_before(&self, name: &str, attempt: u32) -> Option<Exit> {
        let known = self.containers.get(name).map(|c| &c.record);
        let newest = self.failed.get(name).or(known).cloned();
        let newest = newest.or_else(|| record::read(&self.config.run_dir, name))?;
        match newest.attempt.cmp(&attempt) {
            Ordering::Less => newest.exit,
            Ordering::Equal => newest.previous,
            Ordering::Greater => None,
        }
    }

    /// Links the bundle to the process namespace that the container joins, which stays open for the start.
    fn link_target(&mut self, request: &StartRequest) -> Result<Option<File>, ShimError> {
        let Some(target) = &request.target else {
            return match self.config.share_processes {
                true => link_namespace(request, self.pause()?).map(Some),
                false => Ok(None),
            };
        };
        let running = self.containers.get(target).map(|c| &c.record);
        let Some(record) = running.filter(|record| record.exit.is_none()) else {
            let why = format!("target container `{target}` is not running");
            return Err(ShimError::Create(why));
        };
        link_namespace(request, i32::try_from(record.pid).unwrap_or(0)).map(Some)
    }

    /// The same for the pod's user namespace, which stays open for good.
    fn link_users(&self, request: &StartRequest) -> Result<Option<File>, ShimError> {
        match &self.users {
            Some(users) => link(&request.bundle.join(USERS_LINK), users.as_fd()).map(|()| None),
            None => Ok(None),
        }
    }

    /// The first process of the shared namespace. With its end the kernel ended all others in there; the next start
    /// makes a new namespace.
    fn pause(&mut self) -> Result<i32, ShimError> {
        let pid = match self.pause {
            Some(pid) => pid,
            None => pause::start(&self.config.run_dir, self.users.as_ref())?,
        };
        self.pause = Some(pid);
        Ok(pid)
    }

    /// A record that cannot be written matters only if the shim dies, too.
    fn write_record(&self, record: &ContainerRecord) {
        if let Err(error) = record::write(&self.config.run_dir, record) {
            warn(format_args!("{}, ignoring", chain(&error)));
        }
    }

    fn signal(&mut self, name: &str, attempt: u32, signal: StopSignal) -> Result<Reply, ShimError> {
        let container = self.containers.get_mut(name).ok_or_else(|| unknown(name))?;
        let at = container.record.stop_sent.unwrap_or_else(|| now().time);
        if container.record.attempt != attempt || container.record.exit.is_some() {
            return Ok(Reply::Signalled { at });
        }
        // The pid is that of an unreaped child of this process, so it cannot have been reused.
        let pid = i32::try_from(container.record.pid).unwrap_or(0);
        let number = match signal {
            StopSignal::Stop => container.request.stop_signal,
            StopSignal::Kill => libc::SIGKILL,
        };
        process::kill(pid, number).map_err(ShimError::system("signal the container"))?;
        if signal == StopSignal::Kill {
            cgroup::kill(&self.hierarchies, &container.group);
        }
        if container.record.stop_sent.is_none() {
            container.record.stop_sent = Some(at);
            let record = container.record.clone();
            self.write_record(&record);
        }
        Ok(Reply::Signalled { at })
    }

    fn exec(
        &mut self,
        request: &ExecRequest,
        connection: u64,
        fds: &[OwnedFd],
    ) -> Result<Answer, ShimError> {
        let container = self.running(&request.container)?;
        let started = exec::start(container, &self.hierarchies, request, fds)?;
        self.programs.insert(started.pid, connection);
        Ok(Answer {
            fd: started.terminal,
            ..exec_started(started.pid)
        })
    }

    /// Starts a program that outlives the connection, or joins it.
    fn exec_kept(
        &mut self,
        request: &ExecRequest,
        keep: Keep,
        connection: u64,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer, ShimError> {
        match self.kept.join(request, &keep, connection) {
            Joined::Running(pid) => return Ok(exec_started(pid)),
            Joined::Ended(message) => {
                return Ok(Answer {
                    then: Some(message),
                    ..exec_started(0)
                });
            }
            Joined::Absent => {}
        }
        let container = self.running(&request.container)?;
        let current = container.record.attempt;
        if current != keep.attempt {
            return Err(ShimError::Request(format!(
                "attempt {} of `{}` is not the current one, {current}",
                keep.attempt, request.container
            )));
        }
        let Some(stdin) = fds.into_iter().next().filter(|_| !request.tty) else {
            let why = "a kept program needs a standard input, and has no terminal";
            return Err(ShimError::Request(why.to_owned()));
        };
        let (pipes, [output, errors]) = kept::pipes()?;
        let stdio = [stdin, output, errors];
        let pid = exec::start(container, &self.hierarchies, request, &stdio)?.pid;
        self.kept.add((request, keep), pid, connection, pipes);
        Ok(exec_started(pid))
    }

    fn running(&self, name: &str) -> Result<&Container, ShimError> {
        let container = self.containers.get(name).ok_or_else(|| unknown(name))?;
        match container.record.exit {
            Some(_) => Err(ShimError::Request(format!("container `{name}` has ended"))),
            None => Ok(container),
        }
    }

    /// Kills the programs of a closed connection. They are reaped like all others.
    pub(super) fn connection_closed(&mut self, connection: u64) {
        self.detach(connection);
        self.kept.connection_closed(connection);
        for (pid, owner) in &self.programs {
            if *owner == connection {
                kept::kill(*pid);
            }
        }
    }

    /// Reaps all exited processes.
    pub(super) fn reap(&mut self, buffer: &mut Buffer) -> Vec<Ended> {
        let mut ended = Vec::new();
        while let Some(status) = reap_next() {
            ended.extend(self.reaped(status, buffer));
        }
        ended
    }

    fn reaped(&mut self, status: WaitStatus, buffer: &mut Buffer) -> Option<Ended> {
        let pid = status.pid()?.as_raw();
        let (code, signal) = exit::code(status)?;
        if let Some(connection) = self.programs.remove(&pid) {
            return Some(Ended::Program(connection, Message::ExecExited { code }));
        }
        if self.pause == Some(pid) {
            self.pause = None;
            return None;
        }
        let containers = &self.containers;
        let outlived = |name: &str, attempt: u32| {
            let record = containers.get(name).map(|container| &container.record);
            record.is_none_or(|record| record.attempt != attempt || record.exit.is_some())
        };
        if let Some(message) = self.kept.reaped(pid, code, outlived) {
            return message.map(|(connection, message)| Ended::Program(connection, message));
        }
        for container in self.containers.values_mut() {
            if container.log.compressor_ended(pid, code == 0) {
                return None;
            }
        }
        let name = self.containers.iter().find_map(|(name, container)| {
            let record = &container.record;
            let ours = record.exit.is_none() && i32::try_from(record.pid) == Ok(pid);
            ours.then(|| name.clone())
        })?;
        self.container_ended(&name, code, signal, buffer)
    }

    fn container_ended(
        &mut self,
        name: &str,
        code: i32,
        signal: Option<i32>,
        buffer: &mut Buffer,
    ) -> Option<Ended> {
        let finished = now();
        let container = self.containers.get_mut(name)?;
        let kills = cgroup::oom_kills(&self.hierarchies, &container.group);
        let oom_killed = kills > container.oom_before;
        // Without a pid namespace of its own a process may live on and hold the log's pipes.
        cgroup::kill(&self.hierarchies, &container.group);
        container.log.finish(buffer);
        let attached = std::mem::take(&mut container.log.taps);
        let attached = attached.iter().map(|tap| tap.connection).collect();
        let exit = Exit {
            code,
            signal,
            oom_killed,
            message: exit::message(&container.request, code),
            started: container.record.started,
            finished,
        };
        container.record.exit = Some(exit.clone());
        let record = container.record.clone();
        self.write_record(&record);
        self.kept.container_ended(name);
        if let Some(container) = self.containers.get(name) {
            self.place().remove(&container.request, &container.group);
        }
        let exited = Message::Exited {
            container: name.to_owned(),
            attempt: record.attempt,
            exit,
        };
        Some(Ended::Container(exited, attached, code))
    }

    /// Whether a container runs.
    pub(super) fn is_running(&self) -> bool {
        self.containers
            .values()
            .any(|container| container.record.exit.is_none())
    }

    /// Kills, reaps, unmounts and removes everything.
    pub(super) fn shut_down(&mut self, buffer: &mut Buffer) {
        for container in self.containers.values() {
            if container.record.exit.is_none() {
                let pid = i32::try_from(container.record.pid).unwrap_or(0);
                let _ = process::kill(pid, libc::SIGKILL);
            }
            cgroup::kill(&self.hierarchies, &container.group);
            if let Some(pid) = container.log.compressor() {
                let _ = process::kill(pid, libc::SIGKILL);
            }
        }
        if let Some(pid) = self.pause {
            let _ = process::kill(pid, libc::SIGKILL);
        }
        loop {
            match waitpid(Pid::from_raw(-1), None) {
                Ok(status) => {
                    self.reaped(status, buffer);
                }
                Err(nix::Error::EINTR) => {}
                Err(_) => break,
            }
        }
        for container in self.containers.values() {
            self.place().remove(&container.request, &container.group);
        }
        self.containers.clear();
    }
}

/// Links the bundle to the process namespace of this process, an unreaped child of this one.
fn link_namespace(request: &StartRequest, pid: i32) -> Result<File, ShimError> {
    let path = PathBuf::from(format!("/proc/{pid}/ns/pid"));
    let namespace = File::open(&path).map_err(ShimError::path("open", &path))?;
    link(&request.bundle.join(TARGET_LINK), namespace.as_fd())?;
    Ok(namespace)
}

/// Makes `path` a link to an open file of this process and those it forks: a container's first process, which follows it,
/// may look at no other process.
fn link(path: &Path, file: BorrowedFd<'_>) -> Result<(), ShimError> {
    let _ = std::fs::remove_file(path);
    std::os::unix::fs::symlink(format!("/proc/self/fd/{}", file.as_raw_fd()), path)
        .map_err(ShimError::path("make", path))
}

fn exec_started(pid: i32) -> Answer {
    Answer::from(Reply::ExecStarted {
        pid: u32::try_from(pid).unwrap_or(0),
    })
}

pub(super) fn unknown(name: &str) -> ShimError {
    ShimError::Request(format!("no container `{name}`"))
}
