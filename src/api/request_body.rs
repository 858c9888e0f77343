//! Small request bodies: JSON, or Kubernetes' protobuf, which client-go prefers for its own types.

use hyper::Request;
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use serde::de::DeserializeOwned;

use super::error::ApiError;
use super::protobuf;

/// Reads a body by its content type; `None` if it is empty. `of_protobuf` gets the kind in the wrapper, and the
/// message.
pub(super) fn read<T: DeserializeOwned>(
    request: &Request<Bytes>,
    what: &str,
    of_protobuf: impl FnOnce(Option<String>, &[u8]) -> Option<T>,
) -> Result<Option<T>, ApiError> {
    let body = request.body();
    if body.is_empty() {
        return Ok(None);
    }
    let unknown = |format: &str| {
        ApiError::unsupported_media_type(format!(
            "the body of the request was in an unknown format ({format}) - accepted media types include: \
             application/json, application/vnd.kubernetes.protobuf"
        ))
    };
    let format = request.headers().get(CONTENT_TYPE);
    let format = format.and_then(|format| format.to_str().ok());
    let format = format.unwrap_or_default().split(';').next();
    match format.unwrap_or_default().trim() {
        "application/vnd.kubernetes.protobuf" => {
            let read = protobuf::unwrap(body).and_then(|(kind, message)| {
                of_protobuf((!kind.is_empty()).then(|| kind.to_owned()), message)
            });
            let read = read.ok_or_else(|| unknown(&format!("not {what} in protobuf")));
            read.map(Some)
        }
        // The last one is curl's default.
        "" | "application/json" | "application/x-www-form-urlencoded" => {
            let wrong = |why: String| {
                ApiError::bad_request(format!("the request body is not {what}: {why}"))
            };
            // serde also accepts a list for a struct.
            if body.trim_ascii_start().first() != Some(&b'{') {
                return Err(wrong("not a JSON object".to_owned()));
            }
            let read = serde_json::from_slice(body);
            read.map(Some).map_err(|error| wrong(error.to_string()))
        }
        other => Err(unknown(other)),
    }
}
