//! The node's shutdown: `GET`, `POST` and `DELETE /coracle/v1/shutdown`.

use hyper::Response;
use serde_json::json;

use super::command::Command;
use super::error::ApiError;
use super::routes::ask;
use super::server::{Body, Context, json, json_lines};

pub(crate) async fn show(context: &Context) -> Result<Response<Body>, ApiError> {
    let shown = ask(context, |reply| Command::ShowShutdown { reply }).await?;
    Ok(json(shown.to_string()))
}

pub(crate) async fn begin(context: &Context) -> Result<Response<Body>, ApiError> {
    let lines = ask(context, |reply| Command::BeginShutdown { reply }).await?;
    Ok(json_lines(lines))
}

pub(crate) async fn cancel(context: &Context) -> Result<Response<Body>, ApiError> {
    ask(context, |reply| Command::CancelShutdown { reply }).await?;
    Ok(json(json!({ "status": "Success" }).to_string()))
}
