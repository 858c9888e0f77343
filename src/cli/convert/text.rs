//! Documents as YAML with comments: in block style, each string quoted if it could be read as anything else.

use super::tree::COMMENT;
use crate::spec::value::Value;

/// A document. Entries with the key [`COMMENT`] are lines of comments.
pub(super) fn yaml(document: &Value) -> String {
    let mut out = String::new();
    if let Value::Map(entries) = document {
        mapping(&mut out, entries, 0, false);
    }
    out
}

/// Whether the value says anything beside comments.
fn is_empty(value: &Value) -> bool {
    let said = |(key, value): &(String, Value)| key != COMMENT && *value != Value::Null;
    match value {
        Value::Map(entries) => !entries.is_empty() && !entries.iter().any(said),
        Value::List(items) => !items.is_empty() && items.iter().all(is_empty),
        _ => false,
    }
}

fn begin(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

fn comment(out: &mut String, value: &Value, indent: usize) {
    for line in value.scalar_text().unwrap_or_default().lines() {
        begin(out, indent);
        let plain = line.chars().map(|c| if c.is_control() { ' ' } else { c });
        out.push_str("# ");
        out.extend(plain);
        out.push('\n');
    }
}

/// The comments of a value that says nothing else.
fn comments(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::List(items) => items.iter().for_each(|item| comments(out, item, indent)),
        Value::Map(entries) => entries
            .iter()
            .for_each(|(_, value)| comments(out, value, indent)),
        value => comment(out, value, indent),
    }
}

/// `begun`: the first entry goes on in a line that has begun.
fn mapping(out: &mut String, entries: &[(String, Value)], indent: usize, mut begun: bool) {
    // A comment cannot stand where a line has begun.
    let first = entries
        .iter()
        .position(|(key, value)| key != COMMENT && !is_empty(value));
    let first = first.filter(|_| begun).unwrap_or(0);
    let (before, rest) = entries.split_at(first);
    for (key, value) in rest.iter().take(1).chain(before).chain(rest.iter().skip(1)) {
        if key == COMMENT || is_empty(value) {
            comments(out, value, indent);
            continue;
        }
        if !std::mem::take(&mut begun) {
            begin(out, indent);
        }
        scalar(out, key);
        out.push(':');
        match value {
            Value::Map(inner) if !inner.is_empty() => {
                out.push('\n');
                mapping(out, inner, indent + 2, false);
            }
            Value::List(items) if !items.is_empty() => {
                out.push('\n');
                list(out, items, indent);
            }
            single => {
                out.push(' ');
                leaf(out, single, indent + 2);
            }
        }
    }
}

fn list(out: &mut String, items: &[Value], indent: usize) {
    for item in items {
        if is_empty(item) {
            comments(out, item, indent);
            continue;
        }
        begin(out, indent);
        out.push_str("- ");
        match item {
            Value::Map(inner) if !inner.is_empty() => mapping(out, inner, indent + 2, true),
            other => leaf(out, other, indent + 2),
        }
    }
}

/// A value on one line, or a block of lines.
fn leaf(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::String(text) if is_block(text) => {
            out.push_str(if text.ends_with('\n') { "|\n" } else { "|-\n" });
            for line in text.lines() {
                if !line.is_empty() {
                    begin(out, indent);
                }
                out.push_str(line);
                out.push('\n');
            }
        }
        Value::String(text) => {
            scalar(out, text);
            out.push('\n');
        }
        Value::List(_) => out.push_str("[]\n"),
        Value::Map(_) => out.push_str("{}\n"),
        other => {
            out.push_str(&other.scalar_text().unwrap_or_default());
            out.push('\n');
        }
    }
}

/// Whether lines can stand as they are.
fn is_block(text: &str) -> bool {
    let odd = |c: char| (c.is_control() && !matches!(c, '\n' | '\t')) || is_invisible(c);
    text.trim_end_matches('\n').contains('\n')
        && !text.ends_with("\n\n")
        && !text.starts_with([' ', '\t', '\n'])
        && !text.contains(odd)
}

/// Marks that no reader shows, and what YAML takes for the end of a line.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}')
}

fn scalar(out: &mut String, text: &str) {
    if is_plain(text) {
        out.push_str(text);
        return;
    }
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() || is_invisible(c) => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Whether YAML reads this as the same string without quotes.
fn is_plain(text: &str) -> bool {
    const WORDS: [&str; 10] = [
        "true", "false", "null", "yes", "no", "on", "off", "y", "n", "",
    ];
    let safe = |c: char| c.is_ascii_alphanumeric() || "_./-:@=+, ".contains(c);
    let number = |c: char| c.is_ascii_hexdigit() || "_.:xXoO+-".contains(c);
    let dashes = text.trim_start_matches('-');
    let begins = dashes.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_'))
        && text.len() - dashes.len() <= 2;
    let address = text.matches('.').count() > 1;
    (begins || text.starts_with("./"))
        && text.chars().all(safe)
        && !text.ends_with([':', ' '])
        && !text.contains(": ")
        && !WORDS.contains(&&*text.to_ascii_lowercase())
        && (address
            || !(dashes.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(number)))
}

#[cfg(test)]
mod tests {
    use super::super::tree::{map, number, text, texts};
    use super::*;
    use crate::spec::parse;

    #[test]
    fn every_string_is_read_back_as_it_was() {
        for string in [
            "",
            " ",
            "a",
            "true",
            "No",
            "~",
            "1",
            "1.5",
            "0x1f",
            "1e3",
            "10Gi",
            "500m",
            "12:30",
            "a: b",
            "a #b",
            "#a",
            "- a",
            "-",
            "a:",
            "*a",
            "&a",
            "!a",
            "@a",
            "`a",
            "{a}",
            "[a]",
            "'a'",
            "\"a\"",
            "a\\b",
            "%a",
            "a, b",
            "|",
            ">",
            "a\nb",
            "a\nb\n",
            "a\n\nb",
            "\na\nb",
            " a\nb",
            "a\nb\n\n",
            "a\tb\nc",
            "\ta\nb",
            "a\rb\nc",
            "a\u{85}b\nc",
            "a\u{1}b",
            "a\u{7f}",
            "\u{feff}a",
            "ä",
            "a\u{2028}b",
            "\n",
            "a\n",
            "a  \nb ",
            "null",
            "2024-01-02",
            ".5",
            "+1",
            "a\n  b\n c",
            "<<",
            "=",
            "?a",
            "? a",
            "key with space",
            "-c",
            "--",
            "---",
            "--a",
            "-1",
            "-a: b",
            "./x",
            "1.2.3",
            "127.0.0.1",
            "1.2.3:4",
            "-.5",
            "-0x1",
            "--1",
            "a\n#b\n",
            "---\na",
            "a\n...\nb",
        ] {
            let value = map([
                ("key", text(string)),
                (if string == "<<" { "k" } else { string }, text("x")),
                (
                    "list",
                    Value::List(vec![text(string), map([("in", text(string))])]),
                ),
            ]);
            let written = yaml(&value);
            let values =
                parse::parse(&written).unwrap_or_else(|e| panic!("{string:?}: {e:?}\n{written}"));
            assert_eq!(values, [value], "{string:?}\n{written}");
        }
    }

    #[test]
    fn comments_stand_where_they_belong_and_change_nothing() {
        let value = map([
            (COMMENT, text("first")),
            ("none", Value::List(vec![map([(COMMENT, text("nothing"))])])),
            (
                "a",
                Value::List(vec![
                    map([(COMMENT, text("of a\nnone"))]),
                    map([
                        (COMMENT, text("in b")),
                        ("b", number(1)),
                        ("c", texts(vec!["d".to_owned()])),
                    ]),
                ]),
            ),
        ]);
        assert_eq!(
            yaml(&value),
            "# first\n# nothing\na:\n# of a\n# none\n- b: 1\n  # in b\n  c:\n  - d\n"
        );
    }
}
