//! Loading: reads files and flags, and builds [`Config`] and [`Settings`], or reports every error.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;

use super::fields::{FIELDS, Role};
use super::given::Given;
use super::layers::{self, Flag, Layers, Origin, Problem};
use super::registries::{registries, verification};
use super::{Config, Settings, eviction, node, rules, shutdown, values};
use super::{DEFAULT_DIR, DEFAULT_FILE};
use crate::layout::Layout;
use crate::spec::PodSecurity;
use crate::spec::value::Value;
use crate::types::{Gather, InOrder};

/// Maximum size of a settings file, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// The settings cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file could not be read.
    #[error("could not read settings from `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The settings are invalid; all errors.
    #[error("{}", lines(.0))]
    Invalid(Vec<Problem>),
}

fn lines(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
    match lines.as_slice() {
        [one] => one.clone(),
        several => format!(
            "{} problems in the settings:\n  {}",
            several.len(),
            several.join("\n  ")
        ),
    }
}

/// The files that settings are read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The main file.
    pub file: PathBuf,
    /// Whether the main file must exist.
    pub required: bool,
    /// Directory of drop-in files, `*.conf` and `*.yaml`, read in the order of their names.
    pub dir: Option<PathBuf>,
}

impl Files {
    /// Returns the files of `--config` and `--config-dir`, or the default ones.
    pub fn new(file: Option<PathBuf>, dir: Option<PathBuf>) -> Self {
        let default_dir = file.is_none().then(|| PathBuf::from(DEFAULT_DIR));
        Self {
            required: file.is_some(),
            file: file.unwrap_or_else(|| DEFAULT_FILE.into()),
            dir: dir.or(default_dir),
        }
    }

    /// Reads the files in ascending order of precedence. Blocks.
    pub fn read(&self) -> Result<Vec<(PathBuf, String)>, ConfigError> {
        let mut found = Vec::new();
        match read_file(&self.file) {
            Ok(text) => found.push((self.file.clone(), text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.required => {}
            Err(source) => {
                return Err(ConfigError::Read {
                    path: self.file.clone(),
                    source,
                });
            }
        }
        for path in self.drop_ins()? {
            match read_file(&path) {
                Ok(text) => found.push((path, text)),
                Err(source) => return Err(ConfigError::Read { path, source }),
            }
        }
        Ok(found)
    }

    /// The drop-ins that count, in the order in which they are read.
    pub(crate) fn drop_ins(&self) -> Result<Vec<PathBuf>, ConfigError> {
        let Some(dir) = &self.dir else {
            return Ok(Vec::new());
        };
        let failed = |source| ConfigError::Read {
            path: dir.clone(),
            source,
        };
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let counts = name.ends_with(".conf") || name.ends_with(".yaml");
            if counts && !name.starts_with('.') && path.is_file() {
                found.push(path);
            }
        }
        found.order();
        Ok(found)
    }
}

fn read_file(path: &Path) -> io::Result<String> {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    // Open without blocking, in case a FIFO has replaced the file.
    let file = fs::File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("is not UTF-8"))
}

/// A value and its origin.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shown {
    pub(crate) value: Value,
    pub(crate) origin: Origin,
}

/// Valid settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    /// Settings that need an agent restart to change.
    pub config: Config,
    /// Settings that can change while the agent runs.
    pub settings: Settings,
    /// Warning for the user, one sentence.
    pub warning: Option<String>,
    /// Values of all fields that have one.
    pub(crate) shown: BTreeMap<&'static str, Shown>,
}

impl Default for Effective {
    fn default() -> Self {
        Self::build(&[], &[]).expect("the defaults are valid: a test says so")
    }
}

impl Effective {
    /// Builds settings from files (name and text, ascending order of precedence) and flags, which override files.
    pub fn build(files: &[(PathBuf, String)], flags: &[Flag]) -> Result<Self, ConfigError> {
        let mut layers = Layers::new(files, flags);
        let mut problems = std::mem::take(&mut layers.problems);
        let given = Given::new(&layers);
        rules::check(&given);
        let config = config(&given);
        let settings = settings(&given);
        let mut origins = layers.origins();
        let shown = FIELDS.iter().filter_map(|field| {
            let value = in_force(&given, &settings, field.path);
            let origin = match given.is_set(field.path) {
                true => origins.remove(field.path),
                false => None,
            };
            let shown = Shown {
                value,
                origin: origin.unwrap_or(Origin::Default),
            };
            // A setting without effect here has no value; if given, the warning names it.
            let counts = field.role != Role::Idle && shown.value != Value::Null;
            counts.then_some((field.path, shown))
        });
        let shown = shown.gather();
        let words = idle_words(&given);
        problems.extend(given.into_problems());
        if !problems.is_empty() {
            problems.order();
            problems.dedup();
            return Err(ConfigError::Invalid(problems));
        }
        Ok(Self {
            config,
            settings,
            warning: layers::warning(&layers, words),
            shown,
        })
    }
}

/// Returns the effective value of a field that depends on others.
fn in_force(given: &Given<'_>, settings: &Settings, path: &str) -> Value {
    let (total, critical) = shutdown::simple(given);
    match path {
        "shutdownGracePeriod" => Value::String(total.to_string()),
        "shutdownGracePeriodCriticalPods" => Value::String(critical.to_string()),
        LONGEST if !given.is_set(LONGEST) => {
            let ms = settings.max_container_restart_period_ms;
            Value::String(format!("{}s", ms / 1000))
        }
        "podPidsLimit" if !given.is_set(path) => {
            let limit = node::pod_pids(given);
            limit.map_or(Value::Null, |limit| Value::Int(limit.into()))
        }
        _ => given.value(path),
    }
}

/// Returns given settings that have no effect here although their names do: feature gates, and switching off what is
/// always on (`coracle help differences`).
fn idle_words(given: &Given<'_>) -> Vec<String> {
    const KNOWN: [&str; 4] = [
        "GracefulNodeShutdown",
        "GracefulNodeShutdownBasedOnPodPriority",
        "MemoryQoS",
        REDUCED,
    ];
    let gates = given.switches("featureGates").into_keys();
    let gates = gates.filter(|gate| !KNOWN.contains(&gate.as_str()));
    let mut words: Vec<String> = gates.map(|gate| format!("featureGates.{gate}")).collect();
    if !given.bool("seccompDefault") {
        words.push("seccompDefault: false".to_owned());
    }
    words
}

const LONGEST: &str = "crashLoopBackOff.maxContainerRestartPeriod";
const REDUCED: &str = "ReduceDefaultCrashLoopBackOffDecay";

/// Longest wait with the gate, unless it is set (`coracle help differences`).
const REDUCED_MAX_MS: u64 = 60_000;

fn config(given: &Given<'_>) -> Config {
    let path = |field: &str| PathBuf::from(given.text(field));
    let paths = |field: &str| given.texts(field).into_iter().map(PathBuf::from).collect();
    let unsigned = |field: &str| u64::try_from(given.int(field)).unwrap_or(0);
    let some = |text: String| (!text.is_empty()).then_some(text);
    Config {
        layout: Layout {
            root: path("coracle.rootDir"),
            run_dir: path("coracle.runDir"),
            log_dir: path("podLogsDir"),
        },
        manifests: path("staticPodPath"),
        manifest_url: super::url::static_pod_url(given),
        preload: paths("coracle.preload"),
        cdi_dirs: paths("coracle.cdiSpecDirs"),
        cgroup_parent: some(given.text("coracle.cgroupParent")),
        node_name: node::name(given),
        node_labels: node::labels(given),
        pod_pids_limit: node::pod_pids(given),
        cluster_domain: given.text("clusterDomain"),
        resolv_conf: path("resolvConf"),
        bridge: bridge(given),
        pod_cidrs: ranges(given, "podCIDR"),
        service_cidrs: ranges(given, "coracle.serviceCIDR"),
        cluster_dns: cluster_dns(given),
        cpu_cfs_quota_period_us: given.duration("cpuCFSQuotaPeriod").ms() * 1000,
        cpu_cfs_quota: given.bool("cpuCFSQuota"),
        stop_pods_on_exit: given.bool("coracle.stopPodsOnExit"),
        allowed_unsafe_sysctls: given.texts("allowedUnsafeSysctls"),
        pod_security: pod_security(given),
        registries: registries(given),
        bundle_key: some(given.text("coracle.bundleKey")).map(Into::into),
        bundle_poll: super::bundle::bundle_poll(given),
        single_process_oom_kill: given
            .is_set("singleProcessOOMKill")
            .then(|| given.bool("singleProcessOOMKill")),
        memory_qos: node::memory_qos(given),
        user_ids_per_pod: unsigned("userNamespaces.idsPerPod"),
        reserved: node::reserved(given),
        swap: node::swap(given),
        fail_swap_on: given.bool("failSwapOn"),
        fail_cgroup_v1: given.bool("failCgroupV1"),
        own_oom_score_adj: i32::try_from(given.int("oomScoreAdj")).unwrap_or(0),
        max_open_files: unsigned("maxOpenFiles"),
        taints: node::taints(given),
        provider_id: given.text("providerID"),
    }
}

fn settings(given: &Given<'_>) -> Settings {
    let number = |field: &str| u32::try_from(given.int(field)).unwrap_or(0);
    let reduced = given.switches("featureGates").get(REDUCED) == Some(&true);
    let size = given.quantity("containerLogMaxSize").unwrap_or(0);
    Settings {
        // At least 1 s, to limit the work.
        file_check_frequency_ms: given.duration("fileCheckFrequency").ms().max(1000),
        // A negative size disables rotation.
        container_log_max_bytes: u64::try_from(size.max(0)).unwrap_or(u64::MAX),
        container_log_max_files: number("containerLogMaxFiles"),
        max_dead_containers: number("coracle.maximumDeadContainersPerContainer"),
        max_container_restart_period_ms: match reduced && !given.is_set(LONGEST) {
            true => REDUCED_MAX_MS,
            false => given.duration(LONGEST).ms(),
        },
        reduced_restart_decay: reduced,
        max_pods: number("maxPods"),
        pods_per_core: number("podsPerCore"),
        node_status_max_images: u32::try_from(given.int("nodeStatusMaxImages")).ok(),
        shutdown: shutdown::groups(given),
        eviction: eviction::eviction(given),
        image_gc: eviction::image_gc(given),
        image_verification: verification(given),
    }
}

fn ranges(given: &Given<'_>, field: &str) -> Vec<IpNet> {
    values::cidrs(&given.text(field)).unwrap_or_else(|problem| {
        given.wrong(&[field], format!("{field}: {problem}"));
        Vec::new()
    })
}

fn cluster_dns(given: &Given<'_>) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for (index, text) in given.texts("clusterDNS").iter().enumerate() {
        match values::ip_address(text) {
            Ok(address) => found.push(address),
            Err(problem) => {
                let path = format!("clusterDNS[{index}]");
                given.wrong(&[&path, "clusterDNS"], format!("{path}: {problem}"));
            }
        }
    }
    found
}

fn pod_security(given: &Given<'_>) -> PodSecurity {
    const FIELD: &str = "coracle.podSecurity";
    let word = given.text(FIELD);
    PodSecurity::parse(&word).unwrap_or_else(|| {
        let words = PodSecurity::ALL.map(|level| format!("{:?}", level.as_str()));
        let words = words.join(", ");
        given.wrong(
            &[FIELD],
            format!("{FIELD} {word:?} must be one of: {words}"),
        );
        PodSecurity::default()
    })
}

fn bridge(given: &Given<'_>) -> String {
    values::bridge_name(&given.text("coracle.bridge")).unwrap_or_else(|problem| {
        given.wrong(&["coracle.bridge"], format!("coracle.bridge: {problem}"));
        String::new()
    })
}
