//! The manual that the binary carries: pages by topic, as text and as man pages.
//!
//! Each page is a Markdown file of this folder, in lines that a terminal shows as they are. `build.rs` packs them, and
//! the table of fields (`fields.txt`). The lists of events and of refused kinds are made from the code when the page is asked for.

use std::fmt::Write as _;
use std::io::Read as _;

use flate2::read::GzDecoder;

use crate::spec::{self, Reason, Severity};

pub mod fields;
pub mod roff;

/// The topics in reading order, each with what its page is about.
pub const TOPICS: &[(&str, &str)] = &[
    ("install", "install, upgrade and remove coracle"),
    ("upgrade", "upgrades that come back by themselves"),
    (
        "appliances",
        "RAM-disk roots, read-only roots and small kernels",
    ),
    ("migrate", "coming from docker-compose, podman or k3s"),
    ("pods", "edits, restarts, readiness, room and priority"),
    (
        "workloads",
        "Deployments, StatefulSets, DaemonSets and Jobs, and how they roll out",
    ),
    ("order", "what a pod starts after"),
    (
        "images",
        "getting images onto the machine, without a network too",
    ),
    (
        "bundles",
        "manifests and images in one file, and the way back",
    ),
    (
        "configuration",
        "ConfigMaps and Secrets, as variables and as files",
    ),
    ("storage", "data that lasts, backup and restore"),
    (
        "devices",
        "serial ports, cameras and other devices, without privileges",
    ),
    (
        "network",
        "addresses, ports, services, names, other firewalls",
    ),
    ("shutdown", "shutdown, power cuts and maintenance"),
    (
        "memory",
        "memory, swap, huge pages and a node that runs short",
    ),
    (
        "health",
        "whether a boot is healthy, for upgrades that go back by themselves",
    ),
    (
        "black-box",
        "what went wrong, also before this boot; a report for support",
    ),
    ("settings", "settings, files and directories"),
    ("security", "what confines a pod, and what does not"),
    ("monitoring", "figures, metrics, logs and the API"),
    (
        "troubleshooting",
        "what to look at when something does not work",
    ),
    ("cluster", "outgrowing one machine"),
    (
        "differences",
        "where coracle differs from a kubelet, and why",
    ),
    ("limits", "what is refused or ignored"),
    ("events", "every reason of an event"),
    ("changes", "what is new in each version"),
];

const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/manual.gz"));

/// Stands in `events.md` for the list of reasons.
const REASONS: &str = "{{reasons}}";
/// Stands in `limits.md` for the list of kinds.
const KINDS: &str = "{{kinds}}";

/// The page of a topic, as Markdown; `None` if there is no such topic.
pub fn page(topic: &str) -> Option<String> {
    if !TOPICS.iter().any(|(name, _)| *name == topic) {
        return None;
    }
    let page = packed(topic)?;
    Some(page.replace(REASONS, &reasons()).replace(KINDS, &kinds()))
}

/// A file that the build script packed, by its name without extension.
fn packed(wanted: &str) -> Option<String> {
    let mut text = String::new();
    GzDecoder::new(PACKED)
        .read_to_string(&mut text)
        .expect("the build script packed it");
    let mut parts = text.split('\0');
    while let (Some(name), Some(content)) = (parts.next(), parts.next()) {
        if name == wanted {
            return Some(content.to_owned());
        }
    }
    None
}

/// All reasons: those of pods, of documents that stand for pods, and of the node.
fn reasons() -> String {
    let mut text = String::new();
    text += "## Events of pods\n\n";
    for reason in Reason::ALL {
        text += match reason {
            Reason::ScalingReplicaSet => "\n## Events of Deployments, Jobs and the like\n\n",
            Reason::Starting => "\n## Events of the node\n\n",
            _ => "",
        };
        let mark = match reason.severity() {
            Severity::Normal => "",
            Severity::Warning => " (Warning)",
        };
        let line = format!("- `{reason}`{mark}: {}", reason.doc());
        let _ = writeln!(text, "{}", wrapped(&line));
    }
    text.trim_end().to_owned()
}

/// All kinds that are refused by name, with what to do instead.
fn kinds() -> String {
    let mut text = String::new();
    for (kinds, instead) in spec::refused_kinds() {
        let names: Vec<String> = kinds.iter().map(|kind| format!("`{kind}`")).collect();
        let line = format!("- {}: {instead}.", names.join(", "));
        let _ = writeln!(text, "{}", wrapped(&line));
    }
    text.trim_end().to_owned()
}

/// A list item in lines of at most 100 columns, broken outside of code.
fn wrapped(item: &str) -> String {
    const WIDTH: usize = 100;
    let mut lines = vec![String::new()];
    let mut word = String::new();
    for part in item.split(' ') {
        word += part;
        if word.matches('`').count() % 2 == 1 {
            word.push(' ');
            continue;
        }
        let length = lines.last().map_or(0, String::len);
        match lines
            .last_mut()
            .filter(|_| length + 1 + word.len() <= WIDTH)
        {
            Some(line) if line.is_empty() => *line = word,
            Some(line) => *line += &format!(" {word}"),
            None => lines.push(format!("  {word}")),
        }
        word = String::new();
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_topic_has_a_page_and_every_page_a_topic() {
        for (topic, _) in TOPICS {
            let page = page(topic).unwrap_or_else(|| panic!("no page for {topic}"));
            assert!(page.starts_with("# "), "{topic} has no title");
            assert!(!page.contains("{{"), "{topic} has a gap");
            let odd = |line: &&str| line.matches('`').count() % 2 == 1 && !line.starts_with("```");
            assert_eq!(
                page.lines().find(odd),
                None,
                "{topic} has code over two lines"
            );
            let mut text = page.lines().filter(|line| !line.starts_with('|'));
            let wide = text.find(|line| line.chars().count() > 100);
            assert_eq!(wide, None, "{topic} has a line that is too wide");
        }
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/manual");
        let pages = std::fs::read_dir(folder).unwrap();
        let pages = pages.filter(|e| e.as_ref().unwrap().path().extension() == Some("md".as_ref()));
        assert_eq!(pages.count(), TOPICS.len());
    }
}
