//! Probe metrics: the kubelet's `/metrics/probes`.

use std::collections::BTreeMap;

use super::{counter, histogram, labels};
use crate::api::{Metric, Spread};
use crate::effects::probe::Outcome;
use crate::plan::event::ProbeOrder;
use crate::spec::{PodKey, PodUid, ProbeKind};

/// Outcomes of probes of the existing pods.
#[derive(Debug, Default)]
pub(in super::super) struct ProbeCounters {
    series: BTreeMap<ProbeSeries, ProbeCounts>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ProbeSeries {
    pod: PodUid,
    container: String,
    probe: ProbeKind,
}

#[derive(Debug)]
struct ProbeCounts {
    key: PodKey,
    /// By result.
    results: BTreeMap<&'static str, f64>,
    /// Durations of probes that did not fail, as the kubelet counts.
    seconds: Spread,
}

impl ProbeCounters {
    pub(in super::super) fn count(
        &mut self,
        order: &ProbeOrder,
        key: &PodKey,
        outcome: &Outcome,
        seconds: f64,
    ) {
        let series = ProbeSeries {
            pod: order.instance.pod.clone(),
            container: order.instance.container.clone(),
            probe: order.probe,
        };
        let counts = self.series.entry(series).or_insert_with(|| ProbeCounts {
            key: key.clone(),
            results: BTreeMap::new(),
            seconds: Spread::new(Vec::new()),
        });
        let result = match outcome {
            Outcome::Success(_) | Outcome::Warning(_) => "successful",
            Outcome::Failure(_) => "failed",
            Outcome::Error(_) | Outcome::Unread(_) => "unknown",
        };
        *counts.results.entry(result).or_default() += 1.0;
        if result != "failed" {
            counts.seconds.add(seconds);
        }
    }

    /// The pod is removed.
    pub(in super::super) fn forget(&mut self, pod: &PodUid) {
        self.series.retain(|series, _| series.pod != *pod);
    }

    pub(in super::super) fn metrics(&self) -> Vec<Metric> {
        let (mut totals, mut spreads) = (Vec::new(), Vec::new());
        for (series, counts) in &self.series {
            let common = [
                ("probe_type", series.probe.as_str()),
                ("container", series.container.as_str()),
                ("pod", &counts.key.name),
                ("namespace", &counts.key.namespace),
            ];
            for (result, count) in &counts.results {
                let mut all = labels(&common);
                all.extend(labels(&[
                    ("pod_uid", series.pod.as_str()),
                    ("result", result),
                ]));
                totals.push((all, *count));
            }
            spreads.push(counts.seconds.labelled(labels(&common)));
        }
        vec![
            counter(
                "prober_probe_total",
                "Cumulative number of a liveness, readiness or startup probe for a container by result.",
                totals,
            ),
            histogram(
                "prober_probe_duration_seconds",
                "Duration in seconds for a probe response.",
                spreads,
            ),
        ]
    }
}
