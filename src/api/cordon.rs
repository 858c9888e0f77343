//! How is a node cordoned, uncordoned and drained? `PATCH /api/v1/nodes/NAME` with `spec.unschedulable`, as kubectl does
//! it, and `POST /coracle/v1/drain`.

use std::collections::BTreeSet;

use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{Request, Response};
use serde_json::Value;

use super::command::{Command, DrainOptions};
use super::error::ApiError;
use super::query::Query;
use super::routes::ask;
use super::selector::Selector;
use super::server::{Body, Context, json, json_lines, read_body};
use super::status_patch::PatchKind;
use super::store::Kind;
use crate::spec::PodKey;

/// Patches the node.
pub(crate) async fn patch_node(
    request: Request<Incoming>,
    context: &Context,
    name: &str,
) -> Result<Response<Body>, ApiError> {
    let kind = request.headers().get(CONTENT_TYPE);
    let kind = PatchKind::of(kind.and_then(|v| v.to_str().ok()).unwrap_or_default())?;
    let body = read_body(request.into_body()).await?;
    let shown = || {
        let found = context
            .store
            .get(Kind::Nodes, &(String::new(), name.to_owned()));
        found.ok_or_else(|| ApiError::not_found("nodes", name))
    };
    shown()?;
    if let Some(on) = wanted(kind, &body)? {
        let (reply, answer) = smol::channel::bounded(1);
        ask(context, Command::SetCordon { on, reply }, answer).await?;
    }
    Ok(json(shown()?.json.clone()))
}

/// Whether the node is to be unschedulable; `None` if the patch does not say.
fn wanted(kind: PatchKind, body: &[u8]) -> Result<Option<bool>, ApiError> {
    let patch: Value = serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("the patch is not JSON: {error}")))?;
    match kind {
        PatchKind::Merge | PatchKind::Strategic => {
            let fields = patch.as_object();
            let fields =
                fields.ok_or_else(|| ApiError::bad_request("the patch must be a JSON object"))?;
            let known = ["apiVersion", "kind", "metadata", "spec"];
            if let Some(other) = fields.keys().find(|key| !known.contains(&key.as_str())) {
                return Err(only(other));
            }
            let Some(spec) = fields.get("spec").and_then(Value::as_object) else {
                return Ok(None);
            };
            if let Some(other) = spec.keys().find(|key| *key != "unschedulable") {
                return Err(only(&format!("spec.{other}")));
            }
            spec.get("unschedulable").map(truth).transpose()
        }
        PatchKind::Json => {
            let mut wanted = None;
            for step in patch.as_array().into_iter().flatten() {
                wanted = match (step["op"].as_str(), step["path"].as_str()) {
                    (Some("add" | "replace"), Some("/spec/unschedulable")) => {
                        Some(truth(&step["value"])?)
                    }
                    (Some("remove"), Some("/spec/unschedulable")) => Some(false),
                    (_, path) => return Err(only(path.unwrap_or_default())),
                };
            }
            Ok(wanted)
        }
    }
}

fn truth(value: &Value) -> Result<bool, ApiError> {
    match value {
        Value::Null => Ok(false),
        Value::Bool(on) => Ok(*on),
        _ => Err(ApiError::invalid("spec.unschedulable: must be a boolean")),
    }
}

fn only(path: &str) -> ApiError {
    ApiError::invalid(format!(
        "{path}: Forbidden: only spec.unschedulable can be patched"
    ))
}

/// Sends pods away.
pub(crate) async fn drain(context: &Context, query: &Query) -> Result<Response<Body>, ApiError> {
    let pods = match query.get("labelSelector") {
        None | Some("") => None,
        Some(_) => {
            let selector = Selector::from_query(query, None)?;
            let (_, shown) = context.store.list(Kind::Pods);
            let chosen = shown.iter().filter(|pod| selector.matches(pod));
            let key = |(namespace, name): &(String, String)| PodKey {
                namespace: namespace.clone(),
                name: name.clone(),
            };
            Some(chosen.map(|pod| key(&pod.key)).collect::<BTreeSet<_>>())
        }
    };
    let grace: Option<u64> = query.number("gracePeriodSeconds")?;
    let options = DrainOptions {
        pods,
        grace_ms: grace.map(|seconds| seconds.saturating_mul(1000)),
        delete_empty_dir_data: query.flag("deleteEmptyDirData")?,
        dry_run: query.flag("dryRun")?,
    };
    let (reply, answer) = smol::channel::bounded(1);
    let lines = ask(context, Command::Drain { options, reply }, answer).await?;
    Ok(json_lines(lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_says_whether_the_node_takes_new_pods() {
        use PatchKind::{Json, Merge, Strategic};
        for (kind, patch, expected) in [
            (Strategic, r#"{"spec":{"unschedulable":true}}"#, Some(true)),
            (Merge, r#"{"spec":{"unschedulable":false}}"#, Some(false)),
            (Strategic, r#"{"spec":{"unschedulable":null}}"#, Some(false)),
            (Merge, r#"{"metadata":{"name":"n"}}"#, None),
            (
                Json,
                r#"[{"op":"add","path":"/spec/unschedulable","value":true}]"#,
                Some(true),
            ),
            (
                Json,
                r#"[{"op":"remove","path":"/spec/unschedulable"}]"#,
                Some(false),
            ),
        ] {
            assert_eq!(wanted(kind, patch.as_bytes()).unwrap(), expected, "{patch}");
        }
        for (kind, patch) in [
            (Strategic, r#"{"spec":{"unschedulable":"yes"}}"#),
            (Merge, r#"{"spec":{"taints":[]}}"#),
            (Merge, r#"{"status":{}}"#),
            (
                Json,
                r#"[{"op":"add","path":"/metadata/labels/a","value":"b"}]"#,
            ),
            (Merge, "[]"),
            (Merge, "no"),
        ] {
            assert!(wanted(kind, patch.as_bytes()).is_err(), "{patch}");
        }
    }
}
