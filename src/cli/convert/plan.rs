//! Which services become which pods, and what each of them is called.

use std::collections::{BTreeMap, BTreeSet};

use super::deployment::replicas;
use super::order::{COMPLETED, after};
use super::project::Project;
use super::tree::scalar;
use super::words::{first_free, object_name};
use crate::spec::value::Value;

/// What a service asks of a whole pod, or of its place on the node: it is no part of another one's.
const OF_POD: [&str; 13] = [
    "dns",
    "dns_opt",
    "dns_search",
    "domainname",
    "extra_hosts",
    "group_add",
    "init",
    "ipc",
    "network_mode",
    "pid",
    "ports",
    "sysctls",
    "userns_mode",
];

/// Services and the pods that they become.
pub(super) struct Plan<'p> {
    pub(super) services: BTreeMap<&'p str, &'p Value>,
    /// The name of each service's container.
    pub(super) objects: BTreeMap<&'p str, String>,
    /// The service whose pod each service is in.
    pub(super) heads: BTreeMap<&'p str, &'p str>,
    /// Services that run to their end before the one service that waits for them.
    pub(super) before: BTreeMap<&'p str, &'p str>,
}

impl<'p> Plan<'p> {
    pub(super) fn of(project: &'p Project) -> Self {
        let services: BTreeMap<&str, &Value> = project
            .services
            .iter()
            .map(|(name, value)| (&**name, value))
            .collect();
        let mut taken = BTreeSet::new();
        let mut objects = BTreeMap::new();
        let wishes = project.services.iter().map(|(name, service)| {
            (
                name,
                scalar(service, "x-pod-name").unwrap_or_else(|| name.clone()),
            )
        });
        // A service with a valid name keeps it: the others use that name.
        let (valid, others): (Vec<_>, Vec<_>) =
            wishes.partition(|(_, wish)| object_name(wish) == *wish);
        for (name, wish) in valid.into_iter().chain(others) {
            let wish = object_name(&wish);
            let object = first_free(&wish, &mut |name| taken.insert(name.to_owned()));
            objects.insert(&**name, object);
        }
        let mut plan = Self {
            services,
            objects,
            heads: BTreeMap::new(),
            before: BTreeMap::new(),
        };
        for (name, _) in &project.services {
            plan.heads.insert(name, plan.head(name));
        }
        plan.find_steps();
        plan
    }

    /// The service whose network a service has, followed to the first.
    fn head(&self, name: &'p str) -> &'p str {
        let mut at = name;
        for _ in 0..8 {
            let mode = self
                .services
                .get(at)
                .and_then(|s| scalar(s, "network_mode"));
            let of = mode
                .as_deref()
                .and_then(|mode| mode.strip_prefix("service:").map(|of| self.key(of)));
            let by_container = mode.as_deref().and_then(|mode| {
                let name = mode.strip_prefix("container:")?;
                let is_it = |(_, s): &(&&'p str, &&'p Value)| {
                    scalar(s, "container_name").as_deref() == Some(name)
                };
                Some(
                    self.services
                        .iter()
                        .find(is_it)
                        .map(|(name, _)| *name)
                        .or(self.key(name)),
                )
            });
            match of.or(by_container).flatten() {
                Some(next) => at = next,
                None => return at,
            }
        }
        name
    }

    pub(super) fn key(&self, name: &str) -> Option<&'p str> {
        self.services.get_key_value(name).map(|(name, _)| *name)
    }

    /// The services of a pod that others of it wait for.
    pub(super) fn sidecars(&self, members: &[&'p str]) -> BTreeSet<&'p str> {
        let all: BTreeSet<&str> = members
            .iter()
            .flat_map(|m| self.waits_for(m, members))
            .collect();
        // One at least is the pod's main container.
        match members.iter().all(|member| all.contains(member)) {
            true => BTreeSet::new(),
            false => all,
        }
    }

    /// The services of a pod, but for its head, that others of it wait for until they have completed.
    pub(super) fn steps(&self, head: &str, members: &[&'p str]) -> BTreeSet<&'p str> {
        let mut all = BTreeSet::new();
        for member in members {
            for (of, condition) in after(self.services[member]) {
                let of = self
                    .key(&of)
                    .filter(|of| members.contains(of) && of != member);
                if condition.kind == COMPLETED && of != Some(head) {
                    all.extend(of);
                }
            }
        }
        all
    }

    /// The other services of its pod that a service waits for.
    fn waits_for(&self, service: &str, members: &[&'p str]) -> Vec<&'p str> {
        let on = after(self.services[service]).into_iter();
        let on = on.filter_map(|(of, _)| self.key(&of));
        on.filter(|of| *of != service && members.contains(of))
            .collect()
    }

    /// The services of a pod, each after those that it waits for.
    pub(super) fn in_order(&self, members: &[&'p str]) -> Vec<&'p str> {
        let mut all: Vec<&str> = Vec::new();
        while all.len() < members.len() {
            let left = || members.iter().copied().filter(|m| !all.contains(m));
            let free = |m: &&'p str| self.waits_for(m, members).iter().all(|of| all.contains(of));
            // They wait for each other.
            let next = left().find(free).or_else(|| left().next());
            all.extend(next);
        }
        all
    }

    /// Finds services that are only waited for until they have completed, by one other service: they become its init
    /// containers.
    fn find_steps(&mut self) {
        let mut waiting: BTreeMap<&str, Vec<(&'p str, bool)>> = BTreeMap::new();
        for (name, service) in &self.services {
            for (of, condition) in after(service) {
                if let Some(of) = self.key(&of) {
                    let completes = condition.kind == COMPLETED;
                    waiting.entry(of).or_default().push((*name, completes));
                }
            }
        }
        for (name, by) in waiting {
            let alone = self.heads.iter().filter(|(_, head)| **head == name).count() == 1;
            let own = self.heads.get(name) == Some(&name);
            let of_pod = OF_POD.iter();
            let of_pod = of_pod.filter(|key| self.services[name].get(key).is_some());
            if let [(by, true)] = by[..]
                && alone
                && own
                && of_pod.count() == 0
                && by != name
                // It would run once for each of the pods.
                && replicas(self.services[self.heads[by]]).is_none()
            {
                self.before.insert(self.key(name).unwrap_or(by), by);
            }
        }
        // A step of a step stays a pod of its own.
        let steps: BTreeSet<&str> = self.before.keys().copied().collect();
        self.before.retain(|_, by| !steps.contains(by));
    }
}
