//! Explanations of syntax errors, from the parser's messages.

use super::position::Place;

/// An error, its position, and advice.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Explained {
    pub(super) at: Place,
    pub(super) message: String,
    pub(super) hint: Option<&'static str>,
}

const TEMPLATE: &str =
    "`{{ … }}` is a template's: render it first, for example with `helm template`";

const TAB: &str = "replace it by spaces";

/// Explains the parser's `message` at the position it gave.
pub(super) fn explain(text: &str, at: Option<Place>, message: &str) -> Explained {
    if let Some(offset) = message.split_once("control characters are not allowed at position ") {
        return control_character(text, offset.1.parse().unwrap_or(0));
    }
    if let Some(at) = text.find('\u{feff}') {
        // Concatenated files: each began with a mark.
        return Explained {
            at: place(text, at),
            message: "not valid YAML: a byte order mark inside the file".to_owned(),
            hint: Some("remove it; it is invisible in most editors"),
        };
    }
    let at = at.unwrap_or((1, 1));
    let line = text.lines().nth(at.0.saturating_sub(1)).unwrap_or_default();
    let own = |message: &str, hint| Explained {
        at,
        message: format!("not valid YAML: {message}"),
        hint,
    };
    if let Some(column) = tab(line, at.1) {
        return Explained {
            at: (at.0, column),
            ..own("a tab, where only spaces may be", Some(TAB))
        };
    }
    // The position is shown before the message; leave it out of the message.
    let bare = match message.split(" at line ").next().unwrap_or_default() {
        "repetition limit exceeded" => "too many aliases of aliases",
        bare => bare,
    };
    if line.contains("{{") {
        return own(bare, Some(TEMPLATE));
    }
    let here = line.chars().nth(at.1.saturating_sub(1));
    match bare {
        "found unknown escape character" => {
            let next = line.chars().nth(at.1).map(String::from).unwrap_or_default();
            let hint = "use single quotes, or write the backslash twice";
            own(
                &format!("unknown escape `\\{next}` in double quotes"),
                Some(hint),
            )
        }
        "found character that cannot start any token" => match here {
            Some(sign) => own(
                &format!("`{sign}` cannot begin a value"),
                Some("quote the value"),
            ),
            None => own(bare, None),
        },
        "mapping values are not allowed in this context" => own(
            bare,
            Some("indent the keys of a mapping alike, and quote a value that holds `: `"),
        ),
        "block sequence entries are not allowed in this context" => {
            own(bare, Some("begin each item in a line of its own"))
        }
        "did not find expected ',' or '}'" | "did not find expected ',' or ']'" => own(
            bare,
            Some(
                "quote a value that holds quotes, brackets or commas, and write `\\\"` for a quote in double quotes",
            ),
        ),
        "did not find expected alphabetic or numeric character" => own(
            bare,
            Some("quote a value that begins with `*` or `&`, as a schedule does"),
        ),
        "did not find expected key" => own(bare, Some("indent the keys of a mapping alike")),
        "could not find expected ':'" => own(bare, Some("a key is followed by `: ` and its value")),
        _ => own(&format!("{bare}{}", begun(message, at.0)), None),
    }
}

/// Returns the column of an unexpected tab: at the position itself, or before the first word of its line.
fn tab(line: &str, column: usize) -> Option<usize> {
    let nth = column.saturating_sub(1);
    if line.chars().nth(nth) == Some('\t') {
        return Some(column);
    }
    let indentation = line.chars().take_while(|c| [' ', '\t'].contains(c));
    let tab = indentation.take(nth).position(|c| c == '\t')?;
    Some(tab + 1)
}

/// Adds where an unfinished construct began if that is a different line: `…, while parsing X at line 3 column 1`.
fn begun(message: &str, line: usize) -> String {
    let parts = message
        .split_once(", while ")
        .and_then(|(_, context)| context.split_once(" at line "));
    let Some((what, place)) = parts else {
        return String::new();
    };
    let number = place.split(' ').next().unwrap_or_default();
    match number.parse::<usize>() {
        Ok(begin) if begin != line => format!(" while {what} of line {begin}"),
        _ => String::new(),
    }
}

/// Returns the position of an offset.
pub(super) fn place(text: &str, offset: usize) -> Place {
    let before = text.get(..offset).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    (line, column)
}

fn control_character(text: &str, offset: usize) -> Explained {
    let sign = text.get(offset..).and_then(|rest| rest.chars().next());
    let code = u32::from(sign.unwrap_or_default());
    Explained {
        at: place(text, offset),
        message: format!(
            "not valid YAML: the control character U+{code:04X} may not stand in a file"
        ),
        hint: None,
    }
}

/// Returns advice for a value that looks like an unreplaced placeholder.
pub(super) fn placeholder(value: &str) -> Option<&'static str> {
    if value.contains("{{") && value.contains("}}") {
        return Some(TEMPLATE);
    }
    let (_, rest) = value.split_once("${")?;
    rest.contains('}').then_some(
        "`${…}` is not replaced here: write the value itself, or replace it before, for example with `envsubst`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::parse;

    /// Returns the explanation of a text: position, message, advice.
    fn said(text: &str) -> String {
        let problem = parse::parse(text).expect_err(text);
        let (line, column) = problem.at.expect("known");
        let hint = problem.hint.map(|hint| hint.sentence(None));
        let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        format!("{line}:{column}: {}{hint}", problem.message)
    }

    #[test]
    fn syntax_errors_are_explained_at_their_position() {
        let tab = "not valid YAML: a tab, where only spaces may be; replace it by spaces";
        for (text, place) in [
            ("a:\n\tb: c\n", "2:1"),
            ("a:\n  b:\n  \t- c\n", "3:3"),
            ("a: b\n\tc: d\n", "2:1"),
            ("a:\n  -\tb: c\n", "2:4"),
            ("a:\n  b: c\n\td: e\n", "3:1"),
            ("a:\r\n\tb: c\r\n", "2:1"),
            ("a: \"it\\'s\"\nb:\n\tc: d\n", "3:1"),
        ] {
            assert_eq!(said(text), format!("{place}: {tab}"), "{text:?}");
        }
        let template =
            "`{{ … }}` is a template's: render it first, for example with `helm template`";
        for (text, expected) in [
            (
                "a: {{ .Values.x }}",
                format!("1:4: not valid YAML: a: a mapping's key must be a string; {template}"),
            ),
            (
                "{{- if .x }}\na: b\n{{- end }}",
                format!("1:3: not valid YAML: did not find expected node content; {template}"),
            ),
            (
                "a: \"C:\\data\"",
                "1:7: not valid YAML: unknown escape `\\d` in double quotes; use single quotes, or write the \
                 backslash twice"
                    .to_owned(),
            ),
            (
                "a: \"\\' \\d\"",
                "1:8: not valid YAML: unknown escape `\\d` in double quotes; use single quotes, or write the \
                 backslash twice"
                    .to_owned(),
            ),
            (
                "a: @b",
                "1:4: not valid YAML: `@` cannot begin a value; quote the value".to_owned(),
            ),
            (
                "a: \"b\nc: d\n",
                "3:1: not valid YAML: found unexpected end of stream while scanning a quoted scalar of line 1"
                    .to_owned(),
            ),
            (
                "a: b\u{1}c",
                "1:5: not valid YAML: the control character U+0001 may not stand in a file".to_owned(),
            ),
            (
                "a: b\n---\n\u{feff}c: d\ne: f\n",
                "3:1: not valid YAML: a byte order mark inside the file; remove it; it is invisible in most editors"
                    .to_owned(),
            ),
            (
                "a: - b",
                "1:4: not valid YAML: block sequence entries are not allowed in this context; begin each item in a \
                 line of its own"
                    .to_owned(),
            ),
            (
                "a: b: c",
                "1:5: not valid YAML: mapping values are not allowed in this context; indent the keys of a mapping \
                 alike, and quote a value that holds `: `"
                    .to_owned(),
            ),
        ] {
            assert_eq!(said(text), expected, "{text:?}");
        }
    }

    #[test]
    fn placeholders_are_known_by_their_brackets() {
        for (value, known) in [
            ("{{ .x }}", true),
            ("a-${B}", true),
            ("$(B)", false),
            ("$B", false),
            ("${B", false),
            ("{ {", false),
        ] {
            assert_eq!(placeholder(value).is_some(), known, "{value}");
        }
    }
}
