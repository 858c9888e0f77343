//! Bundles on the agent's side: workers that read and import them.

use std::ffi::OsString;
use std::path::Path;

use super::super::client::{Job, Outcome, Told, run_job};
use super::super::error::ImageError;
use super::super::progress::{Cause, Imported, Progress};
use super::super::space::KeepFree;
use super::Bundle;

/// Runs `exe` (coracle's own binary) to read a bundle's documents. Nothing is imported. If there are `keys`, public ones
/// in PEM, one of them must have signed it.
pub async fn read_bundle(
    exe: &Path,
    store: &Path,
    archive: &Path,
    keys: &[String],
    keep: KeepFree,
) -> Result<Bundle, ImageError> {
    let args: [OsString; 9] = [
        "bundle".into(),
        "--store".into(),
        store.into(),
        "--keep-bytes".into(),
        keep.bytes.to_string().into(),
        "--keep-inodes".into(),
        keep.inodes.to_string().into(),
        "--".into(),
        archive.into(),
    ];
    let keys = serde_json::to_vec(keys).expect("plain data");
    let job = Job::with_input(args.into(), keys);
    match run_job(exe, job, |_| {}).await? {
        Outcome::Bundle(bundle) => Ok(*bundle),
        Outcome::Images(_) | Outcome::Fetched(_) | Outcome::Document(_) => Err(no_result()),
    }
}

/// Imports the images of the bundle with this digest. The images get no names yet: what runs must not find a newer image
/// by its name before the bundle is in force. They must satisfy the `policy`; if they are `vouched` for by a verified
/// signature of the bundle, they only must not be rejected.
pub async fn import_bundle(
    exe: &Path,
    store: &Path,
    (archive, digest): (&Path, &str),
    (policy, vouched, keep): (&Path, bool, KeepFree),
    mut on_progress: impl FnMut(Progress),
) -> Result<Vec<Imported>, ImageError> {
    let args: [OsString; 9] = [
        "import".into(),
        "--store".into(),
        store.into(),
        "--bundle".into(),
        digest.into(),
        "--keep-bytes".into(),
        keep.bytes.to_string().into(),
        "--keep-inodes".into(),
        keep.inodes.to_string().into(),
    ];
    let mut args = Vec::from(args);
    args.extend(["--policy".into(), policy.into()]);
    args.extend(vouched.then(|| "--vouched".into()));
    args.extend(["--".into(), archive.into()]);
    let on_line = |told| {
        if let Told::Progress(progress) = told {
            on_progress(progress);
        }
    };
    let job = Job::with_input(args, Vec::new());
    match run_job(exe, job, on_line).await? {
        Outcome::Images(images) => Ok(images),
        Outcome::Bundle(_) | Outcome::Fetched(_) | Outcome::Document(_) => Err(no_result()),
    }
}

fn no_result() -> ImageError {
    ImageError::Pull {
        message: "the worker ended without a result".to_owned(),
        hint: None,
        cause: Cause::Other,
    }
}
