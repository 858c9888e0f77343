//! The shim's poll loop over signals, containers' output, and connections. Exits are reaped before requests are
//! answered, so no answer is older than the kernel's state.

use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;

use super::connection::Connection;
use super::log::Buffer;
use super::pod::{Ended, Pod};
use super::protocol::{FailedStep, Message, Reply, Request};
use super::{ShimError, warn};
use crate::chain;
use crate::sys::{allocator, clock};

/// A shim that holds nothing and has had no connection leaves after this time.
const LONELY_MS: u64 = 60_000;

/// The maximum number of connections at a time.
const MOST_CONNECTIONS: usize = 256;

struct Server {
    pod: Pod,
    listener: UnixListener,
    signals: SignalFd,
    connections: Vec<Connection>,
    accepted: u64,
    buffer: Buffer,
    /// SIGTERM came: leave once nothing runs.
    leaving: bool,
}

/// What a poll slot stands for.
#[derive(Clone, Copy)]
enum Slot {
    Signals,
    Listener,
    Connection(usize),
    /// A stream of a kept program: its pid and the stream's number.
    Kept((i32, usize)),
}

/// The result of a poll: slots, and streams by container and number.
type Ready = (Vec<Slot>, Vec<(String, usize)>);

/// Serves until the pod is shut down.
pub(super) fn serve(pod: Pod, listener: UnixListener, signals: SignalFd) -> Result<(), ShimError> {
    let mut server = Server {
        pod,
        listener,
        signals,
        connections: Vec::new(),
        accepted: 0,
        buffer: Buffer::new(),
        leaving: false,
    };
    let lonely_at = clock::boot_ms() + LONELY_MS;
    allocator::trim();
    loop {
        let lonely = server.accepted == 0 && clock::boot_ms() >= lonely_at;
        if lonely || (server.leaving && !server.pod.is_running()) {
            server.leave();
            return Ok(());
        }
        let done = server.turn(lonely_at)?;
        if done {
            server.unlink();
            return Ok(());
        }
    }
}

impl Server {
    /// Waits for one poll and handles it. Returns whether the shim is done.
    fn turn(&mut self, lonely_at: u64) -> Result<bool, ShimError> {
        let lonely_at = (self.accepted == 0).then_some(lonely_at);
        let wake_at = lonely_at.into_iter().chain(self.pod.kept.wake_at()).min();
        let timeout = wake_at.map_or(PollTimeout::NONE, |at| {
            let left = at.saturating_sub(clock::boot_ms());
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        let (ready, output) = self.wait(timeout)?;
        self.pod.kept.end_late();
        for slot in &ready {
            if let Slot::Signals = slot {
                self.signalled();
            }
        }
        for (name, index) in output {
            if let Some(container) = self.pod.containers.get_mut(&name) {
                container.log.read(index, &mut self.buffer);
            }
        }
        let mut done = false;
        for slot in &ready {
            match slot {
                Slot::Signals => {}
                Slot::Kept(stream) => self.pod.kept.read(*stream),
                Slot::Listener => self.accept(),
                Slot::Connection(index) => done |= self.talk(*index),
            }
        }
        self.drop_closed();
        Ok(done)
    }

    /// Polls once.
    fn wait(&mut self, timeout: PollTimeout) -> Result<Ready, ShimError> {
        let kept = self.pod.kept.pipes();
        let mut polled = Vec::with_capacity(8);
        let mut slots = vec![Slot::Signals, Slot::Listener];
        polled.push(PollFd::new(self.signals.as_fd(), PollFlags::POLLIN));
        polled.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        for (index, connection) in self.connections.iter().enumerate() {
            let mut flags = PollFlags::POLLIN;
            flags.set(PollFlags::POLLOUT, connection.has_output());
            polled.push(PollFd::new(connection.fd(), flags));
            slots.push(Slot::Connection(index));
        }
        for stream in kept {
            if let Some(pipe) = self.pod.kept.pipe(stream) {
                polled.push(PollFd::new(pipe, PollFlags::POLLIN));
                slots.push(Slot::Kept(stream));
            }
        }
        let mut streams = Vec::new();
        for (name, container) in &self.pod.containers {
            for (index, stream) in container.log.streams.iter().enumerate() {
                if let Some(fd) = &stream.fd {
                    polled.push(PollFd::new(fd.as_fd(), PollFlags::POLLIN));
                    streams.push((name, index));
                }
            }
        }
        match poll(&mut polled, timeout) {
            Ok(_) => {}
            Err(nix::Error::EINTR) => return Ok((Vec::new(), Vec::new())),
            Err(errno) => return Err(ShimError::system("poll")(errno.into())),
        }
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
        let (for_slots, for_streams) = polled.split_at(slots.len());
        let ready = slots
            .iter()
            .zip(for_slots)
            .filter(|(_, fd)| is_ready(fd))
            .map(|(slot, _)| *slot)
            .collect();
        let output = streams
            .iter()
            .zip(for_streams)
            .filter(|(_, fd)| is_ready(fd))
            .map(|((name, index), _)| ((*name).clone(), *index))
            .collect();
        Ok((ready, output))
    }

    fn signalled(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            if i32::try_from(signal.ssi_signo) == Ok(Signal::SIGTERM as i32) {
                self.leaving = true;
            }
        }
        self.reap();
    }

    fn reap(&mut self) {
        for ended in self.pod.reap(&mut self.buffer) {
            match ended {
                Ended::Container(message, attached, code) => {
                    for connection in &mut self.connections {
                        if connection.subscribed {
                            connection.send(&message, None);
                        }
                        if attached.contains(&connection.number) {
                            connection.send(&Message::ExecExited { code }, None);
                        }
                    }
                }
                Ended::Program(number, message) => {
                    let mut all = self.connections.iter_mut();
                    if let Some(connection) = all.find(|c| c.number == number) {
                        connection.send(&message, None);
                    }
                }
            }
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            self.accepted += 1;
            if self.connections.len() >= MOST_CONNECTIONS {
                warn(format_args!("too many connections, dropping one"));
                continue;
            }
            if let Ok(connection) = Connection::new(self.accepted, stream) {
                self.connections.push(connection);
            }
        }
    }

    /// Answers the requests of a connection. Returns whether the shim is done.
    fn talk(&mut self, index: usize) -> bool {
        self.connections[index].flush();
        self.connections[index].fill();
        loop {
            let connection = &mut self.connections[index];
            let request = match connection.next() {
                Ok(Some(request)) => request,
                Ok(None) => return false,
                Err(error) => {
                    let reply = Reply::Failed {
                        step: FailedStep::Request,
                        message: chain(&error),
                    };
                    connection.send(&Message::Reply(reply), None);
                    connection.closed = true;
                    return false;
                }
            };
            if let Request::Hello { subscribe, .. } = request {
                connection.subscribed = subscribe;
            }
            let fds = std::mem::take(&mut connection.fds);
            let number = connection.number;
            let answer = self.pod.answer(request, number, fds, &mut self.buffer);
            let last = answer.last;
            self.connections[index].send(&Message::Reply(answer.reply), answer.fd);
            if let Some(message) = answer.then {
                self.connections[index].send(&message, None);
            }
            if last {
                return true;
            }
        }
    }

    fn drop_closed(&mut self) {
        let pod = &mut self.pod;
        self.connections.retain(|connection| {
            if connection.closed {
                pod.connection_closed(connection.number);
            }
            !connection.closed
        });
    }

    fn leave(&mut self) {
        self.pod.shut_down(&mut self.buffer);
        self.unlink();
    }

    fn unlink(&self) {
        // Best effort: the agent removes the whole folder anyway.
        let _ = std::fs::remove_file(self.pod.config.run_dir.join("shim.sock"));
    }
}
