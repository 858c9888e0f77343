//! Output of settings: as a KubeletConfiguration that is valid input, with the origin of each value.

use serde_json::{Map, Value as Json, json};

use super::fields::FIELDS;
use super::load::{Effective, Shown};
use crate::spec::value::Value;
use crate::types::Gather;

/// Converts a value to JSON.
fn json(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(b) => Json::Bool(*b),
        Value::Int(i) => i64::try_from(*i).map_or(Json::Null, Json::from),
        Value::Float(f) => Json::from(*f),
        Value::String(text) => Json::String(text.clone()),
        Value::List(items) => Json::Array(items.iter().map(json).collect()),
        Value::Map(entries) => {
            let entries = entries
                .iter()
                .map(|(key, value)| (key.clone(), json(value)));
            Json::Object(entries.gather())
        }
    }
}

/// Returns the fields in order: path, value, origin.
fn rows(effective: &Effective) -> impl Iterator<Item = (&'static str, &Shown)> {
    let shown = |path| Some((path, effective.shown.get(path)?));
    FIELDS.iter().filter_map(move |field| shown(field.path))
}

/// Returns `{"kubeletconfig": {…}, "coracle": {"origins": {…}}}`, as for `/configz`.
pub fn as_json(effective: &Effective) -> Json {
    let mut config = json!({
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
    });
    let mut origins = Map::new();
    for (path, shown) in rows(effective) {
        let value = public(path, &shown.value);
        let (parents, own) = split(path);
        let mut inner = &mut config;
        for parent in parents.split('.').filter(|parent| !parent.is_empty()) {
            inner = &mut inner[parent];
        }
        inner[own] = value;
        origins.insert(path.to_owned(), shown.origin.to_string().into());
    }
    json!({ "kubeletconfig": config, "coracle": { "origins": origins } })
}

/// Returns a setting's value without what gives access: the values of headers, and the queries of URLs.
pub(super) fn public(path: &str, value: &Value) -> Json {
    let mut shown = json(value);
    match path {
        super::url::HEADER => mask(&mut shown),
        super::url::URL | super::bundle::SOURCE => mask_query(&mut shown),
        _ => {}
    }
    shown
}

/// The names around a field, separated by dots, and its own.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}

/// Hides the values of headers: one may be a password.
fn mask(headers: &mut Json) {
    let all = headers.as_object_mut().into_iter().flatten();
    for (_, values) in all {
        let values = values.as_array_mut().into_iter().flatten();
        values.for_each(|value| *value = super::url::MASK.into());
    }
}

/// Hides the query of a URL: it may give access.
fn mask_query(url: &mut Json) {
    let shown = url.as_str().filter(|text| text.starts_with("http"));
    if let Some((public, _)) = shown.and_then(|text| text.split_once(['?', '#'])) {
        *url = format!("{public}?{}", super::url::MASK).into();
    }
}

/// Column of the comments, if there is room.
const COLUMN: usize = 48;

/// Formats YAML with a comment at each setting, from the result of [`as_json`].
pub fn as_yaml(shown: &Json) -> String {
    let mut text =
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n".to_owned();
    let (config, details) = (&shown["kubeletconfig"], &shown["coracle"]);
    let mut open = "";
    for field in FIELDS {
        let value = field
            .path
            .split('.')
            .try_fold(config, |at, name| at.get(name));
        let Some(value) = value else { continue };
        let (parents, name) = split(field.path);
        let depth = enter(&mut text, open, parents);
        open = parents;
        let indent = "  ".repeat(depth);
        let mut comment = details["origins"][field.path]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        if let Some(then) = details["pending"][field.path].as_str() {
            comment = format!("{comment}; from the next start on {then}");
        }
        setting(&mut text, &indent, name, value, &comment);
    }
    text
}

/// Opens the mappings on the way from the names around one setting to those around the next. Returns how many there are.
fn enter(text: &mut String, from: &str, to: &str) -> usize {
    let mut before = from.split('.');
    let mut common = true;
    let mut depth = 0;
    for name in to.split('.').filter(|name| !name.is_empty()) {
        common &= before.next() == Some(name);
        if !common {
            text.push_str(&format!("{}{name}:\n", "  ".repeat(depth)));
        }
        depth += 1;
    }
    depth
}

fn setting(text: &mut String, indent: &str, name: &str, value: &Json, comment: &str) {
    let mut lines = match value {
        Json::Object(entries) if !entries.is_empty() => {
            let entries = entries.iter();
            let each = entries.map(|(key, value)| {
                format!(
                    "{indent}  {}: {}",
                    scalar(&key.as_str().into()),
                    scalar(value)
                )
            });
            let mut lines = vec![format!("{indent}{name}:")];
            lines.extend(each);
            lines
        }
        Json::Array(items) if !items.is_empty() => {
            let mut lines = vec![format!("{indent}{name}:")];
            // JSON is valid YAML, and keeps each item on one line.
            lines.extend(
                items
                    .iter()
                    .map(|item| format!("{indent}- {}", scalar(item))),
            );
            lines
        }
        single => vec![format!("{indent}{name}: {}", scalar(single))],
    };
    let pad = COLUMN.saturating_sub(lines[0].chars().count()).max(1);
    lines[0] = format!("{}{:pad$}# {comment}", lines[0], "");
    for line in lines {
        text.push_str(&line);
        text.push('\n');
    }
}

/// Formats plain words unquoted, all else as JSON, which is valid YAML.
fn scalar(value: &Json) -> String {
    let plain = |text: &str| {
        let word = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        let reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
        text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
            && text.chars().all(word)
            && !reserved.contains(&text.to_ascii_lowercase().as_str())
    };
    let measure = |text: &str| {
        let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
        let units = ["ms", "s", "m", "h", "m0s", "Ki", "Mi", "Gi", "%"];
        unit.len() < text.len() && units.contains(&unit)
    };
    match value.as_str() {
        Some(text) if plain(text) || measure(text) => text.to_owned(),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::reload;
    use super::super::tests::{good, problems};
    use super::*;

    #[test]
    fn the_query_of_a_url_is_not_shown() {
        for (url, expected) in [
            ("https://a/site.tar", "https://a/site.tar"),
            (
                "https://a/site.tar?token=secret",
                "https://a/site.tar?<masked>",
            ),
            ("http://a?b#c", "http://a?<masked>"),
            ("oci://a/site:3", "oci://a/site:3"),
            ("", ""),
        ] {
            let mut shown = Json::from(url);
            mask_query(&mut shown);
            assert_eq!(shown, expected);
        }
    }

    #[test]
    fn what_gives_access_is_not_shown_in_force_nor_pending() {
        let secrets = "staticPodURL: 'https://a/pods?token=sesame'\n\
                       staticPodURLHeader: {Authorization: [Bearer sesame]}\n\
                       coracle: {bundle: {source: 'https://a/site.tar?token=sesame', interval: 1m}}\n";
        let after = good(secrets);
        let again = reload(&good(""), after.clone());
        assert_eq!(again.pending.len(), 4, "{:?}", again.pending);
        let pending: Vec<String> = (again.pending.iter())
            .map(|(path, then)| format!("{path}: {then}"))
            .collect();
        for shown in [
            pending.join("\n"),
            as_json(&after).to_string(),
            as_yaml(&as_json(&after)),
        ] {
            assert!(!shown.contains("sesame"), "{shown}");
            assert_eq!(shown.matches("<masked>").count(), 3, "{shown}");
        }
    }

    #[test]
    fn errors_do_not_show_the_values_of_headers() {
        for wrong in [
            "staticPodURLHeader: {Key: [8675309]}\n",
            "staticPodURLHeader: {'Key: 8675309': []}\n",
            "staticPodURLHeader: {Key: [\"8675309\\u0001\"]}\n",
            "staticPodURLHeader: {Key: 8675309}\n",
            "staticPodURLHeader: [8675309]\n",
        ] {
            let told = problems(wrong).join("\n");
            assert!(told.contains("staticPodURLHeader"), "{told}");
            assert!(!told.contains("8675309"), "{told}");
        }
    }
}
