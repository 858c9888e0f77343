//! Conflicts between two manifest files: both define the same object, or claim something that only one object can
//! have.

use std::path::Path;

use k8s_openapi::api::scheduling::v1::PriorityClass;

use super::configuration::Configuration;
use super::convert::Documents;
use super::pod::PodSpec;
use super::priority::is_default;
use super::service::{ServiceAddress, ServiceDocument, ServicePort};
use super::workload::Workload;

/// What a manifest file defines.
pub trait Defines {
    /// Its pods, those of its workloads included.
    fn pods(&self) -> impl Iterator<Item = &PodSpec>;
    /// Its services.
    fn services(&self) -> &[ServiceDocument];
    /// Its priority classes.
    fn classes(&self) -> &[PriorityClass];
    /// Its ConfigMaps, Secrets, claims and the like.
    fn configuration(&self) -> &Configuration;
    /// Its documents that stand for pods.
    fn workloads(&self) -> impl Iterator<Item = &Workload>;
}

impl Defines for Documents {
    fn pods(&self) -> impl Iterator<Item = &PodSpec> {
        self.pods.iter()
    }

    fn services(&self) -> &[ServiceDocument] {
        &self.services
    }

    fn classes(&self) -> &[PriorityClass] {
        &self.priority_classes
    }

    fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    fn workloads(&self) -> impl Iterator<Item = &Workload> {
        self.workloads.iter()
    }
}

/// Why `candidate` may not take effect beside the `others`, naming both files each time; empty if it may.
pub fn conflicts<D: Defines>(path: &Path, candidate: &D, others: &[(&Path, &D)]) -> Vec<String> {
    let quoted = |other: &Path| format!("`{}`", name(other));
    conflicts_with(path, candidate, others, quoted)
}

/// The same, in the `shown` words for other files.
pub fn conflicts_with<D: Defines>(
    path: &Path,
    candidate: &D,
    others: &[(&Path, &D)],
    shown: impl Fn(&Path) -> String,
) -> Vec<String> {
    let mut problems = Vec::new();
    let mut say = |what: String, other: &Path| {
        problems.push(format!(
            "{}: {what} is already defined by {}",
            name(path),
            shown(other)
        ));
    };
    for (index, pod) in candidate.pods().enumerate() {
        let earlier = candidate.pods().take(index).map(|other| (path, other));
        let elsewhere = others
            .iter()
            .flat_map(|(path, loaded)| loaded.pods().map(|other| (*path, other)));
        for (other_path, other) in elsewhere.chain(earlier) {
            if let Some(what) = same_pod(pod, other) {
                say(what, other_path);
            }
        }
    }
    for (index, service) in candidate.services().iter().enumerate() {
        let earlier = candidate.services()[..index].iter();
        let earlier = earlier.map(|other| (path, other));
        let elsewhere = others
            .iter()
            .flat_map(|(path, loaded)| loaded.services().iter().map(|other| (*path, other)));
        for (other_path, other) in elsewhere.chain(earlier) {
            if let Some(what) = same_service(service, other) {
                say(what, other_path);
            }
        }
    }
    for (key, _) in candidate.configuration().iter() {
        for (path, loaded) in others {
            if candidate
                .configuration()
                .clashes(loaded.configuration(), key)
            {
                say(key.to_string(), path);
            }
        }
    }
    for workload in candidate.workloads() {
        for (path, loaded) in others {
            if loaded.workloads().any(|other| other.key == workload.key) {
                say(workload.key.to_string(), path);
            }
        }
    }
    for class in candidate.classes() {
        let name = &class.metadata.name;
        for (path, loaded) in others {
            for other in loaded.classes() {
                let taken = other.metadata.name.as_deref().unwrap_or_default();
                if other.metadata.name == *name {
                    say(format!("priority class `{taken}`"), path);
                } else if is_default(class) && is_default(other) {
                    say(format!("the default priority class (`{taken}`)"), path);
                }
            }
        }
    }
    problems
}

/// The name of a file in messages.
pub(crate) fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn same_pod(pod: &PodSpec, other: &PodSpec) -> Option<String> {
    if other.key == pod.key {
        Some(format!("pod `{}`", pod.key))
    } else if other.uid == pod.uid {
        Some(format!("UID `{}`", pod.uid))
    } else {
        None
    }
}

/// Ports that were chosen rather than written give way by themselves.
fn same_service(service: &ServiceDocument, other: &ServiceDocument) -> Option<String> {
    let (one, two) = (&service.spec, &other.spec);
    if one.key == two.key {
        return Some(format!("service `{}`", one.key));
    }
    for port in &one.ports {
        let taken = |p: &&ServicePort| p.node_port == port.node_port && p.protocol == port.protocol;
        if let Some(number) = port.node_port
            && two.ports.iter().any(|p| taken(&p))
        {
            return Some(format!(
                "node port {number} of service `{}` (also of service `{}`)",
                one.key, two.key
            ));
        }
    }
    match (&one.address, &two.address) {
        (ServiceAddress::Given(ours), ServiceAddress::Given(theirs)) => {
            let both = ours.iter().find(|ip| theirs.contains(ip))?;
            Some(format!(
                "cluster IP {both} of service `{}` (also of service `{}`)",
                one.key, two.key
            ))
        }
        (
            ServiceAddress::Any
            | ServiceAddress::Given(_)
            | ServiceAddress::Headless
            | ServiceAddress::External(_),
            _,
        ) => None,
    }
}
