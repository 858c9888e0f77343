//! What is an image's full name? Docker's rules: `busybox` is `docker.io/library/busybox:latest`.

use super::error::ImageError;

/// Longest name without tag and digest.
const MAX_NAME: usize = 255;

/// A name in its full form, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FullName {
    /// `docker.io/library/busybox`.
    pub(crate) repository: String,
    /// `latest`; `None` only with a digest.
    pub(crate) tag: Option<String>,
    /// `sha256:…`.
    pub(crate) digest: Option<String>,
}

impl FullName {
    /// `repository:tag`, if there is a tag.
    pub(crate) fn tagged(&self) -> Option<String> {
        let tag = self.tag.as_ref()?;
        Some(format!("{}:{tag}", self.repository))
    }
}

/// Takes a name apart and completes it.
pub(crate) fn parse(name: &str) -> Result<FullName, ImageError> {
    let bad = |why| ImageError::Name {
        name: name.to_owned(),
        why,
    };
    let (rest, digest) = match name.split_once('@') {
        Some((rest, digest)) => {
            if !is_digest(digest) {
                return Err(bad("the digest is not `sha256:` and 64 hexadecimal digits"));
            }
            (rest, Some(digest.to_owned()))
        }
        None => (name, None),
    };
    // A colon after the last slash starts the tag; one before it is the registry's port.
    let (path, tag) = match rest.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag.to_owned())),
        _ => (rest, None),
    };
    if let Some(tag) = &tag
        && !is_tag(tag)
    {
        return Err(bad(
            "the tag has a character that is not allowed, or is too long",
        ));
    }
    let (registry, repository) = match path.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
        _ => ("docker.io", path),
    };
    let registry = match registry {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        other => other,
    };
    let repository = if registry == "docker.io" && !repository.contains('/') {
        format!("library/{repository}")
    } else {
        repository.to_owned()
    };
    if !repository.split('/').all(is_component) {
        return Err(bad(
            "the repository must be lower-case letters and digits, separated by single `.`, `_`, `-` or `/`",
        ));
    }
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric() || b"[]".contains(&b));
    if !edge(registry.bytes().next())
        || !edge(registry.bytes().last())
        || !registry.bytes().all(is_host_byte)
    {
        return Err(bad("the registry is not a host name with an optional port"));
    }
    let repository = format!("{registry}/{repository}");
    if repository.len() > MAX_NAME {
        return Err(bad("it is longer than 255 characters"));
    }
    let tag = tag.or_else(|| digest.is_none().then(|| "latest".to_owned()));
    Ok(FullName {
        repository,
        tag,
        digest,
    })
}

/// A name for an image that brings none, from its archive's file name: `docker.io/library/<stem>`.
pub(crate) fn from_file_stem(file_name: &str) -> Option<String> {
    let mut stem = file_name;
    for suffix in [".gz", ".tgz", ".zst", ".tar", ".oci", ".docker"] {
        stem = stem.strip_suffix(suffix).unwrap_or(stem);
    }
    let stem = stem.to_ascii_lowercase();
    is_component(&stem).then_some(stem)
}

/// Whether this is `sha256:` and 64 lower-case hexadecimal digits.
pub(crate) fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    (1..=128).contains(&tag.len())
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

fn is_host_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'[' | b']')
}

fn is_component(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let edges = |b: Option<u8>| b.is_some_and(plain);
    edges(part.bytes().next())
        && edges(part.bytes().last())
        && part
            .bytes()
            .all(|b| plain(b) || matches!(b, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed_by_dockers_rules() {
        for (given, full) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("acme/web", "docker.io/acme/web:latest"),
            ("localhost/web", "localhost/web:latest"),
            ("localhost:5000/a/b:c", "localhost:5000/a/b:c"),
            ("quay.io/x/y", "quay.io/x/y:latest"),
            ("index.docker.io/nginx", "docker.io/library/nginx:latest"),
        ] {
            assert_eq!(parse(given).unwrap().tagged().unwrap(), full, "{given}");
        }
        let digest = format!("sha256:{}", "a".repeat(64));
        let pinned = parse(&format!("busybox@{digest}")).unwrap();
        assert_eq!((pinned.tag, pinned.digest), (None, Some(digest)));
        for bad in [
            "",
            "Busy",
            "a//b",
            "../etc",
            "a:b c",
            "a@sha256:1",
            "-a",
            "a/..",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
