//! Pod priority: `PriorityClass` documents, the two built-in classes, and the priority that a pod gets from them
//! (`coracle help differences`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::api::scheduling::v1::PriorityClass;

use super::error::{Path, Report};
use super::{assemble, names};

/// Priority from which pods are critical.
pub const CRITICAL: i32 = 2_000_000_000;

/// Priority of `system-node-critical`.
pub const NODE_CRITICAL: i32 = 2_000_001_000;

/// Highest value of a class that is not built in.
const HIGHEST: i32 = 1_000_000_000;

const POLICIES: [&str; 2] = ["PreemptLowerPriority", "Never"];

/// Built-in classes: name, value, description.
pub const BUILT_IN: [(&str, i32, &str); 2] = [
    (
        "system-cluster-critical",
        CRITICAL,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    (
        "system-node-critical",
        NODE_CRITICAL,
        "Used for system critical pods that must not be moved from their current node.",
    ),
];

/// Valid classes by name, without the built-in ones.
pub type PriorityClasses = BTreeMap<String, PriorityClass>;

/// Returns the class's name.
pub(super) fn name(class: &PriorityClass) -> &str {
    class.metadata.name.as_deref().unwrap_or_default()
}

/// Whether the class is the default for pods without a class.
pub fn is_default(class: &PriorityClass) -> bool {
    class.global_default == Some(true)
}

/// Returns the built-in classes as objects.
pub fn built_in() -> impl Iterator<Item = PriorityClass> {
    BUILT_IN.iter().map(|(name, value, description)| {
        let mut class = PriorityClass {
            value: Some(*value),
            description: Some((*description).to_owned()),
            preemption_policy: Some(POLICIES[0].to_owned()),
            ..PriorityClass::default()
        };
        class.metadata.name = Some((*name).to_owned());
        class
    })
}

/// Validates a decoded class with the API server's messages, and fills in defaults.
pub(crate) fn class(
    mut class: PriorityClass,
    path: &Path<'_>,
    report: &Report,
) -> Option<PriorityClass> {
    let metadata = path.field("metadata");
    let at = metadata.field("name");
    match name(&class) {
        "" => report.error(&at, "Required value: name is needed for the priority class"),
        built_in if BUILT_IN.iter().any(|(name, ..)| *name == built_in) => {
            let detail =
                format_args!("priority class {built_in} is built in, and cannot be another");
            report.forbidden(&at, detail);
        }
        system if system.starts_with("system-") => {
            let detail = format_args!(
                "priority class names with 'system-' prefix are reserved for system use only. error: {system} is not a \
                 known system priority class"
            );
            report.forbidden(&at, detail);
        }
        name => {
            if let Some(problem) = names::dns_subdomain(name) {
                report.invalid(&at, name, problem);
            }
        }
    }
    names::without_namespace(&mut class.metadata, &metadata, report);
    // The remaining checks expect an object with a namespace.
    class.metadata.namespace = Some("default".to_owned());
    assemble::shared_metadata(&class.metadata, &metadata, report);
    class.metadata.namespace = None;
    match class.value {
        // The default 0 would hardly be intended.
        None => report.required(&path.field("value")),
        Some(value) if value > HIGHEST => {
            let detail = "maximum allowed value of a user defined priority is 1000000000";
            report.forbidden(&path.field("value"), detail);
        }
        Some(_) => {}
    }
    let policy = class.preemption_policy.get_or_insert_default();
    if policy.is_empty() {
        *policy = POLICIES[0].to_owned();
    } else if !POLICIES.contains(&policy.as_str()) {
        report.unsupported(&path.field("preemptionPolicy"), policy, &POLICIES);
    }
    report.is_clean().then_some(class)
}

/// Classes of other files than the pod's own.
#[derive(Debug, Clone, Copy)]
pub enum Others<'c> {
    /// There are no more.
    All(&'c PriorityClasses),
    /// A missing class may be in a file that is not known.
    Some(&'c PriorityClasses),
}

impl<'c> Others<'c> {
    fn classes(self) -> &'c PriorityClasses {
        match self {
            Self::All(classes) | Self::Some(classes) => classes,
        }
    }
}

/// The classes that a pod may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known<'c> {
    /// Classes of the pod's own file.
    pub(crate) own: &'c PriorityClasses,
    /// Those of others.
    pub(crate) others: Others<'c>,
}

impl Known<'_> {
    /// Returns value and preemption policy of a class.
    fn find(&self, wanted: &str) -> Option<(i32, String)> {
        if let Some((_, value, _)) = BUILT_IN.iter().find(|(name, ..)| *name == wanted) {
            return Some((*value, POLICIES[0].to_owned()));
        }
        let others = self.others.classes();
        let class = self.own.get(wanted).or_else(|| others.get(wanted))?;
        Some((class.value?, class.preemption_policy.clone()?))
    }

    fn default(&self) -> Option<&str> {
        let mut all = self.own.iter().chain(self.others.classes());
        let found = all.find(|(_, class)| is_default(class));
        found.map(|(name, _)| name.as_str())
    }
}

/// What a manifest says about priority, before [`resolve`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    class: Option<String>,
    priority: Option<i32>,
    policy: Option<String>,
}

impl Asked {
    pub(crate) fn of(spec: &PodSpec) -> Self {
        Self {
            class: spec.priority_class_name.clone(),
            priority: spec.priority,
            policy: spec.preemption_policy.clone(),
        }
    }

    /// Returns the template as it was written: what classes say is no part of it.
    pub(crate) fn unresolved(&self, template: &Pod) -> Pod {
        let mut pod = template.clone();
        if let Some(spec) = &mut pod.spec {
            spec.priority_class_name.clone_from(&self.class);
            spec.priority = self.priority;
            spec.preemption_policy.clone_from(&self.policy);
        }
        pod
    }
}

/// Sets a pod's priority and preemption policy from its class, or from the default class.
pub(crate) fn resolve(spec: &mut PodSpec, known: Known<'_>, path: &Path<'_>, report: &Report) {
    let policy = spec.preemption_policy.as_deref().unwrap_or_default();
    if !policy.is_empty() && !POLICIES.contains(&policy) {
        report.unsupported(&path.field("preemptionPolicy"), policy, &POLICIES);
    }
    let named = spec
        .priority_class_name
        .clone()
        .filter(|name| !name.is_empty());
    let asked = named.is_some();
    let default = || known.default().filter(|_| spec.priority.is_none());
    let Some(class) = named.or_else(|| default().map(str::to_owned)) else {
        return;
    };
    let at = path.field("priorityClassName");
    let Some((value, policy)) = known.find(&class) else {
        if matches!(known.others, Others::All(_)) {
            report.error_hint(
                &at,
                format_args!("Not found: {class:?}"),
                "no manifest file has a PriorityClass of that name; this file counts as soon as one does".to_owned(),
            );
        } else if spec.priority.is_none() {
            let message = format_args!(
                "accepted, but this file has no PriorityClass `{class}`: another one must"
            );
            report.warn(&at, message);
        }
        return;
    };
    if let Some(given) = spec.priority.filter(|given| *given != value) {
        let detail = format_args!("must be {value}, the value of priority class {class}");
        report.invalid(&path.field("priority"), given, detail);
    }
    let given = spec.preemption_policy.as_deref().unwrap_or_default();
    if POLICIES.contains(&given) && given != policy {
        let detail = format_args!("must be {policy}, as priority class {class} has it");
        report.invalid(&path.field("preemptionPolicy"), given, detail);
    }
    spec.priority = Some(value);
    spec.preemption_policy = Some(policy);
    if !asked {
        spec.priority_class_name = Some(class);
    }
}
