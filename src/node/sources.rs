//! What is saved about the manifest files for an agent restart: the pods of each file, and the services in force.
//! Neither may be lost because a file is broken or out of reach at that moment.

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

/// The saved state by file. `recovered` are the running pods.
pub(super) fn inherited(
    layout: &Layout,
    recovered: Vec<Arc<PodSpec>>,
) -> BTreeMap<PathBuf, Inherited> {
    let mut inherited: BTreeMap<PathBuf, Inherited> = BTreeMap::new();
    let sources: BTreeMap<PodUid, PathBuf> = read(&layout.sources());
    for spec in recovered {
        // Pods from a file have their template as UID, or one derived from it.
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
                    tracing::warn!(
                        "service saved before the agent restart: {}, ignoring",
                        text.join("; ")
                    );
                }
            }
        }
    }
    inherited
}

/// Saves what is in force.
pub(super) fn write(layout: &Layout, manifests: &Manifests) {
    // A name that is not UTF-8 is found again only approximately, which costs no more than the grace of a broken
    // edit.
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

/// A missing or unreadable file counts as empty.
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
