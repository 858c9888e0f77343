//! Which services become which pods, and what each of them is called.

use super::deployment::replicas;
use super::order::{COMPLETED, Condition, after};
use super::project::Project;
use super::tree::scalar;
use super::words::{first_free, object_name};
use crate::spec::value::Value;
use crate::types::InOrder;

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
    /// In the order of their names.
    pub(super) services: Vec<Planned<'p>>,
}

/// A service and what becomes of it.
pub(super) struct Planned<'p> {
    pub(super) name: &'p str,
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
        let mut services = Vec::new();
        for (name, service) in &project.services {
            services.push(Planned {
                name,
                service,
                object: scalar(service, "x-pod-name").unwrap_or(name).to_owned(),
                head: name,
                step_of: None,
            });
        }
        // A service with a valid name keeps it: the others use that name.
        let mut taken: Vec<String> = Vec::new();
        for valid in [true, false] {
            for planned in &mut services {
                let wish = object_name(&planned.object);
                if (wish == planned.object) == valid {
                    let mut is_free = |name: &str| taken.iter().all(|known| known != name);
                    planned.object = first_free(&wish, &mut is_free);
                    taken.push(planned.object.clone());
                }
            }
        }
        services.order_by_key(|planned| planned.name);
        let mut plan = Self { services };
        for at in 0..plan.services.len() {
            plan.services[at].head = plan.head(plan.services[at].name);
        }
        plan.find_steps();
        plan
    }

    pub(super) fn get(&self, name: &str) -> Option<&Planned<'p>> {
        self.services.iter().find(|planned| planned.name == name)
    }

    /// A service that is known to be there.
    pub(super) fn planned(&self, name: &str) -> &Planned<'p> {
        self.get(name).expect("its name is from the same project")
    }

    pub(super) fn service(&self, name: &str) -> &'p Value {
        self.planned(name).service
    }

    /// The service whose network a service has, followed to the first.
    fn head(&self, name: &'p str) -> &'p str {
        let mut at = name;
        for _ in 0..8 {
            let mode = scalar(self.service(at), "network_mode").unwrap_or_default();
            let next = match mode.split_once(':') {
                Some(("service", of)) => self.get(of),
                Some(("container", of)) => {
                    let is_it =
                        |known: &&Planned<'p>| scalar(known.service, "container_name") == Some(of);
                    self.services.iter().find(is_it).or_else(|| self.get(of))
                }
                _ => None,
            };
            match next {
                Some(next) => at = next.name,
                None => return at,
            }
        }
        name
    }

    /// The services of a pod that others of it wait for.
    pub(super) fn sidecars(&self, members: &[&'p str]) -> Vec<&'p str> {
        let mut all = Vec::new();
        for member in members {
            all.extend(self.waits_for(member, members).iter().map(|on| on.of));
        }
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
            for condition in self.waits_for(member, members) {
                if condition.kind == COMPLETED && condition.of != head {
                    all.push(condition.of);
                }
            }
        }
        all
    }

    /// The other services of its pod that a service waits for.
    fn waits_for(&self, service: &str, members: &[&'p str]) -> Vec<Condition<'p>> {
        let mut all = after(self.service(service));
        all.retain(|on| on.of != service && members.contains(&on.of));
        all
    }

    /// The services of a pod, each after those that it waits for.
    pub(super) fn in_order(&self, members: &[&'p str]) -> Vec<&'p str> {
        let mut all: Vec<&str> = Vec::new();
        loop {
            let left = || members.iter().copied().filter(|m| !all.contains(m));
            let free = |m: &&'p str| {
                let on = self.waits_for(m, members);
                on.iter().all(|on| all.contains(&on.of))
            };
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
        for planned in &self.services {
            for on in after(planned.service) {
                waits.push((planned.name, on.of, on.kind == COMPLETED));
            }
        }
        let mut steps: Vec<(&str, &str)> = Vec::new();
        for planned in &self.services {
            let name = planned.name;
            let mut by = waits.iter().filter(|(_, of, _)| *of == name);
            let members = self.services.iter().filter(|p| p.head == name);
            if let (Some((by, _, true)), None) = (by.next(), by.next())
                && planned.head == name
                && members.count() == 1
                && !OF_POD.iter().any(|key| planned.service.get(key).is_some())
                && *by != name
                // It would run once for each of the pods.
                && replicas(self.service(self.planned(by).head)).is_none()
            {
                steps.push((name, by));
            }
        }
        for planned in &mut self.services {
            let step = steps.iter().find(|(name, _)| *name == planned.name);
            // A step of a step stays a pod of its own.
            let by = step.filter(|(_, by)| !steps.iter().any(|(step, _)| step == by));
            planned.step_of = by.map(|(_, by)| *by);
        }
    }
}
