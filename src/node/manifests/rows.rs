//! The manifest files as clients see them (`coracle get files`).

use super::files::MAX_FILES;
use super::{Loaded, Manifests};
use crate::api::{DocumentCounts, FileState, FileStatus};

impl Manifests {
    /// One row for each file, and one more for an older version that is still in force.
    pub(in crate::node) fn status(&self) -> Vec<FileStatus> {
        let mut rows = Vec::new();
        if let Some(error) = &self.unreadable {
            rows.push(FileStatus {
                path: self.path.clone(),
                state: FileState::Rejected,
                pods: Vec::new(),
                documents: DocumentCounts::default(),
                errors: vec![format!(
                    "{}: {error}; what it asked for before stays in force",
                    self.path.display()
                )],
                warnings: Vec::new(),
                modified: None,
            });
        }
        if let Some((number, first)) = &self.beyond {
            let name = first.file_name().unwrap_or_default().to_string_lossy();
            rows.push(FileStatus {
                path: first.clone(),
                state: FileState::Rejected,
                pods: Vec::new(),
                documents: DocumentCounts::default(),
                errors: vec![format!(
                    "{name}: there are more than {MAX_FILES} manifest files: {number} are not read, this one first"
                )],
                warnings: Vec::new(),
                modified: None,
            });
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
