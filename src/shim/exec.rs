//! The start of a program in a running container. It does not use libcontainer's tenant builder, which applies no
//! seccomp filter, runs as root and leaks.
//!
//! The shim forks a **courier**, which joins the container's cgroup and namespaces and forks a sibling of itself (so a
//! child of the shim) in the container's pid namespace: the **program**. It takes on the identity of the bundle's
//! `config.json` in the order libcontainer does, and execs; or it copies files ([`copy`]) and ends.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libcontainer::oci_spec::runtime::{Process, Spec};
use libcontainer::seccomp::initialize_seccomp;
use libcontainer::syscall::Syscall;
use libcontainer::syscall::syscall::create_syscall;
use libcontainer::{apparmor, capabilities};
use nix::sched::{CloneFlags, setns};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::container::Container;
use super::executor::{self, DEFAULT_PATH};
use super::filter::Filter;
use super::protocol::{Copy, ExecRequest};
use super::status::{Status, report};
use super::{ShimError, copy};
use crate::chain;
use crate::sys::cgroup::{self, Hierarchy};
use crate::sys::file;
use crate::sys::openat::{self, Found};
use crate::sys::process::{self, Fork};
use crate::sys::{capability, fdpass, pty, signals, user_namespace};
use crate::types::Gather;

/// A program that has not begun by then never will: its container's cgroup is frozen, or a disk hangs.
const PATIENCE_MS: u64 = 10_000;

/// Longest passwd file that is read.
const PASSWD_BYTES: u64 = 1 << 20;

/// A running program.
#[derive(Debug)]
pub(super) struct Started {
    /// Its pid, also that of its session.
    pub(super) pid: i32,
    /// The master of its terminal.
    pub(super) terminal: Option<OwnedFd>,
}

/// Starts a program; returns when it runs or cannot. `stdio` is standard input, output and error without a
/// terminal.
pub(super) fn start(
    container: &Container,
    hierarchies: &[Hierarchy],
    request: &ExecRequest,
    stdio: &[OwnedFd],
) -> Result<Started, ShimError> {
    if !request.tty && stdio.len() != 3 {
        return Err(ShimError::Request(format!(
            "exec needs three open files, {} came",
            stdio.len()
        )));
    }
    let status = Status::open()?;
    let number = status.number();
    let (near, far) = fdpass::pair().map_err(ShimError::system("make a socket pair"))?;
    let job = Job {
        container,
        hierarchies,
        request,
        stdio,
        status: number,
        terminal: far,
    };
    match process::fork().map_err(ShimError::system("fork"))? {
        Fork::Child => {
            let failure = job.courier();
            report(number, 'F', &failure);
            process::exit_now(1);
        }
        Fork::Parent(courier) => {
            drop(job);
            let said = status.read_within(PATIENCE_MS);
            if said.late {
                return Err(give_up(courier, said.pid));
            }
            while waitpid(Pid::from_raw(courier), None) == Err(nix::Error::EINTR) {}
            let failed = said
                .run
                .map(ShimError::Run)
                .or(said.fatal.map(ShimError::Create));
            match (said.pid, failed) {
                (Some(pid), None) => Ok(Started {
                    pid,
                    terminal: receive_terminal(near.as_fd(), request.tty)?,
                }),
                (pid, failed) => {
                    if let Some(pid) = pid {
                        let _ = process::kill(pid, libc::SIGKILL);
                        while waitpid(Pid::from_raw(pid), None) == Err(nix::Error::EINTR) {}
                    }
                    Err(failed.unwrap_or_else(|| {
                        ShimError::Create("the container ended meanwhile".to_owned())
                    }))
                }
            }
        }
    }
}

/// Kills courier and program without waiting for them: a frozen process dies when it thaws, and is reaped like all
/// others.
fn give_up(courier: i32, program: Option<i32>) -> ShimError {
    for pid in program.into_iter().chain([courier]) {
        let _ = process::kill(pid, libc::SIGKILL);
    }
    ShimError::Create(format!(
        "the program did not begin within {} s: is the container frozen?",
        PATIENCE_MS / 1000
    ))
}

fn receive_terminal(socket: BorrowedFd<'_>, tty: bool) -> Result<Option<OwnedFd>, ShimError> {
    if !tty {
        return Ok(None);
    }
    let mut fds = Vec::new();
    fdpass::receive(socket, &mut [0; 16], &mut fds)
        .map_err(ShimError::system("receive the program's terminal"))?;
    Ok(fds.pop())
}

/// The data of a courier and its program; used in forked children only.
struct Job<'a> {
    container: &'a Container,
    hierarchies: &'a [Hierarchy],
    request: &'a ExecRequest,
    stdio: &'a [OwnedFd],
    status: i32,
    terminal: OwnedFd,
}

impl Job<'_> {
    /// Forks the program in the container; in the program, becomes it. Returns only errors.
    fn courier(&self) -> String {
        let fork = self.read_spec().and_then(|spec| {
            let filter = self.read_filter()?;
            if self.request.copy.is_some() {
                // It never becomes another program, and the shim's memory is no business of the container.
                process::set_dumpable(false).map_err(failed("hide from the container"))?;
            }
            self.enter()?;
            self.close_the_rest();
            let fork = process::fork_sibling().map_err(failed("fork"))?;
            Ok((fork, (spec, filter)))
        });
        match fork {
            Ok((Fork::Parent(pid), _)) => {
                report(self.status, 'P', &pid.to_string());
                process::exit_now(0);
            }
            Ok((Fork::Child, (spec, filter))) => {
                let done = self.program(&spec, filter.as_ref());
                done.err().unwrap_or_default()
            }
            Err(message) => message,
        }
    }

    /// Closes every descriptor that the program does not need: a process in the container with CAP_SYS_PTRACE could
    /// take it.
    fn close_the_rest(&self) {
        let mut keep = vec![0, 1, 2, self.status, self.terminal.as_raw_fd()];
        keep.extend(self.stdio.iter().map(AsRawFd::as_raw_fd));
        process::close_except(&mut keep);
    }

    fn read_spec(&self) -> Result<Spec, String> {
        let path = self.container.request.bundle.join("config.json");
        Spec::load(&path).map_err(|error| format!("{}: {}", path.display(), chain(&error)))
    }

    fn read_filter(&self) -> Result<Option<Filter>, String> {
        let read = |lent: &Vec<u32>| Filter::read(&self.container.request.bundle, lent.clone());
        let filter = self.container.lent.as_ref().map(read).transpose();
        filter.map_err(|error| chain(&error))
    }

    /// Joins cgroup and namespaces of the container. The pid namespace takes effect only in children.
    fn enter(&self) -> Result<(), String> {
        let score = self.container.request.oom_score_adj.to_string();
        // Without the right to lower it, the shim's value stays.
        let _ = std::fs::write("/proc/self/oom_score_adj", score);
        let joined: Vec<Hierarchy> = self
            .hierarchies
            .iter()
            .filter(|h| !h.bare)
            .cloned()
            .collect();
        let pid = self.container.record.pid;
        cgroup::join(&joined, &self.container.group, Some(pid))
            .map_err(failed("join the container's cgroup"))?;
        let kinds = [
            ("user", CloneFlags::CLONE_NEWUSER),
            ("ipc", CloneFlags::CLONE_NEWIPC),
            ("uts", CloneFlags::CLONE_NEWUTS),
            ("net", CloneFlags::CLONE_NEWNET),
            ("pid", CloneFlags::CLONE_NEWPID),
            ("cgroup", CloneFlags::CLONE_NEWCGROUP),
            ("mnt", CloneFlags::CLONE_NEWNS),
        ];
        // All are opened first: after the last one, /proc is the container's.
        let mut files = Vec::new();
        for (name, flag) in kinds {
            let theirs = PathBuf::from(format!("/proc/{pid}/ns/{name}"));
            let own = PathBuf::from(format!("/proc/self/ns/{name}"));
            // A kernel may lack all but mount namespaces.
            if flag != CloneFlags::CLONE_NEWNS && !own.exists() {
                continue;
            }
            if let Some(file) = foreign(&theirs, &own)? {
                files.push((name, flag, file));
            }
        }
        for (name, flag, file) in files {
            let joined = match flag {
                // As its root: without its rights the other namespaces cannot be joined.
                CloneFlags::CLONE_NEWUSER => user_namespace::enter(file.as_fd()),
                _ => setns(file, flag).map_err(io::Error::from),
            };
            joined.map_err(|error| {
                format!("could not join the container's {name} namespace: {error}")
            })?;
        }
        Ok(())
    }

    /// Takes on the container's identity and becomes the program, in the order of libcontainer's first process.
    fn program(&self, spec: &Spec, filter: Option<&Filter>) -> Result<(), String> {
        let process = spec.process().as_ref().ok_or("the bundle has no process")?;
        nix::unistd::setsid().map_err(failed_nix("make a session"))?;
        signals::reset();
        self.standard_streams(process.user().uid())?;
        set_limits(process)?;
        if process.no_new_privileges() == Some(true) {
            process::set_no_new_privileges().map_err(failed("set no_new_privs"))?;
        }
        if let Some(mask) = process.user().umask() {
            nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(mask));
        }
        nix::unistd::chdir(process.cwd()).map_err(failed_nix("enter the working directory"))?;
        // Only the exec changes the profile, so everything until then may still be done.
        if let Some(profile) = process.apparmor_profile()
            && self.request.copy.is_none()
        {
            apparmor::apply_profile(profile).map_err(|error| chain(&error))?;
        }
        let syscall = create_syscall();
        set_identity(process, syscall.as_ref())?;
        process::cloexec_rest();
        let seccomp = spec
            .linux()
            .as_ref()
            .and_then(|linux| linux.seccomp().as_ref());
        let load = || -> Result<(), String> {
            if let Some(filter) = seccomp {
                initialize_seccomp(filter).map_err(|error| chain(&error))?;
            }
            Ok(())
        };
        let early = process.no_new_privileges().is_none();
        if early {
            load()?;
        }
        capabilities::reset_effective(syscall.as_ref()).map_err(|error| chain(&error))?;
        if let Some(wanted) = process.capabilities() {
            capabilities::drop_privileges(wanted, syscall.as_ref())
                .map_err(|error| chain(&error))?;
        }
        if let Some(files) = &self.request.copy {
            if !early {
                load()?;
            }
            return self.copy(files, process.apparmor_profile().as_deref(), filter);
        }
        let env = self.environment(process);
        let path = env
            .get("PATH")
            .map_or(DEFAULT_PATH, String::as_str)
            .to_owned();
        let env: Vec<CString> = env
            .iter()
            .map(|(name, value)| process::c_string(format!("{name}={value}")))
            .collect();
        if !early {
            load()?;
        }
        let message = executor::run(&self.request.argv, &path, &env, filter);
        report(self.status, 'R', &message);
        process::exit_now(127);
    }

    /// Copies files with the container's identity, which is complete but for what an exec would have added.
    fn copy(
        &self,
        files: &Copy,
        profile: Option<&str>,
        filter: Option<&Filter>,
    ) -> Result<(), String> {
        if let Some(profile) = profile.filter(|profile| !profile.is_empty()) {
            copy::confine(profile).map_err(failed("change to the AppArmor profile"))?;
        }
        if let Some(filter) = filter {
            filter.enter().map_err(failed("load the seccomp filter"))?;
        }
        if !nix::unistd::geteuid().is_root() {
            // The exec of a program takes them from everyone but root.
            capability::keep_only(&[]).map_err(failed("give up capabilities"))?;
        }
        // Its end means that the program runs.
        process::close_leaked(self.status);
        process::exit_now(copy::run(files, self.stdio));
    }

    fn standard_streams(&self, uid: u32) -> Result<(), String> {
        if self.request.tty {
            return self.take_terminal(uid).map_err(failed("make a terminal"));
        }
        for (number, fd) in (0..).zip(self.stdio) {
            process::place_fd(fd.as_fd(), number).map_err(failed("set up standard streams"))?;
        }
        Ok(())
    }

    fn take_terminal(&self, uid: u32) -> io::Result<()> {
        let (master, slave) = pty::open()?;
        if let Some((columns, rows)) = self.request.size {
            pty::set_size(master.as_fd(), columns, rows)?;
        }
        std::os::unix::fs::fchown(&slave, Some(uid), None)?;
        fdpass::send(self.terminal.as_fd(), b"t", &[master.as_fd()])?;
        for number in 0..3 {
            process::place_fd(slave.as_fd(), number)?;
        }
        pty::control(slave.as_fd())
    }

    fn environment(&self, process: &Process) -> BTreeMap<String, String> {
        let own = process.env().clone().unwrap_or_default();
        let mut env: BTreeMap<String, String> = own
            .iter()
            .chain(&self.request.env)
            .filter_map(|entry| entry.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .gather();
        if !env.contains_key("HOME") {
            let home = home_of(process.user().uid()).unwrap_or_else(|| "/".to_owned());
            env.insert("HOME".to_owned(), home);
        }
        if self.request.tty && !env.contains_key("TERM") {
            env.insert("TERM".to_owned(), "xterm".to_owned());
        }
        env
    }
}

/// Opens a namespace file unless the caller is in that namespace already.
fn foreign(theirs: &Path, own: &Path) -> Result<Option<File>, String> {
    let of = |path: &Path| -> Result<(u64, u64), String> {
        let found = std::fs::metadata(path)
            .map_err(|error| format!("could not look at `{}`: {error}", path.display()))?;
        Ok((found.dev(), found.ino()))
    };
    if of(theirs)? == of(own)? {
        return Ok(None);
    }
    File::open(theirs)
        .map(Some)
        .map_err(|error| format!("could not open `{}`: {error}", theirs.display()))
}

fn set_limits(process: &Process) -> Result<(), String> {
    for limit in process.rlimits().iter().flatten() {
        // The discriminants are the kernel's numbers only on most architectures, so this goes by name.
        let name = format!("{:?}", limit.typ());
        let number = match name.as_str() {
            "RlimitCpu" => libc::RLIMIT_CPU,
            "RlimitFsize" => libc::RLIMIT_FSIZE,
            "RlimitData" => libc::RLIMIT_DATA,
            "RlimitStack" => libc::RLIMIT_STACK,
            "RlimitCore" => libc::RLIMIT_CORE,
            "RlimitRss" => libc::RLIMIT_RSS,
            "RlimitNproc" => libc::RLIMIT_NPROC,
            "RlimitNofile" => libc::RLIMIT_NOFILE,
            "RlimitMemlock" => libc::RLIMIT_MEMLOCK,
            "RlimitAs" => libc::RLIMIT_AS,
            "RlimitLocks" => libc::RLIMIT_LOCKS,
            "RlimitSigpending" => libc::RLIMIT_SIGPENDING,
            "RlimitMsgqueue" => libc::RLIMIT_MSGQUEUE,
            "RlimitNice" => libc::RLIMIT_NICE,
            "RlimitRtprio" => libc::RLIMIT_RTPRIO,
            "RlimitRttime" => libc::RLIMIT_RTTIME,
            _ => return Err(format!("unknown resource limit {name}")),
        };
        process::set_rlimit(number, limit.soft(), limit.hard())
            .map_err(|error| format!("could not set {name}: {error}"))?;
    }
    Ok(())
}

fn set_identity(process: &Process, syscall: &dyn Syscall) -> Result<(), String> {
    let user = process.user();
    let groups: Vec<nix::unistd::Gid> = user
        .additional_gids()
        .iter()
        .flatten()
        .map(|gid| nix::unistd::Gid::from_raw(*gid))
        .collect();
    nix::unistd::setgroups(&groups).map_err(failed_nix("set supplementary groups"))?;
    syscall
        .set_id(user.uid().into(), user.gid().into())
        .map_err(|error| format!("could not set user and group: {}", chain(&error)))
}

/// The home folder of a user by the container's own `/etc/passwd`.
fn home_of(uid: u32) -> Option<String> {
    // The container's file: it may be a pipe, a device, or without end.
    let root = File::open("/").ok()?;
    let Found::Regular(file) = openat::read_regular_in_root(root, Path::new("etc/passwd")).ok()?
    else {
        return None;
    };
    let text = file::read_start(file, PASSWD_BYTES).ok()?;
    let wanted = uid.to_string();
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.nth(2)? == wanted).then(|| fields.nth(2).unwrap_or("/").to_owned())
    })
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> String {
    move |error| format!("could not {what}: {error}")
}

fn failed_nix(what: &'static str) -> impl Fn(nix::Error) -> String {
    move |errno| format!("could not {what}: {}", errno.desc())
}
