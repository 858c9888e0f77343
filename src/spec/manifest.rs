//! A pod's manifest, kept small: Kubernetes' types take ten kilobytes of memory for a pod of one container, most of
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
    /// `metadata` in JSON.
    metadata: Box<str>,
    /// `metadata.labels`, ordered by name.
    labels: Box<[Label]>,
    /// `metadata.generation`.
    generation: Option<i64>,
    /// `status`: nothing but the conditions that the manifest sets.
    pub status: Option<Box<PodStatus>>,
    /// `spec` in JSON.
    spec: Box<str>,
}

/// Name and value.
pub type Label = (Box<str>, Box<str>);

impl Manifest {
    /// Returns `metadata`.
    pub fn metadata(&self) -> ObjectMeta {
        decode::again(&self.metadata).expect("it was written from one")
    }

    /// Changes `metadata`.
    pub fn change_metadata(&mut self, change: impl FnOnce(&mut ObjectMeta)) {
        let mut metadata = self.metadata();
        change(&mut metadata);
        self.set_metadata(metadata);
    }

    /// `metadata.labels`, ordered by name.
    pub fn labels(&self) -> &[Label] {
        &self.labels
    }

    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        let at = self.labels.binary_search_by(|(own, _)| (**own).cmp(name));
        Some(&self.labels[at.ok()?].1)
    }

    /// The value of an annotation. `name` has nothing that JSON escapes.
    pub fn annotation(&self, name: &str) -> Option<String> {
        // Most pods have none of those that coracle knows.
        let may_have = self.metadata.contains(name);
        may_have.then(|| self.metadata().annotations?.remove(name))?
    }

    /// `metadata.generation`.
    pub fn generation(&self) -> Option<i64> {
        self.generation
    }

    fn set_metadata(&mut self, metadata: ObjectMeta) {
        self.metadata = text(&metadata);
        self.generation = metadata.generation;
        let labels = metadata.labels.into_iter().flatten();
        self.labels = labels
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
    }

    /// Returns `spec`.
    pub fn spec(&self) -> PodSpec {
        decode::again(&self.spec).expect("it was written from one")
    }

    /// Returns all of it.
    pub fn pod(&self) -> Pod {
        Pod {
            metadata: self.metadata(),
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
            metadata: &'m RawValue,
            spec: &'m RawValue,
            #[serde(skip_serializing_if = "Option::is_none")]
            status: Option<&'m PodStatus>,
        }
        let raw = |text| serde_json::from_str(text).expect("it is JSON");
        let written = Written {
            api_version: Pod::API_VERSION,
            kind: Pod::KIND,
            metadata: raw(&self.metadata),
            spec: raw(&self.spec),
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
        let mut manifest = Self {
            metadata: Box::default(),
            labels: Box::default(),
            generation: None,
            status: pod.status.map(Box::new),
            spec: text(&pod.spec.unwrap_or_default()),
        };
        manifest.set_metadata(pod.metadata);
        manifest
    }
}

fn text(part: &impl Serialize) -> Box<str> {
    let text = serde_json::to_string(part).expect("it is plain data");
    text.into_boxed_str()
}

impl fmt::Debug for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pod().fmt(f)
    }
}
