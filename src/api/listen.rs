//! The API's socket: a unix socket that only root can open. A stale one is replaced, a live one is an error.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use nix::sys::stat::{Mode, umask};
use smol::Async;

use super::error::ServeError;

/// Creates the socket (0600). Changes the umask while binding, so call it before other threads start.
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
    let before = umask(Mode::from_bits_truncate(0o177));
    let bound = UnixListener::bind(path);
    umask(before);
    let listener = bound.map_err(failed("make"))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(failed("protect"))?;
    Async::new(listener).map_err(failed("listen on"))
}
