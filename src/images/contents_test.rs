//! Which entries of an archive are images for this machine.

use serde_json::{Value, json};

use super::super::sample::{Layout, Room, config};
use super::*;

/// An image with this content whose config says that it is for that architecture.
fn image(layout: &Layout, content: &str, architecture: &str) -> Value {
    let mut config = config(content);
    config["architecture"] = architecture.into();
    let mut image = layout.image(content, &config);
    image["annotations"] = json!({ "org.opencontainers.image.ref.name": format!("{content}:1") });
    image
}

fn own() -> String {
    Platform::own().architecture
}

fn stated(mut descriptor: Value, architecture: &str) -> Value {
    descriptor["platform"] = json!({ "architecture": architecture, "os": "linux" });
    descriptor
}

/// Imports what is at the top: the names, or the error.
fn import(room: &Room, layout: Layout, top: &[Value]) -> Result<Vec<String>, String> {
    let imported = room.import(&layout.finish(top));
    let imported = imported.map_err(|why| crate::chain(&why))?;
    Ok(imported.into_iter().flat_map(|image| image.names).collect())
}

#[test]
fn artifacts_beside_an_image_are_passed_over() {
    type Make = fn(&Layout) -> Value;
    let cases: [(&str, Make); 5] = [
        ("a descriptor says so", |layout| {
            let mut artifact = layout.blob("application/x", b"no JSON");
            artifact["artifactType"] = "application/vnd.example".into();
            artifact
        }),
        ("a manifest says so", |layout| {
            let config = layout.blob("application/vnd.oci.empty.v1+json", b"{}");
            layout.manifest(
                &json!({ "schemaVersion": 2, "artifactType": "application/x",
                                     "config": config, "layers": [] }),
            )
        }),
        ("it has no config at all", |layout| {
            layout.manifest(&json!({ "artifactType": "application/x", "blobs": [] }))
        }),
        ("it is about another one", |layout| {
            let config = layout.blob("", b"{}");
            let subject = json!({ "digest": "sha256:0", "size": 1 });
            layout.manifest(&json!({ "config": config, "layers": [], "subject": subject }))
        }),
        ("its config is none of an image", |layout| {
            let config = layout.blob("application/vnd.cncf.helm.config.v1+json", b"{}");
            layout.manifest(&json!({ "schemaVersion": 2, "config": config, "layers": [] }))
        }),
    ];
    for (what, make) in cases {
        for nested in [false, true] {
            let room = Room::new("artifacts");
            let layout = Layout::new(&room.0.join("layout"));
            let (artifact, image) = (make(&layout), image(&layout, "a", &own()));
            let top = match nested {
                false => vec![artifact.clone(), image],
                true => {
                    let mut index = layout.index(&[artifact.clone(), image.clone()]);
                    index["annotations"] = image["annotations"].clone();
                    vec![index]
                }
            };
            let names = import(&room, layout, &top);
            let expected = vec!["docker.io/library/a:1".to_owned()];
            assert_eq!(names, Ok(expected), "{what}: {nested}");
        }
        let room = Room::new("artifacts-alone");
        let layout = Layout::new(&room.0.join("layout"));
        let top = [make(&layout)];
        let why = import(&room, layout, &top).unwrap_err();
        assert!(why.contains("it lists no images"), "{what}: {why}");
    }
}

#[test]
fn an_image_may_have_a_subject_and_state_its_config_as_artifact_type() {
    const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
    for nested in [false, true] {
        let room = Room::new("no-artifacts");
        let layout = Layout::new(&room.0.join("layout"));
        let plain = image(&layout, "a", &own());
        let hex = plain["digest"].as_str().unwrap().replace("sha256:", "");
        let path = room.0.join("layout/blobs/sha256").join(hex);
        let bytes = std::fs::read(path).unwrap();
        let mut manifest: Value = serde_json::from_slice(&bytes).unwrap();
        manifest["config"]["mediaType"] = CONFIG.into();
        manifest["subject"] = json!({ "digest": "sha256:0", "size": 1 });
        manifest["artifactType"] = CONFIG.into();
        let mut stated = layout.manifest(&manifest);
        stated["artifactType"] = CONFIG.into();
        stated["annotations"] = plain["annotations"].clone();
        let top = match nested {
            false => stated.clone(),
            true => {
                let mut index = layout.index(&[stated.clone()]);
                index["annotations"] = stated["annotations"].clone();
                index
            }
        };
        let names = import(&room, layout, &[top]);
        assert_eq!(
            names,
            Ok(vec!["docker.io/library/a:1".to_owned()]),
            "{nested}"
        );
    }
}

#[test]
fn a_damaged_config_of_an_image_is_no_artifact() {
    let room = Room::new("damaged-config");
    let layout = Layout::new(&room.0.join("layout"));
    let config = layout.blob("application/vnd.oci.image.config.v1+json", b"{}");
    let broken = layout.manifest(&json!({ "config": config, "layers": [] }));
    let top = [broken, image(&layout, "a", &own())];
    let why = import(&room, layout, &top).unwrap_err();
    assert!(why.contains("is not valid"), "{why}");
}

#[test]
fn the_platform_that_an_index_states_decides_and_the_config_where_none_is_stated() {
    for (what, config, platform, taken) in [
        ("both are right", own(), Some(own()), true),
        ("the config alone, and it is right", own(), None, true),
        (
            "the config alone, and it is wrong",
            "s390x".to_owned(),
            None,
            false,
        ),
        ("the index denies it", "s390x".to_owned(), Some(own()), true),
        (
            "the index says another one",
            own(),
            Some("s390x".to_owned()),
            false,
        ),
    ] {
        for nested in [false, true] {
            let room = Room::new("platforms");
            let layout = Layout::new(&room.0.join("layout"));
            let image = image(&layout, "a", &config);
            let image = match &platform {
                Some(platform) => stated(image, platform),
                None => image,
            };
            let top = match nested {
                false => image,
                true => layout.index(&[image]),
            };
            let done = import(&room, layout, &[top]);
            assert_eq!(done.is_ok(), taken, "{what}: {nested}: {done:?}");
            if let Err(why) = done {
                assert!(why.contains("it has linux/s390x"), "{what}: {why}");
            }
        }
    }
}
