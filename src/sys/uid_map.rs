//! `/proc/self/uid_map` on a kernel without user namespaces, which has no such file. libcontainer reads it before each
//! container to learn whether it is in the first namespace, and takes a missing file for a failure. So the linker leads the
//! standard library's `open64` here (`--wrap`, in `build.rs`); every other open is as ever.

use std::ffi::{CStr, c_char, c_int};
use std::os::fd::IntoRawFd;

use nix::errno::Errno;
use nix::fcntl::OFlag;

const UID_MAP: &CStr = c"/proc/self/uid_map";

/// What it says in the first user namespace: all ids are themselves.
const FIRST: &[u8] = b"0 0 4294967295\n";

/// open(2), but for a missing [`UID_MAP`].
///
/// # Safety
///
/// `path` is a string of C, as for open(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_open64(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    let flags = flags | libc::O_LARGEFILE;
    // SAFETY: the caller vouches for the path; the kernel checks the rest.
    let opened = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) };
    // SAFETY: as above.
    if opened < 0 && Errno::last() == Errno::ENOENT && unsafe { CStr::from_ptr(path) } == UID_MAP {
        return first_map();
    }
    c_int::try_from(opened).unwrap_or(-1)
}

/// A pipe with the map of the first user namespace; -1 as open(2).
fn first_map() -> c_int {
    let Ok((reader, writer)) = nix::unistd::pipe2(OFlag::O_CLOEXEC) else {
        return -1;
    };
    match nix::unistd::write(writer, FIRST) {
        Ok(_) => reader.into_raw_fd(),
        Err(_) => -1,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::{FromRawFd, OwnedFd};

    use super::*;

    #[test]
    fn a_missing_map_is_that_of_the_first_namespace() {
        // SAFETY: nothing else has this descriptor.
        let mut file = File::from(unsafe { OwnedFd::from_raw_fd(first_map()) });
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert!(text.contains("4294967295"), "what libcontainer looks for");
    }

    #[test]
    fn all_else_is_as_ever() {
        let open = |path: &CStr, flags| {
            // SAFETY: a string of C.
            unsafe { __wrap_open64(path.as_ptr(), flags, 0o600) }
        };
        assert_eq!(open(c"/nonexistent", libc::O_RDONLY), -1);
        assert_eq!(Errno::last(), Errno::ENOENT);
        let file = open(c"/proc/self/uid_map", libc::O_RDONLY | libc::O_CLOEXEC);
        // SAFETY: nothing else has this descriptor.
        let mut file = File::from(unsafe { OwnedFd::from_raw_fd(file) });
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text.split_whitespace().count() % 3, 0, "{text}");
    }
}
