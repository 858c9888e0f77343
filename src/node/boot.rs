//! Did the node go down in order? A small file on disk says in which boot an agent ran last, and whether it was told to
//! end. If the boot is another now and nobody told it, the node lost power or crashed: what was being written then may be
//! damaged. The file is brought up to date only when that has been seen to.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::journal::Journal;
use super::publish;
use crate::api::EventType;
use crate::effects::image::ImageStore;
use crate::sys::file::{self, Durability};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// `<root>/boot.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    boot_id: String,
    ended: bool,
}

/// How the boot before this one came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// No agent has run here before.
    Nothing,
    /// It goes on: the agent was started anew.
    SameBoot,
    /// The agent was told to end.
    InOrder,
    /// Nobody told it, or nobody knows.
    Cut,
}

/// What there is to tell of this start of the node, as warnings: reasons and messages.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<(&'static str, String)>);

/// The random number of this boot.
pub(super) fn id() -> String {
    let id = fs::read_to_string(BOOT_ID).unwrap_or_default();
    id.trim().to_owned()
}

/// Looks at how the last boot ended, and at the images if that was not in order. No pod may run yet.
pub(super) fn begin(path: &Path, node: &str, images: &ImageStore) -> Findings {
    let id = id();
    let before = before(fs::read(path), &id);
    let mut findings = Vec::new();
    if matches!(before, Before::InOrder | Before::Cut) {
        let message = format!("Node {node} has been rebooted, boot id: {id}");
        findings.push(("Rebooted", message));
    }
    if before == Before::Cut {
        let message = format!("Node {node} was not shut down before: it lost power or crashed");
        findings.push(("UncleanShutdown", message));
        if !look_at(images, &mut findings) {
            return Findings(findings);
        }
    }
    write(
        path,
        &Mark {
            boot_id: id,
            ended: false,
        },
    );
    Findings(findings)
}

/// The agent was told to end.
pub(super) fn end(path: &Path) {
    write(
        path,
        &Mark {
            boot_id: id(),
            ended: true,
        },
    );
}

/// Takes damaged images away; whether that could be done.
fn look_at(images: &ImageStore, findings: &mut Vec<(&'static str, String)>) -> bool {
    match images.repair() {
        Ok(check) => {
            tracing::info!(
                "the node was not shut down in order; looked at {} images with {} layers, {} damaged",
                check.images,
                check.layers,
                check.damage.len()
            );
            findings.extend(check.damage.iter().map(|damage| {
                let message = format!("Removed what is damaged in the image store: {damage}");
                ("ImageDamaged", message)
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
        Some(mark) if mark.boot_id == id => Before::SameBoot,
        Some(mark) if mark.ended => Before::InOrder,
        Some(_) | None => Before::Cut,
    }
}

fn write(path: &Path, mark: &Mark) {
    let bytes = serde_json::to_vec(mark).expect("plain data");
    if let Err(error) = file::replace(path, &bytes, 0o600, Durability::PowerCut) {
        tracing::warn!(
            "could not write `{}`: {error}, ignoring; the next boot will be taken for one after a power cut",
            path.display()
        );
    }
}

impl Findings {
    /// Shows them as events of the node.
    pub(super) fn publish(self, journal: &mut Journal, node: &str) {
        for (reason, message) in self.0 {
            tracing::warn!("{reason}: {message}");
            publish::node_event(journal, node, EventType::Warning, reason, &message);
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
                "another agent of this boot",
                mark(r#"{"boot_id":"now","ended":false}"#),
                Before::SameBoot,
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
