//! The limits of a cgroup: Kubernetes' resources as cgroup files (Kubernetes docs: Resource Management).

use super::huge_pages::HugePageLimit;
use super::memory::Protected;
use super::{LimitSettings, Mode, NodeLimits, swap};
use crate::spec::{ContainerResources, PodResources, PodSpec, QosClass};

/// A resource that can be changed while processes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resource {
    /// The memory limit.
    Memory,
    /// The cpu limit.
    Cpu,
    /// The share of cpu under contention.
    Weight,
}

impl Mode {
    /// The file with the memory in use.
    pub(super) fn usage(self) -> &'static str {
        match self {
            Self::V1 => "memory.usage_in_bytes",
            Self::V2 => "memory.current",
        }
    }

    /// The file whose first number is the limit.
    pub(super) fn limit_file(self, resource: Resource) -> &'static str {
        match (self, resource) {
            (Self::V1, Resource::Memory) => "memory.limit_in_bytes",
            (Self::V2, Resource::Memory) => "memory.max",
            (Self::V1, Resource::Cpu) => "cpu.cfs_quota_us",
            (Self::V2, Resource::Cpu) => "cpu.max",
            (Self::V1, Resource::Weight) => "cpu.shares",
            (Self::V2, Resource::Weight) => "cpu.weight",
        }
    }
}

/// The values of one cgroup, before they become files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    shares: Option<u64>,
    /// Containers use the log2 weight formula of current OCI runtimes, pods the kubelet's linear one.
    container: bool,
    /// Quota and period in microseconds; quota `None` = no limit.
    quota: Option<(Option<u64>, u64)>,
    memory_max: Option<Option<u64>>,
    /// Swap beside memory; `None` leaves the file alone.
    swap_max: Option<Option<u64>>,
    pids_max: Option<Option<u64>>,
    protected: Option<Protected>,
    /// Whether an OOM kill takes all processes; `None` leaves the file alone.
    oom_group: Option<bool>,
    /// Huge pages; `None` leaves the files alone.
    pub(super) huge_pages: Option<HugePageLimit>,
}

impl Limits {
    /// Only cpu shares.
    pub fn shares(shares: u64) -> Self {
        Self {
            shares: Some(shares),
            ..Self::default()
        }
    }

    /// The share of a cgroup that contains many pods.
    pub(super) fn cpu(milli: u64) -> Self {
        Self::shares(shares(milli))
    }

    /// The values of a cgroup that contains many pods.
    pub(super) fn node(limits: NodeLimits) -> Self {
        Self {
            shares: limits.cpu_milli.map(shares),
            memory_max: limits.memory_bytes,
            pids_max: limits.pids,
            huge_pages: limits.huge_pages.map(|pages| match pages {
                Some(pages) => HugePageLimit::Only(pages),
                None => HugePageLimit::Unlimited,
            }),
            ..Self::default()
        }
    }

    /// A pod's values with these resources: quota and memory only if every container has a limit.
    pub fn pod(pod: &PodSpec, resources: PodResources, settings: LimitSettings) -> Self {
        let shares = if pod.qos == QosClass::BestEffort {
            2
        } else {
            shares(resources.cpu_request_milli)
        };
        Self {
            shares: Some(shares),
            container: false,
            quota: Some(quota(resources.cpu_limit_milli, settings)),
            memory_max: Some(resources.memory_limit_bytes),
            // As with a kubelet, swap is a matter of containers, except for a pod's own limit.
            swap_max: swap::own(settings.swap, pod.priority, pod.swap_max_bytes).map(Some),
            pids_max: Some(settings.pod_pids),
            protected: settings.memory.map(|rule| rule.of_pod(pod.qos, resources)),
            oom_group: None,
            huge_pages: Some(HugePageLimit::Only(pod.huge_pages.clone())),
        }
    }

    /// The values of the pod's container of that name, with these resources. Where it has no limit it has that of the
    /// pod, `of_pod`: programs read the one of their own cgroup.
    pub fn container(
        pod: &PodSpec,
        name: &str,
        resources: ContainerResources,
        of_pod: PodResources,
        settings: LimitSettings,
    ) -> Self {
        let positive = |limit: Option<u64>| limit.filter(|limit| *limit > 0);
        let cpu_limit = positive(resources.cpu_limit_milli).or(of_pod.cpu_limit_milli);
        let memory_limit = positive(resources.memory_limit_bytes).or(of_pod.memory_limit_bytes);
        let huge_pages = pod.container(name).map(|c| c.huge_pages.clone());
        let request = resources.cpu_request_milli.or(cpu_limit).unwrap_or(0);
        Self {
            shares: Some(shares(request)),
            container: true,
            quota: Some(quota(cpu_limit, settings)),
            memory_max: Some(memory_limit),
            swap_max: Some(
                match swap::own(settings.swap, pod.priority, pod.swap_max_bytes) {
                    Some(_) => None,
                    None => swap::share(settings.swap, pod.priority, pod.qos, resources),
                },
            ),
            pids_max: None,
            protected: settings
                .memory
                .map(|rule| rule.of_container(pod.qos, resources)),
            oom_group: Some(settings.oom_group),
            huge_pages: Some(HugePageLimit::Only(huge_pages.unwrap_or_default())),
        }
    }

    /// The memory limit, if there is one.
    pub(super) fn memory(&self) -> Option<u64> {
        self.memory_max.flatten()
    }

    /// The limit of a resource as its file shows it, if there is one.
    pub(super) fn limit(&self, resource: Resource) -> Option<u64> {
        match resource {
            Resource::Memory => self.memory(),
            Resource::Cpu => self.quota.and_then(|(quota, _)| quota),
            Resource::Weight => self.shares,
        }
    }

    /// As [`Limits::files`], of one resource.
    pub(super) fn files_of(&self, mode: Mode, resource: Resource) -> Vec<(&'static str, String)> {
        let mut files = self.files(mode);
        let main = mode.limit_file(resource);
        let beside: &[&str] = match resource {
            Resource::Cpu => &["cpu.cfs_period_us"],
            // On v1 it must not be the lower one.
            Resource::Memory => &[
                "memory.memsw.limit_in_bytes",
                "memory.swap.max",
                "memory.min",
                "memory.low",
                "memory.high",
            ],
            Resource::Weight => &[],
        };
        files.retain(|(file, _)| *file == main || beside.contains(file));
        files
    }

    /// File names and values, in the order in which they can be written.
    pub fn files(&self, mode: Mode) -> Vec<(&'static str, String)> {
        let mut files = Vec::new();
        let max = |value: Option<u64>, none: &str| {
            value.map_or_else(|| none.to_owned(), |value| value.to_string())
        };
        match mode {
            Mode::V2 => {
                if let Some(shares) = self.shares {
                    let weight = if self.container {
                        container_weight(shares)
                    } else {
                        pod_weight(shares)
                    };
                    files.push(("cpu.weight", weight.to_string()));
                }
                if let Some((quota, period)) = self.quota {
                    files.push(("cpu.max", format!("{} {period}", max(quota, "max"))));
                }
                files.extend(self.protected.into_iter().flat_map(Protected::files));
                files.extend(self.memory_files(mode));
                if let Some(pids) = self.pids_max {
                    files.push(("pids.max", max(pids, "max")));
                }
                if let Some(all) = self.oom_group {
                    files.push(("memory.oom.group", u8::from(all).to_string()));
                }
            }
            Mode::V1 => {
                if let Some(shares) = self.shares {
                    files.push(("cpu.shares", shares.to_string()));
                }
                if let Some((quota, period)) = self.quota {
                    files.push(("cpu.cfs_period_us", period.to_string()));
                    files.push(("cpu.cfs_quota_us", max(quota, "-1")));
                }
                files.extend(self.memory_files(mode));
                if let Some(pids) = self.pids_max {
                    files.push(("pids.max", max(pids, "max")));
                }
            }
        }
        files
    }

    fn memory_files(&self, mode: Mode) -> Vec<(&'static str, String)> {
        let (name, none) = match mode {
            Mode::V2 => ("memory.max", "max"),
            Mode::V1 => ("memory.limit_in_bytes", "-1"),
        };
        match (self.memory_max, self.swap_max) {
            (Some(memory), Some(swap)) => swap::files(mode, memory, swap),
            (Some(memory), None) => {
                let memory = memory.map_or_else(|| none.to_owned(), |bytes| bytes.to_string());
                vec![(name, memory)]
            }
            (None, _) => Vec::new(),
        }
    }
}

/// cpu shares of a request.
fn shares(milli: u64) -> u64 {
    (milli.saturating_mul(1024) / 1000).clamp(2, 262_144)
}

fn quota(limit_milli: Option<u64>, settings: LimitSettings) -> (Option<u64>, u64) {
    let period = settings.quota_period_us;
    let limit = limit_milli.filter(|milli| settings.quota && *milli > 0);
    (
        limit.map(|milli| (milli.saturating_mul(period) / 1000).max(1000)),
        period,
    )
}

/// The kubelet's linear formula, used for pods.
fn pod_weight(shares: u64) -> u64 {
    if shares >= 262_144 {
        10_000
    } else {
        1 + (shares.max(2) - 2) * 9_999 / 262_142
    }
}

/// The formula of current OCI runtimes, used for containers: 1024 shares become weight 100.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "1..10000"
)]
fn container_weight(shares: u64) -> u64 {
    match shares {
        0..=2 => 1,
        262_144.. => 10_000,
        _ => {
            let log = (shares as f64).log2();
            10_f64
                .powf((log * log + 125.0 * log) / 612.0 - 7.0 / 34.0)
                .ceil() as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_without_a_limit_has_that_of_its_pod() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  \
                    resources: {limits: {cpu: 500m, memory: 64Mi}}\n  containers:\n  \
                    - {name: a, image: i, resources: {limits: {memory: 32Mi}, requests: {cpu: 100m}}}\n  \
                    - {name: b, image: i}\n";
        let context = crate::spec::convert::ConvertContext::of("n");
        let found = crate::spec::convert::documents(text.as_bytes(), "f", &context);
        let pod = &found.expect("valid").pods[0];
        let larger = PodResources {
            memory_limit_bytes: Some(128 << 20),
            ..pod.resources
        };
        let of = |name: &str, of_pod| {
            let own = pod.container(name).expect("there").resources;
            let limits = Limits::container(pod, name, own, of_pod, LimitSettings::default());
            let of = |resource| limits.limit(resource);
            (
                of(Resource::Memory),
                of(Resource::Cpu),
                of(Resource::Weight),
            )
        };
        let (small, large) = (Some(32 << 20), Some(64 << 20));
        assert_eq!(of("a", pod.resources), (small, Some(50_000), Some(102)));
        assert_eq!(of("b", pod.resources), (large, Some(50_000), Some(512)));
        assert_eq!(of("b", larger).0, Some(128 << 20));
    }

    #[test]
    fn cpu_figures_are_the_kubelets() {
        // milliCPU, shares, pod weight, container weight, quota at 100 ms
        let table = [
            (0, 2, 1, 1, None),
            (10, 10, 1, 4, Some(1000)),
            (100, 102, 4, 17, Some(10_000)),
            (250, 256, 10, 35, Some(25_000)),
            (500, 512, 20, 59, Some(50_000)),
            (1000, 1024, 39, 100, Some(100_000)),
            (2000, 2048, 79, 174, Some(200_000)),
            (4000, 4096, 157, 303, Some(400_000)),
            (16_000, 16_384, 625, 942, Some(1_600_000)),
        ];
        let settings = LimitSettings::default();
        for (milli, expected_shares, pod, container, expected_quota) in table {
            let got = shares(milli);
            assert_eq!(got, expected_shares, "shares of {milli}m");
            assert_eq!(pod_weight(got), pod, "pod weight of {milli}m");
            assert_eq!(
                container_weight(got),
                container,
                "container weight of {milli}m"
            );
            assert_eq!(
                quota(Some(milli), settings).0,
                expected_quota,
                "quota of {milli}m"
            );
        }
    }
}
