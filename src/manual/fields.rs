//! What fields of manifests and settings mean: the table behind `coracle explain`, from `fields.txt`.
//!
//! A line `= KIND VERSION NAMES | TEXT` begins a kind of document, `# TYPE | TEXT` an object within one, `@ NAME` a list of
//! names by themselves. The lines below are fields: `NAME[!] TYPE [-SUPPORT-] [{VALUES}] TEXT`; `!` is a field that must be
//! there, `^` the text of the line before. `tests/spec_properties/explained.rs` compares the table with what is read.

/// What the program does with a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// It works.
    Works,
    /// A manifest with it is refused.
    Refused,
    /// It is accepted with a warning.
    Ignored,
    /// It is dropped unread: an API server or the node writes it.
    Dropped,
}

/// A field.
#[derive(Debug, Clone)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its type, as kubectl writes it: `[]Container`.
    pub kind: String,
    /// Whether it must be there.
    pub required: bool,
    /// What is done with it.
    pub support: Support,
    /// The values that it may have, if those are few.
    pub values: Vec<String>,
    /// What it means; of one that is refused, what to use instead.
    pub text: String,
}

/// A kind of document, or an object within one.
#[derive(Debug, Clone, Default)]
pub struct Section {
    /// The kind, or the type's name.
    pub name: String,
    /// Of a kind: its `apiVersion`.
    pub version: Option<String>,
    /// Of a kind: what people call it besides.
    pub names: Vec<String>,
    /// What it is.
    pub text: String,
    /// Its fields.
    pub fields: Vec<Field>,
}

/// The section of annotations.
pub const ANNOTATIONS: &str = "Annotations";
/// The section of settings, whose fields have no types.
pub const SETTINGS: &str = "Settings";

/// The whole table.
pub fn all() -> Vec<Section> {
    let text = super::packed("fields").unwrap_or_default();
    let mut sections: Vec<Section> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (mark, rest) = line.split_at(1);
        if ["=", "#", "@"].contains(&mark) {
            sections.push(section(mark, rest));
        } else if let Some(section) = sections.last_mut() {
            let field = match section.name.as_str() {
                SETTINGS => setting(line),
                _ => field(line, section.fields.last()),
            };
            section.fields.push(field);
        }
    }
    sections
}

fn section(mark: &str, rest: &str) -> Section {
    let (head, text) = rest.split_once(" | ").unwrap_or((rest, ""));
    let mut words = head.split_whitespace().map(str::to_owned);
    Section {
        name: words.next().unwrap_or_default(),
        version: (mark == "=").then(|| words.next()).flatten(),
        names: words.collect(),
        text: text.to_owned(),
        fields: Vec::new(),
    }
}

fn setting(line: &str) -> Field {
    let (name, text) = line.split_once("  ").unwrap_or((line, ""));
    Field {
        name: name.to_owned(),
        kind: String::new(),
        required: false,
        support: Support::Works,
        values: Vec::new(),
        text: text.to_owned(),
    }
}

fn field(line: &str, before: Option<&Field>) -> Field {
    let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
    let (kind, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let mut rest = rest.trim_start();
    let mut values = "";
    let mut support = Support::Works;
    if let Some((inner, after)) = rest.strip_prefix('{').and_then(|r| r.split_once("} ")) {
        (values, rest) = (inner, after.trim_start());
    }
    for (mark, what) in [
        ("-refused- ", Support::Refused),
        ("-ignored- ", Support::Ignored),
        ("-dropped- ", Support::Dropped),
    ] {
        if let Some(after) = rest.strip_prefix(mark) {
            (support, rest) = (what, after);
        }
    }
    let values = values.split(',').filter(|value| !value.is_empty());
    let text = match (rest, before) {
        ("^", Some(before)) => before.text.clone(),
        (text, _) => text.to_owned(),
    };
    Field {
        name: name.trim_end_matches('!').to_owned(),
        kind: kind.to_owned(),
        required: name.ends_with('!'),
        support,
        values: values.map(str::to_owned).collect(),
        text,
    }
}
