//! The metrics page: the kubelet's metrics that have a meaning here, with their names and help texts (Kubernetes
//! docs: Metrics Reference). It is put together only when a client asks.

mod counters;
mod pods;
mod probes;

use std::collections::BTreeMap;

use crate::api::{Metric, MetricKind, Spread};
use crate::effects::cgroup::Mode;
use crate::network::{Network, Traffic};
use crate::spec::{PodKey, PodUid};

pub(super) use counters::Counters;
pub(super) use pods::of_pods;
pub(super) use probes::ProbeCounters;

/// The node's name and the running version.
pub(super) fn of_node(name: &str) -> [Metric; 2] {
    [
        gauge(
            "kubelet_node_name",
            "The node's name. The count is always 1.",
            vec![(labels(&[("node", name)]), 1.0)],
        ),
        gauge(
            "coracle_build_info",
            "The running version.",
            vec![(labels(&[("version", env!("CARGO_PKG_VERSION"))]), 1.0)],
        ),
    ]
}

/// The cgroup version of pods.
pub(super) fn of_cgroups(mode: Mode) -> Metric {
    let version = match mode {
        Mode::V1 => 1.0,
        Mode::V2 => 2.0,
    };
    gauge(
        "kubelet_cgroup_version",
        "cgroup version on the hosts.",
        one(version),
    )
}

/// The duration of changes of packet rules.
pub(super) fn of_rules(network: &Network) -> Metric {
    gauge(
        "coracle_firewall_apply_seconds",
        "How long the last change of packet rules took.",
        one(network.firewall().last_run().as_secs_f64()),
    )
}

/// Reads one figure of a pod's traffic.
type Read = fn(&Traffic) -> u64;

/// The traffic of pods' interfaces, under cAdvisor's names.
pub(super) fn of_traffic(
    keys: &BTreeMap<PodUid, PodKey>,
    traffic: &BTreeMap<PodUid, Traffic>,
) -> Vec<Metric> {
    const FIGURES: [(&str, &str, Read); 8] = [
        ("receive_bytes", "Bytes received.", |t| t.rx_bytes),
        ("receive_packets", "Packets received.", |t| t.rx_packets),
        (
            "receive_packets_dropped",
            "Packets dropped while receiving.",
            |t| t.rx_dropped,
        ),
        ("receive_errors", "Errors while receiving.", |t| t.rx_errors),
        ("transmit_bytes", "Bytes sent.", |t| t.tx_bytes),
        ("transmit_packets", "Packets sent.", |t| t.tx_packets),
        (
            "transmit_packets_dropped",
            "Packets dropped while sending.",
            |t| t.tx_dropped,
        ),
        ("transmit_errors", "Errors while sending.", |t| t.tx_errors),
    ];
    let known: Vec<_> = traffic
        .iter()
        .filter_map(|(uid, traffic)| Some((keys.get(uid)?, traffic)))
        .collect();
    FIGURES
        .iter()
        .map(|(name, help, read)| {
            let samples = known.iter().map(|(key, traffic)| {
                let labels = labels(&[
                    ("interface", "eth0"),
                    ("namespace", &key.namespace),
                    ("pod", &key.name),
                ]);
                #[expect(clippy::cast_precision_loss, reason = "Prometheus counts in doubles")]
                let value = read(traffic) as f64;
                (labels, value)
            });
            counter(
                &format!("container_network_{name}_total"),
                help,
                samples.collect(),
            )
        })
        .collect()
}

pub(super) type Samples = Vec<(Vec<(String, String)>, f64)>;

pub(super) fn labels(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

pub(super) fn one(value: f64) -> Samples {
    vec![(Vec::new(), value)]
}

pub(super) fn gauge(name: &str, help: &str, samples: Samples) -> Metric {
    Metric {
        name: name.to_owned(),
        help: help.to_owned(),
        kind: MetricKind::Gauge,
        samples,
    }
}

pub(super) fn counter(name: &str, help: &str, samples: Samples) -> Metric {
    Metric {
        name: name.to_owned(),
        help: help.to_owned(),
        kind: MetricKind::Counter,
        samples,
    }
}

fn histogram(name: &str, help: &str, spreads: Vec<Spread>) -> Metric {
    Metric {
        name: name.to_owned(),
        help: help.to_owned(),
        kind: MetricKind::Histogram(spreads),
        samples: Vec::new(),
    }
}
