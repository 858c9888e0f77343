//! A valid pod: every default is filled in, every quantity is a number with a unit, and combinations that cannot be run
//! are refused.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use super::pod_volume::*;

use super::backoff::RestartBackoff;
use super::configuration::ObjectKind;
use super::device::Devices;
use super::huge_pages::HugePages;
use super::lifecycle::Lifecycle;
use super::manifest::Manifest;
use super::placement::Placement;
use super::probe::Probes;
use super::resize::ResizeRestarts;
use super::restart::{RestartPolicy, RestartRule};
use super::security::Security;

/// A pod's UID: 32 lower-hex digits derived from the manifest, or `metadata.uid` as written. Safe as a file name and as
/// a cgroup name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodUid(pub Arc<str>);

impl PodUid {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for PodUid {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&str> for PodUid {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Namespace and name: a pod's name for people, unique among the pods that may run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodKey {
    /// `metadata.namespace`, `default` if absent.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

impl PodKey {
    /// The key of a namespace and a name.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A valid pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSpec {
    /// Its identity for everything coracle stores.
    pub uid: PodUid,
    /// A hash of everything that cannot change without a new pod. For a pod in the manifest directory this is also the
    /// UID, unless the manifest gives one.
    pub template: PodUid,
    /// Namespace and name.
    pub key: PodKey,
    /// The document that it was made from; `None`: one of its own.
    pub workload: Option<super::WorkloadKey>,
    /// The manifest after defaulting, as it is shown by `get -o json` (status comes from `plan::status`).
    pub manifest: Arc<Manifest>,
    /// `spec.restartPolicy`.
    pub restart_policy: RestartPolicy,
    /// The pod's own waits between restarts (annotation `coracle.dev/restart-backoff`).
    pub restart_backoff: RestartBackoff,
    /// Limit of swap of its containers together, where pods may swap (annotation `coracle.dev/memory-swap-max`).
    pub swap_max_bytes: Option<u64>,
    /// The devices that its containers ask for (annotations `coracle.dev/devices`, …).
    pub devices: Option<Arc<Devices>>,
    /// What it starts after (annotation `coracle.dev/after`).
    pub after: Vec<super::after::Item>,
    /// `spec.readinessGates`: conditions that must be true for the pod to be ready.
    pub readiness_gates: Vec<String>,
    /// `spec.terminationGracePeriodSeconds` in milliseconds (30 000 by default).
    pub grace_ms: u64,
    /// `spec.activeDeadlineSeconds` in milliseconds.
    pub active_deadline_ms: Option<u64>,
    /// `spec.priority`, 0 if absent.
    pub priority: i32,
    /// `spec.hostNetwork`: share the node's network namespace.
    pub host_network: bool,
    /// `spec.hostPID`.
    pub host_pid: bool,
    /// `spec.hostIPC`.
    pub host_ipc: bool,
    /// `spec.hostUsers: false`: a user namespace of its own.
    pub own_users: bool,
    /// `spec.shareProcessNamespace`: its containers see each other's processes.
    pub share_processes: bool,
    /// The pod's own hostname (cut to 63 characters); ignored with `host_network`.
    pub hostname: String,
    /// `spec.hostname` as written, if it is not empty.
    pub given_hostname: Option<String>,
    /// `spec.subdomain` as written, if it is not empty.
    pub given_subdomain: Option<String>,
    /// `<subdomain>.<namespace>.svc.<clusterDomain>` when `subdomain` is set; `None` otherwise. Without the cluster
    /// domain, which the node knows: `<subdomain>.<namespace>.svc`.
    pub subdomain: Option<String>,
    /// `spec.setHostnameAsFQDN`.
    pub hostname_as_fqdn: bool,
    /// `spec.hostAliases`: address and names.
    pub host_aliases: Vec<HostAlias>,
    /// `spec.dnsPolicy`.
    pub dns_policy: DnsPolicy,
    /// `spec.dnsConfig`.
    pub dns_config: DnsConfig,
    /// `securityContext.fsGroup`.
    pub fs_group: Option<u32>,
    /// `securityContext.fsGroupChangePolicy: OnRootMismatch`.
    pub fs_group_on_mismatch: bool,
    /// `securityContext.supplementalGroups`.
    pub supplemental_groups: Vec<u32>,
    /// `securityContext.supplementalGroupsPolicy: Strict`: no groups from the image's `/etc/group`.
    pub strict_groups: bool,
    /// `securityContext.sysctls`, namespaced ones only.
    pub sysctls: Vec<(String, String)>,
    /// Init containers and sidecars in manifest order; names unique among all containers.
    pub init_containers: Vec<ContainerSpec>,
    /// Regular containers in manifest order; never empty, names unique.
    pub containers: Vec<ContainerSpec>,
    /// Containers added while the pod ran, in the order of addition; a manifest file has none.
    pub ephemeral_containers: Vec<ContainerSpec>,
    /// Volumes in manifest order, names unique.
    pub volumes: Vec<VolumeSpec>,
    /// Quality of service class.
    pub qos: QosClass,
    /// Effective pod-level requests and limits (Kubernetes docs: Resource Management).
    pub resources: PodResources,
    /// Requests for `ephemeral-storage`, by the same rule.
    pub storage_request_bytes: u64,
    /// The `ephemeral-storage` in `overhead`, which also adds to the limits of its containers.
    pub storage_overhead_bytes: u64,
    /// Limits of huge pages, by the same rule.
    pub huge_pages: HugePages,
    /// Requirements for the node.
    pub placement: Placement,
    /// `spec.preemptionPolicy` is not `Never`.
    pub may_preempt: bool,
    /// It may start while the node is short of memory: it tolerates the taint that Kubernetes would give the node then.
    pub tolerates_memory_pressure: bool,
    /// `spec.enableServiceLinks`: its containers have the variables of services.
    pub service_links: bool,
    /// `spec.imagePullSecrets`: names of Secrets.
    pub pull_secrets: Vec<String>,
    /// `spec.serviceAccountName`, `None` if it is empty.
    pub service_account: Option<String>,
    /// Warnings about fields without effect here, each a sentence that names the field.
    pub warnings: Vec<String>,
}

impl PodSpec {
    /// Returns the container of any kind with that name.
    pub fn container(&self, name: &str) -> Option<&ContainerSpec> {
        self.all_containers().find(|c| c.name == name)
    }

    /// Whether the pod needs the node's bridge: for its own address, or for the name server there.
    pub fn uses_bridge(&self) -> bool {
        !self.host_network || self.dns_policy == DnsPolicy::ClusterFirstWithHostNet
    }

    /// Returns init containers and sidecars, then regular containers, each in manifest order, then ephemeral ones.
    pub fn all_containers(&self) -> impl Iterator<Item = &ContainerSpec> {
        self.manifest_containers().chain(&self.ephemeral_containers)
    }

    /// Returns the manifest's containers: init containers and sidecars, then regular ones, each in manifest order.
    pub fn manifest_containers(&self) -> impl Iterator<Item = &ContainerSpec> {
        self.init_containers.iter().chain(&self.containers)
    }

    /// Returns containers that run as long as the pod: regular containers, then sidecars.
    pub fn lasting_containers(&self) -> impl Iterator<Item = &ContainerSpec> {
        let sidecars = self.init_containers.iter().filter(|c| c.is_sidecar());
        self.containers.iter().chain(sidecars)
    }

    /// `<name>_<namespace>(<uid>)`, as the kubelet names a pod in messages.
    pub fn kubelet_name(&self) -> String {
        format!("{}_{}({})", self.key.name, self.key.namespace, self.uid)
    }
}

/// Quality of service class (Kubernetes docs: Pod QoS).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum QosClass {
    /// Requests equal limits for cpu and memory in every container.
    Guaranteed,
    /// Neither of the other two.
    Burstable,
    /// No requests and no limits.
    BestEffort,
}

impl QosClass {
    /// The Kubernetes word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// `spec.dnsPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DnsPolicy {
    /// Cluster DNS, or the node's resolver without cluster DNS.
    ClusterFirst,
    /// Cluster DNS for pods on the node's network too.
    ClusterFirstWithHostNet,
    /// The node's resolver.
    Default,
    /// Only `dnsConfig`.
    None,
}

/// `spec.dnsConfig`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsConfig {
    /// Resolver addresses.
    pub nameservers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options: name and optional value.
    pub options: Vec<(String, Option<String>)>,
}

/// One `spec.hostAliases` entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostAlias {
    /// The address.
    pub ip: std::net::IpAddr,
    /// Its names, never empty.
    pub hostnames: Vec<String>,
}

/// A container of any kind.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerSpec {
    /// A DNS label, unique in the pod.
    pub name: String,
    /// The image as written in the manifest; `ImageName::parse` accepted it.
    pub image: String,
    /// The image's full name.
    pub image_name: ImageName,
    /// The id of the image that it must be, whatever the name means ([`super::pinned`]).
    pub pinned: Option<Arc<str>>,
    /// `imagePullPolicy`, defaulted from the tag.
    pub pull_policy: PullPolicy,
    /// `command`: replaces the image's entrypoint. `$(VAR)` not yet expanded.
    pub command: Option<Vec<String>>,
    /// `args`: replaces the image's cmd. `$(VAR)` not yet expanded.
    pub args: Option<Vec<String>>,
    /// `workingDir`.
    pub working_dir: Option<String>,
    /// `envFrom` in order.
    pub env_from: Vec<EnvFrom>,
    /// `env` in order.
    pub env: Vec<EnvVar>,
    /// `volumeMounts` in order; every volume exists in the pod.
    pub mounts: Vec<VolumeMount>,
    /// `ports` in order.
    pub ports: Vec<ContainerPort>,
    /// cpu and memory.
    pub resources: ContainerResources,
    /// Request and limit of `ephemeral-storage`.
    pub storage: StorageBounds,
    /// Limits of huge pages: `limits.hugepages-<size>`, its own or the pod's.
    pub huge_pages: HugePages,
    /// `resizePolicy`.
    pub resize_restarts: ResizeRestarts,
    /// Pod and container security context merged.
    pub security: Security,
    /// Absolute path, `/dev/termination-log` by default.
    pub termination_message_path: String,
    /// `terminationMessagePolicy: FallbackToLogsOnError`.
    pub termination_message_from_logs: bool,
    /// `stdin`.
    pub stdin: bool,
    /// `stdinOnce`: standard input closes when the first attached client closes it.
    pub stdin_once: bool,
    /// `tty`.
    pub tty: bool,
    /// `restartPolicy` of the container itself. `Always` on an init container makes it a sidecar.
    pub restart_policy: Option<RestartPolicy>,
    /// `restartPolicyRules` in order, at most 20; only with `restart_policy`.
    pub restart_rules: Vec<RestartRule>,
    /// Its probes; none on init containers that are no sidecars.
    pub probes: Probes,
    /// Its hooks and stop signal; none on init containers that are no sidecars.
    pub lifecycle: Lifecycle,
    /// `targetContainerName` of an ephemeral container: the container whose processes it sees.
    pub target: Option<String>,
}

impl ContainerSpec {
    /// Whether this init container runs as long as the pod.
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy == Some(RestartPolicy::Always)
    }
}

/// A container image's full name, by Docker's rules.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ImageName {
    /// Registry host with optional port: `docker.io`.
    pub registry: String,
    /// Repository path: `library/busybox`.
    pub repository: String,
    /// Tag; `None` only with a digest.
    pub tag: Option<String>,
    /// `sha256:…` if pinned.
    pub digest: Option<String>,
}

/// `imagePullPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    /// Pull each time.
    Always,
    /// Pull only if the image is missing.
    IfNotPresent,
    /// Never pull.
    Never,
}

impl PullPolicy {
    /// The Kubernetes word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// One environment variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvVar {
    /// Printable ASCII without `=`.
    pub name: String,
    /// Source of the value.
    pub value: EnvValue,
}

/// All keys of a ConfigMap or Secret as environment variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvFrom {
    /// Goes before each key.
    pub prefix: String,
    /// `ConfigMap` or `Secret`.
    pub kind: ObjectKind,
    /// Its name, in the pod's namespace.
    pub name: String,
    /// Whether it may be missing.
    pub optional: bool,
}

/// A key of a ConfigMap or Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRef {
    /// `ConfigMap` or `Secret`.
    pub kind: ObjectKind,
    /// Its name, in the pod's namespace.
    pub name: String,
    /// The key.
    pub key: String,
    /// Whether the object or the key may be missing.
    pub optional: bool,
}

/// A variable in a file of an `emptyDir` volume (KEP-3721).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileKeyRef {
    /// The volume's name.
    pub volume: String,
    /// The file's path in the volume: relative, without `..`.
    pub path: String,
    /// The variable's name in the file.
    pub key: String,
    /// Whether the file or the variable may be missing.
    pub optional: bool,
}

/// Source of an environment variable's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvValue {
    /// `value`, with `$(VAR)` not yet expanded.
    Literal(String),
    /// `fieldRef`: already resolved from the metadata.
    Metadata(String),
    /// `fieldRef: metadata.uid`.
    Uid,
    /// `configMapKeyRef` or `secretKeyRef`.
    Key(KeyRef),
    /// `fileKeyRef`.
    FileKey(FileKeyRef),
    /// `fieldRef: status.hostIP`.
    HostIp,
    /// `fieldRef: status.hostIPs`.
    HostIps,
    /// `fieldRef: status.podIP`.
    PodIp,
    /// `fieldRef: status.podIPs`.
    PodIps,
    /// `fieldRef: spec.nodeName`.
    NodeName,
    /// `resourceFieldRef`: already computed; a missing limit becomes the node's allocatable at start, divided.
    Resource(String),
    /// `resourceFieldRef` of a cpu limit that is not set: node allocatable cores / divisor, rounded up.
    NodeCpu {
        /// Divisor in thousandths of a core.
        divisor_milli: u64,
    },
    /// `resourceFieldRef` of a memory limit that is not set.
    NodeMemory {
        /// Divisor in bytes.
        divisor_bytes: u64,
    },
    /// `resourceFieldRef` of an ephemeral-storage limit that is not set.
    NodeStorage {
        /// Divisor in bytes.
        divisor_bytes: u64,
    },
}

/// One `volumeMounts` entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeMount {
    /// A volume of the pod.
    pub volume: String,
    /// Absolute path in the container.
    pub path: String,
    /// `readOnly`.
    pub read_only: bool,
    /// `recursiveReadOnly`: mounts below the volume's root are read-only, too.
    pub recursive_read_only: bool,
    /// `subPath`: relative, without `..`; `None` for the volume's root.
    pub sub_path: Option<String>,
    /// `subPathExpr`: like `sub_path`, with `$(VAR)` not yet expanded.
    pub sub_path_expr: Option<String>,
    /// `mountPropagation`.
    pub propagation: MountPropagation,
}

/// `mountPropagation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountPropagation {
    /// Private.
    None,
    /// The container sees later mounts of the host (rslave).
    HostToContainer,
    /// The host also sees mounts of the container (rshared).
    Bidirectional,
}

/// One container port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPort {
    /// Port name, if any.
    pub name: Option<String>,
    /// 1–65535.
    pub container_port: u16,
    /// Port on the node, if any.
    pub host_port: Option<u16>,
    /// Address on the node, if given.
    pub host_ip: Option<std::net::IpAddr>,
    /// Transport.
    pub protocol: Protocol,
}

/// Transport of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// The Kubernetes word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

/// A container's requests and limits of cpu and memory; `None`: not given (limits are already copied to missing
/// requests).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerResources {
    /// `requests.cpu` in thousandths of a core.
    pub cpu_request_milli: Option<u64>,
    /// `limits.cpu` in thousandths of a core.
    pub cpu_limit_milli: Option<u64>,
    /// `requests.memory`.
    pub memory_request_bytes: Option<u64>,
    /// `limits.memory`.
    pub memory_limit_bytes: Option<u64>,
}

/// A container's request and limit of `ephemeral-storage`, for its writable layer and logs. No limit equals a limit of
/// 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StorageBounds {
    /// `requests.ephemeral-storage` in bytes; 0 if absent.
    pub request_bytes: u64,
    /// `limits.ephemeral-storage` in bytes.
    pub limit_bytes: Option<u64>,
}

/// Effective pod-level requests and limits; a limit is set only if every container has one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodResources {
    /// Sum of cpu requests in thousandths of a core.
    pub cpu_request_milli: u64,
    /// Sum of cpu limits, if all containers have one.
    pub cpu_limit_milli: Option<u64>,
    /// Sum of memory requests.
    pub memory_request_bytes: u64,
    /// Sum of memory limits, if all containers have one.
    pub memory_limit_bytes: Option<u64>,
}
