//! Descriptors passed between processes: SCM_RIGHTS beside ordinary bytes, close-on-exec on arrival.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// The maximum of files taken with one read; the kernel drops more.
pub const MAX_FDS: usize = 8;

/// Sends bytes, with `fds` on the first of them. Returns the number of bytes taken.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let raw: Vec<_> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let sent = sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(bytes)],
        control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    Ok(sent)
}

/// Receives bytes, and appends files that came with them. 0 is the end.
pub fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut control = nix::cmsg_space!([std::os::fd::RawFd; MAX_FDS]);
    let mut slices = [IoSliceMut::new(buffer)];
    let message = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut slices,
        Some(&mut control),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = part {
            for fd in raw {
                // SAFETY: the kernel just made this descriptor for this process; it has no other owner.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
    Ok(message.bytes)
}

/// A connected pair of unix stream sockets, close-on-exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    Ok(socketpair(
        AddressFamily::Unix,
        SockType::Stream,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?)
}

/// Makes reads and writes of `fd` non-blocking.
pub fn set_nonblocking(fd: impl AsFd) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let flags = OFlag::from_bits_retain(fcntl(fd.as_fd(), FcntlArg::F_GETFL)?);
    fcntl(fd.as_fd(), FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}
