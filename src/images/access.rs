//! Who may use an image: a part of its record, so that it is there when the image is, and goes with it.

use super::error::ImageError;
use super::name;
use super::store::{ImageStore, write_json};
use crate::spec::ImageName;
use crate::types::image_access::{self, Grant, Held};

impl ImageStore {
    /// What the store knows of an image by this name.
    pub fn held(&self, id: &str, name: &ImageName) -> Result<Held, ImageError> {
        let record = self.record(id)?;
        let Some(accesses) = record.and_then(|record| record.access) else {
            return Ok(Held {
                preloaded: true,
                ..Held::default()
            });
        };
        let access = accesses.get(&name.in_full());
        Ok(Held {
            preloaded: self.is_given(id, name)?,
            access: access.cloned().unwrap_or_default(),
        })
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
        let accesses = record.access.get_or_insert_default();
        let new = image_access::grant(accesses, &name.in_full(), Some(granted));
        if new {
            write_json(&self.record_path(id), &record)?;
        }
        Ok(new)
    }

    /// Records that a person has pulled an image, which is for all pods then; whether that is new.
    pub fn open_to_all(&self, id: &str, name: &ImageName) -> Result<bool, ImageError> {
        let Some(full) = name::tagged(name).filter(|_| name.digest.is_none()) else {
            let record = self.record(id)?;
            return match record.is_some_and(|record| record.access.is_some()) {
                true => self.grant(id, name, &Grant::Everyone),
                false => Ok(false),
            };
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
