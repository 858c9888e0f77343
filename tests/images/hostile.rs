//! Hostile archives: they are refused with a reason, and nothing is written outside the layer.

use std::io::Write;

use super::fixture::*;
use proptest::prelude::*;
use tar::EntryType;

#[test]
fn an_error_about_a_hostile_entry_names_the_entry() {
    let room = Room::new("hostile");
    let outside = room.path("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("victim"), "victim").unwrap();
    let to = outside.to_str().unwrap();
    let up = format!("../../../../../../../../..{to}");
    let (sym, hard) = (EntryType::Symlink, EntryType::Link);
    let deep = "d/".repeat(2000);
    let mut owner = header(EntryType::Regular, "f", 0);
    owner.set_uid(u64::from(u32::MAX));
    owner.set_cksum();
    for (sentence, layer, reason) in [
        (
            "dot dot",
            Layer::default().file("../../../../tmp/x", b""),
            "`..` in its name",
        ),
        (
            "dot dot inside",
            Layer::default().file("a/../../x", b""),
            "`..` in its name",
        ),
        (
            "whiteout of dot dot",
            Layer::default().file("a/.wh...", b""),
            "a whiteout of nothing",
        ),
        (
            "absolute symlink",
            Layer::default().link(sym, "l", to).file("l/x", b""),
            "through a symlink",
        ),
        (
            "relative symlink",
            Layer::default().link(sym, "l", &up).file("l/x", b""),
            "through a symlink",
        ),
        (
            "symlink chain",
            Layer::default()
                .link(sym, "a", "b")
                .link(sym, "b", to)
                .dir("a/x"),
            "through a symlink",
        ),
        (
            "symlink loop",
            Layer::default()
                .link(sym, "a", "b")
                .link(sym, "b", "a")
                .file("a/x", b""),
            "through a symlink",
        ),
        (
            "whiteout through symlink",
            Layer::default()
                .link(sym, "l", to)
                .file("l/.wh.victim", b""),
            "through a symlink",
        ),
        (
            "hard link out",
            Layer::default().link(hard, "l", &format!("{to}/victim")),
            "not in this layer",
        ),
        (
            "hard link up",
            Layer::default().link(hard, "l", &up),
            "`..` in its name",
        ),
        (
            "hard link by symlink",
            Layer::default()
                .link(sym, "s", to)
                .link(hard, "l", "s/victim"),
            "not in this layer",
        ),
        (
            "hard link to directory",
            Layer::default().dir("d").link(hard, "l", "d"),
            "to a directory",
        ),
        (
            "file as parent",
            Layer::default().file("f", b"").file("f/x", b""),
            "a parent is not a directory",
        ),
        (
            "deep",
            Layer::default().pax(&[("path", deep.as_bytes())]).dir("x"),
            "nested too deeply",
        ),
        (
            "no such owner",
            Layer::default().raw(&owner, b""),
            "an owner that is no 32-bit number",
        ),
        (
            "huge extension",
            Layer::default().raw(&header(EntryType::XHeader, "x", 1 << 32), b""),
            "an extension header",
        ),
        (
            "huge file",
            Layer::default().raw(&header(EntryType::Regular, "x", 7 << 30), b""),
            "truncated",
        ),
        (
            "huge sparse file",
            Layer::default()
                .pax(&[
                    ("GNU.sparse.size", b"99999999999999"),
                    ("GNU.sparse.map", b"0,0"),
                ])
                .file("x", b""),
            "over the limit",
        ),
        (
            "bad sparse map",
            Layer::default()
                .pax(&[("GNU.sparse.size", b"10"), ("GNU.sparse.map", b"8,1,2,1")])
                .file("x", b"ab"),
            "sparse map",
        ),
        (
            "bad pax",
            Layer::default().raw(&header(EntryType::XHeader, "x", 6), b"99 a=b"),
            "malformed PAX",
        ),
        (
            "unknown type",
            Layer::default().raw(&header(EntryType::new(b'Q'), "x", 0), b""),
            "unknown type",
        ),
        (
            "root is a file",
            Layer::default().file("./", b"").link(sym, ".", to),
            "root of a layer",
        ),
    ] {
        let why = room.import(&room.write("a.tar", &docker_archive(&[layer.tar()])));
        let why = why.expect_err(sentence).to_string();
        assert!(why.contains(reason), "{sentence}: {why}");
        room.assert_empty();
        let left: Vec<_> = std::fs::read_dir(&outside)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left, ["victim"], "{sentence}");
        assert_eq!(
            std::fs::read_to_string(outside.join("victim")).unwrap(),
            "victim",
            "{sentence}"
        );
    }
}

#[test]
fn absolute_names_and_symlinks_stay_inside_the_layer() {
    let room = Room::new("absolute");
    let layer = Layer::default()
        .file("/etc/absolute", b"1")
        .link(EntryType::Symlink, "to-etc", "/etc")
        .link(EntryType::Symlink, "up-etc", "../../../etc")
        .file("to-etc/coracle-hostile-a", b"2")
        .file("up-etc/coracle-hostile-b", b"3")
        // A symlink is replaced, never followed for writing.
        .link(EntryType::Symlink, "passwd", "/etc/coracle-hostile-c")
        .file("passwd", b"4");
    let image = room.image(&room.write("a.tar", &docker_archive(&[layer.tar()])));
    for name in [
        "etc/absolute",
        "etc/coracle-hostile-a",
        "etc/coracle-hostile-b",
        "passwd",
    ] {
        assert!(
            std::fs::symlink_metadata(image.layers[0].join(name))
                .unwrap()
                .is_file(),
            "{name}"
        );
    }
    for name in ["a", "b", "c"] {
        assert!(!std::path::Path::new(&format!("/etc/coracle-hostile-{name}")).exists());
    }
}

#[test]
fn huge_documents_are_refused() {
    let room = Room::new("huge");
    let archive = Layer::default()
        .file("manifest.json", &vec![b' '; (4 << 20) + 1])
        .tar();
    let why = room
        .import(&room.write("a.tar", &archive))
        .unwrap_err()
        .to_string();
    assert!(
        why.contains("`manifest.json` is over the limit of 4194304 bytes"),
        "{why}"
    );
    room.assert_empty();
}

#[test]
fn the_nesting_of_json_and_of_indexes_is_limited() {
    let room = Room::new("nested");
    let archive = Layer::default()
        .file(
            "manifest.json",
            format!("[{{\"X\":{}", "[".repeat(1 << 20)).as_bytes(),
        )
        .tar();
    let why = room
        .import(&room.write("a.tar", &archive))
        .unwrap_err()
        .to_string();
    assert!(why.contains("is not valid"), "{why}");
    let dir = room.path("oci");
    oci_layout(&dir, &[arch()], &[Layer::default().tar()]);
    let mut top = std::fs::read(dir.join("index.json")).unwrap();
    for _ in 0..6 {
        std::fs::write(dir.join("blobs/sha256").join(sha(&top)), &top).unwrap();
        top = serde_json::json!({"manifests": [{"digest": format!("sha256:{}", sha(&top)), "size": top.len()}]}).to_string().into_bytes();
    }
    std::fs::write(dir.join("index.json"), &top).unwrap();
    let why = room.import(&dir).unwrap_err().to_string();
    assert!(why.contains("nesting of indexes"), "{why}");
    room.assert_empty();
}

#[test]
fn a_gzip_bomb_stops_before_the_disk_is_full() {
    let room = Room::new("bomb");
    let small = SmallDisk::new(&room, 96);
    let mut layer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    layer
        .write_all(header(EntryType::Regular, "zeros", 4 << 30).as_bytes())
        .unwrap();
    for _ in 0..256 {
        layer.write_all(&vec![0; 1 << 20]).unwrap();
    }
    let archive = room.write("a.tar", &docker_archive(&[layer.finish().unwrap()]));
    let why = room.import(&archive).unwrap_err();
    assert!(
        why.to_string().contains("no space left for images"),
        "{why}"
    );
    assert!(why.hint().unwrap().contains("image prune"));
    room.assert_empty();
    // It is the same for an archive compressed as a whole, and afterwards there is room again.
    let plain = docker_archive(&[Layer::default().file("zeros", &vec![0; 200 << 20]).tar()]);
    let mut whole = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    whole.write_all(&plain).unwrap();
    let why = room
        .import(&room.write("b.tar.gz", &whole.finish().unwrap()))
        .unwrap_err();
    assert!(
        why.to_string().contains("no space left for images"),
        "{why}"
    );
    room.image(&busybox(&room));
    drop(small);
}

/// A tmpfs of some MiB as the store.
pub struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    pub fn new(room: &Room, mib: u32) -> Self {
        Self::with(room, &format!("size={mib}m"))
    }

    /// A tmpfs with these options as the store.
    pub fn with(room: &Room, options: &str) -> Self {
        let path = room.store();
        std::fs::create_dir(&path).unwrap();
        let target = path.to_str().unwrap();
        run("mount", &["-t", "tmpfs", "-o", options, "none", target]);
        Self(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run("umount", &[&self.0]);
    }
}

#[test]
fn an_import_onto_a_full_disk_is_reported_and_leaves_nothing() {
    let room = Room::new("full");
    let small = SmallDisk::new(&room, 4);
    let layer = Layer::default().file("a", &vec![1; 16 << 20]).tar();
    let why = room
        .import(&room.write("a.tar", &docker_archive(&[layer])))
        .unwrap_err();
    assert!(
        why.to_string().contains("no space left for images"),
        "{why}"
    );
    room.assert_empty();
    drop(small);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_archive_is_an_error_or_an_image_but_never_a_crash(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
        fix_sums in any::<bool>(),
    ) {
        let room = Room::new("fuzz");
        let mut layer = Layer::default().dir("a").file("a/b", b"b").link(EntryType::Symlink, "l", "/etc")
            .link(EntryType::Link, "h", "a/b").pax(&[("path", b"some/long/name"), ("SCHILY.xattr.user.a", b"b")]).file("n", b"n").tar();
        // Half of the cases damage the layer itself and keep the digests valid, so that the unpacker is reached.
        let mut whole = if fix_sums { layer.clone() } else { docker_archive(std::slice::from_ref(&layer)) };
        for (at, value) in &edits {
            let at = at.index(whole.len());
            whole[at] = *value;
        }
        if let Some(cut) = cut {
            whole.truncate(cut.index(whole.len()));
        }
        if fix_sums {
            for block in whole.chunks_exact_mut(512).filter(|b| b[257..262] == *b"ustar") {
                let sum: u32 = block.iter().enumerate().map(|(i, b)| if (148..156).contains(&i) { 32 } else { u32::from(*b) }).sum();
                block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            }
            layer = whole;
            whole = docker_archive(std::slice::from_ref(&layer));
        }
        let result = room.import(&room.write("a.tar", &whole));
        match result {
            Ok(images) => prop_assert!(room.open().lookup(&images[0].id).unwrap().is_some()),
            Err(why) => {
                prop_assert!(!why.to_string().contains("the worker ended"), "{}", why);
                room.assert_empty();
            }
        }
        let mut here: Vec<_> = std::fs::read_dir(&room.0).unwrap().map(|e| e.unwrap().file_name()).collect();
        here.sort();
        prop_assert_eq!(here, ["a.tar", "store"]);
    }
}
