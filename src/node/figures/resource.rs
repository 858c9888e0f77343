//! The formats of a kubelet's `/metrics/resource` and of cAdvisor (Kubernetes docs: Metrics Reference; KEP-2400).

use super::super::metrics::{Samples, counter, gauge, labels, one};
use super::{Container, Measured, Pod};
use crate::api::Metric;
use crate::effects::cgroup::Usage;

/// Reads one figure.
type Read = fn(&Usage) -> Option<f64>;

/// Reads one figure of a container.
type ReadContainer = fn(&Container) -> Option<f64>;

#[expect(clippy::cast_precision_loss, reason = "Prometheus counts in doubles")]
fn float(number: u64) -> f64 {
    number as f64
}

fn cpu(usage: &Usage) -> Option<f64> {
    Some(float(usage.cpu?.ns) / 1e9)
}

fn working_set(usage: &Usage) -> Option<f64> {
    Some(float(usage.memory?.working_set_bytes))
}

fn swap(usage: &Usage) -> Option<f64> {
    Some(float(usage.swap?.usage_bytes))
}

/// The kubelet's metrics.
pub(super) fn of(measured: &Measured) -> Vec<Metric> {
    let node = |read: Read| read(&measured.machine).map_or(Vec::new(), one);
    let each = |read: ReadContainer| of_containers(measured, read);
    let mut all = vec![
        counter(
            "node_cpu_usage_seconds_total",
            "Cumulative cpu time consumed by the node in core-seconds",
            node(cpu),
        ),
        gauge(
            "node_memory_working_set_bytes",
            "Current working set of the node in bytes",
            node(working_set),
        ),
        gauge(
            "node_swap_usage_bytes",
            "Current swap usage of the node in bytes. Reported only on non-windows systems",
            node(swap),
        ),
        counter(
            "pod_cpu_usage_seconds_total",
            "Cumulative cpu time consumed by the pod in core-seconds",
            of_pods(measured, cpu),
        ),
        gauge(
            "pod_memory_working_set_bytes",
            "Current working set of the pod in bytes",
            of_pods(measured, working_set),
        ),
        gauge(
            "pod_swap_usage_bytes",
            "Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
            of_pods(measured, swap),
        ),
        counter(
            "container_cpu_usage_seconds_total",
            "Cumulative cpu time consumed by the container in core-seconds",
            each(|c| cpu(&c.usage)),
        ),
        gauge(
            "container_memory_working_set_bytes",
            "Current working set of the container in bytes",
            each(|c| working_set(&c.usage)),
        ),
        gauge(
            "container_swap_usage_bytes",
            "Current amount of the container swap usage in bytes. Reported only on non-windows systems",
            each(|c| swap(&c.usage)),
        ),
        gauge(
            "container_swap_limit_bytes",
            "Current amount of the container swap limit in bytes. Reported only on non-windows systems",
            each(|c| c.usage.swap?.limit_bytes.map(float)),
        ),
        gauge(
            "container_start_time_seconds",
            "Start time of the container since unix epoch in seconds",
            each(|c| Some(micros(c.started.0))),
        ),
        gauge(
            "resource_scrape_error",
            "1 if there was an error while getting container metrics, 0 otherwise",
            one(0.0),
        ),
    ];
    all.retain(|metric| !metric.samples.is_empty());
    all
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus counts in doubles")]
fn micros(us: i64) -> f64 {
    us as f64 / 1e6
}

/// cAdvisor's metrics of containers.
pub(super) fn cadvisor(measured: &Measured) -> Vec<Metric> {
    let each = |read: ReadContainer| of_containers(measured, read);
    vec![
        counter(
            "container_cpu_usage_seconds_total",
            "Cumulative cpu time consumed in seconds.",
            each(|c| cpu(&c.usage)),
        ),
        gauge(
            "container_memory_working_set_bytes",
            "Current working set in bytes.",
            each(|c| working_set(&c.usage)),
        ),
        gauge(
            "container_memory_usage_bytes",
            "Current memory usage in bytes, including all memory regardless of when it was accessed",
            each(|c| Some(float(c.usage.memory?.usage_bytes))),
        ),
        gauge(
            "container_memory_rss",
            "Size of RSS in bytes.",
            each(|c| Some(float(c.usage.memory?.rss_bytes))),
        ),
        gauge(
            "container_spec_memory_limit_bytes",
            "Memory limit for the container.",
            each(|c| Some(float(c.usage.memory?.limit_bytes.unwrap_or(0)))),
        ),
        gauge(
            "container_threads",
            "Number of threads running inside the container.",
            each(|c| c.usage.processes.map(float)),
        ),
    ]
}

fn of_pods(measured: &Measured, read: Read) -> Samples {
    let sample = |pod: &Pod| {
        let key = &pod.target.spec.key;
        let labels = labels(&[("namespace", &key.namespace), ("pod", &key.name)]);
        Some((labels, read(&pod.usage)?))
    };
    measured.pods.iter().filter_map(sample).collect()
}

fn of_containers(measured: &Measured, read: ReadContainer) -> Samples {
    let pods = measured.pods.iter().flat_map(|pod| {
        let key = &pod.target.spec.key;
        pod.containers.iter().filter_map(move |container| {
            let labels = labels(&[
                ("container", &container.name),
                ("namespace", &key.namespace),
                ("pod", &key.name),
            ]);
            Some((labels, read(container)?))
        })
    });
    pods.collect()
}
