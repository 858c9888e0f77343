//! The files of an upgrade: beside the program `PROGRAM.new` and `PROGRAM.former`, in the state folder the record of
//! the trial, and how the last one ended. Every write is atomic and on disk before the next step, so that a power cut
//! leaves one of the phases, never a mixture. What was cut off before there was a record is undone ([`State::undo`]).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::Flock;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::super::error::{CliError, Result};
use crate::images::digest_of;
use crate::sys::file::{self, Durability};
use crate::types::upgrade::Expected;

/// The version of the record's format.
const FORMAT: u32 = 1;

/// The largest program.
pub(super) const MAX_PROGRAM: u64 = 128 << 20;

/// One of the two programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Program {
    pub(super) version: String,
    /// `sha256:<hex>`.
    pub(super) digest: String,
    /// The format of the state that its agent writes.
    pub(super) state_format: u32,
}

/// How far the trial is. Each phase begins with a write of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Phase {
    /// `PROGRAM.new` and `PROGRAM.former` are on disk; the program may or may not be replaced yet.
    Install,
    /// The new program is in place.
    Trial,
    /// It was judged; the former program may or may not be back yet.
    Back,
}

/// The record of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) format: u32,
    pub(super) phase: Phase,
    pub(super) program: PathBuf,
    pub(super) socket: PathBuf,
    pub(super) root: PathBuf,
    pub(super) run_dir: PathBuf,
    pub(super) former: Program,
    pub(super) new: Program,
    /// The agent stops its pods when it is asked to end, so that it has to be killed.
    pub(super) kill: bool,
    /// Microseconds since 1970, for people and to tell one trial from the next.
    pub(super) began_us: i64,
    pub(super) within_ms: u64,
    pub(super) spent_ms: u64,
    /// The boot that the numbers below are of.
    pub(super) boot_id: String,
    pub(super) boots: u32,
    /// The agent before the new one, as `Place::agent_pid` shows it.
    pub(super) old_pid: i32,
    /// The starts of the new agent, and the mark of the last one seen.
    pub(super) starts: u32,
    pub(super) last_start: u64,
    pub(super) expected: BTreeMap<String, Expected>,
    /// Why it goes back.
    pub(super) why: String,
}

impl Record {
    /// Whether the former program is there, which judges the trial.
    pub(super) fn can_be_judged(&self) -> bool {
        former_of(&self.program).exists()
    }
}

/// How a trial ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) began_us: i64,
    pub(super) confirmed: bool,
    pub(super) former: Program,
    pub(super) new: Program,
    pub(super) why: String,
    pub(super) at_us: i64,
}

/// The state folder.
#[derive(Debug, Clone)]
pub(super) struct State(pub(super) PathBuf);

impl State {
    /// The folder below the root of an agent.
    pub(super) fn below(root: &Path) -> Self {
        Self(root.join("upgrade"))
    }

    fn trial(&self) -> PathBuf {
        self.0.join("trial.json")
    }

    fn last(&self) -> PathBuf {
        self.0.join("last.json")
    }

    /// Names the program of an upgrade that has begun, until there is a record of its trial.
    fn begun(&self) -> PathBuf {
        self.0.join("begun.json")
    }

    /// If it exists, the watcher goes back.
    pub(super) fn go_back(&self) -> PathBuf {
        self.0.join("go-back")
    }

    /// Copies of the node's records, from before an agent with another format of them.
    pub(super) fn kept(&self) -> PathBuf {
        self.0.join("kept")
    }

    /// What is awaited, for people.
    pub(super) fn progress(&self) -> PathBuf {
        self.0.join("progress")
    }

    pub(super) fn make(&self) -> Result<()> {
        file::make_dirs(&self.0, 0o700).map_err(|e| failed("make", &self.0, &e))
    }

    /// The lock of the one that changes something; `None`: another process has it.
    pub(super) fn lock(&self) -> Result<Option<Flock<File>>> {
        let path = self.0.join("lock");
        file::try_lock(&path).map_err(|e| failed("lock", &path, &e))
    }

    /// The record; `None` without a trial.
    pub(super) fn record(&self) -> Result<Option<Record>> {
        let record: Option<Record> = read(&self.trial())?;
        match record {
            Some(record) if record.format > FORMAT => Err(CliError::new(format!(
                "`{}` has format {}, this program knows {FORMAT}",
                self.trial().display(),
                record.format
            ))
            .hint("a newer version of coracle wrote it")),
            record => Ok(record),
        }
    }

    pub(super) fn save(&self, record: &Record) -> Result<()> {
        write(&self.trial(), record)
    }

    /// Notes that files beside the program are about to be made.
    pub(super) fn begin(&self, program: &Path) -> Result<()> {
        write(&self.begun(), &program)
    }

    /// The trial is recorded, so that nothing is to be undone any more.
    pub(super) fn has_begun(&self, program: &Path) {
        let _ = remove(&[older_of(program)]);
        let _ = file::remove_file(&self.begun());
    }

    /// Undoes what an upgrade has begun that has no record. To be called with the lock, and without a trial.
    pub(super) fn undo(&self) -> Result<()> {
        let begun = self.begun();
        let Some(program) = read::<PathBuf>(&begun)? else {
            return Ok(());
        };
        let (older, former) = (older_of(&program), former_of(&program));
        if older.exists() {
            fs::rename(&older, &former).map_err(|e| failed("put back", &former, &e))?;
        }
        remove(&leftovers(&program)).map_err(|e| failed("tidy up beside", &program, &e))?;
        file::remove_durably(&begun).map_err(|e| failed("remove", &begun, &e))
    }

    /// The same when an agent starts, unless an upgrade is at work.
    pub(super) fn undo_if_cut_off(&self) -> Result<()> {
        if !self.begun().exists() || self.trial().exists() {
            return Ok(());
        }
        match self.lock()? {
            Some(_lock) if self.record()?.is_none() => self.undo(),
            _ => Ok(()),
        }
    }

    pub(super) fn ended(&self) -> Result<Option<Ended>> {
        read(&self.last())
    }

    /// Ends the trial: first how, then the record. What the trial needs goes last, as the next watcher takes it up again
    /// while there is a record. The next upgrade removes what a power cut leaves of that. On a full disk the record makes
    /// room for how it ended; at worst only the log says that.
    pub(super) fn end(&self, ended: &Ended) -> Result<()> {
        let written = write(&self.last(), ended);
        let path = self.trial();
        file::remove_durably(&path).map_err(|e| failed("remove", &path, &e))?;
        if written.is_err()
            && let Err(error) = write(&self.last(), ended)
        {
            eprintln!("{}: {}", ended.why, crate::chain(&error));
        }
        let _ = self.forget_trial();
        Ok(())
    }

    /// Ends a trial without a verdict.
    pub(super) fn forget(&self) -> Result<()> {
        let path = self.trial();
        file::remove_durably(&path).map_err(|e| failed("remove", &path, &e))?;
        self.forget_trial()
    }

    /// Removes what belongs to a trial beside its record.
    pub(super) fn forget_trial(&self) -> Result<()> {
        for path in [self.go_back(), self.progress()] {
            file::remove_file(&path).map_err(|e| failed("remove", &path, &e))?;
        }
        let kept = self.kept();
        match fs::remove_dir_all(&kept) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", &kept, &error))
            }
            _ => Ok(()),
        }
    }
}

impl Record {
    pub(super) fn format() -> u32 {
        FORMAT
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let bytes = match file::read_record(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", path, &error)),
    };
    let broken = |e| CliError::new(format!("`{}` is broken", path.display())).because(e);
    serde_json::from_slice(&bytes).map(Some).map_err(broken)
}

fn write<T: Serialize>(path: &Path, content: &T) -> Result<()> {
    let bytes = serde_json::to_vec(content).expect("plain data");
    file::replace(path, &bytes, 0o600, Durability::PowerCut).map_err(|e| failed("write", path, &e))
}

pub(super) fn failed(action: &str, path: &Path, error: &io::Error) -> CliError {
    CliError::new(format!("could not {action} `{}`", path.display())).because(error)
}

/// A path beside the program.
pub(in crate::cli) fn beside(program: &Path, ending: &str) -> PathBuf {
    let mut name: OsString = program.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

pub(super) fn new_of(program: &Path) -> PathBuf {
    beside(program, ".new")
}

pub(super) fn former_of(program: &Path) -> PathBuf {
    beside(program, ".former")
}

/// The former program of before, until the trial of the next one is recorded.
pub(super) fn older_of(program: &Path) -> PathBuf {
    beside(program, ".older")
}

/// What upgrades leave beside a program, but for the former one: the new one, and files that were not complete when the
/// power failed.
pub(in crate::cli) fn leftovers(program: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for path in [
        new_of(program),
        older_of(program),
        former_of(program),
        program.to_owned(),
    ] {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        all.push(path.with_file_name(format!(".{name}.tmp")));
        all.push(beside(&path, ".link"));
    }
    all.extend([new_of(program), older_of(program)]);
    all
}

/// Removes those of the files of a folder that are there, so that they stay removed after a power cut. The folder may be
/// read-only if there are none.
pub(super) fn remove(files: &[PathBuf]) -> io::Result<()> {
    let there = files.iter().filter(|path| path.symlink_metadata().is_ok());
    let mut last = None;
    for path in there {
        file::remove_file(path)?;
        last = Some(path);
    }
    last.map_or(Ok(()), |path| sync_folder(path))
}

/// A program's content.
pub(super) fn content(path: &Path) -> Result<Vec<u8>> {
    file::read_bounded(path, MAX_PROGRAM).map_err(|e| failed("read", path, &e))
}

/// The digest of a program; `None` if it cannot be read.
pub(super) fn digest(path: &Path) -> Option<String> {
    let bytes = file::read_bounded(path, MAX_PROGRAM).ok()?;
    Some(digest_of(&bytes))
}

/// Writes a program beside the installed one.
pub(super) fn put_program(path: &Path, bytes: &[u8]) -> io::Result<()> {
    file::replace(path, bytes, 0o755, Durability::PowerCut)?;
    // The umask may have removed some bits.
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    File::open(path)?.sync_all()
}

/// Makes `to` the same file as `from`, in one step; a copy where the file system has no links.
pub(super) fn same_file(from: &Path, to: &Path) -> io::Result<()> {
    let (a, b) = (fs::metadata(from)?, fs::symlink_metadata(to));
    if b.is_ok_and(|b| (a.dev(), a.ino()) == (b.dev(), b.ino())) {
        return Ok(());
    }
    match link_over(from, to) {
        Ok(()) => Ok(()),
        Err(_) => put_program(to, &file::read_bounded(from, MAX_PROGRAM)?),
    }
}

/// Makes `to` the same file as `from`, in one step that needs no room on the disk. Fails where that cannot be.
pub(super) fn link_over(from: &Path, to: &Path) -> io::Result<()> {
    let temporary = beside(to, ".link");
    file::remove_file(&temporary)?;
    fs::hard_link(from, &temporary)?;
    fs::rename(&temporary, to)?;
    // Both may have been names of one file: then nothing was renamed (rename(2)).
    file::remove_file(&temporary)?;
    sync_folder(to)
}

/// Brings a rename to disk.
pub(super) fn sync_folder(of: &Path) -> io::Result<()> {
    File::open(of.parent().unwrap_or(Path::new("/")))?.sync_all()
}

#[cfg(test)]
#[path = "record_test.rs"]
mod tests;
