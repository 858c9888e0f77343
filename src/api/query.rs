//! The query string: decoded pairs, with typed look-ups whose errors name the parameter.

use hyper::Method;

use super::error::ApiError;

/// Decoded `key=value` pairs in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(raw: Option<&str>) -> Self {
        let pairs = raw.unwrap_or_default().split('&').filter(|p| !p.is_empty());
        Self(
            pairs
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(key), decode(value))
                })
                .collect(),
        )
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.iter().find(|(k, _)| k == key);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn all(&self, key: &str) -> Vec<String> {
        let matching = self.0.iter().filter(|(k, _)| k == key);
        matching.map(|(_, value)| value.clone()).collect()
    }

    /// Returns a flag: `true`, `1`, or the bare key.
    pub(crate) fn flag(&self, key: &str) -> Result<bool, ApiError> {
        match self.get(key) {
            None | Some("false" | "0") => Ok(false),
            Some("" | "true" | "1") => Ok(true),
            Some(other) => Err(bad(key, other, "a boolean")),
        }
    }

    /// Returns whether `dryRun=All` is set.
    pub(crate) fn dry_run(&self, method: &Method) -> Result<bool, ApiError> {
        let options = match *method {
            Method::DELETE => DELETE_OPTIONS,
            Method::PATCH => "PatchOptions.meta.k8s.io",
            Method::PUT => "UpdateOptions.meta.k8s.io",
            _ => "CreateOptions.meta.k8s.io",
        };
        let values = self.all("dryRun");
        check_dry_run(options, &values)?;
        Ok(!values.is_empty())
    }

    pub(crate) fn number<T: std::str::FromStr>(&self, key: &str) -> Result<Option<T>, ApiError> {
        match self.get(key) {
            None | Some("") => Ok(None),
            Some(text) => match text.parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(bad(key, text, "a non-negative number")),
            },
        }
    }
}

/// The options type that error messages about `dryRun` of a DELETE name.
pub(crate) const DELETE_OPTIONS: &str = "DeleteOptions.meta.k8s.io";

/// Checks values of `dryRun`. An unknown value must not cause a real change.
pub(crate) fn check_dry_run(options: &str, values: &[String]) -> Result<(), ApiError> {
    match values.iter().find(|value| *value != "All") {
        None => Ok(()),
        Some(other) => Err(ApiError::invalid(format!(
            "{options} \"\" is invalid: dryRun: Unsupported value: \"{other}\": supported values: \"All\""
        ))),
    }
}

fn bad(key: &str, value: &str, expected: &str) -> ApiError {
    ApiError::bad_request(format!(
        "invalid query parameter `{key}`: `{value}` is not {expected}"
    ))
}

/// Percent-decoding, with `+` as a space.
pub(crate) fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex = |i: usize| bytes.get(i).and_then(|b| char::from(*b).to_digit(16));
        match (byte, hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
                at += 2;
            }
            (b'+', _, _) => out.push(b' '),
            _ => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Percent-encoding of everything that is not unreserved.
pub(crate) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_is_undone_by_decoding() {
        let odd = "a b+c%/ü&=\n";
        assert_eq!(decode(&encode(odd)), odd);
    }

    #[test]
    fn repeated_keys_keep_their_order() {
        let query = Query::parse(Some("command=ls&command=-l%20a&tty=true"));
        assert_eq!(query.all("command"), ["ls", "-l a"]);
        assert!(query.flag("tty").unwrap());
        assert!(query.flag("command").is_err());
    }
}
