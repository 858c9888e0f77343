//! The import of an archive, in the worker. Everything is unpacked and verified in a staging directory, synced, and
//! only then moved into place: layers, blobs, records, and names last.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::archive::Archive;
use super::bundle::{self, Bundle};
use super::commit::{Source, commit, distinct_layers};
use super::contents::{self, Found, FoundLayer};
use super::digest::{self, Hashing};
use super::error::{ImageError, io};
use super::layers::Workshop;
use super::name;
use super::oci::Platform;
use super::preload::{self, Fingerprint};
use super::progress::{Imported, Progress};
use super::registry::PullFolder;
use super::signatures::{self, Trust};
use super::space::{KeepFree, Space};
use super::staging::Staging;
use super::store::ImageStore;
use super::trust::PublicKey;
use crate::sys::clock;
use crate::types::image_access::Accesses;

/// The shortest interval between progress reports.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Stands for standard input in place of a path.
pub(crate) const STREAM: &str = "-";

/// The archive to import, and the options.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) store: PathBuf,
    /// `-` is standard input.
    pub(crate) archive: PathBuf,
    /// Whether it is from a preload directory: it is remembered, and its images are never pruned.
    pub(crate) preloaded: bool,
    /// A name beside those in the archive.
    pub(crate) name: Option<String>,
    /// The disk space to leave free.
    pub(crate) keep: KeepFree,
    /// Whether it is the folder of a pull: it has no names, and is removed when its image is imported.
    pub(crate) pulled: bool,
    /// Set while the layers of a pull still arrive, which standard input tells ([`super::layers`]): the id of this boot,
    /// in which layers that an earlier worker has unpacked are as it left them.
    pub(crate) arriving: Option<String>,
    /// The platform of the images to import; this machine's if missing.
    pub(crate) platform: Option<Platform>,
    /// The digest of the bundle whose images to import. They get no names.
    pub(crate) bundle: Option<String>,
    /// Whether that bundle's signature was verified: it stands for its images.
    pub(crate) vouched: bool,
    /// Which pods may use an image that is pulled for one. No pod may, until its registry has accepted credentials.
    pub(crate) access: Accesses,
    /// What the images need to be let in.
    pub(crate) trust: Trust,
}

impl Request {
    /// Reads the policy for an archive, and the signatures beside it: with all rights, and nothing is parsed but the
    /// policy.
    pub(crate) fn with_policy(mut self, policy: Option<&Path>) -> Result<Self, ImageError> {
        if let (Some(policy), Trust::Anything) = (policy, &self.trust) {
            let archive = Some(self.archive.as_path()).filter(|_| !self.is_stream());
            self.trust = Trust::read(policy, archive)?;
        }
        Ok(self)
    }

    fn is_stream(&self) -> bool {
        self.archive == Path::new(STREAM)
    }

    /// The archive's current state; a stream has none.
    fn fingerprint(&self) -> Result<Option<Fingerprint>, ImageError> {
        match self.is_stream() {
            true => Ok(None),
            false => preload::fingerprint(&self.archive).map(Some),
        }
    }
}

/// Reports progress; fails once the client is gone, which ends the import.
pub(crate) type Report<'a> = dyn FnMut(Progress) -> io::Result<()> + 'a;

/// Imports all images of an archive that are for this machine.
pub(crate) fn import(
    request: &Request,
    report: &mut Report<'_>,
) -> Result<Vec<Imported>, ImageError> {
    let store = ImageStore::open(&request.store)?;
    // Until all has arrived it is held by who downloads.
    let mut arriving = request.arriving.is_some();
    let mut folder = match arriving {
        true => None,
        false => hold_pulled(request)?,
    };
    let fingerprint = request.fingerprint()?;
    let staging = match &request.arriving {
        Some(boot) => Staging::of_pull(&store, &request.archive, boot)?,
        None => Staging::new(&store)?,
    };
    let mut space = Space::new(&staging.path, request.keep)?;
    let archive = open(request, &staging, &mut space, report)?;
    let (mut images, names) = find(request, &archive)?;
    complete_names(&mut images, request)?;
    let origin = signatures::admit(request, &archive, &mut images)?;
    let layers: Vec<FoundLayer> = distinct_layers(&images);
    let workshop = Workshop {
        archive: &archive,
        staging: &staging,
        space: &space,
    };
    // A second time only if an image was removed meanwhile whose layers were to be shared.
    let _lock = loop {
        let missing: Vec<&FoundLayer> = layers
            .iter()
            .filter(|l| !store.has_layer(&l.diff_id) && !staging.layer(&l.diff_id).exists())
            .collect();
        let unpacked = workshop.unpack(&missing, arriving, report);
        if request.pulled && unpacked.as_ref().is_err_and(|why| !is_abandoned(why)) {
            drop_damaged(&request.archive, &layers);
        }
        unpacked?;
        if arriving {
            folder = hold_pulled(request)?;
            arriving = false;
        }
        staging.sync()?;
        let lock = store.lock()?;
        let here =
            |l: &FoundLayer| store.has_layer(&l.diff_id) || staging.layer(&l.diff_id).exists();
        if layers.iter().all(here) {
            break lock;
        }
    };
    if request.fingerprint()? != fingerprint {
        return Err(ImageError::Changed {
            path: request.archive.clone(),
        });
    }
    let fingerprint = fingerprint.filter(|_| request.preloaded);
    let known = |fingerprint| preload::knows(&store, &request.archive, fingerprint);
    let source = Source {
        origin: origin.as_ref(),
        vouched: request.vouched,
        again: fingerprint.is_some_and(known),
    };
    let mut imported = commit(&store, &staging, &images, &source, &request.access)
        .map_err(|why| full_disk(why, &space))?;
    for (image, names) in imported.iter_mut().zip(names) {
        image.names.extend(names);
    }
    if let Some(fingerprint) = fingerprint {
        let under = request.trust.under();
        preload::record(&store, &request.archive, (fingerprint, under), &imported)?;
    }
    staging.finish();
    if let Some(folder) = folder {
        // What cannot be removed now goes when it is old.
        let _ = folder.remove();
    }
    Ok(imported)
}

/// The images of the archive, and the names of those that get them later.
fn find(
    request: &Request,
    archive: &Archive,
) -> Result<(Vec<Found>, Vec<Vec<String>>), ImageError> {
    let platform = request.platform.clone().unwrap_or_else(Platform::own);
    let Some(digest) = &request.bundle else {
        return Ok((contents::images(archive, &platform)?, Vec::new()));
    };
    // Its signature was verified when its digest was read.
    let found = bundle::open(archive, &[])?;
    if found.bundle.digest != *digest {
        return Err(ImageError::Changed {
            path: request.archive.clone(),
        });
    }
    let mut images = found.images(archive, &platform)?;
    contents::check_whole(&images)?;
    let taken = images
        .iter_mut()
        .map(|image| std::mem::take(&mut image.names));
    let names = taken.collect();
    Ok((images, names))
}

/// Reads the documents of a bundle, and imports nothing.
pub(crate) fn read_bundle(
    store: &Path,
    archive: &Path,
    keys: &[PublicKey],
    keep: KeepFree,
) -> Result<Bundle, ImageError> {
    let store = ImageStore::open(store)?;
    let staging = Staging::new(&store)?;
    let mut space = Space::new(&staging.path, keep)?;
    let archive = Archive::open(archive, &staging.path, &mut space, &mut |_| Ok(()))?;
    let contents = bundle::open(&archive, keys)?;
    let ids = contents.ids(&archive)?;
    Ok(Bundle {
        images: ids,
        ..contents.bundle
    })
}

fn is_abandoned(why: &ImageError) -> bool {
    matches!(why, ImageError::Abandoned)
}

/// Removes the blobs of a pull that are not what their names say any more, so that the next pull fetches them again.
/// What cannot be read or removed is left to that pull.
fn drop_damaged(folder: &Path, layers: &[FoundLayer]) {
    for (name, _) in layers.iter().filter_map(|layer| layer.blob.as_ref()) {
        let path = folder.join("blobs/sha256").join(digest::hex(name));
        let Ok(blob) = File::open(&path) else {
            continue;
        };
        let read = Hashing::new(blob).finish();
        if !read.is_ok_and(|(actual, _)| actual == *name) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// The folder of a pull, held until it has been imported.
fn hold_pulled(request: &Request) -> Result<Option<PullFolder>, ImageError> {
    if !request.pulled {
        return Ok(None);
    }
    let gone = || ImageError::Missing {
        what: format!("the pull's folder `{}`", request.archive.display()),
    };
    PullFolder::hold(&request.archive)?
        .ok_or_else(gone)
        .map(Some)
}

fn open(
    request: &Request,
    staging: &Staging,
    space: &mut Space,
    report: &mut Report<'_>,
) -> Result<Archive, ImageError> {
    let mut next_report = clock::now();
    let mut tick = |done_bytes| {
        if clock::now() < next_report {
            return Ok(());
        }
        next_report = clock::now() + REPORT_EVERY;
        let progress = Progress {
            stage: "receive".to_owned(),
            layer: 0,
            layers: 0,
            done_bytes,
            total_bytes: 0,
            blob: None,
            pull: None,
        };
        report(progress).map_err(|_| ImageError::Abandoned)
    };
    match request.is_stream() {
        true => Archive::receive(io::stdin().lock(), &staging.path, space, &mut tick),
        false => Archive::open(&request.archive, &staging.path, space, &mut tick),
    }
}

/// A name given by the client is one more beside those in the archive, as podman has it; a single image without a name is
/// named after its file.
fn complete_names(images: &mut [Found], request: &Request) -> Result<(), ImageError> {
    if let Some(given) = &request.name {
        let bad = |why: &str| ImageError::Name {
            name: given.clone(),
            why: why.into(),
        };
        let full = name::tagged(&name::parse(given)?);
        let [image] = images else {
            return Err(bad(
                "the archive has several images, which cannot share one name",
            ));
        };
        let full = full.ok_or_else(|| bad("an imported image needs a tag"))?;
        if !image.names.contains(&full) {
            image.names.insert(0, full);
        }
        return Ok(());
    }
    if let [image] = images
        && image.names.is_empty()
        && request.bundle.is_none()
        && !request.is_stream()
        && !request.pulled
    {
        let stem = request.archive.file_name().and_then(|name| name.to_str());
        let name = stem.and_then(name::from_file_stem);
        image.names = name
            .and_then(|name| name::tagged(&name::parse(&name).ok()?))
            .into_iter()
            .collect();
    }
    Ok(())
}

fn full_disk(why: ImageError, space: &Space) -> ImageError {
    match why {
        ImageError::Io {
            doing,
            path,
            source,
        } => space.write_error(source, |source| io(doing, &path)(source)),
        other => other,
    }
}

impl Request {
    /// An import without any option.
    pub(crate) fn of(store: &Path, archive: &Path) -> Self {
        Self {
            store: store.to_owned(),
            archive: archive.to_owned(),
            preloaded: false,
            name: None,
            keep: KeepFree::default(),
            pulled: false,
            arriving: None,
            platform: None,
            bundle: None,
            vouched: false,
            access: Accesses::new(),
            trust: Trust::default(),
        }
    }
}

/// Imports an archive in this process, with all its rights: not for untrusted archives, but for tests of arbitrary
/// input.
pub fn import_here(store: &Path, archive: &Path) -> Result<Vec<Imported>, ImageError> {
    import(&Request::of(store, archive), &mut |_| Ok(()))
}
