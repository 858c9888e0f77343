//! Which PersistentVolume a claim is bound to, by Kubernetes' rules for claims on one node (Kubernetes docs: Persistent
//! Volumes, Binding): by name, or the smallest that fits by class, access modes, labels and size.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::configuration::{Configuration, Object, ObjectKind};
use crate::types::InOrder;
use crate::types::quantity::Quantity;

/// What a claim gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// A directory of its own below the state root.
    Directory,
    /// The PersistentVolume of this name.
    Volume(String),
}

/// Chooses for a claim that is not bound yet. `taken` are the volumes that other claims have.
///
/// # Errors
///
/// A sentence that says why nothing fits.
pub fn choose(
    claim: &PersistentVolumeClaim,
    configuration: &Configuration,
    taken: &BTreeSet<String>,
) -> Result<Choice, String> {
    let none = Default::default();
    let spec = claim.spec.as_ref().unwrap_or(&none);
    let class = spec.storage_class_name.as_deref();
    let all = configuration
        .iter()
        .filter_map(|(_, object)| match &**object {
            Object::Volume(volume) => Some(&**volume),
            _ => None,
        });
    if let Some(wanted) = spec.volume_name.as_deref().filter(|name| !name.is_empty()) {
        let found = configuration.get(ObjectKind::PersistentVolume, "", wanted);
        let Some(Object::Volume(volume)) = found.map(|object| &**object) else {
            return Err(format!("persistentvolume \"{wanted}\" not found"));
        };
        return match misfit(claim, volume, taken) {
            None => Ok(Choice::Volume(wanted.to_owned())),
            Some(why) => Err(format!("persistentvolume \"{wanted}\" does not fit: {why}")),
        };
    }
    let mut fitting: Vec<&PersistentVolume> = all
        .filter(|volume| misfit(claim, volume, taken).is_none())
        .collect();
    // One that is reserved for this claim first, then the smallest.
    fitting.order_by_key(|volume| {
        let reserved = reserved_for(volume).is_some();
        (!reserved, capacity(volume), name(volume).to_owned())
    });
    match fitting.first() {
        Some(volume) => Ok(Choice::Volume(name(volume).to_owned())),
        None if class == Some("") => Err(
            "no PersistentVolume fits by class \"\", access modes, labels and size; without `storageClassName` the \
             claim gets a directory of its own"
                .to_owned(),
        ),
        None if spec.selector.is_some() => {
            Err("no PersistentVolume fits by class, access modes, labels and size".to_owned())
        }
        None => Ok(Choice::Directory),
    }
}

/// Why the claim cannot have this volume.
fn misfit(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    taken: &BTreeSet<String>,
) -> Option<&'static str> {
    let (claim_spec, spec) = (claim.spec.as_ref()?, volume.spec.as_ref()?);
    if taken.contains(name(volume)) {
        return Some("it is bound to another claim");
    }
    let own = (
        claim.metadata.namespace.as_deref().unwrap_or_default(),
        claim.metadata.name.as_deref().unwrap_or_default(),
    );
    if reserved_for(volume).is_some_and(|reserved| reserved != own) {
        return Some("it is reserved for another claim");
    }
    let class = |class: &Option<String>| class.clone().unwrap_or_default();
    if class(&claim_spec.storage_class_name) != class(&spec.storage_class_name) {
        return Some("it has another storage class");
    }
    let offered = spec.access_modes.as_deref().unwrap_or_default();
    let mut wanted = claim_spec.access_modes.iter().flatten();
    if !wanted.all(|mode| offered.contains(mode)) {
        return Some("it has other access modes");
    }
    if let Some(selector) = &claim_spec.selector
        && !selects(selector, volume.metadata.labels.as_ref())
    {
        return Some("its labels are not selected");
    }
    (capacity(volume) < requested(claim)).then_some("it is too small")
}

/// Whether the selector selects these labels. An operator that does not exist selects none.
fn selects(selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>) -> bool {
    let value = |key: &str| labels.and_then(|labels| labels.get(key));
    let mut pairs = selector.match_labels.iter().flatten();
    let mut rules = selector.match_expressions.iter().flatten();
    pairs.all(|(key, wanted)| value(key) == Some(wanted))
        && rules.all(|rule| {
            let listed = |found: &String| rule.values.iter().flatten().any(|v| v == found);
            match (rule.operator.as_str(), value(&rule.key)) {
                ("In", found) => found.is_some_and(listed),
                ("NotIn", found) => !found.is_some_and(listed),
                ("Exists", found) => found.is_some(),
                ("DoesNotExist", found) => found.is_none(),
                _ => false,
            }
        })
}

/// The claim that a volume is reserved for: `spec.claimRef`.
fn reserved_for(volume: &PersistentVolume) -> Option<(&str, &str)> {
    let reference = volume.spec.as_ref()?.claim_ref.as_ref()?;
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    Some((namespace, reference.name.as_deref()?))
}

/// How much a claim asks for, in bytes.
pub fn requested(claim: &PersistentVolumeClaim) -> i128 {
    bytes(storage(claim))
}

/// How much a claim asks for, as it is written.
pub fn storage(claim: &PersistentVolumeClaim) -> Option<&Written> {
    let resources = claim.spec.as_ref()?.resources.as_ref()?;
    resources.requests.as_ref()?.get("storage")
}

/// A volume's size in bytes.
fn capacity(volume: &PersistentVolume) -> i128 {
    let spec = volume.spec.as_ref();
    let capacity = spec.and_then(|spec| spec.capacity.as_ref());
    bytes(capacity.and_then(|all| all.get("storage")))
}

fn bytes(written: Option<&Written>) -> i128 {
    let parsed = written.and_then(|written| Quantity::parse(&written.0).ok());
    parsed.map_or(0, |quantity| quantity.ceil())
}

fn name(volume: &PersistentVolume) -> &str {
    volume.metadata.name.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::convert::{ConvertContext, documents};

    fn choice(claim: &str, volumes: &[&str], taken: &[&str]) -> Result<Choice, String> {
        let mut text = format!(
            "{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: c}}, spec: {{accessModes: [ReadWriteOnce], \
             resources: {{requests: {{storage: 5Gi}}}}{claim}}}}}\n"
        );
        for volume in volumes {
            let (name, more) = volume.split_once(' ').unwrap_or((volume, "storage: 10Gi}"));
            text += &format!(
                "---\n{{apiVersion: v1, kind: PersistentVolume, metadata: {{name: {name}, labels: {{l: {name}}}}}, spec: \
                 {{accessModes: [ReadWriteOnce], local: {{path: /data}}, capacity: {{{more}}}}}\n"
            );
        }
        let found = documents(text.as_bytes(), "f", &ConvertContext::of("n"));
        let configuration = found.expect("valid").configuration;
        let claim = configuration.get(ObjectKind::PersistentVolumeClaim, "default", "c");
        let Object::Claim(claim) = &**claim.expect("the claim") else {
            panic!("a claim");
        };
        let taken = taken.iter().map(|name| (*name).to_owned()).collect();
        choose(claim, &configuration, &taken)
    }

    #[test]
    fn a_claim_gets_the_volume_that_fits_best() {
        let volume = |name: &str| Ok(Choice::Volume(name.to_owned()));
        let big = "big storage: 20Gi}";
        let small = "small storage: 1Gi}";
        let manual = "manual storage: 10Gi}, storageClassName: manual";
        let reserved = "reserved storage: 50Gi}, claimRef: {namespace: default, name: c}";
        let others = "others storage: 5Gi}, claimRef: {namespace: default, name: d}";
        let read_only = "ro storage: 5Gi}, storageClassName: x";
        for (sentence, claim, volumes, taken, expected) in [
            (
                "nothing else: a directory",
                "",
                &[][..],
                &[][..],
                Ok(Choice::Directory),
            ),
            (
                "a class that no volume has",
                ", storageClassName: fast",
                &[big, manual],
                &[],
                Ok(Choice::Directory),
            ),
            (
                "the smallest that is large enough",
                "",
                &[big, "fits", small],
                &[],
                volume("fits"),
            ),
            (
                "not one that is taken",
                "",
                &[big, "fits", small],
                &["fits"],
                volume("big"),
            ),
            (
                "by class",
                ", storageClassName: manual",
                &[big, manual],
                &[],
                volume("manual"),
            ),
            (
                "a reserved one first",
                "",
                &["fits", reserved],
                &[],
                volume("reserved"),
            ),
            (
                "never one for others",
                "",
                &[others, read_only],
                &[],
                Ok(Choice::Directory),
            ),
            (
                "by labels",
                ", selector: {matchLabels: {l: big}}",
                &["fits", big],
                &[],
                volume("big"),
            ),
            (
                "by name",
                ", volumeName: big",
                &["fits", big],
                &[],
                volume("big"),
            ),
        ] {
            assert_eq!(choice(claim, volumes, taken), expected, "{sentence}");
        }
        for (claim, volumes, taken, expected) in [
            (
                ", volumeName: gone",
                &["fits"],
                &[][..],
                "persistentvolume \"gone\" not found",
            ),
            (
                ", volumeName: fits",
                &["fits"],
                &["fits"],
                "bound to another claim",
            ),
            (", volumeName: small", &[small], &[], "too small"),
            (
                ", storageClassName: ''",
                &[manual],
                &[],
                "without `storageClassName`",
            ),
            (
                ", selector: {matchLabels: {l: x}}",
                &["fits"],
                &[],
                "no PersistentVolume fits",
            ),
        ] {
            let error = choice(claim, volumes, taken).expect_err(claim);
            assert!(error.contains(expected), "{claim}: {error}");
        }
    }
}
