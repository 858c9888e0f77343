//! What a file is, by its name and its text. A folder of units has other files, too, which are passed over.

use super::project::TAGS;
use super::tree::entries;
use super::{kube, unit};
use crate::spec::parse;
use crate::spec::value::Value;

/// What is converted, and in which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Compose,
    Quadlet,
    Lines,
    Manifests,
    /// None of these, in a folder of units.
    Other,
}

/// The kinds of files, each with its name and text.
pub(super) fn kinds(files: &[(String, String)]) -> Vec<Kind> {
    let beside_units = files.iter().any(|(name, _)| unit::is_unit(name));
    let of = |(name, content): &(String, String)| kind(name, content, beside_units);
    files.iter().map(of).collect()
}

/// A file alone is taken for what it may be at all: then the error says what it lacks.
fn kind(name: &str, content: &str, beside_units: bool) -> Kind {
    let mut lines = content.lines().map(str::trim_start);
    let first =
        lines.find(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with(';'));
    let first = first.unwrap_or_default();
    let is_section = first.starts_with('[') && first.trim_end().ends_with(']');
    let otherwise = |kind: Kind| if beside_units { Kind::Other } else { kind };
    if unit::is_unit(name) || is_section && unit::has_container(content) {
        Kind::Quadlet
    } else if is_section {
        otherwise(Kind::Quadlet)
    } else if is_command(first) {
        Kind::Lines
    } else if kube::is_manifest(content) {
        Kind::Manifests
    } else if has_services(content) || beside_units && names_services(content) {
        Kind::Compose
    } else if content.lines().any(runs_container) && !is_mapping(content) {
        otherwise(Kind::Lines)
    } else {
        otherwise(Kind::Compose)
    }
}

/// A line without what stands before a command on it.
fn bare(line: &str) -> &str {
    let line = line.trim_start();
    line.trim_start_matches("$ ").trim_start_matches("sudo ")
}

fn is_command(line: &str) -> bool {
    let programs = ["docker ", "podman ", "nerdctl "];
    programs.iter().any(|word| bare(line).starts_with(word))
}

/// Whether a line of a script makes a container.
fn runs_container(line: &str) -> bool {
    let mut words = bare(line).split_whitespace().skip(1);
    let verb = words.find(|word| *word != "container");
    is_command(line) && matches!(verb, Some("run" | "create"))
}

/// Whether a line of a script makes a container, also after other commands.
pub(super) fn mentions_run(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut at =
        (0..words.len()).filter(|at| matches!(words[*at], "docker" | "podman" | "nerdctl"));
    at.any(|at| {
        let mut verbs = words[at + 1..].iter().filter(|word| **word != "container");
        verbs
            .next()
            .is_some_and(|verb| matches!(*verb, "run" | "create"))
    })
}

fn has_services(content: &str) -> bool {
    let mut lines = content.lines();
    lines.any(|line| line.starts_with("services:") || line.starts_with("include:"))
}

/// Whether JSON, or YAML with a quoted name, has services.
fn names_services(content: &str) -> bool {
    let documents = parse::parse_tagged(content, TAGS).unwrap_or_default();
    let mut keys = documents.iter().flat_map(|all| entries(Some(all)));
    keys.any(|(key, _)| key == "services")
}

/// Whether a text is YAML as the first compose files were: services by their names.
fn is_mapping(content: &str) -> bool {
    let documents = parse::parse_tagged(content, TAGS).unwrap_or_default();
    let mut values = documents.iter().flat_map(|all| entries(Some(all)));
    values.any(|(_, value)| matches!(value, Value::Map(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_names_and_texts() {
        const SCRIPT: &str = "#!/bin/bash\nset -e\nmkdir -p /srv/web\nsudo docker run a:1\n";
        for (name, content, alone, beside) in [
            ("a.container", "", Kind::Quadlet, Kind::Quadlet),
            ("unit", "[Container]\nImage=a", Kind::Quadlet, Kind::Quadlet),
            ("my.ini", "[server]\na=b", Kind::Quadlet, Kind::Other),
            ("line", "# x\n$ docker run a:1", Kind::Lines, Kind::Lines),
            ("install.sh", SCRIPT, Kind::Lines, Kind::Other),
            (
                "c.yaml",
                "services:\n  a: {image: x}",
                Kind::Compose,
                Kind::Compose,
            ),
            ("c.yaml", "a:\n  image: x", Kind::Compose, Kind::Other),
            ("c.json", "{\"services\": {}}", Kind::Compose, Kind::Compose),
            (
                "c.yaml",
                "x-a: |\n  docker run x\nservices: {}",
                Kind::Compose,
                Kind::Compose,
            ),
            (
                "c.yaml",
                "a:\n  command: |\n    docker run x",
                Kind::Compose,
                Kind::Other,
            ),
            (
                "m.yaml",
                "kind: Pod\napiVersion: v1",
                Kind::Manifests,
                Kind::Manifests,
            ),
            ("web.env", "A=b", Kind::Compose, Kind::Other),
            (
                "README.md",
                "Run it:\n\n    docker run a:1\n",
                Kind::Lines,
                Kind::Other,
            ),
            ("empty", "", Kind::Compose, Kind::Other),
        ] {
            for (beside_units, expected) in [(false, alone), (true, beside)] {
                let found = kind(name, content, beside_units);
                assert_eq!(found, expected, "{name} {content} {beside_units}");
            }
        }
    }
}
