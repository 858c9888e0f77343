//! Images and volumes that lead the runtime astray: nothing of the node changes, and containers that can run do.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;

/// Adds a mount of the pod.
fn bind(config: &mut Value, source: &Path, target: &str, access: &str) {
    config["mounts"].as_array_mut().unwrap().push(json!({
        "destination": target, "type": "bind", "source": source, "options": ["rbind", "rprivate", access],
    }));
}

/// A folder of the node with a file that must stay untouched.
fn treasure(world: &World, name: &str) -> PathBuf {
    let folder = world.dir.join(name);
    fs::create_dir_all(folder.join("below")).unwrap();
    for file in ["ptmx", "null", "below/file"] {
        fs::write(folder.join(file), "the node's own").unwrap();
    }
    folder
}

fn assert_untouched(folder: &Path, what: &str) {
    let names = |path: &Path| {
        let entries = fs::read_dir(path).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.collect::<BTreeSet<_>>()
    };
    let expected = ["below", "null", "ptmx"].map(str::to_owned);
    assert_eq!(names(folder), BTreeSet::from(expected), "{what}");
    assert_eq!(names(&folder.join("below")).len(), 1, "{what}");
    for file in ["ptmx", "null", "below/file"] {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        assert_eq!(text, "the node's own", "{what}");
    }
}

/// A tmpfs below a volume is writable unless the volume is read-only with all that is below it, whether libcontainer makes
/// the mount or the shim does.
#[test]
fn a_recursively_read_only_volume_has_no_writable_mount_below_it() {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    let mut world = World::new();
    // Mounts made there reach the shim, which has a mount namespace of its own.
    let volume = world.dir.join("shared/volume");
    let below = volume.join("below");
    fs::create_dir_all(&below).unwrap();
    let tmpfs = Some("tmpfs");
    mount(tmpfs, &below, tmpfs, MsFlags::empty(), Some("size=64k")).unwrap();
    let script = "for at in /data /outer/data; do for f in x below/x; do \
                  touch $at/$f 2>/dev/null && echo $at/$f || echo no; done; done";
    let mut found = Vec::new();
    for (name, recursive, expected) in [
        (
            "c",
            false,
            ["no", "/data/below/x", "no", "/outer/data/below/x"],
        ),
        ("d", true, ["no", "no", "no", "no"]),
    ] {
        let outer = world.dir.join("outer");
        fs::create_dir_all(outer.join("data")).unwrap();
        let request = world.request(name, 0, &["sh", "-c", script], |config| {
            bind(config, &volume, "/data", "ro");
            bind(config, &outer, "/outer", "rw");
            bind(config, &volume, "/outer/data", "ro");
            if recursive {
                for mount in config["mounts"].as_array_mut().unwrap() {
                    if mount["source"] == json!(volume) {
                        mount["options"].as_array_mut().unwrap().push(json!("rro"));
                    }
                }
            }
        });
        let code = world.run(request).code;
        found.push((code, world.log(name), expected));
    }
    umount2(&below, MntFlags::MNT_DETACH).unwrap();
    for (code, log, expected) in found {
        let expected = expected.map(|line| format!("stdout F {line}"));
        assert_eq!((code, log), (0, expected.to_vec()));
    }
}

const OWN_DEV: &str = "test -c /dev/null && test -c /dev/zero && test -d /dev/pts && test -L /dev/fd && \
                       test -e /proc/self/status && echo fine";

#[test]
fn an_image_whose_folders_are_symlinks_leads_to_nothing_outside() {
    let mut world = World::new();
    let own = treasure(&world, "treasure");
    let outside = own.display().to_string();
    let climb = format!("../../../../../../../../../..{outside}");
    let table: [(&str, &str, &str); 15] = [
        ("dev", &outside, "fine"),
        ("dev", &climb, "fine"),
        ("dev", "/proc/self/root", "fine"),
        ("dev", "data", "fine"),
        ("dev", ".", "fine"),
        ("dev", "file", "fine"),
        ("dev/pts", &outside, "fine"),
        ("dev/shm", "..", "fine"),
        ("dev/fd", &outside, "fine"),
        ("dev/null", &outside, "fine"),
        ("proc", &outside, "fine"),
        ("sys", &climb, "fine"),
        ("etc", &outside, "fine"),
        ("etc/hosts", &climb, "fine"),
        ("made", &outside, "fine"),
    ];
    for (number, (path, target, expected)) in (0..).zip(table) {
        let what = format!("{path} -> {target}");
        let layer = world.dir.join(format!("hostile-{number}"));
        fs::create_dir_all(layer.join(path).parent().unwrap()).unwrap();
        match target {
            "file" => fs::write(layer.join(path), "").unwrap(),
            _ => symlink(target, layer.join(path)).unwrap(),
        }
        let hosts = world.dir.join("hosts");
        fs::write(&hosts, "hosts\n").unwrap();
        for read_only in [false, true] {
            let name = format!("c{number}-{read_only}");
            let mut request = world.request(&name, 0, &["sh", "-c", OWN_DEV], |config| {
                bind(config, &hosts, "/etc/hosts", "rw");
                config["root"]["readonly"] = json!(read_only);
            });
            request.layers.insert(0, layer.clone());
            let code = world.run(request).code;
            let log = world.log(&name);
            assert_eq!(code, 0, "{what}: {log:?}");
            assert_eq!(log, [format!("stdout F {expected}")], "{what}");
            assert_untouched(&own, &what);
        }
    }
    assert_eq!(world.children(), Vec::<String>::new());
}

#[test]
fn a_volume_whose_path_is_a_symlink_of_the_image_stays_in_the_container() {
    let mut world = World::new();
    let own = treasure(&world, "treasure");
    let outside = own.display().to_string();
    let volume = world.dir.join("volume");
    fs::create_dir_all(&volume).unwrap();
    for (number, (target, mount_path)) in (0..).zip([
        (outside.as_str(), "/data/y"),
        (outside.as_str(), "/data"),
        ("/dev", "/data"),
        ("/dev/x", "/data"),
        ("dev", "/data/net"),
        ("/sys", "/data/x"),
    ]) {
        let what = format!("data -> {target}, mounted at {mount_path}");
        let layer = world.dir.join(format!("hostile-{number}"));
        fs::create_dir_all(&layer).unwrap();
        symlink(target, layer.join("data")).unwrap();
        for attempt in ["first", "second"] {
            let name = format!("c{number}-{attempt}");
            let mut request = world.request(&name, 0, &["sh", "-c", "true"], |config| {
                bind(config, &volume, mount_path, "rw");
            });
            request.layers.insert(0, layer.clone());
            let code = world.run(request).code;
            assert_eq!(code, 0, "{what}: {:?}", world.log(&name));
            assert_untouched(&own, &what);
            let inside = fs::read_dir(&volume).unwrap().count();
            assert_eq!(inside, 0, "{what}: the volume stays empty");
        }
    }
    let root = world.dir.join("to-root");
    fs::create_dir_all(&root).unwrap();
    symlink(".", root.join("data")).unwrap();
    let mut request = world.request("root", 0, &["true"], |config| {
        bind(config, &volume, "/data", "rw");
    });
    request.layers.insert(0, root);
    let (step, message) = world.fail(request);
    assert_eq!(step, FailedStep::Create);
    assert!(
        message.contains("is the root of the container"),
        "{message}"
    );
    assert_eq!(world.children(), Vec::<String>::new());
}

#[test]
fn a_symlink_in_a_volume_leads_no_other_mount_into_dev_or_over_the_root() {
    let mut world = World::new();
    let own = treasure(&world, "treasure");
    let (outer, inner) = (world.dir.join("outer"), world.dir.join("inner"));
    fs::create_dir_all(&inner).unwrap();
    symlink(&own, inner.join("dev")).unwrap();
    for (number, target) in (0..).zip(["/dev", "/", "../..", "/dev/fd", &own.display().to_string()])
    {
        let _ = fs::remove_dir_all(&outer);
        fs::create_dir_all(&outer).unwrap();
        symlink(target, outer.join("x")).unwrap();
        let name = format!("c{number}");
        let request = world.request(&name, 0, &["true"], |config| {
            bind(config, &outer, "/outer", "rw");
            bind(config, &inner, "/outer/x", "rw");
        });
        // The start succeeds only if the program is still visible.
        let _ = world
            .client
            .call(&Request::Start(Box::new(request)))
            .unwrap();
        assert_untouched(&own, target);
        assert_eq!(fs::read_dir(&inner).unwrap().count(), 1, "{target}");
    }
}

#[test]
fn a_volume_at_dev_keeps_its_files_and_the_container_can_restart() {
    let mut world = World::new();
    let host = treasure(&world, "host-dev");
    let (empty, file) = (world.dir.join("empty"), world.dir.join("one"));
    fs::create_dir_all(&empty).unwrap();
    fs::write(&file, "one file\n").unwrap();
    let shm = world.dir.join("own-shm");
    fs::create_dir_all(&shm).unwrap();
    let see = "ls /dev | tr '\\n' ' '; cat /dev/below/file; pwd";
    for attempt in 0..2 {
        for read_only in [false, true] {
            let change = |config: &mut Value, source: &Path, target: &str| {
                bind(config, source, target, "rw");
                config["root"]["readonly"] = json!(read_only);
            };
            let name = format!("host-{attempt}-{read_only}");
            let request = world.request(&name, 0, &["sh", "-c", see], |config| {
                change(config, &host, "/dev");
                config["process"]["cwd"] = json!("/dev/below");
            });
            assert_eq!(world.run(request).code, 0, "{:?}", world.log(&name));
            let log = world.log(&name);
            assert_eq!(log, ["stdout F below null ptmx the node's own/dev/below"]);
            assert_untouched(&host, "a host path at /dev");

            let name = format!("empty-{attempt}-{read_only}");
            let script = "ls /dev; echo kept > /dev/kept; cat /dev/net/one";
            let request = world.request(&name, 0, &["sh", "-c", script], |config| {
                change(config, &empty, "/dev");
                change(config, &file, "/dev/net/one");
            });
            assert_eq!(world.run(request).code, 0, "{:?}", world.log(&name));
            assert_eq!(world.log(&name).last().unwrap(), "stdout F one file");
            let names = fs::read_dir(&empty).unwrap().flatten();
            let names: BTreeSet<_> = names.map(|entry| entry.file_name()).collect();
            assert_eq!(names, BTreeSet::from(["kept".into(), "net".into()]));

            let name = format!("below-{attempt}-{read_only}");
            let script = "cat /dev/fd /dev/null /dev/a/b; test -c /dev/zero && test -e /dev/stdin && echo fine; \
                          touch /dev/shm/x && ls /dev/shm";
            let request = world.request(&name, 0, &["sh", "-c", script], |config| {
                for target in ["/dev/fd", "/dev/null", "/dev/a/b"] {
                    change(config, &file, target);
                }
                change(config, &shm, "/dev/shm");
            });
            assert_eq!(world.run(request).code, 0, "{:?}", world.log(&name));
            let mut expected = vec!["stdout F one file"; 3];
            expected.extend(["stdout F fine", "stdout F x"]);
            assert_eq!(world.log(&name), expected);
        }
    }
    assert_eq!(world.children(), Vec::<String>::new());
}

#[test]
fn a_program_is_found_in_a_volume_mounted_inside_another() {
    let mut world = World::new();
    let (outer, inner) = (world.dir.join("outer"), world.dir.join("inner"));
    for folder in [&outer, &inner] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::copy("/bin/busybox", inner.join("echo")).expect("package busybox-static");
    fs::create_dir_all(outer.join("inner")).unwrap();
    fs::create_dir_all(inner.join("deep")).unwrap();
    let request = world.request("c", 0, &["../echo", "found"], |config| {
        bind(config, &outer, "/outer", "ro");
        bind(config, &inner, "/outer/inner", "ro");
        config["process"]["cwd"] = json!("/outer/inner/deep");
    });
    assert_eq!(world.run(request).code, 0, "{:?}", world.log("c"));
    assert_eq!(world.log("c"), ["stdout F found"]);
    let request = world.request("c", 1, &["./none"], |config| {
        bind(config, &outer, "/outer", "ro");
        bind(config, &inner, "/outer/inner", "ro");
        config["process"]["cwd"] = json!("/outer/inner");
    });
    let (step, message) = world.fail(request);
    assert_eq!(step, FailedStep::Run, "{message}");
}

#[test]
fn mounts_in_proc_are_limited_to_those_that_other_engines_allow() {
    let mut world = World::new();
    let volume = world.dir.join("volume");
    fs::create_dir_all(&volume).unwrap();
    fs::write(volume.join("uptime"), "1 2\n").unwrap();
    for target in ["/proc", "/proc/sys", "/proc/self"] {
        let request = world.request("c", 0, &["true"], |config| {
            bind(config, &volume, target, "rw")
        });
        let (step, message) = world.fail(request);
        assert_eq!(step, FailedStep::Create);
        assert!(message.contains("cannot be mounted because"), "{message}");
    }
    for (attempt, (source, target)) in (0..).zip([
        (volume.join("uptime"), "/proc/uptime"),
        ("/proc".into(), "/proc"),
    ]) {
        let request = world.request("c", attempt, &["cat", "/proc/uptime"], |config| {
            bind(config, &source, target, "ro");
        });
        assert_eq!(world.run(request).code, 0);
    }
}
