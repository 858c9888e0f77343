//! `cpus`, `mem_limit`, `deploy`: what a container may use, and what is kept free for it.

use super::tree::{Entries, scalar, set_map, set_text, word};
use super::words::size;
use super::work::Work;
use crate::spec::value::Value;

pub(super) fn resources(work: &Work<'_>, service: &Value, all: &mut Entries) {
    let deploy = service.get("deploy").unwrap_or(&Value::Null);
    let of = |kind: &str, field: &str| {
        let resources = deploy.get("resources")?;
        scalar(resources.get(kind)?, field)
    };
    let quota = || {
        let quota: f64 = scalar(service, "cpu_quota")?.parse().ok()?;
        let period = scalar(service, "cpu_period").and_then(|p| p.parse::<f64>().ok());
        Some((quota / period.unwrap_or(100_000.0)).to_string())
    };
    let mut lost = Vec::new();
    let mut read = |what: &str, given: Option<&str>, by: fn(&str) -> Option<String>| {
        // Nothing is no limit.
        let given = given.filter(|text| text.trim().parse::<f64>() != Ok(0.0))?;
        let read = by(given);
        if read.is_none() {
            lost.push(format!("{what}: {given}"));
        }
        read
    };
    let quota = quota();
    let cpu = of("limits", "cpus").or_else(|| scalar(service, "cpus"));
    let cpu = read("cpus", cpu.or(quota.as_deref()), millis);
    let memory = of("limits", "memory").or_else(|| scalar(service, "mem_limit"));
    let memory = read("mem_limit", memory, size);
    let wanted_cpu = read("cpus", of("reservations", "cpus"), millis);
    let wanted = of("reservations", "memory").or_else(|| scalar(service, "mem_reservation"));
    let wanted_memory = read("mem_reservation", wanted, size);
    // Without a request, a limit would also be what is kept free for the pod: compose reserves nothing for it.
    let (mut limits, mut requests) = (Entries::new(), Entries::new());
    for (name, limit, wanted) in [
        ("cpu", &cpu, &wanted_cpu),
        ("memory", &memory, &wanted_memory),
    ] {
        if let Some(limit) = limit {
            set_text(&mut limits, name, limit);
            set_text(&mut requests, name, "0");
        }
        if let Some(wanted) = wanted {
            set_text(&mut requests, name, wanted);
        }
    }
    let mut resources = Entries::new();
    set_map(&mut resources, "limits", limits);
    set_map(&mut resources, "requests", requests);
    set_map(all, "resources", resources);
    if of("limits", "pids").is_some() {
        lost.push("pids: the setting `podPidsLimit` holds for all pods".to_owned());
    }
    let reserved = deploy.get("resources").and_then(|r| r.get("reservations"));
    if reserved.is_some_and(|r| r.get("devices").is_some() || r.get("generic_resources").is_some())
    {
        lost.push("devices: name the device by CDI (coracle help devices)".to_owned());
    }
    let replicas = scalar(deploy, "replicas").or_else(|| scalar(service, "scale"));
    if let Some(other) = replicas.filter(|word| word.parse::<u32>().is_err()) {
        lost.push(format!("replicas: {other}"));
    }
    for key in &[
        "labels",
        "update_config",
        "rollback_config",
        "placement",
        "mode",
        "endpoint_mode",
    ] {
        // On one node `global` is one pod.
        let given = deploy.get(key);
        if given.is_some_and(|value| !matches!(word(value), Some("replicated" | "global"))) {
            lost.push(format!("deploy.{key}"));
        }
    }
    for what in lost {
        work.lost(all, format_args!("{what}"));
    }
}

fn millis(text: &str) -> Option<String> {
    let cores: f64 = text.trim().parse().ok()?;
    let valid = cores > 0.0 && cores < 10_000.0;
    valid.then(|| format!("{:.0}m", (cores * 1000.0).ceil()))
}
