//! Deletion of a pod: `DELETE …/pods/NAME` with `DeleteOptions` in the query, and in a body of JSON or Kubernetes' protobuf.

use hyper::body::Bytes;
use hyper::{Request, Response};
use k8s_openapi::jiff::SignedDuration;
use serde::Deserialize;
use serde_json::Value;

use super::command::Command;
use super::error::ApiError;
use super::object::Object;
use super::protobuf::{self, Value as Field};
use super::query::{DELETE_OPTIONS, Query, check_dry_run};
use super::request_body;
use super::routes::ask;
use super::server::{Body, Context, json};
use super::store::Kind;
use crate::sys::clock;

/// Options of a deletion that have an effect here, or must be checked.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct DeleteOptions {
    kind: Option<String>,
    grace_period_seconds: Option<i64>,
    preconditions: Option<Preconditions>,
    orphan_dependents: Option<bool>,
    propagation_policy: Option<String>,
    dry_run: Option<Vec<String>>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

/// Deletes the pod; with dry run, returns it as it would be shown.
pub(crate) async fn pod(
    request: Request<Bytes>,
    context: &Context,
    query: &Query,
    (namespace, name): (&str, &str),
) -> Result<Response<Body>, ApiError> {
    let options = DeleteOptions::of(&request, query)?;
    let force = query.flag("force")?;
    let shown = delete(options, force, context, (namespace, name)).await?;
    Ok(json(shown))
}

/// Carries out the deletion or a dry run, and returns the pod as shown then.
pub(super) async fn delete(
    options: DeleteOptions,
    force: bool,
    context: &Context,
    (namespace, name): (&str, &str),
) -> Result<Bytes, ApiError> {
    let key = (namespace.into(), name.into());
    let missing = || ApiError::not_found("pods", name);
    let object = context.store.get(Kind::Pods, &key).ok_or_else(missing)?;
    options.preconditions(&object)?;
    let grace = match options.grace_period_seconds {
        None => None,
        Some(seconds) => Some(u64::try_from(seconds).map_err(|_| {
            ApiError::invalid("gracePeriodSeconds: must be greater than or equal to 0")
        })?),
    };
    if options.dry_run.is_some_and(|dry| !dry.is_empty()) {
        return Ok(rehearsed(&object, grace).into());
    }
    ask(context, |reply| Command::DeletePod {
        namespace: key.0.to_string(),
        name: key.1.to_string(),
        grace_ms: grace.map(|s| s.saturating_mul(1000)),
        force: force || grace == Some(0),
        reply,
    })
    .await?;
    let shown = context.store.get(Kind::Pods, &key);
    Ok(shown.unwrap_or(object).json())
}

/// The pod as it would be shown while it terminates.
fn rehearsed(object: &Object, grace: Option<u64>) -> String {
    let mut pod: Value = serde_json::from_slice(&object.json()).unwrap_or_default();
    let own = pod["spec"]["terminationGracePeriodSeconds"].as_u64();
    if pod["metadata"]["deletionTimestamp"].is_null() {
        let seconds = grace.or(own).unwrap_or(30);
        let grace = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
        let end = clock::timestamp().checked_add(grace);
        let end = end.map_or(Value::Null, |end| {
            end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into()
        });
        pod["metadata"]["deletionTimestamp"] = end;
        pod["metadata"]["deletionGracePeriodSeconds"] = seconds.into();
    }
    pod.to_string()
}

impl DeleteOptions {
    /// Reads the body, and the query for what the body does not set.
    fn of(request: &Request<Bytes>, query: &Query) -> Result<Self, ApiError> {
        Self::of_body(request)?.checked(query)
    }

    /// Adds the query's options and checks all of them.
    pub(super) fn checked(self, query: &Query) -> Result<Self, ApiError> {
        let mut options = self;
        if options.kind.as_ref().is_some_and(|k| k != "DeleteOptions") {
            let kind = options.kind.unwrap_or_default();
            return Err(ApiError::bad_request(format!(
                "the body of a DELETE must be `DeleteOptions`, not `{kind}`"
            )));
        }
        let seconds = query.number("gracePeriodSeconds")?;
        options.grace_period_seconds = options.grace_period_seconds.or(seconds);
        let policy = query.get("propagationPolicy").map(str::to_owned);
        let policy = options.propagation_policy.take().or(policy);
        // Pods have no dependents, so all policies do the same.
        const POLICIES: [&str; 3] = ["Orphan", "Background", "Foreground"];
        if let Some(other) = policy.filter(|p| !p.is_empty() && !POLICIES.contains(&p.as_str())) {
            return Err(ApiError::invalid(format!(
                "{DELETE_OPTIONS} \"\" is invalid: propagationPolicy: Unsupported value: \"{other}\": \
                 supported values: \"Foreground\", \"Background\", \"Orphan\""
            )));
        }
        let mut dry_run = options.dry_run.take().unwrap_or_default();
        dry_run.extend(query.all("dryRun"));
        check_dry_run(DELETE_OPTIONS, &dry_run)?;
        options.dry_run = Some(dry_run);
        Ok(options)
    }

    fn of_body(request: &Request<Bytes>) -> Result<Self, ApiError> {
        let read = request_body::read(request, "DeleteOptions", |kind, message| {
            let options = Self::of_message(message)?;
            Some(Self { kind, ..options })
        })?;
        Ok(read.unwrap_or_default())
    }

    /// Decodes protobuf by the field numbers of `k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto`.
    pub(super) fn of_message(message: &[u8]) -> Option<Self> {
        let mut options = Self::default();
        let text = |value: Field<'_>| value.text().map(str::to_owned);
        for (number, value) in protobuf::fields(message)? {
            match (number, value) {
                (1, Field::Number(seconds)) => {
                    options.grace_period_seconds = Some(seconds.cast_signed());
                }
                (2, Field::Bytes(preconditions)) => {
                    let mut found = Preconditions::default();
                    for (number, value) in protobuf::fields(preconditions)? {
                        match number {
                            1 => found.uid = Some(text(value)?),
                            2 => found.resource_version = Some(text(value)?),
                            _ => {}
                        }
                    }
                    options.preconditions = Some(found);
                }
                (3, Field::Number(orphan)) => options.orphan_dependents = Some(orphan != 0),
                (4, value) => options.propagation_policy = Some(text(value)?),
                (5, value) => options.dry_run.get_or_insert_default().push(text(value)?),
                (1..=3, _) => return None,
                _ => {}
            }
        }
        Some(options)
    }

    /// Checks the preconditions: UID and resource version.
    fn preconditions(&self, object: &Object) -> Result<(), ApiError> {
        let Some(wanted) = &self.preconditions else {
            return Ok(());
        };
        let version = object.version.to_string();
        for (name, wanted, is) in [
            ("UID", &wanted.uid, &object.uid()),
            ("ResourceVersion", &wanted.resource_version, &version),
        ] {
            if let Some(wanted) = wanted.as_ref().filter(|wanted| *wanted != is) {
                return Err(ApiError::conflict(format!(
                    "Precondition failed: {name} in precondition: {wanted}, {name} in object meta: {is}"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::CONTENT_TYPE;

    use super::*;

    /// `k8s\0`, then an Unknown with kind `DeleteOptions` around these bytes.
    fn wrapped(message: &[u8]) -> Bytes {
        let meta = b"\x0a\x02v1\x12\x0dDeleteOptions";
        let mut body = b"k8s\0".to_vec();
        for (tag, part) in [(0x0a, &meta[..]), (0x12, message)] {
            body.push(tag);
            body.push(u8::try_from(part.len()).expect("short"));
            body.extend_from_slice(part);
        }
        // As apimachinery writes them: empty content encoding and type.
        body.extend_from_slice(b"\x1a\x00\x22\x00");
        body.into()
    }

    fn read(kind: &str, body: Bytes, query: &str) -> Result<DeleteOptions, ApiError> {
        let request = Request::builder().header(CONTENT_TYPE, kind).body(body);
        DeleteOptions::of(&request.expect("valid"), &Query::parse(Some(query)))
    }

    #[test]
    fn protobuf_says_the_same_as_json() {
        let message = b"\x08\x05\x12\x08\x0a\x01u\x12\x037.1\x18\x00\x22\x0aBackground\x2a\x03All";
        let protobuf = read("application/vnd.kubernetes.protobuf", wrapped(message), "");
        let json = r#"{"kind":"DeleteOptions","gracePeriodSeconds":5,"orphanDependents":false,"dryRun":["All"],
            "preconditions":{"uid":"u","resourceVersion":"7.1"},"propagationPolicy":"Background"}"#;
        let json = read("application/json; charset=utf-8", json.into(), "").expect("valid");
        assert_eq!(protobuf.expect("valid"), json);
        assert_eq!(json.grace_period_seconds, Some(5));
        assert_eq!(json.dry_run, Some(vec!["All".to_owned()]));
        let negative = wrapped(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
        let negative = read("application/vnd.kubernetes.protobuf", negative, "").expect("valid");
        assert_eq!(negative.grace_period_seconds, Some(-1));
    }

    #[test]
    fn a_body_that_cannot_be_read_is_never_taken_for_no_options() {
        let protobuf = "application/vnd.kubernetes.protobuf";
        for (kind, body, code) in [
            (protobuf, Bytes::from_static(b"{}"), 415),
            (protobuf, Bytes::from_static(b"k8s\0\xff"), 415),
            (protobuf, wrapped(b"\x2a\x09All"), 415),
            (protobuf, wrapped(b"\x2a\x03Non"), 422),
            ("application/cbor", Bytes::from_static(b"\xa0"), 415),
            (
                "application/yaml",
                Bytes::from_static(b"dryRun: [All]"),
                415,
            ),
            ("application/json", Bytes::from_static(b"no"), 400),
            ("application/json", Bytes::from_static(b"[]"), 400),
            (
                "application/json",
                Bytes::from_static(br#"{"gracePeriodSeconds":"5"}"#),
                400,
            ),
            (
                "application/json",
                Bytes::from_static(br#"{"dryRun":"All"}"#),
                400,
            ),
            (
                "application/json",
                Bytes::from_static(br#"{"kind":"Pod"}"#),
                400,
            ),
            (
                "application/json",
                Bytes::from_static(br#"{"dryRun":["All","x"]}"#),
                422,
            ),
            (
                "application/json",
                Bytes::from_static(br#"{"propagationPolicy":"Sometimes"}"#),
                422,
            ),
        ] {
            let error = read(kind, body.clone(), "").expect_err("refused");
            assert_eq!(
                error.code.as_u16(),
                code,
                "{kind} {body:?}: {}",
                error.message
            );
        }
        let error = read("", Bytes::new(), "dryRun=x").expect_err("refused");
        let text = "DeleteOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: \"x\": supported values: \"All\"";
        assert_eq!(error.message, text);
        let by_query = read("", Bytes::new(), "dryRun=All&gracePeriodSeconds=7").expect("valid");
        assert_eq!(by_query.dry_run, Some(vec!["All".to_owned()]));
        assert_eq!(by_query.grace_period_seconds, Some(7));
    }
}
