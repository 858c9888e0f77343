//! The node's files, as containers see them.

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::*;

#[test]
fn the_mounts_of_an_ended_container_are_removed_and_its_files_are_left_to_the_agent() {
    let mut world = World::new();
    let shim = world.shim.id().to_string();
    let request = world.request("c", 0, &["true"], |_| {});
    assert_eq!(world.run(request).code, 0);
    let before = world.mounts(&shim);
    let mounts = fs::read_to_string(format!("/proc/{shim}/mountinfo")).unwrap();
    assert!(!mounts.contains("/rootfs "), "{mounts}");
    assert!(world.dir.join("c/layer-0/upper").exists());
    assert!(world.run_dir.join("records/c.json").exists());
    let again = world.request("c", 1, &["sh", "-c", "exit 5"], |_| {});
    assert_eq!(world.run(again).code, 5, "the container can run again");
    assert_eq!(world.mounts(&shim), before);
}

#[test]
fn a_containers_records_are_readable_only_by_root() {
    use std::os::unix::fs::PermissionsExt;
    let mut world = World::new();
    let request = world.request("c", 0, &["sleep", "1000"], |_| {});
    world.begin(request);
    let mode = |path: &str| {
        let path = world.run_dir.join(path);
        fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o7777
    };
    for folder in ["records", "libcontainer", "libcontainer/c"] {
        assert_eq!(mode(folder), 0o700, "{folder}");
    }
    assert_eq!(mode("records/c.json"), 0o600);
    assert_eq!(mode("bundles/c/config.json"), 0o600);
    let state = fs::read_dir(world.run_dir.join("libcontainer/c")).unwrap();
    let names: Vec<_> = state.flatten().map(|entry| entry.file_name()).collect();
    assert!(names.iter().any(|name| name == "state.json"), "{names:?}");
    for name in names {
        let name = name.to_str().unwrap();
        assert_eq!(mode(&format!("libcontainer/c/{name}")), 0o600, "{name}");
    }
    let (_, output) = world.exec(&["sh", "-c", "umask; ls -ld /made | cut -c1-10"]);
    assert_eq!(output, "0022\ndrwxr-xr-x\n");
}

#[test]
fn a_later_mount_below_a_host_path_is_visible_if_it_is_propagated() {
    let mut world = World::new();
    let volume = world.dir.join("shared");
    let script = "until test -e /volume/inner/file; do sleep 0.01; done; cat /volume/inner/file";
    let request = world.request("c", 0, &["sh", "-c", script], |config| {
        config["mounts"].as_array_mut().unwrap().push(json!({
            "destination": "/volume", "type": "bind", "source": volume,
            "options": ["rbind", "rslave"],
        }));
    });
    world.begin(request);
    let inner = volume.join("inner");
    fs::create_dir_all(&inner).unwrap();
    nix::mount::mount(
        Some("tmpfs"),
        &inner,
        Some("tmpfs"),
        nix::mount::MsFlags::empty(),
        None::<&str>,
    )
    .unwrap();
    fs::write(inner.join("file"), "arrived\n").unwrap();
    assert_eq!(world.exit().code, 0);
    assert_eq!(world.log("c"), ["stdout F arrived"]);
}

#[test]
fn sub_paths_stay_in_their_volume() {
    let mut world = World::new();
    let volume = world.dir.join("volume");
    fs::create_dir_all(&volume).unwrap();
    fs::write(volume.join("file"), "in the volume").unwrap();
    std::os::unix::fs::symlink("/etc", volume.join("escape")).unwrap();
    let script = "cat /file; ls -a /mnt; ls /escape";
    let mut request = world.request("c", 0, &["sh", "-c", script], |_| {});
    let binds = [("file", "file"), ("a/b", "mnt")];
    let path = request.bundle.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (path, name) in binds {
        let target = world.run_dir.join("subpaths/c").join(name);
        config["mounts"].as_array_mut().unwrap().push(json!({
            "destination": format!("/{name}"), "type": "bind", "source": target, "options": ["bind"],
        }));
        request.sub_paths.push(SubPath {
            volume: volume.clone(),
            path: path.into(),
            target,
            mount: "v".to_owned(),
        });
    }
    fs::write(&path, config.to_string()).unwrap();
    world.run(request.clone());
    assert!(world.log("c").join("\n").contains("in the volume"));
    assert!(volume.join("a/b").is_dir());
    // What was a file is a folder at the next start, and the other way round.
    fs::remove_file(volume.join("file")).unwrap();
    fs::create_dir(volume.join("file")).unwrap();
    fs::remove_dir(volume.join("a/b")).unwrap();
    fs::write(volume.join("a/b"), "now a file").unwrap();
    request.attempt = 1;
    config["process"]["args"] = json!(["sh", "-c", "[ -d /file ] && grep -q 'now a file' /mnt"]);
    fs::write(&path, config.to_string()).unwrap();
    let exit = world.run(request.clone());
    assert_eq!(exit.code, 0, "{:?}", world.log("c"));
    request.attempt = 2;
    request.sub_paths.truncate(1);
    // It leads out, whether or not the volume has a folder of that name.
    fs::create_dir_all(volume.join("etc")).unwrap();
    fs::write(volume.join("etc/passwd"), "").unwrap();
    request.sub_paths[0].path = "escape/passwd".into();
    let (step, message) = world.fail(request);
    assert_eq!(step, FailedStep::Config);
    let expected = "failed to prepare subPath for volumeMount \"v\" of container \"c\": could not open sub-path";
    assert!(message.starts_with(expected), "{message}");
}

#[test]
fn a_hundred_and_fifty_layers_are_stacked_in_order() {
    let mut world = World::new();
    let mut request = world.request("c", 0, &["cat", "/top", "/n149"], |_| {});
    let base = request.layers.pop().unwrap();
    for number in 0..150 {
        let layer = world.dir.join(format!(
            "layers/a-rather-long-name,with:odd-letters-{number}"
        ));
        fs::create_dir_all(&layer).unwrap();
        fs::write(layer.join("top"), format!("layer {number}\n")).unwrap();
        fs::write(layer.join(format!("n{number}")), "lowest\n").unwrap();
        request.layers.push(layer);
    }
    request.layers.push(base);
    assert_eq!(world.run(request).code, 0);
    assert_eq!(world.log("c"), ["stdout F layer 0", "stdout F lowest"]);
}

#[test]
fn a_writable_layer_on_an_overlay_is_refused_with_the_reason() {
    let mut world = World::new();
    let place = world.dir.join("shared/over");
    for folder in ["lower", "upper", "work", "merged"] {
        fs::create_dir_all(place.join(folder)).unwrap();
    }
    let part = |name: &str| place.join(name).display().to_string();
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        part("lower"),
        part("upper"),
        part("work")
    );
    let (overlay, merged) = (Some("overlay"), place.join("merged"));
    mount(overlay, &merged, overlay, MsFlags::empty(), Some(&*options)).unwrap();
    let mut request = world.request("c", 0, &["true"], |_| {});
    request.writable_layer = merged.join("layer");
    let reply = world.client.call(&Request::Start(Box::new(request)));
    umount2(&merged, MntFlags::MNT_DETACH).unwrap();
    let reply = format!("{reply:?}");
    assert!(
        reply.contains("merged/layer/upper` is on an overlay"),
        "{reply}"
    );
}
