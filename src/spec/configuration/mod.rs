//! Configuration documents: ConfigMaps, Secrets and claims, which pods refer to, the volumes that claims are bound to, and
//! service accounts and namespaces, which are accepted because manifests written for a cluster have them. The rules and
//! messages are the API server's (`ValidateConfigMap`, `ValidateSecret`, `ValidatePersistentVolumeClaim`).

mod accepted;
pub(crate) mod claim;
mod config_map;
mod content;
mod keys;
mod persistent_volume;
mod secret;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::decode::decode;
use super::encrypted::Opened;
use super::error::{Path, Report};
use super::value::Value;
use super::{assemble, names};
use crate::types::InOrder;

pub use secret::Secret;

pub(crate) use keys::problem as key_problem;

/// Limit of a ConfigMap's or Secret's content in bytes, keys included.
pub(crate) const MAX_BYTES: usize = 1 << 20;

/// A kind of configuration document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    /// `ConfigMap`.
    ConfigMap,
    /// `Secret`.
    Secret,
    /// `ServiceAccount`.
    ServiceAccount,
    /// `Namespace`.
    Namespace,
    /// `PersistentVolumeClaim`.
    PersistentVolumeClaim,
    /// `PersistentVolume`.
    PersistentVolume,
}

impl ObjectKind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::ConfigMap,
        Self::Secret,
        Self::ServiceAccount,
        Self::Namespace,
        Self::PersistentVolumeClaim,
        Self::PersistentVolume,
    ];

    /// `kind` of a document.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::ServiceAccount => "ServiceAccount",
            Self::Namespace => "Namespace",
            Self::PersistentVolumeClaim => "PersistentVolumeClaim",
            Self::PersistentVolume => "PersistentVolume",
        }
    }

    /// The kind of that name.
    pub fn of(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == kind)
    }
}

/// Which document: its kind, namespace (empty for kinds without) and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectKey {
    /// The kind.
    pub kind: ObjectKind,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl ObjectKey {
    /// The key of a document in a namespace.
    pub fn new(kind: ObjectKind, namespace: &str, name: &str) -> Self {
        Self {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

impl ObjectKey {
    /// As kubectl writes it: `configmap default/web`, `namespace web`.
    pub fn short(&self) -> String {
        let kind = self.kind.as_str().to_lowercase();
        match self.namespace.is_empty() {
            true => format!("{kind} {}", self.name),
            false => format!("{kind} {}/{}", self.namespace, self.name),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ObjectKind::ConfigMap => "config map",
            ObjectKind::Secret => "secret",
            ObjectKind::ServiceAccount => "service account",
            ObjectKind::PersistentVolumeClaim => "claim",
            ObjectKind::Namespace => return write!(f, "namespace `{}`", self.name),
            ObjectKind::PersistentVolume => return write!(f, "volume `{}`", self.name),
        };
        write!(f, "{kind} `{}/{}`", self.namespace, self.name)
    }
}

/// A configuration document.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    /// `ConfigMap`.
    ConfigMap(core::ConfigMap),
    /// `Secret`, with `stringData` merged into `data`.
    Secret(Secret),
    /// `ServiceAccount`.
    ServiceAccount(core::ServiceAccount),
    /// `Namespace`.
    Namespace(core::Namespace),
    /// `PersistentVolumeClaim`.
    Claim(Box<core::PersistentVolumeClaim>),
    /// `PersistentVolume` of type `local` or `hostPath`.
    Volume(Box<core::PersistentVolume>),
}

impl Object {
    /// The kind.
    pub fn kind(&self) -> ObjectKind {
        match self {
            Self::ConfigMap(_) => ObjectKind::ConfigMap,
            Self::Secret(_) => ObjectKind::Secret,
            Self::ServiceAccount(_) => ObjectKind::ServiceAccount,
            Self::Namespace(_) => ObjectKind::Namespace,
            Self::Claim(_) => ObjectKind::PersistentVolumeClaim,
            Self::Volume(_) => ObjectKind::PersistentVolume,
        }
    }

    /// The metadata.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::ConfigMap(object) => &object.metadata,
            Self::Secret(object) => &object.0.metadata,
            Self::ServiceAccount(object) => &object.metadata,
            Self::Namespace(object) => &object.metadata,
            Self::Claim(object) => &object.metadata,
            Self::Volume(object) => &object.metadata,
        }
    }

    /// Kind, namespace and name.
    pub fn key(&self) -> ObjectKey {
        let metadata = self.metadata();
        ObjectKey {
            kind: self.kind(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }

    /// The content: keys and values. Nothing for kinds that have none.
    pub fn data(&self) -> Vec<(&str, &[u8])> {
        match self {
            Self::ConfigMap(map) => {
                let texts = map.data.iter().flatten();
                let texts = texts.map(|(key, text)| (key.as_str(), text.as_bytes()));
                let bytes = map.binary_data.iter().flatten();
                let bytes = bytes.map(|(key, bytes)| (key.as_str(), bytes.0.as_slice()));
                let mut all: Vec<_> = texts.chain(bytes).collect();
                all.order_by_key(|(key, _)| *key);
                all
            }
            Self::Secret(secret) => secret.data().collect(),
            _ => Vec::new(),
        }
    }

    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<&[u8]> {
        match self {
            Self::ConfigMap(map) => {
                let text = map.data.as_ref().and_then(|data| data.get(key));
                let bytes = || map.binary_data.as_ref().and_then(|data| data.get(key));
                text.map(String::as_bytes)
                    .or_else(|| bytes().map(|bytes| bytes.0.as_slice()))
            }
            Self::Secret(secret) => secret.value(key),
            _ => None,
        }
    }

    /// The content that can be environment variables: all of it but `binaryData`, which the kubelet never reads for
    /// variables (`makeEnvironmentVariables`).
    pub fn texts(&self) -> Vec<(&str, &[u8])> {
        match self {
            Self::ConfigMap(map) => {
                let texts = map.data.iter().flatten();
                let texts = texts.map(|(key, text)| (key.as_str(), text.as_bytes()));
                texts.collect()
            }
            _ => self.data(),
        }
    }

    /// The value of a key, if it can be an environment variable.
    pub fn text(&self, key: &str) -> Option<&[u8]> {
        match self {
            Self::ConfigMap(map) => {
                let text = map.data.as_ref().and_then(|data| data.get(key));
                text.map(String::as_bytes)
            }
            _ => self.value(key),
        }
    }

    /// A namespace that no document defines.
    pub fn namespace(name: &str) -> Self {
        Self::Namespace(accepted::active(name))
    }

    /// Whether its content cannot change.
    pub fn is_immutable(&self) -> bool {
        match self {
            Self::ConfigMap(map) => map.immutable == Some(true),
            Self::Secret(secret) => secret.0.immutable == Some(true),
            _ => false,
        }
    }

    /// The document as JSON, a secret's values included.
    pub fn manifest(&self) -> serde_json::Value {
        let manifest = match self {
            Self::ConfigMap(object) => serde_json::to_value(object),
            Self::Secret(object) => serde_json::to_value(&object.0),
            Self::ServiceAccount(object) => serde_json::to_value(object),
            Self::Namespace(object) => serde_json::to_value(object),
            Self::Claim(object) => serde_json::to_value(object),
            Self::Volume(object) => serde_json::to_value(object),
        };
        // Kubernetes types have string keys only, so this cannot fail.
        manifest.unwrap_or_default()
    }
}

impl Object {
    /// The document as clients see it: without a secret's values.
    pub fn shown(&self) -> serde_json::Value {
        match self {
            Self::Secret(object) => serde_json::to_value(object.shown()).unwrap_or_default(),
            _ => self.manifest(),
        }
    }
}

/// The configuration documents in force, or those of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Configuration {
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    /// Those of them that are claims of a StatefulSet's template. A claim with a document of its own is as that says: the pod
    /// uses what is there, as in Kubernetes.
    of_templates: BTreeSet<ObjectKey>,
}

impl Configuration {
    /// Adds a document; returns whether there was no other of its kind and name.
    pub fn insert(&mut self, object: Arc<Object>) -> bool {
        let key = object.key();
        let stood_in = self.of_templates.remove(&key);
        self.objects.insert(key, object).is_none() || stood_in
    }

    /// Adds a claim of a template; returns whether no other template has one of its name.
    pub fn insert_of_template(&mut self, claim: Arc<Object>) -> bool {
        let key = claim.key();
        if self.objects.contains_key(&key) {
            return !self.of_templates.contains(&key);
        }
        self.of_templates.insert(key.clone());
        self.objects.insert(key, claim);
        true
    }

    /// Adds the documents of another file.
    pub fn merge(&mut self, other: &Self) {
        for (key, object) in &other.objects {
            if other.of_templates.contains(key) {
                self.insert_of_template(Arc::clone(object));
            } else {
                self.insert(Arc::clone(object));
            }
        }
    }

    /// Whether it has a document with this key that is not only a claim of a template.
    pub fn writes(&self, key: &ObjectKey) -> bool {
        self.contains(key) && !self.of_templates.contains(key)
    }

    /// Whether both cannot be in force beside each other because of the document with this key.
    pub fn clashes(&self, other: &Self, key: &ObjectKey) -> bool {
        self.contains(key) && other.contains(key) && self.writes(key) == other.writes(key)
    }

    /// The document of this kind and name.
    pub fn get(&self, kind: ObjectKind, namespace: &str, name: &str) -> Option<&Arc<Object>> {
        self.objects.get(&ObjectKey::new(kind, namespace, name))
    }

    /// Whether there is such a document.
    pub fn contains(&self, key: &ObjectKey) -> bool {
        self.objects.contains_key(key)
    }

    /// All documents, by kind and name.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<Object>)> {
        self.objects.iter()
    }

    /// The number of documents.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The keys of documents that were added, removed or given another content.
    pub fn differences(&self, other: &Self) -> Vec<ObjectKey> {
        let same = |(key, object): &(&ObjectKey, &Arc<Object>)| {
            let found = other.objects.get(*key);
            found.is_some_and(|found| Arc::ptr_eq(found, object) || found == *object)
        };
        let changed = self.objects.iter().filter(|entry| !same(entry));
        let changed = changed.map(|(key, _)| key.clone());
        let removed = other
            .objects
            .keys()
            .filter(|key| !self.objects.contains_key(key));
        changed.chain(removed.cloned()).collect()
    }
}

impl<'c> Extend<&'c Arc<Object>> for Configuration {
    fn extend<T: IntoIterator<Item = &'c Arc<Object>>>(&mut self, objects: T) {
        for object in objects {
            self.insert(object.clone());
        }
    }
}

/// Decodes and checks a document of this kind.
pub(crate) fn object(
    kind: ObjectKind,
    value: &mut Value,
    opened: &Opened,
    path: &Path<'_>,
    report: &Report,
) -> Option<Object> {
    report.begin(path);
    let object = match kind {
        ObjectKind::ConfigMap => config_map::of(value, path, report)?,
        ObjectKind::Secret => Object::Secret(secret::of(value, opened, path, report)?),
        ObjectKind::ServiceAccount => {
            accepted::service_account(decode(value, path, report)?, path, report)
        }
        ObjectKind::Namespace => accepted::namespace(decode(value, path, report)?, path, report),
        ObjectKind::PersistentVolumeClaim => claim::of(decode(value, path, report)?, path, report),
        ObjectKind::PersistentVolume => {
            persistent_volume::of(decode(value, path, report)?, path, report)
        }
    };
    report.is_clean().then_some(object)
}

/// Checks a decoded claim.
pub(crate) fn claim_of(
    claim: core::PersistentVolumeClaim,
    path: &Path<'_>,
    report: &Report,
) -> Option<Object> {
    let claim = claim::of(claim, path, report);
    report.is_clean().then_some(claim)
}

/// Fills in the namespace, drops what an API server writes, and checks name and metadata.
fn metadata<T: Metadata<Ty = ObjectMeta>>(object: &mut T, path: &Path<'_>, report: &Report) {
    let metadata = object.metadata_mut();
    metadata.resource_version = None;
    metadata.self_link = None;
    metadata.generation = None;
    metadata.deletion_grace_period_seconds = None;
    let namespace = metadata.namespace.get_or_insert_default();
    if namespace.is_empty() {
        "default".clone_into(namespace);
    }
    let path = path.field("metadata");
    let at = path.field("name");
    match metadata.name.as_deref().unwrap_or_default() {
        "" => report.error(&at, names::missing(metadata)),
        name => {
            if let Some(problem) = names::dns_subdomain(name) {
                report.invalid(&at, name, problem);
            }
        }
    }
    assemble::shared_metadata(metadata, &path, report);
}
