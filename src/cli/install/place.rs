//! Installation of files below a root directory: atomic, and only if the content or mode differs. The root may be that
//! of another system, whose absolute symlinks (`/var/lib -> /data/lib`) are meant to begin there.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::super::error::{CliError, Result};
use super::super::put;
use crate::sys::beneath;
use crate::sys::file::{self, Durability};

/// What was done to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// The file was up to date.
    None,
    /// The file was new.
    Created,
    /// The file had another content or mode.
    Replaced,
}

/// The file system to install into.
#[derive(Debug)]
pub(super) struct Place {
    /// The root directory of another system; `None` for this one.
    root: Option<PathBuf>,
}

impl Place {
    pub(super) fn new(root: Option<&Path>) -> Self {
        Self {
            root: root.map(Path::to_owned),
        }
    }

    /// Maps a path of the installed system to its current path, without symlinks: those of another system would lead
    /// to files of this one.
    pub(super) fn target(&self, path: &Path) -> Result<PathBuf> {
        let Some(root) = &self.root else {
            return Ok(Path::new("/").join(path));
        };
        let inside = beneath::canonical_in(root, path).map_err(|e| failed("find", path, &e))?;
        Ok(root.join(inside.strip_prefix("/").unwrap_or(&inside)))
    }

    /// The same for what is replaced if it is a symlink.
    pub(super) fn entry(&self, path: &Path) -> Result<PathBuf> {
        let parent = self.target(path.parent().unwrap_or(Path::new("")))?;
        Ok(parent.join(path.file_name().unwrap_or_default()))
    }

    /// Makes a directory and its parents.
    pub(super) fn folder(&self, path: &Path, mode: u32) -> Result<()> {
        let path = self.target(path)?;
        if path.is_dir() {
            return Ok(());
        }
        let parent = path.parent().unwrap_or(Path::new("/"));
        file::make_dirs(parent, 0o755)
            .and_then(|()| file::make_dirs(&path, mode))
            .map_err(|e| failed("make", &path, &e))?;
        put(format!("created    {}\n", path.display()).as_bytes())
    }

    /// Writes a file unless it is up to date, and prints what was done.
    pub(super) fn file(&self, path: &Path, content: &[u8], mode: u32) -> Result<Change> {
        let path = self.entry(path)?;
        let change = match present(&path) {
            Ok(Some(old)) if old == content && has_mode(&path, mode) => Change::None,
            Ok(_) => Change::Replaced,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Change::Created,
            Err(error) => return Err(failed("read", &path, &error)),
        };
        if change != Change::None {
            write(&path, content, mode)?;
        }
        let word = match change {
            Change::None => "unchanged",
            Change::Created => "created",
            Change::Replaced => "replaced",
        };
        put(format!("{word:<9}  {}\n", path.display()).as_bytes())?;
        Ok(change)
    }

    /// Writes a file only if there is none, and prints what was done.
    pub(super) fn keep_file(&self, path: &Path, content: &[u8], mode: u32) -> Result<()> {
        let there = self.entry(path)?;
        if fs::symlink_metadata(&there).is_ok() {
            return put(format!("kept       {}\n", there.display()).as_bytes());
        }
        self.file(path, content, mode).map(|_| ())
    }
}

/// The content of a file; `None` for a symlink, which is not followed.
fn present(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::symlink_metadata(path)?.is_symlink() {
        true => Ok(None),
        false => fs::read(path).map(Some),
    }
}

fn has_mode(path: &Path, mode: u32) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o7777 == mode)
}

fn write(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    file::make_dirs(parent, 0o755)
        .and_then(|()| file::replace(path, content, mode, Durability::PowerCut))
        // The umask may have removed some bits.
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .map_err(|e| failed("write", path, &e))
}

fn failed(action: &str, path: &Path, error: &io::Error) -> CliError {
    let failed = CliError::new(format!("could not {action} `{}`", path.display())).because(error);
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => failed.hint(
            "install into the image where it is built (`coracle install --root IMAGE --prefix /usr`), or start \
             `coracle run` with folders that can be written; `coracle help appliances`",
        ),
        _ => failed,
    }
}
