//! Imports on the agent's side: a worker process of its own binary, killed when the future is dropped.

use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};

use hyper::body::Bytes;
use smol::channel::Receiver;
use smol::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use smol::process::{Child, Command, Stdio};

use super::bundle::Bundle;
use super::error::{ImageError, io as io_error};
use super::import::STREAM;
use super::progress::{Cause, Fetched, Imported, Line, Progress};
use super::registry::WebDocument;
use super::space::KeepFree;

/// The maximum of a worker's output, reports of progress aside: those of a long download have no end.
const MAX_OUTPUT_BYTES: u64 = 16 << 20;

/// The maximum of its standard error that is shown.
const MAX_STDERR_BYTES: u64 = 2048;

/// The options of an import.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// Whether the archive is in a preload directory: its images are never pruned, and [`super::preload::pending`]
    /// knows it.
    pub preloaded: bool,
    /// Name for the archive's only image, beside the names in it.
    pub name: Option<String>,
    /// The disk space to leave free, beside a small reserve.
    pub keep: KeepFree,
    /// The policy that says which images may be imported; without one any may.
    pub policy: Option<PathBuf>,
}

/// An archive that arrives in pieces: it ends with the channel, and an error cancels the import.
pub type Pieces = Receiver<io::Result<Bytes>>;

/// The source of an archive.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A file, or an OCI layout directory.
    Path(std::path::PathBuf),
    /// A client that sends it.
    Stream(Pieces),
}

/// Runs `exe` (coracle's own binary) to import an archive into the store. Dropping the future kills the worker,
/// which leaves nothing visible behind.
pub async fn import(
    exe: &Path,
    store: &Path,
    archive: &Path,
    options: &ImportOptions,
    on_progress: impl FnMut(Progress),
) -> Result<Vec<Imported>, ImageError> {
    let origin = Origin::Path(archive.to_owned());
    let never = std::future::pending();
    import_unless(never, exe, store, &origin, options, on_progress).await
}

/// Like [`import`], until `abandoned` is ready: then the worker is killed, and has ended when this returns.
pub async fn import_unless(
    abandoned: impl Future<Output = ()>,
    exe: &Path,
    store: &Path,
    origin: &Origin,
    options: &ImportOptions,
    on_progress: impl FnMut(Progress),
) -> Result<Vec<Imported>, ImageError> {
    let mut child = start(exe, store, origin, options)?;
    let end = async { Some(attend(&mut child, exe, origin, on_progress).await) };
    let given_up = async {
        abandoned.await;
        None
    };
    match smol::future::or(end, given_up).await {
        Some(Ok(images)) => Ok(images),
        failed => {
            // A worker that has ended by itself is fine, too.
            let _ = child.kill();
            child.status().await.map_err(io_error("wait for", exe))?;
            failed.unwrap_or(Err(ImageError::Abandoned))
        }
    }
}

fn start(
    exe: &Path,
    store: &Path,
    origin: &Origin,
    options: &ImportOptions,
) -> Result<Child, ImageError> {
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
    if let Some(policy) = &options.policy {
        command.arg("--policy").arg(policy);
    }
    let KeepFree { bytes, inodes } = options.keep;
    command.args(["--keep-bytes", &bytes.to_string()]);
    command.args(["--keep-inodes", &inodes.to_string(), "--"]);
    match origin {
        Origin::Path(path) => command.arg(path).stdin(Stdio::null()),
        Origin::Stream(_) => command.arg(STREAM).stdin(Stdio::piped()),
    };
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
        .kill_on_drop(true)
        .spawn()
        .map_err(io_error("start", exe))
}

/// Sends a worker its input and reads its output, until it ends.
async fn attend(
    child: &mut Child,
    exe: &Path,
    origin: &Origin,
    mut on_progress: impl FnMut(Progress),
) -> Result<Vec<Imported>, ImageError> {
    let input = child.stdin.take();
    let failed = |message, hint, cause| ImageError::Worker {
        archive: match origin {
            Origin::Path(path) => path.clone(),
            Origin::Stream(_) => STREAM.into(),
        },
        message,
        hint,
        cause,
    };
    let outcome = async {
        let on_line = |told| {
            if let Told::Progress(progress) = told {
                on_progress(progress);
            }
        };
        match listen(child, exe, failed, on_line).await? {
            Outcome::Images(images) => Ok(images),
            Outcome::Fetched(_) | Outcome::Document(_) | Outcome::Bundle(_) => Ok(Vec::new()),
        }
    };
    let fed = async {
        if let (Some(input), Origin::Stream(pieces)) = (input, origin)
            && let Err(source) = feed(input, pieces).await
        {
            return Err(ImageError::Received { source });
        }
        // The worker reports the result.
        std::future::pending().await
    };
    smol::future::or(outcome, fed).await
}

/// A worker of a pull.
#[derive(Debug)]
pub(super) struct Job {
    /// Arguments behind `image-worker`.
    pub(super) args: Vec<OsString>,
    /// Standard input, in pieces; it ends with the channel.
    pub(super) input: Receiver<Vec<u8>>,
}

impl Job {
    /// A worker with this whole input.
    pub(super) fn with_input(args: Vec<OsString>, bytes: Vec<u8>) -> Self {
        let (send, input) = smol::channel::unbounded();
        // The channel is open and has no limit.
        let _ = send.try_send(bytes);
        Self { args, input }
    }
}

/// What a worker says while it works.
#[derive(Debug)]
pub(super) enum Told {
    Progress(Progress),
    /// The layers of a pull will arrive in this folder.
    Resolved(PathBuf),
    /// The blob with this digest has arrived.
    Arrived(String),
}

/// What a worker has done.
#[derive(Debug)]
pub(super) enum Outcome {
    Images(Vec<Imported>),
    Fetched(Fetched),
    Bundle(Box<Bundle>),
    Document(Option<WebDocument>),
}

/// Runs a worker of a pull. Dropping the future kills it.
pub(super) async fn run_job(
    exe: &Path,
    job: Job,
    on_line: impl FnMut(Told),
) -> Result<Outcome, ImageError> {
    let mut command = Command::new(exe);
    command.arg("image-worker").args(&job.args);
    command.stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command
        .kill_on_drop(true)
        .spawn()
        .map_err(io_error("start", exe))?;
    let input = child.stdin.take();
    let fed = async {
        if let Some(mut input) = input {
            while let Ok(piece) = job.input.recv().await {
                // A worker that has ended reports why.
                let _ = input.write_all(&piece).await;
            }
            let _ = input.close().await;
        }
        std::future::pending().await
    };
    let failed = |message, hint, cause| ImageError::Pull {
        message,
        hint,
        cause,
    };
    smol::future::or(listen(&mut child, exe, failed, on_line), fed).await
}

/// Passes received data to the worker. A worker that stops reading reports the reason itself.
async fn feed(mut input: smol::process::ChildStdin, pieces: &Pieces) -> io::Result<()> {
    while let Ok(piece) = pieces.recv().await {
        if input.write_all(&piece?).await.is_err() {
            return Ok(());
        }
    }
    let _ = input.close().await;
    Ok(())
}

async fn listen(
    child: &mut Child,
    exe: &Path,
    failed: impl Fn(String, Option<String>, Cause) -> ImageError,
    mut on_line: impl FnMut(Told),
) -> Result<Outcome, ImageError> {
    let mut images = Vec::new();
    let mut done_with = None;
    let mut error = None;
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = BufReader::new(stdout);
        let (mut left, mut line) = (MAX_OUTPUT_BYTES, Vec::new());
        loop {
            line.clear();
            let read = (&mut stdout).take(left).read_until(b'\n', &mut line).await;
            if read.map_err(io_error("read from", exe))? == 0 {
                break;
            }
            let parsed = serde_json::from_slice(&line);
            if !matches!(parsed, Ok(Line::Progress(_))) {
                left = left.saturating_sub(line.len() as u64);
            }
            match parsed {
                Ok(Line::Progress(progress)) => on_line(Told::Progress(progress)),
                Ok(Line::Resolved { folder }) => on_line(Told::Resolved(folder)),
                Ok(Line::Arrived { digest }) => on_line(Told::Arrived(digest)),
                Ok(Line::Image(image)) => images.push(image),
                Ok(Line::Fetched(done)) => done_with = Some(Outcome::Fetched(done)),
                Ok(Line::Bundle(found)) => done_with = Some(Outcome::Bundle(found)),
                Ok(Line::Document { document }) => {
                    done_with = Some(Outcome::Document(document));
                }
                Ok(Line::Ready { .. }) => {}
                Ok(Line::Error {
                    message,
                    hint,
                    cause,
                }) => error = Some(failed(message, hint, cause)),
                Err(why) => {
                    let text = format!("invalid output of the worker: {why}");
                    error = Some(failed(text, None, Cause::Other));
                }
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
    let status = child.status().await.map_err(io_error("wait for", exe))?;
    if let Some(error) = error {
        return Err(error);
    }
    if !status.success() {
        let message = format!("the worker ended with {status}: {}", noise.trim());
        return Err(failed(
            message.trim_end_matches([':', ' ']).to_owned(),
            None,
            Cause::Other,
        ));
    }
    Ok(done_with.unwrap_or(Outcome::Images(images)))
}
