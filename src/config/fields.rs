//! The table of all settings: one line a field, with its type, its default, and when a change takes effect.
//!
//! Names, types and defaults are those of `KubeletConfiguration` (Kubernetes docs: Kubelet Configuration) with some
//! differences (`coracle help differences`): swap does not keep the agent from starting, cgroup v1 is accepted,
//! shutdown is graceful, seccomp is on. Settings that only coracle has are below `coracle`.

/// Type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `true` or `false`.
    Bool,
    /// A 32-bit integer.
    Int,
    /// A 64-bit integer.
    Long,
    /// A number.
    Float,
    /// A string.
    Text,
    /// A Go duration, `1m30s`.
    Duration,
    /// A quantity, `10Mi`.
    Quantity,
    /// A list of strings.
    Texts,
    /// A mapping to strings.
    TextByName,
    /// A mapping to booleans.
    BoolByName,
    /// Any value; its content is not checked.
    Any,
    /// A value checked by a rule of its own.
    Own,
}

/// When a change takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// When the file is read again.
    Live,
    /// At the next agent restart.
    Start,
    /// Never: the setting has no effect here.
    Idle,
}

/// A setting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    /// Name, with dots if it is nested.
    pub(crate) path: &'static str,
    pub(crate) kind: Kind,
    pub(crate) role: Role,
    /// Default as YAML; empty: none.
    pub(crate) default: &'static str,
}

const fn f(path: &'static str, kind: Kind, role: Role, default: &'static str) -> Field {
    Field {
        path,
        kind,
        role,
        default,
    }
}

use Kind::{
    Any, Bool, BoolByName, Duration, Float, Int, Long, Own, Quantity, Text, TextByName, Texts,
};
use Role::{Idle, Live, Start};

/// All settings, in the order of printing.
pub(crate) const FIELDS: &[Field] = &[
    // Manifests and logs.
    f("staticPodPath", Text, Start, "/etc/coracle/manifests"),
    f("fileCheckFrequency", Duration, Live, "20s"),
    f("staticPodURL", Text, Start, "\"\""),
    f("staticPodURLHeader", Own, Start, "{}"),
    f("httpCheckFrequency", Duration, Start, "20s"),
    f("podLogsDir", Text, Start, "/var/log/pods"),
    f("containerLogMaxSize", Quantity, Live, "10Mi"),
    f("containerLogMaxFiles", Int, Live, "5"),
    f("containerLogMaxWorkers", Int, Idle, ""),
    f("containerLogMonitorInterval", Duration, Idle, ""),
    // The network of pods.
    f("podCIDR", Text, Start, "\"\""),
    f("clusterDNS", Texts, Start, "[]"),
    f("clusterDomain", Text, Start, "cluster.local"),
    f("resolvConf", Text, Start, "/etc/resolv.conf"),
    // Containers.
    f(
        "crashLoopBackOff.maxContainerRestartPeriod",
        Duration,
        Live,
        "300s",
    ),
    f("seccompDefault", Bool, Start, "true"),
    f("allowedUnsafeSysctls", Texts, Start, "[]"),
    // Upper limit: see `node::default_pod_pids`.
    f("podPidsLimit", Long, Start, "4096"),
    f("cpuCFSQuota", Bool, Start, "true"),
    f("cpuCFSQuotaPeriod", Duration, Start, "100ms"),
    f("singleProcessOOMKill", Bool, Start, ""),
    f("memoryThrottlingFactor", Float, Start, "0.9"),
    f("memoryReservationPolicy", Text, Start, "None"),
    f("userNamespaces.idsPerPod", Long, Start, "65536"),
    // The node.
    f("maxPods", Int, Live, "110"),
    f("podsPerCore", Int, Live, "0"),
    f("systemReserved", TextByName, Start, "{}"),
    f("kubeReserved", TextByName, Start, "{}"),
    f("systemReservedCgroup", Text, Start, "\"\""),
    f("kubeReservedCgroup", Text, Start, "\"\""),
    f("reservedSystemCPUs", Text, Start, "\"\""),
    f("enforceNodeAllocatable", Texts, Start, "[pods]"),
    f("cgroupsPerQOS", Bool, Start, "true"),
    f("failCgroupV1", Bool, Start, "false"),
    f("failSwapOn", Bool, Start, "false"),
    f("memorySwap.swapBehavior", Text, Start, "NoSwap"),
    f("oomScoreAdj", Int, Start, "-999"),
    f("maxOpenFiles", Long, Start, "1000000"),
    f("registerWithTaints", Own, Start, "[]"),
    f("providerID", Text, Start, "\"\""),
    f("nodeStatusMaxImages", Int, Live, "50"),
    // Pressure.
    f(
        "evictionHard",
        TextByName,
        Live,
        "{memory.available: 100Mi, nodefs.available: 10%, nodefs.inodesFree: 5%, imagefs.available: 15%, \
         imagefs.inodesFree: 5%}",
    ),
    f("evictionSoft", TextByName, Live, "{}"),
    f("evictionSoftGracePeriod", TextByName, Live, "{}"),
    f("evictionMinimumReclaim", TextByName, Live, "{}"),
    f("evictionPressureTransitionPeriod", Duration, Live, "5m"),
    f("evictionMaxPodGracePeriod", Int, Live, "0"),
    f("mergeDefaultEvictionSettings", Bool, Live, "false"),
    f("localStorageCapacityIsolation", Bool, Live, "true"),
    f("imageMinimumGCAge", Duration, Live, "2m"),
    f("imageMaximumGCAge", Duration, Live, "0s"),
    f("imageGCHighThresholdPercent", Int, Live, "85"),
    f("imageGCLowThresholdPercent", Int, Live, "80"),
    f("serializeImagePulls", Bool, Start, "true"),
    f("maxParallelImagePulls", Int, Start, ""),
    f("registryPullQPS", Int, Start, "5"),
    f("registryBurst", Int, Start, "10"),
    f(
        "imagePullCredentialsVerificationPolicy",
        Text,
        Live,
        "NeverVerifyPreloadedImages",
    ),
    f("preloadedImagesVerificationAllowlist", Texts, Live, "[]"),
    // Shutdown: the first two apply unless the third is given.
    f("shutdownGracePeriod", Duration, Live, "30s"),
    f("shutdownGracePeriodCriticalPods", Duration, Live, "10s"),
    f("shutdownGracePeriodByPodPriority", Own, Live, "[]"),
    f("featureGates", BoolByName, Live, "{}"),
    // Settings that only coracle has.
    f("coracle.rootDir", Text, Start, "/var/lib/coracle"),
    f("coracle.runDir", Text, Start, "/run/coracle"),
    f(
        "coracle.preload",
        Texts,
        Start,
        "[/etc/coracle/images, /usr/share/coracle/images]",
    ),
    f(
        "coracle.cdiSpecDirs",
        Texts,
        Start,
        "[/etc/cdi, /var/run/cdi]",
    ),
    f("coracle.nodeName", Text, Start, "\"\""),
    f("coracle.nodeLabels", TextByName, Start, "{}"),
    f("coracle.cgroupParent", Text, Start, "\"\""),
    f("coracle.bridge", Text, Start, "coracle0"),
    f("coracle.serviceCIDR", Text, Start, "\"\""),
    f("coracle.maximumDeadContainersPerContainer", Int, Live, "1"),
    f("coracle.stopPodsOnExit", Bool, Start, "false"),
    f("coracle.podSecurity", Text, Start, "privileged"),
    f(
        "coracle.registryAuthFile",
        Text,
        Start,
        "/etc/coracle/auth.json",
    ),
    f(
        "coracle.registryCertificateDirs",
        Texts,
        Start,
        "[/etc/containers/certs.d, /etc/docker/certs.d]",
    ),
    f(
        "coracle.registriesConf",
        Texts,
        Start,
        "[/etc/containers/registries.conf, /etc/coracle/registries.conf]",
    ),
    f(
        "coracle.signaturePolicy",
        Text,
        Start,
        "/etc/coracle/policy.json",
    ),
    f("coracle.plainHTTPRegistries", Texts, Start, "[]"),
    f("coracle.bundleKey", Text, Start, "\"\""),
    f("coracle.bundle.source", Text, Start, "\"\""),
    f("coracle.bundle.interval", Duration, Start, "15m"),
    f("coracle.bundle.key", Text, Start, "\"\""),
    f("coracle.bundle.readyWithin", Duration, Start, "0s"),
    f("coracle.pullRate", Text, Start, "\"\""),
    f("coracle.pullWindows", Texts, Start, "[]"),
    f("coracle.pullAlwaysOffline", Text, Start, "use"),
    // Settings without effect here.
    f("address", Text, Idle, ""),
    f("authentication", Any, Idle, ""),
    f("authorization", Any, Idle, ""),
    f("cgroupDriver", Text, Idle, ""),
    f("cgroupRoot", Text, Idle, ""),
    f("configMapAndSecretChangeDetectionStrategy", Text, Idle, ""),
    f("containerRuntimeEndpoint", Text, Idle, ""),
    f("contentType", Text, Idle, ""),
    f("cpuManagerPolicy", Text, Idle, ""),
    f("cpuManagerPolicyOptions", Any, Idle, ""),
    f("cpuManagerReconcilePeriod", Duration, Idle, ""),
    f("draManagerReconcilePeriod", Duration, Idle, ""),
    f("enableContentionProfiling", Bool, Idle, ""),
    f("enableControllerAttachDetach", Bool, Idle, ""),
    f("enableDebugFlagsHandler", Bool, Idle, ""),
    f("enableDebuggingHandlers", Bool, Idle, ""),
    f("enableProfilingHandler", Bool, Idle, ""),
    f("enableServer", Bool, Idle, ""),
    f("enableSystemLogHandler", Bool, Idle, ""),
    f("enableSystemLogQuery", Bool, Idle, ""),
    f("eventBurst", Int, Idle, ""),
    f("eventRecordQPS", Int, Idle, ""),
    f("hairpinMode", Text, Idle, ""),
    f("healthzBindAddress", Text, Idle, ""),
    f("healthzPort", Int, Idle, ""),
    f("imageServiceEndpoint", Text, Idle, ""),
    f("iptablesDropBit", Int, Idle, ""),
    f("iptablesMasqueradeBit", Int, Idle, ""),
    f("kernelMemcgNotification", Bool, Idle, ""),
    f("kubeAPIBurst", Int, Idle, ""),
    f("kubeAPIQPS", Int, Idle, ""),
    f("kubeletCgroups", Text, Idle, ""),
    f("logging", Any, Idle, ""),
    f("makeIPTablesUtilChains", Bool, Idle, ""),
    f("memoryManagerPolicy", Text, Idle, ""),
    f("nodeLeaseDurationSeconds", Int, Idle, ""),
    f("nodeStatusReportFrequency", Duration, Idle, ""),
    f("nodeStatusUpdateFrequency", Duration, Idle, ""),
    f("port", Int, Idle, ""),
    f("protectKernelDefaults", Bool, Idle, ""),
    f("qosReserved", Any, Idle, ""),
    f("readOnlyPort", Int, Idle, ""),
    f("registerNode", Bool, Idle, ""),
    f("reservedMemory", Any, Idle, ""),
    f("rotateCertificates", Bool, Idle, ""),
    f("runOnce", Bool, Idle, ""),
    f("runtimeRequestTimeout", Duration, Idle, ""),
    f("serverTLSBootstrap", Bool, Idle, ""),
    f("showHiddenMetricsForVersion", Text, Idle, ""),
    f("streamingConnectionIdleTimeout", Duration, Idle, ""),
    f("syncFrequency", Duration, Idle, ""),
    f("systemCgroups", Text, Idle, ""),
    f("tlsCertFile", Text, Idle, ""),
    f("tlsCipherSuites", Texts, Idle, ""),
    f("tlsCurvePreferences", Any, Idle, ""),
    f("tlsMinVersion", Text, Idle, ""),
    f("tlsPrivateKeyFile", Text, Idle, ""),
    f("topologyManagerPolicy", Text, Idle, ""),
    f("topologyManagerPolicyOptions", Any, Idle, ""),
    f("topologyManagerScope", Text, Idle, ""),
    f("tracing", Any, Idle, ""),
    f("volumePluginDir", Text, Idle, ""),
    f("volumeStatsAggPeriod", Duration, Idle, ""),
];

/// Fields for which zero, or an empty string, means the same as leaving them out.
pub(crate) const ZERO_IS_DEFAULT: &[&str] = &[
    "fileCheckFrequency",
    "httpCheckFrequency",
    "podLogsDir",
    "containerLogMaxSize",
    "staticPodPath",
    "maxPods",
    "maxOpenFiles",
    "memorySwap.swapBehavior",
    "evictionPressureTransitionPeriod",
    "imageMinimumGCAge",
    "registryBurst",
    "imagePullCredentialsVerificationPolicy",
    "clusterDomain",
    "coracle.bridge",
    "coracle.podSecurity",
    "coracle.pullAlwaysOffline",
    "coracle.rootDir",
    "coracle.runDir",
];

/// Fields that are checked and shown but have no effect in this version; a warning says so.
pub(crate) const NOT_YET: &[&str] = &["maxOpenFiles"];

/// Returns the field with that path.
pub(crate) fn find(path: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|field| field.path == path)
}

/// Returns the names of fields inside `parent` (empty: at the top level).
pub(crate) fn names(parent: &str) -> Vec<&'static str> {
    let mut names: Vec<&str> = Vec::new();
    for field in FIELDS {
        let inside = match parent {
            "" => Some(field.path),
            _ => field
                .path
                .strip_prefix(parent)
                .and_then(|rest| rest.strip_prefix('.')),
        };
        let name = inside.map(|rest| rest.split('.').next().unwrap_or(rest));
        if let Some(name) = name.filter(|name| !names.contains(name)) {
            names.push(name);
        }
    }
    names
}
