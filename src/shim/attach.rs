//! Attached clients. A container's output goes to its log and to the attached clients ([`super::tap`]); clients
//! write to its input themselves.

use std::os::fd::OwnedFd;

use super::ShimError;
use super::container::Container;
use super::pod::{Answer, Pod, unknown};
use super::protocol::{AttachRequest, Reply};
use super::tap::Tap;
use crate::sys::allocator;

impl Pod {
    /// Attaches a connection.
    pub(super) fn attach(
        &mut self,
        request: &AttachRequest,
        connection: u64,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer, ShimError> {
        let name = &request.container;
        let refuse = |why: &str| ShimError::Request(format!("container `{name}` {why}"));
        let container = self.containers.get_mut(name).ok_or_else(|| unknown(name))?;
        if container.record.exit.is_some() {
            return Err(refuse("has ended"));
        }
        if request.stdin && !container.request.stdin {
            return Err(refuse(
                "has no standard input to write to: its manifest does not say `stdin: true`",
            ));
        }
        let tty = container.request.tty;
        let fd = match (tty, request.stdin) {
            (true, _) => {
                let terminal = container.log.streams[0].fd.as_ref();
                Some(terminal.ok_or_else(|| refuse("has closed its terminal"))?)
            }
            (false, true) => {
                let stdin = container.stdin.as_ref();
                Some(
                    stdin
                        .ok_or_else(|| refuse("has its standard input at an end (`stdinOnce`)"))?,
                )
            }
            (false, false) => None,
        };
        let fd = fd.map(OwnedFd::try_clone).transpose();
        let fd = fd.map_err(ShimError::system("duplicate a container's input"))?;
        let tap = Tap::new(connection, request.stdin, fds)?;
        let log_bytes = container.log.attach(tap);
        Ok(Answer {
            fd,
            ..Reply::Attached { tty, log_bytes }.into()
        })
    }

    /// Marks the client of this connection as done with writing.
    pub(super) fn end_input(&mut self, connection: u64) {
        for container in self.containers.values_mut() {
            let mut taps = container.log.taps.iter();
            if taps.any(|tap| tap.connection == connection && tap.stdin) {
                end_input(container);
            }
        }
    }

    /// Detaches the clients of a closed connection; the container goes on.
    pub(super) fn detach(&mut self, connection: u64) {
        self.end_input(connection);
        for container in self.containers.values_mut() {
            let taps = &mut container.log.taps;
            let before = taps.len();
            taps.retain(|tap| tap.connection != connection);
            if taps.len() < before {
                allocator::trim();
            }
        }
    }
}

/// A terminal has no end of input: another client may attach and type on.
fn end_input(container: &mut Container) {
    if container.request.stdin_once && !container.request.tty {
        container.stdin = None;
    }
}
