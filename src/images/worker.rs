//! The process `coracle image-worker`. It drops the privileges that it does not need, imports one archive or fetches
//! one image, and reports its progress on standard output, one JSON document a line. Untrusted data is read only here.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{Mode, umask};

use super::import::{Request, import, read_bundle};
use super::oci::Platform;
use super::progress::Line;
use super::registry;
use super::space::KeepFree;
use super::trust::PublicKey;
use crate::sys::capability::{self, keep_only};
use crate::sys::process;

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
                     [--keep-inodes N] [--pulled] [--platform PLATFORM] [--bundle DIGEST] PATH|-, or coracle image-worker \
                     bundle --store DIR -- PATH, or coracle image-worker fetch";

/// Runs the worker with the arguments behind `image-worker`. 0: imported; 1: not; 2: bad arguments.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter().peekable();
    if args.next_if(|arg| arg == "fetch").is_some() {
        return run_fetch();
    }
    if args.next_if(|arg| arg == "bundle").is_some() {
        return run_bundle(&args.collect::<Vec<_>>());
    }
    let Some(request) = parse(args) else {
        let _ = print(&Line::Error {
            message: USAGE.to_owned(),
            hint: None,
        });
        return ExitCode::from(2);
    };
    if let Err(why) = harden() {
        let _ = print(&Line::Error {
            message: format!("could not drop privileges: {why}"),
            hint: None,
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
                hint: why.hint(),
            });
            ExitCode::FAILURE
        }
    }
}

/// Fetches what the request on standard input asks for.
fn run_fetch() -> ExitCode {
    let told = |line: &Line, code| {
        let _ = print(line);
        code
    };
    let failed = |message, hint| told(&Line::Error { message, hint }, ExitCode::FAILURE);
    if let Err(why) = harden_fetch().and_then(|()| end_with_client()) {
        return failed(format!("could not drop privileges: {why}"), None);
    }
    let mut report = |progress| print(&Line::Progress(progress));
    match registry::fetch(io::stdin().lock(), &mut report) {
        Ok(fetched) => told(&Line::Fetched(fetched), ExitCode::SUCCESS),
        Err((message, hint)) => failed(message, hint),
    }
}

/// Reads a bundle: `--store DIR -- PATH`, and keys on standard input.
fn run_bundle(args: &[OsString]) -> ExitCode {
    let told = |line: &Line, code: u8| {
        let _ = print(line);
        ExitCode::from(code)
    };
    let failed = |message, hint| told(&Line::Error { message, hint }, 1);
    let [flag, store, dashes, path] = args else {
        return failed(USAGE.to_owned(), None);
    };
    if flag != "--store" || dashes != "--" {
        return failed(USAGE.to_owned(), None);
    }
    if let Err(why) = harden() {
        return failed(format!("could not drop privileges: {why}"), None);
    }
    let keys = match keys() {
        Ok(keys) => keys,
        Err(why) => return failed(why, None),
    };
    match read_bundle(Path::new(store), Path::new(path), &keys) {
        Ok(bundle) => told(&Line::Bundle(Box::new(bundle)), 0),
        Err(why) => failed(crate::chain(&why), why.hint()),
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

fn parse(args: impl IntoIterator<Item = OsString>) -> Option<Request> {
    let mut args = args.into_iter();
    if args.next()? != "import" {
        return None;
    }
    let (mut store, mut name, mut preloaded, mut archive) = (None, None, false, None);
    let (mut pulled, mut platform, mut bundle) = (false, None, None);
    let mut keep = KeepFree::default();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--store") => store = Some(args.next()?.into()),
            Some("--name") => name = Some(args.next()?.into_string().ok()?),
            Some("--preloaded") => preloaded = true,
            Some("--pulled") => pulled = true,
            Some("--platform") => platform = Some(Platform::parse(args.next()?.to_str()?).ok()?),
            Some("--bundle") => bundle = Some(args.next()?.into_string().ok()?),
            Some("--keep-bytes") => keep.bytes = args.next()?.to_str()?.parse().ok()?,
            Some("--keep-inodes") => keep.inodes = args.next()?.to_str()?.parse().ok()?,
            Some("--") => archive = Some(args.next()?.into()),
            Some(option) if option.starts_with("--") => return None,
            _ if archive.is_none() => archive = Some(arg.into()),
            _ => return None,
        }
    }
    Some(Request {
        store: store?,
        archive: archive?,
        preloaded,
        name,
        keep,
        pulled,
        platform,
        bundle,
    })
}

/// A high `oom_score_adj`, no new privileges, only the capabilities that unpacking needs, and limits on memory and
/// files.
fn harden() -> io::Result<()> {
    process::set_oom_score_adj(OOM_SCORE_ADJ)?;
    nix::sys::prctl::set_no_new_privs()?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    lower(Resource::RLIMIT_AS, MAX_MEMORY_BYTES)?;
    lower(Resource::RLIMIT_NOFILE, MAX_FILES)?;
    umask(Mode::from_bits_truncate(0o022));
    keep_only(&[
        capability::CHOWN,
        capability::DAC_OVERRIDE,
        capability::FOWNER,
        capability::FSETID,
        capability::MKNOD,
        capability::SETFCAP,
        // overlayfs marks a folder that hides lower ones by a `trusted.*` attribute.
        capability::SYS_ADMIN,
    ])
}

/// The same without any capability: a fetch writes files of its own user only.
fn harden_fetch() -> io::Result<()> {
    process::set_oom_score_adj(OOM_SCORE_ADJ)?;
    nix::sys::prctl::set_no_new_privs()?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    // Not the address space, of which each thread's heap reserves 64 MiB.
    lower(Resource::RLIMIT_DATA, MAX_FETCH_BYTES)?;
    lower(Resource::RLIMIT_NOFILE, MAX_FILES)?;
    umask(Mode::from_bits_truncate(0o077));
    keep_only(&[])
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
