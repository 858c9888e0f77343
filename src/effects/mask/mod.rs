//! Values of Secrets are taken out of texts: whole ones, their lines, their escaped forms, and what is left of one
//! where a text may have been cut. It may take out too much, never too little.

mod index;
mod plain;

use serde_json::Value;

use self::index::Index;
use self::plain::{Backslash, Plain};
use crate::types::InOrder;

/// Shorter values are not looked for, and no shorter rests of them: they occur in any text.
const MIN_SECRET: usize = 4;

/// What stands for a secret.
const MASK: &[u8] = b"<secret>";

/// Longer messages of a container's end may lack their start (`shim/exit.rs` keeps the last 2048 bytes of a log).
const CUT_MESSAGE: usize = 2048;

/// Where a text may have been cut, besides its end and before `...`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cut {
    /// At its start.
    pub start: bool,
    /// At the end of any line.
    pub lines: bool,
}

impl Cut {
    /// Of a message about a container's end.
    pub fn of_message(message: &str) -> Self {
        Self {
            start: message.len() >= CUT_MESSAGE,
            lines: false,
        }
    }
}

/// Values of Secrets to look for.
#[derive(Debug, Default)]
pub struct Secrets {
    literal: Index,
    escaped: Index,
    /// Those that are hardly anything when they are made plain, as they are and as JSON has them; longest first.
    exact: Vec<Vec<u8>>,
}

impl Secrets {
    /// Prepares the search for these values.
    pub fn new(values: &[Vec<u8>]) -> Self {
        let all = values.iter().flat_map(|value| {
            let whole = std::iter::once(value.trim_ascii());
            whole.chain(value.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii))
        });
        let all: Vec<&[u8]> = all.filter(|value| value.len() >= MIN_SECRET).collect();
        let mut exact = Vec::new();
        let mut index = |backslash| {
            let mut plain = Vec::with_capacity(all.len());
            for value in &all {
                let bytes = Plain::new(value, backslash, false).bytes;
                if bytes.len() >= MIN_SECRET {
                    plain.push(bytes);
                    continue;
                }
                let json = serde_json::to_string(&String::from_utf8_lossy(value));
                let json = json.unwrap_or_default();
                exact.extend([value.to_vec(), json.trim_matches('"').as_bytes().to_vec()]);
            }
            Index::new(plain)
        };
        let (literal, escaped) = (index(Backslash::Nothing), index(Backslash::Escapes));
        exact.order_by_key(|value| std::cmp::Reverse(value.len()));
        exact.dedup();
        Self {
            literal,
            escaped,
            exact,
        }
    }

    /// Returns the text without the values, with as many lines.
    pub fn mask(&self, text: &[u8], cut: Cut) -> Vec<u8> {
        let mut places = Vec::new();
        for value in &self.exact {
            let all = text.windows(value.len()).enumerate();
            let there = all.filter(|(_, part)| part == value);
            places.extend(there.map(|(at, _)| (at, at + value.len())));
        }
        let mut look = |index: &Index, backslash| {
            places.extend(index.places(&Plain::new(text, backslash, cut.lines), cut.start));
        };
        look(&self.literal, Backslash::Nothing);
        // The start of the text may be the end of an escape.
        if cut.start || text.contains(&b'\\') {
            look(&self.escaped, Backslash::Escapes);
        }
        places.order();
        let mut clean = Vec::with_capacity(text.len());
        let mut done = 0;
        for (from, end) in places {
            if from >= done {
                clean.extend(&text[done..from]);
                clean.extend(MASK);
            }
            // Lines stay lines.
            let hidden = text[done.max(from)..done.max(end)].iter();
            clean.extend(hidden.filter(|byte| **byte == b'\n'));
            done = done.max(end);
        }
        clean.extend(&text[done..]);
        clean
    }

    /// The same of a text.
    pub fn mask_text(&self, text: &str, cut: Cut) -> String {
        String::from_utf8_lossy(&self.mask(text.as_bytes(), cut)).into_owned()
    }

    /// Takes the values out of all strings of a document: in its JSON they would be escaped.
    pub fn mask_document(&self, value: &mut Value) {
        match value {
            Value::Object(fields) => fields.values_mut().for_each(|v| self.mask_document(v)),
            Value::Array(items) => items.iter_mut().for_each(|item| self.mask_document(item)),
            Value::String(text) => *text = self.mask_text(text, Cut::of_message(text)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const START: Cut = Cut {
        start: true,
        lines: false,
    };
    const LINES: Cut = Cut {
        start: false,
        lines: true,
    };

    fn secrets() -> Secrets {
        let values = [
            "pa55word",
            "pa55word-longer",
            "with\"quote\\and\ttab\u{1b}ending",
            "tango99\nsecond line\nx",
            "abcdef\u{e4}\u{e4}ghijkl",
            "\u{1f525}\u{1f525}",
            "abc",
        ];
        Secrets::new(&values.map(|value| value.as_bytes().to_vec()))
    }

    #[test]
    fn values_are_found_in_each_form() {
        let odd = "with\"quote\\and\ttab\u{1b}ending";
        let debug = format!("is {odd:?}");
        let in_json = json!({ "message": debug, "also": odd }).to_string();
        let printed: String = odd
            .chars()
            .map(|c| c.escape_unicode().to_string())
            .collect();
        for (sentence, text, expected) in [
            ("whole", "is pa55word!", "is <secret>!"),
            ("the longest", "pa55word-longer", "<secret>"),
            ("many", "pa55wordpa55word", "<secret><secret>"),
            ("lines of one", "second line, tango99", "<secret>, <secret>"),
            (
                "all lines of one",
                "tango99\nsecond line\nx!",
                "<secret>\n\n!",
            ),
            ("a short one", "abc", "abc"),
            ("as it is", odd, "<secret>"),
            ("as Rust prints it", &debug, "is \"<secret>\""),
            (
                "as JSON has it",
                &in_json,
                r#"{"also":"<secret>","message":"is \"<secret>\""}"#,
            ),
            ("as codes", &printed, "<secret>"),
            ("after a backslash", "C:\\tango99", "C:<secret>"),
            ("hardly anything", "a \u{1f525}\u{1f525}", "a <secret>"),
            ("a part is none", "pa55wor pa55", "pa55wor <secret>"),
        ] {
            let found = secrets().mask_text(text, Cut::default());
            assert_eq!(found, expected, "{sentence}");
        }
    }

    #[test]
    fn what_a_cut_has_left_of_a_value_is_found() {
        for (sentence, text, cut, expected) in [
            (
                "a prefix at the end",
                "is pa55w",
                Cut::default(),
                "is <secret>",
            ),
            (
                "before dots",
                "is pa55w... and on",
                Cut::default(),
                "is <secret>... and on",
            ),
            ("a line's end", "is pa55w\nnext", LINES, "is <secret>\nnext"),
            (
                "no line's end",
                "is pa55w\nnext",
                Cut::default(),
                "is pa55w\nnext",
            ),
            ("three bytes", "is pa5", Cut::default(), "is pa5"),
            (
                "a suffix at the start",
                "word! it is",
                START,
                "<secret>! it is",
            ),
            ("no start", "word! it is", Cut::default(), "word! it is"),
            ("the longest suffix", "55word-longer", START, "<secret>"),
            ("the middle", "word-long", START, "<secret>"),
            (
                "within an escape",
                "is with\\\"quote\\\\and\\ttab\\u{1...",
                Cut::default(),
                "is <secret>\\u{1...",
            ),
            ("after half an escape", "{1b}ending.", START, "<secret>."),
            ("after half a tab", "ttab\\u001bending.", START, "<secret>."),
        ] {
            let found = secrets().mask_text(text, cut);
            assert_eq!(found, expected, "{sentence}");
        }
        let half = secrets().mask(b"\xa4ghijkl.", START);
        assert_eq!(String::from_utf8_lossy(&half), "\u{fffd}<secret>.");
    }

    #[test]
    fn strings_of_documents_stay_strings() {
        let long = format!("word {}", "x".repeat(CUT_MESSAGE));
        let mut document = json!({ "a": ["is with\"quote\\and\ttab\u{1b}ending", 7], "b": long });
        secrets().mask_document(&mut document);
        let wanted = format!("<secret> {}", "x".repeat(CUT_MESSAGE));
        assert_eq!(document, json!({ "a": ["is <secret>", 7], "b": wanted }));
    }

    #[test]
    fn many_values_and_long_texts_cost_little() {
        let many = (0..5000).map(|n| format!("{}{n}", "a".repeat(200)).into_bytes());
        let secrets = Secrets::new(&many.collect::<Vec<_>>());
        let text = "a".repeat(1 << 16);
        let found = secrets.mask(text.as_bytes(), START);
        // Its end may be the beginning of a value, its start the end of none.
        assert!(found.len() < text.len() && found.ends_with(MASK));
    }
}
