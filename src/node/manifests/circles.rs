//! Pods of several files that would wait for each other in a circle. All new versions that take part are refused; what
//! is in force stays in force.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::conflicts::describe;
use super::{Loaded, Manifests};
use crate::spec::after;

impl Manifests {
    /// Refuses the candidates in a circle, with the other candidates in effect. Returns their files. A file that was in
    /// force before the agent restart, and has not changed in this, is not refused.
    pub(super) fn refuse_circles(&mut self) -> BTreeSet<PathBuf> {
        let candidates = self.entries.values().filter_map(|e| e.candidate.as_deref());
        let mut pods = candidates.flat_map(|loaded| &loaded.pods);
        if pods.all(|pod| pod.after.is_empty()) {
            return BTreeSet::new();
        }
        let then: Vec<(&Path, &Loaded)> = (self.entries.iter())
            .filter_map(|(path, entry)| {
                let loaded = entry.candidate.as_deref().or(entry.applied.as_deref())?;
                Some((path.as_path(), loaded))
            })
            .collect();
        let all = then.iter().flat_map(|(_, loaded)| &loaded.pods);
        let mut refused = Vec::new();
        for circle in after::circles(all.map(Arc::as_ref)) {
            for (path, loaded) in &then {
                let concerned = loaded
                    .pods
                    .iter()
                    .any(|pod| circle.members.contains(&pod.key));
                let new =
                    self.entries[*path].candidate.is_some() && !self.was_in_force(path, loaded);
                if concerned && new {
                    let problem = describe(path, &circle, then.iter().copied());
                    refused.push((path.to_path_buf(), problem));
                }
            }
        }
        let mut files = BTreeSet::new();
        for (path, problem) in refused {
            let Some(entry) = self.entries.get_mut(&path) else {
                continue;
            };
            if files.insert(path.clone()) {
                entry.conflicts.clear();
            }
            entry.conflicts.push(problem);
        }
        files
    }

    /// Whether the running pods of this file had the same order before the agent restart.
    fn was_in_force(&self, path: &Path, loaded: &Loaded) -> bool {
        let before = self.inherited.get(path).map(|from| &from.pods);
        before.is_some_and(|before| {
            loaded.pods.iter().all(|pod| {
                let mut same = before.iter().filter(|old| old.key == pod.key);
                same.any(|old| old.after == pod.after)
            })
        })
    }
}

#[cfg(test)]
#[path = "circles_test.rs"]
mod tests;
