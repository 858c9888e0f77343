//! Edits that are taken back if their pods do not become ready in time (annotation `coracle.dev/rollback`), and documents
//! that something else is in force of than their file says (`plan/workload/revisions.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::error::{Path, Report};
use super::{PodSpec, uid};
use crate::types::duration_ms;

/// With `true`, an edit that fails is taken back.
pub const ANNOTATION: &str = "coracle.dev/rollback";
/// How long pods have to become ready, where no field says so.
pub const WITHIN: &str = "coracle.dev/rollback-within";
/// When a client restarted the pods of a document; kubectl's.
pub const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";
/// Why a revision is there; kubectl's.
pub const CHANGE_CAUSE: &str = "kubernetes.io/change-cause";

/// As long as a Deployment has by default.
const WITHIN_MS: u64 = 600_000;
/// Bounds of the time, in milliseconds.
const BOUNDS_MS: std::ops::RangeInclusive<u64> = 1_000..=86_400_000;

/// The largest document that is kept to be run again, in bytes.
pub const MAX_TEXT: usize = 64 << 10;

type Annotations = BTreeMap<String, String>;

/// How long pods have to become ready before an edit is taken back, in milliseconds; `None`: it is not.
pub(super) fn within_ms(
    annotations: Option<&Annotations>,
    path: &Path<'_>,
    report: &Report,
) -> Option<u64> {
    let written = |name| annotations.and_then(|all| all.get(name));
    let (rollback, within) = (written(ANNOTATION), written(WITHIN));
    let at = path.field(ANNOTATION);
    match rollback.map(String::as_str) {
        Some("true") => {}
        Some("false") | None => {
            if within.is_some() {
                report.forbidden(
                    &path.field(WITHIN),
                    "nothing is taken back without `coracle.dev/rollback: \"true\"`",
                );
            }
            return None;
        }
        Some(other) => {
            report.unsupported(&at, other, &["true", "false"]);
            return None;
        }
    }
    let Some(text) = within else {
        return Some(WITHIN_MS);
    };
    let within = duration_ms(text).filter(|ms| BOUNDS_MS.contains(ms));
    if within.is_none() {
        let detail = "must be a duration from 1s to 24h, like 90s or 2m";
        report.invalid(&path.field(WITHIN), text, detail);
    }
    within
}

/// Refuses the annotation in a document of a kind that is not rolled out.
pub(super) fn refuse(metadata: &ObjectMeta, path: &Path<'_>, report: &Report, why: &str) {
    let at = path.field("metadata");
    let at = at.field("annotations");
    if within_ms(metadata.annotations.as_ref(), &at, report).is_some() {
        report.forbidden(&at.field(ANNOTATION), why);
    }
}

impl PodSpec {
    /// How long a pod with a file of its own has to become ready before an edit is taken back, in milliseconds.
    pub fn rollback_within_ms(&self) -> Option<u64> {
        if self.workload.is_some() || self.manifest.annotation(ANNOTATION).is_none() {
            return None;
        }
        let annotations = self.manifest.metadata().annotations;
        within_ms(annotations.as_ref(), &Path::Root, &Report::new(0))
    }

    /// A hash of all that its manifest says. What the node adds makes no difference.
    pub fn edition(&self) -> String {
        let mut pod = self.manifest.pod();
        if let Some(annotations) = &mut pod.metadata.annotations {
            annotations.remove(uid::CONFIGURATION);
        }
        uid::short(&pod)
    }

    /// Its manifest, from which [`super::convert::admitted`] makes it again.
    pub fn text(&self) -> Arc<str> {
        self.manifest.json().into()
    }
}

/// A document as its file has it, with the template of an earlier version.
pub fn with_template(document: &str, former: &str) -> Option<String> {
    let mut document: Value = serde_json::from_str(document).ok()?;
    let mut former: Value = serde_json::from_str(former).ok()?;
    let (spec, former) = (document.get_mut("spec")?, former.get_mut("spec")?);
    for field in ["template", "selector"] {
        match former[field].take() {
            Value::Null => {}
            value => spec[field] = value,
        }
    }
    Some(document.to_string())
}

/// A document with a template that says when its pods were restarted.
pub fn restarted(document: &str, at: &str) -> Option<String> {
    let mut document: Value = serde_json::from_str(document).ok()?;
    let template = document.get_mut("spec")?.get_mut("template")?;
    let Value::Object(template) = template else {
        return None;
    };
    let metadata = template.entry("metadata").or_insert(Value::Null);
    if metadata.is_null() {
        *metadata = json!({});
    }
    let Value::Object(metadata) = metadata else {
        return None;
    };
    let annotations = metadata.entry("annotations").or_insert(Value::Null);
    if annotations.is_null() {
        *annotations = json!({});
    }
    let Value::Object(annotations) = annotations else {
        return None;
    };
    annotations.insert(RESTARTED_AT.to_owned(), at.into());
    Some(document.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_template_takes_the_place_of_the_documents_own() {
        let now = r#"{"metadata":{"name":"web"},"spec":{"replicas":3,"selector":{"a":1},"template":{"b":2}}}"#;
        let former = r#"{"spec":{"replicas":1,"selector":{"a":0},"template":{"b":1}}}"#;
        let expected = r#"{"metadata":{"name":"web"},"spec":{"replicas":3,"selector":{"a":0},"template":{"b":1}}}"#;
        let found: Value = serde_json::from_str(&with_template(now, former).unwrap()).unwrap();
        assert_eq!(found, serde_json::from_str::<Value>(expected).unwrap());
        assert_eq!(with_template("{}", former), None);
    }

    #[test]
    fn a_restart_is_an_annotation_of_the_template() {
        for (template, expected) in [
            ("{}", Some(json!({ RESTARTED_AT: "now" }))),
            (
                r#"{"metadata":{"annotations":{"a":"b"}}}"#,
                Some(json!({ "a": "b", RESTARTED_AT: "now" })),
            ),
            ("[]", None),
        ] {
            let text = restarted(&format!(r#"{{"spec":{{"template":{template}}}}}"#), "now");
            let found = text.map(|text| {
                let value: Value = serde_json::from_str(&text).unwrap();
                value["spec"]["template"]["metadata"]["annotations"].clone()
            });
            assert_eq!(found, expected, "{template}");
        }
    }
}
