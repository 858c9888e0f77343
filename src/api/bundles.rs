//! Bundles: `GET /coracle/v1/bundles`, `POST …/apply`, `POST …/rollback`, `DELETE …?name=`.

use hyper::body::Bytes;
use hyper::{Request, Response};
use serde::Deserialize;

use super::command::Command;
use super::error::ApiError;
use super::query::Query;
use super::routes::ask;
use super::server::{Body, Context, json as json_reply, json_lines};

/// Which bundle to apply, and how.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct BundleRequest {
    /// The absolute path of an archive or OCI layout directory, `oci://` and a name in a registry, or an archive's URL.
    pub source: String,
    /// Take the new generation back if its pods are not ready within this time.
    #[serde(default)]
    pub ready_within_seconds: Option<u64>,
    /// The public key, in PEM, that it must be signed with.
    #[serde(default)]
    pub key: Option<String>,
    /// Only say what would change.
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RollBackRequest {
    #[serde(default)]
    name: Option<String>,
}

pub(crate) async fn apply(
    request: Request<Bytes>,
    context: &Context,
) -> Result<Response<Body>, ApiError> {
    let request: BundleRequest = parse(request.body())?;
    let source = &request.source;
    let beginnings = ["/", "oci://", "https://", "http://"];
    if !beginnings.iter().any(|begin| source.starts_with(begin)) {
        return Err(ApiError::bad_request(format!(
            "`{source}` is neither an absolute path, nor `oci://` and a name, nor a URL"
        )));
    }
    let (progress, lines) = smol::channel::bounded(16);
    let command = Command::ApplyBundle { request, progress };
    let sent = context.commands.send(command).await;
    sent.map_err(|_| ApiError::unavailable())?;
    Ok(json_lines(lines))
}

pub(crate) async fn list(context: &Context) -> Result<Response<Body>, ApiError> {
    let shown = ask(context, |reply| Command::ListBundles { reply }).await?;
    Ok(json_reply(shown.to_string()))
}

pub(crate) async fn roll_back(
    request: Request<Bytes>,
    context: &Context,
) -> Result<Response<Body>, ApiError> {
    let body = request.into_body();
    let name = match body.is_empty() {
        true => None,
        false => parse::<RollBackRequest>(&body)?.name,
    };
    let done = ask(context, |reply| Command::RollBackBundle { name, reply }).await?;
    Ok(json_reply(done.to_string()))
}

pub(crate) async fn remove(context: &Context, query: &Query) -> Result<Response<Body>, ApiError> {
    let name = query.get("name").filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| ApiError::bad_request("query parameter `name` is missing"))?;
    let name = name.to_owned();
    let done = ask(context, |reply| Command::RemoveBundle { name, reply }).await?;
    Ok(json_reply(done.to_string()))
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("invalid request body: {error}")))
}
