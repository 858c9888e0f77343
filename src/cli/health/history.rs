//! The boots that were not healthy, each with why: a small file beside the agent's state, which outlives a return to
//! another root file system.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use super::super::error::{CliError, Result};
use super::super::put;
use super::super::table::Table;
use super::verdict::Problem;
use crate::sys::file::{self, Durability};
use crate::sys::{clock, file::read_text};

/// The most records that are kept, the oldest go first.
const MAX_RECORDS: usize = 32;

/// The most of one boot: a check that is repeated does not push out other boots, nor wear out the disk.
const MAX_OF_BOOT: usize = 8;

/// The longest file.
const MAX_BYTES: u64 = 1 << 20;

/// A check that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    boot_id: String,
    /// RFC 3339.
    time: String,
    uptime_seconds: u64,
    /// Version of this program.
    version: String,
    kernel: String,
    /// The name of the system, and its slot if the kernel's command line names one.
    system: String,
    problems: Vec<String>,
}

/// The records with this one, or `None` if it adds nothing.
fn with(mut records: Vec<Record>, new: Record) -> Option<Vec<Record>> {
    let of_boot: Vec<&Record> = records
        .iter()
        .filter(|old| old.boot_id == new.boot_id)
        .collect();
    let same = of_boot
        .last()
        .is_some_and(|old| old.problems == new.problems);
    if same || of_boot.len() >= MAX_OF_BOOT {
        return None;
    }
    records.push(new);
    let extra = records.len().saturating_sub(MAX_RECORDS);
    records.drain(..extra);
    Some(records)
}

/// Records why this boot is not healthy.
pub(super) fn add(path: &Path, problems: &[Problem]) -> io::Result<()> {
    let new = Record {
        boot_id: line("/proc/sys/kernel/random/boot_id"),
        time: clock::timestamp()
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string(),
        uptime_seconds: clock::boot_ms() / 1000,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: line("/proc/sys/kernel/osrelease"),
        system: system(
            &read_text("/etc/os-release").unwrap_or_default(),
            &read_text("/proc/cmdline").unwrap_or_default(),
        ),
        problems: problems.iter().map(Problem::to_string).collect(),
    };
    // A file that is not understood is replaced: new records matter more.
    let Some(records) = with(read(path).unwrap_or_default(), new) else {
        return Ok(());
    };
    // A bare name has an empty folder.
    let path = match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => &Path::new(".").join(path),
        Some(_) | None => path,
    };
    if let Some(folder) = path.parent().filter(|folder| !folder.is_dir()) {
        file::make_dirs(folder, 0o711)?;
    }
    let bytes = serde_json::to_vec(&records).map_err(io::Error::other)?;
    file::replace(path, &bytes, 0o600, Durability::PowerCut)
}

fn read(path: &Path) -> io::Result<Vec<Record>> {
    let bytes = match file::read_bounded(path, MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    Ok(serde_json::from_slice(&bytes)?)
}

fn line(path: &str) -> String {
    read_text(path).unwrap_or_default().trim().to_owned()
}

/// `Acme OS 7.1, root=/dev/sda2, rauc.slot=A`.
fn system(os_release: &str, cmdline: &str) -> String {
    let value = |key: &str| {
        let mut lines = os_release.lines();
        let found = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        Some(found.trim_matches(['"', '\'']).to_owned())
    };
    let mut text = value("PRETTY_NAME").unwrap_or_else(|| "Linux".to_owned());
    for key in ["IMAGE_VERSION", "BUILD_ID"] {
        text.extend(value(key).map(|version| format!(" {version}")));
    }
    let slots = ["root=", "rauc.slot=", "ostree="];
    let named = |word: &&str| slots.iter().any(|slot| word.starts_with(slot));
    for word in cmdline.split_whitespace().filter(named) {
        text.push_str(", ");
        text.push_str(word);
    }
    text
}

/// Prints the records, the newest last.
pub(super) fn show(path: &Path, as_json: bool) -> Result<ExitCode> {
    let records = read(path).map_err(|error| {
        CliError::new(format!("could not read `{}`", path.display())).because(error)
    })?;
    let text = match as_json {
        true => {
            let json = serde_json::to_string_pretty(&records);
            json.map_err(|e| CliError::new("could not print").because(e))? + "\n"
        }
        false if records.is_empty() => "no boot is recorded as not healthy\n".to_owned(),
        false => table(&records),
    };
    put(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// A line for each problem.
fn table(records: &[Record]) -> String {
    let mut rows = Vec::new();
    for record in records {
        let boot: String = record.boot_id.chars().take(8).collect();
        let (time, uptime) = (record.time.clone(), format!("{}s", record.uptime_seconds));
        let mut first = vec![
            time,
            boot,
            uptime,
            record.version.clone(),
            record.system.clone(),
        ];
        for problem in &record.problems {
            first.push(problem.clone());
            rows.push(std::mem::replace(&mut first, vec![String::new(); 5]));
        }
    }
    let header = ["TIME", "BOOT", "UPTIME", "VERSION", "SYSTEM", "PROBLEM"];
    Table::default().render(&header, &rows)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn record(boot: &str, problem: &str) -> Record {
        Record {
            boot_id: boot.to_owned(),
            time: "2026-01-01T00:00:00Z".to_owned(),
            uptime_seconds: 70,
            version: "1".to_owned(),
            kernel: "6.1".to_owned(),
            system: "Acme OS".to_owned(),
            problems: vec![problem.to_owned()],
        }
    }

    #[test]
    fn records_are_few_and_one_boot_does_not_push_out_the_others() {
        let mut records = vec![record("old", "x")];
        for turn in 0..1000 {
            let problem = format!("p{}", turn / 2);
            records = with(records.clone(), record("now", &problem)).unwrap_or(records);
        }
        let of =
            |records: &[Record], boot: &str| records.iter().filter(|r| r.boot_id == boot).count();
        assert_eq!((of(&records, "old"), of(&records, "now")), (1, MAX_OF_BOOT));
        assert_eq!(records[2].problems, ["p1"], "the same is recorded once");
        for boot in 0..1000 {
            records = with(records.clone(), record(&boot.to_string(), "p")).unwrap_or(records);
        }
        assert_eq!((records.len(), of(&records, "999")), (MAX_RECORDS, 1));
    }

    #[test]
    fn a_bare_name_is_a_file_of_this_directory() {
        let name = format!("coracle-history-{}.json", std::process::id());
        add(Path::new(&name), &[]).unwrap();
        assert_eq!(read(Path::new(&name)).unwrap().len(), 1);
        fs::remove_file(name).unwrap();
    }

    #[test]
    fn the_system_is_named_with_its_slot() {
        let os = "NAME=x\nPRETTY_NAME=\"Acme OS\"\nIMAGE_VERSION=7.1\n";
        for (os, cmdline, expected) in [
            (
                os,
                "quiet root=/dev/sda2 rauc.slot=A",
                "Acme OS 7.1, root=/dev/sda2, rauc.slot=A",
            ),
            ("", "", "Linux"),
        ] {
            assert_eq!(system(os, cmdline), expected);
        }
    }

    #[test]
    fn the_table_has_a_line_for_each_problem() {
        let mut two = record("0123456789", "node box: not ready");
        two.problems.push("pod default/web: x".to_owned());
        let expected = "\
TIME                   BOOT       UPTIME   VERSION   SYSTEM    PROBLEM
2026-01-01T00:00:00Z   01234567   70s      1         Acme OS   node box: not ready
                                                               pod default/web: x
";
        assert_eq!(table(&[two]), expected);
    }
}
