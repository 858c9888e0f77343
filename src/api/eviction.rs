//! Eviction of a pod, as `kubectl drain` asks for it: `POST …/pods/NAME/eviction` with an `Eviction` (policy/v1). There are
//! no disruption budgets that could refuse it, so it is a deletion.

use hyper::body::Bytes;
use hyper::{Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;

use super::delete::{DeleteOptions, delete};
use super::error::ApiError;
use super::query::Query;
use super::server::{Body, Context, reply};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Eviction {
    kind: Option<String>,
    metadata: Named,
    delete_options: Option<DeleteOptions>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Named {
    name: Option<String>,
    namespace: Option<String>,
}

/// Evicts the pod; with `dryRun` in the query or the body nothing is done.
pub(crate) async fn answer(
    request: &Request<Bytes>,
    context: &Context,
    query: &Query,
    (namespace, name): (&str, &str),
) -> Result<Response<Body>, ApiError> {
    let wrong = |why: &str| ApiError::bad_request(format!("the body is not an Eviction: {why}"));
    // serde takes a list for a structure, too.
    if request.body().trim_ascii_start().first() != Some(&b'{') {
        return Err(wrong("not a JSON object"));
    }
    let eviction: Eviction =
        serde_json::from_slice(request.body()).map_err(|error| wrong(&error.to_string()))?;
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
