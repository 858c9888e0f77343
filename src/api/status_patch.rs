//! Patches of a pod's status: they set or remove conditions that are not coracle's own, and nothing else. Understands
//! the three kinds of patches that clients send.

use hyper::body::Bytes;
use hyper::{Request, Response};
use k8s_openapi::api::core::v1::PodCondition;
use serde_json::{Map, Value, json};

use super::command::Command;
use super::error::ApiError;
use super::patch::{self, Changeable, PatchKind};
use super::routes::ask;
use super::server::{Body, Context, json as json_reply};
use super::store::Kind;
use crate::plan::event::ConditionChange;
use crate::spec::Condition;
use crate::spec::condition::{MAX_CONDITIONS, is_own};
use crate::sys::clock;

/// The field of a pod's status that can be patched.
const CONDITIONS: Changeable = Changeable(&["status", "conditions"]);

/// Answers `PATCH …/pods/NAME/status`.
pub(crate) async fn answer(
    request: Request<Bytes>,
    context: &Context,
    (namespace, name): (&str, &str),
    dry_run: bool,
) -> Result<Response<Body>, ApiError> {
    let kind = PatchKind::of(&request)?;
    let key = (namespace.into(), name.into());
    let shown = || {
        let found = context.store.get(Kind::Pods, &key);
        found.ok_or_else(|| ApiError::not_found("pods", name))
    };
    let mut pod = serde_json::from_slice(&shown()?.json()).unwrap_or_default();
    let changes = changes(&pod, kind, request.body())?;
    if dry_run {
        rehearsed(&mut pod, &changes);
        return Ok(json_reply(pod.to_string()));
    }
    ask(context, |reply| Command::SetConditions {
        namespace: key.0.to_string(),
        name: key.1.to_string(),
        changes,
        reply,
    })
    .await?;
    Ok(json_reply(shown()?.json()))
}

/// Returns the changes by the patch to the pod as shown.
pub(crate) fn changes(
    pod: &Value,
    kind: PatchKind,
    body: &[u8],
) -> Result<Vec<ConditionChange>, ApiError> {
    let patch = patch::parse(body)?;
    let before = pod["status"]["conditions"].as_array();
    let before = before.cloned().unwrap_or_default();
    let after = match kind {
        PatchKind::Json => list(&CONDITIONS.operated(pod, &patch)?["status"]["conditions"])?,
        PatchKind::Merge | PatchKind::Strategic => match (kind, CONDITIONS.given(pod, &patch)?) {
            (_, None) => before.clone(),
            (PatchKind::Strategic, Some(Value::Array(given))) => merged(&before, given)?,
            (_, Some(given)) => list(given)?,
        },
    };
    difference(&before, &after)
}

/// Applies the changes to the shown pod, for a dry run.
pub(crate) fn rehearsed(pod: &mut Value, changes: &[ConditionChange]) {
    if !pod["status"]["conditions"].is_array() {
        pod["status"]["conditions"] = Value::Array(Vec::new());
    }
    let Some(conditions) = pod["status"]["conditions"].as_array_mut() else {
        return;
    };
    let now = clock::timestamp()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    for change in changes {
        let type_ = match change {
            ConditionChange::Set(wanted) => &wanted.type_,
            ConditionChange::Unset(type_) => type_,
        };
        let at = conditions.iter().position(|c| c["type"] == **type_);
        let old = at.map(|at| conditions.remove(at));
        if let ConditionChange::Set(wanted) = change {
            let status = wanted.status.as_str();
            let same = old.as_ref().filter(|old| old["status"] == status);
            let since = same.map_or_else(
                || now.clone().into(),
                |old| old["lastTransitionTime"].clone(),
            );
            let mut shown = json!({ "type": type_, "status": status, "lastTransitionTime": since });
            for (name, text) in [("reason", &wanted.reason), ("message", &wanted.message)] {
                if !text.is_empty() {
                    shown[name] = text.as_str().into();
                }
            }
            conditions.insert(at.unwrap_or(conditions.len()), shown);
        }
    }
}

fn wrong(path: &str, what: impl std::fmt::Display) -> ApiError {
    ApiError::invalid(format!("{path}: {what}"))
}

fn list(value: &Value) -> Result<Vec<Value>, ApiError> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(list) => Ok(list.clone()),
        _ => Err(wrong("status.conditions", "must be a list")),
    }
}

/// Merges by `type`; `$patch: delete` removes a condition, `$patch: replace` removes all others, and null removes a
/// field.
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

/// Returns a field of a condition that would be lost. Times are coracle's own, but all clients send some.
fn not_kept<'c>(wanted: &'c Value, known: Option<&Value>) -> Option<&'c String> {
    let kept = [
        "type",
        "status",
        "reason",
        "message",
        "lastTransitionTime",
        "lastProbeTime",
    ];
    let mut fields = wanted.as_object()?.iter();
    let passed_over = fields.find(|(name, value)| {
        let is = known.map_or(&Value::Null, |known| &known[name.as_str()]);
        !kept.contains(&name.as_str()) && !value.is_null() && *value != is
    });
    passed_over.map(|(name, _)| name)
}

/// Returns the changes for the node. Coracle's own conditions may be present unchanged, or be omitted.
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
        if let Some(other) = not_kept(one, known.as_ref()) {
            let what = format_args!("Forbidden: it is not kept");
            return Err(wrong(&format!("{path}.{other}"), what));
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
    // Removals come first, to make room.
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
