//! The size of claims that have a directory of their own: a project quota where the file system limits projects (ext4 with
//! `prjquota`, xfs with `pquota`). Elsewhere nothing is done here, and the size is enforced by counting.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use super::claim::{self, Bound, Record};
use super::ownership;
use crate::layout::Layout;
use crate::spec::{Configuration, Object, ObjectKind, PodKey, binding};
use crate::sys::quota;
use crate::types::Gather;
use crate::types::quantity::Quantity;

/// The first number of coracle's projects, as the kubelet's (`pkg/volume/util/fsquota`).
const FIRST: u32 = 1_048_577;

/// The maximum number of numbers that are tried.
const TRIES: u32 = 10_000;

/// A claim whose size is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sized {
    /// The claim.
    pub claim: PodKey,
    /// Its size in bytes, if the file system does not limit it.
    pub counted_bytes: Option<u64>,
    /// Why the file system does not, although it could.
    pub problem: Option<String>,
}

/// Blocking, but not for long. The sizes of all bound claims with a directory of their own, as they were settled last.
pub fn known(layout: &Layout) -> Vec<Sized> {
    let limits =
        File::open(layout.claims_dir()).is_ok_and(|folder| quota::limits_projects(&folder));
    let records = claim::records(layout).into_iter();
    let sized = records.filter_map(|record| {
        let size = bytes(record.capacity.as_deref())?;
        Some(Sized {
            counted_bytes: (!limits || record.project.is_none()).then_some(size),
            claim: key(&record),
            problem: None,
        })
    });
    sized.collect()
}

fn key(record: &Record) -> PodKey {
    PodKey::new(record.namespace.as_str(), record.name.as_str())
}

/// Blocking. Gives all bound claims with a directory of their own the size that their documents ask for. One never gets
/// smaller, and keeps its size when its document is gone.
pub fn settle(layout: &Layout, configuration: &Configuration) -> Vec<Sized> {
    let records = claim::records(layout).into_iter();
    records
        .filter(|record| record.bound == Bound::Directory)
        .filter_map(|record| settle_one(layout, &record, configuration))
        .collect()
}

/// The same for one claim, whose directory exists. `None` if it has no size, or was removed meanwhile.
pub(super) fn settle_one(
    layout: &Layout,
    record: &Record,
    configuration: &Configuration,
) -> Option<Sized> {
    let folder = layout.claim(&record.namespace, &record.name);
    let limits = File::open(&folder).is_ok_and(|folder| quota::limits_projects(&folder));
    let asked = requested(record, configuration);
    let changed = claim::update(layout, record, |record, all| {
        let before = record.clone();
        if let Some(asked) =
            asked.filter(|asked| bytes(Some(asked)) > bytes(record.capacity.as_deref()))
        {
            record.capacity = Some(asked);
        }
        if limits && record.project.is_none() {
            record.project = free_number(&folder, &all());
        }
        *record != before
    });
    let (record, problem) = match changed {
        Ok(record) => (record?, None),
        Err(error) => (record.clone(), Some(error.to_string())),
    };
    let size = bytes(record.capacity.as_deref())?;
    let limited = match (limits, record.project, &problem) {
        (false, _, _) => Err(None),
        (true, Some(project), None) => {
            let place = record.path(layout);
            gather(&place, project)
                .and_then(|root| limit_to_newest(layout, &record, &root))
                .map_err(|error| Some(format!("could not limit `{}`: {error}", place.display())))
        }
        (true, _, _) => Err(problem.or_else(|| Some("there is no free project number".to_owned()))),
    };
    Some(Sized {
        claim: key(&record),
        counted_bytes: limited.is_err().then_some(size),
        problem: limited.err().flatten(),
    })
}

/// Limits a claim's project to the size in its record as it is now: moving files takes its time, and meanwhile the claim may
/// have got more, or be gone, and its number another claim's.
fn limit_to_newest(layout: &Layout, known: &Record, root: &File) -> io::Result<()> {
    let mut done = Ok(());
    let looked = claim::update(layout, known, |record, _| {
        let size = bytes(record.capacity.as_deref());
        if let (Some(project), Some(size)) = (record.project, size)
            && known.project == record.project
        {
            done = limit(root, project, size);
        }
        false
    });
    looked.map_err(io::Error::other).and(done)
}

/// The size that the claim's document asks for.
fn requested(record: &Record, configuration: &Configuration) -> Option<String> {
    let kind = ObjectKind::PersistentVolumeClaim;
    let found = configuration.get(kind, &record.namespace, &record.name)?;
    match &**found {
        Object::Claim(claim) => Some(binding::storage(claim)?.0.clone()),
        _ => None,
    }
}

/// A quantity in whole bytes.
fn bytes(written: Option<&str>) -> Option<u64> {
    let found = Quantity::parse(written?).ok()?.ceil();
    Some(u64::try_from(found).unwrap_or(u64::MAX))
}

/// A project number that no claim has, and that nothing else on the file system uses.
fn free_number(folder: &Path, all: &[Record]) -> Option<u32> {
    let taken: BTreeSet<u32> = all.iter().filter_map(|record| record.project).gather();
    let folder = File::open(folder).ok()?;
    let unused = |number: &u32| {
        let found = quota::project(&folder, *number);
        found.is_ok_and(|found| found == quota::Project::default())
    };
    let mut numbers = (FIRST..FIRST + TRIES).filter(|number| !taken.contains(number));
    numbers.find(unused)
}

/// Makes the directory a project. Its root is moved first, so that what is made in it meanwhile belongs to the project, and
/// a limit says that everything below it was moved.
fn gather(place: &Path, project: u32) -> io::Result<File> {
    let root = ownership::open_root(place)?;
    let root = reopened(&root)?;
    if quota::project_of(&root)? == project && quota::project(&root, project)?.limit_bytes > 0 {
        return Ok(root);
    }
    quota::move_to(&root, project, true)?;
    ownership::each_below(root.as_fd(), &mut |entry, found| {
        let is_folder = found.st_mode & libc::S_IFMT == libc::S_IFDIR;
        // Links, sockets and devices cannot be moved, and take no blocks.
        if is_folder || found.st_mode & libc::S_IFMT == libc::S_IFREG {
            quota::move_to(reopened(entry)?, project, is_folder)?;
        }
        Ok(())
    })?;
    Ok(root)
}

/// Limits the project of a directory to this size.
fn limit(root: &File, project: u32, size: u64) -> io::Result<()> {
    let units = |bytes: u64| bytes.div_ceil(1024);
    match units(quota::project(root, project)?.limit_bytes) == units(size) {
        true => Ok(()),
        false => quota::limit(root, project, size),
    }
}

/// A regular file or folder that is open as a place only, open for reading. A container's lease of a file is an error, and
/// no wait.
fn reopened(place: impl AsFd) -> io::Result<File> {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    let path = format!("/proc/self/fd/{}", place.as_fd().as_raw_fd());
    let options = &mut File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Takes the limit of a removed claim away.
pub(super) fn forget(claims: &Path, record: &Record) {
    let (Some(project), Ok(place)) = (record.project, File::open(claims)) else {
        return;
    };
    if let Err(error) = quota::limit(&place, project, 0) {
        tracing::debug!("could not take the limit of project {project} away: {error}");
    }
}

/// How many bytes the files of a limited claim take.
pub fn used_by_quota(layout: &Layout, record: &Record) -> Option<u64> {
    let place = File::open(layout.claims_dir()).ok()?;
    let project = record.project.filter(|_| quota::limits_projects(&place))?;
    Some(quota::project(&place, project).ok()?.used_bytes)
}
