//! Notices: Kubernetes events about pods, in the kubelet's words (its `pkg/kubelet/events`), and about documents that
//! stand for pods (`workload/notice.rs`). The store of events counts repeated ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::spec::{ContainerSpec, PodKey, PodSpec, PodUid, Reason, WorkloadKind};

use super::PodState;

/// A Kubernetes event without time and count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The kind of the document that it is about; `None`: a pod.
    pub workload: Option<WorkloadKind>,
    /// The name of the pod or document.
    pub key: PodKey,
    /// Its UID.
    pub uid: PodUid,
    /// `involvedObject.fieldPath`: `spec.containers{web}`, or `None` for the pod as a whole.
    pub field_path: Option<String>,
    /// `reason`, from which `type` follows.
    pub reason: Reason,
    /// `message`.
    pub message: String,
    /// `metadata.annotations`.
    pub annotations: Annotations,
}

/// Annotations of an event, by name.
pub type Annotations = BTreeMap<&'static str, String>;

/// Collects the notices of one pod.
#[derive(Debug)]
pub(super) struct Notices<'a> {
    out: &'a mut Vec<Notice>,
    spec: Arc<PodSpec>,
    annotations: Annotations,
}

impl<'a> Notices<'a> {
    pub(super) fn new(out: &'a mut Vec<Notice>, pod: &PodState) -> Self {
        Self {
            out,
            spec: Arc::clone(&pod.spec),
            annotations: Annotations::new(),
        }
    }

    /// Sets the annotations of the notices that follow.
    pub(super) fn with(self, annotations: Annotations) -> Self {
        Self {
            annotations,
            ..self
        }
    }

    /// Adds a notice about the pod as a whole.
    pub(super) fn pod(&mut self, reason: Reason, message: String) {
        self.push(None, reason, message);
    }

    /// Adds a notice about one container.
    pub(super) fn container(&mut self, name: &str, reason: Reason, message: String) {
        let among = |list: &[ContainerSpec]| list.iter().any(|c| c.name == name);
        let list = match () {
            () if among(&self.spec.init_containers) => "initContainers",
            () if among(&self.spec.ephemeral_containers) => "ephemeralContainers",
            () => "containers",
        };
        let path = format!("spec.{list}{{{name}}}");
        self.push(Some(path), reason, message);
    }

    fn push(&mut self, field_path: Option<String>, reason: Reason, message: String) {
        self.out.push(Notice {
            workload: None,
            key: self.spec.key.clone(),
            uid: self.spec.uid.clone(),
            field_path,
            reason,
            message,
            annotations: self.annotations.clone(),
        });
    }
}
