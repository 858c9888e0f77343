//! kubectl's columns of an event.

use k8s_openapi::api::core::v1::{Event, ObjectReference};
use k8s_openapi::jiff::Timestamp;

use super::pod_columns::age_of;

/// Titles of all columns.
pub const TITLES: [&str; 10] = [
    "LAST SEEN",
    "TYPE",
    "REASON",
    "OBJECT",
    "SUBOBJECT",
    "SOURCE",
    "MESSAGE",
    "FIRST SEEN",
    "COUNT",
    "NAME",
];

/// Indices of the columns that are shown if the output is not wide.
pub const NARROW: [usize; 5] = [0, 1, 2, 3, 6];

/// Returns the cells of all columns.
pub fn row(event: &Event, now: Timestamp) -> [String; 10] {
    let about = &event.involved_object;
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    let source = event.source.clone().unwrap_or_default();
    let mut from = text(&source.component);
    if let Some(host) = source.host.filter(|host| !host.is_empty()) {
        from = format!("{from}, {host}");
    }
    [
        age_of(event.last_timestamp.as_ref().map(|t| t.0), now),
        text(&event.type_),
        text(&event.reason),
        object(about),
        text(&about.field_path),
        from,
        text(&event.message).trim().to_owned(),
        age_of(event.first_timestamp.as_ref().map(|t| t.0), now),
        event.count.unwrap_or(1).to_string(),
        text(&event.metadata.name),
    ]
}

/// Formats `pod/web`, or `pod/web{main}` for a container: messages like kubectl's `Pulled` do not name it.
fn object(about: &ObjectReference) -> String {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    let container = container(about).map_or_else(String::new, |name| format!("{{{name}}}"));
    format!(
        "{}/{}{container}",
        text(&about.kind).to_lowercase(),
        text(&about.name)
    )
}

/// Returns the container of an event, from a `fieldPath` like `spec.containers{main}`.
pub fn container(about: &ObjectReference) -> Option<&str> {
    let path = about.field_path.as_deref()?;
    path.split_once('{')?.1.strip_suffix('}')
}

/// Formats when an event occurred: `3m`, or `3m (x5 over 10m)` if more than once.
pub fn interval(event: &Event, now: Timestamp) -> String {
    let age = |t: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
        age_of(t.as_ref().map(|t| t.0), now)
    };
    let last = age(&event.last_timestamp);
    match event.count.unwrap_or(1) {
        count if count > 1 => {
            format!("{last} (x{count} over {})", age(&event.first_timestamp))
        }
        _ => last,
    }
}
