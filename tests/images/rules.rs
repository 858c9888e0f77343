//! Names, removal, pruning and preload directories.

use std::collections::BTreeSet;

use super::fixture::*;
use coracle::images::{ImageError, ImportOptions, preload};

fn two_images(room: &Room) -> (String, String) {
    let shared = Layer::default().file("shared", b"s").tar();
    let import = |name: &str, layers: &[Vec<u8>]| {
        let config = config_json(arch(), layers);
        let archive = docker_archive_with(&config, &[&format!("{name}:1")], layers);
        let archive = room.write(&format!("{name}.tar"), &archive);
        room.import(&archive).unwrap().remove(0).id
    };
    let one = [shared.clone(), Layer::default().file("one", b"1").tar()];
    let two = [shared, Layer::default().file("two", b"2").tar()];
    (import("one", &one), import("two", &two))
}

/// An archive of an image whose config has these fields.
fn archive_with(config: &serde_json::Value) -> Vec<u8> {
    let layers = [Layer::default().file("f", b"x").tar()];
    let mut whole: serde_json::Value = serde_json::from_str(&config_json(arch(), &layers)).unwrap();
    whole["config"] = config.clone();
    docker_archive_with(&whole.to_string(), &["test:1"], &layers)
}

#[test]
fn lists_of_a_config_are_limited_and_the_error_names_the_list() {
    use serde_json::json;
    let many = |count: usize| -> Vec<String> { (0..count).map(|n| format!("A{n}=b")).collect() };
    let map = |count: usize| -> serde_json::Value {
        many(count)
            .into_iter()
            .map(|key| (key, json!({})))
            .collect()
    };
    let labels: serde_json::Value = many(1001)
        .into_iter()
        .map(|key| (key, json!("x")))
        .collect();
    let long = "x".repeat(128 << 10);
    let room = Room::new("bounds");
    for (config, expected) in [
        (
            json!({"Env": many(1001)}),
            "the number of entries in the config's `Env` is over the limit of 1000",
        ),
        (json!({"Cmd": many(1001)}), "`Cmd`"),
        (json!({"Entrypoint": many(1001)}), "`Entrypoint`"),
        (json!({"Labels": labels}), "`Labels`"),
        (json!({"Volumes": map(1001)}), "`Volumes`"),
        (json!({"ExposedPorts": map(1001)}), "`ExposedPorts`"),
        (
            json!({"Env": ["A=b", long]}),
            "entry 2 in the config's `Env` is over the limit of 131071 bytes",
        ),
        (
            json!({"Labels": {"a": long}}),
            "entry 1 in the config's `Labels`",
        ),
        (
            json!({"Volumes": {long.as_str(): {}}}),
            "entry 1 in the config's `Volumes`",
        ),
        (
            json!({"Other": "x".repeat(1 << 20)}),
            "config `config.json` is over the limit of 1048576 bytes",
        ),
    ] {
        let archive = room.write("a.tar", &archive_with(&config));
        let error = coracle::chain(&room.import(&archive).unwrap_err());
        assert!(error.contains(expected), "{error}");
        room.assert_empty();
    }
    let names: Vec<String> = (0..1001).map(|n| format!("n{n}:1")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let layers = [Layer::default().file("f", b"x").tar()];
    let config = config_json(arch(), &layers);
    let archive = room.write("a.tar", &docker_archive_with(&config, &names, &layers));
    let error = coracle::chain(&room.import(&archive).unwrap_err());
    assert!(
        error.contains("the number of names in the archive"),
        "{error}"
    );
    let fits = json!({"Env": many(1000), "Cmd": many(1000), "Volumes": {"/data": {}}});
    let archive = room.write("a.tar", &archive_with(&fits));
    assert_eq!(room.image(&archive).config.env.len(), 1000);
}

#[test]
fn parts_of_a_config_without_effect_are_reported_at_the_import() {
    use serde_json::json;
    let room = Room::new("warnings");
    for (config, expected) in [
        (
            json!({"StopSignal": "SIGQUIT", "Volumes": {"/data": {}}}),
            vec![],
        ),
        (json!({"StopSignal": "SIGRTMAX-3"}), vec![]),
        (
            json!({"StopSignal": "SIGFOO"}),
            vec!["its stop signal `SIGFOO` does not exist"],
        ),
        (
            json!({"StopSignal": "99"}),
            vec!["`99` does not exist: its containers are stopped with SIGTERM"],
        ),
        (
            json!({"Volumes": {"/": {}, "/a/../b": {}, "/dev/x": {}, "/proc": {}, "/ok": {}}}),
            vec![
                "volume `/` is",
                "volume `/a/../b` is",
                "volume `/dev/x` is",
                "volume `/proc` is",
            ],
        ),
    ] {
        let archive = room.write("a.tar", &archive_with(&config));
        let warnings = room.import(&archive).unwrap().remove(0).warnings;
        assert_eq!(warnings.len(), expected.len(), "{warnings:?}");
        for (warning, part) in warnings.iter().zip(expected) {
            assert!(warning.contains(part), "{warning}");
        }
    }
}

#[test]
fn a_repeated_import_changes_nothing_and_a_name_moves_to_the_newest_image() {
    let room = Room::new("again");
    let (one, two) = two_images(&room);
    let before = room.open().list().unwrap();
    two_images(&room);
    assert_eq!(room.open().list().unwrap(), before);
    let options = ImportOptions {
        name: Some("one:1".to_owned()),
        ..Default::default()
    };
    room.import_with(&room.path("two.tar"), &options).unwrap();
    let store = room.open();
    assert_eq!(store.lookup("one:1").unwrap().unwrap().id, two);
    assert!(store.lookup(&one).unwrap().unwrap().names.is_empty());
    assert_eq!(store.lookup(&one[7..15]).unwrap().unwrap().id, one);
    assert_eq!(store.lookup("nothing:here").unwrap(), None);
    let pruned = store.prune(&BTreeSet::new(), false).unwrap();
    assert_eq!(pruned.deleted, [one]);
}

#[test]
fn a_removal_untags_then_deletes_and_keeps_what_is_shared_or_in_use() {
    let room = Room::new("remove");
    let (one, two) = two_images(&room);
    let store = room.open();
    let in_use = BTreeSet::from([one.clone()]);
    let none_in_use = BTreeSet::new();
    assert!(matches!(
        store.remove("one:1", &in_use, &BTreeSet::new()),
        Err(ImageError::InUse { .. })
    ));
    assert!(matches!(
        store.remove("three:1", &none_in_use, &BTreeSet::new()),
        Err(ImageError::NotFound { .. })
    ));
    room.import_with(
        &room.path("one.tar"),
        &ImportOptions {
            name: Some("uno:1".to_owned()),
            ..Default::default()
        },
    )
    .unwrap();
    assert!(matches!(
        store.remove(&one, &none_in_use, &BTreeSet::new()),
        Err(ImageError::SeveralNames { .. })
    ));
    let removed = store.remove("uno:1", &in_use, &BTreeSet::new()).unwrap();
    assert_eq!((removed.untagged.len(), removed.deleted), (1, None));
    assert_eq!(
        store
            .remove(&one, &none_in_use, &BTreeSet::new())
            .unwrap()
            .deleted,
        Some(one)
    );
    let left = store.lookup("two:1").unwrap().unwrap();
    assert_eq!(left.id, two);
    assert!(left.layers.iter().all(|layer| layer.is_dir()));
    assert_eq!(
        std::fs::read_dir(room.store().join("layers"))
            .unwrap()
            .count(),
        2
    );
    assert_eq!(
        store
            .prune(&BTreeSet::from([two.clone()]), true)
            .unwrap()
            .deleted,
        Vec::<String>::new()
    );
    assert_eq!(store.prune(&none_in_use, true).unwrap().deleted, [two]);
    room.assert_empty();
}

#[test]
fn preload_directories_are_imported_once_and_never_pruned() {
    let room = Room::new("preload");
    let dir = room.path("images");
    std::fs::create_dir(&dir).unwrap();
    let archive = docker_archive(&[Layer::default().file("a", b"a").tar()]);
    std::fs::write(dir.join("a.tar"), &archive).unwrap();
    for ignored in [".hidden.tar", "b.tar.part", "c.tar~", "README"] {
        std::fs::write(dir.join(ignored), &archive[..20]).unwrap();
    }
    let dirs = [dir.clone(), room.path("absent")];
    let store = room.open();
    let waiting = || preload::pending(&store, &preload::scan(&dirs).archives).unwrap();
    let pending = waiting();
    assert_eq!(pending.len(), 1);
    let options = ImportOptions {
        preloaded: true,
        name: None,
        ..Default::default()
    };
    room.import_with(&pending[0].path, &options).unwrap();
    assert_eq!(waiting(), []);
    let image = store.lookup("test:1").unwrap().unwrap();
    assert!(image.preloaded);
    assert_eq!(
        store.prune(&BTreeSet::new(), true).unwrap().deleted,
        Vec::<String>::new()
    );
    // A removed image is imported again, a changed file, too; a vanished file does not keep an image.
    store
        .remove("test:1", &BTreeSet::new(), &BTreeSet::new())
        .unwrap();
    assert_eq!(waiting().len(), 1);
    room.import_with(&pending[0].path, &options).unwrap();
    std::fs::write(dir.join("a.tar"), &archive).unwrap();
    assert_eq!(waiting().len(), 1);
    std::fs::remove_file(dir.join("a.tar")).unwrap();
    preload::forget_missing(&store, &preload::scan(&dirs), &[]).unwrap();
    assert_eq!(
        store.prune(&BTreeSet::new(), true).unwrap().deleted,
        [image.id]
    );
}

#[test]
fn a_damaged_name_affects_no_other_image() {
    let room = Room::new("ref");
    let (one, two) = two_images(&room);
    let refs = room.store().join("refs");
    std::fs::write(refs.join("docker.io%library%one:1.json"), "").unwrap();
    let store = room.open();
    assert_eq!(store.lookup("two:1").unwrap().unwrap().id, two);
    assert!(
        store
            .lookup("one:1")
            .unwrap_err()
            .to_string()
            .contains("one:1.json")
    );
    assert_eq!(store.list().unwrap().len(), 2);
    two_images(&room);
    assert_eq!(store.lookup("one:1").unwrap().unwrap().id, one);
}
