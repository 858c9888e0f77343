//! The reasons of all events: one closed list, with the words of the kubelet where it has the same event.
//!
//! The doc comment of each reason is for people: the manual prints it (`coracle help events`). It says what happened,
//! and what to do about a warning.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::PageSize;

/// `type` of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Severity {
    /// Usual operation.
    Normal,
    /// Needs attention.
    Warning,
}

impl Severity {
    /// The Kubernetes word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// A resource that pods share and a node can run out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Number of pods: `maxPods`, `podsPerCore`.
    Pods,
    /// CPU time.
    Cpu,
    /// Memory.
    Memory,
    /// Space on disk.
    EphemeralStorage,
    /// Huge pages of one size.
    HugePages(PageSize),
}

/// The Kubernetes word: `cpu`, `hugepages-2Mi`.
impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pods => f.write_str("pods"),
            Self::Cpu => f.write_str("cpu"),
            Self::Memory => f.write_str("memory"),
            Self::EphemeralStorage => f.write_str("ephemeral-storage"),
            Self::HugePages(size) => f.write_str(&size.resource()),
        }
    }
}

macro_rules! reasons {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident $(($payload:ty: $example:expr))? = $severity:ident $text:literal,
    )+) => {
        /// `reason` of an event.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Reason {
            $( $(#[doc = $doc])+ $name $(($payload))?, )+
        }

        impl Reason {
            /// All reasons, those of pods first, then those of the node. A reason with a value is listed with an
            /// example.
            pub const ALL: &[Self] = &[$( Self::$name $(($example))? ),+];

            /// Severity, the same for all events with this reason.
            pub fn severity(self) -> Severity {
                match self {
                    $( Self::$name { .. } => Severity::$severity, )+
                }
            }

            /// Meaning and remedy: one line for people.
            pub fn doc(self) -> &'static str {
                match self {
                    $( Self::$name { .. } => concat!($($doc),+).trim_ascii_start(), )+
                }
            }

            /// Returns the word without its value.
            fn word(self) -> &'static str {
                match self {
                    $( Self::$name { .. } => $text, )+
                }
            }
        }
    };
}

reasons! {
    /// The image is being pulled from its registry.
    Pulling = Normal "Pulling",
    /// A Secret of `imagePullSecrets` is not there, or has no credentials for registries.
    FailedToRetrieveImagePullSecret = Warning "FailedToRetrieveImagePullSecret",
    /// The registry of an image with pull policy `Always` could not be asked, so the stored image is used, which may be
    /// older. `coracle.pullAlwaysOffline: fail` refuses that.
    UsingStoredImage = Warning "UsingStoredImage",
    /// The container's image is in the store.
    Pulled = Normal "Pulled",
    /// The container was created.
    Created = Normal "Created",
    /// The container's process runs.
    Started = Normal "Started",
    /// The container is being stopped; the message says why.
    Killing = Normal "Killing",
    /// The container crashed and waits before it restarts. Read its log (`coracle logs -p`); `coracle retry` restarts
    /// it at once.
    BackOffRestart = Warning "BackOff",
    /// The image could not be pulled, and the pod waits before it tries again. Importing the image ends the wait.
    BackOffPull = Normal "BackOff",
    /// An image could not be obtained or a container could not be started; the message has the cause.
    Failed = Warning "Failed",
    /// The image is not in the store and the pull policy is `Never`. Import the image (`coracle image import`).
    ErrImageNeverPull = Warning "ErrImageNeverPull",
    /// The image is in the store but cannot be read. Check the store with `coracle fsck`.
    InspectFailed = Warning "InspectFailed",
    /// A probe failed; the message names the probe and has its output. Failed liveness and startup probes restart the container.
    Unhealthy = Warning "Unhealthy",
    /// A probe succeeded in a way that deserves a look, such as a redirect to another host.
    ProbeWarning = Warning "ProbeWarning",
    /// The `postStart` hook failed; the container is stopped and restarts by its policy. Correct the hook.
    FailedPostStartHook = Warning "FailedPostStartHook",
    /// The `preStop` hook failed or took longer than the grace period; the container stops anyway.
    FailedPreStopHook = Warning "FailedPreStopHook",
    /// A hook with scheme HTTPS got an answer in HTTP. Set `scheme: HTTP`.
    LifecycleHTTPFallback = Warning "LifecycleHTTPFallback",
    /// The pod's sandbox was lost or must change; the pod is stopped and made again.
    SandboxChanged = Normal "SandboxChanged",
    /// A volume could not be prepared; the agent tries again. The message names the volume and the cause.
    FailedMount = Warning "FailedMount",
    /// A pod of a Job cannot be made while a pod of another file has its name. Rename one of them.
    FailedCreate = Warning "FailedCreate",
    /// The pod's namespaces, cgroups or network could not be made; the agent tries again.
    FailedCreatePodSandBox = Warning "FailedCreatePodSandBox",
    /// A container or the sandbox could not be stopped or removed; the agent tries again.
    FailedKillPod = Warning "FailedKillPod",
    /// The pod ran longer than its `activeDeadlineSeconds` and is stopped for good.
    DeadlineExceeded = Normal "DeadlineExceeded",
    /// The pod was evicted to make room and has not stopped after 1.5 times its grace period. Look for a process that
    /// hangs in the kernel.
    ExceededGracePeriod = Warning "ExceededGracePeriod",
    /// The pod is stopped to make room for a pod of higher priority, and waits for room.
    Preempting = Warning "Preempting",
    /// The pod is stopped, or not started, because the node is short of memory, disk or processes, or the pod exceeded its storage limit.
    Evicted = Warning "Evicted",
    /// The pod came while the node was shutting down. It starts after the shutdown is cancelled or the node is up again.
    NodeShutdown = Warning "NodeShutdown",
    /// New amounts of cpu or memory are granted and are being written to the cgroups.
    ResizeStarted = Normal "ResizeStarted",
    /// New amounts of cpu or memory are in force.
    ResizeCompleted = Normal "ResizeCompleted",
    /// There is no room for the new amounts now; the pod keeps the old ones and waits.
    ResizeDeferred = Warning "ResizeDeferred",
    /// The node can never grant the new amounts; the pod keeps the old ones. Ask for less.
    ResizeInfeasible = Warning "ResizeInfeasible",
    /// The kernel refused the new amounts, or the container uses more memory than its new limit; the agent tries again.
    ResizeError = Warning "ResizeError",
    /// The pod asks for coracle's name server and there is none; it uses the node's own `resolv.conf`. See `coracle doctor`.
    MissingClusterDNS = Warning "MissingClusterDNS",
    /// The pod has more name servers or search domains than resolvers read; the rest is left out. Shorten `dnsConfig`.
    DNSConfigForming = Warning "DNSConfigForming",
    /// A device is not there: the container waits for it, or it was unplugged while the container runs. The message names it.
    DeviceMissing = Warning "DeviceMissing",
    /// A device cannot be given to the container. Correct the annotation or the CDI file; the message has the cause.
    DeviceRefused = Warning "DeviceRefused",
    /// The devices that the container waited for, or that were gone, are there.
    DevicesReady = Normal "DevicesReady",
    /// The kernel does not hold a limit that was written to a cgroup. `coracle describe pod` shows what holds.
    CgroupMismatch = Warning "CgroupMismatch",
    /// The node has too little of a resource for the pod, which waits until there is enough. Lower its requests or stop other pods.
    OutOf(Resource: Resource::HugePages(PageSize::EXAMPLE)) = Warning "OutOf",
    /// The pod was stopped by command and stays down, over reboots, until `coracle start`.
    Stopped = Normal "Stopped",
    /// The node is cordoned and admits no new pods until `coracle uncordon`.
    NodeCordoned = Warning "NodeCordoned",
    /// The pod sets a sysctl that others on the node would notice. Name it in `allowedUnsafeSysctls`, or remove it.
    SysctlForbidden = Warning "SysctlForbidden",
    /// The pod asks for an AppArmor profile and the node's kernel has no AppArmor. Remove the profile, or boot with AppArmor.
    AppArmor = Warning "AppArmor",
    /// The pod asks for a user namespace (`hostUsers: false`) and the node cannot make one; the message says what is
    /// missing. Remove the field, or boot a kernel that can.
    UserNamespaces = Warning "UserNamespaces",
    /// The pod's label `kubernetes.io/os` is not `linux`.
    PodOSSelectorNodeLabelDoesNotMatch = Warning "PodOSSelectorNodeLabelDoesNotMatch",
    /// The pod's `spec.os.name` is not `linux`.
    PodOSNotSupported = Warning "PodOSNotSupported",
    /// `nodeSelector`, `nodeAffinity` or `nodeName` of the pod do not fit this node. Compare with `coracle describe node`.
    NodeAffinity = Warning "NodeAffinity",
    /// Another pod has the `hostPort` that the pod wants; the message names it. The pod waits until it is free.
    NodePorts = Warning "NodePorts",
    /// A claim of the pod has no document, and another pod waits for it already. Add the document of the claim.
    VolumeBinding = Warning "VolumeBinding",
    /// Another pod uses the claim with access mode `ReadWriteOncePod`; the message names it. The pod waits until that pod has gone.
    VolumeRestrictions = Warning "VolumeRestrictions",
    /// A claim of the pod takes more than the size it asks for. The pod waits until files were removed, or the claim requests
    /// more storage.
    ClaimOverSize = Warning "ClaimOverSize",
    /// The pod waits for what it starts after (annotation `coracle.dev/after`); the message names what is missing.
    WaitingForDependencies = Normal "WaitingForDependencies",
    /// What the pod starts after was not there in time. The message says whether the pod starts without it. See `coracle boot`.
    DependencyTimeout = Warning "DependencyTimeout",
    /// What the pod started after was lost, and its annotation asks with `again` to wait for it again: the pod is stopped first.
    DependencyLost = Warning "DependencyLost",
    /// A Deployment wants more or fewer pods of a template: its file, or a rollout, has changed the number. The message names
    /// the template by its hash.
    ScalingReplicaSet = Normal "ScalingReplicaSet",
    /// A pod was made from a StatefulSet, DaemonSet, ReplicaSet, ReplicationController or Job, or a Job from a CronJob.
    SuccessfulCreate = Normal "SuccessfulCreate",
    /// A pod made from such a document is stopped: it is one too many, or its template has changed.
    SuccessfulDelete = Normal "SuccessfulDelete",
    /// The new pods of a Deployment were not available in time. The rollout stops and the former pods go on; look at a new pod
    /// (`coracle describe pod`), and correct the template or put the former one back.
    ProgressDeadlineExceeded = Warning "ProgressDeadlineExceeded",
    /// The Job has succeeded as often as it should.
    Completed = Normal "Completed",
    /// The Job's `suspend` is true: its pods are stopped.
    Suspended = Normal "Suspended",
    /// The Job's `suspend` is no longer true.
    Resumed = Normal "Resumed",
    /// More pods of the Job have failed than its `backoffLimit`. Read their logs (`coracle logs job/NAME`).
    BackoffLimitExceeded = Warning "BackoffLimitExceeded",
    /// The Job was at work longer than its `activeDeadlineSeconds` and has failed.
    JobDeadlineExceeded = Warning "DeadlineExceeded",
    /// A pod of the Job has failed in a way for which its `podFailurePolicy` says `FailJob`.
    PodFailurePolicy = Warning "PodFailurePolicy",
    /// More indexes of the Job have failed than its `maxFailedIndexes`.
    MaxFailedIndexesExceeded = Warning "MaxFailedIndexesExceeded",
    /// A Job of the CronJob has ended.
    SawCompletedJob = Normal "SawCompletedJob",
    /// The CronJob is due, and does not begin: a Job of it still runs.
    JobAlreadyActive = Normal "JobAlreadyActive",
    /// A time of the CronJob has passed for longer than its `startingDeadlineSeconds`: it does not run.
    MissSchedule = Warning "MissSchedule",
    /// More than 100 times of the CronJob were missed; the last of them runs.
    TooManyMissedTimes = Warning "TooManyMissedTimes",
    /// The clock shows a time before 2025, so CronJobs wait until it is set (`timedatectl`).
    ClockNotSet = Warning "ClockNotSet",
    /// All indexes of the Job have ended, and some of them have failed.
    FailedIndexes = Warning "FailedIndexes",

    /// The `clusterIP` of the Service is taken; the message names the owner. The Service has no address until it is free.
    ClusterIPAlreadyAllocated = Warning "ClusterIPAlreadyAllocated",
    /// The `clusterIP` of the Service is none of this node's range of Services, so the Service has no address. Leave the field
    /// out, or set `coracle.serviceCIDR`.
    ClusterIPOutOfRange = Warning "ClusterIPOutOfRange",
    /// No address is left for the Service. Set a larger `coracle.serviceCIDR`.
    ServiceCIDRFull = Warning "ServiceCIDRFull",
    /// The Service asks for addresses of a family that pods do not have on this node; it has those of the other one.
    IPFamilyNotConfigured = Warning "IPFamilyNotConfigured",
    /// A node port of the Service is taken; the message names the owner. The rest of the Service works, and the port follows
    /// once it is free.
    PortAlreadyAllocated = Warning "PortAlreadyAllocated",

    /// The agent started.
    Starting = Normal "Starting",
    /// The machine has been rebooted since the agent last ran.
    Rebooted = Warning "Rebooted",
    /// The machine lost power or crashed; the image store was checked. Look for a failing power supply if it repeats.
    UncleanShutdown = Warning "UncleanShutdown",
    /// A damaged image was removed. Preloaded archives are imported again; import others by hand, and check the disk.
    ImageDamaged = Warning "ImageDamaged",
    /// The node accepts pods.
    NodeReady = Normal "NodeReady",
    /// The node is shutting down and accepts no pods.
    NodeNotReady = Normal "NodeNotReady",
    /// Memory runs short: pods are evicted if nothing changes. `coracle top pods` shows which pods use it.
    NodeHasInsufficientMemory = Normal "NodeHasInsufficientMemory",
    /// There is enough memory again.
    NodeHasSufficientMemory = Normal "NodeHasSufficientMemory",
    /// Disk space or inodes run short: images and logs are removed, then pods evicted.
    NodeHasDiskPressure = Normal "NodeHasDiskPressure",
    /// There is enough disk again.
    NodeHasNoDiskPressure = Normal "NodeHasNoDiskPressure",
    /// Process numbers run short: pods are evicted if nothing changes.
    NodeHasInsufficientPID = Normal "NodeHasInsufficientPID",
    /// There are enough process numbers again.
    NodeHasSufficientPID = Normal "NodeHasSufficientPID",
    /// The agent tries to free memory, disk or process numbers; the message names the resource.
    EvictionThresholdMet = Warning "EvictionThresholdMet",
    /// Unused images could not be removed; the message has the cause.
    ImageGCFailed = Warning "ImageGCFailed",
    /// All unused images are removed and the disk is still too full. Free space elsewhere.
    FreeDiskSpaceFailed = Warning "FreeDiskSpaceFailed",
    /// The node was cordoned.
    NodeNotSchedulable = Normal "NodeNotSchedulable",
    /// The node was uncordoned.
    NodeSchedulable = Normal "NodeSchedulable",
    /// A shutdown of the pods began, ended or was cancelled; the message says which.
    Shutdown = Normal "Shutdown",
    /// The limits of all pods together, or of a reserved cgroup, are in force.
    NodeAllocatableEnforced = Normal "NodeAllocatableEnforced",
    /// Limits of all pods together, or of a reserved cgroup, could not be set; the agent continues without them.
    FailedNodeAllocatableEnforcement = Warning "FailedNodeAllocatableEnforcement",
    /// Changed settings are in force.
    ConfigurationChanged = Normal "ConfigurationChanged",
    /// A changed setting takes effect when the agent starts again.
    ConfigurationPending = Warning "ConfigurationPending",
    /// The pods of an edit were not ready in time, and what was there before it is brought back. It stays until the document changes: `coracle get files`.
    RolledBack = Warning "RolledBack",
    /// The pods of a bundle's new generation were not ready in time. `coracle bundle ls` shows which generation is in force.
    BundleFailed = Warning "BundleFailed",
    /// A bundle from the source that is polled (`coracle.bundle`) is in force.
    BundleApplied = Normal "BundleApplied",
    /// The source that is polled for bundles could not be reached, or what it has was refused. What is in force stays.
    BundlePollFailed = Warning "BundlePollFailed",
    /// The settings files are wrong; the last valid settings stay in force. `coracle config check` shows every mistake.
    InvalidConfiguration = Warning "InvalidConfiguration",
    /// There is swap, and the kernel cannot keep memory-backed volumes out of it. Turn swap off, or encrypt it, if they hold secrets.
    PossibleMemoryBackedVolumesOnDisk = Warning "PossibleMemoryBackedVolumesOnDisk",
}

impl Reason {
    /// Text in events and `status.reason`.
    pub fn as_str(self) -> Cow<'static, str> {
        match self {
            Self::OutOf(resource) => Cow::Owned(format!("{}{resource}", self.word())),
            _ => Cow::Borrowed(self.word()),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_one_word_with_one_severity_and_a_sentence() {
        let mut seen = Vec::new();
        for reason in Reason::ALL {
            let word = reason.as_str();
            assert!(word.starts_with(|c: char| c.is_ascii_uppercase()), "{word}");
            assert!(!word.contains(char::is_whitespace), "{word}");
            assert!(reason.doc().ends_with('.'), "{word}");
            let this = (word, reason.severity());
            assert!(!seen.contains(&this), "{this:?} is there twice");
            seen.push(this);
        }
    }

    #[test]
    fn a_reason_for_a_shortage_names_the_resource() {
        let huge = Resource::HugePages(PageSize::EXAMPLE);
        for (resource, word) in [
            (Resource::Pods, "OutOfpods"),
            (Resource::Cpu, "OutOfcpu"),
            (Resource::Memory, "OutOfmemory"),
            (Resource::EphemeralStorage, "OutOfephemeral-storage"),
            (huge, "OutOfhugepages-2Mi"),
        ] {
            assert_eq!(Reason::OutOf(resource).to_string(), word);
        }
    }
}
