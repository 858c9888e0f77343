//! What the policy demands of one image, and whether its signatures satisfy that.

use serde::{Deserialize, Serialize};

use super::identity::Identity;
use super::key::PublicKey;
use super::signature::Signature;
use crate::spec::ImageName;

/// The maximum number of reasons that an error lists.
const MAX_REASONS: usize = 4;

/// An image that the policy does not let in.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// By a scope that rejects it.
    #[error("{scope} of the policy rejects it")]
    Rejected {
        /// The scope.
        scope: String,
    },
    /// A signature is missing.
    #[error("it has no signature, and {scope} of the policy demands one")]
    Unsigned {
        /// The scope.
        scope: String,
        /// Whether there is one in a form that names no repository: a bundle of sigstore.
        bundle: bool,
    },
    /// No signature is accepted.
    #[error("none of its signatures is accepted by {scope} of the policy: {}", reasons.join("; "))]
    Refused {
        /// The scope.
        scope: String,
        /// What is wrong with each.
        reasons: Vec<String>,
        /// Whether another identity would do.
        identity: bool,
    },
}

impl TrustError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Rejected { .. } => {
                "if it may run, give it a scope of its own in the policy (`coracle help images`)"
            }
            Self::Unsigned { bundle: true, .. } => {
                "it has a bundle of sigstore only, which does not say for which repository it is: sign it by `cosign sign \
                 --key KEY --new-bundle-format=false --use-signing-config=false --tlog-upload=false NAME@DIGEST`"
            }
            Self::Unsigned { .. } => {
                "sign it, for instance by `cosign sign --key KEY NAME@DIGEST`; `coracle help images` has all ways"
            }
            Self::Refused { identity: true, .. } => {
                "sign it under its own name, or let the policy say by `signedIdentity` which name is meant; cosign \
                 signs repositories without a tag: `{\"type\": \"matchRepository\"}`"
            }
            Self::Refused { .. } => {
                "sign this image with the key that the policy names; the image may not be what its owner has signed"
            }
        }
        .to_owned()
    }
}

/// A requirement of the type `sigstoreSigned`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Signed {
    /// One of them must have signed.
    pub(super) keys: Vec<PublicKey>,
    pub(super) identity: Identity,
}

/// The signatures that an image must have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Demand {
    /// The image's name; one without a name can only have a fixed identity.
    pub(super) name: Option<ImageName>,
    /// The scope of the policy, for messages.
    pub(super) scope: String,
    /// All of them.
    pub(super) signed: Vec<Signed>,
}

impl Demand {
    /// The image's name.
    pub(crate) fn shown(&self) -> Option<String> {
        self.name.as_ref().map(ImageName::to_string)
    }

    /// Looks for the signatures that satisfy the demand. `digests`: of the image's manifest, of the indexes that led to
    /// it, and of its config; a signature of any of them is one of the image.
    pub fn check(
        &self,
        digests: &[String],
        signatures: &[Signature],
    ) -> Result<Vec<Signature>, TrustError> {
        let mut used: Vec<Signature> = Vec::new();
        for signed in &self.signed {
            let mut reasons: Vec<String> = Vec::new();
            let mut identity = false;
            let mut accepted = None;
            for signature in signatures {
                match self.accepts(signed, digests, signature) {
                    Ok(()) => {
                        accepted = Some(signature);
                        break;
                    }
                    Err((why, by_name)) => {
                        identity |= by_name;
                        if !reasons.contains(&why) && reasons.len() < MAX_REASONS {
                            reasons.push(why);
                        }
                    }
                }
            }
            let scope = self.scope.clone();
            match accepted {
                Some(signature) if used.contains(signature) => {}
                Some(signature) => used.push(signature.clone()),
                None if reasons.is_empty() => {
                    return Err(TrustError::Unsigned {
                        scope,
                        bundle: false,
                    });
                }
                None => {
                    return Err(TrustError::Refused {
                        scope,
                        reasons,
                        identity,
                    });
                }
            }
        }
        Ok(used)
    }

    /// Checks one signature. Fails with the reason, and whether only the name in it is wrong.
    fn accepts(
        &self,
        signed: &Signed,
        digests: &[String],
        signature: &Signature,
    ) -> Result<(), (String, bool)> {
        let (payload, _) = signature
            .verify(&signed.keys)
            .map_err(|why| (why.to_string(), false))?;
        if !digests.contains(&payload.digest) {
            return Err((format!("it is one of {}", payload.digest), false));
        }
        match signed
            .identity
            .accepts(self.name.as_ref(), &payload.reference)
        {
            true => Ok(()),
            false => {
                let said: String = payload.reference.chars().take(300).collect();
                Err((format!("it is one for `{}`", said.escape_debug()), true))
            }
        }
    }
}
