//! Conversion of a manifest file: bytes become valid pods and services, or the list of *all* errors.
//!
//! A file is all or nothing: a single error rejects all its documents.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::scheduling::v1::PriorityClass;

use super::configuration::Configuration;
use super::document::{Document, bare};
use super::encrypted::Opened;
use super::error::{FieldError, MAX_ERRORS, Path, Problem, Report};
use super::owned::Makers;
use super::parse::{parse, text};
use super::pod::{PodKey, PodSpec, Protocol};
use super::pod_security::PodSecurity;
use super::position::Positions;
use super::priority::{self, Known, Others, PriorityClasses};
use super::service::ServiceDocument;
use super::value::Value;
use super::workload::cron::Zones;
use super::workload::{Workload, WorkloadKey};
use super::{decode, syntax};
use crate::types::InOrder;

pub use super::parse::MAX_BYTES;

/// Facts about the node that the conversion needs.
#[derive(Debug, Clone, Copy)]
pub struct ConvertContext<'a> {
    /// Node name, for `spec.nodeName`.
    pub node_name: &'a str,
    /// The level that pods may not exceed.
    pub pod_security: PodSecurity,
    /// What became of the encrypted contents of the file's Secrets.
    pub opened: &'a Opened,
    /// The time zones that the file names.
    pub zones: &'a Zones,
    /// No document is passed over: of a kind that is not read, it is an error beside others, too.
    pub strict: bool,
    /// The documents were admitted once, maybe by a version that checks less: they go on.
    pub admitted: bool,
}

/// Limit of pods in one file: a few lines may stand for many.
pub const MAX_PODS: usize = 10_000;

/// No encrypted content was decrypted.
static NOTHING_OPENED: Opened = Opened::new();

/// No time zone is known.
static NO_ZONES: Zones = Zones::new();

impl<'a> ConvertContext<'a> {
    /// Facts about a node of that name that allows everything to pods.
    pub const fn of(node_name: &'a str) -> Self {
        Self {
            node_name,
            pod_security: PodSecurity::Privileged,
            opened: &NOTHING_OPENED,
            zones: &NO_ZONES,
            strict: false,
            admitted: false,
        }
    }
}

impl Documents {
    /// Whether there is none.
    fn is_empty(&self) -> bool {
        let none = self.pods.is_empty() && self.services.is_empty() && self.workloads.is_empty();
        none && self.priority_classes.is_empty() && self.configuration.is_empty()
    }
}

/// The objects of a manifest file, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Documents {
    /// Pods with unique names.
    pub pods: Vec<PodSpec>,
    /// Services with unique names and node ports.
    pub services: Vec<ServiceDocument>,
    /// Priority classes with unique names, at most one of them the default.
    pub priority_classes: Vec<PriorityClass>,
    /// Documents that stand for pods; their pods are among `pods`.
    pub workloads: Vec<Workload>,
    /// ConfigMaps, Secrets, service accounts and namespaces.
    pub configuration: Configuration,
    /// Fields of other documents than pods and services that mean nothing here, and documents of kinds that are not read
    /// and were passed over: sentences for people, with the file.
    pub warnings: Vec<String>,
}

impl Documents {
    /// Returns all warnings, each once, with the object they are about.
    pub fn all_warnings(&self) -> Vec<String> {
        let of_pod = |pod: &PodSpec| match &pod.workload {
            Some(workload) => format!("{workload}: spec.template."),
            None => format!("pod {}: ", pod.key),
        };
        let pods = self.pods.iter().filter(|pod| !pod.warnings.is_empty());
        let pods = pods.flat_map(|pod| {
            let of = of_pod(pod);
            pod.warnings.iter().map(move |what| format!("{of}{what}"))
        });
        let services = self.services.iter().flat_map(|service| {
            let key = &service.spec.key;
            let warnings = service.spec.warnings.iter();
            warnings.map(move |what| format!("service {key}: {what}"))
        });
        let mut all: Vec<String> = Vec::new();
        // The pods of one template say the same.
        for warning in pods.chain(services).chain(self.warnings.iter().cloned()) {
            if all.last() != Some(&warning) && !all.contains(&warning) {
                all.push(warning);
            }
        }
        all
    }
}

/// Converts a manifest file: YAML or JSON, several documents, `List` and the lists of one kind. A file without
/// documents is valid. `file` is its name in errors.
pub fn documents(
    bytes: &[u8],
    file: &str,
    context: &ConvertContext<'_>,
) -> Result<Documents, Vec<FieldError>> {
    let none = PriorityClasses::new();
    documents_beside(bytes, file, context, Others::Some(&none))
}

/// Like [`documents`]; pods may also use the priority classes of other files.
pub fn documents_beside(
    bytes: &[u8],
    file: &str,
    context: &ConvertContext<'_>,
    others: Others<'_>,
) -> Result<Documents, Vec<FieldError>> {
    let text = text(bytes).map_err(|problem| placed(vec![problem], "", file))?;
    let values = parse(text).map_err(|problem| placed(vec![problem], text, file))?;
    let mut result = Documents::default();
    let mut problems = Vec::new();
    let mut skipped = Vec::new();
    let mut seen = Seen::default();
    // A class may come after the pods that use it.
    let mut own = PriorityClasses::new();
    values
        .iter()
        .for_each(|value| find_classes(value, &mut own));
    let known = Known { own: &own, others };
    let mut makers = Makers::default();
    values.iter().for_each(|value| makers.find(value));
    for (number, mut value) in values.into_iter().enumerate() {
        let report = match context.admitted {
            true => Report::admitted(),
            false => Report::new(number),
        };
        if decode::two_documents(&value, &report) {
            problems.extend(report.into_problems());
            continue;
        }
        decode::duplicate_keys(&value, &Path::Root, &report);
        let of = (Some(context.node_name), context);
        let mut document = Document::new(of, (known, &makers), result.pods.len(), &report);
        document.object(&mut value, &Path::Root, None);
        for (index, pod) in document.pods {
            let again = !seen.pods.insert(pod.key.clone());
            at(index, |path| {
                if again {
                    report.duplicate(&path.field("metadata").field("name"), &pod.key.name);
                }
            });
            result.pods.push(pod);
        }
        for (index, service) in document.services {
            at(index, |path| seen.service(&service, path, &report));
            result.services.push(service);
        }
        for (index, class) in document.classes {
            at(index, |path| seen.class(&class, path, &report));
            result.priority_classes.push(class);
        }
        let warned = document.warnings.into_iter();
        result
            .warnings
            .extend(warned.map(|warning| format!("{file}: {warning}")));
        for (index, workload) in document.workloads {
            let again = !seen.workloads.insert(workload.key.clone());
            at(index, |path| {
                if again {
                    let name = path.field("metadata");
                    report.duplicate(&name.field("name"), &workload.key.name);
                }
            });
            result.workloads.push(workload);
        }
        for (index, object) in document.objects {
            let name = object.key().name;
            if !result.configuration.insert(Arc::new(object)) {
                at(index, |path| {
                    report.duplicate(&path.field("metadata").field("name"), &name);
                });
            }
        }
        for claim in document.claims {
            let name = claim.key().name;
            if !result.configuration.insert_of_template(Arc::new(claim)) {
                report.duplicate(&Path::Root.field("metadata").field("name"), &name);
            }
        }
        skipped.extend(report.take_skipped());
        problems.extend(report.into_problems());
        if problems.len() >= MAX_ERRORS {
            problems.truncate(MAX_ERRORS);
            break;
        }
    }
    // Beside documents with mistakes they are passed over, too, once those are mended.
    if context.strict || result.is_empty() && problems.is_empty() {
        problems.append(&mut skipped);
    }
    if problems.is_empty() {
        let skipped = placed(skipped, text, file).into_iter();
        result
            .warnings
            .extend(skipped.map(|error| error.to_string()));
        Ok(result)
    } else {
        Err(placed(problems, text, file))
    }
}

/// Calls `then` with the path of a document, or of an item of it.
fn at(index: Option<usize>, then: impl FnOnce(&Path<'_>)) {
    let root = Path::Root;
    match index {
        Some(index) => then(&root.field("items").index(index)),
        None => then(&root),
    }
}

/// Names and ports used by earlier objects of the file.
#[derive(Debug, Default)]
struct Seen {
    pods: BTreeSet<PodKey>,
    workloads: BTreeSet<WorkloadKey>,
    services: BTreeSet<PodKey>,
    node_ports: BTreeMap<(Protocol, u16), PodKey>,
    classes: BTreeSet<String>,
    default_class: Option<String>,
}

impl Seen {
    fn service(&mut self, service: &ServiceDocument, path: &Path<'_>, report: &Report) {
        let key = &service.spec.key;
        if !self.services.insert(key.clone()) {
            report.duplicate(&path.field("metadata").field("name"), &key.name);
            return;
        }
        let ports = path.field("spec");
        let ports = ports.field("ports");
        for (index, port) in service.spec.ports.iter().enumerate() {
            let Some(number) = port.node_port else {
                continue;
            };
            let old = self.node_ports.insert((port.protocol, number), key.clone());
            if let Some(old) = old.filter(|old| old != key) {
                let detail = format_args!("provided port is already allocated, by service {old}");
                report.invalid(&ports.index(index).field("nodePort"), number, detail);
            }
        }
    }
}

impl Seen {
    fn class(&mut self, class: &PriorityClass, path: &Path<'_>, report: &Report) {
        let name = class.metadata.name.clone().unwrap_or_default();
        if !self.classes.insert(name.clone()) {
            report.duplicate(&path.field("metadata").field("name"), &name);
        }
        if !priority::is_default(class) {
            return;
        }
        if let Some(other) = self.default_class.replace(name) {
            let detail = format_args!(
                "PriorityClass {other} is already marked as default. Only one default can exist"
            );
            report.forbidden(&path.field("globalDefault"), detail);
        }
    }
}

/// Collects the priority classes of a document or of a list's items; errors are reported later, when they are
/// converted.
fn find_classes(value: &Value, found: &mut PriorityClasses) {
    if value.get("kind") == Some(&Value::String("PriorityClass".to_owned())) {
        let (mut value, silent) = (value.clone(), Report::new(0));
        bare(&mut value);
        let class = decode::decode::<PriorityClass>(&value, &Path::Root, &silent);
        let class = class.and_then(|class| priority::class(class, &Path::Root, &silent));
        if let Some(class) = class {
            found.insert(class.metadata.name.clone().unwrap_or_default(), class);
        }
    }
    if let Some(Value::List(items)) = value.get("items") {
        items.iter().for_each(|item| find_classes(item, found));
    }
}

/// Restores an admitted pod: converts the JSON of [`PodSpec::manifest`] back to the identical spec.
pub fn admitted(json: &[u8]) -> Result<PodSpec, Vec<FieldError>> {
    const FILE: &str = "pod.json";
    let text = text(json).map_err(|problem| placed(vec![problem], "", FILE))?;
    let mut values = parse(text).map_err(|problem| placed(vec![problem], text, FILE))?;
    let report = Report::admitted();
    let none = PriorityClasses::new();
    let known = Known {
        own: &none,
        others: Others::Some(&none),
    };
    let (context, makers) = (ConvertContext::of(""), Makers::default());
    let mut document = Document::new((None, &context), (known, &makers), 0, &report);
    if let [value] = values.as_mut_slice() {
        document.object(value, &Path::Root, None);
    }
    match document.pods.pop() {
        Some((_, mut pod)) if document.pods.is_empty() => {
            pod.restore_pins();
            return Ok(pod);
        }
        _ => {}
    }
    if report.is_clean() {
        report.error(&Path::Root, "must hold exactly one pod");
    }
    Err(placed(report.into_problems(), text, FILE))
}

/// Adds positions to errors and sorts them.
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
            // The tree does not preserve how a scalar was spelled: `1.10` must be quoted as "1.10".
            let spelt = positions.scalar(problem.document, &problem.path);
            let hint = problem.hint.map(|hint| hint.sentence(spelt)).or_else(|| {
                let advice = spelt.and_then(syntax::placeholder)?;
                Some(advice.to_owned())
            });
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
    errors.order_by_key(|error| (error.line, error.column));
    errors
}
