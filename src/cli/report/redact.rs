//! What may be shown of objects and settings.

use serde_json::Value;

use crate::effects::former_secrets;
use crate::layout::Layout;

const MASK: &str = "<removed>";

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
        Value::String(text) => clean(text),
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
            Value::String(text) => clean(text),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    walk(&mut value);
    value
}

fn clean(value: &mut String) {
    *value = String::from_utf8_lossy(&text(value.as_bytes())).into_owned();
}

/// Removes user, password, query and fragment of all URLs in a text.
fn urls_in_text(text: &[u8]) -> Vec<u8> {
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

/// What may be shown of a URL without its scheme. A password may hold any character but whitespace, so that all before
/// the last `@` counts as one; that of a digest is none.
fn public(rest: &str) -> String {
    let mut ats = rest.match_indices('@').map(|(at, _)| at);
    let user = ats.rfind(|at| !rest[at + 1..].starts_with("sha256:"));
    let (user, rest) = match user {
        Some(at) => (format!("{MASK}@"), &rest[at + 1..]),
        None => (String::new(), rest),
    };
    match rest.find(['?', '#']) {
        Some(at) => format!("{user}{}?{MASK}", &rest[..at]),
        None => format!("{user}{rest}"),
    }
}

/// The values of Secrets, those that they had before in this boot included, which are taken out of all text. They are
/// read for nothing else. `None`: no agent has written them in this boot.
pub(super) fn secrets(layout: &Layout) -> Option<Vec<Vec<u8>>> {
    let mut found = former_secrets::in_force(layout)?;
    found.extend(former_secrets::Former::load(layout).values(|_, _| true));
    Some(found)
}

/// What messages say before and after the command of a hook or a probe.
const COMMANDS: [(&str, &str); 3] = [
    ("Exec lifecycle hook ([", "]) for Container "),
    (" failed - error: command '", "' exited with "),
    ("command timed out: \"", "\" timed out after "),
];

/// The longest message of an event.
const MAX_MESSAGE: usize = 1024;

/// Removes the arguments of programs from messages about them, also of pods that are gone. The program itself stays.
fn commands_in_text(text: &[u8]) -> Vec<u8> {
    let mut clean = text.to_vec();
    for (before, after) in COMMANDS {
        clean = without_arguments(&clean, before.as_bytes(), after.as_bytes());
    }
    clean
}

fn without_arguments(text: &[u8], before: &[u8], after: &[u8]) -> Vec<u8> {
    let find = |text: &[u8], what: &[u8]| text.windows(what.len()).position(|at| at == what);
    let mut clean = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = find(rest, before) {
        let (said, command) = rest.split_at(at + before.len());
        clean.extend(said);
        // A message that is cut off has no more than the rest of its line.
        let end = find(&command[..command.len().min(MAX_MESSAGE)], after);
        let line = command.iter().position(|byte| *byte == b'\n');
        let (command, next) = command.split_at(end.or(line).unwrap_or(command.len()));
        let program = command.iter().position(u8::is_ascii_whitespace);
        match program {
            Some(program) => {
                clean.extend(&command[..=program]);
                clean.extend(MASK.as_bytes());
            }
            None => clean.extend(command),
        }
        rest = next;
    }
    clean.extend(rest);
    clean
}

/// A text without what may be secret in it.
pub(super) fn text(text: &[u8]) -> Vec<u8> {
    urls_in_text(&commands_in_text(text))
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
                    "plain: text",
                    "from a://u:p@one to b://u:p/a?s#s@two/x?t",
                    "oci://host/x@sha256:0123"
                ]),
                json!([
                    format!("http://{MASK}@host/x?{MASK}"),
                    "oci://host/x",
                    format!("https://host?{MASK}"),
                    "plain: text",
                    format!("from a://{MASK}@one to b://{MASK}@two/x?{MASK}"),
                    "oci://host/x@sha256:0123",
                ]),
            ),
            (
                "messages about programs",
                json!({ "message": "Exec lifecycle hook ([sh -c x]) for Container \"c\" in Pod \"p\" failed - \
                        error: command 'sh -c x' exited with 1: , message: \"\"" }),
                json!({ "message": format!("Exec lifecycle hook ([sh {MASK}]) for Container \"c\" in Pod \"p\" \
                        failed - error: command 'sh {MASK}' exited with 1: , message: \"\"") }),
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

    #[test]
    fn messages_about_programs_in_a_text_lose_the_arguments() {
        for (sentence, message, expected) in [
            (
                "a hook that could not be run",
                "Exec lifecycle hook ([/bin/sh]) for Container \"c\"\nnext",
                "Exec lifecycle hook ([/bin/sh]) for Container \"c\"\nnext".to_owned(),
            ),
            (
                "a URL among the arguments",
                "Exec lifecycle hook ([curl a://b x]) for Container \"c\"",
                format!("Exec lifecycle hook ([curl {MASK}]) for Container \"c\""),
            ),
            (
                "a probe",
                "command timed out: \"sh -c token=x\" timed out after 1s",
                format!("command timed out: \"sh {MASK}\" timed out after 1s"),
            ),
            (
                "one that is cut off",
                "command timed out: \"sh -c token=x\nnext",
                format!("command timed out: \"sh {MASK}\nnext"),
            ),
        ] {
            let clean = text(message.as_bytes());
            assert_eq!(String::from_utf8_lossy(&clean), expected, "{sentence}");
        }
    }
}
