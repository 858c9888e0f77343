//! The user namespace of a pod with `hostUsers: false`: it owns the pod's other namespaces, and its ids are seen on every
//! mount of its containers.
//!
//! The pod's network namespace was made in it by the agent; the shim finds it there, and stays outside: it is root of the
//! node. Containers and their programs join it before anything else. What is theirs alone (writable layers, shared
//! memory, device files) belongs to their ids; what comes from elsewhere (layers of images, volumes, files of the node)
//! is copied as a mount, and shown with their ids. These copies are in the bundle, in the shim's mount namespace, because
//! a container's first process has no rights on the node and could not open the originals.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::ShimError;
use super::bundle::Bundle;
use super::protocol::{DeviceFile, StartRequest};
use super::{binds, rootfs, volume_images};
use crate::spec::IdRange;
use crate::sys::mount_tree::{self, ReadOnly, Spread};
use crate::sys::process::{self, Fork};
use crate::sys::{beneath, fdpass, user_namespace};

/// The user namespace, and the node's ids that its ids are.
#[derive(Debug)]
pub(super) struct Users {
    namespace: OwnedFd,
    range: IdRange,
}

impl AsFd for Users {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }
}

impl Users {
    /// The user namespace that a network namespace belongs to.
    pub(super) fn of(network: &fs::File, range: IdRange) -> Result<Self, ShimError> {
        let namespace = user_namespace::owner(network.as_fd())
            .map_err(ShimError::system("find the pod's user namespace"))?;
        Ok(Self { namespace, range })
    }

    /// The node's id of the pod's root, user and group.
    pub(super) fn root(&self) -> u32 {
        self.range.first
    }

    /// The node's id of one of the pod's.
    pub(super) fn on_node(&self, id: u32) -> Result<u32, ShimError> {
        let count = self.range.count;
        let absent = || ShimError::Create(format!("id {id} is none of the pod's {count} ids"));
        self.range.on_node(id).ok_or_else(absent)
    }

    /// Makes the calling process root in there. It cannot leave again.
    pub(super) fn enter(&self) -> io::Result<()> {
        user_namespace::enter(self.as_fd())
    }

    /// Takes the shim to new namespaces of these kinds that belong to the user namespace: a child makes them.
    pub(super) fn join_new(&self, kinds: &[(&str, CloneFlags)]) -> io::Result<()> {
        let (near, far) = fdpass::pair()?;
        let all = kinds.iter().map(|(_, kind)| *kind);
        match process::fork()? {
            Fork::Child => {
                drop(near);
                let made = self.enter().and_then(|()| Ok(unshare(all.collect())?));
                say(&far, made);
                // Until the shim has joined them.
                let _ = nix::unistd::read(&far, &mut [0]);
                process::exit_now(0);
            }
            Fork::Parent(pid) => {
                drop(far);
                let joined = hear(&near).and_then(|()| {
                    for (name, kind) in kinds {
                        setns(fs::File::open(format!("/proc/{pid}/ns/{name}"))?, *kind)?;
                    }
                    Ok(())
                });
                drop(near);
                reap(pid);
                joined
            }
        }
    }

    /// Does something as root in there: a child does it.
    pub(super) fn inside(&self, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let (near, far) = fdpass::pair()?;
        match process::fork()? {
            Fork::Child => {
                drop(near);
                say(&far, self.enter().and_then(|()| work()));
                process::exit_now(0);
            }
            Fork::Parent(pid) => {
                drop(far);
                let done = hear(&near);
                reap(pid);
                done
            }
        }
    }

    /// Shows a copied mount, and those below it if they can be, with the pod's ids.
    fn show(&self, tree: BorrowedFd<'_>, source: &Path) -> Result<(), ShimError> {
        mount_tree::map_ids_below(tree, self.as_fd())
            .or_else(|_| mount_tree::map_ids(tree, self.as_fd()))
            .map_err(|error| {
                let (source, why) = (source.display(), hint(&error));
                ShimError::Create(format!(
                    "could not show `{source}` with the ids of the pod's user namespace: {error}{why}"
                ))
            })
    }

    /// Attaches a copy of the mount at `source`, with the pod's ids, at `target`.
    fn attach(&self, tree: &OwnedFd, source: &Path, target: &Path) -> Result<(), ShimError> {
        self.show(tree.as_fd(), source)?;
        attach(tree, source, target)
    }

    /// Layers with the pod's ids, each mounted in `folder`, for an overlay that is mounted at once.
    pub(super) fn layers(
        &self,
        layers: &[PathBuf],
        folder: &Path,
    ) -> Result<Vec<PathBuf>, ShimError> {
        let copy = |(number, layer): (usize, &PathBuf)| {
            let target = folder.join(number.to_string());
            rootfs::unmount(&target)?;
            let tree = mount_tree::copy_one(layer, ReadOnly::No, Spread::Private)
                .map_err(ShimError::path("copy the mount at", layer))?;
            self.attach(&tree, layer, &target)?;
            Ok(target)
        };
        layers.iter().enumerate().map(copy).collect()
    }

    /// Lets the pod's mounts come from copies with its ids, and its devices from files that belong to them.
    pub(super) fn show_mounts(
        &self,
        request: &StartRequest,
        bundle: &mut Bundle<'_>,
    ) -> Result<(), ShimError> {
        unmount(&request.bundle)?;
        let folder = copies(&request.bundle);
        let fixed = request.fixed_mounts.unwrap_or(bundle.mounts.len());
        let binds = bundle.mounts.iter_mut().skip(fixed);
        for (number, bind) in binds.enumerate() {
            let source = PathBuf::from(bind["source"].as_str().unwrap_or_default());
            // What the shim has made itself, of layers, has its ids.
            if source.starts_with(&request.bundle) {
                continue;
            }
            let target = folder.join(number.to_string());
            // Read-only outside, it stays so: a container with CAP_SYS_ADMIN could make its own mounts writable.
            let tree = binds::copy(&source, bind, spread_of(bind))?;
            match volume_images::has_part(request, &source) {
                true => attach(&tree, &source, &target)?,
                false => self.attach(&tree, &source, &target)?,
            }
            bind["source"] = json!(target);
        }
        let devices = self.device_files(request)?;
        bundle.mounts.extend(devices);
        // Its name is known to the pod's root alone.
        if folder.exists() {
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o711))
                .map_err(ShimError::path("open to the pod", &folder))?;
        }
        Ok(())
    }

    /// Device files on a file system of their own, as binds: a user namespace cannot make any.
    fn device_files(&self, request: &StartRequest) -> Result<Vec<Value>, ShimError> {
        if request.device_files.is_empty() {
            return Ok(Vec::new());
        }
        let folder = copies(&request.bundle).join("devices");
        fs::create_dir_all(&folder).map_err(ShimError::path("make folder", &folder))?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
        let (tmpfs, options) = (Some("tmpfs"), Some("mode=711,size=64k"));
        mount(tmpfs, &folder, tmpfs, flags, options)
            .map_err(|errno| ShimError::path("mount a tmpfs at", &folder)(errno.into()))?;
        let file = |(number, device): (usize, &DeviceFile)| {
            let path = folder.join(number.to_string());
            self.device_file(&path, device)
                .map_err(ShimError::path("make device file", &device.path))?;
            Ok(json!({
                "destination": device.path, "type": "bind", "source": path,
                "options": ["bind", "rprivate", "rw", "nosuid", "noexec"],
            }))
        };
        request.device_files.iter().enumerate().map(file).collect()
    }

    fn device_file(&self, path: &Path, device: &DeviceFile) -> io::Result<()> {
        let kind = match device.block {
            true => SFlag::S_IFBLK,
            false => SFlag::S_IFCHR,
        };
        let number = makedev(device.major.into(), device.minor.into());
        mknod(path, kind, Mode::empty(), number)?;
        // The pod sees an owner outside its range as the overflow id (65534).
        let (uid, gid) = (
            self.range.on_node(device.uid),
            self.range.on_node(device.gid),
        );
        std::os::unix::fs::lchown(path, Some(uid.unwrap_or(0)), Some(gid.unwrap_or(0)))?;
        fs::set_permissions(path, fs::Permissions::from_mode(device.mode & 0o777))
    }
}

/// Attaches a copy of the mount at `source` at `target`.
fn attach(tree: &OwnedFd, source: &Path, target: &Path) -> Result<(), ShimError> {
    let is_folder = fs::metadata(source)
        .map_err(ShimError::path("inspect", source))?
        .is_dir();
    rootfs::make_target(target, is_folder)
        .and_then(|()| mount_tree::attach(tree.as_fd(), beneath::place(target)?.as_fd()))
        .map_err(ShimError::path("mount on", target))
}

/// Unmounts the copies that [`Users::show_mounts`] made for a container, and removes their mount points: those of the
/// next run may be files where these are folders.
pub(super) fn unmount(bundle: &Path) -> Result<(), ShimError> {
    let folder = copies(bundle);
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let path = entry.path();
        rootfs::unmount(&path)?;
        fs::remove_dir(&path)
            .or_else(|_| fs::remove_file(&path))
            .map_err(ShimError::path("remove", &path))?;
    }
    Ok(())
}

fn copies(bundle: &Path) -> PathBuf {
    bundle.join("mounts")
}

fn spread_of(bind: &Value) -> Spread {
    let options = bind["options"].as_array();
    let has = |name: &str| options.is_some_and(|list| list.iter().any(|option| option == name));
    match (has("rshared"), has("rslave")) {
        (true, _) => Spread::Shared,
        (false, true) => Spread::Slave,
        (false, false) => Spread::Private,
    }
}

/// What a kernel that refuses to map the ids of a mount lacks.
fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EINVAL) => {
            ": its file system cannot show other ids (a tmpfs can from Linux 6.3 on, one of the kernel's own never)"
        }
        Some(libc::EPERM) => ": it is shown with other ids already",
        _ => "",
    }
}

/// Writes the outcome as an error number, 0 for none.
fn say(socket: &OwnedFd, outcome: io::Result<()>) {
    let errno = match outcome {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    };
    process::write_to(socket.as_raw_fd(), &errno.to_ne_bytes());
}

fn hear(socket: &OwnedFd) -> io::Result<()> {
    let mut errno = [0; 4];
    let length = loop {
        match nix::unistd::read(socket, &mut errno) {
            Err(nix::Error::EINTR) => {}
            other => break other?,
        }
    };
    match (length, i32::from_ne_bytes(errno)) {
        (4, 0) => Ok(()),
        (4, errno) => Err(io::Error::from_raw_os_error(errno)),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn reap(pid: i32) {
    while waitpid(Pid::from_raw(pid), None) == Err(nix::Error::EINTR) {}
}
