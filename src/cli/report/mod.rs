//! `coracle report`: what support asks for, in one archive. Secrets are left out by construction: their documents and
//! the files of logins are never packed, and of manifests and settings only what cannot hold any. Values of Secrets in
//! force are taken out of all other text as well.

mod redact;

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Program, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use tar::{Builder, Header};

use super::args::ReportArgs;
use super::client::{Client, SOON};
use super::directories::{self, Found};
use super::error::{CliError, Result};
use super::output::Target;
use super::put;
use crate::config;
use crate::effects::black_box::{self, MAX_OUTPUT};
use crate::effects::log_lines;
use crate::effects::mask::{Cut, Secrets};
use crate::sys::{clock, file};
use crate::types::InOrder;
use crate::types::black_box::MAX_MESSAGE;

/// The most of one part, and of all, before compression.
const MAX_PART: u64 = 1 << 20;
const MAX_TOTAL: usize = 24 << 20;

/// The end of each log that is packed, and the most logs.
const MAX_LOG: u64 = 16 << 10;
const MAX_LOGS: usize = 400;

/// How long a program may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// What this program says, by name of the part.
const OWN: &[(&str, &[&str])] = &[
    ("version.json", &["version", "-o", "json"]),
    ("doctor.txt", &["doctor"]),
    ("pods.txt", &["get", "pods", "-A", "-o", "wide"]),
    ("node.txt", &["describe", "node"]),
    ("events.txt", &["events", "-A"]),
    ("files.txt", &["get", "files"]),
    ("images.txt", &["image", "ls", "--digests"]),
    ("volumes.txt", &["volume", "ls"]),
    ("bundles.txt", &["bundle", "ls"]),
    ("top.txt", &["top", "pods", "-A", "--containers"]),
    ("boot.txt", &["boot"]),
    ("unhealthy-boots.txt", &["healthcheck", "--history"]),
];

/// What others say; one that is not there is left out.
const OTHERS: &[(&str, &[&str])] = &[
    (
        "journal.txt",
        &[
            "journalctl",
            "--no-pager",
            "-o",
            "short-iso",
            "-n",
            "4000",
            "-u",
            "coracle",
            "-u",
            "coracle-pods",
        ],
    ),
    ("kernel.txt", &["dmesg"]),
    ("disks.txt", &["df", "-h"]),
    ("addresses.txt", &["ip", "address"]),
    ("routes.txt", &["ip", "route", "show", "table", "all"]),
    ("rules.txt", &["nft", "list", "ruleset"]),
    (
        "unit.txt",
        &[
            "systemctl",
            "show",
            "coracle.service",
            "--property=ActiveState,SubState,NRestarts,Result,ExecMainStatus",
        ],
    ),
];

/// Files of the system.
const SYSTEM: &[&str] = &[
    "/etc/os-release",
    "/proc/version",
    "/proc/sys/kernel/random/boot_id",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/swaps",
    "/proc/pressure/cpu",
    "/proc/pressure/io",
    "/proc/pressure/memory",
    "/proc/cgroups",
    "/sys/fs/cgroup/cgroup.controllers",
    "/proc/filesystems",
    "/proc/modules",
    "/proc/net/dev",
    "/proc/self/mountinfo",
];

pub(super) fn run(client: &Client, args: &ReportArgs) -> Result<ExitCode> {
    let found = directories::find(client, (None, None, None));
    let path = args.output.clone().unwrap_or_else(|| {
        let now = clock::timestamp().strftime("%Y%m%d-%H%M%S");
        format!("coracle-report-{now}.tar.gz").into()
    });
    let failed = |error: io::Error| {
        CliError::new(format!("could not write `{}`", path.display())).because(error)
    };
    if path == Path::new("-") && io::stdout().is_terminal() {
        return Err(CliError::new("could not write the report")
            .because("the standard output is a terminal")
            .hint("name a file (`-o report.tar.gz`), or pipe the archive on"));
    }
    // Only root can read the file: programs write all kinds of things.
    let target = Target::create(&path, 0o600).map_err(failed)?;
    let file = target.file.try_clone().map_err(failed)?;
    let mut pack = Pack::new(file, redact::secrets(&found.layout));
    let is_file = target.is_file();
    collect(client, &found, &mut pack)
        .and_then(|()| pack.end())
        .and_then(|()| target.finish())
        .map_err(failed)?;
    if !is_file {
        return Ok(ExitCode::SUCCESS);
    }
    let bytes = std::fs::metadata(&path).map_or(0, |file| file.size());
    let text = format!("wrote {} ({})\n", path.display(), super::table::size(bytes));
    put(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn collect(client: &Client, found: &Found, pack: &mut Pack) -> io::Result<()> {
    let settings = ask(client, "/configz").unwrap_or_else(|| config::as_json(&found.effective));
    let settings = redact::urls(pack.masked(settings));
    pack.add("settings.yaml", config::as_yaml(&settings).as_bytes())?;
    for (name, path) in [
        ("pods.json", "/api/v1/pods"),
        ("node.json", "/api/v1/nodes"),
    ] {
        if let Some(objects) = ask(client, path) {
            let objects = redact::object(pack.masked(objects));
            pack.add(name, format!("{objects:#}\n").as_bytes())?;
        }
    }
    let socket = client.socket.to_string_lossy().into_owned();
    for (name, args) in OWN {
        let mut words = vec!["--socket", &socket];
        words.extend(*args);
        pack.program(name, "/proc/self/exe", &words)?;
    }
    pack.black_box(&found.layout.black_box())?;
    for (name, words) in OTHERS {
        pack.program(name, words[0], &words[1..])?;
    }
    let mut system = Vec::new();
    for path in SYSTEM {
        let text = file::read_text(path).unwrap_or_else(|error| format!("{error}\n"));
        system.extend(format!("--- {path}\n{text}\n").into_bytes());
    }
    pack.add("system.txt", &system)?;
    pack.logs(&found.layout.log_dir)
}

fn ask(client: &Client, path: &str) -> Option<Value> {
    let (found, _) = client.get_within(path, SOON).ok()?;
    Some(found)
}

/// The newest log of each container: its name in the archive, and where it is.
fn logs(dir: &Path) -> Vec<(String, PathBuf)> {
    let entries = |dir: &Path| {
        let found = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = found
            .take(10 * MAX_LOGS)
            .map(|entry| entry.path())
            .collect();
        paths.order();
        paths
    };
    let name = |path: &Path| {
        path.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let mut logs = Vec::new();
    for pod in entries(dir) {
        for container in entries(&pod) {
            let attempt = |path: &PathBuf| name(path).strip_suffix(".log")?.parse::<u32>().ok();
            let files = entries(&container);
            let newest = files
                .into_iter()
                .filter_map(|path| Some((attempt(&path)?, path)))
                .max();
            if let Some((_, path)) = newest {
                logs.push((
                    format!("logs/{}/{}.log", name(&pod), name(&container)),
                    path,
                ));
            }
        }
    }
    logs.truncate(MAX_LOGS);
    logs
}

/// The last lines of a log, each as one record.
fn tail(path: &Path, secrets: &Secrets) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for line in log_lines::last(path, MAX_LOG, secrets)? {
        let stream = if line.is_error { "stderr" } else { "stdout" };
        let tag = if line.is_whole { "F" } else { "P" };
        text.extend(line.stamp);
        text.extend(format!(" {stream} {tag} ").into_bytes());
        text.extend(line.text);
        text.push(b'\n');
    }
    Ok(text)
}

/// The archive that is being written.
struct Pack {
    archive: Builder<GzEncoder<File>>,
    /// What is taken out of all text.
    secrets: Secrets,
    /// Whether that is known.
    is_known: bool,
    total: usize,
}

impl Pack {
    fn new(file: File, secrets: Option<Vec<Vec<u8>>>) -> Self {
        Self {
            archive: Builder::new(GzEncoder::new(file, Compression::default())),
            is_known: secrets.is_some(),
            secrets: Secrets::new(&secrets.unwrap_or_default()),
            total: 0,
        }
    }

    fn add(&mut self, name: &str, text: &[u8]) -> io::Result<()> {
        let text = self.secrets.mask(text, Cut::default());
        self.put(name, text)
    }

    /// Adds a text that has no secrets any more.
    fn put(&mut self, name: &str, mut text: Vec<u8>) -> io::Result<()> {
        if io::stderr().is_terminal() {
            eprint!("\r\x1b[Kpacking {}", name.escape_default());
        }
        text.truncate(usize::try_from(MAX_PART).unwrap_or(usize::MAX));
        if self.total + text.len() > MAX_TOTAL {
            return Ok(());
        }
        self.total += text.len();
        let mut header = Header::new_gnu();
        header.set_mode(0o600);
        header.set_size(text.len() as u64);
        header.set_mtime(u64::try_from(clock::wall_us() / 1_000_000).unwrap_or(0));
        let path = format!("coracle-report/{name}");
        self.archive.append_data(&mut header, path, &*text)
    }

    /// A document whose strings have no secrets.
    fn masked(&self, mut document: Value) -> Value {
        self.secrets.mask_document(&mut document);
        document
    }

    /// Adds what a program says, errors included. Messages in it may be cut off without a mark.
    fn program(&mut self, name: &str, program: &str, args: &[&str]) -> io::Result<()> {
        let cut = Cut {
            start: false,
            lines: true,
        };
        match said(program, args) {
            // First of all: what is removed otherwise may be a part of a secret, and leave the rest.
            Ok(text) => self.put(name, redact::text(&self.secrets.mask(&text, cut))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => self.add(name, format!("{error}\n").as_bytes()),
        }
    }

    /// Adds what `coracle blackbox --logs` shows. Only its file says where a text begins and ends.
    fn black_box(&mut self, path: &Path) -> io::Result<()> {
        const NAME: &str = "black-box.txt";
        let mut slots = match black_box::read(path, true) {
            Ok(slots) => slots,
            Err(error) => return self.add(NAME, format!("{error}\n").as_bytes()),
        };
        for slot in &mut slots {
            // A message that was as long as it may be is the beginning of a text, and of any part of it.
            let cut = |start| Cut {
                start,
                lines: false,
            };
            let message = &mut slot.entry.message;
            *message = self
                .secrets
                .mask_text(message, cut(message.chars().count() >= MAX_MESSAGE));
            let is_full = slot.output.len() >= MAX_OUTPUT;
            slot.output = self.secrets.mask(&slot.output, cut(is_full));
        }
        let shown = super::black_box::table(&slots.iter().collect::<Vec<_>>(), true);
        self.put(NAME, redact::text(shown.as_bytes()))
    }

    /// Adds the logs below a folder.
    fn logs(&mut self, dir: &Path) -> io::Result<()> {
        if !self.is_known {
            let why = "left out: no agent has come up in this boot, so that it is not known which values are secret\n";
            return self.add("logs.txt", why.as_bytes());
        }
        for (name, path) in logs(dir) {
            if let Ok(text) = tail(&path, &self.secrets) {
                self.put(&name, text)?;
            }
        }
        Ok(())
    }

    fn end(self) -> io::Result<()> {
        if io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
        self.archive.into_inner()?.finish()?.flush()
    }
}

/// The output of a program, up to a limit of time and size.
fn said(program: &str, args: &[&str]) -> io::Result<Vec<u8>> {
    let (output, input) = io::pipe()?;
    let mut command = Program::new(program);
    command.args(args).stdin(Stdio::null());
    let mut child = command.stdout(input.try_clone()?).stderr(input).spawn()?;
    // It holds the other end of the pipe.
    drop(command);
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = output.take(MAX_PART).read_to_end(&mut text);
        let _ = done.send(text);
    });
    let text = wait.recv_timeout(PATIENCE);
    let _ = child.kill();
    child.wait()?;
    text.map_err(|_| {
        io::Error::new(
            io::ErrorKind::TimedOut,
            format!("`{program}` did not end in time"),
        )
    })
}
