//! The order of quadlet units: `After` as `depends_on`. `Requires` and the like only start what they name.

use super::order;
use super::project::Project;
use super::tree::{Entries, entries, find, find_mut, map_of_texts, set};
use super::unit::Unit;
use crate::spec::value::Value;

/// Turns `Before` round: the unit that it names starts after this one.
pub(super) fn turn_round(units: &mut [Unit], project: &mut Project) {
    for at in 0..units.len() {
        let unit = &units[at];
        let own = match &*unit.kind {
            "container" | "kube" => format!("{}.service", unit.name),
            kind => format!("{}-{kind}.service", unit.name),
        };
        let words = unit.values("Unit", "Before").join(" ");
        for word in words.split_whitespace() {
            let name = word.rsplit_once('.').map_or(word, |(name, _)| name);
            let later = units.iter_mut().find(|unit| match &*unit.kind {
                "pod" => word == format!("{}.pod", unit.name) || runs_as(unit, "Pod", name),
                "container" => runs_as(unit, "Container", name),
                kind => kind == "kube" && runs_as(unit, "Kube", name),
            });
            match later {
                Some(later) => {
                    let after = ("Unit".to_owned(), "After".to_owned(), own.clone());
                    later.keys.push(after);
                }
                None => project.leave_out(&units[at], format_args!("Before={word}")),
            }
        }
    }
}

/// Whether a unit is run by a service of this name.
fn runs_as(unit: &Unit, section: &str, name: &str) -> bool {
    let own = match section {
        "Pod" => name.strip_suffix("-pod"),
        _ => Some(name),
    };
    own == Some(&*unit.name) || unit.last(section, "ServiceName") == Some(name)
}

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
                units.find(|unit| unit.kind == kind && runs_as(unit, section, name))
            };
            let other = named("container", name).or_else(|| named("container", head?));
            let is_given = other.is_some() || named("kube", name).is_some();
            // It starts by itself, at the same time.
            if is_given && *key != "After" {
                continue;
            }
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
                (Some(_), None) if !is_given => {
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
