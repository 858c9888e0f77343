//! How do rules get into the kernel? By one run of the `nft` program. Its input is complete before it starts, so that a
//! death of the agent can never make it read half of it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::FirewallError;
use crate::sys::process;

/// One run takes milliseconds, but the first after a boot has the kernel load a dozen modules, and a small machine is busy
/// then; what takes this long never ends.
const LIMIT: Duration = Duration::from_secs(30);
/// Of what it complains about.
const MAX_OUTPUT: usize = 16 << 10;
/// Of that, for people.
const MAX_MESSAGE: usize = 300;
/// Runs whose messages may not have been read yet.
const REMEMBERED: usize = 512;

/// Process ids of our own runs: the kernel's messages tell who made a change.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnRuns(Arc<Mutex<VecDeque<u32>>>);

impl OwnRuns {
    fn add(&self, pid: u32) {
        let mut pids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pids.push_back(pid);
        if pids.len() > REMEMBERED {
            pids.pop_front();
        }
    }

    pub(super) fn contains(&self, pid: u32) -> bool {
        let pids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pids.contains(&pid)
    }
}

/// Where the program is.
pub fn find() -> Option<PathBuf> {
    process::find_program("nft")
}

/// Applies the text as one transaction: all of it or nothing.
pub(super) fn run(text: &str, own: &OwnRuns) -> Result<(), FirewallError> {
    start(&["-f", "-"], text, Stdio::null(), own).and_then(|(child, _)| finish(child))
}

/// Whether the kernel would take it; nothing is changed.
pub(super) fn check(text: &str) -> Result<(), FirewallError> {
    start(&["-c", "-f", "-"], text, Stdio::null(), &OwnRuns::default())
        .and_then(|(child, _)| finish(child))
}

/// All chains of all tables, as JSON-free text for people and for doctor.
pub fn list_chains() -> Result<String, FirewallError> {
    let mut output = memory().map_err(broken("prepare output for"))?;
    let copy = output.try_clone().map_err(broken("prepare output for"))?;
    let (child, _) = start(&["list", "chains"], "", copy.into(), &OwnRuns::default())?;
    finish(child)?;
    let mut text = Vec::new();
    output.rewind().map_err(broken("read output of"))?;
    let limited = output.take(1 << 20).read_to_end(&mut text);
    limited.map_err(broken("read output of"))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn start(
    args: &[&str],
    text: &str,
    output: Stdio,
    own: &OwnRuns,
) -> Result<(Child, u32), FirewallError> {
    let program = find().ok_or(FirewallError::Missing)?;
    let input = memory().and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.rewind()?;
        Ok(file)
    });
    let child = Command::new(program)
        .args(args)
        .env_clear()
        .stdin(input.map_err(broken("prepare input for"))?)
        .stdout(output)
        .stderr(Stdio::piped())
        .spawn()
        .map_err(broken("start"))?;
    let pid = child.id();
    own.add(pid);
    Ok((child, pid))
}

fn memory() -> io::Result<File> {
    Ok(File::from(memfd_create("nft", MFdFlags::MFD_CLOEXEC)?))
}

fn broken(action: &'static str) -> impl Fn(io::Error) -> FirewallError {
    move |source| FirewallError::Run {
        action,
        source: Arc::new(source),
    }
}

/// Waits for the end, which closes its error output.
fn finish(mut child: Child) -> Result<(), FirewallError> {
    let output = match child.stderr.take() {
        Some(pipe) => complaints(pipe),
        None => Ok(Some(Vec::new())),
    };
    if !matches!(output, Ok(Some(_))) {
        // It is waited for below; a process that cannot be killed has ended already.
        let _ = child.kill();
    }
    let status = child.wait().map_err(broken("wait for"))?;
    let Some(output) = output.map_err(broken("read output of"))? else {
        return Err(FirewallError::Stuck(LIMIT.as_secs()));
    };
    if status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&output);
    Err(FirewallError::Refused(match shortened(&output) {
        empty if empty.is_empty() => status.to_string(),
        message => message,
    }))
}

/// What it says on its error output until it closes that; `None`: it did not in time.
fn complaints(mut pipe: ChildStderr) -> io::Result<Option<Vec<u8>>> {
    let until = Instant::now() + LIMIT;
    let mut said = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(0) => return Ok(None),
            Err(Errno::EINTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match pipe.read(&mut buffer)? {
            0 => return Ok(Some(said)),
            count => {
                let room = MAX_OUTPUT.saturating_sub(said.len());
                said.extend_from_slice(&buffer[..count.min(room)]);
            }
        }
    }
}

/// The messages without the lines they point into.
fn shortened(output: &str) -> String {
    let marked = |line: &&str| line.contains("Error:") || line.contains("internal:0:0");
    let mut lines: Vec<&str> = output.lines().filter(marked).map(str::trim).collect();
    if lines.is_empty() {
        lines = output.lines().take(1).map(str::trim).collect();
    }
    lines.dedup();
    let text = lines.join("; ");
    match text.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_shown_without_the_rules_it_is_about() {
        let output = "/dev/stdin:3:4-9: Error: Could not process rule: Operation not supported\nchain x { type nat }\n      ^^^\n";
        assert_eq!(
            shortened(output),
            "/dev/stdin:3:4-9: Error: Could not process rule: Operation not supported"
        );
        assert_eq!(shortened("segfault\nmore"), "segfault");
        assert!(shortened(&"Error: x".repeat(1000)).chars().count() <= MAX_MESSAGE + 1);
    }
}
