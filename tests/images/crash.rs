//! Killed workers: the store only ever has complete images.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::fixture::*;
use coracle::images::Image;
use flate2::{Compression, write::GzEncoder};

fn assert_complete(image: &Image) {
    for layer in &image.layers {
        assert!(layer.is_dir(), "{layer:?}");
    }
    assert_eq!(
        std::fs::read(image.layers[0].join("big")).unwrap(),
        vec![7; 4 << 20]
    );
}

fn archive() -> Vec<u8> {
    let mut layers: Vec<_> = (0..8)
        .map(|i| Layer::default().file(&format!("f{i}"), &[1; 100_000]).tar())
        .collect();
    layers.push(Layer::default().file("big", &vec![7; 4 << 20]).tar());
    docker_archive(&layers)
}

#[test]
fn a_worker_killed_at_any_moment_leaves_no_partial_image() {
    let room = Room::new("kill");
    let path = room.write("a.tar", &archive());
    let start = |store: &std::path::Path| {
        Command::new(exe())
            .args(["image-worker", "import", "--store"])
            .args([store, &path])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let whole = Instant::now();
    assert!(
        start(&room.path("measure"))
            .wait_with_output()
            .unwrap()
            .status
            .success()
    );
    let whole = whole.elapsed();
    let mut seen = (0, 0);
    for step in 0..24u32 {
        let mut worker = start(&room.store());
        // The moment of the kill is the test's input, so nothing is awaited here.
        std::thread::sleep(whole * step / 22);
        worker.kill().unwrap();
        worker.wait().unwrap();
        let store = room.open();
        let images = store.list().unwrap();
        images.iter().for_each(assert_complete);
        if images.is_empty() {
            seen.0 += 1
        } else {
            seen.1 += 1
        }
        assert_eq!(
            std::fs::read_dir(room.store().join("tmp")).unwrap().count(),
            0
        );
        if step % 2 == 0 {
            assert_complete(&room.image(&path));
            store
                .remove("test:1", &Default::default(), &Default::default())
                .unwrap();
            assert_eq!(
                std::fs::read_dir(room.store().join("layers"))
                    .unwrap()
                    .count(),
                0
            );
        }
    }
    println!(
        "killed workers left nothing {} times, the whole image {} times",
        seen.0, seen.1
    );
    assert_complete(&room.image(&path));
}

#[test]
fn dropping_an_import_kills_its_worker() {
    let room = Room::new("drop");
    let mut layer = GzEncoder::new(Vec::new(), Compression::fast());
    layer
        .write_all(header(tar::EntryType::Regular, "zeros", 1 << 30).as_bytes())
        .unwrap();
    for _ in 0..1024 {
        layer.write_all(&vec![0; 1 << 20]).unwrap();
    }
    let archive = room.write("a.tar", &docker_archive(&[layer.finish().unwrap()]));
    let (store, options) = (room.store(), Default::default());
    let (begun, wait) = smol::channel::bounded(1);
    let import = coracle::images::import(exe(), &store, &archive, &options, |_| {
        let _ = begun.try_send(());
    });
    let ended = smol::block_on(smol::future::or(async { Some(import.await) }, async {
        wait.recv().await.unwrap();
        None
    }));
    assert!(ended.is_none(), "{ended:?}");
    // The staging directory is locked while the worker lives. Once the worker is gone, opening the store removes it.
    let deadline = Instant::now() + Duration::from_secs(10);
    while std::fs::read_dir(room.open().dir().join("tmp"))
        .unwrap()
        .count()
        > 0
    {
        assert!(Instant::now() < deadline, "the worker still runs");
        std::thread::yield_now();
    }
    room.assert_empty();
}

#[test]
fn concurrent_imports_of_the_same_archive_agree() {
    let room = Room::new("concurrent");
    let path = room.write("a.tar", &archive());
    let mut workers: Vec<_> = (0..6)
        .map(|_| {
            Command::new(exe())
                .args(["image-worker", "import", "--store"])
                .args([&room.store(), &path])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for worker in &mut workers {
        let mut said = String::new();
        worker
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert!(worker.wait().unwrap().success(), "{said}");
    }
    let images = room.open().list().unwrap();
    assert_eq!(images.len(), 1);
    assert_complete(&images[0]);
    assert_eq!(
        std::fs::read_dir(room.store().join("layers"))
            .unwrap()
            .count(),
        9
    );
    assert_eq!(
        std::fs::read_dir(room.store().join("tmp")).unwrap().count(),
        0
    );
}
