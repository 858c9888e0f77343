//! An image's `VOLUME`s: writable directories that outlive the container.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use coracle::shim::protocol::{ImageVolumes, StartRequest};

use super::*;

/// A start request for an image with volumes at `paths`, and a read-only root.
fn request(
    world: &World,
    attempt: u32,
    script: &str,
    layers: &[&Path],
    paths: &[&str],
) -> StartRequest {
    let mut request = world.request("c", attempt, &["sh", "-c", script], |config| {
        config["root"]["readonly"] = json!(true);
    });
    for layer in layers.iter().rev() {
        request.layers.insert(0, layer.to_path_buf());
    }
    let folder = world.dir.join("kept");
    fs::create_dir_all(&folder).unwrap();
    request.image_volumes = Some(ImageVolumes {
        folder,
        paths: paths.iter().map(Into::into).collect(),
    });
    request
}

/// The lines of a container's log of one attempt, without their headers.
fn lines(world: &World, attempt: u32) -> Vec<String> {
    let text = fs::read_to_string(world.dir.join(format!("c/logs/{attempt}.log"))).unwrap();
    let line = |line: &str| line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned();
    text.lines().map(line).collect()
}

#[test]
fn image_volumes_have_the_images_files_and_keep_written_ones() {
    let mut world = World::new();
    let (lower, upper) = (world.dir.join("lower"), world.dir.join("upper"));
    for folder in ["data/below", "other", "real"] {
        fs::create_dir_all(lower.join(folder)).unwrap();
    }
    fs::write(lower.join("data/file"), "of the image\n").unwrap();
    fs::write(lower.join("data/gone"), "").unwrap();
    fs::write(lower.join("plain"), "").unwrap();
    symlink("/real", lower.join("link")).unwrap();
    fs::set_permissions(lower.join("data"), fs::Permissions::from_mode(0o2777)).unwrap();
    chown(lower.join("data"), Some(7), Some(8)).unwrap();
    fs::set_permissions(lower.join("data"), fs::Permissions::from_mode(0o2777)).unwrap();
    fs::create_dir_all(upper.join("data")).unwrap();
    fs::set_permissions(upper.join("data"), fs::Permissions::from_mode(0o2777)).unwrap();
    chown(upper.join("data"), Some(7), Some(8)).unwrap();
    fs::set_permissions(upper.join("data"), fs::Permissions::from_mode(0o2777)).unwrap();
    use nix::sys::stat::{Mode, SFlag, mknod};
    mknod(&upper.join("data/gone"), SFlag::S_IFCHR, Mode::empty(), 0).unwrap();
    let layers = [upper.as_path(), lower.as_path()];
    let paths = ["/data", "/fresh/deep", "/link", "/plain", "/data/below"];
    let script = "stat -c '%u:%g %a' /data; ls /data | tr '\\n' ' '; cat /data/file; touch /other/x || echo read-only; \
                  touch /data/new /fresh/deep/new /link/new /data/below/new && ls /fresh/deep /real /data/below";
    let first = request(&world, 0, script, &layers, &paths);
    assert_eq!(world.run(first).code, 0, "{:?}", lines(&world, 0));
    let seen = lines(&world, 0);
    assert_eq!(seen[..2], ["7:8 2777", "below file of the image"]);
    assert!(seen.iter().any(|line| line == "read-only"), "{seen:?}");
    assert_eq!(
        seen.iter().filter(|line| *line == "new").count(),
        3,
        "{seen:?}"
    );
    let second = request(
        &world,
        1,
        "ls /data /data/below /fresh/deep /link",
        &layers,
        &paths,
    );
    assert_eq!(world.run(second).code, 0);
    let kept = lines(&world, 1)
        .iter()
        .filter(|line| *line == "new")
        .count();
    assert_eq!(kept, 4, "{:?}", lines(&world, 1));
    // The image is unchanged, and nothing stays mounted.
    assert!(!lower.join("data/new").exists() && !lower.join("real/new").exists());
    assert_eq!(fs::metadata(lower.join("data")).unwrap().uid(), 7);
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", world.shim.id())).unwrap();
    assert!(!mounts.contains("image-volume"), "{mounts}");
}

#[test]
fn hostile_image_volumes_lead_to_nothing_outside() {
    let mut world = World::new();
    let treasure = world.dir.join("treasure");
    fs::create_dir_all(&treasure).unwrap();
    let layer = world.dir.join("hostile");
    fs::create_dir_all(&layer).unwrap();
    let outside = treasure.to_str().unwrap();
    for (name, target) in [
        ("out", outside),
        ("root", "."),
        ("dev2", "/dev"),
        ("proc2", "/proc/self"),
    ] {
        symlink(target, layer.join(name)).unwrap();
    }
    let paths = [
        "/out",
        "/out/below",
        "/root",
        "/dev2",
        "/dev2/net",
        "/proc2",
        "/sys/x",
        "/self",
    ];
    // The second run uses the volume as the first one left it.
    let script = format!(
        "test -c /dev/null && touch /out/new && rm -rf /self/* && ln -s {outside} /self/x && echo fine"
    );
    for attempt in 0..2 {
        let mut paths = paths.to_vec();
        paths.push("/self/x/y");
        let start = request(&world, attempt, &script, &[layer.as_path()], &paths);
        match attempt {
            0 => drop(world.run(start)),
            _ => drop(world.client.call(&Request::Start(Box::new(start))).unwrap()),
        }
        assert_eq!(
            fs::read_dir(&treasure).unwrap().count(),
            0,
            "{:?}",
            lines(&world, attempt)
        );
    }
}
