//! Layers: unpacked as their authors meant them, and stacked by overlayfs.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::fixture::*;
use tar::EntryType;

fn xattr(path: &Path, key: &str) -> Option<Vec<u8>> {
    let program = "import os,sys; sys.stdout.buffer.write(os.getxattr(sys.argv[1], sys.argv[2], follow_symlinks=False))";
    let output = Command::new("python3")
        .args(["-c", program])
        .arg(path)
        .arg(key)
        .output()
        .expect("apt-get install python3");
    output.status.success().then_some(output.stdout)
}

/// An overlay of layers, topmost first, as containers see them.
struct Merged(PathBuf);

impl Merged {
    fn of(room: &Room, layers: &[PathBuf]) -> Self {
        let target = room.path("merged");
        std::fs::create_dir(&target).unwrap();
        let lowers: Vec<_> = layers.iter().map(|l| l.to_str().unwrap()).collect();
        let options = format!("ro,lowerdir={}", lowers.join(":"));
        let at = target.to_str().unwrap();
        run("mount", &["-t", "overlay", "-o", &options, "none", at]);
        Self(target)
    }
}

impl Drop for Merged {
    fn drop(&mut self) {
        run("umount", &[self.0.to_str().unwrap()]);
    }
}

#[test]
fn owners_modes_times_links_devices_and_attributes_are_kept() {
    let room = Room::new("metadata");
    let mut setuid = header(EntryType::Regular, "bin/su", 2);
    setuid.set_mode(0o6755);
    setuid.set_uid(12345);
    setuid.set_gid(54321);
    setuid.set_cksum();
    let mut null = header(EntryType::Char, "dev/null", 0);
    null.set_device_major(1).unwrap();
    null.set_device_minor(3).unwrap();
    null.set_cksum();
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let long = format!("deep/{}/{}", "a".repeat(200), "b".repeat(200));
    let layer = Layer::default()
        .dir("./")
        .dir("bin/")
        .raw(&setuid, b"su")
        .link(EntryType::Link, "bin/su2", "bin/su")
        .link(EntryType::Link, "/bin/su3", "./bin/su")
        .link(EntryType::Symlink, "bin/sh", "/does/not/exist")
        .dir("dev")
        .raw(&null, b"")
        .raw(&header(EntryType::Fifo, "dev/fifo", 0), b"")
        .pax(&[
            ("SCHILY.xattr.security.capability", &capability),
            ("SCHILY.xattr.user.note", b"a\nb\0c"),
            ("mtime", b"1600000000.5"),
        ])
        .file("bin/ping", b"ping")
        .pax(&[
            ("path", long.as_bytes()),
            ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
            ("SCHILY.xattr.trusted.other", b"x"),
            ("SCHILY.xattr.user.overlay.redirect", b"/etc"),
            ("SCHILY.xattr.security.selinux", b"x"),
        ])
        .file("short", b"long")
        .file("twice", b"first")
        .file("twice", b"second")
        .dir("swap")
        .file("swap/inside", b"x")
        .file("swap", b"a file now")
        .file("swap2", b"a file")
        .dir("swap2")
        .file("swap2/inside", b"y")
        .tar();
    let image = room.image(&room.write("a.tar", &docker_archive(&[layer])));
    let root = &image.layers[0];
    let meta = |name: &str| std::fs::symlink_metadata(root.join(name)).unwrap();
    let su = meta("bin/su");
    assert_eq!(
        (su.mode() & 0o7777, su.uid(), su.gid()),
        (0o6755, 12345, 54321)
    );
    assert_eq!(
        (su.ino(), su.ino()),
        (meta("bin/su2").ino(), meta("bin/su3").ino())
    );
    assert_eq!(
        std::fs::read_link(root.join("bin/sh")).unwrap(),
        Path::new("/does/not/exist")
    );
    assert_eq!(meta("dev/null").rdev(), 0x103);
    assert!(meta("dev/fifo").file_type().is_fifo());
    assert_eq!(
        (meta("bin/ping").mtime(), meta("bin/ping").mtime_nsec()),
        (1_600_000_000, 500_000_000)
    );
    assert_eq!(meta("bin").mtime(), 1_700_000_000);
    assert_eq!(
        xattr(&root.join("bin/ping"), "user.note").unwrap(),
        b"a\nb\0c"
    );
    assert_eq!(
        xattr(&root.join("bin/ping"), "security.capability").unwrap(),
        capability
    );
    assert_eq!(std::fs::read(root.join(&long)).unwrap(), b"long");
    for key in [
        "trusted.overlay.redirect",
        "trusted.other",
        "user.overlay.redirect",
    ] {
        assert_eq!(xattr(&root.join(&long), key), None, "{key}");
    }
    assert_ne!(
        xattr(&root.join(&long), "security.selinux"),
        Some(b"x".to_vec())
    );
    assert_eq!(std::fs::read(root.join("twice")).unwrap(), b"second");
    assert_eq!(std::fs::read(root.join("swap")).unwrap(), b"a file now");
    assert_eq!(std::fs::read(root.join("swap2/inside")).unwrap(), b"y");
}

#[test]
fn sparse_files_of_gnu_tar_keep_their_holes() {
    let room = Room::new("sparse");
    for format in ["gnu", "posix"] {
        let dir = room.path(format);
        std::fs::create_dir_all(&dir).unwrap();
        let script = "cd $0 && rm -f f && truncate -s 50M f && for i in 1 5 9 13 17 21 25; do printf data$i | dd of=f bs=1M seek=$i conv=notrunc status=none; done && tar --sparse --format=$1 -cf ../$1.tar f";
        run("sh", &["-c", script, dir.to_str().unwrap(), format]);
        let layer = std::fs::read(room.path(&format!("{format}.tar"))).unwrap();
        assert!(layer.len() < 1 << 20);
        let image = room.image(&room.write("s.tar", &docker_archive(&[layer])));
        let (made, meant) = (image.layers[0].join("f"), dir.join("f"));
        assert_eq!(
            std::fs::read(&made).unwrap(),
            std::fs::read(&meant).unwrap(),
            "{format}"
        );
        assert!(
            std::fs::metadata(&made).unwrap().blocks() * 512 < 1 << 20,
            "{format}"
        );
    }
}

#[test]
fn whiteouts_work_under_overlayfs() {
    let room = Room::new("whiteout");
    let lower = Layer::default()
        .dir("etc")
        .file("etc/gone", b"")
        .file("etc/stays", b"")
        .dir("opaque")
        .file("opaque/old", b"")
        .dir("replaced")
        .file("replaced/old", b"")
        .tar();
    let upper = Layer::default()
        .dir("etc")
        .file("etc/.wh.gone", b"")
        .dir("opaque")
        .file("opaque/.wh..wh..opq", b"")
        .file("opaque/new", b"")
        .file(".wh.replaced", b"")
        .dir("replaced")
        .file("replaced/new", b"")
        .tar();
    // The same layer appears twice: overlayfs refuses a directory that is given twice.
    let image = room.image(&room.write("a.tar", &docker_archive(&[lower, upper.clone(), upper])));
    assert_eq!(image.layers.len(), 2);
    let gone = std::fs::symlink_metadata(image.layers[0].join("etc/gone")).unwrap();
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    let merged = Merged::of(&room, &image.layers);
    let list = |dir: &str| {
        let mut names: Vec<_> = std::fs::read_dir(merged.0.join(dir))
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(list("etc"), ["stays"]);
    assert_eq!(list("opaque"), ["new"]);
    assert_eq!(list("replaced"), ["new"]);
}

#[test]
fn a_layer_packed_by_umoci_is_unpacked_without_differences() {
    let room = Room::new("umoci");
    let script = r#"cd $0
umoci init --layout u; umoci new --image u:v1
umoci unpack --image u:v1 b1 >/dev/null 2>&1
mkdir -p b1/rootfs/etc/dir; echo a >b1/rootfs/etc/a; echo b >b1/rootfs/etc/dir/b; ln b1/rootfs/etc/a b1/rootfs/hard
chmod 4711 b1/rootfs/etc/a; chown 7:8 b1/rootfs/etc/dir; mknod b1/rootfs/zero c 1 5; python3 -c 'import os; os.setxattr("b1/rootfs/etc/a", "user.x", b"y")'
umoci repack --image u:v2 b1 >/dev/null 2>&1; rm -rf b1
umoci unpack --image u:v2 b2 >/dev/null 2>&1
rm -r b2/rootfs/etc/dir b2/rootfs/hard; echo n >b2/rootfs/etc/new
umoci repack --image u:v3 b2 >/dev/null 2>&1
umoci config --image u:v3 --config.cmd /bin/x --config.user 7:8 --config.env A=b --config.label k=v"#;
    run("sh", &["-ec", script, room.0.to_str().unwrap()]);
    room.import(&room.path("u")).unwrap();
    let image = room
        .open()
        .lookup("u:v3")
        .unwrap()
        .expect("named by directory and tag");
    assert_eq!(image.config.user.as_deref(), Some("7:8"));
    assert!(image.config.env.contains(&"A=b".to_owned()));
    assert_eq!(image.layers.len(), 2);
    let (top, base) = (&image.layers[0], &image.layers[1]);
    let a = std::fs::metadata(base.join("etc/a")).unwrap();
    assert_eq!((a.mode() & 0o7777, a.nlink()), (0o4711, 2));
    assert_eq!(xattr(&base.join("etc/a"), "user.x").unwrap(), b"y");
    assert_eq!(std::fs::metadata(base.join("etc/dir")).unwrap().uid(), 7);
    for hidden in ["etc/dir", "hard"] {
        assert!(
            std::fs::symlink_metadata(top.join(hidden))
                .unwrap()
                .file_type()
                .is_char_device()
        );
    }
    assert!(top.join("etc/new").is_file());
}

#[test]
fn an_image_of_150_layers_is_imported_with_little_memory() {
    let room = Room::new("many");
    let mut layers: Vec<_> = (0..149)
        .map(|i| Layer::default().file(&format!("f{i}"), b"x").tar())
        .collect();
    layers.push(Layer::default().file("big", &vec![7; 64 << 20]).tar());
    let archive = room.write("a.tar", &docker_archive(&layers));
    // GNU time is not always installed; Python's child statistics are available.
    let program = "import resource,subprocess,sys; subprocess.run(sys.argv[1:],check=True,stdout=subprocess.DEVNULL); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
    let output = Command::new("python3")
        .args(["-c", program])
        .arg(exe())
        .args(["image-worker", "import", "--store"])
        .args([room.store(), archive])
        .output()
        .unwrap();
    assert!(output.status.success());
    let peak_kb: u64 = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .unwrap();
    println!("peak memory of the worker: {peak_kb} kB for an archive of 64 MiB and 150 layers");
    // Less than the largest layer; without optimization and with a thread for each core it is about half.
    assert!(peak_kb < 48 << 10, "{peak_kb} kB");
    let image = room.open().lookup("test:1").unwrap().unwrap();
    assert_eq!(image.layers.len(), 150);
    assert!(image.layers[0].join("big").is_file());
}

#[test]
fn a_directory_without_an_entry_of_its_own_stays_as_lower_layers_have_it() {
    let room = Room::new("implied");
    let owned = |layer: Layer, name: &str, mode: u32, owner: u64| {
        let mut header = header(EntryType::Directory, name, 0);
        header.set_mode(mode);
        header.set_uid(owner);
        header.set_gid(owner);
        header.set_cksum();
        layer.raw(&header, b"")
    };
    let mut base = Layer::default();
    for (name, mode, owner) in [
        ("./", 0o755, 7),
        ("tmp", 0o1777, 0),
        ("home", 0o711, 5),
        ("home/user", 0o700, 1000),
        ("own", 0o700, 3),
        ("gone", 0o700, 3),
        ("emptied", 0o750, 3),
        ("emptied/sub", 0o700, 3),
        ("file", 0o700, 3),
        ("plain", 0o755, 0),
    ] {
        base = owned(base, name, mode, owner);
    }
    let middle = Layer::default()
        .file("home/user/a", b"")
        .file(".wh.gone", b"")
        .file("emptied/.wh..wh..opq", b"")
        .file("file", b"");
    let top = owned(Layer::default(), "own", 0o755, 9)
        .file("own/a", b"")
        .file("tmp/a", b"")
        .file("home/user/deep/b", b"")
        .file("gone/a", b"")
        .file("emptied/sub/a", b"")
        .file("plain/a", b"");
    let layers = [base.tar(), middle.tar(), top.tar()];
    let archive = room.write("a.tar", &docker_archive(&layers));
    let image = room.image(&archive);
    assert_eq!(image.layers.len(), 4, "{:?}", image.layers);
    let looks = |path: &Path| {
        let found = std::fs::symlink_metadata(path).unwrap();
        (found.mode() & 0o7777, found.uid(), found.gid())
    };
    let merged = Merged::of(&room, &image.layers);
    for (name, expected) in [
        ("", (0o755, 7, 7)),
        ("tmp", (0o1777, 0, 0)),
        ("home", (0o711, 5, 5)),
        ("home/user", (0o700, 1000, 1000)),
        ("home/user/deep", (0o755, 0, 0)),
        ("own", (0o755, 9, 9)),
        // It was removed in between, and so it is a new one.
        ("gone", (0o755, 0, 0)),
        ("emptied", (0o750, 3, 3)),
        ("emptied/sub", (0o755, 0, 0)),
        ("plain", (0o755, 0, 0)),
    ] {
        assert_eq!(looks(&merged.0.join(name)), expected, "{name}");
    }
    for name in ["home/user/a", "home/user/deep/b", "emptied/sub/a", "gone/a"] {
        assert!(merged.0.join(name).is_file(), "{name}");
    }
    assert_eq!(
        std::fs::metadata(merged.0.join("tmp")).unwrap().mtime(),
        1_700_000_000
    );
    drop(merged);

    // Nothing changes if it comes again, damage is found, and it goes with its image.
    assert_eq!(room.image(&archive).layers, image.layers);
    let store = room.open();
    assert_eq!(store.check().unwrap().damage, []);
    std::fs::remove_dir(image.layers[0].join("tmp")).unwrap();
    let damage = store.check().unwrap().damage;
    assert!(
        damage.len() == 1 && damage[0].path == image.layers[0],
        "{damage:?}"
    );
    assert_eq!(room.image(&archive).layers, image.layers);
    assert_eq!(store.check().unwrap().damage, []);
    store
        .remove("test:1", &Default::default(), &Default::default())
        .unwrap();
    assert!(!image.layers[0].exists());
    room.assert_empty();
}

#[test]
fn files_below_a_symlink_of_a_lower_layer_are_where_it_leads_to() {
    let room = Room::new("moved");
    let base = Layer::default()
        .link(EntryType::Symlink, "bin", "usr/bin")
        .link(EntryType::Symlink, "lib", "/usr/lib/")
        .link(EntryType::Symlink, "loop", ".")
        .link(EntryType::Symlink, "nowhere", "/absent")
        .link(EntryType::Symlink, "var/run", "../run")
        .dir("run")
        .dir("usr/bin")
        .file("usr/bin/sh", b"sh")
        .file("usr/bin/old", b"old")
        .file("usr/bin/newest", b"1")
        .dir("usr/lib")
        .dir("usr/lib/deep")
        .file("usr/lib/deep/kept", b"")
        .tar();
    let mut owned = header(EntryType::Regular, "bin/tool", 4);
    owned.set_uid(1000);
    owned.set_mode(0o4755);
    owned.set_cksum();
    let middle = Layer::default()
        .raw(&owned, b"tool")
        .link(EntryType::Link, "bin/alias", "bin/tool")
        .link(EntryType::Symlink, "bin/link", "tool")
        .file("bin/.wh.old", b"")
        .file("bin/newest", b"2")
        .file("bin/again", b"2")
        .file("lib/deep/new", b"")
        .dir("lib/own")
        .file("lib/own/.wh..wh..opq", b"")
        .file("var/run/app/pid", b"")
        .file("loop/a", b"")
        .file("nowhere/a", b"")
        .tar();
    let top = Layer::default()
        .file("usr/bin/newest", b"3")
        .file("bin/again", b"3")
        .tar();
    let image = room.image(&room.write("a.tar", &docker_archive(&[base, middle, top])));
    assert_eq!(image.layers.len(), 4, "{:?}", image.layers);
    let merged = Merged::of(&room, &image.layers);
    let at = |name: &str| merged.0.join(name);
    for (name, target) in [
        ("bin", "usr/bin"),
        ("lib", "/usr/lib/"),
        ("var/run", "../run"),
        ("usr/bin/link", "tool"),
    ] {
        let found = std::fs::read_link(at(name)).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!(found, Path::new(target), "{name}");
    }
    for (name, content) in [
        ("usr/bin/sh", "sh"),
        ("bin/tool", "tool"),
        ("usr/bin/alias", "tool"),
        ("usr/bin/newest", "3"),
        ("usr/bin/again", "3"),
        ("usr/lib/deep/kept", ""),
        ("usr/lib/deep/new", ""),
        ("run/app/pid", ""),
        ("loop/a", ""),
        ("nowhere/a", ""),
    ] {
        let found = std::fs::read_to_string(at(name)).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!(found, content, "{name}");
    }
    assert!(!at("usr/bin/old").exists());
    assert!(at("usr/lib/own").is_dir());
    let tool = std::fs::metadata(at("usr/bin/tool")).unwrap();
    assert_eq!((tool.mode() & 0o7777, tool.uid()), (0o4755, 1000));
    drop(merged);
    assert_eq!(room.open().check().unwrap().damage, []);
    // The image is what it was for other programs.
    let saved = super::saved::saved(&room, &["test:1"], "saved.tar").unwrap();
    let other = Room::new("moved-again");
    assert_eq!(other.image(&saved).id, image.id);
}

#[test]
fn symlinks_over_symlinks_stay_hidden_and_an_image_of_them_is_imported() {
    let room = Room::new("chains");
    let base = Layer::default()
        .link(EntryType::Symlink, "bin", "usr/bin")
        .link(EntryType::Symlink, "z", "/bin/sub")
        .dir("usr/bin")
        .file("usr/bin/sh", b"")
        .tar();
    let top = Layer::default()
        .file("bin/sub/tool", b"")
        .file("z/x", b"")
        .tar();
    let image = room.image(&room.write("a.tar", &docker_archive(&[base, top])));
    let merged = Merged::of(&room, &image.layers);
    for name in ["bin/sh", "usr/bin/sub/tool", "z/x"] {
        assert!(merged.0.join(name).is_file(), "{name}");
    }
}
