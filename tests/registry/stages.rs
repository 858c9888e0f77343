//! Layers are unpacked while others are still being downloaded, and once only.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use coracle::images::ImageError;
use coracle::images::registry::{PullOptions, Pulled, Source, pull_unless};

use crate::fixture::exe;
use crate::proxy::Deed;
use crate::world::{World, assert_layers};

const SIZES: [usize; 3] = [3 << 20, 2 << 20, 1 << 20];
const PATIENCE: Duration = Duration::from_secs(30);

/// Pulls as the agent does, until something is sent.
fn pull(
    world: &World,
    name: &str,
    abandoned: &smol::channel::Receiver<()>,
) -> Result<Pulled, ImageError> {
    let options = PullOptions {
        name: name.to_owned(),
        sources: vec![Source {
            name: name.to_owned(),
            insecure: false,
            credentials: Vec::new(),
        }],
        ..PullOptions::default()
    };
    let store = world.room.store();
    let abandoned = async {
        let _ = abandoned.recv().await;
    };
    let pulled = world
        .netns
        .run(|| smol::block_on(pull_unless(abandoned, exe(), &store, &options, |_| {})));
    pulled.map(|(pulled, _)| pulled)
}

/// The folders that hold unpacked layers of pulls.
fn stages(world: &World) -> Vec<PathBuf> {
    let stages = fs::read_dir(world.room.store().join("unpacked"));
    let stages = stages.into_iter().flatten().flatten();
    stages.map(|entry| entry.path()).collect()
}

/// The whole layers in them: their files, with their inodes.
fn unpacked(world: &World) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for stage in stages(world) {
        for layer in fs::read_dir(stage).into_iter().flatten().flatten() {
            let name = layer.file_name().to_string_lossy().into_owned();
            if !name.starts_with("unfinished-") {
                found.extend(files(&layer.path().join("diff")));
            }
        }
    }
    found
}

fn files(root: &Path) -> BTreeMap<String, u64> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            let inode = entry.metadata().unwrap().ino();
            (entry.file_name().to_string_lossy().into_owned(), inode)
        })
        .collect()
}

#[test]
fn layers_are_unpacked_while_others_are_downloaded_and_not_again_after_an_interruption() {
    for power_cut in [false, true] {
        let world = World::new("stages");
        world.push_layers("a:1", &SIZES);
        let proxy = world.proxy();
        let name = format!("{}/a:1", proxy.address);
        // The first layer, asked for after the config, comes slowly.
        let seen = Mutex::new(Vec::new());
        proxy.rule(move |ask| {
            let mut seen = seen.lock().unwrap();
            if ask.is_blob() && !seen.contains(&ask.path) {
                seen.push(ask.path.clone());
            }
            match seen.get(1) == Some(&ask.path) {
                true => Deed::Drip(4096, Duration::from_millis(100)),
                false => Deed::Pass,
            }
        });
        let (abandon, abandoned) = smol::channel::bounded(1);
        let early = std::thread::scope(|scope| {
            let pulling = scope.spawn(|| pull(&world, &name, &abandoned));
            let deadline = Instant::now() + PATIENCE;
            let early = loop {
                let early = unpacked(&world);
                if early.len() == 2 {
                    break early;
                }
                assert!(Instant::now() < deadline, "{early:?}");
                std::thread::sleep(Duration::from_millis(5));
            };
            assert!(!pulling.is_finished(), "one layer is on its way");
            abandon.try_send(()).unwrap();
            let ended = pulling.join().unwrap();
            assert!(matches!(ended, Err(ImageError::Abandoned)), "{ended:?}");
            early
        });
        assert_eq!(unpacked(&world), early, "they stay");
        assert_eq!(world.room.open().list().unwrap(), []);
        // Open, so that no other file gets their inodes.
        let mut lost = Vec::new();
        if power_cut {
            // What an earlier boot has unpacked may have lost data.
            for stage in stages(&world) {
                for layer in fs::read_dir(&stage).unwrap().flatten() {
                    for file in files(&layer.path().join("diff")).into_keys() {
                        let emptied = fs::File::create(layer.path().join("diff").join(file));
                        lost.push(emptied.unwrap());
                    }
                }
                let name = stage.file_name().unwrap().to_str().unwrap();
                let key = name.split_once('-').unwrap().0;
                let of_another = stage.with_file_name(format!("{key}-0000-1111"));
                fs::rename(stage, of_another).unwrap();
            }
        }
        proxy.rule(|_| Deed::Pass);
        let pulled = pull(&world, &name, &abandoned).unwrap();
        assert!(matches!(pulled, Pulled::New(_)), "{pulled:?}");
        let image = world.room.open().lookup(&name).unwrap().unwrap();
        assert_layers(&image, &SIZES);
        let all: BTreeMap<String, u64> = image.layers.iter().flat_map(|l| files(l)).collect();
        let same = early
            .iter()
            .filter(|(file, inode)| all.get(*file) == Some(*inode));
        assert_eq!(same.count(), if power_cut { 0 } else { 2 });
        drop(lost);
        let left = fs::read_dir(world.room.store().join("pulls"))
            .unwrap()
            .count();
        assert_eq!(left, 0, "the folder of the pull is gone");
        assert_eq!(stages(&world), Vec::<PathBuf>::new());
        let unchanged = pull(&world, &name, &abandoned).unwrap();
        assert_eq!(unchanged, Pulled::Unchanged(image.id));
    }
}

#[test]
fn a_layer_that_cannot_be_unpacked_ends_the_download_of_the_others() {
    let world = World::new("stages-bad");
    let layers = world.push_layers("a:1", &[1 << 20, 2 << 20, 3 << 20, 1 << 20]);
    assert_eq!(layers.len(), 4);
    // The same image with a config that states another digest for a layer.
    let layout = world.room.path("layout");
    let place = format!("oci:{}:x", layout.display());
    let from = format!("docker://{}/a:1", world.registry);
    let copy = |from: &str, to: &str| {
        let tls = ["--src-tls-verify=false", "--dest-tls-verify=false"];
        let args = [
            &["--insecure-policy", "copy", "--quiet"][..],
            &tls,
            &[from, to],
        ]
        .concat();
        world.netns.run(|| crate::fixture::run("skopeo", &args));
    };
    copy(&from, &place);
    crate::fixture::run(
        "python3",
        &[
            "-c",
            r"
import hashlib, json, pathlib, sys
top = pathlib.Path(sys.argv[1])
blobs = top / 'blobs/sha256'
def read(descriptor): return json.loads((blobs / descriptor['digest'][7:]).read_text())
def write(descriptor, document):
    text = json.dumps(document).encode()
    descriptor['digest'] = 'sha256:' + hashlib.sha256(text).hexdigest()
    descriptor['size'] = len(text)
    (blobs / descriptor['digest'][7:]).write_bytes(text)
index = json.loads((top / 'index.json').read_text())
manifest = read(index['manifests'][0])
config = read(manifest['config'])
config['rootfs']['diff_ids'][3] = 'sha256:' + '0' * 64
write(manifest['config'], config)
write(index['manifests'][0], manifest)
(top / 'index.json').write_text(json.dumps(index))
",
            layout.to_str().unwrap(),
        ],
    );
    copy(&place, &format!("docker://{}/bad:1", world.registry));
    let proxy = world.proxy();
    let name = format!("{}/bad:1", proxy.address);
    let seen = Mutex::new(Vec::new());
    proxy.rule(move |ask| {
        let mut seen = seen.lock().unwrap();
        if ask.is_blob() && !seen.contains(&ask.path) {
            seen.push(ask.path.clone());
        }
        match seen.get(1) == Some(&ask.path) {
            true => Deed::Drip(4096, Duration::from_millis(500)),
            false => Deed::Pass,
        }
    });
    let (_hold, abandoned) = smol::channel::bounded(1);
    let begun = Instant::now();
    let why = pull(&world, &name, &abandoned).unwrap_err().to_string();
    assert!(
        why.contains("the unpacked layer sha256:") && why.contains("is damaged"),
        "{why}"
    );
    assert!(
        begun.elapsed() < PATIENCE,
        "the slow layer is not waited for"
    );
    assert_eq!(world.room.open().list().unwrap(), []);
}
