//! The manifest directory: its files, and the pods and services that they define. Each file has one state; a broken
//! edit never touches running pods (`coracle help differences`), and a file is taken whole or not at all.

mod bundled;
mod circles;
mod classes;
mod documents;
mod entry;
mod files;
mod instead;
mod preview;
mod resolve;
mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

use super::bundles::disk as bundles;
use super::conflicts::shrunk_claims;
use super::memory::SMALL;
use crate::effects::credential::Credentials;
use crate::effects::volume::claim;
use crate::layout::Layout;
use crate::plan::event::Desired;
use crate::plan::workload::revisions::Overrides;
use crate::spec::conflicts::name;
use crate::spec::node_ports::{self, PortOf};
use crate::spec::priority::PriorityClasses;
use crate::spec::{Configuration, ObjectKey, Pins, PodSecurity, PodUid, ServiceDocument, Workload};
use crate::types::{Gather, SortedMap, Wall};

use entry::{Due, Entry, Reader, SETTLE_MS};
use files::{Fingerprint, list};

pub(super) use documents::Documents;
pub(super) use entry::{Inherited, Loaded};
pub(super) use preview::InEffect;

/// A Secret that could not be decrypted is tried again after this long: a TPM may come up late, and a missing program may
/// be installed. So is a file that could not be read.
const AGAIN_MS: u64 = 60_000;

/// How often a scan begins again because bundles are changed meanwhile. The change itself leads to another scan.
const MAX_LOOKS: u32 = 10;

/// The maximum size of all manifest files together.
pub(super) const MAX_TOTAL: u64 = 64 << 20;

/// The maximum number of pods, services and configuration documents of all files together.
const MAX_OBJECTS: usize = 10_000;

/// Looks up the sizes of bound claims.
#[derive(Debug, Clone, Default)]
struct ClaimSizes(Option<Layout>);

impl ClaimSizes {
    /// Why a version of a file may not make claims smaller.
    fn forbid_smaller<'l>(
        &self,
        path: &Path,
        candidate: &Loaded,
        others: impl Iterator<Item = &'l Loaded> + Clone,
    ) -> Vec<String> {
        let sentence = |(key, size)| {
            format!(
                "{}: {key}: spec.resources.requests.storage: Forbidden: field can not be less than status.capacity \
                 ({size}); a smaller one needs a claim of another name",
                name(path)
            )
        };
        self.shrunk(candidate, others).map(sentence).collect()
    }

    /// What becomes of the claims that a bundle's file would make smaller. It is no reason to refuse it: after a generation
    /// that made a claim larger, the former one could not come back.
    fn keep_size<'l>(
        &self,
        candidate: &Loaded,
        others: impl Iterator<Item = &'l Loaded> + Clone,
    ) -> Vec<String> {
        let sentence =
            |(key, size)| format!("{key} keeps its size of {size}: no claim becomes smaller");
        self.shrunk(candidate, others).map(sentence).collect()
    }

    fn shrunk<'l>(
        &self,
        candidate: &Loaded,
        others: impl Iterator<Item = &'l Loaded> + Clone,
    ) -> impl Iterator<Item = (ObjectKey, String)> {
        let capacity = |namespace: &str, name: &str| {
            let layout = self.0.as_ref()?;
            claim::capacity(layout, namespace, name)
        };
        shrunk_claims(candidate, others, capacity).into_iter()
    }
}

/// The manifest directory (or single file).
#[derive(Debug)]
pub(super) struct Manifests {
    path: PathBuf,
    node_name: String,
    /// The level that pods may not exceed. Versions in force were read under the level of their time.
    pod_security: PodSecurity,
    /// The decrypted contents of Secrets.
    credentials: Credentials,
    /// The sizes of bound claims.
    sizes: ClaimSizes,
    /// Where bundles are.
    bundles: Option<PathBuf>,
    /// The directories of the bundles' manifests in force, and the images that come with them.
    bundled: BTreeMap<PathBuf, Pins>,
    /// The file of `staticPodURL`, if there is one. It is complete when it has its name.
    fetched: Option<PathBuf>,
    /// Files that were being written when last heard of.
    written: BTreeSet<PathBuf>,
    entries: BTreeMap<PathBuf, Entry>,
    /// What was in force before the agent restart, by file. It stays in force while the file is broken or out of
    /// reach.
    inherited: BTreeMap<PathBuf, Inherited>,
    /// The priority classes that files were read with.
    classes: PriorityClasses,
    /// The services of all versions in effect with their node ports, and their files.
    services: Vec<(PathBuf, ServiceDocument)>,
    /// What is in force instead of what files say.
    instead: Arc<Overrides>,
    instead_changed: bool,
    /// The node ports chosen earlier, to be chosen again.
    node_ports: BTreeMap<PortOf, u16>,
    /// Why the directory could not be read; its last documents stay in force.
    pub(super) unreadable: Option<io::Error>,
    /// Bundles and their directories that could not be read, and why: they may have documents that are not known.
    hidden: Vec<(PathBuf, String)>,
    /// The number of files beyond the limit, and the first of them.
    beyond: Option<(usize, PathBuf)>,
}

/// What a scan found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Scan {
    /// Whether anything has changed since the previous scan.
    pub(super) changed: bool,
    /// When to check again for files that are still being written, or could not be read.
    pub(super) again_in_ms: Option<u64>,
    /// About how much memory was used to read files, or held by removed ones.
    pub(super) freed_bytes: u64,
}

impl Scan {
    /// Another scan is due after this long, or earlier.
    fn again_in(&mut self, ms: u64) {
        self.again_in_ms = Some(self.again_in_ms.map_or(ms, |other| other.min(ms)));
    }
}

impl Manifests {
    pub(super) fn new(
        path: PathBuf,
        node_name: String,
        inherited: BTreeMap<PathBuf, Inherited>,
    ) -> Self {
        let services = inherited.values().flat_map(|from| &from.services);
        let node_ports = services
            .flat_map(|service| {
                let key = &service.spec.key;
                let ports = service.spec.ports.iter();
                ports.filter_map(|p| Some(((key.clone(), p.protocol, p.port), p.node_port?)))
            })
            .gather();
        Self {
            path,
            node_name,
            pod_security: PodSecurity::default(),
            credentials: Credentials::default(),
            sizes: ClaimSizes::default(),
            bundles: None,
            bundled: BTreeMap::new(),
            fetched: None,
            written: BTreeSet::new(),
            entries: BTreeMap::new(),
            inherited,
            classes: PriorityClasses::new(),
            services: Vec::new(),
            instead: Arc::default(),
            instead_changed: false,
            node_ports,
            unreadable: None,
            hidden: Vec::new(),
            beyond: None,
        }
    }

    /// Sets the level that pods may not exceed.
    pub(super) fn under(self, pod_security: PodSecurity) -> Self {
        Self {
            pod_security,
            ..self
        }
    }

    /// Knows the claims that are bound below this layout's state root.
    pub(super) fn with_claims_of(self, layout: &Layout) -> Self {
        Self {
            sizes: ClaimSizes(Some(layout.clone())),
            ..self
        }
    }

    /// Reads bundles below this directory, too.
    pub(super) fn with_bundles(self, bundles: PathBuf) -> Self {
        Self {
            bundles: Some(bundles),
            ..self
        }
    }

    /// Reads this file, too, when there is one.
    pub(super) fn with_fetched(self, fetched: PathBuf) -> Self {
        Self {
            fetched: Some(fetched),
            ..self
        }
    }

    /// Puts this in force instead of what files say, with the next scan.
    pub(super) fn set_instead(&mut self, instead: Arc<Overrides>) {
        self.instead_changed |= self.instead != instead;
        self.instead = instead;
    }

    /// Knows which files have been changed and not closed since.
    pub(super) fn set_written(&mut self, written: BTreeSet<PathBuf>) {
        self.written = written;
    }

    /// Scans all files. The `closed` ones are known to be complete (closed after writing, or renamed to their
    /// place); with `all_closed` every file is taken as it is. `running` pods are preferred in name conflicts.
    pub(super) fn scan(
        &mut self,
        now_ms: u64,
        closed: &BTreeSet<PathBuf>,
        all_closed: bool,
        running: &BTreeSet<PodUid>,
    ) -> Scan {
        let mut scan = Scan {
            changed: std::mem::take(&mut self.instead_changed),
            ..Scan::default()
        };
        self.credentials.try_again();
        let mut looks = 0;
        let found = loop {
            let (found, kept) = self.look(&mut scan);
            let mut new = found
                .keys()
                .filter(|path| !self.entries.contains_key(*path));
            let at_once = all_closed || new.any(|path| closed.contains(path));
            self.forget_removed(&found, &kept, (now_ms, at_once), &mut scan);
            self.read_changed(&found, now_ms, (closed, all_closed), &mut scan);
            looks += 1;
            if looks == MAX_LOOKS || !self.bundles_moved() {
                break found;
            }
        };
        self.begin_with_inherited();
        if scan.changed {
            let sealed = self.entries.values().flat_map(|entry| &entry.sealed);
            self.credentials.keep(&sealed.copied().gather());
            self.settle(&found, running);
            self.put_instead();
            self.note_configuration();
            self.note_images();
            self.assign_node_ports();
        }
        for entry in self.entries.values_mut() {
            if let Some(at) = &mut entry.undecrypted {
                let wait = at.get_or_insert(now_ms + AGAIN_MS).saturating_sub(now_ms);
                scan.again_in(wait);
            }
        }
        if self.entries.values().any(Entry::is_unread) {
            scan.again_in(AGAIN_MS);
        }
        // From here on the files alone decide.
        self.inherited.clear();
        scan
    }

    /// Reads the files that are to be read now.
    fn read_changed(
        &mut self,
        found: &BTreeMap<PathBuf, Fingerprint>,
        now_ms: u64,
        (closed, all_closed): (&BTreeSet<PathBuf>, bool),
        scan: &mut Scan,
    ) {
        for (path, fingerprint) in found {
            let at_once = self.is_bundled(path) || self.fetched.as_ref() == Some(path);
            let complete = all_closed || at_once || closed.contains(path);
            let entry = self.entries.entry(path.clone()).or_default();
            entry.decrypt_again(now_ms);
            match entry.due(*fingerprint, now_ms, complete) {
                Due::Never => {}
                Due::Now => {
                    scan.freed_bytes += fingerprint.size + SMALL;
                    let next = self.version(path, *fingerprint);
                    let unfinished = !complete && self.written.contains(path);
                    let entry = self.entries.entry(path.clone()).or_default();
                    if let Some(wait) = entry.hold(&next, now_ms).filter(|_| unfinished) {
                        scan.again_in(wait);
                        continue;
                    }
                    *entry = next;
                    scan.changed = true;
                }
                Due::In(wait) => scan.again_in(wait),
            }
        }
    }

    /// Lists the files of the directory and of bundles. Also returns those that stay in force as they are, because where
    /// they are cannot be read.
    fn look(&mut self, scan: &mut Scan) -> (BTreeMap<PathBuf, Fingerprint>, BTreeSet<PathBuf>) {
        let known =
            |path: &Path| self.entries.contains_key(path) || self.inherited.contains_key(path);
        let listed = list(&self.path, known);
        let (dirs, broken) = match &self.bundles {
            Some(bundles) => bundles::in_force(bundles),
            None => Default::default(),
        };
        for (path, error) in &broken {
            tracing::warn!(
                "could not read the bundle `{}`: {error}, keeping its manifests",
                path.display()
            );
        }
        let hidden = |(path, error): (PathBuf, io::Error)| (path, error.to_string());
        let mut hidden: Vec<(PathBuf, String)> = broken.into_iter().map(hidden).collect();
        let mut found = BTreeMap::new();
        for dir in dirs.keys() {
            match list(dir, |_| true) {
                Ok((files, _)) => found.extend(files),
                Err(error) => {
                    tracing::warn!(
                        "could not read `{}`: {error}, keeping its manifests",
                        dir.display()
                    );
                    hidden.push((dir.clone(), error.to_string()));
                }
            }
        }
        self.bundled = dirs;
        scan.changed |= self.hidden != hidden;
        self.hidden = hidden;
        let mut fetched = false;
        if let Some(path) = &self.fetched
            && let Ok((files, _)) = list(path, |_| true)
        {
            fetched = true;
            found.extend(files);
        }
        let static_kept = match listed {
            Ok((files, beyond)) => {
                scan.changed |= self.unreadable.take().is_some() || self.beyond != beyond;
                self.beyond = beyond;
                found.extend(files);
                false
            }
            Err(error) => {
                scan.changed |= self.unreadable.is_none();
                self.unreadable = Some(error);
                true
            }
        };
        let of_bundle = |path: &Path| {
            self.bundles
                .as_ref()
                .is_some_and(|all| path.starts_with(all))
        };
        let fetched = self.fetched.as_ref().filter(|_| fetched);
        let is_kept = |path: &PathBuf| match of_bundle(path) {
            _ if fetched == Some(path) => false,
            true => self.hidden.iter().any(|(dir, _)| path.starts_with(dir)),
            false => static_kept,
        };
        let inherited = self.inherited.keys().chain(self.entries.keys());
        let kept: BTreeSet<PathBuf> = inherited.filter(|path| is_kept(path)).cloned().gather();
        for path in &kept {
            if let Some(from) = self.inherited.remove(path) {
                scan.changed = true;
                let entry = self.entries.entry(path.clone()).or_default();
                entry
                    .applied
                    .get_or_insert_with(|| Arc::new(Loaded::inherited(from)));
            }
        }
        (found, kept)
    }

    /// Forgets files that are gone. Those that did not fit beside them are read again. Some editors remove a file for a
    /// moment while they save it, so a missing file stays in force for `SETTLE_MS`. `at_once`: a complete new file came,
    /// which may be a renamed one.
    fn forget_removed(
        &mut self,
        found: &BTreeMap<PathBuf, Fingerprint>,
        kept: &BTreeSet<PathBuf>,
        (now_ms, at_once): (u64, bool),
        scan: &mut Scan,
    ) {
        let before = self.entries.len();
        let of_directory = |path: &Path| {
            let bundles = self.bundles.as_ref();
            !bundles.is_some_and(|all| path.starts_with(all))
                && self.fetched.as_deref() != Some(path)
        };
        self.entries.retain(|path, entry| {
            if found.contains_key(path) || kept.contains(path) {
                entry.away_since = None;
                return true;
            }
            if !at_once && of_directory(path) && entry.applied.is_some() {
                let since = *entry.away_since.get_or_insert(now_ms);
                let away = now_ms.saturating_sub(since);
                if away < SETTLE_MS {
                    scan.again_in(SETTLE_MS - away);
                    return true;
                }
            }
            if let Some(gone) = entry.read {
                scan.freed_bytes += gone.size + SMALL;
            }
            false
        });
        if before != self.entries.len() {
            scan.changed = true;
            // There may be room for them now.
            for entry in self.entries.values_mut().filter(|entry| entry.crowded) {
                entry.read = None;
            }
        }
    }

    /// Reads this version of a file, with what the other files leave to it.
    fn version(&self, path: &Path, fingerprint: Fingerprint) -> Entry {
        let reader = Reader {
            node_name: &self.node_name,
            pod_security: self.pod_security,
            classes: &self.classes_beside(path),
            credentials: &self.credentials,
        };
        let applied = self.entries.get(path).and_then(|e| e.applied.clone());
        Entry::read(
            applied,
            (path, fingerprint),
            &reader,
            self.room_beside(path),
        )
    }

    /// How many bytes and objects this file may still have.
    fn room_beside(&self, path: &Path) -> (u64, usize) {
        let others = self.entries.iter().filter(|(other, _)| *other != path);
        let (bytes, objects) = others.fold((0, 0), |(bytes, objects), (_, entry)| {
            let of = |loaded: Option<&Loaded>| loaded.map_or(0, Loaded::objects);
            let own = of(entry.applied.as_deref()).max(of(entry.candidate.as_deref()));
            let read = entry.read.filter(|_| !entry.crowded);
            (bytes + read.map_or(0, |r| r.size), objects + own)
        });
        (
            MAX_TOTAL.saturating_sub(bytes),
            MAX_OBJECTS.saturating_sub(objects),
        )
    }

    fn assign_node_ports(&mut self) {
        let applied = self
            .entries
            .iter()
            .filter_map(|(path, entry)| Some((path, entry.applied.as_deref()?)));
        let (paths, mut services): (Vec<PathBuf>, Vec<ServiceDocument>) = applied
            .flat_map(|(path, loaded)| loaded.services.iter().map(|s| (path.clone(), s.clone())))
            .unzip();
        self.node_ports = node_ports::assign(&mut services, &self.node_ports);
        self.services = paths.into_iter().zip(services).collect();
    }

    /// The services in force as they are shown, with their files.
    pub(super) fn services(&self) -> impl Iterator<Item = (&Path, &core::Service)> {
        let services = self.services.iter();
        services.map(|(path, service)| (path.as_path(), &service.manifest))
    }

    /// What each file in force says of documents that stand for pods, and when it was written.
    pub(super) fn workloads(
        &self,
    ) -> impl Iterator<Item = (&Path, Wall, impl Iterator<Item = &Workload>)> {
        let applied = self.entries.iter();
        applied.filter_map(|(path, entry)| {
            let loaded = entry.applied.as_deref()?;
            Some((path.as_path(), loaded.modified, loaded.said_workloads()))
        })
    }

    /// The configuration documents in force, and their files.
    pub(super) fn configuration(&self) -> impl Iterator<Item = (&Path, &Configuration)> {
        let applied = self.entries.iter();
        applied.filter_map(|(path, entry)| {
            let configuration = &entry.applied.as_deref()?.configuration;
            (!configuration.is_empty()).then_some((path.as_path(), configuration))
        })
    }

    /// The files' pods, to be saved for an agent restart.
    pub(super) fn sources(&self) -> BTreeMap<PodUid, PathBuf> {
        let applied = self
            .entries
            .iter()
            .filter_map(|(path, entry)| Some((path, entry.applied.as_deref()?)));
        applied
            .flat_map(|(path, loaded)| {
                loaded
                    .pods
                    .iter()
                    .map(|pod| (pod.uid.clone(), path.clone()))
            })
            .gather()
    }

    /// Gives the pods that restart on changes of their configuration another identity where it has changed.
    fn note_configuration(&mut self) {
        let configuration = self.all_configuration();
        let applied = self.entries.values_mut();
        let applied = applied.filter_map(|entry| entry.applied.as_mut().map(Arc::make_mut));
        for pod in applied.flat_map(|loaded| &mut loaded.pods) {
            if let Some(other) = pod.with_configuration(&configuration) {
                *pod = Arc::new(other);
            }
        }
    }

    /// The pods and services of all versions in effect.
    pub(super) fn desired(&self) -> Desired {
        let applied = self
            .entries
            .values()
            .filter_map(|entry| entry.applied.as_deref());
        Desired {
            pods: applied
                .flat_map(|loaded| &loaded.pods)
                .map(|pod| (pod.uid.clone(), pod.clone()))
                .gather(),
            services: self
                .services
                .iter()
                .map(|(_, s)| (s.spec.key.clone(), Arc::new(s.spec.clone())))
                .gather(),
            workloads: (self.entries.values())
                .filter_map(|entry| entry.applied.as_deref())
                .flat_map(|loaded| &loaded.workloads)
                .map(|workload| (workload.key.clone(), workload.clone()))
                .gather::<SortedMap<_, _>>()
                .into(),
            editions: self.editions(),
            complete: self.all_in_effect(),
            leaving: false,
        }
    }

    /// Whether every file is in effect as it is on disk.
    pub(super) fn all_in_effect(&self) -> bool {
        let clean = |entry: &Entry| {
            entry.errors.is_empty() && entry.conflicts.is_empty() && entry.unsettled.is_none()
        };
        let all_listed =
            self.unreadable.is_none() && self.beyond.is_none() && self.hidden.is_empty();
        all_listed && self.entries.values().all(clean)
    }
}

#[cfg(test)]
#[path = "manifests_test.rs"]
mod tests;

#[cfg(test)]
#[path = "services_test.rs"]
mod services_tests;

#[cfg(test)]
#[path = "claims_test.rs"]
mod claims_tests;
