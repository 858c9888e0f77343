//! Cgroup hierarchies: groups are joined, emptied and removed in all of them.
//!
//! A group is named by its path below each hierarchy's mount; it need not exist in every hierarchy.

use std::ffi::{CStr, OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::{process, tree};
use crate::sys::clock;

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its mount point.
    pub mount: PathBuf,
    /// Whether it is a cgroup2 file system.
    pub v2: bool,
    /// Whether memory is accounted in it.
    pub memory: bool,
    /// Whether it has no controllers: systemd's own, or cgroup2 beside v1 hierarchies. libcontainer does not move
    /// containers into these; doing so would cost a kernel grace period (8 ms) a start.
    pub bare: bool,
}

impl Hierarchy {
    /// The folder of `group`.
    pub fn folder(&self, group: &str) -> PathBuf {
        self.mount.join(group.trim_start_matches('/'))
    }
}

/// All hierarchies of the caller's mount namespace, each once.
pub fn hierarchies() -> io::Result<Vec<Hierarchy>> {
    Ok(parse(&super::file::read_text("/proc/self/mountinfo")?))
}

fn parse(mountinfo: &str) -> Vec<Hierarchy> {
    let mut seen = Vec::new();
    let mut found = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let kind = right.split(' ').next().unwrap_or_default();
        let v2 = kind == "cgroup2";
        if !v2 && kind != "cgroup" {
            continue;
        }
        let mut fields = left.split(' ');
        let (device, mount) = (fields.nth(2).unwrap_or_default(), fields.nth(1));
        if seen.contains(&device) {
            continue;
        }
        let Some(mount) = mount else { continue };
        seen.push(device);
        let options = right.rsplit(' ').next().unwrap_or_default();
        found.push(Hierarchy {
            mount: super::mount::decoded(mount),
            v2,
            memory: v2 || options.split(',').any(|option| option == "memory"),
            bare: !v2 && options.split(',').any(|option| option.starts_with("name=")),
        });
    }
    let hybrid = found.iter().any(|hierarchy| !hierarchy.v2);
    for hierarchy in &mut found {
        hierarchy.bare |= hierarchy.v2 && hybrid;
    }
    found
}

/// Moves the caller into `group` of every hierarchy that has it. Returns the number of hierarchies.
///
/// A container on cgroup v2 may make groups of its own (systemd, Docker, k3s): then its group has controllers for
/// those below it, and takes no processes itself (EBUSY). As with runc, the caller joins the group of `init` instead,
/// the container's first process, which is always below `group`.
pub fn join(hierarchies: &[Hierarchy], group: &str, init: Option<u32>) -> io::Result<usize> {
    let mut joined = 0;
    for hierarchy in hierarchies {
        let file_path = hierarchy.folder(group).join("cgroup.procs");
        let mut file = match fs::OpenOptions::new().write(true).open(&file_path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(at(&file_path, &error)),
        };
        match (file.write_all(b"0"), init) {
            (Ok(()), _) => {}
            (Err(error), Some(pid)) if hierarchy.v2 && busy(&error) => {
                join_inner(hierarchy, group, pid, error)?;
            }
            (Err(error), _) => return Err(at(&file_path, &error)),
        }
        joined += 1;
    }
    Ok(joined)
}

fn busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

/// Moves the caller to where `pid` is below `group`, or returns `before`.
fn join_inner(hierarchy: &Hierarchy, group: &str, pid: u32, before: io::Error) -> io::Result<()> {
    let text = super::file::read_text(format!("/proc/{pid}/cgroup"))?;
    let Some(inner) = inner_group(&text, group) else {
        let path = hierarchy.folder(group).join("cgroup.procs");
        return Err(at(&path, &before));
    };
    let path = hierarchy.folder(inner).join("cgroup.procs");
    let file = fs::OpenOptions::new().write(true).open(&path);
    file.and_then(|mut file| file.write_all(b"0"))
        .map_err(|error| at(&path, &error))
}

/// The cgroup v2 of a process by its `/proc/<pid>/cgroup`, if it is below `group`: a container has it in its hands
/// where its first process is.
fn inner_group<'a>(text: &'a str, group: &str) -> Option<&'a str> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    let below = path
        .trim_start_matches('/')
        .strip_prefix(group.trim_matches('/'))?
        .strip_prefix('/')?;
    let plain = below
        .split('/')
        .all(|name| !matches!(name, "" | "." | ".."));
    plain.then_some(path)
}

/// The failing hierarchy is half of the cause: an empty cpuset says "no space left on device".
fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("`{}`: {error}", path.display()))
}

/// SIGKILL to every process in `group` and below it, until none is found. Zombies of the caller do not count.
/// Frozen ones are thawed, or they would not die.
pub fn kill(hierarchies: &[Hierarchy], group: &str) {
    let thaw_all = || {
        for hierarchy in hierarchies {
            thaw(&hierarchy.folder(group));
        }
    };
    thaw_all();
    for hierarchy in hierarchies {
        let folder = hierarchy.folder(group);
        if hierarchy.v2 && fs::write(folder.join("cgroup.kill"), "1").is_ok() {
            continue;
        }
        // A fork may race with the kill: check again, but never for ever.
        for _ in 0..16 {
            let pids = processes(&folder);
            let signalled = pids
                .iter()
                .filter(|pid| alive(**pid) && process::kill(**pid, libc::SIGKILL).is_ok());
            if signalled.count() == 0 {
                break;
            }
        }
    }
    // A process of the group may have frozen it again before the signal came.
    thaw_all();
}

/// Thaws a group's folder and all below it. A frozen v1 process does not even die of SIGKILL.
pub fn thaw(folder: &Path) {
    let switches = [(c"freezer.state", "THAWED"), (c"cgroup.freeze", "0")];
    // Folders of one hierarchy have the same files, so one check spares the walk through all the others.
    let has = |name: &CStr| folder.join(OsStr::from_bytes(name.to_bytes())).exists();
    let Some((name, value)) = switches.into_iter().find(|(name, _)| has(name)) else {
        return;
    };
    let mut thaw_one = |group: BorrowedFd<'_>| {
        if let Ok(mut file) = open_file(group, name, OFlag::O_WRONLY) {
            let _ = file.write_all(value.as_bytes());
        }
    };
    let _ = walk(folder, &mut thaw_one, &mut |_, _| Ok(()));
}

fn open_file(group: BorrowedFd<'_>, name: &CStr, access: OFlag) -> nix::Result<fs::File> {
    let flags = access | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    nix::fcntl::openat(group, name, flags, Mode::empty()).map(fs::File::from)
}

fn alive(pid: i32) -> bool {
    super::file::read_text(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next());
        !matches!(state, None | Some('Z' | 'X'))
    })
}

/// The processes of a group's folder and of all below it.
pub fn processes(folder: &Path) -> Vec<i32> {
    let mut pids: Vec<i32> = Vec::new();
    let mut read = |group: BorrowedFd<'_>| {
        let file = open_file(group, c"cgroup.procs", OFlag::O_RDONLY);
        let text = file
            .map_err(io::Error::from)
            .and_then(super::file::text_of)
            .unwrap_or_default();
        let listed = text.lines().filter_map(|line| line.parse().ok());
        pids.extend(listed.filter(|pid: &i32| *pid > 0));
    };
    let _ = walk(folder, &mut read, &mut |_, _| Ok(()));
    pids
}

/// A group on the way down: its name, and the groups in it that are still to be visited.
struct Level {
    name: OsString,
    below: Vec<OsString>,
}

/// Visits a group's folder and all below it: `enter` on the way down, `leave` (with the parent's folder and the
/// name) on the way up, but not for `folder` itself. One folder is open at a time and no path is built, so that
/// groups nested deeper than the longest path are reached, too. The way up is `..`: groups never move to another
/// parent. An absent folder is fine. Goes on after an error; returns the first one.
fn walk(
    folder: &Path,
    enter: &mut dyn FnMut(BorrowedFd<'_>),
    leave: &mut dyn FnMut(BorrowedFd<'_>, &OsStr) -> io::Result<()>,
) -> io::Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut at = match nix::fcntl::open(folder, flags, Mode::empty()) {
        Ok(at) => at,
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    enter(at.as_fd());
    let mut levels = vec![Level {
        name: OsString::new(),
        below: names_below(at.as_fd()),
    }];
    let mut result = Ok(());
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.below.pop() {
            // Removed meanwhile, or no folder.
            let Ok(next) = tree::open_folder(at.as_fd(), &name) else {
                continue;
            };
            at = next;
            enter(at.as_fd());
            let below = names_below(at.as_fd());
            levels.push(Level { name, below });
            continue;
        }
        let name = std::mem::take(&mut level.name);
        levels.pop();
        if levels.is_empty() {
            break;
        }
        // It fails if the group was removed by another process; then nothing is left to do above it either.
        at = nix::fcntl::openat(&at, "..", flags, Mode::empty())?;
        result = result.and(leave(at.as_fd(), &name));
    }
    result
}

/// The groups directly below a group's folder.
pub fn children(folder: &Path) -> Vec<PathBuf> {
    let Ok(group) = fs::File::open(folder) else {
        return Vec::new();
    };
    let names = names_below(group.as_fd());
    names.into_iter().map(|name| folder.join(name)).collect()
}

fn names_below(group: BorrowedFd<'_>) -> Vec<OsString> {
    let mut names = Vec::new();
    if let Ok(mut entries) = tree::Entries::of(group) {
        while let Ok(Some((name, folder))) = entries.next_kind() {
            if folder {
                names.push(name);
            }
        }
    }
    names
}

/// Removes `group` and all groups below it, as far as they are empty.
pub fn remove(hierarchies: &[Hierarchy], group: &str) {
    for hierarchy in hierarchies {
        let _ = remove_folder(&hierarchy.folder(group));
    }
}

/// How long the kernel may take to notice that the last process of a group has gone.
const EMPTY_PATIENCE: Duration = Duration::from_secs(2);

/// Blocking. Removes what an agent made for its pods, as far as it is empty: `<root>/pods` and all below, and the
/// root unless it is a unit of systemd's.
pub fn dismantle(hierarchies: &[Hierarchy], root: &str) {
    let pods = format!("{root}/pods");
    let begin = clock::now();
    let left = || hierarchies.iter().any(|h| h.folder(&pods).exists());
    loop {
        remove(hierarchies, &pods);
        if !left() || clock::now().duration_since(begin) > EMPTY_PATIENCE {
            break;
        }
        // There is no event for "a folder can be removed now".
        std::thread::sleep(Duration::from_millis(5));
    }
    let unit = [".service", ".scope", ".slice"];
    if root.trim_matches('/').is_empty() || unit.iter().any(|kind| root.ends_with(kind)) {
        return;
    }
    for hierarchy in hierarchies {
        // Only if it is empty.
        let _ = fs::remove_dir(hierarchy.folder(root));
    }
}

/// Removes a group's folder and all below it, deepest first; absent ones are fine. Goes on after an error; returns
/// the first one.
pub fn remove_folder(folder: &Path) -> io::Result<()> {
    let gone = |result: nix::Result<()>| match result {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(io::Error::from(errno)),
    };
    let below = walk(folder, &mut |_| {}, &mut |parent, name| {
        gone(unlinkat(parent, name, UnlinkatFlags::RemoveDir))
    });
    below.and(gone(unlinkat(AT_FDCWD, folder, UnlinkatFlags::RemoveDir)))
}

/// The number of OOM kills in `group`.
pub fn oom_kills(hierarchies: &[Hierarchy], group: &str) -> u64 {
    let count = |hierarchy: &Hierarchy| {
        let file = if hierarchy.v2 {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        let text = super::file::read_text(hierarchy.folder(group).join(file)).ok()?;
        text.lines()
            .find_map(|line| line.strip_prefix("oom_kill "))?
            .trim()
            .parse::<u64>()
            .ok()
    };
    hierarchies
        .iter()
        .filter(|hierarchy| hierarchy.memory)
        .filter_map(count)
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_hierarchies_are_found_once_each() {
        let text = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
            35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
            36 31 0:32 / /elsewhere rw shared:3 - cgroup cgroup rw,memory\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw shared:5 - cgroup2 cgroup2 rw\n";
        let found = parse(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].mount, Path::new("/sys/fs/cgroup/memory"));
        assert!(found[0].memory && !found[0].v2);
        assert!(found[1].v2);
        assert_eq!(
            found[1].folder("/a/b"),
            Path::new("/sys/fs/cgroup/unified/a/b")
        );
    }

    #[test]
    fn mount_points_with_spaces_are_decoded() {
        let found = parse("41 31 0:38 / /a\\040b\\134c rw - cgroup2 cgroup2 rw\n");
        assert_eq!(found[0].mount, Path::new("/a b\\c"));
    }

    #[test]
    fn only_groups_below_that_of_the_container_are_joined() {
        for (text, expected) in [
            ("0::/pods/a/c/init\n", Some("/pods/a/c/init")),
            ("5:memory:/x\n0::/pods/a/c/x/y z\n", Some("/pods/a/c/x/y z")),
            ("0::/pods/a/c\n", None),
            ("0::/pods/a/c/\n", None),
            ("0::/pods/a/cc/init\n", None),
            ("0::/pods/a/d/init\n", None),
            ("0::/../pods/a/c/init\n", None),
            ("0::/pods/a/c/../d\n", None),
            ("5:memory:/pods/a/c/init\n", None),
            ("", None),
        ] {
            assert_eq!(inner_group(text, "/pods/a/c"), expected, "{text}");
        }
    }

    #[test]
    fn a_group_nested_deeper_than_a_path_is_long_is_visited_and_goes() {
        let hierarchies = hierarchies().unwrap();
        let hierarchy = hierarchies
            .iter()
            .find(|hierarchy| !hierarchy.v2 && hierarchy.bare)
            .or(hierarchies.first())
            .expect("a cgroup hierarchy is mounted");
        let top = hierarchy.folder(&format!("coracle-deep-{}", std::process::id()));
        fs::create_dir(&top).unwrap();
        let mut at = std::os::fd::OwnedFd::from(fs::File::open(&top).unwrap());
        let name = OsString::from("n".repeat(200));
        for _ in 0..50 {
            nix::sys::stat::mkdirat(&at, name.as_os_str(), Mode::from_bits_truncate(0o755))
                .unwrap();
            at = tree::open_folder(at.as_fd(), &name).unwrap();
        }
        let mut sleeper = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let pid = i32::try_from(sleeper.id()).unwrap();
        let joined = open_file(at.as_fd(), c"cgroup.procs", OFlag::O_WRONLY)
            .map_err(io::Error::from)
            .and_then(|mut file| file.write_all(pid.to_string().as_bytes()));
        let found = processes(&top);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        let removed = remove_folder(&top);
        joined.unwrap();
        assert_eq!(found, [pid]);
        removed.unwrap();
        assert!(!top.exists());
    }
}
