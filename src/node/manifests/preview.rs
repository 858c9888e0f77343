//! The manifest directory as it would be with given files saved, for `coracle plan`. They are read as the agent
//! would read them, without taking effect.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::conflicts::{conflicts, forbidden_changes};
use super::files::is_ignored;
use super::{ClaimSizes, Loaded, Manifests};
use crate::api::PlannedFile;
use crate::effects::credential::Credentials;
use crate::plan::workload::revisions::Overrides;
use crate::spec::convert::ConvertContext;
use crate::spec::encrypted::Opened;
use crate::spec::priority::PriorityClasses;
use crate::spec::workload::cron;
use crate::spec::{Configuration, Pins, PodSecurity};
use crate::sys::zone;
use crate::types::{Gather, Wall};

/// The objects of all files, each in the version in effect.
#[derive(Debug, Clone, Default)]
pub(in crate::node) struct InEffect {
    path: PathBuf,
    /// Where bundles are.
    bundles: Option<PathBuf>,
    /// The directories of the bundles' manifests in force, and the images that come with them.
    pub(in crate::node) bundled: BTreeMap<PathBuf, Pins>,
    node_name: String,
    pod_security: PodSecurity,
    /// The decrypted contents of Secrets.
    pub(in crate::node) credentials: Credentials,
    sizes: ClaimSizes,
    /// What is in force instead of what files say.
    instead: Arc<Overrides>,
    files: BTreeMap<PathBuf, Arc<Loaded>>,
}

/// A file as it would be.
#[derive(Debug)]
pub(in crate::node) struct Checked {
    /// Its place in the manifest directory.
    pub(in crate::node) path: PathBuf,
    /// Why it would not take effect.
    pub(in crate::node) errors: Vec<String>,
    /// Its fields without effect.
    pub(in crate::node) warnings: Vec<String>,
}

impl Manifests {
    /// The versions in effect now.
    pub(in crate::node) fn in_effect(&self) -> InEffect {
        let applied = self
            .entries
            .iter()
            .filter_map(|(path, entry)| Some((path.clone(), entry.applied.clone()?)));
        InEffect {
            path: self.path.clone(),
            bundles: self.bundles.clone(),
            bundled: self.bundled.clone(),
            node_name: self.node_name.clone(),
            pod_security: self.pod_security,
            credentials: self.credentials.clone(),
            sizes: self.sizes.clone(),
            instead: Arc::clone(&self.instead),
            files: applied.gather(),
        }
    }
}

impl InEffect {
    /// Adds these files; returns what would be in effect, and the result of each file in the same order. `opened` are
    /// their encrypted contents. Those of a bundle take the place of all that it has now.
    pub(in crate::node) fn with(
        &self,
        bundle: Option<(&str, &Pins)>,
        files: &[PlannedFile],
        opened: &Opened,
    ) -> (InEffect, Vec<Checked>) {
        let mut then = self.clone();
        let folder = bundle.and_then(|(name, _)| Some(self.bundles.as_ref()?.join(name)));
        if let Some(folder) = &folder {
            then.files.retain(|path, _| !path.starts_with(folder));
        }
        let mut checked = Vec::new();
        // Twice, because a file may need a priority class of a later one.
        for _ in 0..2 {
            checked.clear();
            let mut seen = BTreeSet::new();
            for file in files {
                let path = match &folder {
                    Some(folder) => folder.join(&file.name),
                    None => then.place(file, opened),
                };
                let mut errors = then.take(file, &path, opened);
                if is_ignored(&path) {
                    errors.push(format!(
                        "{}: the agent ignores files of such names",
                        file.name
                    ));
                }
                if !seen.insert(path.clone()) {
                    errors.push(format!(
                        "{}: another file given here would be `{}` as well",
                        file.name,
                        path.display()
                    ));
                }
                checked.push(Checked {
                    path,
                    errors,
                    warnings: Vec::new(),
                });
            }
        }
        for one in checked.iter_mut().filter(|one| one.errors.is_empty()) {
            let Some(loaded) = then.files.get(&one.path) else {
                continue;
            };
            let others = then.files.iter().filter(|(path, _)| **path != one.path);
            let others: Vec<(&Path, &Loaded)> = others
                .map(|(path, loaded)| (path.as_path(), &**loaded))
                .collect();
            one.errors = conflicts(&one.path, loaded, &others, self.bundles.as_deref());
            let own = self.file(&one.path);
            one.errors.extend(forbidden_changes(&one.path, loaded, own));
            if let Some(folder) = &folder {
                let own = self
                    .files
                    .iter()
                    .filter(|(path, _)| path.starts_with(folder));
                let forbidden =
                    own.flat_map(|(_, own)| forbidden_changes(&one.path, loaded, Some(own)));
                one.errors.extend(forbidden);
            }
            let others = others.iter().map(|(_, loaded)| *loaded);
            one.warnings = loaded.warnings();
            match &folder {
                Some(_) => one.warnings.extend(self.sizes.keep_size(loaded, others)),
                None => {
                    let forbidden = self.sizes.forbid_smaller(&one.path, loaded, others);
                    one.errors.extend(forbidden);
                }
            }
        }
        then.note_configuration();
        if let (Some(folder), Some((_, pins))) = (&folder, bundle) {
            let own = then.files.iter_mut();
            let own = own.filter(|(path, _)| path.starts_with(folder));
            own.for_each(|(_, loaded)| Arc::make_mut(loaded).pin(pins));
        }
        (then, checked)
    }

    /// A file that is in force.
    pub(in crate::node) fn file(&self, path: &Path) -> Option<&Loaded> {
        self.files.get(path).map(Arc::as_ref)
    }

    /// All files that are.
    pub(in crate::node) fn all(&self) -> impl Iterator<Item = &Loaded> {
        self.files.values().map(Arc::as_ref)
    }

    /// The files of a bundle in force.
    pub(in crate::node) fn of_bundle(&self, name: &str) -> impl Iterator<Item = (&Path, &Loaded)> {
        let folder = self.bundles.as_ref().map(|bundles| bundles.join(name));
        let of = move |path: &Path| {
            folder
                .as_ref()
                .is_some_and(|folder| path.starts_with(folder))
        };
        let files = self.files.iter().filter(move |(path, _)| of(path));
        files.map(|(path, loaded)| (path.as_path(), &**loaded))
    }

    /// The configuration documents of all files.
    fn configuration(&self) -> Configuration {
        let mut all = Configuration::default();
        for loaded in self.files.values() {
            all.merge(&loaded.configuration);
        }
        all
    }

    fn note_configuration(&mut self) {
        let configuration = self.configuration();
        for pod in self
            .files
            .values_mut()
            .flat_map(|loaded| &mut Arc::make_mut(loaded).pods)
        {
            if let Some(other) = pod.with_configuration(&configuration) {
                *pod = Arc::new(other);
            }
        }
    }

    /// Reads a file in the place of its version in effect.
    fn take(&mut self, file: &PlannedFile, path: &Path, opened: &Opened) -> Vec<String> {
        match self.read(file, path, opened) {
            Ok(loaded) => {
                self.files.insert(path.to_owned(), Arc::new(loaded));
                Vec::new()
            }
            Err(errors) => errors,
        }
    }

    fn read(
        &self,
        file: &PlannedFile,
        path: &Path,
        opened: &Opened,
    ) -> Result<Loaded, Vec<String>> {
        let others = self.files.iter().filter(|(other, _)| *other != path);
        let classes = others.flat_map(|(_, loaded)| &loaded.classes);
        let named = classes.map(|class| {
            let name = class.metadata.name.clone().unwrap_or_default();
            (name, class.clone())
        });
        let classes: PriorityClasses = named.gather();
        let context = ConvertContext {
            node_name: &self.node_name,
            strict: false,
            admitted: false,
            pod_security: self.pod_security,
            opened,
            zones: &zone::read(cron::zones(file.text.as_bytes())),
        };
        let strict = ConvertContext {
            strict: file.strict,
            admitted: false,
            ..context
        };
        let text = file.text.as_bytes();
        let mut loaded = Loaded::read(text, &file.name, &strict, &classes, Wall::default())?;
        loaded.put_instead(&self.instead, &context, &classes);
        Ok(loaded)
    }

    /// The file's place in the manifest directory: by its name, or, without a name, the file that has its pods and
    /// services now.
    fn place(&self, file: &PlannedFile, opened: &Opened) -> PathBuf {
        let bundled = |path: &Path| {
            self.bundles
                .as_ref()
                .is_some_and(|bundles| path.starts_with(bundles))
        };
        if self
            .files
            .keys()
            .filter(|path| !bundled(path))
            .eq([&self.path])
        {
            return self.path.clone();
        }
        let name = match &file.save_as {
            Some(name) => name,
            None => match self.read(file, Path::new(""), opened) {
                Ok(loaded) => match self.files.iter().find(|(_, other)| loaded.meets(other)) {
                    Some((path, _)) => return path.clone(),
                    None => "stdin.yaml",
                },
                Err(_) => "stdin.yaml",
            },
        };
        self.path.join(name)
    }
}

impl Loaded {
    /// Whether both define the same object.
    fn meets(&self, other: &Loaded) -> bool {
        let pods = |pod: &crate::spec::PodKey| other.pods.iter().any(|p| p.key == *pod);
        let services =
            |key: &crate::spec::PodKey| other.services.iter().any(|s| s.spec.key == *key);
        self.pods.iter().any(|pod| pods(&pod.key))
            || self.services.iter().any(|s| services(&s.spec.key))
            || (self.configuration.iter())
                .any(|(key, _)| self.configuration.clashes(&other.configuration, key))
    }
}

#[cfg(test)]
#[path = "preview_test.rs"]
mod tests;
