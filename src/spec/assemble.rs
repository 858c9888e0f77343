//! Validation of a defaulted pod manifest: reports every error in one pass, and builds the [`PodSpec`].

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec as Written, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::backoff::RestartBackoff;
use super::condition::{self, Condition, MAX_CONDITIONS, STATUSES};
use super::container::List;
use super::default;
use super::error::{Path, Report};
use super::pod::{ContainerSpec, PodKey, PodResources, PodSpec, PodUid, QosClass};
use super::resources::Figures;
use super::restart::RestartPolicy;
use super::workload::WorkloadKey;
use super::{
    after, annotations, app_armor, backoff, confinement, container, device, host_device,
    huge_pages, names, network, placement, pod_level, pull_secrets, resources, restart, rollback,
    scheduling, security, support, swap, uid, user_namespace, volume,
};

/// Limit of a pod's containers, including init containers, and separate limit of its ephemeral ones. Each costs
/// descriptors and memory of the pod's shim.
pub(crate) const MAX_CONTAINERS: usize = 100;

/// Builds the spec of a decoded pod with its defaults, or reports why not.
pub(crate) fn pod(mut pod: Pod, path: &Path<'_>, report: &Report) -> Option<PodSpec> {
    metadata(&pod.metadata, &path.field("metadata"), report);
    let template = PodUid::from(uid::of(&pod).as_str());
    let given = pod.metadata.uid.as_deref().filter(|uid| !uid.is_empty());
    let uid = given.map_or_else(|| template.clone(), PodUid::from);
    default::identity(&mut pod.metadata, &uid, &template);
    identified(pod, (uid, template), path, report)
}

/// Builds the spec of a pod whose identity is known.
fn identified(
    pod: Pod,
    (uid, template): (PodUid, PodUid),
    path: &Path<'_>,
    report: &Report,
) -> Option<PodSpec> {
    let at = path.field("spec");
    let Some(spec) = &pod.spec else {
        report.required(&at);
        return None;
    };
    let key = key(&pod.metadata);
    support::pod(spec, &at, report);
    let placement = placement::of(spec, &at, report);
    scheduling::check(spec, &at, report);
    let restart_policy = restart::policy(spec.restart_policy.as_deref(), &at, report);
    let (restart_backoff, swap_max_bytes) = settings(&pod.metadata, path, report);
    let written = path.field("metadata");
    let annotations = pod.metadata.annotations.as_ref();
    app_armor::check(annotations, spec, &written.field("annotations"), report);
    let after = starts_after(&pod.metadata, path, report);
    let readiness_gates = readiness_gates(spec, &at, report);
    given_conditions(&pod, path, report);
    let grace_ms = grace_ms(spec, &at, report);
    let active_deadline_ms = active_deadline_ms(spec, &at, report);
    let own_security = security::pod(spec, &at, report);
    user_namespace::pod(spec, &at, report);
    let volumes = volume::volumes(&pod, spec, &at.field("volumes"), report);
    let (init_containers, containers) = containers(&pod, spec, &at, report);
    let host_name = network::host_name(spec, (&key.namespace, &key.name), &at, report);
    let host_aliases = network::host_aliases(spec, &at, report);
    let dns_policy = network::dns_policy(spec, &at, report);
    let dns_config = network::dns_config(spec, &at, report);
    let figures = Figures::of(&init_containers, &containers);
    let (qos, resources) = qos_and_resources(spec, &figures, &at, report);
    let devices = device::of(&pod.metadata, spec, path, report);
    host_device::warn(&pod.metadata, spec, &at, report);
    let warnings = report.take_warnings();
    if !report.is_clean() {
        return None;
    }
    Some(PodSpec {
        uid,
        template,
        key,
        workload: WorkloadKey::of_pod(&pod.metadata),
        restart_policy: restart_policy.unwrap_or(RestartPolicy::Always),
        restart_backoff,
        swap_max_bytes,
        devices,
        after,
        readiness_gates,
        grace_ms,
        active_deadline_ms,
        priority: spec.priority.unwrap_or(0),
        host_network: spec.host_network == Some(true),
        host_pid: spec.host_pid == Some(true),
        host_ipc: spec.host_ipc == Some(true),
        own_users: spec.host_users == Some(false),
        share_processes: spec.share_process_namespace == Some(true),
        hostname: host_name.hostname,
        given_hostname: host_name.given_hostname,
        given_subdomain: host_name.given_subdomain,
        subdomain: host_name.subdomain,
        hostname_as_fqdn: spec.set_hostname_as_fqdn == Some(true),
        host_aliases,
        dns_policy,
        dns_config,
        fs_group: own_security.fs_group,
        fs_group_on_mismatch: own_security.fs_group_on_mismatch,
        supplemental_groups: own_security.supplemental_groups,
        strict_groups: own_security.strict_groups,
        sysctls: own_security.sysctls,
        qos,
        resources,
        storage_request_bytes: resources::storage_request(spec)
            .saturating_add(resources::storage_overhead(spec)),
        storage_overhead_bytes: resources::storage_overhead(spec),
        huge_pages: huge_pages::of_pod(spec),
        placement,
        may_preempt: spec.preemption_policy.as_deref() != Some("Never"),
        tolerates_memory_pressure: placement::tolerates_memory_pressure(spec),
        service_links: spec.enable_service_links != Some(false),
        pull_secrets: pull_secrets::of_manifest(spec),
        service_account: (spec.service_account_name.clone()).filter(|name| !name.is_empty()),
        init_containers,
        containers,
        ephemeral_containers: Vec::new(),
        volumes,
        warnings,
        manifest: Arc::new(with_foreign_conditions(pod).into()),
    })
}

fn key(metadata: &ObjectMeta) -> PodKey {
    PodKey::new(
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

/// The annotation of Helm's hooks, which `helm template` prints among the rest.
pub(super) const HOOK: &str = "helm.sh/hook";

fn metadata(metadata: &ObjectMeta, path: &Path<'_>, report: &Report) {
    let at = path.field("name");
    match metadata.name.as_deref().unwrap_or_default() {
        "" => report.error(&at, "Required value: name is needed for the pod"),
        name => {
            let namespace = metadata.namespace.as_ref().map_or(0, String::len);
            if let Some(problem) = names::dns_subdomain(name) {
                report.invalid(&at, name, problem);
            } else if namespace <= 63 && namespace + name.len() > names::POD_MAX {
                let most = names::POD_MAX - namespace;
                let detail = format_args!(
                    "must be no more than {most} characters in this namespace: the directory of the pod's logs has both names"
                );
                report.invalid(&at, name, detail);
            }
        }
    }
    if metadata
        .annotations
        .iter()
        .flatten()
        .any(|(key, _)| key == HOOK)
    {
        warn_of_hook(path, report);
    }
    shared_metadata(metadata, path, report);
}

/// Hooks are for Helm, which runs them before or after something else, or not at all. `path` is that of the metadata.
pub(super) fn warn_of_hook(path: &Path<'_>, report: &Report) {
    let what = "a hook of Helm, which runs here like anything else; `helm template --no-hooks` leaves hooks out";
    report.warn(&path.field("annotations").field(HOOK), what);
}

/// Checks the metadata of any object, except for the name.
pub(crate) fn shared_metadata(metadata: &ObjectMeta, path: &Path<'_>, report: &Report) {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    if let Some(problem) = names::dns_label(namespace) {
        report.invalid(&path.field("namespace"), namespace, problem);
    }
    let uid = metadata.uid.as_deref().unwrap_or_default();
    if let Some(problem) = names::uid(uid).filter(|_| !uid.is_empty()) {
        report.invalid(&path.field("uid"), uid, problem);
    }
    let labels = path.field("labels");
    for (key, value) in metadata.labels.iter().flatten() {
        let at = labels.field(key);
        if let Some(problem) = names::qualified_name(key) {
            report.invalid(&at, key, problem);
        }
        if let Some(problem) = names::label_value(value) {
            report.invalid(&at, value, problem);
        }
    }
    let annotations = path.field("annotations");
    let mut size = 0;
    for (key, value) in metadata.annotations.iter().flatten() {
        size += key.len() + value.len();
        // Annotation keys may have capitals in the prefix.
        if let Some(problem) = names::qualified_name(&key.to_ascii_lowercase()) {
            report.invalid(&annotations.field(key), key, problem);
        }
    }
    if size > 256 * 1024 {
        report.error(&annotations, "Too long: may not be more than 262144 bytes");
    }
}

/// The pod's own back-off and swap limit, which are written as annotations. Checks the other annotations, too.
fn settings(
    metadata: &ObjectMeta,
    path: &Path<'_>,
    report: &Report,
) -> (RestartBackoff, Option<u64>) {
    let path = path.field("metadata");
    let at = path.field("annotations");
    let written = metadata.annotations.as_ref();
    confinement::annotations(written, &at, report);
    annotations::check(metadata, &annotations::OF_PODS, &path, report);
    annotations::of_plugins(metadata, &at, report);
    for name in [uid::RESTART_ON_CHANGE, annotations::REQUIRED] {
        let value = written.and_then(|all| all.get(name));
        if let Some(other) = value.filter(|value| !["true", "false"].contains(&value.as_str())) {
            report.unsupported(&at.field(name), other, &["true", "false"]);
        }
    }
    rollback::within_ms(written, &at, report);
    let restart_backoff = backoff::of(written, &at, report);
    (restart_backoff, swap::max_bytes(written, &at, report))
}

/// What the pod starts after, which is written as an annotation.
fn starts_after(metadata: &ObjectMeta, path: &Path<'_>, report: &Report) -> Vec<after::Item> {
    let path = path.field("metadata");
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let written = metadata.annotations.as_ref();
    after::of(written, namespace, &path.field("annotations"), report)
}

fn readiness_gates(spec: &Written, path: &Path<'_>, report: &Report) -> Vec<String> {
    let list = path.field("readinessGates");
    let gates = spec.readiness_gates.iter().flatten();
    let read = gates.enumerate().map(|(index, gate)| {
        let name = gate.condition_type.clone();
        if let Some(problem) = names::qualified_name(&name) {
            let at = list.index(index);
            report.invalid(&at.field("conditionType"), &name, problem);
        }
        name
    });
    read.collect()
}

/// Checks conditions written in the manifest. Coracle's own conditions are ignored: they are present if the manifest
/// was taken from an API server.
fn given_conditions(pod: &Pod, path: &Path<'_>, report: &Report) {
    let list = path.field("status");
    let list = list.field("conditions");
    let given = pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    let mut seen = BTreeSet::new();
    for (index, condition) in given.enumerate() {
        let (at, name) = (list.index(index), &condition.type_);
        if condition::is_own(name) {
            continue;
        }
        match Condition::of(condition).map(|c| c.check()) {
            Some(Ok(())) if seen.insert(name) => {}
            Some(Ok(())) => report.duplicate(&at.field("type"), name),
            Some(Err(problem)) => report.invalid(&at, name, problem),
            None => report.unsupported(&at.field("status"), &condition.status, &STATUSES),
        }
    }
    if seen.len() > MAX_CONDITIONS {
        let detail = format_args!("must have at most {MAX_CONDITIONS} items");
        report.error(&list, format_args!("Too many: {}: {detail}", seen.len()));
    }
}

/// Reduces the pod's status to conditions that are not coracle's own.
fn with_foreign_conditions(mut pod: Pod) -> Pod {
    let conditions = pod.status.take().and_then(|status| status.conditions);
    let mut conditions = conditions.unwrap_or_default();
    conditions.retain(|c| !condition::is_own(&c.type_));
    if !conditions.is_empty() {
        pod.status = Some(PodStatus {
            conditions: Some(conditions),
            ..PodStatus::default()
        });
    }
    pod
}

fn grace_ms(spec: &Written, path: &Path<'_>, report: &Report) -> u64 {
    let seconds = spec.termination_grace_period_seconds.unwrap_or(30);
    match u64::try_from(seconds) {
        Ok(seconds) => seconds.saturating_mul(1000),
        Err(_) => {
            let at = path.field("terminationGracePeriodSeconds");
            report.invalid(&at, seconds, "must be greater than or equal to 0");
            0
        }
    }
}

fn active_deadline_ms(spec: &Written, path: &Path<'_>, report: &Report) -> Option<u64> {
    let seconds = spec.active_deadline_seconds?;
    match u64::try_from(seconds) {
        Ok(valid @ 1..=0x7fff_ffff) => Some(valid * 1000),
        Ok(_) | Err(_) => {
            let at = path.field("activeDeadlineSeconds");
            report.invalid(&at, seconds, "must be between 1 and 2147483647, inclusive");
            None
        }
    }
}

/// Converts init and regular containers.
fn containers(
    pod: &Pod,
    spec: &Written,
    path: &Path<'_>,
    report: &Report,
) -> (Vec<ContainerSpec>, Vec<ContainerSpec>) {
    if spec.containers.is_empty() {
        report.required(&path.field("containers"));
    }
    let mut seen = BTreeSet::new();
    let mut convert = |kind: List, written: &[Container]| {
        let list = path.field(kind.field());
        let mut result = Vec::with_capacity(written.len());
        for (index, each) in written.iter().enumerate() {
            let path = list.index(index);
            if !each.name.is_empty() && !seen.insert(each.name.clone()) {
                report.duplicate(&path.field("name"), &each.name);
            }
            result.extend(container::convert(pod, spec, (kind, each), &path, report));
        }
        result
    };
    let written_init = spec.init_containers.as_deref().unwrap_or_default();
    let number = spec.containers.len() + written_init.len();
    if number > MAX_CONTAINERS {
        let more = match spec.containers.len() >= written_init.len() {
            true => List::Regular,
            false => List::Init,
        };
        let detail = format!(
            "Too many: {number}: must have at most {MAX_CONTAINERS} items, init containers included"
        );
        report.error(&path.field(more.field()), detail);
        return (Vec::new(), Vec::new());
    }
    // Regular containers first: if two have one name, the error is about the init container.
    let regular = convert(List::Regular, &spec.containers);
    let init = convert(List::Init, written_init);
    if regular.len() == spec.containers.len() && init.len() == written_init.len() {
        network::port_conflicts(&regular, &init, path, report);
    }
    (init, regular)
}

/// The pod's QoS class and its resources with its overhead.
fn qos_and_resources(
    spec: &Written,
    containers: &Figures,
    path: &Path<'_>,
    report: &Report,
) -> (QosClass, PodResources) {
    let own = pod_level::convert(spec, containers, path, report);
    let overhead = resources::overhead(&spec.overhead, &path.field("overhead"), report);
    (
        resources::qos(own.as_ref(), containers),
        resources::effective(own.as_ref(), containers).with(&overhead),
    )
}
