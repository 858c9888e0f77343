//! The names by which the services of a project find each other.

use super::plan::{Plan, Planned};
use super::tree::{
    Entries, document, entries, is_on, items, map_of_texts, pairs, scalar, scalars, set, set_on,
    set_text, word,
};
use super::words::{first_free, object_name};
use super::work::Shared;
use crate::spec::aliases;
use crate::spec::value::Value;

/// A pod of the project: its name, and the services in it.
pub(super) struct Group<'p> {
    /// The service whose network it has.
    pub(super) head: &'p str,
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
                    apart(shared, plan, &name, group, groups, pods);
                    pods.push(group.pod.clone());
                }
                None => wanted.push((name, vec![group.pod.clone()])),
            }
        }
    }
    let mut all: Vec<Named> = Vec::new();
    let mut others = Vec::new();
    for (name, pods) in wanted {
        match object_name(&name) == name {
            true => all.push(Named {
                name,
                aliases: Vec::new(),
                pods,
            }),
            false => others.push((name, pods)),
        }
    }
    for (alias, pods) in others {
        let has_room =
            |named: &&mut Named| named.pods == pods && named.aliases.len() < aliases::MAX;
        if let Some(named) = all.iter_mut().find(has_room) {
            named.aliases.push(alias);
            continue;
        }
        let is_taken = |name: &str| all.iter().any(|named| named.name == name);
        let name = first_free(&object_name(&alias), &mut |name| !is_taken(name));
        all.push(Named {
            name,
            aliases: vec![alias],
            pods,
        });
    }
    all
}

/// Says of a name that pods of separate networks have: there is one network here, where it means all of them.
fn apart(
    shared: &Shared<'_>,
    plan: &Plan<'_>,
    name: &str,
    group: &Group<'_>,
    groups: &[Group<'_>],
    pods: &[String],
) {
    let is_in = |group: &Group<'_>, network: &&str| {
        let mut members = group.members.iter();
        members.any(|of| networks(plan.service(of)).contains(network))
    };
    let meets = |other: &Group<'_>| {
        let mut members = group.members.iter();
        members.any(|of| {
            networks(plan.service(of))
                .iter()
                .any(|network| is_in(other, network))
        })
    };
    let mut others = groups.iter().filter(|other| pods.contains(&other.pod));
    let separate = others.find(|other| !meets(other));
    if let (Some(other), [member, ..]) = (separate, &group.members[..]) {
        let what = format_args!(
            "the name {name}: `{}` has it in another network; here it means both",
            other.pod
        );
        shared.lost(member, what);
    }
}

/// The networks that a service is in: that of its project, if it names none.
fn networks(service: &Value) -> Vec<&str> {
    let mut named = match service.get("networks") {
        Some(Value::Map(networks)) => networks.iter().map(|(name, _)| &**name).collect(),
        list => scalars(list),
    };
    if named.is_empty() && service.get("network_mode").is_none() {
        named.push("default");
    }
    named
}

/// The label of pods that have a name in common.
pub(super) fn label(name: &str) -> String {
    format!("alias-{name}")
}

/// The names that the pod of a group has, in lower case.
fn names(shared: &Shared<'_>, plan: &Plan<'_>, group: &Group<'_>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for member in &group.members {
        for name in wanted(shared, plan, member) {
            // A variable that is not set.
            if name.is_empty() {
                continue;
            }
            // Names are the same in any case.
            let mut as_written = name.to_ascii_lowercase();
            if !aliases::is_valid(name) {
                as_written = object_name(name);
                let what = format_args!("the name {name}: others reach it as `{as_written}`");
                shared.lost(member, what);
            }
            // A pod may have this name only because its service's own cannot be kept: that does not count.
            let is_own = |of: &&Planned<'_>| {
                of.object == as_written
                    && (of.name.eq_ignore_ascii_case(&as_written)
                        || scalar(of.service, "x-pod-name") == Some(&*as_written))
            };
            match plan.services.iter().find(is_own) {
                Some(other) if !group.members.contains(&other.name) => {
                    let other = other.name;
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

/// The names of a service as they are written.
fn wanted<'p>(shared: &Shared<'_>, plan: &Plan<'p>, member: &'p str) -> Vec<&'p str> {
    let service = plan.service(member);
    let mut wanted = Vec::new();
    let own = scalar(service, "container_name");
    // A single one has nothing beside it that could ask for it, except in a network of others.
    let is_single = plan.services.len() == 1;
    let of_others = is_single && is_in_network_of_others(shared, service);
    if !is_single || of_others {
        wanted.push(member);
        wanted.extend(own);
        // What stands for another name is none.
        let host = scalar(service, "hostname").filter(|host| !host.contains(['%', '$']));
        wanted.extend(host);
    }
    for (_, network) in entries(service.get("networks")) {
        wanted.extend(scalars(network.get("aliases")));
    }
    for other in plan.services.iter().filter(|other| other.name != member) {
        for link in scalars(other.service.get("links")) {
            if let Some((of, alias)) = link.split_once(':')
                && of == member
            {
                wanted.push(alias);
            }
        }
    }
    // podman's own name for it.
    let default = scalar(service, "x-default-name");
    let is_used = |name: &&str| of_others && own.is_none() || is_spoken_of(plan, name);
    wanted.extend(default.filter(is_used));
    wanted
}

/// Headless Services, by which the others find a pod at all of its ports: one for each name that it is the first to have.
pub(super) fn services(shared: &Shared<'_>, names: &[Named], pod: &str) -> Vec<Value> {
    let own = names.iter().filter(|named| named.pods[0] == pod);
    own.map(|named| headless(shared, named)).collect()
}

fn headless(shared: &Shared<'_>, named: &Named) -> Value {
    let selector = match &named.pods[..] {
        [pod] => map_of_texts(&[("app", pod)]),
        _ => map_of_texts(&[(&label(&named.name), "true")]),
    };
    let mut metadata = shared.metadata(&named.name);
    if !named.aliases.is_empty() {
        let aliases = named.aliases.join(", ");
        let annotations = map_of_texts(&[(aliases::ANNOTATION, &aliases)]);
        set(&mut metadata, "annotations", annotations);
    }
    let mut spec = Entries::new();
    set_text(&mut spec, "clusterIP", "None");
    set_on(&mut spec, "publishNotReadyAddresses");
    set(&mut spec, "selector", selector);
    document("v1", "Service", metadata, spec)
}

/// Whether a service is in a network that is not only its project's: one that is made elsewhere or has a name of its own.
/// Those of commands and units all are.
fn is_in_network_of_others(shared: &Shared<'_>, service: &Value) -> bool {
    let own = networks(service);
    if shared.project.origin != "compose" {
        return own.iter().any(|name| *name != "default");
    }
    let mut networks = shared.project.networks.iter();
    networks.any(|(name, network)| {
        let external = network.get("external");
        let elsewhere = is_on(network, "external") || matches!(external, Some(Value::Map(_)));
        own.contains(&&**name) && (elsewhere || scalar(network, "name").is_some())
    })
}

/// Whether a service's settings contain a name.
fn is_spoken_of(plan: &Plan<'_>, name: &str) -> bool {
    let contains = |text: Option<&str>| text.is_some_and(|text| text.contains(name));
    plan.services.iter().any(|of| {
        let variables = pairs(of.service.get("environment"));
        let words = items(of.service.get("command"));
        variables.iter().any(|(_, value)| contains(*value))
            || words.iter().any(|value| contains(word(value)))
    })
}
