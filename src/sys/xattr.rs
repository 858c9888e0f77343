//! Extended attributes of directory entries of any kind, including symlinks and device nodes.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

/// Sets attribute `key` of the entry `name` (a single component; `.` for the directory itself) in `dir`, also if
/// the entry is a symlink. Needs `/proc`.
pub fn set_at(dir: BorrowedFd<'_>, name: &OsStr, key: &OsStr, value: &[u8]) -> io::Result<()> {
    // There is no setxattrat(2) before Linux 6.13.
    let path = entry(dir, name)?;
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

/// Longest list of names, and longest value, that Linux has (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const MAX_BYTES: usize = 64 << 10;

/// All attributes of the entry `name` in `dir`, sorted, also if the entry is a symlink. File systems without any have
/// none. Needs `/proc`, and CAP_SYS_ADMIN for attributes in `trusted.`.
pub fn all_at(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let path = entry(dir, name)?;
    let mut buffer = vec![0; MAX_BYTES];
    // SAFETY: the path ends in NUL and outlives the call, which writes at most the buffer's length.
    let length =
        unsafe { libc::llistxattr(path.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    let Ok(length) = usize::try_from(length) else {
        let why = io::Error::last_os_error();
        return match why.raw_os_error() {
            Some(libc::ENOTSUP) => Ok(Vec::new()),
            _ => Err(why),
        };
    };
    let names: Vec<Vec<u8>> = buffer[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    let mut all = Vec::new();
    for name in names {
        let key = CString::new(name.clone())?;
        // SAFETY: both strings end in NUL and outlive the call, which writes at most the buffer's length.
        let length = unsafe {
            libc::lgetxattr(
                path.as_ptr(),
                key.as_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
            )
        };
        let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
        all.push((name, buffer[..length].to_vec()));
    }
    all.sort();
    Ok(all)
}

/// The way through /proc to an entry: it ends at `name` and does not follow it.
fn entry(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<CString> {
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.as_bytes());
    Ok(CString::new(path)?)
}
