//! A pull on the agent's side: a worker that fetches, then one that imports. Both are killed when the future is
//! dropped; what has been downloaded stays for the next pull.

use std::future::Future;
use std::path::{Path, PathBuf};

use super::super::client::{Job, Outcome, run_job};
use super::super::error::ImageError;
use super::super::name;
use super::super::progress::{Cause, Imported, Progress};
use super::super::space::KeepFree;
use super::super::trust::Demand;
use super::request::{Patience, Request, Source};

/// What to pull, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullOptions {
    /// The image's name, full or short.
    pub name: String,
    /// `os/architecture[/variant]`; this machine's if missing.
    pub platform: Option<String>,
    /// Where it can be fetched from, tried in turn; at least one.
    pub sources: Vec<Source>,
    /// Registries, `host[:port]`, that are asked by plain HTTP.
    pub plain_http: Vec<String>,
    /// Directories with a folder of certificates for each registry.
    pub certificates: Vec<PathBuf>,
    /// The signatures that the image must have.
    pub trust: Option<Demand>,
    /// How fast blobs may arrive, in bytes a second; 0: no limit.
    pub bytes_per_second: u64,
    /// The disk space to leave free, beside a small reserve.
    pub keep: KeepFree,
}

/// The result of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pulled {
    /// The image was imported.
    New(Imported),
    /// The store has what the registry has: the image's id.
    Unchanged(String),
}

/// Runs `exe` (coracle's own binary) to pull an image into the store, until `abandoned` is ready. Returns what mirrors
/// said that could not serve it, too.
pub async fn pull_unless(
    abandoned: impl Future<Output = ()>,
    exe: &Path,
    store: &Path,
    options: &PullOptions,
    mut on_progress: impl FnMut(Progress),
) -> Result<(Pulled, Vec<String>), ImageError> {
    let full = name::parse(&options.name)?;
    let work = async {
        let fetch = fetch_job(store, options, false);
        let (folder, failures) = match run_job(exe, fetch, &mut on_progress).await? {
            Outcome::Fetched(fetched) => match (fetched.id, fetched.folder) {
                (Some(id), _) => return Ok((Pulled::Unchanged(id), fetched.failures)),
                (None, Some(folder)) => (folder, fetched.failures),
                (None, None) => return Err(no_result()),
            },
            Outcome::Images(_) | Outcome::Document(_) | Outcome::Bundle(_) => {
                return Err(no_result());
            }
        };
        let import = import_job(store, options, &full, &folder);
        match run_job(exe, import, &mut on_progress).await? {
            Outcome::Images(images) => match images.into_iter().next() {
                Some(image) => Ok((Pulled::New(image), failures)),
                None => Err(no_result()),
            },
            Outcome::Fetched(_) | Outcome::Document(_) | Outcome::Bundle(_) => Err(no_result()),
        }
    };
    let given_up = async {
        abandoned.await;
        Err(ImageError::Abandoned)
    };
    smol::future::or(work, given_up).await
}

/// Runs `exe` to fetch an image, and imports nothing. Returns the OCI layout directory that has it, below `store`, which
/// has no images.
pub async fn fetch_layout(
    exe: &Path,
    store: &Path,
    options: &PullOptions,
    on_progress: impl FnMut(Progress),
) -> Result<PathBuf, ImageError> {
    fetch(exe, (store, options, false), on_progress).await
}

/// Runs `exe` to fetch a bundle with everything in it that the store lacks, and imports nothing. Returns the OCI layout
/// directory that has it.
pub async fn fetch_bundle(
    exe: &Path,
    store: &Path,
    options: &PullOptions,
    on_progress: impl FnMut(Progress),
) -> Result<PathBuf, ImageError> {
    fetch(exe, (store, options, true), on_progress).await
}

async fn fetch(
    exe: &Path,
    (store, options, bundle): (&Path, &PullOptions, bool),
    on_progress: impl FnMut(Progress),
) -> Result<PathBuf, ImageError> {
    match run_job(exe, fetch_job(store, options, bundle), on_progress).await? {
        Outcome::Fetched(fetched) => fetched.folder.ok_or_else(no_result),
        Outcome::Images(_) | Outcome::Document(_) | Outcome::Bundle(_) => Err(no_result()),
    }
}

fn no_result() -> ImageError {
    ImageError::Pull {
        message: "the worker ended without a result".to_owned(),
        hint: None,
        cause: Cause::Other,
    }
}

fn fetch_job(store: &Path, options: &PullOptions, bundle: bool) -> Job {
    let request = Request {
        store: store.to_owned(),
        name: options.name.clone(),
        platform: options.platform.clone(),
        bundle,
        sources: options.sources.clone(),
        plain_http: options.plain_http.clone(),
        certificates: options.certificates.clone(),
        trust: options.trust.clone(),
        keep_bytes: options.keep.bytes,
        keep_inodes: options.keep.inodes,
        bytes_per_second: options.bytes_per_second,
        patience: Patience::default(),
    };
    Job {
        args: vec!["fetch".into()],
        input: Some(serde_json::to_vec(&request).expect("plain data")),
    }
}

fn import_job(
    store: &Path,
    options: &PullOptions,
    full: &crate::spec::ImageName,
    folder: &Path,
) -> Job {
    let mut args = vec![
        "import".into(),
        "--store".into(),
        store.into(),
        "--pulled".into(),
    ];
    // A name with a digest is no name for the image: its tag may mean another one by now.
    if let Some(name) = name::tagged(full).filter(|_| full.digest.is_none()) {
        args.extend(["--name".into(), name.into()]);
    }
    if let Some(platform) = &options.platform {
        args.extend(["--platform".into(), platform.into()]);
    }
    if let Some(demand) = &options.trust {
        let demand = serde_json::to_string(demand).expect("plain data");
        args.extend(["--demand".into(), demand.into()]);
    }
    args.extend(["--keep-bytes".into(), options.keep.bytes.to_string().into()]);
    args.extend([
        "--keep-inodes".into(),
        options.keep.inodes.to_string().into(),
    ]);
    args.extend(["--".into(), folder.into()]);
    Job { args, input: None }
}
