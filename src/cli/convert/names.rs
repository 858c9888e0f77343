//! The names by which the services of a project find each other.

use std::collections::BTreeSet;

use super::plan::Plan;
use super::tree::{entries, map, pairs, scalar, scalars, text};
use super::words::object_name;
use super::work::{Shared, Work};
use crate::spec::value::Value;

/// Headless Services, by which the others find a pod at all of its ports. One for each name that it has in the project.
pub(super) fn services(
    shared: &Shared<'_>,
    plan: &Plan<'_>,
    pod: &str,
    members: &[&str],
) -> Vec<Value> {
    let mut names: Vec<String> = Vec::new();
    for member in members {
        let service = plan.services[member];
        let work = Work {
            shared,
            service: member,
            pod,
        };
        let mut wanted = Vec::new();
        if plan.services.len() > 1 {
            wanted.push((*member).to_owned());
            wanted.extend(scalar(service, "container_name"));
            wanted.extend(scalar(service, "hostname"));
        }
        for (_, network) in entries(service.get("networks")) {
            wanted.extend(scalars(network.get("aliases")));
            if network.get("ipv4_address").is_some() || network.get("ipv6_address").is_some() {
                work.lost("networks: a fixed address; use the name");
            }
        }
        for (by, other) in &plan.services {
            for link in scalars(other.get("links")) {
                if let Some((of, alias)) = link.split_once(':')
                    && of == *member
                    && by != member
                {
                    wanted.push(alias.to_owned());
                }
            }
        }
        // A variable that is not set.
        wanted.retain(|name| !name.is_empty());
        for (number, name) in wanted.iter().enumerate() {
            if object_name(name) == *name {
                names.push(name.clone());
            } else if number == 0 || is_spoken_of(plan, name) {
                let instead = object_name(name);
                work.lost(&format!("the name {name}: others reach it as `{instead}`"));
                names.push(instead);
            }
        }
    }
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    let of_others = |name: &String| plan.objects.values().any(|o| o == name) && name != pod;
    names.retain(|name| !of_others(name) || members.iter().any(|m| plan.objects[m] == *name));
    let made = names.iter().map(|name| {
        map([
            ("apiVersion", text("v1")),
            ("kind", text("Service")),
            ("metadata", Value::Map(shared.metadata(name))),
            (
                "spec",
                map([
                    ("clusterIP", text("None")),
                    ("publishNotReadyAddresses", Value::Bool(true)),
                    ("selector", map([("app", text(pod))])),
                ]),
            ),
        ])
    });
    made.collect()
}

/// Whether a service's settings contain a name.
fn is_spoken_of(plan: &Plan<'_>, name: &str) -> bool {
    let mut services = plan.services.values();
    services.any(|service| {
        let variables = pairs(service.get("environment")).into_iter();
        let mut values = variables.filter_map(|(_, value)| value);
        values.any(|value| value.contains(name))
            || scalars(service.get("command"))
                .iter()
                .any(|word| word.contains(name))
    })
}
