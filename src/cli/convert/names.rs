//! The names by which the services of a project find each other.

use super::plan::{Plan, Planned};
use super::tree::{entries, is_on, map, pairs, scalar, scalars, set, text};
use super::words::{first_free, object_name};
use super::work::Shared;
use crate::spec::aliases;
use crate::spec::value::Value;

/// A pod of the project: its name, and the services in it.
pub(super) struct Group<'p> {
    pub(super) pod: String,
    pub(super) members: Vec<&'p str>,
}

/// A Service by which pods are reached.
pub(super) struct Named {
    pub(super) name: String,
    /// Names that it has beside its own: those that Kubernetes does not allow.
    aliases: Vec<String>,
    /// One at least.
    pub(super) pods: Vec<String>,
}

/// The Services by which pods are reached.
pub(super) fn all(shared: &Shared<'_>, plan: &Plan<'_>, groups: &[Group<'_>]) -> Vec<Named> {
    let mut wanted: Vec<(String, Vec<String>)> = Vec::new();
    for group in groups {
        for name in names(shared, plan, group) {
            match wanted.iter_mut().find(|(known, _)| *known == name) {
                Some((_, pods)) if pods.contains(&group.pod) => {}
                Some((_, pods)) => {
                    let others = groups.iter().filter(|other| pods.contains(&other.pod));
                    apart(shared, plan, &name, group, others);
                    pods.push(group.pod.clone());
                }
                None => wanted.push((name, vec![group.pod.clone()])),
            }
        }
    }
    let (allowed, others): (Vec<_>, Vec<_>) = wanted
        .into_iter()
        .partition(|(name, _)| object_name(name) == *name);
    let of = |(name, pods)| Named {
        name,
        aliases: Vec::new(),
        pods,
    };
    let mut all: Vec<Named> = allowed.into_iter().map(of).collect();
    for (alias, pods) in others {
        let has_room = |named: &Named| named.pods == pods && named.aliases.len() < aliases::MAX;
        let position = all.iter().position(has_room);
        let position = position.unwrap_or_else(|| {
            let is_taken = |name: &str| all.iter().any(|named| named.name == name);
            let name = first_free(&object_name(&alias), &mut |name| !is_taken(name));
            all.push(of((name, pods)));
            all.len() - 1
        });
        all[position].aliases.push(alias);
    }
    all
}

/// Says of a name that pods of separate networks have: there is one network here, where it means all of them.
fn apart<'g>(
    shared: &Shared<'_>,
    plan: &Plan<'_>,
    name: &str,
    group: &Group<'_>,
    mut others: impl Iterator<Item = &'g Group<'g>>,
) {
    let networks = |group: &Group<'_>| {
        let services = group.members.iter().map(|of| plan.services[of].service);
        let all: Vec<String> = services.flat_map(networks).collect();
        all
    };
    let own = networks(group);
    let separate = others.find(|other| !networks(other).iter().any(|of| own.contains(of)));
    if let (Some(other), [member, ..]) = (separate, &group.members[..]) {
        let what = format_args!(
            "the name {name}: `{}` has it in another network; here it means both",
            other.pod
        );
        shared.lost(member, what);
    }
}

/// The networks that a service is in: that of its project, if it names none.
fn networks(service: &Value) -> Vec<String> {
    let named: Vec<String> = match service.get("networks") {
        Some(Value::Map(networks)) => networks.iter().map(|(name, _)| name.clone()).collect(),
        list => scalars(list),
    };
    match named.is_empty() && service.get("network_mode").is_none() {
        true => vec!["default".to_owned()],
        false => named,
    }
}

/// The label of pods that have a name in common.
pub(super) fn label(name: &str) -> String {
    format!("alias-{name}")
}

/// The names that the pod of a group has, in lower case.
fn names(shared: &Shared<'_>, plan: &Plan<'_>, group: &Group<'_>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for member in &group.members {
        let service = plan.services[member].service;
        let mut wanted = Vec::new();
        // A single one has nothing beside it that could ask for it, except in a network of others.
        let is_single = plan.services.len() == 1;
        let of_others = is_single && is_in_network_of_others(shared, service);
        if !is_single || of_others {
            wanted.push((*member).to_owned());
            wanted.extend(scalar(service, "container_name"));
            wanted.extend(scalar(service, "hostname"));
        }
        for (_, network) in entries(service.get("networks")) {
            wanted.extend(scalars(network.get("aliases")));
        }
        for (by, Planned { service: other, .. }) in &plan.services {
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
        let is_named = scalar(service, "container_name").is_some();
        let is_used = |name: &String| of_others && !is_named || is_spoken_of(plan, name);
        wanted.extend(default.filter(is_used));
        // A variable that is not set.
        wanted.retain(|name| !name.is_empty());
        for name in &wanted {
            // Names are the same in any case.
            let mut as_written = name.to_ascii_lowercase();
            if !aliases::is_valid(name) {
                as_written = object_name(name);
                let what = format_args!("the name {name}: others reach it as `{as_written}`");
                shared.lost(member, what);
            }
            // A pod may have this name only because its service's own cannot be kept: that does not count.
            let is_own = |of: &str| {
                let pod = scalar(plan.services[of].service, "x-pod-name");
                of.eq_ignore_ascii_case(&as_written) || pod.as_deref() == Some(&*as_written)
            };
            let mut others = plan.services.iter();
            let other = others.find(|(of, other)| other.object == as_written && is_own(of));
            match other {
                Some((other, _)) if !group.members.contains(other) => {
                    let what = format_args!("the name {name}: the service `{other}` has it");
                    shared.lost(member, what);
                }
                _ if names.contains(&as_written) => {}
                _ => names.push(as_written),
            }
        }
    }
    names
}

/// Headless Services, by which the others find a pod at all of its ports: one for each name that it is the first to have.
pub(super) fn services(shared: &Shared<'_>, names: &[Named], pod: &str) -> Vec<Value> {
    let own = names.iter().filter(|named| named.pods[0] == pod);
    own.map(|named| headless(shared, named)).collect()
}

fn headless(shared: &Shared<'_>, named: &Named) -> Value {
    let selector = match &named.pods[..] {
        [pod] => map([("app", text(&**pod))]),
        _ => Value::Map(vec![(label(&named.name), text("true"))]),
    };
    let mut metadata = shared.metadata(&named.name);
    if !named.aliases.is_empty() {
        let aliases = named.aliases.join(", ");
        let annotations = map([(aliases::ANNOTATION, text(aliases))]);
        set(&mut metadata, "annotations", annotations);
    }
    let spec = [
        ("clusterIP", text("None")),
        ("publishNotReadyAddresses", Value::Bool(true)),
        ("selector", selector),
    ];
    map([
        ("apiVersion", text("v1")),
        ("kind", text("Service")),
        ("metadata", Value::Map(metadata)),
        ("spec", map(spec)),
    ])
}

/// Whether a service is in a network that is not only its project's: one that is made elsewhere or has a name of its own.
/// Those of commands and units all are.
fn is_in_network_of_others(shared: &Shared<'_>, service: &Value) -> bool {
    let own = networks(service);
    if shared.project.origin != "compose" {
        return own.iter().any(|name| name != "default");
    }
    let mut networks = shared.project.networks.iter();
    networks.any(|(name, network)| {
        let external = network.get("external");
        let elsewhere = is_on(network, "external") || matches!(external, Some(Value::Map(_)));
        own.contains(name) && (elsewhere || scalar(network, "name").is_some())
    })
}

/// Whether a service's settings contain a name.
fn is_spoken_of(plan: &Plan<'_>, name: &str) -> bool {
    let mut services = plan.services.values();
    services.any(|Planned { service, .. }| {
        let variables = pairs(service.get("environment")).into_iter();
        let mut values = variables.filter_map(|(_, value)| value);
        values.any(|value| value.contains(name))
            || scalars(service.get("command"))
                .iter()
                .any(|word| word.contains(name))
    })
}
