//! The file that sets how long logind waits. systemd-logind reads its files in this order (logind.conf(5)): the
//! main file, then drop-ins of all folders by name, where a name in a folder of higher rank hides the same name in
//! the others. The last file that sets the value wins.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::sys::file;

/// Folders with systemd's files, the highest rank first.
const FOLDERS: [&str; 4] = [
    "etc/systemd",
    "run/systemd",
    "usr/local/lib/systemd",
    "usr/lib/systemd",
];

/// The file for a setting that no file has yet.
const MAIN: &str = "/etc/systemd/logind.conf";

const KEY: &str = "InhibitDelayMaxSec";

/// Blocking. The file whose `InhibitDelayMaxSec` counts.
pub fn winner() -> Option<PathBuf> {
    below(Path::new("/"))
}

/// Blocking. How to make logind wait `seconds`, as a hint for people.
pub fn hint(seconds: u64) -> String {
    advice(winner(), seconds)
}

fn advice(winner: Option<PathBuf>, seconds: u64) -> String {
    let own = Path::new(super::OVERRIDE);
    match winner {
        Some(path) if path == own => format!(
            "`systemctl restart systemd-logind`: it has not read `{}`",
            own.display()
        ),
        Some(path) => format!(
            "set {KEY}={seconds} or more in `{}`, which wins over the other files, then `systemctl kill -s HUP systemd-logind`",
            path.display()
        ),
        None => format!(
            "set {KEY}={seconds} or more in `{MAIN}`, then `systemctl kill -s HUP systemd-logind`"
        ),
    }
}

fn below(root: &Path) -> Option<PathBuf> {
    let folders = FOLDERS.map(|folder| root.join(folder));
    let mut main = folders.iter().map(|folder| folder.join("logind.conf"));
    let main = main.find(|path| path.exists());
    let mut drop_ins: BTreeMap<_, PathBuf> = BTreeMap::new();
    for folder in &folders {
        let entries = fs::read_dir(folder.join("logind.conf.d"));
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name();
            if name.to_string_lossy().ends_with(".conf") {
                drop_ins.entry(name).or_insert(entry.path());
            }
        }
    }
    let files: Vec<PathBuf> = main.into_iter().chain(drop_ins.into_values()).collect();
    let sets = |path: &&PathBuf| file::read_text(path).is_ok_and(|text| sets(&text));
    files.iter().rev().find(sets).cloned()
}

/// Whether a file sets the value; like logind, ignores an empty or malformed one.
fn sets(text: &str) -> bool {
    let mut section = "";
    text.lines().map(str::trim).any(|line| {
        if line.starts_with('[') {
            section = line;
        }
        let value = line.split_once('=').filter(|(key, _)| key.trim() == KEY);
        let value = value.map_or("", |(_, value)| value.trim());
        let time =
            value.starts_with(|c: char| c.is_ascii_digit() || c == '.') || value == "infinity";
        section == "[Login]" && time
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_file_by_name_wins_and_one_of_higher_rank_hides_its_namesakes() {
        let root =
            std::env::temp_dir().join(format!("coracle-logind-files-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("has one")).expect("temp dir");
            fs::write(path, text).expect("written");
        };
        let found = || below(&root).map(|path| path.strip_prefix(&root).expect("below").to_owned());
        let value = "[Login]\nInhibitDelayMaxSec=5\n";
        assert_eq!(found(), None);
        write(
            "etc/systemd/logind.conf",
            "[Login]\n#InhibitDelayMaxSec=5\n",
        );
        assert_eq!(found(), None, "a comment");
        for (path, text, expected) in [
            ("usr/lib/systemd/logind.conf", value, None),
            (
                "etc/systemd/logind.conf",
                value,
                Some("etc/systemd/logind.conf"),
            ),
            (
                "run/systemd/logind.conf.d/99-coracle.conf",
                value,
                Some("run/systemd/logind.conf.d/99-coracle.conf"),
            ),
            (
                "etc/systemd/logind.conf.d/50-site.conf",
                value,
                Some("run/systemd/logind.conf.d/99-coracle.conf"),
            ),
            (
                "usr/lib/systemd/logind.conf.d/unattended-upgrades-logind-maxdelay.conf",
                "# why\n[Login]\n InhibitDelayMaxSec = 30 \n",
                Some("usr/lib/systemd/logind.conf.d/unattended-upgrades-logind-maxdelay.conf"),
            ),
            // It hides the one before without setting a value, as a link to /dev/null does.
            (
                "etc/systemd/logind.conf.d/unattended-upgrades-logind-maxdelay.conf",
                "",
                Some("run/systemd/logind.conf.d/99-coracle.conf"),
            ),
            (
                "etc/systemd/logind.conf.d/zz.conf",
                "[Other]\nInhibitDelayMaxSec=5\n[Login]\nInhibitDelayMaxSec=\nInhibitDelayMaxSec=soon\n",
                Some("run/systemd/logind.conf.d/99-coracle.conf"),
            ),
            (
                "etc/systemd/logind.conf.d/zz.conf.bak",
                value,
                Some("run/systemd/logind.conf.d/99-coracle.conf"),
            ),
            (
                "usr/local/lib/systemd/logind.conf.d/zzz.conf",
                "[Login]\nInhibitDelayMaxSec=infinity\n",
                Some("usr/local/lib/systemd/logind.conf.d/zzz.conf"),
            ),
        ] {
            write(path, text);
            assert_eq!(found(), expected.map(PathBuf::from), "after {path}");
        }
        fs::remove_dir_all(&root).expect("removed");
    }

    #[test]
    fn the_hint_names_what_is_to_be_changed() {
        for (winner, words) in [
            (None, "in `/etc/systemd/logind.conf`, then"),
            (
                Some("/etc/systemd/logind.conf.d/zz.conf"),
                "=31 or more in `/etc/systemd/logind.conf.d/zz.conf`, which wins",
            ),
            (
                Some(super::super::OVERRIDE),
                "restart systemd-logind`: it has not read `/run/",
            ),
        ] {
            let hint = advice(winner.map(PathBuf::from), 31);
            assert!(hint.contains(words), "{hint}");
        }
    }
}
