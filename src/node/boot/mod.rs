//! Detection of crashes and power cuts. A small file on disk names the boot in which an agent ran last, and says
//! whether that agent was stopped. If the boot has changed and the agent was not stopped, the node lost power or
//! crashed, and files that were being written may be damaged. The file is updated only once that has been handled.

mod age;

use std::io;
use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use self::age::{Clocks, First};
use super::publish::Shown;
use crate::images::ImageStore;
use crate::spec::Reason;
use crate::sys::file::{self, Durability};
use crate::sys::{clock, clock_sync};
use crate::types::Wall;
use crate::types::black_box::Entry;

/// `<root>/boot.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    boot_id: String,
    ended: bool,
    #[serde(flatten)]
    first: First,
}

/// How the previous boot ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// No agent has run here before.
    Nothing,
    /// It is still the same boot: the agent was restarted.
    SameBoot,
    /// It is still the same boot, and the agent was not stopped.
    Died,
    /// The agent was stopped.
    InOrder,
    /// The agent was not stopped, or the file does not say.
    Cut,
}

/// Warnings about this start of the node: reasons and messages.
#[derive(Debug, Default)]
pub(super) struct Findings {
    warnings: Vec<(Reason, String)>,
    /// When an agent ran here for the first time.
    pub(super) created: Wall,
    /// The agent before this one was killed or crashed, in this boot.
    died: bool,
}

/// The boot id of this boot.
pub(super) fn id() -> String {
    crate::sys::boot_id::read()
}

/// Checks how the last boot ended, and the images if it did not end in order. No pod may run yet.
pub(super) fn begin(path: &Path, node: &str, images: &ImageStore) -> Findings {
    let id = id();
    let mark = file::read_record(path);
    let first = first(mark.as_deref().unwrap_or_default(), &id);
    let created = first.shown(super::now().wall);
    let before = before(mark, &id);
    let died = before == Before::Died;
    let mut findings = Vec::new();
    if matches!(before, Before::InOrder | Before::Cut) {
        let message = format!("Node {node} has been rebooted, boot id: {id}");
        findings.push((Reason::Rebooted, message));
    }
    if before == Before::Cut {
        let message = format!("Node {node} was not shut down before: it lost power or crashed");
        findings.push((Reason::UncleanShutdown, message));
        if !look_at(images, &mut findings) {
            return Findings {
                warnings: findings,
                created,
                died,
            };
        }
    }
    write(
        path,
        &Mark {
            boot_id: id,
            ended: false,
            first,
        },
    );
    Findings {
        warnings: findings,
        created,
        died,
    }
}

/// The stored time, updated with the current clocks.
fn first(mark: &[u8], boot_id: &str) -> First {
    let mark: Option<Mark> = serde_json::from_slice(mark).ok();
    let known = mark.map(|mark| mark.first).unwrap_or_default();
    known.seen(Clocks {
        wall: super::now().wall,
        boot_ms: clock::boot_ms(),
        boot_id,
        synchronised: clock_sync::is_synchronized(),
        built: built(),
    })
}

/// When this program's file was written; 0 if it does not say.
fn built() -> Wall {
    let modified = std::fs::metadata("/proc/self/exe").and_then(|file| file.modified());
    let since = modified.map(|at| {
        at.duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
    });
    let us = since.map_or(0, |since| since.as_micros());
    Wall(i64::try_from(us).unwrap_or(0))
}

/// Records that the agent is being stopped.
pub(super) fn end(path: &Path) {
    let id = id();
    let first = first(&file::read_record(path).unwrap_or_default(), &id);
    write(
        path,
        &Mark {
            boot_id: id,
            ended: true,
            first,
        },
    );
}

/// Removes damaged images; returns whether the check worked.
fn look_at(images: &ImageStore, findings: &mut Vec<(Reason, String)>) -> bool {
    match images.repair() {
        Ok(check) => {
            tracing::info!(
                "the node was not shut down in order; checked {} images with {} layers, {} damaged",
                check.images,
                check.layers,
                check.damage.len()
            );
            let (left, removed): (Vec<_>, Vec<_>) =
                check.damage.iter().partition(|d| check.has_left(d));
            findings.extend(removed.iter().map(|damage| {
                let message = format!("Removed what is damaged in the image store: {damage}");
                (Reason::ImageDamaged, message)
            }));
            findings.extend(left.iter().map(|damage| {
                let message = format!("Found damage in the image store: {damage}");
                (Reason::ImageDamaged, message)
            }));
            // Without its other files nothing runs on it: another start would find the same.
            findings.extend(check.left.iter().map(|left| {
                let message = format!("Left in the image store: {}", left.why);
                (Reason::ImageDamaged, message)
            }));
            true
        }
        Err(error) => {
            tracing::error!(
                "could not check the images: {}, going on with them; the next start tries again",
                crate::chain(&error)
            );
            false
        }
    }
}

fn before(mark: io::Result<Vec<u8>>, id: &str) -> Before {
    let mark = match mark {
        Ok(bytes) => serde_json::from_slice::<Mark>(&bytes).ok(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Before::Nothing,
        Err(_) => None,
    };
    match mark {
        Some(mark) if mark.boot_id == id && mark.ended => Before::SameBoot,
        Some(mark) if mark.boot_id == id => Before::Died,
        Some(mark) if mark.ended => Before::InOrder,
        Some(_) | None => Before::Cut,
    }
}

fn write(path: &Path, mark: &Mark) {
    let bytes = serde_json::to_vec(mark).expect("plain data");
    if let Err(error) = file::replace(path, &bytes, 0o600, Durability::PowerCut) {
        tracing::warn!(
            "could not write `{}`: {error}, ignoring; the next boot will count as one after a power cut",
            path.display()
        );
    }
}

impl Findings {
    /// What of them goes into the black box.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let at = super::now().wall;
        let each = self.warnings.iter();
        let warnings = each.map(|(reason, message)| Entry::new(&reason.to_string(), message, at));
        let died = "The agent ended without being stopped: it crashed, was killed, or hung";
        let died = self.died.then(|| Entry::new("AgentDied", died, at));
        died.into_iter().chain(warnings).collect()
    }

    /// Emits them as events of the node.
    pub(super) fn publish(self, shown: &mut Shown) {
        for (reason, message) in self.warnings {
            tracing::warn!("{reason}: {message}");
            shown.node_event(reason, &message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_end_that_was_asked_for_is_in_order() {
        let mark = |text: &str| Ok(text.as_bytes().to_vec());
        for (sentence, found, expected) in [
            (
                "the first start of all",
                Err(io::ErrorKind::NotFound.into()),
                Before::Nothing,
            ),
            (
                "an agent of this boot that was killed",
                mark(r#"{"boot_id":"now","ended":false}"#),
                Before::Died,
            ),
            (
                "restarted within this boot",
                mark(r#"{"boot_id":"now","ended":true}"#),
                Before::SameBoot,
            ),
            (
                "a reboot",
                mark(r#"{"boot_id":"then","ended":true}"#),
                Before::InOrder,
            ),
            (
                "a power cut",
                mark(r#"{"boot_id":"then","ended":false}"#),
                Before::Cut,
            ),
            ("half a file", mark(r#"{"boot_id""#), Before::Cut),
            (
                "a disk that cannot be read",
                Err(io::Error::from_raw_os_error(libc::EIO)),
                Before::Cut,
            ),
        ] {
            assert_eq!(before(found, "now"), expected, "{sentence}");
        }
    }
}
