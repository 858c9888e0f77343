//! How do images get in and out? `GET /coracle/v1/images`, `POST …/import`, `POST …/prune`, `DELETE …?name=`.

use std::path::PathBuf;

use hyper::body::Bytes;
use hyper::{Method, Request, Response};
use serde::Deserialize;

use super::command::Command;
use super::error::ApiError;
use super::query::Query;
use super::routes::ask;
use super::server::{Body, Context, Items, json_lines, json_of};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ImportRequest {
    path: PathBuf,
    name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PruneRequest {
    #[serde(default)]
    all: bool,
}

pub(crate) async fn answer(
    method: Method,
    rest: &[&str],
    request: Request<Bytes>,
    context: &Context,
    query: &Query,
) -> Result<Response<Body>, ApiError> {
    match (method, rest) {
        (Method::GET, []) => {
            let (reply, answer) = smol::channel::bounded(1);
            let rows = ask(context, Command::ListImages { reply }, answer).await?;
            json_of(&Items { items: rows })
        }
        (Method::DELETE, []) => {
            let name = query
                .get("name")
                .filter(|name| !name.is_empty())
                .ok_or_else(|| ApiError::bad_request("query parameter `name` is missing"))?
                .to_owned();
            let force = query.flag("force")?;
            let (reply, answer) = smol::channel::bounded(1);
            let command = Command::RemoveImage { name, force, reply };
            let removed = ask(context, command, answer).await?;
            json_of(&removed)
        }
        (Method::POST, ["prune"]) => {
            let body = request.into_body();
            let all = match body.is_empty() {
                true => false,
                false => parse::<PruneRequest>(&body)?.all,
            };
            let (reply, answer) = smol::channel::bounded(1);
            let removed = ask(context, Command::PruneImages { all, reply }, answer).await?;
            json_of(&removed)
        }
        (Method::POST, ["import"]) => {
            let body = request.into_body();
            import(context, parse(&body)?).await
        }
        (_, [] | ["prune" | "import"]) => Err(ApiError::method_not_allowed()),
        _ => Err(ApiError::no_such_path()),
    }
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("invalid request body: {error}")))
}

async fn import(context: &Context, asked: ImportRequest) -> Result<Response<Body>, ApiError> {
    if !asked.path.is_absolute() {
        return Err(ApiError::bad_request(format!(
            "path `{}` is not absolute",
            asked.path.display()
        )));
    }
    let (progress, lines) = smol::channel::bounded(16);
    let command = Command::ImportImage {
        path: asked.path,
        name: asked.name,
        progress,
    };
    context
        .commands
        .send(command)
        .await
        .map_err(|_| ApiError::unavailable())?;
    Ok(json_lines(lines))
}
