//! `coracle image save`.

use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};

use super::args::SaveArgs;
use super::client::{Body, Client};
use super::error::{CliError, Result};
use super::output::Target;
use super::put;
use super::streams::Patient;
use super::table::size;
use crate::api::encode;

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
        copy(body, &mut Patient(io::stdout().lock())).map_err(|why| failed().because(why))?;
        return Ok(ExitCode::SUCCESS);
    };
    let shown = file.display();
    let written = Target::create(file, 0o600).and_then(|mut target| {
        let length = copy(body, &mut target.file)?;
        let is_file = target.is_file();
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
