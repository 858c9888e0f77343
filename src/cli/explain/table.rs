//! The table of fields as `explain` walks it: with the settings, and what all kinds have.

use crate::config::{FIELDS, SettingKind, SettingRole};
use crate::manual::fields::{self, ANNOTATIONS, Field, SETTINGS, Section, Support};

/// The kind of the settings.
pub(super) const SETTINGS_KIND: &str = "KubeletConfiguration";

/// Limit of how deep fields are looked for.
const MAX_DEPTH: usize = 8;

pub(super) struct Table(pub(super) Vec<Section>);

impl Table {
    pub(super) fn load() -> Self {
        let mut sections = fields::all();
        let texts = sections.iter().position(|s| s.name == SETTINGS);
        let texts = texts
            .map(|at| sections.remove(at).fields)
            .unwrap_or_default();
        for section in &mut sections {
            let Some(version) = &section.version else {
                continue;
            };
            let (version, kind) = (format!("`{version}`."), format!("`{}`.", section.name));
            section.fields.push(string("apiVersion", version));
            section.fields.push(string("kind", kind));
        }
        sections.extend(settings(&texts));
        Self(sections)
    }

    /// The kind that is called this.
    pub(super) fn kind(&self, word: &str) -> Option<&Section> {
        let mut kinds = self.0.iter().filter(|section| section.version.is_some());
        kinds.find(|kind| {
            let mut names = kind.names.iter().chain([&kind.name]);
            names.any(|name| name.eq_ignore_ascii_case(word))
        })
    }

    /// What kinds are called.
    pub(super) fn words(&self) -> Vec<&str> {
        let kinds = self.0.iter().filter(|section| section.version.is_some());
        kinds
            .flat_map(|kind| kind.names.iter().chain([&kind.name]))
            .map(String::as_str)
            .collect()
    }

    /// The fields of a field.
    pub(super) fn below(&self, field: &Field) -> Option<&Section> {
        let kind = field.kind.trim_start_matches("map[string]");
        let kind = match field.name.as_str() {
            "annotations" => ANNOTATIONS,
            _ if field.support != Support::Works => return None,
            _ => kind.trim_start_matches("[]"),
        };
        self.0.iter().find(|section| section.name == kind)
    }

    /// The shortest path to a field of this name below a section.
    pub(super) fn path_to(&self, section: &Section, name: &str) -> Option<String> {
        let mut level = vec![(section, String::new())];
        for _ in 0..MAX_DEPTH {
            let mut next = Vec::new();
            for (section, path) in level {
                for field in &section.fields {
                    let path = format!("{path}{}", field.name);
                    if field.name == name {
                        return Some(path);
                    }
                    if let Some(below) = self.below(field) {
                        next.push((below, path + "."));
                    }
                }
            }
            level = next;
        }
        None
    }

    /// Settings that have no text, and texts of no setting.
    #[cfg(test)]
    pub(super) fn settings_without_text() -> (Vec<String>, Vec<String>) {
        let sections = fields::all();
        let texts = &sections.iter().find(|s| s.name == SETTINGS).unwrap().fields;
        let missing = FIELDS.iter().filter(|field| {
            field.role != SettingRole::Idle && !texts.iter().any(|t| t.name == field.path)
        });
        let strange = texts.iter().filter(|text| {
            !FIELDS
                .iter()
                .any(|f| f.path == text.name && f.role != SettingRole::Idle)
        });
        (
            missing.map(|field| field.path.to_owned()).collect(),
            strange.map(|text| text.name.clone()).collect(),
        )
    }
}

fn string(name: &str, text: String) -> Field {
    Field {
        name: name.to_owned(),
        kind: "string".to_owned(),
        required: true,
        support: Support::Works,
        values: Vec::new(),
        text,
    }
}

/// The settings as a kind, with a section for each object in them.
fn settings(texts: &[Field]) -> Vec<Section> {
    let mut sections = vec![Section {
        name: SETTINGS_KIND.to_owned(),
        version: Some("kubelet.config.k8s.io/v1beta1".to_owned()),
        names: vec!["config".to_owned(), "settings".to_owned()],
        text: "The settings of the node, in /etc/coracle/config.yaml (`coracle help settings`)."
            .to_owned(),
        fields: Vec::new(),
    }];
    for field in FIELDS {
        let mut at = 0;
        let mut rest = field.path;
        while let Some((outer, inner)) = rest.split_once('.') {
            at = nested(&mut sections, at, outer);
            rest = inner;
        }
        let text = texts.iter().find(|text| text.name == field.path);
        let text = text.map_or("", |text| &text.text);
        let default = match field.default {
            "" | "\"\"" => String::new(),
            _ if text.contains("Default: ") => String::new(),
            default => format!(" Default: {default}."),
        };
        let (support, when) = match field.role {
            SettingRole::Live => (Support::Works, " A change counts at once."),
            SettingRole::Start => (
                Support::Works,
                " A change counts at the next start of the agent.",
            ),
            SettingRole::Idle => (
                Support::Ignored,
                "It is one of a kubelet with an API server.",
            ),
        };
        let stop = if text.is_empty() || text.ends_with('.') {
            ""
        } else {
            "."
        };
        sections[at].fields.push(Field {
            name: rest.to_owned(),
            kind: kind(field.kind).to_owned(),
            required: false,
            support,
            values: Vec::new(),
            text: format!("{text}{stop}{default}{when}"),
        });
    }
    sections
}

/// The section of an object in the settings.
fn nested(sections: &mut Vec<Section>, parent: usize, name: &str) -> usize {
    let (first, rest) = name.split_at(1);
    let above = match parent {
        0 => "",
        _ => sections[parent].name.as_str(),
    };
    let kind = format!("{above}{}{rest}", first.to_ascii_uppercase());
    if let Some(at) = sections.iter().position(|section| section.name == kind) {
        return at;
    }
    sections[parent].fields.push(Field {
        name: name.to_owned(),
        kind: kind.clone(),
        required: false,
        support: Support::Works,
        values: Vec::new(),
        text: match name {
            "coracle" => "Settings that only coracle has.".to_owned(),
            _ => format!("Settings of `{name}`."),
        },
    });
    sections.push(Section {
        name: kind,
        ..Section::default()
    });
    sections.len() - 1
}

fn kind(kind: SettingKind) -> &'static str {
    match kind {
        SettingKind::Bool => "boolean",
        SettingKind::Int | SettingKind::Long => "integer",
        SettingKind::Float => "number",
        SettingKind::Text => "string",
        SettingKind::Duration => "Duration",
        SettingKind::Quantity => "Quantity",
        SettingKind::Texts => "[]string",
        SettingKind::TextByName => "map[string]string",
        SettingKind::BoolByName => "map[string]boolean",
        SettingKind::Any | SettingKind::Own => "Object",
    }
}
