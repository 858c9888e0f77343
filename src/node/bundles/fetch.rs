//! Where a bundle's archive comes from, and who must have signed it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::apply::ApplyError;
use crate::api::BundleRequest;
use crate::images::registry::{BundleFetch, remove_damaged_blobs};
use crate::images::trust::PublicKey;
use crate::images::{self, Bundle, Cause, ImageError, Progress};
use crate::node::execute::{Tools, WORKER};
use crate::node::unblock;
use crate::spec::ImageName;
use crate::sys::{file, tree};

/// What a source in a registry begins with.
const REGISTRY: &str = "oci://";

/// What polling adds to a request.
#[derive(Debug, Clone, Default)]
pub(super) struct Polled {
    /// The file with the key that must have signed it, beside that of the node.
    pub(super) key: Option<PathBuf>,
    /// Digests with which there is nothing to do.
    pub(super) settled: BTreeSet<String>,
    /// What the web server names an archive by with which there is nothing to do.
    pub(super) validator: Option<String>,
}

/// A bundle's archive.
#[derive(Debug)]
pub(super) struct Archive {
    /// A file, or an OCI layout directory.
    pub(super) path: PathBuf,
    /// What is to be removed once it is in the store.
    downloaded: Option<PathBuf>,
    /// What a web server names it by.
    pub(super) validator: Option<String>,
    polled: bool,
}

/// Whether the source is a web server.
fn is_url(source: &str) -> bool {
    source.starts_with("https://") || source.starts_with("http://")
}

/// The source as it is shown: the query of a URL may give access.
pub(super) fn shown(source: &str) -> &str {
    match is_url(source) {
        true => source.split(['?', '#']).next().unwrap_or(source),
        false => source,
    }
}

/// What a source is called, however it is written: downloads of one are in turn.
pub(super) fn place(source: &str) -> String {
    let name = source.strip_prefix(REGISTRY).unwrap_or(source);
    ImageName::parse(name).map_or_else(|_| name.to_owned(), |name| name.in_full())
}

/// Fetches the archive; or returns the digest with which there is nothing to do, empty if it is that of a web server.
pub(super) async fn fetch(
    tools: &Tools,
    source: &str,
    polled: Option<&Polled>,
    tell: impl FnMut(Progress),
) -> Result<Result<Archive, String>, ImageError> {
    let name = source.strip_prefix(REGISTRY);
    let Some(name) = name.or(is_url(source).then_some(source)) else {
        return Ok(Ok(Archive {
            path: source.into(),
            downloaded: None,
            validator: None,
            polled: false,
        }));
    };
    let known: Vec<String> = match polled {
        Some(polled) if is_url(source) => polled.validator.iter().cloned().collect(),
        Some(polled) => polled.settled.iter().cloned().collect(),
        None => Vec::new(),
    };
    Ok(match tools.fetch_bundle(name, &known, tell).await? {
        BundleFetch::Known(digest) => Err(digest),
        BundleFetch::At { path, validator } => Ok(Archive {
            downloaded: match is_url(source) {
                true => path.parent().map(Path::to_owned),
                false => Some(path.clone()),
            },
            path,
            validator,
            polled: polled.is_some(),
        }),
    })
}

impl Archive {
    /// Reads the bundle; one of each list of keys must have signed it. A download that is damaged is removed: it may have
    /// been put together of pieces that do not fit.
    pub(super) async fn read(
        &self,
        tools: &Tools,
        keys: &[Vec<String>],
    ) -> Result<Bundle, ImageError> {
        let (exe, store, keep) = (WORKER.as_ref(), tools.images.dir(), tools.keep_free());
        let none = [Vec::new()];
        let mut found = None;
        for keys in if keys.is_empty() { &none[..] } else { keys } {
            let read = images::read_bundle(exe, store, &self.path, keys, keep).await;
            let bundle = match self.checked(read).await? {
                // A file may be replaced meanwhile.
                bundle if found.as_ref().is_some_and(|first| *first != bundle) => {
                    return Err(ImageError::Changed {
                        path: self.path.clone(),
                    });
                }
                bundle => bundle,
            };
            found = Some(bundle);
        }
        Ok(found.expect("there is at least one list"))
    }

    /// Removes what was downloaded if this failure says that it is damaged. Polling leaves what is damaged at its server,
    /// an archive with a strong `ETag` or blobs that are what their digests say: it would be downloaded each time.
    pub(super) async fn checked<T>(&self, done: Result<T, ImageError>) -> Result<T, ImageError> {
        let strong = |named: &String| named.starts_with('"');
        let damaged = |why: &ImageError| why.cause() == Cause::Damaged;
        if done.as_ref().is_err_and(damaged) {
            let keeps = match self.downloaded.clone() {
                _ if !self.polled => false,
                // From a registry.
                Some(folder) if folder == self.path => {
                    let mended = unblock(move || remove_damaged_blobs(&folder)).await;
                    mended.is_ok()
                }
                _ => self.validator.as_ref().is_some_and(strong),
            };
            if !keeps {
                self.discard().await;
            }
        }
        done
    }

    /// Removes what was downloaded.
    pub(super) async fn discard(&self) {
        if let Some(downloaded) = self.downloaded.clone() {
            // Otherwise it is collected later.
            let _ = unblock(move || tree::remove(&downloaded)).await;
        }
    }
}

/// Lists of keys: one of each must have signed the bundle. A client's key counts instead of the node's, that of what is
/// polled beside it.
pub(super) async fn keys(
    tools: &Tools,
    request: &BundleRequest,
    polled: Option<&Polled>,
) -> Result<Vec<Vec<String>>, ApplyError> {
    if let Some(key) = &request.key {
        return Ok(vec![vec![key.clone()]]);
    }
    let own = tools.config.bundle_key.clone();
    let own = own.map(|path| ("coracle.bundleKey", path));
    let more = polled.and_then(|polled| polled.key.clone());
    let more = more.map(|path| ("coracle.bundle.key", path));
    let read = unblock(move || {
        let each = |(setting, path): (&'static str, PathBuf)| {
            PublicKey::read(&path).map_err(|why| ApplyError::Key(setting, why))?;
            let bytes = file::read_record(&path).unwrap_or_default();
            Ok(vec![String::from_utf8_lossy(&bytes).into_owned()])
        };
        own.into_iter().chain(more).map(each).collect()
    });
    read.await
}
