//! Files that a layer has below a symlink of a lower one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use super::Additional;
use super::stack::{Shown, Stack, Symlink, is_opaque, looks};

/// The maximum of such files in an image. With more of them the directory stays as its layer has it.
const MAX_LINKS: usize = 10_000;

impl Additional {
    /// Restores the symlink at `path`. What layers above it have in their directories there is added where it leads to. A
    /// symlink that leads to no directory of the image, or over another symlink, stays hidden.
    pub(super) fn follow(
        &mut self,
        stack: &Stack<'_>,
        symlink: &Symlink,
        path: &Path,
    ) -> io::Result<()> {
        let Some(target) = target_of(path, &symlink.target) else {
            return Ok(());
        };
        for part in target.ancestors() {
            let is_directory = matches!(stack.shown(part)?, Shown::Directory(_));
            if !is_directory || self.links.contains_key(part) {
                return Ok(());
            }
        }
        let mut next = self.clone();
        for layer in symlink.above.iter().rev() {
            if !next.bring(stack, (*layer, path), &target)? {
                return Ok(());
            }
        }
        next.parents(stack, path)?;
        next.link(path.to_owned(), stack.place(symlink.layer, path));
        *self = next;
        Ok(())
    }

    /// Adds what a layer has below `from` at `target`; false if that is too much.
    fn bring(
        &mut self,
        stack: &Stack<'_>,
        (layer, from): (usize, &Path),
        target: &Path,
    ) -> io::Result<bool> {
        self.parents(stack, &target.join("any"))?;
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(stack.place(layer, &from.join(&folder)))? {
                let entry = entry?;
                let below = folder.join(entry.file_name());
                let to = target.join(&below);
                stack.count(1);
                let brought = self.links.len() + self.directories.len();
                if stack.is_spent() || brought >= MAX_LINKS {
                    return Ok(false);
                }
                let is_covered = stack.is_covered(layer, &to)?;
                if !entry.file_type()?.is_dir() {
                    if !is_covered {
                        self.link(to, entry.path());
                    }
                    continue;
                }
                let own: OwnedFd = File::open(entry.path())?.into();
                let is_implied = stack.is_implied(layer, &from.join(&below));
                let looks = match stack.shown(&to)? {
                    Shown::Directory(found) if is_implied || is_covered => found.meant,
                    _ if is_covered => continue,
                    _ => looks(&own)?,
                };
                if is_opaque(&own)? {
                    self.opaque.insert(to.clone());
                }
                self.links.remove(&to);
                self.directories.insert(to, looks);
                folders.push(below);
            }
        }
        Ok(true)
    }

    /// Adds a hard link to a file at `path`, in place of what is there.
    fn link(&mut self, path: PathBuf, of: PathBuf) {
        for other in below(&self.directories, &path) {
            self.directories.remove(&other);
        }
        for other in below(&self.links, &path) {
            self.links.remove(&other);
        }
        self.links.insert(path, of);
    }
}

/// The paths that are this one or below it.
fn below<T>(map: &BTreeMap<PathBuf, T>, path: &Path) -> Vec<PathBuf> {
    let from = (Bound::Included(path), Bound::Unbounded);
    let paths = map.range::<Path, _>(from).map(|(other, _)| other);
    let paths = paths.take_while(|other| other.starts_with(path)).cloned();
    paths.collect()
}

/// Where a symlink at `path` leads to in the image, by its names alone; `None` if that is no other place.
fn target_of(path: &Path, target: &Path) -> Option<PathBuf> {
    let mut place = match target.is_absolute() {
        true => PathBuf::new(),
        false => path.parent()?.to_owned(),
    };
    for part in target.components() {
        match part {
            Component::Normal(name) => place.push(name),
            Component::ParentDir => drop(place.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    (!place.starts_with(path) && !path.starts_with(&place)).then_some(place)
}
