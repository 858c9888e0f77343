//! What does a patch of a pod's status change? Conditions that are not coracle's own, and nothing else: sets them, or
//! takes them away. Understands the three kinds of patches clients send.

use k8s_openapi::api::core::v1::PodCondition;
use serde_json::{Map, Value};

use super::error::ApiError;
use crate::plan::event::ConditionChange;
use crate::spec::Condition;
use crate::spec::condition::{MAX_CONDITIONS, is_own};

/// How a patch is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatchKind {
    /// RFC 7386: the list of conditions is replaced.
    Merge,
    /// Kubernetes' own: conditions are merged by their type.
    Strategic,
    /// RFC 6902: a list of operations.
    Json,
}

impl PatchKind {
    /// By the request's content type.
    pub(crate) fn of(content_type: &str) -> Result<Self, ApiError> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" => Ok(Self::Strategic),
            "application/json-patch+json" => Ok(Self::Json),
            _ => Err(ApiError::unsupported_media_type(
                "the body of the request was in an unknown format - accepted media types include: \
                 application/json-patch+json, application/merge-patch+json, \
                 application/strategic-merge-patch+json",
            )),
        }
    }
}

/// What the patch changes of the pod as it is shown.
pub(crate) fn changes(
    pod: &Value,
    kind: PatchKind,
    body: &[u8],
) -> Result<Vec<ConditionChange>, ApiError> {
    let patch: Value = serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("the patch is not JSON: {error}")))?;
    let before = pod["status"]["conditions"].as_array();
    let before = before.cloned().unwrap_or_default();
    let after = match kind {
        PatchKind::Json => by_operations(pod, &patch)?,
        PatchKind::Merge | PatchKind::Strategic => {
            let given = conditions_of(pod, &patch)?;
            match (kind, given) {
                (_, None) => before.clone(),
                (PatchKind::Strategic, Some(Value::Array(given))) => merged(&before, given)?,
                (_, Some(given)) => list(given)?,
            }
        }
    };
    difference(&before, &after)
}

fn wrong(path: &str, what: impl std::fmt::Display) -> ApiError {
    ApiError::invalid(format!("{path}: {what}"))
}

/// The conditions a merge patch gives, once it is sure that it changes nothing else.
fn conditions_of<'p>(pod: &Value, patch: &'p Value) -> Result<Option<&'p Value>, ApiError> {
    let fields = patch
        .as_object()
        .ok_or_else(|| ApiError::bad_request("the patch must be a JSON object"))?;
    let mut found = None;
    for (name, value) in fields {
        match name.as_str() {
            "apiVersion" | "kind" => {}
            "metadata" => meant(pod, value)?,
            "status" => {
                let status = value.as_object();
                let status = status.ok_or_else(|| wrong("status", "must be an object"))?;
                // Says in which order kubectl would like to see them.
                let known = ["conditions", "$setElementOrder/conditions"];
                if let Some(other) = status.keys().find(|k| !known.contains(&k.as_str())) {
                    return Err(only_conditions(&format!("status.{other}")));
                }
                found = status.get("conditions");
            }
            other => return Err(only_conditions(other)),
        }
    }
    Ok(found)
}

fn only_conditions(path: &str) -> ApiError {
    wrong(path, "Forbidden: only status.conditions can be patched")
}

/// Whether the patch is about this very pod, and as it is now, if it says of which.
fn meant(pod: &Value, metadata: &Value) -> Result<(), ApiError> {
    for field in ["uid", "resourceVersion", "name", "namespace"] {
        let (wanted, is) = (&metadata[field], &pod["metadata"][field]);
        if !wanted.is_null() && wanted != is {
            return Err(ApiError::conflict(format!(
                "Precondition failed: {field} in the patch: {wanted}, of the pod: {is}"
            )));
        }
    }
    Ok(())
}

fn list(value: &Value) -> Result<Vec<Value>, ApiError> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(list) => Ok(list.clone()),
        _ => Err(wrong("status.conditions", "must be a list")),
    }
}

/// Merges by `type`; `$patch: delete` takes away, `$patch: replace` takes all others away, and null takes a field away.
fn merged(before: &[Value], given: &[Value]) -> Result<Vec<Value>, ApiError> {
    let mut after = match given.iter().any(|c| c["$patch"] == "replace") {
        true => Vec::new(),
        false => before.to_vec(),
    };
    for (index, one) in given.iter().enumerate() {
        if one["$patch"] == "replace" {
            continue;
        }
        let path = format!("status.conditions[{index}]");
        let fields = one.as_object();
        let fields = fields.ok_or_else(|| wrong(&path, "must be an object"))?;
        let type_ = &one["type"];
        if !type_.is_string() {
            return Err(wrong(&format!("{path}.type"), "Required value"));
        }
        let known = after.iter().position(|c| c["type"] == *type_);
        if one["$patch"] == "delete" {
            known.map(|at| after.remove(at));
            continue;
        }
        let at = known.unwrap_or_else(|| {
            after.push(Value::Object(Map::new()));
            after.len() - 1
        });
        let Some(target) = after[at].as_object_mut() else {
            continue;
        };
        for (name, value) in fields {
            match value {
                Value::Null => drop(target.remove(name)),
                value => drop(target.insert(name.clone(), value.clone())),
            }
        }
    }
    Ok(after)
}

/// The conditions after a JSON patch's operations, which must leave all else as it is.
fn by_operations(pod: &Value, patch: &Value) -> Result<Vec<Value>, ApiError> {
    let operations = patch
        .as_array()
        .ok_or_else(|| ApiError::bad_request("a JSON patch is a list of operations"))?;
    let mut changed = pod.clone();
    for (index, operation) in operations.iter().enumerate() {
        let failed = |what: &str| {
            let shown = operation["path"].as_str().unwrap_or_default();
            ApiError::invalid(format!("operation {index} on \"{shown}\": {what}"))
        };
        let path = operation["path"]
            .as_str()
            .ok_or_else(|| failed("it has no path"))?;
        let value = operation.get("value").cloned();
        let given = || value.clone().ok_or_else(|| failed("it has no value"));
        match operation["op"].as_str() {
            Some("test") => {
                if changed.pointer(path) != Some(&given()?) {
                    return Err(failed("the test failed"));
                }
            }
            Some("replace") => {
                let target = changed.pointer_mut(path);
                *target.ok_or_else(|| failed("there is nothing there"))? = given()?;
            }
            Some(op @ ("add" | "remove")) => {
                let (parent, key) = path
                    .rsplit_once('/')
                    .ok_or_else(|| failed("no such path"))?;
                let key = key.replace("~1", "/").replace("~0", "~");
                let done = match (changed.pointer_mut(parent), op) {
                    (Some(Value::Array(list)), "add") => insert(list, &key, given()?),
                    (Some(Value::Object(fields)), "add") => {
                        fields.insert(key, given()?);
                        Some(())
                    }
                    (Some(Value::Array(list)), _) => {
                        let at = key.parse().ok().filter(|at| *at < list.len());
                        at.map(|at: usize| drop(list.remove(at)))
                    }
                    (Some(Value::Object(fields)), _) => fields.remove(&key).map(drop),
                    _ => None,
                };
                done.ok_or_else(|| failed("no such path"))?;
            }
            _ => return Err(failed("op must be one of add, remove, replace, test")),
        }
    }
    let after = list(&changed["status"]["conditions"])?;
    let mut rest = changed;
    rest["status"]["conditions"] = pod["status"]["conditions"].clone();
    match rest == *pod {
        true => Ok(after),
        false => Err(only_conditions("patch")),
    }
}

fn insert(list: &mut Vec<Value>, key: &str, value: Value) -> Option<()> {
    let at = match key {
        "-" => list.len(),
        index => index.parse().ok().filter(|at| *at <= list.len())?,
    };
    list.insert(at, value);
    Some(())
}

/// What has to be said to the node. Coracle's own conditions may be there as they are, or be left out.
fn difference(before: &[Value], after: &[Value]) -> Result<Vec<ConditionChange>, ApiError> {
    let of_type = |list: &[Value], type_: &str| list.iter().find(|c| c["type"] == type_).cloned();
    let (mut changes, mut kept) = (Vec::new(), Vec::<String>::new());
    for (index, one) in after.iter().enumerate() {
        let path = format!("status.conditions[{index}]");
        let read: PodCondition = serde_json::from_value(one.clone())
            .map_err(|error| wrong(&path, format_args!("Invalid value: {error}")))?;
        let known = of_type(before, &read.type_);
        if kept.contains(&read.type_) {
            let what = format_args!("Duplicate value: \"{}\"", read.type_);
            return Err(wrong(&format!("{path}.type"), what));
        }
        kept.push(read.type_.clone());
        if is_own(&read.type_) {
            let same = |field: &str| known.as_ref().is_some_and(|k| k[field] == one[field]);
            if !["status", "reason", "message"].into_iter().all(same) {
                let what = format_args!("Forbidden: {} is set by coracle itself", read.type_);
                return Err(wrong(&format!("{path}.type"), what));
            }
            continue;
        }
        let wanted = Condition::of(&read).ok_or_else(|| {
            let what = format_args!(
                "Unsupported value: \"{}\": supported values: \"True\", \"False\", \"Unknown\"",
                read.status
            );
            wrong(&format!("{path}.status"), what)
        })?;
        wanted
            .check()
            .map_err(|what| wrong(&path, format_args!("Invalid value: {what}")))?;
        let known = known.and_then(|k| serde_json::from_value(k).ok());
        if known.and_then(|k: PodCondition| Condition::of(&k)).as_ref() != Some(&wanted) {
            changes.push(ConditionChange::Set(wanted));
        }
    }
    let gone = before.iter().filter_map(|c| c["type"].as_str());
    let gone = gone.filter(|type_| !is_own(type_) && !kept.iter().any(|k| k == type_));
    // First, so that there is room.
    let gone = gone.map(|type_| ConditionChange::Unset(type_.to_owned()));
    let changes: Vec<ConditionChange> = gone.chain(changes).collect();
    if kept.iter().filter(|type_| !is_own(type_)).count() > MAX_CONDITIONS {
        let what = format_args!("Too many: must have at most {MAX_CONDITIONS} items");
        return Err(wrong("status.conditions", what));
    }
    Ok(changes)
}

#[cfg(test)]
#[path = "status_patch_test.rs"]
mod tests;
