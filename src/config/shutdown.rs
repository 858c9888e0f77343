//! How long may the node's shutdown take, and who gets how much of it? (kubelet-behaviour §7.1, part A14)

use serde::{Deserialize, Serialize};

use super::given::Given;
use super::values::GoDuration;
use crate::spec::priority::CRITICAL;

/// The time that pods of one range of priorities have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Period {
    /// Pods of this priority and above, up to that of the next period.
    pub priority: i32,
    /// What they have, in seconds.
    pub shutdown_grace_period_seconds: i64,
}

const SIMPLE: &str = "shutdownGracePeriod";
const OF_CRITICAL: &str = "shutdownGracePeriodCriticalPods";
const BY_PRIORITY: &str = "shutdownGracePeriodByPodPriority";

/// What the two simple settings come to: the whole time, and how much of it critical pods have.
pub(super) fn simple(given: &Given<'_>) -> (GoDuration, GoDuration) {
    let by_priority = !given.list::<Period>(BY_PRIORITY).is_empty();
    let off = given.switches("featureGates").get("GracefulNodeShutdown") == Some(&false);
    // Whoever gives one of the two leaves the other as the kubelet has it; the defaults are for who gives nothing.
    match (given.is_set(SIMPLE), given.is_set(OF_CRITICAL)) {
        (true, false) => (given.duration(SIMPLE), GoDuration::default()),
        (false, false) if by_priority || off => Default::default(),
        (true, true) | (false, _) => (given.duration(SIMPLE), given.duration(OF_CRITICAL)),
    }
}

/// The periods by rising priority; none if shutdown is not graceful.
pub(super) fn periods(given: &Given<'_>) -> Vec<Period> {
    let gates = given.switches("featureGates");
    let gate = |name: &str| gates.get(name).copied().unwrap_or(true);
    let mut periods: Vec<Period> = given.list(BY_PRIORITY);
    let (total, critical) = simple(given);
    rules(given, &gate, (total, critical), !periods.is_empty());
    if periods.is_empty() && total.nanos > 0 {
        let rest = GoDuration {
            nanos: total.nanos - critical.nanos,
        };
        periods = vec![
            Period {
                priority: 0,
                shutdown_grace_period_seconds: rest.seconds(),
            },
            Period {
                priority: CRITICAL,
                shutdown_grace_period_seconds: critical.seconds(),
            },
        ];
    }
    periods.sort_by_key(|period| period.priority);
    periods
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
