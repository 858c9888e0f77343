//! Fields for a scheduler that choose between nodes, checked with the API server's rules (ValidateTolerations and its
//! neighbours), apart from selectors and what a newer API has: a misspelt field shows here, not first in a cluster.

use k8s_openapi::api::core::v1::{
    PodAffinityTerm, PodSpec, PreferredSchedulingTerm, Toleration, TopologySpreadConstraint,
    WeightedPodAffinityTerm,
};

use super::error::{Path, Report};
use super::{names, placement};

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

const UNSATISFIABLE: [&str; 2] = ["DoNotSchedule", "ScheduleAnyway"];

/// Checks tolerations, preferred affinity, affinity between pods, and spreading. A pod that a version without these
/// checks has admitted goes on.
pub(super) fn check(spec: &PodSpec, path: &Path<'_>, report: &Report) {
    if report.is_admitted() {
        return;
    }
    let at = path.field("tolerations");
    for (index, one) in spec.tolerations.iter().flatten().enumerate() {
        toleration(one, &at.index(index), report);
    }
    let at = path.field("topologySpreadConstraints");
    let constraints = spec.topology_spread_constraints.iter().flatten();
    for (index, one) in constraints.enumerate() {
        spread(one, &at.index(index), report);
    }
    let Some(affinity) = &spec.affinity else {
        return;
    };
    let at = path.field("affinity");
    if let Some(of_nodes) = &affinity.node_affinity {
        let terms = &of_nodes.preferred_during_scheduling_ignored_during_execution;
        let at = at.field("nodeAffinity");
        let at = at.field(PREFERRED);
        for (index, one) in terms.iter().flatten().enumerate() {
            preferred(one, &at.index(index), report);
        }
    }
    if let Some(near) = &affinity.pod_affinity {
        let required = &near.required_during_scheduling_ignored_during_execution;
        let preferred = &near.preferred_during_scheduling_ignored_during_execution;
        of_pods(required, preferred, &at.field("podAffinity"), report);
    }
    if let Some(apart) = &affinity.pod_anti_affinity {
        let required = &apart.required_during_scheduling_ignored_during_execution;
        let preferred = &apart.preferred_during_scheduling_ignored_during_execution;
        of_pods(required, preferred, &at.field("podAntiAffinity"), report);
    }
}

const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn toleration(one: &Toleration, path: &Path<'_>, report: &Report) {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (key, operator) = (text(&one.key), text(&one.operator));
    let (value, effect) = (text(&one.value), text(&one.effect));
    if !key.is_empty() {
        label(&key, &path.field("key"), report);
    } else if operator != "Exists" {
        let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        report.invalid(&path.field("operator"), &operator, detail);
    }
    if one.toleration_seconds.is_some() && effect != "NoExecute" {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        report.invalid(&path.field("effect"), &effect, detail);
    }
    match operator.as_str() {
        "" | "Equal" => {
            if let Some(problem) = names::label_value(&value) {
                report.invalid(&path.field("value"), &value, problem);
            }
        }
        "Exists" if value.is_empty() => {}
        "Exists" => {
            let detail = "value must be empty when `operator` is 'Exists'";
            report.invalid(&path.field("value"), &value, detail);
        }
        // `Gt` and `Lt` need a feature gate, which is off by default.
        other => report.unsupported(&path.field("operator"), other, &["Equal", "Exists"]),
    }
    if !effect.is_empty() && !EFFECTS.contains(&effect.as_str()) {
        report.unsupported(&path.field("effect"), &effect, &EFFECTS);
    }
}

fn spread(one: &TopologySpreadConstraint, path: &Path<'_>, report: &Report) {
    if one.max_skew <= 0 {
        report.invalid(
            &path.field("maxSkew"),
            one.max_skew,
            "must be greater than zero",
        );
    }
    topology_key(&one.topology_key, path, report);
    let action = one.when_unsatisfiable.as_str();
    if !UNSATISFIABLE.contains(&action) {
        report.unsupported(&path.field("whenUnsatisfiable"), action, &UNSATISFIABLE);
    }
}

fn preferred(one: &PreferredSchedulingTerm, path: &Path<'_>, report: &Report) {
    weight(one.weight, path, report);
    placement::term(&one.preference, &path.field("preference"), report);
}

fn of_pods(
    required: &Option<Vec<PodAffinityTerm>>,
    preferred: &Option<Vec<WeightedPodAffinityTerm>>,
    path: &Path<'_>,
    report: &Report,
) {
    let at = path.field("requiredDuringSchedulingIgnoredDuringExecution");
    for (index, one) in required.iter().flatten().enumerate() {
        topology_key(&one.topology_key, &at.index(index), report);
    }
    let at = path.field(PREFERRED);
    for (index, one) in preferred.iter().flatten().enumerate() {
        let at = at.index(index);
        weight(one.weight, &at, report);
        let key = &one.pod_affinity_term.topology_key;
        topology_key(key, &at.field("podAffinityTerm"), report);
    }
}

fn weight(weight: i32, path: &Path<'_>, report: &Report) {
    if !(1..=100).contains(&weight) {
        report.invalid(&path.field("weight"), weight, "must be in the range 1-100");
    }
}

fn topology_key(key: &str, path: &Path<'_>, report: &Report) {
    let at = path.field("topologyKey");
    match key {
        "" => report.error(&at, "Required value: can not be empty"),
        key => label(key, &at, report),
    }
}

/// Checks the key of a label.
fn label(key: &str, path: &Path<'_>, report: &Report) {
    if let Some(problem) = names::qualified_name(key) {
        report.invalid(path, key, problem);
    }
}

#[cfg(test)]
mod tests {
    use super::super::convert::{ConvertContext, documents};

    #[test]
    fn a_document_that_was_admitted_before_these_checks_goes_on() {
        let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec:\n  selector: {matchLabels: {a: b}}\n  \
                    template:\n    metadata: {labels: {a: b}}\n    spec:\n      tolerations: [{key: 'a b'}]\n      \
                    containers: [{name: c, image: i}]\n";
        let read = |admitted| {
            let context = ConvertContext {
                admitted,
                ..ConvertContext::of("n")
            };
            documents(text.as_bytes(), "a.yaml", &context)
        };
        let errors = read(false).expect_err("it is checked");
        assert!(errors[0].path.ends_with("tolerations[0].key"), "{errors:?}");
        let found = read(true).expect("it goes on");
        assert_eq!((found.workloads.len(), found.pods.len()), (1, 1));
    }
}
