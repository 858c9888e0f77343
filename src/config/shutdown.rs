//! Settings of graceful node shutdown (KEP-2000; KEP-2712; `coracle help differences`).

use serde::Deserialize;

use super::given::Given;
use super::values::GoDuration;
use crate::spec::priority::CRITICAL;
use crate::types::{Group, InOrder};

/// A group as the settings file has it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Period {
    priority: i32,
    shutdown_grace_period_seconds: i64,
}

const SIMPLE: &str = "shutdownGracePeriod";
const OF_CRITICAL: &str = "shutdownGracePeriodCriticalPods";
const BY_PRIORITY: &str = "shutdownGracePeriodByPodPriority";

/// Returns the values of the two simple settings: the whole time, and the part for critical pods.
pub(super) fn simple(given: &Given<'_>) -> (GoDuration, GoDuration) {
    let by_priority = !given.list::<Period>(BY_PRIORITY).is_empty();
    let off = given.switches("featureGates").get("GracefulNodeShutdown") == Some(&false);
    // If only one of the two is given, the other has the kubelet's default; coracle's defaults apply if none is given.
    match (given.is_set(SIMPLE), given.is_set(OF_CRITICAL)) {
        (true, false) => (given.duration(SIMPLE), GoDuration::default()),
        (false, false) if by_priority || off => Default::default(),
        (true, true) | (false, _) => (given.duration(SIMPLE), given.duration(OF_CRITICAL)),
    }
}

/// Returns the groups by ascending priority; none if shutdown is not graceful. A negative period counts as 0.
pub(super) fn groups(given: &Given<'_>) -> Vec<Group> {
    let gates = given.switches("featureGates");
    let gate = |name: &str| gates.get(name).copied().unwrap_or(true);
    let periods: Vec<Period> = given.list(BY_PRIORITY);
    let (total, critical) = simple(given);
    rules(given, &gate, (total, critical), !periods.is_empty());
    let group = |priority: i32, seconds: i64| Group {
        priority,
        seconds: u64::try_from(seconds).unwrap_or(0),
    };
    if periods.is_empty() && total.nanos > 0 {
        let rest = GoDuration {
            nanos: total.nanos - critical.nanos,
        };
        let critical = group(CRITICAL, critical.seconds());
        return vec![group(0, rest.seconds()), critical];
    }
    let groups = periods.iter();
    let groups = groups.map(|period| group(period.priority, period.shutdown_grace_period_seconds));
    let mut groups: Vec<Group> = groups.collect();
    groups.order_by_key(|group| group.priority);
    groups
}

fn rules(
    given: &Given<'_>,
    gate: &dyn Fn(&str) -> bool,
    (total, critical): (GoDuration, GoDuration),
    by_priority: bool,
) {
    if gate("GracefulNodeShutdown") {
        if critical > total {
            given.wrong(
                &[OF_CRITICAL, SIMPLE],
                format!("{OF_CRITICAL} {critical} must be <= {SIMPLE} {total}"),
            );
        }
        for (path, value) in [(SIMPLE, total), (OF_CRITICAL, critical)] {
            if value.nanos != 0 && value.nanos < 1_000_000_000 {
                let text = format!("{path} {value} must be either zero or otherwise >= 1 sec");
                given.wrong(&[path], text);
            }
        }
    } else if total.nanos > 0 || critical.nanos > 0 {
        given.wrong(
            &[SIMPLE, OF_CRITICAL],
            format!(
                "specifying {SIMPLE} or {OF_CRITICAL} requires feature gate GracefulNodeShutdown"
            ),
        );
    }
    if by_priority && !gate("GracefulNodeShutdownBasedOnPodPriority") {
        given.wrong(
            &[BY_PRIORITY],
            format!("Specifying {BY_PRIORITY} requires feature gate GracefulNodeShutdownBasedOnPodPriority"),
        );
    } else if by_priority && (total.nanos > 0 || critical.nanos > 0) {
        given.wrong(
            &[BY_PRIORITY],
            format!("Cannot specify both {BY_PRIORITY} and {SIMPLE} at the same time"),
        );
    }
}
