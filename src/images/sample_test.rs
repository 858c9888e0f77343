//! Images and stores for tests, imported without a worker of their own.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::digest;
use super::error::ImageError;
use super::import::{Request, import};
use super::oci::Platform;
use super::progress::Imported;
use super::store::ImageStore;

/// A directory of one test, removed at its end.
pub(crate) struct Room(pub(crate) PathBuf);

impl Room {
    pub(crate) fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("coracle-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    pub(crate) fn store(&self) -> ImageStore {
        ImageStore::open(&self.0.join("store")).unwrap()
    }

    /// An OCI layout of one image of this name, with one file that has this content.
    pub(crate) fn image(&self, layout: &str, name: &str, content: &str) -> PathBuf {
        let layout = Layout::new(&self.0.join(layout));
        let mut image = layout.image(content, &config(content));
        image["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
        layout.finish(&[image])
    }

    /// What imports an archive, if nothing is changed about it.
    pub(crate) fn request(&self, archive: &Path) -> Request {
        Request::of(&self.0.join("store"), archive)
    }

    pub(crate) fn import(&self, archive: &Path) -> Result<Vec<Imported>, ImageError> {
        import(&self.request(archive), &mut |_| Ok(()))
    }

    /// Imports an archive of a preload directory. Returns the id of its only image.
    pub(crate) fn preload(&self, archive: &Path) -> String {
        let request = Request {
            preloaded: true,
            ..self.request(archive)
        };
        import(&request, &mut |_| Ok(())).unwrap().remove(0).id
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An OCI layout that is being written.
pub(crate) struct Layout(PathBuf);

impl Layout {
    pub(crate) fn new(dir: &Path) -> Self {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir.join("blobs/sha256")).unwrap();
        fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Self(dir.to_owned())
    }

    /// Writes a blob. Returns its descriptor.
    pub(crate) fn blob(&self, kind: &str, bytes: &[u8]) -> Value {
        let digest = digest::of(bytes);
        let path = self.0.join("blobs/sha256").join(digest::hex(&digest));
        fs::write(path, bytes).unwrap();
        json!({ "mediaType": kind, "digest": digest, "size": bytes.len() })
    }

    /// Writes an image with one layer. Returns the descriptor of its manifest.
    pub(crate) fn image(&self, content: &str, config: &Value) -> Value {
        let layer = self.blob("application/vnd.oci.image.layer.v1.tar", &tar(content));
        let kind = "application/vnd.oci.image.config.v1+json";
        let config = self.blob(kind, config.to_string().as_bytes());
        self.manifest(&json!({ "schemaVersion": 2, "config": config, "layers": [layer] }))
    }

    /// Writes a manifest. Returns its descriptor.
    pub(crate) fn manifest(&self, manifest: &Value) -> Value {
        let kind = "application/vnd.oci.image.manifest.v1+json";
        self.blob(kind, manifest.to_string().as_bytes())
    }

    /// Writes an index. Returns its descriptor.
    pub(crate) fn index(&self, manifests: &[Value]) -> Value {
        let index = json!({ "schemaVersion": 2, "manifests": manifests });
        let kind = "application/vnd.oci.image.index.v1+json";
        self.blob(kind, index.to_string().as_bytes())
    }

    /// Writes what makes it a layout, with this at its top.
    pub(crate) fn finish(self, top: &[Value]) -> PathBuf {
        let index = json!({ "schemaVersion": 2, "manifests": top });
        fs::write(self.0.join("index.json"), index.to_string()).unwrap();
        self.0
    }
}

/// The config of an image for this machine with that one layer.
pub(crate) fn config(content: &str) -> Value {
    let own = Platform::own();
    json!({
        "architecture": own.architecture, "os": "linux", "config": { "Cmd": ["sh"] },
        "rootfs": { "type": "layers", "diff_ids": [digest::of(&tar(content))] },
    })
}

/// A layer with one file.
fn tar(content: &str) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    header.set_cksum();
    let mut layer = tar::Builder::new(Vec::new());
    layer
        .append_data(&mut header, "file", content.as_bytes())
        .unwrap();
    layer.into_inner().unwrap()
}
