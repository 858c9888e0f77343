//! Where are the cgroup hierarchies, and how does one join, empty and remove a group in all of them?
//!
//! A group is named by its path below each hierarchy's mount; it need not exist in every hierarchy.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::process;

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its mount point.
    pub mount: PathBuf,
    /// Whether it is a cgroup2 file system.
    pub v2: bool,
    /// Whether memory is accounted in it.
    pub memory: bool,
    /// Whether it has no controllers: systemd's own, or cgroup2 beside v1 hierarchies. libcontainer leaves containers
    /// out of these; moving them there too would cost a kernel grace period (8 ms) a start.
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
    Ok(parse(&fs::read_to_string("/proc/self/mountinfo")?))
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
            mount: PathBuf::from(mount.replace("\\040", " ")),
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

/// Moves the caller into `group` of every hierarchy that has it. Says in how many.
pub fn join(hierarchies: &[Hierarchy], group: &str) -> io::Result<usize> {
    let mut joined = 0;
    for hierarchy in hierarchies {
        let file_path = hierarchy.folder(group).join("cgroup.procs");
        match fs::OpenOptions::new().write(true).open(&file_path) {
            Ok(mut file) => file
                .write_all(b"0")
                .map_err(|error| at(&file_path, &error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(at(&file_path, &error)),
        }
        joined += 1;
    }
    Ok(joined)
}

/// Which of many hierarchies failed is half of the cause: an empty cpuset says "no space left on device".
fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("`{}`: {error}", path.display()))
}

/// SIGKILL to every process in `group` and below it, until none is found. Zombies of the caller do not count.
pub fn kill(hierarchies: &[Hierarchy], group: &str) {
    for hierarchy in hierarchies {
        let folder = hierarchy.folder(group);
        if hierarchy.v2 && fs::write(folder.join("cgroup.kill"), "1").is_ok() {
            continue;
        }
        // A fork may race with the kill: look again, but never for ever.
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
}

fn alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next());
        !matches!(state, None | Some('Z' | 'X'))
    })
}

/// The processes of a group's folder and of all below it.
pub fn processes(folder: &Path) -> Vec<i32> {
    let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<i32> = text
        .lines()
        .filter_map(|line| line.parse().ok())
        .filter(|pid| *pid > 0)
        .collect();
    for below in children(folder) {
        pids.extend(processes(&below));
    }
    pids
}

/// The groups directly below a group's folder.
pub fn children(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Removes `group` and all groups below it, as far as they are empty.
pub fn remove(hierarchies: &[Hierarchy], group: &str) {
    for hierarchy in hierarchies {
        remove_folder(&hierarchy.folder(group));
    }
}

fn remove_folder(folder: &Path) {
    for below in children(folder) {
        remove_folder(&below);
    }
    let _ = fs::remove_dir(folder);
}

/// How many processes of `group` the kernel has killed for memory.
pub fn oom_kills(hierarchies: &[Hierarchy], group: &str) -> u64 {
    let count = |hierarchy: &Hierarchy| {
        let file = if hierarchy.v2 {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        let text = fs::read_to_string(hierarchy.folder(group).join(file)).ok()?;
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
}
