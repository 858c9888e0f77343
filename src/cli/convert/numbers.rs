//! Numbers of which compose makes others, as YAML 1.1 has them: without quotes, `022` is octal to it, and `1_0` ten.

use std::collections::BTreeSet;

use saphyr_parser::{Event, Parser, ScalarStyle};

/// Lists and mappings in which `mode` is that of a file: it is meant as it is written.
const OF_FILES: [&str; 3] = ["configs", "secrets", "tmpfs"];

/// A list or mapping that the reader is in.
struct Around {
    is_map: bool,
    /// The key whose value comes next, or is read.
    key: Option<String>,
    /// Another place may have it, too.
    has_anchor: bool,
}

/// What the reader is in, from the outside to the inside.
#[derive(Default)]
struct Place(Vec<Around>);

impl Place {
    fn enter(&mut self, is_map: bool, anchor: usize) {
        let has_anchor = self.has_anchor(anchor);
        self.0.push(Around {
            is_map,
            key: None,
            has_anchor,
        });
    }

    fn leave(&mut self) {
        self.0.pop();
        self.pass("");
    }

    /// Goes on behind a key or a value.
    fn pass(&mut self, text: &str) {
        if let Some(around) = self.0.last_mut().filter(|around| around.is_map) {
            around.key = match around.key {
                None => Some(text.to_owned()),
                Some(_) => None,
            };
        }
    }

    fn has_anchor(&self, anchor: usize) -> bool {
        anchor > 0 || self.0.last().is_some_and(|around| around.has_anchor)
    }

    /// Whether this is below an extension (`x-...`) of the file.
    fn is_extension(&self) -> bool {
        let top = self.0.first().and_then(|around| around.key.as_deref());
        top.is_some_and(|key| key.starts_with("x-"))
    }

    /// Whether the value that comes next is the mode of a file.
    fn is_mode(&self) -> bool {
        let mut keys = self.0.iter().rev().map(|around| around.key.as_deref());
        let is_called = keys.next().flatten() == Some("mode");
        let of = keys.flatten().next().unwrap_or_default();
        // Which setting an extension is for, it does not say.
        is_called && (OF_FILES.contains(&of) || self.is_extension())
    }
}

/// The numbers of a file of which compose makes others.
pub(super) fn changed(file: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut place = Place::default();
    for event in Parser::new_from_str(file) {
        // The tree does not know the quotes. Where this reader fails, it ends: it only serves remarks.
        let Ok((event, _)) = event else { break };
        match event {
            Event::MappingStart(anchor, _) => place.enter(true, anchor),
            Event::SequenceStart(anchor, _) => place.enter(false, anchor),
            Event::MappingEnd | Event::SequenceEnd => place.leave(),
            Event::Alias(_) => place.pass(""),
            Event::Scalar(text, style, anchor, tag) => {
                // A tag says what it is.
                let is_untold = style == ScalarStyle::Plain && tag.is_none();
                // Compose passes over what extensions say, but for what other places have of them.
                let is_read = !place.is_extension() || place.has_anchor(anchor);
                if is_untold && is_read && is_other(&text) && !place.is_mode() {
                    found.insert(text.clone().into_owned());
                }
                place.pass(&text);
            }
            _ => {}
        }
    }
    found
}

/// Whether YAML 1.1 reads this as another number than its digits are.
fn is_other(text: &str) -> bool {
    let digits = text.trim_start_matches(['+', '-']);
    let zeros = digits.len() > 1 && digits.starts_with('0');
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.chars().all(|c| c.is_ascii_digit() || c == '_');
    is_number && (zeros || digits.contains('_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_compose_reads_as_a_number_has_a_remark() {
        for (file, expected) in [
            (
                "services: {a: {environment: {A: 022, B: !!str 0123, C: '07'}}}",
                &["022"][..],
            ),
            (
                "x-a: 022\nx-b: {c: [01, {d: 02}]}\nservices: {a: {user: 03}}",
                &["03"],
            ),
            (
                "x-a: &a 022\nx-b: &b {c: [01]}\nx-c: {d: &d {e: 02}, f: 04}",
                &["01", "02", "022"],
            ),
            ("services: {a: {x-a: 01}}", &["01"]),
            (
                "services: {a: {secrets: [{source: s, mode: 0400}], configs: [{mode: 0440}]}}",
                &[],
            ),
            (
                "services: {a: {volumes: [{type: tmpfs, tmpfs: {mode: 01777, size: 010}}]}}",
                &["010"],
            ),
            (
                "services: {a: {environment: {mode: 022}, command: [mode, 07]}}",
                &["022", "07"],
            ),
            ("services: {secrets: {environment: {mode: 022}}}", &["022"]),
            ("x-s: &s {source: s, mode: 0400, uid: 01}", &["01"]),
            (
                "a: &a b\nc: *a\n*a : 01\n[d, e]: 02\nf: 03",
                &["01", "02", "03"],
            ),
        ] {
            let found: Vec<String> = changed(file).into_iter().collect();
            assert_eq!(found, expected, "{file}");
        }
    }
}
