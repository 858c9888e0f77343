//! Files in and out of containers, as a tar stream: [`pack`] makes one of a file or a directory, [`unpack`] makes files
//! of one. The command line does its half on the node; the other half runs in the container, with the container's own
//! rights (`shim/copy.rs`), so that no program in the image is needed. Both halves distrust what they read.

mod pack;
mod unpack;

#[cfg(test)]
mod copy_test;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub(crate) use pack::pack;
pub(crate) use unpack::{Place, unpack};

/// The deepest directory. Each level takes a descriptor, of which a container may have few.
const MAX_DEPTH: usize = 128;

/// Longest path in a copy: the kernel takes no longer one.
const MAX_PATH_BYTES: usize = 4095;

/// The bytes that are copied at once.
const BUFFER_BYTES: usize = 64 << 10;

/// The maximum number of notes that are shown; the others are counted.
const MAX_NOTES: u32 = 50;

/// The name that a copy of this path has; `None` if the path stands for the contents of a directory (`dir/.`, `/`).
pub(crate) fn name_of(path: &Path) -> Option<&OsStr> {
    match path.as_os_str().as_bytes().ends_with(b"/.") {
        true => None,
        false => path.file_name(),
    }
}

/// What happened on the way, as lines `warning: …` and `error: …`. An error concerns one entry, and the copy goes on.
pub(crate) struct Notes<'a> {
    tell: &'a mut dyn FnMut(&str),
    told: u32,
    failed: bool,
}

impl<'a> Notes<'a> {
    /// Passes each line on at once.
    pub(crate) fn new(tell: &'a mut dyn FnMut(&str)) -> Self {
        Self {
            tell,
            told: 0,
            failed: false,
        }
    }

    /// Something is not as it was, and that was to be expected.
    fn warning(&mut self, text: &str) {
        self.line("warning", text);
    }

    /// Something is missing in the copy.
    pub(crate) fn error(&mut self, text: &str) {
        self.failed = true;
        self.line("error", text);
    }

    /// The last line. Returns whether anything is missing.
    pub(crate) fn finish(self) -> bool {
        let more = self.told.saturating_sub(MAX_NOTES);
        if more > 0 {
            (self.tell)(&format!("warning: {more} more lines are not shown"));
        }
        self.failed
    }

    fn line(&mut self, kind: &str, text: &str) {
        self.told = self.told.saturating_add(1);
        if self.told <= MAX_NOTES {
            (self.tell)(&format!("{kind}: {text}"));
        }
    }
}

/// A path for a message: hostile names control no terminal and fill no screen.
fn shown(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    let text = text.chars().take(200).flat_map(char::escape_debug);
    format!("`{}`", text.collect::<String>())
}

/// The system's text of an error.
fn why(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => nix::errno::Errno::from_raw(number).desc().to_lowercase(),
        None => error.to_string(),
    }
}
