//! The manifests of bundles among all others: they come and go as a whole, and their pods run the images that came with
//! them.

use std::path::Path;
use std::sync::Arc;

use super::{Loaded, Manifests, bundles};
use crate::spec::Pins;

impl Manifests {
    /// Whether this file belongs to a bundle: it is complete when it has its name.
    pub(super) fn is_bundled(&self, path: &Path) -> bool {
        path.parent()
            .is_some_and(|dir| self.bundled.contains_key(dir))
    }

    /// Whether other generations are in force than those that were read. A part of their files may have been gone by then:
    /// a generation that no state needs any more is removed.
    pub(super) fn bundles_moved(&self) -> bool {
        let now = self.bundles.as_ref().map(|all| bundles::in_force(all).0);
        now.is_some_and(|now| now != self.bundled)
    }

    /// Has the pods of bundles run the images that came with them. Where a bundle's state cannot be read, all stays as it
    /// is.
    pub(super) fn note_images(&mut self) {
        let none = Pins::new();
        let applied = self.entries.iter_mut();
        for (path, loaded) in
            applied.filter_map(|(p, entry)| Some((p, Arc::make_mut(entry.applied.as_mut()?))))
        {
            let of_bundle = self
                .bundles
                .as_ref()
                .is_some_and(|all| path.starts_with(all));
            match path.parent().and_then(|dir| self.bundled.get(dir)) {
                Some(pins) => loaded.pin(pins),
                None if of_bundle => {}
                None => loaded.pin(&none),
            }
        }
    }
}

impl Loaded {
    /// Has its pods run these images, by names.
    pub(super) fn pin(&mut self, pins: &Pins) {
        for pod in &mut self.pods {
            if let Some(other) = pod.with_pins(pins) {
                *pod = Arc::new(other);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::super::super::bundles::disk::{Folder, Record, State};
    use super::*;
    use crate::images::BundleFile;

    const PODS: usize = 20;

    /// Puts a new generation of pods in force that are told by their label.
    fn apply(folder: &Folder, before: Option<State>, version: u64) -> State {
        let files = (0..PODS).map(|pod| BundleFile {
            name: format!("{pod}.yaml"),
            text: format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{pod}, labels: {{version: \"{version}\"}}}}\n\
                 spec: {{containers: [{{name: c, image: i}}]}}\n"
            ),
        });
        let files: Vec<BundleFile> = files.collect();
        let written = folder.write(before.as_ref(), &Record::default(), &files);
        let state = State {
            current: written.expect("written"),
            previous: None,
            ..State::default()
        };
        folder.commit(&state).expect("committed");
        folder.clean(&state).expect("cleaned");
        state
    }

    #[test]
    fn a_scan_sees_one_generation_wholly_while_others_are_removed() {
        let dir = std::env::temp_dir().join(format!("coracle-moved-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let (all, own) = (dir.join("bundles"), dir.join("manifests"));
        fs::create_dir_all(&own).expect("a directory");
        let folder = Folder::of(&all, "site");
        let mut state = apply(&folder, None, 0);
        let mut manifests =
            Manifests::new(own, "n".to_owned(), Default::default()).with_bundles(all);
        let (done, scans) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut seen = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for version in 1..=60 {
                    // Fewer in one scan than it puts up with, however fast the disk is.
                    let before = scans.load(Ordering::Acquire);
                    while version % 3 == 0 && scans.load(Ordering::Acquire) == before {
                        std::thread::yield_now();
                    }
                    state = apply(&folder, Some(state.clone()), version);
                }
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                manifests.scan(0, &BTreeSet::new(), false, &BTreeSet::new());
                scans.fetch_add(1, Ordering::Release);
                let pods = manifests.desired().pods;
                let versions: BTreeSet<String> = pods
                    .values()
                    .flat_map(|pod| pod.manifest.label("version").expect("labels").parse())
                    .collect();
                seen.push((pods.len(), versions));
            }
        });
        for (pods, versions) in &seen {
            assert_eq!((*pods, versions.len()), (PODS, 1), "{versions:?}");
        }
        let versions: BTreeSet<_> = seen.iter().map(|(_, versions)| versions).collect();
        assert!(versions.len() > 1, "the scans came too late");
        fs::remove_dir_all(dir).expect("removed");
    }
}
