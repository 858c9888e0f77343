//! The folders of CDI files. They are read when a container asks for a CDI device, and not before.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::Trouble;
use crate::spec::cdi::{self, CdiEdits, CdiFile, CdiMount};
use crate::sys::device_node::{self, Seen};
use crate::sys::openat::{self, Found};
use crate::types::InOrder;

/// Most files that are read of one folder.
const MAX_FILES: usize = 256;

/// The files, once they are read.
#[derive(Debug)]
pub(super) struct Files<'a> {
    folders: &'a [PathBuf],
    /// The valid files of each folder, the most important folder first.
    read: Option<Vec<BTreeMap<PathBuf, CdiFile>>>,
    /// What is wrong with the first file that cannot be used.
    wrong: Option<String>,
    seen: Seen,
}

impl<'a> Files<'a> {
    pub(super) fn new(folders: &'a [PathBuf]) -> Self {
        Self {
            folders,
            read: None,
            wrong: None,
            seen: Seen::new(),
        }
    }

    pub(super) fn seen(self) -> Seen {
        self.seen
    }

    /// What a device adds, by its full name.
    pub(super) fn find(&mut self, name: &str) -> Result<CdiEdits, Trouble> {
        if self.read.is_none() {
            let folders = self.folders.iter().rev();
            self.read = Some(folders.map(|folder| self.read_folder(folder)).collect());
        }
        let (kind, device) = name.split_once('=').unwrap_or_default();
        for files in self.read.iter().flatten() {
            let of_kind = files.iter().filter(|(_, file)| file.kind == kind);
            let mut found = of_kind.filter_map(|(path, file)| Some((path, file.edits(device)?)));
            let Some((path, edits)) = found.next() else {
                continue;
            };
            if let Some((other, _)) = found.next() {
                let (path, other) = (path.display(), other.display());
                return Err(Trouble::Refused(format!(
                    "CDI device `{name}` is in both `{path}` and `{other}`"
                )));
            }
            return edits.map_err(|why| {
                let path = path.display();
                Trouble::Refused(format!("CDI device `{name}` in `{path}`: {why}"))
            });
        }
        let folders: Vec<String> = self
            .folders
            .iter()
            .map(|folder| format!("`{}`", folder.display()))
            .collect();
        let wrong = self.wrong.as_ref();
        let wrong = wrong.map_or_else(String::new, |wrong| format!("; {wrong}"));
        Err(Trouble::Missing(format!(
            "no file in {} describes CDI device `{name}`{wrong}",
            folders.join(" or ")
        )))
    }

    fn read_folder(&mut self, folder: &Path) -> BTreeMap<PathBuf, CdiFile> {
        device_node::note_path(&mut self.seen, folder);
        device_node::note(&mut self.seen, folder.to_owned(), None);
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let is_file = |path: &PathBuf| {
            let ending = path.extension();
            ending.is_some_and(|ending| ending == "json" || ending == "yaml")
        };
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_file).collect();
        paths.order();
        paths.truncate(MAX_FILES);
        let mut files = BTreeMap::new();
        for path in paths {
            match read(&path) {
                Ok(file) => {
                    files.insert(path, file);
                }
                Err(why) => {
                    let wrong = || format!("`{}` is not valid: {why}", path.display());
                    self.wrong.get_or_insert_with(wrong);
                }
            }
        }
        files
    }

    /// Checks that what is to be mounted is there.
    pub(super) fn check_mount(&mut self, mount: &CdiMount) -> Result<(), Trouble> {
        let path = Path::new(&mount.host_path);
        device_node::note_path(&mut self.seen, path);
        let shown = path.display();
        match fs::metadata(path) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(Trouble::Missing(format!("`{shown}` is not there")))
            }
            Err(error) => Err(Trouble::Refused(format!(
                "`{shown}` cannot be read: {error}"
            ))),
        }
    }
}

fn read(path: &Path) -> Result<CdiFile, String> {
    let found = openat::read_regular(path).map_err(|error| error.to_string())?;
    let Found::Regular(file) = found else {
        return Err("it is not a regular file".to_owned());
    };
    let mut bytes = Vec::new();
    let most = cdi::MAX_BYTES + 1;
    let read = file.take(most).read_to_end(&mut bytes);
    read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 == most {
        return Err(format!("it is larger than {} bytes", cdi::MAX_BYTES));
    }
    cdi::file(&bytes)
}
