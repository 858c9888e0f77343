//! Whether the images of an archive, of a pull, or of the store may be used: what the policy demands of each, and the
//! signatures that it has. An archive has them in a file beside it, or in it as manifests of their own (OCI layouts).

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::archive::Archive;
use super::contents::{self, Found};
use super::digest;
use super::error::ImageError;
use super::import::Request;
use super::name;
use super::oci::{self, Descriptor, Document};
use super::preload;
use super::progress::Cause;
use super::registry::{SIGNATURES, untrusted};
use super::store::ImageStore;
use super::trust::{
    Demand, MAX_LIST_BYTES, MAX_PAYLOAD_BYTES, MAX_SIGNATURES, Origin, Policy, PolicyError,
    Signature, signature_layers, signatures_of,
};
use crate::spec::ImageName;
use crate::sys::file::read_bounded;

/// The maximum number of manifests of signatures in an archive.
const MAX_MANIFESTS: usize = 64;

/// By what an import goes.
#[derive(Debug, Clone, Default)]
pub(crate) enum Trust {
    /// Any image may be imported.
    #[default]
    Anything,
    /// The image of a pull needs these signatures.
    Demand(Box<Demand>),
    /// Those that a policy demands.
    Policy(Box<Rules>),
}

/// A policy, as it is for one archive.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    policy: Policy,
    /// The content of the file beside the archive.
    beside: Vec<u8>,
    /// A text that differs under another policy, or with other signatures beside the archive.
    under: Option<String>,
}

impl Trust {
    /// Reads the policy, its keys and the file beside an archive (`None`: it comes as a stream).
    pub(crate) fn read(policy: &Path, archive: Option<&Path>) -> Result<Self, ImageError> {
        let policy = Policy::read(policy)?;
        if !policy.is_there() {
            return Ok(Self::Anything);
        }
        // Noted before the file is read: a later change of the file leads to another import.
        let under = archive.and_then(|archive| under(&policy, archive));
        let beside = match archive {
            Some(archive) => list(&beside(archive))?,
            None => Vec::new(),
        };
        let rules = Rules {
            policy,
            beside,
            under,
        };
        Ok(Self::Policy(Box::new(rules)))
    }

    /// The policy and the signatures beside the archive, as a text; none without a policy.
    pub(crate) fn under(&self) -> Option<String> {
        match self {
            Self::Policy(rules) => rules.under.clone(),
            Self::Anything | Self::Demand(_) => None,
        }
    }
}

/// A text that differs under another policy, or with other signatures beside an archive; none without a policy.
pub(crate) fn under(policy: &Policy, archive: &Path) -> Option<String> {
    let policy = policy.fingerprint()?;
    Some(match preload::fingerprint(&beside(archive)) {
        Ok(found) => format!("{policy} {found:?}"),
        Err(_) => policy,
    })
}

impl From<PolicyError> for ImageError {
    fn from(why: PolicyError) -> Self {
        Self::Pull {
            message: crate::chain(&why),
            hint: Some(
                "no image can be used until that is mended: `coracle doctor` checks it, `coracle help images` says \
                 what it may have"
                    .to_owned(),
            ),
            cause: Cause::Signature,
        }
    }
}

/// The file with the signatures of an archive: `web.tar.sig` of `web.tar`.
pub(crate) fn beside(archive: &Path) -> PathBuf {
    let mut path = archive.as_os_str().to_owned();
    path.push(".sig");
    path.into()
}

/// The content of a file with signatures; nothing if it is missing.
fn list(path: &Path) -> Result<Vec<u8>, ImageError> {
    match read_bounded(path, MAX_LIST_BYTES) {
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        other => other.map_err(super::error::io("read", path)),
    }
}

/// Lets the images of an import in, each with the signatures that count, or fails. Returns where they come from.
pub(crate) fn admit(
    request: &Request,
    archive: &Archive,
    images: &mut [Found],
) -> Result<Option<Origin>, ImageError> {
    // A bundle from a registry is in the store, too.
    let fetched = request.pulled || request.archive.starts_with(&request.store);
    let origin = Some(origin(request, archive)).filter(|_| !fetched);
    match &request.trust {
        Trust::Anything => {}
        Trust::Demand(demand) => {
            let found = parse(&list(&request.archive.join(SIGNATURES))?, &request.archive)?;
            for image in images {
                accept(image, demand, &found)?;
            }
        }
        Trust::Policy(rules) => {
            let mut found = parse(&rules.beside, &request.archive)?;
            found.extend(in_archive(archive)?);
            for image in images {
                let of = (origin.as_ref(), request.vouched);
                admit_one(&rules.policy, of, image, &found)?;
            }
        }
    }
    Ok(origin)
}

fn parse(list: &[u8], archive: &Path) -> Result<Vec<Signature>, ImageError> {
    signatures_of(list).map_err(|why| ImageError::Malformed {
        what: format!("the signatures of `{}`", archive.display()),
        why: why.to_string(),
    })
}

/// Under each of its names. What is vouched for needs no signature, but the policy may reject it.
fn admit_one(
    policy: &Policy,
    (origin, vouched): (Option<&Origin>, bool),
    image: &mut Found,
    found: &[Signature],
) -> Result<(), ImageError> {
    let mut names = Vec::new();
    for name in image.names.iter().chain(&image.bundled) {
        names.push(Some(name::parse(name)?));
    }
    if names.is_empty() {
        names.push(None);
    }
    for name in names {
        let shown = match &name {
            Some(name) => name.to_string(),
            None => digest::of(&image.config),
        };
        let demand = policy.demand(name.as_ref(), origin);
        let demand = demand.map_err(|why| untrusted(&shown, &why))?;
        if let Some(demand) = demand.filter(|_| !vouched) {
            accept(image, &demand, found)?;
        }
    }
    Ok(())
}

fn accept(image: &mut Found, demand: &Demand, found: &[Signature]) -> Result<(), ImageError> {
    let id = digest::of(&image.config);
    let mut digests = image.indexes.clone();
    digests.extend(image.manifest.iter().map(|manifest| digest::of(manifest)));
    digests.push(id.clone());
    let shown = demand.shown().unwrap_or(id);
    let used = demand
        .check(&digests, found)
        .map_err(|why| untrusted(&shown, &why))?;
    for signature in used {
        if !image.signatures.contains(&signature) {
            image.signatures.push(signature);
        }
    }
    Ok(())
}

/// Where an archive's images come from, in the words of policies.
fn origin(request: &Request, archive: &Archive) -> Origin {
    let transport = match archive {
        Archive::Directory { .. } => "oci",
        // `docker save` writes an OCI layout as well.
        Archive::Tar { .. } if archive.has("manifest.json") => "docker-archive",
        Archive::Tar { .. } => "oci-archive",
    };
    Origin {
        transport: transport.to_owned(),
        path: Some(request.archive.clone()).filter(|path| path.is_absolute()),
    }
}

/// Whether an entry of an index is no image, but the signatures of one: tagged as cosign tags them in registries, or
/// written by `cosign save`.
pub(crate) fn is_signatures(at: &Descriptor) -> bool {
    let Some(notes) = &at.annotations else {
        return false;
    };
    let kind = notes.get("kind").map(String::as_str).unwrap_or_default();
    let attached = ["sigs", "atts", "sboms"];
    let cosigns = kind.strip_prefix("dev.cosignproject.cosign/");
    let name = notes.get("org.opencontainers.image.ref.name");
    let tag = name.map(|name| name.rsplit([':', '/']).next().unwrap_or_default());
    let of = tag.and_then(|tag| tag.strip_suffix(".sig")?.strip_prefix("sha256-"));
    cosigns.is_some_and(|kind| attached.contains(&kind))
        || of.is_some_and(|hex| name::is_digest(&format!("sha256:{hex}")))
}

/// The signatures in an OCI layout.
fn in_archive(archive: &Archive) -> Result<Vec<Signature>, ImageError> {
    if !archive.has("oci-layout") || !archive.has("index.json") {
        return Ok(Vec::new());
    }
    let index: Document = oci::parse(&archive.json("index.json")?, "`index.json`")?;
    let manifests = index.manifests.unwrap_or_default();
    let manifests = manifests.iter().filter(|at| is_signatures(at));
    let mut found = Vec::new();
    for at in manifests.take(MAX_MANIFESTS) {
        let manifest = contents::blob(archive, at, "manifest")?;
        // What is not understood is no signature.
        for layer in signature_layers(&manifest).unwrap_or_default() {
            let mut payload = Vec::new();
            let part = archive.part(&contents::blob_part(&layer.digest)?)?;
            let read = part.take(MAX_PAYLOAD_BYTES).read_to_end(&mut payload);
            if read.is_ok() && digest::of(&payload) == layer.digest {
                found.push(Signature {
                    payload,
                    signature: layer.signature,
                });
            }
        }
    }
    found.truncate(MAX_MANIFESTS * MAX_SIGNATURES);
    Ok(found)
}

impl ImageStore {
    /// Checks whether a policy lets a stored image run under a name. No network is needed: the signatures that were
    /// accepted are kept.
    pub fn check_trust(
        &self,
        policy: &Policy,
        id: &str,
        image: &ImageName,
    ) -> Result<(), ImageError> {
        if !policy.is_there() {
            return Ok(());
        }
        let origin = self.origin(id, image)?;
        let shown = image.to_string();
        let demand = policy.demand(Some(image), origin.as_ref());
        let Some(demand) = demand.map_err(|why| untrusted(&shown, &why))? else {
            return Ok(());
        };
        let record = self.record(id)?.ok_or_else(|| ImageError::NotFound {
            name: shown.clone(),
        })?;
        match record.vouched {
            true => Ok(()),
            false => record.check(&demand).map_err(|why| untrusted(&shown, &why)),
        }
    }

    /// Whether all these images are there; with `vouched`, also that they came with a signed bundle.
    pub fn has_all<'i>(&self, mut ids: impl Iterator<Item = &'i str>, vouched: bool) -> bool {
        ids.all(|id| matches!(self.record(id), Ok(Some(record)) if record.vouched || !vouched))
    }

    /// The archive that an image of this name comes from.
    fn origin(&self, id: &str, image: &ImageName) -> Result<Option<Origin>, ImageError> {
        if image.digest.is_none() {
            let full = name::tagged(image).unwrap_or_default();
            let found = self.reference(&full)?.filter(|found| found.id == id);
            return Ok(found.and_then(|found| found.origin));
        }
        // A digest has no name of its own: those of the same repository count.
        for (full, of) in self.references()? {
            let same = name::parse(&full).is_ok_and(|other| {
                other.registry == image.registry && other.repository == image.repository
            });
            if same
                && of == id
                && let Some(found) = self.reference(&full)?
            {
                return Ok(found.origin);
            }
        }
        Ok(None)
    }
}
