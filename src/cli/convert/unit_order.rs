//! The order of quadlet units: `After` as `depends_on`. `Requires` and the like only start what they name.

use super::order;
use super::project::Project;
use super::quadlet::find_unit;
use super::tree::{Entries, entries, find, find_mut, map_of_texts, set};
use super::unit::{KINDS, Unit};
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
            match units.iter_mut().find(|unit| is_called(unit, word)) {
                Some(later) => {
                    let after = ("Unit".to_owned(), "After".to_owned(), own.clone());
                    later.keys.push(after);
                }
                None => project.leave_out(&units[at], format_args!("Before={word}")),
            }
        }
    }
}

/// Whether a word of another unit means this one: its file, or the service that runs it.
fn is_called(unit: &Unit, word: &str) -> bool {
    let name = word.rsplit_once('.').map_or(word, |(name, _)| name);
    let is_pod = word.ends_with(".pod");
    match &*unit.kind {
        "pod" => is_pod && unit.name == name || runs_as(unit, "Pod", name),
        "container" => !is_pod && runs_as(unit, "Container", name),
        kind => kind == "kube" && !is_pod && runs_as(unit, "Kube", name),
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
            let (name, kind) = word.rsplit_once('.').unwrap_or((word, ""));
            let named = units.iter().find(|unit| is_called(unit, word));
            // The unit of a pod may be missing.
            let pod = match named {
                Some(unit) if unit.kind == "pod" => Some(&*unit.name),
                Some(_) => None,
                None => Some(name.strip_suffix("-pod").unwrap_or(name)),
            };
            let own_pod = unit.last("Container", "Pod");
            let own_pod = own_pod.map(|of| of.strip_suffix(".pod").unwrap_or(of));
            if pod.is_some() && pod == own_pod {
                continue;
            }
            let head = pod.and_then(head_of);
            let other = match named {
                Some(unit) if unit.kind == "container" => Some(unit),
                _ => head.and_then(|head| find_unit(units, "container", head)),
            };
            let is_given = other.is_some() || named.is_some_and(|unit| unit.kind == "kube");
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
                _ if !is_given && KINDS.contains(&kind) => "give that unit, too".to_owned(),
                // These order nothing, so that there is nothing to wait for.
                _ if *key != "After" => "pods start no units of systemd".to_owned(),
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
    let made = ["volume", "network", "image", "build"];
    let service = unit.strip_suffix(".service").unwrap_or_default();
    let ending = service.rsplit_once('-').or_else(|| unit.rsplit_once('.'));
    let made = ending.is_some_and(|(_, kind)| made.contains(&kind));
    unit.ends_with(".target") || made || unit.contains("network-online") || !unit.contains('.')
}
