//! One document of a manifest file, or the items of a list: its objects, with the errors of all of them.

use k8s_openapi::api::core::v1::{EphemeralContainer, Pod, Service};
use k8s_openapi::api::scheduling::v1::PriorityClass;

use super::configuration::{self, Object, ObjectKind};
use super::convert::{ConvertContext, MAX_PODS};
use super::encrypted::Opened;
use super::error::{Path, Report};
use super::owned::Makers;
use super::pod::PodSpec;
use super::pod_security::PodSecurity;
use super::priority::{Asked, Known};
use super::service::ServiceDocument;
use super::value::Value;
use super::workload::cron::{self, Zones};
use super::workload::{self, Workload, WorkloadKind};
use super::{
    annotations, assemble, cluster_token, decode, default, ephemeral, kinds, priority,
    service_rules,
};

/// A document during conversion.
pub(super) struct Document<'r> {
    /// `None`: keep the manifest's node name.
    node_name: Option<&'r str>,
    known: Known<'r>,
    /// The documents of the file that stand for pods.
    makers: &'r Makers,
    /// The level that pods may not exceed.
    pod_security: PodSecurity,
    opened: &'r Opened,
    zones: &'r Zones,
    report: &'r Report,
    /// Pods with their index, if they are items of a list.
    pub(super) pods: Vec<(Option<usize>, PodSpec)>,
    /// Services with their index, if they are items of a list.
    pub(super) services: Vec<(Option<usize>, ServiceDocument)>,
    /// Priority classes with their index, if they are items of a list.
    pub(super) classes: Vec<(Option<usize>, PriorityClass)>,
    /// Configuration documents with their index, if they are items of a list.
    pub(super) objects: Vec<(Option<usize>, Object)>,
    /// The claims that templates ask for.
    pub(super) claims: Vec<Object>,
    /// Documents that stand for pods, with their index, if they are items of a list.
    pub(super) workloads: Vec<(Option<usize>, Workload)>,
    /// Of documents that are no pods or services.
    pub(super) warnings: Vec<String>,
    /// How many pods there are in earlier documents of the file.
    before: usize,
}

/// A pod with its defaults.
struct Decoded {
    pod: Pod,
    /// Its ephemeral containers.
    added: Vec<EphemeralContainer>,
    /// Its priority as it is written.
    asked: Asked,
}

impl<'r> Document<'r> {
    /// A document that is about to be read. `node_name`: `None` keeps the manifest's; `before`: how many pods there are in
    /// earlier documents of the file.
    pub(super) fn new(
        (node_name, context): (Option<&'r str>, &ConvertContext<'r>),
        (known, makers): (Known<'r>, &'r Makers),
        before: usize,
        report: &'r Report,
    ) -> Self {
        Self {
            node_name,
            known,
            makers,
            pod_security: context.pod_security,
            opened: context.opened,
            zones: context.zones,
            report,
            pods: Vec::new(),
            services: Vec::new(),
            classes: Vec::new(),
            objects: Vec::new(),
            claims: Vec::new(),
            workloads: Vec::new(),
            warnings: Vec::new(),
            before,
        }
    }

    /// Converts one object; `implied` is the kind of items in a typed list.
    pub(super) fn object(&mut self, value: &mut Value, path: &Path<'_>, implied: Option<&str>) {
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
        // Custom kinds may have the names of built-in ones, such as Knative's `Service`.
        let known = kinds::READ.contains(&kind.as_str()) || kinds::READ.contains(&single);
        if let Some(version) = version.as_deref().filter(|v| known && kinds::is_custom(v)) {
            return kinds::passed_over(&kind, version, &path.field("kind"), self.report);
        }
        if let Some(maker) = self.makers.of(&kind, value) {
            let at = path.field("metadata");
            let message = format!("{maker} makes it by itself");
            let advice = "remove this document".to_owned();
            return self
                .report
                .skip(&at.field("ownerReferences"), message, advice);
        }
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
        let object = configuration::object(kind, value, self.opened, path, self.report);
        if let Some(object) = object {
            self.warned(&object.key().short());
            self.objects.push((None, object));
        }
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
        // About the document; the others are its pods'.
        self.annotated(value, path, &template.title());
        let at = path.field("spec");
        let at = at.field("template");
        let Some(Decoded { pod, asked, .. }) = self.decoded(&mut template.pod, &at) else {
            return;
        };
        template.asked = asked;
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
            // One copy in memory.
            pod.workload = pod.workload.map(|_| made.workload.key.clone());
            pod.key = made.workload.pods.get(number).cloned().unwrap_or(pod.key);
            if number < wanted {
                self.pods.push((None, pod));
            }
        }
        self.claims.extend(made.claims);
        self.workloads.push((None, made.workload));
    }

    /// Checks the Job that a document makes at set times by one of them.
    fn cron_job(&mut self, value: &mut Value, path: &Path<'_>) {
        let found = cron::read(value, self.zones, path, self.report);
        let Some((draft, mut job)) = found else {
            return;
        };
        let of = draft.key().to_string();
        self.annotated(value, path, &of);
        let at = path.field("spec");
        let at = at.field("jobTemplate");
        let read = workload::read(WorkloadKind::Job, &mut job, &at, self.report);
        let Some(mut template) = read else { return };
        let at_pod = at.field("spec");
        let at_pod = at_pod.field("template");
        let Some(Decoded { pod, asked, .. }) = self.decoded(&mut template.pod, &at_pod) else {
            return;
        };
        template.asked = asked;
        let made = workload::make(template, pod, &at, self.report);
        let Some((job, pod)) =
            made.and_then(|made| Some((made.workload, made.pods.into_iter().next()?)))
        else {
            return;
        };
        if let Some(mut first) = self.assembled(pod, Vec::new(), &at_pod) {
            let warnings = first.warnings.drain(..);
            let of_template =
                warnings.map(|what| format!("{of}: spec.jobTemplate.spec.template.{what}"));
            self.warnings.extend(of_template);
            self.workloads.push((None, draft.finish(job, first)));
        }
    }

    /// Checks the annotations of a document that stands for pods, and keeps the warnings about it.
    fn annotated(&mut self, value: &Value, path: &Path<'_>, of: &str) {
        let metadata = value.get("metadata");
        let hook = metadata.and_then(|m| m.get("annotations")?.get(assemble::HOOK));
        if hook.is_some() {
            assemble::warn_of_hook(&path.field("metadata"), self.report);
        }
        annotations::check_workload(value, path, self.report);
        self.warned(of);
    }

    /// Keeps the warnings so far, which are about this object.
    fn warned(&mut self, of: &str) {
        let warnings = self.report.take_warnings().into_iter();
        self.warnings
            .extend(warnings.map(|what| format!("{of}: {what}")));
    }

    fn pod(&mut self, value: &mut Value, path: &Path<'_>) {
        if let Some(Decoded { pod, added, .. }) = self.decoded(value, path)
            && let Some(pod) = self.assembled(pod, added, path)
        {
            self.pods.push((None, pod));
        }
    }

    fn decoded(&mut self, value: &mut Value, path: &Path<'_>) -> Option<Decoded> {
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
        let mut asked = Asked::default();
        if let Some(spec) = &mut pod.spec {
            asked = Asked::of(spec);
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
            && !other.is_empty()
            && here != other
        {
            let at = path.field("spec");
            let what = match here {
                // Without an agent it is not known what the node will be called.
                "" => "whatever its name".to_owned(),
                here => format!("as {here}"),
            };
            let what = format_args!("accepted, but the node that reads it runs it itself, {what}");
            self.report.warn(&at.field("nodeName"), what);
        }
        let node_name = self.node_name.map(str::to_owned).or(own);
        default::pod(&mut pod, &node_name.unwrap_or_default());
        Some(Decoded { pod, added, asked })
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
pub(super) fn bare(value: &mut Value) {
    value.remove("status");
    if let Value::Map(entries) = value {
        for (_, metadata) in entries.iter_mut().filter(|(key, _)| key == "metadata") {
            for field in ["managedFields", "creationTimestamp", "deletionTimestamp"] {
                metadata.remove(field);
            }
        }
    }
}
