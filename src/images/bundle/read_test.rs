//! Bundles as they should be, and as they should not.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::super::super::digest;
use super::super::super::import::read_bundle;
use super::super::super::space::KeepFree;
use super::super::super::trust::PrivateKey;
use super::super::{MAX_FILES, NewBundle, write_bundle};
use super::*;

/// A directory of one test.
struct Room(PathBuf);

impl Room {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("coracle-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn read(&self, archive: &Path) -> Result<Bundle, String> {
        read_bundle(&self.0.join("store"), archive, &[], KeepFree::default())
            .map_err(|why| crate::chain(&why))
    }

    /// Writes a layout whose manifests are these layers: name, content and changes to the descriptor.
    fn layout(&self, name: &str, layers: &[(&str, &[u8], Value)], more: &[Value]) -> PathBuf {
        let dir = self.0.join("layout");
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("blobs/sha256")).unwrap();
        let blob = |bytes: &[u8]| {
            let digest = digest::of(bytes);
            fs::write(dir.join("blobs/sha256").join(digest::hex(&digest)), bytes).unwrap();
            json!({ "digest": digest, "size": bytes.len() })
        };
        let layers = layers.iter().map(|(title, text, changes)| {
            let mut layer = blob(text);
            layer["mediaType"] = FILE_TYPE.into();
            layer["annotations"] = json!({ (super::super::TITLE): title });
            for (field, value) in changes.as_object().into_iter().flatten() {
                layer[field] = value.clone();
            }
            layer
        });
        let layers: Vec<Value> = layers.collect();
        let manifests = json!({ "schemaVersion": 2, "artifactType": ARTIFACT_TYPE, "config": blob(b"{}"), "layers": layers });
        let mut parts = vec![blob(manifests.to_string().as_bytes())];
        parts.extend(more.iter().cloned());
        let index = json!({ "schemaVersion": 2, "manifests": parts,
                            "annotations": { (NAME): name } });
        let layout =
            json!({ "schemaVersion": 2, "manifests": [blob(index.to_string().as_bytes())] });
        fs::write(dir.join("index.json"), layout.to_string()).unwrap();
        fs::write(dir.join("oci-layout"), "{}").unwrap();
        dir
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_is_written_is_read_again_and_is_the_same_each_time() {
    let room = Room::new("bundle-written");
    let bundle = NewBundle {
        name: "site".to_owned(),
        files: vec![
            ("b.yaml".to_owned(), b"kind: Pod\n".to_vec()),
            ("a.json".to_owned(), b"{}".to_vec()),
            ("same.json".to_owned(), b"{}".to_vec()),
        ],
        images: Vec::new(),
        platform: None,
        sign_by: None,
    };
    let write = || write_bundle(&bundle, Vec::new(), Path::new("site.tar")).unwrap();
    let (digest, bytes) = write();
    assert_eq!(write(), (digest.clone(), bytes.clone()));
    let path = room.0.join("site.tar");
    fs::write(&path, &bytes).unwrap();
    let read = room.read(&path).unwrap();
    assert_eq!(
        (read.name.as_str(), &read.digest, read.images.len()),
        ("site", &digest, 0)
    );
    let files: Vec<(String, Vec<u8>)> = read
        .files
        .into_iter()
        .map(|f| (f.name, f.text.into_bytes()))
        .collect();
    assert_eq!(files, bundle.files);
    // One bit of a manifest.
    let at = bytes
        .windows(9)
        .position(|found| found == b"kind: Pod")
        .unwrap();
    let mut damaged = bytes;
    damaged[at] ^= 1;
    fs::write(&path, damaged).unwrap();
    let why = room.read(&path).unwrap_err();
    assert!(why.contains("is damaged: its digest is"), "{why}");
}

#[test]
fn a_bundle_that_was_not_made_as_it_should_be_is_refused() {
    let room = Room::new("bundle-hostile");
    let text: &[u8] = b"kind: Pod\n";
    let fine = ("a.yaml", text, json!({}));
    assert!(
        room.read(&room.layout("site", std::slice::from_ref(&fine), &[]))
            .is_ok()
    );
    let one =
        |title: &'static str, text: &'static [u8], changes: Value| vec![(title, text, changes)];
    let names: Vec<String> = (0..=MAX_FILES).map(|n| format!("{n}.yaml")).collect();
    let many: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), text, json!({})))
        .collect();
    let unnamed = json!({ "digest": digest::of(text), "size": text.len() });
    let image = |name: &str| json!({ "digest": digest::of(text), "size": 1, "annotations": { (IMAGE_NAME): name } });
    for (name, layers, more, expected) in [
        (
            "../site",
            vec![fine.clone()],
            vec![],
            "its name `../site` is refused",
        ),
        ("", vec![fine.clone()], vec![], "its name `` is refused"),
        ("site", vec![], vec![], "it has no manifests"),
        (
            "site",
            one("../a.yaml", text, json!({})),
            vec![],
            "has the name `../a.yaml`",
        ),
        (
            "site",
            one(".a.yaml", text, json!({})),
            vec![],
            "it starts with a dot",
        ),
        (
            "site",
            one("a.sh", text, json!({})),
            vec![],
            "does not end in .yaml",
        ),
        (
            "site",
            one("a.yaml", b"\xff", json!({})),
            vec![],
            "is not UTF-8",
        ),
        (
            "site",
            one("a.yaml", b"a\x1b[2J", json!({})),
            vec![],
            "has control characters",
        ),
        (
            "site",
            one("a.yaml", text, json!({ "size": 3 })),
            vec![],
            "expected 3",
        ),
        (
            "site",
            one("a.yaml", text, json!({ "size": MAX_TEXT_BYTES + 1 })),
            vec![],
            "over the limit of 4194304 bytes",
        ),
        (
            "site",
            one("a.yaml", text, json!({ "mediaType": "text/x-sh" })),
            vec![],
            "unknown type `text/x-sh`",
        ),
        (
            "site",
            one("a.yaml", text, json!({ "digest": "../../etc/passwd" })),
            vec![],
            "is not a sha256 digest",
        ),
        (
            "site",
            vec![fine.clone(), fine.clone()],
            vec![],
            "the file `a.yaml` twice",
        ),
        ("site", many, vec![], "over the limit of 256 files"),
        (
            "site",
            vec![fine.clone()],
            vec![unnamed],
            "an image in it has no name",
        ),
        (
            "site",
            vec![fine.clone()],
            vec![image("a:1"), image("docker.io/library/a:1")],
            "library/a:1` twice",
        ),
        (
            "site",
            vec![fine.clone()],
            vec![image("A B")],
            "is not an image name",
        ),
    ] {
        let why = room.read(&room.layout(name, &layers, &more)).unwrap_err();
        assert!(why.contains(expected), "{expected}: {why}");
    }
    // Neither a bundle nor two.
    let dir = room.layout("site", &[fine], &[]);
    let index: Value = serde_json::from_slice(&fs::read(dir.join("index.json")).unwrap()).unwrap();
    for (entries, expected) in [(0, "no manifests"), (2, "it has several bundles")] {
        let entries = vec![index["manifests"][0].clone(); entries];
        fs::write(
            dir.join("index.json"),
            json!({ "manifests": entries }).to_string(),
        )
        .unwrap();
        let why = room.read(&dir).unwrap_err();
        assert!(why.contains(expected), "{expected}: {why}");
    }
}

#[test]
fn a_signature_counts_if_the_key_has_made_it_for_this_bundle() {
    let room = Room::new("bundle-signed");
    let store = room.0.join("store");
    let (own, other) = (PrivateKey::generate(), PrivateKey::generate());
    let public = PrivateKey::public(&own);
    let write = |file: &str, text: &str, sign_by| {
        let bundle = NewBundle {
            name: "site".to_owned(),
            files: vec![("a.yaml".to_owned(), text.as_bytes().to_vec())],
            images: Vec::new(),
            platform: None,
            sign_by,
        };
        let path = room.0.join(file);
        let (_, bytes) = write_bundle(&bundle, Vec::new(), &path).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    };
    let read = |path: &Path| {
        read_bundle(
            &store,
            path,
            std::slice::from_ref(&public),
            KeepFree::default(),
        )
        .map_err(|why| crate::chain(&why))
    };
    let signed = write("signed.tar", "kind: Pod", Some(own));
    assert_eq!(read(&signed).unwrap().name, "site");
    // Without a demand a signature means nothing.
    let strange = write("strange.tar", "kind: Pod", Some(other));
    assert!(room.read(&strange).is_ok());
    let unsigned = write("unsigned.tar", "kind: Service", None);
    // The signature of the first bundle beside another one.
    let moved = room.0.join("moved");
    for (from, first) in [(&signed, true), (&unsigned, false)] {
        let mut archive = tar::Archive::new(fs::File::open(from).unwrap());
        archive.unpack(&moved).unwrap();
        let index = moved.join("index.json");
        let mut now: Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
        if first {
            fs::write(room.0.join("first.json"), now.to_string()).unwrap();
        } else {
            let before: Value =
                serde_json::from_slice(&fs::read(room.0.join("first.json")).unwrap()).unwrap();
            let mut signature = before["manifests"][1].clone();
            let digest = now["manifests"][0]["digest"].as_str().unwrap();
            signature["annotations"][REF_NAME] = signature_tag(digest).into();
            now["manifests"].as_array_mut().unwrap().push(signature);
            fs::write(&index, now.to_string()).unwrap();
        }
    }
    for (archive, expected) in [
        (
            &strange,
            "none of its signatures was made for it with that key",
        ),
        (
            &moved,
            "none of its signatures was made for it with that key",
        ),
        (&unsigned, "it has no signature"),
    ] {
        let why = read(archive).unwrap_err();
        assert!(why.contains(expected), "{expected}: {why}");
    }
}
