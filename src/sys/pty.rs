//! Pseudo-terminals, from the caller's `/dev/ptmx`, so in a container its own.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// A new pseudo-terminal of the devpts behind `/dev/ptmx`: master and slave.
pub fn open() -> io::Result<(OwnedFd, OwnedFd)> {
    let master: OwnedFd = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY)
        .open("/dev/ptmx")?
        .into();
    let unlock: libc::c_int = 0;
    // SAFETY: TIOCSPTLCK reads one int through a valid pointer.
    if unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &unlock) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let slave = slave(master.as_fd())?;
    Ok((master, slave))
}

/// The other side of a terminal, unlocked already.
pub fn slave(master: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // By ioctl and not by path: `/dev/pts` of a container cannot be trusted.
    // SAFETY: TIOCGPTPEER takes open flags by value and returns a new descriptor.
    let slave = unsafe {
        libc::ioctl(
            master.as_raw_fd(),
            libc::TIOCGPTPEER,
            libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC,
        )
    };
    if slave < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(slave) })
}

/// Columns and rows of a terminal; `None` if `fd` is not a terminal.
pub fn size(fd: impl AsFd) -> Option<(u16, u16)> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: `size` is a valid winsize for the kernel to fill in, and `fd` is open for the time of the call.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (result == 0).then_some((size.ws_col, size.ws_row))
}

/// Sets the window size; the terminal's foreground processes get SIGWINCH.
pub fn set_size(terminal: impl AsFd, columns: u16, rows: u16) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: TIOCSWINSZ reads one winsize through a valid pointer.
    match unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCSWINSZ, &size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes `terminal` the controlling terminal of the caller, who must lead its session.
pub fn control(terminal: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: TIOCSCTTY takes an int by value.
    match unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
