//! The content of ConfigMaps and Secrets as it is written: mappings of texts and of base64. They are read before the
//! decoder reads the rest, because its messages repeat what is wrong.

use k8s_openapi::ByteString;

use crate::spec::error::{Path, Report};
use crate::spec::value::Value;

/// Takes the strings of a mapping out of the document. What is no string is reported without its value, which may be a
/// secret.
pub(super) fn strings(
    value: &mut Value,
    field: &str,
    path: &Path<'_>,
    report: &Report,
) -> Vec<(String, String)> {
    let Value::Map(fields) = value else {
        return Vec::new();
    };
    let at = path.field(field);
    let mut found = Vec::new();
    for (_, value) in fields.iter_mut().filter(|(key, _)| key == field) {
        let Value::Map(entries) = value else { continue };
        for (key, value) in std::mem::take(entries) {
            match value {
                Value::String(text) => found.push((key, text)),
                Value::Null => found.push((key, String::new())),
                Value::List(_) | Value::Map(_) => {
                    let message = format!("must be a string, not {}", value.kind());
                    report.error(&at.field(&key), message);
                }
                _ => {
                    let message = format!("must be a string, not {}", value.kind());
                    report.error_hint(&at.field(&key), message, "quote it".to_owned());
                }
            }
        }
    }
    found
}

/// Decodes base64 as the API server does: line breaks mean nothing. Returns the place of the first error.
fn decoded(text: &str) -> Result<ByteString, usize> {
    let clean: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let quoted = serde_json::Value::String(clean);
    // The decoder of Kubernetes' types.
    serde_json::from_value(quoted).map_err(|_| {
        let is_symbol = |b: u8| b.is_ascii_alphanumeric() || b == b'+' || b == b'/' || b == b'=';
        let text = text.as_bytes();
        let is_line_end = |b: u8| matches!(b, b'\r' | b'\n');
        let wrong = text.iter().position(|b| !is_symbol(*b) && !is_line_end(*b));
        wrong.unwrap_or(text.len())
    })
}

/// Takes a mapping of base64 out of the document; `plain` is the advice about what is none.
pub(super) fn bytes(
    value: &mut Value,
    field: &str,
    plain: &str,
    path: &Path<'_>,
    report: &Report,
) -> Vec<(String, ByteString)> {
    let at = path.field(field);
    let mut found = Vec::new();
    for (key, text) in strings(value, field, path, report) {
        match decoded(&text) {
            Ok(bytes) => found.push((key, bytes)),
            Err(byte) => {
                let message = format_args!("illegal base64 data at input byte {byte}");
                report.error_hint(&at.field(&key), message, plain.to_owned());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_as_the_api_server_reads_it() {
        let read = |text: &str| decoded(text).map(|bytes| bytes.0);
        assert_eq!(read("aGVsbG8="), Ok(b"hello".to_vec()));
        assert_eq!(read("aGVs\nbG8=\n"), Ok(b"hello".to_vec()));
        assert_eq!(read(""), Ok(Vec::new()));
        assert_eq!(read("aGV$bG8="), Err(3));
        assert!(read("aGVsbG8").is_err());
    }
}
