//! Kubernetes' subresource `pods/NAME/ephemeralcontainers`: the whole list by PUT or a merge patch, single containers
//! by a strategic merge patch. It changes nothing else of the pod.

use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, Response};
use serde_json::Value;

use super::command::Command;
use super::error::ApiError;
use super::patch::Changeable;
use super::routes::ask;
use super::server::{Body, Context, json as json_reply};
use super::store::Kind;
use crate::spec::ephemeral;

/// How to apply the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Replaces the whole list.
    Whole,
    /// Merges by name: containers that are not named stay.
    ByName,
}

pub(crate) async fn answer(
    request: Request<Bytes>,
    context: &Context,
    (namespace, name): (&str, &str),
    dry_run: bool,
) -> Result<Response<Body>, ApiError> {
    let manner = manner(&request)?;
    let body: Value = serde_json::from_slice(request.body())
        .map_err(|error| ApiError::bad_request(format!("the request body is not JSON: {error}")))?;
    let key = (namespace.into(), name.into());
    let missing = || ApiError::not_found("pods", name);
    let object = context.store.get(Kind::Pods, &key).ok_or_else(missing)?;
    let mut current: Value = serde_json::from_slice(&object.json())
        .map_err(|error| ApiError::internal(format!("the stored pod is not JSON: {error}")))?;
    let metadata = &body["metadata"];
    for (field, at) in [
        ("uid", "/metadata/uid"),
        ("resourceVersion", "/metadata/resourceVersion"),
    ] {
        let given = metadata[field].as_str().filter(|text| !text.is_empty());
        if given.is_some() && given != current.pointer(at).and_then(Value::as_str) {
            return Err(ApiError::conflict(format!(
                "Operation cannot be fulfilled on pods \"{name}\": the object has been modified; \
                 please apply your changes to the latest version and try again"
            )));
        }
    }
    only_containers(&request, &current, &body)?;
    let wanted = merged(manner, &current["spec"], &body["spec"])?;
    let containers = ephemeral::parse(&wanted.to_string()).map_err(|problems| {
        ApiError::bad_request(format!(
            "the containers cannot be read: {}",
            problems.join("; ")
        ))
    })?;
    ask(context, |reply| Command::SetEphemeral {
        namespace: key.0.to_string(),
        name: key.1.to_string(),
        containers,
        dry_run,
        reply,
    })
    .await?;
    if dry_run {
        current["spec"]["ephemeralContainers"] = wanted;
        return Ok(json_reply(current.to_string()));
    }
    let shown = context.store.get(Kind::Pods, &key).ok_or_else(missing)?;
    Ok(json_reply(shown.json()))
}

/// Checks that the body changes nothing but ephemeral containers. A whole pod (PUT) has been through a client's types,
/// which omit empty fields and add defaults; its status is ignored, as in Kubernetes.
fn only_containers(request: &Request<Bytes>, pod: &Value, body: &Value) -> Result<(), ApiError> {
    if request.method() == Method::PATCH {
        return CONTAINERS.given(pod, body).map(drop);
    }
    let mut body = body.clone();
    for (place, field) in [
        ("", "status"),
        ("/metadata", "managedFields"),
        ("/spec", "ephemeralContainers"),
    ] {
        if let Some(fields) = body.pointer_mut(place).and_then(Value::as_object_mut) {
            fields.remove(field);
        }
    }
    match differs(pod, &body) {
        None => Ok(()),
        Some(path) => Err(ApiError::invalid(format!(
            "{path}: Forbidden: only spec.ephemeralContainers can be changed"
        ))),
    }
}

/// The field of a pod that can be changed here.
const CONTAINERS: Changeable = Changeable(&["spec", "ephemeralContainers"]);

/// Returns the path of the first difference.
fn differs(is: &Value, said: &Value) -> Option<String> {
    let empty = |value: &Value| match value {
        Value::Null => true,
        Value::Bool(yes) => !yes,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    };
    let inside = |name: &str, found: Option<String>| {
        let rest = found?;
        let dot = if rest.is_empty() || rest.starts_with('[') {
            ""
        } else {
            "."
        };
        Some(format!("{name}{dot}{rest}"))
    };
    match (is, said) {
        _ if is == said || empty(is) && empty(said) => None,
        (_, Value::Object(fields)) => fields
            .iter()
            .find_map(|(name, said)| inside(name, differs(&is[name.as_str()], said))),
        (Value::Array(all), Value::Array(items)) if all.len() == items.len() => all
            .iter()
            .zip(items)
            .enumerate()
            .find_map(|(at, (is, said))| inside(&format!("[{at}]"), differs(is, said))),
        _ => Some(String::new()),
    }
}

fn manner(request: &Request<Bytes>) -> Result<Manner, ApiError> {
    if request.method() == Method::PUT {
        return Ok(Manner::Whole);
    }
    let kind = request.headers().get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    match kind.split(';').next().unwrap_or_default().trim() {
        "application/strategic-merge-patch+json" => Ok(Manner::ByName),
        "application/merge-patch+json" => Ok(Manner::Whole),
        other => Err(ApiError::unsupported_media_type(format!(
            "the body of the request was in an unknown format - accepted media types include: \
             application/merge-patch+json, application/strategic-merge-patch+json; not `{other}`"
        ))),
    }
}

/// Returns the new list from the current one and the one sent.
fn merged(manner: Manner, current: &Value, sent: &Value) -> Result<Value, ApiError> {
    const FIELD: &str = "ephemeralContainers";
    let list = |spec: &Value| match &spec[FIELD] {
        Value::Null => Ok(Vec::new()),
        Value::Array(items) => Ok(items.clone()),
        _ => Err(ApiError::bad_request(format!(
            "spec.{FIELD}: must be a list"
        ))),
    };
    let sent = list(sent)?;
    if manner == Manner::Whole {
        return Ok(Value::Array(sent));
    }
    let mut all = list(current)?;
    for patch in sent {
        if patch.get("$patch").is_some() {
            let detail = "existing ephemeral containers may not be removed or replaced";
            return Err(ApiError::invalid(format!(
                "spec.{FIELD}: Forbidden: {detail}"
            )));
        }
        match all.iter_mut().find(|old| old["name"] == patch["name"]) {
            // No container may change, so overlaying is enough to find a difference.
            Some(old) => overlay(old, patch),
            None => all.push(patch),
        }
    }
    Ok(Value::Array(all))
}

fn overlay(old: &mut Value, patch: Value) {
    match (old, patch) {
        (Value::Object(old), Value::Object(patch)) => {
            for (key, value) in patch {
                match value {
                    Value::Null => drop(old.remove(&key)),
                    value => overlay(old.entry(key).or_insert(Value::Null), value),
                }
            }
        }
        (old, patch) => *old = patch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_strategic_merge_patch_adds_by_name_and_others_replace_the_list() {
        let has = json!({ "ephemeralContainers": [{ "name": "a", "image": "i" }] });
        let adds = json!({ "ephemeralContainers": [{ "name": "b", "image": "j" }] });
        let by_name = merged(Manner::ByName, &has, &adds).expect("fine");
        assert_eq!(
            by_name,
            json!([{ "name": "a", "image": "i" }, { "name": "b", "image": "j" }])
        );
        assert_eq!(
            merged(Manner::Whole, &has, &adds).expect("fine"),
            adds["ephemeralContainers"]
        );
        let again = json!({ "ephemeralContainers": [{ "name": "a", "tty": true, "image": null }] });
        let again = merged(Manner::ByName, &has, &again).expect("fine");
        assert_eq!(again, json!([{ "name": "a", "tty": true }]));
        let gone = json!({ "ephemeralContainers": [{ "name": "a", "$patch": "delete" }] });
        assert!(merged(Manner::ByName, &has, &gone).is_err());
        assert!(merged(Manner::ByName, &has, &json!({ "ephemeralContainers": 3 })).is_err());
        assert_eq!(
            merged(Manner::ByName, &json!({}), &json!({})).expect("fine"),
            json!([])
        );
    }

    #[test]
    fn a_round_trip_through_client_types_is_no_edit() {
        let pod = json!({ "metadata": { "name": "p", "labels": { "a": "b" } },
            "spec": { "containers": [{ "name": "c", "image": "i", "resources": {} }], "priority": 0 } });
        for (said, path) in [
            (pod.clone(), None),
            (json!({ "metadata": { "creationTimestamp": null } }), None),
            (
                json!({ "spec": { "containers": [{ "name": "c", "env": [], "tty": false }] } }),
                None,
            ),
            (
                json!({ "metadata": { "labels": { "a": "c" } } }),
                Some("metadata.labels.a"),
            ),
            (
                json!({ "spec": { "containers": [{ "name": "c", "image": "j" }] } }),
                Some("spec.containers[0].image"),
            ),
            (
                json!({ "spec": { "containers": [] } }),
                Some("spec.containers"),
            ),
        ] {
            assert_eq!(differs(&pod, &said).as_deref(), path, "{said}");
        }
    }
}
