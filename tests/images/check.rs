//! What a power cut or a dying disk has taken is found, and only what is whole stays.

use std::fs;
use std::path::{Path, PathBuf};

use super::fixture::*;
use coracle::effects::image::{Check, ImageStore};

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
        let options = coracle::effects::image::ImportOptions {
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
fn a_whole_store_is_found_whole_and_left_alone() {
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
fn whatever_is_damaged_is_told_and_taken_away_and_the_rest_stays() {
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
            "a file of a layer of both is gone",
            |store| {
                let layer = first(&store.join("layers"), "etc");
                fs::remove_file(layer.join("diff/etc/shared")).unwrap();
            },
            "has not the files it was unpacked to",
            &[],
        ),
        (
            "a layer's record is half",
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
            "is not there",
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
            "a record is half",
            |store| fs::write(first(&store.join("records"), ""), "{").unwrap(),
            "records/",
            &[],
        ),
        (
            "the name of one is half",
            |store| {
                fs::write(store.join("refs/docker.io%library%one:1.json"), "").unwrap();
            },
            "refs/docker.io%library%one:1.json",
            &TWO,
        ),
        (
            "the list of archives is half",
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
        let told: Vec<String> = check.damage.iter().map(ToString::to_string).collect();
        assert!(
            told.iter().any(|line| line.contains(said)),
            "{sentence}: {told:?}"
        );
        assert_eq!(
            store.check().unwrap(),
            check,
            "{sentence}: a look changes nothing"
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
        // The archives are seen as not imported yet, and importing them mends everything.
        assert!(!room.store().join("preload.json").exists(), "{sentence}");
        assert_eq!(names(&two_images(&room)), BOTH, "{sentence}");
        assert!(store.check().unwrap().damage.is_empty(), "{sentence}");
    }
}

#[test]
fn what_no_image_refers_to_is_unused_and_goes() {
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
