//! A pod's manifest, kept small: Kubernetes' types take ten kilobytes of memory for a pod of one container, most of
//! them for fields that are not set. Its text, packed, takes a few hundred bytes, and is read again where it is needed.

use std::fmt;

use k8s_openapi::Resource as _;
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::value::RawValue;

use super::decode;
use crate::types::PackedText;

/// A valid pod's manifest after defaulting.
#[derive(Clone, PartialEq)]
pub struct Manifest {
    /// `metadata` in JSON.
    metadata: PackedText,
    /// `metadata.labels`, ordered by name: `app=web,tier=front`.
    labels: Box<str>,
    /// `metadata.generation`.
    generation: Option<i64>,
    /// `status`: nothing but the conditions that the manifest sets.
    pub status: Option<Box<PodStatus>>,
    /// `spec` in JSON.
    spec: PackedText,
}

impl Manifest {
    /// Returns `metadata`.
    pub fn metadata(&self) -> ObjectMeta {
        decode::again(&self.metadata.text()).expect("it was written from one")
    }

    /// Changes `metadata`.
    pub fn change_metadata(&mut self, change: impl FnOnce(&mut ObjectMeta)) {
        let mut metadata = self.metadata();
        change(&mut metadata);
        self.set_metadata(metadata);
    }

    /// Names and values of `metadata.labels`, ordered by name. Neither can have a comma or `=`.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        let labels = self.labels.split(',');
        labels.filter_map(|label| label.split_once('='))
    }

    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        let mut labels = self.labels();
        labels.find_map(|(own, value)| (own == name).then_some(value))
    }

    /// The value of an annotation. `name` has nothing that JSON escapes.
    pub fn annotation(&self, name: &str) -> Option<String> {
        // Most pods have none of those that coracle knows.
        let may_have = self.metadata.text().contains(name);
        may_have.then(|| self.metadata().annotations?.remove(name))?
    }

    /// `metadata.generation`.
    pub fn generation(&self) -> Option<i64> {
        self.generation
    }

    fn set_metadata(&mut self, metadata: ObjectMeta) {
        self.metadata = text(&metadata);
        self.generation = metadata.generation;
        let labels = metadata.labels.iter().flatten();
        let labels: Vec<String> = labels
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        self.labels = labels.join(",").into();
    }

    /// Returns `spec`.
    pub fn spec(&self) -> PodSpec {
        decode::again(&self.spec.text()).expect("it was written from one")
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
            metadata: Box<RawValue>,
            spec: Box<RawValue>,
            #[serde(skip_serializing_if = "Option::is_none")]
            status: Option<&'m PodStatus>,
        }
        let raw = |text: &PackedText| {
            let text: Box<RawValue> = serde_json::from_str(&text.text()).expect("it is JSON");
            text
        };
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
            metadata: text(&pod.metadata),
            labels: Box::default(),
            generation: None,
            status: pod.status.map(Box::new),
            spec: text(&pod.spec.unwrap_or_default()),
        };
        manifest.set_metadata(pod.metadata);
        manifest
    }
}

fn text(part: &impl Serialize) -> PackedText {
    PackedText::of(&serde_json::to_string(part).expect("it is plain data"))
}

impl fmt::Debug for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pod().fmt(f)
    }
}
