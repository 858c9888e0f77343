//! What is saved about the manifest files for an agent restart: the pods of each file, and the services, configuration
//! documents and documents that stand for pods. None may be lost because a file is broken or out of reach at that moment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::manifests::{Inherited, MAX_TOTAL, Manifests};
use crate::effects::former_secrets;
use crate::layout::Layout;
use crate::spec::convert::{ConvertContext, Documents, documents};
use crate::spec::workload::cron;
use crate::spec::{PodSpec, PodUid};
use crate::sys::file::{self, Durability};
use crate::sys::zone;
use crate::types::{Gather, Wall};

/// The documents of a file that stand for pods.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Saved {
    /// When the file was written.
    modified: Wall,
    /// Their JSON, byte for byte: editions are hashes of it.
    documents: Vec<Box<RawValue>>,
}

/// The saved state by file. `recovered` are the running pods.
pub(super) fn inherited(
    layout: &Layout,
    recovered: Vec<Arc<PodSpec>>,
    context: &ConvertContext<'_>,
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
    for place in [layout.services(), layout.configuration()] {
        let saved: BTreeMap<PathBuf, Vec<serde_json::Value>> = read(&place);
        for (path, manifests) in saved {
            let from = inherited.entry(path).or_default();
            for manifest in manifests {
                let json = serde_json::to_vec(&manifest).expect("plain data");
                let Some(found) = restored(&json, ConvertContext::of("")) else {
                    continue;
                };
                from.services.extend(found.services);
                let objects = found.configuration.iter().map(|(_, object)| object);
                from.configuration.extend(objects);
            }
        }
    }
    let saved: BTreeMap<PathBuf, Saved> = read(&layout.workloads());
    for (path, file) in saved {
        let from = inherited.entry(path).or_default();
        from.modified = file.modified;
        for document in file.documents {
            let json = document.get().as_bytes();
            let context = ConvertContext {
                zones: &zone::read(cron::zones(json)),
                pod_security: context.pod_security,
                ..ConvertContext::of(context.node_name)
            };
            from.add_workloads(restored(json, context));
        }
    }
    inherited
}

impl Inherited {
    /// Adds documents and the pods that they ask for. Pods of a former template are left to the planner's rollout.
    fn add_workloads(&mut self, found: Option<Documents>) {
        let Some(found) = found else { return };
        let is_of = |pod: &Arc<PodSpec>| {
            let of = pod.workload.as_ref();
            found.workloads.iter().any(|w| Some(&w.key) == of)
        };
        let (running, mut pods): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.pods).into_iter().partition(is_of);
        for pod in found.pods {
            let same = running.iter().find(|running| running.uid == pod.uid);
            pods.push(same.map_or_else(|| Arc::new(pod), Arc::clone));
        }
        self.pods = pods;
        self.workloads.extend(found.workloads);
    }
}

/// The objects of a saved document. What an earlier version has let in goes on.
fn restored(json: &[u8], context: ConvertContext<'_>) -> Option<Documents> {
    let context = ConvertContext {
        admitted: true,
        ..context
    };
    match documents(json, "saved", &context) {
        Ok(found) => Some(found),
        Err(errors) => {
            let text: Vec<String> = errors.iter().map(ToString::to_string).collect();
            tracing::warn!(
                "document saved before the agent restart: {}, ignoring",
                text.join("; ")
            );
            None
        }
    }
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
        .gather();
    replace(&layout.sources(), &sources);
    let mut services: BTreeMap<String, Vec<&core::Service>> = BTreeMap::new();
    for (path, service) in manifests.services() {
        services.entry(text(path)).or_default().push(service);
    }
    replace(&layout.services(), &services);
    let mut configuration: BTreeMap<String, Vec<serde_json::Value>> = BTreeMap::new();
    for (path, own) in manifests.configuration() {
        let objects = own.iter().map(|(_, object)| object.manifest());
        configuration.insert(text(path), objects.collect());
    }
    // What pods were started with stays known, over an agent restart, too.
    let next = serde_json::to_vec(&configuration).expect("plain data");
    if let Err(error) = former_secrets::keep(layout, &next) {
        tracing::warn!("could not keep the former values of Secrets: {error}, going on");
    }
    put(&layout.configuration(), &next);
    let mut workloads = BTreeMap::new();
    for (path, modified, own) in manifests.workloads() {
        let documents = own.filter_map(|w| serde_json::from_str(&w.manifest.text()).ok());
        let documents = documents.collect();
        workloads.insert(
            text(path),
            Saved {
                modified,
                documents,
            },
        );
    }
    replace(&layout.workloads(), &workloads);
}

/// A missing or unreadable file counts as empty.
fn read<T: DeserializeOwned + Default>(path: &Path) -> T {
    // Beyond all that manifest files may hold together, encoded.
    let noted = file::read_bounded(path, 4 * MAX_TOTAL).ok();
    noted
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

fn replace(path: &Path, content: &impl Serialize) {
    put(path, &serde_json::to_vec(content).expect("plain data"));
}

fn put(path: &Path, bytes: &[u8]) {
    if let Err(error) = file::replace(path, bytes, 0o600, Durability::Process) {
        tracing::warn!("could not write `{}`: {error}, going on", path.display());
    }
}
