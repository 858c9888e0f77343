//! One file: what is in effect of it, and what its newest version says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::scheduling::v1::PriorityClass;

use super::files::{Fingerprint, read};
use super::{MAX_OBJECTS, MAX_TOTAL, instead};
use crate::api::DocumentCounts;
use crate::effects::credential::Credentials;
use crate::plan::status;
use crate::spec::conflicts::Defines;
use crate::spec::convert::{self, ConvertContext};
use crate::spec::encrypted::{self, Outcome, Sealed};
use crate::spec::priority::{Others, PriorityClasses};
use crate::spec::workload::{cron, pod_names};
use crate::spec::{Configuration, PodKey, PodSecurity, PodSpec, ServiceDocument, Workload};
use crate::sys::zone;
use crate::types::{Gather, Wall};

/// A file that changed without being closed is read once it has stayed the same for this long. A removed file counts
/// as gone after the same time.
pub(super) const SETTLE_MS: u64 = 500;

/// A file that is known to be still open, and has lost documents, is read once it has stayed the same for this long: a copy
/// over a slow link may stall between two documents.
pub(super) const UNCLOSED_MS: u64 = 30_000;

/// A version of a file that is valid by itself.
#[derive(Debug, Clone)]
pub(in crate::node) struct Loaded {
    pub(in crate::node) pods: Vec<Arc<PodSpec>>,
    pub(in crate::node) services: Vec<ServiceDocument>,
    pub(in crate::node) classes: Vec<PriorityClass>,
    pub(in crate::node) configuration: Configuration,
    /// The documents that stand for some of the pods.
    pub(in crate::node) workloads: Vec<Arc<Workload>>,
    pub(super) warnings: Vec<String>,
    /// What something else is in force of.
    pub(super) own: instead::Own,
    /// Why it is.
    pub(super) notes: Vec<String>,
    pub(super) modified: Wall,
}

impl Defines for Loaded {
    fn pods(&self) -> impl Iterator<Item = &PodSpec> {
        self.pods.iter().map(Arc::as_ref)
    }

    fn services(&self) -> &[ServiceDocument] {
        &self.services
    }

    fn classes(&self) -> &[PriorityClass] {
        &self.classes
    }

    fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    fn workloads(&self) -> impl Iterator<Item = &Workload> {
        self.workloads.iter().map(Arc::as_ref)
    }
}

/// The objects that a file defined before an agent restart.
#[derive(Debug, Clone, Default)]
pub(in crate::node) struct Inherited {
    /// Its running pods.
    pub(in crate::node) pods: Vec<Arc<PodSpec>>,
    /// Its services, with the node ports they had.
    pub(in crate::node) services: Vec<ServiceDocument>,
    /// Its configuration documents.
    pub(in crate::node) configuration: Configuration,
    /// Its documents that stand for pods.
    pub(in crate::node) workloads: Vec<Workload>,
    /// When it was written.
    pub(in crate::node) modified: Wall,
}

#[derive(Debug, Default)]
pub(super) struct Entry {
    /// The version that was read last.
    pub(super) read: Option<Fingerprint>,
    /// A version not read yet, and when it was first seen.
    pub(super) unsettled: Option<(Fingerprint, u64)>,
    /// A version that is not taken yet, because it lacks objects in force and may not be whole.
    pub(super) held: Option<Fingerprint>,
    /// Since when the file has been missing. An editor may be about to write it again.
    pub(super) away_since: Option<u64>,
    /// The version in effect.
    pub(super) applied: Option<Arc<Loaded>>,
    /// A newer valid version that another file keeps from taking effect.
    pub(super) candidate: Option<Arc<Loaded>>,
    /// Whether the newest version did not fit beside the other files.
    pub(super) crowded: bool,
    /// Its encrypted contents, by digest.
    pub(super) sealed: Vec<[u8; 32]>,
    /// Whether some of them could not be decrypted, and when to try again, if that is known already.
    pub(super) undecrypted: Option<Option<u64>>,
    /// The errors of the newest version.
    pub(super) errors: Vec<String>,
    /// Its conflicts with other files.
    pub(super) conflicts: Vec<String>,
    pub(super) modified: Wall,
}

/// What the files are read with.
pub(super) struct Reader<'r> {
    pub(super) node_name: &'r str,
    pub(super) pod_security: PodSecurity,
    pub(super) classes: &'r PriorityClasses,
    pub(super) credentials: &'r Credentials,
}

/// When a version of a file is to be read.
#[derive(Debug)]
pub(super) enum Due {
    /// It has been read.
    Never,
    Now,
    /// After so many milliseconds, unless it changes again.
    In(u64),
}

/// Shares each of these. A plain `collect` would keep the list in the much larger memory of the one it comes from.
fn shared<T>(all: Vec<T>) -> Vec<Arc<T>> {
    let mut shared = Vec::with_capacity(all.len());
    shared.extend(all.into_iter().map(Arc::new));
    shared
}

impl Loaded {
    /// A file's content as of this time.
    pub(super) fn read(
        bytes: &[u8],
        name: &str,
        context: &ConvertContext<'_>,
        classes: &PriorityClasses,
        modified: Wall,
    ) -> Result<Self, Vec<String>> {
        let found = convert::documents_beside(bytes, name, context, Others::All(classes))
            .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        let warnings = found.all_warnings();
        let (mut services, mut workloads) = (found.services, found.workloads);
        for workload in &mut workloads {
            workload.modified = modified;
        }
        for service in &mut services {
            // A stand-in for a creation time that stays the same over agent restarts.
            service.manifest.metadata.creation_timestamp = Some(status::time(modified));
        }
        Ok(Self {
            pods: shared(found.pods),
            services,
            classes: found.priority_classes,
            configuration: found.configuration,
            workloads: shared(workloads),
            warnings,
            own: Default::default(),
            notes: Vec::new(),
            modified,
        })
    }

    pub(super) fn inherited(from: Inherited) -> Self {
        let mut workloads = from.workloads;
        for workload in &mut workloads {
            workload.modified = from.modified;
        }
        Self {
            pods: from.pods,
            services: from.services,
            classes: Vec::new(),
            configuration: from.configuration,
            workloads: shared(workloads),
            warnings: Vec::new(),
            own: Default::default(),
            notes: Vec::new(),
            modified: from.modified,
        }
    }

    pub(super) fn objects(&self) -> usize {
        let pods = self.pods.len() + self.workloads.len();
        pods + self.services.len() + self.configuration.len()
    }

    /// The number of its documents by kind.
    pub(super) fn documents(&self) -> DocumentCounts {
        let kinds = self.configuration.iter().map(|(key, _)| key.kind.as_str());
        let pods = self.pods.iter().filter(|pod| pod.workload.is_none());
        let pods = pods.map(|_| "Pod");
        let workloads = self.workloads.iter().map(|w| w.key.kind.as_str());
        let pods = pods.chain(workloads);
        let services = self.services.iter().map(|_| "Service");
        let classes = self.classes.iter().map(|_| "PriorityClass");
        let mut found: BTreeMap<String, usize> = BTreeMap::new();
        for kind in pods.chain(services).chain(classes).chain(kinds) {
            *found.entry(kind.to_owned()).or_default() += 1;
        }
        found.into()
    }

    /// What is to be said about it: first what something else is in force of.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.notes.iter().chain(&self.warnings).cloned().collect()
    }

    /// The names of its pods, to be shown.
    pub(super) fn keys(&self) -> Vec<PodKey> {
        let pods = self.pods.iter().map(Arc::as_ref);
        pod_names(pods, self.workloads.iter().map(Arc::as_ref))
    }

    /// Whether another version lacks some of its documents.
    fn loses(&self, next: &Self) -> bool {
        !self.names().is_subset(&next.names())
    }

    /// Its documents by kind and name.
    fn names(&self) -> BTreeSet<String> {
        let own = self.pods.iter().filter(|pod| pod.workload.is_none());
        let pods = own.map(|pod| format!("pod {}", pod.key));
        let services = self.services.iter();
        let services = services.map(|service| format!("service {}", service.spec.key));
        let workloads = self.workloads.iter().map(|w| w.key.to_string());
        let objects = self.configuration.iter().map(|(key, _)| key.to_string());
        let classes = self.classes.iter();
        let classes = classes.filter_map(|class| class.metadata.name.clone());
        let all = pods.chain(services).chain(workloads).chain(objects);
        all.chain(classes.map(|name| format!("class {name}")))
            .gather()
    }
}

impl Entry {
    /// Reads the file again if it is time to try to decrypt it once more.
    pub(super) fn decrypt_again(&mut self, now_ms: u64) {
        if self.undecrypted.flatten().is_some_and(|at| at <= now_ms) {
            self.undecrypted = None;
            self.unsettled = self.read.take().map(|version| (version, 0));
        }
    }

    /// Whether it could not be read; its content is not known to be bad.
    pub(super) fn is_unread(&self) -> bool {
        self.read.is_none() && self.unsettled.is_none() && !self.errors.is_empty()
    }

    /// When to read this version. One that may still be written is read once it has stayed the same for a while,
    /// a `complete` one at once.
    pub(super) fn due(&mut self, version: Fingerprint, now_ms: u64, complete: bool) -> Due {
        if self.read == Some(version) {
            self.unsettled = None;
            return Due::Never;
        }
        let since = match self.unsettled {
            Some((seen, since)) if seen == version => since,
            _ => now_ms,
        };
        let quiet = now_ms.saturating_sub(since);
        let settled = match self.held == Some(version) {
            true => UNCLOSED_MS,
            false => SETTLE_MS,
        };
        if complete || quiet >= settled {
            return Due::Now;
        }
        self.unsettled = Some((version, since));
        Due::In(settled - quiet)
    }

    /// Does not take a version yet that lacks objects in force. Returns for how long.
    pub(super) fn hold(&mut self, next: &Self, now_ms: u64) -> Option<u64> {
        let (version, since) = self.unsettled?;
        let left = (since + UNCLOSED_MS).checked_sub(now_ms)?;
        let (applied, candidate) = (self.applied.as_ref()?, next.candidate.as_ref()?);
        let held = left > 0 && applied.loses(candidate);
        self.held = held.then_some(version);
        held.then_some(left)
    }

    /// Reads a version of a file of which this is in effect.
    pub(super) fn read(
        applied: Option<Arc<Loaded>>,
        (path, fingerprint): (&Path, Fingerprint),
        reader: &Reader<'_>,
        room: (u64, usize),
    ) -> Self {
        let modified = Wall(i64::try_from(fingerprint.modified_ns / 1000).unwrap_or(0));
        let mut entry = Self {
            read: Some(fingerprint),
            applied,
            modified,
            ..Self::default()
        };
        entry.load((path, fingerprint.size), reader, room);
        entry
    }

    fn load(
        &mut self,
        (path, size): (&Path, u64),
        reader: &Reader<'_>,
        (bytes_left, objects_left): (u64, usize),
    ) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if size > bytes_left {
            self.crowded = true;
            self.errors = vec![format!(
                "{name}: the manifest files are larger than {} MiB together: this one is not read",
                MAX_TOTAL >> 20
            )];
            return;
        }
        let bytes = match read(path) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.errors = vec![format!("{name}: {error}")];
                // Unlike bad content this may pass by itself: try again at the next scan.
                self.read = None;
                return;
            }
        };
        let opened = reader.credentials.open(encrypted::found(&bytes));
        self.sealed = opened.keys().map(Sealed::digest).collect();
        let refused = |outcome: &Outcome| matches!(outcome, Outcome::Refused(_));
        self.undecrypted = opened.values().any(refused).then_some(None);
        let context = ConvertContext {
            node_name: reader.node_name,
            pod_security: reader.pod_security,
            opened: &opened,
            zones: &zone::read(cron::zones(&bytes)),
            strict: false,
            admitted: false,
        };
        match Loaded::read(&bytes, &name, &context, reader.classes, self.modified) {
            Ok(loaded) if loaded.objects() > objects_left => {
                self.crowded = true;
                self.errors = vec![format!(
                    "{name}: the manifest files have more than {MAX_OBJECTS} objects together"
                )];
            }
            Ok(loaded) => self.candidate = Some(Arc::new(loaded)),
            Err(errors) => self.errors = errors,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Folder, errors, pods, scan_all};
    use super::*;

    #[test]
    fn a_file_that_is_still_written_loses_its_documents_only_after_a_long_silence() {
        let pod = |name: &str, image: &str| {
            format!(
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: '{image}'}}]}}\n"
            )
        };
        let both = [pod("a", "i:1"), pod("b", "i:1")].concat();
        for (sentence, written, text, closed_after, expected) in [
            (
                "the rest of it has not come yet",
                true,
                pod("a", "i:2"),
                None,
                [(500, 2, "i:1"), (29_999, 2, "i:1"), (30_000, 1, "i:2")],
            ),
            (
                "it is closed and whole",
                true,
                pod("a", "i:2"),
                Some(2_000),
                [(500, 2, "i:1"), (1_999, 2, "i:1"), (2_000, 1, "i:2")],
            ),
            (
                "nothing is missing from it",
                true,
                both.replace("i:1", "i:2"),
                None,
                [(499, 2, "i:1"), (500, 2, "i:2"), (501, 2, "i:2")],
            ),
            (
                "it is not known to be open",
                false,
                pod("a", "i:2"),
                None,
                [(499, 2, "i:1"), (500, 1, "i:2"), (501, 1, "i:2")],
            ),
            (
                "nothing is in it yet",
                true,
                String::new(),
                None,
                [(500, 2, "i:1"), (29_999, 2, "i:1"), (30_000, 0, "")],
            ),
        ] {
            let folder = Folder::new();
            let path = folder.0.join("a.yaml");
            std::fs::write(&path, &both).unwrap();
            let mut manifests = folder.manifests();
            scan_all(&mut manifests);
            std::fs::write(&path, text).unwrap();
            let mut scan = |at| {
                let closed = closed_after
                    .filter(|after| *after <= at)
                    .map(|_| path.clone());
                let closed: BTreeSet<_> = closed.into_iter().collect();
                let open = (written && closed.is_empty()).then(|| path.clone());
                manifests.set_written(open.into_iter().collect());
                manifests.scan(at, &closed, false, &BTreeSet::new());
                let found = pods(&manifests);
                let first = found.first().map(|pod| pod[2..].to_owned());
                assert_eq!(errors(&manifests), [""; 0], "{sentence}");
                (at, found.len(), first.unwrap_or_default())
            };
            scan(0);
            for (at, number, image) in expected {
                assert_eq!(scan(at), (at, number, image.to_owned()), "{sentence}");
            }
        }
    }

    #[test]
    fn another_mode_has_the_file_read_again_and_changes_nothing() {
        use std::os::unix::fs::PermissionsExt;

        let folder = Folder::new();
        let path = folder.write("a.yaml", "a", "a:1");
        let mut manifests = folder.manifests();
        scan_all(&mut manifests);
        let before = (manifests.desired().pods, manifests.status());
        let mut scan = |at| {
            let scan = manifests.scan(at, &BTreeSet::new(), false, &BTreeSet::new());
            assert_eq!((manifests.desired().pods, manifests.status()), before);
            (scan.changed, scan.again_in_ms)
        };
        assert_eq!(scan(0), (false, None));
        // The kernel's clock for files is coarse: it may take some milliseconds.
        for mode in (0..1_000_000).map(|turn| 0o600 + turn % 2) {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            if scan(0) != (false, None) {
                break;
            }
        }
        assert!(scan(SETTLE_MS + 500).0);
        assert_eq!(scan(SETTLE_MS + 501), (false, None));
    }
}
