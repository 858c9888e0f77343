//! Log rotation. `<n>.log` is current, `<n>.log.<YYYYMMDD-HHMMSS>` the newest before it, and older ones end in
//! `.gz`, compressed by a child at the lowest priority: into a `.tmp`, flushed to disk, renamed, and only then is the
//! plain one removed. While both are there, the one with more bytes counts. More logs of the same second are
//! `<n>.log.<YYYYMMDD-HHMMSS>-0001` and so on.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::stamp::civil;
use crate::sys::openat::{self, Found};
use crate::sys::process::{self, Fork};
use crate::sys::{file, gzip};
use crate::types::InOrder;

/// Length of `YYYYMMDD-HHMMSS`.
const STAMP: usize = 15;

/// Renames the current log after second `now`. After a clock was set back, it takes the newest log's second with
/// the next number: readers and removal go by the names.
pub(super) fn rename(current: &Path, now: i64) -> io::Result<()> {
    let [year, month, day, hour, minute, second] = civil(now);
    let stamp = format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}");
    let all = siblings(current)?;
    let newest = all.iter().filter_map(|path| place(current, path)).max();
    let target = match newest {
        Some((latest, number)) if latest >= stamp => format!("{latest}-{:04}", number + 1),
        Some(_) | None => stamp,
    };
    fs::rename(current, with_suffix(current, &format!(".{target}")))
}

/// The second of an old log, and its number within that second.
fn place(current: &Path, old: &Path) -> Option<(String, u32)> {
    let (current, old) = (current.to_string_lossy(), stem(old));
    let rest = old.to_string_lossy();
    let rest = rest.strip_prefix(&*current)?.strip_prefix('.')?;
    let (stamp, number) = rest.split_at_checked(STAMP)?;
    let number = match number {
        "" => 0,
        more => more.strip_prefix('-')?.parse().ok()?,
    };
    Some((stamp.to_owned(), number))
}

/// Removes the oldest logs until `max_files` are left with the current one, and before that, unless a compressor is at
/// `work`, the remains of one that was killed: a `.tmp`, and the shorter of a `.gz` and its plain file. A `.gz` of an
/// earlier version may be empty after a power cut.
pub(super) fn prune(current: &Path, max_files: u32, work: bool) -> io::Result<()> {
    if !work {
        for path in siblings(current)? {
            if ends_with(&path, ".tmp") {
                file::remove_file(&path)?;
            } else if ends_with(&path, ".gz") && stem(&path).exists() {
                file::remove_file(&worse(&path, &stem(&path)))?;
            }
        }
    }
    let mut old: Vec<PathBuf> = rotated(current)?.iter().map(|path| stem(path)).collect();
    old.dedup();
    let keep = (max_files as usize).saturating_sub(1);
    let excess = old.len().saturating_sub(keep);
    for plain in &old[..excess] {
        file::remove_file(plain)?;
        file::remove_file(&with_suffix(plain, ".gz"))?;
    }
    Ok(())
}

/// The one of a log and its compressed form that holds less. After a power cut that may be the plain one, of which only
/// a part was on disk.
fn worse(compressed: &Path, plain: &Path) -> PathBuf {
    let is_whole = || -> io::Result<bool> {
        // A container may have the directory mounted.
        let (Found::Regular(compressed), Found::Regular(plain)) = (
            openat::read_regular(compressed)?,
            openat::read_regular(plain)?,
        ) else {
            return Ok(false);
        };
        gzip::holds(compressed, plain.metadata()?.len())
    };
    match is_whole().unwrap_or(false) {
        true => plain.to_owned(),
        false => compressed.to_owned(),
    }
}

/// Starts a child that compresses all plain old logs except the newest. Returns its pid if there is something to
/// do.
pub(super) fn compress(current: &Path) -> Option<i32> {
    let mut plain = rotated(current).ok()?;
    // The newest stays as it is: a client may be reading it.
    plain.pop();
    plain.retain(|path| !ends_with(path, ".gz"));
    if plain.is_empty() {
        return None;
    }
    match process::fork().ok()? {
        Fork::Parent(pid) => Some(pid),
        Fork::Child => {
            process::set_name(c"coracle-gzip");
            crate::sys::signals::reset();
            // The agent takes an open socket for a live shim, and a container an open pipe for a reader.
            let _ = process::end_with_parent();
            process::close_except(&mut [2]);
            process::lowest_priority();
            let failed = plain.iter().any(|path| is_stuck(path));
            process::exit_now(i32::from(failed));
        }
    }
}

/// Compresses a log. Returns whether that failed: one that was too old was removed meanwhile, which is no failure.
fn is_stuck(path: &Path) -> bool {
    compress_one(path).is_err() && path.symlink_metadata().is_ok()
}

fn compress_one(path: &Path) -> io::Result<()> {
    let (temporary, target) = (with_suffix(path, ".tmp"), with_suffix(path, ".gz"));
    let result = write_compressed(path, &temporary);
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
        return result;
    }
    fs::rename(&temporary, &target)?;
    if let Some(folder) = target.parent() {
        fs::File::open(folder)?.sync_all()?;
    }
    fs::remove_file(path)
}

/// Compresses into a file that is on disk when this returns: a power cut must not take both it and the plain one. Only
/// the child waits for the disk.
fn write_compressed(path: &Path, temporary: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut input = fs::File::open(path)?;
    let output = fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o640)
        .open(temporary)?;
    let mut encoder = flate2::write::GzEncoder::new(output, flate2::Compression::new(6));
    io::copy(&mut input, &mut encoder)?;
    encoder.finish()?.sync_all()
}

/// Old logs, oldest first, by the stamp and the number in their names.
fn rotated(current: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = siblings(current)?;
    found.retain(|path| !ends_with(path, ".tmp"));
    found.order_by_key(|path| place(current, path));
    Ok(found)
}

/// All files whose name begins with that of the current log and a dot.
fn siblings(current: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(folder), Some(name)) = (current.parent(), current.file_name()) else {
        return Ok(Vec::new());
    };
    let prefix = format!("{}.", name.to_string_lossy());
    Ok(fs::read_dir(folder)?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .map(|entry| entry.path())
        .collect())
}

/// The original name of an old log.
fn stem(path: &Path) -> PathBuf {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("gz" | "tmp") => path.with_extension(""),
        _ => path.to_owned(),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn ends_with(path: &Path, suffix: &str) -> bool {
    path.to_string_lossy().ends_with(suffix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let name = format!("coracle-rotate-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_log_that_is_gone_is_no_failure_of_its_compression() {
        let folder = folder("stuck");
        let good = folder.join("0.log.20260101-000000");
        fs::write(&good, "x").unwrap();
        assert!(!is_stuck(&good) && !good.exists());
        assert!(!is_stuck(&folder.join("0.log.20260102-000000")));
        assert!(is_stuck(&folder), "it cannot be read");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn logs_of_one_second_are_numbered_and_sort_by_age() {
        let folder = folder("second");
        let current = folder.join("0.log");
        let now = 1_767_225_600;
        for round in 0..12 {
            fs::write(&current, round.to_string()).unwrap();
            rename(&current, now + i64::from(round == 11)).unwrap();
            if round == 0 {
                let first = folder.join("0.log.20260101-000000");
                fs::rename(&first, with_suffix(&first, ".gz")).unwrap();
            }
        }
        let texts = |files: &[PathBuf]| -> Vec<u32> {
            let text = |path| fs::read_to_string(path).unwrap().parse().unwrap();
            files.iter().map(text).collect()
        };
        let found = rotated(&current).unwrap();
        assert_eq!(texts(&found), (0..12).collect::<Vec<_>>());
        prune(&current, 4, false).unwrap();
        fs::write(&current, "12").unwrap();
        rename(&current, now).unwrap();
        let found = rotated(&current).unwrap();
        let last = found.last().unwrap().to_string_lossy().into_owned();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found.len(), 4);
        assert!(last.ends_with("20260101-000001-0001"), "{last}");
    }

    #[test]
    fn what_was_written_last_is_the_newest_whatever_the_clock_says() {
        let folder = folder("clock");
        let current = folder.join("0.log");
        // Ten years ahead, then back, and on from there; and many without the clock getting there again.
        let ahead = 2_082_758_400;
        let (today, many) = (1_767_225_600, 10_005);
        let moments = [0, ahead, today, today + 5, ahead + 9];
        let moments = moments
            .into_iter()
            .chain([today].into_iter().cycle().take(many));
        for (number, now) in moments.enumerate() {
            fs::write(&current, number.to_string()).unwrap();
            rename(&current, now).unwrap();
            prune(&current, 4, false).unwrap();
            let left = rotated(&current).unwrap();
            let text = |path: &PathBuf| fs::read_to_string(path).unwrap().parse().unwrap();
            let left: Vec<usize> = left.iter().map(text).collect();
            let expected: Vec<usize> = (number.saturating_sub(2)..=number).collect();
            assert_eq!(left, expected);
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_newest_logs_stay_and_leftovers_of_a_crash_go() {
        let folder = folder("prune");
        let names = [
            "0.log",
            "0.log.20260101-000000.gz",
            "0.log.20260102-000000",
            "0.log.20260102-000000.gz",
            "0.log.20260103-000000",
            "0.log.20260103-000000.tmp",
            "0.log.20260104-000000",
            "1.log.20250101-000000",
        ];
        for name in names {
            fs::write(folder.join(name), "x").unwrap();
        }
        prune(&folder.join("0.log"), 3, false).unwrap();
        let mut left: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(left, [names[0], names[4], names[6], names[7]]);
    }

    #[test]
    fn a_plain_log_stays_until_it_is_compressed_for_good() {
        let folder = folder("twin");
        let (current, plain) = (folder.join("0.log"), folder.join("0.log.20260102-000000"));
        let (first, half) = (
            folder.join("0.log.20260101-000000.gz"),
            with_suffix(&plain, ".gz"),
        );
        for (path, text) in [(&first, "first"), (&plain, "whole"), (&half, "")] {
            fs::write(path, text).unwrap();
        }
        prune(&current, 3, true).unwrap();
        assert!(first.exists(), "the twins count as one");
        assert!(
            plain.exists() && half.exists(),
            "the compressor is about to remove the plain one"
        );
        prune(&current, 3, false).unwrap();
        assert!(first.exists() && plain.exists() && !half.exists());
        compress_one(&plain).unwrap();
        assert!(!plain.exists());
        let text = io::read_to_string(flate2::read::GzDecoder::new(fs::File::open(&half).unwrap()));
        assert_eq!(text.unwrap(), "whole");
        // The plain one after a power cut.
        fs::write(&plain, "wh").unwrap();
        prune(&current, 3, false).unwrap();
        assert!(!plain.exists() && half.exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
