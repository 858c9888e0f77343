//! What has arrived of a blob: a file, and a record beside it. Both outlive the worker, the agent and the node.
//!
//! Whatever is in the file counts while the machine runs. After a power cut only what was flushed does: the record says
//! how much that is, and in which boot it was written. A wrong byte costs the blob, never more: its digest is checked
//! over the whole.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::super::digest::format_digest;
use super::super::error::{ImageError, io as io_error};
use super::super::gc;
use super::super::store::read_json;
use super::folder::PullFolder;
use crate::sys::file::{Durability, read_text, replace};

/// Flushed after this many bytes: what a power cut may cost of each download.
const FLUSH_BYTES: u64 = 16 << 20;

/// Tells boots apart.
pub(super) const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// `ETag` or `Last-Modified` of the data.
    validator: Option<String>,
    /// The registry that calls it so.
    #[serde(default)]
    origin: String,
    /// The boot in which the data was written.
    boot: String,
    /// This many bytes survive a power cut.
    flushed: u64,
}

/// A blob that is being downloaded.
pub(super) struct Partial {
    path: PathBuf,
    record_path: PathBuf,
    file: File,
    record: Record,
    len: u64,
    hash: Sha256,
}

impl Partial {
    /// Opens what has arrived of a blob, and reads it once for the digest. More than `size` bytes are dropped.
    pub(super) fn open(folder: &PullFolder, digest: &str, size: u64) -> Result<Self, ImageError> {
        let path = folder.partial(digest);
        let record_path = path.with_extension("json");
        let boot = read_text(BOOT_ID).unwrap_or_default().trim().to_owned();
        // A record that cannot be read is as good as none.
        let former: Record = read_json(&record_path).ok().flatten().unwrap_or_default();
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(io_error("open", &path))?;
        let found = file.metadata().map_err(io_error("read", &path))?.len();
        let good = match former.boot == boot && !boot.is_empty() {
            true => found,
            false => found.min(former.flushed),
        };
        let mut partial = Self {
            path,
            record_path,
            file,
            record: Record {
                boot,
                flushed: former.flushed.min(good),
                validator: former.validator,
                origin: former.origin,
            },
            len: 0,
            hash: Sha256::new(),
        };
        match good <= size {
            true => partial.take_up(good)?,
            false => partial.restart("", None)?,
        }
        Ok(partial)
    }

    fn take_up(&mut self, good: u64) -> Result<(), ImageError> {
        let failed = || io_error("read", &self.path);
        self.file.set_len(good).map_err(failed())?;
        self.file.rewind().map_err(failed())?;
        let mut rest = (&self.file).take(good);
        let mut buffer = vec![0; 64 << 10];
        loop {
            match rest.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => self.hash.update(&buffer[..n]),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(failed()(why)),
            }
        }
        self.len = good;
        self.write_record()
    }

    /// Bytes that are there.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// What a registry called the data that is there; `None` if it came from another one, whose names mean nothing here.
    pub(super) fn validator(&self, origin: &str) -> Option<&str> {
        let validator = self.record.validator.as_deref();
        validator.filter(|_| self.record.origin == origin)
    }

    /// Forgets what is there. What comes next is called so by `origin`.
    pub(super) fn restart(
        &mut self,
        origin: &str,
        validator: Option<String>,
    ) -> Result<(), ImageError> {
        self.file
            .set_len(0)
            .map_err(io_error("write", &self.path))?;
        self.file.rewind().map_err(io_error("write", &self.path))?;
        (self.len, self.hash) = (0, Sha256::new());
        self.record.flushed = 0;
        self.record.validator = validator;
        self.record.origin = origin.to_owned();
        self.write_record()
    }

    /// Remembers what the server calls the data that comes next.
    pub(super) fn name(
        &mut self,
        origin: &str,
        validator: Option<String>,
    ) -> Result<(), ImageError> {
        if validator.is_none() || validator.as_deref() == self.validator(origin) {
            return Ok(());
        }
        self.record.validator = validator;
        self.record.origin = origin.to_owned();
        self.write_record()
    }

    /// Adds bytes. An error of the file system is returned as it is, for the caller to explain.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.len))?;
        self.file.write_all(bytes)?;
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
        if self.len - self.record.flushed >= FLUSH_BYTES {
            self.file.sync_data()?;
            self.record.flushed = self.len;
            self.write_record().map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// The digest of what is there.
    pub(super) fn digest(&self) -> String {
        format_digest(self.hash.clone().finalize().as_slice())
    }

    /// Makes it a complete blob; the caller has checked its digest.
    pub(super) fn finish(self, folder: &PullFolder, digest: &str) -> Result<(), ImageError> {
        self.finish_as(&folder.blob(digest))
    }

    /// Makes it a complete file.
    pub(super) fn finish_as(self, path: &Path) -> Result<(), ImageError> {
        self.file
            .sync_data()
            .map_err(io_error("sync", &self.path))?;
        fs::rename(&self.path, path).map_err(io_error("move", &self.path))?;
        if let Some(parent) = path.parent() {
            gc::sync(parent)?;
        }
        gc::remove(&self.record_path)
    }

    /// The path, for messages.
    pub(super) fn path(&self) -> &PathBuf {
        &self.path
    }

    fn write_record(&self) -> Result<(), ImageError> {
        let bytes = serde_json::to_vec(&self.record).expect("plain data");
        replace(&self.record_path, &bytes, 0o600, Durability::PowerCut)
            .map_err(io_error("write", &self.record_path))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::digest;
    use super::super::super::store::ImageStore;
    use super::*;

    /// Folder, digest and what a record of another boot says.
    fn case(name: &str) -> (PathBuf, PullFolder, String, Vec<u8>) {
        let dir =
            std::env::temp_dir().join(format!("coracle-partial-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let store = ImageStore::open(&dir).unwrap();
        let folder = PullFolder::make(&PullFolder::place(&store, name, "")).unwrap();
        let data: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        (dir, folder, digest::of(&data), data)
    }

    fn open(folder: &PullFolder, digest: &str, data: &[u8]) -> Partial {
        Partial::open(folder, digest, data.len() as u64).unwrap()
    }

    #[test]
    fn a_download_is_taken_up_where_it_was_left_and_ends_as_a_blob() {
        let (dir, folder, digest, data) = case("resumed");
        let mut partial = open(&folder, &digest, &data);
        partial
            .name("https://r", Some("\"v1\"".to_owned()))
            .unwrap();
        partial.append(&data[..1000]).unwrap();
        drop(partial);
        let mut partial = open(&folder, &digest, &data);
        assert_eq!(partial.len(), 1000);
        assert_eq!(partial.validator("https://r"), Some("\"v1\""));
        assert_eq!(partial.validator("https://mirror"), None);
        partial.append(&data[1000..]).unwrap();
        assert_eq!(partial.digest(), digest);
        partial.finish(&folder, &digest).unwrap();
        assert_eq!(fs::read(folder.blob(&digest)).unwrap(), data);
        assert_eq!(fs::read_dir(dir.join("pulls")).unwrap().count(), 1);
        assert!(
            !folder.partial(&digest).exists()
                && !folder.partial(&digest).with_extension("json").exists()
        );
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn after_a_power_cut_only_what_was_flushed_counts() {
        let (dir, folder, digest, data) = case("cut");
        let mut partial = open(&folder, &digest, &data);
        partial.append(&data[..5000]).unwrap();
        drop(partial);
        let record = |flushed: u64, boot: &str| {
            let record = Record {
                validator: Some("x".to_owned()),
                origin: "https://r".to_owned(),
                boot: boot.to_owned(),
                flushed,
            };
            let path = folder.partial(&digest).with_extension("json");
            fs::write(path, serde_json::to_vec(&record).unwrap()).unwrap();
        };
        record(2000, "another boot");
        let partial = open(&folder, &digest, &data);
        assert_eq!(
            (partial.len(), partial.digest()),
            (2000, digest::of(&data[..2000]))
        );
        drop(partial);
        // The record of this boot counts for what was written in it.
        assert_eq!(open(&folder, &digest, &data).len(), 2000);
        record(9_999_999, "another boot");
        assert_eq!(
            open(&folder, &digest, &data).len(),
            2000,
            "no more than there is"
        );
        fs::write(folder.partial(&digest).with_extension("json"), "no JSON").unwrap();
        assert_eq!(open(&folder, &digest, &data).len(), 0);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_that_is_too_long_is_forgotten() {
        let (dir, folder, digest, data) = case("long");
        let mut partial = open(&folder, &digest, &data);
        partial.append(&data).unwrap();
        drop(partial);
        assert_eq!(Partial::open(&folder, &digest, 10).unwrap().len(), 0);
        fs::remove_dir_all(dir).unwrap();
    }
}
