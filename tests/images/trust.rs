//! Archives under a policy.

use std::path::{Path, PathBuf};

use coracle::images::trust::Policy;
use coracle::images::{ImageError, ImportOptions, Imported, preload};
use coracle::spec::ImageName;
use serde_json::{Value, json};

use crate::fixture::{Layer, Room, arch, config_json, docker_archive, oci_layout, run, sha};
use crate::signing::{Signed, Signer, manifest};

/// A room with a policy in which `docker.io/library/test` and `quay.io/acme` need the owner's signature.
struct World {
    room: Room,
    owner: Signer,
}

impl World {
    fn new(name: &str) -> Self {
        let room = Room::new(name);
        let world = Self {
            owner: Signer::new(&room.0, "owner"),
            room,
        };
        let signed = json!([world.owner.repository()]);
        world.policy(&json!({
            "docker": { "docker.io/library/test": signed, "quay.io/acme": signed },
        }));
        world
    }

    fn policy(&self, transports: &Value) {
        let accept = json!([{ "type": "insecureAcceptAnything" }]);
        let text = json!({ "default": accept, "transports": transports }).to_string();
        self.room.write("policy.json", text.as_bytes());
    }

    fn options(&self) -> ImportOptions {
        ImportOptions {
            policy: Some(self.room.path("policy.json")),
            ..ImportOptions::default()
        }
    }

    fn import(&self, archive: &Path) -> Result<Vec<Imported>, ImageError> {
        self.room.import_with(archive, &self.options())
    }

    /// Imports what must be refused: nothing of it stays.
    fn refused(&self, archive: &Path) -> String {
        let why = self.import(archive).expect_err("an untrusted image");
        self.room.assert_empty();
        format!("{why}; {}", why.hint().unwrap_or_default())
    }

    /// Imports what must be let in, and checks that it may run.
    fn ok(&self, archive: &Path) {
        let imported = self.import(archive).unwrap_or_else(|why| panic!("{why}"));
        for image in &imported {
            for name in &image.names {
                self.check(&image.id, name).unwrap();
            }
        }
    }

    fn check(&self, id: &str, name: &str) -> Result<(), ImageError> {
        let policy = Policy::read(&self.room.path("policy.json")).unwrap();
        let name = ImageName::parse(name).unwrap();
        self.room.open().check_trust(&policy, id, &name)
    }

    /// Writes signatures beside an archive.
    fn put_beside(&self, archive: &Path, signed: &[Signed]) {
        let mut path = archive.as_os_str().to_owned();
        path.push(".sig");
        let lines: String = signed
            .iter()
            .map(|signed| self.owner.line(signed))
            .collect();
        std::fs::write(path, lines).unwrap();
    }

    /// An OCI layout directory, and the digests of its index and of this machine's image.
    fn layout(&self) -> (PathBuf, String, String) {
        let dir = self.room.path("layout");
        oci_layout(&dir, &["s390x", arch()], &[layer()]);
        let read = |path: &Path| -> Value {
            serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
        };
        let top = read(&dir.join("index.json"))["manifests"][0]["digest"].clone();
        let top = top.as_str().unwrap().to_owned();
        let blob = dir
            .join("blobs/sha256")
            .join(top.trim_start_matches("sha256:"));
        let own = read(&blob)["manifests"][1]["digest"].clone();
        (dir, top, own.as_str().unwrap().to_owned())
    }

    /// Puts signatures into a layout as cosign tags them.
    fn put_inside(&self, dir: &Path, of: &str, signed: &[Signed]) {
        let (manifest, mut blobs) = manifest(signed, None);
        let manifest = manifest.to_string().into_bytes();
        let entry = json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": format!("sha256:{}", sha(&manifest)),
            "size": manifest.len(),
            "annotations": {
                "org.opencontainers.image.ref.name": format!("{}.sig", of.replace(':', "-")),
            },
        });
        blobs.push(manifest);
        for blob in blobs {
            std::fs::write(dir.join("blobs/sha256").join(sha(&blob)), blob).unwrap();
        }
        let index = std::fs::read(dir.join("index.json")).unwrap();
        let mut index: Value = serde_json::from_slice(&index).unwrap();
        index["manifests"].as_array_mut().unwrap().push(entry);
        std::fs::write(dir.join("index.json"), index.to_string()).unwrap();
    }

    fn pack(&self, dir: &Path) -> PathBuf {
        let tar = self.room.path("packed.tar");
        let (to, from) = (tar.to_str().unwrap(), dir.to_str().unwrap());
        run("tar", &["-cf", to, "-C", from, "."]);
        tar
    }
}

fn layer() -> Vec<u8> {
    Layer::default().file("a", b"hello").tar()
}

#[test]
fn an_archive_of_docker_save_is_let_in_with_a_signature_of_its_image_id_beside_it() {
    let world = World::new("beside");
    let archive = world.room.write("a.tar", &docker_archive(&[layer()]));
    let id = format!("sha256:{}", sha(config_json(arch(), &[layer()]).as_bytes()));
    let why = world.refused(&archive);
    assert!(
        why.contains("`docker.io/library/test:1` is not trusted: it has no signature"),
        "{why}"
    );
    let stranger = Signer::new(&world.room.0, "stranger");
    let name = "docker.io/library/test";
    for (signed, expected) in [
        (stranger.sign(name, &id), "another key"),
        (
            world.owner.sign("docker.io/library/other", &id),
            "one for `docker.io/library/other`",
        ),
        (
            world.owner.sign(name, &format!("sha256:{}", sha(b""))),
            "it is one of sha256:",
        ),
    ] {
        world.put_beside(&archive, &[signed]);
        let why = world.refused(&archive);
        assert!(why.contains(expected), "{why}");
    }
    std::fs::write(world.room.path("a.tar.sig"), "garbage").unwrap();
    assert!(
        world
            .refused(&archive)
            .contains("the list of signatures is not valid")
    );
    world.put_beside(&archive, &[world.owner.sign(name, &id)]);
    world.ok(&archive);
    // Under another name it is another image.
    let other = world
        .room
        .open()
        .tag("test:1", "quay.io/acme/test:1")
        .unwrap();
    let why = world.check(&id, &other).unwrap_err();
    assert!(
        why.to_string().contains("one for `docker.io/library/test`"),
        "{why}"
    );
    world
        .check(&id, &world.room.open().tag("test:1", "free:1").unwrap())
        .unwrap();
}

#[test]
fn a_layout_has_signatures_of_its_index_or_its_image_inside_or_beside_it() {
    for inside in [false, true] {
        for of_index in [false, true] {
            for packed in [false, true] {
                let world = World::new("layout");
                let (dir, index, image) = world.layout();
                assert!(world.refused(&dir).contains("no signature"));
                let of = if of_index { index } else { image };
                let signed = world.owner.sign("quay.io/acme/multi", &of);
                if inside {
                    world.put_inside(&dir, &of, std::slice::from_ref(&signed));
                }
                let archive = if packed { world.pack(&dir) } else { dir };
                if !inside {
                    world.put_beside(&archive, &[signed]);
                }
                world.ok(&archive);
                let names: Vec<_> = world.room.open().list().unwrap();
                assert_eq!(names.len(), 1, "a signature is no image: {names:?}");
            }
        }
    }
}

#[test]
fn archives_follow_the_rules_of_their_path() {
    let world = World::new("paths");
    let archive = world.room.write("a.tar", &docker_archive(&[layer()]));
    let reject = json!([{ "type": "reject" }]);
    let accept = json!([{ "type": "insecureAcceptAnything" }]);
    world.policy(&json!({ "docker-archive": { (world.room.0.to_str().unwrap()): reject } }));
    assert!(world.refused(&archive).contains("of the policy rejects it"));
    world.policy(&json!({
        "docker": { "": reject },
        "docker-archive": { (archive.to_str().unwrap()): accept },
    }));
    world.ok(&archive);
    // The same image from elsewhere is not exempt.
    let id = world.room.open().lookup("test:1").unwrap().unwrap().id;
    let tagged = world.room.open().tag("test:1", "test:2").unwrap();
    assert!(world.check(&id, &tagged).is_err());
    world.policy(&json!({ "docker": { "": reject } }));
    assert!(world.check(&id, "test:1").is_err());
}

#[test]
fn a_policy_that_is_not_understood_lets_nothing_in() {
    let world = World::new("broken");
    let archive = world.room.write("a.tar", &docker_archive(&[layer()]));
    world
        .room
        .write("policy.json", b"{\"default\": [{\"type\": \"signedBy\"}]}");
    let why = world.refused(&archive);
    assert!(
        why.contains("policy.json`: default: `signedBy` (GPG) is not supported")
            && why.contains("coracle doctor"),
        "{why}"
    );
    std::fs::remove_file(world.room.path("policy.json")).unwrap();
    world.ok(&archive);
}

#[test]
fn a_preloaded_archive_is_looked_at_again_under_another_policy() {
    let world = World::new("preload");
    std::fs::create_dir_all(world.room.path("preload")).unwrap();
    let archive = world
        .room
        .write("preload/a.tar", &docker_archive(&[layer()]));
    let id = format!("sha256:{}", sha(config_json(arch(), &[layer()]).as_bytes()));
    let signed = world.owner.sign("docker.io/library/test", &id);
    world.put_beside(&archive, &[signed]);
    let policy = std::fs::read(world.room.path("policy.json")).unwrap();
    std::fs::remove_file(world.room.path("policy.json")).unwrap();
    let pending = || {
        let policy = Policy::read(&world.room.path("policy.json")).unwrap();
        let mut found = preload::scan(&[world.room.path("preload")]).archives;
        assert_eq!(found.len(), 1, "signatures are no archive: {found:?}");
        found
            .iter_mut()
            .for_each(|found| found.note_policy(&policy));
        preload::pending(&world.room.open(), &found).unwrap().len()
    };
    let options = ImportOptions {
        preloaded: true,
        ..world.options()
    };
    let import = || world.room.import_with(&archive, &options);
    assert_eq!(pending(), 1);
    import().unwrap();
    assert_eq!(pending(), 0);
    world.room.write("policy.json", &policy);
    assert!(
        world.check(&id, "test:1").is_err(),
        "its signatures are not known"
    );
    assert_eq!(pending(), 1);
    import().unwrap();
    assert_eq!(pending(), 0);
    world.check(&id, "test:1").unwrap();
}
