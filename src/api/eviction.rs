//! Eviction of a pod, as `kubectl drain` requests it: `POST …/pods/NAME/eviction` with an `Eviction` (policy/v1) in
//! JSON or protobuf. There are no disruption budgets, so an eviction is a deletion.

use hyper::body::Bytes;
use hyper::{Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;

use super::delete::{DeleteOptions, delete};
use super::error::ApiError;
use super::protobuf::{self, Value as Field};
use super::query::Query;
use super::request_body;
use super::server::{Body, Context, reply};

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Eviction {
    kind: Option<String>,
    metadata: Named,
    delete_options: Option<DeleteOptions>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Named {
    name: Option<String>,
    namespace: Option<String>,
}

impl Eviction {
    /// Decodes protobuf by the field numbers of `k8s.io/api/policy/v1/generated.proto` and of `ObjectMeta`.
    fn of_message(kind: Option<String>, message: &[u8]) -> Option<Self> {
        let mut eviction = Self {
            kind,
            ..Self::default()
        };
        for (number, value) in protobuf::fields(message)? {
            match (number, value) {
                (1, Field::Bytes(metadata)) => {
                    for (number, value) in protobuf::fields(metadata)? {
                        match number {
                            1 => eviction.metadata.name = Some(value.text()?.to_owned()),
                            3 => eviction.metadata.namespace = Some(value.text()?.to_owned()),
                            _ => {}
                        }
                    }
                }
                (2, Field::Bytes(options)) => {
                    eviction.delete_options = Some(DeleteOptions::of_message(options)?);
                }
                (1 | 2, _) => return None,
                _ => {}
            }
        }
        Some(eviction)
    }
}

/// Evicts the pod; a dry run in the query or the body changes nothing.
pub(crate) async fn answer(
    request: &Request<Bytes>,
    context: &Context,
    query: &Query,
    (namespace, name): (&str, &str),
) -> Result<Response<Body>, ApiError> {
    let wrong =
        |why: &str| ApiError::bad_request(format!("the request body is not an Eviction: {why}"));
    let eviction = request_body::read(request, "an Eviction", Eviction::of_message)?
        .ok_or_else(|| wrong("it is empty"))?;
    if eviction
        .kind
        .as_ref()
        .is_some_and(|kind| kind != "Eviction")
    {
        return Err(wrong("its kind is not `Eviction`"));
    }
    for (said, is, what) in [
        (&eviction.metadata.name, name, "name"),
        (&eviction.metadata.namespace, namespace, "namespace"),
    ] {
        if said
            .as_ref()
            .is_some_and(|said| !said.is_empty() && said != is)
        {
            return Err(ApiError::bad_request(format!(
                "{what} in URL does not match {what} in Eviction object"
            )));
        }
    }
    let options = eviction.delete_options.unwrap_or_default().checked(query)?;
    delete(options, false, context, (namespace, name)).await?;
    let done = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 });
    Ok(reply(
        StatusCode::CREATED,
        "application/json",
        done.to_string(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protobuf_says_the_same_as_json() {
        // metadata: name, generateName, namespace; deleteOptions: 5 s, dryRun; a field of a future version.
        let message = b"\x0a\x12\x0a\x03web\x12\x00\x1a\x07default\x3a\x00\x12\x07\x08\x05\x2a\x03All\x1a\x01x";
        let kind = Some("Eviction".to_owned());
        let protobuf = Eviction::of_message(kind, message).expect("whole");
        let json = r#"{"kind":"Eviction","metadata":{"name":"web","namespace":"default"},
            "deleteOptions":{"gracePeriodSeconds":5,"dryRun":["All"]}}"#;
        let json: Eviction = serde_json::from_str(json).expect("valid");
        assert_eq!(protobuf, json);
        for bad in [
            &b"\x0a\x03\x0a\x03w"[..],
            b"\x0a\x03\x0a\x01\xff",
            b"\x0a\x02\x18\x01",
            b"\x08\x01",
            b"\x12\x02\x0a\x00",
            b"\x10\x01",
        ] {
            assert_eq!(Eviction::of_message(None, bad), None, "{bad:?}");
        }
    }
}
