//! Which files are there, and which pods and services do they ask for? One state a file; a broken edit never touches what runs
//! (part A5), and a file is taken whole or not at all.

mod classes;
mod preview;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::scheduling::v1::PriorityClass;

use super::conflicts::conflicts;
use super::memory::SMALL;
use crate::api::{FileState, FileStatus};
use crate::plan::event::Desired;
use crate::plan::status;
use crate::spec::node_ports::{self, PortOf};
use crate::spec::priority::PriorityClasses;
use crate::spec::{PodKey, PodSpec, PodUid, ServiceDocument, Wall, convert};

pub(super) use preview::InEffect;

/// A file that changed without being closed is read when it has stayed the same for so long.
const SETTLE_MS: u64 = 500;

/// Largest manifest file, as on the kubelet.
const MAX_FILE: u64 = 10 << 20;

/// Files in the directory; those beyond, in the order of their names, are not read.
const MAX_FILES: usize = 4096;

/// Of all manifest files together.
const MAX_TOTAL: u64 = 64 << 20;

/// Pods and services of all files together.
const MAX_OBJECTS: usize = 10_000;

/// What tells two versions of a file apart without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    inode: u64,
    size: u64,
    modified_ns: i128,
}

/// A version of a file that is valid by itself.
#[derive(Debug, Clone)]
pub(super) struct Loaded {
    pub(super) pods: Vec<Arc<PodSpec>>,
    pub(super) services: Vec<ServiceDocument>,
    pub(super) classes: Vec<PriorityClass>,
    warnings: Vec<String>,
    modified: Wall,
}

/// What a file asked for when the former agent saw it last.
#[derive(Debug, Clone, Default)]
pub(super) struct Inherited {
    /// Its pods that run.
    pub(super) pods: Vec<Arc<PodSpec>>,
    /// Its services, with the ports of the node they had.
    pub(super) services: Vec<ServiceDocument>,
}

#[derive(Debug, Default)]
struct Entry {
    /// The version that was read last.
    read: Option<Fingerprint>,
    /// A version not read yet, and when it was first seen.
    unsettled: Option<(Fingerprint, u64)>,
    /// The version in effect.
    applied: Option<Loaded>,
    /// A newer valid version that may not take effect because of another file.
    candidate: Option<Loaded>,
    /// There was no room for the newest version beside the other files.
    crowded: bool,
    /// What is wrong with the newest version.
    errors: Vec<String>,
    /// What is wrong with it beside other files.
    conflicts: Vec<String>,
    modified: Wall,
}

/// The manifest directory (or single file).
#[derive(Debug)]
pub(super) struct Manifests {
    path: PathBuf,
    node_name: String,
    entries: BTreeMap<PathBuf, Entry>,
    /// What was in force before this agent, by the file that asked for it: should that file be broken now, or out of
    /// reach, it stays as it is.
    inherited: BTreeMap<PathBuf, Inherited>,
    /// The priority classes that files were read with.
    classes: PriorityClasses,
    /// The services of all versions in effect with the ports of the node they have, and their files.
    services: Vec<(PathBuf, ServiceDocument)>,
    /// The ports of the node that were chosen, to be chosen again.
    node_ports: BTreeMap<PortOf, u16>,
    /// Why the directory could not be read; what it last asked for stays in force.
    pub(super) unreadable: Option<io::Error>,
    /// Files that are too many, and the first of them.
    beyond: Option<(usize, PathBuf)>,
}

/// What a scan found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Scan {
    /// Whether anything is different from the scan before.
    pub(super) changed: bool,
    /// When to look again for files that are still being written.
    pub(super) again_in_ms: Option<u64>,
    /// About so much memory was used to read files, or held those that are gone.
    pub(super) freed_bytes: u64,
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
            .collect();
        Self {
            path,
            node_name,
            entries: BTreeMap::new(),
            inherited,
            classes: PriorityClasses::new(),
            services: Vec::new(),
            node_ports,
            unreadable: None,
            beyond: None,
        }
    }

    /// Looks at every file. `closed` are those known to be complete (closed after writing, or renamed to their
    /// place); with `all_closed` everything is taken as it is. `running` pods are preferred where names collide.
    pub(super) fn scan(
        &mut self,
        now_ms: u64,
        closed: &BTreeSet<PathBuf>,
        all_closed: bool,
        running: &BTreeSet<PodUid>,
    ) -> Scan {
        let known =
            |path: &Path| self.entries.contains_key(path) || self.inherited.contains_key(path);
        let (found, beyond) = match list(&self.path, known) {
            Ok(found) => found,
            Err(error) => {
                let changed = self.unreadable.is_none();
                self.unreadable = Some(error);
                for (path, from) in std::mem::take(&mut self.inherited) {
                    let entry = self.entries.entry(path).or_default();
                    entry.applied.get_or_insert_with(|| Loaded::inherited(from));
                }
                self.assign_node_ports();
                return Scan {
                    changed,
                    ..Scan::default()
                };
            }
        };
        let mut scan = Scan {
            changed: self.unreadable.take().is_some() || self.beyond != beyond,
            ..Scan::default()
        };
        self.beyond = beyond;
        let before = self.entries.len();
        self.entries.retain(|path, entry| {
            let stays = found.contains_key(path);
            if let Some(gone) = entry.read.filter(|_| !stays) {
                scan.freed_bytes += gone.size + SMALL;
            }
            stays
        });
        if before != self.entries.len() {
            scan.changed = true;
            // There may be room for them now.
            for entry in self.entries.values_mut().filter(|entry| entry.crowded) {
                entry.read = None;
            }
        }
        for (path, fingerprint) in &found {
            let fingerprint = *fingerprint;
            let entry = self.entries.entry(path.clone()).or_default();
            if entry.read == Some(fingerprint) {
                entry.unsettled = None;
                continue;
            }
            let since = match entry.unsettled {
                Some((seen, since)) if seen == fingerprint => since,
                _ => now_ms,
            };
            let quiet = now_ms.saturating_sub(since);
            if all_closed || closed.contains(path) || quiet >= SETTLE_MS {
                scan.freed_bytes += fingerprint.size + SMALL;
                let beside = self.classes_beside(path);
                let room = self.room_beside(path);
                let entry = self.entries.entry(path.clone()).or_default();
                let known = (self.node_name.as_str(), &beside);
                entry.read_version(path, fingerprint, known, room);
                scan.changed = true;
            } else {
                entry.unsettled = Some((fingerprint, since));
                let wait = SETTLE_MS - quiet;
                scan.again_in_ms =
                    Some(scan.again_in_ms.map_or(wait, |other: u64| other.min(wait)));
            }
        }
        for (path, entry) in &mut self.entries {
            if entry.applied.is_none() && !entry.errors.is_empty() {
                entry.applied = self.inherited.remove(path).map(Loaded::inherited);
            }
        }
        // From here on the files speak for themselves.
        self.inherited.clear();
        if scan.changed {
            self.settle(&found, running);
            self.assign_node_ports();
        }
        scan
    }

    /// How many bytes, pods and services there may be in this file.
    fn room_beside(&self, path: &Path) -> (u64, usize) {
        let others = self.entries.iter().filter(|(other, _)| *other != path);
        let (bytes, objects) = others.fold((0, 0), |(bytes, objects), (_, entry)| {
            let of = |loaded: &Option<Loaded>| loaded.as_ref().map_or(0, Loaded::objects);
            let own = of(&entry.applied).max(of(&entry.candidate));
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
            .filter_map(|(path, entry)| Some((path, entry.applied.as_ref()?)));
        let (paths, mut services): (Vec<PathBuf>, Vec<ServiceDocument>) = applied
            .flat_map(|(path, loaded)| loaded.services.iter().map(|s| (path.clone(), s.clone())))
            .unzip();
        self.node_ports = node_ports::assign(&mut services, &self.node_ports);
        self.services = paths.into_iter().zip(services).collect();
    }

    /// The services in force as they are shown, with the files that ask for them.
    pub(super) fn services(&self) -> impl Iterator<Item = (&Path, &core::Service)> {
        let services = self.services.iter();
        services.map(|(path, service)| (path.as_path(), &service.manifest))
    }

    /// Which file asks for which pod, to be handed to the next agent.
    pub(super) fn sources(&self) -> BTreeMap<PodUid, PathBuf> {
        let applied = self
            .entries
            .iter()
            .filter_map(|(path, entry)| Some((path, entry.applied.as_ref()?)));
        applied
            .flat_map(|(path, loaded)| {
                loaded
                    .pods
                    .iter()
                    .map(|pod| (pod.uid.clone(), path.clone()))
            })
            .collect()
    }

    /// Lets candidates take effect unless something of theirs has the name, or whatever only
    /// one can have, of something in another file.
    fn resolve(&mut self, running: &BTreeSet<PodUid>) {
        let mut order: Vec<PathBuf> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.candidate.is_some())
            .map(|(path, _)| path.clone())
            .collect();
        let runs = |path: &PathBuf| {
            let candidate = self.entries[path].candidate.as_ref();
            candidate.is_some_and(|loaded| loaded.pods.iter().any(|pod| running.contains(&pod.uid)))
        };
        order.sort_by_key(|path| !runs(path));
        for path in order {
            let entry = self.entries.get_mut(&path).expect("listed above");
            let candidate = entry.candidate.take().expect("filtered above");
            let others: Vec<(&Path, &Loaded)> = self
                .entries
                .iter()
                .filter(|(other, _)| **other != path)
                .filter_map(|(other, entry)| Some((other.as_path(), entry.applied.as_ref()?)))
                .collect();
            let found = conflicts(&path, &candidate, &others);
            let entry = self.entries.get_mut(&path).expect("listed above");
            entry.conflicts = found;
            if entry.conflicts.is_empty() {
                entry.applied = Some(candidate);
            } else {
                entry.candidate = Some(candidate);
            }
        }
    }

    /// The pods and services of all versions in effect.
    pub(super) fn desired(&self) -> Desired {
        let applied = self
            .entries
            .values()
            .filter_map(|entry| entry.applied.as_ref());
        Desired {
            pods: applied
                .flat_map(|loaded| &loaded.pods)
                .map(|pod| (pod.uid.clone(), pod.clone()))
                .collect(),
            services: self
                .services
                .iter()
                .map(|(_, s)| (s.spec.key.clone(), Arc::new(s.spec.clone())))
                .collect(),
        }
    }

    /// Whether every file is in effect as it is on disk.
    pub(super) fn all_in_effect(&self) -> bool {
        let clean = |entry: &Entry| {
            entry.errors.is_empty() && entry.conflicts.is_empty() && entry.unsettled.is_none()
        };
        self.unreadable.is_none() && self.beyond.is_none() && self.entries.values().all(clean)
    }

    /// One row a file, and one more for an older version that is still in force.
    pub(super) fn status(&self) -> Vec<FileStatus> {
        let mut rows = Vec::new();
        if let Some(error) = &self.unreadable {
            rows.push(FileStatus {
                path: self.path.clone(),
                state: FileState::Rejected,
                pods: Vec::new(),
                errors: vec![format!(
                    "{}: {error}; what it asked for before stays in force",
                    self.path.display()
                )],
                warnings: Vec::new(),
                modified: None,
            });
        }
        if let Some((number, first)) = &self.beyond {
            let name = first.file_name().unwrap_or_default().to_string_lossy();
            rows.push(FileStatus {
                path: first.clone(),
                state: FileState::Rejected,
                pods: Vec::new(),
                errors: vec![format!(
                    "{name}: there are more than {MAX_FILES} manifest files: {number} are not read, this one first"
                )],
                warnings: Vec::new(),
                modified: None,
            });
        }
        for (path, entry) in &self.entries {
            let row = |state, loaded: Option<&Loaded>, errors: Vec<String>, modified| FileStatus {
                path: path.clone(),
                state,
                pods: loaded.map(Loaded::keys).unwrap_or_default(),
                errors,
                warnings: loaded
                    .map(|loaded| loaded.warnings.clone())
                    .unwrap_or_default(),
                modified: Some(modified),
            };
            let errors = [entry.errors.clone(), entry.conflicts.clone()].concat();
            match (&entry.applied, errors.is_empty()) {
                (Some(applied), true) => rows.push(row(
                    FileState::Loaded,
                    Some(applied),
                    errors,
                    applied.modified,
                )),
                (applied, false) => {
                    rows.push(row(
                        FileState::Rejected,
                        entry.candidate.as_ref(),
                        errors,
                        entry.modified,
                    ));
                    if let Some(applied) = applied {
                        rows.push(row(
                            FileState::Superseded,
                            Some(applied),
                            Vec::new(),
                            applied.modified,
                        ));
                    }
                }
                // Still being written.
                (None, true) => {}
            }
        }
        rows
    }
}

impl Loaded {
    /// A file's content as of this time.
    fn read(
        bytes: &[u8],
        name: &str,
        context: &convert::ConvertContext<'_>,
        classes: &PriorityClasses,
        modified: Wall,
    ) -> Result<Self, Vec<String>> {
        let found = convert::documents_beside(bytes, name, context, Some(classes))
            .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        let of_pods = found.pods.iter().flat_map(|pod| &pod.warnings);
        let of_services = found.services.iter().flat_map(|s| &s.spec.warnings);
        let warnings = of_pods.chain(of_services).cloned().collect();
        let mut services = found.services;
        for service in &mut services {
            // The nearest thing to a time of creation that is the same for the next agent.
            service.manifest.metadata.creation_timestamp = Some(status::time(modified));
        }
        Ok(Self {
            pods: found.pods.into_iter().map(Arc::new).collect(),
            services,
            classes: found.priority_classes,
            warnings,
            modified,
        })
    }

    fn inherited(from: Inherited) -> Self {
        Self {
            pods: from.pods,
            services: from.services,
            classes: Vec::new(),
            warnings: Vec::new(),
            modified: Wall::default(),
        }
    }

    fn objects(&self) -> usize {
        self.pods.len() + self.services.len()
    }

    fn keys(&self) -> Vec<PodKey> {
        self.pods.iter().map(|pod| pod.key.clone()).collect()
    }
}

impl Entry {
    fn read_version(
        &mut self,
        path: &Path,
        fingerprint: Fingerprint,
        (node_name, classes): (&str, &PriorityClasses),
        (bytes_left, objects_left): (u64, usize),
    ) {
        self.crowded = false;
        self.read = Some(fingerprint);
        self.unsettled = None;
        self.conflicts.clear();
        self.candidate = None;
        self.modified = Wall(i64::try_from(fingerprint.modified_ns / 1000).unwrap_or(0));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if fingerprint.size > bytes_left {
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
                // Unlike bad content this may pass by itself: look again at the next scan.
                self.read = None;
                return;
            }
        };
        let context = convert::ConvertContext { node_name };
        match Loaded::read(&bytes, &name, &context, classes, self.modified) {
            Ok(loaded) if loaded.objects() > objects_left => {
                self.crowded = true;
                self.errors = vec![format!(
                    "{name}: the manifest files ask for more than {MAX_OBJECTS} pods and services together"
                )];
            }
            Ok(loaded) => {
                self.errors.clear();
                self.candidate = Some(loaded);
            }
            Err(errors) => self.errors = errors,
        }
    }
}

/// What was found of each manifest file; how many are too many, and the first of these.
type Listed = (BTreeMap<PathBuf, Fingerprint>, Option<(usize, PathBuf)>);

/// The manifest files: of a directory the regular ones (symlinks followed) that are not hidden or left by editors. Where
/// there are too many, those that are `known` stay, and others come by their names.
fn list(path: &Path, known: impl Fn(&Path) -> bool) -> io::Result<Listed> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_dir() && !metadata.is_file() {
        return Err(not_a_file());
    }
    if !metadata.is_dir() {
        return Ok(([(path.to_owned(), fingerprint(&metadata))].into(), None));
    }
    let (mut found, mut new) = (BTreeMap::new(), BTreeMap::new());
    let mut beyond: Option<(usize, PathBuf)> = None;
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        if is_ignored(&path) {
            continue;
        }
        // A file that went away meanwhile, or a dangling link, is simply not there.
        if let Ok(metadata) = fs::metadata(&path)
            && metadata.is_file()
        {
            let files = if known(&path) { &mut found } else { &mut new };
            files.insert(path, fingerprint(&metadata));
        }
        if found.len() + new.len() > MAX_FILES
            && let Some((last, _)) = new.pop_last()
        {
            let (number, first) = beyond.unwrap_or_else(|| (0, last.clone()));
            beyond = Some((number + 1, first.min(last)));
        }
    }
    found.append(&mut new);
    Ok((found, beyond))
}

fn is_ignored(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with('.') || name.ends_with('~') || name.ends_with(".swp") || name.ends_with(".swx")
}

fn fingerprint(metadata: &fs::Metadata) -> Fingerprint {
    Fingerprint {
        inode: metadata.ino(),
        size: metadata.size(),
        modified_ns: i128::from(metadata.mtime()) * 1_000_000_000
            + i128::from(metadata.mtime_nsec()),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Not blocking, should a FIFO have taken the file's place.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(not_a_file());
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "larger than 10 MiB, the limit for manifest files",
        ));
    }
    Ok(bytes)
}

fn not_a_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "is no regular file")
}

#[cfg(test)]
#[path = "manifests_test.rs"]
mod tests;
