//! Full image names by Docker's rules: `busybox` is `docker.io/library/busybox:latest`.

use super::error::ImageError;
use crate::spec::ImageName;

/// An image name, split and completed by Docker's rules.
pub(crate) fn parse(name: &str) -> Result<ImageName, ImageError> {
    ImageName::parse(name).map_err(|source| ImageError::Name {
        name: name.to_owned(),
        why: source.to_string(),
    })
}

/// `registry/repository:tag`, if there is a tag: the form names are stored in.
pub(crate) fn tagged(name: &ImageName) -> Option<String> {
    let tag = name.tag.as_ref()?;
    Some(format!("{}/{}:{tag}", name.registry, name.repository))
}

/// A name for an image without one, from its archive's file name: `docker.io/library/<stem>`.
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

fn is_component(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let edges = |b: Option<u8>| b.is_some_and(plain);
    edges(part.bytes().next())
        && edges(part.bytes().last())
        && part
            .bytes()
            .all(|b| plain(b) || matches!(b, b'.' | b'_' | b'-'))
}
