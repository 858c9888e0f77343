//! `coracle describe` of ConfigMaps, Secrets, service accounts and namespaces: laid out as kubectl's.

use std::fmt::Write as _;

use serde_json::Value;

use super::args::DescribeResource;
use super::client::Client;
use super::error::Result;
use super::put;
use super::table::one_line;
use crate::api::encode;

/// The longest value of a ConfigMap that is printed, in bytes.
const MAX_SHOWN: usize = 64 << 10;

pub(super) fn run(
    client: &Client,
    kind: DescribeResource,
    namespace: &str,
    names: &[String],
) -> Result<()> {
    for (index, name) in names.iter().enumerate() {
        let (ns, name) = (encode(namespace), encode(name));
        let path = match kind {
            DescribeResource::ConfigMap => format!("/api/v1/namespaces/{ns}/configmaps/{name}"),
            DescribeResource::Secret => format!("/api/v1/namespaces/{ns}/secrets/{name}"),
            DescribeResource::ServiceAccount => {
                format!("/api/v1/namespaces/{ns}/serviceaccounts/{name}")
            }
            _ => format!("/api/v1/namespaces/{name}"),
        };
        let object = client.get(&path)?;
        let gap = if index > 0 { "\n\n" } else { "" };
        put(format!("{gap}{}", page(kind, &object)).as_bytes())?;
    }
    Ok(())
}

/// Formats the whole page.
fn page(kind: DescribeResource, object: &Value) -> String {
    let mut out = String::new();
    let metadata = &object["metadata"];
    let (width, namespaced) = match kind {
        DescribeResource::ServiceAccount => (21, true),
        DescribeResource::Namespace => (14, false),
        _ => (14, true),
    };
    line(
        &mut out,
        width,
        "Name",
        metadata["name"].as_str().unwrap_or_default(),
    );
    if namespaced {
        let namespace = metadata["namespace"].as_str().unwrap_or_default();
        line(&mut out, width, "Namespace", namespace);
    }
    pairs(&mut out, width, ("Labels", "="), &metadata["labels"]);
    pairs(
        &mut out,
        width,
        ("Annotations", ": "),
        &metadata["annotations"],
    );
    match kind {
        DescribeResource::ConfigMap => {
            out.push_str("\nData\n====\n");
            for (key, value) in entries(&object["data"]) {
                let text = shown(value.as_str().unwrap_or_default());
                let _ = writeln!(out, "{key}:\n----\n{text}\n");
            }
            out.push_str("\nBinaryData\n====\n");
            for (key, value) in entries(&object["binaryData"]) {
                let _ = writeln!(out, "{key}: {} bytes", decoded_length(value));
            }
            out.push_str("\nEvents:  <none>\n");
        }
        DescribeResource::Secret => {
            let kind = object["type"].as_str().unwrap_or_default();
            let _ = writeln!(out, "\nType:  {}\n\nData\n====", one_line(kind));
            let longest = entries(&object["data"]).map(|(key, _)| key.len()).max();
            let width = longest.unwrap_or(0) + 3;
            for (key, value) in entries(&object["data"]) {
                let key = format!("{key}:");
                let _ = writeln!(out, "{key:<width$}{} bytes", decoded_length(value));
            }
        }
        DescribeResource::ServiceAccount => {
            for key in [
                "Image pull secrets",
                "Mountable secrets",
                "Tokens",
                "Events",
            ] {
                line(&mut out, width, key, "<none>");
            }
        }
        _ => {
            let phase = object["status"]["phase"].as_str().unwrap_or_default();
            line(&mut out, width, "Status", phase);
            out.push_str("\nNo resource quota.\n\nNo LimitRange resource.\n");
        }
    }
    out
}

pub(super) fn line(out: &mut String, width: usize, key: &str, value: &str) {
    let key = format!("{key}:");
    let gap = if key.len() < width { "" } else { "  " };
    let _ = writeln!(out, "{key:<width$}{gap}{}", one_line(value));
}

/// Labels or annotations, one a line.
pub(super) fn pairs(out: &mut String, width: usize, (key, between): (&str, &str), map: &Value) {
    let mut title = format!("{key}:");
    if entries(map).next().is_none() {
        let _ = writeln!(out, "{title:<width$}<none>");
    }
    for (name, value) in entries(map) {
        let text = format!("{name}{between}{}", value.as_str().unwrap_or_default());
        let _ = writeln!(out, "{title:<width$}{}", one_line(&text));
        title.clear();
    }
}

fn entries(map: &Value) -> impl Iterator<Item = (&String, &Value)> {
    map.as_object().into_iter().flatten()
}

/// A value for the terminal: control characters have no effect, and a very long value ends early.
fn shown(text: &str) -> String {
    let boundary = |end: &usize| text.is_char_boundary(*end);
    let end = (0..=text.len().min(MAX_SHOWN))
        .rev()
        .find(boundary)
        .unwrap_or(0);
    let mut shown: String = text[..end]
        .chars()
        .map(|c| match c {
            '\n' | '\t' => c,
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect();
    if end < text.len() {
        let _ = write!(shown, "... ({} bytes)", text.len());
    }
    shown
}

/// The number of bytes that a base64 text stands for.
fn decoded_length(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    let padding = text.bytes().rev().take_while(|b| *b == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pages_are_kubectls() {
        let map = json!({
            "metadata": { "name": "c", "namespace": "default", "labels": { "a": "1", "b": "2" } },
            "data": { "k": "v\u{1b}[1m\nw" },
        });
        assert_eq!(
            page(DescribeResource::ConfigMap, &map),
            "Name:         c\nNamespace:    default\nLabels:       a=1\n              b=2\nAnnotations:  <none>\n\n\
             Data\n====\nk:\n----\nv\u{fffd}[1m\nw\n\n\nBinaryData\n====\n\nEvents:  <none>\n"
        );
        let secret = json!({
            "metadata": { "name": "s", "namespace": "default" }, "type": "Opaque",
            "data": { "pin": "KioqKg==", "password": "" },
        });
        let text = page(DescribeResource::Secret, &secret);
        assert!(
            text.ends_with("Data\n====\npassword:  0 bytes\npin:       4 bytes\n"),
            "{text}"
        );
    }
}
