//! API errors as a Kubernetes `Status` with its code and reason.

use std::io;
use std::path::PathBuf;

use hyper::StatusCode;
use serde_json::json;

use super::command::{CommandError, CommandErrorKind};
use super::resource::Resource;

/// The API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another agent answers on the socket.
    #[error("another agent already listens on `{path}`")]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// A file that is not a socket is in the way.
    #[error("`{path}` is in the way: not a socket")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A system call on the socket failed.
    #[error("could not {action} API socket `{path}`")]
    Socket {
        /// The failed action, a verb.
        action: &'static str,
        /// The socket.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Accepting connections failed permanently.
    #[error("could not accept API connections")]
    Accept(#[source] io::Error),
}

/// A refusal, sent as a `Status`.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) code: StatusCode,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// Kind (`pods`) and name of what it is about.
    pub(crate) about: Option<(&'static str, String)>,
}

/// `reason` of a `Status`: the container has no such program.
pub(crate) const COMMAND_NOT_FOUND: &str = "CommandNotFound";

/// `reason` of a `Status`: the program cannot be executed.
pub(crate) const COMMAND_NOT_EXECUTABLE: &str = "CommandNotExecutable";

/// `Retry-After` of a request that was over the limit, in seconds.
pub(crate) const RETRY_AFTER_S: u32 = 5;

impl ApiError {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            about: None,
        }
    }

    pub(crate) fn not_found(kind: &'static str, name: &str) -> Self {
        let mut error = Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            format!("{kind} \"{name}\" not found"),
        );
        error.about = Some((kind, name.to_owned()));
        error
    }

    /// Of the resource's group, if it has a name: `deployments.apps "x" not found`.
    pub(crate) fn not_found_in(resource: &Resource, name: &str) -> Self {
        let mut error = Self::not_found(resource.plural, name);
        if let Some((group, _)) = resource.group.split_once('/') {
            error.message = format!("{}.{group} \"{name}\" not found", resource.plural);
        }
        error
    }

    pub(crate) fn not_found_text(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", message)
    }

    /// Nothing is at this path; says what to use instead of what kubectl asks for there.
    pub(crate) fn no_such_path(segments: &[&str]) -> Self {
        let instead = match segments {
            ["openapi", ..] => {
                ": `coracle explain` describes fields, and manifests are files, which `coracle validate` checks"
            }
            [.., "scale"] => {
                ": the number of replicas is in the manifest file (`coracle get files`)"
            }
            _ => "",
        };
        Self::not_found_text(format!(
            "the server could not find the requested resource{instead}"
        ))
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    /// The same of an object, with what changes one here.
    pub(crate) fn object_not_changed() -> Self {
        let mut error = Self::method_not_allowed();
        error.message.push_str(
            ": a node has what its manifest files say (`coracle get files`); see also `coracle rollout` and \
             `coracle restart`",
        );
        error
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
    }

    pub(crate) fn unsupported_media_type(message: impl Into<String>) -> Self {
        let code = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Self::new(code, "UnsupportedMediaType", message)
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "Conflict", message)
    }

    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            message,
        )
    }

    pub(crate) fn gone(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// Over the limit: 429.
    pub(crate) fn too_many(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
    }

    /// The client was too slow to send its request.
    pub(crate) fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message)
    }

    /// `exec`: the container has no such program.
    pub(crate) fn command_not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, COMMAND_NOT_FOUND, message)
    }

    /// `exec`: the program exists but cannot be executed.
    pub(crate) fn command_not_executable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, COMMAND_NOT_EXECUTABLE, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    pub(crate) fn unavailable() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailable",
            "the agent is stopping or too busy to answer",
        )
    }

    /// The `Status` object.
    pub(crate) fn status(&self) -> serde_json::Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code.as_u16(),
        });
        if let Some((kind, name)) = &self.about {
            status["details"] = json!({ "kind": kind, "name": name });
        }
        if self.code == StatusCode::TOO_MANY_REQUESTS {
            status["details"]["retryAfterSeconds"] = RETRY_AFTER_S.into();
        }
        status
    }
}

impl From<CommandError> for ApiError {
    fn from(error: CommandError) -> Self {
        match error.kind {
            CommandErrorKind::NotFound => Self::not_found_text(error.message),
            CommandErrorKind::Conflict => Self::conflict(error.message),
            CommandErrorKind::Invalid => Self::bad_request(error.message),
            CommandErrorKind::Forbidden => Self::forbidden(error.message),
            CommandErrorKind::Unprocessable => Self::invalid(error.message),
            CommandErrorKind::Failed => Self::internal(error.message),
        }
    }
}
