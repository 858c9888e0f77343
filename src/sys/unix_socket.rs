//! Unix sockets with long paths. Addresses hold 107 bytes; through a descriptor of its folder any path is short
//! enough.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::sys::socket::sockopt::SendTimeout;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect as connect_to, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};

/// How long a connection may wait for a place in the queue of a socket.
const PATIENCE_SECONDS: i64 = 30;

/// Connects to the stream socket at `path`. Waits while its queue is full, which that of a process that hangs stays: then it
/// fails as a time-out does.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let (_folder, short) = shorten(path)?;
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    setsockopt(&socket, SendTimeout, &TimeVal::seconds(PATIENCE_SECONDS))?;
    let address = UnixAddr::new(&short)?;
    while let Err(why) = connect_to(socket.as_raw_fd(), &address) {
        if why != nix::errno::Errno::EINTR {
            return Err(why.into());
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_write_timeout(None)?;
    Ok(stream)
}

/// The same socket by a path that is short enough while the folder is held.
pub fn shorten(path: &Path) -> io::Result<(File, PathBuf)> {
    let folder = match path.parent() {
        // A name alone is one in the working directory.
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => Path::new("/"),
    };
    let folder = File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(folder)?;
    let through = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string());
    let short = through.join(path.file_name().unwrap_or_default());
    Ok((folder, short))
}
