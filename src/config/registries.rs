//! Settings of pulls from registries.

use std::path::PathBuf;

use super::given::Given;
use crate::spec::ImageName;
use crate::types::image_access::Verification;
use crate::types::{PullWindow, Rate};

/// Settings of pulls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registries {
    /// Credentials, in docker's format; it need not exist.
    pub auth_file: PathBuf,
    /// Directories with a folder of certificates for each registry.
    pub certificate_dirs: Vec<PathBuf>,
    /// Mirrors, rewrites, blocks and aliases: files in the format of `registries.conf`.
    pub conf: Vec<PathBuf>,
    /// Which images may run, in the format of `containers-policy.json(5)`; it need not exist.
    pub policy: PathBuf,
    /// Registries, `host[:port]`, that are asked by plain HTTP.
    pub plain_http: Vec<String>,
    /// How many images may be pulled for pods at once; `None`: no limit.
    pub parallel: Option<usize>,
    /// How often pods may begin to pull.
    pub rate: Rate,
    /// How fast images may arrive, in bytes a second; 0: no limit.
    pub bytes_per_second: u64,
    /// When pods may pull; empty: at any time.
    pub windows: Vec<PullWindow>,
    /// Whether a stored image is used while its registry cannot be asked for a newer one.
    pub use_offline: bool,
}

const PARALLEL: &str = "maxParallelImagePulls";
const SPEED: &str = "coracle.pullRate";
const WINDOWS: &str = "coracle.pullWindows";
const OFFLINE: &str = "coracle.pullAlwaysOffline";
const PLAIN: &str = "coracle.plainHTTPRegistries";

const VERIFICATION: &str = "imagePullCredentialsVerificationPolicy";
const ALLOWED: &str = "preloadedImagesVerificationAllowlist";

/// The slowest rate: a pull that brings less than 16 KiB a minute counts as stalled.
const SLOWEST: u64 = 4 << 10;

pub(super) fn registries(given: &Given<'_>) -> Registries {
    let paths = |field: &str| given.texts(field).into_iter().map(PathBuf::from).collect();
    let number = |field: &str| u32::try_from(given.int(field)).unwrap_or(0);
    let parsed = |text: String| PullWindow::parse(&text);
    Registries {
        auth_file: given.text("coracle.registryAuthFile").into(),
        certificate_dirs: paths("coracle.registryCertificateDirs"),
        conf: paths("coracle.registriesConf"),
        policy: given.text("coracle.signaturePolicy").into(),
        plain_http: given.texts(PLAIN),
        parallel: parallel(given),
        rate: Rate {
            qps: number("registryPullQPS"),
            burst: number("registryBurst"),
        },
        bytes_per_second: speed(&given.text(SPEED)).unwrap_or(0),
        windows: given
            .texts(WINDOWS)
            .into_iter()
            .filter_map(parsed)
            .collect(),
        use_offline: given.text(OFFLINE) == "use",
    }
}

/// How many images may be pulled for pods at once. With a limit on the rate it is one: the limit is for all together.
fn parallel(given: &Given<'_>) -> Option<usize> {
    let limited = !given.text(SPEED).is_empty();
    match given.bool("serializeImagePulls") || limited {
        true => Some(1),
        false => given
            .is_set(PARALLEL)
            .then(|| usize::try_from(given.int(PARALLEL)).unwrap_or(1)),
    }
}

/// Which stored images are for pods with credentials only.
pub(super) fn verification(given: &Given<'_>) -> Verification {
    let (policy, allowed) = (given.text(VERIFICATION), given.texts(ALLOWED));
    let verification = match policy.as_str() {
        "NeverVerify" => Verification::Nothing,
        "NeverVerifyPreloadedImages" => Verification::Pulled,
        "NeverVerifyAllowlistedImages" => Verification::Unlisted(allowed.clone()),
        "AlwaysVerify" => Verification::All,
        _ => {
            let text = format!(
                "option {policy:?} specified for {VERIFICATION}. Valid options are \"NeverVerify\", \
                 \"NeverVerifyPreloadedImages\", \"NeverVerifyAllowlistedImages\" or \"AlwaysVerify\""
            );
            given.wrong(&[VERIFICATION], text);
            Verification::All
        }
    };
    if !matches!(verification, Verification::Unlisted(_)) && !allowed.is_empty() {
        let text = format!(
            "can't set `{ALLOWED}` if `{VERIFICATION}` is not \"NeverVerifyAllowlistedImages\""
        );
        given.wrong(&[ALLOWED], text);
        return verification;
    }
    for (index, pattern) in allowed.iter().enumerate() {
        if let Some(why) = pattern_problem(pattern) {
            let text = format!("invalid image pattern in `{ALLOWED}`: {why}");
            given.wrong(&[&format!("{ALLOWED}[{index}]"), ALLOWED], text);
        }
    }
    verification
}

/// What is wrong with `registry/repository` or `registry/path/*`.
fn pattern_problem(pattern: &str) -> Option<String> {
    if pattern.trim() != pattern {
        return Some(format!(
            "leading/trailing spaces are not allowed: {pattern}"
        ));
    }
    let prefix = pattern.strip_suffix("/*");
    let bare = prefix.unwrap_or(pattern);
    if pattern.is_empty() {
        return Some(format!("the supplied pattern is too short: {pattern}"));
    }
    if bare.contains('*') {
        return Some(format!(
            "not a valid wildcard pattern, only patterns ending with '/*' are allowed: {pattern}"
        ));
    }
    if let Some(prefix) = prefix {
        return (prefix.is_empty()).then(|| "at least registry hostname is required".to_owned());
    }
    let name = match ImageName::parse(pattern) {
        Ok(name) => name,
        Err(why) => return Some(format!("failed to parse as an image name: {why}")),
    };
    let full = name.in_full();
    let last = pattern.rsplit('/').next().unwrap_or_default();
    if last.contains([':', '@']) {
        return Some(format!(
            "neither tag nor digest is accepted in an image reference: {pattern}"
        ));
    }
    (full != pattern).then(|| format!("the name must be in full, {full}: {pattern}"))
}

/// Reports what is wrong.
pub(super) fn check(given: &Given<'_>) {
    if given.is_set(PARALLEL) {
        let parallel = given.int(PARALLEL);
        if parallel < 1 {
            let text = format!("{PARALLEL} {parallel} must be a positive number");
            given.wrong(&[PARALLEL], text);
        }
        if parallel > 1 && given.bool("serializeImagePulls") {
            given.wrong(
                &[PARALLEL],
                "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is \
                 set to false",
            );
        }
    }
    // Registries are named as in images: a host, and a port if it is not the usual one.
    each(given, PLAIN, "a registry's host, or host:port", |value| {
        let name = ImageName::parse(&format!("{value}/image"));
        name.is_ok_and(|name| name.registry == value)
    });
    let window = "two times of day, like 01:00-05:00";
    each(given, WINDOWS, window, |value| {
        PullWindow::parse(value).is_some()
    });
    let rate = given.text(SPEED);
    if !rate.is_empty() && speed(&rate).is_none_or(|rate| rate < SLOWEST) {
        let text = format!("{SPEED} {rate:?} must be a rate of at least 4KiB/s, like 200KiB/s");
        given.wrong(&[SPEED], text);
    }
    let offline = given.text(OFFLINE);
    if !["use", "fail"].contains(&offline.as_str()) {
        let text = format!("{OFFLINE} {offline:?} must be one of: \"use\", \"fail\"");
        given.wrong(&[OFFLINE], text);
    }
}

/// Checks each text of a list.
fn each(given: &Given<'_>, list: &str, must_be: &str, is_right: impl Fn(&str) -> bool) {
    for (index, value) in given.texts(list).iter().enumerate() {
        if !is_right(value) {
            let path = format!("{list}[{index}]");
            let text = format!("{path} {value:?} must be {must_be}");
            given.wrong(&[&path, list], text);
        }
    }
}

/// Bytes a second of `200KiB/s`, `1.5MB/s`.
fn speed(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 7] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("kB", 1_000),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
    ];
    let amount = text.strip_suffix("/s")?;
    let (number, scale) = UNITS
        .iter()
        .find_map(|(unit, scale)| Some((amount.strip_suffix(unit)?.trim(), *scale)))?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.len() > 9 || tenths.len() != 1 || !digits(whole) || !digits(tenths) {
        return None;
    }
    let tenths = whole.parse::<u64>().ok()? * 10 + tenths.parse::<u64>().ok()?;
    Some(tenths * scale / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_pattern_is_a_repository_or_all_below_a_path() {
        const NO_TAG: &str = "neither tag nor digest is accepted";
        let digest = format!("r.lan/app@sha256:{}", "a".repeat(64));
        for (pattern, expected) in [
            ("r.lan/team/app", None),
            ("r.lan:5000/app", None),
            ("r.lan/*", None),
            ("r.lan/team/*", None),
            ("r.lan/team*/app", Some("only patterns ending with '/*'")),
            ("r.lan/team*", Some("only patterns ending with '/*'")),
            ("r.lan/*/app", Some("only patterns ending with '/*'")),
            ("*", Some("only patterns ending with '/*'")),
            ("/*", Some("at least registry hostname")),
            ("r.lan/", Some("failed to parse as an image name")),
            ("", Some("too short")),
            ("r.lan/app:1", Some(NO_TAG)),
            (&digest, Some(NO_TAG)),
            ("r.lan/app ", Some("leading/trailing spaces")),
            ("app", Some("in full, docker.io/library/app: app")),
            ("docker.io/app", Some("in full, docker.io/library/app")),
        ] {
            let found = pattern_problem(pattern);
            let fits = match (&found, expected) {
                (Some(found), Some(expected)) => found.contains(expected),
                (found, expected) => found.is_none() && expected.is_none(),
            };
            assert!(fits, "{pattern}: {found:?}");
        }
    }

    #[test]
    fn a_rate_has_a_unit() {
        for (text, expected) in [
            ("200KiB/s", Some(200 << 10)),
            ("200 KiB/s", Some(200 << 10)),
            ("1.5MB/s", Some(1_500_000)),
            ("1GiB/s", Some(1 << 30)),
            ("10kB/s", Some(10_000)),
            ("200KiB", None),
            ("200/s", None),
            ("1.55MB/s", None),
            ("-1MB/s", None),
            ("KiB/s", None),
            ("9999999999KiB/s", None),
            ("", None),
        ] {
            assert_eq!(speed(text), expected, "{text}");
        }
    }
}
