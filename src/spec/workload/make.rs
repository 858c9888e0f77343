//! From a document to its pods.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};

use super::written::{self, Spec, Strategy, Written};
use super::{
    MAX_HISTORY, Retention, STEADY_MS, Update, Workload, WorkloadKey, WorkloadKind, check, job,
    update,
};
use crate::spec::configuration::{self, Object};
use crate::spec::decode::decode;
use crate::spec::error::{Path, Report};
use crate::spec::pod::PodKey;
use crate::spec::priority::Asked;
use crate::spec::value::Value;
use crate::spec::{assemble, names, parse, rollback, uid};
use crate::types::{Gather, SharedText, Wall};

/// A document whose template is still to be decoded.
#[derive(Debug)]
pub(in crate::spec) struct Template {
    kind: WorkloadKind,
    metadata: ObjectMeta,
    spec: Spec,
    /// It has a version of the API that no server has any more.
    outdated: bool,
    /// `spec.template`, as a pod without a name.
    pub(in crate::spec) pod: Value,
    /// What it says about priority.
    pub(in crate::spec) asked: Asked,
    manifest: Arc<str>,
}

impl Template {
    /// The document in messages.
    pub(in crate::spec) fn title(&self) -> String {
        let namespace = self.metadata.namespace.as_deref().filter(|n| !n.is_empty());
        let name = self.metadata.name.as_deref().unwrap_or_default();
        let key = WorkloadKey {
            kind: self.kind,
            namespace: namespace.unwrap_or("default").into(),
            name: name.into(),
        };
        key.to_string()
    }
}

/// What a document asks for.
#[derive(Debug)]
pub(in crate::spec) struct Made {
    pub(in crate::spec) workload: Workload,
    /// Its pods, to be assembled.
    pub(in crate::spec) pods: Vec<Pod>,
    /// The claims of a StatefulSet's pods.
    pub(in crate::spec) claims: Vec<Object>,
}

/// Decodes all of a document but its template.
pub(in crate::spec) fn read(
    kind: WorkloadKind,
    value: &mut Value,
    path: &Path<'_>,
    report: &Report,
) -> Option<Template> {
    report.begin(path);
    let version = Value::String(kind.version().to_owned());
    let outdated = value
        .get("apiVersion")
        .is_some_and(|given| *given != version);
    if let Some(given) = get_mut(value, "apiVersion") {
        *given = version;
    }
    if outdated
        && kind == WorkloadKind::DaemonSet
        && let Some(spec) = get_mut(value, "spec")
    {
        // Of `extensions/v1beta1`, and written by a server.
        spec.remove("templateGeneration");
    }
    let manifest = Arc::from(parse::json(value));
    value.remove("apiVersion");
    value.remove("kind");
    let at = path.field("spec");
    check::only(value, path, &["metadata", "spec"], report);
    let Some(spec @ Value::Map(_)) = get_mut(value, "spec") else {
        report.required(&at);
        return None;
    };
    check::only(spec, &at, written::fields(kind), report);
    for strategy in ["strategy", "updateStrategy"] {
        let Some(strategy_value) = get_mut(spec, strategy) else {
            continue;
        };
        let at = at.field(strategy);
        check::only(strategy_value, &at, &["type", "rollingUpdate"], report);
        if let Some(rolling) = get_mut(strategy_value, "rollingUpdate") {
            let fields = written::rolling_fields(kind);
            check::only(rolling, &at.field("rollingUpdate"), fields, report);
        }
    }
    let template = spec.get("template").cloned().unwrap_or(Value::Null);
    spec.remove("template");
    if kind == WorkloadKind::ReplicationController
        && let Some(chosen) = get_mut(spec, "selector")
    {
        // It has labels where the others have a selector.
        let labels = std::mem::replace(chosen, Value::Null);
        if labels != Value::Null {
            *chosen = Value::Map(vec![("matchLabels".to_owned(), labels)]);
        }
    }
    let Written { metadata, spec } = decode(value, path, report)?;
    let at_template = at.field("template");
    let Value::Map(mut entries) = template else {
        match template {
            Value::Null => report.required(&at_template),
            other => report.error(
                &at_template,
                format_args!("must be a mapping, not {}", other.kind()),
            ),
        }
        return None;
    };
    for (_, metadata) in entries.iter_mut().filter(|(key, _)| key == "metadata") {
        // As in Kubernetes, the pods' names are made here.
        for field in ["name", "generateName", "namespace"] {
            metadata.remove(field);
        }
    }
    Some(Template {
        kind,
        metadata,
        spec,
        outdated,
        pod: Value::Map(entries),
        asked: Asked::default(),
        manifest,
    })
}

/// Checks a document, and makes its pods of the decoded and defaulted template.
pub(in crate::spec) fn make(
    template: Template,
    mut pod: Pod,
    path: &Path<'_>,
    report: &Report,
) -> Option<Made> {
    let Template {
        kind,
        mut metadata,
        mut spec,
        outdated,
        asked,
        manifest,
        ..
    } = template;
    if outdated && spec.selector.is_none() {
        // Servers of that time filled it in.
        spec.selector = Some(LabelSelector {
            match_labels: pod.metadata.labels.clone(),
            ..LabelSelector::default()
        });
    }
    let key = key(kind, &mut metadata, path, report);
    let at = path.field("spec");
    let names = at.field("template");
    let names = names.field("metadata");
    // The pods' names are made of the document's.
    report.settle(&names.field("name"));
    report.settle(&names.field("namespace"));
    check::selector(kind, &spec, &pod, &at, report);
    check::template(kind, &pod, &at.field("template"), report);
    let replicas = match kind {
        WorkloadKind::DaemonSet | WorkloadKind::Job | WorkloadKind::CronJob => 1,
        _ => check::replicas(&spec, &at, report),
    };
    let update = match kind {
        WorkloadKind::Deployment => {
            update::deployment(&spec, replicas, &at.field("strategy"), report)
        }
        WorkloadKind::ReplicaSet | WorkloadKind::ReplicationController => {
            update::rolling(&Strategy::default(), ("25%", "25%"), replicas, &at, report)
        }
        WorkloadKind::StatefulSet => {
            update::stateful(&spec, replicas, &at.field("updateStrategy"), report)
        }
        WorkloadKind::DaemonSet => update::daemon(&spec, &at.field("updateStrategy"), report),
        WorkloadKind::Job | WorkloadKind::CronJob => Update::Recreate,
    };
    let (min_ready_ms, progress_deadline_ms) = check::times(kind, &spec, &at, report);
    let within = rollback(kind, &metadata, &update, &manifest, path, report);
    let progress_deadline_ms = progress_deadline_ms.or(within);
    if kind == WorkloadKind::StatefulSet {
        check::stateful(&spec, &at, report);
    }
    let job = (kind == WorkloadKind::Job).then(|| Box::new(job::job(&spec, &pod, &at, report)));
    if let Some(job) = &job {
        job::check_hosts(&key, job, &path.field("metadata").field("name"), report);
    }
    let template = asked.unresolved(&pod);
    let mut formerly = None;
    let revision = match &job {
        Some(job) => {
            // To write `parallelism` down makes no other edition, although `completions` has no default then.
            let completions = job.completions.or(Some(1));
            let edition = job::edition(&template, completions, job, &metadata);
            let former = match job.completions {
                None => job::edition(&template, None, job, &metadata),
                given => job::edition(&pod, given, job, &metadata),
            };
            formerly = (former.0 != edition.0).then_some(former.0);
            job::prepare(&mut pod, &key, &edition, job.indexed);
            edition.0
        }
        None => uid::short(&template).into(),
    };
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(kind.hash_label().to_owned(), key.revision_name(&revision));
    pod.metadata.namespace = Some(key.namespace.to_string());
    pod.metadata.owner_references = Some(vec![owner(&key)]);
    let mut made = Made {
        workload: Workload {
            update,
            ordered: kind == WorkloadKind::StatefulSet && spec.pod_management_policy != "Parallel",
            min_ready_ms,
            steady_ms: min_ready_ms.max(
                match spec.min_ready_seconds.is_some() || says_ready(&pod) {
                    true => 0,
                    false => STEADY_MS.min(progress_deadline_ms.unwrap_or(u64::MAX) / 4),
                },
            ),
            progress_deadline_ms,
            paused: spec.paused,
            job,
            cron: None,
            pods: Vec::new(),
            written: revision.clone(),
            resumed: false,
            edition: uid::hash(&manifest).0,
            rollback: within.is_some(),
            history: usize::try_from(spec.revision_history_limit.unwrap_or(MAX_HISTORY))
                .unwrap_or(0)
                .min(MAX_HISTORY as usize),
            retention: retention(&spec),
            manifest: SharedText::of(&manifest),
            revision,
            formerly,
            modified: Wall::default(),
            key,
        },
        pods: Vec::new(),
        claims: Vec::new(),
    };
    if !report.is_clean() {
        // A template is checked by its first pod, even if it stands for none.
        made.pods.push(made.pod(&pod, 0, &spec));
        return Some(made);
    }
    let first = u32::try_from(spec.first()).unwrap_or(0);
    // Most have one: spare room would be kept for nothing.
    made.workload.pods.reserve_exact(replicas as usize);
    for ordinal in first..first.saturating_add(replicas) {
        let one = made.pod(&pod, ordinal, &spec);
        if let Some(name) = &one.metadata.name {
            made.workload.pods.push(PodKey::new(
                made.workload.key.namespace.clone(),
                name.as_str(),
            ));
        }
        made.pods.push(one);
        for (index, claim) in spec.volume_claim_templates.iter().enumerate() {
            let at = at.field("volumeClaimTemplates");
            let claim = made.claim(claim, ordinal, &spec);
            let claim = configuration::claim_of(claim, &at.index(index), report);
            made.claims.extend(claim);
        }
    }
    if replicas == 0 {
        made.pods.push(made.pod(&pod, first, &spec));
    }
    Some(made)
}

impl Made {
    /// The pod of this number.
    fn pod(&self, template: &Pod, ordinal: u32, spec: &Spec) -> Pod {
        let (key, revision) = (&self.workload.key, &self.workload.revision);
        let mut pod = template.clone();
        let name = match key.kind {
            WorkloadKind::DaemonSet => format!("{}-{revision}", key.name),
            WorkloadKind::StatefulSet => format!("{}-{ordinal}", key.name),
            // It has one already.
            WorkloadKind::Job => return pod,
            _ => format!("{}-{revision}-{ordinal}", key.name),
        };
        pod.metadata.name = Some(name.clone());
        if key.kind != WorkloadKind::StatefulSet {
            return pod;
        }
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert(
            "statefulset.kubernetes.io/pod-name".to_owned(),
            name.clone(),
        );
        labels.insert(
            "apps.kubernetes.io/pod-index".to_owned(),
            ordinal.to_string(),
        );
        let Some(written) = &mut pod.spec else {
            return pod;
        };
        written.hostname = Some(name.clone());
        if !spec.service_name.is_empty() {
            written.subdomain = Some(spec.service_name.clone());
        }
        for claim in &spec.volume_claim_templates {
            let volume = claim.metadata.name.clone().unwrap_or_default();
            let volumes = written.volumes.get_or_insert_default();
            // As in Kubernetes, it takes the place of a volume of its name.
            volumes.retain(|other| other.name != volume);
            volumes.push(Volume {
                persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                    claim_name: format!("{volume}-{name}"),
                    read_only: None,
                }),
                name: volume,
                ..Volume::default()
            });
        }
        pod
    }

    /// The claim of the pod of this number.
    fn claim(
        &self,
        template: &PersistentVolumeClaim,
        ordinal: u32,
        spec: &Spec,
    ) -> PersistentVolumeClaim {
        let key = &self.workload.key;
        let mut claim = template.clone();
        let volume = template.metadata.name.as_deref().unwrap_or_default();
        claim.metadata.name = Some(format!("{volume}-{}-{ordinal}", key.name));
        claim.metadata.namespace = Some(key.namespace.to_string());
        let chosen = spec.selector.as_ref().and_then(|s| s.match_labels.clone());
        let labels = claim.metadata.labels.get_or_insert_default();
        labels.extend(chosen.into_iter().flatten());
        claim
    }
}

/// Whether anything but running containers makes the pod ready.
fn says_ready(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let gates = spec.readiness_gates.iter().flatten().count();
    let mut containers = spec.containers.iter();
    gates > 0 || containers.all(|container| container.readiness_probe.is_some())
}

pub(super) fn owner(key: &WorkloadKey) -> OwnerReference {
    OwnerReference {
        api_version: key.kind.version().to_owned(),
        kind: key.kind.as_str().to_owned(),
        name: key.name.to_string(),
        uid: key.uid().to_string(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

pub(super) fn key(
    kind: WorkloadKind,
    metadata: &mut ObjectMeta,
    path: &Path<'_>,
    report: &Report,
) -> WorkloadKey {
    let path = path.field("metadata");
    let at = path.field("name");
    let name = metadata.name.clone().unwrap_or_default();
    let namespace = metadata
        .namespace
        .as_deref()
        .filter(|given| !given.is_empty());
    let namespace = namespace.unwrap_or("default");
    let label_sized = kind == WorkloadKind::StatefulSet;
    let problem = match label_sized {
        true => names::dns_label(&name),
        false => names::dns_subdomain(&name),
    };
    // A CronJob's name gets a minute and its Job's pods get numbers.
    let longest = match kind {
        WorkloadKind::Job => 63,
        WorkloadKind::CronJob => 52,
        // Its pods' names have a hash and a number more.
        _ => names::POD_MAX - 20 - namespace.len().min(63),
    };
    let problem = match name.len() > longest {
        true => Some(format!("must be no more than {longest} characters")),
        false => problem,
    };
    match (name.as_str(), problem) {
        ("", _) => report.error(&at, names::missing(metadata)),
        (name, Some(problem)) => report.invalid(&at, name, problem),
        (_, None) => {}
    }
    let namespace = metadata.namespace.get_or_insert_default();
    if namespace.is_empty() {
        "default".clone_into(namespace);
    }
    assemble::shared_metadata(metadata, &path, report);
    WorkloadKey {
        kind,
        namespace: metadata.namespace.as_deref().unwrap_or_default().into(),
        name: name.into(),
    }
}

/// How long pods have to become ready before a rollout is taken back, in milliseconds; `None`: it is not.
fn rollback(
    kind: WorkloadKind,
    metadata: &ObjectMeta,
    update: &Update,
    manifest: &str,
    path: &Path<'_>,
    report: &Report,
) -> Option<u64> {
    let at = path.field("metadata");
    let at = at.field("annotations");
    let written = metadata.annotations.as_ref();
    let within = rollback::within_ms(written, &at, report)?;
    let name = at.field(rollback::ANNOTATION);
    let has_within = written.is_some_and(|all| all.contains_key(rollback::WITHIN));
    match (kind, update) {
        (WorkloadKind::Job, _) => report.forbidden(&name, "a Job is not rolled out"),
        (_, Update::OnDelete) => {
            report.forbidden(&name, "nothing is rolled out by itself with `OnDelete`")
        }
        (_, Update::InPlace { partition: 1.., .. }) => {
            report.forbidden(&name, "a rollout with a `partition` does not end by itself");
        }
        (WorkloadKind::Deployment, _) if has_within => report.error_hint(
            &at.field(rollback::WITHIN),
            "Forbidden: a Deployment has a field for that",
            "write `spec.progressDeadlineSeconds`".to_owned(),
        ),
        _ => {}
    }
    if manifest.len() > rollback::MAX_TEXT {
        let most = rollback::MAX_TEXT >> 10;
        report.forbidden(
            &name,
            format_args!("documents of more than {most} KiB are not kept"),
        );
    }
    Some(within)
}

fn retention(spec: &Spec) -> Option<Box<Retention>> {
    let given = &spec.persistent_volume_claim_retention_policy;
    let (when_deleted, when_scaled) = (
        given.when_deleted == "Delete",
        given.when_scaled == "Delete",
    );
    let names = spec.volume_claim_templates.iter();
    let volumes = names
        .filter_map(|claim| claim.metadata.name.clone())
        .gather();
    (when_deleted || when_scaled).then(|| {
        Box::new(Retention {
            volumes,
            when_deleted,
            when_scaled,
        })
    })
}

pub(super) fn get_mut<'v>(value: &'v mut Value, key: &str) -> Option<&'v mut Value> {
    let Value::Map(entries) = value else {
        return None;
    };
    let mut named = entries.iter_mut().rev().filter(|(name, _)| name == key);
    named.next().map(|(_, value)| value)
}
