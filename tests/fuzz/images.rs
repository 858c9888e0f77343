//! Images: archives as the worker reads them, with layers whose entries lead outside, and false documents.

use std::time::Duration;

use tar::EntryType;

use super::fixture::{Layer, Room, arch, config_json, docker_archive, header};
use super::mutate::{self, Random};
use super::{Entrance, fuzz, targets};

const PATHS: [&str; 22] = [
    "a",
    "a/b",
    "dev/ptmx",
    "etc/passwd",
    "../out",
    "/out",
    "a/../../out",
    "./a",
    "a//b",
    "",
    ".",
    "..",
    "a/.wh.b",
    ".wh.a",
    ".wh..wh..opq",
    "a/.wh..wh..opq",
    ".wh.",
    ".wh...",
    ".wh..wh.plnk",
    "link/x",
    "link",
    "ä\u{1}",
];

const KINDS: [EntryType; 9] = [
    EntryType::Regular,
    EntryType::Directory,
    EntryType::Symlink,
    EntryType::Link,
    EntryType::Fifo,
    EntryType::Char,
    EntryType::Block,
    EntryType::Continuous,
    EntryType::GNULongName,
];

const RECORDS: [&str; 9] = [
    "path",
    "linkpath",
    "size",
    "uid",
    "mtime",
    "SCHILY.xattr.user.a",
    "SCHILY.xattr.security.capability",
    "GNU.sparse.major",
    "SCHILY.xattr.trusted.overlay.opaque",
];

fn layer(random: &mut Random) -> Vec<u8> {
    let mut layer = Layer::default();
    for _ in 0..random.below(8) {
        let path = random.choose(&PATHS);
        let target = random.choose(&PATHS);
        if random.once_in(4) {
            let record = random.choose(&RECORDS);
            let value = mutate::bytes(random, target.as_bytes(), &[]);
            layer = layer.pax(&[(record, &value)]);
        }
        let kind = KINDS[random.below(KINDS.len())];
        let data = vec![b'd'; random.below(700)];
        let mut head = header(kind, path, 0);
        if kind == EntryType::Regular || random.once_in(8) {
            head.set_size(u64::try_from(data.len()).expect("small"));
        }
        head.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        if random.once_in(12) {
            head.set_size(u64::try_from(random.below(1 << 40)).expect("64 bits"));
        }
        head.set_cksum();
        let has_data = head.entry_size().is_ok_and(|size| size > 0);
        layer = layer.raw(&head, if has_data { &data } else { b"" });
    }
    let tar = layer.tar();
    match random.once_in(5) {
        true => mutate::bytes(random, &tar, &[]),
        false => tar,
    }
}

fn make(random: &mut Random) -> Vec<u8> {
    let layers: Vec<Vec<u8>> = (0..random.below(4)).map(|_| layer(random)).collect();
    match random.below(3) {
        0 => {
            // These documents are false, about layers that exist.
            let config = config_json(arch(), &layers);
            let config = serde_json::from_str(&config).expect("JSON");
            let config = mutate::tree(random, &config).to_string();
            let names: Vec<String> = (0..layers.len())
                .map(|n| format!("{n}/layer.tar"))
                .collect();
            let manifest = serde_json::json!([{"Config": "config.json", "RepoTags": ["test:1"], "Layers": names}]);
            let manifest = mutate::tree(random, &manifest).to_string();
            let mut all = Layer::default();
            for (name, layer) in names.iter().zip(&layers) {
                all = all.file(name, layer);
            }
            let all = all.file("config.json", config.as_bytes());
            all.file("manifest.json", manifest.as_bytes()).tar()
        }
        1 => {
            let whole = docker_archive(&layers);
            mutate::bytes(
                random,
                &whole,
                &["manifest.json", "oci-layout", "index.json"],
            )
        }
        _ => docker_archive(&layers),
    }
}

#[test]
fn images() {
    let entrance = Entrance {
        name: "images",
        share: 20,
        most_bytes: 96 << 20,
        most_time: Duration::from_secs(10),
    };
    let room = Room::new("fuzz");
    let mut good = 0;
    fuzz(entrance, make, |input| {
        good += u32::from(targets::images(&room.0, input));
    });
    let many = super::number("CORACLE_FUZZ_ONLY").is_none();
    assert!(good > 0 || !many, "some inputs are images");
}
