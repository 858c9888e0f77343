//! The agent's side of a saved archive: a worker, killed when [`Saving`] is dropped.

use std::path::Path;

use hyper::body::Bytes;
use smol::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use smol::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use super::super::error::{ImageError, io as io_error};
use super::super::progress::Line;

/// The bytes that are passed on at once.
const PIECE_BYTES: usize = 64 << 10;

/// Longest line of a worker.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// An archive that is being written.
#[derive(Debug)]
pub struct Saving {
    /// Its exact length.
    pub bytes: u64,
    child: Child,
    output: ChildStdout,
    lines: BufReader<ChildStderr>,
}

/// Runs `exe` (coracle's own binary) to write images of the store, by name or id, as an OCI archive. Returns once its
/// length is known.
pub async fn save(exe: &Path, store: &Path, names: &[String]) -> Result<Saving, ImageError> {
    let mut command = Command::new(exe);
    command.args(["image-worker", "save", "--store"]).arg(store);
    command.arg("--").args(names);
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = command.kill_on_drop(true).spawn();
    let mut child = started.map_err(io_error("start", exe))?;
    let (Some(output), Some(lines)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(failed("the worker has no output".to_owned(), None));
    };
    let mut lines = BufReader::new(lines);
    match line(&mut lines).await {
        Some(Line::Ready { bytes }) => Ok(Saving {
            bytes,
            child,
            output,
            lines,
        }),
        Some(Line::Error { message, hint, .. }) => Err(failed(message, hint)),
        _ => {
            let status = child.status().await.map_err(io_error("wait for", exe))?;
            Err(failed(format!("the worker ended with {status}"), None))
        }
    }
}

impl Saving {
    /// The next piece; `None` at the end of a complete archive.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ImageError> {
        let mut buffer = vec![0; PIECE_BYTES];
        let read = self.output.read(&mut buffer).await;
        let n = read.map_err(|why| failed(why.to_string(), None))?;
        if n > 0 {
            buffer.truncate(n);
            return Ok(Some(buffer.into()));
        }
        if let Some(Line::Error { message, hint, .. }) = line(&mut self.lines).await {
            return Err(failed(message, hint));
        }
        let status = self.child.status().await;
        let status = status.map_err(|why| failed(why.to_string(), None))?;
        match status.success() {
            true => Ok(None),
            false => Err(failed(format!("the worker ended with {status}"), None)),
        }
    }
}

/// The worker's next line, if it has one that is known.
async fn line(lines: &mut BufReader<ChildStderr>) -> Option<Line> {
    let mut text = Vec::new();
    let mut bounded = lines.take(MAX_LINE_BYTES);
    bounded.read_until(b'\n', &mut text).await.ok()?;
    serde_json::from_slice(&text).ok()
}

fn failed(message: String, hint: Option<String>) -> ImageError {
    ImageError::Save { message, hint }
}
