//! Images out of the store: what is saved is what was imported, and other programs read it.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::fixture::*;
use coracle::images::{ImageError, ImportOptions, save};
use serde_json::Value;
use tar::EntryType;

/// Saves images of the room's store into a file.
pub(super) fn saved(room: &Room, names: &[&str], file: &str) -> Result<PathBuf, ImageError> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let store = room.store();
    let bytes = smol::block_on(async {
        let mut saving = save(exe(), &store, &names).await?;
        let mut all = Vec::new();
        while let Some(piece) = saving.next().await? {
            all.extend_from_slice(&piece);
        }
        assert_eq!(all.len() as u64, saving.bytes, "the length was announced");
        Ok::<_, ImageError>(all)
    })?;
    Ok(room.write(file, &bytes))
}

/// Everything about the files of a layer, one a line.
fn listing(root: &Path) -> String {
    const PROGRAM: &str = r"
import hashlib, os, stat, sys
root = os.fsencode(sys.argv[1])
for at, folders, files in os.walk(root):
    folders.sort()
    for name in sorted(folders + files):
        path = os.path.join(at, name)
        found = os.lstat(path)
        data = link = None
        if stat.S_ISREG(found.st_mode):
            data = hashlib.sha256(open(path, 'rb').read()).hexdigest()[:12]
        if stat.S_ISLNK(found.st_mode):
            link = os.readlink(path)
        attributes = {key: os.getxattr(path, key, follow_symlinks=False)
                      for key in os.listxattr(path, follow_symlinks=False)}
        links = found.st_nlink if not stat.S_ISDIR(found.st_mode) else 0
        # A whiteout has no time of its own.
        hides = stat.S_ISCHR(found.st_mode) and found.st_rdev == 0
        time = None if hides else found.st_mtime_ns
        print(path[len(root):], oct(found.st_mode), found.st_uid, found.st_gid, time, found.st_rdev,
              links, data, link, sorted(attributes.items()))
";
    let output = Command::new("python3")
        .args(["-c", PROGRAM])
        .arg(root)
        .output()
        .expect("apt-get install python3");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn json_of(program: &str, args: &[&str]) -> Value {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|why| panic!("{program}: {why}; apt-get install skopeo"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A layer with all that a layer can have.
fn rich_layer() -> Vec<u8> {
    let mut setuid = header(EntryType::Regular, "bin/su", 2);
    setuid.set_mode(0o6755);
    setuid.set_uid(12345);
    setuid.set_gid(3_000_000);
    setuid.set_cksum();
    let mut null = header(EntryType::Char, "dev/null", 0);
    null.set_device_major(1).unwrap();
    null.set_device_minor(3).unwrap();
    null.set_cksum();
    let mut disk = header(EntryType::Block, "dev/disk", 0);
    disk.set_device_major(8).unwrap();
    disk.set_device_minor(1).unwrap();
    disk.set_cksum();
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let long = format!("deep/{}/{}", "a".repeat(200), "b".repeat(200));
    Layer::default()
        .dir("bin/")
        .raw(&setuid, b"su")
        .link(EntryType::Link, "bin/a-link", "bin/su")
        .link(EntryType::Symlink, "bin/sh", "/does/not/exist")
        .pax(&[("linkpath", long.as_bytes())])
        .link(EntryType::Symlink, "bin/far", "short")
        .dir("dev")
        .raw(&null, b"")
        .raw(&disk, b"")
        .raw(&header(EntryType::Fifo, "dev/fifo", 0), b"")
        .pax(&[
            ("SCHILY.xattr.security.capability", &capability),
            ("SCHILY.xattr.user.note", b"a\nb\0c"),
            ("mtime", b"1600000000.5"),
        ])
        .file("bin/ping", b"ping")
        .pax(&[("mtime", b"-1.5")])
        .file("old", b"older than 1970")
        .pax(&[("path", long.as_bytes())])
        .file("short", b"long")
        .file("empty", b"")
        .dir("hidden")
        .file("hidden/.wh..wh..opq", b"")
        .file("hidden/new", b"new")
        .file(".wh.gone", b"")
        .tar()
}

/// Makes a store look as if an earlier version had unpacked its layers.
fn forget_recipes(room: &Room) {
    for layer in std::fs::read_dir(room.store().join("layers")).unwrap() {
        let layer = layer.unwrap().path();
        let record = std::fs::read(layer.join("layer.json")).unwrap();
        let mut record: Value = serde_json::from_slice(&record).unwrap();
        record.as_object_mut().unwrap().remove("recipe").unwrap();
        std::fs::write(layer.join("layer.json"), record.to_string()).unwrap();
        std::fs::remove_file(layer.join("recipe.gz")).unwrap();
    }
}

#[test]
fn what_is_saved_is_the_image_itself() {
    let room = Room::new("saved-same");
    let dir = room.path("sparse");
    std::fs::create_dir_all(&dir).unwrap();
    let script = "cd $0 && truncate -s 5M f && for i in 1 3; do printf data$i | dd of=f bs=1M seek=$i conv=notrunc \
                  status=none; done && tar --sparse --format=$1 -cf ../$1.tar f && ln -s . d && echo x > y && \
                  tar -cf ../links.tar d d/y";
    for format in ["gnu", "posix"] {
        run("sh", &["-c", script, dir.to_str().unwrap(), format]);
        let _ = std::fs::remove_file(dir.join("d"));
    }
    let read = |name: &str| std::fs::read(room.path(name)).unwrap();
    // Real tars end in any number of empty blocks; some writers put data behind them.
    let mut odd = Layer::default().file("odd", b"x").tar();
    odd.extend_from_slice(&[0; 4096]);
    odd.extend_from_slice(b"behind the end");
    let mut cut = Layer::default().file("cut", b"not filled up").tar();
    cut.truncate(512 + 13);
    let layers = [
        rich_layer(),
        read("gnu.tar"),
        read("posix.tar"),
        read("links.tar"),
        odd,
        cut,
    ];
    let image = room.image(&room.write("a.tar", &docker_archive(&layers)));
    let again = Room::new("saved-same-there");
    let copy = again.image(&saved(&room, &["test:1"], "saved.tar").unwrap());
    assert_eq!(
        (&copy.id, &copy.manifest_digest),
        (&image.id, &image.manifest_digest)
    );
    let compared = again.open().compare(&mut |_, _| {}).unwrap();
    assert_eq!((compared.compared, compared.unknown), (6, 0));
}

#[test]
fn without_recipes_every_file_has_all_that_belongs_to_it_all_the_same() {
    let room = Room::new("saved");
    let lower = Layer::default()
        .dir("hidden")
        .file("hidden/old", b"")
        .file("gone", b"")
        .tar();
    let image = room.image(&room.write("a.tar", &docker_archive(&[lower, rich_layer()])));
    forget_recipes(&room);
    let again = Room::new("saved-again");
    let copy = again.image(&saved(&room, &["test:1"], "saved.tar").unwrap());
    assert_eq!(copy.names, ["docker.io/library/test:1"]);
    assert_eq!(copy.config, image.config);
    assert_ne!(copy.id, image.id, "the tars are others");
    assert_eq!(copy.layers.len(), 2);
    for (copied, meant) in copy.layers.iter().zip(&image.layers) {
        let (copied, meant) = (listing(copied), listing(meant));
        assert!(
            !meant.is_empty() && copied == meant,
            "{copied}\nis not\n{meant}"
        );
    }
    let rich = listing(&copy.layers[0]);
    for word in [
        "security.capability",
        "overlay.opaque",
        "b'/gone' 0o20000",
        "b'/bin/a-link' 0o106755 12345 3000000",
    ] {
        assert!(rich.contains(word), "{word} in {rich}");
    }
    // An image that came out of a store stays what it is.
    forget_recipes(&again);
    let first = std::fs::read(room.path("saved.tar")).unwrap();
    let second = std::fs::read(saved(&again, &["test:1"], "saved.tar").unwrap()).unwrap();
    assert!(first == second, "the same image gives the same archive");
}

#[test]
fn other_programs_read_what_is_saved() {
    let room = Room::new("saved-skopeo");
    room.image(&busybox(&room));
    let layers = [Layer::default().file("own", b"one").tar()];
    let config = config_json(arch(), &layers);
    let archive = docker_archive_with(&config, &["other:2"], &layers);
    room.import(&room.write("o.tar", &archive)).unwrap();
    let names: Vec<String> = room
        .open()
        .list()
        .unwrap()
        .into_iter()
        .flat_map(|i| i.names)
        .collect();
    let [bare, other] = names.as_slice() else {
        panic!("{names:?}");
    };
    let file = saved(&room, &[bare, other, bare], "both.tar").unwrap();
    let file = file.to_str().unwrap();
    for name in [bare, other] {
        let source = format!("oci-archive:{file}:{name}");
        let shown = json_of("skopeo", &["inspect", &source]);
        assert_eq!(shown["Architecture"], arch(), "{shown}");
        assert_eq!(shown["Layers"].as_array().map(Vec::len), Some(1), "{shown}");
        let target = format!("docker-archive:{}:{name}", room.path("again.tar").display());
        let _ = std::fs::remove_file(room.path("again.tar"));
        run(
            "skopeo",
            &["--insecure-policy", "copy", "--quiet", &source, &target],
        );
        let again = Room::new("saved-there");
        let image = again.image(&room.path("again.tar"));
        assert_eq!(image.names, [name.as_str()]);
    }
    let layout = room.path("layout");
    run("mkdir", &[&layout]);
    run("tar", &["-C", layout.to_str().unwrap(), "-xf", file]);
    let place = format!("{}:{other}", layout.display());
    let stat = json_of("umoci", &["stat", "--image", &place, "--json"]);
    assert!(
        stat["history"].is_array() || stat["history"].is_null(),
        "{stat}"
    );
    // What `docker load` reads.
    let docker = std::fs::read(layout.join("manifest.json")).unwrap();
    let docker: Value = serde_json::from_slice(&docker).unwrap();
    assert_eq!(docker[1]["RepoTags"], serde_json::json!([other]));
    assert!(layout.join(docker[1]["Config"].as_str().unwrap()).is_file());
}

#[test]
fn an_image_is_saved_by_its_id_too_and_then_has_no_name() {
    let room = Room::new("saved-id");
    let layer = Layer::default().file("f", b"x").tar();
    let image = room.image(&room.write("a.tar", &docker_archive(&[layer])));
    let again = Room::new("saved-id-there");
    for (number, given) in [image.id.as_str(), &image.id[7..20]]
        .into_iter()
        .enumerate()
    {
        let file = saved(&room, &[given], &format!("by-id-{number}.tar")).unwrap();
        let copy = again.image(&file);
        let from_file = format!("docker.io/library/by-id-{number}:latest");
        assert!(copy.names.contains(&from_file), "{:?}", copy.names);
        assert!(!copy.names.contains(&image.names[0]));
    }
}

#[test]
fn an_image_with_two_names_is_one_in_its_archive() {
    let room = Room::new("saved-twice");
    let layer = Layer::default().file("f", b"x").tar();
    let image = room.image(&room.write("a.tar", &docker_archive(&[layer])));
    room.open().tag("test:1", "second:1").unwrap();
    let file = saved(&room, &["test:1", "second:1"], "x.tar").unwrap();
    let again = Room::new("saved-twice-there");
    let options = ImportOptions {
        name: Some("third:1".to_owned()),
        ..ImportOptions::default()
    };
    let imported = again.import_with(&file, &options).unwrap();
    assert_eq!(imported.len(), 1, "{imported:?}");
    let mut names = again.open().lookup(&image.id).unwrap().unwrap().names;
    names.sort();
    let expected =
        ["second:1", "test:1", "third:1"].map(|name| format!("docker.io/library/{name}"));
    assert_eq!(names, expected);
}

#[test]
fn what_is_not_there_is_named_before_anything_is_written() {
    let room = Room::new("saved-none");
    let layer = Layer::default().file("f", b"x").tar();
    let image = room.image(&room.write("a.tar", &docker_archive(&[layer])));
    let why = saved(&room, &["test:1", "none:1"], "x.tar").unwrap_err();
    assert!(why.to_string().contains("no image `none:1`"), "{why}");
    assert!(why.hint().is_some());
    std::fs::write(image.layers[0].join("f"), "y").unwrap();
    let why = saved(&room, &["test:1"], "x.tar").unwrap_err();
    assert!(why.to_string().contains("is damaged"), "{why}");
    forget_recipes(&room);
    std::fs::remove_dir_all(&image.layers[0]).unwrap();
    let why = saved(&room, &["test:1"], "x.tar").unwrap_err();
    assert!(why.to_string().contains("could not read"), "{why}");
}
