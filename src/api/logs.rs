//! Pod logs: `GET …/pods/{name}/log`, with the kubelet's refusals (its `pkg/kubelet/server`).

use std::path::PathBuf;
use std::sync::Arc;

use hyper::Response;
use hyper::body::Bytes;
use hyper::header::{HeaderValue, WARNING};
use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, ContainerStatus, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::error::ApiError;
use super::log_files::{files_of, newest_attempt};
use super::log_reader::{Liveness, LogOptions, LogReader};
use super::query::Query;
use super::server::{Body, Context, streamed};
use super::store::Store;
use crate::spec::PodUid;
use crate::sys::clock;

pub(crate) async fn answer(
    context: &Context,
    query: &Query,
    namespace: &str,
    name: &str,
) -> Result<Response<Body>, ApiError> {
    let pod = context
        .store
        .pod(namespace, name)
        .ok_or_else(|| ApiError::not_found("pods", name))?;
    let container = choose_container(&pod, query.get("container"))?;
    let previous = query.flag("previous")?;
    let follow = query.flag("follow")? && !previous;
    let status = status_of(&pod, &container);
    let uid = PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default());
    let dir = context
        .layout
        .container_logs(namespace, name, &uid, &container);
    // The count of restarts may be that of a run still to come.
    let newest = |count| newest_attempt(&dir, count).ok().flatten().unwrap_or(count);
    let attempt = attempt(name, &container, status.as_ref(), previous, newest)?;
    if previous && files_of(&dir, attempt).is_ok_and(|files| files.is_empty()) {
        return Err(ApiError::bad_request(format!(
            "previous terminated container \"{container}\" in pod \"{name}\" not found"
        )));
    }
    let options = LogOptions {
        dir: dir.clone(),
        attempt,
        follow,
        tail_lines: query.number("tailLines")?,
        since: since(query)?,
        timestamps: query.flag("timestamps")?,
        limit_bytes: query.number::<u64>("limitBytes")?,
    };
    if options.limit_bytes == Some(0) {
        return Err(ApiError::invalid("limitBytes: must be greater than 0"));
    }
    let liveness = follow.then(|| {
        let store = context.store.clone();
        let (ns, name, uid) = (namespace.to_owned(), name.to_owned(), uid.to_string());
        Liveness {
            changed: store.subscribe(),
            alive: Box::new(move || may_write(&store, (&ns, &name), &uid, &container)),
        }
    });
    let reader = LogReader::open(options, liveness).await.map_err(|error| {
        ApiError::internal(format!(
            "could not read logs in `{}`: {error}",
            dir.display()
        ))
    })?;
    let warning = warning(reader.damaged());
    let chunks = smol::stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        match reader.next().await {
            Ok(Some(chunk)) => Some((Ok(Bytes::from(chunk)), Some(reader))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    });
    let mut answer = streamed("text/plain", chunks);
    if let Some(warning) = warning {
        answer.headers_mut().insert(WARNING, warning);
    }
    Ok(answer)
}

/// How many damaged files are named at most: a container may make many.
const MAX_NAMED: usize = 3;

/// The warning that clients print beside the log, as kubectl does.
fn warning(damaged: &[PathBuf]) -> Option<HeaderValue> {
    let names = damaged.iter().filter_map(|path| path.file_name());
    let names: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
    let more = match names.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let text = format!(
        "299 - \"lines of the log are missing: {}{more} could not be read\"",
        names[..names.len().min(MAX_NAMED)].join(", ")
    );
    let value = HeaderValue::try_from(text).ok();
    value.filter(|_| !damaged.is_empty())
}

/// Returns the named container, or the only regular one.
pub(crate) fn choose_container(pod: &Pod, wanted: Option<&str>) -> Result<String, ApiError> {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let spec = pod.spec.clone().unwrap_or_default();
    let regular: Vec<String> = spec.containers.into_iter().map(|c| c.name).collect();
    let init: Vec<String> = spec
        .init_containers
        .into_iter()
        .flatten()
        .map(|c| c.name)
        .collect();
    let added: Vec<String> = spec
        .ephemeral_containers
        .into_iter()
        .flatten()
        .map(|c| c.name)
        .collect();
    let mut all = regular.iter().chain(&init).chain(&added);
    let mut choice = format!("choose one of: [{}]", regular.join(" "));
    for (kind, names) in [("init", &init), ("ephemeral", &added)] {
        if !names.is_empty() {
            choice += &format!(" or one of the {kind} containers: [{}]", names.join(" "));
        }
    }
    match (wanted.filter(|w| !w.is_empty()), &regular[..]) {
        (Some(wanted), _) if all.any(|c| c == wanted) => Ok(wanted.to_owned()),
        (Some(wanted), _) => Err(ApiError::not_found_text(format!(
            "container \"{wanted}\" not found in pod \"{name}\", {choice}"
        ))),
        (None, [only]) => Ok(only.clone()),
        (None, _) => Err(ApiError::bad_request(format!(
            "a container name must be specified for pod {name}, {choice}"
        ))),
    }
}

/// Returns the status of a container, including init and ephemeral containers.
pub(crate) fn status_of(pod: &Pod, container: &str) -> Option<ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = status.container_statuses.iter().flatten();
    let all = all.chain(status.init_container_statuses.iter().flatten());
    let mut all = all.chain(status.ephemeral_container_statuses.iter().flatten());
    all.find(|one| one.name == container).cloned()
}

/// The attempt whose log is meant; `newest` finds the last one of which there is a log, up to a restart count.
fn attempt(
    pod: &str,
    container: &str,
    status: Option<&ContainerStatus>,
    previous: bool,
    newest: impl Fn(u32) -> u32,
) -> Result<u32, ApiError> {
    let refuse = |why: &str| {
        Err(ApiError::bad_request(format!(
            "container \"{container}\" in pod \"{pod}\" is {why}"
        )))
    };
    let Some(status) = status else {
        return refuse("not available");
    };
    let current = u32::try_from(status.restart_count).unwrap_or(0);
    let state = status.state.clone().unwrap_or_default();
    let ended_before = status
        .last_state
        .as_ref()
        .is_some_and(|s| s.terminated.is_some());
    if previous {
        // While the container waits to restart, the newest attempt is in its last state. It has the current number, or
        // after a restart of all containers an earlier one.
        return match (ended_before, state.waiting.is_some(), current) {
            (false, _, _) => Err(ApiError::bad_request(format!(
                "previous terminated container \"{container}\" in pod \"{pod}\" not found"
            ))),
            (true, true, n) => Ok(newest(n)),
            (true, false, n) => Ok(n.saturating_sub(1)),
        };
    }
    if state.running.is_some() {
        return Ok(current);
    }
    if state.terminated.is_some() || ended_before {
        return Ok(newest(current));
    }
    match state.waiting.and_then(|w| w.reason).as_deref() {
        Some("ErrImagePull") => refuse("waiting to start: image can't be pulled"),
        Some("ImagePullBackOff") => refuse("waiting to start: trying and failing to pull image"),
        Some(reason) => refuse(&format!("waiting to start: {reason}")),
        None => refuse("not available"),
    }
}

fn since(query: &Query) -> Result<Option<Timestamp>, ApiError> {
    let seconds: Option<i64> = query.number("sinceSeconds")?;
    match (seconds, query.get("sinceTime")) {
        (Some(_), Some(_)) => Err(ApiError::invalid(
            "at most one of `sinceTime` or `sinceSeconds` may be specified",
        )),
        (Some(seconds), None) if seconds < 1 => {
            Err(ApiError::invalid("sinceSeconds: must be greater than 0"))
        }
        (Some(seconds), None) => Ok(clock::timestamp()
            .checked_sub(SignedDuration::from_secs(seconds))
            .ok()),
        (None, Some(text)) => text
            .parse()
            .map(Some)
            .map_err(|_| ApiError::bad_request(format!("sinceTime: `{text}` is not RFC 3339"))),
        (None, None) => Ok(None),
    }
}

/// Whether a container may still write to its log, now or after a restart.
fn may_write(store: &Arc<Store>, pod: (&str, &str), uid: &str, container: &str) -> bool {
    let Some(pod) = store.pod(pod.0, pod.1) else {
        return false;
    };
    if pod.metadata.uid.as_deref() != Some(uid) {
        return false;
    }
    let status = status_of(&pod, container);
    let state = status.and_then(|s| s.state).unwrap_or_default();
    if state.running.is_some() {
        return true;
    }
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) || pod.metadata.deletion_timestamp.is_some() {
        return false;
    }
    let Some(ended) = state.terminated else {
        return true;
    };
    restarts(&pod, container, ended.exit_code)
}

/// Whether a container that ended with this code will restart by the pod's spec (Kubernetes docs: Pod Lifecycle).
fn restarts(pod: &Pod, container: &str, exit_code: i32) -> bool {
    let spec = pod.spec.clone().unwrap_or_default();
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let is_init = init.iter().any(|c| c.name == container);
    let mut all = init.iter().chain(&spec.containers);
    if !all.clone().any(|c| c.name == container) {
        // Ephemeral containers run once.
        return false;
    }
    let of_pod = |c: &Container| {
        let mut rules = c.restart_policy_rules.iter().flatten();
        rules.any(|rule| rule.action == "RestartAllContainers")
    };
    // The end of another container may restart this one.
    if all.clone().any(of_pod) {
        return true;
    }
    let Some(found) = all.find(|c| c.name == container) else {
        return false;
    };
    let matches = |rule: &ContainerRestartRule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.iter().flatten().any(|code| *code == exit_code);
            listed == (codes.operator == "In")
        })
    };
    if found.restart_policy_rules.iter().flatten().any(matches) {
        return true;
    }
    let own = found.restart_policy.as_deref();
    match own.or(spec.restart_policy.as_deref()) {
        Some("Never") => false,
        Some("OnFailure") => exit_code != 0,
        // An init container runs no more after its success, unless it is a sidecar.
        _ => exit_code != 0 || !is_init || own == Some("Always"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_log_may_grow_as_long_as_its_container_may_run_again() {
        let rule = |operator: &str| json!([{ "action": "Restart", "exitCodes": { "operator": operator, "values": [42] } }]);
        let all = json!([{ "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [42] } }]);
        for (sentence, pod_policy, own, rules, init, code, expected) in [
            ("always", "Always", None, json!(null), false, 0, true),
            (
                "on failure, success",
                "OnFailure",
                None,
                json!(null),
                false,
                0,
                false,
            ),
            (
                "on failure, failure",
                "OnFailure",
                None,
                json!(null),
                false,
                1,
                true,
            ),
            ("never", "Never", None, json!(null), false, 1, false),
            (
                "an init container that is done",
                "Always",
                None,
                json!(null),
                true,
                0,
                false,
            ),
            (
                "one that failed",
                "Always",
                None,
                json!(null),
                true,
                1,
                true,
            ),
            (
                "one that failed for good",
                "Never",
                None,
                json!(null),
                true,
                1,
                false,
            ),
            (
                "a sidecar",
                "Never",
                Some("Always"),
                json!(null),
                true,
                0,
                true,
            ),
            (
                "its own policy",
                "Always",
                Some("Never"),
                json!(null),
                false,
                1,
                false,
            ),
            (
                "a rule in",
                "Never",
                Some("Never"),
                rule("In"),
                false,
                42,
                true,
            ),
            (
                "a rule in, another code",
                "Never",
                Some("Never"),
                rule("In"),
                false,
                1,
                false,
            ),
            (
                "a rule not in",
                "Never",
                Some("Never"),
                rule("NotIn"),
                false,
                1,
                true,
            ),
            ("the whole pod", "Never", Some("Never"), all, false, 1, true),
        ] {
            let list = if init { "initContainers" } else { "containers" };
            let mut spec =
                json!({ "restartPolicy": pod_policy, "containers": [{ "name": "other" }] });
            spec[list] =
                json!([{ "name": "c", "restartPolicy": own, "restartPolicyRules": rules }]);
            let pod = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
            assert_eq!(restarts(&pod, "c", code), expected, "{sentence}");
        }
    }
}
