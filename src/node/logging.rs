//! The agent's log: lines on standard error, or entries with fields if standard error is the journal.

use std::fmt::{self, Write as _};
use std::io::{self, Write};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::sys::journal::{Entry, Journal};

/// Sets the log receiver of the whole process. `CORACLE_LOG` sets its filter: `debug`, or a list like
/// `warn,coracle::node=debug`.
pub(super) fn start() {
    let asked = std::env::var("CORACLE_LOG").unwrap_or_default();
    let wanted = match asked.as_str() {
        "" => Ok(Targets::new().with_default(LevelFilter::INFO)),
        some => some.parse::<Targets>(),
    };
    let filter = match &wanted {
        Ok(targets) => targets.clone(),
        Err(_) => Targets::new().with_default(LevelFilter::INFO),
    };
    let journal = Journal::behind_stderr().map(ToJournal);
    let lines = journal.is_none().then(|| {
        tracing_subscriber::fmt::layer()
            .with_writer(|| Lines(io::stderr()))
            .with_target(false)
    });
    let _ = tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .with(journal)
        .try_init();
    if let Err(error) = wanted {
        tracing::warn!("CORACLE_LOG is `{asked}`, which is not a filter ({error}): using `info`");
    }
}

/// Writes each entry as one line. Messages quote what containers, images and clients say, and a line break in it must
/// not begin a line that looks like an entry.
struct Lines<W>(W);

impl<W: Write> Write for Lines<W> {
    /// Takes a whole entry with its end of line, as the layer for text writes it.
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        let text = entry.strip_suffix(b"\n").unwrap_or(entry);
        let mut line = Vec::with_capacity(entry.len());
        for byte in text {
            match byte {
                b'\n' => line.extend_from_slice(b"\\n"),
                b'\r' => line.extend_from_slice(b"\\r"),
                // Programs such as grep take a text with it for something else.
                b'\0' => line.extend_from_slice(b"\\0"),
                other => line.push(*other),
            }
        }
        line.extend_from_slice(&entry[text.len()..]);
        self.0.write_all(&line)?;
        Ok(entry.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

struct ToJournal(Journal);

impl<S: Subscriber> Layer<S> for ToJournal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // Numbers of syslog(3).
        let priority = match *event.metadata().level() {
            Level::ERROR => "3",
            Level::WARN => "4",
            Level::INFO => "6",
            Level::DEBUG | Level::TRACE => "7",
        };
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut entry = fields.entry;
        entry.field("MESSAGE", &format!("{}{}", fields.message, fields.shown));
        entry.field("PRIORITY", priority);
        entry.field("SYSLOG_IDENTIFIER", "coracle");
        // The journal is full or gone: there is no other place to report that.
        let _ = self.0.send(&entry);
    }
}

/// The parts of one message. Each field becomes a field of the journal, `pod` as `CORACLE_POD`; a pod's name is
/// split into `CORACLE_NAMESPACE` and `CORACLE_POD`.
#[derive(Default)]
struct Fields {
    message: String,
    /// The fields as shown behind the message.
    shown: String,
    entry: Entry,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let value = format!("{value:?}");
        if field.name() == "message" {
            self.message = value;
            return;
        }
        let _ = write!(self.shown, " {}={value}", field.name());
        if field.name() == "pod"
            && let Some((namespace, name)) = value.split_once('/')
        {
            self.entry.field("CORACLE_NAMESPACE", namespace);
            self.entry.field("CORACLE_POD", name);
            return;
        }
        let name = field.name().to_ascii_uppercase().replace('.', "_");
        self.entry.field(&format!("CORACLE_{name}"), &value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        // Without quotes; absent values are left out.
        if !value.is_empty() {
            self.record_debug(field, &format_args!("{value}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_break_in_a_message_begins_no_line() {
        let written = Written::default();
        let to = written.clone();
        let layer = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(move || Lines(to.clone()));
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(pod = %"a\nb", "it said: x\0\r\n ERROR forged");
            tracing::info!("next");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let expected = " WARN it said: x\\0\\r\\n ERROR forged pod=a\\nb\n INFO next\n";
        assert_eq!(text, expected);
    }
}
