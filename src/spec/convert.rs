//! What does this file ask for? Bytes of a manifest file become valid pods, or *all* that is wrong with them.
//!
//! A file counts as a whole: one mistake anywhere and none of its pods is handed out.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;

use super::error::{FieldError, Hint, MAX_ERRORS, Path, Problem, Report};
use super::parse::{parse, text};
use super::pod::PodSpec;
use super::position::Positions;
use super::value::Value;
use super::{assemble, decode, suggest};

pub use super::parse::MAX_BYTES;

/// What a manifest is converted for.
#[derive(Debug, Clone, Copy)]
pub struct ConvertContext<'a> {
    /// The node's name, for `spec.nodeName`.
    pub node_name: &'a str,
}

/// The pods of a manifest file in the order written: YAML or JSON, several documents, `List` and `PodList`.
/// A file without any document is valid and has no pods. `file` is what errors call it.
pub fn documents(
    bytes: &[u8],
    file: &str,
    context: &ConvertContext<'_>,
) -> Result<Vec<PodSpec>, Vec<FieldError>> {
    let text = text(bytes).map_err(|problem| placed(vec![problem], "", file))?;
    let values = parse(text).map_err(|problem| placed(vec![problem], text, file))?;
    let mut pods = Vec::new();
    let mut problems = Vec::new();
    let mut names = BTreeSet::new();
    for (number, mut value) in values.into_iter().enumerate() {
        let report = Report::new(number);
        decode::duplicate_keys(&value, &Path::Root, &report);
        let mut document = Document {
            node_name: Some(context.node_name),
            report: &report,
            pods: Vec::new(),
        };
        document.object(&mut value, &Path::Root, None);
        for (path, pod) in document.pods {
            if !names.insert(pod.key.clone()) {
                let root = Path::Root;
                let below = path.map(|index| (root.field("items"), index));
                let duplicate = |path: &Path<'_>| {
                    report.duplicate(&path.field("metadata").field("name"), &pod.key.name);
                };
                match &below {
                    Some((items, index)) => duplicate(&items.index(*index)),
                    None => duplicate(&root),
                }
            }
            pods.push(pod);
        }
        problems.extend(report.into_problems());
        if problems.len() >= MAX_ERRORS {
            problems.truncate(MAX_ERRORS);
            break;
        }
    }
    if problems.is_empty() {
        Ok(pods)
    } else {
        Err(placed(problems, text, file))
    }
}

/// A pod as it was admitted: reads [`PodSpec::manifest`] back from JSON and gives the identical spec.
pub fn admitted(json: &[u8]) -> Result<PodSpec, Vec<FieldError>> {
    const FILE: &str = "pod.json";
    let text = text(json).map_err(|problem| placed(vec![problem], "", FILE))?;
    let mut values = parse(text).map_err(|problem| placed(vec![problem], text, FILE))?;
    let report = Report::new(0);
    let mut document = Document {
        node_name: None,
        report: &report,
        pods: Vec::new(),
    };
    if let [value] = values.as_mut_slice() {
        document.object(value, &Path::Root, None);
    }
    match document.pods.pop() {
        Some((_, pod)) if document.pods.is_empty() => return Ok(pod),
        _ => {}
    }
    if report.is_clean() {
        report.error(&Path::Root, "must hold exactly one pod");
    }
    Err(placed(report.into_problems(), text, FILE))
}

/// Adds positions and sorts by them.
fn placed(problems: Vec<Problem>, text: &str, file: &str) -> Vec<FieldError> {
    let unplaced = problems.iter().filter(|p| p.at.is_none());
    let mut wanted = unplaced.map(|p| (p.document, p.path.as_str())).peekable();
    let positions = match wanted.peek() {
        Some(_) => Positions::find(text, wanted),
        None => Positions::default(),
    };
    let mut errors: Vec<FieldError> = problems
        .into_iter()
        .map(|problem| {
            let (line, column) = problem.at.unwrap_or_else(|| {
                positions.of(problem.document, &problem.path, problem.occurrence)
            });
            // The tree has lost how a scalar was spelt: `1.10` is to be quoted as "1.10".
            let spelt = positions.scalar(problem.document, &problem.path);
            let hint = match problem.hint {
                Some(Hint::Quote(text)) => {
                    let text = spelt.unwrap_or(&text).replace('"', "\\\"");
                    Some(format!("quote it: \"{text}\""))
                }
                Some(Hint::Text(text)) => Some(text),
                None => None,
            };
            FieldError {
                file: file.to_owned(),
                line,
                column,
                path: problem.path,
                message: problem.message,
                hint,
            }
        })
        .collect();
    errors.sort_by_key(|error| (error.line, error.column));
    errors
}

/// Kinds that a later version reads from the manifest directory.
const LATER: [&str; 7] = [
    "ConfigMap",
    "Secret",
    "PersistentVolumeClaim",
    "PriorityClass",
    "Deployment",
    "DaemonSet",
    "StatefulSet",
];

/// One document being read.
struct Document<'r> {
    /// `None`: the manifest's own.
    node_name: Option<&'r str>,
    report: &'r Report,
    /// Pods with their index in a list, if they are in one.
    pods: Vec<(Option<usize>, PodSpec)>,
}

impl Document<'_> {
    /// Reads one object; `kind` is what items of a typed list are without saying so.
    fn object(&mut self, value: &mut Value, path: &Path<'_>, implied: Option<&str>) {
        if *value == Value::Null {
            return;
        }
        let Value::Map(_) = value else {
            self.report.error_hint(
                path,
                format_args!("must be a mapping, not {}", value.kind()),
                "a manifest begins with `apiVersion: v1` and `kind: Pod`".to_owned(),
            );
            return;
        };
        let word = |key: &str| match value.get(key)? {
            Value::Null => None,
            other => Some(other.scalar_text().unwrap_or_default()),
        };
        let (version, kind) = (word("apiVersion"), word("kind"));
        let kind = kind.or(implied.map(str::to_owned)).unwrap_or_default();
        let version = version.or(implied.map(|_| "v1".to_owned()));
        match kind.as_str() {
            "Pod" | "List" | "PodList" => match version.as_deref() {
                Some("v1") => self.v1(&kind, value, path),
                Some(other) => {
                    self.report
                        .unsupported(&path.field("apiVersion"), other, &["v1"]);
                }
                None => self.report.required(&path.field("apiVersion")),
            },
            "" => self.report.required(&path.field("kind")),
            other => self.refuse_kind(other, path),
        }
    }

    fn v1(&mut self, kind: &str, value: &mut Value, path: &Path<'_>) {
        if kind == "Pod" {
            self.pod(value, path);
            return;
        }
        let implied = (kind == "PodList").then_some("Pod");
        let Value::Map(entries) = value else { return };
        let list = path.field("items");
        let found = entries.iter_mut().rev().find(|(key, _)| key == "items");
        match found.map(|(_, items)| items) {
            Some(Value::List(items)) => {
                for (index, item) in items.iter_mut().enumerate() {
                    let path = list.index(index);
                    let before = self.pods.len();
                    match item.get("kind") {
                        Some(Value::String(kind)) if kind.ends_with("List") => {
                            self.report
                                .forbidden(&path, "a list may not hold another list");
                        }
                        _ => self.object(item, &path, implied),
                    }
                    for (at, _) in &mut self.pods[before..] {
                        *at = Some(index);
                    }
                }
            }
            None | Some(Value::Null) => {}
            Some(other) => {
                let message = format!("must be a list, not {}", other.kind());
                self.report.error(&list, message);
            }
        }
    }

    fn pod(&mut self, value: &mut Value, path: &Path<'_>) {
        // Written by API servers and of no meaning here; not even read.
        value.remove("status");
        if let Value::Map(entries) = value {
            for (_, metadata) in entries.iter_mut().filter(|(key, _)| key == "metadata") {
                for field in ["managedFields", "creationTimestamp", "deletionTimestamp"] {
                    metadata.remove(field);
                }
            }
            // Checked already, and implied in typed lists.
            entries.retain(|(key, _)| key != "apiVersion" && key != "kind");
        }
        let Some(pod) = decode::decode::<Pod>(value, path, self.report) else {
            return;
        };
        let own = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let node_name = self.node_name.map(str::to_owned).or(own);
        let node_name = node_name.unwrap_or_default();
        if let Some(pod) = assemble::pod(pod, &node_name, path, self.report) {
            self.pods.push((None, pod));
        }
    }

    fn refuse_kind(&self, kind: &str, path: &Path<'_>) {
        let at = path.field("kind");
        if LATER.contains(&kind) {
            let message = format!("{kind} is not supported yet by this version; only v1 Pod is");
            self.report.error(&at, message);
        } else if let Some(near) =
            suggest::nearest(kind, &["Pod", "List"]).filter(|_| kind.len() > 1)
        {
            let message = format!("{kind} is not supported; only v1 Pod is");
            let hint = format!("did you mean `{near}`?");
            self.report.error_hint(&at, message, hint);
        } else {
            let message = format!("{kind} is not supported; only v1 Pod is");
            self.report.error(&at, message);
        }
    }
}
