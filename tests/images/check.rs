//! The check of the image store: damage by a power cut or a failing disk is found, and only intact images stay.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::fixture::*;
use coracle::images::{Check, ImageStore, preload};

/// A store with two images that share a layer.
fn two_images(room: &Room) -> ImageStore {
    let shared = Layer::default()
        .dir("etc")
        .file("etc/shared", b"both")
        .tar();
    let own = Layer::default().file("own", b"one").tar();
    for (name, layers) in [("one", vec![shared.clone(), own]), ("two", vec![shared])] {
        let config = config_json(arch(), &layers);
        let archive = docker_archive_with(&config, &[&format!("{name}:1")], &layers);
        let options = coracle::images::ImportOptions {
            preloaded: true,
            ..Default::default()
        };
        let archive = room.write(&format!("{name}.tar"), &archive);
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
        // An archive counts as not imported yet, and importing them repairs everything.
        let found = preload::scan(std::slice::from_ref(&room.0)).archives;
        let pending = preload::pending(&store, &found).unwrap();
        assert!(!pending.is_empty(), "{sentence}");
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

#[test]
fn directories_in_the_place_of_files_are_removed_with_all_else_that_is_damaged() {
    let room = Room::new("directories");
    let store = two_images(&room);
    let own = first(&room.store().join("layers"), "own");
    fs::write(own.join("diff/own"), "").unwrap();
    let places = ["refs/dir.json", "records/dir.json", "refs/.new"];
    for place in places {
        fs::create_dir_all(room.store().join(place).join("below")).unwrap();
    }
    let check = store.repair().unwrap();
    assert_eq!((check.damage.len(), check.left.len()), (3, 0), "{check:?}");
    assert_eq!(names(&store), ["docker.io/library/two:1"]);
    assert!(!own.exists());
    for place in places {
        assert!(!room.store().join(place).exists(), "{place}");
    }
    assert!(store.check().unwrap().damage.is_empty());
}

#[test]
fn what_cannot_be_removed_is_reported_and_keeps_nothing_damaged_in_use() {
    let room = Room::new("stuck");
    let store = two_images(&room);
    let own = first(&room.store().join("layers"), "own");
    fs::write(own.join("diff/own"), "").unwrap();
    let one = store.lookup("one:1").unwrap().unwrap().id;
    // A mount cannot be removed, as an immutable file cannot.
    let record = room.store().join(format!("records/{}.json", &one[7..]));
    let stuck = [room.store().join("refs/a.json"), record];
    fs::write(&stuck[0], "").unwrap();
    for path in &stuck {
        let done = Command::new("mount")
            .arg("--bind")
            .args([path, path])
            .status();
        assert!(done.unwrap().success());
    }
    let check = store.repair();
    let again = store.check();
    for path in &stuck {
        let done = Command::new("umount").arg(path).status();
        assert!(done.unwrap().success());
    }
    let (check, again) = (check.unwrap(), again.unwrap());
    let left: Vec<_> = check
        .left
        .iter()
        .flat_map(|left| left.path.clone())
        .collect();
    assert_eq!(left, stuck);
    assert!(check.left[0].why.contains("refs/a.json`"), "{check:?}");
    assert!(check.has_left(&check.damage[0]) && !check.has_left(&check.damage[1]));
    assert_eq!(names(&store), ["docker.io/library/two:1"]);
    assert!(!own.exists(), "an import would take it for whole");
    assert!(
        again
            .damage
            .iter()
            .any(|d| d.why.contains("cannot be read")),
        "{again:?}"
    );
}

#[test]
fn a_damaged_layer_that_cannot_be_moved_away_is_not_taken_for_whole() {
    let room = Room::new("stuck-layer");
    let store = two_images(&room);
    let own = first(&room.store().join("layers"), "own");
    fs::write(own.join("diff/own"), "").unwrap();
    let mount = Command::new("mount")
        .arg("--bind")
        .args([&own, &own])
        .status();
    assert!(mount.unwrap().success());
    let check = store.repair();
    let unmounted = Command::new("umount").arg(&own).status();
    assert!(unmounted.unwrap().success());
    let check = check.unwrap();
    assert_eq!(check.left.len(), 1, "{check:?}");
    assert!(own.join("diff").exists(), "it stays");
    room.import(&room.path("one.tar")).unwrap();
    assert_ne!(
        fs::read(own.join("diff/own")).unwrap(),
        b"",
        "unpacked again"
    );
    assert!(store.check().unwrap().damage.is_empty());
}

/// The layers' contents: damage that changes no size.
#[test]
fn contents_are_compared_on_request() {
    let room = Room::new("deep");
    let store = two_images(&room);
    let replaced = Layer::default()
        .file("twice", b"first")
        .file("twice", b"again")
        .tar();
    let three = room.write("three.tar", &docker_archive(&[replaced]));
    room.import(&three).unwrap();
    let compare = || store.compare(&mut |_, _| {}).unwrap();
    let whole = compare();
    // One layer's tar replaces its own file, so that it cannot be made again.
    assert_eq!((whole.compared, whole.unknown), (2, 1));
    assert!(store.check_with(&whole).unwrap().damage.is_empty());

    let shared = first(&room.store().join("layers"), "etc");
    fs::write(shared.join("diff/etc/shared"), b"bit!").unwrap();
    assert!(
        store.check().unwrap().damage.is_empty(),
        "it has the same size"
    );
    let check = store.check_with(&compare()).unwrap();
    let reported: Vec<String> = check.damage.iter().map(ToString::to_string).collect();
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert!(
        reported[0].contains("has other contents than were unpacked"),
        "{reported:?}"
    );
    let lost: Vec<_> = check.lost.iter().map(|lost| lost.archive.clone()).collect();
    for archive in ["one.tar", "two.tar"] {
        assert!(lost.contains(&Some(room.path(archive))), "{lost:?}");
    }

    let recipe = first(&room.store().join("layers"), "own").join("recipe.gz");
    let bytes = fs::read(&recipe).unwrap();
    fs::write(&recipe, &bytes[..bytes.len() - 9]).unwrap();
    let check = store.repair_with(&compare()).unwrap();
    let reported: Vec<String> = check.damage.iter().map(ToString::to_string).collect();
    assert!(
        reported
            .iter()
            .any(|line| line.contains("cannot be compared"))
            || reported.len() == 2
    );
    assert_eq!(names(&store), ["docker.io/library/test:1"]);
    two_images(&room);
    assert_eq!(compare(), whole);
}

/// Makes a store look as if its images had been pulled.
fn call_pulled(room: &Room) {
    for name in fs::read_dir(room.store().join("refs")).unwrap() {
        let name = name.unwrap().path();
        let mut reference: serde_json::Value =
            serde_json::from_slice(&fs::read(&name).unwrap()).unwrap();
        reference["pulled"] = true.into();
        fs::write(name, reference.to_string()).unwrap();
    }
}

#[test]
fn intact_layers_of_damaged_images_stay_if_a_registry_has_the_rest() {
    for pulled in [false, true] {
        let room = Room::new("spared");
        let store = two_images(&room);
        if pulled {
            call_pulled(&room);
        }
        let own = first(&room.store().join("layers"), "own");
        fs::write(own.join("diff/own"), b"ONE").unwrap();
        store
            .remove("two:1", &Default::default(), &Default::default())
            .unwrap();
        let contents = store.compare(&mut |_, _| {}).unwrap();
        let check = store.repair_with(&contents).unwrap();
        assert_eq!(check.lost.len(), 1);
        assert_eq!(check.lost[0].pulled.is_empty(), !pulled);
        let left = fs::read_dir(room.store().join("layers")).unwrap().count();
        assert_eq!(left, usize::from(pulled), "pulled: {pulled}");
        assert!(!own.exists());
    }
}

#[test]
fn a_short_id_that_fits_several_images_is_refused_with_their_ids() {
    let room = Room::new("ambiguous");
    let store = two_images(&room);
    let id = store.lookup("one:1").unwrap().unwrap().id;
    let record = |id: &str| room.store().join(format!("records/{}.json", &id[7..]));
    let other = format!(
        "{}{}",
        &id[..id.len() - 2],
        if id.ends_with("00") { "11" } else { "00" }
    );
    let text = fs::read_to_string(record(&id)).unwrap();
    fs::write(record(&other), text.replace(&id, &other)).unwrap();
    for given in [&id[7..19], &id[7..69]] {
        let why = store.lookup(given).unwrap_err().to_string();
        assert!(
            why.contains("is ambiguous") && why.contains(&id) && why.contains(&other),
            "{why}"
        );
    }
    assert_eq!(store.lookup(&id[7..]).unwrap().unwrap().id, id);
}
