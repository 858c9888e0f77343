//! What has the next agent to know of the manifest files? Which file asked for which pod, and the services as they were
//! in force: neither may be lost because a file is broken, or out of reach, just when an agent starts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::manifests::{Inherited, Manifests};
use crate::layout::Layout;
use crate::spec::convert::{ConvertContext, documents};
use crate::spec::{PodSpec, PodUid};
use crate::sys::file::{self, Durability};

/// What the former agent noted, by file. `recovered` are the pods that still run.
pub(super) fn inherited(
    layout: &Layout,
    recovered: Vec<Arc<PodSpec>>,
) -> BTreeMap<PathBuf, Inherited> {
    let mut inherited: BTreeMap<PathBuf, Inherited> = BTreeMap::new();
    let sources: BTreeMap<PodUid, PathBuf> = read(&layout.sources());
    for spec in recovered {
        // A file knows its pods by what they are made from, or as an earlier agent left them.
        let known = sources.get(&spec.template);
        if let Some(path) = known.or_else(|| sources.get(&spec.uid)) {
            let from = inherited.entry(path.clone()).or_default();
            from.pods.push(spec);
        }
    }
    let services: BTreeMap<PathBuf, Vec<serde_json::Value>> = read(&layout.services());
    for (path, manifests) in services {
        let from = inherited.entry(path).or_default();
        for manifest in manifests {
            let json = serde_json::to_vec(&manifest).expect("plain data");
            let context = ConvertContext { node_name: "" };
            match documents(&json, "services.json", &context) {
                Ok(found) => from.services.extend(found.services),
                Err(errors) => {
                    let text: Vec<String> = errors.iter().map(ToString::to_string).collect();
                    tracing::warn!("service of a former agent: {}, ignoring", text.join("; "));
                }
            }
        }
    }
    inherited
}

/// Notes what is in force.
pub(super) fn write(layout: &Layout, manifests: &Manifests) {
    // A name that is not UTF-8 is found again only by its like, which costs a broken edit its grace, no more.
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let sources: BTreeMap<PodUid, String> = manifests
        .sources()
        .into_iter()
        .map(|(uid, path)| (uid, text(&path)))
        .collect();
    replace(&layout.sources(), &sources);
    let mut services: BTreeMap<String, Vec<&core::Service>> = BTreeMap::new();
    for (path, service) in manifests.services() {
        services.entry(text(path)).or_default().push(service);
    }
    replace(&layout.services(), &services);
}

/// Nothing there, or nothing that can be read, is nothing noted.
fn read<T: DeserializeOwned + Default>(path: &Path) -> T {
    let noted = file::read_record(path).ok();
    noted
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

fn replace(path: &Path, content: &impl Serialize) {
    let bytes = serde_json::to_vec(content).expect("plain data");
    if let Err(error) = file::replace(path, &bytes, 0o600, Durability::Process) {
        tracing::warn!("could not write `{}`: {error}, going on", path.display());
    }
}
