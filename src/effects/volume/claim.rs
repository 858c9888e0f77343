//! Claims: what each one is bound to is decided when a pod first uses it, and written down for good. Most have a
//! directory of their own, which outlives pods, files and reboots; nothing but `coracle volume rm` removes it, and the
//! policy of a StatefulSet.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::claim_size;
use super::ownership::{self, Change, Files};
use super::{Sources, VolumeError, host_path};
use crate::layout::Layout;
use crate::spec::binding::{Choice, choose};
use crate::spec::workload::Owner;
use crate::spec::{Configuration, HostPathType, Object, ObjectKind, PodKey, PodSpec};
use crate::sys::file::{self, Durability};
use crate::sys::tree;
use crate::types::InOrder;

/// `<root>/claims/<namespace>_<name>/claim.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The claim's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What it is bound to.
    pub bound: Bound,
    /// The size of its own directory, as the claim's document asked for it: `status.capacity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<String>,
    /// The number of its project, by which the file system limits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<u32>,
    /// The StatefulSet that it ends with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
}

/// What a claim is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Bound {
    /// Its own directory.
    Directory,
    /// A PersistentVolume.
    Volume {
        /// The volume's name.
        volume: String,
        /// Its path on the node, which stays the claim's even if the volume's document goes.
        path: String,
        /// Whether a missing directory is made.
        make: bool,
        /// Whether the volume is of type `local`: `fsGroup` applies to it, as it does not to a `hostPath`.
        #[serde(default)]
        local: bool,
    },
}

impl Record {
    /// The claim's directory on the node.
    pub fn path(&self, layout: &Layout) -> PathBuf {
        match &self.bound {
            Bound::Directory => data(&layout.claim(&self.namespace, &self.name)),
            Bound::Volume { path, .. } => path.into(),
        }
    }
}

/// Held while a claim is bound: two must not get the same volume.
static BINDING: Mutex<()> = Mutex::new(());

/// Begins the name of a folder that is being removed.
const GOING: &str = ".removing-";

fn data(folder: &Path) -> PathBuf {
    folder.join("data")
}

/// All claims that were ever bound and not removed, by name.
#[derive(Debug, Default)]
pub struct Found {
    /// Those whose records can be read.
    pub records: Vec<Record>,
    /// The others: their data is there, but what they are bound to is unknown.
    pub lost: Vec<Lost>,
}

/// A claim whose record cannot be read.
#[derive(Debug)]
pub struct Lost {
    /// What its folder says: the names, and the directory if it has one of its own.
    pub record: Record,
    /// Why its record cannot be read.
    pub why: VolumeError,
}

/// Finds all claims.
pub fn find(layout: &Layout) -> Found {
    let mut found = Found::default();
    for (folder, result) in all(layout) {
        match result {
            Ok(record) => found.records.push(record),
            Err(why) => {
                let record = named(&folder);
                found.lost.extend(record.map(|record| Lost { record, why }));
            }
        }
    }
    let by_name = |a: &Record, b: &Record| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name));
    found.records.order_by(by_name);
    found.lost.order_by(|a, b| by_name(&a.record, &b.record));
    found
}

/// The claims whose records can be read.
pub fn records(layout: &Layout) -> Vec<Record> {
    find(layout).records
}

/// A claim with a directory of its own, by the name of its folder.
fn named(folder: &Path) -> Option<Record> {
    let (namespace, name) = folder.file_name()?.to_str()?.split_once('_')?;
    // A claim that is being removed is none.
    let stays = !namespace.starts_with(GOING);
    stays.then(|| Record {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        bound: Bound::Directory,
        capacity: None,
        project: None,
        owner: None,
    })
}

/// The folders of claims, with their records.
fn all(layout: &Layout) -> impl Iterator<Item = (PathBuf, Result<Record, VolumeError>)> {
    let entries = fs::read_dir(layout.claims_dir()).into_iter().flatten();
    let folders = entries.flatten().map(|entry| entry.path());
    folders.filter_map(|folder| {
        let record = look(&folder).transpose()?;
        Some((folder, record))
    })
}

/// The record of a claim, if there is one that can be read.
fn read(folder: &Path) -> Option<Record> {
    look(folder).unwrap_or_else(|error| {
        tracing::debug!("{}, ignoring", crate::chain(&error));
        None
    })
}

/// The record of a claim; `None` if it is not bound. An unreadable record is an error: a second binding would hide the
/// claim's data.
fn look(folder: &Path) -> Result<Option<Record>, VolumeError> {
    let path = folder.join("claim.json");
    let failed = |source| VolumeError::Access {
        action: "read",
        path: path.clone(),
        source,
    };
    let bytes = match file::read_record(&path) {
        Ok(bytes) => bytes,
        // A stray file beside the claims is none.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(failed(error)),
    };
    let record = serde_json::from_slice(&bytes).map_err(|error| {
        let why = format!("the record is broken ({error}); delete it to bind the claim again");
        failed(io::Error::new(ErrorKind::InvalidData, why))
    })?;
    Ok(Some(record))
}

/// Binds the claim if it is not bound, and makes its directory. Returns the directory.
pub(super) fn ensure(
    layout: &Layout,
    (name, read_only): (&str, bool),
    pod: &PodSpec,
    sources: &Sources<'_>,
) -> Result<PathBuf, VolumeError> {
    let namespace = &pod.key.namespace;
    let folder = layout.claim(namespace, name);
    let record = {
        let _turn = BINDING.lock().unwrap_or_else(PoisonError::into_inner);
        match known(layout, namespace, name, sources)? {
            Some(record) => record,
            None => {
                let record = bind(layout, namespace, name, sources)?;
                write(&folder, &record)?;
                record
            }
        }
    };
    match &record.bound {
        Bound::Directory => {
            let place = data(&folder);
            let access = |action| {
                let path = place.clone();
                move |source| VolumeError::Access {
                    action,
                    path,
                    source,
                }
            };
            make_directory(&folder, pod.fs_group).map_err(access("make"))?;
            // What fails is counted instead.
            claim_size::settle_one(layout, &record, &sources.configuration.now());
            give(&place, pod)?;
        }
        Bound::Volume {
            path,
            make,
            local,
            volume,
        } => {
            let kind = match make {
                true => HostPathType::DirectoryOrCreate,
                false => HostPathType::Directory,
            };
            host_path::ensure(path.as_ref(), kind)?;
            // Records of former versions do not say what kind it is.
            let is_local = *local || place(&sources.configuration.now(), volume).local;
            if is_local && !read_only {
                // As mounts do: a local volume's path may be a symlink.
                let place = fs::canonicalize(path).map_err(|source| VolumeError::Access {
                    action: "resolve",
                    path: path.into(),
                    source,
                })?;
                give(&place, pod)?;
            }
        }
    }
    Ok(record.path(layout))
}

/// Gives a volume to the pod's group, if it has one.
fn give(place: &Path, pod: &PodSpec) -> Result<(), VolumeError> {
    let Some(group) = pod.fs_group else {
        return Ok(());
    };
    let change = match pod.fs_group_on_mismatch {
        true => Change::OnRootMismatch,
        false => Change::Always,
    };
    ownership::give(place, group, Files::Writable, change).map_err(|source| VolumeError::Access {
        action: "give to its group",
        path: place.to_owned(),
        source,
    })
}

/// The record of the claim, which must have a document.
fn known(
    layout: &Layout,
    namespace: &str,
    name: &str,
    sources: &Sources<'_>,
) -> Result<Option<Record>, VolumeError> {
    let kind = ObjectKind::PersistentVolumeClaim;
    if sources
        .configuration
        .now()
        .get(kind, namespace, name)
        .is_none()
    {
        let name = name.to_owned();
        return Err(VolumeError::NotFound { kind, name });
    }
    look(&layout.claim(namespace, name))
}

/// The volumes that claims are bound to. No record may be missing: its volume would be bound twice.
fn taken(layout: &Layout) -> Result<BTreeSet<String>, VolumeError> {
    let mut taken = BTreeSet::new();
    for (_, record) in all(layout) {
        if let Bound::Volume { volume, .. } = record?.bound {
            taken.insert(volume);
        }
    }
    Ok(taken)
}

fn bind(
    layout: &Layout,
    namespace: &str,
    name: &str,
    sources: &Sources<'_>,
) -> Result<Record, VolumeError> {
    let configuration = sources.configuration.now();
    let found = configuration.get(ObjectKind::PersistentVolumeClaim, namespace, name);
    let Some(Object::Claim(claim)) = found.map(|object| &**object) else {
        let (kind, name) = (ObjectKind::PersistentVolumeClaim, name.to_owned());
        return Err(VolumeError::NotFound { kind, name });
    };
    let choice =
        choose(claim, &configuration, &taken(layout)?).map_err(|why| VolumeError::Unbound {
            claim: name.to_owned(),
            why,
        })?;
    let bound = match choice {
        Choice::Directory => Bound::Directory,
        Choice::Volume(volume) => {
            let Place { path, make, local } = place(&configuration, &volume);
            Bound::Volume {
                volume,
                path,
                make,
                local,
            }
        }
    };
    Ok(Record {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        bound,
        capacity: None,
        project: None,
        owner: None,
    })
}

/// Where a volume is.
#[derive(Debug, Default)]
struct Place {
    path: String,
    /// Whether a missing directory is made.
    make: bool,
    /// Whether it is of type `local`.
    local: bool,
}

fn place(configuration: &Configuration, volume: &str) -> Place {
    let found = configuration.get(ObjectKind::PersistentVolume, "", volume);
    let spec = match found.map(|object| &**object) {
        Some(Object::Volume(volume)) => volume.spec.clone().unwrap_or_default(),
        _ => Default::default(),
    };
    match (spec.local, spec.host_path) {
        (Some(local), _) => Place {
            path: local.path,
            make: false,
            local: true,
        },
        (None, Some(host_path)) => Place {
            make: host_path.type_.as_deref() != Some("Directory"),
            path: host_path.path,
            local: false,
        },
        (None, None) => Place::default(),
    }
}

fn write(folder: &Path, record: &Record) -> Result<(), VolumeError> {
    let path = folder.join("claim.json");
    let bytes = serde_json::to_vec(record).expect("plain data");
    // Only root may enter the folder, so that users of the node do not reach into the volume.
    file::make_dirs(folder, 0o700)
        .and_then(|()| file::replace(&path, &bytes, 0o600, Durability::PowerCut))
        .and_then(|()| match folder.parent() {
            Some(parent) => fs::File::open(parent)?.sync_all(),
            None => Ok(()),
        })
        .map_err(|source| VolumeError::Access {
            action: "write",
            path,
            source,
        })
}

/// Makes the directory once: mode and owner belong to the pods from then on. With `fsGroup` it is the group's,
/// otherwise every user of a container may write to it.
fn make_directory(folder: &Path, fs_group: Option<u32>) -> io::Result<()> {
    let (place, new) = (data(folder), folder.join("data.new"));
    if fs::symlink_metadata(&place).is_ok() {
        return Ok(());
    }
    match fs::create_dir(&new) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let mode = match fs_group {
        Some(group) => {
            chown(&new, None, Some(group))?;
            0o2775
        }
        None => 0o777,
    };
    fs::set_permissions(&new, Permissions::from_mode(mode))?;
    fs::rename(&new, &place)?;
    fs::File::open(folder)?.sync_all()
}

/// Blocking. Writes down the StatefulSet that a bound claim ends with.
///
/// # Errors
///
/// Those of writing the record.
pub fn own(layout: &Layout, claim: &PodKey, owner: Option<Owner>) -> Result<(), VolumeError> {
    let folder = layout.claim(&claim.namespace, &claim.name);
    let _turn = BINDING.lock().unwrap_or_else(PoisonError::into_inner);
    match look(&folder)? {
        Some(record) => write(&folder, &Record { owner, ..record }),
        None => Ok(()),
    }
}

/// Blocking. Forgets what a claim is bound to, and removes its own directory. A pod that comes meanwhile gets a new one.
///
/// # Errors
///
/// Those of removing files. Once the claim is forgotten, [`sweep`] removes what is left.
pub fn remove(layout: &Layout, namespace: &str, name: &str) -> io::Result<()> {
    let folder = layout.claim(namespace, name);
    let going = layout
        .claims_dir()
        .join(format!("{GOING}{namespace}_{name}"));
    tree::remove(&going)?;
    let record = {
        let _turn = BINDING.lock().unwrap_or_else(PoisonError::into_inner);
        let record = read(&folder);
        fs::rename(&folder, &going)?;
        record
    };
    fs::File::open(layout.claims_dir())?.sync_all()?;
    tree::remove(&going)?;
    if let Some(record) = record {
        claim_size::forget(&layout.claims_dir(), &record);
    }
    Ok(())
}

/// Writes the record of a claim again if `change` says that it changed it; it can ask for the records of all claims, too.
/// Returns it, or `None` if the claim was removed or bound to something else meanwhile.
pub(super) fn update(
    layout: &Layout,
    known: &Record,
    change: impl FnOnce(&mut Record, &dyn Fn() -> Vec<Record>) -> bool,
) -> Result<Option<Record>, VolumeError> {
    let folder = layout.claim(&known.namespace, &known.name);
    let _turn = BINDING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut record) = look(&folder)?.filter(|record| record.bound == known.bound) else {
        return Ok(None);
    };
    if change(&mut record, &|| records(layout)) {
        write(&folder, &record)?;
    }
    Ok(Some(record))
}

/// The size of the directory that a claim is bound to, as it was asked for.
pub fn capacity(layout: &Layout, namespace: &str, name: &str) -> Option<String> {
    read(&layout.claim(namespace, name))?.capacity
}

/// Blocking. Removes what is left of claims whose removal was interrupted.
pub fn sweep(layout: &Layout) {
    let entries = fs::read_dir(layout.claims_dir()).into_iter().flatten();
    for entry in entries.flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(GOING)
            && let Err(error) = tree::remove(&path)
        {
            tracing::debug!("could not remove `{}`: {error}", path.display());
        }
    }
}

/// Where the volume is that the claim is bound to, if that is not a directory of its own.
pub(super) fn volume_of_node(layout: &Layout, namespace: &str, name: &str) -> Option<PathBuf> {
    match read(&layout.claim(namespace, name))?.bound {
        Bound::Directory => None,
        Bound::Volume { path, .. } => Some(path.into()),
    }
}

/// The claim's directory, without binding anything.
pub(super) fn root(layout: &Layout, namespace: &str, name: &str) -> PathBuf {
    let folder = layout.claim(namespace, name);
    match read(&folder) {
        Some(record) => record.path(layout),
        None => data(&folder),
    }
}
