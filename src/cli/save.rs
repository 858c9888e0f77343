//! `coracle image save`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::args::SaveArgs;
use super::client::{Body, Client};
use super::error::{CliError, Result};
use super::put;
use super::table::size;
use crate::api::encode;
use crate::sys::signals;

/// The bytes that are written at once.
const PIECE_BYTES: usize = 128 << 10;

pub(super) fn run(client: &Client, args: &SaveArgs) -> Result<ExitCode> {
    let failed = || CliError::new(format!("could not save {}", args.names.join(", ")));
    let file = args
        .output
        .as_deref()
        .filter(|file| *file != Path::new("-"));
    if file.is_none() && io::stdout().is_terminal() {
        return Err(failed()
            .because("the standard output is a terminal")
            .hint("name a file (`-o image.tar`), or pipe the archive on"));
    }
    let query: Vec<String> = args
        .names
        .iter()
        .map(|n| format!("name={}", encode(n)))
        .collect();
    let path = format!("/coracle/v1/images/save?{}", query.join("&"));
    let waiting = bar("reading layers");
    let response = client.send("GET", &path, None);
    waiting.finish_and_clear();
    let body = response?.body;
    let Some(file) = file else {
        copy(body, &mut io::stdout().lock()).map_err(|why| failed().because(why))?;
        return Ok(ExitCode::SUCCESS);
    };
    let shown = file.display();
    let written = Target::create(file).and_then(|mut target| {
        let length = copy(body, &mut target.file)?;
        let is_file = target.temporary.is_some();
        target.finish().map(|()| is_file.then_some(length))
    });
    let length = written.map_err(|why| failed().because(format!("`{shown}`: {why}")))?;
    if let Some(length) = length {
        let names = args.names.join(", ");
        put(format!("saved {names} to {shown} ({})\n", size(length)).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies the archive as a whole; returns its length.
pub(super) fn copy(mut body: Body, out: &mut dyn Write) -> io::Result<u64> {
    let length = body.length();
    let bar = bar("saving");
    if let Some(length) = length {
        bar.set_length(length);
    }
    let mut buffer = vec![0; PIECE_BYTES];
    let copied = loop {
        let n = match body.read(&mut buffer) {
            Ok(0) => break Ok(()),
            Ok(n) => n,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
            Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => {
                let why = "the agent could not complete it, and its log says why; `coracle fsck` checks images";
                break Err(io::Error::other(why));
            }
            Err(why) => break Err(why),
        };
        if let Err(why) = out.write_all(&buffer[..n]) {
            break Err(why);
        }
        bar.inc(n as u64);
    };
    let position = bar.position();
    bar.finish_and_clear();
    copied.and_then(|()| out.flush()).map(|()| position)
}

/// A bar on a terminal; on anything else it counts only.
fn bar(what: &'static str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden().with_message(what);
    }
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes}");
    let bar = ProgressBar::no_length().with_message(what);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// A file that appears when it is complete.
struct Target {
    file: File,
    /// Where it is until then; `None` for devices and pipes, which are written at once.
    temporary: Option<PathBuf>,
    path: PathBuf,
}

impl Target {
    fn create(path: &Path) -> io::Result<Self> {
        let path = match fs::canonicalize(path) {
            // Behind a symlink, which stays.
            Ok(whole) => whole,
            Err(_) => path.to_owned(),
        };
        if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
            return Ok(Self {
                file: OpenOptions::new().write(true).open(&path)?,
                temporary: None,
                path,
            });
        }
        let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
        let name = name.to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}.{}.part", std::process::id()));
        remove_if_interrupted(temporary.clone())?;
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        Ok(Self {
            file,
            temporary: Some(temporary),
            path,
        })
    }

    fn finish(mut self) -> io::Result<()> {
        let Some(temporary) = &self.temporary else {
            return Ok(());
        };
        self.file.sync_all()?;
        fs::rename(temporary, &self.path)?;
        self.temporary = None;
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        File::open(folder)?.sync_all()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // What is left of it has no other use; the error that led here is reported.
            let _ = fs::remove_file(temporary);
        }
    }
}

/// Removes the file and ends when the command is interrupted.
fn remove_if_interrupted(file: PathBuf) -> io::Result<()> {
    let ends = signals::watch(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
    let wait = move || {
        loop {
            let mut polled = [PollFd::new(ends.as_fd(), PollFlags::POLLIN)];
            if poll(&mut polled, PollTimeout::NONE).is_ok()
                && let Ok(Some(signal)) = ends.read_signal()
            {
                let _ = fs::remove_file(&file);
                let number = i32::try_from(signal.ssi_signo).unwrap_or(0);
                std::process::exit(128 + number);
            }
        }
    };
    std::thread::Builder::new().spawn(wait).map(drop)
}
