//! Archives and stores for the image tests: layers built entry by entry, the real worker, directories of their own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use coracle::images::{Image, ImageError, ImageStore, ImportOptions, Imported, import};
use sha2::{Digest, Sha256};
use tar::{EntryType, Header};

/// A directory of one test, removed at its end.
pub struct Room(pub PathBuf);

impl Room {
    pub fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!(
            "coracle-images-{name}-{}-{number}",
            std::process::id()
        ));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn store(&self) -> PathBuf {
        self.path("store")
    }

    pub fn open(&self) -> ImageStore {
        ImageStore::open(&self.store()).unwrap()
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub fn import(&self, archive: &Path) -> Result<Vec<Imported>, ImageError> {
        self.import_with(archive, &ImportOptions::default())
    }

    pub fn import_with(
        &self,
        archive: &Path,
        options: &ImportOptions,
    ) -> Result<Vec<Imported>, ImageError> {
        smol::block_on(import(exe(), &self.store(), archive, options, |_| {}))
    }

    /// Imports an archive's only image, and looks it up.
    pub fn image(&self, archive: &Path) -> Image {
        let imported = self.import(archive).unwrap();
        assert_eq!(imported.len(), 1, "{imported:?}");
        self.open().lookup(&imported[0].id).unwrap().unwrap()
    }

    /// Asserts that nothing of a failed import is left.
    pub fn assert_empty(&self) {
        let store = self.open();
        assert_eq!(store.list().unwrap(), []);
        for part in [
            "tmp",
            "layers",
            "directories",
            "records",
            "refs",
            "blobs/sha256",
        ] {
            let left: Vec<_> = std::fs::read_dir(store.dir().join(part)).unwrap().collect();
            assert!(left.is_empty(), "{part}: {left:?}");
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn exe() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_coracle"))
}

/// Runs a program that must succeed; a missing program fails the test and names the packages to install.
pub fn run<S: AsRef<OsStr>>(program: &str, args: &[S]) {
    let output = Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|why| {
            panic!("{program}: {why}; apt-get install skopeo umoci zstd busybox-static python3")
        });
    assert!(
        output.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The quickstart's busybox image.
pub fn busybox(room: &Room) -> PathBuf {
    let path = room.path("bb.tar");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/make-image.sh");
    run(script.to_str().unwrap(), &[&path]);
    path
}

/// One entry of a layer; everything else has defaults.
pub fn header(kind: EntryType, name: &str, size: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_700_000_000);
    header.set_size(size);
    // `set_path` would refuse the names that hostile archives have.
    let old = header.as_old_mut();
    old.name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_cksum();
    header
}

/// A layer's tar.
#[derive(Default)]
pub struct Layer(Vec<u8>);

impl Layer {
    pub fn raw(mut self, header: &Header, data: &[u8]) -> Self {
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub fn file(self, name: &str, data: &[u8]) -> Self {
        self.raw(&header(EntryType::Regular, name, data.len() as u64), data)
    }

    pub fn dir(self, name: &str) -> Self {
        let mut header = header(EntryType::Directory, name, 0);
        header.set_mode(0o755);
        header.set_cksum();
        self.raw(&header, b"")
    }

    pub fn link(self, kind: EntryType, name: &str, target: &str) -> Self {
        let mut header = header(kind, name, 0);
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        self.raw(&header, b"")
    }

    /// PAX records for the next entry.
    pub fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut data = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while rest + length.to_string().len() != length {
                length += 1;
            }
            data.extend_from_slice(format!("{length} {key}=").as_bytes());
            data.extend_from_slice(value);
            data.push(b'\n');
        }
        self.raw(&header(EntryType::XHeader, "pax", data.len() as u64), &data)
    }

    pub fn tar(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

pub fn sha(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

pub fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

pub fn config_json(arch: &str, layers: &[Vec<u8>]) -> String {
    let diff_ids: Vec<_> = layers
        .iter()
        .map(|l| format!("sha256:{}", sha(l)))
        .collect();
    serde_json::json!({
        "architecture": arch, "os": "linux",
        "config": {"Cmd": ["sh"]},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    })
    .to_string()
}

/// A docker-archive of one image, named `docker.io/library/test:1`.
pub fn docker_archive(layers: &[Vec<u8>]) -> Vec<u8> {
    docker_archive_with(&config_json(arch(), layers), &["test:1"], layers)
}

/// A docker-archive of one image with this config and these names.
pub fn docker_archive_with(config: &str, tags: &[&str], layers: &[Vec<u8>]) -> Vec<u8> {
    let mut archive = Layer::default();
    let names: Vec<_> = (0..layers.len())
        .map(|i| format!("{i}/layer.tar"))
        .collect();
    for (name, layer) in names.iter().zip(layers) {
        archive = archive.file(name, layer);
    }
    let manifest =
        serde_json::json!([{"Config": "config.json", "RepoTags": tags, "Layers": names}]);
    archive
        .file("config.json", config.as_bytes())
        .file("manifest.json", manifest.to_string().as_bytes())
        .tar()
}

/// Writes an OCI layout directory with one image for each architecture, below one nested index.
pub fn oci_layout(dir: &Path, archs: &[&str], layers: &[Vec<u8>]) {
    let blobs = dir.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    let put = |bytes: &[u8]| -> serde_json::Value {
        std::fs::write(blobs.join(sha(bytes)), bytes).unwrap();
        serde_json::json!({"mediaType": "x", "digest": format!("sha256:{}", sha(bytes)), "size": bytes.len()})
    };
    let mut manifests = Vec::new();
    for arch in archs {
        let layers_json: Vec<_> = layers.iter().map(|l| put(l)).collect();
        let config = put(config_json(arch, layers).as_bytes());
        let manifest =
            serde_json::json!({"schemaVersion": 2, "config": config, "layers": layers_json});
        let mut descriptor = put(manifest.to_string().as_bytes());
        descriptor["platform"] = serde_json::json!({"architecture": arch, "os": "linux"});
        manifests.push(descriptor);
    }
    let mut index = put(
        serde_json::json!({"schemaVersion": 2, "manifests": manifests})
            .to_string()
            .as_bytes(),
    );
    index["annotations"] =
        serde_json::json!({"org.opencontainers.image.ref.name": "quay.io/acme/multi:3"});
    let top = serde_json::json!({"schemaVersion": 2, "manifests": [index]});
    std::fs::write(dir.join("index.json"), top.to_string()).unwrap();
    std::fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}
