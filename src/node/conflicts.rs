//! Why a manifest file may not take effect beside the others of its directory, or after what it said before.

use std::path::Path;
use std::sync::Arc;

use super::manifests::Loaded;
use crate::spec::after::{self, Circle};
use crate::spec::conflicts::{self, name};
use crate::spec::{Object, ObjectKey, PodKey, PodSpec, binding};
use crate::types::quantity::Quantity;

/// Why `candidate` may not take effect beside the `others`, naming both files each time; empty if it may. A file below
/// `bundles` is that of a bundle.
pub(super) fn conflicts(
    path: &Path,
    candidate: &Loaded,
    others: &[(&Path, &Loaded)],
    bundles: Option<&Path>,
) -> Vec<String> {
    // Another bundle may have a file of the same name.
    let bundle = |path: &Path| {
        let below = path.strip_prefix(bundles?).ok()?;
        Some(below.iter().next()?.to_string_lossy().into_owned())
    };
    let shown = |other: &Path| match bundle(other).filter(|of| bundle(path).as_ref() != Some(of)) {
        Some(of) => format!("bundle `{of}` ({})", name(other)),
        None => format!("`{}`", name(other)),
    };
    let mut problems = conflicts::conflicts_with(path, candidate, others, shown);
    problems.extend(circles(path, candidate, others));
    problems
}

/// Why `candidate` may not replace the version of the same file in effect: it changes what cannot change.
pub(super) fn forbidden_changes(
    path: &Path,
    candidate: &Loaded,
    applied: Option<&Loaded>,
) -> Vec<String> {
    let Some(applied) = applied else {
        return Vec::new();
    };
    let changed = candidate.configuration.iter().filter(|(key, object)| {
        let old = applied
            .configuration
            .get(key.kind, &key.namespace, &key.name);
        old.is_some_and(|old| old.is_immutable() && old.data() != object.data())
    });
    let problems = changed.map(|(key, _)| {
        format!(
            "{}: {key}: data: Forbidden: field is immutable when `immutable` is set; give it another name, or remove \
             it first",
            name(path)
        )
    });
    problems.collect()
}

/// The claims that `candidate` would make smaller, and their sizes: those that are bound to a directory of their own.
/// `capacity` is the size of such a claim, by namespace and name. A template's claim for which one of the `others` has a
/// document is as that says.
pub(super) fn shrunk_claims<'l>(
    candidate: &Loaded,
    others: impl Iterator<Item = &'l Loaded> + Clone,
    capacity: impl Fn(&str, &str) -> Option<String>,
) -> Vec<(ObjectKey, String)> {
    let bytes = |written: &str| Quantity::parse(written).map_or(0, Quantity::ceil);
    let claims = candidate.configuration.iter().filter_map(|(key, object)| {
        let Object::Claim(claim) = &**object else {
            return None;
        };
        let written = |other: &Loaded| other.configuration.writes(key);
        if !candidate.configuration.writes(key) && others.clone().any(written) {
            return None;
        }
        let size = capacity(&key.namespace, &key.name)?;
        (binding::requested(claim) < bytes(&size)).then(|| (key.clone(), size))
    });
    claims.collect()
}

/// The circles that pods of this file would close.
fn circles(path: &Path, candidate: &Loaded, others: &[(&Path, &Loaded)]) -> Vec<String> {
    let waits = |pod: &Arc<PodSpec>| !pod.after.is_empty();
    if !candidate.pods.iter().any(waits) {
        return Vec::new();
    }
    let all = || others.iter().copied().chain([(path, candidate)]);
    let found = after::circles(all().flat_map(|(_, loaded)| loaded.pods.iter().map(Arc::as_ref)));
    let own = |circle: &&Circle| {
        candidate
            .pods
            .iter()
            .any(|pod| circle.members.contains(&pod.key))
    };
    let found = found.iter().filter(own);
    found.map(|circle| describe(path, circle, all())).collect()
}

/// Names a circle, with the files of the pods in it.
pub(super) fn describe<'l>(
    path: &Path,
    circle: &Circle,
    files: impl Iterator<Item = (&'l Path, &'l Loaded)>,
) -> String {
    let files: Vec<_> = files.collect();
    let file = |key: &PodKey| {
        let of = |loaded: &&Loaded| loaded.pods.iter().any(|pod| pod.key == *key);
        let other = files.iter().filter(|(other, _)| *other != path);
        let found = other
            .filter(|(_, loaded)| of(loaded))
            .map(|(other, _)| name(other));
        found
            .map(|file| format!(" (`{file}`)"))
            .next()
            .unwrap_or_default()
    };
    let named = |key: &PodKey| format!("`{key}`{}", file(key));
    format!("{}: {}", name(path), circle.sentence(named))
}
