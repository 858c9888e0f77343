//! Positions of fields in a file. Reads the file a second time, with positions, and finds those of the wanted paths.
//! Runs only when there are errors to show.

use std::collections::{BTreeMap, BTreeSet};

use saphyr_parser::{Event, Parser};

use super::error::join;
use super::escape;
use crate::types::Gather;

/// Line and column, from 1.
pub(crate) type Place = (usize, usize);

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
        let mut walk = Walk {
            wanted,
            found: Self::default(),
            open: Vec::new(),
            started: 0,
        };
        let mended = escape::mend(text);
        for event in Parser::new_from_str(&mended.text) {
            let Ok((event, span)) = event else { break };
            let place = (span.start.line(), span.start.col() + 1);
            walk.event(&event, mended.written(place));
        }
        walk.found
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

struct Walk {
    wanted: BTreeSet<(usize, String)>,
    found: Positions,
    open: Vec<Open>,
    /// Number of documents begun.
    started: usize,
}

impl Walk {
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
}
