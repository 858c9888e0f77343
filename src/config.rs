//! How is this node set up? The settings of one agent, read from a `kind: KubeletConfiguration` file, validated
//! all at once, every default written down.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::Deserialize;
use serde_yaml::Value;

use crate::layout::Layout;

/// Settings of one agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Its directories.
    pub layout: Layout,
    /// Directory (or single file) of manifests; default `/etc/coracle/manifests`.
    pub manifests: PathBuf,
    /// Directories of image archives imported at start and when they change.
    pub preload: Vec<PathBuf>,
    /// Parent cgroup below each hierarchy's mount; `None`: the agent's own under systemd, else `/coracle`.
    pub cgroup_parent: Option<String>,
    /// The node's name; default the host's.
    pub node_name: String,
    /// Full rescan of the manifest directory (default 20 s).
    pub file_check_frequency_ms: u64,
    /// Rotate container logs at this size (default 10 Mi; 0 = never).
    pub container_log_max_bytes: u64,
    /// Keep so many log files a container (default 5).
    pub container_log_max_files: u32,
    /// `pids.max` of each pod; `None` = unlimited.
    pub pod_pids_limit: Option<u64>,
    /// Domain of pod and service names (default `cluster.local`).
    pub cluster_domain: String,
    /// The node's resolver file; empty: none.
    pub resolv_conf: PathBuf,
    /// Name of the bridge that pods are on (default `coracle0`).
    pub bridge: String,
    /// Ranges of pod addresses, at most one a family; empty: free ones are chosen.
    pub pod_cidrs: Vec<IpNet>,
    /// Ranges of service addresses, at most one a family; empty: free ones are chosen.
    pub service_cidrs: Vec<IpNet>,
    /// Name servers for pods with `dnsPolicy: ClusterFirst`; empty: coracle's own.
    pub cluster_dns: Vec<IpAddr>,
    /// Longest wait between restarts of a crashing container (default 300 s).
    pub max_container_restart_period_ms: u64,
    /// cpu quota period in microseconds (default 100 000).
    pub cpu_cfs_quota_period_us: u64,
    /// Whether cpu limits are enforced by quota.
    pub cpu_cfs_quota: bool,
    /// Stop all pods gracefully when the agent ends.
    pub stop_pods_on_exit: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            layout: Layout {
                root: "/var/lib/coracle".into(),
                run_dir: "/run/coracle".into(),
                log_dir: "/var/log/pods".into(),
            },
            manifests: "/etc/coracle/manifests".into(),
            preload: vec![
                "/etc/coracle/images".into(),
                "/usr/share/coracle/images".into(),
            ],
            cgroup_parent: None,
            node_name: String::new(),
            file_check_frequency_ms: 20_000,
            container_log_max_bytes: 10 << 20,
            container_log_max_files: 5,
            pod_pids_limit: None,
            cluster_domain: "cluster.local".into(),
            resolv_conf: "/etc/resolv.conf".into(),
            bridge: DEFAULT_BRIDGE.into(),
            pod_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            cluster_dns: Vec::new(),
            max_container_restart_period_ms: 300_000,
            cpu_cfs_quota_period_us: 100_000,
            cpu_cfs_quota: true,
            stop_pods_on_exit: false,
        }
    }
}

/// The bridge's name unless another is given.
pub const DEFAULT_BRIDGE: &str = "coracle0";

/// Where settings are looked for when no `--config` is given.
pub const DEFAULT_FILE: &str = "/etc/coracle/config.yaml";

/// The fields of `KubeletConfiguration` (kubelet-behaviour §14) that coracle knows but does not act on.
const WITHOUT_EFFECT: &str = "staticPodURL staticPodURLHeader httpCheckFrequency syncFrequency enableServer address \
    port readOnlyPort healthzPort healthzBindAddress enableDebuggingHandlers enableSystemLogHandler \
    enableProfilingHandler enableDebugFlagsHandler authentication authorization registryPullQPS registryBurst \
    serializeImagePulls maxParallelImagePulls eventRecordQPS eventBurst oomScoreAdj \
    nodeStatusUpdateFrequency nodeStatusReportFrequency nodeLeaseDurationSeconds imageMinimumGCAge \
    imageMaximumGCAge imageGCHighThresholdPercent imageGCLowThresholdPercent volumeStatsAggPeriod cgroupRoot \
    cgroupsPerQOS cgroupDriver kubeletCgroups systemCgroups failCgroupV1 singleProcessOOMKill cpuManagerPolicy \
    cpuManagerReconcilePeriod cpuManagerPolicyOptions memoryManagerPolicy topologyManagerPolicy \
    topologyManagerScope topologyManagerPolicyOptions qosReserved runtimeRequestTimeout maxPods podsPerCore \
    maxOpenFiles nodeStatusMaxImages evictionHard evictionSoft evictionSoftGracePeriod evictionMinimumReclaim \
    evictionPressureTransitionPeriod evictionMaxPodGracePeriod mergeDefaultEvictionSettings \
    kernelMemcgNotification failSwapOn memorySwap containerLogMaxWorkers containerLogMonitorInterval \
    systemReserved kubeReserved systemReservedCgroup kubeReservedCgroup reservedSystemCPUs reservedMemory \
    enforceNodeAllocatable shutdownGracePeriod shutdownGracePeriodCriticalPods shutdownGracePeriodByPodPriority \
    memoryThrottlingFactor memoryReservationPolicy seccompDefault localStorageCapacityIsolation registerNode \
    registerWithTaints protectKernelDefaults runOnce allowedUnsafeSysctls providerID featureGates logging tracing \
    userNamespaces containerRuntimeEndpoint imageServiceEndpoint rotateCertificates serverTLSBootstrap tlsCertFile \
    tlsPrivateKeyFile tlsCipherSuites tlsMinVersion volumePluginDir showHiddenMetricsForVersion \
    imagePullCredentialsVerificationPolicy preloadedImagesVerificationAllowlist";

/// What can be wrong with the settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("could not read settings from `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Everything that is wrong with its content.
    #[error("invalid configuration in `{}`:\n  {}", path.display(), problems.join("\n  "))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// One sentence each.
        problems: Vec<String>,
    },
}

impl Config {
    /// Reads a file over the defaults. Returns the names of fields without effect, for one warning.
    pub fn read(path: &Path) -> Result<(Self, Vec<String>), ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|problems| ConfigError::Invalid {
            path: path.to_owned(),
            problems,
        })
    }

    fn parse(text: &str) -> Result<(Self, Vec<String>), Vec<String>> {
        let mut config = Self::default();
        let document: Value =
            serde_yaml::from_str(text).map_err(|error| vec![error.to_string()])?;
        let fields = match document {
            Value::Null => return Ok((config, Vec::new())),
            Value::Mapping(fields) => fields,
            _ => {
                return Err(vec![
                    "must be a mapping with `kind: KubeletConfiguration`".into(),
                ]);
            }
        };
        let (mut problems, mut without_effect) = (Vec::new(), Vec::new());
        for (name, value) in &fields {
            let Some(name) = name.as_str() else {
                problems.push(format!("{name:?}: field names are strings"));
                continue;
            };
            match config.set(name, value) {
                Ok(true) => {}
                Ok(false) if WITHOUT_EFFECT.split_whitespace().any(|known| known == name) => {
                    without_effect.push(name.to_owned());
                }
                Ok(false) => problems.push(format!("{name}: unknown field{}", hint(name))),
                Err(problem) => problems.push(format!("{name}: {problem}")),
            }
        }
        if problems.is_empty() {
            Ok((config, without_effect))
        } else {
            Err(problems)
        }
    }

    /// Sets one field; `false` if it is not one of those acted on.
    fn set(&mut self, name: &str, value: &Value) -> Result<bool, String> {
        match name {
            "kind" => expect(value, "KubeletConfiguration")?,
            "apiVersion" => expect(value, "kubelet.config.k8s.io/v1beta1")?,
            "staticPodPath" => self.manifests = text(value)?.into(),
            "podLogsDir" => self.layout.log_dir = absolute(value)?,
            "fileCheckFrequency" => self.file_check_frequency_ms = duration_ms(value)?.max(1000),
            "containerLogMaxSize" => self.container_log_max_bytes = log_size(value)?,
            "containerLogMaxFiles" => {
                self.container_log_max_files = number(value)?;
                if self.container_log_max_files < 2 {
                    return Err("must be greater than 1".into());
                }
            }
            "podPidsLimit" => {
                self.pod_pids_limit = u64::try_from(number::<i64>(value)?).ok().filter(|n| *n > 0)
            }
            "clusterDomain" => self.cluster_domain = text(value)?.to_owned(),
            "resolvConf" => self.resolv_conf = text(value)?.into(),
            "podCIDR" => self.pod_cidrs = cidrs(text(value)?)?,
            "clusterDNS" => {
                let list = value
                    .as_sequence()
                    .ok_or("must be a list of IP addresses")?;
                let texts: Result<Vec<&str>, String> = list.iter().map(text).collect();
                self.cluster_dns = texts?
                    .into_iter()
                    .map(ip_address)
                    .collect::<Result<_, _>>()?;
            }
            "cpuCFSQuota" => self.cpu_cfs_quota = value.as_bool().ok_or("must be true or false")?,
            "cpuCFSQuotaPeriod" => {
                let period = duration_ms(value)?;
                if !(1..=1000).contains(&period) {
                    return Err("must be between 1ms and 1s".into());
                }
                self.cpu_cfs_quota_period_us = period * 1000;
            }
            "crashLoopBackOff" => {
                if let Some(period) = value.get("maxContainerRestartPeriod") {
                    let ms = duration_ms(period)?;
                    if !(1000..=300_000).contains(&ms) {
                        let seconds = ms / 1000;
                        return Err(format!(
                            "CrashLoopBackOff.MaxContainerRestartPeriod (got: {seconds} seconds) must be set between \
                             1s and 300s"
                        ));
                    }
                    self.max_container_restart_period_ms = ms;
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn hint(name: &str) -> String {
    let near = WITHOUT_EFFECT
        .split_whitespace()
        .chain([
            "staticPodPath",
            "podLogsDir",
            "fileCheckFrequency",
            "containerLogMaxSize",
            "containerLogMaxFiles",
        ])
        .chain([
            "podPidsLimit",
            "clusterDomain",
            "clusterDNS",
            "podCIDR",
            "resolvConf",
            "cpuCFSQuota",
            "cpuCFSQuotaPeriod",
            "crashLoopBackOff",
        ])
        .max_by(|a, b| strsim::jaro_winkler(name, a).total_cmp(&strsim::jaro_winkler(name, b)));
    near.filter(|near| strsim::jaro_winkler(name, near) > 0.85)
        .map(|near| format!("; did you mean `{near}`?"))
        .unwrap_or_default()
}

fn expect(value: &Value, wanted: &str) -> Result<(), String> {
    if value.as_str() == Some(wanted) {
        Ok(())
    } else {
        Err(format!("must be `{wanted}`"))
    }
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| "must be a string".to_owned())
}

fn absolute(value: &Value) -> Result<PathBuf, String> {
    let path = PathBuf::from(text(value)?);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err("must be an absolute path".into())
    }
}

/// A list like `10.77.0.0/20,fd00:77::/64`: at most one range a family, none of them too small to be of use.
pub fn cidrs(list: &str) -> Result<Vec<IpNet>, String> {
    let mut found: Vec<IpNet> = Vec::new();
    for text in list.split(',').map(str::trim).filter(|t| !t.is_empty()) {
        let range: IpNet = text
            .parse()
            .map_err(|_| format!("`{text}` is not a range like 10.77.0.0/20"))?;
        if range.max_prefix_len() - range.prefix_len() < 2 {
            return Err(format!("`{text}` has no room for pods"));
        }
        let same_family = |other: &IpNet| other.addr().is_ipv4() == range.addr().is_ipv4();
        if let Some(other) = found.iter().find(|other| same_family(other)) {
            return Err(format!(
                "`{other}` and `{text}` are of one family, and only one range a family is possible"
            ));
        }
        found.push(range.trunc());
    }
    found.sort_by_key(|range| range.addr().is_ipv6());
    Ok(found)
}

/// An IP address.
pub fn ip_address(text: &str) -> Result<IpAddr, String> {
    let trimmed = text.trim();
    trimmed
        .parse()
        .map_err(|_| format!("`{trimmed}` is not an IP address"))
}

/// A name the kernel takes for an interface, and that is plain in packet rules.
pub fn bridge_name(name: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if starts_well && name.len() <= 15 && name.chars().all(plain) {
        Ok(name.to_owned())
    } else {
        Err(format!(
            "`{name}` is no name for a bridge: a letter, then letters, digits, `-` and `_`, 15 characters at most"
        ))
    }
}

fn number<T: for<'de> Deserialize<'de>>(value: &Value) -> Result<T, String> {
    serde_yaml::from_value(value.clone()).map_err(|_| "must be a whole number in range".to_owned())
}

fn log_size(value: &Value) -> Result<u64, String> {
    if value.as_i64().is_some_and(|n| n < 0)
        || value.as_str().is_some_and(|text| text.starts_with('-'))
    {
        return Ok(0);
    }
    let written = value
        .as_str()
        .map(str::to_owned)
        .or_else(|| value.as_u64().map(|n| n.to_string()));
    let written = written.ok_or("must be a quantity like 10Mi")?;
    let quantity = crate::spec::quantity::Quantity::parse(&written);
    let bytes = quantity
        .ok()
        .and_then(|quantity| u64::try_from(quantity.ceil()).ok());
    bytes.ok_or_else(|| format!("`{written}` is not a quantity like 10Mi"))
}

/// Go's duration text (`1m30s`, `100ms`) in milliseconds.
fn duration_ms(value: &Value) -> Result<u64, String> {
    let written = text(value).map_err(|_| "must be a duration like 30s".to_owned())?;
    let bad = || format!("`{written}` is not a duration like 1m30s");
    let (mut rest, mut total) = (written, 0.0);
    if rest == "0" {
        return Ok(0);
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(bad)?;
        let amount: f64 = rest[..digits].parse().map_err(|_| bad())?;
        let tail = &rest[digits..];
        let end = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        total += amount
            * match &tail[..end] {
                "ms" => 1.0,
                "s" => 1_000.0,
                "m" => 60_000.0,
                "h" => 3_600_000.0,
                "us" | "µs" => 0.001,
                _ => return Err(bad()),
            };
        rest = &tail[end..];
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "durations are positive and small"
    )]
    Ok(total.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_of_a_file_is_told_at_once() {
        let problems = Config::parse(
            "kind: Kubelet\nfileCheckFrequency: fast\ncontainerLogMaxFile: 3\ncontainerLogMaxFiles: 1\nsyncFrequency: 1m\n",
        )
        .expect_err("four problems");
        assert_eq!(
            problems,
            [
                "kind: must be `KubeletConfiguration`",
                "fileCheckFrequency: `fast` is not a duration like 1m30s",
                "containerLogMaxFile: unknown field; did you mean `containerLogMaxFiles`?",
                "containerLogMaxFiles: must be greater than 1",
            ]
        );
    }

    #[test]
    fn ranges_are_a_list_with_one_range_a_family() {
        let ranges = |text| cidrs(text).map(|list| list.iter().map(IpNet::to_string).collect());
        for (text, result) in [
            ("", Ok(vec![])),
            (
                "fd00::1/64, 10.9.8.7/20",
                Ok(vec!["10.9.0.0/20".to_owned(), "fd00::/64".to_owned()]),
            ),
            (
                "10.0.0.0",
                Err("`10.0.0.0` is not a range like 10.77.0.0/20".to_owned()),
            ),
            (
                "10.0.0.0/31",
                Err("`10.0.0.0/31` has no room for pods".to_owned()),
            ),
            (
                "10.0.0.0/24,10.1.0.0/24",
                Err(
                    "`10.0.0.0/24` and `10.1.0.0/24` are of one family, and only one range a family is possible"
                        .to_owned(),
                ),
            ),
        ] {
            assert_eq!(ranges(text), result, "{text}");
        }
    }

    #[test]
    fn a_bridge_has_a_name_that_is_plain_everywhere() {
        for (name, fine) in [
            ("coracle0", true),
            ("br-lan_1", true),
            ("", false),
            ("0br", false),
            ("br.7", false),
            ("a b", false),
            ("sixteencharacter", false),
        ] {
            assert_eq!(bridge_name(name).is_ok(), fine, "{name}");
        }
    }

    #[test]
    fn fields_without_effect_are_named_and_the_rest_is_taken() {
        let (config, without_effect) = Config::parse(
            "kind: KubeletConfiguration\nstaticPodPath: /p\nfileCheckFrequency: 1m30s\nport: 10250\n\
             crashLoopBackOff: {maxContainerRestartPeriod: 60s}\n",
        )
        .expect("valid");
        assert_eq!(config.manifests, PathBuf::from("/p"));
        assert_eq!(config.file_check_frequency_ms, 90_000);
        assert_eq!(config.max_container_restart_period_ms, 60_000);
        assert_eq!(without_effect, ["port"]);
    }
}
