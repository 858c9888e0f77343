//! The last lines of a container's log, with the records of a line joined. A line that begins before what is read is
//! left out: the rest of a secret could not be told from other text. What is in a log is the container's: it is read
//! with a bound, and never followed elsewhere.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use super::mask::{Cut, Secrets};
use crate::sys::openat::{self, Found};

/// What is read before the lines that are wanted, to know which of them begin there: two of the longest records.
const LOOK_BACK: u64 = 2 * (16 << 10) + 256;

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When it ended.
    pub stamp: Vec<u8>,
    /// Whether it was written to the standard error.
    pub is_error: bool,
    /// What was written.
    pub text: Vec<u8>,
    /// Whether it has ended.
    pub is_whole: bool,
}

/// A stream that is being read.
#[derive(Debug, Default)]
struct Stream {
    /// The line that has not ended yet.
    line: Option<Line>,
    /// Whether it is to be left out.
    skip: bool,
}

/// The lines of the last `limit` bytes, without what is secret, in the order of their ends.
pub fn last(path: &Path, limit: u64, secrets: &Secrets) -> io::Result<Vec<Line>> {
    let Found::Regular(mut file) = openat::read_regular(path)? else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let length = file.seek(SeekFrom::End(0))?;
    let wanted = length.saturating_sub(limit);
    let begin = wanted.saturating_sub(LOOK_BACK);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    file.take(length - begin).read_to_end(&mut bytes)?;
    let before = usize::try_from(wanted - begin).unwrap_or(usize::MAX);
    let mut found = lines(&bytes, before, begin > 0);
    for is_error in [false, true] {
        mask(&mut found, is_error, secrets);
    }
    Ok(found)
}

/// `before`: so many bytes are only looked through. `torn`: the start of the first record is missing.
fn lines(bytes: &[u8], before: usize, torn: bool) -> Vec<Line> {
    let mut streams: [Stream; 2] = Default::default();
    let mut found = Vec::new();
    let mut at = 0;
    for (index, record) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let begins = at;
        at += record.len() + 1;
        if torn && index == 0 {
            continue;
        }
        let mut parts = record.splitn(4, |byte| *byte == b' ');
        let (stamp, name, tag) = (parts.next(), parts.next(), parts.next());
        let is_error = match name {
            Some(b"stderr") => true,
            Some(b"stdout") => false,
            Some(_) | None => continue,
        };
        let stream = &mut streams[usize::from(is_error)];
        stream.skip |= begins < before;
        let line = stream.line.get_or_insert_with(|| Line {
            stamp: Vec::new(),
            is_error,
            text: Vec::new(),
            is_whole: false,
        });
        line.stamp = stamp.unwrap_or_default().to_vec();
        if !stream.skip {
            line.text.extend(parts.next().unwrap_or_default());
        }
        if tag.is_some_and(|tag| tag.starts_with(b"F")) {
            line.is_whole = true;
            found.extend(stream.end());
        }
    }
    found.extend(streams.iter_mut().filter_map(Stream::end));
    found
}

impl Stream {
    /// Ends the line, and returns it unless it is to be left out.
    fn end(&mut self) -> Option<Line> {
        let skip = std::mem::take(&mut self.skip);
        self.line.take().filter(|_| !skip)
    }
}

/// Takes what is secret out of the lines of a stream: all at once, as a value may have several.
fn mask(lines: &mut [Line], is_error: bool, secrets: &Secrets) {
    let mut lines: Vec<&mut Line> = lines
        .iter_mut()
        .filter(|line| line.is_error == is_error)
        .collect();
    let texts: Vec<&[u8]> = lines.iter().map(|line| &*line.text).collect();
    // The first one may be the rest of a line: logs are rotated in the middle of lines, too.
    let cut = Cut {
        start: true,
        lines: false,
    };
    let clean = secrets.mask(&texts.join(&b'\n'), cut);
    let clean = clean.split(|byte| *byte == b'\n');
    for (line, text) in lines.iter_mut().zip(clean) {
        line.text = text.to_vec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(log: &str, before: usize, torn: bool) -> String {
        let secrets = Secrets::new(&[b"pa55word-of-db".to_vec()]);
        let mut found = lines(log.as_bytes(), before, torn);
        mask(&mut found, false, &secrets);
        mask(&mut found, true, &secrets);
        let each = found.iter().map(|line| {
            let end = if line.is_whole { "\n" } else { "" };
            let stream = if line.is_error { "err" } else { "out" };
            format!("{stream} {}{end}", String::from_utf8_lossy(&line.text))
        });
        each.collect()
    }

    #[test]
    fn no_rest_of_a_value_stays_wherever_the_log_is_cut() {
        for (sentence, log, before, torn, expected) in [
            (
                "records of a line, and lines of two streams",
                "T stdout P is pa55\nT stderr F err\nT stdout F word-of-db!\nT stdout P pa55wo",
                0,
                false,
                "err err\nout is <secret>!\nout <secret>",
            ),
            (
                "a line that begins before",
                "T stdout P pa55\nT stdout P wor\nT stderr F kept\nT stdout F d\nT stdout F next\n",
                16,
                false,
                "err kept\nout next\n",
            ),
            (
                "a record that begins before",
                "T stdout F pa55word-of-db\nT stdout F next\n",
                20,
                false,
                "out next\n",
            ),
            (
                "nothing is known before: the other stream is kept",
                "5word-of-db\nT stdout F rd-of-db is\nT stderr F -of-db\n",
                0,
                true,
                "out <secret> is\nerr <secret>\n",
            ),
            (
                "a log that was rotated in the middle of a line",
                "T stdout F word-of-db is\nT stdout F word-of-db is\n",
                0,
                false,
                "out <secret> is\nout word-of-db is\n",
            ),
        ] {
            assert_eq!(shown(log, before, torn), expected, "{sentence}");
        }
    }
}
