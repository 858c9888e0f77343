use serde_json::json;

use super::*;
use crate::spec::ConditionStatus;

fn pod() -> Value {
    json!({
        "metadata": { "name": "p", "uid": "u1", "resourceVersion": "7" },
        "status": { "phase": "Running", "conditions": [
            { "type": "a/x", "status": "True", "reason": "Said", "message": "so" },
            { "type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady", "lastTransitionTime": "2026-01-01T00:00:00Z" },
        ] },
    })
}

fn patched(kind: PatchKind, patch: &Value) -> Result<Vec<ConditionChange>, String> {
    let body = patch.to_string();
    changes(&pod(), kind, body.as_bytes()).map_err(|error| error.message)
}

fn set(type_: &str, status: ConditionStatus, reason: &str, message: &str) -> ConditionChange {
    ConditionChange::Set(Condition {
        type_: type_.into(),
        status,
        reason: reason.into(),
        message: message.into(),
    })
}

fn unset(type_: &str) -> ConditionChange {
    ConditionChange::Unset(type_.into())
}

#[test]
fn each_kind_of_patch_changes_what_it_says() {
    use ConditionStatus::{False, True, Unknown};
    use PatchKind::{Json, Merge, Strategic};
    let conditions = |list: Value| json!({ "status": { "conditions": list } });
    let ready = pod()["status"]["conditions"][1].clone();
    for (kind, patch, expected) in [
        (Merge, json!({}), vec![]),
        (Merge, json!({ "metadata": { "uid": "u1" } }), vec![]),
        (Merge, conditions(Value::Null), vec![unset("a/x")]),
        (
            Merge,
            conditions(json!([{ "type": "b", "status": "Unknown" }, ready])),
            vec![unset("a/x"), set("b", Unknown, "", "")],
        ),
        (
            Strategic,
            conditions(json!([{ "type": "a/x", "status": "False", "message": null }])),
            vec![set("a/x", False, "Said", "")],
        ),
        (
            Strategic,
            conditions(json!([{ "type": "a/x", "status": "True" }])),
            vec![],
        ),
        (
            Strategic,
            conditions(json!([{ "type": "b", "status": "True" }])),
            vec![set("b", True, "", "")],
        ),
        (
            Strategic,
            conditions(json!([{ "type": "a/x", "$patch": "delete" }])),
            vec![unset("a/x")],
        ),
        (
            Strategic,
            conditions(json!([{ "$patch": "replace" }, { "type": "c", "status": "True" }])),
            vec![unset("a/x"), set("c", True, "", "")],
        ),
        (
            Json,
            json!([
                { "op": "test", "path": "/status/conditions/0/type", "value": "a/x" },
                { "op": "replace", "path": "/status/conditions/0/status", "value": "False" },
                { "op": "add", "path": "/status/conditions/-", "value": { "type": "b", "status": "True" } },
            ]),
            vec![set("a/x", False, "Said", "so"), set("b", True, "", "")],
        ),
        (
            Json,
            json!([{ "op": "remove", "path": "/status/conditions/0" }]),
            vec![unset("a/x")],
        ),
    ] {
        assert_eq!(patched(kind, &patch), Ok(expected), "{kind:?} {patch}");
    }
}

#[test]
fn what_is_not_a_foreign_condition_is_refused() {
    use PatchKind::{Json, Merge, Strategic};
    let one = |type_: &str, status: &str| json!({ "status": { "conditions": [{ "type": type_, "status": status }] } });
    let own = "status.conditions[0].type: Forbidden: Ready is set by coracle itself";
    let only = "Forbidden: only status.conditions can be patched";
    for (kind, patch, message) in [
        (Merge, one("Ready", "True"), own.to_owned()),
        (
            Strategic,
            one("Ready", "True"),
            "status.conditions[1].type: Forbidden: Ready is set by coracle itself".to_owned(),
        ),
        (Merge, json!({ "status": { "phase": "Failed" } }), format!("status.phase: {only}")),
        (Merge, json!({ "spec": { "nodeName": "x" } }), format!("spec.nodeName: {only}")),
        (Json, json!([{ "op": "remove", "path": "/status/phase" }]), format!("status.phase: {only}")),
        (
            Json,
            json!([{ "op": "test", "path": "/status/phase", "value": "Failed" }]),
            "operation 0 on \"/status/phase\": the test failed".to_owned(),
        ),
        (
            Merge,
            one("b", "yes"),
            "status.conditions[0].status: Unsupported value: \"yes\": supported values: \"True\", \"False\", \
             \"Unknown\""
                .to_owned(),
        ),
        (
            Merge,
            one("a b", "True"),
            "status.conditions[0]: Invalid value: name part must consist of alphanumeric characters, '-', '_' or \
             '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc')"
                .to_owned(),
        ),
        (
            Merge,
            json!({ "metadata": { "resourceVersion": "6" } }),
            "Precondition failed: resourceVersion in the patch: \"6\", of the object: \"7\"".to_owned(),
        ),
    ] {
        assert_eq!(patched(kind, &patch), Err(message), "{kind:?} {patch}");
    }
    assert!(PatchKind::named("application/apply-patch+yaml").is_err());
}
