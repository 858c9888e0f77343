//! The exit of a container: its termination message and exit code.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use nix::sys::wait::WaitStatus;

use super::protocol::StartRequest;
use crate::layout;
use crate::sys::openat::{self, Found};

/// Longest termination message in bytes.
const MESSAGE_BYTES: u64 = 4096;
/// Longest piece of the log that replaces it.
const LOG_LINES: usize = 80;
const LOG_BYTES: usize = 2048;

/// Exit code and signal of a reaped process; `None` if it only stopped or continued.
pub(super) fn code(status: WaitStatus) -> Option<(i32, Option<i32>)> {
    match status {
        WaitStatus::Exited(_, code) => Some((code, None)),
        WaitStatus::Signaled(_, signal, _) => Some((128 + signal as i32, Some(signal as i32))),
        _ => None,
    }
}

/// The end of the termination message file. If that is empty after a failure, the end of the log, if requested.
pub(super) fn message(request: &StartRequest, code: i32) -> String {
    let path = &request.termination_message;
    let text = match tail(path, MESSAGE_BYTES) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => {
            return format!(
                "Error on reading termination log {}: {error}",
                path.display()
            );
        }
    };
    if text.is_empty() && code != 0 && request.termination_message_from_logs {
        let log = layout::log_file(&request.log_dir, request.attempt);
        // Every record is longer than its content, so this is enough for the last 2048 bytes in all but odd cases.
        return tail(&log, 64 * 1024).map_or_else(|_| String::new(), |bytes| log_end(&bytes));
    }
    text
}

/// The last `limit` bytes of a file. It is opened so that a pipe or device in its place cannot block.
fn tail(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let Found::Regular(mut file) = openat::read_regular(path)? else {
        return Ok(Vec::new());
    };
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The contents of the last log records.
fn log_end(bytes: &[u8]) -> String {
    let mut lines: Vec<Vec<u8>> = vec![Vec::new()];
    for record in bytes.split(|byte| *byte == b'\n') {
        let mut fields = record.splitn(4, |byte| *byte == b' ');
        let (Some(_), Some(_), Some(tag), Some(content)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if let Some(line) = lines.last_mut() {
            line.extend_from_slice(content);
            if tag == b"F" {
                line.push(b'\n');
                lines.push(Vec::new());
            }
        }
    }
    if lines.last().is_some_and(Vec::is_empty) {
        lines.pop();
    }
    let text = lines[lines.len().saturating_sub(LOG_LINES)..].concat();
    let text = &text[text.len().saturating_sub(LOG_BYTES)..];
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_its_contents_without_stamps() {
        let log = b"t stdout F one\nt stderr P tw\nt stderr F o\nt stdout P rest\n";
        assert_eq!(log_end(log), "one\ntwo\nrest");
        let many: Vec<u8> = (0..200)
            .flat_map(|n| format!("t stdout F {n}\n").into_bytes())
            .collect();
        assert_eq!(log_end(&many).lines().count(), 80);
        assert!(log_end(&many).ends_with("199\n"));
        let long = [b"t stdout F ".as_slice(), &[b'x'; 5000], b"\n"].concat();
        assert_eq!(log_end(&long).len(), 2048);
    }
}
