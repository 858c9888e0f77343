//! `auth.json`: credentials for registries and repositories, in the format of docker and podman
//! (containers-auth.json(5)). The entry with the longest path that fits an image counts; in a pull secret all that fit do,
//! as in the kubelet.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;

use serde::Deserialize;

use super::request::Credentials;
use crate::spec::ImageName;
use crate::sys::file::read_bounded;
use crate::types::InOrder;

/// The longest file.
const MAX_BYTES: u64 = 1 << 20;

/// This many entries of a pull secret are tried for an image.
const MAX_TRIED: usize = 16;

/// Docker's own registry has several names in such files.
const DOCKER: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// The file's content. It is never shown.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthFile {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
    #[serde(default)]
    creds_store: Option<String>,
    #[serde(default)]
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Clone, Default, Deserialize)]
struct Entry {
    #[serde(default)]
    auth: Option<String>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
    #[serde(default)]
    identitytoken: Option<String>,
    #[serde(default)]
    registrytoken: Option<String>,
}

/// Why a file has no usable credentials. No message has a part of them.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// The file could not be read.
    #[error("it could not be read")]
    Read(#[source] io::Error),
    /// The file is no such document.
    #[error("it is not valid: line {line}, column {column}")]
    Json {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
    },
    /// `auth` is not what it should be.
    #[error("`auth` of `{0}` is not base64 of `user:password`")]
    Auth(String),
    /// A token that only its issuer's programs can use.
    #[error(
        "`{field}` of `{key}` is not supported; log in with a user name and a password or access token"
    )]
    Token {
        /// The registry.
        key: String,
        /// `identitytoken` or `registrytoken`.
        field: &'static str,
    },
    /// The credentials are kept by another program.
    #[error(
        "the credentials of `{registry}` are kept by `docker-credential-{helper}`, which coracle does not run; \
         write them with `podman login --authfile`"
    )]
    Helper {
        /// The registry.
        registry: String,
        /// The program.
        helper: String,
    },
}

impl fmt::Debug for AuthFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthFile(…)")
    }
}

impl AuthFile {
    /// Reads a file; `None` if there is none.
    pub fn read(path: &Path) -> Result<Option<Self>, AuthError> {
        match read_bounded(path, MAX_BYTES) {
            Ok(bytes) => Self::parse(&bytes).map(Some),
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(why) => Err(AuthError::Read(why)),
        }
    }

    /// Parses a file.
    pub fn parse(bytes: &[u8]) -> Result<Self, AuthError> {
        // The parser's own message could show a password.
        serde_json::from_slice(bytes).map_err(|why| AuthError::Json {
            line: why.line(),
            column: why.column(),
        })
    }

    /// All credentials of a pull secret for an image, those with the longest path first. A `*` in a key's host stands for
    /// part of a name between dots (kubelet: `URLsMatch` in `pkg/credentialprovider/keyring.go`). What cannot be used is an
    /// error only if nothing else can be.
    pub fn all_credentials(&self, image: &ImageName) -> Result<Vec<Credentials>, AuthError> {
        let whole = format!("{}/{}", canonical(&image.registry), image.repository);
        let keys = self.auths.iter();
        let mut fitting: Vec<(String, &String, &Entry)> = keys
            .map(|(key, entry)| (normal(key), key, entry))
            .filter(|(normal, ..)| fits(normal, &whole))
            .collect();
        fitting.order_by(|a, b| (b.0.len(), &b.0).cmp(&(a.0.len(), &a.0)));
        let (mut found, mut failed) = (Vec::new(), None);
        for (_, key, entry) in fitting {
            match entry.of_secret(key) {
                Ok(credentials) => found.extend(credentials),
                Err(why) => failed = Some(why),
            }
        }
        found.truncate(MAX_TRIED);
        match failed {
            Some(why) if found.is_empty() => Err(why),
            _ => Ok(found),
        }
    }

    /// The credentials for an image, if there are some.
    pub fn credentials(&self, image: &ImageName) -> Result<Option<Credentials>, AuthError> {
        let registry = canonical(&image.registry);
        let helpers = self.cred_helpers.iter();
        let mut helper = helpers.filter(|(key, _)| canonical(&host(key)) == registry);
        if let Some((_, helper)) = helper.next() {
            return Err(AuthError::Helper {
                registry,
                helper: helper.clone(),
            });
        }
        let whole = format!("{registry}/{}", image.repository);
        let fits = |key: &str| {
            let rest = whole.strip_prefix(key);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let keys = self
            .auths
            .iter()
            .map(|(key, entry)| (normal(key), key, entry));
        let best = keys
            .filter(|(normal, ..)| fits(normal))
            .max_by_key(|(normal, ..)| normal.len());
        let Some((_, key, entry)) = best else {
            return Ok(None);
        };
        match (entry.credentials(key)?, &self.creds_store) {
            (None, Some(helper)) => Err(AuthError::Helper {
                registry,
                helper: helper.clone(),
            }),
            (found, _) => Ok(found),
        }
    }
}

/// Whether a key with a host that may have `*` is for an image. A path ends where a part of the image's name does.
fn fits(key: &str, image: &str) -> bool {
    let (host, path) = key.split_once('/').unwrap_or((key, ""));
    let (of_image, rest) = image.split_once('/').unwrap_or((image, ""));
    let (host, port) = host.split_once(':').unwrap_or((host, ""));
    let (of_image, port_of_image) = of_image.split_once(':').unwrap_or((of_image, ""));
    let below = rest.strip_prefix(path);
    let below =
        below.is_some_and(|rest| path.is_empty() || rest.is_empty() || rest.starts_with('/'));
    let same_parts = host.split('.').count() == of_image.split('.').count();
    let mut parts = host.split('.').zip(of_image.split('.'));
    below && same_parts && port == port_of_image && parts.all(|(glob, part)| globs(glob, part))
}

/// Each more multiplies the work.
const MAX_STARS: usize = 3;

/// Whether a part of a host's name is what a pattern with `*` means; one with many means nothing.
fn globs(pattern: &str, text: &str) -> bool {
    if pattern.matches('*').count() > MAX_STARS {
        return false;
    }
    let Some((start, pattern)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(text) = text.strip_prefix(start) else {
        return false;
    };
    // Every end of the text: names are short, and so are patterns.
    (0..=text.len()).any(|at| text.get(at..).is_some_and(|rest| globs(pattern, rest)))
}

impl Entry {
    /// As in the kubelet, a user name with a password counts though there is a token.
    fn of_secret(&self, key: &str) -> Result<Option<Credentials>, AuthError> {
        let plain = Self {
            identitytoken: None,
            registrytoken: None,
            ..self.clone()
        };
        match plain.credentials(key) {
            Ok(Some(found)) if !found.password.is_empty() => Ok(Some(found)),
            _ => self.credentials(key),
        }
    }

    fn credentials(&self, key: &str) -> Result<Option<Credentials>, AuthError> {
        let filled = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        for (field, token) in [
            ("identitytoken", &self.identitytoken),
            ("registrytoken", &self.registrytoken),
        ] {
            if filled(token).is_some() {
                return Err(AuthError::Token {
                    key: key.to_owned(),
                    field,
                });
            }
        }
        if let Some(auth) = filled(&self.auth) {
            let pair = decode(&auth).ok_or_else(|| AuthError::Auth(key.to_owned()))?;
            let (username, password) = pair
                .split_once(':')
                .ok_or_else(|| AuthError::Auth(key.to_owned()))?;
            return Ok(Some(Credentials {
                username: username.to_owned(),
                password: password.trim_end_matches('\0').to_owned(),
            }));
        }
        let pair = filled(&self.username).zip(filled(&self.password));
        Ok(pair.map(|(username, password)| Credentials { username, password }))
    }
}

fn decode(text: &str) -> Option<String> {
    // The decoder of Kubernetes' types.
    let quoted = serde_json::Value::String(text.trim().to_owned());
    let bytes: k8s_openapi::ByteString = serde_json::from_value(quoted).ok()?;
    String::from_utf8(bytes.0).ok()
}

/// A key as `registry[/path]`. Old files have URLs, of which only the host counts.
fn normal(key: &str) -> String {
    let key = key.trim_end_matches('/');
    let (registry, path) = match is_url(key) {
        true => (host(key), None),
        false => match key.split_once('/') {
            Some((registry, path)) => (registry.to_owned(), Some(path)),
            None => (key.to_owned(), None),
        },
    };
    match path {
        Some(path) => format!("{}/{path}", canonical(&registry)),
        None => canonical(&registry),
    }
}

fn is_url(key: &str) -> bool {
    key.starts_with("https://") || key.starts_with("http://")
}

fn host(key: &str) -> String {
    let bare = key
        .trim_start_matches("https://")
        .trim_start_matches("http://");
    bare.split('/').next().unwrap_or_default().to_owned()
}

fn canonical(registry: &str) -> String {
    match DOCKER.contains(&registry) {
        true => DOCKER[0].to_owned(),
        false => registry.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// base64 of `user:<password>`.
    fn auth(password: &str) -> serde_json::Value {
        let bytes = k8s_openapi::ByteString(format!("user:{password}").into_bytes());
        serde_json::json!({ "auth": bytes })
    }

    fn found(file: &serde_json::Value, image: &str) -> Result<Option<String>, String> {
        let text = |why: AuthError| why.to_string();
        let file = AuthFile::parse(file.to_string().as_bytes()).map_err(text)?;
        let found = file
            .credentials(&ImageName::parse(image).unwrap())
            .map_err(text)?;
        Ok(found.map(|found| found.password))
    }

    #[test]
    fn the_longest_path_that_fits_counts() {
        let file = serde_json::json!({ "auths": {
            "r.example": auth("host"),
            "r.example/team": auth("team"),
            "r.example/team/app": auth("app"),
            "r.example:5000": auth("port"),
            "https://old.example/v1/": auth("old"),
            "https://index.docker.io/v1/": auth("docker"),
            "docker.io/acme": auth("acme"),
            "plain.example": { "username": "user", "password": "plain" },
            "empty.example": {},
        }});
        for (image, expected) in [
            ("r.example/x:1", Some("host")),
            ("r.example/team/x", Some("team")),
            ("r.example/teamwork/x", Some("host")),
            ("r.example/team/app", Some("app")),
            ("r.example/team/app/part", Some("app")),
            ("r.example/team/apple", Some("team")),
            ("r.example:5000/team/app", Some("port")),
            ("r.example:5001/team/app", None),
            ("R.example/x", Some("host")),
            ("old.example/a/b", Some("old")),
            ("busybox", Some("docker")),
            ("acme/web", Some("acme")),
            ("plain.example/x", Some("plain")),
            ("empty.example/x", None),
            ("other.example/x", None),
        ] {
            assert_eq!(
                found(&file, image),
                Ok(expected.map(str::to_owned)),
                "{image}"
            );
        }
    }

    #[test]
    fn of_a_pull_secret_everything_that_fits_is_tried() {
        let file = serde_json::json!({ "auths": {
            "r.example:5000": auth("host"),
            "r.example:5000/t": auth("team"),
            "*.example:5000": auth("all"),
            "a*z.example": auth("part"),
            "*.*.example": auth("two"),
            "token.example": { "auth": auth("kept")["auth"], "identitytoken": "x" },
            "only.example": { "identitytoken": "x" },
            "https://index.docker.io/v1/": auth("docker"),
        }});
        let file = AuthFile::parse(file.to_string().as_bytes()).unwrap();
        for (image, expected) in [
            ("r.example:5000/t/x", Ok(&["team", "host", "all"][..])),
            ("r.example:5000/team", Ok(&["host", "all"])),
            ("q.example:5000/x", Ok(&["all"])),
            ("q.example/x", Ok(&[])),
            ("abcz.example/x", Ok(&["part"])),
            ("az.example/x", Ok(&["part"])),
            ("a.b.example/x", Ok(&["two"])),
            ("token.example/x", Ok(&["kept"])),
            ("only.example/x", Err(())),
            ("busybox", Ok(&["docker"])),
        ] {
            let found = file.all_credentials(&ImageName::parse(image).unwrap());
            let found = found.map(|all| all.into_iter().map(|one| one.password).collect());
            let found: Result<Vec<String>, ()> = found.map_err(|_| ());
            let expected = expected.map(|all| all.iter().map(|one| (*one).to_owned()).collect());
            assert_eq!(found, expected, "{image}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_by_name() {
        let of = |entry: serde_json::Value| serde_json::json!({ "auths": { "r.example": entry } });
        for (file, message) in [
            (
                of(serde_json::json!({ "auth": "dXNlcjo=", "identitytoken": "x" })),
                "`identitytoken` of `r.example` is not supported; log in with a user name and a password or access token",
            ),
            (
                of(serde_json::json!({ "registrytoken": "x" })),
                "`registrytoken` of `r.example` is not supported; log in with a user name and a password or access token",
            ),
            (
                of(serde_json::json!({ "auth": "%" })),
                "`auth` of `r.example` is not base64 of `user:password`",
            ),
            (
                of(serde_json::json!({ "auth": "dXNlcg==" })),
                "`auth` of `r.example` is not base64 of `user:password`",
            ),
            (
                serde_json::json!({ "credHelpers": { "r.example": "gcloud" } }),
                "the credentials of `r.example` are kept by `docker-credential-gcloud`, which coracle does not run; \
                 write them with `podman login --authfile`",
            ),
            (
                serde_json::json!({ "auths": { "r.example": {} }, "credsStore": "desktop" }),
                "the credentials of `r.example` are kept by `docker-credential-desktop`, which coracle does not run; \
                 write them with `podman login --authfile`",
            ),
        ] {
            let refused = found(&file, "r.example/x").unwrap_err();
            assert_eq!(refused, message);
            assert_eq!(found(&file, "other.example/x"), Ok(None));
        }
        let secret = AuthFile::parse(br#"{"auths": {"r.example": {"auth": secret}}}"#).unwrap_err();
        assert_eq!(secret.to_string(), "it is not valid: line 1, column 34");
    }
}
