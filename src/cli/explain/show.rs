//! The pages of `explain`: kubectl's layout, or JSON.

use serde_json::{Value, json};

use super::super::sheet::Sheet;
use super::Found;
use super::table::Table;
use crate::manual::fields::{Field, Section, Support};
use crate::types::InOrder;

/// The width of a line, as kubectl's.
const WIDTH: usize = 80;

/// The kinds that can be explained.
pub(super) fn kinds(table: &Table) -> String {
    let mut sheet = Sheet::default();
    sheet.line(0, ["NAMES", "APIVERSION", "KIND"]);
    for kind in table.0.iter().filter(|kind| super::spec_reads(kind)) {
        if let Some(version) = &kind.version {
            sheet.line(0, [&kind.names.join(","), version, &kind.name]);
        }
    }
    sheet.render()
}

/// A page like kubectl's.
pub(super) fn page(table: &Table, found: &Found<'_>, recursive: bool) -> String {
    let version = found.kind.version.as_deref().unwrap_or_default();
    let mut page = String::new();
    let version = match version.split_once('/') {
        Some((group, version)) => {
            page += &format!("GROUP:      {group}\n");
            version
        }
        None => version,
    };
    page += &format!("KIND:       {}\nVERSION:    {version}\n\n", found.kind.name);
    if let Some(field) = found.field {
        page += &format!("FIELD: {} <{}>{}\n", field.name, field.kind, mark(field));
        if !field.values.is_empty() {
            page += "ENUM:\n";
            let values = field.values.iter();
            page.extend(values.map(|value| format!("    {value}\n")));
        } else {
            page.push('\n');
        }
        page.push('\n');
    }
    page += &format!("DESCRIPTION:\n{}\n", wrapped(&description(found), 4));
    if let Some(section) = found.below {
        page += "FIELDS:\n";
        list(table, section, 1, recursive, &mut page);
        page.push('\n');
    }
    page
}

fn list(table: &Table, section: &Section, level: usize, recursive: bool, page: &mut String) {
    for field in sorted(section) {
        let indent = level * 2;
        let required = if field.required { " -required-" } else { "" };
        *page += &format!(
            "{:indent$}{}\t<{}>{required}{}\n",
            "",
            field.name,
            field.kind,
            mark(field)
        );
        if !field.values.is_empty() {
            let shown = field.values.iter().take(4).map(String::as_str);
            let more = if field.values.len() > 4 { ", ...." } else { "" };
            let shown: Vec<&str> = shown.collect();
            *page += &format!("{:indent$}enum: {}{more}\n", "", shown.join(", "));
        }
        if !recursive {
            *page += &format!("{}\n", wrapped(&said(field), indent + 2));
        } else if let Some(below) = table.below(field) {
            list(table, below, level + 1, true, page);
        }
    }
}

fn sorted(section: &Section) -> Vec<&Field> {
    let mut fields: Vec<&Field> = section.fields.iter().collect();
    fields.order_by_key(|field| &field.name);
    fields
}

fn mark(field: &Field) -> &'static str {
    match field.support {
        Support::Works => "",
        Support::Refused => " -refused-",
        Support::Ignored => " -ignored-",
        Support::Dropped => " -dropped-",
    }
}

/// What is said about a field.
fn said(field: &Field) -> String {
    let what = match field.support {
        Support::Works => "",
        Support::Refused => "Refused by this version. ",
        Support::Ignored => "Accepted with a warning, and without effect. ",
        Support::Dropped => "Accepted, and dropped. ",
    };
    format!("{what}{}", field.text)
}

/// What is said about the field, and about what it holds.
fn description(found: &Found<'_>) -> String {
    let field = found.field.map(said);
    let below = found.below.map(|section| section.text.clone());
    let parts = field.into_iter().chain(below);
    let mut parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
    parts.dedup();
    parts.join("\n")
}

/// Text in lines of at most [`WIDTH`] columns.
fn wrapped(text: &str, indent: usize) -> String {
    let mut lines = String::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split(' ') {
            if !line.is_empty() && indent + line.chars().count() + 1 + word.chars().count() > WIDTH
            {
                lines += &format!("{:indent$}{line}\n", "");
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line += word;
        }
        lines += &format!("{:indent$}{line}\n", "");
    }
    lines
}

/// The same as JSON.
pub(super) fn json(table: &Table, found: &Found<'_>, recursive: bool) -> String {
    let mut page = match found.field {
        Some(field) => object(field),
        None => json!({}),
    };
    page["kind"] = found.kind.name.as_str().into();
    page["apiVersion"] = found.kind.version.as_deref().into();
    page["description"] = description(found).into();
    if let Some(section) = found.below {
        page["fields"] = objects(table, section, recursive);
    }
    format!("{page:#}\n")
}

fn objects(table: &Table, section: &Section, recursive: bool) -> Value {
    let fields = sorted(section).into_iter().map(|field| {
        let mut shown = object(field);
        if let Some(below) = table.below(field).filter(|_| recursive) {
            shown["fields"] = objects(table, below, true);
        }
        shown
    });
    Value::Array(fields.collect())
}

fn object(field: &Field) -> Value {
    let support = mark(field).trim_matches([' ', '-']);
    let support = if support.is_empty() { "works" } else { support };
    json!({
        "name": field.name,
        "type": field.kind,
        "required": field.required,
        "support": support,
        "enum": field.values,
        "description": field.text,
    })
}
