//! Resources: cpu and memory of containers and pods, and the resulting quality of service class.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;

use super::error::{Path, Report};
use super::huge_pages;
use super::pod::{ContainerResources, ContainerSpec, PodResources, QosClass, StorageBounds};
use super::suggest;
use crate::types::quantity::Quantity;

/// Validates and converts `resources`; limits are already copied to missing requests.
pub(crate) fn convert(
    resources: &ResourceRequirements,
    path: &Path<'_>,
    report: &Report,
) -> ContainerResources {
    if resources.claims.as_ref().is_some_and(|c| !c.is_empty()) {
        report.refuse(
            &path.field("claims"),
            "device claims are not supported yet by this version",
            "name the device in an annotation (`coracle help devices`)",
        );
    }
    let limits = amounts(&resources.limits, &path.field("limits"), report);
    let requests = amounts(&resources.requests, &path.field("requests"), report);
    for name in limits.keys() {
        idle(name, &path.field("limits"), report);
    }
    // Report a resource only once if both lists have it.
    for name in requests.keys().filter(|name| !limits.contains_key(*name)) {
        idle(name, &path.field("requests"), report);
    }
    for (name, request) in &requests {
        let parent = path.field("requests");
        match limits.get(name) {
            Some(limit) if request.nano() > limit.nano() && !huge_pages::is_resource(name) => {
                report.invalid(
                    &parent.field(name),
                    request.to_string(),
                    format_args!("must be less than or equal to {name} limit of {limit}"),
                )
            }
            _ => {}
        }
    }
    huge_pages::check(&limits, &requests, path, report);
    let milli = |q: &Quantity| u64::try_from(q.ceil_milli()).ok();
    let bytes = |q: &Quantity| u64::try_from(q.ceil()).ok();
    ContainerResources {
        cpu_request_milli: requests.get("cpu").and_then(milli),
        cpu_limit_milli: limits.get("cpu").and_then(milli),
        memory_request_bytes: requests.get("memory").and_then(bytes),
        memory_limit_bytes: limits.get("memory").and_then(bytes),
    }
}

/// Validates and converts `overhead`: resources of the pod beside its containers. Kubernetes takes it from the
/// RuntimeClass; there is only one runtime here, so it counts as written (KEP-688).
pub(crate) fn overhead(
    written: &Option<BTreeMap<String, Written>>,
    path: &Path<'_>,
    report: &Report,
) -> ContainerResources {
    let amounts = amounts(written, path, report);
    for name in amounts.keys() {
        idle(name, path, report);
        if huge_pages::is_resource(name) {
            report.warn(&path.field(name), "accepted, but not counted");
        }
    }
    let milli = amounts.get("cpu").map(|q| q.ceil_milli());
    let bytes = amounts.get("memory").map(|q| q.ceil());
    ContainerResources {
        cpu_request_milli: milli.and_then(|milli| u64::try_from(milli).ok()),
        memory_request_bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()),
        ..ContainerResources::default()
    }
}

/// Returns the disk bytes in a pod's `overhead`, which [`overhead`] has checked.
pub(crate) fn storage_overhead(spec: &PodSpec) -> u64 {
    let written = spec.overhead.as_ref();
    let written = written.and_then(|overhead| overhead.get("ephemeral-storage"));
    written.map_or(0, |written| whole(written).unwrap_or(0))
}

pub(super) fn whole(written: &Written) -> Option<u64> {
    let quantity = Quantity::parse(&written.0).ok()?;
    u64::try_from(quantity.ceil()).ok()
}

/// Returns disk request and limit in `resources`, which [`convert`] has checked. A limit of 0 is none, as in the
/// kubelet.
pub(crate) fn storage(resources: &ResourceRequirements) -> StorageBounds {
    let of = |map: &Option<BTreeMap<String, Written>>| {
        whole(map.as_ref()?.get("ephemeral-storage")?).filter(|bytes| *bytes > 0)
    };
    StorageBounds {
        request_bytes: of(&resources.requests).unwrap_or(0),
        limit_bytes: of(&resources.limits),
    }
}

/// Parses a quantity that must not be negative.
pub(crate) fn amount(written: &Written, path: &Path<'_>, report: &Report) -> Option<Quantity> {
    match Quantity::parse(&written.0) {
        Ok(quantity) if quantity.is_negative() => {
            report.invalid(path, &written.0, "must be greater than or equal to 0");
            None
        }
        Ok(quantity) => Some(quantity),
        Err(error) => {
            let message = format!("Invalid value: {:?}: {error}", written.0);
            match meant(&written.0).filter(|_| !matches!(path, Path::Field(_, "cpu"))) {
                Some(meant) => report.error_hint(path, message, format!("did you mean `{meant}`?")),
                None => report.error(path, message),
            }
            None
        }
    }
}

/// Suggests `1G` for `1 gb`.
fn meant(written: &str) -> Option<String> {
    const UNITS: [&str; 12] = [
        "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "k", "M", "G", "T", "P", "E",
    ];
    let figure = written.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &written[figure.len()..];
    let unit = unit.strip_suffix(['b', 'B']).unwrap_or(unit);
    let unit = UNITS.iter().find(|known| known.eq_ignore_ascii_case(unit));
    let meant = format!("{}{}", figure.trim(), unit?);
    Quantity::parse(&meant).is_ok().then_some(meant)
}

/// Whether name and amount of a resource are valid.
pub(super) fn is_sound(name: &str, written: &Written) -> bool {
    let silent = Report::new(0);
    is_known(name) && amount(written, &Path::Root, &silent).is_some()
}

pub(super) fn is_known(name: &str) -> bool {
    ["cpu", "memory", "ephemeral-storage"].contains(&name)
        || huge_pages::is_resource(name)
        || name.contains('/')
}

fn amounts<'m>(
    map: &'m Option<BTreeMap<String, Written>>,
    path: &Path<'_>,
    report: &Report,
) -> BTreeMap<&'m str, Quantity> {
    let mut result = BTreeMap::new();
    for (name, written) in map.iter().flatten() {
        let path = path.field(name);
        if !is_known(name) {
            let detail = "must be a standard resource type or fully qualified";
            let message = format!("Invalid value: {name:?}: {detail}");
            let known = ["cpu", "memory", "ephemeral-storage", "hugepages-2Mi"];
            // `gpu` is not a misspelled `cpu`.
            let near = suggest::nearest(name, &known).filter(|_| name != "gpu");
            match near {
                Some(near) => report.error_hint(&path, message, format!("did you mean `{near}`?")),
                None => report.error(&path, message),
            }
            continue;
        }
        if let Some(quantity) = amount(written, &path, report) {
            let is_own = name.contains('/') || name.starts_with("hugepages-");
            if is_own && !quantity.is_whole() {
                report.invalid(&path, &written.0, "must be an integer");
            } else if name != "cpu" && !quantity.is_whole() {
                let meant = written.0.strip_suffix('m');
                let meant = meant.map(|figure| format!("; did you mean `{figure}Mi`?"));
                let meant = meant.unwrap_or_default();
                let what = format_args!("fractional byte value {:?}, rounded up{meant}", written.0);
                report.warn(&path, what);
            }
            result.insert(name.as_str(), quantity);
        }
    }
    result
}

/// Warns of a resource without effect.
fn idle(name: &str, path: &Path<'_>, report: &Report) {
    if name.contains('/') {
        let what = "accepted, but there are no device plugins here";
        report.warn(&path.field(name), what);
    }
}

/// Resources of a pod's containers, by when they run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    /// Containers that run as long as the pod: regular containers and sidecars.
    lasting: Vec<ContainerResources>,
    /// For each other init container, its resources and those of the sidecars that run beside it.
    passing: Vec<Vec<ContainerResources>>,
}

impl Figures {
    /// Collects the resources of a pod's containers.
    pub(crate) fn of(init: &[ContainerSpec], regular: &[ContainerSpec]) -> Self {
        let mut sidecars = Vec::new();
        let mut passing = Vec::new();
        for container in init {
            let mut at_once = sidecars.clone();
            at_once.push(container.resources);
            if container.is_sidecar() {
                sidecars = at_once;
            } else {
                passing.push(at_once);
            }
        }
        let regular = regular.iter().map(|container| container.resources);
        Self {
            lasting: regular.chain(sidecars).collect(),
            passing,
        }
    }

    /// Creates figures of containers that all run as long as the pod.
    pub(crate) fn lasting(containers: Vec<ContainerResources>) -> Self {
        Self {
            lasting: containers,
            passing: Vec::new(),
        }
    }

    /// Returns all containers, init containers last; sidecars may occur more than once.
    fn all(&self) -> impl Iterator<Item = &ContainerResources> {
        self.lasting.iter().chain(self.passing.iter().flatten())
    }

    /// Returns the maximum at one time.
    fn most(&self, of: fn(&ContainerResources) -> Option<u64>) -> u64 {
        let sum = |list: &Vec<ContainerResources>| {
            let add = |total: u64, c| total.saturating_add(of(c).unwrap_or(0));
            list.iter().fold(0, add)
        };
        let passing = self.passing.iter().map(sum).max();
        sum(&self.lasting).max(passing.unwrap_or(0))
    }
}

/// Returns the QoS class (Kubernetes docs: Pod QoS). Pod-level resources `pod` replace those of the containers.
pub(crate) fn qos(pod: Option<&ContainerResources>, containers: &Figures) -> QosClass {
    let counted: Vec<&ContainerResources> = match pod {
        Some(own) => vec![own],
        None => containers.all().collect(),
    };
    let positive = |value: Option<u64>| value.filter(|v| *v > 0);
    let any = counted.iter().any(|c| {
        [
            c.cpu_request_milli,
            c.cpu_limit_milli,
            c.memory_request_bytes,
            c.memory_limit_bytes,
        ]
        .into_iter()
        .any(|value| positive(value).is_some())
    });
    if !any {
        return QosClass::BestEffort;
    }
    let limited = counted
        .iter()
        .all(|c| positive(c.cpu_limit_milli).is_some() && positive(c.memory_limit_bytes).is_some());
    let equal = counted.iter().all(|c| {
        c.cpu_request_milli == c.cpu_limit_milli && c.memory_request_bytes == c.memory_limit_bytes
    });
    if limited && equal {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

/// Returns the pod's effective figures without overhead (Kubernetes docs: Resource Management).
pub(crate) fn effective(pod: Option<&ContainerResources>, containers: &Figures) -> PodResources {
    let limit = |of: fn(&ContainerResources) -> Option<u64>| {
        // 0 means no limit.
        let all = containers.all().all(|c| of(c).unwrap_or(0) > 0);
        let own = pod.and_then(of).filter(|value| *value > 0);
        own.or_else(|| (all && !containers.lasting.is_empty()).then(|| containers.most(of)))
    };
    let request = |of: fn(&ContainerResources) -> Option<u64>| {
        pod.and_then(of).unwrap_or_else(|| containers.most(of))
    };
    PodResources {
        cpu_request_milli: request(|c| c.cpu_request_milli),
        cpu_limit_milli: limit(|c| c.cpu_limit_milli),
        memory_request_bytes: request(|c| c.memory_request_bytes),
        memory_limit_bytes: limit(|c| c.memory_limit_bytes),
    }
}

impl PodResources {
    /// Adds overhead; it adds to a limit only where there is one.
    pub(crate) fn with(self, overhead: &ContainerResources) -> Self {
        let cpu = overhead.cpu_request_milli.unwrap_or(0);
        let memory = overhead.memory_request_bytes.unwrap_or(0);
        let more = |limit: Option<u64>, by| limit.map(|limit| limit.saturating_add(by));
        Self {
            cpu_request_milli: self.cpu_request_milli.saturating_add(cpu),
            cpu_limit_milli: more(self.cpu_limit_milli, cpu),
            memory_request_bytes: self.memory_request_bytes.saturating_add(memory),
            memory_limit_bytes: more(self.memory_limit_bytes, memory),
        }
    }
}

/// Returns the disk request of a pod's containers, by the rule of [`effective`].
pub(crate) fn storage_request(spec: &PodSpec) -> u64 {
    let own = |container: &Container| {
        let requests = container.resources.as_ref()?.requests.as_ref()?;
        whole(requests.get("ephemeral-storage")?)
    };
    most_at_once(spec, own)
}

/// Returns the maximum at one time: the sum of the lasting containers, or an init container with the sidecars before
/// it.
pub(super) fn most_at_once(spec: &PodSpec, own: impl Fn(&Container) -> Option<u64>) -> u64 {
    let own = |container| own(container).unwrap_or(0);
    let (mut sidecars, mut passing) = (0u64, 0u64);
    for container in spec.init_containers.iter().flatten() {
        let at_once = sidecars.saturating_add(own(container));
        match container.restart_policy.as_deref() {
            Some("Always") => sidecars = at_once,
            _ => passing = passing.max(at_once),
        }
    }
    let regular = spec.containers.iter().map(own);
    regular.fold(sidecars, u64::saturating_add).max(passing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(cpu: (u64, u64), memory: (u64, u64)) -> ContainerResources {
        let some = |value: u64| (value > 0).then_some(value);
        ContainerResources {
            cpu_request_milli: some(cpu.0),
            cpu_limit_milli: some(cpu.1),
            memory_request_bytes: some(memory.0),
            memory_limit_bytes: some(memory.1),
        }
    }

    fn lasting(containers: &[ContainerResources]) -> Figures {
        Figures::lasting(containers.to_vec())
    }

    #[test]
    fn units_that_people_write_are_understood() {
        for (written, expected) in [
            ("1GB", Some("1G")),
            ("64 mi", Some("64Mi")),
            ("1.5 KiB", Some("1.5Ki")),
            ("10kb", Some("10k")),
            ("lots", None),
            ("64Xi", None),
            ("GB", None),
            ("", None),
        ] {
            assert_eq!(meant(written).as_deref(), expected, "{written}");
        }
    }

    #[test]
    fn the_class_follows_requests_and_limits() {
        let none = figures((0, 0), (0, 0));
        let full = figures((100, 100), (64, 64));
        let burst = figures((100, 200), (64, 64));
        let request = figures((100, 0), (0, 0));
        let cpu_only = figures((100, 100), (0, 0));
        for (sentence, pod, containers, expected) in [
            ("nothing given", None, vec![none], QosClass::BestEffort),
            (
                "all limits equal requests",
                None,
                vec![full, full],
                QosClass::Guaranteed,
            ),
            (
                "one container without",
                None,
                vec![full, none],
                QosClass::Burstable,
            ),
            (
                "a limit above its request",
                None,
                vec![burst],
                QosClass::Burstable,
            ),
            ("a request alone", None, vec![request], QosClass::Burstable),
            (
                "memory not limited",
                None,
                vec![cpu_only],
                QosClass::Burstable,
            ),
            (
                "pod-level resources alone count",
                Some(full),
                vec![none],
                QosClass::Guaranteed,
            ),
            (
                "pod-level request alone",
                Some(request),
                vec![full],
                QosClass::Burstable,
            ),
        ] {
            let figures = lasting(&containers);
            assert_eq!(qos(pod.as_ref(), &figures), expected, "{sentence}");
        }
    }

    #[test]
    fn pod_limits_exist_only_if_every_container_has_one() {
        let full = figures((100, 200), (64, 128));
        let none = figures((0, 0), (0, 0));
        let both = effective(None, &lasting(&[full, full]));
        assert_eq!(both.cpu_request_milli, 200);
        assert_eq!(both.cpu_limit_milli, Some(400));
        assert_eq!(both.memory_limit_bytes, Some(256));
        let one = effective(None, &lasting(&[full, none]));
        assert_eq!(one.cpu_request_milli, 100);
        assert_eq!(one.cpu_limit_milli, None);
        let pod = effective(Some(&figures((0, 50), (0, 0))), &lasting(&[none]));
        assert_eq!(pod.cpu_limit_milli, Some(50));
    }

    #[test]
    fn overhead_comes_on_top_of_what_the_pod_has() {
        let overhead = figures((10, 0), (5, 0));
        for (sentence, pod, container, expected) in [
            (
                "without limits there are none",
                None,
                figures((100, 0), (64, 0)),
                (110, None, 69, None),
            ),
            (
                "on the limits there are",
                None,
                figures((100, 200), (64, 0)),
                (110, Some(210), 69, None),
            ),
            (
                "on figures of the pod's own",
                Some(figures((300, 400), (100, 100))),
                figures((100, 200), (64, 0)),
                (310, Some(410), 105, Some(105)),
            ),
            (
                "where nothing is asked for",
                None,
                figures((0, 0), (0, 0)),
                (10, None, 5, None),
            ),
        ] {
            let found = effective(pod.as_ref(), &lasting(&[container])).with(&overhead);
            let found = (
                found.cpu_request_milli,
                found.cpu_limit_milli,
                found.memory_request_bytes,
                found.memory_limit_bytes,
            );
            assert_eq!(found, expected, "{sentence}");
        }
    }

    #[test]
    fn an_init_container_counts_only_as_far_as_it_asks_for_more_than_what_follows() {
        let asks = |cpu| figures((cpu, cpu), (cpu, cpu));
        for (sentence, lasting, passing, expected) in [
            (
                "less than what follows",
                vec![asks(100)],
                vec![vec![asks(50)]],
                100,
            ),
            (
                "more than what follows",
                vec![asks(100)],
                vec![vec![asks(150)]],
                150,
            ),
            (
                "two that do not run at once",
                vec![asks(100)],
                vec![vec![asks(80)], vec![asks(90)]],
                100,
            ),
            (
                "one beside a sidecar",
                vec![asks(10), asks(100)],
                vec![vec![asks(100), asks(20)]],
                120,
            ),
        ] {
            let figures = Figures { lasting, passing };
            let found = effective(None, &figures);
            assert_eq!(found.cpu_request_milli, expected, "{sentence}");
            assert_eq!(found.memory_limit_bytes, Some(expected), "{sentence}");
            assert_eq!(qos(None, &figures), QosClass::Guaranteed, "{sentence}");
        }
        let figures = Figures {
            lasting: vec![asks(100)],
            passing: vec![vec![figures((0, 0), (0, 0))]],
        };
        assert_eq!(effective(None, &figures).cpu_limit_milli, None);
        assert_eq!(qos(None, &figures), QosClass::Burstable);
    }
}
