//! A container's standard streams: pipes to the log, or a terminal whose master comes over a socket.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::ShimError;
use super::bundle::User;
use super::protocol::StartRequest;
use crate::sys::{fdpass, pty};

/// The shim's ends: standard output or the terminal, standard error, standard input.
type Kept = (OwnedFd, Option<OwnedFd>, Option<OwnedFd>);

/// The two sides of a container's standard streams.
pub(super) struct Streams {
    console: Option<Console>,
    /// The container's ends: in, out, err.
    pub(super) inner: Option<[OwnedFd; 3]>,
    /// The shim's ends: out, err, in.
    outer: Option<(OwnedFd, OwnedFd, Option<OwnedFd>)>,
}

struct Console {
    listener: UnixListener,
    path: PathBuf,
    /// The owner of the terminal.
    uid: u32,
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Streams {
    /// `user` is the container's user as an id of the node.
    pub(super) fn open(
        request: &StartRequest,
        user: User,
        run_dir: &Path,
    ) -> Result<Self, ShimError> {
        if request.tty {
            return Ok(Self {
                console: Some(Console::listen(run_dir, &request.container, user.uid)?),
                inner: None,
                outer: None,
            });
        }
        let (out_read, out_write) = pipe()?;
        let (err_read, err_write) = pipe()?;
        let (stdin, kept) = if request.stdin {
            let (read, write) = pipe()?;
            (read, Some(write))
        } else {
            let null = Path::new("/dev/null");
            let file = fs::File::open(null).map_err(ShimError::path("open", null))?;
            (file.into(), None)
        };
        for reader in [&out_read, &err_read] {
            fdpass::set_nonblocking(reader).map_err(ShimError::system("set up a log pipe"))?;
        }
        // Programs open /dev/stdout and /dev/stderr by name, as their own user.
        for writer in [&out_write, &err_write] {
            std::os::unix::fs::fchown(writer, Some(user.uid), Some(user.gid))
                .map_err(ShimError::system("give a log pipe to the container's user"))?;
        }
        Ok(Self {
            console: None,
            inner: Some([stdin, out_write, err_write]),
            outer: Some((out_read, err_read, kept)),
        })
    }

    /// The socket to which the container sends its terminal.
    pub(super) fn console_path(&self) -> Option<PathBuf> {
        self.console.as_ref().map(|console| console.path.clone())
    }

    /// The shim's ends: stdout or the terminal, stderr, stdin.
    pub(super) fn outer(self) -> Result<Kept, ShimError> {
        if let Some((stdout, stderr, stdin)) = self.outer {
            return Ok((stdout, Some(stderr), stdin));
        }
        let missing = || ShimError::Create("no terminal came from the container".to_owned());
        let console = self.console.as_ref().ok_or_else(missing)?;
        let master = console.receive()?.ok_or_else(missing)?;
        Ok((master, None, None))
    }
}

impl Console {
    fn listen(run_dir: &Path, container: &str, uid: u32) -> Result<Self, ShimError> {
        let name = format!("{container}.tty");
        let path = run_dir.join(&name);
        let _ = fs::remove_file(&path);
        // By relative name: socket addresses are at most 107 bytes.
        std::env::set_current_dir(run_dir).map_err(ShimError::path("enter", run_dir))?;
        let listener = UnixListener::bind(&name);
        let root = Path::new("/");
        std::env::set_current_dir(root).map_err(ShimError::path("enter", root))?;
        let listener = listener.map_err(ShimError::path("bind", &path))?;
        Ok(Self {
            listener,
            path,
            uid,
        })
    }

    /// The terminal's master, which the container's first process sent while it was created.
    fn receive(&self) -> Result<Option<OwnedFd>, ShimError> {
        let failed = || ShimError::system("receive the container's terminal");
        let (socket, _) = self.listener.accept().map_err(failed())?;
        let mut fds = Vec::new();
        fdpass::receive(socket.as_fd(), &mut [0; 4096], &mut fds).map_err(failed())?;
        let master = fds.pop();
        if let Some(master) = &master {
            fdpass::set_nonblocking(master).map_err(failed())?;
            // Programs open /dev/stdout and /dev/tty by name, as their own user.
            pty::slave(master.as_fd())
                .and_then(|slave| std::os::unix::fs::fchown(slave, Some(self.uid), None))
                .map_err(ShimError::system(
                    "give the terminal to the container's user",
                ))?;
        }
        Ok(master)
    }
}

pub(super) fn pipe() -> Result<(OwnedFd, OwnedFd), ShimError> {
    nix::unistd::pipe2(OFlag::O_CLOEXEC)
        .map_err(|errno| ShimError::system("open a pipe")(errno.into()))
}
