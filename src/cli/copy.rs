//! `coracle cp`: files to and from a container. This is the node's half of `crate::copy`; the other half runs in the
//! container, and a session like that of exec lies between them.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufReader, BufWriter, IsTerminal, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::thread;

use indicatif::{ProgressBar, ProgressStyle};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};

use super::args::CpArgs;
use super::client::Client;
use super::container;
use super::error::{CliError, Result};
use super::streams::Patient;
use super::table::one_line;
use super::target::{pod_of, pod_or_owner};
use crate::api::encode;
use crate::api::exec_frame::{self as frame, ExecStatus};
use crate::copy::{Notes, Place, name_of, pack, unpack};

/// Data of one frame of input, in bytes.
const PIECE_BYTES: usize = 32 << 10;

/// Longest line of the container that is shown, in bytes.
const MAX_LINE_BYTES: usize = 1024;

/// The maximum number of lines of the container that are shown: it writes more only if its half is not ours.
const MAX_LINES: u32 = 100;

/// A path on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
enum End<'a> {
    Here(&'a str),
    /// Namespace, pod and path.
    There(Option<&'a str>, &'a str, &'a str),
}

impl<'a> End<'a> {
    /// `[NAMESPACE/]POD:PATH` is in a container; a path that begins with `.` or `/` or has no colon is here.
    fn parse(text: &'a str) -> Result<Self> {
        let here = text.starts_with(['.', '/']);
        let Some((pod, path)) = text.split_once(':').filter(|_| !here) else {
            return Ok(Self::Here(text));
        };
        if pod.is_empty() || path.is_empty() {
            return Err(
                CliError::usage(format!("`{}` is no POD:PATH", one_line(text)))
                    .hint("a file here whose name has a colon is written ./NAME"),
            );
        }
        let kind = |word: &str| pod_or_owner(&format!("{word}/x")).is_ok();
        Ok(match pod.split_once('/') {
            Some((first, name)) if !kind(first) => Self::There(Some(first), name, path),
            Some(_) | None => Self::There(None, pod, path),
        })
    }
}

pub(super) fn run(client: &Client, args: &CpArgs) -> Result<ExitCode> {
    match (End::parse(&args.from)?, End::parse(&args.to)?) {
        (End::There(namespace, pod, path), End::Here(to)) => {
            let from = encode(path);
            let session = begin(client, args, (namespace, pod), &format!("from={from}"))?;
            receive(session, Path::new(path), to)
        }
        (End::Here(from), End::There(namespace, pod, path)) => {
            let name = name_of(Path::new(from)).filter(|_| from != "-");
            // Before anything happens in the container.
            if from != "-" {
                fs::metadata(from).map_err(|error| {
                    CliError::new(format!("could not read `{}`", one_line(from))).because(error)
                })?;
            } else if io::stdin().is_terminal() {
                return Err(CliError::usage(
                    "`-` is an archive on standard input, which is a terminal",
                ));
            }
            let mut asked = format!("to={}&keep={}", encode(path), !args.no_preserve);
            if let Some(name) = name {
                let name = name
                    .to_str()
                    .ok_or_else(|| CliError::usage("the name is not UTF-8"))?;
                asked.push_str(&format!("&name={}", encode(name)));
            }
            let session = begin(client, args, (namespace, pod), &asked)?;
            pass(session, from, name)
        }
        (End::Here(_), End::Here(_)) => Err(CliError::usage("neither path is in a container")
            .hint("write it as POD:PATH or NAMESPACE/POD:PATH")),
        (End::There(..), End::There(..)) => Err(CliError::usage("both paths are in containers")
            .hint(
                "copy to a directory here first, or: coracle cp POD:PATH - | coracle cp - POD:PATH",
            )),
    }
}

type Session = (UnixStream, BufReader<UnixStream>);

fn begin(
    client: &Client,
    args: &CpArgs,
    (namespace, pod): (Option<&str>, &str),
    asked: &str,
) -> Result<Session> {
    let namespace = namespace.unwrap_or(&args.namespace.namespace);
    let pod = pod_or_owner(pod).map_err(CliError::usage)?;
    let pod = pod_of(client, namespace, &pod)?;
    let mut path = format!(
        "/coracle/v1/namespaces/{}/pods/{}/copy?{asked}",
        encode(namespace),
        encode(&pod)
    );
    let container = container::of(client, namespace, &pod, args.container.as_deref())?;
    path.push_str(&format!("&container={}", encode(&container)));
    client.upgrade(&path, frame::PROTOCOL)
}

/// Makes files of what comes, or passes it on as it is.
fn receive((write, read): Session, from: &Path, to: &str) -> Result<ExitCode> {
    if to == "-" && io::stdout().is_terminal() {
        return Err(
            CliError::usage("this would write an archive to the terminal")
                .hint("name a file or a program for it: `> FILE`, `| tar t`"),
        );
    }
    let bar = bar();
    let mut incoming = Incoming::new(read, bar.clone());
    let mut tell = |line: &str| say(&bar, line);
    let mut notes = Notes::new(&mut tell);
    let copied = match to {
        "-" => io::copy(&mut incoming, &mut Patient(io::stdout().lock()))
            .map(drop)
            .map_err(|error| format!("could not write to the standard output: {error}")),
        to => {
            let place = Place {
                path: Path::new(to),
                name: name_of(from),
                keep: false,
                watch_links: true,
            };
            unpack(&mut incoming, place, &mut notes)
        }
    };
    let status = match copied {
        // What follows the archive: its padding, and how the other half ended.
        Ok(()) => io::copy(&mut incoming, &mut io::sink()).and(incoming.status()),
        // The connection broke, which explains why.
        Err(_) if incoming.broken => incoming.status(),
        Err(text) => {
            bar.finish_and_clear();
            return Err(CliError::new(text));
        }
    };
    let missing = notes.finish();
    bar.finish_and_clear();
    drop(write);
    ended(status, incoming.lines.failed, missing)
}

/// Sends files, or an archive from standard input.
fn pass((write, read): Session, from: &str, name: Option<&OsStr>) -> Result<ExitCode> {
    let bar = bar();
    if let Ok(found) = fs::metadata(from)
        && found.is_file()
    {
        known(&bar, found.len());
    }
    // The container's half may end, or have much to say, before it has read everything.
    let (from, name) = (from.to_owned(), name.map(OsStr::to_owned));
    let is_stream = from == "-";
    let sending = bar.clone();
    let sender = thread::spawn(move || send_all_of(&write, &from, name.as_deref(), &sending));
    let mut incoming = Incoming::new(read, bar.clone());
    let read = io::copy(&mut incoming, &mut io::sink());
    let status = read.and(incoming.status());
    let failed = incoming.lines.failed;
    // Standard input may stay open for as long as it likes.
    let (sent, missing) = match is_stream && !sender.is_finished() {
        true => (Ok(()), false),
        false => sender
            .join()
            .map_err(|_| CliError::new("the sending thread panicked"))?,
    };
    bar.finish_and_clear();
    match (&status, sent) {
        // It ended early, and has said why.
        (Ok(_), Err(_)) if failed => {}
        (_, Err(text)) => return Err(CliError::new(text)),
        (_, Ok(())) => {}
    }
    ended(status, failed, missing)
}

/// Sends everything and its end. Returns whether something is missing.
fn send_all_of(
    write: &UnixStream,
    from: &str,
    name: Option<&OsStr>,
    bar: &ProgressBar,
) -> (std::result::Result<(), String>, bool) {
    let mut out = BufWriter::with_capacity(PIECE_BYTES, Outgoing(write, bar));
    let mut tell = |line: &str| say(bar, line);
    let mut notes = Notes::new(&mut tell);
    let sent = match from {
        "-" => io::copy(&mut io::stdin().lock(), &mut out)
            .map(drop)
            .map_err(|error| error.to_string()),
        from => pack(&mut out, Path::new(from), name, &mut notes),
    };
    let sent = sent.and_then(|()| out.flush().map_err(|error| error.to_string()));
    drop(out);
    let end = match &sent {
        Ok(()) => send_all(write, &frame::header(frame::CLOSE_STDIN, &[])),
        Err(_) => write.shutdown(std::net::Shutdown::Write),
    };
    // Whatever its end was, the other half reports it.
    let _ = end;
    (sent, notes.finish())
}

/// The result of both halves; what is missing has been said.
fn ended(status: io::Result<ExecStatus>, told: bool, missing: bool) -> Result<ExitCode> {
    let status = status.map_err(|error| {
        let cut = CliError::new("the copy was cut off").because(error);
        cut.hint("the container or the agent has ended")
    })?;
    match (status.exit_code, status.error) {
        (Some(0), _) if !missing => Ok(ExitCode::SUCCESS),
        (Some(0), _) => Ok(ExitCode::FAILURE),
        (Some(_), _) if told => Ok(ExitCode::FAILURE),
        (Some(code), _) => Err(CliError::new(format!(
            "the copy ended in the container with code {code}"
        ))
        .hint("137: it was killed, for instance because the container ended or ran out of memory")),
        (None, error) => Err(CliError::new(
            error.unwrap_or_else(|| "the session broke".to_owned()),
        )),
    }
}

/// The container's half: its standard output to be read, and what it says.
struct Incoming {
    read: BufReader<UnixStream>,
    /// Bytes of the current frame not read yet.
    left: usize,
    status: Option<ExecStatus>,
    /// The connection ended without a status.
    broken: bool,
    lines: Lines,
    bar: ProgressBar,
}

impl Incoming {
    fn new(read: BufReader<UnixStream>, bar: ProgressBar) -> Self {
        Self {
            read,
            left: 0,
            status: None,
            broken: false,
            lines: Lines::default(),
            bar,
        }
    }

    fn status(&mut self) -> io::Result<ExecStatus> {
        self.status
            .take()
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Reads frames up to the next piece of output; `false` at the end.
    fn next(&mut self) -> io::Result<bool> {
        while self.status.is_none() {
            let mut head = [0; 5];
            self.read.read_exact(&mut head)?;
            let (channel, length) = frame::parse_header(head)
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "frame too long"))?;
            if channel == frame::STDOUT {
                self.left = length;
                if length > 0 {
                    return Ok(true);
                }
                continue;
            }
            let mut data = vec![0; length];
            self.read.read_exact(&mut data)?;
            match channel {
                frame::STDERR => self.lines.take(&data, &self.bar),
                frame::STATUS => self.status = Some(serde_json::from_slice(&data)?),
                _ => {}
            }
        }
        Ok(false)
    }
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.next().inspect_err(|_| self.broken = true)? {
            return Ok(0);
        }
        let most = self.left.min(buffer.len());
        let length = self.read.read(&mut buffer[..most])?;
        if length == 0 && most > 0 {
            self.broken = true;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= length;
        self.bar.inc(length as u64);
        Ok(length)
    }
}

/// What the container's half says, line by line.
#[derive(Default)]
struct Lines {
    begun: Vec<u8>,
    told: u32,
    /// An error was among them.
    failed: bool,
}

impl Lines {
    fn take(&mut self, data: &[u8], bar: &ProgressBar) {
        for byte in data {
            if *byte != b'\n' {
                self.begun.push(*byte);
            }
            if *byte == b'\n' || self.begun.len() >= MAX_LINE_BYTES {
                let line = String::from_utf8_lossy(&self.begun).into_owned();
                self.begun.clear();
                self.failed |= line.starts_with("error: ");
                self.told = self.told.saturating_add(1);
                if self.told <= MAX_LINES {
                    say(bar, &line);
                }
            }
        }
    }
}

/// Standard input of the container's half.
struct Outgoing<'a>(&'a UnixStream, &'a ProgressBar);

impl Write for Outgoing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE_BYTES)];
        send_all(self.0, &frame::header(frame::STDIN, piece))?;
        send_all(self.0, piece)?;
        self.1.inc(piece.len() as u64);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends everything; a connection whose other side has gone is an error, and no signal.
pub(super) fn send_all(socket: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match send(socket.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Prints a line beside the bar.
fn say(bar: &ProgressBar, line: &str) {
    let hint = match line.contains("read-only file system") {
        true => {
            "\n  hint: a container with `readOnlyRootFilesystem` can be written to in its volumes only"
        }
        false => "",
    };
    bar.suspend(|| eprintln!("{}{hint}", one_line(line)));
}

/// How much has been copied, on a terminal.
fn bar() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("copying {bytes} ({bytes_per_sec})");
    ProgressBar::no_length().with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Its end is known.
fn known(bar: &ProgressBar, length: u64) {
    let style = ProgressStyle::with_template("copying {wide_bar} {bytes}/{total_bytes}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_length(length);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_here_or_in_a_container() {
        use End::{Here, There};
        for (text, expected) in [
            ("web:/etc", There(None, "web", "/etc")),
            ("web:log", There(None, "web", "log")),
            ("shop/web:/a:b", There(Some("shop"), "web", "/a:b")),
            ("pod/web:/a", There(None, "pod/web", "/a")),
            ("deployment/web:/a", There(None, "deployment/web", "/a")),
            (
                "shop/deploy/web:/a",
                There(Some("shop"), "deploy/web", "/a"),
            ),
            ("file", Here("file")),
            ("./a:b", Here("./a:b")),
            ("/a:b", Here("/a:b")),
            ("../a:b", Here("../a:b")),
            ("-", Here("-")),
        ] {
            assert_eq!(End::parse(text), Ok(expected), "{text}");
        }
        for text in [":/a", "web:"] {
            assert!(End::parse(text).is_err(), "{text}");
        }
    }
}
