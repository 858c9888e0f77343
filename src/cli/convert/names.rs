//! The names by which the services of a project find each other.

use super::plan::Plan;
use super::tree::{entries, map, pairs, scalar, scalars, text};
use super::words::object_name;
use super::work::Shared;
use crate::spec::value::Value;

/// A pod of the project: its name, and the services in it.
pub(super) struct Group<'p> {
    pub(super) pod: String,
    pub(super) members: Vec<&'p str>,
}

/// A name, and the pods that have it. One at least.
pub(super) type Named = (String, Vec<String>);

/// The names by which pods are reached.
pub(super) fn all(shared: &Shared<'_>, plan: &Plan<'_>, groups: &[Group<'_>]) -> Vec<Named> {
    let mut all: Vec<Named> = Vec::new();
    for group in groups {
        for name in names(shared, plan, group) {
            match all.iter_mut().find(|(known, _)| *known == name) {
                Some((_, pods)) => pods.push(group.pod.clone()),
                None => all.push((name, vec![group.pod.clone()])),
            }
        }
    }
    all
}

/// The label of pods that have a name in common.
pub(super) fn label(name: &str) -> String {
    format!("alias-{name}")
}

fn names(shared: &Shared<'_>, plan: &Plan<'_>, group: &Group<'_>) -> Vec<String> {
    let pod = &*group.pod;
    let mut names: Vec<String> = Vec::new();
    for member in &group.members {
        let service = plan.services[member];
        let lost = |what: &str| shared.lost(member, what);
        let mut wanted = Vec::new();
        if plan.services.len() > 1 {
            wanted.push((*member).to_owned());
            wanted.extend(scalar(service, "container_name"));
            wanted.extend(scalar(service, "hostname"));
        }
        for (_, network) in entries(service.get("networks")) {
            wanted.extend(scalars(network.get("aliases")));
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
        // podman's own name for it.
        let default = scalar(service, "x-default-name");
        wanted.extend(default.filter(|name| is_spoken_of(plan, name)));
        // A variable that is not set.
        wanted.retain(|name| !name.is_empty());
        for (number, name) in wanted.iter().enumerate() {
            let instead = object_name(name);
            let known = names.contains(&instead) || instead == pod;
            if instead != *name && (number == 0 || !known || is_spoken_of(plan, name)) {
                lost(&format!("the name {name}: others reach it as `{instead}`"));
            }
            let other = plan.objects.iter().find(|(_, object)| **object == instead);
            match other {
                Some((other, _)) if !group.members.contains(other) => {
                    lost(&format!("the name {name}: the service `{other}` has it"));
                }
                _ if names.contains(&instead) => {}
                _ => names.push(instead),
            }
        }
    }
    names
}

/// Headless Services, by which the others find a pod at all of its ports: one for each name that it is the first to have.
pub(super) fn services(shared: &Shared<'_>, names: &[Named], pod: &str) -> Vec<Value> {
    let own = names.iter().filter(|(_, pods)| pods[0] == pod);
    let made = own.map(|(name, pods)| {
        let selector = match &pods[..] {
            [_] => map([("app", text(pod))]),
            _ => Value::Map(vec![(label(name), text("true"))]),
        };
        map([
            ("apiVersion", text("v1")),
            ("kind", text("Service")),
            ("metadata", Value::Map(shared.metadata(name))),
            (
                "spec",
                map([
                    ("clusterIP", text("None")),
                    ("publishNotReadyAddresses", Value::Bool(true)),
                    ("selector", selector),
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
