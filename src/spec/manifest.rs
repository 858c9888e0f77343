//! A pod's manifest, kept small: Kubernetes' types take eight kilobytes of memory for a pod of one container, most of
//! them for fields that are not set. Its text takes a few hundred bytes, and is read again where it is needed.

use std::fmt;

use k8s_openapi::Resource as _;
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::value::RawValue;

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
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Written<'m> {
            api_version: &'static str,
            kind: &'static str,
            metadata: &'m ObjectMeta,
            spec: &'m RawValue,
            #[serde(skip_serializing_if = "Option::is_none")]
            status: Option<&'m PodStatus>,
        }
        let written = Written {
            api_version: Pod::API_VERSION,
            kind: Pod::KIND,
            metadata: &self.metadata,
            spec: serde_json::from_str(&self.spec).expect("it is JSON"),
            status: self.status.as_deref(),
        };
        serde_json::to_string(&written).expect("a pod is plain data")
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

impl fmt::Debug for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pod().fmt(f)
    }
}
