//! UIDs of pods whose manifests give none. The first pod of a manifest gets a hash of everything that cannot change
//! without a new pod; each later one gets a hash of that and of the previous UID (`coracle help differences`).
//!
//! Formatting, explicit defaults and fields that can be edited in a running pod do not change it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::configuration::Configuration;
use super::default;
use super::fixed::{Parts, is_absent};
use super::pod::{PodSpec, PodUid};
use crate::types::InOrder;

/// With `true`, a change of what the pod refers to replaces the pod.
pub(super) const RESTART_ON_CHANGE: &str = "coracle.dev/restart-on-change";
/// The digest of what such a pod refers to; the node writes it.
pub(super) const CONFIGURATION: &str = "coracle.dev/configuration";

/// Whether it has the form of one by [`of`] or [`next`]; a manifest may give such a UID, too.
pub fn is_derived(uid: &PodUid) -> bool {
    let uid = uid.as_str();
    uid.len() == 32 && uid.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The UID of a pod of this template that replaces the pod `former` with the same name.
pub fn next(template: &PodUid, former: &PodUid) -> PodUid {
    let text = format!("{template}\0{former}");
    PodUid::from(format!("{:032x}", fnv1a(text.as_bytes())).as_str())
}

/// The UID of a defaulted pod: FNV-1a, 128 bits, as 32 hex digits.
pub(crate) fn of(pod: &Pod) -> String {
    let mut text = String::new();
    for part in [&pod.metadata.namespace, &pod.metadata.name] {
        text.push_str(part.as_deref().unwrap_or_default());
        // A zero byte cannot occur in a name, so different parts never give the same text.
        text.push('\0');
    }
    canonical(&Parts::of(pod).fixed, &mut text);
    format!("{:032x}", fnv1a(text.as_bytes()))
}

/// The hash of a text, as a UID.
pub(super) fn hash(text: &str) -> PodUid {
    PodUid::from(format!("{:032x}", fnv1a(text.as_bytes())).as_str())
}

/// The UID of an object that is no pod: a hash of kind, namespace and name, so that it is the same after every restart.
pub fn of_name(kind: &str, namespace: &str, name: &str) -> PodUid {
    hash(&format!("{kind}\0{namespace}\0{name}"))
}

/// The UID that an object is shown with: that of its manifest, else [`of_name`].
pub fn shown(kind: &str, metadata: &ObjectMeta) -> String {
    let given = metadata.uid.as_ref().filter(|uid| !uid.is_empty());
    given.cloned().unwrap_or_else(|| {
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        of_name(kind, namespace, name).to_string()
    })
}

/// A short hash of a defaulted template, for names of pods: letters and digits that make no words (the API server's
/// `SafeEncodeString`).
pub(super) fn short(pod: &Pod) -> String {
    const SAFE: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    const LENGTH: usize = 10;
    let parts = Parts::of(pod);
    let mut text = String::new();
    canonical(&parts.fixed, &mut text);
    canonical(&parts.changeable, &mut text);
    let mut rest = fnv1a(text.as_bytes());
    let mut next = || {
        let digit = usize::try_from(rest % 27).unwrap_or(0);
        rest /= 27;
        char::from(SAFE[digit])
    };
    (0..LENGTH).map(|_| next()).collect()
}

/// JSON with sorted keys and no spaces; sorted here, because serde_json keeps insertion order if any crate asks it to.
fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().filter(|(k, v)| !is_absent(k, v)).collect();
            fields.order_by_key(|(key, _)| key.as_str());
            text.push('{');
            for (key, value) in fields {
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                canonical(value, text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for item in items {
                canonical(item, text);
                text.push(',');
            }
            text.push(']');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

/// SHA-256 of what the pod refers to, shortened. What is missing counts, too.
fn digest(pod: &PodSpec, configuration: &Configuration) -> String {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for key in pod.references() {
        add(key.short().as_bytes());
        let found = configuration.get(key.kind, &key.namespace, &key.name);
        let data = found.map(|object| object.data());
        add(&[u8::from(data.is_some())]);
        for (name, value) in data.into_iter().flatten() {
            add(name.as_bytes());
            add(value);
        }
    }
    let bytes = hash.finalize();
    bytes[..16].iter().map(|b| format!("{b:02x}")).collect()
}

fn fnv1a(bytes: &[u8]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(OFFSET, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(PRIME)
    })
}

/// The digest of the configuration that a pod was made with, if it restarts on changes.
pub(super) fn configuration(metadata: &ObjectMeta) -> Option<&str> {
    let found = metadata.annotations.as_ref()?.get(CONFIGURATION)?;
    Some(found.as_str())
}

impl PodSpec {
    /// Whether a change of a ConfigMap or Secret that it refers to replaces the pod.
    pub fn restarts_on_change(&self) -> bool {
        let value = self.manifest.annotation(RESTART_ON_CHANGE);
        value.is_some_and(|value| value == "true")
    }

    /// Returns this pod as it is with this configuration: if it restarts on changes, another content makes another pod.
    /// `None` if it is so already.
    pub fn with_configuration(&self, configuration: &Configuration) -> Option<Self> {
        let digest = match self.restarts_on_change() {
            true => Some(digest(self, configuration)),
            false => None,
        };
        if self.manifest.annotation(CONFIGURATION) == digest {
            return None;
        }
        let mut pod = self.clone();
        let manifest = Arc::make_mut(&mut pod.manifest);
        manifest.change_metadata(|metadata| {
            let annotations = metadata.annotations.get_or_insert_default();
            match digest {
                Some(digest) => annotations.insert(CONFIGURATION.to_owned(), digest),
                None => annotations.remove(CONFIGURATION),
            };
        });
        let template = PodUid::from(of(&manifest.pod()).as_str());
        if pod.uid == pod.template {
            pod.uid = template.clone();
        }
        pod.template = template;
        manifest.change_metadata(|metadata| {
            default::identity(metadata, &pod.uid, &pod.template);
        });
        Some(pod)
    }

    /// Returns this pod with another UID.
    pub fn with_uid(&self, uid: &PodUid) -> Self {
        let mut pod = self.clone();
        pod.uid = uid.clone();
        let manifest = Arc::make_mut(&mut pod.manifest);
        manifest.change_metadata(|metadata| metadata.uid = Some(uid.to_string()));
        pod
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_hash_is_fnv_1a_with_128_bits() {
        for (text, hash) in [
            ("", "6c62272e07bb014262b821756295c58d"),
            ("a", "d228cb696f1a8caf78912b704e4a8964"),
            ("foobar", "343e1662793c64bf6f0d3597ba446f18"),
        ] {
            assert_eq!(format!("{:032x}", super::fnv1a(text.as_bytes())), hash);
        }
    }
}
