//! The cause of a failed start. libcontainer's errors lose it; it appears only as a tracing event in the child.
//!
//! A close-on-exec pipe is inherited by every process that a start forks. Children write lines to it: `E…` for an
//! error event of libcontainer, `R…` for a program that could not be executed, `F…` for any other fatal error, `P…`
//! for a pid. Its end means: executed, or dead.

use std::fmt::{self, Write as _};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use super::ShimError;
use crate::sys::{clock, fdpass, process};

/// The maximum length of a line in bytes.
const LONGEST: usize = 1024;

/// The maximum of all lines in bytes.
const MOST: usize = 64 * 1024;

/// The pipe for events; -1 for none. An atomic and no lock, because forked children read it.
static SINK: AtomicI32 = AtomicI32::new(-1);

/// The pipe of one start.
pub(super) struct Status {
    reader: OwnedFd,
    writer: Option<OwnedFd>,
}

/// The children's messages.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// Why the program could not be executed.
    pub(super) run: Option<String>,
    /// A fatal error of the shim's own children.
    pub(super) fatal: Option<String>,
    /// The first error event: the innermost cause.
    pub(super) event: Option<String>,
    /// The first error number named by an event, if the first event named none.
    pub(super) errno: Option<String>,
    /// A pid.
    pub(super) pid: Option<i32>,
    /// A process held the pipe until the deadline.
    pub(super) late: bool,
}

impl Status {
    /// Opens a pipe, which gets error events until it is read.
    pub(super) fn open() -> Result<Self, ShimError> {
        let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)
            .map_err(|errno| ShimError::system("open a status pipe")(errno.into()))?;
        // A child with too many messages must not block while its parent waits for it.
        fdpass::set_nonblocking(&writer).map_err(ShimError::system("set up a status pipe"))?;
        SINK.store(writer.as_raw_fd(), Ordering::Relaxed);
        Ok(Self {
            reader,
            writer: Some(writer),
        })
    }

    /// The number of the write end, for children.
    pub(super) fn number(&self) -> i32 {
        self.writer.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// As [`Status::read`], with a timeout in milliseconds.
    pub(super) fn read_within(mut self, patience: u64) -> Said {
        SINK.store(-1, Ordering::Relaxed);
        self.writer = None;
        let deadline = clock::boot_ms() + patience;
        let mut text = Vec::new();
        let mut late = false;
        let mut piece = [0; LONGEST];
        while text.len() < MOST {
            let left = deadline.saturating_sub(clock::boot_ms());
            let mut polled = [PollFd::new(self.reader.as_fd(), PollFlags::POLLIN)];
            match poll(
                &mut polled,
                PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
            ) {
                Ok(0) => {
                    late = true;
                    break;
                }
                Err(nix::Error::EINTR) => continue,
                // The read reports the error.
                Ok(_) | Err(_) => {}
            }
            match nix::unistd::read(&self.reader, &mut piece) {
                Ok(0) => break,
                Ok(count) => text.extend_from_slice(&piece[..count]),
                Err(nix::Error::EINTR) => {}
                // The lines read so far are kept.
                Err(_) => break,
            }
        }
        let said = parse(&String::from_utf8_lossy(&text));
        Said { late, ..said }
    }

    /// Closes the own write end and reads all messages.
    pub(super) fn read(mut self) -> Said {
        SINK.store(-1, Ordering::Relaxed);
        self.writer = None;
        let mut text = Vec::new();
        let mut file = std::fs::File::from(self.reader);
        // An error keeps the lines read so far.
        let _ = file.by_ref().take(MOST as u64).read_to_end(&mut text);
        parse(&String::from_utf8_lossy(&text))
    }
}

fn parse(text: &str) -> Said {
    let mut said = Said::default();
    let mut named_first = false;
    for line in text.lines() {
        let (kind, rest) = line.split_at_checked(1).unwrap_or(("", ""));
        match kind {
            "R" if said.run.is_none() => said.run = Some(rest.to_owned()),
            "F" if said.fatal.is_none() => said.fatal = Some(rest.to_owned()),
            "E" => {
                let first = said.event.is_none();
                if said.errno.is_none() {
                    said.errno = errno_in(rest).map(str::to_owned);
                    named_first |= first && said.errno.is_some();
                }
                said.event.get_or_insert_with(|| rest.to_owned());
            }
            "P" => said.pid = rest.parse().ok(),
            _ => {}
        }
    }
    if named_first {
        said.errno = None;
    }
    said
}

/// The first word that looks like `ENOENT`.
fn errno_in(text: &str) -> Option<&str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric())
        .find(|word| {
            let rest = word.strip_prefix('E').unwrap_or_default();
            rest.len() >= 3
                && rest
                    .chars()
                    .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
        })
}

/// Writes one line to the pipe with this number.
pub(super) fn report(number: i32, kind: char, text: &str) {
    if number < 0 {
        return;
    }
    let mut line = String::with_capacity(text.len() + 2);
    line.push(kind);
    line.extend(
        text.chars()
            .map(|letter| if letter == '\n' { ' ' } else { letter })
            .take(LONGEST),
    );
    line.push('\n');
    process::write_to(number, line.as_bytes());
}

/// Makes this process and its forked children report libcontainer's error events.
pub(super) fn install() {
    // Fails only if the process already has a subscriber, which serves as well.
    let _ = tracing::subscriber::set_global_default(Sink);
}

struct Sink;

impl Subscriber for Sink {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR && metadata.is_event()
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(tracing::level_filters::LevelFilter::ERROR)
    }

    fn event(&self, event: &Event<'_>) {
        let sink = SINK.load(Ordering::Relaxed);
        if sink < 0 {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        report(sink, 'E', &format!("{}{}", text.message, text.fields));
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_cause_is_kept_and_its_error_number_found_elsewhere() {
        let said = parse("Ecould not mount\nEprepare err=Nix(ENODEV)\nEouter err=EPERM\n");
        assert_eq!(said.event.as_deref(), Some("could not mount"));
        assert_eq!(said.errno.as_deref(), Some("ENODEV"));
        let said = parse("Echdir e=ENOENT\nEouter e=EPERM\nRexec: no\nP12\n");
        assert_eq!((said.errno, said.pid), (None, Some(12)));
        assert_eq!(said.run.as_deref(), Some("exec: no"));
    }
}
