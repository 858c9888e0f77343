//! Thresholds of eviction and of image garbage collection (Kubernetes docs: Node-pressure Eviction, Garbage
//! Collection).

use std::collections::BTreeMap;

use super::given::{Given, default};
use super::values::{Amount, GoDuration, quantity};
use crate::spec::value::Value;
use crate::types::ImagePolicy;

/// A resource that may run short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// `memory.available`
    MemoryAvailable,
    /// `nodefs.available`
    NodefsAvailable,
    /// `nodefs.inodesFree`
    NodefsInodesFree,
    /// `imagefs.available`
    ImagefsAvailable,
    /// `imagefs.inodesFree`
    ImagefsInodesFree,
    /// `containerfs.available`
    ContainerfsAvailable,
    /// `containerfs.inodesFree`
    ContainerfsInodesFree,
    /// `pid.available`
    PidAvailable,
}

impl Signal {
    const ALL: [(&'static str, Self); 8] = [
        ("memory.available", Self::MemoryAvailable),
        ("nodefs.available", Self::NodefsAvailable),
        ("nodefs.inodesFree", Self::NodefsInodesFree),
        ("imagefs.available", Self::ImagefsAvailable),
        ("imagefs.inodesFree", Self::ImagefsInodesFree),
        ("containerfs.available", Self::ContainerfsAvailable),
        ("containerfs.inodesFree", Self::ContainerfsInodesFree),
        ("pid.available", Self::PidAvailable),
    ];

    fn of(name: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, signal)| *signal)
    }

    /// Returns the name in settings.
    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, signal)| *signal == self);
        found.map_or("", |(name, _)| name)
    }
}

/// A lower bound of an available resource.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    /// The resource.
    pub signal: Signal,
    /// The threshold: less than this is a shortage.
    pub below: Amount,
    /// How long a shortage may last; 0 for hard thresholds.
    pub grace_ms: u64,
    /// Minimum amount above the threshold to reclaim.
    pub min_reclaim: Option<Amount>,
}

/// Settings of eviction.
#[derive(Debug, Clone, PartialEq)]
pub struct Eviction {
    /// Thresholds without a grace period.
    pub hard: Vec<Threshold>,
    /// Thresholds with a grace period.
    pub soft: Vec<Threshold>,
    /// How long a condition stays after the last time it was observed.
    pub transition_ms: u64,
    /// Maximum grace period of a pod evicted for a soft threshold, in seconds.
    pub max_pod_grace_s: i64,
    /// Whether limits of ephemeral storage are enforced.
    pub local_storage_limits: bool,
}

const HARD: &str = "evictionHard";
const SOFT: &str = "evictionSoft";
const SOFT_GRACE: &str = "evictionSoftGracePeriod";
const RECLAIM: &str = "evictionMinimumReclaim";

pub(super) fn eviction(given: &Given<'_>) -> Eviction {
    let reclaim = amounts(given, RECLAIM, &given.by_name(RECLAIM), true);
    let mut written = given.by_name(HARD);
    if given.is_set(HARD) && given.bool("mergeDefaultEvictionSettings") {
        for (name, value) in defaults() {
            written.entry(name).or_insert(value);
        }
    }
    let thresholds = |amounts: &BTreeMap<Signal, Amount>| -> Vec<Threshold> {
        let each = amounts.iter().map(|(signal, below)| Threshold {
            signal: *signal,
            below: *below,
            grace_ms: 0,
            min_reclaim: reclaim.get(signal).copied(),
        });
        each.collect()
    };
    let hard = thresholds(&amounts(given, HARD, &written, false));
    let mut soft = thresholds(&amounts(given, SOFT, &given.by_name(SOFT), false));
    let graces = graces(given);
    for threshold in &mut soft {
        match graces.get(&threshold.signal) {
            Some(grace) => threshold.grace_ms = *grace,
            None => {
                let name = threshold.signal.name();
                given.wrong(
                    &[&format!("{SOFT}[{name}]"), SOFT],
                    format!(
                        "grace period must be specified for the soft eviction threshold {name}"
                    ),
                );
            }
        }
    }
    Eviction {
        hard,
        soft,
        transition_ms: given.duration("evictionPressureTransitionPeriod").ms(),
        max_pod_grace_s: given.int("evictionMaxPodGracePeriod"),
        local_storage_limits: given.bool("localStorageCapacityIsolation"),
    }
}

fn defaults() -> Vec<(String, String)> {
    let Value::Map(entries) = default(HARD) else {
        return Vec::new();
    };
    let text = |(name, value): (String, Value)| Some((name, value.scalar_text()?));
    entries.into_iter().filter_map(text).collect()
}

/// Parses a mapping of amounts; `0%` and `100%` disable a signal and are omitted.
fn amounts(
    given: &Given<'_>,
    field: &str,
    written: &BTreeMap<String, String>,
    zero_allowed: bool,
) -> BTreeMap<Signal, Amount> {
    let mut found = BTreeMap::new();
    for (name, text) in written {
        let path = format!("{field}[{name}]");
        let wrong = |message: String| given.wrong(&[&path, field], message);
        let Some(signal) = Signal::of(name) else {
            wrong(format!("unsupported eviction signal {name}"));
            continue;
        };
        let amount = match text.strip_suffix('%') {
            Some(number) => match number.parse::<f64>() {
                Ok(percent) if percent < 0.0 => {
                    wrong(format!(
                        "eviction percentage threshold {name} must be >= 0%: {text}"
                    ));
                    continue;
                }
                Ok(percent) if percent > 100.0 => {
                    wrong(format!(
                        "eviction percentage threshold {name} must be <= 100%: {text}"
                    ));
                    continue;
                }
                Ok(percent) if percent.is_finite() => {
                    if !zero_allowed && (percent == 0.0 || percent == 100.0) {
                        continue;
                    }
                    Amount::Share(percent / 100.0)
                }
                Ok(_) | Err(_) => {
                    wrong(format!("{path}: `{text}` is not a percentage like 10%"));
                    continue;
                }
            },
            None => match quantity(text) {
                Ok(bytes) if bytes < 0 || (bytes == 0 && !zero_allowed) => {
                    wrong(format!(
                        "eviction threshold {name} must be positive: {text}"
                    ));
                    continue;
                }
                Ok(bytes) => Amount::Count(u64::try_from(bytes).unwrap_or(u64::MAX)),
                Err(error) => {
                    wrong(format!(
                        "{path}: Invalid value: {text:?}: {error}, or a percentage like 10%"
                    ));
                    continue;
                }
            },
        };
        found.insert(signal, amount);
    }
    found
}

fn graces(given: &Given<'_>) -> BTreeMap<Signal, u64> {
    let mut found = BTreeMap::new();
    for (name, text) in given.by_name(SOFT_GRACE) {
        let path = format!("{SOFT_GRACE}[{name}]");
        let wrong = |message: String| given.wrong(&[&path], message);
        match (Signal::of(&name), GoDuration::parse(&text)) {
            (None, _) => wrong(format!("unsupported eviction signal {name}")),
            (_, None) => wrong(format!("{path}: `{text}` is not a duration like 1m30s")),
            (_, Some(grace)) if grace.nanos <= 0 => wrong(format!(
                "eviction grace period must be positive: {name}, {grace}"
            )),
            (Some(signal), Some(grace)) => {
                found.insert(signal, grace.ms());
            }
        }
    }
    found
}

pub(super) fn image_gc(given: &Given<'_>) -> ImagePolicy {
    const MIN: &str = "imageMinimumGCAge";
    const MAX: &str = "imageMaximumGCAge";
    let (min, max) = (given.duration(MIN), given.duration(MAX));
    for (path, age) in [(MIN, min), (MAX, max)] {
        if age.nanos < 0 {
            given.wrong(&[path], format!("{path} {age} must not be negative"));
        }
    }
    if max.nanos > 0 && max <= min {
        given.wrong(
            &[MAX, MIN],
            format!("{MAX} {max} must be greater than {MIN} {min}"),
        );
    }
    const HIGH: &str = "imageGCHighThresholdPercent";
    const LOW: &str = "imageGCLowThresholdPercent";
    let (high, low) = (given.int(HIGH), given.int(LOW));
    if low >= high {
        given.wrong(
            &[LOW, HIGH],
            format!(
                "{LOW} (--image-gc-low-threshold) {low} must be less than {HIGH} (--image-gc-high-threshold) {high}"
            ),
        );
    }
    ImagePolicy {
        min_age_ms: min.ms(),
        max_age_ms: max.ms(),
        high_percent: u8::try_from(high).unwrap_or(100),
        low_percent: u8::try_from(low).unwrap_or(0),
    }
}
