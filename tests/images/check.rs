//! The check of the image store: damage by a power cut or a failing disk is found, and only intact images stay.

use std::fs;
use std::path::{Path, PathBuf};

use super::fixture::*;
use coracle::images::{Check, ImageStore};

/// A store with two images that share a layer.
fn two_images(room: &Room) -> ImageStore {
    let shared = Layer::default()
        .dir("etc")
        .file("etc/shared", b"both")
        .tar();
    let own = Layer::default().file("own", b"one").tar();
    let one = room.write("one.tar", &docker_archive(&[shared.clone(), own]));
    let two = room.write("two.tar", &docker_archive(&[shared]));
    for (archive, name) in [(one, "one:1"), (two, "two:1")] {
        let options = coracle::images::ImportOptions {
            name: Some(name.to_owned()),
            preloaded: true,
            ..Default::default()
        };
        room.import_with(&archive, &options).unwrap();
    }
    room.open()
}

fn first(folder: &Path, with: &str) -> PathBuf {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("diff").join(with).exists() || with.is_empty())
        .collect();
    found.sort();
    found.remove(0)
}

fn names(store: &ImageStore) -> Vec<String> {
    let images = store.list().unwrap();
    images.into_iter().flat_map(|image| image.names).collect()
}

#[test]
fn an_intact_store_is_reported_as_intact_and_not_changed() {
    let room = Room::new("whole");
    let store = two_images(&room);
    let expected = Check {
        images: 2,
        layers: 2,
        ..Check::default()
    };
    assert_eq!(store.check().unwrap(), expected);
    assert_eq!(store.repair().unwrap(), expected);
    assert_eq!(
        names(&store),
        ["docker.io/library/one:1", "docker.io/library/two:1"]
    );
    assert!(room.store().join("preload.json").exists());
}

#[test]
fn damaged_images_are_reported_and_removed_and_the_rest_stays() {
    const BOTH: [&str; 2] = ["docker.io/library/one:1", "docker.io/library/two:1"];
    const TWO: [&str; 1] = ["docker.io/library/two:1"];
    type Damage<'a> = (&'a str, fn(&Path), &'a str, &'a [&'a str]);
    let cases: [Damage<'_>; 8] = [
        (
            "a file of a layer is empty",
            |store| {
                let layer = first(&store.join("layers"), "own");
                fs::write(layer.join("diff/own"), "").unwrap();
            },
            "one:1: layer sha256:",
            &TWO,
        ),
        (
            "a file of a shared layer is gone",
            |store| {
                let layer = first(&store.join("layers"), "etc");
                fs::remove_file(layer.join("diff/etc/shared")).unwrap();
            },
            "differs from what was unpacked",
            &[],
        ),
        (
            "a layer's record is incomplete",
            |store| {
                let layer = first(&store.join("layers"), "own");
                fs::write(layer.join("layer.json"), "{\"tar").unwrap();
            },
            "one:1: layer sha256:",
            &TWO,
        ),
        (
            "a layer is gone",
            |store| fs::remove_dir_all(first(&store.join("layers"), "own")).unwrap(),
            "is missing",
            &TWO,
        ),
        (
            "all blobs are empty",
            |store| {
                for blob in fs::read_dir(store.join("blobs/sha256")).unwrap() {
                    fs::write(blob.unwrap().path(), "").unwrap();
                }
            },
            "the content of blob sha256:",
            &[],
        ),
        (
            "a record is incomplete",
            |store| fs::write(first(&store.join("records"), ""), "{").unwrap(),
            "records/",
            &[],
        ),
        (
            "the name of an image is empty",
            |store| {
                fs::write(store.join("refs/docker.io%library%one:1.json"), "").unwrap();
            },
            "refs/docker.io%library%one:1.json",
            &TWO,
        ),
        (
            "the list of archives is incomplete",
            |store| fs::write(store.join("preload.json"), "[").unwrap(),
            "preload.json",
            &BOTH,
        ),
    ];
    for (sentence, damage, said, left) in cases {
        let room = Room::new("damaged");
        let store = two_images(&room);
        damage(&room.store());
        let check = store.check().unwrap();
        let reported: Vec<String> = check.damage.iter().map(ToString::to_string).collect();
        assert!(
            reported.iter().any(|line| line.contains(said)),
            "{sentence}: {reported:?}"
        );
        assert_eq!(
            store.check().unwrap(),
            check,
            "{sentence}: a check changes nothing"
        );
        assert_eq!(store.repair().unwrap(), check, "{sentence}");
        let again = store.check().unwrap();
        assert!(
            again.damage.is_empty() && again.unused == 0,
            "{sentence}: {again:?}"
        );
        if !left.is_empty() {
            assert_eq!(names(&store), left, "{sentence}");
        } else {
            assert!(names(&store).len() < 2, "{sentence}: {:?}", names(&store));
        }
        // The archives count as not imported yet, and importing them repairs everything.
        assert!(!room.store().join("preload.json").exists(), "{sentence}");
        assert_eq!(names(&two_images(&room)), BOTH, "{sentence}");
        assert!(store.check().unwrap().damage.is_empty(), "{sentence}");
    }
}

#[test]
fn files_that_no_image_refers_to_are_unused_and_removed() {
    let room = Room::new("unused");
    let store = two_images(&room);
    let layers = room.store().join("layers");
    fs::create_dir_all(layers.join("0123").join("diff")).unwrap();
    fs::write(room.store().join("blobs/sha256/.new"), "half").unwrap();
    fs::write(room.store().join("refs/.new"), "half").unwrap();
    let check = store.repair().unwrap();
    assert_eq!((check.unused, check.damage), (2, Vec::new()));
    assert!(!layers.join("0123").exists());
    assert!(!room.store().join("refs/.new").exists());
    assert_eq!(names(&store).len(), 2);
}
