//! What may be shown of objects and settings.

use k8s_openapi::ByteString;
use serde_json::Value;

use crate::layout::Layout;
use crate::sys::file;

const MASK: &str = "<removed>";

/// The longest file of the documents in force.
const MAX_DOCUMENTS: u64 = 64 << 20;

/// An object of the API without what may hold secrets: values of variables and headers, arguments of programs, contents
/// of documents, annotations of others.
pub(super) fn object(mut value: Value) -> Value {
    object_at(&mut value);
    value
}

fn object_at(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match name.as_str() {
                    "env" | "httpHeaders" => {
                        for item in value.as_array_mut().into_iter().flatten() {
                            mask(item.get_mut("value"));
                        }
                    }
                    "command" => {
                        let words = value.as_array_mut().into_iter().flatten();
                        words.skip(1).for_each(|word| mask(Some(word)));
                    }
                    "args" => {
                        let words = value.as_array_mut().into_iter().flatten();
                        words.for_each(|word| mask(Some(word)));
                    }
                    "data" | "stringData" | "binaryData" => mask(Some(value)),
                    // Of a probe or a hook.
                    "path" => query(value),
                    "annotations" => {
                        let own = ["coracle.dev/", "kubernetes.io/config."];
                        let all = value.as_object_mut().into_iter().flatten();
                        for (key, value) in all {
                            if !own.iter().any(|prefix| key.starts_with(prefix)) {
                                mask(Some(value));
                            }
                        }
                    }
                    _ => object_at(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(object_at),
        Value::String(text) => url(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn mask(value: Option<&mut Value>) {
    if let Some(value) = value.filter(|value| !value.is_null()) {
        *value = MASK.into();
    }
}

/// Removes the query of a path.
fn query(value: &mut Value) {
    if let Value::String(path) = value
        && let Some((path, _)) = path.split_once('?')
    {
        *value = format!("{path}?{MASK}").into();
    }
}

/// Settings without what URLs may hold. Headers are masked already.
pub(super) fn urls(mut value: Value) -> Value {
    fn walk(value: &mut Value) {
        match value {
            Value::Object(fields) => fields.iter_mut().for_each(|(_, value)| walk(value)),
            Value::Array(items) => items.iter_mut().for_each(walk),
            Value::String(text) => url(text),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    walk(&mut value);
    value
}

/// Removes user, password, query and fragment of a URL.
fn url(text: &mut String) {
    if let Some((scheme, rest)) = text.split_once("://") {
        *text = format!("{scheme}://{}", public(rest));
    }
}

/// The same of all URLs in a text.
pub(super) fn urls_in_text(text: &[u8]) -> Vec<u8> {
    const AFTER_SCHEME: &[u8] = b"://";
    let mut clean = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.windows(3).position(|bytes| bytes == AFTER_SCHEME) {
        let (before, after) = rest.split_at(at + AFTER_SCHEME.len());
        let ends = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'"';
        let end = after.iter().position(ends).unwrap_or(after.len());
        let (url, next) = after.split_at(end);
        clean.extend(before);
        clean.extend(public(&String::from_utf8_lossy(url)).into_bytes());
        rest = next;
    }
    clean.extend(rest);
    clean
}

/// What may be shown of a URL without its scheme.
fn public(rest: &str) -> String {
    let (public, private) = match rest.find(['?', '#']) {
        Some(at) => (&rest[..at], format!("?{MASK}")),
        None => (rest, String::new()),
    };
    let (host, path) = match public.find('/') {
        Some(at) => public.split_at(at),
        None => (public, ""),
    };
    let host = match host.rsplit_once('@') {
        Some((_, host)) => format!("{MASK}@{host}"),
        None => host.to_owned(),
    };
    format!("{host}{path}{private}")
}

/// The values of the Secrets in force, which are taken out of all text. They are read for nothing else. `None`: no agent
/// has written them in this boot.
pub(super) fn secrets(layout: &Layout) -> Option<Vec<Vec<u8>>> {
    let bytes = file::read_bounded(layout.configuration(), MAX_DOCUMENTS).ok()?;
    let documents: Value = serde_json::from_slice(&bytes).ok()?;
    let files = documents.as_object().into_iter().flatten();
    let all = files.flat_map(|(_, documents)| documents.as_array().into_iter().flatten());
    let mut found = Vec::new();
    for secret in all.filter(|document| document["kind"] == "Secret") {
        for (field, encoded) in [("data", true), ("stringData", false)] {
            let values = secret[field].as_object().into_iter().flatten();
            for (_, value) in values {
                let text = value.as_str().unwrap_or_default();
                found.push(text.as_bytes().to_vec());
                let bytes = serde_json::from_value::<ByteString>(value.clone()).ok();
                found.extend(bytes.filter(|_| encoded).map(|bytes| bytes.0));
            }
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_may_hold_a_secret_is_removed() {
        for (sentence, value, expected) in [
            (
                "variables",
                json!({ "env": [{ "name": "A", "value": "x" }, { "name": "B", "valueFrom": { "secretKeyRef": {} } }] }),
                json!({ "env": [{ "name": "A", "value": MASK }, { "name": "B", "valueFrom": { "secretKeyRef": {} } }] }),
            ),
            (
                "headers",
                json!({ "httpGet": { "httpHeaders": [{ "name": "A", "value": "x" }] } }),
                json!({ "httpGet": { "httpHeaders": [{ "name": "A", "value": MASK }] } }),
            ),
            (
                "programs",
                json!([{ "command": ["sh", "-c", "x"], "args": ["--token=x"] }]),
                json!([{ "command": ["sh", MASK, MASK], "args": [MASK] }]),
            ),
            (
                "annotations",
                json!({ "annotations": { "coracle.dev/after": "db", "a/last-applied": "x" } }),
                json!({ "annotations": { "coracle.dev/after": "db", "a/last-applied": MASK } }),
            ),
            (
                "paths",
                json!({ "httpGet": { "path": "/healthz?token=x" }, "tcpSocket": { "path": "/plain" } }),
                json!({ "httpGet": { "path": format!("/healthz?{MASK}") }, "tcpSocket": { "path": "/plain" } }),
            ),
            (
                "documents",
                json!({ "kind": "Secret", "data": { "a": "x" } }),
                json!({ "kind": "Secret", "data": MASK }),
            ),
            (
                "addresses",
                json!([
                    "http://u:p@host/x?t=1#f",
                    "oci://host/x",
                    "https://host?x",
                    "plain: text"
                ]),
                json!([
                    format!("http://{MASK}@host/x?{MASK}"),
                    "oci://host/x",
                    format!("https://host?{MASK}"),
                    "plain: text",
                ]),
            ),
        ] {
            assert_eq!(object(value), expected, "{sentence}");
        }
    }

    #[test]
    fn addresses_in_a_text_lose_what_may_be_secret() {
        let text = "probe failed: Get \"http://10.0.0.1:80/healthz?token=x\": EOF\nredis://:x@db/1 and a://b#x\n://";
        let clean = urls_in_text(text.as_bytes());
        let wanted = format!(
            "probe failed: Get \"http://10.0.0.1:80/healthz?{MASK}\": EOF\nredis://{MASK}@db/1 and a://b?{MASK}\n://"
        );
        assert_eq!(String::from_utf8_lossy(&clean), wanted);
    }
}
