//! `policy.json`: which images may run, by the place they come from (containers-policy.json(5)).
//!
//! A policy that is not understood as a whole refuses every image: what it has beyond these rules could forbid one.

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::marker::PhantomData;
use std::path::{Component, Path, PathBuf};

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::super::digest;
use super::super::error::ImageError;
use super::super::registry::untrusted;
use super::decode_base64;
use super::demand::{Demand, Signed, TrustError};
use super::identity::Identity;
use super::key::PublicKey;
use crate::spec::ImageName;
use crate::sys::file::read_bounded;

/// The longest policy.
const MAX_BYTES: u64 = 1 << 20;

/// The maximum number of keys of a requirement.
const MAX_KEYS: usize = 32;

/// The maximum number of requirements of a scope. With their keys they are an argument of a worker.
const MAX_REQUIREMENTS: usize = 16;

/// Images in registries.
const DOCKER: &str = "docker";

/// Images in archives and directories, by their paths.
const ARCHIVES: [&str; 4] = ["dir", "docker-archive", "oci", "oci-archive"];

/// What other programs have images in.
const OTHERS: [&str; 6] = [
    "atomic",
    "containers-storage",
    "docker-daemon",
    "ostree",
    "sif",
    "tarball",
];

/// A policy that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// It could not be read.
    #[error("could not read the policy `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It is not understood.
    #[error("the policy `{}`: {why}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
}

/// Where an archive's images come from: its kind and its path, if it has one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Origin {
    /// `oci-archive`, `docker-archive`, `oci`.
    pub(crate) transport: String,
    #[serde(default)]
    pub(crate) path: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    Accept,
    Reject,
    Signed(Signed),
}

type Scopes = BTreeMap<String, Vec<Requirement>>;

/// Which images may run. Without a file any may.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// `None`: there is no policy.
    default: Option<Vec<Requirement>>,
    transports: BTreeMap<String, Scopes>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPolicy {
    default: Vec<RawRequirement>,
    #[serde(default)]
    transports: Unique<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawRequirement {
    #[serde(rename = "type")]
    kind: String,
    key_path: Option<PathBuf>,
    key_paths: Option<Vec<PathBuf>>,
    key_data: Option<String>,
    key_datas: Option<Vec<String>>,
    signed_identity: Option<Identity>,
    // Known from other programs, and refused by name.
    key_type: Option<IgnoredAny>,
    fulcio: Option<IgnoredAny>,
    pki: Option<IgnoredAny>,
    rekor_public_key_path: Option<IgnoredAny>,
    rekor_public_key_paths: Option<IgnoredAny>,
    rekor_public_key_data: Option<IgnoredAny>,
    rekor_public_key_datas: Option<IgnoredAny>,
}

/// A mapping in which no key occurs twice: of two rules for one scope only one would count.
struct Unique<V>(BTreeMap<String, V>);

impl<V> Default for Unique<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Unique<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Pairs<V> {
            type Value = Unique<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut all = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, V>()? {
                    if all.insert(key.clone(), value).is_some() {
                        let key = key.escape_debug();
                        return Err(serde::de::Error::custom(format!("`{key}` occurs twice")));
                    }
                }
                Ok(Unique(all))
            }
        }
        deserializer.deserialize_map(Pairs(PhantomData))
    }
}

impl Policy {
    /// Reads a policy and its keys. A missing file lets every image in.
    pub fn read(path: &Path) -> Result<Self, PolicyError> {
        let invalid = |why| PolicyError::Invalid {
            path: path.to_owned(),
            why,
        };
        match read_bounded(path, MAX_BYTES) {
            Ok(bytes) => Self::parse(&bytes).map_err(invalid),
            Err(why) if why.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(PolicyError::Read {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// Reads a policy's text, and the files of its keys.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let raw: RawPolicy = serde_json::from_slice(bytes).map_err(|why| why.to_string())?;
        let default = requirements(raw.default).map_err(|why| format!("default: {why}"))?;
        let mut transports = BTreeMap::new();
        for (transport, scopes) in raw.transports.0 {
            if OTHERS.contains(&transport.as_str()) {
                continue;
            }
            if transport != DOCKER && !ARCHIVES.contains(&transport.as_str()) {
                return Err(format!(
                    "the transport `{}` is not known; images come from `docker`, and from archives: `{}`",
                    transport.escape_debug(),
                    ARCHIVES.join("`, `")
                ));
            }
            transports.insert(transport.clone(), scopes_of(&transport, &scopes)?);
        }
        Ok(Self {
            default: Some(default),
            transports,
        })
    }

    /// Whether there are any rules.
    pub fn is_there(&self) -> bool {
        self.default.is_some()
    }

    /// A text that differs for other rules or keys; `None` without a policy.
    pub fn fingerprint(&self) -> Option<String> {
        let text = format!("{self:?}");
        self.default.as_ref().map(|_| digest::of(text.as_bytes()))
    }

    /// What is demanded of an image in a registry; `None`: nothing.
    pub fn demand_of(&self, name: &ImageName) -> Result<Option<Demand>, ImageError> {
        let demand = self.demand(Some(name), None);
        demand.map_err(|why| untrusted(&name.to_string(), &why))
    }

    /// What is demanded of an image; `None`: nothing. `origin`: the archive it comes from, else a registry.
    pub(crate) fn demand(
        &self,
        name: Option<&ImageName>,
        origin: Option<&Origin>,
    ) -> Result<Option<Demand>, TrustError> {
        let Some(default) = &self.default else {
            return Ok(None);
        };
        let of_archive = origin.and_then(|origin| self.of_archive(origin));
        let found = of_archive.or_else(|| self.of_name(name?));
        let (scope, requirements) = found.unwrap_or_else(|| ("`default`".to_owned(), default));
        let mut signed = Vec::new();
        for requirement in requirements {
            match requirement {
                Requirement::Accept => {}
                Requirement::Reject => return Err(TrustError::Rejected { scope }),
                Requirement::Signed(of) => signed.push(of.clone()),
            }
        }
        let demand = Demand {
            name: name.cloned(),
            scope,
            signed,
        };
        Ok(Some(demand).filter(|demand| !demand.signed.is_empty()))
    }

    /// The rule of an archive, or of a folder above it.
    fn of_archive(&self, origin: &Origin) -> Option<(String, &Vec<Requirement>)> {
        let scopes = self.transports.get(&origin.transport)?;
        let path = origin.path.iter().filter(|path| is_plain(path));
        let paths = path.flat_map(|path| path.ancestors());
        let places = paths.filter_map(Path::to_str).chain([""]);
        first(scopes, &origin.transport, places.map(str::to_owned))
    }

    /// The rule of an image by its name: of its digest or tag, its repository, the namespaces above, its registry,
    /// the domains above.
    fn of_name(&self, name: &ImageName) -> Option<(String, &Vec<Requirement>)> {
        let scopes = self.transports.get(DOCKER)?;
        // Names of hosts are the same in capitals.
        let registry = name.registry.to_ascii_lowercase();
        let repository = format!("{registry}/{}", name.repository);
        let mut places = Vec::new();
        places.extend(name.digest.iter().map(|d| format!("{repository}@{d}")));
        places.extend(name.tag.iter().map(|tag| format!("{repository}:{tag}")));
        let mut rest = repository.as_str();
        loop {
            places.push(rest.to_owned());
            match rest.rsplit_once('/') {
                Some((above, _)) => rest = above,
                None => break,
            }
        }
        let mut host = rest.split(':').next().unwrap_or_default();
        while let Some((_, domain)) = host.split_once('.') {
            places.push(format!("*.{domain}"));
            host = domain;
        }
        places.push(String::new());
        first(scopes, DOCKER, places.into_iter())
    }
}

/// The first of these scopes that has a rule.
fn first<'a>(
    scopes: &'a Scopes,
    transport: &str,
    mut places: impl Iterator<Item = String>,
) -> Option<(String, &'a Vec<Requirement>)> {
    places.find_map(|place| {
        let found = scopes.get(&place)?;
        let shown = match place.as_str() {
            "" => format!("`{transport}`"),
            place => format!("`{place}`"),
        };
        Some((shown, found))
    })
}

fn scopes_of(transport: &str, text: &RawValue) -> Result<Scopes, String> {
    let raw: Unique<Vec<RawRequirement>> =
        serde_json::from_str(text.get()).map_err(|why| format!("transports.{transport}: {why}"))?;
    let mut scopes = Scopes::new();
    for (scope, raw) in raw.0 {
        let at = |why| format!("transports.{transport}.{}: {why}", scope.escape_debug());
        match transport {
            DOCKER => check_name(&scope),
            _ => check_path(&scope),
        }
        .map_err(at)?;
        scopes.insert(scope.clone(), requirements(raw).map_err(at)?);
    }
    Ok(scopes)
}

/// Refuses a scope of names that fits no image.
fn check_name(scope: &str) -> Result<(), String> {
    if scope.is_empty() {
        return Ok(());
    }
    let never = |why: &str| Err(format!("this scope never fits: {why}"));
    if let Some(domain) = scope.strip_prefix("*.") {
        let capital = |c: char| c.is_ascii_uppercase();
        if domain.contains(capital) {
            return never("write the host without capitals");
        }
        return match domain.is_empty() || domain.contains(['*', '/', ':', '@']) {
            true => never("`*.` stands for the begin of a host, and nothing follows the host"),
            false => Ok(()),
        };
    }
    if scope.contains("://") || scope.ends_with('/') || scope.contains('*') {
        return never("write the host and the path, without `https://`, a `/` at the end and `*`");
    }
    let (host, path) = scope.split_once('/').unwrap_or((scope, ""));
    if host.contains(|c: char| c.is_ascii_uppercase()) {
        return never("write the host without capitals");
    }
    if host != "localhost" && !host.contains(['.', ':']) {
        return never("write the whole name, as in `docker.io/library/nginx`");
    }
    match path.is_empty() || ImageName::parse(scope).is_ok() {
        true => Ok(()),
        false => never("it is no part of an image's name"),
    }
}

/// Refuses a scope of paths that fits no archive.
fn check_path(scope: &str) -> Result<(), String> {
    let path = Path::new(scope);
    let wrong = scope == "/" || scope.ends_with('/') || scope.contains(':') || !is_plain(path);
    match !scope.is_empty() && wrong {
        true => Err(
            "a scope is the absolute path of an archive or of a folder above it, without a tag, `..` and a `/` at the \
             end; all archives are the scope \"\""
                .to_owned(),
        ),
        false => Ok(()),
    }
}

/// Whether a path is absolute and says where it leads, but for links.
fn is_plain(path: &Path) -> bool {
    path.is_absolute()
        && path
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

fn requirements(raw: Vec<RawRequirement>) -> Result<Vec<Requirement>, String> {
    if raw.is_empty() {
        return Err(
            "there is no requirement; to accept any image write `{\"type\": \"insecureAcceptAnything\"}`"
                .to_owned(),
        );
    }
    if raw.len() > MAX_REQUIREMENTS {
        return Err(format!(
            "there are more than {MAX_REQUIREMENTS} requirements"
        ));
    }
    raw.into_iter().map(requirement).collect()
}

fn requirement(raw: RawRequirement) -> Result<Requirement, String> {
    let refused = [
        ("keyType", raw.key_type.is_some()),
        ("fulcio", raw.fulcio.is_some()),
        ("pki", raw.pki.is_some()),
        ("rekorPublicKeyPath", raw.rekor_public_key_path.is_some()),
        ("rekorPublicKeyPaths", raw.rekor_public_key_paths.is_some()),
        ("rekorPublicKeyData", raw.rekor_public_key_data.is_some()),
        ("rekorPublicKeyDatas", raw.rekor_public_key_datas.is_some()),
    ];
    match raw.kind.as_str() {
        "insecureAcceptAnything" | "reject" | "sigstoreSigned" => {}
        "signedBy" => {
            return Err(
                "`signedBy` (GPG) is not supported: sign with cosign or openssl, and write `sigstoreSigned` with \
                 `keyPath`"
                    .to_owned(),
            );
        }
        kind => {
            return Err(format!(
                "the type `{}` is not known; there are `insecureAcceptAnything`, `reject` and `sigstoreSigned`",
                kind.escape_debug()
            ));
        }
    }
    if let Some((member, _)) = refused.iter().find(|(_, there)| *there) {
        return Err(format!(
            "`{member}` is not supported: signatures are verified without a network, by `keyPath`, `keyPaths`, \
             `keyData` or `keyDatas`"
        ));
    }
    if raw.kind == "sigstoreSigned" {
        let identity = raw.signed_identity.as_ref();
        let identity = identity
            .unwrap_or(&Identity::MatchRepoDigestOrExact {})
            .clone();
        identity
            .check()
            .map_err(|why| format!("signedIdentity: {why}"))?;
        let keys = keys(&raw)?;
        return Ok(Requirement::Signed(Signed { keys, identity }));
    }
    let members = [
        raw.key_path.is_some(),
        raw.key_paths.is_some(),
        raw.key_data.is_some(),
        raw.key_datas.is_some(),
        raw.signed_identity.is_some(),
    ];
    match (members.contains(&true), raw.kind.as_str()) {
        (true, kind) => Err(format!("`{kind}` has no keys and no identity")),
        (false, "reject") => Ok(Requirement::Reject),
        (false, _) => Ok(Requirement::Accept),
    }
}

fn keys(raw: &RawRequirement) -> Result<Vec<PublicKey>, String> {
    let paths = raw.key_path.iter().chain(raw.key_paths.iter().flatten());
    let data = raw.key_data.iter().chain(raw.key_datas.iter().flatten());
    let ways = [
        raw.key_path.is_some(),
        raw.key_paths.is_some(),
        raw.key_data.is_some(),
        raw.key_datas.is_some(),
    ];
    if ways.iter().filter(|there| **there).count() != 1 {
        return Err(
            "exactly one of `keyPath`, `keyPaths`, `keyData` and `keyDatas` must be there"
                .to_owned(),
        );
    }
    let mut keys = Vec::new();
    for path in paths {
        if !path.is_absolute() {
            return Err(format!(
                "the key `{}` needs an absolute path",
                path.display()
            ));
        }
        keys.push(PublicKey::read(path).map_err(|why| told(&why, why.hint()))?);
    }
    for data in data {
        let pem = decode_base64(data).ok_or("`keyData` is no base64 of a key in PEM")?;
        let key = PublicKey::parse(&pem);
        keys.push(key.map_err(|why| format!("keyData: {}", told(&why, why.hint())))?);
    }
    match keys.len() {
        1..=MAX_KEYS => Ok(keys),
        n => Err(format!(
            "{n} keys; at least one is needed, and {MAX_KEYS} are the most"
        )),
    }
}

fn told(why: &dyn std::error::Error, hint: Option<&str>) -> String {
    match hint {
        Some(hint) => format!("{} ({hint})", crate::chain(why)),
        None => crate::chain(why),
    }
}

#[cfg(test)]
#[path = "policy_test.rs"]
mod tests;
