//! Extended attributes of directory entries of any kind, including symlinks and device nodes.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

/// Sets attribute `key` of the entry `name` (a single component; `.` for the directory itself) in `dir`, also if
/// the entry is a symlink. Needs `/proc`.
pub fn set_at(dir: BorrowedFd<'_>, name: &OsStr, key: &OsStr, value: &[u8]) -> io::Result<()> {
    // There is no setxattrat(2) before Linux 6.13; the way through /proc ends at `name` and does not follow it.
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.as_bytes());
    let path = CString::new(path)?;
    let key = CString::new(key.as_bytes())?;
    // SAFETY: both strings end in NUL and outlive the call; `value` is valid for `value.len()` bytes.
    let done = unsafe {
        libc::lsetxattr(
            path.as_ptr(),
            key.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
