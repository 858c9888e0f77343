//! What a purge leaves alone.

use std::os::unix::fs::symlink;

use super::*;

/// A folder that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("coracle-purge-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn write(&self, paths: &[&str]) {
        for path in paths {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
    }

    /// All files and links below a folder.
    fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.0.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                match entry.file_type().unwrap().is_dir() {
                    true => folders.push(entry.path()),
                    false => found.push(entry.path()),
                }
            }
        }
        let below = |path: &PathBuf| path.strip_prefix(&self.0).unwrap().display().to_string();
        let mut found: Vec<String> = found.iter().map(below).collect();
        found.order();
        found
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What an agent has made.
const MADE: [&str; 14] = [
    "format.json",
    "boot.json",
    ".cordon.json.tmp",
    "images/blobs/sha256/0",
    "images/layers/0/diff/bin/sh",
    "pods/0123/volumes/v/file",
    "claims/default_data/claim.json",
    "claims/default_data/data/file",
    "claims/.removing-default_gone/data/file",
    "bundles/site/state.json",
    "bundles/site/1/manifests/a.yaml",
    "bundles/.gone-old/1/record.json",
    "static-pod-url/source.json",
    "upgrade/last.json",
];

#[test]
fn a_directory_that_is_only_coracles_goes_as_a_whole() {
    let scratch = Scratch::new("whole");
    scratch.write(&MADE);
    state(&scratch.0).unwrap();
    assert!(!scratch.0.exists());
    state(&scratch.0).unwrap();
}

#[test]
fn of_a_shared_directory_goes_what_an_agent_made() {
    let scratch = Scratch::new("shared");
    scratch.write(&MADE);
    let others = [
        "bundles/download.tar",
        "claims/insurance/claim.pdf",
        "images/holiday.png",
        "jobs/list",
        "pods/notes.txt",
        "upgrade/firmware.bin",
        "www/index.html",
    ];
    scratch.write(&others);
    state(&scratch.0).unwrap();
    assert_eq!(scratch.files(), others);
}

#[test]
fn a_directory_without_the_mark_of_an_agent_stays_as_it_is() {
    let scratch = Scratch::new("unmarked");
    let paths = ["agent.lock", "boot.json", "images/blobs/a", "upgrade/lock"];
    scratch.write(&paths);
    state(&scratch.0).unwrap();
    upgrades(&scratch.0).unwrap();
    runtime(&scratch.0).unwrap();
    assert_eq!(scratch.files(), paths);
}

#[test]
fn links_are_removed_and_not_followed_but_for_the_directory_itself() {
    let scratch = Scratch::new("links");
    let others = ["disk/blobs/a", "disk/default_data/claim.json", "disk/list"];
    scratch.write(&others);
    scratch.write(&["real/format.json", "real/boot.json"]);
    let at = |path: &str| scratch.0.join(path);
    for group in ["images", "claims", "pods", "upgrade", "black-box"] {
        symlink("../disk", at("real").join(group)).unwrap();
    }
    symlink("real", at("link")).unwrap();
    state(&at("link")).unwrap();
    assert!(!at("link").is_symlink() && !at("real").exists());
    assert_eq!(scratch.files(), others);
}

#[test]
fn a_shared_runtime_directory_stays() {
    let scratch = Scratch::new("runtime");
    let made = [
        "agent.lock",
        "format.json",
        "netns/blue",
        "pods/0123/pod.json",
    ];
    scratch.write(&made);
    scratch.write(&["systemd/notify"]);
    runtime(&scratch.0).unwrap();
    assert_eq!(scratch.files().len(), made.len() + 1);
    fs::remove_dir_all(scratch.0.join("systemd")).unwrap();
    runtime(&scratch.0).unwrap();
    assert!(!scratch.0.exists());
}

#[test]
fn of_a_shared_log_directory_go_the_logs_of_known_pods() {
    let scratch = Scratch::new("logs");
    let layout = Layout {
        root: scratch.0.join("root"),
        log_dir: scratch.0.join("log"),
        ..Layout::default()
    };
    scratch.write(&[
        "root/pods/0123/etc-hosts",
        "log/default_web_0123/main/0.log",
        "log/default_web_4567/main/0.log",
        "log/messages_0123",
        "log/syslog",
    ]);
    logs(&layout).unwrap();
    let left = [
        "log/default_web_4567/main/0.log",
        "log/messages_0123",
        "log/syslog",
        "root/pods/0123/etc-hosts",
    ];
    assert_eq!(scratch.files(), left);
}
