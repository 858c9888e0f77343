//! Tokens: a registry sends its clients to a server that hands them out (Docker's token authentication, as
//! `distribution` specifies it).

use serde::Deserialize;

use super::error::FetchError;
use super::url::{Url, encode};

/// The longest answer of a token server.
pub(super) const MAX_BYTES: u64 = 256 << 10;

/// The longest token that fits a request's head.
const MAX_TOKEN_BYTES: usize = 32 << 10;

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    access_token: Option<String>,
}

/// Where to ask for a token.
pub(super) fn url(realm: &str, service: Option<&str>, scope: &str) -> Result<Url, FetchError> {
    let joint = if realm.contains('?') { '&' } else { '?' };
    let mut text = format!("{realm}{joint}scope={}", encode(scope));
    if let Some(service) = service {
        text.push_str("&service=");
        text.push_str(&encode(service));
    }
    Url::parse(&text).map_err(|why| FetchError::Answer {
        url: "WWW-Authenticate".to_owned(),
        why,
    })
}

/// The value of `Authorization` from a token server's answer.
pub(super) fn authorization(answer: &[u8], url: &Url) -> Result<String, FetchError> {
    let bad = |why: &str| FetchError::Answer {
        url: url.to_string(),
        why: why.to_owned(),
    };
    // The parser's error could show the token.
    let document: Document = serde_json::from_slice(answer)
        .map_err(|_| bad("the token server's answer is not valid"))?;
    let token = [document.token, document.access_token];
    let token = token.into_iter().flatten().find(|token| !token.is_empty());
    let token = token.ok_or_else(|| bad("the token server's answer has no token"))?;
    if token.len() > MAX_TOKEN_BYTES || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(bad("the token server's answer has no usable token"));
    }
    Ok(format!("Bearer {token}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_server_is_asked_with_service_and_scope() {
        for (realm, service, expected) in [
            (
                "https://auth.example/token",
                Some("r.example"),
                "https://auth.example/token?scope=repository%3Aa%2Fb%3Apull&service=r.example",
            ),
            (
                "https://auth.example/token?x=1",
                None,
                "https://auth.example/token?x=1&scope=repository%3Aa%2Fb%3Apull",
            ),
        ] {
            let url = url(realm, service, "repository:a/b:pull").unwrap();
            assert_eq!(url.full(), expected);
        }
        assert!(url("ftp://auth.example", None, "x").is_err());
    }

    #[test]
    fn a_token_is_found_under_both_names() {
        let url = Url::parse("https://auth.example/token").unwrap();
        for (answer, expected) in [
            (r#"{"token":"a"}"#, Some("Bearer a")),
            (r#"{"access_token":"b","expires_in":60}"#, Some("Bearer b")),
            (r#"{"token":"","access_token":"b"}"#, Some("Bearer b")),
            (r#"{"token":"a b"}"#, None),
            (r#"{"token":"a\r\nX: y"}"#, None),
            (r#"{"token":7}"#, None),
            ("{}", None),
            ("<html>", None),
        ] {
            let found = authorization(answer.as_bytes(), &url);
            assert_eq!(found.ok().as_deref(), expected, "{answer}");
        }
    }
}
