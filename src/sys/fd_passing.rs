//! How do descriptors come over a socket? One `recvmsg` that takes SCM_RIGHTS descriptors, close-on-exec.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

/// Bytes received (0 at the end) and the descriptor that came with them; further ones are closed.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let (length, fds) = receive_all(socket, buffer)?;
    Ok((length, fds.into_iter().next()))
}

/// Bytes received (0 at the end) and the at most three descriptors that came with them.
pub fn receive_all(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = nix::cmsg_space!([RawFd; 3]);
    let mut data = [IoSliceMut::new(buffer)];
    let message = recvmsg::<()>(
        socket.as_fd().as_raw_fd(),
        &mut data,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let mut owned = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = control {
            for fd in fds {
                // SAFETY: the kernel has just made this descriptor for us; nobody else knows of it.
                owned.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
    Ok((message.bytes, owned))
}
