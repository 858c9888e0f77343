//! What does a shim hold, and how does it answer? Its containers and the programs run in them.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::container::{Container, Place, now, reap_next};
use super::error::chain;
use super::log::Buffer;
use super::protocol::{
    ContainerRecord, ExecRequest, FailedStep, Message, Reply, Request, ShimConfig, StartRequest,
    TARGET_LINK, VERSION,
};
use super::{ShimError, exec, exit, record, warn};
use crate::spec::{Exit, StopSignal};
use crate::sys::cgroup::{self, Hierarchy};
use crate::sys::process;

/// A pod.
pub(super) struct Pod {
    pub(super) config: ShimConfig,
    hierarchies: Vec<Hierarchy>,
    pub(super) containers: BTreeMap<String, Container>,
    /// Of containers whose newest start failed: as good as a run that has ended.
    failed: BTreeMap<String, ContainerRecord>,
    /// Programs by pid, and the connection each belongs to.
    programs: BTreeMap<i32, u64>,
}

/// Something that ended, and whom to tell.
pub(super) enum Ended {
    /// Everybody who subscribed; and those attached, by their connections, of the exit code.
    Container(Message, Vec<u64>, i32),
    /// One connection.
    Program(u64, Message),
}

/// An answer.
pub(super) struct Answer {
    pub(super) reply: Reply,
    pub(super) fd: Option<OwnedFd>,
    /// The shim ends after it.
    pub(super) last: bool,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self {
            reply,
            fd: None,
            last: false,
        }
    }
}

impl Pod {
    pub(super) fn new(config: ShimConfig, hierarchies: Vec<Hierarchy>) -> Self {
        Self {
            config,
            hierarchies,
            containers: BTreeMap::new(),
            failed: BTreeMap::new(),
            programs: BTreeMap::new(),
        }
    }

    /// Does what is asked. `connection` and `fds` matter to programs and those attached only.
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
            Request::Exec(request) => self.exec(&request, connection, &fds),
            Request::Attach(request) => self.attach(&request, connection, fds),
            Request::EndInput => {
                self.end_input(connection);
                Ok(Reply::Done.into())
            }
            Request::Shutdown => {
                self.shut_down(buffer);
                Ok(Answer {
                    reply: Reply::Done,
                    fd: None,
                    last: true,
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
            .collect();
        Ok(Reply::Hello {
            version: VERSION,
            pid: std::process::id(),
            containers,
        })
    }

    fn place(&self) -> Place<'_> {
        Place {
            run_dir: &self.config.run_dir,
            hierarchies: &self.hierarchies,
        }
    }

    fn start(&mut self, request: StartRequest) -> Result<Reply, ShimError> {
        let name = request.container.clone();
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Err(ShimError::Request(format!("`{name}` is no container name")));
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
        self.link_target(&request)?;
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

    /// How the run before this one ended, also if it was another shim's.
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

    /// Where the process namespace is that the container is to join. Its first process is an unreaped child of this
    /// one, so the path cannot come to mean another.
    fn link_target(&self, request: &StartRequest) -> Result<(), ShimError> {
        let Some(target) = &request.target else {
            return Ok(());
        };
        let running = self.containers.get(target).map(|c| &c.record);
        let Some(record) = running.filter(|record| record.exit.is_none()) else {
            let why = format!("target container `{target}` is not running");
            return Err(ShimError::Create(why));
        };
        let link = request.bundle.join(TARGET_LINK);
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(format!("/proc/{}/ns/pid", record.pid), &link)
            .map_err(ShimError::path("make", &link))
    }

    /// A record that cannot be written costs something only if the shim dies too.
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
        // The pid is that of an unreaped child of this process, so it cannot have been given to another.
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
        let name = &request.container;
        let container = self.containers.get(name).ok_or_else(|| unknown(name))?;
        if container.record.exit.is_some() {
            return Err(ShimError::Request(format!("container `{name}` has ended")));
        }
        let started = exec::start(container, &self.hierarchies, request, fds)?;
        self.programs.insert(started.pid, connection);
        Ok(Answer {
            reply: Reply::ExecStarted {
                pid: u32::try_from(started.pid).unwrap_or(0),
            },
            fd: started.terminal,
            last: false,
        })
    }

    /// Kills the programs of a connection that has closed. They are reaped like all others.
    pub(super) fn connection_closed(&mut self, connection: u64) {
        self.detach(connection);
        for (pid, owner) in &self.programs {
            if *owner == connection {
                // It leads its session and process group; a child that left them is the container's affair.
                let _ = process::kill(-pid, libc::SIGKILL);
                let _ = process::kill(*pid, libc::SIGKILL);
            }
        }
    }

    /// Reaps all that has ended.
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
        for container in self.containers.values_mut() {
            if container.log.compressor_ended(pid) {
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
        // Without a pid namespace of its own something may live on and hold the log's pipes.
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

pub(super) fn unknown(name: &str) -> ShimError {
    ShimError::Request(format!("no container `{name}`"))
}
