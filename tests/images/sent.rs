//! Archives sent by clients, abandoned imports, and disk space kept free.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::fixture::*;
use super::hostile::SmallDisk;
use coracle::images::{ImageError, ImportOptions, Imported, KeepFree, Origin, import_unless};
use flate2::{Compression, write::GzEncoder};

/// Imports an archive that is sent in pieces of this size; `end` is an error in place of the end.
fn send(
    room: &Room,
    bytes: &[u8],
    size: usize,
    end: Option<&str>,
) -> Result<Vec<Imported>, ImageError> {
    let (pieces, archive) = smol::channel::bounded(2);
    let options = ImportOptions {
        name: None,
        ..ImportOptions::default()
    };
    let (store, origin) = (room.store(), Origin::Stream(archive));
    let never = std::future::pending();
    let import = import_unless(never, exe(), &store, &origin, &options, |_| {});
    let feed = async {
        for piece in bytes.chunks(size) {
            if pieces.send(Ok(piece.to_vec().into())).await.is_err() {
                break;
            }
        }
        if let Some(why) = end {
            let _ = pieces.send(Err(io::Error::other(why))).await;
        }
        pieces.close();
    };
    smol::block_on(smol::future::zip(import, feed)).0
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

#[test]
fn an_archive_may_be_sent_compressed_or_not_and_in_pieces_of_any_size() {
    let archive = docker_archive(&[Layer::default().file("f", &[7; 200_000]).tar()]);
    for (bytes, size) in [
        (archive.clone(), 1000),
        (archive.clone(), 1 << 20),
        (packed(&archive), 100),
    ] {
        let room = Room::new("sent");
        let imported = send(&room, &bytes, size, None).unwrap();
        assert_eq!(imported[0].names, ["docker.io/library/test:1"]);
        let image = room.open().lookup("test:1").unwrap().unwrap();
        assert_eq!(
            std::fs::read(image.layers[0].join("f")).unwrap(),
            [7; 200_000]
        );
    }
}

#[test]
fn an_incomplete_or_invalid_archive_leaves_nothing() {
    let archive = docker_archive(&[Layer::default().file("f", &[7; 200_000]).tar()]);
    let half = &archive[..archive.len() / 2];
    for (bytes, end, expected) in [
        (half, Some("the client is gone"), "could not be received"),
        (half, None, "truncated"),
        (&[][..], None, "it is empty"),
        (&[b'x'; 5000][..], None, "tar header"),
    ] {
        let room = Room::new("part");
        let error = send(&room, bytes, 4096, end).unwrap_err();
        assert!(
            coracle::chain(&error).contains(expected),
            "{}",
            coracle::chain(&error)
        );
        room.assert_empty();
    }
}

/// An archive whose import takes a while.
fn slow(room: &Room) -> std::path::PathBuf {
    let mut layer = GzEncoder::new(Vec::new(), Compression::fast());
    layer
        .write_all(header(tar::EntryType::Regular, "zeros", 2 << 30).as_bytes())
        .unwrap();
    for _ in 0..2048 {
        layer.write_all(&vec![0; 1 << 20]).unwrap();
    }
    room.write("slow.tar", &docker_archive(&[layer.finish().unwrap()]))
}

#[test]
fn an_abandoned_import_ends_and_leaves_nothing() {
    let room = Room::new("given-up");
    let archive = Origin::Path(slow(&room));
    let (begun, wait) = smol::channel::bounded::<()>(1);
    let given_up = async {
        wait.recv().await.unwrap();
    };
    let (store, options) = (room.store(), ImportOptions::default());
    let import = import_unless(given_up, exe(), &store, &archive, &options, |_| {
        let _ = begun.try_send(());
    });
    let ended = smol::block_on(import).unwrap_err();
    assert!(matches!(ended, ImageError::Abandoned), "{ended:?}");
    room.open().remove_leftovers().unwrap();
    room.assert_empty();
}

#[test]
fn a_worker_whose_agent_is_gone_ends_and_removes_its_files() {
    let room = Room::new("orphan");
    let archive = slow(&room);
    let mut worker = Command::new(exe())
        .args(["image-worker", "import", "--store"])
        .args([&room.store(), &archive])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = worker.stdout.take().unwrap();
    output.read_exact(&mut [0; 8]).unwrap();
    drop(output);
    let begun = Instant::now();
    assert!(!worker.wait().unwrap().success());
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(
        std::fs::read_dir(room.store().join("tmp")).unwrap().count(),
        0
    );
    room.assert_empty();
}

fn free(path: &Path) -> (u64, u64) {
    let fs = nix::sys::statvfs::statvfs(path).unwrap();
    (
        fs.blocks_available() * fs.fragment_size(),
        fs.files_available(),
    )
}

#[test]
fn an_import_leaves_free_what_the_eviction_thresholds_require() {
    let room = Room::new("keep");
    let _small = SmallDisk::with(&room, "size=64m,nr_inodes=4000");
    let layer = Layer::default().file("f", &vec![7; 24 << 20]).tar();
    let archive = room.write("a.tar", &docker_archive(&[layer]));
    for (bytes, inodes, fits) in [
        (48 << 20, 0, false),
        (0, 3999, false),
        (16 << 20, 3000, true),
    ] {
        let options = ImportOptions {
            keep: KeepFree { bytes, inodes },
            ..ImportOptions::default()
        };
        let result = room.import_with(&archive, &options);
        let left = free(&room.store());
        assert!(left.0 >= bytes && (!fits || left.1 >= inodes), "{left:?}");
        match fits {
            true => drop(result.unwrap()),
            false => {
                let error = result.unwrap_err();
                assert!(
                    coracle::chain(&error).contains("no space left"),
                    "{}",
                    coracle::chain(&error)
                );
                assert!(error.hint().unwrap().contains("evictionHard"));
                room.assert_empty();
            }
        }
    }
}
