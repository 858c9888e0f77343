//! The order in which a container's mounts are made, so that the runtime writes into nothing that a pod or an image
//! brings along.
//!
//! Before it changes the root, libcontainer makes symlinks and device nodes at `rootfs/dev/…`, through whatever lies
//! there. So `/dev` must be its own tmpfs by then, and no symlink of a volume may have been in the way of any mount:
//!
//! | target, with the image's symlinks resolved | mounted |
//! |---|---|
//! | elsewhere | first, by libcontainer |
//! | (`/proc`, `/dev`, `/sys` and what belongs there) | next, by libcontainer |
//! | in `/proc` or `/sys`; `/dev/shm`, the message file | next, by libcontainer |
//! | in `/dev`, or below another of the pod's mounts | last, by the shim, in the container's finished root |
//!
//! What runc refuses is refused: the root itself, and nearly everything in `/proc`.

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, UnlinkatFlags, unlinkat};
use serde_json::{Value, json};

use super::ShimError;
use super::bundle::Bundle;
use super::protocol::StartRequest;
use super::user_namespace::Users;
use crate::spec::IN_PROC;
use crate::sys::beneath;
use crate::sys::mount_tree::{self, ReadOnly, Spread};
use crate::sys::process::{self, Fork};
use crate::types::InOrder;

/// Mounts in `/dev` that the runtime does not touch once they are made.
const HARMLESS: [&str; 2] = ["/dev/shm", "/dev/termination-log"];

/// The symlinks that the runtime makes in `/dev`; a mount there replaces such a link.
const LINKS: [&str; 7] = ["core", "fd", "kcore", "ptmx", "stderr", "stdin", "stdout"];

/// Longest message of the mounting process.
const MESSAGE_BYTES: u64 = 1024;

/// The mounts that the shim makes itself, in this order.
#[derive(Debug, Default)]
pub(super) struct Late {
    binds: Vec<LateBind>,
    /// The working directory, if it is in one of them: entered only when the program begins.
    cwd: Option<PathBuf>,
}

#[derive(Debug)]
struct LateBind {
    /// The path without symlinks of the image.
    target: PathBuf,
    source: PathBuf,
    spread: Spread,
    tree: OwnedFd,
    is_folder: bool,
}

/// Sorts the mounts of `config.json`, with the root filesystem mounted at `root` and nothing on it yet.
pub(super) fn settle(
    request: &StartRequest,
    bundle: &mut Bundle<'_>,
    root: BorrowedFd<'_>,
) -> Result<Late, ShimError> {
    let mut mounts = std::mem::take(&mut bundle.mounts);
    let fixed_count = request.fixed_mounts.unwrap_or(mounts.len());
    let binds = mounts.split_off(fixed_count.min(mounts.len()));
    let binds = canonical(binds, root)?;
    let targets: Vec<PathBuf> = binds.iter().map(|(target, _)| target.clone()).collect();
    let (mut first, mut next, mut last) = (Vec::new(), mounts, Vec::new());
    for (index, (target, mut bind)) in binds.into_iter().enumerate() {
        bind["destination"] = json!(target);
        match turn(&target, &targets[..index], &targets) {
            Turn::First => first.push(bind),
            Turn::Next => next.push(bind),
            Turn::Last => last.push((target, bind)),
        }
    }
    first.append(&mut next);
    bundle.mounts = first;
    let spread = match bundle.linux.rootfs_propagation.as_deref() {
        Some("shared") => Spread::Shared,
        Some("private") => Spread::Private,
        _ => Spread::Slave,
    };
    let cwd = &bundle.cwd;
    let place = beneath::canonical(root, cwd).map_err(ShimError::path("resolve", cwd))?;
    let in_late = last.iter().any(|(target, _)| place.starts_with(target));
    bundle.write(if in_late { Path::new("/") } else { cwd })?;
    let late = last
        .into_iter()
        .map(|(target, bind)| LateBind::of(target, &bind, spread));
    Ok(Late {
        binds: late.collect::<Result<_, _>>()?,
        cwd: in_late.then(|| cwd.clone()),
    })
}

/// The binds with their resolved targets in this image, parents before children.
fn canonical(binds: Vec<Value>, root: BorrowedFd<'_>) -> Result<Vec<(PathBuf, Value)>, ShimError> {
    let mut found = Vec::new();
    for bind in binds {
        let written = PathBuf::from(bind["destination"].as_str().unwrap_or("/"));
        let target =
            beneath::canonical(root, &written).map_err(ShimError::path("resolve", &written))?;
        if let Some(refused) = refused(&target, &bind) {
            let written = written.display();
            return Err(ShimError::Create(format!(
                "mount path `{written}` {refused}"
            )));
        }
        found.push((target, bind));
    }
    found.order_by_key(|(target, _)| target.components().count());
    Ok(found)
}

fn refused(target: &Path, bind: &Value) -> Option<&'static str> {
    if target == Path::new("/") {
        return Some("is the root of the container, on which nothing can be mounted");
    }
    let in_proc = target.strip_prefix("/proc").ok()?;
    if in_proc.as_os_str().is_empty() {
        let source = Path::new(bind["source"].as_str().unwrap_or_default());
        let is_proc = statfs(source).is_ok_and(|found| found.filesystem_type() == PROC_SUPER_MAGIC);
        return (!is_proc)
            .then_some("cannot be mounted because what is mounted is not of type proc");
    }
    let known = IN_PROC.iter().any(|name| in_proc == Path::new(name));
    (!known).then_some("cannot be mounted because it is inside /proc")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    First,
    Next,
    Last,
}

/// `before` are the pod's mounts made before this one, `all` include those after it.
fn turn(target: &Path, before: &[PathBuf], all: &[PathBuf]) -> Turn {
    let below_another = before
        .iter()
        .any(|other| target != other && target.starts_with(other));
    let in_dev = |path: &Path| path.starts_with("/dev");
    let harmless = |path: &Path| HARMLESS.iter().any(|name| path == Path::new(name));
    let dev_is_own = all.iter().all(|path| !in_dev(path) || harmless(path));
    match () {
        () if below_another => Turn::Last,
        () if in_dev(target) && !dev_is_own => Turn::Last,
        () if ["/dev", "/proc", "/sys"]
            .iter()
            .any(|own| target.starts_with(own)) =>
        {
            Turn::Next
        }
        () => Turn::First,
    }
}

/// Copies what is mounted at a bind's source, with the options of the bind.
pub(super) fn copy(source: &Path, bind: &Value, spread: Spread) -> Result<OwnedFd, ShimError> {
    let options = bind["options"].as_array();
    let has = |name: &str| options.is_some_and(|list| list.iter().any(|option| option == name));
    let read_only = match (has("rro"), has("ro")) {
        (true, _) => ReadOnly::All,
        (false, true) => ReadOnly::Top,
        (false, false) => ReadOnly::No,
    };
    let tree = mount_tree::copy(source, read_only, spread)
        .map_err(ShimError::path("copy the mount at", source))?;
    mount_tree::restrict(tree.as_fd(), (has("nodev"), has("noexec"), has("nosuid")))
        .map_err(ShimError::path("restrict the mount at", source))?;
    Ok(tree)
}

impl LateBind {
    fn of(target: PathBuf, bind: &Value, spread: Spread) -> Result<Self, ShimError> {
        let source = PathBuf::from(bind["source"].as_str().unwrap_or_default());
        let is_folder = fs::metadata(&source)
            .map_err(ShimError::path("inspect", &source))?
            .is_dir();
        let tree = copy(&source, bind, spread)?;
        Ok(Self {
            target,
            source,
            spread,
            tree,
            is_folder,
        })
    }

    /// Copies it again in a mount namespace of the pod's user namespace: what is read-only there stays so, whatever the
    /// container may do.
    fn lock(&mut self) -> std::io::Result<()> {
        self.tree = mount_tree::copy(&self.source, ReadOnly::No, self.spread)?;
        Ok(())
    }

    /// In the container's mount namespace.
    fn attach(&self, root: BorrowedFd<'_>, dev_is_own: bool) -> std::io::Result<()> {
        let name = self.target.strip_prefix("/dev").ok();
        if let Some(name) =
            name.filter(|name| dev_is_own && LINKS.iter().any(|link| *name == Path::new(link)))
        {
            let dev = beneath::open(root, Path::new("dev"))?;
            let _ = unlinkat(&dev, name, UnlinkatFlags::NoRemoveDir);
        }
        let place = match self.is_folder {
            true => beneath::open_or_make(root, &self.target, 0o755)?,
            false => beneath::open_or_make_file(root, &self.target)?,
        };
        mount_tree::attach(self.tree.as_fd(), place.as_fd())
    }
}

impl Late {
    /// Whether there is nothing to mount.
    pub(super) fn is_empty(&self) -> bool {
        self.binds.is_empty()
    }

    /// The working directory, if it does not exist before these mounts.
    pub(super) fn cwd(&self) -> Option<&Path> {
        self.cwd.as_deref()
    }

    /// Makes the mounts in the mount namespace of `pid`, a container's first process whose program has not begun. A
    /// forked child does this: the shim could not return from that namespace.
    pub(super) fn attach(mut self, pid: i32, users: Option<&Users>) -> Result<(), ShimError> {
        if self.is_empty() {
            return Ok(());
        }
        let namespace = PathBuf::from(format!("/proc/{pid}/ns/mnt"));
        let namespace = fs::File::open(&namespace).map_err(ShimError::path("open", &namespace))?;
        let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)
            .map_err(|errno| ShimError::system("open a pipe")(errno.into()))?;
        match process::fork().map_err(ShimError::system("fork"))? {
            Fork::Child => {
                drop(reader);
                let failed = self.attach_in(&namespace, users).err().unwrap_or_default();
                let _ = nix::unistd::write(&writer, failed.as_bytes());
                process::exit_now(i32::from(!failed.is_empty()));
            }
            Fork::Parent(child) => {
                drop(writer);
                let mut said = String::new();
                // Without the message the exit code still tells.
                let _ = fs::File::from(reader)
                    .take(MESSAGE_BYTES)
                    .read_to_string(&mut said);
                let status = loop {
                    match waitpid(Pid::from_raw(child), None) {
                        Err(nix::Error::EINTR) => {}
                        other => break other,
                    }
                };
                match status {
                    Ok(nix::sys::wait::WaitStatus::Exited(_, 0)) => Ok(()),
                    _ if said.is_empty() => Err(ShimError::Create(
                        "the mounts in the container's root could not be made".to_owned(),
                    )),
                    _ => Err(ShimError::Create(said)),
                }
            }
        }
    }

    fn attach_in(&mut self, namespace: &fs::File, users: Option<&Users>) -> Result<(), String> {
        if let Some(users) = users {
            // Mount points that are made belong to the pod's root.
            users
                .enter()
                .map_err(|error| format!("could not join the pod's user namespace: {error}"))?;
            unshare(CloneFlags::CLONE_NEWNS)
                .map_err(std::io::Error::from)
                .and_then(|()| self.binds.iter_mut().try_for_each(LateBind::lock))
                .map_err(|error| format!("could not copy the pod's mounts: {error}"))?;
        }
        setns(namespace, CloneFlags::CLONE_NEWNS)
            .map_err(|errno| format!("could not join the container's mount namespace: {errno}"))?;
        let root = beneath::place(Path::new("/"))
            .map_err(|error| format!("could not open the container's root: {error}"))?;
        let mut dev_is_own = true;
        for bind in &self.binds {
            bind.attach(root.as_fd(), dev_is_own).map_err(|error| {
                format!("could not mount on `{}`: {error}", bind.target.display())
            })?;
            dev_is_own &= bind.target != Path::new("/dev");
        }
        if let Some(cwd) = &self.cwd {
            // As elsewhere, it is created if possible; the start of the program reports any error.
            let _ = beneath::canonical(root.as_fd(), cwd)
                .and_then(|cwd| beneath::open_or_make(root.as_fd(), &cwd, 0o755));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(targets: &[&str]) -> Vec<Turn> {
        let all: Vec<PathBuf> = targets.iter().map(PathBuf::from).collect();
        let turn = |(index, target): (usize, &PathBuf)| turn(target, &all[..index], &all);
        all.iter().enumerate().map(turn).collect()
    }

    #[test]
    fn the_runtime_finds_its_own_dev_and_no_mount_leads_through_a_volume() {
        use Turn::{First, Last, Next};
        for (targets, expected) in [
            (
                vec!["/data", "/etc/hosts", "/dev/termination-log"],
                vec![First, First, Next],
            ),
            (vec!["/dev/shm", "/dev/termination-log"], vec![Next, Next]),
            (
                vec!["/dev", "/dev/shm", "/dev/termination-log"],
                vec![Last, Last, Last],
            ),
            (vec!["/dev/fuse", "/dev/shm"], vec![Last, Last]),
            (
                vec!["/data", "/data/below", "/database"],
                vec![First, Last, First],
            ),
            (
                vec!["/sys", "/sys/fs/bpf", "/proc/stat"],
                vec![Next, Last, Next],
            ),
            (vec!["/data", "/data"], vec![First, First]),
            (vec!["/devices", "/system"], vec![First, First]),
        ] {
            assert_eq!(turns(&targets), expected, "{targets:?}");
        }
    }
}
