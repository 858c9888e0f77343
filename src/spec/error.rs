//! What is wrong, and where? Everything found wrong in a manifest, collected instead of stopping at the first.
//!
//! While a document is read, problems carry a path only; [`super::position`] adds line and column at the end, so that
//! a file without errors never pays for positions.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

/// More errors than this are not collected from one file.
pub(crate) const MAX_ERRORS: usize = 200;

/// One thing that is wrong in a manifest file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct FieldError {
    /// The file, as the caller named it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Field path inside the document, e.g. `spec.containers[0].image`; empty if the error is about no field.
    pub path: String,
    /// What is wrong, in the API server's words where it has some.
    pub message: String,
    /// How to mend it.
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

/// Where in a document: a linked list on the stack, made into text only when something is wrong.
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
    /// The path of a field below this one.
    pub(crate) fn field(&'a self, name: &'a str) -> Path<'a> {
        Path::Field(self, name)
    }

    /// The path of a list item below this one.
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

/// The path of field `name` below `parent`; keys that are no plain identifiers are put in brackets.
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

/// How to mend a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hint {
    /// A sentence.
    Text(String),
    /// Put this scalar in quotes, as it is spelt in the file if that is known.
    Quote(String),
}

impl Hint {
    /// The advice, with the scalar as it is spelt in the file if that is known.
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

/// One problem before its position is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Which document of the file, from 0.
    pub(crate) document: usize,
    /// Field path.
    pub(crate) path: String,
    /// For duplicate keys: which of them, from 0.
    pub(crate) occurrence: usize,
    /// What is wrong.
    pub(crate) message: String,
    /// How to mend it.
    pub(crate) hint: Option<Hint>,
    /// Line and column, where the parser already told them.
    pub(crate) at: Option<(usize, usize)>,
}

/// Collects problems and warnings of one document.
#[derive(Debug, Default)]
pub(crate) struct Report {
    document: usize,
    problems: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<String>>,
    /// Where the pod being read stands in its document; warnings are kept with the pod and name paths inside it.
    base: RefCell<String>,
    /// Paths about which nothing more is said, because the cause was reported already.
    settled: RefCell<BTreeSet<String>>,
    /// The document was valid once: what this version does not support is no problem of it.
    admitted: bool,
}

impl Report {
    /// An empty report about the document of that number.
    pub(crate) fn new(document: usize) -> Self {
        Self {
            document,
            ..Self::default()
        }
    }

    /// An empty report about a pod that runs. A version that supports less than the one that admitted it leaves it be.
    pub(crate) fn admitted() -> Self {
        Self {
            admitted: true,
            ..Self::default()
        }
    }

    /// Whether something inside this field is wrong: then that it lacks something has its cause there.
    pub(crate) fn is_wrong_below(&self, path: &Path<'_>) -> bool {
        let path = path.to_string();
        let problems = self.problems.borrow();
        problems.iter().any(|problem| {
            let below = problem.path.strip_prefix(path.as_str());
            below.is_some_and(|below| below.starts_with(['.', '[']))
        })
    }

    /// Ends collecting.
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        self.problems.into_inner()
    }

    /// Whether nothing is wrong so far.
    pub(crate) fn is_clean(&self) -> bool {
        self.problems.borrow().is_empty()
    }

    /// The warnings so far, and an empty list for the next pod.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        self.warnings.take()
    }

    /// From now on warnings are about the object at this path.
    pub(crate) fn begin(&self, path: &Path<'_>) {
        self.base.replace(path.to_string());
        self.warnings.borrow_mut().clear();
    }

    /// Says that a field is accepted without effect.
    pub(crate) fn warn(&self, path: &Path<'_>, message: impl fmt::Display) {
        let path = path.to_string();
        let inside = path.strip_prefix(self.base.borrow().as_str());
        let inside = inside.unwrap_or(&path).trim_start_matches('.');
        self.warnings
            .borrow_mut()
            .push(format!("{inside}: {message}"));
    }

    /// Says nothing more about this path and what is below it: what is wrong there was said, or has its cause
    /// elsewhere.
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

    /// Adds the problem that a number or boolean stands where a string must.
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

    /// [`Self::invalid`] of a path, with advice where it is one of another system.
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

    /// `Forbidden: detail`, about what Kubernetes has and this version does not; `instead` says what to do.
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
