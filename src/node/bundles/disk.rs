//! Bundles on disk, below `<root>/bundles`:
//!
//! ```text
//! <name>/state.json           which generation is in force, and which were before; replaced by one rename
//! <name>/<n>/manifests/…      the manifest files of a generation; nothing in it changes once it has this name
//! <name>/<n>/bundle.json      where it came from, and its images
//! <name>/.new                 a generation that is being written
//! .gone-<name>                a bundle that is being removed
//! ```
//!
//! The rename of `state.json` decides: before it the former generation is in force, wholly, and after it the new one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::images::trust::Origin;
use crate::images::{BundleFile, check_name};
use crate::plan::bundle::Trial;
use crate::spec::Pins;
use crate::sys::file::{self, Durability};
use crate::sys::tree;
use crate::types::{Gather, Wall};

/// The maximum number of bundles.
pub(in crate::node) const MAX_BUNDLES: usize = 64;

/// The maximum size of a manifest file.
const MAX_FILE: u64 = 10 << 20;

const STATE: &str = "state.json";
const RECORD: &str = "bundle.json";
const MANIFESTS: &str = "manifests";
const NEW: &str = ".new";

/// Which generations of a bundle there are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::node) struct State {
    /// The generation in force.
    pub(in crate::node) current: u64,
    /// The one that a rollback brings back.
    #[serde(default)]
    pub(in crate::node) previous: Option<u64>,
    /// The one that was `previous` before the one on trial was applied, and is again if that fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::node) before_previous: Option<u64>,
    /// Set until all pods of the current one have been ready.
    #[serde(default)]
    pub(in crate::node) trial: Option<Trial>,
    /// The digest of the newest generation that failed its trial, and why.
    #[serde(default)]
    pub(in crate::node) failed: Option<Failed>,
}

/// A generation that failed its trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::node) struct Failed {
    /// Its number.
    pub(in crate::node) generation: u64,
    /// Its digest.
    pub(in crate::node) digest: String,
    /// For people.
    pub(in crate::node) why: String,
}

/// A generation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::node) struct Record {
    /// The bundle's digest.
    pub(in crate::node) digest: String,
    /// Where it came from.
    pub(in crate::node) source: String,
    /// The archive that it was, in the words of policies; none if it came from a registry.
    #[serde(default)]
    pub(in crate::node) origin: Option<Origin>,
    /// When it was applied; 0 if it is not known.
    pub(in crate::node) applied: Wall,
    /// Its images.
    pub(in crate::node) images: Vec<Pinned>,
    /// Its manifest files.
    pub(in crate::node) files: Vec<String>,
}

/// An image of a generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::node) struct Pinned {
    /// Its id in the store.
    pub(in crate::node) id: String,
    /// The names that it has while the generation is in force.
    pub(in crate::node) names: Vec<String>,
}

/// A bundle's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::node) struct Folder(PathBuf);

impl Record {
    /// The images that its manifests mean by these names.
    pub(in crate::node) fn pins(&self) -> Pins {
        let images = self.images.iter();
        let pins = images.flat_map(|image| image.names.iter().map(|name| (name, &image.id)));
        pins.map(|(name, id)| (name.clone(), id.clone())).collect()
    }
}

impl Folder {
    /// The folder of that bundle; `name` is valid.
    pub(in crate::node) fn of(bundles: &Path, name: &str) -> Self {
        Self(bundles.join(name))
    }

    /// Which generations there are; `None` if the bundle does not exist.
    pub(in crate::node) fn state(&self) -> io::Result<Option<State>> {
        read(&self.0.join(STATE))
    }

    pub(in crate::node) fn record(&self, generation: u64) -> io::Result<Record> {
        let path = self.generation(generation).join(RECORD);
        read(&path)?.ok_or_else(|| io::Error::other(format!("`{}` is missing", path.display())))
    }

    /// The manifest files of a generation.
    pub(in crate::node) fn files(&self, generation: u64) -> io::Result<Vec<BundleFile>> {
        let folder = self.manifests(generation);
        let names = self.record(generation)?.files.into_iter();
        let files = names.map(|name| {
            let bytes = file::read_bounded(folder.join(&name), MAX_FILE)?;
            let text = String::from_utf8(bytes).map_err(io::Error::other)?;
            Ok(BundleFile { name, text })
        });
        files.collect()
    }

    fn generation(&self, generation: u64) -> PathBuf {
        self.0.join(generation.to_string())
    }

    /// The directory of a generation's manifests.
    pub(in crate::node) fn manifests(&self, generation: u64) -> PathBuf {
        self.generation(generation).join(MANIFESTS)
    }

    /// Writes a new generation, which is not in force yet. Returns its number, which none has had before.
    pub(in crate::node) fn write(
        &self,
        before: Option<&State>,
        record: &Record,
        files: &[BundleFile],
    ) -> io::Result<u64> {
        file::make_dirs(&self.0, 0o700)?;
        if let Some(bundles) = self.0.parent() {
            sync(bundles)?;
        }
        let failed = before.and_then(|before| before.failed.as_ref());
        let numbers = failed.map(|failed| failed.generation).into_iter();
        let number = numbers.chain(self.generations()?).max().unwrap_or(0) + 1;
        let new = self.0.join(NEW);
        tree::remove(&new)?;
        let manifests = new.join(MANIFESTS);
        file::make_dirs(&manifests, 0o700)?;
        for file in files {
            write_new(&manifests.join(&file.name), file.text.as_bytes())?;
        }
        write_new(&new.join(RECORD), &serde_json::to_vec_pretty(record)?)?;
        sync(&manifests)?;
        sync(&new)?;
        fs::rename(&new, self.generation(number))?;
        sync(&self.0)?;
        Ok(number)
    }

    /// Puts a state in force.
    pub(in crate::node) fn commit(&self, state: &State) -> io::Result<()> {
        let bytes = serde_json::to_vec_pretty(state)?;
        file::replace(&self.0.join(STATE), &bytes, 0o600, Durability::PowerCut)
    }

    /// Whether that generation is on disk.
    pub(super) fn has(&self, generation: u64) -> bool {
        self.generation(generation).is_dir()
    }

    /// The numbers of all generations on disk, sorted.
    fn generations(&self) -> io::Result<BTreeSet<u64>> {
        let mut numbers = BTreeSet::new();
        for entry in fs::read_dir(&self.0)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.parse::<u64>().ok());
            numbers.extend(number.filter(|number| name == *number.to_string()));
        }
        Ok(numbers)
    }

    /// Removes what no state needs any more.
    pub(in crate::node) fn clean(&self, state: &State) -> io::Result<()> {
        tree::remove(&self.0.join(NEW))?;
        let mut gone = self.generations()?;
        gone.retain(|number| state.kept().all(|kept| kept != *number));
        for number in gone {
            tree::remove(&self.generation(number))?;
        }
        Ok(())
    }

    /// Removes the bundle.
    pub(in crate::node) fn remove(&self) -> io::Result<()> {
        let (Some(bundles), Some(name)) = (self.0.parent(), self.0.file_name()) else {
            return Ok(());
        };
        let gone = bundles.join(format!(".gone-{}", name.to_string_lossy()));
        tree::remove(&gone)?;
        fs::rename(&self.0, &gone)?;
        sync(bundles)?;
        tree::remove(&gone)
    }
}

/// The names of all bundles, sorted; those beyond the limit are left out.
pub(in crate::node) fn names(bundles: &Path) -> io::Result<BTreeSet<String>> {
    let entries = match fs::read_dir(bundles) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        other => other?,
    };
    let mut names = BTreeSet::new();
    for entry in entries {
        let name = entry?.file_name();
        names.extend(
            name.to_str()
                .filter(|name| check_name(name).is_ok())
                .map(str::to_owned),
        );
    }
    Ok(names.into_iter().take(MAX_BUNDLES).gather())
}

/// Removes what an interrupted removal left.
pub(in crate::node) fn remove_leftovers(bundles: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(bundles) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(".gone-") {
            tree::remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Two bundles that mean different images by one name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "its image `{image}` is {id}, and in bundle `{other}`, which is in force, that name means {other_id}"
)]
pub(in crate::node) struct Clash {
    /// The name of the image.
    pub(in crate::node) image: String,
    /// Its id in this bundle.
    pub(in crate::node) id: String,
    /// The other bundle.
    pub(in crate::node) other: String,
    /// The id of the image there.
    pub(in crate::node) other_id: String,
}

/// Looks for another bundle in force that means another image by one of these names.
pub(in crate::node) fn clash(bundles: &Path, name: &str, pins: &Pins) -> io::Result<Option<Clash>> {
    for other in names(bundles)?.into_iter().filter(|other| other != name) {
        let folder = Folder::of(bundles, &other);
        // One that cannot be read has no say: it is reported where it is read.
        let Ok(Some(state)) = folder.state() else {
            continue;
        };
        let theirs = folder.record(state.current).unwrap_or_default().pins();
        let mut shared = pins.iter().filter_map(|(image, id)| {
            let other_id = theirs.get(image).filter(|theirs| *theirs != id)?;
            Some((image.clone(), id.clone(), other_id.clone()))
        });
        if let Some((image, id, other_id)) = shared.next() {
            return Ok(Some(Clash {
                image,
                id,
                other,
                other_id,
            }));
        }
    }
    Ok(None)
}

/// The directories of manifests in force, with the images that come with them; those of bundles whose state cannot be
/// read are missing, and named beside it.
pub(in crate::node) fn in_force(
    bundles: &Path,
) -> (BTreeMap<PathBuf, Pins>, Vec<(PathBuf, io::Error)>) {
    let (mut found, mut broken) = (BTreeMap::new(), Vec::new());
    let names = match names(bundles) {
        Ok(names) => names,
        Err(error) => return (found, vec![(bundles.to_owned(), error)]),
    };
    for name in names {
        let folder = Folder::of(bundles, &name);
        match folder.state() {
            Ok(Some(state)) => {
                let pins = match folder.record(state.current) {
                    Ok(record) => record.pins(),
                    Err(error) => {
                        tracing::warn!("{error}: images of bundle `{name}` go by their names");
                        Pins::new()
                    }
                };
                found.insert(folder.manifests(state.current), pins);
            }
            // It was being applied for the first time.
            Ok(None) => {}
            Err(error) => broken.push((folder.0, error)),
        }
    }
    (found, broken)
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let bytes = match file::read_record(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(io::Error::other)
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> BundleFile {
        BundleFile {
            name: name.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn generations_are_whole_and_what_no_state_needs_is_removed() {
        let dir = std::env::temp_dir().join(format!("coracle-bundles-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let folder = Folder::of(&dir, "site");
        assert_eq!(folder.state().unwrap(), None);
        let record = Record {
            files: vec!["a.yaml".to_owned()],
            ..Record::default()
        };
        assert_eq!(
            folder
                .write(None, &record, &[file("a.yaml", "one")])
                .unwrap(),
            1
        );
        assert_eq!(
            in_force(&dir).0,
            BTreeMap::new(),
            "not before its state says so"
        );
        let mut state = State {
            current: 1,
            ..State::default()
        };
        folder.commit(&state).unwrap();
        assert_eq!(
            in_force(&dir).0,
            BTreeMap::from([(folder.manifests(1), Pins::new())])
        );
        // What is left of a write that was cut off.
        fs::create_dir_all(dir.join("site/.new/manifests")).unwrap();
        fs::write(dir.join("site/.new/manifests/half.yaml"), "").unwrap();
        for current in 2..=4 {
            assert_eq!(
                folder
                    .write(None, &record, &[file("a.yaml", "more")])
                    .unwrap(),
                current
            );
            state = State {
                current,
                previous: Some(state.current),
                ..State::default()
            };
            folder.commit(&state).unwrap();
        }
        folder.clean(&state).unwrap();
        assert_eq!(folder.generations().unwrap(), BTreeSet::from([3, 4]));
        assert_eq!(folder.files(4).unwrap(), [file("a.yaml", "more")]);
        fs::write(dir.join("site/state.json"), "{").unwrap();
        let (found, broken) = in_force(&dir);
        assert!(found.is_empty() && broken.len() == 1 && broken[0].0 == folder.0);
        folder.remove().unwrap();
        assert_eq!(names(&dir).unwrap(), BTreeSet::new());
        fs::create_dir_all(dir.join(".gone-site/1")).unwrap();
        remove_leftovers(&dir).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::remove_dir_all(dir).unwrap();
    }
}
