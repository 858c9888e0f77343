//! The priority classes of all files in effect. A pod may name a class of another file, so files are read again
//! when the classes change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use k8s_openapi::api::scheduling::v1::PriorityClass;

use super::{Fingerprint, Manifests};
use crate::plan::status;
use crate::spec::PodUid;
use crate::spec::priority::{self, PriorityClasses};
use crate::types::Gather;

/// A file that becomes valid may bring a class that makes another file valid. A longer chain than this is not
/// intended by any author.
const ROUNDS: usize = 16;

impl Manifests {
    /// The classes that a pod of this file may name, beside those of the file itself.
    pub(super) fn classes_beside(&self, path: &Path) -> PriorityClasses {
        let others = self.entries.iter().filter(|(other, _)| *other != path);
        let applied = others.filter_map(|(_, entry)| entry.applied.as_deref());
        let classes = applied.flat_map(|loaded| &loaded.classes);
        let named = classes.map(|class| {
            let name = class.metadata.name.clone().unwrap_or_default();
            (name, class.clone())
        });
        named.gather()
    }

    /// Puts into effect what was read, and what depends on it: files are read again as long as that changes the
    /// classes.
    pub(super) fn settle(
        &mut self,
        found: &BTreeMap<PathBuf, Fingerprint>,
        running: &BTreeSet<PodUid>,
    ) {
        self.resolve(running);
        for _ in 0..ROUNDS {
            let classes = self.classes_beside(Path::new(""));
            if classes == self.classes {
                return;
            }
            self.classes = classes;
            for (path, fingerprint) in found {
                // A file that was not read, or has changed since, is read later.
                let as_read = self.entries.get(path).is_some_and(|entry| {
                    entry.read == Some(*fingerprint) && entry.unsettled.is_none()
                });
                if as_read {
                    let again = self.version(path, *fingerprint);
                    self.entries.insert(path.clone(), again);
                }
            }
            self.resolve(running);
        }
    }

    /// The classes in force as they are shown, the built-in ones first.
    pub(in crate::node) fn priority_classes(&self) -> Vec<PriorityClass> {
        let applied = self.entries.values().filter_map(|e| e.applied.as_deref());
        let written = applied.flat_map(|loaded| {
            let since = status::time(loaded.modified);
            loaded.classes.iter().map(move |class| {
                let mut class = class.clone();
                class.metadata.creation_timestamp = Some(since.clone());
                class
            })
        });
        priority::built_in().chain(written).collect()
    }
}
