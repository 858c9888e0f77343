//! Runs of the `nft` program. Its input is complete before it starts, so that it never reads a partial input, even
//! if the agent dies.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::FirewallError;
use crate::sys::clock;
use crate::sys::process;

/// One run takes milliseconds. The first after a boot makes the kernel load a dozen modules while a small machine
/// is busy; a run that takes this long never ends.
const LIMIT: Duration = Duration::from_secs(30);
/// The maximum of its error output that is read.
const MAX_OUTPUT: usize = 16 << 10;
/// The maximum of that shown to people.
const MAX_MESSAGE: usize = 300;
/// Own runs to remember, because the kernel's messages about them may not have been read yet.
const REMEMBERED: usize = 512;

/// Process ids of coracle's own runs: the kernel's messages name the process that made a change.
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

/// The path of the program.
pub fn find() -> Option<PathBuf> {
    process::find_program("nft")
}

/// Applies the text as one transaction: all of it or nothing.
pub(super) fn run(text: &str, own: &OwnRuns) -> Result<(), FirewallError> {
    start(&["-f", "-"], text, Stdio::null(), own).and_then(|(child, _)| finish(child))
}

/// Checks whether the kernel would accept the text; nothing is changed.
pub(super) fn check(text: &str) -> Result<(), FirewallError> {
    start(&["-c", "-f", "-"], text, Stdio::null(), &OwnRuns::default())
        .and_then(|(child, _)| finish(child))
}

/// All chains of all tables, as text for people and for doctor.
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

/// Waits for the end of a run, which closes its error output.
fn finish(mut child: Child) -> Result<(), FirewallError> {
    let output = match child.stderr.take() {
        Some(pipe) => complaints(pipe),
        None => Ok(Some(Vec::new())),
    };
    if !matches!(output, Ok(Some(_))) {
        // The process is waited for below; one that cannot be killed has ended already.
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

/// Its error output until that is closed; `None` on a timeout.
fn complaints(mut pipe: ChildStderr) -> io::Result<Option<Vec<u8>>> {
    let until = clock::now() + LIMIT;
    let mut said = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let left = until.saturating_duration_since(clock::now());
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

/// The messages without the lines that they point into.
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
