//! `coracle install` into the root directory of another system.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{coracle, text};

/// A folder that is removed with the test.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn an_installation_is_complete_and_a_repeated_one_keeps_the_settings() {
    let root = std::env::temp_dir().join(format!("coracle-install-{}", std::process::id()));
    let scratch = Scratch(root);
    let root = scratch.0.to_str().expect("utf-8");
    let install = || {
        let out = coracle(&["install", "--root", root, "--prefix", "/opt/coracle-1.0"]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        text(&out.stdout)
    };
    let first = install();
    assert!(
        !first.contains("unchanged") && !first.contains("replaced"),
        "{first}"
    );
    let program = scratch.0.join("opt/coracle-1.0/bin/coracle");
    let listed = Command::new(&program)
        .arg("--version")
        .output()
        .expect("it starts");
    assert!(listed.status.success());
    for (unit, line) in [
        (
            "coracle.service",
            "ExecStart=/opt/coracle-1.0/bin/coracle run",
        ),
        (
            "coracle-pods.service",
            "ExecStop=/opt/coracle-1.0/bin/coracle end-pods --grace=20",
        ),
        ("multi-user.target.wants/coracle.service", "Type=notify"),
    ] {
        let path = scratch.0.join("etc/systemd/system").join(unit);
        let unit = std::fs::read_to_string(&path).expect("installed");
        assert!(unit.lines().any(|l| l == line), "{line} in {unit}");
        assert!(!unit.contains("/usr/local/bin"), "{unit}");
    }
    let config = scratch.0.join("etc/coracle/config.yaml");
    std::fs::write(&config, "kind: KubeletConfiguration\n").expect("written");
    std::fs::write(&program, "an older version").expect("written");
    let second = install();
    let changed: Vec<&str> = second
        .lines()
        .filter(|line| !line.starts_with("unchanged") && !line.starts_with("kept"))
        .collect();
    assert_eq!(changed, [format!("replaced   {}", program.display())]);
    let kept = std::fs::read_to_string(&config).expect("kept");
    assert_eq!(kept, "kind: KubeletConfiguration\n");
    let mode = |path: &Path| {
        std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(path).expect("made").permissions(),
        ) & 0o777
    };
    assert_eq!(mode(&program), 0o755);
    assert_eq!(mode(&scratch.0.join("etc/coracle/manifests")), 0o700);
}

/// An image with absolute links to what the machine that builds it has in `host`.
fn linked_image(name: &str) -> (Scratch, PathBuf, PathBuf) {
    let dir = std::env::temp_dir().join(format!("coracle-{name}-{}", std::process::id()));
    let scratch = Scratch(dir);
    let (image, host) = (scratch.0.join("image"), scratch.0.join("host"));
    for path in [
        "local/bin/coracle",
        "local/share/bash-completion/completions/coracle",
        "init.d/coracle",
        "systemd/system/coracle.service",
        "config",
    ] {
        let path = host.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, "of the host").expect("written");
    }
    for (link, to) in [
        ("usr/local", "local"),
        ("etc/init.d", "init.d"),
        ("etc/systemd", "systemd"),
        ("var/lib", "lib"),
        // Settings that are there stay, whatever they are.
        ("etc/coracle/config.yaml", "config"),
        ("etc/tmpfiles.d/coracle.conf", "config"),
    ] {
        let link = image.join(link);
        std::fs::create_dir_all(link.parent().expect("a folder")).expect("made");
        symlink(host.join(to), link).expect("linked");
    }
    symlink("../../../../../../../../srv/log", image.join("var/log")).expect("linked");
    (scratch, image, host)
}

#[test]
fn links_of_an_image_lead_to_places_in_the_image() {
    let (_scratch, image, host) = linked_image("image");
    let before = files_below(&host);
    let out = coracle(&["install", "--root", image.to_str().expect("utf-8")]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let said = text(&out.stdout);
    assert_eq!(files_below(&host), before, "{said}");

    let inside = image.join(host.strip_prefix("/").expect("absolute"));
    for path in [
        inside.join("local/bin/coracle"),
        inside.join("systemd/system/coracle.service"),
        inside.join("systemd/system/multi-user.target.wants/coracle.service"),
        inside.join("lib/coracle"),
        image.join("srv/log/pods"),
    ] {
        assert!(path.exists(), "{}: {said}", path.display());
    }
    let tmpfiles = image.join("etc/tmpfiles.d/coracle.conf");
    assert!(tmpfiles.symlink_metadata().expect("there").is_file());
}

#[test]
fn the_script_of_the_archive_stays_in_the_image_too() {
    let (scratch, image, host) = linked_image("image-by-script");
    let unpacked = scratch.0.join("unpacked");
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/packaging");
    for folder in ["completions", "openrc"] {
        std::fs::create_dir_all(unpacked.join(folder)).expect("made");
    }
    for name in ["coracle", "_coracle", "coracle.fish"] {
        std::fs::write(unpacked.join("completions").join(name), "").expect("written");
    }
    for (from, to) in [
        (packaging.join("tar/install.sh"), "install.sh"),
        (
            packaging.join("openrc/coracle.initd"),
            "openrc/coracle.initd",
        ),
        (
            packaging.join("openrc/coracle.confd"),
            "openrc/coracle.confd",
        ),
        (env!("CARGO_BIN_EXE_coracle").into(), "coracle"),
    ] {
        symlink(from, unpacked.join(to)).expect("linked");
    }
    let openrc = image.join("sbin/openrc-run");
    std::fs::create_dir_all(openrc.parent().expect("a folder")).expect("made");
    std::fs::copy("/bin/true", openrc).expect("a program");
    let before = files_below(&host);
    let out = Command::new("sh")
        .arg(unpacked.join("install.sh"))
        .arg("--root")
        .arg(&image)
        .output()
        .expect("run");
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(files_below(&host), before, "{}", text(&out.stdout));

    let inside = image.join(host.strip_prefix("/").expect("absolute"));
    for path in [
        "local/bin/coracle",
        "local/share/bash-completion/completions/coracle",
        "init.d/coracle",
    ] {
        assert!(inside.join(path).exists(), "{path}");
    }
    let units = inside.join("systemd/system/coracle.service");
    assert!(!units.exists(), "OpenRC has none");
}

/// All files below a folder, with their content.
fn files_below(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            match entry.file_type().expect("known").is_dir() {
                true => folders.push(path),
                false => found.push((path.clone(), std::fs::read(path).expect("a file"))),
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_prefix_that_a_unit_file_cannot_contain_is_refused() {
    for prefix in ["relative", "/with space", "/with%percent", "/with\nline"] {
        let out = coracle(&["install", "--root", "/nonexistent", "--prefix", prefix]);
        assert_eq!(
            out.status.code(),
            Some(2),
            "{prefix}: {}",
            text(&out.stderr)
        );
    }
}

#[test]
fn a_root_directory_is_for_installing_only() {
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/systemd/packaging/tar/install.sh"
    );
    let out = Command::new("sh")
        .args([script, "--uninstall", "--purge", "--root", "/nonexistent"])
        .output()
        .expect("run");
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(text(&out.stderr), "error: --root is only for installing\n");
}
