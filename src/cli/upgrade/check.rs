//! What has to be true of a file before it becomes the program: its owner signed it, it is a whole static program of
//! this machine's kind, and it says that it is coracle. In this order: nothing of an unsigned file is executed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::super::error::{CliError, Result};
use super::record::{Program, failed};
use crate::images::digest_of;
use crate::images::trust::{PublicKey, decode_base64};
use crate::sys::{file, program};

/// The longest signature.
const MAX_SIGNATURE: u64 = 16 << 10;

/// How long a program may take to print its version.
const PATIENCE: Duration = Duration::from_secs(30);

/// The keys of a folder: all files `*.pub`. Empty without the folder; one that cannot be read is an error, so that it
/// cannot be taken for the absence of keys.
pub(super) fn keys(folder: &Path) -> Result<Vec<PublicKey>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("read", folder, &error)),
    };
    let mut keys = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| failed("read", folder, &e))?.path();
        if path.extension().is_some_and(|ending| ending == "pub") {
            keys.push(PublicKey::read(&path).map_err(|e| match e.hint() {
                Some(hint) => CliError::of(&e).hint(hint),
                None => CliError::of(&e),
            })?);
        }
    }
    Ok(keys)
}

/// Demands a signature by one of the keys; without keys, that the person knows there is none.
pub(super) fn signed(path: &Path, bytes: &[u8], folder: &Path, unsigned: bool) -> Result<()> {
    let keys = keys(folder)?;
    let refused = || CliError::new(format!("`{}` is refused", path.display()));
    match (keys.is_empty(), unsigned) {
        (true, true) => return Ok(()),
        (true, false) => {
            return Err(refused()
                .because(format!(
                    "there is no key in `{}` to check it",
                    folder.display()
                ))
                .hint("put the public keys of whom you trust there, or use --unsigned"));
        }
        (false, true) => {
            return Err(refused()
                .because(format!(
                    "`{}` has keys, so that --unsigned is not accepted",
                    folder.display()
                ))
                .hint("sign it, or move the keys away"));
        }
        (false, false) => {}
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".sig");
    let name = PathBuf::from(name);
    let found = file::read_bounded(&name, MAX_SIGNATURE).map_err(|e| {
        refused()
            .because(format!("no signature `{}`: {e}", name.display()))
            .hint("`cosign sign-blob --key KEY` or `openssl dgst -sha256 -sign KEY` makes one")
    })?;
    // cosign writes base64, openssl the bytes.
    let signature = std::str::from_utf8(&found).ok().and_then(decode_base64);
    let signature = signature.unwrap_or(found);
    match keys.iter().any(|key| key.verifies(bytes, &signature)) {
        true => Ok(()),
        false => Err(refused().because(format!(
            "its signature is by none of the keys in `{}`",
            folder.display()
        ))),
    }
}

/// Compares a program with the own one: kind of machine, width, static, nothing cut off.
pub(super) fn runs_here(bytes: &[u8], own: &[u8]) -> std::result::Result<(), String> {
    let (Some(header), Some(own)) = (Elf::of(bytes), Elf::of(own)) else {
        return Err("it is no program of Linux (ELF)".to_owned());
    };
    if (header.wide, header.machine) != (own.wide, own.machine) {
        return Err(format!(
            "it is for {}, this machine is {}",
            header.name(),
            own.name()
        ));
    }
    match header.segments(bytes) {
        Some(segments) if segments.iter().any(|(kind, _)| *kind == INTERPRETER) => {
            Err("it is not static".to_owned())
        }
        Some(segments)
            if !segments.is_empty()
                && segments.iter().all(|(_, end)| *end <= bytes.len() as u64)
                && header.end <= bytes.len() as u64 =>
        {
            Ok(())
        }
        Some(_) | None => Err("its end is missing".to_owned()),
    }
}

/// `PT_INTERP`: the program is linked when it starts.
const INTERPRETER: u64 = 3;

/// What matters of an ELF header (elf(5)), little endian as on all machines that coracle is made for.
struct Elf {
    wide: bool,
    machine: u64,
    /// Offset, size and number of program headers.
    headers: (u64, u64, u64),
    /// The end of the section headers, which are the last of a file that was stripped.
    end: u64,
}

/// A number of a file.
fn number(bytes: &[u8], at: u64, size: usize) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let found = bytes.get(at..at.checked_add(size)?)?;
    Some(found.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
}

impl Elf {
    fn of(bytes: &[u8]) -> Option<Self> {
        let wide = match bytes.get(..6)? {
            [0x7f, b'E', b'L', b'F', 1, 1] => false,
            [0x7f, b'E', b'L', b'F', 2, 1] => true,
            _ => return None,
        };
        // Executable, or position-independent.
        let kind = number(bytes, 16, 2)?;
        if !(2..=3).contains(&kind) {
            return None;
        }
        let (word, at, rest) = if wide {
            (8, [32, 40], 54)
        } else {
            (4, [28, 32], 42)
        };
        let sections = number(bytes, rest + 4, 2)? * number(bytes, rest + 6, 2)?;
        Some(Self {
            wide,
            machine: number(bytes, 18, 2)?,
            headers: (
                number(bytes, at[0], word)?,
                number(bytes, rest, 2)?,
                number(bytes, rest + 2, 2)?,
            ),
            end: number(bytes, at[1], word)?.checked_add(sections)?,
        })
    }

    /// Kind and end of each segment.
    fn segments(&self, bytes: &[u8]) -> Option<Vec<(u64, u64)>> {
        let (offset, size, count) = self.headers;
        let (word, from, length) = if self.wide { (8, 8, 32) } else { (4, 4, 16) };
        let one = |at: u64| {
            let end =
                number(bytes, at + from, word)?.checked_add(number(bytes, at + length, word)?);
            Some((number(bytes, at, 4)?, end?))
        };
        (0..count)
            .map(|i| one(offset.checked_add(i * size)?))
            .collect()
    }

    fn name(&self) -> String {
        match (self.machine, self.wide) {
            (62, _) => "x86_64".to_owned(),
            (183, _) => "aarch64".to_owned(),
            (40, _) => "arm".to_owned(),
            (243, true) => "riscv64".to_owned(),
            (3, _) => "i386".to_owned(),
            (machine, wide) => {
                format!("machine {machine} with {} bits", if wide { 64 } else { 32 })
            }
        }
    }
}

/// Asks a program which version it is.
pub(super) fn version(path: &Path, bytes: &[u8]) -> Result<Program> {
    let refused = |why: String| CliError::new("the file is no coracle that runs here").because(why);
    let mut command = Command::new(path);
    command.env_clear().args([
        "--socket",
        "/nonexistent/coracle.sock",
        "version",
        "-o",
        "json",
    ]);
    let done = program::run(&mut command, b"", PATIENCE, 64 << 10)
        .map_err(|e| refused(format!("`version` {e}")))?;
    let said: Value = serde_json::from_slice(&done.output).unwrap_or_default();
    let version = said["client"].as_str().filter(|text| {
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-+~".contains(c);
        !text.is_empty() && text.len() < 64 && text.chars().all(plain)
    });
    match version {
        Some(version) if done.status.success() => Ok(Program {
            version: version.to_owned(),
            digest: digest_of(bytes),
            // Before formats had numbers, it was the first.
            state_format: said["stateFormat"]
                .as_u64()
                .and_then(|n| u32::try_from(n).ok())
                .unwrap_or(1),
        }),
        _ => Err(refused(format!(
            "`version -o json` ended with {}",
            done.status
        ))),
    }
}

#[cfg(test)]
#[path = "check_test.rs"]
mod tests;
