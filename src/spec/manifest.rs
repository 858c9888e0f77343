//! A pod's manifest, kept small: Kubernetes' types take eight kilobytes of memory for a pod of one container, most of
//! them for fields that are not set. Its text takes some hundred bytes, and is read again where it is needed.

use std::fmt;

use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Serialize, Serializer};

use super::decode;

/// A valid pod's manifest after defaulting.
#[derive(Clone, PartialEq)]
pub struct Manifest {
    /// `metadata`.
    pub metadata: ObjectMeta,
    /// `status`: nothing but the conditions that the manifest sets.
    pub status: Option<Box<PodStatus>>,
    /// `spec` in JSON.
    spec: Box<str>,
}

impl Manifest {
    /// Returns `spec`.
    pub fn spec(&self) -> PodSpec {
        decode::again(&self.spec).expect("it was written from one")
    }

    /// Returns all of it.
    pub fn pod(&self) -> Pod {
        Pod {
            metadata: self.metadata.clone(),
            spec: Some(self.spec()),
            status: self.status.as_deref().cloned(),
        }
    }

    /// Changes `spec`.
    pub fn change_spec(&mut self, change: impl FnOnce(&mut PodSpec)) {
        let mut spec = self.spec();
        change(&mut spec);
        self.spec = text(&spec);
    }

    /// Returns all of it in JSON.
    pub fn json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a pod is plain data")
    }
}

impl Default for Manifest {
    fn default() -> Self {
        Pod::default().into()
    }
}

impl From<Pod> for Manifest {
    fn from(pod: Pod) -> Self {
        Self {
            metadata: pod.metadata,
            status: pod.status.map(Box::new),
            spec: text(&pod.spec.unwrap_or_default()),
        }
    }
}

fn text(spec: &PodSpec) -> Box<str> {
    let text = serde_json::to_string(spec).expect("a spec is plain data");
    text.into_boxed_str()
}

impl Serialize for Manifest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.pod().serialize(serializer)
    }
}

impl fmt::Debug for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pod().fmt(f)
    }
}
