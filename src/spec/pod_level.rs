//! Resources of a pod as a whole, `spec.resources`: all its containers share them (KEP-2837).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec as Written};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;

use super::error::{Path, Report};
use super::huge_pages::{self, PageSize};
use super::pod::{ContainerResources, PodSpec};
use super::resources::{self, Figures, most_at_once};
use crate::types::quantity::Quantity;

/// Requests that are missing beside a limit of the pod: the sum of its containers' requests. Where these have none, the
/// pod's limit is its request, as in a container.
pub(super) fn fill_in_requests(spec: &mut Written) {
    let sums = ["cpu", "memory"].map(|name| (name, sum_of_requests(spec, name)));
    let Some(own) = &mut spec.resources else {
        return;
    };
    if own.limits.as_ref().is_none_or(BTreeMap::is_empty) {
        return;
    }
    let requests = own.requests.get_or_insert_default();
    for (name, sum) in sums {
        if let Some(sum) = sum {
            requests.entry(name.to_owned()).or_insert(sum);
        }
    }
}

/// `None`: no container asks for it.
fn sum_of_requests(spec: &Written, name: &str) -> Option<Amount> {
    let request = |container: &Container| {
        let requests = container.resources.as_ref()?.requests.as_ref()?;
        let quantity = Quantity::parse(&requests.get(name)?.0).ok()?;
        let amount = match name {
            "cpu" => quantity.ceil_milli(),
            _ => quantity.ceil(),
        };
        u64::try_from(amount).ok()
    };
    let mut all = spec.init_containers.iter().flatten();
    let mut all = all.by_ref().chain(&spec.containers);
    if !all.any(|container| request(container).is_some()) {
        return None;
    }
    let sum = most_at_once(spec, request);
    let sum = match name {
        "cpu" => Quantity::parse(&format!("{sum}m")).ok()?,
        _ => Quantity::bytes(sum),
    };
    Some(Amount(sum.to_string()))
}

/// Validates and converts the pod's own resources, if it has some; `containers` are those of its containers.
pub(super) fn convert(
    spec: &Written,
    containers: &Figures,
    path: &Path<'_>,
    report: &Report,
) -> Option<ContainerResources> {
    let written = spec.resources.as_ref()?;
    let own_path = path.field("resources");
    let own = resources::convert(written, &own_path, report);
    known_only(spec, &own_path, report);
    let sums = resources::effective(None, containers);
    for (name, request, sum) in [
        ("cpu", own.cpu_request_milli, sums.cpu_request_milli),
        (
            "memory",
            own.memory_request_bytes,
            sums.memory_request_bytes,
        ),
    ] {
        if let Some(request) = request.filter(|request| *request < sum) {
            let unit = if name == "cpu" { "m" } else { "" };
            report.invalid(
                &own_path.field("requests").field(name),
                format!("{request}{unit}"),
                format_args!(
                    "must be greater than or equal to aggregate container requests of {sum}{unit}"
                ),
            );
        }
    }
    let own_pages = huge_pages::of(Some(written));
    for (size, sum) in huge_pages::of_containers(spec) {
        if let Some(own) = own_pages.get(&size).filter(|own| **own < sum) {
            let (own, sum) = (Quantity::bytes(*own), Quantity::bytes(sum));
            report.invalid(
                &own_path.field("limits").field(&size.resource()),
                own.to_string(),
                format_args!(
                    "must be greater than or equal to aggregate container limits of {sum}"
                ),
            );
        }
    }
    let init = spec.init_containers.as_deref().unwrap_or_default();
    for (list, all) in [
        ("initContainers", init),
        ("containers", &spec.containers[..]),
    ] {
        let list = path.field(list);
        for (index, container) in all.iter().enumerate() {
            container_limits(spec, container, &list.index(index), report);
        }
    }
    Some(own)
}

impl PodSpec {
    /// The memory that the pod itself asks for beyond its containers' requests, in bytes, for each container.
    pub fn shared_memory_request(&self) -> u64 {
        let own = self.manifest.spec().resources;
        let own = own.and_then(|own| resources::whole(own.requests?.get("memory")?));
        let containers = Figures::of(&self.init_containers, &self.containers);
        let sum = resources::effective(None, &containers).memory_request_bytes;
        let shared = own.unwrap_or(0).saturating_sub(sum);
        shared / (self.containers.len() as u64).max(1)
    }
}

/// Refuses resources that only containers have.
fn known_only(spec: &Written, path: &Path<'_>, report: &Report) {
    let Some(written) = &spec.resources else {
        return;
    };
    for (field, amounts) in [("limits", &written.limits), ("requests", &written.requests)] {
        let names = amounts.iter().flatten().map(|(name, _)| name);
        for name in names.filter(|name| resources::is_known(name)) {
            let is_of_pods =
                ["cpu", "memory"].contains(&name.as_str()) || PageSize::of_resource(name).is_some();
            // A limit stands for the request that was copied from it.
            let is_copy = field == "requests"
                && written
                    .limits
                    .as_ref()
                    .is_some_and(|limits| limits.contains_key(name));
            if !is_of_pods && !is_copy && !report.is_admitted() {
                let known = ["cpu", "memory", "hugepages-"];
                report.unsupported(&path.field(field).field(name), name, &known);
            }
        }
    }
}

/// Refuses limits of a container above those of its pod.
fn container_limits(spec: &Written, container: &Container, path: &Path<'_>, report: &Report) {
    let of_pod = spec.resources.as_ref().and_then(|r| r.limits.as_ref());
    let own = container.resources.as_ref().and_then(|r| r.limits.as_ref());
    let path = path.field("resources");
    let path = path.field("limits");
    for (name, limit) in own.into_iter().flatten() {
        let Some(most) = of_pod.and_then(|limits| limits.get(name)) else {
            continue;
        };
        let amount = |written: &Amount| Quantity::parse(&written.0).ok();
        let (Some(own), Some(of_pod)) = (amount(limit), amount(most)) else {
            continue;
        };
        // Of huge pages the sum is compared. 0 is no limit.
        let is_page = huge_pages::is_resource(name) || of_pod.nano() == 0;
        if own.nano() > of_pod.nano() && !is_page && !report.is_admitted() {
            report.invalid(
                &path.field(name),
                own.to_string(),
                format_args!("must be less than or equal to pod limits of {of_pod}"),
            );
        }
    }
}
