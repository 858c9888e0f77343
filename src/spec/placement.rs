//! Placement rules: `nodeSelector`, required node affinity, and the operating system. Preferences have no effect on a
//! single node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec,
};

use super::error::{Path, Report};
use super::names;

/// Requirements for the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placement {
    /// `os.name` is not `linux`.
    pub other_os: bool,
    /// `nodeSelector`: labels the node must have.
    pub selector: BTreeMap<String, String>,
    /// `requiredDuringSchedulingIgnoredDuringExecution`: at least one term must match; `None`: no requirement.
    pub terms: Option<Vec<Term>>,
}

/// Requirements that must all match; an empty term matches nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Term {
    /// `matchExpressions`: requirements for the node's labels.
    pub labels: Vec<Requirement>,
    /// `matchFields`: requirements for the node's name.
    pub names: Vec<Requirement>,
}

/// One requirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// The label's key, or `metadata.name`.
    pub key: String,
    /// Test of the value.
    pub test: Test,
}

/// Test of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// The value is one of these.
    In(Vec<String>),
    /// The value is none of these, or missing.
    NotIn(Vec<String>),
    /// The value exists.
    Exists,
    /// The value does not exist.
    DoesNotExist,
    /// The value is a number greater than this.
    Above(i64),
    /// The value is a number less than this.
    Below(i64),
}

/// The labels of a node: those that every node has, and those of its settings, which may override them. `architecture`
/// is Kubernetes' name of it.
pub fn node_labels(
    name: &str,
    architecture: &str,
    settings: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    // Those of `beta` are deprecated, and older manifests select by them.
    let pairs = [
        ("kubernetes.io/hostname", name),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", architecture),
    ];
    let own = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let mut labels = BTreeMap::from(own);
    labels.extend(settings.clone());
    labels
}

impl Placement {
    /// Whether a node with this name and these labels matches selector and affinity.
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let has = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        let term = |term: &Term| {
            let none = term.labels.is_empty() && term.names.is_empty();
            let label = |r: &Requirement| r.test.holds(labels.get(&r.key).map(String::as_str));
            let name = |r: &Requirement| r.test.holds(Some(name));
            !none && term.labels.iter().all(label) && term.names.iter().all(name)
        };
        let required = self.terms.as_ref();
        self.selector.iter().all(has) && required.is_none_or(|terms| terms.iter().any(term))
    }
}

impl Test {
    fn holds(&self, value: Option<&str>) -> bool {
        let among = |list: &[String]| value.is_some_and(|value| list.iter().any(|v| v == value));
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::In(list) => among(list),
            Self::NotIn(list) => !among(list),
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
            Self::Above(least) => number().is_some_and(|number| number > *least),
            Self::Below(most) => number().is_some_and(|number| number < *most),
        }
    }
}

/// Validates and converts the placement, with the API server's rules.
pub(crate) fn of(spec: &PodSpec, path: &Path<'_>, report: &Report) -> Placement {
    let selector = spec.node_selector.clone().unwrap_or_default();
    let at = path.field("nodeSelector");
    for (key, value) in &selector {
        label(&at.field(key), key, report);
        if let Some(problem) = names::label_value(value) {
            report.invalid(&at.field(key), value, problem);
        }
    }
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| {
        a.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let at = path.field("affinity");
    let at = at.field("nodeAffinity");
    let at = at.field("requiredDuringSchedulingIgnoredDuringExecution");
    Placement {
        other_os: spec.os.as_ref().is_some_and(|os| os.name != "linux"),
        selector,
        terms: required.map(|required| terms(required, &at.field("nodeSelectorTerms"), report)),
    }
}

fn terms(selector: &NodeSelector, path: &Path<'_>, report: &Report) -> Vec<Term> {
    if selector.node_selector_terms.is_empty() {
        let message = "Required value: must have at least one node selector term";
        report.error(path, message);
    }
    let all = selector.node_selector_terms.iter().enumerate();
    all.map(|(index, one)| term(one, &path.index(index), report))
        .collect()
}

pub(super) fn term(term: &NodeSelectorTerm, path: &Path<'_>, report: &Report) -> Term {
    let expressions = path.field("matchExpressions");
    let labels = term.match_expressions.iter().flatten().enumerate();
    let labels = labels.filter_map(|(index, written)| {
        let at = expressions.index(index);
        label(&at.field("key"), &written.key, report);
        requirement(written, &at, report)
    });
    let fields = path.field("matchFields");
    let names = term.match_fields.iter().flatten().enumerate();
    let names = names.filter_map(|(index, written)| field(written, &fields.index(index), report));
    Term {
        labels: labels.collect(),
        names: names.collect(),
    }
}

fn label(path: &Path<'_>, key: &str, report: &Report) {
    if let Some(problem) = names::qualified_name(key) {
        report.invalid(path, key, problem);
    }
}

fn requirement(
    written: &NodeSelectorRequirement,
    path: &Path<'_>,
    report: &Report,
) -> Option<Requirement> {
    let values = written.values.clone().unwrap_or_default();
    let at = path.field("values");
    let needs = |ok: bool, message: &str| {
        if !ok {
            report.error(&at, message);
        }
        ok
    };
    let some = "Required value: must be specified when `operator` is 'In' or 'NotIn'";
    let none = "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
    let test = match written.operator.as_str() {
        "In" => needs(!values.is_empty(), some).then_some(Test::In(values)),
        "NotIn" => needs(!values.is_empty(), some).then_some(Test::NotIn(values)),
        "Exists" => needs(values.is_empty(), none).then_some(Test::Exists),
        "DoesNotExist" => needs(values.is_empty(), none).then_some(Test::DoesNotExist),
        "Gt" => number(&values, &at, report).map(Test::Above),
        "Lt" => number(&values, &at, report).map(Test::Below),
        other => return unknown(other, path, report),
    };
    Some(Requirement {
        key: written.key.clone(),
        test: test?,
    })
}

fn number(values: &[String], path: &Path<'_>, report: &Report) -> Option<i64> {
    let [value] = values else {
        let message =
            "Required value: must be specified single value when `operator` is 'Lt' or 'Gt'";
        report.error(path, message);
        return None;
    };
    let number = value.parse().ok();
    if number.is_none() {
        report.invalid(&path.index(0), value, "must be an integer");
    }
    number
}

/// Whether it tolerates the taint of a node that is short of memory.
pub(super) fn tolerates_memory_pressure(spec: &PodSpec) -> bool {
    spec.tolerations.iter().flatten().any(|t| {
        let exists = t.operator.as_deref() == Some("Exists");
        let key = t.key.as_deref().unwrap_or_default();
        let effect = t.effect.as_deref().unwrap_or_default();
        let empty = t.value.as_deref().unwrap_or_default().is_empty();
        (key == "node.kubernetes.io/memory-pressure" || key.is_empty() && exists)
            && matches!(effect, "" | "NoSchedule")
            && (exists || empty)
    })
}

/// Checks the field: a node's only selectable field is its name.
fn field(
    written: &NodeSelectorRequirement,
    path: &Path<'_>,
    report: &Report,
) -> Option<Requirement> {
    if written.key != "metadata.name" {
        let at = path.field("key");
        report.invalid(&at, &written.key, "not a valid field selector key");
    }
    let test: fn(Vec<String>) -> Test = match written.operator.as_str() {
        "In" => Test::In,
        "NotIn" => Test::NotIn,
        other => return unknown(other, path, report),
    };
    let values = written.values.clone().unwrap_or_default();
    if values.len() != 1 {
        let message = "Required value: must be only one value when `operator` is 'In' or 'NotIn' for node field \
                       selector";
        report.error(&path.field("values"), message);
    }
    Some(Requirement {
        key: written.key.clone(),
        test: test(values),
    })
}

fn unknown<T>(operator: &str, path: &Path<'_>, report: &Report) -> Option<T> {
    let at = path.field("operator");
    report.invalid(&at, operator, "not a valid selector operator");
    None
}
