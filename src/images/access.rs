//! Who may use an image: a part of its record, so that it is there when the image is, and goes with it.

use std::collections::BTreeSet;

use super::error::ImageError;
use super::name;
use super::store::{ImageStore, write_json};
use crate::spec::ImageName;
use crate::types::image_access::{self, Accesses, Grant, Held};

impl ImageStore {
    /// What the store knows of an image by this name.
    pub fn held(&self, id: &str, name: &ImageName) -> Result<Held, ImageError> {
        let record = self.record(id)?;
        let repository = name.in_full();
        let named = self.repositories(id)?;
        let Some(mut accesses) = record.and_then(|record| record.access) else {
            return Ok(Held {
                preloaded: true,
                named: named.is_empty() || named.contains(&repository),
                ..Held::default()
            });
        };
        let access = accesses.remove(&repository);
        Ok(Held {
            named: access.is_some() || named.contains(&repository),
            preloaded: access.as_ref().is_some_and(|access| access.given)
                || self.is_given(id, name)?,
            access: access.unwrap_or_default(),
        })
    }

    /// The repositories, in full, of the names of an image.
    fn repositories(&self, id: &str) -> Result<BTreeSet<String>, ImageError> {
        let names = self.references()?.into_iter();
        let repository = |(full, of): (String, String)| {
            let name = name::parse(&full).ok().filter(|_| of == id)?;
            Some(name.in_full())
        };
        Ok(names.filter_map(repository).collect())
    }

    /// What is recorded first of an image that was for all pods until now: it stays so by the names that it has, or by
    /// this repository if it has none.
    pub(super) fn first_accesses(
        &self,
        id: &str,
        repository: &str,
    ) -> Result<Accesses, ImageError> {
        let mut named = self.repositories(id)?;
        if named.is_empty() {
            named.insert(repository.to_owned());
        }
        let mut accesses = Accesses::new();
        for repository in named {
            image_access::grant(&mut accesses, &repository, Some(&Grant::Given));
        }
        Ok(accesses)
    }

    /// Whether this name of an image came from an archive, or was given by a person. With a digest, whether any name of
    /// its repository was.
    fn is_given(&self, id: &str, name: &ImageName) -> Result<bool, ImageError> {
        let names = match name::tagged(name).filter(|_| name.digest.is_none()) {
            Some(full) => vec![full],
            None => {
                let all = self.references()?.into_keys();
                let same = |full: &String| {
                    name::parse(full).is_ok_and(|other| other.in_full() == name.in_full())
                };
                all.filter(same).collect()
            }
        };
        for full in names {
            let found = self.reference(&full)?;
            if found.is_some_and(|found| found.is_given(id)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Records whose credentials the registry of an image has accepted; whether that is new.
    pub fn grant(&self, id: &str, name: &ImageName, granted: &Grant) -> Result<bool, ImageError> {
        let _lock = self.lock()?;
        let Some(mut record) = self.record(id)? else {
            // It was removed meanwhile.
            return Ok(false);
        };
        let repository = name.in_full();
        let first = record.access.is_none();
        let mut accesses = match record.access.take() {
            Some(accesses) => accesses,
            None => self.first_accesses(id, &repository)?,
        };
        let new = image_access::grant(&mut accesses, &repository, Some(granted));
        record.access = Some(accesses);
        if new || first {
            write_json(&self.record_path(id), &record)?;
        }
        Ok(new)
    }

    /// Records that a person has pulled an image, which is for all pods then; whether that is new.
    pub fn open_to_all(&self, id: &str, name: &ImageName) -> Result<bool, ImageError> {
        let Some(full) = name::tagged(name).filter(|_| name.digest.is_none()) else {
            return self.grant(id, name, &Grant::Given);
        };
        let _lock = self.lock()?;
        match self.reference(&full)? {
            Some(mut known) if known.id == id && !known.is_given(id) => {
                known.opened = true;
                write_json(&self.reference_path(&full), &known)?;
                Ok(true)
            }
            Some(_) | None => Ok(false),
        }
    }
}
