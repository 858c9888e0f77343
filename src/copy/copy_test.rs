use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use super::*;
use crate::images::{Entry, Kind, tar_writer};

/// A folder of this test's own.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("coracle-copy-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn place<'a>(path: &'a Path, name: Option<&'a str>) -> Place<'a> {
    Place {
        path,
        name: name.map(str::as_ref),
        keep: false,
        watch_links: true,
    }
}

/// The stream of a path, what was said, and whether anything is missing.
fn packed(path: &Path) -> (Result<Vec<u8>, String>, String, bool) {
    let (mut said, mut out) = (String::new(), Vec::new());
    let mut tell = |line: &str| said.push_str(&format!("{line}\n"));
    let mut notes = Notes::new(&mut tell);
    let done = pack(&mut out, path, name_of(path), &mut notes);
    let missing = notes.finish();
    (done.map(|()| out), said, missing)
}

fn unpacked(mut stream: &[u8], to: Place<'_>) -> (Result<(), String>, String, bool) {
    let mut said = String::new();
    let mut tell = |line: &str| said.push_str(&format!("{line}\n"));
    let mut notes = Notes::new(&mut tell);
    let done = unpack(&mut stream, to, &mut notes);
    let missing = notes.finish();
    (done, said, missing)
}

/// Copies without any note.
fn copy(from: &Path, to: &Path) {
    let (stream, said, missing) = packed(from);
    assert_eq!((said.as_str(), missing), ("", false));
    let name = name_of(from).map(|name| name.to_str().unwrap());
    let done = unpacked(&stream.unwrap(), place(to, name));
    assert_eq!(done, (Ok(()), String::new(), false));
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// A stream of these entries, with four bytes for each file.
fn stream(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut tar = Vec::new();
    for entry in entries {
        tar_writer::head(&mut tar, entry).unwrap();
        if entry.kind == Kind::File {
            tar_writer::copy(&mut tar, &mut &b"text"[..], 4).unwrap();
        }
    }
    tar_writer::end(&mut tar).unwrap();
    tar
}

fn file(name: &str) -> Entry<'_> {
    Entry::file(name.as_bytes(), 4)
}

fn link<'a>(kind: Kind, name: &'a str, target: &'a str) -> Entry<'a> {
    Entry {
        kind,
        link: target.as_bytes(),
        ..Entry::file(name.as_bytes(), 0)
    }
}

#[test]
fn a_tree_arrives_as_it_was() {
    let folder = Folder::new("tree");
    let from = folder.at("from");
    let deep = "a".repeat(200);
    let names = [
        "empty",
        "new\nline\u{1b}[2J",
        &format!("{deep}/{deep}/file"),
    ];
    for name in names {
        let path = from.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &name[..name.len().min(3)]).unwrap();
    }
    fs::write(from.join("empty"), "").unwrap();
    let odd = from.join(OsStr::from_bytes(b"not \xff text"));
    fs::write(&odd, "bytes").unwrap();
    fs::create_dir(from.join("closed")).unwrap();
    fs::write(from.join("closed/in"), "in").unwrap();
    fs::set_permissions(from.join("closed"), fs::Permissions::from_mode(0o500)).unwrap();
    fs::set_permissions(from.join("empty"), fs::Permissions::from_mode(0o4711)).unwrap();
    symlink("closed/in", from.join("link")).unwrap();
    symlink("nowhere", from.join("dangling")).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    File::open(from.join("closed"))
        .unwrap()
        .set_modified(old)
        .unwrap();

    copy(&from, &folder.at("to"));
    let to = |path: &str| folder.at("to").join(path);
    assert_eq!(fs::read(to("empty")).unwrap(), b"");
    // Other tests change the umask, which takes further bits.
    assert_eq!(mode(&to("empty")) & !0o711, 0, "no set-user-id bit");
    assert_eq!(folder.read(&format!("to/{}", names[1])), "new");
    assert_eq!(folder.read(&format!("to/{}", names[2])), "aaa");
    assert_eq!(
        fs::read(to("").join(odd.file_name().unwrap())).unwrap(),
        b"bytes"
    );
    assert_eq!(
        (mode(&to("closed")) & !0o500, folder.read("to/closed/in")),
        (0, "in".to_owned())
    );
    assert_eq!(fs::metadata(to("closed")).unwrap().mtime(), 1_000_000);
    assert_eq!(fs::read_link(to("link")).unwrap(), Path::new("closed/in"));
    assert_eq!(fs::read_link(to("dangling")).unwrap(), Path::new("nowhere"));

    // Once more: into what is there now, and only what is in it.
    copy(&from, &folder.at("to"));
    assert_eq!(folder.read("to/from/closed/in"), "in");
    fs::create_dir(folder.at("contents")).unwrap();
    copy(&from.join("."), &folder.at("contents"));
    copy(&from.join("."), &folder.at("contents"));
    assert_eq!(folder.read("contents/closed/in"), "in");
    copy(&from.join("."), &folder.at("new"));
    assert_eq!(folder.read("new/closed/in"), "in");
}

#[test]
fn a_file_goes_where_cp_would_put_it() {
    let folder = Folder::new("file");
    fs::write(folder.at("from"), "text").unwrap();
    symlink("from", folder.at("link")).unwrap();
    fs::create_dir(folder.at("dir")).unwrap();
    fs::write(folder.at("old"), "long old text").unwrap();
    symlink("old", folder.at("to-old")).unwrap();
    for (from, to, found) in [
        ("from", "new", "new"),
        ("from", "dir", "dir/from"),
        ("link", "dir/", "dir/link"),
        ("from", "old", "old"),
        ("link", "to-old", "old"),
    ] {
        let _ = fs::remove_file(folder.at("new"));
        copy(&folder.at(from), &folder.at(to));
        assert_eq!(folder.read(found), "text", "{from} {to}");
        assert!(fs::symlink_metadata(folder.at(found)).unwrap().is_file());
    }
    assert!(
        fs::symlink_metadata(folder.at("to-old"))
            .unwrap()
            .is_symlink()
    );
    nix::unistd::mkfifo(&folder.at("pipe"), Mode::from_bits_truncate(0o600)).unwrap();
    let whole = stream(&[file("from")]);
    let tree = stream(&[Entry::directory(b"d/"), file("d/x")]);
    for (stream, to, words) in [
        (&whole, "absent/new", "no such file"),
        (&whole, "absent/", "no such file"),
        (&whole, "old/", "not a directory"),
        (&whole, "pipe", "no file or directory"),
        (&tree, "old/x", "not a directory"),
    ] {
        let (done, said, _) = unpacked(stream, place(&folder.at(to), Some("from")));
        let said = format!("{done:?} {said}");
        assert!(done.is_err() && said.contains(words), "{to}: {said}");
    }
    let (done, said, missing) = unpacked(&tree, place(&folder.at("old"), Some("d")));
    assert!(
        done.is_ok() && missing && said.contains("not a directory"),
        "{said}"
    );
    assert_eq!(folder.read("old"), "text");
    for (path, words) in [
        ("absent", "no such file"),
        ("pipe", "is a pipe"),
        ("old/.", "not a dir"),
    ] {
        let (stream, ..) = packed(&folder.at(path));
        let error = stream.unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    let bytes = unpacked(b"no archive", place(&folder.at("nothing"), None));
    assert!(bytes.0.is_err() && !folder.at("nothing").exists());
}

#[test]
fn no_entry_leaves_the_target() {
    let folder = Folder::new("hostile");
    fs::create_dir(folder.at("to")).unwrap();
    fs::write(folder.at("outside"), "safe").unwrap();
    let outside = folder.at("outside");
    let outside = outside.to_str().unwrap();
    let hostile = [
        file("x/../../outside"),
        file("../outside"),
        file(outside),
        link(Kind::Symlink, "x/up", ".."),
        file("x/up/outside"),
        file("x/up/up/outside"),
        link(Kind::Symlink, "x/out", outside),
        file("x/out"),
        link(Kind::Symlink, "x/out", outside),
        link(Kind::HardLink, "x/hard", "x/out"),
        link(Kind::HardLink, "x/harder", "x/up/outside"),
        link(Kind::HardLink, "x/hardest", "../outside"),
        link(Kind::Symlink, "y", "."),
        file("y/y/y/file"),
        file("x/last"),
    ];
    for name in [Some("x"), None] {
        let (done, said, missing) = unpacked(&stream(&hostile), place(&folder.at("to"), name));
        assert_eq!(done, Ok(()));
        assert!(missing, "{said}");
        assert_eq!(fs::read_to_string(outside).unwrap(), "safe", "{said}");
        assert_eq!(fs::metadata(outside).unwrap().nlink(), 1, "{said}");
        assert_eq!(folder.read("to/x/last"), "text");
        for words in [
            "`..` in its name",
            "`up` is a symbolic link there",
            "leads out of the copy",
        ] {
            assert!(said.contains(words), "no {words} in {said}");
        }
    }
    let mut names: Vec<_> = fs::read_dir(&folder.0)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["outside", "to"]);
}

#[test]
fn neither_devices_nor_pipes_nor_rights_are_made_of_a_stream() {
    let folder = Folder::new("kinds");
    let of = |kind, name: &'static str| Entry {
        device: (1, 3),
        ..link(kind, name, "")
    };
    let entries = [
        Entry {
            mode: 0o2777,
            ..Entry::directory(b"x/")
        },
        of(Kind::Char, "x/null"),
        of(Kind::Block, "x/disk"),
        of(Kind::Fifo, "x/pipe"),
        Entry {
            mode: 0o6755,
            uid: 7,
            gid: 7,
            ..file("x/suid")
        },
    ];
    let (done, said, missing) = unpacked(&stream(&entries), place(&folder.at("to"), Some("x")));
    assert_eq!((done, missing), (Ok(()), false), "{said}");
    assert_eq!(said.matches("a device or a pipe").count(), 3, "{said}");
    assert_eq!(fs::read_dir(folder.at("to")).unwrap().count(), 1);
    let made = fs::metadata(folder.at("to/suid")).unwrap();
    let own = nix::unistd::geteuid().as_raw();
    let mode_of = mode(&folder.at("to/suid"));
    assert_eq!(
        (mode_of & !0o755, mode_of & 0o600, made.uid()),
        (0, 0o600, own)
    );
    assert_eq!(mode(&folder.at("to")) & 0o7022, 0, "the umask applies");

    let kept = Place {
        keep: true,
        ..place(Path::new(""), Some("x"))
    };
    let to = folder.at("kept");
    let (done, ..) = unpacked(&stream(&entries), Place { path: &to, ..kept });
    assert_eq!(done, Ok(()));
    assert_eq!((mode(&to), mode(&to.join("suid"))), (0o777, 0o755));
    if own == 0 {
        assert_eq!(fs::metadata(to.join("suid")).unwrap().uid(), 7);
    }
}

#[test]
fn devices_pipes_and_sockets_are_left_out_and_nothing_waits_for_them() {
    let folder = Folder::new("odd");
    let from = folder.at("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("file"), "text").unwrap();
    nix::unistd::mkfifo(&from.join("pipe"), Mode::from_bits_truncate(0o600)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
    let device = mknod(
        &from.join("tty"),
        SFlag::S_IFCHR,
        Mode::empty(),
        makedev(5, 0),
    )
    .is_ok();
    let (stream, said, missing) = packed(&from);
    assert!(!missing, "{said}");
    for (words, wanted) in [("a pipe", true), ("a socket", true), ("a device", device)] {
        assert_eq!(said.contains(words), wanted, "{said}");
    }
    unpacked(&stream.unwrap(), place(&folder.at("to"), Some("from")))
        .0
        .unwrap();
    assert_eq!(fs::read_dir(folder.at("to")).unwrap().count(), 1);
}

#[test]
fn a_huge_sparse_file_takes_neither_time_nor_space() {
    let folder = Folder::new("sparse");
    let from = File::create(folder.at("from")).unwrap();
    let size = 1 << 40;
    from.set_len(size).unwrap();
    from.write_all_at(b"begin", 0).unwrap();
    from.write_all_at(b"middle", size / 2).unwrap();
    let (stream, said, _) = packed(&folder.at("from"));
    let stream = stream.unwrap();
    assert!(stream.len() < 1 << 20, "{} {said}", stream.len());
    unpacked(&stream, place(&folder.at("to"), Some("from")))
        .0
        .unwrap();
    let to = File::open(folder.at("to")).unwrap();
    let found = to.metadata().unwrap();
    assert_eq!(found.len(), size);
    assert!(found.blocks() < 1 << 11, "{}", found.blocks());
    let mut piece = [0; 6];
    to.read_exact_at(&mut piece, size / 2).unwrap();
    assert_eq!(&piece, b"middle");

    // A file of holes only, and one with more pieces than are told apart.
    from.set_len(0).unwrap();
    from.set_len(1 << 30).unwrap();
    copy(&folder.at("from"), &folder.at("hole"));
    assert_eq!(fs::metadata(folder.at("hole")).unwrap().len(), 1 << 30);
    from.set_len(0).unwrap();
    for piece in 0..5000 {
        from.write_all_at(b"x", piece * 8192).unwrap();
    }
    copy(&folder.at("from"), &folder.at("pieces"));
    assert!(fs::read(folder.at("pieces")).unwrap() == fs::read(folder.at("from")).unwrap());
}

#[test]
fn files_that_change_while_they_are_read_keep_the_stream_whole() {
    /// Changes a file when the first bytes of the stream are written.
    struct Meanwhile<F: FnMut()>(Vec<u8>, F);
    impl<F: FnMut()> io::Write for Meanwhile<F> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.extend_from_slice(bytes);
            (self.1)();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let folder = Folder::new("changing");
    let path = folder.at("from");
    for (length, words, missing) in [(10, "became shorter", true), (900_000, "changed", false)] {
        let from = File::create(&path).unwrap();
        from.write_all_at(&[b'x'; 300_000], 0).unwrap();
        let mut out = Meanwhile(Vec::new(), || from.set_len(length).unwrap());
        let mut said = String::new();
        let mut tell = |line: &str| said.push_str(line);
        let mut notes = Notes::new(&mut tell);
        pack(&mut out, &path, name_of(&path), &mut notes).unwrap();
        assert_eq!(notes.finish(), missing);
        assert!(said.contains(words), "{said}");
        unpacked(&out.0, place(&folder.at("to"), Some("from")))
            .0
            .unwrap();
        assert_eq!(fs::metadata(folder.at("to")).unwrap().len(), 300_000);
    }
}

#[test]
fn files_of_the_kernel_are_read_but_its_trees_are_not() {
    let folder = Folder::new("kernel");
    let (stream, said, _) = packed(Path::new("/proc/self/status"));
    unpacked(&stream.unwrap(), place(&folder.0, Some("status")))
        .0
        .unwrap();
    assert!(folder.read("status").starts_with("Name:"), "{said}");
}

#[test]
fn trees_too_deep_and_notes_without_end_are_cut_off() {
    let folder = Folder::new("deep");
    let mut path = folder.at("from");
    for _ in 0..MAX_DEPTH + 10 {
        path.push("d");
    }
    fs::create_dir_all(&path).unwrap();
    let (tar, said, missing) = packed(&folder.at("from"));
    assert!(missing && said.contains("too deeply"), "{said}");
    let done = unpacked(&tar.unwrap(), place(&folder.at("to"), Some("from")));
    assert_eq!((done.0, done.2), (Ok(()), false), "{}", done.1);

    let deep = "d/".repeat(500);
    let entries: Vec<_> = (0..200)
        .map(|_| Entry::directory(deep.as_bytes()))
        .collect();
    let (done, said, missing) = unpacked(&stream(&entries), place(&folder.at("x"), Some("d")));
    assert!(done.is_ok() && missing);
    assert_eq!(said.lines().count(), 51, "{said}");
    assert!(said.ends_with("150 more lines are not shown\n"), "{said}");
}

#[test]
fn a_stream_that_breaks_off_leaves_no_half_file() {
    let folder = Folder::new("broken");
    let whole = stream(&[Entry::directory(b"x/"), file("x/a"), file("x/b")]);
    let cut = &whole[..whole.len() - 1024 - 510];
    let (done, ..) = unpacked(cut, place(&folder.at("to"), Some("x")));
    assert!(done.is_err());
    assert!(folder.at("to/a").exists() && !folder.at("to/b").exists());
}
