//! The order of quadlet units: `After`, `Requires` and the like as `depends_on`.

use super::order;
use super::project::Project;
use super::tree::{Entries, entries, find, find_mut, map_of_texts, set};
use super::unit::Unit;
use crate::spec::value::Value;

/// What a unit starts after: its container waits for that, or its pod's first container. A manifest that exists already is
/// left as it is.
pub(super) fn depend(unit: &Unit, units: &[Unit], heads: &[(&str, String)], project: &mut Project) {
    let head_of = |pod: &str| {
        heads
            .iter()
            .find(|(of, _)| *of == pod)
            .map(|(_, head)| &**head)
    };
    let own = match &*unit.kind {
        "container" => Some(&*unit.name),
        "pod" => head_of(&unit.name),
        _ => None,
    };
    let mut all = Entries::new();
    let mut seen = Vec::new();
    for key in &["After", "Requires", "BindsTo", "Wants"] {
        let words = unit.values("Unit", key).into_iter();
        for word in words.flat_map(str::split_whitespace) {
            if is_early(word) || seen.contains(&word) {
                continue;
            }
            seen.push(word);
            let name = word.rsplit_once('.').map_or(word, |(name, _)| name);
            let pod = name.strip_suffix("-pod").unwrap_or(name);
            let is_own = |of: &str| of.strip_suffix(".pod") == Some(pod);
            if name != pod && unit.last("Container", "Pod").is_some_and(is_own) {
                continue;
            }
            let head = head_of(pod);
            let named = |kind: &str, name: &str| {
                let mut units = units.iter();
                let section = if kind == "kube" { "Kube" } else { "Container" };
                let is_it = |unit: &&Unit| {
                    unit.name == name || unit.last(section, "ServiceName") == Some(name)
                };
                units.find(|unit| unit.kind == kind && is_it(unit))
            };
            let other = named("container", name).or_else(|| named("container", head?));
            let instead = match (own, other) {
                (Some(own), Some(other)) if other.name != own => {
                    let is_oneshot = other.last("Service", "Type") == Some("oneshot");
                    let condition = match other.last("Container", "Notify") {
                        _ if is_oneshot => order::COMPLETED,
                        Some("healthy") => "service_healthy",
                        _ => "service_started",
                    };
                    let condition = map_of_texts(&[("condition", condition)]);
                    set(&mut all, &other.name, condition);
                    continue;
                }
                (Some(_), Some(_)) => continue,
                (Some(_), None) if named("kube", name).is_none() => {
                    format!("`coracle.dev/after` takes `unit:{word}`")
                }
                (Some(_), None) => "`coracle.dev/after` takes the names of its pods".to_owned(),
                (None, _) => "give its pods a `coracle.dev/after`".to_owned(),
            };
            let what = format!("{}: {key}={word}: {instead}", unit.name);
            project.left_out.push(what);
        }
    }
    let service = own.and_then(|own| find_mut(&mut project.services, own));
    if let Some(Value::Map(service)) = service.filter(|_| !all.is_empty()) {
        for (other, condition) in entries(find(service, "depends_on")) {
            set(&mut all, other, condition.clone());
        }
        set(service, "depends_on", Value::Map(all));
    }
}

/// What is there before pods start, or comes from units that are converted, too.
fn is_early(unit: &str) -> bool {
    let made = ["-volume", "-network", "-image", "-build"];
    let name = unit.strip_suffix(".service").unwrap_or_default();
    let made = made.iter().any(|ending| name.ends_with(ending));
    unit.ends_with(".target") || made || unit.contains("network-online") || !unit.contains('.')
}
