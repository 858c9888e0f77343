//! `cpus`, `mem_limit`, `deploy`: what a container may use, and what is kept free for it.

use super::tree::{Entries, scalar, set, text};
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
    let mut read = |what: &str, given: Option<String>, by: fn(&str) -> Option<String>| {
        // Nothing is no limit.
        let given = given.filter(|text| text.trim().parse::<f64>() != Ok(0.0))?;
        let read = by(&given);
        if read.is_none() {
            lost.push(format!("{what}: {given}"));
        }
        read
    };
    let cpu = read(
        "cpus",
        of("limits", "cpus")
            .or_else(|| scalar(service, "cpus"))
            .or_else(quota),
        millis,
    );
    let memory = of("limits", "memory").or_else(|| scalar(service, "mem_limit"));
    let memory = read("mem_limit", memory, size);
    let wanted_cpu = read("cpus", of("reservations", "cpus"), millis);
    let wanted = of("reservations", "memory").or_else(|| scalar(service, "mem_reservation"));
    let wanted_memory = read("mem_reservation", wanted, size);
    // Without a request, a limit would also be what is kept free for the pod: compose reserves nothing for it.
    let nothing = |limit: &Option<String>| limit.is_some().then(|| "0".to_owned());
    let requests = [
        ("cpu", wanted_cpu.or_else(|| nothing(&cpu))),
        ("memory", wanted_memory.or_else(|| nothing(&memory))),
    ];
    let mut resources = Entries::new();
    for (key, values) in [
        ("limits", [("cpu", cpu), ("memory", memory)]),
        ("requests", requests),
    ] {
        let values = values
            .into_iter()
            .filter_map(|(name, v)| Some((name.to_owned(), text(v?))));
        let values: Entries = values.collect();
        if !values.is_empty() {
            set(&mut resources, key, Value::Map(values));
        }
    }
    if !resources.is_empty() {
        set(all, "resources", Value::Map(resources));
    }
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
    for key in [
        "labels",
        "update_config",
        "rollback_config",
        "placement",
        "mode",
        "endpoint_mode",
    ] {
        // On one node `global` is one pod.
        if deploy
            .get(key)
            .is_some_and(|v| *v != text("replicated") && *v != text("global"))
        {
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
