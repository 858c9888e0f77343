//! `signedIdentity`: which names a signature may give to an image.

use serde::{Deserialize, Serialize};

use crate::spec::ImageName;

/// What the name in a signature is compared with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
pub(super) enum Identity {
    /// The image's tag, or by digest its repository.
    MatchRepoDigestOrExact {},
    /// The image's name, letter by letter.
    MatchExact {},
    /// The image's repository.
    MatchRepository {},
    /// Another name.
    #[serde(rename_all = "camelCase")]
    ExactReference {
        /// With a tag or a digest.
        docker_reference: String,
    },
    /// Another repository.
    #[serde(rename_all = "camelCase")]
    ExactRepository {
        /// Without a tag.
        docker_repository: String,
    },
    /// The image's name with another beginning.
    #[serde(rename = "remapIdentity", rename_all = "camelCase")]
    Remap {
        /// What is replaced, up to a `/`.
        prefix: String,
        /// By what.
        signed_prefix: String,
    },
}

/// A name as it is written in a signature or a policy.
struct Reference {
    /// `registry/repository`.
    repository: String,
    tag: Option<String>,
    digest: Option<String>,
}

impl Reference {
    fn parse(text: &str) -> Option<Self> {
        let name = ImageName::parse(text).ok()?;
        let before = text.split('@').next().unwrap_or_default();
        let last = before.rsplit('/').next().unwrap_or_default();
        Some(Self {
            repository: format!("{}/{}", name.registry, name.repository),
            // The parser gives a name without one `latest`.
            tag: name.tag.filter(|_| last.contains(':')),
            digest: name.digest,
        })
    }

    fn of(name: &ImageName) -> Self {
        Self {
            repository: format!("{}/{}", name.registry, name.repository),
            tag: name.tag.clone(),
            digest: name.digest.clone(),
        }
    }

    fn is_bare(&self) -> bool {
        self.tag.is_none() && self.digest.is_none()
    }
}

impl Identity {
    /// Checks what the policy has.
    pub(super) fn check(&self) -> Result<(), String> {
        let bad = |what: &str, text: &str, why: &str| {
            Err(format!("{what} `{}` {why}", text.escape_debug()))
        };
        match self {
            Self::MatchRepoDigestOrExact {} | Self::MatchExact {} | Self::MatchRepository {} => {
                Ok(())
            }
            Self::ExactReference { docker_reference } => match Reference::parse(docker_reference) {
                Some(reference) if !reference.is_bare() => Ok(()),
                Some(_) => bad(
                    "dockerReference",
                    docker_reference,
                    "has neither tag nor digest",
                ),
                None => bad("dockerReference", docker_reference, "is no image name"),
            },
            Self::ExactRepository { docker_repository } => {
                match Reference::parse(docker_repository) {
                    Some(reference) if reference.is_bare() => Ok(()),
                    Some(_) => bad("dockerRepository", docker_repository, "has a tag or digest"),
                    None => bad("dockerRepository", docker_repository, "is no image name"),
                }
            }
            Self::Remap {
                prefix,
                signed_prefix,
            } => {
                for (what, text) in [("prefix", prefix), ("signedPrefix", signed_prefix)] {
                    let is_tag = |(_, last): (&str, &str)| last.contains(':');
                    let wrong = text.is_empty()
                        || text.ends_with('/')
                        || text.contains(['@', '*'])
                        || text.contains("://")
                        || text.rsplit_once('/').is_some_and(is_tag);
                    if wrong {
                        return bad(what, text, "must be a host, a namespace or a repository");
                    }
                }
                Ok(())
            }
        }
    }

    /// Whether a signature for `signed` is one for the image of this name.
    pub(super) fn accepts(&self, image: Option<&ImageName>, signed: &str) -> bool {
        let Some(signed) = Reference::parse(signed) else {
            return false;
        };
        let image = image.map(Reference::of);
        match (self, image) {
            (Self::ExactReference { docker_reference }, _) => Reference::parse(docker_reference)
                .is_some_and(|wanted| !wanted.is_bare() && exactly(&wanted, &signed)),
            (Self::ExactRepository { docker_repository }, _) => Reference::parse(docker_repository)
                .is_some_and(|wanted| wanted.repository == signed.repository),
            // The others compare with a name that the image does not have.
            (_, None) => false,
            (Self::MatchRepository {}, Some(image)) => image.repository == signed.repository,
            (Self::MatchExact {}, Some(image)) => !signed.is_bare() && exactly(&image, &signed),
            (Self::MatchRepoDigestOrExact {}, Some(image)) => tag_or_repository(&image, &signed),
            (
                Self::Remap {
                    prefix,
                    signed_prefix,
                },
                Some(mut image),
            ) => {
                let rest = image.repository.strip_prefix(prefix.as_str());
                if let Some(rest) = rest.filter(|rest| rest.is_empty() || rest.starts_with('/')) {
                    image.repository = format!("{signed_prefix}{rest}");
                }
                tag_or_repository(&image, &signed)
            }
        }
    }
}

fn exactly(wanted: &Reference, signed: &Reference) -> bool {
    wanted.repository == signed.repository
        && wanted.tag == signed.tag
        && wanted.digest == signed.digest
}

/// The digest of an image that is asked for by digest is that of its signature anyway.
fn tag_or_repository(image: &Reference, signed: &Reference) -> bool {
    let tag = image.tag.is_none() || image.tag == signed.tag;
    !signed.is_bare() && image.repository == signed.repository && tag
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn identity(json: &str) -> Identity {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_signature_is_for_the_names_that_its_identity_says() {
        let by_digest = format!("r.lan/shop/web@{DIGEST}");
        let both = format!("r.lan/shop/web:1@{DIGEST}");
        let remap =
            r#"{"type":"remapIdentity","prefix":"r.lan/shop","signedPrefix":"vendor.example"}"#;
        for (json, image, signed, expected) in [
            (
                r#"{"type":"matchRepoDigestOrExact"}"#,
                "r.lan/shop/web:1",
                "r.lan/shop/web:1",
                true,
            ),
            (
                r#"{"type":"matchRepoDigestOrExact"}"#,
                "r.lan/shop/web:1",
                "r.lan/shop/web:2",
                false,
            ),
            (
                r#"{"type":"matchRepoDigestOrExact"}"#,
                "r.lan/shop/web:1",
                "r.lan/shop/web",
                false,
            ),
            (
                r#"{"type":"matchRepoDigestOrExact"}"#,
                "r.lan/shop/web",
                "r.lan/shop/web",
                false,
            ),
            (
                r#"{"type":"matchRepoDigestOrExact"}"#,
                "r.lan/shop/web:1",
                "r.lan/shop/w:1",
                false,
            ),
            (
                r#"{"type":"matchRepoDigestOrExact"}"#,
                &by_digest,
                "r.lan/shop/web:2",
                true,
            ),
            (
                r#"{"type":"matchRepoDigestOrExact"}"#,
                &by_digest,
                "r.lan/shop/w:2",
                false,
            ),
            (
                r#"{"type":"matchRepoDigestOrExact"}"#,
                &both,
                "r.lan/shop/web:1",
                true,
            ),
            (
                r#"{"type":"matchRepoDigestOrExact"}"#,
                &both,
                "r.lan/shop/web:2",
                false,
            ),
            (
                r#"{"type":"matchRepoDigestOrExact"}"#,
                "nginx:1",
                "nginx:1",
                true,
            ),
            (
                r#"{"type":"matchExact"}"#,
                "r.lan/shop/web:1",
                "r.lan/shop/web:1",
                true,
            ),
            (
                r#"{"type":"matchExact"}"#,
                &by_digest,
                "r.lan/shop/web:1",
                false,
            ),
            (r#"{"type":"matchExact"}"#, &by_digest, &by_digest, true),
            (
                r#"{"type":"matchRepository"}"#,
                "r.lan/shop/web:1",
                "r.lan/shop/web",
                true,
            ),
            (
                r#"{"type":"matchRepository"}"#,
                "r.lan/shop/web:1",
                "r.lan/shop/web:9",
                true,
            ),
            (
                r#"{"type":"matchRepository"}"#,
                "r.lan/shop/web:1",
                "s.lan/shop/web",
                false,
            ),
            (
                r#"{"type":"matchRepository"}"#,
                "r.lan/shop/web:1",
                "",
                false,
            ),
            (
                r#"{"type":"exactReference","dockerReference":"v.example/web:1"}"#,
                "r.lan/shop/web:1",
                "v.example/web:1",
                true,
            ),
            (
                r#"{"type":"exactReference","dockerReference":"v.example/web:1"}"#,
                "r.lan/shop/web:1",
                "v.example/web",
                false,
            ),
            (
                r#"{"type":"exactRepository","dockerRepository":"v.example/web"}"#,
                "r.lan/shop/web:1",
                "v.example/web",
                true,
            ),
            (
                r#"{"type":"exactRepository","dockerRepository":"v.example/web"}"#,
                "r.lan/shop/web:1",
                "r.lan/shop/web:1",
                false,
            ),
            (remap, "r.lan/shop/web:1", "vendor.example/web:1", true),
            (remap, "r.lan/shop/web:1", "r.lan/shop/web:1", false),
            (remap, "r.lan/shop/web:1", "vendor.example/web:2", false),
            (remap, "r.lan/shopping/web:1", "vendor.example/web:1", false),
            (remap, "r.lan/shopping/web:1", "r.lan/shopping/web:1", true),
        ] {
            let name = ImageName::parse(image).unwrap();
            let found = identity(json).accepts(Some(&name), signed);
            assert_eq!(found, expected, "{json}: {image} signed as {signed}");
        }
        let exact = identity(r#"{"type":"exactRepository","dockerRepository":"v.example/web"}"#);
        assert!(exact.accepts(None, "v.example/web:3"));
        assert!(!identity(r#"{"type":"matchRepository"}"#).accepts(None, "v.example/web"));
    }

    #[test]
    fn identities_that_could_never_match_are_refused() {
        for (json, expected) in [
            (
                r#"{"type":"exactReference","dockerReference":"v.example/web"}"#,
                "neither tag nor digest",
            ),
            (
                r#"{"type":"exactReference","dockerReference":"V E"}"#,
                "is no image name",
            ),
            (
                r#"{"type":"exactRepository","dockerRepository":"v.example/web:1"}"#,
                "has a tag or digest",
            ),
            (
                r#"{"type":"remapIdentity","prefix":"r.lan/web:1","signedPrefix":"v"}"#,
                "must be a host",
            ),
            (
                r#"{"type":"remapIdentity","prefix":"r.lan","signedPrefix":""}"#,
                "must be a host",
            ),
        ] {
            let why = identity(json).check().unwrap_err();
            assert!(why.contains(expected), "{json}: {why}");
        }
        let remap = r#"{"type":"remapIdentity","prefix":"r.lan:5000","signedPrefix":"v:1/a"}"#;
        identity(remap).check().unwrap();
        for json in [
            r#"{"type":"matchAll"}"#,
            r#"{"type":"matchExact","prefix":"a"}"#,
            r#"{"type":"exactReference"}"#,
        ] {
            assert!(serde_json::from_str::<Identity>(json).is_err(), "{json}");
        }
    }
}
