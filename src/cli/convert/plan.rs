//! Which services become which pods, and what each of them is called.

use std::collections::{BTreeMap, BTreeSet};

use super::deployment::replicas;
use super::order::{COMPLETED, after};
use super::project::Project;
use super::tree::scalar;
use super::words::{first_free, object_name};
use crate::spec::value::Value;
use crate::types::Gather;

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
    /// By their names.
    pub(super) services: BTreeMap<&'p str, Planned<'p>>,
}

/// A service and what becomes of it.
pub(super) struct Planned<'p> {
    pub(super) service: &'p Value,
    /// The name of its container.
    pub(super) object: String,
    /// The service whose pod it is in.
    pub(super) head: &'p str,
    /// The one service that waits for it, before which it runs to its end.
    pub(super) step_of: Option<&'p str>,
}

impl<'p> Plan<'p> {
    pub(super) fn of(project: &'p Project) -> Self {
        let planned = project.services.iter().map(|(name, service)| {
            let planned = Planned {
                service,
                object: scalar(service, "x-pod-name").unwrap_or_else(|| name.clone()),
                head: name,
                step_of: None,
            };
            (&**name, planned)
        });
        let mut plan = Self {
            services: planned.gather(),
        };
        // A service with a valid name keeps it: the others use that name.
        let mut taken = BTreeSet::new();
        for valid in [true, false] {
            for (name, _) in &project.services {
                let Some(planned) = plan.services.get_mut(&**name) else {
                    continue;
                };
                let wish = object_name(&planned.object);
                if (wish == planned.object) == valid {
                    planned.object = first_free(&wish, &mut |name| taken.insert(name.to_owned()));
                }
            }
        }
        for (name, _) in &project.services {
            let head = plan.head(name);
            if let Some(planned) = plan.services.get_mut(&**name) {
                planned.head = head;
            }
        }
        plan.find_steps();
        plan
    }

    /// The service whose network a service has, followed to the first.
    fn head(&self, name: &'p str) -> &'p str {
        let mut at = name;
        for _ in 0..8 {
            let planned = self.services.get(at);
            let mode = planned.and_then(|p| scalar(p.service, "network_mode"));
            let of = mode
                .as_deref()
                .and_then(|mode| mode.strip_prefix("service:").map(|of| self.key(of)));
            let by_container = mode.as_deref().and_then(|mode| {
                let name = mode.strip_prefix("container:")?;
                let is_it = |(_, planned): &(&&'p str, &Planned<'p>)| {
                    scalar(planned.service, "container_name").as_deref() == Some(name)
                };
                let found = self.services.iter().find(is_it);
                Some(found.map(|(name, _)| *name).or(self.key(name)))
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
    pub(super) fn sidecars(&self, members: &[&'p str]) -> Vec<&'p str> {
        let all = members.iter().flat_map(|m| self.waits_for(m, members));
        let all: Vec<&str> = all.collect();
        // One at least is the pod's main container.
        match members.iter().all(|member| all.contains(member)) {
            true => Vec::new(),
            false => all,
        }
    }

    /// The services of a pod, but for its head, that others of it wait for until they have completed.
    pub(super) fn steps(&self, head: &str, members: &[&'p str]) -> Vec<&'p str> {
        let mut all = Vec::new();
        for member in members {
            for (of, condition) in after(self.services[member].service) {
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
        let on = after(self.services[service].service).into_iter();
        let on = on.filter_map(|(of, _)| self.key(&of));
        on.filter(|of| *of != service && members.contains(of))
            .collect()
    }

    /// The services of a pod, each after those that it waits for.
    pub(super) fn in_order(&self, members: &[&'p str]) -> Vec<&'p str> {
        let mut all: Vec<&str> = Vec::new();
        loop {
            let left = || members.iter().copied().filter(|m| !all.contains(m));
            let free = |m: &&'p str| self.waits_for(m, members).iter().all(|of| all.contains(of));
            // They wait for each other.
            match left().find(free).or_else(|| left().next()) {
                Some(next) => all.push(next),
                None => return all,
            }
        }
    }

    /// Finds services that are only waited for until they have completed, by one other service: they become its init
    /// containers.
    fn find_steps(&mut self) {
        // Who waits, for what, and whether until that has completed.
        let mut waits: Vec<(&'p str, &'p str, bool)> = Vec::new();
        for (by, planned) in &self.services {
            for (of, condition) in after(planned.service) {
                let of = self.key(&of);
                waits.extend(of.map(|of| (*by, of, condition.kind == COMPLETED)));
            }
        }
        let mut steps: Vec<(&str, &str)> = Vec::new();
        for (name, planned) in &self.services {
            let mut by = waits.iter().filter(|(_, of, _)| of == name);
            let members = self.services.values().filter(|p| p.head == *name);
            if let (Some((by, _, true)), None) = (by.next(), by.next())
                && planned.head == *name
                && members.count() == 1
                && !OF_POD.iter().any(|key| planned.service.get(key).is_some())
                && by != name
                // It would run once for each of the pods.
                && replicas(self.services[self.services[by].head].service).is_none()
            {
                steps.push((name, by));
            }
        }
        for (name, by) in &steps {
            // A step of a step stays a pod of its own.
            if !steps.iter().any(|(step, _)| step == by)
                && let Some(planned) = self.services.get_mut(name)
            {
                planned.step_of = Some(by);
            }
        }
    }
}
