//! Kept programs, those of hooks and exec probes. They belong to the shim and survive agent restarts: the restarted
//! agent gets their results by asking for the same program again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::ShimError;
use super::container::now;
use super::protocol::{ExecRequest, Keep, KeptEnd, KeptProgram, Message, Purpose};
use super::streams::pipe;
use crate::sys::{clock, fdpass, process};

/// The maximum of output kept of a probe's program, by stream.
const PROBE_BYTES: usize = 10 << 10;

/// The same for a hook, whose result is held until its container ends.
const HOOK_BYTES: usize = 1 << 10;

/// Bytes read at a time.
const READ_BYTES: usize = 4 << 10;

/// Beyond the kept part, this many bytes are discarded at a time, then the stream rests: a program that writes
/// without end must not keep the shim busy.
const DISCARD_BYTES: usize = 64 << 10;
const REST_MS: u64 = 10;

/// All kept programs of a pod. A container has at most one for each [`Purpose`].
#[derive(Default)]
pub(super) struct Kept {
    programs: Vec<Program>,
}

struct Program {
    container: String,
    keep: Keep,
    argv: Vec<String>,
    /// The connection that waits for the result.
    connection: Option<u64>,
    state: State,
}

enum State {
    Running(Running),
    Ended(KeptEnd),
}

struct Running {
    pid: i32,
    /// Its deadline, in milliseconds since boot.
    deadline: Option<u64>,
    timed_out: bool,
    /// Standard output and standard error.
    outputs: [Output; 2],
}

/// The beginning of a program's output on one stream.
struct Output {
    pipe: Option<OwnedFd>,
    bytes: Vec<u8>,
    most: usize,
    /// Not read before this moment, in milliseconds since boot.
    rests_until: u64,
}

/// The result of a request to join a program.
pub(super) enum Joined {
    /// It runs; its pid.
    Running(i32),
    /// It has ended.
    Ended(Message),
    /// There is no such program.
    Absent,
}

impl Kept {
    /// Gives the program of this request to another connection, if it exists. A program of the same purpose whose
    /// request differed (its manifest was edited) is killed and forgotten.
    pub(super) fn join(&mut self, request: &ExecRequest, keep: &Keep, connection: u64) -> Joined {
        let same = |program: &Program| {
            program.container == request.container
                && program.keep.purpose == keep.purpose
                && program.keep.attempt == keep.attempt
        };
        let Some(index) = self.programs.iter().position(same) else {
            return Joined::Absent;
        };
        let program = &mut self.programs[index];
        if program.argv != request.argv {
            if let State::Running(running) = &program.state {
                kill(running.pid);
            }
            self.programs.remove(index);
            return Joined::Absent;
        }
        match &program.state {
            State::Running(running) => {
                let pid = running.pid;
                program.connection = Some(connection);
                Joined::Running(pid)
            }
            State::Ended(end) => {
                let message = Message::KeptEnded(Box::new(end.clone()));
                if program.is_given_once() {
                    self.programs.remove(index);
                }
                Joined::Ended(message)
            }
        }
    }

    /// Takes over a program that was started with the write ends of these pipes.
    pub(super) fn add(
        &mut self,
        (request, keep): (&ExecRequest, Keep),
        pid: i32,
        connection: u64,
        pipes: [OwnedFd; 2],
    ) {
        let most = match keep.purpose {
            Purpose::Hook(_) => HOOK_BYTES,
            Purpose::Probe(_) => PROBE_BYTES,
        };
        let outputs = pipes.map(|pipe| Output {
            pipe: Some(pipe),
            bytes: Vec::new(),
            most,
            rests_until: 0,
        });
        let deadline = keep
            .timeout_ms
            .map(|ms| clock::boot_ms().saturating_add(ms));
        self.programs.push(Program {
            container: request.container.clone(),
            keep,
            argv: request.argv.clone(),
            connection: Some(connection),
            state: State::Running(Running {
                pid,
                deadline,
                timed_out: false,
                outputs,
            }),
        });
    }

    fn running(&self) -> impl Iterator<Item = &Running> {
        self.programs
            .iter()
            .filter_map(|program| match &program.state {
                State::Running(running) => Some(running),
                State::Ended(_) => None,
            })
    }

    fn running_mut(&mut self) -> impl Iterator<Item = &mut Running> {
        let all = self.programs.iter_mut();
        all.filter_map(|program| match &mut program.state {
            State::Running(running) => Some(running),
            State::Ended(_) => None,
        })
    }

    /// The next end of a deadline or a rest, in milliseconds since boot.
    pub(super) fn wake_at(&self) -> Option<u64> {
        let moments = self.running().flat_map(|running| {
            let deadline = running.deadline.filter(|_| !running.timed_out);
            let rests = running
                .outputs
                .iter()
                .filter(|output| output.pipe.is_some());
            let rests = rests.map(|output| output.rests_until).filter(|at| *at > 0);
            deadline.into_iter().chain(rests)
        });
        moments.min()
    }

    /// Kills the programs whose deadline is over. They are reaped like all others.
    pub(super) fn end_late(&mut self) {
        let now = clock::boot_ms();
        for running in self.running_mut() {
            if running.deadline.is_some_and(|deadline| now >= deadline) && !running.timed_out {
                running.timed_out = true;
                kill(running.pid);
            }
        }
    }

    /// The streams to poll: by pid and number.
    pub(super) fn pipes(&mut self) -> Vec<(i32, usize)> {
        let now = clock::boot_ms();
        let mut pipes = Vec::new();
        for running in self.running_mut() {
            for (index, output) in running.outputs.iter_mut().enumerate() {
                if output.rests_until <= now {
                    output.rests_until = 0;
                    if output.pipe.is_some() {
                        pipes.push((running.pid, index));
                    }
                }
            }
        }
        pipes
    }

    /// A stream to poll.
    pub(super) fn pipe(&self, (pid, index): (i32, usize)) -> Option<BorrowedFd<'_>> {
        let running = self.running().find(|running| running.pid == pid)?;
        running.outputs.get(index)?.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads from a stream.
    pub(super) fn read(&mut self, (pid, index): (i32, usize)) {
        let running = self.running_mut().find(|running| running.pid == pid);
        if let Some(output) = running.and_then(|running| running.outputs.get_mut(index)) {
            output.read();
        }
    }

    /// Records the end of a kept program; returns the connection that waits for it, and its message. `outlived`:
    /// its container ended before it.
    pub(super) fn reaped(
        &mut self,
        pid: i32,
        code: i32,
        outlived: impl Fn(&str, u32) -> bool,
    ) -> Option<Option<(u64, Message)>> {
        let is_it = |program: &Program| matches!(&program.state, State::Running(r) if r.pid == pid);
        let index = self.programs.iter().position(is_it)?;
        let program = &mut self.programs[index];
        let State::Running(running) = &mut program.state else {
            return None;
        };
        let end = running.end(code);
        let notice = program
            .connection
            .take()
            .map(|number| (number, Message::KeptEnded(Box::new(end.clone()))));
        program.state = State::Ended(end);
        let given = notice.is_some() && program.is_given_once();
        if given || outlived(&program.container, program.keep.attempt) {
            self.programs.remove(index);
        }
        Some(notice)
    }

    /// Detaches a closed connection; its programs go on.
    pub(super) fn connection_closed(&mut self, connection: u64) {
        for program in &mut self.programs {
            if program.connection == Some(connection) {
                program.connection = None;
            }
        }
    }

    /// Forgets the results of an exited container. A program that still runs is forgotten when it is reaped.
    pub(super) fn container_ended(&mut self, name: &str) {
        self.programs.retain(|program| {
            program.container != name || matches!(program.state, State::Running(_))
        });
    }

    /// The programs that a restarted agent can join.
    pub(super) fn list(&self) -> Vec<KeptProgram> {
        let all = self.programs.iter().map(|program| KeptProgram {
            container: program.container.clone(),
            attempt: program.keep.attempt,
            purpose: program.keep.purpose,
            ended: matches!(program.state, State::Ended(_)),
        });
        all.collect()
    }
}

impl Program {
    /// Whether the result is forgotten with the first agent that gets it. A hook runs once in a run of its
    /// container, so its result is held: an agent may die before it has saved it.
    fn is_given_once(&self) -> bool {
        matches!(self.keep.purpose, Purpose::Probe(_))
    }
}

impl Running {
    fn end(&mut self, code: i32) -> KeptEnd {
        // The program's own output is in the pipes by now; its children's output is not waited for.
        let [output, errors] = &mut self.outputs;
        KeptEnd {
            code,
            timed_out: self.timed_out,
            output: output.take_all(),
            errors: errors.take_all(),
            at: now().time,
        }
    }
}

impl Output {
    /// Reads once; or discards, if enough is kept.
    fn read(&mut self) {
        if self.bytes.len() < self.most {
            self.read_once();
            return;
        }
        let mut discarded = 0;
        while discarded < DISCARD_BYTES {
            match self.read_once() {
                0 => break,
                count => discarded += count,
            }
        }
        self.rests_until = clock::boot_ms() + REST_MS;
    }

    /// The available output, up to a pipe's capacity.
    fn take_all(&mut self) -> String {
        let mut seen = 0;
        while seen < DISCARD_BYTES && self.bytes.len() < self.most {
            match self.read_once() {
                0 => break,
                count => seen += count,
            }
        }
        self.pipe = None;
        String::from_utf8_lossy(&std::mem::take(&mut self.bytes)).into_owned()
    }

    /// The number of bytes read. Closes the pipe at its end.
    fn read_once(&mut self) -> usize {
        let Some(pipe) = &self.pipe else {
            return 0;
        };
        let mut buffer = [0; READ_BYTES];
        match nix::unistd::read(pipe, &mut buffer) {
            Ok(0) => {
                self.pipe = None;
                0
            }
            Ok(count) => {
                let room = self.most.saturating_sub(self.bytes.len());
                self.bytes.extend_from_slice(&buffer[..count.min(room)]);
                count
            }
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => 0,
            Err(_) => {
                self.pipe = None;
                0
            }
        }
    }
}

/// Kills a program and its process group: it leads its session. A child outside both ends with the container.
pub(super) fn kill(pid: i32) {
    let _ = process::kill(-pid, libc::SIGKILL);
    let _ = process::kill(pid, libc::SIGKILL);
}

/// Two pipes for a program's standard output and standard error: the read ends, the write ends.
pub(super) fn pipes() -> Result<([OwnedFd; 2], [OwnedFd; 2]), ShimError> {
    let (output, output_end) = pipe()?;
    let (errors, errors_end) = pipe()?;
    for reader in [&output, &errors] {
        fdpass::set_nonblocking(reader).map_err(ShimError::system("set up a pipe"))?;
    }
    Ok(([output, errors], [output_end, errors_end]))
}
