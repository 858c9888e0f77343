//! How large is a terminal? Reading and setting the window size.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Columns and rows of a terminal; `None` if `fd` is none.
pub fn get(fd: impl AsFd) -> Option<(u16, u16)> {
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

/// Sets columns and rows; its foreground processes get SIGWINCH.
pub fn set(fd: impl AsFd, columns: u16, rows: u16) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: `size` is a valid winsize that the kernel only reads, and `fd` is open for the time of the call.
    match unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCSWINSZ, &raw const size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
