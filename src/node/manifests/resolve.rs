//! Which new versions of files take effect beside each other. A version that defines what another file has in force
//! waits; where that file gives it up, both take effect in the same scan, so that what moves never stops in between.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::conflicts::{conflicts, forbidden_changes};
use super::{Loaded, Manifests};
use crate::spec::PodUid;
use crate::types::InOrder;

/// The maximum number of passes. Files that exchange names take two, however many they are.
const ROUNDS: usize = 16;

impl Manifests {
    /// Until the files are judged after an agent restart, what they had in force before is in force: a version that was
    /// refused beside it is refused again.
    pub(super) fn begin_with_inherited(&mut self) {
        for (path, entry) in &mut self.entries {
            if let Some(from) = self.inherited.get(path)
                && entry.applied.is_none()
            {
                entry.applied = Some(Arc::new(Loaded::inherited(from.clone())));
            }
        }
    }

    /// Puts candidates into effect unless they conflict with another file: the same name, or something that only
    /// one object can have.
    pub(super) fn resolve(&mut self, running: &BTreeSet<PodUid>) {
        let circular = self.refuse_circles();
        let mut waiting = self.candidates(&circular, running);
        for _ in 0..ROUNDS {
            let before = waiting.len();
            waiting.retain(|path| !self.take(path));
            // Those left may wait for each other only.
            for path in self.consistent(&waiting) {
                let entry = self.entries.get_mut(&path).expect("it waits");
                entry.conflicts.clear();
                entry.applied = entry.candidate.take();
                waiting.retain(|other| *other != path);
            }
            if waiting.len() == before {
                break;
            }
        }
    }

    /// The files with a candidate, the preferred ones first.
    fn candidates(&self, circular: &BTreeSet<PathBuf>, running: &BTreeSet<PodUid>) -> Vec<PathBuf> {
        let mut order: Vec<PathBuf> = self
            .entries
            .iter()
            .filter(|(path, entry)| entry.candidate.is_some() && !circular.contains(*path))
            .map(|(path, _)| path.clone())
            .collect();
        let runs = |path: &PathBuf| {
            let candidate = self.entries[path].candidate.as_deref();
            candidate.is_some_and(|loaded| loaded.pods.iter().any(|pod| running.contains(&pod.uid)))
        };
        order.order_by_key(|path| (!runs(path), self.entries[path].applied.is_none()));
        order
    }

    /// Puts a candidate into effect if it fits beside what is in force; otherwise notes why it does not.
    fn take(&mut self, path: &Path) -> bool {
        let problems = self.problems(path, &BTreeSet::new());
        let Some(entry) = self.entries.get_mut(path) else {
            return false;
        };
        entry.conflicts = problems;
        let fits = entry.conflicts.is_empty();
        if fits {
            entry.applied = entry.candidate.take();
        }
        fits
    }

    /// As many of these as fit when they take effect together. Of two that do not, the later one is left out.
    fn consistent(&self, waiting: &[PathBuf]) -> BTreeSet<PathBuf> {
        let mut together: BTreeSet<&Path> = waiting.iter().map(PathBuf::as_path).collect();
        for _ in 0..ROUNDS {
            let before = together.len();
            for path in waiting.iter().rev() {
                let path = path.as_path();
                if together.contains(path) && !self.problems(path, &together).is_empty() {
                    together.remove(path);
                }
            }
            if together.len() == before {
                return together.into_iter().map(Path::to_path_buf).collect();
            }
        }
        BTreeSet::new()
    }

    /// Why a file's candidate may not take effect, with the candidates of the files `together` in effect.
    fn problems(&self, path: &Path, together: &BTreeSet<&Path>) -> Vec<String> {
        let Some((entry, candidate)) =
            (self.entries.get(path)).and_then(|entry| Some((entry, entry.candidate.as_deref()?)))
        else {
            return Vec::new();
        };
        let others = || self.entries.iter().filter(|(other, _)| *other != path);
        let then: Vec<(&Path, &Loaded)> = others()
            .filter_map(|(other, entry)| {
                let version = match together.contains(other.as_path()) {
                    true => &entry.candidate,
                    false => &entry.applied,
                };
                Some((other.as_path(), version.as_deref()?))
            })
            .collect();
        let mut found = conflicts(path, candidate, &then, self.bundles.as_deref());
        found.extend(forbidden_changes(path, candidate, entry.applied.as_deref()));
        // Those that wait, too: it is not known yet which of them will be in effect.
        let waiting = others().filter_map(|(_, entry)| entry.candidate.as_deref());
        let others = then.iter().map(|(_, loaded)| *loaded).chain(waiting);
        if !self.is_bundled(path) {
            found.extend(self.sizes.forbid_smaller(path, candidate, others));
        }
        found
    }
}

#[cfg(test)]
#[path = "resolve_test.rs"]
mod tests;
