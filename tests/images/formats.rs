//! Archive formats: the same image results from each.

use super::fixture::*;
use coracle::images::{ImageError, import};

const NAME: &str = "docker.io/library/busybox:latest";

#[test]
fn every_form_of_archive_is_imported() {
    let room = Room::new("matrix");
    let plain = busybox(&room);
    let from = format!("docker-archive:{}", plain.display());
    let oci = room.path("oci");
    run(
        "skopeo",
        &[
            "copy",
            "--insecure-policy",
            &from,
            &format!("oci:{}:{NAME}", oci.display()),
        ],
    );
    let zst = room.path("oci-zst");
    run(
        "skopeo",
        &[
            "copy",
            "--insecure-policy",
            "--dest-compress",
            "--dest-compress-format",
            "zstd",
            &from,
            &format!("oci:{}:{NAME}", zst.display()),
        ],
    );
    let oci_tar = room.path("oci.tar");
    run(
        "skopeo",
        &[
            "copy",
            "--insecure-policy",
            &from,
            &format!("oci-archive:{}:{NAME}", oci_tar.display()),
        ],
    );
    let docker = room.path("docker.tar");
    run(
        "skopeo",
        &[
            "copy",
            "--insecure-policy",
            &from,
            &format!("docker-archive:{}:{NAME}", docker.display()),
        ],
    );
    run(
        "sh",
        &[
            "-c",
            "cd $0 && gzip -kc bb.tar >whole-gz && zstd -qc bb.tar >whole-zst && gzip -c oci.tar >oci-gz",
            room.0.to_str().unwrap(),
        ],
    );

    // skopeo rewrites the config when it converts a format; the layer stays the same.
    let mut layer = None;
    for name in [
        "bb.tar",
        "oci",
        "oci-zst",
        "oci.tar",
        "docker.tar",
        "whole-gz",
        "whole-zst",
        "oci-gz",
    ] {
        let fresh = Room::new("matrix-store");
        let image = fresh.image(&room.path(name));
        assert_eq!(image.names, [NAME], "{name}");
        assert_eq!(
            image.config.cmd.as_deref(),
            Some(&["sh".to_owned()][..]),
            "{name}"
        );
        assert_eq!(image.layers.len(), 1, "{name}");
        assert!(image.layers[0].join("bin/sh").is_file(), "{name}");
        let diff_id = image.layers[0]
            .parent()
            .unwrap()
            .file_name()
            .unwrap()
            .to_owned();
        assert_eq!(*layer.get_or_insert(diff_id.clone()), diff_id, "{name}");
        assert_eq!(
            fresh.open().lookup("busybox").unwrap().unwrap(),
            image,
            "{name}"
        );
    }
}

#[test]
fn the_machines_architecture_is_chosen_from_nested_indexes() {
    let room = Room::new("multi");
    let layer = Layer::default().file("hello", b"hello").tar();
    oci_layout(&room.path("oci"), &["s390x", arch(), "mips"], &[layer]);
    let image = room.image(&room.path("oci"));
    assert_eq!(image.config.architecture, arch());
    assert_eq!(image.names, ["quay.io/acme/multi:3"]);
    let pinned = format!("quay.io/acme/multi@{}", image.manifest_digest);
    assert_eq!(room.open().lookup(&pinned).unwrap().unwrap().id, image.id);
}

#[test]
fn an_archive_without_the_machines_architecture_is_refused_and_its_architectures_are_listed() {
    let room = Room::new("foreign");
    oci_layout(
        &room.path("oci"),
        &["s390x", "mips"],
        &[Layer::default().tar()],
    );
    let message = room.import(&room.path("oci")).unwrap_err().to_string();
    assert!(
        message.contains("it has linux/mips, linux/s390x"),
        "{message}"
    );
    room.assert_empty();
}

#[test]
fn an_image_without_a_name_is_named_after_its_file() {
    let room = Room::new("unnamed");
    let bytes = docker_archive(&[Layer::default().file("a", b"a").tar()]);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(text.contains("\"test:1\""));
    let bytes = replace(&bytes, b"[\"test:1\"]", b"null      ");
    let image = room.image(&room.write("my-web.tar", &bytes));
    assert_eq!(image.names, ["docker.io/library/my-web:latest"]);
    let options = coracle::images::ImportOptions {
        name: Some("acme/web:7".to_owned()),
        ..Default::default()
    };
    let again = room
        .import_with(&room.path("my-web.tar"), &options)
        .unwrap();
    assert_eq!(again[0].names, ["docker.io/acme/web:7"]);
    assert_eq!(again[0].id, image.id);
}

#[test]
fn a_given_name_is_one_more_beside_those_in_the_archive() {
    let room = Room::new("one-more");
    let archive = docker_archive(&[Layer::default().file("a", b"a").tar()]);
    let archive = room.write("a.tar", &archive);
    for (given, names) in [
        (
            "acme/web:7",
            &["docker.io/acme/web:7", "docker.io/library/test:1"][..],
        ),
        ("test:1", &["docker.io/library/test:1"]),
    ] {
        let options = coracle::images::ImportOptions {
            name: Some(given.to_owned()),
            ..Default::default()
        };
        let imported = room.import_with(&archive, &options).unwrap();
        assert_eq!(imported[0].names, names, "{given}");
    }
    assert_eq!(room.open().list().unwrap()[0].names.len(), 2);
}

#[test]
fn several_images_of_one_archive_share_layers_by_symlink() {
    let room = Room::new("several");
    let shared = Layer::default().file("shared", b"s").tar();
    let own = Layer::default().file("own", b"o").tar();
    let small = config_json(arch(), std::slice::from_ref(&shared));
    let large = config_json(arch(), &[shared.clone(), own.clone()]);
    let manifest = serde_json::json!([
        {"Config": "small.json", "RepoTags": ["small:1", "<none>:<none>"], "Layers": ["a/layer.tar"]},
        {"Config": "large.json", "RepoTags": ["large:1", "large:2"], "Layers": ["b/layer.tar", "c/layer.tar"]},
    ]);
    let archive = Layer::default()
        .file("a/layer.tar", &shared)
        .link(tar::EntryType::Symlink, "b/layer.tar", "../a/layer.tar")
        .link(tar::EntryType::Link, "c/layer.tar", "d/layer.tar")
        .file("d/layer.tar", &own)
        .file("small.json", small.as_bytes())
        .file("large.json", large.as_bytes())
        .file("manifest.json", manifest.to_string().as_bytes())
        .tar();
    let path = room.write("a.tar", &archive);
    let unpacked = std::cell::RefCell::new(Vec::new());
    let import = || {
        let options = Default::default();
        unpacked.borrow_mut().clear();
        smol::block_on(import(exe(), &room.store(), &path, &options, |progress| {
            unpacked
                .borrow_mut()
                .push((progress.layer, progress.layers));
        }))
        .unwrap()
    };
    assert_eq!(import().len(), 2);
    assert!(unpacked.borrow().contains(&(2, 2)), "{unpacked:?}");
    let store = room.open();
    assert_eq!(store.lookup("small:1").unwrap().unwrap().layers.len(), 1);
    let large = store.lookup("large:2").unwrap().unwrap();
    assert_eq!(
        large.names,
        ["docker.io/library/large:1", "docker.io/library/large:2"]
    );
    assert_eq!(large.layers.len(), 2);
    // A layer that the store has is not unpacked again.
    assert_eq!(import().len(), 2);
    assert_eq!(*unpacked.borrow(), []);
}

#[test]
fn an_error_about_a_damaged_blob_has_both_digests() {
    let room = Room::new("damaged");
    let layer = Layer::default().file("hello", &[b'x'; 5000]).tar();
    for (part, word) in [
        (layer.clone(), "layer"),
        (
            config_json(arch(), std::slice::from_ref(&layer)).into_bytes(),
            "config",
        ),
    ] {
        let dir = room.path("oci");
        let _ = std::fs::remove_dir_all(&dir);
        oci_layout(&dir, &[arch()], std::slice::from_ref(&layer));
        let blob = dir.join("blobs/sha256").join(sha(&part));
        let mut bytes = part.clone();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&blob, bytes).unwrap();
        let message = room.import(&dir).unwrap_err().to_string();
        assert!(
            message.contains(word)
                && message.contains(&sha(&part))
                && message.contains("its digest is"),
            "{message}"
        );
        std::fs::write(&blob, &part[..part.len() - 10]).unwrap();
        let message = room.import(&dir).unwrap_err().to_string();
        assert!(message.contains("bytes, expected"), "{message}");
        std::fs::remove_file(&blob).unwrap();
        let message = room.import(&dir).unwrap_err().to_string();
        assert!(message.contains("is missing from the archive"), "{message}");
        room.assert_empty();
    }
}

#[test]
fn a_truncated_archive_is_reported_as_truncated() {
    let room = Room::new("truncated");
    let whole = std::fs::read(busybox(&room)).unwrap();
    run("gzip", &["-k", room.path("bb.tar").to_str().unwrap()]);
    run("zstd", &["-q", room.path("bb.tar").to_str().unwrap()]);
    for (name, bytes) in [
        ("cut.tar", whole.clone()),
        ("cut.tar.gz", std::fs::read(room.path("bb.tar.gz")).unwrap()),
        (
            "cut.tar.zst",
            std::fs::read(room.path("bb.tar.zst")).unwrap(),
        ),
    ] {
        let path = room.write(name, &bytes[..bytes.len() / 2]);
        let why = room.import(&path).unwrap_err();
        assert!(
            matches!(&why, ImageError::Worker { hint: Some(_), .. }),
            "{name}: {why:?}"
        );
        assert!(why.to_string().contains("truncated"), "{name}: {why}");
        room.assert_empty();
    }
}

#[test]
fn a_file_that_is_no_archive_is_refused_at_once() {
    let room = Room::new("nothing");
    run("mkfifo", &[&room.path("fifo")]);
    room.write("empty", b"");
    room.write("text", b"hello");
    room.write("other.tar", &Layer::default().file("hello", b"").tar());
    std::fs::create_dir(room.path("dir")).unwrap();
    for (name, reason) in [
        ("fifo", "neither a file nor a directory"),
        ("empty", "it is empty"),
        ("text", "does not start with a tar header"),
        (
            "other.tar",
            "neither `index.json` and `oci-layout` nor `manifest.json`",
        ),
        ("absent", "No such file or directory"),
        ("dir", "a directory without `index.json`"),
    ] {
        let why = room.import(&room.path(name)).unwrap_err().to_string();
        assert!(why.contains(reason), "{name}: {why}");
        room.assert_empty();
    }
}

pub fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = bytes.windows(from.len()).position(|w| w == from).unwrap();
    let mut new = bytes.to_vec();
    new[at..at + to.len()].copy_from_slice(to);
    new
}
