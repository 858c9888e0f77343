//! Errors of a manifest: all of them are collected instead of stopping at the first.
//!
//! While a document is read, problems carry a path only; [`super::position`] adds line and column at the end, so a file
//! without errors does not pay for positions.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

/// Limit of errors collected from one file.
pub(crate) const MAX_ERRORS: usize = 200;

/// An error in a manifest file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct FieldError {
    /// File name as given by the caller.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Field path inside the document, e.g. `spec.containers[0].image`; empty if the error is not about a field.
    pub path: String,
    /// Message, in the API server's words where it has some.
    pub message: String,
    /// Advice how to fix it.
    pub hint: Option<String>,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

/// A path in a document: a linked list on the stack, which becomes text only for errors.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Path<'a> {
    /// The document itself.
    Root,
    /// A field of a mapping.
    Field(&'a Path<'a>, &'a str),
    /// An item of a list.
    Index(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    /// Returns the path of a field below this one.
    pub(crate) fn field(&'a self, name: &'a str) -> Path<'a> {
        Path::Field(self, name)
    }

    /// Returns the path of a list item below this one.
    pub(crate) fn index(&'a self, index: usize) -> Path<'a> {
        Path::Index(self, index)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Field(parent, name) => {
                let parent = parent.to_string();
                f.write_str(&join(&parent, name))
            }
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Returns the path of field `name` below `parent`; keys that are not plain identifiers are put in brackets.
pub(crate) fn join(parent: &str, name: &str) -> String {
    let plain = !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    match (parent.is_empty(), plain) {
        (true, true) => name.to_owned(),
        (false, true) => format!("{parent}.{name}"),
        (_, false) => format!("{parent}[{name}]"),
    }
}

/// Advice how to fix a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hint {
    /// A sentence.
    Text(String),
    /// Put this scalar in quotes, as it is spelled in the file if that is known.
    Quote(String),
}

impl Hint {
    /// Returns the advice, with the scalar as it is spelled in the file if that is known.
    pub(crate) fn sentence(&self, spelt: Option<&str>) -> String {
        match self {
            Self::Quote(text) => {
                let text = spelt.unwrap_or(text).replace('"', "\\\"");
                format!("quote it: \"{text}\"")
            }
            Self::Text(text) => text.clone(),
        }
    }
}

/// A problem whose position is not known yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Index of the document in the file.
    pub(crate) document: usize,
    /// Field path.
    pub(crate) path: String,
    /// Index among duplicate keys.
    pub(crate) occurrence: usize,
    /// Message.
    pub(crate) message: String,
    /// Advice.
    pub(crate) hint: Option<Hint>,
    /// Line and column, if the parser reported them.
    pub(crate) at: Option<(usize, usize)>,
}

/// Collected problems and warnings of one document.
#[derive(Debug, Default)]
pub(crate) struct Report {
    document: usize,
    problems: RefCell<Vec<Problem>>,
    /// Documents that are passed over if the file has others.
    skipped: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<String>>,
    /// Path of the current pod in its document; warnings are stored with the pod and name paths inside it.
    base: RefCell<String>,
    /// Paths without further reports, because the cause was reported already.
    settled: RefCell<BTreeSet<String>>,
    /// The document was admitted once: fields that this version does not support are not errors.
    admitted: bool,
}

impl Report {
    /// Creates an empty report about the document with that index.
    pub(crate) fn new(document: usize) -> Self {
        Self {
            document,
            ..Self::default()
        }
    }

    /// Creates an empty report about an admitted pod. It tolerates fields that this version does not support.
    pub(crate) fn admitted() -> Self {
        Self {
            admitted: true,
            ..Self::default()
        }
    }

    /// Whether this is about an admitted pod, which goes on whatever is wrong with it by now.
    pub(crate) fn is_admitted(&self) -> bool {
        self.admitted
    }

    /// Whether something inside this field is wrong, which may be why it lacks something.
    pub(crate) fn is_wrong_below(&self, path: &Path<'_>) -> bool {
        let path = path.to_string();
        let problems = self.problems.borrow();
        problems.iter().any(|problem| {
            let below = problem.path.strip_prefix(path.as_str());
            below.is_some_and(|below| below.starts_with(['.', '[']))
        })
    }

    /// Returns the problems.
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        self.problems.into_inner()
    }

    /// Takes the documents that are passed over if the file has others.
    pub(crate) fn take_skipped(&self) -> Vec<Problem> {
        self.skipped.take()
    }

    /// Whether there are no problems so far.
    pub(crate) fn is_clean(&self) -> bool {
        self.problems.borrow().is_empty()
    }

    /// Takes the warnings so far; the next pod starts with an empty list.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        self.warnings.take()
    }

    /// Makes following warnings about the object at this path.
    pub(crate) fn begin(&self, path: &Path<'_>) {
        self.base.replace(path.to_string());
        self.warnings.borrow_mut().clear();
    }

    /// Adds a warning that a field is accepted without effect.
    pub(crate) fn warn(&self, path: &Path<'_>, message: impl fmt::Display) {
        let path = path.to_string();
        let inside = path.strip_prefix(self.base.borrow().as_str());
        let inside = inside.unwrap_or(&path).trim_start_matches('.');
        self.warnings
            .borrow_mut()
            .push(format!("{inside}: {message}"));
    }

    /// Suppresses further problems at this path and below: they were reported, or have their cause elsewhere.
    pub(crate) fn settle(&self, path: &Path<'_>) {
        self.settled.borrow_mut().insert(path.to_string());
    }

    /// Adds a problem.
    pub(crate) fn error(&self, path: &Path<'_>, message: impl fmt::Display) {
        self.push(path, 0, message.to_string(), None);
    }

    /// Adds a problem with advice.
    pub(crate) fn error_hint(&self, path: &Path<'_>, message: impl fmt::Display, hint: String) {
        self.push(path, 0, message.to_string(), Some(Hint::Text(hint)));
    }

    /// Notes that a document is passed over if the file has others.
    pub(crate) fn skip(&self, path: &Path<'_>, message: impl fmt::Display, hint: String) {
        self.skipped.borrow_mut().push(Problem {
            document: self.document,
            path: path.to_string(),
            occurrence: 0,
            message: message.to_string(),
            hint: Some(Hint::Text(hint)),
            at: None,
        });
    }

    /// Adds the problem that a number or boolean is used for a string.
    pub(crate) fn unquoted(&self, path: &Path<'_>, kind: &str, text: &str) {
        let message = format!("must be a string, not {kind}");
        self.push(path, 0, message, Some(Hint::Quote(text.to_owned())));
    }

    /// Adds the problem that a key occurs again.
    pub(crate) fn duplicate_key(&self, path: &Path<'_>, occurrence: usize) {
        self.push(
            path,
            occurrence,
            "duplicate key: given more than once in this mapping".to_owned(),
            None,
        );
    }

    /// Adds the problem that another document begins at this key's second occurrence.
    pub(crate) fn second_document(&self, path: &Path<'_>) {
        let hint = "write `---` on a line of its own before it".to_owned();
        let message = "another document begins here".to_owned();
        self.push(path, 1, message, Some(Hint::Text(hint)));
    }

    /// `Required value`
    pub(crate) fn required(&self, path: &Path<'_>) {
        self.error(path, "Required value");
    }

    /// `Invalid value: "x": detail`; give strings as `&str` so that they are quoted.
    pub(crate) fn invalid(
        &self,
        path: &Path<'_>,
        value: impl fmt::Debug,
        detail: impl fmt::Display,
    ) {
        self.error(path, format_args!("Invalid value: {value:?}: {detail}"));
    }

    /// Like [`Self::invalid`] for a path, with advice if it looks like one of another system.
    pub(crate) fn invalid_path(&self, path: &Path<'_>, value: &str, detail: impl fmt::Display) {
        let message = format!("Invalid value: {value:?}: {detail}");
        if super::names::is_foreign_path(value) {
            let hint = "this node runs Linux, where a path looks like `/var/data`";
            self.error_hint(path, message, hint.to_owned());
        } else {
            self.error(path, message);
        }
    }

    /// `Unsupported value: "x": supported values: "A", "B"`, with a suggestion if one is near.
    pub(crate) fn unsupported(&self, path: &Path<'_>, value: &str, supported: &[&str]) {
        let list: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        let message = format!(
            "Unsupported value: {value:?}: supported values: {}",
            list.join(", ")
        );
        let hint = super::suggest::nearest(value, supported)
            .map(|near| Hint::Text(format!("did you mean `{near}`?")));
        self.push(path, 0, message, hint);
    }

    /// `Duplicate value: "x"`
    pub(crate) fn duplicate(&self, path: &Path<'_>, value: impl fmt::Debug) {
        self.error(path, format_args!("Duplicate value: {value:?}"));
    }

    /// `Forbidden: detail`
    pub(crate) fn forbidden(&self, path: &Path<'_>, detail: impl fmt::Display) {
        self.error(path, format_args!("Forbidden: {detail}"));
    }

    /// `Forbidden: detail`, for what Kubernetes has and this version does not; `instead` is the advice.
    pub(crate) fn refuse(&self, path: &Path<'_>, detail: impl fmt::Display, instead: &str) {
        if !self.admitted {
            self.error_hint(
                path,
                format_args!("Forbidden: {detail}"),
                instead.to_owned(),
            );
        }
    }

    /// `Not found: "x"`
    pub(crate) fn not_found(&self, path: &Path<'_>, value: &str) {
        self.error(path, format_args!("Not found: {value:?}"));
    }

    fn push(&self, path: &Path<'_>, occurrence: usize, message: String, hint: Option<Hint>) {
        let mut problems = self.problems.borrow_mut();
        if problems.len() >= MAX_ERRORS {
            return;
        }
        let path = path.to_string();
        let settled = self.settled.borrow();
        if super::position::ancestors(&path).any(|above| settled.contains(above)) {
            return;
        }
        problems.push(Problem {
            document: self.document,
            path,
            occurrence,
            message,
            hint,
            at: None,
        });
    }
}
