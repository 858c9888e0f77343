//! The escape `\'` in double quotes. YAML has none, but Kubernetes' own reader accepts it, and manifests contain it. It
//! is rewritten as `'` before the text is parsed, and only in double quotes.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::position::Place;

/// Limit of bytes read in total to find such escapes: each scalar with some costs another read.
const MAX_WORK: usize = 16 << 20;

const ESCAPE: &str = "\\'";

/// A text without such escapes.
#[derive(Debug)]
pub(super) struct Mended<'t> {
    /// The text.
    pub(super) text: Cow<'t, str>,
    /// Places where a backslash was removed, in order.
    places: Vec<Place>,
}

/// Rewrites the text if necessary.
pub(super) fn mend(text: &str) -> Mended<'_> {
    let mut mended = Cow::Borrowed(text);
    let (mut work, mut dropped) = (0, Vec::new());
    while mended.contains(ESCAPE) && work < MAX_WORK {
        work += mended.len();
        // Only a parser can tell whether it is in double quotes.
        let Some(at) = unknown_escape(&mended) else {
            break;
        };
        if !mended[at..].starts_with(ESCAPE) {
            break;
        }
        mended = Cow::Owned(scalar(&mended, at, &mut dropped));
    }
    Mended {
        places: places(&mended, &dropped),
        text: mended,
    }
}

/// Returns the byte offset where the parser stops because of an unknown escape.
fn unknown_escape(text: &str) -> Option<usize> {
    let error = serde_yaml::Deserializer::from_str(text)
        .find_map(|document| IgnoredAny::deserialize(document).err())?;
    if !error
        .to_string()
        .starts_with("found unknown escape character")
    {
        return None;
    }
    let offset = error.location()?.index();
    text.is_char_boundary(offset).then_some(offset)
}

/// Rewrites one scalar from its first such escape on. `dropped` collects the offsets of removed backslashes.
fn scalar(text: &str, from: usize, dropped: &mut Vec<usize>) -> String {
    let mut result = text[..from].to_owned();
    let mut rest = text[from..].chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            result.push(c);
            if c == '"' {
                break;
            }
            continue;
        }
        match rest.next() {
            Some('\'') => {
                dropped.push(result.len());
                result.push('\'');
            }
            other => {
                result.push('\\');
                result.extend(other);
            }
        }
    }
    result + rest.as_str()
}

impl Mended<'_> {
    /// Converts a place in the rewritten text to the place in the original.
    pub(super) fn written(&self, (line, column): Place) -> Place {
        let begin = self.places.partition_point(|place| *place < (line, 0));
        let end = self
            .places
            .partition_point(|place| *place <= (line, column));
        (line, column + end.saturating_sub(begin))
    }
}

/// Returns lines and columns of offsets, which are in ascending order.
fn places(text: &str, offsets: &[usize]) -> Vec<Place> {
    let mut offsets = offsets.iter().peekable();
    let (mut line, mut column) = (1, 0);
    let mut places = Vec::new();
    if offsets.peek().is_none() {
        return places;
    }
    for (offset, c) in text.char_indices() {
        column += 1;
        if offsets.next_if(|wanted| **wanted == offset).is_some() {
            places.push((line, column));
        }
        if c == '\n' {
            (line, column) = (line + 1, 0);
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_escape_is_rewritten_in_double_quotes_only() {
        for (text, mended) in [
            (r#"a: "it\'s""#, Some(r#"a: "it's""#)),
            (r#"a: "\'x\' \\' \"\'""#, Some(r#"a: "'x' \\' \"'""#)),
            (
                r#"{a: "\'", b: ["\'", '\'], c: \'}"#,
                Some(r#"{a: "'", b: ["'", '\'], c: \'}"#),
            ),
            (
                "a: \"x\n  \\'y\"\nb: \"\\'\"",
                Some("a: \"x\n  'y\"\nb: \"'\""),
            ),
            (
                "# \"\\'\na: \"\\'\"\r\n---\nb: \"ü\\'\"",
                Some("# \"\\'\na: \"'\"\r\n---\nb: \"ü'\""),
            ),
            (r"a: 'it\'", None),
            (r"a: it\'s", None),
            ("a: |\n  \"it\\'s\"", None),
            ("a: b # \"it\\'s\"", None),
            (r#"a: "it\\'s""#, None),
            (r#"a: say "it\'s""#, None),
            // Another error comes first.
            (r#"a: "\d \'""#, None),
        ] {
            let found = mend(text);
            assert_eq!(found.text, mended.unwrap_or(text), "{text}");
            assert_eq!(found.places.is_empty(), mended.is_none(), "{text}");
        }
    }

    #[test]
    fn places_are_those_of_the_text_as_it_was_written() {
        let text = "a: 1\nb: {x: \"\\'ü\\'\", y: 2}\nc: \"\\'\"\n";
        let found = mend(text);
        assert_eq!(found.text, "a: 1\nb: {x: \"'ü'\", y: 2}\nc: \"'\"\n");
        for (place, written) in [
            ((1, 4), (1, 4)),
            ((2, 5), (2, 5)),
            ((2, 8), (2, 8)),
            ((2, 9), (2, 10)),
            ((2, 10), (2, 11)),
            ((2, 11), (2, 13)),
            ((2, 15), (2, 17)),
            ((3, 4), (3, 4)),
            ((9, 1), (9, 1)),
        ] {
            assert_eq!(found.written(place), written, "{place:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_can_be_read_stays_and_every_place_is_in_the_file(text in "[a'\"\\\\ü:\\-#| {},\n\r]{0,60}") {
            let found = mend(&text);
            let fine = serde_yaml::Deserializer::from_str(&text)
                .all(|document| IgnoredAny::deserialize(document).is_ok());
            if fine {
                proptest::prop_assert_eq!(&found.text, &text);
            }
            proptest::prop_assert_eq!(found.text.len() + found.places.len(), text.len());
            for (number, line) in found.text.split('\n').enumerate() {
                let end = line.chars().count();
                let (same, column) = found.written((number + 1, end));
                let written = text.split('\n').nth(number).unwrap_or_default();
                proptest::prop_assert_eq!((same, column), (number + 1, written.chars().count()));
            }
        }
    }

    #[test]
    fn the_work_is_bounded() {
        let text = "- \"\\'\"\n".repeat(200_000);
        assert!(!mend(&text).places.is_empty());
    }
}
