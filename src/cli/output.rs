//! Where a command writes what it makes: a file that is replaced as a whole, or a device, a pipe or the standard output,
//! which are written as it comes.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;

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
        let Place { path, through } = place(path);
        if through {
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

/// Whether the path names something that is not replaced as a whole: a device, a pipe, the standard output.
pub(super) fn is_written_through(path: &Path) -> bool {
    path == Path::new("-") || place(path).through
}

/// Where a path leads.
struct Place {
    path: PathBuf,
    /// It is a device, a pipe or a folder.
    through: bool,
}

/// Follows symlinks, and writes into devices and pipes. Links and pipes of other users are replaced instead: in a folder
/// that everyone may write to they can be a trap.
fn place(path: &Path) -> Place {
    let replaced = || Place {
        path: path.to_owned(),
        through: false,
    };
    let own = |found: &Metadata| [0, geteuid().as_raw()].contains(&found.uid());
    let link = fs::symlink_metadata(path);
    let (Ok(link), Ok(found)) = (link, fs::metadata(path)) else {
        return replaced();
    };
    let kind = found.file_type();
    if link.is_symlink() && !own(&link) || kind.is_fifo() && !own(&found) || kind.is_socket() {
        return replaced();
    }
    let whole = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match found.is_file() {
        true => Place {
            path: whole,
            through: false,
        },
        // The target of a link in /proc/self/fd may have no name.
        false => Place {
            path: path.to_owned(),
            through: true,
        },
    }
}

/// Removes the file and ends when the command is interrupted.
fn remove_if_interrupted(file: PathBuf) -> io::Result<()> {
    let ends = signals::heeded(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    let ends = signals::watch(&ends)?;
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

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::{Gid, Uid, chown, mkfifo};

    use super::*;

    #[test]
    fn links_and_pipes_of_others_are_replaced() {
        let folder = std::env::temp_dir().join(format!("coracle-output-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let [file, link, pipe] = ["file", "link", "pipe"].map(|name| folder.join(name));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let lead = |path: &Path| {
            let place = place(path);
            (place.path, place.through)
        };
        assert_eq!(lead(&link), (fs::canonicalize(&file).unwrap(), false));
        assert_eq!(lead(&pipe), (pipe.clone(), true));
        assert_eq!(lead(Path::new("/dev/null")), ("/dev/null".into(), true));
        assert_eq!(lead(&folder.join("new")), (folder.join("new"), false));
        let stranger = Some(Uid::from_raw(12345));
        chown(&pipe, stranger, None::<Gid>).unwrap();
        std::os::unix::fs::lchown(&link, Some(12345), None).unwrap();
        assert_eq!(lead(&link), (link.clone(), false));
        assert_eq!(lead(&pipe), (pipe.clone(), false));
        fs::remove_dir_all(folder).unwrap();
    }
}
