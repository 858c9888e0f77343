//! Interrupted pulls go on where they were left.

use std::io::{BufRead, BufReader};
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::proxy::Deed;
use crate::world::{Random, World, assert_layers};

const SIZES: [usize; 3] = [3 << 20, 5 << 20, 4 << 20];

/// Large enough that what is on its way at a kill is little.
const LARGE: [usize; 3] = [12 << 20, 20 << 20, 16 << 20];

/// What the registry's blobs weigh, config included.
fn whole(world: &World, name: &str) -> u64 {
    let proxy = world.proxy();
    world.pull(&format!("{}/{name}", proxy.address));
    proxy.blob_bytes()
}

/// A world with an image that only the registry has.
fn world(name: &str) -> (World, u64) {
    world_of(name, &SIZES)
}

fn world_of(name: &str, sizes: &[usize]) -> (World, u64) {
    let world = World::new(name);
    world.push_layers("a:1", sizes);
    let bytes = whole(&world, "a:1");
    let store = world.room.open();
    store
        .prune(&std::collections::BTreeSet::new(), true)
        .unwrap();
    assert_eq!(store.list().unwrap(), []);
    (world, bytes)
}

fn assert_little_twice(sent: u64, whole: u64) {
    assert!(
        sent >= whole && sent * 100 <= whole * 105,
        "{sent} of {whole} bytes"
    );
}

#[test]
fn a_connection_that_breaks_again_and_again_costs_nothing_twice() {
    let (world, whole) = world("cuts");
    let proxy = world.proxy();
    let random = Mutex::new(Random(7));
    // Every request for a blob but the smallest remainders is cut somewhere in the next 600 KB.
    proxy.rule(move |ask| match ask.is_blob() {
        true => {
            Deed::Cut(20_000 + usize::try_from(random.lock().unwrap().next() % 1_100_000).unwrap())
        }
        false => Deed::Pass,
    });
    let image = world.pull(&format!("{}/a:1", proxy.address));
    assert_layers(&image, &SIZES);
    let requests = proxy.asked().iter().filter(|ask| ask.is_blob()).count();
    assert!(requests >= 20, "{requests} requests");
    assert!(
        proxy
            .asked()
            .iter()
            .any(|ask| ask.header("if-range").is_some())
    );
    assert_little_twice(proxy.blob_bytes(), whole);
}

#[test]
fn a_worker_that_is_killed_twenty_times_costs_nothing_twice() {
    let (world, whole) = world_of("kills", &LARGE);
    // What is on its way to a worker that is killed is lost: little, however busy this machine is.
    for buffers in ["tcp_rmem", "tcp_wmem"] {
        let file = format!("/proc/sys/net/ipv4/{buffers}");
        world
            .netns
            .run(|| std::fs::write(file, "4096 16384 16384"))
            .unwrap();
    }
    let proxy = world.proxy();
    // Slow enough that a worker is killed while it works.
    proxy.rule(|ask| match ask.is_blob() {
        true => Deed::Drip(8 << 10, std::time::Duration::from_millis(1)),
        false => Deed::Pass,
    });
    let name = format!("{}/a:1", proxy.address);
    for kill in 1..=20_u64 {
        let mut child = world.start(&world.request(&name, &json!({})), &[]);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Until there is a twenty-fifth more than when the one before was killed.
        for line in lines {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let kind = line["type"].as_str().unwrap();
            assert!(
                ["progress", "resolved", "arrived"].contains(&kind),
                "{line}"
            );
            if proxy.blob_bytes() * 25 > whole * kill {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let image = world.pull(&name);
    assert_layers(&image, &LARGE);
    assert_little_twice(proxy.blob_bytes(), whole);
}

#[test]
fn a_registry_that_ignores_ranges_is_read_from_the_start_and_nothing_is_lost() {
    let (world, _) = world("ranges");
    let proxy = world.proxy();
    proxy.rule(|ask| match (ask.is_blob(), ask.earlier) {
        (true, 0) => Deed::Cut(1_000_000),
        (true, _) => Deed::IgnoreRange,
        (false, _) => Deed::Pass,
    });
    let image = world.pull(&format!("{}/a:1", proxy.address));
    assert_layers(&image, &SIZES);
}

#[test]
fn data_that_has_changed_meanwhile_is_read_again() {
    let (world, _) = world("changed");
    let proxy = world.proxy();
    // The second answer has another validator, so it is not of the data that is there.
    proxy.rule(|ask| match (ask.is_blob(), ask.earlier) {
        (true, 0) => Deed::Cut(900_000),
        (true, 1) => Deed::Answer(
            200,
            vec![
                ("ETag", "\"other\"".to_owned()),
                ("Transfer-Encoding", "chunked".to_owned()),
            ],
            b"0\r\n\r\n".to_vec(),
        ),
        _ => Deed::Pass,
    });
    let image = world.pull(&format!("{}/a:1", proxy.address));
    assert_layers(&image, &SIZES);
}

#[test]
fn a_damaged_download_is_repeated_once_and_then_reported() {
    let (world, _) = world("damaged");
    let proxy = world.proxy();
    let name = format!("{}/a:1", proxy.address);
    // What an interrupted worker left is wrong: noticed at the end, and fetched again.
    proxy.rule(|ask| match (ask.is_blob(), ask.earlier) {
        (true, 0) => Deed::Cut(500_000),
        (true, _) => Deed::Hang,
        _ => Deed::Pass,
    });
    let impatient = json!({ "patience": { "stall_ms": 200 } });
    let (message, _) = world.refused(&world.request(&name, &impatient));
    assert!(
        message.contains("nothing more arrived in time"),
        "{message}"
    );
    let pulls = world.room.store().join("pulls");
    let folder = pulls.read_dir().unwrap().next().unwrap().unwrap().path();
    let partials = folder.join("partial").read_dir().unwrap().flatten();
    let partials = partials
        .map(|e| e.path())
        .filter(|path| path.extension().is_none());
    let mut found = 0;
    for path in partials {
        let mut bytes = std::fs::read(&path).unwrap();
        if let Some(byte) = bytes.get_mut(1000) {
            *byte ^= 1;
            std::fs::write(&path, bytes).unwrap();
            found += 1;
        }
    }
    assert!(found >= 1);
    proxy.rule(|_| Deed::Pass);
    assert_layers(&world.pull(&name), &SIZES);

    let store = world.room.open();
    store
        .prune(&std::collections::BTreeSet::new(), true)
        .unwrap();
    proxy.rule(|ask| match ask.is_blob() {
        true => Deed::Corrupt,
        false => Deed::Pass,
    });
    let (message, hint) = world.refused(&world.request(&name, &json!({})));
    assert!(message.contains("is damaged: its digest is"), "{message}");
    assert!(hint.contains("damaged data"), "{hint}");
}

#[test]
fn a_worker_whose_client_is_gone_ends_even_while_it_waits() {
    let (world, _) = world("gone");
    let proxy = world.proxy();
    proxy.rule(|ask| match ask.is_blob() {
        true => Deed::Hang,
        false => Deed::Pass,
    });
    let name = format!("{}/a:1", proxy.address);
    let request = world.request(&name, &json!({ "patience": { "stall_ms": 600_000 } }));
    let mut child = world.start(&request, &[]);
    drop(child.stdout.take());
    let ended = child.wait().unwrap();
    assert_eq!(ended.code(), Some(1));
}

#[test]
fn a_fetch_takes_little_memory() {
    let (world, _) = world("memory");
    let name = format!("{}/a:1", world.registry);
    let mut child = world.start(&world.request(&name, &json!({})), &[]);
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut peak_kib = 0;
    for line in lines {
        line.unwrap();
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|text| text.trim().trim_end_matches(" kB").trim().parse().ok());
        peak_kib = peak_kib.max(peak.unwrap_or(0));
    }
    child.wait().unwrap();
    assert!(peak_kib > 0 && peak_kib < 64 << 10, "{peak_kib} KiB");
}

#[test]
fn two_fetches_of_one_image_do_its_work_once() {
    let (world, whole) = world("twice");
    let proxy = world.proxy();
    let request = world.request(&format!("{}/a:1", proxy.address), &json!({}));
    let both = [world.start(&request, &[]), world.start(&request, &[])];
    for child in both {
        let said = crate::world::last_line(child);
        assert_eq!(said["type"], "fetched", "{said}");
    }
    assert_little_twice(proxy.blob_bytes(), whole);
}

#[test]
fn a_download_goes_once_its_image_is_stored_whatever_came_between() {
    let world = World::new("stored");
    let name = |tag: &str| format!("{}/{tag}", world.registry);
    world.push_layers("a:1", &SIZES);
    world.push_layers("b:1", &SIZES[..1]);
    let fetched = world.fetch(&name("a:1"));
    let folder = fetched["folder"].as_str().unwrap().to_owned();
    let copy = format!("{}/copy", world.room.store().display());
    let copied = |from: &str, to: &str| {
        let cp = std::process::Command::new("cp")
            .args(["-a", from, to])
            .status();
        assert!(cp.unwrap().success());
    };
    copied(&folder, &copy);
    let image = world.import(&fetched, &name("a:1"));
    // As if the power had failed before the folder was removed.
    copied(&copy, &folder);
    let other = world.fetch(&name("b:1"));
    let store = world.room.open();
    // A stored image that lacks a layer needs what was downloaded.
    let layer = image.layers[0].parent().unwrap();
    let aside = layer.with_extension("aside");
    std::fs::rename(layer, &aside).unwrap();
    store.remove_imported_downloads().unwrap();
    assert!(std::path::Path::new(&folder).is_dir());
    std::fs::rename(&aside, layer).unwrap();
    store.remove_imported_downloads().unwrap();
    assert!(!std::path::Path::new(&folder).exists());
    world.import(&other, &name("b:1"));
}
