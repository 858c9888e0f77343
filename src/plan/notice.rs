//! What is worth telling people? Kubernetes events, in the kubelet's words (kubelet-behaviour §17). Counting repeated
//! ones is left to whoever stores them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::spec::{ContainerSpec, PodKey, PodSpec, PodUid};

use super::PodState;

/// A Kubernetes event in the making.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The pod's name.
    pub pod: PodKey,
    /// The pod's UID.
    pub uid: PodUid,
    /// `involvedObject.fieldPath`: `spec.containers{web}`, or `None` for the pod as a whole.
    pub field_path: Option<String>,
    /// `type`.
    pub kind: Kind,
    /// `reason`.
    pub reason: Cow<'static, str>,
    /// `message`.
    pub message: String,
    /// `metadata.annotations`.
    pub annotations: Annotations,
}

/// What an event says to programs, by name.
pub type Annotations = BTreeMap<&'static str, String>;

/// `type` of a Kubernetes event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// As it should be.
    Normal,
    /// Somebody may want to look.
    Warning,
}

impl Kind {
    /// The Kubernetes word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

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

    /// Those that follow carry `annotations`.
    pub(super) fn with(self, annotations: Annotations) -> Self {
        Self {
            annotations,
            ..self
        }
    }

    /// About the pod as a whole.
    pub(super) fn pod(
        &mut self,
        kind: Kind,
        reason: impl Into<Cow<'static, str>>,
        message: String,
    ) {
        self.push(None, kind, reason.into(), message);
    }

    /// About one container.
    pub(super) fn container(
        &mut self,
        name: &str,
        kind: Kind,
        reason: &'static str,
        message: String,
    ) {
        let among = |list: &[ContainerSpec]| list.iter().any(|c| c.name == name);
        let list = match () {
            () if among(&self.spec.init_containers) => "initContainers",
            () if among(&self.spec.ephemeral_containers) => "ephemeralContainers",
            () => "containers",
        };
        let path = format!("spec.{list}{{{name}}}");
        self.push(Some(path), kind, reason.into(), message);
    }

    fn push(
        &mut self,
        field_path: Option<String>,
        kind: Kind,
        reason: Cow<'static, str>,
        message: String,
    ) {
        self.out.push(Notice {
            pod: self.spec.key.clone(),
            uid: self.spec.uid.clone(),
            field_path,
            kind,
            reason,
            message,
            annotations: self.annotations.clone(),
        });
    }
}
