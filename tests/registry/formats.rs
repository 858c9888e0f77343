//! What registries serve: manifests of both kinds, indexes, digests, platforms; and what is not fetched again.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::fixture::{Layer, arch, config_json, sha};
use crate::netns::Netns;
use crate::proxy::{Deed, Proxy};
use crate::world::{World, assert_layers};

#[test]
fn an_image_comes_as_it_was_pushed_in_both_formats() {
    let world = World::new("formats");
    for format in ["v2s2", "oci"] {
        let archive = crate::fixture::busybox(&world.room);
        let name = format!("acme/{format}:1");
        world.push(&archive, &name, &["--format", format]);
        let full = format!("{}/{name}", world.registry);
        let image = world.pull(&full);
        assert_eq!(image.names, [full], "{format}");
        assert!(image.layers[0].join("bin/busybox").exists(), "{format}");
        assert_eq!(image.config.cmd.as_deref(), Some(&["sh".to_owned()][..]));
    }
}

#[test]
fn nothing_that_the_store_has_is_fetched_again() {
    let world = World::new("again");
    let proxy = world.proxy();
    let sizes = [100_000, 200_000];
    world.push_layers("a:1", &sizes);
    world.push_layers("b:1", &[100_000]);
    let name = |short: &str| format!("{}/{short}", proxy.address);
    assert_layers(&world.pull(&name("a:1")), &sizes);
    proxy.reset();

    let said = world.fetch(&name("a:1"));
    assert!(
        said["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("sha256:")),
        "{said}"
    );
    let asked = proxy.asked();
    let manifests: Vec<_> = asked.iter().filter(|ask| ask.path != "/v2/").collect();
    assert_eq!(manifests.len(), 1, "{manifests:?}");
    assert_eq!(
        manifests[0].method, "HEAD",
        "registries count other requests as pulls"
    );
    assert!(
        !world
            .room
            .store()
            .join("pulls")
            .read_dir()
            .unwrap()
            .any(|_| true)
    );

    proxy.reset();
    let image = world.pull(&name("b:1"));
    assert_eq!(image.layers.len(), 1);
    assert!(
        proxy.blob_bytes() < 10_000,
        "only its config: the layer is there"
    );
}

#[test]
fn a_tag_that_has_moved_is_noticed() {
    let world = World::new("moved");
    world.push_layers("a:1", &[1000]);
    let name = format!("{}/a:1", world.registry);
    let first = world.pull(&name);
    world.push_layers("a:1", &[1000, 2000]);
    let second = world.pull(&name);
    assert_ne!(first.id, second.id);
    assert_eq!(second.layers.len(), 2);
}

#[test]
fn a_digest_names_exactly_one_image() {
    let world = World::new("digest");
    world.push_layers("a:1", &[1000]);
    let tagged = world.pull(&format!("{}/a:1", world.registry));
    let pinned = format!("{}/a@{}", world.registry, tagged.manifest_digest);
    world
        .room
        .open()
        .remove(&tagged.names[0], &Default::default(), &Default::default())
        .unwrap();
    let fetched = world.fetch(&pinned);
    assert_eq!(fetched["type"], "fetched", "{fetched}");
    let wrong = format!("{}/a@sha256:{}", world.registry, "0".repeat(64));
    let (message, hint) = world.refused(&world.request(&wrong, &json!({})));
    let expected = format!(
        "manifest `sha256:{}` is not in the registry",
        "0".repeat(64)
    );
    assert!(
        message.contains(&expected) && hint == "check the name and the tag",
        "{message}"
    );
}

/// A registry that serves documents from memory.
struct Shelf {
    documents: BTreeMap<String, Vec<u8>>,
}

impl Shelf {
    fn put(&mut self, bytes: &[u8]) -> Value {
        let digest = format!("sha256:{}", sha(bytes));
        for kind in ["blobs", "manifests"] {
            self.documents
                .insert(format!("/v2/a/{kind}/{digest}"), bytes.to_vec());
        }
        json!({ "digest": digest, "size": bytes.len() })
    }

    /// A manifest with one layer that holds `file`.
    fn image(&mut self, architecture: &str, variant: Option<&str>, file: &str) -> Value {
        let layer = Layer::default().file(file, file.as_bytes()).tar();
        let mut config: Value =
            serde_json::from_str(&config_json(architecture, std::slice::from_ref(&layer))).unwrap();
        if let Some(variant) = variant {
            config["variant"] = variant.into();
        }
        let layer = self.put(&layer);
        let config = self.put(config.to_string().as_bytes());
        let manifest = json!({ "schemaVersion": 2, "config": config, "layers": [layer] });
        let mut descriptor = self.put(manifest.to_string().as_bytes());
        descriptor["platform"] =
            json!({ "architecture": architecture, "os": "linux", "variant": variant });
        descriptor
    }

    fn tag(&mut self, tag: &str, document: &Value) {
        let path = format!("/v2/a/manifests/{tag}");
        self.documents
            .insert(path, document.to_string().into_bytes());
    }

    fn serve(self, netns: &Arc<Netns>) -> Proxy {
        let proxy = Proxy::start(netns, None);
        let documents = self.documents;
        proxy.rule(move |ask| match documents.get(&ask.path) {
            // A type that says nothing, and no digest: what it is shows from its content.
            Some(found) => Deed::Answer(
                200,
                vec![("Content-Type", "text/plain".to_owned())],
                found.clone(),
            ),
            None => Deed::Answer(404, vec![], b"{}".to_vec()),
        });
        proxy
    }
}

#[test]
fn of_several_platforms_the_best_one_is_chosen_whatever_type_the_server_gives() {
    let world = World::new("platforms");
    let mut shelf = Shelf {
        documents: BTreeMap::new(),
    };
    let own = shelf.image(arch(), None, "own");
    let v5 = shelf.image("arm", Some("v5"), "v5");
    let v6 = shelf.image("arm", Some("v6"), "v6");
    let v7 = shelf.image("arm", Some("v7"), "v7");
    let mut attestation = shelf.image(arch(), None, "attestation");
    attestation["platform"] = json!({ "architecture": "unknown", "os": "unknown" });
    // The index says what the config denies, and decides.
    let mut liar = shelf.image("s390x", None, "liar");
    liar["platform"] = json!({ "architecture": "arm", "os": "linux", "variant": "v7" });
    let index = |manifests: &[&Value]| json!({ "schemaVersion": 2, "manifests": manifests });
    shelf.tag("all", &index(&[&attestation, &v5, &v7, &v6, &own]));
    shelf.tag("old", &index(&[&v5, &v6, &own]));
    shelf.tag("liar", &index(&[&liar, &v6]));
    let inner = shelf.put(index(&[&v6, &v7]).to_string().as_bytes());
    shelf.tag("nested", &index(&[&inner]));
    shelf.tag("arm", &index(&[&v6, &v7]));
    let proxy = shelf.serve(&world.netns);
    for (tag, platform, expected) in [
        ("all", None, Ok("own")),
        ("all", Some("linux/arm/v7"), Ok("v7")),
        ("all", Some("linux/arm/v6"), Ok("v6")),
        ("old", Some("arm"), Ok("v6")),
        ("liar", Some("arm"), Ok("liar")),
        ("nested", Some("arm"), Ok("v7")),
        ("arm", None, Err("it has linux/arm/v6, linux/arm/v7")),
        ("arm", Some("arm64"), Err("no image for linux/arm64/v8")),
    ] {
        let name = format!("{}/a:{tag}", proxy.address);
        let request = world.request(&name, &json!({ "platform": platform }));
        match expected {
            Ok(file) => {
                let fetched = world.fetch_by(&request);
                assert_eq!(fetched["type"], "fetched", "{tag} {platform:?}: {fetched}");
                let folder = std::path::PathBuf::from(fetched["folder"].as_str().unwrap());
                let mut args = vec!["--name".to_owned(), name.clone()];
                args.extend(
                    platform
                        .iter()
                        .flat_map(|p| ["--platform".to_owned(), (*p).to_owned()]),
                );
                let output = std::process::Command::new(crate::fixture::exe())
                    .args(["image-worker", "import", "--pulled", "--store"])
                    .arg(world.room.store())
                    .args(&args)
                    .arg(&folder)
                    .output()
                    .unwrap();
                let said = String::from_utf8_lossy(&output.stdout);
                assert!(output.status.success(), "{tag} {platform:?}: {said}");
                let image = world.room.open().lookup(&name).unwrap().unwrap();
                assert!(image.layers[0].join(file).exists(), "{tag} {platform:?}");
            }
            Err(part) => {
                let (message, _) = world.refused(&request);
                assert!(message.contains(part), "{tag}: {message}");
            }
        }
    }
}

#[test]
fn what_is_no_image_is_refused_with_its_reason() {
    let world = World::new("noimage");
    let mut shelf = Shelf {
        documents: BTreeMap::new(),
    };
    let good = shelf.image(arch(), None, "x");
    let config = shelf.put(b"{}");
    let layer = shelf.put(b"layer");
    let mut chart = config.clone();
    chart["mediaType"] = "application/vnd.cncf.helm.config.v1+json".into();
    let mut locked = layer.clone();
    locked["mediaType"] = "application/vnd.oci.image.layer.v1.tar+gzip+encrypted".into();
    let mut long = config.clone();
    long["size"] = (100_u64 << 30).into();
    let mut other = config.clone();
    other["digest"] = "md5:x".into();
    let cases = [
        (
            "schema1",
            json!({ "schemaVersion": 1, "fsLayers": [] }),
            "is in Docker's schema 1",
        ),
        (
            "both",
            json!({ "schemaVersion": 2, "manifests": [good], "layers": [], "config": config }),
            "its manifest is an index, too",
        ),
        (
            "chart",
            json!({ "schemaVersion": 2, "config": chart, "layers": [] }),
            "its config is of the type `application/vnd.cncf.helm.config.v1+json`",
        ),
        (
            "locked",
            json!({ "schemaVersion": 2, "config": config, "layers": [locked] }),
            "its layers are encrypted",
        ),
        (
            "empty",
            json!({ "schemaVersion": 2 }),
            "has neither config and layers nor other manifests",
        ),
        ("text", json!("hello"), "is not valid"),
        (
            "long",
            json!({ "schemaVersion": 2, "config": long, "layers": [] }),
            "is over the limit of 1048576 bytes",
        ),
        (
            "other",
            json!({ "schemaVersion": 2, "config": other, "layers": [] }),
            "`md5:x` is no sha256 digest",
        ),
        (
            "invalid",
            json!({ "schemaVersion": 2, "config": config, "layers": [layer] }),
            "is not valid",
        ),
    ];
    for (tag, document, _) in &cases {
        shelf.tag(tag, document);
    }
    // An index that leads to itself cannot be made: a digest would have to contain itself. Deep ones can.
    let mut deep = good.clone();
    for _ in 0..6 {
        deep = shelf.put(
            json!({ "schemaVersion": 2, "manifests": [deep] })
                .to_string()
                .as_bytes(),
        );
    }
    shelf.tag("deep", &json!({ "schemaVersion": 2, "manifests": [deep] }));
    let many: Vec<Value> = (0..100)
        .map(|n| shelf.image("arm", None, &format!("n{n}")))
        .collect();
    let many: Vec<Value> = many
        .into_iter()
        .map(|mut d| {
            d["platform"] = Value::Null;
            d
        })
        .collect();
    shelf.tag("many", &json!({ "schemaVersion": 2, "manifests": many }));
    let proxy = shelf.serve(&world.netns);
    let more = [
        ("deep", "nested 4 times"),
        ("many", "more than 64 manifests"),
    ];
    let all = cases.iter().map(|(tag, _, part)| (*tag, *part)).chain(more);
    for (tag, part) in all {
        let name = format!("{}/a:{tag}", proxy.address);
        let (message, _) = world.refused(&world.request(&name, &json!({})));
        assert!(message.contains(part), "{tag}: {message}");
    }
}

#[test]
fn an_image_is_found_beside_entries_that_are_none() {
    let world = World::new("beside");
    let proxy = world.proxy();
    world.push_layers("a:1", &[1000]);
    let image = world.pull(&format!("{}/a:1", world.registry));
    let hex = image.manifest_digest.replace("sha256:", "");
    let manifest = std::fs::read(world.room.store().join("blobs/sha256").join(hex)).unwrap();
    let index = serde_json::json!({ "schemaVersion": 2, "manifests": [
        { "mediaType": "application/octet-stream", "digest": format!("sha256:{}", "0".repeat(64)), "size": 5 },
        { "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": image.manifest_digest,
          "size": manifest.len(), "artifactType": "application/vnd.oci.image.config.v1+json" },
    ] });
    let kind = "application/vnd.oci.image.index.v1+json".to_owned();
    proxy.rule(move |ask| match ask.path.ends_with("/manifests/2") {
        true => Deed::Answer(
            200,
            vec![("Content-Type", kind.clone())],
            index.to_string().into_bytes(),
        ),
        false => Deed::Pass,
    });
    let found = world.pull(&format!("{}/a:2", proxy.address));
    assert_eq!(found.id, image.id);
    let none = serde_json::json!({ "schemaVersion": 2, "manifests": [] });
    proxy.rule(move |_| Deed::Answer(200, vec![], none.to_string().into_bytes()));
    let name = format!("{}/a:3", proxy.address);
    let (message, _) = world.refused(&world.request(&name, &serde_json::json!({})));
    assert!(message.contains("it has none at all"), "{message}");
}

#[test]
fn layers_that_a_pull_shares_stay_while_their_image_is_removed() {
    let world = World::new("shared");
    world.push_layers("a:1", &[1000]);
    world.push_layers("b:1", &[1000, 2000]);
    let [a, b] = ["a:1", "b:1"].map(|image| format!("{}/{image}", world.registry));
    world.pull(&a);
    let fetched = world.fetch(&b);
    let store = world.room.open();
    store
        .remove(&a, &Default::default(), &Default::default())
        .unwrap();
    store.prune(&Default::default(), false).unwrap();
    assert_layers(&world.import(&fetched, &b), &[1000, 2000]);
    store
        .remove(&b, &Default::default(), &Default::default())
        .unwrap();
    let layers = std::fs::read_dir(store.dir().join("layers")).unwrap();
    assert_eq!(layers.count(), 0);
}
