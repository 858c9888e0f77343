//! `POST /coracle/v1/images/pull`: pulls an image from its registry, reported line by line like an import.

use std::fmt;

use hyper::body::Bytes;
use hyper::{Request, Response};
use serde::Deserialize;

use super::command::Command;
use super::error::ApiError;
use super::server::{Body, Context, json_lines};

/// What to pull.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PullRequest {
    /// The image's name, full or short.
    pub name: String,
    /// `os/architecture[/variant]`; the node's if missing.
    #[serde(default)]
    pub platform: Option<String>,
    /// For the registry; without them those of the node's file.
    #[serde(default)]
    pub credentials: Option<Login>,
}

/// A user's name and password at a registry. Neither is ever shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// The user.
    pub username: String,
    /// The password, or an access token that serves as one.
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(…)")
    }
}

pub(crate) async fn answer(
    request: Request<Bytes>,
    context: &Context,
) -> Result<Response<Body>, ApiError> {
    // The parser's own message could show a password.
    let request: PullRequest = serde_json::from_slice(request.body()).map_err(|why| {
        let (line, column) = (why.line(), why.column());
        ApiError::bad_request(format!(
            "invalid request body: line {line}, column {column}; it needs `name`, and may have `platform` and \
             `credentials` with `username` and `password`"
        ))
    })?;
    let (progress, lines) = smol::channel::bounded(16);
    let command = Command::PullImage { request, progress };
    let sent = context.commands.send(command).await;
    sent.map_err(|_| ApiError::unavailable())?;
    Ok(json_lines(lines))
}
