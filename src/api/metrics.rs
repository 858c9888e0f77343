//! What is counted? Metrics as the node sets them, rendered in the Prometheus text format.

use std::fmt::Write as _;

/// One metric with all its label sets.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// `coracle_running_pods`.
    pub name: String,
    /// What it is, one line.
    pub help: String,
    /// How it behaves.
    pub kind: MetricKind,
    /// Labels and value.
    pub samples: Vec<(Vec<(String, String)>, f64)>,
}

/// How a metric behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// The exposition text.
pub(crate) fn render(metrics: &[Metric]) -> String {
    let mut text = String::new();
    for metric in metrics {
        let kind = match metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
        };
        let name = &metric.name;
        let help = metric.help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in &metric.samples {
            let labels: Vec<String> = labels
                .iter()
                .map(|(key, value)| format!("{key}=\"{}\"", escape(value)))
                .collect();
            let labels = match labels.is_empty() {
                true => String::new(),
                false => format!("{{{}}}", labels.join(",")),
            };
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    }
    text
}

fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_quoted_and_escaped() {
        let metric = Metric {
            name: "coracle_x".into(),
            help: "Things".into(),
            kind: MetricKind::Gauge,
            samples: vec![(vec![], 2.0), (vec![("a".into(), "q\"\\".into())], 0.5)],
        };
        assert_eq!(
            render(&[metric]),
            "# HELP coracle_x Things\n# TYPE coracle_x gauge\ncoracle_x 2\ncoracle_x{a=\"q\\\"\\\\\"} 0.5\n"
        );
    }
}
