//! Which pods are not well, why, and what to type for it.

use serde_json::Value;

use super::{Trouble, list, place, word};
use crate::cli::health;

/// The reasons of containers that wait for others, or for what their message says.
const BEGINNING: [&str; 2] = ["PodInitializing", "ContainerCreating"];

/// Goes before the reason for which a container waits.
const WAITS: &str = "` waits: ";

/// Whether nothing is to be said of a pod: one that a person stopped, or that is on its way out, is well.
pub(super) fn is_well(pod: &Value) -> bool {
    let status = &pod["status"];
    let is_ready = ready_condition(status).is_some_and(|ready| ready["status"] == "True");
    let ended = status["phase"] == "Succeeded" || status["reason"] == "Stopped";
    is_ready || ended || !pod["metadata"]["deletionTimestamp"].is_null()
}

/// Why a pod is not well, if so. `warnings` are events.
pub(super) fn trouble(pod: &Value, warnings: &Value) -> Option<Trouble> {
    if is_well(pod) {
        return None;
    }
    let (meta, status) = (&pod["metadata"], &pod["status"]);
    let why = why(meta, status, warnings);
    let (option, name, shown) = place(meta);
    let since = ready_condition(status).map_or("", |ready| word(&ready["lastTransitionTime"]));
    let remedy = remedy(&why, (&option, name));
    Some(Trouble::new(&format!("pod {shown}"), since, why, remedy))
}

fn why(meta: &Value, status: &Value, warnings: &Value) -> String {
    match health::cause(status) {
        Some(cause) if cause.contains(WAITS) => match message(status, |reason| !begins(reason)) {
            Some(message) => format!("{cause}: {message}"),
            None => cause,
        },
        Some(cause) => cause,
        None => {
            let message = message(status, begins).map(str::to_owned);
            let warning = || match status["phase"] == "Pending" {
                true => newest_warning(meta, warnings),
                false => None,
            };
            let why = message.or_else(warning);
            why.unwrap_or_else(|| health::phase(status))
        }
    }
}

fn begins(reason: &str) -> bool {
    BEGINNING.contains(&reason)
}

/// What the first container that waits for such a reason says beside it. A crash adds only the time.
fn message(status: &Value, is_wanted: impl Fn(&str) -> bool) -> Option<&str> {
    let kinds = ["initContainerStatuses", "containerStatuses"];
    let containers = kinds.into_iter().flat_map(|kind| list(&status[kind]));
    let mut waiting = containers.map(|container| &container["state"]["waiting"]);
    let waiting = waiting.find(|waiting| waiting["reason"].as_str().is_some_and(&is_wanted))?;
    let message = waiting["message"].as_str();
    message.filter(|_| waiting["reason"] != "CrashLoopBackOff")
}

/// What happened last to a pod whose status says nothing, such as one whose sandbox cannot be made.
fn newest_warning(meta: &Value, warnings: &Value) -> Option<String> {
    let of_pod = |event: &&Value| event["involvedObject"]["uid"] == meta["uid"];
    let events = list(&warnings["items"]).filter(of_pod);
    let newest = events.max_by_key(|event| word(&event["lastTimestamp"]))?;
    let (reason, message) = (word(&newest["reason"]), word(&newest["message"]));
    Some(format!("{reason}: {message}"))
}

fn ready_condition(status: &Value) -> Option<&Value> {
    list(&status["conditions"]).find(|condition| condition["type"] == "Ready")
}

/// What to type for a pod that is not ready for this reason.
fn remedy(why: &str, (option, name): (&str, &str)) -> String {
    let waits_for = why.split_once(WAITS).map_or("", |(_, reason)| reason);
    let reason = waits_for.split([':', ',']).next().unwrap_or_default();
    match why {
        why if why.starts_with("WaitingForDependencies") => "coracle boot".to_owned(),
        // The program never ran, so there is no log of it.
        why if why.contains(health::START_ERROR) => format!("coracle describe pod{option} {name}"),
        _ if reason == "CrashLoopBackOff" => format!("coracle logs{option} {name} --previous"),
        why if waits_for.is_empty() && why.contains("` has ended") => {
            format!("coracle logs{option} {name}")
        }
        _ if reason.contains("Image") => "coracle image ls".to_owned(),
        why if why.starts_with("NodeCordoned") => "coracle uncordon".to_owned(),
        _ => format!("coracle describe pod{option} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, status: Value) -> Value {
        json!({ "metadata": { "namespace": "default", "name": name }, "status": status })
    }

    #[test]
    fn each_pod_that_is_not_well_has_a_command_that_helps() {
        let ready = |word: &str| json!([{ "type": "Ready", "status": word }]);
        let waiting = |reason: &str| {
            json!({ "phase": "Pending", "conditions": ready("False"), "containerStatuses": [
                { "name": "main", "ready": false, "state": { "waiting": { "reason": reason } } } ] })
        };
        for (status, expected) in [
            (
                json!({ "phase": "Running", "conditions": ready("True") }),
                None,
            ),
            (json!({ "phase": "Succeeded" }), None),
            (json!({ "phase": "Pending", "reason": "Stopped" }), None),
            (
                waiting("CrashLoopBackOff"),
                Some("coracle logs web --previous"),
            ),
            (
                json!({ "phase": "Running", "conditions": ready("False"), "containerStatuses": [{ "name": "main",
                    "state": { "waiting": { "reason": "CrashLoopBackOff" } },
                    "lastState": { "terminated": { "exitCode": 128, "reason": "StartError", "message": "no `nc`" } } }] }),
                Some("coracle describe pod web"),
            ),
            (waiting("ImagePullBackOff"), Some("coracle image ls")),
            (
                waiting("CreateContainerError"),
                Some("coracle describe pod web"),
            ),
            (
                json!({ "phase": "Pending", "reason": "WaitingForDependencies", "message": "mount:/d" }),
                Some("coracle boot"),
            ),
            (
                json!({ "phase": "Pending", "reason": "NodeCordoned" }),
                Some("coracle uncordon"),
            ),
        ] {
            let found = trouble(&pod("web", status.clone()), &Value::Null);
            let remedy = found.as_ref().map(|trouble| trouble.remedy.as_str());
            assert_eq!(remedy, expected, "{status}");
        }
    }

    #[test]
    fn what_a_pod_waits_for_is_said() {
        let waiting = |state: Value| {
            let mut pod = pod(
                "web",
                json!({ "phase": "Pending", "containerStatuses": [
                    { "name": "main", "ready": false, "state": { "waiting": state } } ] }),
            );
            pod["metadata"]["uid"] = json!("u1");
            pod
        };
        let warning = |uid: &str, at: &str, message: &str| {
            json!({ "involvedObject": { "uid": uid }, "reason": "FailedMount", "message": message,
                    "lastTimestamp": format!("2026-01-01T00:00:{at}Z") })
        };
        let seen = json!({ "items": [warning("u1", "01", "first"), warning("u1", "03", "no `/x`"),
                                     warning("u1", "02", "second"), warning("u2", "09", "other")] });
        let said = |warnings: &Value, state: Value| {
            let found = trouble(&waiting(state), warnings);
            found.expect("it waits").message
        };
        let creating = json!({ "reason": "ContainerCreating" });
        assert_eq!(said(&seen, creating.clone()), "FailedMount: no `/x`");
        let none = Value::Null;
        assert_eq!(said(&none, creating), "not ready, its phase is Pending");
        // What an image's name or a message has in it decides nothing.
        let missing = json!({ "reason": "CreateContainerConfigError", "message": "configmap \"Image\" not found" });
        let found = trouble(&waiting(missing), &seen).expect("it waits");
        let expected =
            "container `main` waits: CreateContainerConfigError: configmap \"Image\" not found";
        assert_eq!(found.message, expected);
        assert_eq!(found.remedy, "coracle describe pod web");
        let pulling =
            json!({ "reason": "ContainerCreating", "message": "Pulling image \"x\": 37%" });
        assert_eq!(said(&seen, pulling), "Pulling image \"x\": 37%");
        let crashing = json!({ "reason": "CrashLoopBackOff", "message": "back-off 20s" });
        assert_eq!(
            said(&seen, crashing),
            "container `main` waits: CrashLoopBackOff"
        );
        // Each message is said of its own container.
        let state = |name: &str, reason: &str, message: &str| json!({ "name": name, "state": { "waiting": { "reason": reason, "message": message } } });
        let both = [
            state("a", "ContainerCreating", "Pulling image"),
            state("b", "ErrImagePull", "not found"),
        ];
        let both = pod(
            "web",
            json!({ "phase": "Pending", "containerStatuses": both }),
        );
        let found = trouble(&both, &Value::Null).expect("it waits");
        assert_eq!(
            found.message,
            "container `b` waits: ErrImagePull: not found"
        );
    }
}
