//! What one damaged part of the store, or one that cannot be removed, must not keep from working.

use std::os::unix::fs::symlink;

use super::super::sample::Room;
use super::*;

/// A store with images `a:1` and `b:1`, the record or config of the second damaged, and its id.
fn damaged(room: &Room, config: bool) -> (ImageStore, String) {
    room.import(&room.image("a", "a:1", "a")).unwrap();
    let id = room
        .import(&room.image("b", "b:1", "b"))
        .unwrap()
        .remove(0)
        .id;
    let store = room.store();
    let path = match config {
        true => store.blob_path(&id),
        false => store.record_path(&id),
    };
    fs::write(path, "{").unwrap();
    (store, id)
}

fn names(store: &ImageStore) -> Vec<String> {
    let images = store.list().unwrap();
    images.into_iter().flat_map(|image| image.names).collect()
}

fn layers(store: &ImageStore) -> usize {
    fs::read_dir(store.dir().join("layers")).unwrap().count()
}

const A: &str = "docker.io/library/a:1";
const B: &str = "docker.io/library/b:1";

#[test]
fn a_damaged_image_is_missing_and_others_are_found_by_whatever_name() {
    for config in [false, true] {
        let room = Room::new("damaged-found");
        let (store, id) = damaged(&room, config);
        assert_eq!(names(&store), [A], "{config}");
        let a = store.lookup("a:1").unwrap().unwrap();
        let by_digest = format!("a@{}", a.manifest_digest);
        for name in [&a.id, &by_digest, &digest::hex(&a.id)[..20].to_owned()] {
            let found = store.lookup(name).unwrap();
            assert_eq!(found.as_ref(), Some(&a), "{config}: {name}");
        }
        for name in ["b:1", &id] {
            assert_eq!(store.lookup(name).unwrap(), None, "{config}: {name}");
        }
    }
}

#[test]
fn a_damaged_image_is_mended_by_its_import() {
    for config in [false, true] {
        let room = Room::new("damaged-mended");
        let (store, id) = damaged(&room, config);
        let again = room.import(&room.0.join("b")).unwrap();
        assert_eq!(again[0].id, id, "{config}");
        assert_eq!(names(&store), [A, B], "{config}");
        assert!(store.check().unwrap().damage.is_empty(), "{config}");
    }
}

#[test]
fn images_are_removed_beside_a_damaged_record_whose_layers_stay_while_it_is_in_use() {
    let room = Room::new("damaged-removed");
    let (store, id) = damaged(&room, false);
    let a = store.lookup("a:1").unwrap().unwrap().id;
    let in_use = BTreeSet::from([id.clone()]);
    let pruned = store.prune(&in_use, true).unwrap();
    assert_eq!(pruned.deleted, [a]);
    assert_eq!(layers(&store), 2, "those of the other image are not known");
    // Nothing runs on it any more.
    store.discard(&[], &BTreeSet::new(), true).unwrap();
    assert_eq!(layers(&store), 0);
    assert!(!store.record_path(&id).exists() && !store.reference_path(B).exists());
}

#[test]
fn force_takes_all_names_and_nothing_away_from_what_runs() {
    let room = Room::new("force");
    let id = room
        .import(&room.image("a", "a:1", "a"))
        .unwrap()
        .remove(0)
        .id;
    let store = room.store();
    let tag = || store.tag(&id, "b:1").unwrap();
    tag();
    let none = BTreeMap::new();
    let runs = BTreeMap::from([(id.clone(), "container `c` of pod `default/a`".to_owned())]);
    assert!(matches!(
        store.remove(&id, &BTreeSet::new(), &BTreeSet::new()),
        Err(ImageError::SeveralNames { .. })
    ));
    let refused = store.remove_by_force(&id, &runs).unwrap_err().to_string();
    assert!(
        refused.contains("pod `default/a` runs from it"),
        "{refused}"
    );
    assert_eq!(names(&store), [A, B]);
    // Its last name goes, and the image stays for the container, and its restarts.
    for name in [B, A] {
        let removed = store.remove_by_force(name, &runs).unwrap();
        assert_eq!(removed.untagged, [name]);
        assert_eq!((removed.deleted, layers(&store)), (None, 1), "{name}");
    }
    assert_eq!(
        store.lookup(&id).unwrap().map(|image| image.id),
        Some(id.clone())
    );
    assert_eq!(
        store
            .prune(&BTreeSet::from([id.clone()]), true)
            .unwrap()
            .deleted
            .len(),
        0
    );
    tag();
    store.tag(&id, "a:1").unwrap();
    let removed = store.remove_by_force(&id, &none).unwrap();
    assert_eq!(removed.untagged, [A, B]);
    assert_eq!((removed.deleted, layers(&store)), (Some(id), 0));
}

#[test]
fn the_name_that_a_pod_asks_for_goes_only_by_force() {
    let room = Room::new("wanted");
    let id = room
        .import(&room.image("a", "a:1", "a"))
        .unwrap()
        .remove(0)
        .id;
    let store = room.store();
    store.tag(&id, "b:1").unwrap();
    let in_use = BTreeSet::from([id.clone()]);
    let wanted = BTreeSet::from([A.to_owned()]);
    assert!(matches!(
        store.remove("a:1", &in_use, &wanted),
        Err(ImageError::Wanted { .. })
    ));
    assert_eq!(names(&store), [A, B]);
    assert_eq!(store.remove("b:1", &in_use, &wanted).unwrap().untagged, [B]);
    // Nothing runs from it now, but a pod will again; by id its name would go, too.
    for given in ["a:1", &id] {
        assert!(matches!(
            store.remove(given, &BTreeSet::new(), &wanted),
            Err(ImageError::Wanted { .. })
        ));
    }
    let removed = store.remove_by_force("a:1", &BTreeMap::new()).unwrap();
    assert_eq!(
        (removed.untagged, removed.deleted),
        (vec![A.to_owned()], Some(id))
    );
}

#[test]
fn a_record_that_cannot_be_read_now_is_not_removed() {
    let room = Room::new("unread-record");
    let (store, id) = damaged(&room, false);
    // As a disk that fails may answer.
    fs::remove_file(store.record_path(&id)).unwrap();
    fs::create_dir(store.record_path(&id)).unwrap();
    store.discard(&[], &BTreeSet::new(), true).unwrap();
    assert!(store.record_path(&id).exists());
    assert_eq!(layers(&store), 2);
}

#[test]
fn what_cannot_be_removed_keeps_nothing_from_working() {
    for pulls in [false, true] {
        let room = Room::new("leftovers");
        let store = room.store();
        match pulls {
            true => fs::write(store.dir().join("pulls"), "").unwrap(),
            // No process can open it.
            false => symlink("loop", store.dir().join("tmp/loop")).unwrap(),
        }
        fs::create_dir(store.dir().join("tmp/1-0")).unwrap();
        assert!(store.remove_leftovers().is_err(), "it is reported");
        assert!(!store.dir().join("tmp/1-0").exists(), "the others are gone");
        let a = room
            .import(&room.image("a", "a:1", "a"))
            .unwrap()
            .remove(0)
            .id;
        assert_eq!(names(&store), [A]);
        let pruned = store.prune(&BTreeSet::new(), true).unwrap();
        assert_eq!(pruned.deleted, [a]);
    }
}
