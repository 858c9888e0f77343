//! Settings of the node: reservations, swap, memory protection, taints (Kubernetes docs: Reserve Compute Resources;
//! KEP-2400; KEP-2570).

use std::collections::BTreeMap;

pub use k8s_openapi::api::core::v1::Taint;

use super::given::Given;
use super::values::{cpu_count, quantity};
use crate::spec::names;
use crate::sys::process;
use crate::types::Swapping;
use crate::types::quantity::Quantity;

/// Amounts by resource: millicores of `cpu`, bytes or numbers of all others.
pub type Amounts = BTreeMap<String, u64>;

/// Resources reserved from pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Reserved for system programs.
    pub system: Amounts,
    /// Reserved for coracle itself.
    pub kube: Amounts,
    /// Cgroup of system programs; empty: none.
    pub system_cgroup: String,
    /// Cgroup for the kubelet's reservation; empty: none.
    pub kube_cgroup: String,
    /// Cgroups to limit.
    pub enforce: Vec<Enforce>,
}

/// A cgroup whose limits are set from allocatable or reservations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Enforce {
    /// The parent cgroup of all pods.
    Pods,
    /// The cgroup of system programs.
    SystemReserved,
    /// The cgroup of system programs, cpu only.
    SystemReservedCompressible,
    /// The kubelet's cgroup.
    KubeReserved,
    /// The kubelet's cgroup, cpu only.
    KubeReservedCompressible,
}

/// Memory protection on cgroup v2 (feature gate `MemoryQoS`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryQos {
    /// Position of `memory.high` between request (0) and limit (1).
    pub throttling_factor: f64,
    /// Whether `memory.min` and `memory.low` protect requests.
    pub tiered_reservation: bool,
}

/// Minimum number of the machine's processes reserved from pods. The reservation is a tenth, at least this, and half at
/// most.
const KEPT_PROCESSES: u64 = 512;

/// Default limit of a pod's processes.
const POD_PROCESSES: u64 = 4096;

/// Returns the limit of processes for all pods together, from the machine's limit.
pub fn processes_for_pods(most: u64) -> u64 {
    most - (most / 10).max(KEPT_PROCESSES).min(most / 2)
}

/// Returns the default of `podPidsLimit`: at most half of the limit for all pods together.
pub(super) fn default_pod_pids(most: Option<u64>) -> u64 {
    let half = most.map(|most| processes_for_pods(most) / 2);
    half.unwrap_or(u64::MAX).min(POD_PROCESSES)
}

/// Returns `pids.max` of each pod.
pub(super) fn pod_pids(given: &Given<'_>) -> Option<u64> {
    const LIMIT: &str = "podPidsLimit";
    match given.is_set(LIMIT) {
        true => u64::try_from(given.int(LIMIT))
            .ok()
            .filter(|limit| *limit > 0),
        false => Some(default_pod_pids(process::most())),
    }
}

pub(super) fn swap(given: &Given<'_>) -> Swapping {
    const BEHAVIOR: &str = "memorySwap.swapBehavior";
    match given.text(BEHAVIOR).as_str() {
        "NoSwap" => Swapping::Off,
        "LimitedSwap" => Swapping::Burstable,
        "UnlimitedSwap" => Swapping::All,
        other => {
            given.wrong(
                &[BEHAVIOR],
                format!(
                    "{BEHAVIOR} {other:?} must be one of: \"\", \"LimitedSwap\", \"UnlimitedSwap\" or \"NoSwap\""
                ),
            );
            Swapping::Off
        }
    }
}

pub(super) fn memory_qos(given: &Given<'_>) -> Option<MemoryQos> {
    const FACTOR: &str = "memoryThrottlingFactor";
    const POLICY: &str = "memoryReservationPolicy";
    let on = given
        .switches("featureGates")
        .get("MemoryQoS")
        .copied()
        .unwrap_or(false);
    let factor = given.float(FACTOR);
    if !(factor > 0.0 && factor <= 1.0) {
        given.wrong(
            &[FACTOR],
            format!("{FACTOR} {factor} must be greater than 0 and less than or equal to 1.0"),
        );
    }
    let policy = given.text(POLICY);
    let tiered = policy == "TieredReservation";
    if tiered && !on {
        given.wrong(
            &[POLICY],
            format!("{POLICY} {policy:?} requires MemoryQoS feature gate to be enabled"),
        );
    }
    if !tiered && policy != "None" {
        given.wrong(
            &[POLICY],
            format!(
                "option {policy:?} specified for {POLICY}. Valid options are \"None\" or \"TieredReservation\""
            ),
        );
    }
    on.then_some(MemoryQos {
        throttling_factor: factor,
        tiered_reservation: tiered,
    })
}

const SYSTEM_CGROUP: &str = "systemReservedCgroup";
const KUBE_CGROUP: &str = "kubeReservedCgroup";

pub(super) fn reserved(given: &Given<'_>) -> Reserved {
    let mut system = amounts(given, "systemReserved");
    let mut kube = amounts(given, "kubeReserved");
    let (system_cgroup, kube_cgroup) = (given.text(SYSTEM_CGROUP), given.text(KUBE_CGROUP));
    const CPUS: &str = "reservedSystemCPUs";
    let cpus = given.text(CPUS);
    if !cpus.is_empty() {
        if !system_cgroup.is_empty() || !kube_cgroup.is_empty() {
            given.wrong(
                &[CPUS],
                format!(
                    "can't use {CPUS} (--reserved-cpus) with {SYSTEM_CGROUP} (--system-reserved-cgroup) or \
                     {KUBE_CGROUP} (--kube-reserved-cgroup)"
                ),
            );
        }
        match cpu_count(&cpus) {
            // The list replaces both amounts, as on the kubelet.
            Ok(count) => {
                kube.remove("cpu");
                system.insert("cpu".to_owned(), u64::from(count) * 1000);
            }
            Err(error) => given.wrong(
                &[CPUS],
                format!("unable to parse {CPUS} (--reserved-cpus) {cpus}, error: {error}"),
            ),
        }
    }
    let enforce = enforce(given, &system_cgroup, &kube_cgroup);
    Reserved {
        system,
        kube,
        system_cgroup,
        kube_cgroup,
        enforce,
    }
}

/// Returns amounts of `cpu`, `memory`, `ephemeral-storage`, `pid`, as on the kubelet.
fn amounts(given: &Given<'_>, field: &str) -> Amounts {
    let mut found = Amounts::new();
    for (name, text) in given.by_name(field) {
        let path = format!("{field}[{name}]");
        let wrong = |message: String| given.wrong(&[&path, field], message);
        if !["cpu", "memory", "ephemeral-storage", "pid"].contains(&name.as_str()) {
            wrong(format!("cannot reserve {name:?} resource"));
            continue;
        }
        let amount = match name.as_str() {
            "cpu" => Quantity::parse(&text).map(Quantity::ceil_milli),
            _ => quantity(&text),
        };
        match amount.map(u64::try_from) {
            Ok(Ok(amount)) => {
                found.insert(name, amount);
            }
            Ok(Err(_)) => wrong(format!(
                "resource quantity for {name:?} cannot be negative: {text}"
            )),
            Err(error) => wrong(format!(
                "failed to parse quantity {text:?} for {name:?} resource: {error}"
            )),
        }
    }
    found
}

const ENFORCE: &str = "enforceNodeAllocatable";
const WORDS: [(&str, Enforce); 5] = [
    ("pods", Enforce::Pods),
    ("system-reserved", Enforce::SystemReserved),
    (
        "system-reserved-compressible",
        Enforce::SystemReservedCompressible,
    ),
    ("kube-reserved", Enforce::KubeReserved),
    (
        "kube-reserved-compressible",
        Enforce::KubeReservedCompressible,
    ),
];

fn enforce(given: &Given<'_>, system_cgroup: &str, kube_cgroup: &str) -> Vec<Enforce> {
    const FLAG: &str = "enforceNodeAllocatable (--enforce-node-allocatable)";
    let written = given.texts(ENFORCE);
    let mut found = Vec::new();
    for (index, word) in written.iter().enumerate() {
        let wrong =
            |message: String| given.wrong(&[&format!("{ENFORCE}[{index}]"), ENFORCE], message);
        if written[..index].contains(word) {
            wrong(format!("duplicated enforcements {word:?} in {FLAG}"));
            continue;
        }
        if word == "none" {
            if written.len() > 1 {
                wrong(format!(
                    "{FLAG} may not contain additional enforcements when \"none\" is specified"
                ));
            }
            continue;
        }
        let Some((_, enforce)) = WORDS.iter().find(|(known, _)| known == word) else {
            wrong(format!(
                "option {word:?} specified for {FLAG}. Valid options are \"pods\", \"system-reserved\", \
                 \"system-reserved-compressible\", \"kube-reserved\", \"kube-reserved-compressible\" or \"none\""
            ));
            continue;
        };
        let needs = |cgroup: &str, field: &str, flag: &str, who: &str| {
            if cgroup.is_empty() {
                wrong(format!(
                    "{field} ({flag}) must be specified when \"{who}\" or \"{who}-compressible\" included in {FLAG}"
                ));
            }
        };
        match enforce {
            Enforce::Pods => {}
            Enforce::SystemReserved | Enforce::SystemReservedCompressible => needs(
                system_cgroup,
                SYSTEM_CGROUP,
                "--system-reserved-cgroup",
                "system-reserved",
            ),
            Enforce::KubeReserved | Enforce::KubeReservedCompressible => needs(
                kube_cgroup,
                KUBE_CGROUP,
                "--kube-reserved-cgroup",
                "kube-reserved",
            ),
        }
        if !given.bool("cgroupsPerQOS") {
            wrong(format!(
                "cgroupsPerQOS (--cgroups-per-qos) must be set to true when {word:?} contained in {FLAG}"
            ));
        }
        found.push(*enforce);
    }
    for (hard, soft) in [(1, 2), (3, 4)] {
        if found.contains(&WORDS[hard].1) && found.contains(&WORDS[soft].1) {
            given.wrong(
                &[ENFORCE],
                format!(
                    "both {:?} and {:?} cannot be specified together in {FLAG}",
                    WORDS[hard].0, WORDS[soft].0
                ),
            );
        }
    }
    found
}

/// Returns the node's labels; any label is allowed but the operating system's.
pub(super) fn labels(given: &Given<'_>) -> BTreeMap<String, String> {
    const LABELS: &str = "coracle.nodeLabels";
    let labels = given.by_name(LABELS);
    for (key, value) in &labels {
        let path = format!("{LABELS}[{key}]");
        let wrong = |problem: &str| given.wrong(&[&path, LABELS], format!("{path}: {problem}"));
        if let Some(problem) = names::qualified_name(key).or_else(|| names::label_value(value)) {
            wrong(&problem);
        }
        if ["kubernetes.io/os", "beta.kubernetes.io/os"].contains(&key.as_str()) && value != "linux"
        {
            wrong("must be linux");
        }
    }
    labels
}

const NAME: &str = "coracle.nodeName";

/// Returns the node's name in lower case, as on a kubelet; empty: the host's.
pub(super) fn name(given: &Given<'_>) -> String {
    let name = given.text(NAME).trim().to_lowercase();
    if let Some(problem) = names::node_name(&name).filter(|_| !name.is_empty()) {
        given.wrong(
            &[NAME],
            format!("{NAME}: `{name}` cannot be a node's name: {problem}"),
        );
    }
    name
}

/// Returns the default node name: the host's, made valid.
pub fn node_name_of_host(host: &str) -> String {
    names::node_name_of_host(host)
}

pub(super) fn taints(given: &Given<'_>) -> Vec<Taint> {
    const TAINTS: &str = "registerWithTaints";
    let taints: Vec<Taint> = given.list(TAINTS);
    for (index, taint) in taints.iter().enumerate() {
        let path = format!("{TAINTS}[{index}]");
        let (key, effect) = (&taint.key, taint.effect.as_str());
        let value = taint.value.as_deref().unwrap_or_default();
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        let unknown = || {
            let known = effects.join(", ");
            (!effects.contains(&effect)).then(|| format!("the effect must be one of {known}"))
        };
        let same = |other: &&Taint| (&other.key, other.effect.as_str()) == (key, effect);
        let twice = || {
            let before = taints[..index].iter().find(same);
            before.map(|_| "taints must be unique by key and effect".to_owned())
        };
        let problem = names::qualified_name(key).or_else(|| names::label_value(value));
        if let Some(problem) = problem.or_else(unknown).or_else(twice) {
            let message = format!("invalid taint: {key}={value}:{effect}: {problem}");
            given.wrong(&[&path, TAINTS], message);
        }
        if taint.time_added.is_some() {
            given.wrong(&[&path, TAINTS], "taint.TimeAdded is not nil");
        }
    }
    taints
}
