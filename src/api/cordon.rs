//! Cordon, uncordon and drain: `PATCH /api/v1/nodes/NAME` with `spec.unschedulable`, as kubectl does it, and `POST
//! /coracle/v1/drain`.

use std::collections::BTreeSet;

use hyper::body::Bytes;
use hyper::{Request, Response};
use serde_json::Value;

use super::command::{Command, DrainOptions};
use super::error::ApiError;
use super::patch::{self, Changeable, PatchKind};
use super::query::Query;
use super::routes::ask;
use super::selector::Selector;
use super::server::{Body, Context, json, json_lines};
use super::store::Kind;
use crate::spec::PodKey;

/// Patches the node.
pub(crate) async fn patch_node(
    request: Request<Bytes>,
    context: &Context,
    name: &str,
    dry_run: bool,
) -> Result<Response<Body>, ApiError> {
    let kind = PatchKind::of(&request)?;
    let key = ("".into(), name.into());
    let shown = || {
        let found = context.store.get(Kind::Nodes, &key);
        found.ok_or_else(|| ApiError::not_found("nodes", name))
    };
    let mut node: Value = serde_json::from_slice(&shown()?.json()).unwrap_or_default();
    let wanted = wanted(kind, &node, request.body())?;
    if let Some(on) = wanted {
        if dry_run {
            node["spec"]["unschedulable"] = on.into();
            return Ok(json(node.to_string()));
        }
        ask(context, |reply| Command::SetCordon { on, reply }).await?;
    }
    Ok(json(shown()?.json()))
}

/// The field of a node that can be patched.
const UNSCHEDULABLE: Changeable = Changeable(&["spec", "unschedulable"]);

/// Returns the wanted `spec.unschedulable`; `None` if the patch does not change it.
fn wanted(kind: PatchKind, node: &Value, body: &[u8]) -> Result<Option<bool>, ApiError> {
    let patch = patch::parse(body)?;
    match kind {
        PatchKind::Merge | PatchKind::Strategic => {
            let given = UNSCHEDULABLE.given(node, &patch)?;
            given.map(truth).transpose()
        }
        PatchKind::Json => {
            // The field is shown only while it is true, but may be replaced and removed at any time.
            let mut node = node.clone();
            if node["spec"]["unschedulable"].is_null() {
                node["spec"]["unschedulable"] = false.into();
            }
            let changed = UNSCHEDULABLE.operated(&node, &patch)?;
            let (is, wanted) = (&node["spec"], &changed["spec"]);
            let wanted = truth(&wanted["unschedulable"])?;
            Ok((is["unschedulable"] != wanted).then_some(wanted))
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

/// Drains the node.
pub(crate) async fn drain(
    context: &Context,
    query: &Query,
    dry_run: bool,
) -> Result<Response<Body>, ApiError> {
    let pods = match query.get("labelSelector") {
        None | Some("") => None,
        Some(_) => {
            let selector = Selector::from_query(query, Kind::Pods, None)?;
            let (_, shown) = context.store.list(Kind::Pods);
            let chosen = shown.iter().filter(|pod| selector.matches(pod));
            let keys = chosen.map(|pod| {
                let (namespace, name) = pod.key.clone();
                PodKey::new(namespace, name)
            });
            Some(keys.collect::<BTreeSet<_>>())
        }
    };
    let grace: Option<u64> = query.number("gracePeriodSeconds")?;
    let options = DrainOptions {
        pods,
        grace_ms: grace.map(|seconds| seconds.saturating_mul(1000)),
        delete_empty_dir_data: query.flag("deleteEmptyDirData")?,
        dry_run,
    };
    let lines = ask(context, |reply| Command::Drain { options, reply }).await?;
    Ok(json_lines(lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Value {
        serde_json::json!({ "metadata": { "name": "n" }, "spec": {} })
    }

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
                None,
            ),
            (Json, "[]", None),
        ] {
            let wanted = wanted(kind, &node(), patch.as_bytes()).unwrap();
            assert_eq!(wanted, expected, "{patch}");
        }
        for (kind, patch) in [
            (Strategic, r#"{"spec":{"unschedulable":"yes"}}"#),
            (Merge, r#"{"spec":{"taints":[]}}"#),
            (Merge, r#"{"metadata":{"labels":{"a":"b"}}}"#),
            (Strategic, r#"{"status":{"phase":"x"}}"#),
            (
                Json,
                r#"[{"op":"add","path":"/metadata/labels/a","value":"b"}]"#,
            ),
            (Merge, "[]"),
            (Merge, "no"),
        ] {
            let refused = wanted(kind, &node(), patch.as_bytes());
            assert!(refused.is_err(), "{patch}");
        }
    }
}
