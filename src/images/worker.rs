//! The process `coracle image-worker`. It drops the privileges that it does not need, imports one archive, fetches
//! one image or saves some, and reports its progress on standard output, one JSON document a line. Untrusted data is read only here.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{Mode, umask};

use super::confine;
use super::import::{Request, import, read_bundle};
use super::oci::Platform;
use super::progress::{Cause, Line};
use super::registry;
use super::save;
use super::signatures::Trust;
use super::space::KeepFree;
use super::trust::PublicKey;
use crate::sys::capability::keep_only;
use crate::sys::process;
use crate::types::image_access::Accesses;

/// Address space. A zstd window takes up to 128 MiB, documents 4 MiB each.
const MAX_MEMORY_BYTES: u64 = 512 << 20;

/// The first to be killed when memory runs out: an import can be repeated.
const OOM_SCORE_ADJ: i32 = 1000;

/// Open files.
const MAX_FILES: u64 = 1024;

/// Memory of a fetch worker: buffers of a few connections, and the system's certificates.
const MAX_FETCH_BYTES: u64 = 128 << 20;

/// The keys that a bundle may be signed with.
const MAX_KEYS_BYTES: u64 = 1 << 20;

const USAGE: &str = "usage: coracle image-worker import --store DIR [--preloaded] [--name NAME] [--keep-bytes N] \
                     [--keep-inodes N] [--policy FILE] [--pulled] [--arriving BOOT] [--demand JSON] [--platform PLATFORM] \
                     [--bundle DIGEST [--vouched]] [--access JSON] PATH|-, or coracle image-worker bundle --store DIR --keep-bytes N --keep-inodes N -- PATH, or coracle \
                     image-worker fetch|get|save";

/// Runs the worker with the arguments behind `image-worker`. 0: imported; 1: not; 2: bad arguments.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter().peekable();
    if args.next_if(|arg| arg == "fetch").is_some() {
        return run_fetch(fetch);
    }
    if args.next_if(|arg| arg == "get").is_some() {
        return run_fetch(get);
    }
    if args.next_if(|arg| arg == "save").is_some() {
        return save::worker::run(args);
    }
    if args.next_if(|arg| arg == "bundle").is_some() {
        return run_bundle(&args.collect::<Vec<_>>());
    }
    let Some((request, policy)) = parse(args) else {
        let _ = print(&Line::Error {
            message: USAGE.to_owned(),
            hint: None,
            cause: Cause::Other,
        });
        return ExitCode::from(2);
    };
    // These are the owner's files.
    let request = match request.with_policy(policy.as_deref()) {
        Ok(request) => request,
        Err(why) => {
            let _ = print(&Line::Error {
                message: crate::chain(&why),
                hint: why.hint(),
                cause: why.cause(),
            });
            return ExitCode::FAILURE;
        }
    };
    if let Err(why) = harden_import(&request) {
        let _ = print(&Line::Error {
            message: format!("could not drop privileges: {why}"),
            hint: None,
            cause: Cause::Other,
        });
        return ExitCode::FAILURE;
    }
    match import(&request, &mut |progress| print(&Line::Progress(progress))) {
        Ok(images) => {
            for image in images {
                // The images are stored even if the client is gone.
                let _ = print(&Line::Image(image));
            }
            ExitCode::SUCCESS
        }
        Err(why) => {
            let _ = print(&Line::Error {
                message: crate::chain(&why),
                hint: match request.pulled {
                    true => why.hint_of_pull(),
                    false => why.hint(),
                },
                cause: why.cause(),
            });
            ExitCode::FAILURE
        }
    }
}

/// The message of a failure, what to do about it, and its kind.
type Failure = (String, Option<String>, Cause);

fn fetch(input: io::StdinLock<'_>) -> Result<Line, Failure> {
    // The thread that waits for the client is confined, too.
    let confine = |store: &Path, certificates: &[PathBuf]| {
        confine::fetch(store, certificates)?;
        end_with_client()
    };
    let mut report = |line| print(&line);
    registry::fetch(input, confine, &mut report).map(Line::Fetched)
}

fn get(input: io::StdinLock<'_>) -> Result<Line, Failure> {
    let confine = |certificates: &[PathBuf]| {
        confine::get(certificates)?;
        end_with_client()
    };
    registry::get(input, confine).map(|document| Line::Document { document })
}

/// Does what the request on standard input asks for, over the network.
fn run_fetch(work: fn(io::StdinLock<'_>) -> Result<Line, Failure>) -> ExitCode {
    let done = match harden_fetch() {
        Ok(()) => work(io::stdin().lock()),
        Err(why) => {
            let text = format!("could not drop privileges: {why}");
            Err((text, None, Cause::Other))
        }
    };
    let (line, code) = match done {
        Ok(line) => (line, ExitCode::SUCCESS),
        Err((message, hint, cause)) => {
            let line = Line::Error {
                message,
                hint,
                cause,
            };
            (line, ExitCode::FAILURE)
        }
    };
    let _ = print(&line);
    code
}

/// Reads a bundle: `--store DIR -- PATH`, and keys on standard input.
fn run_bundle(args: &[OsString]) -> ExitCode {
    let told = |line: &Line, code: u8| {
        let _ = print(line);
        ExitCode::from(code)
    };
    let failed_by = |message, hint, cause| {
        told(
            &Line::Error {
                message,
                hint,
                cause,
            },
            1,
        )
    };
    let failed = |message, hint| failed_by(message, hint, Cause::Other);
    let [
        flag,
        store,
        of_bytes,
        bytes,
        of_inodes,
        inodes,
        dashes,
        path,
    ] = args
    else {
        return failed(USAGE.to_owned(), None);
    };
    let flags = [flag, of_bytes, of_inodes, dashes];
    let number = |text: &OsString| text.to_str().and_then(|text| text.parse().ok());
    let (true, Some(bytes), Some(inodes)) = (
        flags == ["--store", "--keep-bytes", "--keep-inodes", "--"],
        number(bytes),
        number(inodes),
    ) else {
        return failed(USAGE.to_owned(), None);
    };
    let keep = KeepFree { bytes, inodes };
    let (store, path) = (Path::new(store), Path::new(path));
    let hardened = harden(Mode::from_bits_truncate(0o022))
        .and_then(|()| lower(Resource::RLIMIT_AS, MAX_MEMORY_BYTES))
        .and_then(|()| confine::import(store, path));
    if let Err(why) = hardened {
        return failed(format!("could not drop privileges: {why}"), None);
    }
    let keys = match keys() {
        Ok(keys) => keys,
        Err(why) => return failed(why, None),
    };
    match read_bundle(store, path, &keys, keep) {
        Ok(bundle) => told(&Line::Bundle(Box::new(bundle)), 0),
        Err(why) => failed_by(crate::chain(&why), why.hint(), why.cause()),
    }
}

/// The keys on standard input: a list of PEM.
fn keys() -> Result<Vec<PublicKey>, String> {
    let mut bytes = Vec::new();
    let read = io::stdin()
        .lock()
        .take(MAX_KEYS_BYTES)
        .read_to_end(&mut bytes);
    read.map_err(|why| why.to_string())?;
    let keys: Vec<String> = serde_json::from_slice(&bytes).map_err(|why| why.to_string())?;
    let keys = keys.iter().map(|pem| PublicKey::parse(pem.as_bytes()));
    let keys: Result<_, _> = keys.collect();
    keys.map_err(|why| format!("the key: {}", crate::chain(&why)))
}

/// Ends the process when the reader of its output is gone, even while it waits for a registry.
fn end_with_client() -> io::Result<()> {
    let watch = || {
        let stdout = io::stdout();
        let mut polled = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        loop {
            match poll(&mut polled, PollTimeout::NONE) {
                Ok(_) => std::process::exit(1),
                Err(nix::errno::Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    };
    std::thread::Builder::new().spawn(watch).map(drop)
}

/// The request, and the path of the policy.
fn parse(args: impl IntoIterator<Item = OsString>) -> Option<(Request, Option<PathBuf>)> {
    let mut args = args.into_iter();
    if args.next()? != "import" {
        return None;
    }
    let (mut store, mut name, mut preloaded, mut archive) = (None, None, false, None);
    let (mut pulled, mut arriving, mut platform, mut bundle) = (false, None, None, None);
    let (mut policy, mut trust, mut vouched) = (None, Trust::default(), false);
    let (mut keep, mut access) = (KeepFree::default(), Accesses::new());
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--store") => store = Some(args.next()?.into()),
            Some("--name") => name = Some(args.next()?.into_string().ok()?),
            Some("--preloaded") => preloaded = true,
            Some("--pulled") => pulled = true,
            Some("--arriving") => arriving = Some(boot_id(args.next()?)?),
            Some("--policy") => policy = Some(args.next()?.into()),
            Some("--demand") => {
                let demand = serde_json::from_str(args.next()?.to_str()?).ok()?;
                trust = Trust::Demand(Box::new(demand));
            }
            Some("--platform") => platform = Some(Platform::parse(args.next()?.to_str()?).ok()?),
            Some("--bundle") => bundle = Some(args.next()?.into_string().ok()?),
            Some("--vouched") => vouched = true,
            Some("--access") => access = serde_json::from_str(args.next()?.to_str()?).ok()?,
            Some("--keep-bytes") => keep.bytes = args.next()?.to_str()?.parse().ok()?,
            Some("--keep-inodes") => keep.inodes = args.next()?.to_str()?.parse().ok()?,
            Some("--") => archive = Some(args.next()?.into()),
            Some(option) if option.starts_with("--") => return None,
            _ if archive.is_none() => archive = Some(arg.into()),
            _ => return None,
        }
    }
    let request = Request {
        store: store?,
        archive: archive?,
        preloaded,
        name,
        keep,
        pulled,
        arriving,
        platform,
        bundle,
        vouched,
        access,
        trust,
    };
    Some((request, policy))
}

/// The id of a boot, which becomes part of a file's name.
fn boot_id(text: OsString) -> Option<String> {
    let text = text.into_string().ok()?;
    let plain = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    (!text.is_empty() && text.len() <= 64 && text.bytes().all(plain)).then_some(text)
}

/// Bounded memory and files, then what [`confine`] says.
fn harden_import(request: &Request) -> io::Result<()> {
    harden(Mode::from_bits_truncate(0o022))?;
    lower(Resource::RLIMIT_AS, MAX_MEMORY_BYTES)?;
    confine::import(&request.store, &request.archive)
}

/// The same without any capability: a fetch writes files of its own user only. What it may open follows from its
/// request.
fn harden_fetch() -> io::Result<()> {
    harden(Mode::from_bits_truncate(0o077))?;
    // Not the address space, of which each thread's heap reserves 64 MiB.
    lower(Resource::RLIMIT_DATA, MAX_FETCH_BYTES)?;
    keep_only(&[])
}

/// A high `oom_score_adj`, no new privileges, no core dumps, few files.
fn harden(mask: Mode) -> io::Result<()> {
    process::set_oom_score_adj(OOM_SCORE_ADJ)?;
    nix::sys::prctl::set_no_new_privs()?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    lower(Resource::RLIMIT_NOFILE, MAX_FILES)?;
    umask(mask);
    Ok(())
}

#[allow(
    clippy::useless_conversion,
    clippy::unnecessary_fallible_conversions,
    reason = "rlim_t is 32 bits wide on some targets"
)]
fn lower(resource: Resource, limit: u64) -> io::Result<()> {
    let (_, hard) = nix::sys::resource::getrlimit(resource)?;
    let limit = limit.try_into().unwrap_or(hard).min(hard);
    Ok(setrlimit(resource, limit, limit)?)
}

/// Fails once the agent is gone.
fn print(line: &Line) -> io::Result<()> {
    let mut text = serde_json::to_vec(line).expect("plain data");
    text.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&text)?;
    out.flush()
}
