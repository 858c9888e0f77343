//! Files, replaced atomically (written beside the old one, flushed, renamed, folder flushed) and read with a bound.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, Flock, FlockArg, RenameFlags, renameat2};

/// Whether a write must survive a power cut, or only appear complete to other processes (tmpfs).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// fsync of file and folder.
    PowerCut,
    /// Rename only.
    Process,
}

/// Replaces `path` by `bytes` so that a reader sees the old or the new content, never a mixture.
pub fn replace(path: &Path, bytes: &[u8], mode: u32, durability: Durability) -> io::Result<()> {
    let (folder, temp) = beside(path)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&temp)?;
    file.write_all(bytes)?;
    if durability == Durability::PowerCut {
        file.sync_data()?;
    }
    drop(file);
    fs::rename(&temp, path)?;
    if durability == Durability::PowerCut {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// Writes a file that is not there yet, as a whole or not at all, and so that it survives a power cut. One that is there
/// stays as it is: [`io::ErrorKind::AlreadyExists`].
pub fn create(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let (folder, temp) = beside(path)?;
    // Left by a program that was killed, maybe with another mode.
    remove_file(&temp)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temp)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_data());
    let flags = RenameFlags::RENAME_NOREPLACE;
    let done = written.and_then(|()| Ok(renameat2(AT_FDCWD, &temp, AT_FDCWD, path, flags)?));
    if done.is_err() {
        remove_file(&temp)?;
    }
    done?;
    File::open(folder)?.sync_all()
}

/// The folder of a file, and the name that the file has there until it is complete.
fn beside(path: &Path) -> io::Result<(&Path, PathBuf)> {
    let folder = path
        .parent()
        .ok_or_else(|| io::Error::other("the path has no folder"))?;
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::other("the path has no file name"))?;
    Ok((
        folder,
        folder.join(format!(".{}.tmp", name.to_string_lossy())),
    ))
}

/// The maximum of a record of coracle, of a document of the node, or of a text of the kernel.
const MOST_BYTES: u64 = 16 << 20;

/// Reads a file of at most `limit` bytes. A longer one, and anything but a regular file, is an error, and costs
/// nothing: files that other programs write are read with a bound, and a pipe or device in a file's place cannot
/// block.
pub fn read_bounded(path: impl AsRef<Path>, limit: u64) -> io::Result<Vec<u8>> {
    let file = open_now(path.as_ref())?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    read_at_most(file, found.len(), limit)
}

/// Reads the text of an open file, but no more than `limit` bytes. Bytes that are no UTF-8 are replaced.
pub fn read_start(file: File, limit: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(lossy(bytes))
}

fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|no| String::from_utf8_lossy(no.as_bytes()).into_owned())
}

/// Reads a record of coracle, or a document of the node, with a generous bound.
pub fn read_record(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read_bounded(path, MOST_BYTES)
}

/// Reads a text of the kernel (`/proc`, `/sys`, cgroups) or of the node, with a generous bound. Bytes that are no
/// UTF-8 are replaced: processes choose their names themselves.
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    text_of(open_now(path.as_ref())?)
}

/// The same of an open file.
pub(super) fn text_of(file: File) -> io::Result<String> {
    Ok(lossy(read_at_most(file, 0, MOST_BYTES)?))
}

fn open_now(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

fn read_at_most(file: File, expected: u64, limit: u64) -> io::Result<Vec<u8>> {
    let too_long = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("longer than {limit} bytes"),
        )
    };
    if expected > limit {
        return Err(too_long());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(too_long());
    }
    Ok(bytes)
}

/// `mkdir -p` with a mode for every folder that is made.
pub fn make_dirs(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
}

/// Removes a file; an absent one is fine.
pub fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes a file so that it stays removed after a power cut; an absent one is fine.
pub fn remove_durably(path: &Path) -> io::Result<()> {
    remove_file(path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Takes an exclusive lock on a file (made if absent); `None` if another process has it. The lock ends with the
/// returned value, or with the process.
pub fn try_lock(path: &Path) -> io::Result<Option<Flock<File>>> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    take_lock(file)
}

/// Takes an exclusive lock on a folder; `None` if another process has it.
pub fn try_lock_dir(path: &Path) -> io::Result<Option<Flock<File>>> {
    take_lock(File::open(path)?)
}

fn take_lock(file: File) -> io::Result<Option<Flock<File>>> {
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_is_complete_and_one_that_is_there_stays() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("coracle-new-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("secret.yaml");
        // What a killed program left, for all to read.
        fs::write(dir.join(".secret.yaml.tmp"), "half").unwrap();
        create(&path, b"one", 0o600).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(
            (mode & 0o777, read_text(&path).unwrap()),
            (0o600, "one".to_owned())
        );
        let error = create(&path, b"two", 0o600).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(read_text(&path).unwrap(), "one");
        assert_eq!(
            fs::read_dir(&dir).unwrap().count(),
            1,
            "nothing is left behind"
        );
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn what_is_longer_than_its_bound_or_no_file_is_not_read() {
        let dir = std::env::temp_dir().join(format!("coracle-bounded-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("file");
        fs::write(&file, "twelve bytes").unwrap();
        assert_eq!(read_bounded(&file, 12).unwrap(), b"twelve bytes");
        assert!(read_bounded(&file, 11).is_err());
        File::create(&file).unwrap().set_len(3 << 30).unwrap();
        assert!(read_record(&file).is_err() && read_text(&file).is_err());
        assert!(read_record(Path::new("/dev/zero")).is_err());
        assert!(read_text("/dev/zero").is_err(), "it has no end");
        assert!(read_record(&dir).is_err());
        nix::unistd::mkfifo(&dir.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(read_record(dir.join("fifo")).is_err(), "and nothing waits");
        assert_eq!(read_text(dir.join("fifo")).unwrap(), "");
        fs::write(&file, b"caf\xe9").unwrap();
        assert_eq!(read_text(&file).unwrap(), "caf\u{fffd}");
        // Files of the kernel say that they are empty.
        assert!(read_text("/proc/self/stat").unwrap().len() > 10);
        assert!(
            !read_record(Path::new("/proc/self/stat"))
                .unwrap()
                .is_empty()
        );
        fs::remove_dir_all(dir).unwrap();
    }
}
