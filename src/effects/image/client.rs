//! How does the agent have an archive imported? By a worker process of its own binary, killed when nobody waits.

use std::path::Path;

use smol::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use smol::process::{Command, Stdio};
use smol::stream::StreamExt;

use super::error::{ImageError, io};
use super::progress::{Imported, Line, Progress};

/// A worker never says more than this.
const MAX_OUTPUT_BYTES: u64 = 16 << 20;

/// So much of its standard error is shown.
const MAX_STDERR_BYTES: u64 = 2048;

/// How to import.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// The archive lies in a preload directory: its images are never pruned, and [`super::preload::pending`] knows.
    pub preloaded: bool,
    /// Name for the archive's only image, instead of the names in it.
    pub name: Option<String>,
}

/// Has `exe` (coracle's own binary) import an archive into the store. Dropping the future kills the worker, which
/// leaves nothing visible behind.
pub async fn import(
    exe: &Path,
    store: &Path,
    archive: &Path,
    options: &ImportOptions,
    mut on_progress: impl FnMut(Progress),
) -> Result<Vec<Imported>, ImageError> {
    let mut command = Command::new(exe);
    command
        .arg("image-worker")
        .arg("import")
        .arg("--store")
        .arg(store);
    if options.preloaded {
        command.arg("--preloaded");
    }
    if let Some(name) = &options.name {
        command.arg("--name").arg(name);
    }
    command.arg("--").arg(archive);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .kill_on_drop(true)
        .spawn()
        .map_err(io("start", exe))?;
    let failed = |message: String, hint| ImageError::Worker {
        archive: archive.to_owned(),
        message,
        hint,
    };
    let mut images = Vec::new();
    let mut error = None;
    if let Some(stdout) = child.stdout.take() {
        let mut lines = BufReader::new(stdout.take(MAX_OUTPUT_BYTES)).lines();
        while let Some(line) = lines.next().await {
            let line = line.map_err(io("read from", exe))?;
            match serde_json::from_str(&line) {
                Ok(Line::Progress(progress)) => on_progress(progress),
                Ok(Line::Image(image)) => images.push(image),
                Ok(Line::Error { message, hint }) => error = Some(failed(message, hint)),
                Err(why) => error = Some(failed(format!("the worker said nonsense: {why}"), None)),
            }
        }
    }
    let mut noise = String::new();
    if let Some(stderr) = child.stderr.take() {
        // Only for the message below; what cannot be read is not shown.
        let _ = stderr
            .take(MAX_STDERR_BYTES)
            .read_to_string(&mut noise)
            .await;
    }
    let status = child.status().await.map_err(io("wait for", exe))?;
    if let Some(error) = error {
        return Err(error);
    }
    if !status.success() {
        let message = format!("the worker ended with {status}: {}", noise.trim());
        return Err(failed(
            message.trim_end_matches([':', ' ']).to_owned(),
            None,
        ));
    }
    Ok(images)
}
