//! `POST /coracle/v1/namespaces/NS/{stop,start}?pod=NAME&workload=KIND/NAME`,
//! `…/start?all=true` and `POST
//! /coracle/v1/namespaces/NS/pods/NAME/restart`.

use std::collections::BTreeSet;

use hyper::Response;

use super::command::Command;
use super::error::ApiError;
use super::query::Query;
use super::routes::ask;
use super::server::{Body, Context, json};
use crate::plan::stop::Target;
use crate::spec::{PodKey, WorkloadKey, WorkloadKind};

/// The grace period in milliseconds that a request names.
fn grace_ms(query: &Query) -> Result<Option<u64>, ApiError> {
    let grace: Option<u64> = query.number("gracePeriodSeconds")?;
    Ok(grace.map(|seconds| seconds.saturating_mul(1000)))
}

/// Restarts a pod's containers, or the one that `container` names.
pub(crate) async fn restart(
    context: &Context,
    query: &Query,
    (namespace, name): (&str, &str),
) -> Result<Response<Body>, ApiError> {
    let grace_ms = grace_ms(query)?;
    let restarted = ask(context, |reply| Command::RestartPod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        container: query.get("container").map(str::to_owned),
        grace_ms,
        reply,
    });
    Ok(json(restarted.await?.to_string()))
}

/// Stops or starts pods and documents that stand for pods.
pub(crate) async fn stop_or_start(
    context: &Context,
    query: &Query,
    namespace: &str,
    stop: bool,
) -> Result<Response<Body>, ApiError> {
    if !stop && query.flag("all")? {
        let namespace = namespace.to_owned();
        let done = ask(context, |reply| Command::StartAll { namespace, reply });
        return Ok(json(done.await?.to_string()));
    }
    let grace_ms = grace_ms(query)?;
    let mut targets = BTreeSet::new();
    for name in query.all("pod") {
        targets.insert(Target::Pod(PodKey::new(namespace, name)));
    }
    for text in query.all("workload") {
        let found = text.split_once('/');
        let found = found.and_then(|(kind, name)| Some((WorkloadKind::of(kind)?, name)));
        let (kind, name) = found
            .ok_or_else(|| ApiError::bad_request(format!("workload `{text}` is no KIND/NAME")))?;
        targets.insert(Target::Workload(WorkloadKey {
            kind,
            namespace: namespace.into(),
            name: name.into(),
        }));
    }
    if targets.is_empty() {
        return Err(ApiError::bad_request("name a `pod` or a `workload`"));
    }
    let done = ask(context, |reply| Command::StopOrStart {
        targets,
        stop,
        grace_ms,
        reply,
    });
    Ok(json(done.await?.to_string()))
}
