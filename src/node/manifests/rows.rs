//! The manifest files as clients see them (`coracle get files`).

use std::path::Path;

use super::files::MAX_FILES;
use super::{Loaded, Manifests};
use crate::api::{DocumentCounts, FileState, FileStatus};

impl Manifests {
    /// One row for each file, and one more for an older version that is still in force.
    pub(in crate::node) fn status(&self) -> Vec<FileStatus> {
        let mut rows = Vec::new();
        let unread = |path: &Path, error: String| FileStatus {
            path: path.to_owned(),
            state: FileState::Rejected,
            pods: Vec::new(),
            documents: DocumentCounts::default(),
            errors: vec![error],
            warnings: Vec::new(),
            modified: None,
        };
        let own = self.unreadable.as_ref();
        let own = own.map(|error| (&self.path, error.to_string()));
        let hidden = self.hidden.iter();
        let hidden = hidden.map(|(path, error)| (path, error.clone()));
        for (path, error) in own.into_iter().chain(hidden) {
            let shown = path.display();
            let error = format!("{shown}: {error}; what it asked for before stays in force");
            rows.push(unread(path, error));
        }
        if let Some((number, first)) = &self.beyond {
            let name = first.file_name().unwrap_or_default().to_string_lossy();
            let error = format!(
                "{name}: there are more than {MAX_FILES} manifest files: {number} are not read, this one first"
            );
            rows.push(unread(first, error));
        }
        for (path, entry) in &self.entries {
            let row = |state, loaded: Option<&Loaded>, errors: Vec<String>, modified| FileStatus {
                path: path.clone(),
                state,
                pods: loaded.map(Loaded::keys).unwrap_or_default(),
                documents: loaded.map(Loaded::documents).unwrap_or_default(),
                errors,
                warnings: loaded.map(Loaded::warnings).unwrap_or_default(),
                modified: Some(modified),
            };
            let errors = [entry.errors.clone(), entry.conflicts.clone()].concat();
            match (&entry.applied, errors.is_empty()) {
                (Some(applied), true) => rows.push(row(
                    match applied.is_rolled_back() {
                        true => FileState::RolledBack,
                        false => FileState::Loaded,
                    },
                    Some(applied),
                    errors,
                    applied.modified,
                )),
                (applied, false) => {
                    rows.push(row(
                        FileState::Rejected,
                        entry.candidate.as_deref(),
                        errors,
                        entry.modified,
                    ));
                    if let Some(applied) = applied {
                        rows.push(row(
                            FileState::Superseded,
                            Some(applied),
                            Vec::new(),
                            applied.modified,
                        ));
                    }
                }
                // Still being written.
                (None, true) => {}
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;

    use super::super::bundles::{Folder, Record, State};
    use super::*;

    #[test]
    fn bundles_that_cannot_be_read_are_shown_as_rejected() {
        let dir = std::env::temp_dir().join(format!("coracle-rows-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let (own, bundles) = (dir.join("manifests"), dir.join("bundles"));
        fs::create_dir_all(&own).unwrap();
        for name in ["state", "directory", "whole"] {
            let folder = Folder::of(&bundles, name);
            folder.write(None, &Record::default(), &[]).unwrap();
            let state = State {
                current: 1,
                ..State::default()
            };
            folder.commit(&state).unwrap();
        }
        let state = bundles.join("state/state.json");
        fs::write(&state, "{").unwrap();
        let listed = bundles.join("directory/1/manifests");
        fs::remove_dir_all(&listed).unwrap();
        let manifests = Manifests::new(own, "n".to_owned(), BTreeMap::new());
        let mut manifests = manifests.with_bundles(bundles.clone());
        let mut scan = || {
            manifests.scan(0, &BTreeSet::new(), true, &BTreeSet::new());
            let rows = manifests.status();
            assert!(rows.iter().all(|row| row.state == FileState::Rejected));
            let errors = rows.iter().flat_map(|row| &row.errors);
            assert!(errors.clone().all(|error| error.contains("stays in force")));
            rows.into_iter()
                .map(|row| row.path)
                .collect::<BTreeSet<_>>()
        };
        let broken = [bundles.join("state"), listed.clone()];
        assert_eq!(scan(), broken.into());
        fs::remove_file(&state).unwrap();
        assert_eq!(scan(), [listed.clone()].into());
        fs::create_dir(&listed).unwrap();
        assert_eq!(scan(), BTreeSet::new());
        fs::remove_dir_all(dir).unwrap();
    }
}
