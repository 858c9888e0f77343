//! Metrics, rendered in the Prometheus text format.

use std::fmt::Write as _;

/// A metric with all its label sets.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// Name, such as `coracle_running_pods`.
    pub name: String,
    /// Help text, one line.
    pub help: String,
    /// Type of the metric.
    pub kind: MetricKind,
    /// Labels and value; empty for a histogram.
    pub samples: Vec<(Vec<(String, String)>, f64)>,
}

/// Type of a metric.
#[derive(Debug, Clone, PartialEq)]
pub enum MetricKind {
    /// A value that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// A distribution for each set of labels.
    Histogram(Vec<Spread>),
}

/// Prometheus' default bucket limits, for seconds.
const LIMITS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// A distribution of values.
#[derive(Debug, Clone, PartialEq)]
pub struct Spread {
    /// Labels.
    pub labels: Vec<(String, String)>,
    /// Number of values at most the limit with the same index.
    counts: Vec<u64>,
    limits: &'static [f64],
    count: u64,
    sum: f64,
}

impl Spread {
    /// An empty distribution with the default limits.
    pub fn new(labels: Vec<(String, String)>) -> Self {
        Self::within(&LIMITS, labels)
    }

    /// An empty distribution with these limits, in ascending order.
    pub fn within(limits: &'static [f64], labels: Vec<(String, String)>) -> Self {
        Self {
            labels,
            counts: vec![0; limits.len()],
            limits,
            count: 0,
            sum: 0.0,
        }
    }

    /// The same distribution with these labels.
    pub fn labelled(&self, labels: Vec<(String, String)>) -> Self {
        Self {
            labels,
            ..self.clone()
        }
    }

    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        for (count, limit) in self.counts.iter_mut().zip(self.limits) {
            *count += u64::from(value <= *limit);
        }
        self.count += 1;
        self.sum += value;
    }

    fn render(&self, name: &str, text: &mut String) {
        let limits = self.limits.iter().map(f64::to_string);
        let limits = limits.zip(self.counts.iter().copied());
        for (limit, count) in limits.chain([("+Inf".to_owned(), self.count)]) {
            let mut labels = self.labels.clone();
            labels.push(("le".to_owned(), limit));
            let _ = writeln!(text, "{name}_bucket{} {count}", braced(&labels));
        }
        let labels = braced(&self.labels);
        let _ = writeln!(text, "{name}_sum{labels} {}", self.sum);
        let _ = writeln!(text, "{name}_count{labels} {}", self.count);
    }
}

/// Renders the exposition text.
pub(crate) fn render(metrics: &[Metric]) -> String {
    let mut text = String::new();
    for metric in metrics {
        let kind = match &metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram(_) => "histogram",
        };
        let name = &metric.name;
        let help = metric.help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in &metric.samples {
            let _ = writeln!(text, "{name}{} {value}", braced(labels));
        }
        if let MetricKind::Histogram(spreads) = &metric.kind {
            spreads
                .iter()
                .for_each(|spread| spread.render(name, &mut text));
        }
    }
    text
}

fn braced(labels: &[(String, String)]) -> String {
    let labels: Vec<String> = labels
        .iter()
        .map(|(key, value)| format!("{key}=\"{}\"", escape(value)))
        .collect();
    match labels.is_empty() {
        true => String::new(),
        false => format!("{{{}}}", labels.join(",")),
    }
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

    #[test]
    fn a_histogram_counts_what_is_at_most_each_limit() {
        let mut spread = Spread::new(vec![("a".into(), "b".into())]);
        spread.add(0.005);
        spread.add(7.0);
        spread.add(11.0);
        let metric = Metric {
            name: "x".into(),
            help: "Things".into(),
            kind: MetricKind::Histogram(vec![spread]),
            samples: Vec::new(),
        };
        let text = render(&[metric]);
        for line in [
            "# TYPE x histogram",
            "x_bucket{a=\"b\",le=\"0.005\"} 1",
            "x_bucket{a=\"b\",le=\"5\"} 1",
            "x_bucket{a=\"b\",le=\"10\"} 2",
            "x_bucket{a=\"b\",le=\"+Inf\"} 3",
            "x_sum{a=\"b\"} 18.005",
            "x_count{a=\"b\"} 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }
}
