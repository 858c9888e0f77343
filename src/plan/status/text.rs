//! The notation of ids, durations, times and addresses.

use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_openapi::jiff;
use sha2::{Digest, Sha256};

use super::super::Wall;
use super::super::event::Instance;
use crate::spec::ContainerResources;

/// `coracle://` and 64 hex digits, always the same for the same run.
pub fn container_id(instance: &Instance) -> String {
    let text = format!(
        "{}/{}/{}",
        instance.pod, instance.container, instance.attempt
    );
    let mut id = String::from("coracle://");
    for byte in Sha256::digest(text.as_bytes()) {
        for digit in [byte >> 4, byte & 15] {
            id.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
        }
    }
    id
}

/// A duration as Go prints it: `500ms`, `10s`, `1m20s`, `1h0m0s`.
pub fn go_duration(ms: u64) -> String {
    if ms == 0 {
        return "0s".to_owned();
    }
    if ms < 1000 {
        return format!("{ms}ms");
    }
    let (hours, minutes, seconds, rest) =
        (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
    let mut text = String::new();
    if hours > 0 {
        text = format!("{hours}h");
    }
    if hours > 0 || minutes > 0 {
        text = format!("{text}{minutes}m");
    }
    if rest == 0 {
        return format!("{text}{seconds}s");
    }
    let fraction = format!("{rest:03}");
    format!("{text}{seconds}.{}s", fraction.trim_end_matches('0'))
}

/// A time in whole seconds, as Kubernetes shows it.
pub fn time(wall: Wall) -> meta::Time {
    let seconds = wall.0.div_euclid(1_000_000);
    meta::Time(jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::UNIX_EPOCH))
}

/// At most one address of each family, the first one's family first.
pub(super) fn addresses(ips: &[IpAddr]) -> Vec<String> {
    let first = ips.first();
    let second = ips
        .iter()
        .find(|ip| first.is_some_and(|f| f.is_ipv4() != ip.is_ipv4()));
    first
        .into_iter()
        .chain(second)
        .map(ToString::to_string)
        .collect()
}

pub(super) fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

pub(super) fn some_text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Resources with these figures of cpu and memory, as the kubelet writes what it reads from cgroups.
pub(super) fn resources(
    mut shown: core::ResourceRequirements,
    figures: &ContainerResources,
) -> core::ResourceRequirements {
    let cpu = |milli: u64| match milli % 1000 {
        0 => (milli / 1000).to_string(),
        _ => format!("{milli}m"),
    };
    let memory = |bytes: u64| {
        let units = [(30, "Gi"), (20, "Mi"), (10, "Ki")];
        let unit = units
            .iter()
            .find(|(bits, _)| bytes > 0 && bytes.is_multiple_of(1 << bits));
        unit.map_or_else(
            || bytes.to_string(),
            |(bits, name)| format!("{}{name}", bytes >> bits),
        )
    };
    for (map, cpu_milli, memory_bytes) in [
        (
            &mut shown.requests,
            figures.cpu_request_milli,
            figures.memory_request_bytes,
        ),
        (
            &mut shown.limits,
            figures.cpu_limit_milli,
            figures.memory_limit_bytes,
        ),
    ] {
        let amounts = map.get_or_insert_default();
        for (name, text) in [
            ("cpu", cpu_milli.map(cpu)),
            ("memory", memory_bytes.map(memory)),
        ] {
            match text {
                Some(text) => amounts.insert(name.to_owned(), Quantity(text)),
                None => amounts.remove(name),
            };
        }
        if amounts.is_empty() {
            *map = None;
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_in_the_largest_unit_that_divides_them() {
        let shown = |cpu: u64, memory: u64| {
            let figures = ContainerResources {
                cpu_request_milli: Some(cpu),
                memory_limit_bytes: Some(memory),
                ..ContainerResources::default()
            };
            let shown = resources(core::ResourceRequirements::default(), &figures);
            let (requests, limits) = (shown.requests.unwrap(), shown.limits.unwrap());
            assert_eq!((requests.len(), limits.len()), (1, 1));
            (requests["cpu"].0.clone(), limits["memory"].0.clone())
        };
        for (cpu, memory, expected) in [
            (0, 0, ("0", "0")),
            (1, 1, ("1m", "1")),
            (1_500, 1_023, ("1500m", "1023")),
            (2_000, 1_024, ("2", "1Ki")),
            (999, 1_536, ("999m", "1536")),
            (1_001, 3 << 20, ("1001m", "3Mi")),
            (64_000, 2_560 << 20, ("64", "2560Mi")),
            (12_000, 4 << 30, ("12", "4Gi")),
        ] {
            let expected = (expected.0.to_owned(), expected.1.to_owned());
            assert_eq!(shown(cpu, memory), expected);
        }
    }

    #[test]
    fn what_has_no_figure_any_more_is_not_shown() {
        let figures = ContainerResources {
            cpu_request_milli: Some(100),
            memory_request_bytes: Some(1),
            ..ContainerResources::default()
        };
        let shown = resources(core::ResourceRequirements::default(), &figures);
        let figures = ContainerResources {
            cpu_request_milli: Some(100),
            ..ContainerResources::default()
        };
        let shown = resources(shown, &figures);
        let names: Vec<_> = shown.requests.unwrap().into_keys().collect();
        assert_eq!((names, shown.limits), (vec!["cpu".to_owned()], None));
    }
}
