//! How does a descriptor come over a socket? One `recvmsg` that takes at most one SCM_RIGHTS descriptor, close-on-exec.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

/// Bytes received (0 at the end) and the descriptor that came with them; further ones are closed.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = nix::cmsg_space!([RawFd; 3]);
    let mut data = [IoSliceMut::new(buffer)];
    let message = recvmsg::<()>(
        socket.as_fd().as_raw_fd(),
        &mut data,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let mut first = None;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = control {
            for fd in fds {
                // SAFETY: the kernel has just made this descriptor for us; nobody else knows of it.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                first.get_or_insert(fd);
            }
        }
    }
    Ok((message.bytes, first))
}
