//! In-place resize of cpu and memory: `resizePolicy`, and pods whose resources differ from their manifest's.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, PodSpec as Written};

use super::env::same_but_resources;
use super::error::{Path, Report};
use super::pod::{ContainerSpec, PodSpec};

/// Resources whose change restarts a container; `resizePolicy: RestartContainer`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResizeRestarts {
    /// cpu.
    pub cpu: bool,
    /// Memory.
    pub memory: bool,
}

/// Validates and converts `resizePolicy`. `once` containers end before others start.
pub(crate) fn policy(
    pod: &Written,
    container: &Container,
    once: bool,
    path: &Path<'_>,
    report: &Report,
) -> ResizeRestarts {
    let mut restarts = ResizeRestarts::default();
    let list = path.field("resizePolicy");
    let mut seen = BTreeSet::new();
    for (index, policy) in container.resize_policy.iter().flatten().enumerate() {
        let at = list.index(index);
        if !seen.insert(&policy.resource_name) {
            report.duplicate(&at.field("resourceName"), &policy.resource_name);
        }
        let restart = match policy.restart_policy.as_str() {
            "NotRequired" => false,
            "RestartContainer" => true,
            other => {
                let words = ["NotRequired", "RestartContainer"];
                report.unsupported(&at.field("restartPolicy"), other, &words);
                continue;
            }
        };
        if restart && pod.restart_policy.as_deref() == Some("Never") {
            let detail = "must be 'NotRequired' when `restartPolicy` is 'Never'";
            report.invalid(&at.field("restartPolicy"), &policy.restart_policy, detail);
        } else if restart && once {
            let detail = "must be 'NotRequired' for init containers without restartPolicy=Always";
            report.invalid(&at.field("restartPolicy"), &policy.restart_policy, detail);
        }
        match policy.resource_name.as_str() {
            "cpu" => restarts.cpu = restart,
            "memory" => restarts.memory = restart,
            other => {
                report.unsupported(&at.field("resourceName"), other, &["cpu", "memory"]);
            }
        }
    }
    restarts
}

impl PodSpec {
    /// Whether both pods have the same cpu and memory figures everywhere.
    pub fn has_resources_of(&self, other: &PodSpec) -> bool {
        let pairs = self.all_containers().zip(other.all_containers());
        let mut pairs = pairs.map(|(ours, theirs)| ours.resources == theirs.resources);
        self.resources == other.resources && pairs.all(|same| same)
    }

    /// Returns this pod with the cpu and memory of another version of it.
    pub fn with_resources_of(&self, other: &PodSpec) -> PodSpec {
        let mut pod = self.clone();
        pod.resources = other.resources;
        let take = |ours: &mut [ContainerSpec], theirs: &[ContainerSpec]| {
            for (ours, theirs) in ours.iter_mut().zip(theirs) {
                ours.resources = theirs.resources;
                same_but_resources(&mut ours.env, &theirs.env);
            }
        };
        take(&mut pod.init_containers, &other.init_containers);
        take(&mut pod.containers, &other.containers);
        let theirs = other.manifest.spec();
        Arc::make_mut(&mut pod.manifest).change_spec(|ours| {
            ours.resources = theirs.resources;
            let list = ours.init_containers.iter_mut().flatten();
            let ours = list.chain(&mut ours.containers);
            let list = theirs.init_containers.into_iter().flatten();
            for (ours, theirs) in ours.zip(list.chain(theirs.containers)) {
                ours.resources = theirs.resources;
            }
        });
        pod
    }
}
