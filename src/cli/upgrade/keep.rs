//! The node's small records, set aside before an agent that writes them in a newer format, and brought back before the
//! former agent. Volumes, logs and images are not among them: they have no format of coracle's, or their own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::record::link_over;
use crate::layout::{BOOT_FILE, FORMAT_FILE, Layout, UNHEALTHY_BOOTS_FILE};
use crate::sys::file::{self, Durability};

/// Written last: the copies are complete. It has the id of the boot that they were made in.
const COMPLETE: &str = "complete";

/// Whether everything was set aside.
pub(super) fn is_there(kept: &Path) -> bool {
    kept.join(COMPLETE).exists()
}

/// Whether everything was set aside in this boot.
fn is_of(kept: &Path, boot: &str) -> bool {
    file::read_record(kept.join(COMPLETE)).is_ok_and(|id| id == boot.as_bytes())
}

/// Copies the records to `kept`, before the newer program is in place. Copies of an earlier boot have what has gone since.
pub(super) fn aside(layout: &Layout, kept: &Path, boot: &str) -> io::Result<()> {
    if is_of(kept, boot) {
        return Ok(());
    }
    if kept.exists() {
        fs::remove_dir_all(kept)?;
    }
    for (name, from) in places(layout) {
        let kept = kept.join(name);
        // The agent still writes: a list of a directory may lack a file that is replaced just then.
        while copy_new(from, &kept)? {}
    }
    put(&kept.join(COMPLETE), boot.as_bytes())
}

/// Copies the records that have no copy yet. Returns whether there were any.
fn copy_new(from: &Path, kept: &Path) -> io::Result<bool> {
    let mut copied = false;
    for record in records(from)? {
        let copy = kept.join(&record);
        if copy.exists() {
            continue;
        }
        let bytes = match file::read_record(from.join(&record)) {
            Ok(bytes) => bytes,
            // Its pod has gone meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        put(&copy, &bytes)?;
        copied = true;
    }
    Ok(copied)
}

/// Whether the records are marked with a format that an agent of this one refuses.
pub(super) fn is_newer(layout: &Layout, format: u32) -> bool {
    let mut places = places(layout).into_iter();
    places.any(|(_, folder)| marked_newer(folder, format))
}

fn marked_newer(folder: &Path, format: u32) -> bool {
    let mark = file::read_record(folder.join(FORMAT_FILE)).unwrap_or_default();
    let mark: serde_json::Value = serde_json::from_slice(&mark).unwrap_or_default();
    mark["format"].as_u64() > Some(u64::from(format))
}

/// Removes the records that only the newer agent has made, in a boot that had no others; the mark last.
fn clear(folder: &Path) -> io::Result<()> {
    let mark = Path::new(FORMAT_FILE);
    for record in records(folder)?.iter().filter(|record| *record != mark) {
        file::remove_file(&folder.join(record))?;
    }
    file::remove_file(&folder.join(mark))
}

/// Brings the records back. What only the newer agent has made is left alone, but for its mark. The marks come last: an
/// init may start the former agent at any time, which refuses to start until all that it reads is its own.
/// `format`: the newest one that the former agent knows.
pub(super) fn back(layout: &Layout, kept: &Path, boot: &str, format: u32) -> io::Result<()> {
    if !is_there(kept) {
        return Ok(());
    }
    // What was on tmpfs has gone with its boot, also if the trial has gone on in another one since.
    let same_boot = is_of(kept, boot);
    if !same_boot && marked_newer(&layout.run_dir, format) {
        clear(&layout.run_dir)?;
    }
    let places = places(layout)
        .into_iter()
        .filter(|(name, _)| *name != "run" || same_boot);
    let places: Vec<_> = places.map(|(name, to)| (kept.join(name), to)).collect();
    let mark = Path::new(FORMAT_FILE);
    for (from, to) in &places {
        for record in records(from)? {
            let to = to.join(&record);
            // Without its folder, a pod is gone.
            if record != mark && to.parent().is_some_and(Path::is_dir) {
                put_back(&from.join(&record), &to)?;
            }
        }
    }
    for (from, to) in &places {
        match file::read_record(from.join(mark)) {
            Ok(_) => put_back(&from.join(mark), &to.join(mark))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                file::remove_durably(&to.join(mark))?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn places(layout: &Layout) -> [(&'static str, &Path); 2] {
    [("root", &layout.root), ("run", &layout.run_dir)]
}

/// What is known of boots, which the newer agent adds to and whose form is the same in all versions.
const OF_BOOTS: [&str; 2] = [BOOT_FILE, UNHEALTHY_BOOTS_FILE];

/// The records below a directory: `*.json`, `pods/<uid>/*.json`, `bundles/<name>/*.json`.
fn records(of: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = vec![PathBuf::new()];
    for group in ["pods", "bundles"] {
        let names = names(&of.join(group))?;
        folders.extend(
            names
                .into_iter()
                .map(|(name, _)| Path::new(group).join(name)),
        );
    }
    let mut found = Vec::new();
    for folder in folders {
        for (name, is_file) in names(&of.join(&folder))? {
            let record = folder.join(&name);
            let is_kept = OF_BOOTS.iter().any(|name| record == Path::new(name));
            if is_file && name.ends_with(".json") && !is_kept {
                found.push(record);
            }
        }
    }
    Ok(found)
}

/// The entries of a folder, and which of them are regular files; none without the folder.
fn names(folder: &Path) -> io::Result<Vec<(String, bool)>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if let Ok(name) = entry.file_name().into_string() {
            found.push((name, entry.file_type()?.is_file()));
        }
    }
    Ok(found)
}

/// Puts a record in place of the newer agent's, which has to be possible on a full disk: as the same file, or where the
/// file system has no links, as a copy. Records are only ever replaced, so that the one set aside stays as it is.
fn put_back(kept: &Path, to: &Path) -> io::Result<()> {
    match link_over(kept, to) {
        Ok(()) => Ok(()),
        Err(_) => put(to, &file::read_record(kept)?),
    }
}

fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    file::make_dirs(path.parent().unwrap_or(path), 0o700)?;
    file::replace(path, bytes, 0o600, Durability::PowerCut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were_and_nothing_else_changes() {
        let dir = std::env::temp_dir().join(format!("coracle-keep-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let layout = Layout {
            root: dir.join("root"),
            run_dir: dir.join("run"),
            ..Layout::default()
        };
        let kept = dir.join("kept");
        for (file, text) in [
            ("root/cordon.json", "old"),
            ("root/unhealthy-boots.json", "old"),
            ("root/pods/u1/exits.json", "old"),
            ("root/pods/u1/volumes/v/data.json", "data"),
            ("root/images/index.json", "images"),
            ("run/pods/u1/checkpoint.json", "old"),
            ("run/pods/u2/checkpoint.json", "old"),
        ] {
            put(&dir.join(file), text.as_bytes()).unwrap();
        }
        // What a power cut in an earlier boot has left.
        put(&kept.join("root/gone.json"), b"of another boot").unwrap();
        put(&kept.join(COMPLETE), b"another boot").unwrap();
        aside(&layout, &kept, "boot").unwrap();
        for (file, text) in [
            ("root/cordon.json", "new"),
            ("root/unhealthy-boots.json", "this boot, too"),
            ("root/format.json", "new"),
            ("root/pods/u1/exits.json", "new"),
            ("root/pods/u1/volumes/v/data.json", "more data"),
            ("root/images/index.json", "more images"),
            ("run/pods/u1/checkpoint.json", "new"),
        ] {
            put(&dir.join(file), text.as_bytes()).unwrap();
        }
        fs::remove_dir_all(dir.join("run/pods/u2")).unwrap();
        // A second try keeps what is there.
        aside(&layout, &kept, "boot").unwrap();
        assert!(!is_newer(&layout, 1), "a mark that cannot be read");
        put(&dir.join("run/format.json"), br#"{"format":2}"#).unwrap();
        assert!(is_newer(&layout, 1) && !is_newer(&layout, 2));
        let exits = dir.join("root/pods/u1/exits.json");
        fs::remove_file(&exits).unwrap();
        fs::create_dir(&exits).unwrap();
        assert!(back(&layout, &kept, "boot", 1).is_err());
        assert!(is_newer(&layout, 1), "until everything is back");
        fs::remove_dir(&exits).unwrap();
        back(&layout, &kept, "boot", 1).unwrap();
        assert!(!is_newer(&layout, 1) && !dir.join("root/gone.json").exists());
        for (file, wanted) in [
            ("root/cordon.json", "old"),
            ("root/unhealthy-boots.json", "this boot, too"),
            ("root/pods/u1/exits.json", "old"),
            ("root/pods/u1/volumes/v/data.json", "more data"),
            ("root/images/index.json", "more images"),
            ("run/pods/u1/checkpoint.json", "old"),
        ] {
            assert_eq!(
                fs::read_to_string(dir.join(file)).unwrap(),
                wanted,
                "{file}"
            );
        }
        assert!(!dir.join("root/format.json").exists() && !dir.join("run/pods/u2").exists());
        let checkpoint = dir.join("run/pods/u1/checkpoint.json");
        put(&checkpoint, b"next boot").unwrap();
        back(&layout, &kept, "next boot", 1).unwrap();
        assert_eq!(fs::read_to_string(&checkpoint).unwrap(), "next boot");
        put(&dir.join("run/format.json"), br#"{"format":2}"#).unwrap();
        back(&layout, &kept, "next boot", 2).unwrap();
        assert!(checkpoint.exists());
        back(&layout, &kept, "next boot", 1).unwrap();
        assert!(!is_newer(&layout, 1) && !checkpoint.exists());
        fs::remove_dir_all(dir).unwrap();
    }
}
