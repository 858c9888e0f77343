//! Positions of fields in a file. Reads the file a second time, with positions, and finds those of the wanted paths.
//! Runs when there are errors to show, and for the settings.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use saphyr_parser::{Event, Parser, ScanError};

use super::error::join;
use super::escape;
use crate::types::Gather;

/// Line and column, from 1.
pub(crate) type Place = (usize, usize);

/// Limit of bytes read again: each line that has to be indented costs another read.
const MAX_WORK: usize = 2 << 20;

/// The number of columns by which such a line is indented: more than the lines above it.
const INDENT: usize = 256;

/// Positions of the wanted paths and of everything above them, by document.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    places: BTreeMap<(usize, String), Vec<Place>>,
    documents: Vec<Place>,
    /// Scalars at wanted paths, as spelled in the file.
    scalars: BTreeMap<(usize, String), String>,
}

impl Positions {
    /// Finds the wanted paths. Whatever the parser cannot read has no position.
    pub(crate) fn find<'p>(text: &str, wanted: impl Iterator<Item = (usize, &'p str)>) -> Self {
        let wanted = wanted
            .flat_map(|(document, path)| {
                ancestors(path).map(move |above| (document, above.to_owned()))
            })
            .gather();
        let mended = escape::mend(text);
        let mut text = Cow::Borrowed(&*mended.text);
        let (mut indented, mut work) = (BTreeSet::new(), 0);
        loop {
            let mut walk = Walk {
                wanted: &wanted,
                found: Self::default(),
                open: Vec::new(),
                started: 0,
            };
            let read = walk.read(&text, |(line, column)| {
                let added = if indented.contains(&line) { INDENT } else { 0 };
                mended.written((line, column.saturating_sub(added).max(1)))
            });
            let Err(error) = read else {
                return walk.found;
            };
            // The reader of manifests allows lists in brackets and quoted texts to go on left of where they began.
            let of_text = error.info().contains("quoted scalar");
            let mut line = error.marker().line() + usize::from(of_text);
            while indented.contains(&line) {
                line += 1;
            }
            work += text.len();
            let begin = begin_of(&text, line).filter(|_| work < MAX_WORK);
            match begin.filter(|_| error.info().contains("indentation")) {
                Some(begin) => {
                    text.to_mut().insert_str(begin, &" ".repeat(INDENT));
                    indented.insert(line);
                }
                None => return walk.found,
            }
        }
    }

    /// Returns the spelling of the scalar at this path.
    pub(crate) fn scalar(&self, document: usize, path: &str) -> Option<&str> {
        let found = self.scalars.get(&(document, path.to_owned()));
        found.map(String::as_str)
    }

    /// Returns the position of the `occurrence`th such path, or of its nearest known ancestor.
    pub(crate) fn of(&self, document: usize, path: &str, occurrence: usize) -> Place {
        ancestors(path)
            .find_map(|path| {
                let places = self.places.get(&(document, path.to_owned()))?;
                places.get(occurrence).or(places.last()).copied()
            })
            .or_else(|| self.documents.get(document).copied())
            .unwrap_or((1, 1))
    }
}

/// The offset of a line, from 1.
fn begin_of(text: &str, line: usize) -> Option<usize> {
    match line.checked_sub(2) {
        None => (line == 1).then_some(0),
        Some(before) => text.match_indices('\n').nth(before).map(|(end, _)| end + 1),
    }
}

/// Returns the path, then its ancestors, nearest first.
pub(crate) fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| {
        if path.is_empty() {
            return None;
        }
        // A key in brackets may contain dots: cut at its own opening bracket.
        let cut = match path.strip_suffix(']') {
            Some(inner) => inner.rfind('['),
            None => path.rfind('.'),
        };
        Some(&path[..cut.unwrap_or(0)])
    })
}

/// An open list or mapping.
enum Open {
    List { path: String, next: usize },
    Map { path: String, key: Option<String> },
}

struct Walk<'w> {
    wanted: &'w BTreeSet<(usize, String)>,
    found: Positions,
    open: Vec<Open>,
    /// Number of documents begun.
    started: usize,
}

impl Walk<'_> {
    /// Reads a text as far as possible. `written` says where a place is in the file.
    fn read(&mut self, text: &str, written: impl Fn(Place) -> Place) -> Result<(), ScanError> {
        for event in Parser::new_from_str(text) {
            let (event, span) = event?;
            self.event(&event, written((span.start.line(), span.start.col() + 1)));
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, place: Place) {
        match event {
            Event::DocumentStart(_) => {
                self.started += 1;
                self.open.clear();
            }
            Event::MappingStart(..) => {
                let path = self.value(place);
                self.open.push(Open::Map { path, key: None });
            }
            Event::SequenceStart(..) => {
                let path = self.value(place);
                self.open.push(Open::List { path, next: 0 });
            }
            Event::MappingEnd | Event::SequenceEnd => {
                self.open.pop();
            }
            Event::Scalar(text, ..) => {
                if let Some(Open::Map {
                    path,
                    key: key @ None,
                }) = self.open.last_mut()
                {
                    let full = join(path, text);
                    *key = Some(full.clone());
                    self.note(full, place);
                } else {
                    let at = (self.started.saturating_sub(1), self.value(place));
                    if self.wanted.contains(&at) {
                        self.found.scalars.insert(at, text.to_string());
                    }
                }
            }
            Event::Alias(_) => {
                if let Some(Open::Map {
                    key: key @ None, ..
                }) = self.open.last_mut()
                {
                    *key = Some(String::new());
                } else {
                    self.value(place);
                }
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
    }

    /// Begins a value and returns its path. An item's position is its beginning, a field's that of its key.
    fn value(&mut self, place: Place) -> String {
        match self.open.last_mut() {
            None => {
                self.found.documents.push(place);
                self.note(String::new(), place);
                String::new()
            }
            Some(Open::List { path, next }) => {
                let full = format!("{path}[{next}]");
                *next += 1;
                self.note(full.clone(), place);
                full
            }
            Some(Open::Map { key, .. }) => key.take().unwrap_or_default(),
        }
    }

    fn note(&mut self, path: String, place: Place) {
        let at = (self.started.saturating_sub(1), path);
        if self.wanted.contains(&at) {
            self.found.places.entry(at).or_default().push(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_at_its_key_an_item_at_its_beginning_and_an_absent_one_at_its_parent() {
        let text = "\
# comment
a: 1
list:
- x
- {b: ü, c: 2}
a.b/c: quoted
---
---
list: &anchor
  - - deep
again: *anchor
dup: 1
dup: 2
";
        for (document, path, occurrence, place) in [
            (0, "a", 0, (2, 1)),
            (0, "list", 0, (3, 1)),
            (0, "list[0]", 0, (4, 3)),
            (0, "list[1]", 0, (5, 3)),
            (0, "list[1].c", 0, (5, 10)),
            (0, "list[1].missing.below", 0, (5, 3)),
            (0, "list[7]", 0, (3, 1)),
            (0, "[a.b/c]", 0, (6, 1)),
            (0, "missing", 0, (2, 1)),
            (2, "list[0][0]", 0, (10, 7)),
            (2, "again[0][0]", 0, (11, 1)),
            (2, "dup", 0, (12, 1)),
            (2, "dup", 1, (13, 1)),
            (9, "a", 0, (1, 1)),
        ] {
            let positions = Positions::find(text, [(document, path)].into_iter());
            let found = positions.of(document, path, occurrence);
            assert_eq!(found, place, "{document} {path} {occurrence}");
        }
        let positions = Positions::find(text, [(0, "list[1].c")].into_iter());
        assert_eq!(positions.scalar(0, "list[1].c"), Some("2"));
    }

    #[test]
    fn what_goes_on_left_of_where_it_began_keeps_the_places_below() {
        for (above, lines) in [
            ("  args: [\n    \"-c\",\n  ]\n", 3),
            ("  args: [a,\n  b]\n", 2),
            ("  args: [a,\nb, {c: d,\ne: f}\n]\n", 4),
            ("  x: \"foo\n  bar\n\n  baz\"\n", 4),
            ("  x: 'foo\nbar'\n", 2),
            ("  k: [\n  # comment\n  b,\n\n  ]\n", 5),
        ] {
            let text = format!("a:\n{above}  b: {{c: 1}}\n---\nd: 1\n");
            let wanted = [(0, "a.b"), (0, "a.b.c"), (1, "d")];
            let positions = Positions::find(&text, wanted.into_iter());
            let found = wanted.map(|(document, path)| positions.of(document, path, 0));
            let line = 2 + lines;
            assert_eq!(found, [(line, 3), (line, 7), (line + 2, 1)], "{text}");
        }
        // Fields on such a line.
        let positions = Positions::find("a:\n  b: [\n  c: 1]\n", [(0, "a.b[0].c")].into_iter());
        assert_eq!(positions.of(0, "a.b[0].c", 0), (3, 3));
    }

    #[test]
    fn the_work_is_bounded() {
        let text = format!("a:\n  b: [\n{}  ]\n", "  x,\n".repeat(50_000));
        let positions = Positions::find(&text, [(0, "a.b")].into_iter());
        assert_eq!(positions.of(0, "a.b", 0), (2, 3));
    }
}
