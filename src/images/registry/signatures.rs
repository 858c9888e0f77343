//! The signatures of an image in its repository: below cosign's tag (`sha256-<hex>.sig`), and among the referrers of its
//! manifest (OCI distribution 1.1), by the registry's list or by the tag that stands in for it.
//!
//! Whatever is not there, or not understood, is no signature: the image is refused then.

use serde::Deserialize;

use super::super::digest;
use super::super::error::ImageError;
use super::super::name::is_digest;
use super::super::progress::Cause;
use super::super::trust::{
    Demand, MAX_PAYLOAD_BYTES, MAX_SIGNATURES, Signature, SignatureLayer, TrustError,
    signature_layers, signature_tag,
};
use super::error::FetchError;
use super::resolve::{Raw, Resolved, manifest};
use super::session::{Session, Wanted};
use crate::types::InOrder;

/// The longest manifest of signatures, and the longest list of referrers.
const MAX_BYTES: u64 = 1 << 20;

/// The maximum number of referrers of a manifest that are looked at.
const MAX_REFERRERS: usize = 16;

/// What cosign calls its signatures among the referrers.
const COSIGN: &str = "application/vnd.dev.cosign.";

/// What cosign 3 writes unless it is told otherwise. It has a digest, and no name.
const BUNDLE: &str = "application/vnd.dev.sigstore.bundle";

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<Referrer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Referrer {
    digest: String,
    #[serde(default)]
    artifact_type: Option<String>,
}

/// Fetches signatures until they satisfy a demand, and returns those that do. `top` is what the name means; the
/// signature of an index is one of the image in it.
pub(super) fn verify(
    session: &Session,
    demand: &Demand,
    (top, found): (Option<&Raw>, &Resolved),
) -> Result<Vec<Signature>, FetchError> {
    let mut digests = vec![found.manifest.digest.clone()];
    digests.extend(top.map(|top| top.digest.clone()));
    digests.dedup();
    let mut seen = Seen::default();
    // The index first: that is what a tag means, and what cosign signs.
    for digest in digests.iter().rev() {
        for way in [by_tag, by_referrers] {
            way(session, digest, &mut seen)?;
            if let Ok(used) = demand.check(&digests, &seen.signatures) {
                return Ok(used);
            }
        }
    }
    demand.check(&digests, &seen.signatures).map_err(|mut why| {
        if let TrustError::Unsigned { bundle, .. } = &mut why {
            *bundle = seen.bundle;
        }
        FetchError::Image(untrusted(&session.name().to_string(), &why))
    })
}

/// What a repository has for an image.
#[derive(Default)]
struct Seen {
    signatures: Vec<Signature>,
    /// Whether there is a bundle of sigstore.
    bundle: bool,
}

/// The error about an image that is not trusted.
pub(in super::super) fn untrusted(name: &str, why: &TrustError) -> ImageError {
    ImageError::Pull {
        message: format!("`{name}` is not trusted: {why}"),
        hint: Some(why.hint()),
        cause: Cause::Signature,
    }
}

fn by_tag(session: &Session, digest: &str, seen: &mut Seen) -> Result<(), FetchError> {
    if let Some(bytes) = document(session, &signature_tag(digest))? {
        seen.signatures
            .extend(fetch(session, &bytes, MAX_SIGNATURES)?);
    }
    Ok(())
}

fn by_referrers(session: &Session, digest: &str, seen: &mut Seen) -> Result<(), FetchError> {
    let list = Wanted {
        head: false,
        target: format!("referrers/{digest}"),
        headers: vec![(
            "Accept",
            "application/vnd.oci.image.index.v1+json".to_owned(),
        )],
        what: format!("referrers of {digest}"),
        range: false,
    };
    let list = match small(session, &list)? {
        Some(list) => Some(list),
        None => document(session, &digest.replacen(':', "-", 1))?,
    };
    let list: Option<Index> = list.and_then(|list| serde_json::from_slice(&list).ok());
    let mut referrers: Vec<Referrer> = list.map(|list| list.manifests).unwrap_or_default();
    referrers.retain(|referrer| is_digest(&referrer.digest));
    // Software bills and the like come last, and the newest first: registries list by age.
    referrers.reverse();
    let is = |referrer: &Referrer, of: &str| {
        let kind = referrer.artifact_type.as_deref();
        kind.is_some_and(|kind| kind.starts_with(of))
    };
    referrers.order_by_key(|referrer| !is(referrer, COSIGN));
    seen.bundle |= referrers.iter().any(|referrer| is(referrer, BUNDLE));
    let mut signatures = Vec::new();
    for referrer in referrers.iter().take(MAX_REFERRERS) {
        let bytes = document(session, &referrer.digest)?.unwrap_or_default();
        if digest::of(&bytes) == referrer.digest {
            let room = MAX_SIGNATURES.saturating_sub(signatures.len());
            signatures.extend(fetch(session, &bytes, room)?);
        }
    }
    seen.signatures.extend(signatures);
    Ok(())
}

/// The signed documents of a manifest of signatures.
fn fetch(session: &Session, manifest: &[u8], most: usize) -> Result<Vec<Signature>, FetchError> {
    let layers = signature_layers(manifest).unwrap_or_default();
    let mut signatures = Vec::new();
    for SignatureLayer {
        digest: expected,
        size,
        signature,
    } in layers.into_iter().take(most)
    {
        let wanted = Wanted {
            head: false,
            target: format!("blobs/{expected}"),
            headers: vec![("Accept", "*/*".to_owned())],
            what: format!("signature {expected}"),
            range: false,
        };
        let payload = small(session, &wanted)?.unwrap_or_default();
        let whole = payload.len() as u64 == size.min(MAX_PAYLOAD_BYTES);
        if whole && digest::of(&payload) == expected {
            signatures.push(Signature { payload, signature });
        }
    }
    Ok(signatures)
}

/// A manifest by its tag or digest.
fn document(session: &Session, reference: &str) -> Result<Option<Vec<u8>>, FetchError> {
    let what = format!("manifest `{reference}`");
    small(session, &manifest(reference, what, false))
}

/// Something small, if it is there. Some registries hide what is not there, and some do not know the list of referrers.
fn small(session: &Session, wanted: &Wanted) -> Result<Option<Vec<u8>>, FetchError> {
    let answer = match session.ask(wanted) {
        Ok(answer) => answer,
        Err(FetchError::NotFound { .. } | FetchError::Denied { .. }) => return Ok(None),
        Err(FetchError::Status { status, .. }) if (400..500).contains(&status) => return Ok(None),
        Err(why) => return Err(why),
    };
    match answer.whole(MAX_BYTES, &wanted.what, &session.patience()) {
        Ok(bytes) => Ok(Some(bytes)),
        // Too long to be one.
        Err(FetchError::Answer { .. }) => Ok(None),
        Err(why) => Err(why),
    }
}
