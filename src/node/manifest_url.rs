//! Manifests from a web server (`staticPodURL`): fetched by a worker, and kept on disk for a start without a network.
//!
//! ```text
//! <root>/static-pod-url/manifests.yaml  the last good document; a manifest file like any other
//! <root>/static-pod-url/source.json     the URL, and once the document is there its `ETag`
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use smol::channel::Sender;

use super::execute::{Tools, WORKER};
use crate::config::StaticPodUrl;
use crate::images::registry::{self, DocumentRequest, WebDocument};
use crate::spec::PodSecurity;
use crate::spec::convert::{ConvertContext, documents};
use crate::spec::workload::cron;
use crate::sys::file::{self, Durability};
use crate::sys::{tree, zone};

/// Name of the manifest file.
const MANIFESTS: &str = "manifests.yaml";

/// Failures in a row that are logged; a network that is away for a month would fill the log.
const LOGGED: u32 = 3;

/// What the stored document is.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Source {
    url: String,
    #[serde(default)]
    etag: Option<String>,
}

/// The manifest file that is fetched from there.
pub(super) fn manifests(folder: &Path) -> PathBuf {
    folder.join(MANIFESTS)
}

/// Forgets the document of another URL. For the start, before manifests are read.
pub(super) fn begin(folder: &Path, wanted: Option<&StaticPodUrl>) -> io::Result<()> {
    match wanted {
        Some(wanted) if read(folder).is_some_and(|source| source.url == wanted.url) => Ok(()),
        Some(_) | None => tree::remove(folder),
    }
}

fn read(folder: &Path) -> Option<Source> {
    let bytes = file::read_record(folder.join("source.json")).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn write(folder: &Path, source: &Source) -> io::Result<()> {
    let record = serde_json::to_vec(source)?;
    let to = folder.join("source.json");
    file::replace(&to, &record, 0o600, Durability::PowerCut)
}

/// Looks for a new document again and again. Each one that was stored is a message to `changed`.
pub(super) async fn poll(tools: Tools, wanted: StaticPodUrl, changed: Sender<()>) {
    let mut failures = 0;
    // A document with an error is not parsed again, and not asked for again while its server has an `ETag` for it.
    let mut refused: Option<WebDocument> = None;
    loop {
        match fetch(&tools, &wanted, &mut refused).await {
            Ok(stored) => {
                if failures > LOGGED {
                    tracing::info!("`staticPodURL` can be fetched again");
                }
                failures = 0;
                if stored {
                    // A message that waits already says the same.
                    let _ = changed.try_send(());
                }
            }
            Err(why) => {
                failures += 1;
                if failures <= LOGGED {
                    tracing::warn!("`staticPodURL`: {why}, keeping its last good manifests");
                }
            }
        }
        smol::Timer::after(Duration::from_millis(wanted.every_ms)).await;
    }
}

/// One look; `true` if there is a new document.
async fn fetch(
    tools: &Tools,
    wanted: &StaticPodUrl,
    refused: &mut Option<WebDocument>,
) -> Result<bool, String> {
    let folder = tools.config.layout.manifest_url();
    let registries = &tools.config.registries;
    let held = match refused {
        Some(document) => document.etag.clone(),
        None => read(&folder).and_then(|source| source.etag),
    };
    let request = DocumentRequest {
        url: wanted.url.clone(),
        headers: wanted.headers.clone(),
        etag: held,
        plain_http: registries.plain_http.clone(),
        certificates: registries.certificate_dirs.clone(),
    };
    let fetched = registry::fetch_document(WORKER.as_ref(), &request).await;
    let fetched = fetched.map_err(|why| match why.hint() {
        Some(hint) => format!("{}; {hint}", crate::chain(&why)),
        None => crate::chain(&why),
    })?;
    let Some(document) = fetched else {
        return Ok(false);
    };
    if refused
        .as_ref()
        .is_some_and(|old| old.text == document.text)
    {
        return Ok(false);
    }
    let (node_name, pod_security) = (tools.config.node_name.clone(), tools.config.pod_security);
    let source = Source {
        url: wanted.url.clone(),
        etag: document.etag.clone(),
    };
    let (taken, text) = super::unblock(move || {
        let node = (&*node_name, pod_security);
        let taken = store(&folder, &source, &document.text, node);
        (taken, document)
    })
    .await;
    *refused = match &taken {
        Err(StoreError::Invalid(_)) => Some(text),
        Ok(_) | Err(StoreError::Disk(_)) => None,
    };
    taken.map_err(|why| match why {
        StoreError::Invalid(errors) => errors,
        StoreError::Disk(why) => format!("could not write its manifests: {why}"),
    })
}

enum StoreError {
    /// The document has errors; all of them.
    Invalid(String),
    Disk(io::Error),
}

/// Stores a document without errors; `false` if it is there already. `node`: its name, and the level that pods may not
/// exceed there. What depends on other files, such as names that are taken, is checked when it is read as a manifest
/// file.
fn store(
    folder: &Path,
    source: &Source,
    text: &str,
    node: (&str, PodSecurity),
) -> Result<bool, StoreError> {
    let path = manifests(folder);
    let old = file::read_record(&path).ok();
    let same = old.is_some_and(|old| old == text.as_bytes());
    if same && read(folder).as_ref() == Some(source) {
        return Ok(false);
    }
    let (node_name, pod_security) = node;
    let context = ConvertContext {
        pod_security,
        zones: &zone::read(cron::zones(text.as_bytes())),
        ..ConvertContext::of(node_name)
    };
    documents(text.as_bytes(), MANIFESTS, &context).map_err(|errors| {
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        StoreError::Invalid(errors.join("; "))
    })?;
    let keep = || {
        file::make_dirs(folder, 0o700)?;
        if !same {
            // Until the document is there nothing names it: after a power cut in between it is fetched again.
            let unnamed = Source {
                url: source.url.clone(),
                etag: None,
            };
            write(folder, &unnamed)?;
            file::replace(&path, text.as_bytes(), 0o600, Durability::PowerCut)?;
        }
        write(folder, source)
    };
    keep().map_err(StoreError::Disk)?;
    Ok(!same)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: 'i:1'}]}\n";

    fn source(url: &str, etag: Option<&str>) -> Source {
        Source {
            url: url.to_owned(),
            etag: etag.map(str::to_owned),
        }
    }

    #[test]
    fn the_last_good_document_stays_until_the_url_changes() {
        let folder = std::env::temp_dir().join(format!("coracle-url-{}", std::process::id()));
        let wanted = |url: &str| StaticPodUrl {
            url: url.to_owned(),
            headers: vec![],
            every_ms: 1000,
        };
        let first = source("http://a/", Some("\"1\""));
        let is_stored = |result: Result<bool, StoreError>| result.ok();
        let store = |folder: &Path, source: &Source, text: &str, node| {
            store(folder, source, text, (node, PodSecurity::Privileged))
        };
        assert_eq!(is_stored(store(&folder, &first, POD, "node")), Some(true));
        assert_eq!(is_stored(store(&folder, &first, POD, "node")), Some(false));
        let second = source("http://a/", Some("\"2\""));
        assert!(store(&folder, &second, "kind: Pod", "node").is_err());
        assert_eq!(read(&folder), Some(first));
        // The same text by another name.
        assert_eq!(is_stored(store(&folder, &second, POD, "node")), Some(false));
        assert_eq!(read(&folder), Some(second));
        begin(&folder, Some(&wanted("http://a/"))).unwrap();
        assert_eq!(std::fs::read_to_string(manifests(&folder)).unwrap(), POD);
        begin(&folder, Some(&wanted("http://b/"))).unwrap();
        assert!(!folder.exists());
        begin(&folder, None).unwrap();
    }

    #[test]
    fn a_document_that_this_node_refuses_does_not_replace_the_last_good_one() {
        let folder = std::env::temp_dir().join(format!("coracle-urls-{}", std::process::id()));
        let privileged = POD.replace("name: c,", "name: c, securityContext: {privileged: true},");
        let cron = |zone: &str| {
            format!(
                "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: a}}\nspec:\n  schedule: '@hourly'\n  \
                 timeZone: {zone}\n  jobTemplate: {{spec: {{template: {{spec: {{restartPolicy: Never, \
                 containers: [{{name: c, image: 'i:1'}}]}}}}}}}}\n"
            )
        };
        let utc = cron("Etc/UTC");
        let nowhere = cron("Etc/Nowhere");
        for (text, level, expected) in [
            (POD, PodSecurity::Baseline, Some(true)),
            (&privileged, PodSecurity::Baseline, None),
            (&nowhere, PodSecurity::Baseline, None),
            (&privileged, PodSecurity::Privileged, Some(true)),
            (&utc, PodSecurity::Privileged, Some(true)),
        ] {
            let before = std::fs::read_to_string(manifests(&folder)).ok();
            let stored = store(&folder, &source("http://a/", None), text, ("n", level)).ok();
            assert_eq!(stored, expected, "{text}");
            let after = std::fs::read_to_string(manifests(&folder)).ok();
            let wanted = expected.map(|_| text.to_owned()).or(before);
            assert_eq!(after, wanted);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
