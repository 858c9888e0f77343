//! What registries and their administrators write, each as the client reads it: for tests of arbitrary input.

use super::super::error::ImageError;
use super::super::name;
use super::super::oci::{self, ConfigFile, Platform};
use super::challenge::{self, Challenge};
use super::error::FetchError;
use super::resolve::{ranked, read_document};
use super::retry_after;
use super::token;
use super::url::Url;
use crate::sys::clock;

/// The URL of the token server that a `WWW-Authenticate` leads to. Also reads it as a `Retry-After`.
pub fn challenge(header: &str) -> Option<String> {
    let _ = retry_after::wait(Some(header), clock::timestamp());
    match challenge::choose(std::iter::once(header))? {
        Challenge::Bearer {
            realm,
            service,
            scope,
        } => {
            let scope = scope.as_deref().unwrap_or("repository:a:pull");
            let url = token::url(&realm, service.as_deref(), scope).ok()?;
            Some(url.full())
        }
        Challenge::Basic => None,
    }
}

/// Where a `Location` leads from a URL: whether it is to another host, and the URL.
pub fn location(base: &str, location: &str) -> Option<(bool, String)> {
    let base = Url::parse(base).ok()?;
    let next = base.join(location).ok()?;
    Some((next.origin != base.origin, next.full()))
}

/// The value of `Authorization` by a token server's answer.
pub fn token(answer: &[u8]) -> Option<String> {
    let url = Url::parse("https://r.example/token").ok()?;
    token::authorization(answer, &url).ok()
}

/// The digests that a manifest or index lists, best first, for each of several platforms.
///
/// # Errors
/// What is wrong with it.
pub fn manifest(bytes: &[u8]) -> Result<Vec<String>, ImageError> {
    let of = |why| match why {
        FetchError::Image(why) => why,
        other => ImageError::Missing {
            what: crate::chain(&other),
        },
    };
    let image = name::parse("a:1")?;
    let document = read_document(bytes, "manifest", &image).map_err(of)?;
    let mut found = Vec::new();
    for platform in ["amd64", "arm/v6", "arm64"] {
        let platform = Platform::parse(platform)?;
        let manifests = document.manifests.as_deref().unwrap_or_default();
        let best = ranked(manifests, &platform, |platform| {
            let _ = platform.shown();
        });
        found.extend(best.iter().map(|descriptor| descriptor.digest.clone()));
    }
    let parts = document
        .config
        .iter()
        .chain(document.layers.iter().flatten());
    found.extend(parts.map(|descriptor| descriptor.digest.clone()));
    Ok(found)
}

/// How to run an image, by its config.
///
/// # Errors
/// What is wrong with it.
pub fn config(bytes: &[u8]) -> Result<oci::ImageConfig, ImageError> {
    let file: ConfigFile = oci::parse(bytes, "config")?;
    file.check()?;
    Ok(file.into_config())
}
