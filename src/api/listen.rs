//! The API's socket: a unix socket that only root can open. A stale one is replaced, a live one is an error.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen as take_connections, socket,
};
use nix::sys::stat::{Mode, fchmod};
use smol::Async;

use super::error::ServeError;

/// Creates the socket (0600).
pub fn listen(path: &Path) -> Result<Async<UnixListener>, ServeError> {
    let failed = |action| {
        move |source| ServeError::Socket {
            action,
            path: path.to_owned(),
            source,
        }
    };
    match path.symlink_metadata() {
        Ok(meta) if !meta.file_type().is_socket() => {
            return Err(ServeError::NotASocket {
                path: path.to_owned(),
            });
        }
        Ok(_) => {
            if UnixStream::connect(path).is_ok() {
                return Err(ServeError::InUse {
                    path: path.to_owned(),
                });
            }
            std::fs::remove_file(path).map_err(failed("remove stale"))?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("look at")(error)),
    }
    let listener = private(path).map_err(failed("make"))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(failed("protect"))?;
    Async::new(listener).map_err(failed("listen on"))
}

/// A socket that is never open to others: on Linux the file gets the mode of the unbound socket, less the umask. Changing
/// the umask instead would change it for files that other threads make meanwhile.
fn private(path: &Path) -> io::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let unbound = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    fchmod(&unbound, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(unbound.as_raw_fd(), &UnixAddr::new(path)?)?;
    take_connections(&unbound, Backlog::new(128)?)?;
    Ok(UnixListener::from(unbound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_private_from_the_start() {
        let path = std::env::temp_dir().join(format!("coracle-private-{}", std::process::id()));
        let _listener = private(&path).unwrap();
        let mode = path.symlink_metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::remove_file(path).unwrap();
    }
}
