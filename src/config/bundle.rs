//! The settings of the source that is polled for bundles.

use std::path::PathBuf;

use super::given::Given;
use crate::spec::ImageName;

/// Where bundles come from by themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundlePoll {
    /// `oci://` and a name in a registry, or the URL of an archive; empty: nothing is polled.
    pub source: String,
    /// The interval between looks at it.
    pub interval_ms: u64,
    /// The file with the public key that must have signed what comes from there.
    pub key: Option<PathBuf>,
    /// A generation whose pods are not ready in this time is taken back; 0: it stays.
    pub ready_within_ms: u64,
}

pub(super) const SOURCE: &str = "coracle.bundle.source";
const INTERVAL: &str = "coracle.bundle.interval";
const KEY: &str = "coracle.bundle.key";
const READY: &str = "coracle.bundle.readyWithin";

const MINUTE_MS: u64 = 60_000;
const WEEK_MS: u64 = 7 * 24 * 60 * MINUTE_MS;

/// Reports what is wrong.
pub(super) fn bundle_poll(given: &Given<'_>) -> BundlePoll {
    let source = given.text(SOURCE);
    if !source.is_empty() && !is_source(&source) {
        given.wrong(
            &[SOURCE],
            format!("{SOURCE} must be like oci://registry/site:3 or https://host/site.tar"),
        );
    }
    let interval = given.duration(INTERVAL);
    if interval.nanos < 0 || !(MINUTE_MS..=WEEK_MS).contains(&interval.ms()) {
        given.wrong(
            &[INTERVAL],
            format!("{INTERVAL} {interval} must be between 1m and 168h (7 days)"),
        );
    }
    let ready = given.duration(READY);
    if ready.nanos < 0 || (1..1000).contains(&ready.ms()) {
        given.wrong(
            &[READY],
            format!("{READY} {ready} must be either zero or at least 1s"),
        );
    }
    let key = given.text(KEY);
    if !key.is_empty() && !key.starts_with('/') {
        given.wrong(&[KEY], format!("{KEY} {key:?} must be an absolute path"));
    }
    BundlePoll {
        source,
        interval_ms: interval.ms(),
        key: (!key.is_empty()).then(|| key.into()),
        ready_within_ms: ready.ms(),
    }
}

fn is_source(source: &str) -> bool {
    if let Some(name) = source.strip_prefix("oci://") {
        return name.contains('/') && ImageName::parse(name).is_ok();
    }
    let schemes = ["https://", "http://"];
    let rest = schemes
        .iter()
        .find_map(|scheme| source.strip_prefix(scheme));
    rest.is_some_and(|rest| {
        !rest.starts_with(['/', '?', '#'])
            && !rest.is_empty()
            && rest.bytes().all(|b| b.is_ascii_graphic() && b != b'@')
    })
}
