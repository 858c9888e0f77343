//! Kubernetes label selectors (`app=web,tier!=db,env in (a,b),x,!y`) and field selectors
//! (`metadata.name=web,status.phase!=Running`).

use std::borrow::Cow;
use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::error::ApiError;
use super::object::Object;
use super::query::Query;
use super::store::Kind;
use crate::spec::{WorkloadKind, names};

/// A label and a field selector together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<(String, bool, String)>,
    /// Only this namespace.
    pub(crate) namespace: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    Exists(String),
    Absent(String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
}

impl Selector {
    pub(crate) fn from_query(
        query: &Query,
        kind: Kind,
        namespace: Option<&str>,
    ) -> Result<Self, ApiError> {
        Ok(Self {
            labels: parse_labels(query.get("labelSelector").unwrap_or_default())
                .map_err(ApiError::bad_request)?,
            fields: parse_fields(query.get("fieldSelector").unwrap_or_default(), kind)
                .map_err(ApiError::bad_request)?,
            namespace: namespace.map(str::to_owned),
        })
    }

    pub(crate) fn matches(&self, object: &Object) -> bool {
        if !self.may_have_matched(object) {
            return false;
        }
        let labels = LazyCell::new(|| object.labels());
        let whole = LazyCell::new(|| serde_json::from_slice(&object.json()).unwrap_or_default());
        let mut fields = self.fields.iter();
        self.labels.iter().all(|r| r.matches(&labels))
            && fields.all(|(path, equal, value)| {
                let found = match place(object, path) {
                    Some(found) => Cow::Borrowed(found),
                    None => field(&whole, path),
                };
                (found == *value) == *equal
            })
    }

    /// Whether a former version of the object can have matched: its name and namespace were the same.
    pub(crate) fn may_have_matched(&self, object: &Object) -> bool {
        let mut fields = self.fields.iter();
        self.namespace
            .as_ref()
            .is_none_or(|ns| **ns == *object.key.0)
            && fields.all(|(path, equal, value)| {
                place(object, path).is_none_or(|found| (found == *value) == *equal)
            })
    }
}

impl Requirement {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Self::Exists(key) => labels.contains_key(key),
            Self::Absent(key) => !labels.contains_key(key),
            Self::In(key, values) => labels.get(key).is_some_and(|v| values.contains(v)),
            Self::NotIn(key, values) => !labels.get(key).is_some_and(|v| values.contains(v)),
        }
    }
}

/// A hash of what selectors look at in a pod and what may change: its labels and fields of its status ([`known_fields`]).
pub(crate) fn mark(pod: &Pod) -> u32 {
    let status = pod.status.as_ref();
    let fields = status.map(|status| (&status.phase, &status.pod_ip, &status.nominated_node_name));
    let mut hash = DefaultHasher::new();
    (&pod.metadata.labels, fields).hash(&mut hash);
    u32::try_from(hash.finish() >> 32).unwrap_or_default()
}

/// A part of the key, if the path is that of one.
fn place<'o>(object: &'o Object, path: &str) -> Option<&'o str> {
    match path {
        "metadata.name" => Some(&object.key.1),
        "metadata.namespace" => Some(&object.key.0),
        _ => None,
    }
}

fn field<'o>(whole: &'o Value, path: &str) -> Cow<'o, str> {
    let found = match path {
        "source" => whole.pointer("/source/component"),
        // The API server's name of the number of pods that have succeeded.
        "status.successful" => whole.pointer("/status/succeeded"),
        path => whole.pointer(&format!("/{}", path.replace('.', "/"))),
    };
    match found {
        Some(Value::String(text)) => text.into(),
        Some(Value::Bool(true)) => "true".into(),
        Some(Value::Number(number)) => number.to_string().into(),
        _ if TRUTHS.contains(&path) => "false".into(),
        _ if NUMBERS.contains(&path) => "0".into(),
        _ => "".into(),
    }
}

/// Fields that count as false when they are absent.
const TRUTHS: [&str; 2] = ["spec.hostNetwork", "spec.unschedulable"];

/// Fields that count as 0 when they are absent.
const NUMBERS: [&str; 2] = ["status.replicas", "status.successful"];

/// Returns the fields that Kubernetes can select objects of a kind by, beside name and namespace.
fn known_fields(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Pods => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        Kind::Nodes => &["spec.unschedulable"],
        Kind::Events => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        Kind::Services => &["spec.clusterIP", "spec.type"],
        Kind::Secrets => &["type"],
        Kind::Namespaces => &["status.phase"],
        Kind::Workloads(WorkloadKind::Job) => &["status.successful"],
        Kind::Workloads(WorkloadKind::ReplicaSet | WorkloadKind::ReplicationController) => {
            &["status.replicas"]
        }
        Kind::Endpoints
        | Kind::PriorityClasses
        | Kind::ConfigMaps
        | Kind::ServiceAccounts
        | Kind::Claims
        | Kind::Volumes
        | Kind::Budgets
        | Kind::Workloads(_) => &[],
    }
}

fn parse_fields(text: &str, kind: Kind) -> Result<Vec<(String, bool, String)>, String> {
    let known = known_fields(kind);
    let mut fields = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (path, equal, value) = if let Some((path, value)) = part.split_once("!=") {
            (path, false, value)
        } else if let Some((path, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
            (path, true, value)
        } else {
            return Err(format!(
                "invalid selector: '{part}'; can't understand '{part}'"
            ));
        };
        if !known.contains(&path) && !["metadata.name", "metadata.namespace"].contains(&path) {
            return Err(format!("field label not supported: {path}"));
        }
        fields.push((path.to_owned(), equal, value.to_owned()));
    }
    Ok(fields)
}

/// Splits at commas outside parentheses.
fn split_top(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_i32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Parses a label selector. An empty one selects everything; an empty part of one is a slip that must not.
fn parse_labels(text: &str) -> Result<Vec<Requirement>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let parts = split_top(text).into_iter().map(str::trim);
    parts.map(parse_requirement).collect()
}

fn parse_requirement(part: &str) -> Result<Requirement, String> {
    if part.is_empty() {
        return Err(
            "unable to parse requirement: a comma has nothing before or after it".to_owned(),
        );
    }
    if let Some((key, value)) = part.split_once("!=") {
        let key = key_of(key)?;
        let values = values_of(&key, [value])?;
        return Ok(Requirement::NotIn(key, values));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        let key = key_of(key)?;
        let values = values_of(&key, [value])?;
        return Ok(Requirement::In(key, values));
    }
    if let Some(key) = part.strip_prefix('!') {
        return Ok(Requirement::Absent(key_of(key)?));
    }
    let Some((head, values)) = part.split_once('(') else {
        return Ok(Requirement::Exists(key_of(part)?));
    };
    let values = values
        .strip_suffix(')')
        .ok_or_else(|| format!("unable to parse requirement: `{part}` lacks `)`"))?;
    match head.split_whitespace().collect::<Vec<_>>()[..] {
        [key, word @ ("in" | "notin")] => {
            let key = key_of(key)?;
            let values = values_of(&key, values.split(','))?;
            Ok(match word {
                "in" => Requirement::In(key, values),
                _ => Requirement::NotIn(key, values),
            })
        }
        _ => Err(format!(
            "unable to parse requirement: `{part}`: expected `in` or `notin`"
        )),
    }
}

/// A label's key, by the rules for labels.
fn key_of(key: &str) -> Result<String, String> {
    let key = key.trim();
    match names::qualified_name(key) {
        None => Ok(key.to_owned()),
        Some(problem) => Err(format!(
            "unable to parse requirement: key: Invalid value: \"{key}\": {problem}"
        )),
    }
}

/// Values of a label, by the rules for labels.
fn values_of<'v>(
    key: &str,
    values: impl IntoIterator<Item = &'v str>,
) -> Result<Vec<String>, String> {
    let values = values.into_iter().map(str::trim).enumerate();
    let checked = values.map(|(index, value)| match names::label_value(value) {
        None => Ok(value.to_owned()),
        Some(problem) => Err(format!(
            "unable to parse requirement: values[{index}][{key}]: Invalid value: \"{value}\": {problem}"
        )),
    });
    checked.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    fn web() -> Object {
        let labels = [("app", "web"), ("tier", "front")];
        let meta = ObjectMeta {
            name: Some("web".into()),
            namespace: Some("default".into()),
            labels: Some(labels.map(|(k, v)| (k.into(), v.into())).into()),
            ..ObjectMeta::default()
        };
        let mut object = Object::new(&meta);
        let mut metadata = serde_json::to_value(&meta).unwrap();
        metadata["labels"]["bare"] = Value::Null;
        let json = serde_json::json!({
            "metadata": metadata, "spec": { "restartPolicy": "Never" }, "status": { "phase": "Running" },
        });
        object.body = crate::api::object::Body::json(&json.to_string());
        object
    }

    #[test]
    fn selectors_choose_as_kubernetes_does() {
        let table = [
            ("labelSelector=app%3Dweb", true),
            ("labelSelector=app==web,tier!=front", false),
            ("labelSelector=app+in+(db,web),!gone", true),
            ("labelSelector=app+notin+(db,web)", false),
            ("labelSelector=tier", true),
            ("labelSelector=bare,app=web", true),
            ("labelSelector=missing!=x", true),
            ("labelSelector=bare=", true),
            ("labelSelector=bare+in+(,x)", true),
            ("labelSelector=example.com/app!=web_1.0-a", true),
            ("labelSelector=", true),
            ("labelSelector=+", true),
            ("fieldSelector=status.phase%3DRunning", true),
            ("fieldSelector=metadata.name!=web", false),
            ("fieldSelector=spec.restartPolicy=Never", true),
            ("fieldSelector=spec.hostNetwork=false,status.podIP=", true),
        ];
        for (query, expected) in table {
            let query = Query::parse(Some(query));
            let selector = Selector::from_query(&query, Kind::Pods, None).unwrap();
            assert_eq!(selector.matches(&web()), expected, "{query:?}");
        }
    }

    #[test]
    fn fields_are_those_of_the_kind() {
        let object = |status: Value| {
            let mut object = web();
            let json = serde_json::json!({ "metadata": {}, "status": status });
            object.body = crate::api::object::Body::json(&json.to_string());
            object
        };
        let one = object(serde_json::json!({ "succeeded": 1, "replicas": 1, "phase": "Active" }));
        let none = object(serde_json::json!({}));
        let job = Kind::Workloads(WorkloadKind::Job);
        let set = Kind::Workloads(WorkloadKind::ReplicaSet);
        let controller = Kind::Workloads(WorkloadKind::ReplicationController);
        for (kind, selector, of_one, of_none) in [
            (job, "status.successful=1", true, false),
            (job, "status.successful!=0", true, false),
            (job, "status.successful=0", false, true),
            (set, "status.replicas=1", true, false),
            (set, "status.replicas=0", false, true),
            (controller, "status.replicas!=1", false, true),
            (Kind::Namespaces, "status.phase=Active", true, false),
        ] {
            let query = format!("fieldSelector={selector}");
            let query = Query::parse(Some(&query));
            let parsed = Selector::from_query(&query, kind, None).unwrap();
            let found = (parsed.matches(&one), parsed.matches(&none));
            assert_eq!(found, (of_one, of_none), "{kind:?} {selector}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for query in [
            "labelSelector=a+in+(b",
            "labelSelector=a+near+(b)",
            "labelSelector=%23",
            "labelSelector=,",
            "labelSelector=app=web,",
            "labelSelector=,,app=web",
            "labelSelector=app=web,+,tier",
            "labelSelector=a===b",
            "labelSelector=a=b=c",
            "labelSelector=a!=b=c",
            "labelSelector=x=-bad-",
            "labelSelector=x=-y",
            "labelSelector=x+in+(good,-bad-)",
            "labelSelector=-x=good",
            "labelSelector=-x+in+(good)",
            "labelSelector=!x/",
            "labelSelector=a/b/c",
            &format!("labelSelector=x={}", "a".repeat(64)),
            &format!("labelSelector={}", "a".repeat(64)),
            "fieldSelector=spec.x=1",
            "fieldSelector=bare",
            "fieldSelector=reason=BackOff",
        ] {
            assert!(
                Selector::from_query(&Query::parse(Some(query)), Kind::Pods, None).is_err(),
                "{query}"
            );
        }
    }
}
