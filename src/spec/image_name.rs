//! Image names: Docker's rules for short and full names.

use std::fmt;

use super::pod::{ImageName, PullPolicy};

/// Registry of names without a registry host.
const DEFAULT_REGISTRY: &str = "docker.io";
/// Namespace in that registry, if the repository has none.
const DEFAULT_NAMESPACE: &str = "library/";

/// An invalid image name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageNameError {
    /// The name is empty.
    #[error("image name is empty")]
    Empty,
    /// The repository has upper-case letters; Docker's message.
    #[error("repository name `{0}` must be lowercase")]
    UpperCase(String),
    /// Longer than 255 characters with registry.
    #[error("repository name must not be more than 255 characters")]
    TooLong,
    /// Invalid registry: not `host` or `host:port`.
    #[error("`{0}` is no registry host")]
    Registry(String),
    /// Invalid repository: not `a/b-c/d_e.f`.
    #[error("`{0}` is no repository name")]
    Repository(String),
    /// Invalid tag: not 1–128 letters, digits, `_`, `.`, `-`.
    #[error("`{0}` is no tag")]
    Tag(String),
    /// Invalid digest: not `sha256:<64 hex digits>`.
    #[error("`{0}` is no digest")]
    Digest(String),
    /// An image id, 64 hex digits, is no repository name.
    #[error("`{0}` looks like an image id; a repository name is needed")]
    Id(String),
}

impl ImageName {
    /// Parses `busybox`, `localhost:5000/a/b:tag`, `acme/web@sha256:…`.
    pub fn parse(text: &str) -> Result<Self, ImageNameError> {
        if text.is_empty() {
            return Err(ImageNameError::Empty);
        }
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (text, None),
        };
        // A colon after the last slash starts the tag; one before belongs to the registry's port.
        let (name, tag) = match name.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (name, None),
        };
        if name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(ImageNameError::Id(name.to_owned()));
        }
        let (registry, path) = split_registry(name);
        let repository = if registry == DEFAULT_REGISTRY && !path.contains('/') {
            format!("{DEFAULT_NAMESPACE}{path}")
        } else {
            path.to_owned()
        };
        check_registry(registry)?;
        check_repository(path)?;
        if registry.len() + 1 + repository.len() > 255 {
            return Err(ImageNameError::TooLong);
        }
        if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
            return Err(ImageNameError::Tag(tag.to_owned()));
        }
        if let Some(digest) = digest.filter(|digest| !is_digest(digest)) {
            return Err(ImageNameError::Digest(digest.to_owned()));
        }
        let tag = match (tag, digest) {
            (None, None) => Some("latest".to_owned()),
            (tag, _) => tag.map(str::to_owned),
        };
        Ok(Self {
            registry: registry.to_owned(),
            repository,
            tag,
            digest: digest.map(str::to_owned),
        })
    }

    /// Returns the short form that people type and `docker images` shows: `busybox:latest`.
    pub fn familiar(&self) -> String {
        let mut text = String::new();
        if self.registry != DEFAULT_REGISTRY {
            text.push_str(&self.registry);
            text.push('/');
            text.push_str(&self.repository);
        } else {
            let short = self.repository.strip_prefix(DEFAULT_NAMESPACE);
            text.push_str(short.unwrap_or(&self.repository));
        }
        self.push_suffix(&mut text);
        text
    }

    /// Returns the registry and the repository: `docker.io/library/busybox`.
    pub fn in_full(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// Returns the default of `imagePullPolicy`: `Always` for the tag `latest`, else `IfNotPresent`.
    pub fn default_pull_policy(&self) -> PullPolicy {
        match self.tag.as_deref() {
            Some("latest") => PullPolicy::Always,
            _ => PullPolicy::IfNotPresent,
        }
    }

    fn push_suffix(&self, text: &mut String) {
        if let Some(tag) = &self.tag {
            text.push(':');
            text.push_str(tag);
        }
        if let Some(digest) = &self.digest {
            text.push('@');
            text.push_str(digest);
        }
    }
}

impl fmt::Display for ImageName {
    /// Formats the full name: `docker.io/library/busybox:latest`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.in_full();
        self.push_suffix(&mut text);
        f.write_str(&text)
    }
}

/// Splits off the registry. The first component is a host if it cannot be a namespace: it has a dot, a port or
/// capitals, or is `localhost`.
fn split_registry(name: &str) -> (&str, &str) {
    match name.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.bytes().any(|b| b.is_ascii_uppercase()) =>
        {
            // Docker has two old names for one registry.
            let registry = if first == "index.docker.io" {
                DEFAULT_REGISTRY
            } else {
                first
            };
            (registry, rest)
        }
        _ => (DEFAULT_REGISTRY, name),
    }
}

fn check_registry(registry: &str) -> Result<(), ImageNameError> {
    let (host, port) = match registry.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((v6, port)) if v6.parse::<std::net::Ipv6Addr>().is_ok() => (None, port),
            _ => return Err(ImageNameError::Registry(registry.to_owned())),
        },
        None => {
            let colon = registry.find(':').unwrap_or(registry.len());
            (Some(&registry[..colon]), &registry[colon..])
        }
    };
    let label = |label: &str| {
        label.starts_with(|c: char| c.is_ascii_alphanumeric())
            && label.ends_with(|c: char| c.is_ascii_alphanumeric())
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let host_fits = host.is_none_or(|host| host.split('.').all(label));
    let port_fits = match port.strip_prefix(':') {
        Some(port) => !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()),
        None => port.is_empty(),
    };
    if host_fits && port_fits {
        Ok(())
    } else {
        Err(ImageNameError::Registry(registry.to_owned()))
    }
}

fn check_repository(path: &str) -> Result<(), ImageNameError> {
    if path.split('/').all(is_component) {
        Ok(())
    } else if path
        .split('/')
        .all(|c| is_component(&c.to_ascii_lowercase()))
    {
        Err(ImageNameError::UpperCase(path.to_owned()))
    } else {
        Err(ImageNameError::Repository(path.to_owned()))
    }
}

/// Lower-case letters and digits, separated by one `.`, one or two `_`, or any number of `-`.
fn is_component(text: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    alphanumeric(*first)
        && alphanumeric(*last)
        && bytes.iter().all(|b| alphanumeric(*b) || b"._-".contains(b))
        && text
            .split(|c: char| c.is_ascii_alphanumeric())
            .all(|separator| {
                matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|b| b == b'-')
            })
}

fn is_tag(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.len() <= 128
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

fn is_digest(text: &str) -> bool {
    let length = match text.split_once(':') {
        Some(("sha256", _)) => 64,
        Some(("sha512", _)) => 128,
        _ => return false,
    };
    text[7..].len() == length
        && text[7..]
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn short_names_get_registry_namespace_and_tag() {
        let pinned = format!("app:1@{DIGEST}");
        let full_pinned = format!("docker.io/library/app:1@{DIGEST}");
        let digest_only = format!("quay.io/a/b@{DIGEST}");
        let longer = format!("quay.io/a/b@sha512:{}", "0f".repeat(64));
        for (text, full, familiar) in [
            (
                "busybox",
                "docker.io/library/busybox:latest",
                "busybox:latest",
            ),
            ("nginx:1.25", "docker.io/library/nginx:1.25", "nginx:1.25"),
            ("acme/web", "docker.io/acme/web:latest", "acme/web:latest"),
            (
                "docker.io/nginx",
                "docker.io/library/nginx:latest",
                "nginx:latest",
            ),
            ("index.docker.io/a/b", "docker.io/a/b:latest", "a/b:latest"),
            ("localhost/x:1", "localhost/x:1", "localhost/x:1"),
            (
                "host:5000/a/b",
                "host:5000/a/b:latest",
                "host:5000/a/b:latest",
            ),
            ("[::1]:5000/a", "[::1]:5000/a:latest", "[::1]:5000/a:latest"),
            ("a.b/c", "a.b/c:latest", "a.b/c:latest"),
            (
                "a__b/c-d---e.f",
                "docker.io/a__b/c-d---e.f:latest",
                "a__b/c-d---e.f:latest",
            ),
            ("Host/x", "Host/x:latest", "Host/x:latest"),
            ("a.b/c:_1-x.Y", "a.b/c:_1-x.Y", "a.b/c:_1-x.Y"),
            (&pinned, &full_pinned, &pinned),
            (&digest_only, &digest_only, &digest_only),
            (&longer, &longer, &longer),
        ] {
            let name = ImageName::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(name.to_string(), full, "{text}");
            assert_eq!(name.familiar(), familiar, "{text}");
            assert_eq!(ImageName::parse(full).as_ref(), Ok(&name), "{full} again");
        }
    }

    #[test]
    fn what_is_no_image_name_is_refused_with_its_reason() {
        let long = format!("a/{}", "b".repeat(255));
        let id = "a".repeat(64);
        for (text, message) in [
            ("", "image name is empty"),
            ("Busybox", "repository name `Busybox` must be lowercase"),
            (
                "docker.io/Acme/web",
                "repository name `Acme/web` must be lowercase",
            ),
            (":1", "`` is no repository name"),
            ("a//b", "`a//b` is no repository name"),
            ("a/", "`a/` is no repository name"),
            ("-a", "`-a` is no repository name"),
            ("a___b", "`a___b` is no repository name"),
            ("a..b", "`a..b` is no repository name"),
            ("a b", "`a b` is no repository name"),
            ("a:", "`` is no tag"),
            ("a:-x", "`-x` is no tag"),
            ("a:1+2", "`1+2` is no tag"),
            ("[::x]:5000/a", "`[::x]:5000` is no registry host"),
            ("a@sha256:12", "`sha256:12` is no digest"),
            ("a@md5:12", "`md5:12` is no digest"),
            ("a@", "`` is no digest"),
            ("host:port/a", "`host:port` is no registry host"),
            ("-x.y/a", "`-x.y` is no registry host"),
            (
                &long,
                "repository name must not be more than 255 characters",
            ),
            (
                &id,
                &format!("`{id}` looks like an image id; a repository name is needed"),
            ),
        ] {
            let error = ImageName::parse(text).expect_err(text);
            assert_eq!(error.to_string(), message, "{text}");
        }
    }

    #[test]
    fn only_the_tag_latest_is_always_pulled_by_default() {
        let digest_only = format!("a@{DIGEST}");
        let latest_pinned = format!("a:latest@{DIGEST}");
        for (text, policy) in [
            ("a", PullPolicy::Always),
            ("a:latest", PullPolicy::Always),
            ("a:1", PullPolicy::IfNotPresent),
            (digest_only.as_str(), PullPolicy::IfNotPresent),
            // Kubernetes considers the tag only.
            (latest_pinned.as_str(), PullPolicy::Always),
        ] {
            assert_eq!(
                ImageName::parse(text).unwrap().default_pull_policy(),
                policy,
                "{text}"
            );
        }
    }
}
