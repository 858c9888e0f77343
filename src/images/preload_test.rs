//! What becomes of names, entries and archives when something goes wrong with them.

use super::super::sample::Room;
use super::super::store::Reference;
use super::*;

const NAME: &str = "docker.io/library/app:stable";

/// Gives an image the name as a pull does.
fn call_pulled(store: &ImageStore, id: &str) {
    let reference = Reference {
        name: NAME.to_owned(),
        id: id.to_owned(),
        pulled: true,
        opened: true,
        origin: None,
    };
    write_json(&store.reference_path(NAME), &reference).unwrap();
}

fn found(room: &Room) -> Vec<Candidate> {
    scan(&[room.0.join("preload")]).archives
}

#[test]
fn an_unchanged_archive_takes_no_name_back_and_a_changed_one_does() {
    type Change = fn(&Room, &ImageStore, &str);
    let cases: [(&str, Change, bool); 5] = [
        ("nothing is lost", |_, _, _| {}, false),
        (
            "the newer image is damaged",
            |_, store, new| fs::remove_file(store.record_path(new)).unwrap(),
            true,
        ),
        (
            "a layer of the newer image is gone",
            |_, store, new| {
                let layer = store.record(new).unwrap().unwrap().layers.remove(0);
                fs::remove_dir_all(store.layer_dir(&layer)).unwrap();
            },
            true,
        ),
        (
            "the name is gone",
            |_, store, _| fs::remove_file(store.reference_path(NAME)).unwrap(),
            true,
        ),
        (
            "the archive has changed",
            |room, _, _| {
                room.image("preload/app", NAME, "old");
            },
            true,
        ),
    ];
    for (what, change, taken) in cases {
        let room = Room::new("preload-names");
        fs::create_dir(room.0.join("preload")).unwrap();
        let archive = room.image("preload/app", NAME, "old");
        let old = room.preload(&archive);
        let new = room.image("new", "other:1", "new");
        let new = room.import(&new).unwrap().remove(0).id;
        let store = room.store();
        call_pulled(&store, &new);
        change(&room, &store, &new);
        assert_eq!(room.preload(&archive), old, "{what}");
        let now = store.reference(NAME).unwrap().unwrap();
        assert_eq!(now.id == old, taken, "{what}");
        assert_eq!(pending(&store, &found(&room)).unwrap(), [], "{what}");
    }
}

#[test]
fn a_repair_has_those_archives_imported_again_that_lost_something() {
    type Damage = fn(&ImageStore, &str);
    let cases: [(&str, Damage, &[&str]); 4] = [
        ("an image of no archive", |_, _| {}, &[]),
        (
            "an image of an archive",
            |store, old| fs::write(store.record_path(old), "{").unwrap(),
            &["app"],
        ),
        (
            "a name that an archive gave",
            |store, _| fs::write(store.reference_path(NAME), "").unwrap(),
            &["app"],
        ),
        (
            "a name, and an earlier version imported the archives",
            |store, _| {
                fs::write(store.reference_path(NAME), "").unwrap();
                let list = fs::read_to_string(path(store)).unwrap();
                let mut list: serde_json::Value = serde_json::from_str(&list).unwrap();
                for (_, entry) in list.as_object_mut().unwrap() {
                    entry.as_object_mut().unwrap().remove("names");
                }
                fs::write(path(store), list.to_string()).unwrap();
            },
            &["app", "web"],
        ),
    ];
    for (what, damage, expected) in cases {
        let room = Room::new("preload-repair");
        fs::create_dir(room.0.join("preload")).unwrap();
        let old = room.preload(&room.image("preload/app", NAME, "old"));
        room.preload(&room.image("preload/web", "web:1", "web"));
        let own = room.import(&room.image("own", "own:1", "own")).unwrap();
        let store = room.store();
        fs::write(store.record_path(&own[0].id), "{").unwrap();
        damage(&store, &old);
        store.repair().unwrap();
        let again = pending(&store, &found(&room)).unwrap();
        let names: Vec<_> = again.iter().flat_map(|c| c.path.file_name()).collect();
        assert_eq!(names, expected, "{what}");
        for archive in &again {
            room.preload(&archive.path);
        }
        assert_eq!(pending(&store, &found(&room)).unwrap(), [], "{what}");
        assert_eq!(store.reference(NAME).unwrap().unwrap().id, old, "{what}");
        assert!(store.check().unwrap().damage.is_empty(), "{what}");
    }
}

#[test]
fn archives_of_a_directory_that_cannot_be_read_are_not_forgotten() {
    let room = Room::new("preload-away");
    let (dir, disk) = (room.0.join("preload"), room.0.join("disk"));
    fs::create_dir_all(&dir).unwrap();
    let here = room.preload(&room.image("preload/here", "here:1", "here"));
    room.image("disk", "linked:1", "linked");
    std::os::unix::fs::symlink(&disk, dir.join("linked")).unwrap();
    let linked = room.preload(&dir.join("linked"));
    let store = room.store();
    let forget = || {
        forget_missing(&store, &scan(std::slice::from_ref(&dir)), &[]).unwrap();
        ids(&store).unwrap()
    };
    let both = BTreeSet::from([here, linked.clone()]);
    assert_eq!(forget(), both);
    fs::rename(&disk, room.0.join("away")).unwrap();
    assert_eq!(forget(), both, "the disk that a link leads to is away");
    fs::rename(&dir, room.0.join("gone")).unwrap();
    assert_eq!(forget(), both, "the directory is away");
    forget_missing(&store, &Found::default(), std::slice::from_ref(&dir)).unwrap();
    assert_eq!(ids(&store).unwrap(), both, "another directory was scanned");
    fs::rename(room.0.join("gone"), &dir).unwrap();
    fs::remove_dir_all(dir.join("here")).unwrap();
    assert_eq!(forget(), BTreeSet::from([linked]), "it was removed");
}
