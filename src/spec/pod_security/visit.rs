//! A pod as the checks look at it, and the sentences that they are made of.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EphemeralContainer, Lifecycle, Pod, PodSecurityContext, PodSpec,
    Probe, SecurityContext,
};

use super::Violation;

/// A pod and its containers: init containers, regular ones, ephemeral ones.
pub(super) struct View<'a> {
    pub(super) pod: &'a Pod,
    pub(super) spec: &'a PodSpec,
    pub(super) context: Option<&'a PodSecurityContext>,
    pub(super) containers: Vec<Each<'a>>,
}

/// A container of any kind.
pub(super) struct Each<'a> {
    pub(super) name: &'a str,
    pub(super) context: Option<&'a SecurityContext>,
    pub(super) ports: &'a [ContainerPort],
    pub(super) probes: [Option<&'a Probe>; 3],
    pub(super) lifecycle: Option<&'a Lifecycle>,
}

impl<'a> Each<'a> {
    fn of(container: &'a Container) -> Self {
        Self {
            name: &container.name,
            context: container.security_context.as_ref(),
            ports: container.ports.as_deref().unwrap_or_default(),
            probes: [
                container.liveness_probe.as_ref(),
                container.readiness_probe.as_ref(),
                container.startup_probe.as_ref(),
            ],
            lifecycle: container.lifecycle.as_ref(),
        }
    }

    fn of_ephemeral(container: &'a EphemeralContainer) -> Self {
        Self {
            name: &container.name,
            context: container.security_context.as_ref(),
            ports: container.ports.as_deref().unwrap_or_default(),
            probes: [
                container.liveness_probe.as_ref(),
                container.readiness_probe.as_ref(),
                container.startup_probe.as_ref(),
            ],
            lifecycle: container.lifecycle.as_ref(),
        }
    }
}

impl<'a> View<'a> {
    /// `None` if the pod has no spec.
    pub(super) fn of(pod: &'a Pod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let init = spec.init_containers.iter().flatten().map(Each::of);
        let regular = spec.containers.iter().map(Each::of);
        let ephemeral = spec.ephemeral_containers.iter().flatten();
        Some(Self {
            pod,
            spec,
            context: spec.security_context.as_ref(),
            containers: init
                .chain(regular)
                .chain(ephemeral.map(Each::of_ephemeral))
                .collect(),
        })
    }

    /// Whether the pod says that it is for Windows, where some fields do not exist.
    pub(super) fn is_windows(&self) -> bool {
        self.spec.os.as_ref().is_some_and(|os| os.name == "windows")
    }

    /// Whether root in the pod is no root on the node, which makes some checks needless.
    pub(super) fn has_own_users(&self) -> bool {
        self.spec.host_users == Some(false)
    }

    /// Returns the containers for which `bad` returns values, with the values of all of them.
    pub(super) fn offenders<T: Ord>(
        &self,
        bad: impl Fn(&Each<'a>) -> Vec<T>,
    ) -> (Vec<&'a str>, BTreeSet<T>) {
        let (mut names, mut values) = (Vec::new(), BTreeSet::new());
        for container in &self.containers {
            let found = bad(container);
            if !found.is_empty() {
                names.push(container.name);
                values.extend(found);
            }
        }
        (names, values)
    }

    /// Returns the names of the containers that are so.
    pub(super) fn named(&self, bad: impl Fn(&Each<'a>) -> bool) -> Vec<&'a str> {
        let all = self.containers.iter();
        all.filter(|each| bad(each)).map(|each| each.name).collect()
    }
}

/// Returns the violation if there is one.
pub(super) fn violation(
    reason: &'static str,
    found: bool,
    detail: impl FnOnce() -> String,
) -> Option<Violation> {
    found.then(|| Violation {
        reason,
        detail: detail(),
    })
}

/// `container "a"` or `containers "a", "b"`.
pub(super) fn containers(names: &[&str]) -> String {
    let word = plural(names.len(), "container", "containers");
    format!("{word} {}", quoted(names))
}

/// `pod and container "a"`: who sets something.
pub(super) fn setters(pod: bool, names: &[&str]) -> Vec<String> {
    let of_pod = pod.then(|| "pod".to_owned());
    let of_containers = (!names.is_empty()).then(|| containers(names));
    of_pod.into_iter().chain(of_containers).collect()
}

/// `"a", "b"`.
pub(super) fn quoted<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items
        .into_iter()
        .map(|item| format!("\"{}\"", item.as_ref()))
        .collect();
    items.join(", ")
}

/// The word for that many.
pub(super) fn plural(count: usize, one: &'static str, many: &'static str) -> &'static str {
    match count {
        1 => one,
        _ => many,
    }
}
