//! Label selectors of documents, which have to choose their own template's pods (`LabelSelectorAsSelector`).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::spec::error::{Path, Report};
use crate::spec::names;

const OPERATORS: [&str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];

/// Checks a selector; returns whether it is empty.
pub(super) fn check(selector: &LabelSelector, path: &Path<'_>, report: &Report) -> bool {
    let labels = selector.match_labels.iter().flatten();
    let at = path.field("matchLabels");
    for (key, value) in labels.clone() {
        if let Some(problem) = names::qualified_name(key) {
            report.invalid(&at.field(key), key, problem);
        }
        if let Some(problem) = names::label_value(value) {
            report.invalid(&at.field(key), value, problem);
        }
    }
    let expressions = selector.match_expressions.iter().flatten();
    let list = path.field("matchExpressions");
    for (index, expression) in expressions.clone().enumerate() {
        let at = list.index(index);
        let given = expression.values.iter().flatten().count();
        match expression.operator.as_str() {
            "In" | "NotIn" if given == 0 => report.error(
                &at.field("values"),
                "Required value: must be specified when `operator` is 'In' or 'NotIn'",
            ),
            "Exists" | "DoesNotExist" if given > 0 => report.forbidden(
                &at.field("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
            other => {
                if !OPERATORS.contains(&other) {
                    report.unsupported(&at.field("operator"), other, &OPERATORS);
                }
            }
        }
        if let Some(problem) = names::qualified_name(&expression.key) {
            report.invalid(&at.field("key"), &expression.key, problem);
        }
    }
    labels.count() + expressions.count() == 0
}

/// Whether it chooses objects with these labels.
pub(super) fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let mut pairs = selector.match_labels.iter().flatten();
    let mut expressions = selector.match_expressions.iter().flatten();
    pairs.all(|(key, value)| labels.get(key) == Some(value))
        && expressions.all(|expression| {
            let found = labels.get(&expression.key);
            let listed = || {
                let mut values = expression.values.iter().flatten();
                found.is_some_and(|found| values.any(|value| value == found))
            };
            match expression.operator.as_str() {
                "In" => listed(),
                "NotIn" => !listed(),
                "Exists" => found.is_some(),
                _ => found.is_none(),
            }
        })
}
