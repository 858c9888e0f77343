//! Landlock: the calling thread gives up access to files, for good (landlock(7), Linux 5.13).
//!
//! Only from version 2 on (Linux 5.19): the first one forbids every rename from one folder to another.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const EXECUTE: u64 = 1 << 0;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
/// `REMOVE_DIR` (1 << 4) to `MAKE_SYM` (1 << 12), and `REFER`: renames and links between folders.
const CHANGE_DIR: u64 = 0x3ff0;
/// Since version 3.
const TRUNCATE: u64 = 1 << 14;
/// Since version 5.
const IOCTL_DEV: u64 = 1 << 15;

/// Rights that a file may have, too; others are for folders.
const OF_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;

/// Since version 4.
const BIND_TCP: u64 = 1 << 0;
const CONNECT_TCP: u64 = 1 << 1;

/// Since version 6: abstract sockets and signals of processes outside.
const SCOPES: u64 = 0b11;

/// `LANDLOCK_CREATE_RULESET_VERSION`.
const VERSION: u32 = 1;
/// `LANDLOCK_RULE_PATH_BENEATH`.
const PATH_BENEATH: u32 = 1;

/// `struct landlock_ruleset_attr`. Older kernels know its first fields only, and want the others to be 0.
#[repr(C)]
#[derive(Default)]
struct Handled {
    files: u64,
    network: u64,
    scopes: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct Beneath {
    allowed: u64,
    parent: i32,
}

/// What may be done to a file, or to everything below a folder. Nothing may be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read files, list folders.
    Read,
    /// Also write, make, move and remove.
    Write,
}

/// TCP, as far as Landlock knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tcp {
    /// None.
    Nothing,
    /// Connections to others.
    Connect,
}

/// The version of the kernel's Landlock; 0 if there is none.
pub fn version() -> u32 {
    // SAFETY: with this flag the kernel takes no structure, and returns a number.
    let found = unsafe {
        let nothing = std::ptr::null::<Handled>();
        libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0usize, VERSION)
    };
    u32::try_from(found).unwrap_or(0)
}

/// Restricts the calling thread, and those it starts, to these paths; missing ones are left out. Open files stay as
/// they are. The thread needs `no_new_privs`. Returns `false`, with nothing changed, where the kernel cannot do it.
pub fn restrict(paths: &[(PathBuf, Access)], tcp: Tcp) -> io::Result<bool> {
    let version = version();
    if version < 2 {
        return Ok(false);
    }
    let handled = handled(version, tcp);
    let rules = make(&handled)?;
    for (path, access) in paths {
        add(&rules, &handled, path, *access)?;
    }
    // SAFETY: the descriptor is a set of rules, open during the call.
    let done = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0u32) };
    match done {
        0 => Ok(true),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Everything that this version can refuse.
fn handled(version: u32, tcp: Tcp) -> Handled {
    let since = |first: u32, bits: u64| if version >= first { bits } else { 0 };
    let network = match tcp {
        Tcp::Nothing => BIND_TCP | CONNECT_TCP,
        Tcp::Connect => BIND_TCP,
    };
    Handled {
        files: EXECUTE
            | WRITE_FILE
            | READ_FILE
            | READ_DIR
            | CHANGE_DIR
            | since(3, TRUNCATE)
            | since(5, IOCTL_DEV),
        network: since(4, network),
        scopes: since(6, SCOPES),
    }
}

fn make(handled: &Handled) -> io::Result<OwnedFd> {
    let size = size_of::<Handled>();
    // SAFETY: the kernel reads `size` bytes of the structure.
    let made = unsafe {
        let handled: *const Handled = handled;
        libc::syscall(libc::SYS_landlock_create_ruleset, handled, size, 0u32)
    };
    let fd = i32::try_from(made).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, which belongs to nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn add(rules: &OwnedFd, handled: &Handled, path: &Path, access: Access) -> io::Result<()> {
    let Some(place) = place(path)? else {
        return Ok(());
    };
    let mut allowed = match access {
        Access::Read => READ_FILE | READ_DIR,
        Access::Write => handled.files & !(EXECUTE | IOCTL_DEV),
    };
    if !place.metadata()?.is_dir() {
        allowed &= OF_FILES;
    }
    let rule = Beneath {
        allowed,
        parent: place.as_raw_fd(),
    };
    // SAFETY: both descriptors are open, and the kernel reads the structure that this kind of rule has.
    let added = unsafe {
        let rule: *const Beneath = &raw const rule;
        let rules = rules.as_raw_fd();
        libc::syscall(libc::SYS_landlock_add_rule, rules, PATH_BENEATH, rule, 0u32)
    };
    match added {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The place itself, links followed; `None` if it is missing.
fn place(path: &Path) -> io::Result<Option<File>> {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(path);
    match opened {
        Ok(place) => Ok(Some(place)),
        Err(why) => match why.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => Ok(None),
            _ => Err(why),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread;

    use super::*;

    #[test]
    fn older_versions_get_only_what_they_know() {
        for (version, files, network, scopes) in [
            (2, 0x3fff, 0, 0),
            (3, 0x7fff, 0, 0),
            (4, 0x7fff, 1, 0),
            (5, 0xffff, 1, 0),
            (6, 0xffff, 1, 3),
        ] {
            let handled = handled(version, Tcp::Connect);
            let found = (handled.files, handled.network, handled.scopes);
            assert_eq!(found, (files, network, scopes), "version {version}");
        }
        assert_eq!(handled(4, Tcp::Nothing).network, 3);
    }

    #[test]
    fn a_thread_reaches_only_what_it_is_left() {
        assert!(version() >= 2, "the tests need Linux 5.19 with Landlock");
        let dir = std::env::temp_dir().join(format!("coracle-landlock-{}", std::process::id()));
        for part in ["read", "write/a", "write/b", "other"] {
            fs::create_dir_all(dir.join(part)).unwrap();
            fs::write(dir.join(part).join("file"), "x").unwrap();
        }
        let at = dir.clone();
        // Only this thread is restricted.
        let restricted = move || {
            nix::sys::prctl::set_no_new_privs().unwrap();
            let paths = [
                (at.join("read"), Access::Read),
                (at.join("other/file"), Access::Read),
                (at.join("write"), Access::Write),
                (at.join("missing"), Access::Write),
            ];
            assert!(restrict(&paths, Tcp::Nothing).unwrap());
            let refused = |what: io::Result<()>| {
                assert_eq!(what.unwrap_err().raw_os_error(), Some(libc::EACCES));
            };
            fs::read(at.join("read/file")).unwrap();
            fs::read_dir(at.join("read")).unwrap();
            fs::read(at.join("other/file")).unwrap();
            refused(fs::write(at.join("read/file"), "y"));
            refused(fs::write(at.join("read/new"), "y"));
            refused(fs::remove_file(at.join("read/file")));
            refused(fs::read_dir(at.join("other")).map(drop));
            refused(fs::read("/etc/passwd").map(drop));
            fs::rename(at.join("write/a/file"), at.join("write/b/moved")).unwrap();
            fs::write(at.join("write/b/moved"), "y").unwrap();
            fs::remove_dir_all(at.join("write/b")).unwrap();
            let run = std::process::Command::new("/bin/true").spawn();
            refused(run.map(drop));
        };
        thread::spawn(restricted).join().unwrap();
        fs::read("/etc/passwd").unwrap();
        fs::remove_dir_all(dir).unwrap();
    }
}
