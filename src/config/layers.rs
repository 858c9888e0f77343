//! Layers of settings: the settings file, its drop-ins and the flags, each checked by itself. Unknown names, duplicates
//! and wrong types are reported with their position.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::fields::{self, FIELDS, Field, Kind, Role};
use super::values::{self, GoDuration};
use crate::spec::decode::{decode, duplicate_keys};
use crate::spec::error::{Hint, Path as At, Report};
use crate::spec::position::Positions;
use crate::spec::suggest;
use crate::spec::value::Value;
use crate::spec::{parse, position};

/// A value given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// Setting that it sets.
    pub field: &'static str,
    /// Flag as typed, `--pod-cidr`.
    pub flag: &'static str,
    /// Its value.
    pub value: FlagValue,
}

/// Value of a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlagValue {
    /// A string.
    Text(String),
    /// A list of strings.
    Texts(Vec<String>),
    /// Pairs of key and value.
    Pairs(Vec<(String, String)>),
    /// An integer.
    Number(i64),
    /// A flag without a value.
    On,
}

/// Source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The default.
    Default,
    /// A line of a file.
    File {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
    },
    /// The command line.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// An error in the settings.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Layer, line and column, for sorting; line and column are 0 for flags.
    order: (usize, usize, usize),
    /// File or flag.
    source: String,
    /// Message, beginning with `invalid configuration: `.
    message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, line, column) = self.order;
        f.write_str(&self.source)?;
        if line > 0 {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": invalid configuration: {}", self.message)
    }
}

/// A file with its name, or the flags.
#[derive(Debug)]
struct Layer {
    /// `None`: the flags.
    path: Option<PathBuf>,
    text: String,
    value: Value,
}

/// All layers; later ones override earlier ones.
#[derive(Debug, Default)]
pub(super) struct Layers {
    layers: Vec<Layer>,
    flags: Vec<Flag>,
    /// Errors in single layers.
    pub(super) problems: Vec<Problem>,
}

impl Layers {
    /// Takes the files in ascending order of precedence, then the flags.
    pub(super) fn new(files: &[(PathBuf, String)], flags: &[Flag]) -> Self {
        let mut layers = Self {
            flags: flags.to_vec(),
            ..Self::default()
        };
        for (path, text) in files {
            layers.add_file(path, text);
        }
        let mut value = Value::Map(Vec::new());
        for flag in flags {
            let given = match &flag.value {
                FlagValue::Text(text) => Value::String(text.clone()),
                FlagValue::Texts(texts) => {
                    Value::List(texts.iter().cloned().map(Value::String).collect())
                }
                FlagValue::Pairs(pairs) => {
                    let pairs = pairs.iter().cloned();
                    Value::Map(
                        pairs
                            .map(|(key, text)| (key, Value::String(text)))
                            .collect(),
                    )
                }
                FlagValue::Number(number) => Value::Int((*number).into()),
                FlagValue::On => Value::Bool(true),
            };
            put(&mut value, flag.field, given);
        }
        layers.layers.push(Layer {
            path: None,
            text: String::new(),
            value,
        });
        layers
    }

    fn add_file(&mut self, path: &Path, text: &str) {
        let report = Report::new(0);
        let mut value = Value::Null;
        let parsed = parse::text(text.as_bytes()).and_then(parse::parse);
        match parsed {
            Err(problem) => {
                let (line, column) = problem.at.unwrap_or((1, 1));
                self.problems.push(Problem {
                    order: (self.layers.len(), line, column),
                    source: path.display().to_string(),
                    message: match &problem.hint {
                        Some(hint) => format!("{}; {}", problem.message, hint.sentence(None)),
                        None => problem.message,
                    },
                });
            }
            Ok(documents) => {
                let mut documents = documents.into_iter().filter(|value| *value != Value::Null);
                value = documents.next().unwrap_or(Value::Null);
                if documents.next().is_some() {
                    report.error(&At::Root, "must hold one document, not several");
                }
                duplicate_keys(&value, &At::Root, &report);
                check(&value, &At::Root, &report);
            }
        }
        self.layers.push(Layer {
            path: Some(path.to_owned()),
            text: text.to_owned(),
            value,
        });
        let layer = self.layers.len() - 1;
        for problem in report.into_problems() {
            let (line, column) = self.place(layer, &problem.path, problem.occurrence);
            let hint = match &problem.hint {
                // The value may be a password.
                Some(Hint::Quote(_)) if problem.path.starts_with(super::url::HEADER) => {
                    "; put it in quotes".to_owned()
                }
                Some(hint) => format!("; {}", hint.sentence(None)),
                None => String::new(),
            };
            let path_name = match problem.path.is_empty() {
                true => String::new(),
                false => format!("{}: ", problem.path),
            };
            self.problems.push(Problem {
                order: (layer, line, column),
                source: path.display().to_string(),
                message: format!("{path_name}{}{hint}", problem.message),
            });
        }
    }

    fn place(&self, layer: usize, path: &str, occurrence: usize) -> (usize, usize) {
        Positions::find(&self.layers[layer].text, [(0, path)].into_iter()).of(0, path, occurrence)
    }

    /// Creates an error about the settings as a whole, at the position of the first of `paths` that was given.
    pub(super) fn problem(&self, paths: &[&str], message: String) -> Problem {
        let holder = paths
            .iter()
            .find_map(|path| Some((*path, self.holder(path)?)));
        let Some((path, layer)) = holder else {
            return Problem {
                order: (usize::MAX, 0, 0),
                source: "default".to_owned(),
                message,
            };
        };
        let Some(file) = &self.layers[layer].path else {
            return Problem {
                order: (layer, 0, 0),
                source: self.flag(path).unwrap_or_default().to_owned(),
                message,
            };
        };
        let (line, column) = self.place(layer, path, 0);
        Problem {
            order: (layer, line, column),
            source: file.display().to_string(),
            message,
        }
    }

    /// Returns the last layer that sets this path.
    fn holder(&self, path: &str) -> Option<usize> {
        let segments = segments(path);
        self.layers
            .iter()
            .rposition(|layer| at(&layer.value, &segments).is_some())
    }

    fn flag(&self, path: &str) -> Option<&'static str> {
        let flag = self.flags.iter().find(|flag| path.starts_with(flag.field));
        flag.map(|flag| flag.flag)
    }

    /// Returns the origins of the given fields.
    pub(super) fn origins(&self) -> BTreeMap<&'static str, Origin> {
        let mut origins = BTreeMap::new();
        for (index, layer) in self.layers.iter().enumerate() {
            let held = |field: &&Field| self.holder(field.path) == Some(index);
            let fields: Vec<&Field> = FIELDS.iter().filter(held).collect();
            let wanted = fields.iter().map(|field| (0, field.path));
            let places = Positions::find(&layer.text, wanted);
            for field in fields {
                let origin = match &layer.path {
                    Some(file) => Origin::File {
                        path: file.clone(),
                        line: places.of(0, field.path, 0).0,
                    },
                    None => Origin::Flag(self.flag(field.path).unwrap_or_default()),
                };
                origins.insert(field.path, origin);
            }
        }
        origins
    }

    /// Returns the value given to a field. Mappings of several layers are merged, and null (`~`) counts as absent.
    pub(super) fn value(&self, path: &str) -> Option<Value> {
        let segments = segments(path);
        let mut given = None;
        for layer in &self.layers {
            match (at(&layer.value, &segments), &mut given) {
                (None, _) => {}
                (Some(Value::Null), _) => given = None,
                (Some(Value::Map(new)), Some(Value::Map(old))) => {
                    old.retain(|(key, _)| new.iter().all(|(other, _)| other != key));
                    old.extend(new.iter().cloned());
                }
                (Some(value), given) => *given = Some(value.clone()),
            }
        }
        given
    }

    /// Whether any layer sets this path, even to null (`~`).
    pub(super) fn is_given(&self, path: &str) -> bool {
        self.holder(path).is_some()
    }
}

/// `evictionHard[memory.available]` → `evictionHard`, `memory.available`.
fn segments(path: &str) -> Vec<String> {
    let mut all: Vec<&str> = position::ancestors(path)
        .filter(|p| !p.is_empty())
        .collect();
    all.reverse();
    let mut before = "";
    let mut segments = Vec::new();
    for each in all {
        let own = each.strip_prefix(before).unwrap_or(each);
        let own = own.strip_prefix('.').unwrap_or(own);
        let own = own
            .strip_prefix('[')
            .and_then(|own| own.strip_suffix(']'))
            .unwrap_or(own);
        segments.push(own.to_owned());
        before = each;
    }
    segments
}

fn at<'v>(value: &'v Value, segments: &[String]) -> Option<&'v Value> {
    let mut value = value;
    for segment in segments {
        value = match value {
            Value::List(items) => items.get(segment.parse::<usize>().ok()?)?,
            _ => value.get(segment)?,
        };
    }
    Some(value)
}

/// Sets a value at a path of names.
fn put(value: &mut Value, path: &str, given: Value) {
    let Value::Map(entries) = value else { return };
    let (first, rest) = match path.split_once('.') {
        Some((first, rest)) => (first, Some(rest)),
        None => (path, None),
    };
    let found = entries.iter().position(|(key, _)| key == first);
    let index = found.unwrap_or_else(|| {
        entries.push((first.to_owned(), Value::Map(Vec::new())));
        entries.len() - 1
    });
    match rest {
        Some(rest) => put(&mut entries[index].1, rest, given),
        None => entries[index].1 = given,
    }
}

/// Checks a file's mapping.
fn check(value: &Value, path: &At<'_>, report: &Report) {
    let entries = match value {
        Value::Null => return,
        Value::Map(entries) => entries,
        other => {
            let message = format!("must be a mapping, not {}", other.kind());
            let hint = "settings begin with `kind: KubeletConfiguration`".to_owned();
            match path {
                At::Root => report.error_hint(path, message, hint),
                At::Field(..) | At::Index(..) => report.error(path, message),
            }
            return;
        }
    };
    let parent = path.to_string();
    for (key, value) in entries {
        let at = path.field(key);
        let full = match parent.is_empty() {
            true => key.clone(),
            false => format!("{parent}.{key}"),
        };
        match (full.as_str(), fields::find(&full)) {
            ("kind", _) => word(value, "KubeletConfiguration", &at, report),
            ("apiVersion", _) => word(value, "kubelet.config.k8s.io/v1beta1", &at, report),
            (_, Some(field)) => {
                if *value != Value::Null {
                    check_kind(field.kind, value, &at, report);
                }
            }
            (_, None) if !key.contains('.') && !fields::names(&full).is_empty() => {
                check(value, &at, report);
            }
            (_, None) => match suggest::nearest(key, &fields::names(&parent)) {
                Some(near) => {
                    report.error_hint(&at, "unknown field", format!("did you mean `{near}`?"));
                }
                None => report.error_hint(&at, "unknown field", NEWER.to_owned()),
            },
        }
    }
}

/// What an unknown field may mean that is like no other.
const NEWER: &str = "a newer version of coracle, or of the kubelet, may know it";

fn word(value: &Value, wanted: &str, path: &At<'_>, report: &Report) {
    if *value != Value::String(wanted.to_owned()) {
        report.error(path, format_args!("must be `{wanted}`"));
    }
}

fn check_kind(kind: Kind, value: &Value, path: &At<'_>, report: &Report) {
    match kind {
        Kind::Bool => drop(decode::<bool>(value, path, report)),
        Kind::Int => drop(decode::<i32>(value, path, report)),
        Kind::Long => drop(decode::<i64>(value, path, report)),
        Kind::Float => match value {
            Value::Int(_) | Value::Float(_) => {}
            other => report.error(path, format_args!("must be a number, not {}", other.kind())),
        },
        Kind::Text => drop(decode::<String>(value, path, report)),
        Kind::Duration => match value {
            Value::String(text) => {
                if GoDuration::parse(text).is_none() {
                    let message = format!("`{text}` is not a duration like 1m30s");
                    report.error(path, message);
                }
            }
            other => report.error_hint(
                path,
                format_args!("must be a duration like 1m30s, not {}", other.kind()),
                "write it with its unit".to_owned(),
            ),
        },
        Kind::Quantity => match value {
            Value::String(_) | Value::Int(_) | Value::Float(_) => {
                let text = value.scalar_text().unwrap_or_default();
                if let Some(error) = values::quantity(&text).err().filter(|_| !text.is_empty()) {
                    report.invalid(path, text.as_str(), error);
                }
            }
            other => report.error(
                path,
                format_args!("must be a quantity like 10Mi, not {}", other.kind()),
            ),
        },
        Kind::Texts => drop(decode::<Vec<String>>(value, path, report)),
        Kind::TextByName => drop(decode::<BTreeMap<String, String>>(value, path, report)),
        Kind::BoolByName => drop(decode::<BTreeMap<String, bool>>(value, path, report)),
        Kind::Own => match path {
            At::Field(_, "registerWithTaints") => {
                drop(decode::<Vec<super::node::Taint>>(value, path, report));
            }
            At::Field(_, super::url::HEADER) => {
                drop(decode::<super::url::Headers>(value, path, report));
            }
            _ => drop(decode::<Vec<super::shutdown::Period>>(value, path, report)),
        },
        Kind::Any => {}
    }
}

/// Returns a single warning about all given settings without effect, if there are any.
pub(super) fn warning(layers: &Layers, idle_words: Vec<String>) -> Option<String> {
    let given: Vec<&Field> = FIELDS
        .iter()
        .filter(|field| layers.is_given(field.path))
        .collect();
    let names = |wanted: &dyn Fn(&Field) -> bool| {
        let fields = given.iter().filter(|field| wanted(field));
        fields
            .map(|field| field.path.to_owned())
            .collect::<Vec<_>>()
    };
    let mut idle = names(&|field| field.role == Role::Idle);
    idle.extend(idle_words);
    let not_yet = names(&|field| fields::NOT_YET.contains(&field.path));
    let mut parts = Vec::new();
    if !idle.is_empty() {
        parts.push(format!("settings without effect here: {}", idle.join(", ")));
    }
    if !not_yet.is_empty() {
        parts.push(format!(
            "settings that this version does not act on yet: {}",
            not_yet.join(", ")
        ));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}
