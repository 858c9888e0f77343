//! A pull on the agent's side: a worker that fetches, and beside it one that imports. Both are killed when the future is
//! dropped; what has been downloaded and unpacked stays for the next pull.

use std::cell::RefCell;
use std::future::Future;
use std::path::{Path, PathBuf};

use smol::channel::{Receiver, bounded, unbounded};

use super::super::client::{Job, Outcome, Told, run_job};
use super::super::error::{ImageError, io as io_error};
use super::super::layers::ALL_ARRIVED;
use super::super::name;
use super::super::progress::{Cause, Fetched, Imported, Progress};
use super::super::space::KeepFree;
use super::super::trust::Demand;
use super::partial::BOOT_ID;
use super::request::{Patience, Request, Source};
use crate::sys::file::read_text;
use crate::types::image_access::Accesses;

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
    /// Who may use the image, if it is pulled for a pod.
    pub access: Accesses,
}

/// The result of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pulled {
    /// The image was imported.
    New(Imported),
    /// The store has what the registry has: the image's id.
    Unchanged(String),
}

impl Pulled {
    /// The image's id.
    pub fn id(&self) -> &str {
        match self {
            Self::New(image) => &image.id,
            Self::Unchanged(id) => id,
        }
    }
}

/// Where an image came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Served {
    /// What mirrors said that could not serve it.
    pub failures: Vec<String>,
    /// Which login of all sources was accepted for the manifest, from 0; a source without any counts as one.
    pub login: usize,
}

/// Runs `exe` (coracle's own binary) to pull an image into the store, until `abandoned` is ready. Layers are unpacked as
/// they arrive.
pub async fn pull_unless(
    abandoned: impl Future<Output = ()>,
    exe: &Path,
    store: &Path,
    options: &PullOptions,
    on_progress: impl FnMut(Progress),
) -> Result<(Pulled, Served), ImageError> {
    let full = name::parse(&options.name)?;
    let boot = boot_id()?;
    let on_progress = RefCell::new(on_progress);
    let (resolve, resolved) = bounded(1);
    let (arrive, arrived) = unbounded();
    // Neither waits for the other: one that fails ends both.
    let fetch = async {
        let (resolve, arrive) = (resolve, arrive);
        let on_line = |told| match told {
            Told::Progress(progress) => on_progress.borrow_mut()(progress),
            Told::Resolved(folder) => drop(resolve.try_send(folder)),
            Told::Arrived(digest) => drop(arrive.try_send(line(&digest))),
        };
        match run_job(exe, fetch_job(store, options, None), on_line).await? {
            Outcome::Fetched(fetched) => {
                drop(arrive.try_send(line(ALL_ARRIVED)));
                let served = Served {
                    failures: fetched.failures,
                    login: fetched.login,
                };
                Ok((fetched.id, served))
            }
            Outcome::Images(_) | Outcome::Document(_) | Outcome::Bundle(_) => Err(no_result()),
        }
    };
    let import = async {
        // What is in the store already is not imported.
        let Ok(folder) = resolved.recv().await else {
            return Ok(None);
        };
        let import = Import {
            folder: &folder,
            boot: &boot,
            arrived,
        };
        let on_line = |told| {
            if let Told::Progress(progress) = told {
                on_progress.borrow_mut()(progress);
            }
        };
        match run_job(exe, import_job(store, options, &full, import), on_line).await? {
            Outcome::Images(images) => Ok(images.into_iter().next()),
            Outcome::Fetched(_) | Outcome::Document(_) | Outcome::Bundle(_) => Err(no_result()),
        }
    };
    let work = async {
        let ((id, served), image) = smol::future::try_zip(fetch, import).await?;
        let pulled = match (id, image) {
            (Some(id), _) => Pulled::Unchanged(id),
            (None, Some(image)) => Pulled::New(image),
            (None, None) => return Err(no_result()),
        };
        Ok((pulled, served))
    };
    let given_up = async {
        abandoned.await;
        Err(ImageError::Abandoned)
    };
    smol::future::or(work, given_up).await
}

fn line(text: &str) -> Vec<u8> {
    format!("{text}\n").into_bytes()
}

fn boot_id() -> Result<String, ImageError> {
    let id = read_text(BOOT_ID).map_err(io_error("read", Path::new(BOOT_ID)))?;
    Ok(id.trim().to_owned())
}

/// Runs `exe` to fetch an image, and imports nothing. Returns the OCI layout directory that has it, below `store`, which
/// has no images.
pub async fn fetch_layout(
    exe: &Path,
    store: &Path,
    options: &PullOptions,
    on_progress: impl FnMut(Progress),
) -> Result<PathBuf, ImageError> {
    let fetched = fetch(exe, (store, options, None), on_progress).await?;
    fetched.folder.ok_or_else(no_result)
}

/// A bundle that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BundleFetch {
    /// It is known: its digest; empty if it is an archive.
    Known(String),
    /// It has arrived.
    At {
        /// The OCI layout directory, or archive.
        path: PathBuf,
        /// What a web server names the archive by.
        validator: Option<String>,
    },
}

/// Runs `exe` to fetch a bundle with everything in it that the store lacks, and imports nothing. The options' name may
/// be the URL of an archive on a web server. Nothing is fetched if it is `known`, by its digest or by what the server
/// names the archive by.
pub async fn fetch_bundle(
    exe: &Path,
    store: &Path,
    (options, known): (&PullOptions, &[String]),
    on_progress: impl FnMut(Progress),
) -> Result<BundleFetch, ImageError> {
    let fetched = fetch(exe, (store, options, Some(known)), on_progress).await?;
    match (fetched.folder, fetched.id) {
        (Some(path), _) => Ok(BundleFetch::At {
            path,
            validator: fetched.validator,
        }),
        (None, Some(digest)) => Ok(BundleFetch::Known(digest)),
        (None, None) => Err(no_result()),
    }
}

async fn fetch(
    exe: &Path,
    (store, options, bundle): (&Path, &PullOptions, Option<&[String]>),
    mut on_progress: impl FnMut(Progress),
) -> Result<Fetched, ImageError> {
    let on_line = |told| {
        if let Told::Progress(progress) = told {
            on_progress(progress);
        }
    };
    match run_job(exe, fetch_job(store, options, bundle), on_line).await? {
        Outcome::Fetched(fetched) => Ok(fetched),
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

fn fetch_job(store: &Path, options: &PullOptions, bundle: Option<&[String]>) -> Job {
    let request = Request {
        store: store.to_owned(),
        name: options.name.clone(),
        platform: options.platform.clone(),
        bundle: bundle.is_some(),
        known: bundle.unwrap_or_default().to_vec(),
        sources: options.sources.clone(),
        plain_http: options.plain_http.clone(),
        certificates: options.certificates.clone(),
        trust: options.trust.clone(),
        keep_bytes: options.keep.bytes,
        keep_inodes: options.keep.inodes,
        bytes_per_second: options.bytes_per_second,
        patience: Patience::default(),
    };
    let request = serde_json::to_vec(&request).expect("plain data");
    Job::with_input(vec!["fetch".into()], request)
}

/// An import that goes on beside its download.
struct Import<'a> {
    folder: &'a Path,
    boot: &'a str,
    /// Lines about what has arrived.
    arrived: Receiver<Vec<u8>>,
}

fn import_job(
    store: &Path,
    options: &PullOptions,
    full: &crate::spec::ImageName,
    import: Import<'_>,
) -> Job {
    let mut args = vec![
        "import".into(),
        "--store".into(),
        store.into(),
        "--pulled".into(),
        "--arriving".into(),
        import.boot.into(),
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
    if !options.access.is_empty() {
        let access = serde_json::to_string(&options.access).expect("plain data");
        args.extend(["--access".into(), access.into()]);
    }
    args.extend(["--keep-bytes".into(), options.keep.bytes.to_string().into()]);
    args.extend([
        "--keep-inodes".into(),
        options.keep.inodes.to_string().into(),
    ]);
    args.extend(["--".into(), import.folder.into()]);
    Job {
        args,
        input: import.arrived,
    }
}
