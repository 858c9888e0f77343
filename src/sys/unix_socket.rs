//! Unix sockets with long paths. Addresses hold 107 bytes; through a descriptor of its folder any path is short
//! enough.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Connects to the stream socket at `path`. Waits while its queue is full.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let (_folder, short) = shorten(path)?;
    UnixStream::connect(short)
}

/// The same socket by a path that is short enough while the folder is held.
pub fn shorten(path: &Path) -> io::Result<(File, PathBuf)> {
    let folder = File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(path.parent().unwrap_or(Path::new("/")))?;
    let through = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string());
    let short = through.join(path.file_name().unwrap_or_default());
    Ok((folder, short))
}
