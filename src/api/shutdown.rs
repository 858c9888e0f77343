//! How does the node's shutdown begin, end, and look? `GET`, `POST` and `DELETE /coracle/v1/shutdown`.

use hyper::{Method, Response};
use serde_json::json;

use super::command::Command;
use super::error::ApiError;
use super::routes::ask;
use super::server::{Body, Context, json, json_lines};

pub(crate) async fn answer(method: Method, context: &Context) -> Result<Response<Body>, ApiError> {
    match method {
        Method::GET => {
            let (reply, answer) = smol::channel::bounded(1);
            let shown = ask(context, Command::ShowShutdown { reply }, answer).await?;
            Ok(json(shown.to_string()))
        }
        Method::POST => {
            let (reply, answer) = smol::channel::bounded(1);
            let lines = ask(context, Command::BeginShutdown { reply }, answer).await?;
            Ok(json_lines(lines))
        }
        Method::DELETE => {
            let (reply, answer) = smol::channel::bounded(1);
            ask(context, Command::CancelShutdown { reply }, answer).await?;
            Ok(json(json!({ "status": "Success" }).to_string()))
        }
        _ => Err(ApiError::method_not_allowed()),
    }
}
