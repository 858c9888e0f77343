//! `coracle boot`: what pods have waited for before they started.

use serde_json::{Value, json};

use super::Node;
use crate::plan::PodState;
use crate::plan::after::Progress;
use crate::types::{Stamp, Time};

impl Node {
    /// `{"items": [{"namespace", "name", "waitedSeconds", "admittedSeconds", "waiting", "items": [{"after",
    /// "seconds", "state"}]}]}`. A pod is admitted so many seconds after the boot; `null` while it is held. An item is
    /// `there`, `missing` or `timedOut`.
    pub(super) fn show_boot(&self) -> Value {
        let now = super::now().time;
        let pods = self.state.pods.values().map(|pod| of_pod(pod, now));
        json!({ "items": pods.collect::<Vec<_>>() })
    }
}

fn of_pod(pod: &PodState, now: Time) -> Value {
    let waiting = &pod.waiting;
    let admitted = match pod.hold() {
        Some(_) => None,
        None => Some(waiting.let_in.unwrap_or(pod.created).time),
    };
    let since = waiting.since.map_or(now, |since| since.time);
    let until = |at: Option<Stamp>| at.map_or(now, |at| at.time);
    let waited = match waiting.since {
        Some(_) => until(waiting.let_in).since(since),
        None => 0,
    };
    let items = waiting.items.iter().map(|item| {
        // What came, or was lost, after the pod was let in is not what it waited for.
        let met = item.met.filter(|met| until(waiting.let_in) >= met.time);
        let waited = met.or(waiting.let_in);
        json!({ "after": item.need, "seconds": seconds(until(waited).since(since)),
                "state": state(item, met, pod) })
    });
    json!({
        "namespace": pod.spec.key.namespace,
        "name": pod.spec.key.name,
        "waitedSeconds": seconds(waited),
        "admittedSeconds": admitted.map(|at| seconds(at.0)),
        "waiting": pod.hold().map(|hold| hold.reason.as_str()),
        "items": items.collect::<Vec<_>>(),
    })
}

fn state(item: &Progress, met: Option<Stamp>, pod: &PodState) -> &'static str {
    match (met, item.overdue) {
        (Some(_), _) => "there",
        (None, true) => "timedOut",
        // A pod that was let in had everything else.
        (None, false) if pod.hold().is_none() => "there",
        (None, false) => "missing",
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds of a boot are far below 2^53"
)]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}
