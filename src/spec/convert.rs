//! Conversion of a manifest file: bytes become valid pods and services, or the list of *all* errors.
//!
//! A file is all or nothing: a single error rejects all its documents.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{EphemeralContainer, Pod, Service};
use k8s_openapi::api::scheduling::v1::PriorityClass;

use super::configuration::{self, Configuration, Object, ObjectKind};
use super::encrypted::Opened;
use super::error::{FieldError, MAX_ERRORS, Path, Problem, Report};
use super::parse::{parse, text};
use super::pod::{PodKey, PodSpec, Protocol};
use super::pod_security::PodSecurity;
use super::position::Positions;
use super::priority::{self, Known, PriorityClasses};
use super::service::ServiceDocument;
use super::value::Value;
use super::workload::cron::{self, Zones};
use super::workload::{self, Workload, WorkloadKey, WorkloadKind};
use super::{assemble, cluster_token, decode, default, ephemeral, kinds, service_rules, syntax};
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

/// Converts a manifest file: YAML or JSON, several documents, `List` and the lists of one kind. A file without
/// documents is valid. `file` is its name in errors.
pub fn documents(
    bytes: &[u8],
    file: &str,
    context: &ConvertContext<'_>,
) -> Result<Documents, Vec<FieldError>> {
    documents_beside(bytes, file, context, None)
}

/// Like [`documents`]; pods may also use the priority classes of other files, if those are known.
pub fn documents_beside(
    bytes: &[u8],
    file: &str,
    context: &ConvertContext<'_>,
    classes: Option<&PriorityClasses>,
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
    let known = Known {
        own: &own,
        others: classes,
    };
    for (number, mut value) in values.into_iter().enumerate() {
        let report = Report::new(number);
        decode::duplicate_keys(&value, &Path::Root, &report);
        let mut document = Document::new(Some(context.node_name), known, &report);
        document.pod_security = context.pod_security;
        document.opened = context.opened;
        document.zones = context.zones;
        document.before = result.pods.len();
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
        skipped.extend(report.take_skipped());
        problems.extend(report.into_problems());
        if problems.len() >= MAX_ERRORS {
            problems.truncate(MAX_ERRORS);
            break;
        }
    }
    if context.strict || result.is_empty() {
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
    let own = PriorityClasses::new();
    let known = Known {
        own: &own,
        others: None,
    };
    let mut document = Document::new(None, known, &report);
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

/// A document during conversion.
struct Document<'r> {
    /// `None`: keep the manifest's node name.
    node_name: Option<&'r str>,
    known: Known<'r>,
    /// The level that pods may not exceed.
    pod_security: PodSecurity,
    opened: &'r Opened,
    zones: &'r Zones,
    report: &'r Report,
    /// Pods with their index, if they are items of a list.
    pods: Vec<(Option<usize>, PodSpec)>,
    /// Services with their index, if they are items of a list.
    services: Vec<(Option<usize>, ServiceDocument)>,
    /// Priority classes with their index, if they are items of a list.
    classes: Vec<(Option<usize>, PriorityClass)>,
    /// Configuration documents with their index, if they are items of a list.
    objects: Vec<(Option<usize>, Object)>,
    /// Documents that stand for pods, with their index, if they are items of a list.
    workloads: Vec<(Option<usize>, Workload)>,
    /// Of documents that are no pods or services.
    warnings: Vec<String>,
    /// How many pods there are in earlier documents of the file.
    before: usize,
}

impl<'r> Document<'r> {
    fn new(node_name: Option<&'r str>, known: Known<'r>, report: &'r Report) -> Self {
        Self {
            node_name,
            known,
            pod_security: PodSecurity::Privileged,
            opened: &NOTHING_OPENED,
            zones: &NO_ZONES,
            report,
            pods: Vec::new(),
            services: Vec::new(),
            classes: Vec::new(),
            objects: Vec::new(),
            workloads: Vec::new(),
            warnings: Vec::new(),
            before: 0,
        }
    }

    /// Converts one object; `implied` is the kind of items in a typed list.
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
        let version = version.or(implied.map(|kind| {
            let of = WorkloadKind::of(kind);
            of.map_or("v1", WorkloadKind::version).to_owned()
        }));
        let single = kind.strip_suffix("List").unwrap_or(&kind);
        match kind.as_str() {
            "Pod" | "Service" | "List" | "PodList" | "ServiceList" => {
                if self.is_version(value, version.as_deref(), "v1", path) {
                    self.v1(&kind, value, path);
                }
            }
            "PriorityClass" => {
                if self.is_version(value, version.as_deref(), "scheduling.k8s.io/v1", path) {
                    self.class(value, path);
                }
            }
            "" => kinds::nameless(value, path, self.report),
            _ if ObjectKind::of(single).is_some() => {
                if self.is_version(value, version.as_deref(), "v1", path) {
                    self.v1(&kind, value, path);
                }
            }
            _ => match WorkloadKind::of(single) {
                Some(of)
                    if version
                        .as_deref()
                        .is_some_and(|given| of.has_version(given))
                        || self.is_version(value, version.as_deref(), of.version(), path) =>
                {
                    match single == kind {
                        true => self.workload(of, value, path),
                        false => self.v1(&kind, value, path),
                    }
                }
                Some(_) => {}
                None => {
                    let version = version.unwrap_or_default();
                    kinds::refuse(&kind, &version, path, self.report);
                }
            },
        }
    }

    fn is_version(
        &self,
        value: &Value,
        given: Option<&str>,
        wanted: &str,
        path: &Path<'_>,
    ) -> bool {
        match given {
            Some(given) if given == wanted => return true,
            Some(other) => {
                let at = path.field("apiVersion");
                self.report.unsupported(&at, other, &[wanted]);
            }
            None => {
                let advice = format!("write `apiVersion: {wanted}`");
                kinds::missing(value, "apiVersion", &advice, path, self.report);
            }
        }
        false
    }

    fn class(&mut self, value: &mut Value, path: &Path<'_>) {
        bare(value);
        let Some(class) = decode::decode::<PriorityClass>(value, path, self.report) else {
            return;
        };
        if let Some(class) = priority::class(class, path, self.report) {
            self.classes.push((None, class));
        }
    }

    fn v1(&mut self, kind: &str, value: &mut Value, path: &Path<'_>) {
        let implied = match kind {
            "Pod" => return self.pod(value, path),
            "Service" => return self.service(value, path),
            "List" => None,
            other => match ObjectKind::of(other) {
                Some(kind) => return self.configuration(kind, value, path),
                None => other.strip_suffix("List"),
            },
        };
        let Value::Map(entries) = value else { return };
        let list = path.field("items");
        let found = entries.iter_mut().rev().find(|(key, _)| key == "items");
        match found.map(|(_, items)| items) {
            Some(Value::List(items)) => {
                for (index, item) in items.iter_mut().enumerate() {
                    let path = list.index(index);
                    let before = (self.pods.len(), self.services.len(), self.classes.len());
                    let objects_before = self.objects.len();
                    let workloads_before = self.workloads.len();
                    match item.get("kind") {
                        Some(Value::String(kind)) if kind.ends_with("List") => {
                            self.report
                                .forbidden(&path, "a list may not hold another list");
                        }
                        _ => self.object(item, &path, implied),
                    }
                    for (at, _) in &mut self.pods[before.0..] {
                        *at = Some(index);
                    }
                    for (at, _) in &mut self.services[before.1..] {
                        *at = Some(index);
                    }
                    for (at, _) in &mut self.classes[before.2..] {
                        *at = Some(index);
                    }
                    for (at, _) in &mut self.objects[objects_before..] {
                        *at = Some(index);
                    }
                    for (at, _) in &mut self.workloads[workloads_before..] {
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

    fn configuration(&mut self, kind: ObjectKind, value: &mut Value, path: &Path<'_>) {
        bare(value);
        self.report.begin(path);
        if let Some(object) = configuration::object(kind, value, self.opened, path, self.report) {
            self.objects.push((None, object));
        }
        self.warnings.append(&mut self.report.take_warnings());
    }

    fn service(&mut self, value: &mut Value, path: &Path<'_>) {
        bare(value);
        let Some(service) = decode::decode::<Service>(value, path, self.report) else {
            return;
        };
        if let Some(service) = service_rules::service(service, path, self.report) {
            self.services.push((None, service));
        }
    }

    /// Makes the pods that a document stands for.
    fn workload(&mut self, kind: WorkloadKind, value: &mut Value, path: &Path<'_>) {
        bare(value);
        if kind == WorkloadKind::CronJob {
            return self.cron_job(value, path);
        }
        let Some(mut template) = workload::read(kind, value, path, self.report) else {
            return;
        };
        let at = path.field("spec");
        let at = at.field("template");
        let Some((pod, _)) = self.decoded(&mut template.pod, &at) else {
            return;
        };
        let Some(made) = workload::make(template, pod, path, self.report) else {
            return;
        };
        let wanted = made.workload.pods.len();
        if self.before + self.pods.len() + wanted > MAX_PODS {
            let message = format_args!("more than {MAX_PODS} pods in one file");
            self.report.error(&path.field("spec"), message);
            return;
        }
        for (number, pod) in made.pods.into_iter().enumerate() {
            let assembled = self.assembled(pod, Vec::new(), &at);
            let Some(mut pod) = assembled else {
                // The others would have the same errors.
                return;
            };
            if number > 0 {
                pod.warnings.clear();
            }
            if number < wanted {
                self.pods.push((None, pod));
            }
        }
        self.objects
            .extend(made.claims.into_iter().map(|claim| (None, claim)));
        self.workloads.push((None, made.workload));
    }

    /// Checks the Job that a document makes at set times by one of them.
    fn cron_job(&mut self, value: &mut Value, path: &Path<'_>) {
        let found = cron::read(value, self.zones, path, self.report);
        let Some((draft, mut job)) = found else {
            return;
        };
        let at = path.field("spec");
        let at = at.field("jobTemplate");
        let read = workload::read(WorkloadKind::Job, &mut job, &at, self.report);
        let Some(mut template) = read else { return };
        let at_pod = at.field("spec");
        let at_pod = at_pod.field("template");
        let Some((pod, _)) = self.decoded(&mut template.pod, &at_pod) else {
            return;
        };
        let made = workload::make(template, pod, &at, self.report);
        let Some((job, pod)) =
            made.and_then(|made| Some((made.workload, made.pods.into_iter().next()?)))
        else {
            return;
        };
        if let Some(mut first) = self.assembled(pod, Vec::new(), &at_pod) {
            self.warnings.append(&mut first.warnings);
            self.workloads.push((None, draft.finish(job, first)));
        }
    }

    fn pod(&mut self, value: &mut Value, path: &Path<'_>) {
        if let Some((pod, added)) = self.decoded(value, path)
            && let Some(pod) = self.assembled(pod, added, path)
        {
            self.pods.push((None, pod));
        }
    }

    /// A pod with its defaults, and its ephemeral containers.
    fn decoded(
        &mut self,
        value: &mut Value,
        path: &Path<'_>,
    ) -> Option<(Pod, Vec<EphemeralContainer>)> {
        let conditions = value.get("status").and_then(|s| s.get("conditions"));
        let conditions = conditions.cloned();
        bare(value);
        // Conditions are the only part of a status that may be written on purpose.
        if let (Some(conditions), Value::Map(fields)) = (conditions, &mut *value) {
            let kept = vec![("conditions".to_owned(), conditions)];
            fields.push(("status".to_owned(), Value::Map(kept)));
        }
        let mut pod = decode::decode::<Pod>(value, path, self.report)?;
        // Warnings from here on are about this pod.
        self.report.begin(path);
        if let Some(spec) = &mut pod.spec {
            cluster_token::leave_out(spec, &path.field("spec"), self.report);
            priority::resolve(spec, self.known, &path.field("spec"), self.report);
        }
        let mut added = Vec::new();
        if self.node_name.is_none()
            && let Some(spec) = &mut pod.spec
        {
            added = spec.ephemeral_containers.take().unwrap_or_default();
        }
        let own = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        if let (Some(here), Some(other)) = (self.node_name, &own)
            && !here.is_empty()
            && !other.is_empty()
            && here != other
        {
            let what = format_args!("accepted, but what this node reads it runs itself, as {here}");
            self.report
                .warn(&path.field("spec").field("nodeName"), what);
        }
        let node_name = self.node_name.map(str::to_owned).or(own);
        default::pod(&mut pod, &node_name.unwrap_or_default());
        Some((pod, added))
    }

    fn assembled(
        &mut self,
        pod: Pod,
        added: Vec<EphemeralContainer>,
        path: &Path<'_>,
    ) -> Option<PodSpec> {
        if let Some(refusal) = self.pod_security.refusal(&pod) {
            self.report.error(path, refusal);
        }
        let pod = assemble::pod(pod, path, self.report)?;
        if added.is_empty() {
            return Some(pod);
        }
        let at = path.field("spec");
        let at = at.field("ephemeralContainers");
        Some(ephemeral::checked(&pod, &added, &at, self.report))
    }
}

/// Drops, unread, what API servers write and what has no meaning here.
fn bare(value: &mut Value) {
    value.remove("status");
    if let Value::Map(entries) = value {
        for (_, metadata) in entries.iter_mut().filter(|(key, _)| key == "metadata") {
            for field in ["managedFields", "creationTimestamp", "deletionTimestamp"] {
                metadata.remove(field);
            }
        }
    }
}
