//! Where a command writes what it makes: a file that is replaced as a whole, or a device, a pipe or the standard output,
//! which are written as it comes.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use crate::sys::signals;

/// A file that appears when it is complete.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) file: File,
    /// Where it is until then; `None` for devices, pipes and the standard output.
    temporary: Option<PathBuf>,
    path: PathBuf,
}

impl Target {
    /// Opens what the path names, `-` for the standard output. A new file has this mode, but for what the umask takes away.
    pub(super) fn create(path: &Path, mode: u32) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self {
                file: io::stdout().as_fd().try_clone_to_owned()?.into(),
                temporary: None,
                path: path.to_owned(),
            });
        }
        let path = match fs::canonicalize(path) {
            // Behind a symlink, which stays.
            Ok(whole) => whole,
            Err(_) => path.to_owned(),
        };
        if is_written_through(&path) {
            return Ok(Self {
                file: OpenOptions::new().write(true).open(&path)?,
                temporary: None,
                path,
            });
        }
        let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
        let name = name.to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}.{}.part", std::process::id()));
        remove_if_interrupted(temporary.clone())?;
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&temporary)?;
        Ok(Self {
            file,
            temporary: Some(temporary),
            path,
        })
    }

    /// Whether it becomes a file.
    pub(super) fn is_file(&self) -> bool {
        self.temporary.is_some()
    }

    /// Puts the file in place once it is on disk.
    pub(super) fn finish(mut self) -> io::Result<()> {
        let Some(temporary) = &self.temporary else {
            return Ok(());
        };
        self.file.sync_all()?;
        fs::rename(temporary, &self.path)?;
        self.temporary = None;
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        File::open(folder)?.sync_all()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // What is left of it has no other use; the error that led here is reported.
            let _ = fs::remove_file(temporary);
        }
    }
}

/// Whether the path names something that cannot be replaced as a whole: a device, a pipe, the standard output.
pub(super) fn is_written_through(path: &Path) -> bool {
    path == Path::new("-") || fs::metadata(path).is_ok_and(|found| !found.is_file())
}

/// Removes the file and ends when the command is interrupted.
fn remove_if_interrupted(file: PathBuf) -> io::Result<()> {
    let ends = signals::watch(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
    let wait = move || {
        loop {
            let mut polled = [PollFd::new(ends.as_fd(), PollFlags::POLLIN)];
            if poll(&mut polled, PollTimeout::NONE).is_ok()
                && let Ok(Some(signal)) = ends.read_signal()
            {
                let _ = fs::remove_file(&file);
                let number = i32::try_from(signal.ssi_signo).unwrap_or(0);
                std::process::exit(128 + number);
            }
        }
    };
    std::thread::Builder::new().spawn(wait).map(drop)
}
