//! How much may it use? cpu and memory of containers and pods, and the quality of service class that follows.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;

use super::error::{Path, Report};
use super::pod::{ContainerResources, PodResources, QosClass};
use super::quantity::Quantity;

/// Checks and converts `resources`, requests already copied from limits.
pub(crate) fn convert(
    resources: &ResourceRequirements,
    path: &Path<'_>,
    report: &Report,
) -> ContainerResources {
    if resources.claims.as_ref().is_some_and(|c| !c.is_empty()) {
        report.forbidden(
            &path.field("claims"),
            "device claims are not supported by this version",
        );
    }
    let limits = amounts(&resources.limits, &path.field("limits"), report);
    let requests = amounts(&resources.requests, &path.field("requests"), report);
    for name in limits.keys() {
        idle(name, &path.field("limits"), report);
    }
    // What is in both, or was copied, is said once.
    for name in requests.keys().filter(|name| !limits.contains_key(*name)) {
        idle(name, &path.field("requests"), report);
    }
    for (name, request) in &requests {
        let parent = path.field("requests");
        match limits.get(name) {
            Some(limit) if request.nano() > limit.nano() => report.invalid(
                &parent.field(name),
                request.to_string(),
                format_args!("must be less than or equal to {name} limit of {limit}"),
            ),
            _ => {}
        }
    }
    let milli = |q: &Quantity| u64::try_from(q.ceil_milli()).ok();
    let bytes = |q: &Quantity| u64::try_from(q.ceil()).ok();
    ContainerResources {
        cpu_request_milli: requests.get("cpu").and_then(milli),
        cpu_limit_milli: limits.get("cpu").and_then(milli),
        memory_request_bytes: requests.get("memory").and_then(bytes),
        memory_limit_bytes: limits.get("memory").and_then(bytes),
    }
}

/// One quantity that may not be negative.
pub(crate) fn amount(written: &Written, path: &Path<'_>, report: &Report) -> Option<Quantity> {
    match Quantity::parse(&written.0) {
        Ok(quantity) if quantity.is_negative() => {
            report.invalid(path, &written.0, "must be greater than or equal to 0");
            None
        }
        Ok(quantity) => Some(quantity),
        Err(error) => {
            report.invalid(path, &written.0, error);
            None
        }
    }
}

fn amounts<'m>(
    map: &'m Option<BTreeMap<String, Written>>,
    path: &Path<'_>,
    report: &Report,
) -> BTreeMap<&'m str, Quantity> {
    let mut result = BTreeMap::new();
    for (name, written) in map.iter().flatten() {
        let path = path.field(name);
        let known = ["cpu", "memory", "ephemeral-storage"].contains(&name.as_str());
        if !known && !name.starts_with("hugepages-") && !name.contains('/') {
            let detail = "must be a standard resource type or fully qualified";
            report.invalid(&path, name, detail);
            continue;
        }
        if let Some(quantity) = amount(written, &path, report) {
            result.insert(name.as_str(), quantity);
        }
    }
    result
}

/// Warns of a resource that is only written down.
fn idle(name: &str, path: &Path<'_>, report: &Report) {
    let what = match name {
        "cpu" | "memory" => return,
        "ephemeral-storage" => "disk use is not limited yet",
        _ if name.starts_with("hugepages-") => "huge pages are not set up yet",
        _ => "there are no device plugins here",
    };
    report.warn(&path.field(name), format_args!("accepted, but {what}"));
}

/// Quality of service class (kubelet-behaviour §9.2); `pod` are pod-level resources, which alone count if given.
pub(crate) fn qos(pod: Option<&ContainerResources>, containers: &[ContainerResources]) -> QosClass {
    let counted = pod.map_or(containers, std::slice::from_ref);
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

/// Effective figures of the pod (kubelet-behaviour §9.3).
pub(crate) fn effective(
    pod: Option<&ContainerResources>,
    containers: &[ContainerResources],
) -> PodResources {
    let sum = |of: fn(&ContainerResources) -> Option<u64>| {
        let add = |total: u64, c| total.saturating_add(of(c).unwrap_or(0));
        containers.iter().fold(0, add)
    };
    let limit = |of: fn(&ContainerResources) -> Option<u64>| {
        // 0 means no limit.
        let all = containers.iter().all(|c| of(c).unwrap_or(0) > 0);
        let own = pod.and_then(of).filter(|value| *value > 0);
        own.or_else(|| (all && !containers.is_empty()).then(|| sum(of)))
    };
    let request =
        |of: fn(&ContainerResources) -> Option<u64>| pod.and_then(of).unwrap_or_else(|| sum(of));
    PodResources {
        cpu_request_milli: request(|c| c.cpu_request_milli),
        cpu_limit_milli: limit(|c| c.cpu_limit_milli),
        memory_request_bytes: request(|c| c.memory_request_bytes),
        memory_limit_bytes: limit(|c| c.memory_limit_bytes),
    }
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
            assert_eq!(qos(pod.as_ref(), &containers), expected, "{sentence}");
        }
    }

    #[test]
    fn pod_limits_exist_only_if_every_container_has_one() {
        let full = figures((100, 200), (64, 128));
        let none = figures((0, 0), (0, 0));
        let both = effective(None, &[full, full]);
        assert_eq!(both.cpu_request_milli, 200);
        assert_eq!(both.cpu_limit_milli, Some(400));
        assert_eq!(both.memory_limit_bytes, Some(256));
        let one = effective(None, &[full, none]);
        assert_eq!(one.cpu_request_milli, 100);
        assert_eq!(one.cpu_limit_milli, None);
        let pod = effective(Some(&figures((0, 50), (0, 0))), &[none]);
        assert_eq!(pod.cpu_limit_milli, Some(50));
    }
}
