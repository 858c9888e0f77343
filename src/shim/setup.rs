//! The setup of a shim process. Cgroup first (it opens a kernel grace period that later cgroup writes share), then
//! session, namespaces, sysctls; the socket last: a client that can connect finds a finished shim.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;

use super::ShimError;
use super::protocol::ShimConfig;
use super::user_namespace::Users;
use super::warn;
use crate::sys::cgroup::{self, Hierarchy};
use crate::sys::file;
use crate::sys::{allocator, mount, process, root_mount, signals};

/// The shim's `oom_score_adj`: the last to be killed, like the kubelet's sandbox.
const OOM_SCORE_ADJ: &str = "-998";

/// The path of the socket below the run folder, until it is renamed.
const SOCKET: &str = "shim.sock";

pub(super) fn read_config(path: &Path) -> Result<ShimConfig, ShimError> {
    let text = file::read_record(path).map_err(ShimError::path("read", path))?;
    serde_json::from_slice(&text).map_err(|source| ShimError::Json {
        path: path.to_owned(),
        source,
    })
}

/// Everything except signals and socket. Returns the cgroup hierarchies, and the pod's user namespace if it has one.
pub(super) fn enter(config: &ShimConfig) -> Result<(Vec<Hierarchy>, Option<Users>), ShimError> {
    let hierarchies =
        cgroup::hierarchies().map_err(ShimError::system("list cgroup hierarchies"))?;
    let group = format!("{}/shim", config.cgroup);
    let joined = cgroup::join(&hierarchies, &group, None)
        .map_err(ShimError::path("join cgroup", Path::new(&group)))?;
    if joined == 0 {
        return Err(ShimError::NoCgroup(group));
    }
    allocator::tune();
    // Containers inherit it, whatever umask the agent had.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    process::set_name(c"coracle-shim");
    // Inherited by a process forked to enter a container: no process in there may inspect its descriptors before it
    // has become the requested program.
    process::set_dumpable(false)
        .map_err(ShimError::system("forbid inspection by other processes"))?;
    fill_standard_fds()?;
    // Fails only if the agent already made this process a session leader.
    let _ = nix::unistd::setsid();
    process::become_subreaper().map_err(ShimError::system("become a child subreaper"))?;
    leave_keyring();
    clean_environment();
    std::env::set_current_dir("/").map_err(ShimError::path("enter", Path::new("/")))?;
    let users = enter_namespaces(config)?;
    restore_oom_score();
    Ok((hierarchies, users))
}

/// The pod's processes share a keyring of their own, not that of the agent or a login.
fn leave_keyring() {
    match process::join_new_keyring() {
        Ok(()) => {}
        // A kernel without keys, or a sandbox without them.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {}
        Err(error) => warn(format_args!(
            "could not make a session keyring: {error}, ignoring"
        )),
    }
}

/// libcontainer would pass LISTEN_FDS descriptors on to containers, and refuses to work without PATH.
fn clean_environment() {
    process::clear_env();
    process::set_env(
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    );
}

/// Descriptors 0, 1, 2 must be open, or the next one opened becomes a program's standard input.
fn fill_standard_fds() -> Result<(), ShimError> {
    loop {
        let path = Path::new("/dev/null");
        let null: OwnedFd = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(ShimError::path("open", path))?
            .into();
        use std::os::fd::{AsRawFd, IntoRawFd};
        if null.as_raw_fd() > 2 {
            return Ok(());
        }
        let _ = null.into_raw_fd();
    }
}

fn enter_namespaces(config: &ShimConfig) -> Result<Option<Users>, ShimError> {
    let system = |what| move |errno: nix::Error| ShimError::system(what)(errno.into());
    let mut users = None;
    if let Some(path) = &config.network {
        let netns = fs::File::open(path).map_err(ShimError::path("open", path))?;
        users = config
            .users
            .map(|range| Users::of(&netns, range))
            .transpose()?;
        setns(netns, CloneFlags::CLONE_NEWNET).map_err(system("join the network namespace"))?;
    }
    // Mount propagation stays as it is: what is mounted into hostPath volumes must reach the containers.
    unshare(CloneFlags::CLONE_NEWNS).map_err(system("make a mount namespace"))?;
    root_mount::lift().map_err(ShimError::system("move the root off the initramfs"))?;
    let pins = &config.netns_dir;
    mount::let_go(pins).map_err(ShimError::path("let go of the mounts at", pins))?;
    let kinds = [
        ("ipc", CloneFlags::CLONE_NEWIPC, config.new_ipc),
        ("uts", CloneFlags::CLONE_NEWUTS, config.hostname.is_some()),
    ];
    let kinds = kinds.into_iter().filter(|(.., wanted)| *wanted);
    let kinds: Vec<_> = kinds.map(|(name, kind, _)| (name, kind)).collect();
    match &users {
        Some(users) => users.join_new(&kinds),
        None => unshare(kinds.iter().map(|(_, kind)| *kind).collect()).map_err(Into::into),
    }
    .map_err(ShimError::system("make the IPC and UTS namespaces"))?;
    if let Some(hostname) = &config.hostname {
        nix::unistd::sethostname(hostname).map_err(system("set the hostname"))?;
    }
    // Pods with the node's IPC use the node's shared memory, but a small system may have none.
    if config.new_ipc || !Path::new("/dev/shm").is_dir() {
        mount_shm(&config.run_dir.join("shm"), users.as_ref())?;
    }
    for (name, value) in &config.sysctls {
        let path = sysctl_path(name);
        set_sysctl(&path, value, users.as_ref()).map_err(ShimError::path("write sysctl", &path))?;
    }
    Ok(users)
}

/// Sets a sysctl of the pod's namespaces. Some can only be set by the root of the user namespace that these belong to.
fn set_sysctl(path: &Path, value: &str, users: Option<&Users>) -> io::Result<()> {
    match (fs::write(path, value), users) {
        (Err(error), Some(users)) if error.kind() == io::ErrorKind::PermissionDenied => {
            users.inside(|| fs::write(path, value))
        }
        (done, _) => done,
    }
}

/// The shared memory of the pod's containers: it belongs to the IPC namespace, and ends with the shim.
fn mount_shm(path: &Path, users: Option<&Users>) -> Result<(), ShimError> {
    use nix::mount::{MsFlags, mount};
    match fs::create_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(ShimError::path("make", path)(error));
        }
        _ => {}
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let root = users.map_or(0, Users::root);
    let options = format!("mode=1777,size=65536k,uid={root},gid={root}");
    mount(
        Some("shm"),
        path,
        Some("tmpfs"),
        flags,
        Some(options.as_str()),
    )
    .map_err(|errno| ShimError::path("mount a tmpfs at", path)(errno.into()))
}

/// Closes standard output: it notifies the agent that the shim accepts connections.
pub(super) fn announce() -> Result<(), ShimError> {
    let path = Path::new("/dev/null");
    let null = fs::File::options()
        .write(true)
        .open(path)
        .map_err(ShimError::path("open", path))?;
    nix::unistd::dup2_stdout(&null)
        .map_err(|errno| ShimError::system("close standard output")(errno.into()))
}

/// `net.ipv4.ip_forward` → `/proc/sys/net/ipv4/ip_forward`. The first of `.` and `/` in a name is the separator;
/// the other one stands for itself or, between dots, for a dot: `net/ipv4/conf/eth0.1/mtu` is
/// `net.ipv4.conf.eth0/1.mtu`.
fn sysctl_path(name: &str) -> PathBuf {
    let by_slash = name
        .find(['.', '/'])
        .is_some_and(|at| name[at..].starts_with('/'));
    let swap = |letter| match letter {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    let path: String = if by_slash {
        name.to_owned()
    } else {
        name.chars().map(swap).collect()
    };
    Path::new("/proc/sys").join(path.trim_start_matches('/'))
}

/// Sets the shim's own `oom_score_adj`; without CAP_SYS_RESOURCE it stays as it is.
pub(super) fn restore_oom_score() {
    match fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
        Err(error) => warn(format_args!(
            "could not set own oom_score_adj: {error}, ignoring"
        )),
    }
}

pub(super) fn watch_signals() -> Result<SignalFd, ShimError> {
    signals::watch(&[
        Signal::SIGCHLD,
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGTERM,
    ])
    .map_err(ShimError::system("watch signals"))
}

/// Binds the socket under a temporary name and renames it into place: it exists only when it answers. Bound by
/// relative name, because socket addresses are at most 107 bytes.
pub(super) fn listen(run_dir: &Path) -> Result<UnixListener, ShimError> {
    std::env::set_current_dir(run_dir).map_err(ShimError::path("enter", run_dir))?;
    let result = listen_here(run_dir);
    std::env::set_current_dir("/").map_err(ShimError::path("enter", Path::new("/")))?;
    result
}

fn listen_here(run_dir: &Path) -> Result<UnixListener, ShimError> {
    let path = run_dir.join(SOCKET);
    let temporary = Path::new("shim.sock.tmp");
    let _ = fs::remove_file(temporary);
    let listener = UnixListener::bind(temporary).map_err(ShimError::path("bind", &path))?;
    listener
        .set_nonblocking(true)
        .map_err(ShimError::path("set up", &path))?;
    fs::set_permissions(temporary, fs::Permissions::from_mode(0o600))
        .map_err(ShimError::path("restrict", &path))?;
    fs::rename(temporary, &path).map_err(ShimError::path("rename into place", &path))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysctls_may_be_written_with_dots_or_slashes() {
        for name in ["net.ipv4.conf.eth0/1.mtu", "net/ipv4/conf/eth0.1/mtu"] {
            let path = Path::new("/proc/sys/net/ipv4/conf/eth0.1/mtu");
            assert_eq!(sysctl_path(name), path);
        }
    }
}
