//! The kinds of documents that are read, and advice for all others. Other kinds are refused by name: ignoring a policy
//! would be worse, and ignoring a Deployment would leave users waiting.

use super::error::{Path, Report};
use super::suggest;
use super::value::Value;

/// Kinds that are read.
pub const READ: &[&str] = &[
    "Pod",
    "Deployment",
    "StatefulSet",
    "DaemonSet",
    "ReplicaSet",
    "ReplicationController",
    "Job",
    "CronJob",
    "Service",
    "ConfigMap",
    "Secret",
    "PriorityClass",
    "Namespace",
    "ServiceAccount",
    "PersistentVolumeClaim",
    "PersistentVolume",
    "List",
    "PodList",
];

const ONLY: &str = "only Pod, Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController, Job, CronJob, Service, ConfigMap, \
     Secret, PersistentVolumeClaim, PersistentVolume, PriorityClass, Namespace and ServiceAccount are";

/// A group of kinds, why they are not read, and what to do instead.
type Group = (&'static [&'static str], &'static str, &'static str);

const GROUPS: &[Group] = &[
    (
        &[
            "StorageClass",
            "CSIDriver",
            "VolumeSnapshot",
            "VolumeSnapshotClass",
        ],
        "a claim is a directory of this node, whatever its class",
        "remove it: a PersistentVolumeClaim is enough",
    ),
    (
        &["PodTemplate"],
        "no controller here creates pods from it",
        "write its template as a Deployment, or as a document of `kind: Pod`, with a `metadata.name`",
    ),
    (
        &[
            "NetworkPolicy",
            "AdminNetworkPolicy",
            "BaselineAdminNetworkPolicy",
            "ClusterNetworkPolicy",
            "CiliumNetworkPolicy",
            "CiliumClusterwideNetworkPolicy",
            "GlobalNetworkPolicy",
        ],
        "coracle does not enforce network policies",
        "remove it; `hostIP` binds a `hostPort` to one address of the node, and the node's firewall limits the rest",
    ),
    (
        &[
            "Ingress",
            "IngressClass",
            "Gateway",
            "GatewayClass",
            "HTTPRoute",
            "GRPCRoute",
            "TCPRoute",
            "TLSRoute",
            "UDPRoute",
            "IngressRoute",
            "VirtualService",
        ],
        "there is no proxy for it here",
        "run a proxy as a pod with a `hostPort`, or use a Service with `type: NodePort`",
    ),
    (
        &["Endpoints", "EndpointSlice"],
        "endpoints are found by a Service's selector",
        "give the Service a `selector`, or for what is elsewhere `type: ExternalName` with its name or address",
    ),
    (
        &["Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"],
        "there is no API server to log in to",
        "remove it",
    ),
    (
        &["HorizontalPodAutoscaler", "VerticalPodAutoscaler"],
        "nothing here scales pods",
        "write the number of pods into `replicas`, and what each one gets into `resources`",
    ),
    (
        &["PodDisruptionBudget"],
        "a drain of the only node stops all pods, those of the lowest priority first",
        "remove it, and give pods that are to stay longest a priority class",
    ),
    (
        &["ResourceQuota", "LimitRange"],
        "namespaces have no limits of their own",
        "write `resources` into each container",
    ),
    (
        &[
            "PodSecurityPolicy",
            "ValidatingAdmissionPolicy",
            "ValidatingWebhookConfiguration",
            "MutatingWebhookConfiguration",
        ],
        "there are no admission controllers here",
        "remove it, and write `securityContext` into each pod",
    ),
    (
        &["RuntimeClass"],
        "there is only one runtime",
        "remove it, and `runtimeClassName` from pods",
    ),
    (
        &["CustomResourceDefinition", "APIService"],
        "there is no API server that would serve it",
        "remove it",
    ),
    (
        &["Kustomization"],
        "it describes how to build manifests and is not one",
        "build its manifests: `kubectl kustomize DIRECTORY > FILE`",
    ),
    (
        &["KubeletConfiguration"],
        "it holds settings of the node",
        "put it where settings are read: /etc/coracle/config.yaml, or `--config`",
    ),
    (
        &["Node"],
        "a node describes itself",
        "set labels by `coracle.nodeLabels` in the settings",
    ),
];

/// Returns the kinds that are refused by name, in groups, each with advice.
pub fn refused() -> impl Iterator<Item = (&'static [&'static str], &'static str)> {
    GROUPS.iter().map(|(kinds, _, instead)| (*kinds, *instead))
}

/// Kinds of other programs that stand for objects which pods need, and what to write instead.
const STAND_FOR: &[(&[&str], &str)] = &[
    (
        &["SealedSecret", "ExternalSecret", "Certificate"],
        "write the Secret that it stands for; `coracle secret encrypt` encrypts it for this node",
    ),
    (
        &["HelmChart", "HelmRelease"],
        "render the chart, and give its manifests: `helm template CHART > FILE`",
    ),
    (
        &["DeploymentConfig", "Rollout", "Service"],
        "write it as a Deployment",
    ),
];

/// Kinds without which the documents beside them would not do what their file is for.
const NEEDED: [&str; 4] = [
    "PodTemplate",
    "Kustomization",
    "KubeletConfiguration",
    "Node",
];

/// Whether a document is of a kind that some program in a cluster has defined.
pub(super) fn is_custom(version: &str) -> bool {
    let group = version.split_once('/').map_or("", |(group, _)| group);
    group.contains('.') && !group.ends_with(".k8s.io")
}

/// Reports a document of a kind that is not read. Where the kind is one that pods run without, the document is passed over
/// if its file has others.
pub(super) fn refuse(kind: &str, version: &str, path: &Path<'_>, report: &Report) {
    let at = path.field("kind");
    let single = kind.strip_suffix("List").unwrap_or(kind);
    let is = |name: &&str| name.eq_ignore_ascii_case(kind) || name.eq_ignore_ascii_case(single);
    let known = |group: &&Group| group.0.iter().any(is);
    if let Some((_, why, instead)) = GROUPS.iter().find(known) {
        let message = format!("{kind} is not supported: {why}");
        let instead = (*instead).to_owned();
        match NEEDED.contains(&single) {
            true => report.error_hint(&at, message, instead),
            false => report.skip(&at, message, instead),
        }
        return;
    }
    let message = format!("{kind} is not supported; {ONLY}");
    let others = GROUPS.iter().flat_map(|group| group.0);
    let all: Vec<&str> = READ.iter().chain(others).copied().collect();
    match suggest::nearest(kind, &all) {
        _ if is_custom(version) => passed_over(kind, version, &at, report),
        Some(near) => report.error_hint(&at, message, format!("did you mean `{near}`?")),
        // Of a group that Kubernetes has, but nothing that a pod runs by.
        None if version.contains('.') => passed_over(kind, version, &at, report),
        None => report.error(&at, message),
    }
}

/// Passes over a document of a kind that some program in a cluster has defined, if its file has others.
pub(super) fn passed_over(kind: &str, version: &str, at: &Path<'_>, report: &Report) {
    let message = format!("{kind} is not supported: {version} has no controller here");
    let known = STAND_FOR.iter().find(|(kinds, _)| kinds.contains(&kind));
    let instead = known.map_or("remove it", |(_, instead)| instead);
    report.skip(at, message, instead.to_owned());
}

/// Reports a document without `kind`, with a guess of what it is.
pub(super) fn nameless(value: &Value, path: &Path<'_>, report: &Report) {
    let has = |key: &str| value.get(key).is_some();
    let lists = ["resources", "bases", "helmCharts", "patches", "components"];
    let kustomization = || {
        let mut lists = lists.iter().map(|key| value.get(key));
        lists.any(|list| matches!(list, Some(Value::List(_))))
    };
    let image = value.get("image");
    if has("replicaCount") || image.is_some_and(|image| image.get("repository").is_some()) {
        let message =
            "Required value: these look like values for a Helm chart, which are no manifest";
        let hint = "render the chart with them: `helm template CHART -f FILE`";
        report.error_hint(&path.field("kind"), message, hint.to_owned());
    } else if let Some(services) = compose(value) {
        let hint = "`coracle convert FILE` makes manifests of it";
        let at = services.map_or(*path, |key| path.field(key));
        let message = "this is a compose file, not a Kubernetes manifest";
        report.error_hint(&at, message, hint.to_owned());
    } else if kustomization() {
        let message = "Required value: this looks like a kustomization, which is not a manifest";
        let hint = "build its manifests: `kubectl kustomize DIRECTORY > FILE`";
        report.error_hint(&path.field("kind"), message, hint.to_owned());
    } else if has("name") && has("version") && !has("metadata") {
        let message = "Required value: this looks like the description of a Helm chart, which is not a manifest";
        let hint = "render the chart first: `helm template CHART`";
        report.error_hint(&path.field("kind"), message, hint.to_owned());
    } else {
        let advice = "a manifest begins with `apiVersion: v1` and `kind: Pod`";
        missing(value, "kind", advice, path, report);
    }
}

/// Whether these are a compose file's services, and the key above them, if there is one.
fn compose(value: &Value) -> Option<Option<&'static str>> {
    if value.get("services").is_some() {
        return Some(Some("services"));
    }
    let kubernetes = ["metadata", "spec", "apiVersion"]
        .iter()
        .any(|key| value.get(key).is_some());
    let is_service = |value: &Value| value.get("image").or(value.get("build")).is_some();
    match value {
        Value::Map(entries) if !kubernetes => {
            let any = entries.iter().any(|(_, value)| is_service(value));
            any.then_some(None)
        }
        _ => None,
    }
}

/// Reports that a document has no `wanted`, at a key that resembles it if there is one.
pub(super) fn missing(value: &Value, wanted: &str, advice: &str, path: &Path<'_>, report: &Report) {
    let meant = match value {
        Value::Map(entries) => entries
            .iter()
            .find(|(key, _)| suggest::nearest(key, &[wanted]).is_some()),
        _ => None,
    };
    match meant {
        Some((key, _)) => {
            let hint = format!("did you mean `{wanted}`?");
            report.error_hint(&path.field(key), "unknown field", hint);
        }
        None => report.error_hint(&path.field(wanted), "Required value", advice.to_owned()),
    }
}
