//! The container's half of `coracle cp`. It runs in a process that has taken on the identity of a program of the
//! container (`exec.rs`), and does with the container's own rights what `tar` would do there. It is no program of the
//! container, though, so it must not be inspected by one: it is not dumpable.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use super::protocol::Copy;
use crate::copy::{Notes, Place, name_of, pack, unpack};

/// Copies, and returns the exit code: 1 if anything is missing. Notes go to standard error.
pub(super) fn run(copy: &Copy, stdio: &[OwnedFd]) -> i32 {
    let [input, output, errors] = stdio else {
        return 1;
    };
    let stream = |fd: &OwnedFd| fd.try_clone().map(File::from);
    let mut errors = stream(errors).ok();
    let mut tell = |line: &str| {
        if let Some(errors) = &mut errors {
            // There is no other place to report it to.
            let _ = writeln!(errors, "{line}");
        }
    };
    let mut notes = Notes::new(&mut tell);
    let done = match copy {
        Copy::Out { path } => {
            let path = Path::new(path);
            let opened = stream(output).map_err(|error| error.to_string());
            opened.and_then(|output| {
                let mut output = BufWriter::with_capacity(64 << 10, output);
                pack(&mut output, path, name_of(path), &mut notes)?;
                output.flush().map_err(|error| error.to_string())
            })
        }
        Copy::In { path, name, keep } => {
            let place = Place {
                path: Path::new(path),
                name: name.as_deref().map(str::as_ref),
                keep: *keep && nix::unistd::geteuid().is_root(),
                watch_links: false,
            };
            let opened = stream(input).map_err(|error| error.to_string());
            opened.and_then(|mut input| unpack(&mut input, place, &mut notes))
        }
    };
    if let Err(text) = done {
        notes.error(&text);
    }
    i32::from(notes.finish())
}

/// Changes to an AppArmor profile at once; what a program gets at its exec would come too late.
pub(super) fn confine(profile: &str) -> io::Result<()> {
    let mut current = File::options()
        .write(true)
        .open("/proc/self/attr/current")?;
    // The container's own mounts count by now.
    if fstatfs(&current)?.filesystem_type() != PROC_SUPER_MAGIC {
        return Err(io::Error::other("/proc is something else"));
    }
    current.write_all(format!("changeprofile {profile}").as_bytes())
}
