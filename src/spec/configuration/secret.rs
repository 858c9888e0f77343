//! Secrets (Kubernetes docs: Secrets). No message repeats a value.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1 as core;

use super::content::{bytes, strings};
use super::{MAX_BYTES, keys, metadata};
use crate::spec::decode::decode;
use crate::spec::encrypted::{self, Opened};
use crate::spec::error::{Path, Report};
use crate::spec::value::Value;
use crate::types::Gather;

/// Advice about a value that is no base64.
const PLAIN: &str = "encode it by `base64 -w0`, or write plain text into `stringData`";

/// The type of Secrets that a cluster puts a token into. Pods run without, like without RBAC.
const TOKEN: &str = "kubernetes.io/service-account-token";

/// A Secret. Its values are in no text that is made for people.
#[derive(Clone, PartialEq)]
pub struct Secret(pub(super) core::Secret);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&str> = self.data().map(|(key, _)| key).collect();
        f.debug_struct("Secret")
            .field("name", &self.0.metadata.name)
            .field("type", &self.0.type_)
            .field("keys", &keys)
            .finish_non_exhaustive()
    }
}

impl Secret {
    /// Keys and values.
    pub(super) fn data(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let data = self.0.data.iter().flatten();
        data.map(|(key, bytes)| (key.as_str(), bytes.0.as_slice()))
    }

    /// The value of a key.
    pub(super) fn value(&self, key: &str) -> Option<&[u8]> {
        let found = self.0.data.as_ref()?.get(key)?;
        Some(found.0.as_slice())
    }

    /// The Secret as clients see it: each value is replaced by asterisks, so that only its size shows, and the annotation
    /// that repeats the values is left out.
    pub fn shown(&self) -> core::Secret {
        let mut shown = self.0.clone();
        let annotations = &mut shown.metadata.annotations;
        if let Some(all) = annotations {
            all.remove(encrypted::APPLIED);
        }
        *annotations = annotations.take().filter(|all| !all.is_empty());
        for ByteString(bytes) in shown.data.iter_mut().flat_map(BTreeMap::values_mut) {
            bytes.fill(b'*');
        }
        shown
    }
}

/// Decodes and checks a Secret. `stringData` becomes part of `data`. One whose encrypted content is unknown has none.
pub(super) fn of(
    value: &mut Value,
    opened: &Opened,
    path: &Path<'_>,
    report: &Report,
) -> Option<Secret> {
    if matches!(value.get("type"), Some(Value::String(kind)) if kind == TOKEN) {
        let what =
            "tokens of service accounts are not made here: there is no API server to log in to";
        let instead = "remove it, or give the token itself in a Secret of type `Opaque`";
        report.skip(&path.field("type"), what, instead.to_owned());
        return None;
    }
    let sealed = encrypted::take(value, path, report);
    // Before the decoder reads them: its messages repeat what is wrong.
    let mut texts = strings(value, "stringData", path, report);
    let mut encoded = bytes(value, "data", PLAIN, path, report);
    let mut secret: core::Secret = decode(value, path, report)?;
    metadata(&mut secret, path, report);
    let mut at = path.field("data");
    if let Some(written) = sealed {
        at = path.field(encrypted::FIELD);
        let own = &secret.metadata;
        let namespace = own.namespace.as_deref().unwrap_or_default();
        let name = (namespace, own.name.as_deref().unwrap_or_default());
        match encrypted::content(name, &written, opened, path, report) {
            Some(mut plain) => {
                texts = strings(&mut plain, "stringData", &at, report);
                encoded = bytes(&mut plain, "data", PLAIN, &at, report);
            }
            // Whether it has what its type needs is unknown.
            None => return Some(Secret(typed(secret))),
        }
    }
    let mut data: BTreeMap<String, ByteString> = encoded.into_iter().gather();
    for (key, text) in texts {
        data.insert(key, ByteString(text.into_bytes()));
    }
    keys::check(data.keys(), &at, report);
    let size: usize = data
        .iter()
        .map(|(key, bytes)| key.len() + bytes.0.len())
        .sum();
    if size > MAX_BYTES {
        let message = format_args!("Too long: may not be more than {MAX_BYTES} bytes");
        report.error(&at, message);
    }
    for (key, _) in data.iter().filter(|(_, bytes)| is_hidden(&bytes.0)) {
        let message = "has only asterisks, which clients see in place of a value";
        let hint = "write the value itself; the Secret in force stays as it is";
        report.error_hint(&at.field(key), message, hint.to_owned());
    }
    let mut secret = typed(secret);
    let kind = secret.type_.as_deref().unwrap_or_default();
    by_type(kind, &data, path, report);
    secret.data = (!data.is_empty()).then_some(data);
    Some(Secret(secret))
}

/// Whether the value may be one that a client saw. Fewer asterisks may mean something.
fn is_hidden(value: &[u8]) -> bool {
    value.len() > 2 && value.iter().all(|byte| *byte == b'*')
}

/// The Secret with the type that it has by default. What was written as text is in `data`.
fn typed(mut secret: core::Secret) -> core::Secret {
    secret.string_data = None;
    let kind = secret.type_.get_or_insert_default();
    if kind.is_empty() {
        "Opaque".clone_into(kind);
    }
    secret
}

/// Checks what Secrets of this type must have.
fn by_type(kind: &str, data: &BTreeMap<String, ByteString>, path: &Path<'_>, report: &Report) {
    let at = path.field("data");
    // A value that could not be decoded is not in `data`.
    let is_whole = !report.is_wrong_below(&at);
    let required = |key: &str| {
        if !data.contains_key(key) && is_whole {
            report.required(&at.field(key));
        }
    };
    let json = |key: &str| match data.get(key) {
        None => required(key),
        Some(ByteString(bytes)) => {
            if serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(bytes).is_err()
            {
                let detail = "must be a JSON object";
                report.invalid(&at.field(key), "<secret contents redacted>", detail);
            }
        }
    };
    match kind {
        "kubernetes.io/dockercfg" => json(".dockercfg"),
        "kubernetes.io/dockerconfigjson" => json(".dockerconfigjson"),
        "kubernetes.io/basic-auth"
            if !data.contains_key("username") && !data.contains_key("password") =>
        {
            required("username");
            required("password");
        }
        "kubernetes.io/ssh-auth" => required("ssh-privatekey"),
        "kubernetes.io/tls" => {
            required("tls.crt");
            required("tls.key");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;
    use crate::spec::convert::{ConvertContext, documents};

    #[test]
    fn its_values_are_in_no_text() {
        let secret = Secret(core::Secret {
            metadata: ObjectMeta {
                annotations: Some(
                    [
                        (encrypted::APPLIED, "{\"data\":{\"key\":\"aHVudGVyMg==\"}}"),
                        ("note", "stays"),
                    ]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
                ),
                ..ObjectMeta::default()
            },
            data: Some([("key".to_owned(), ByteString(b"hunter2".to_vec()))].into()),
            ..core::Secret::default()
        });
        assert!(!format!("{secret:?}").contains("hunter2"));
        let shown = serde_json::to_string(&secret.shown()).expect("plain data");
        // Seven asterisks in base64.
        assert!(shown.contains("KioqKioqKg=="), "{shown}");
        assert!(!shown.contains("aHVudGVyMg=="), "{shown}");
        assert!(shown.contains("stays"), "{shown}");
    }

    #[test]
    fn a_value_that_a_client_saw_is_no_value() {
        let documents = |text: &str| {
            let text = format!(
                "apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{k: {text:?}}}\n"
            );
            documents(text.as_bytes(), "s.yaml", &ConvertContext::of("node"))
        };
        for value in ["*", "**", "***a", ""] {
            assert!(documents(value).is_ok(), "{value}");
        }
        let errors = documents("*******").unwrap_err();
        let expected = "data.k: has only asterisks, which clients see in place of a value";
        assert!(errors[0].to_string().contains(expected), "{errors:?}");
    }
}
