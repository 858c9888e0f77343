//! Variables in compose files (`${NAME:-default}`), and files with variables (`.env`), as compose reads them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use super::numbers;
use crate::spec::value::Value;

/// Limit of the text that variables are replaced by, in bytes.
const MAX_BYTES: usize = 10 << 20;

/// Limit of defaults in defaults.
const MAX_DEPTH: usize = 16;

/// Replaces variables.
pub(super) struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    left: Cell<usize>,
    /// The variables that are not set.
    missing: RefCell<BTreeSet<String>>,
    /// Numbers that compose reads in another way.
    numbers: RefCell<BTreeSet<String>>,
}

impl<'a> Variables<'a> {
    pub(super) fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self {
            lookup,
            left: Cell::new(MAX_BYTES),
            missing: RefCell::default(),
            numbers: RefCell::default(),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<String> {
        (self.lookup)(name)
    }

    /// The variables that were wanted and are not set.
    pub(super) fn missing(&self) -> Vec<String> {
        self.missing.borrow().iter().cloned().collect()
    }

    /// Notes numbers of a file of which compose makes others: without quotes, `022` is octal to it, and `1_0` ten.
    pub(super) fn note_numbers(&self, file: &str) {
        self.numbers.borrow_mut().extend(numbers::changed(file));
    }

    /// Says of these numbers that they stay.
    pub(super) fn say_numbers(&self, lost: &mut Vec<String>) {
        for number in &*self.numbers.borrow() {
            lost.push(format!(
                "`{number}`: it stays as it is written; without quotes, compose makes another number of it"
            ));
        }
    }

    /// Replaces the variables of all strings but keys.
    pub(super) fn replace_all(&self, value: &mut Value) -> Result<(), String> {
        match value {
            Value::String(text) if text.contains('$') => *text = self.replace(text)?,
            Value::List(items) => items
                .iter_mut()
                .try_for_each(|item| self.replace_all(item))?,
            Value::Map(entries) => {
                let mut values = entries.iter_mut();
                values.try_for_each(|(_, value)| self.replace_all(value))?;
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn replace(&self, text: &str) -> Result<String, String> {
        self.expand(text, MAX_DEPTH)
    }

    fn expand(&self, text: &str, depth: usize) -> Result<String, String> {
        let depth = depth
            .checked_sub(1)
            .ok_or("too many defaults in defaults")?;
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            out.push_str(before);
            if let Some(after) = after.strip_prefix('$') {
                out.push('$');
                rest = after;
            } else if let Some(inner) = after.strip_prefix('{') {
                let end = closing(inner, "{").or_else(|| closing(inner, "${"));
                let end = end.ok_or_else(|| format!("`${{` without `}}` in `{text}`"))?;
                out.push_str(&self.braced(&inner[..end], depth)?);
                rest = &inner[end + 1..];
            } else {
                let end = name_end(after);
                match end {
                    0 => out.push('$'),
                    _ => out.push_str(&self.value(&after[..end])),
                }
                rest = &after[end..];
            }
            self.spend(&out)?;
        }
        out.push_str(rest);
        self.spend(&out)?;
        self.left.set(self.left.get() - out.len());
        Ok(out)
    }

    fn spend(&self, out: &str) -> Result<(), String> {
        match out.len() > self.left.get() {
            true => Err("variables make more than 10 MiB of text".to_owned()),
            false => Ok(()),
        }
    }

    fn value(&self, name: &str) -> String {
        self.get(name).unwrap_or_else(|| {
            self.missing.borrow_mut().insert(name.to_owned());
            String::new()
        })
    }

    /// `NAME`, or with one of the forms that say what to do if it is not set, or (with a colon) empty.
    fn braced(&self, inner: &str, depth: usize) -> Result<String, String> {
        let end = name_end(inner);
        let (name, form) = inner.split_at(end);
        if name.is_empty() {
            return Err(format!("`${{{inner}}}` has no name"));
        }
        let (or_empty, form) = match form.strip_prefix(':') {
            Some(form) => (true, form),
            None => (false, form),
        };
        let found = self
            .get(name)
            .filter(|value| !or_empty || !value.is_empty());
        let word = form.get(1..).unwrap_or_default();
        match (form.chars().next(), found) {
            (None, _) if !or_empty => Ok(self.value(name)),
            (Some('-' | '?'), Some(found)) => Ok(found),
            (Some('+'), None) => Ok(String::new()),
            (Some('-'), None) | (Some('+'), Some(_)) => self.expand(word, depth),
            (Some('?'), None) => Err(match word {
                "" => format!("the variable `{name}` is not set"),
                why => format!("the variable `{name}` is not set: {why}"),
            }),
            _ => Err(format!("`${{{inner}}}` is no form that compose knows")),
        }
    }
}

/// The length of the name at the beginning.
fn name_end(text: &str) -> usize {
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match text.starts_with(|c: char| c.is_ascii_digit()) {
        true => 0,
        false => text.find(|c| !letter(c)).unwrap_or(text.len()),
    }
}

/// The position of the bracket that closes the one before the text, if others open with these letters.
fn closing(text: &str, opening: &str) -> Option<usize> {
    let mut open = 1_usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' if text[..=at].ends_with(opening) => open += 1,
            '}' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Some(at);
        }
    }
    None
}

/// What to say of a variable without a value.
pub(super) fn unset(name: &str) -> String {
    format!("${name}: it is not set, and empty here")
}

/// What a file of variables says.
#[derive(Debug, Default)]
pub(super) struct EnvFile {
    pub(super) pairs: Vec<(String, String)>,
    /// The variables that it names and that are not set.
    pub(super) missing: Vec<String>,
}

impl EnvFile {
    /// The value of a name, which may be there several times: the last one counts.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        let mut pairs = self.pairs.iter().rev();
        let found = pairs.find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone())
    }

    pub(super) fn add(&mut self, other: Self) {
        self.pairs.extend(other.pairs);
        self.missing.extend(other.missing);
    }
}

/// Reads a file of variables: `NAME=VALUE`, with quotes, comments and (but between single quotes) variables, those of
/// the lines before included. A name without a value has that of the environment, or none.
pub(super) fn env_file(
    text: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<EnvFile, String> {
    env_file_after(text, lookup, &|_| None)
}

/// Like [`env_file`]. `before` are the variables of files before this one, whose own lines come first.
pub(super) fn env_file_after(
    text: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
    before: &dyn Fn(&str) -> Option<String>,
) -> Result<EnvFile, String> {
    let mut found = EnvFile::default();
    let mut missing = BTreeSet::new();
    let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    while !rest.is_empty() {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        let start = line.trim_start();
        if start.trim().is_empty() || start.starts_with('#') {
            rest = after;
            continue;
        }
        let Some(end) = line.find(['=', ':']) else {
            let name = line.trim();
            let value = lookup(name).or_else(|| before(name));
            found
                .pairs
                .extend(value.map(|value| (name.to_owned(), value)));
            rest = after;
            continue;
        };
        let name = line[..end].trim().trim_start_matches("export ").trim();
        let name = name.to_owned();
        let (raw, quote, after) = env_value(&rest[end + 1..])?;
        let seen = |wanted: &str| {
            let own = || found.get(wanted);
            lookup(wanted).or_else(own).or_else(|| before(wanted))
        };
        let value = match quote {
            Some('\'') => raw,
            _ => {
                let variables = Variables::new(&seen);
                let value = variables.replace(&raw)?;
                missing.extend(variables.missing());
                value
            }
        };
        found.pairs.push((name, value));
        rest = after;
    }
    found.missing.extend(missing);
    Ok(found)
}

/// Reads a file of variables as `docker run --env-file` and podman do: `NAME=VALUE` to the end of the line as it stands. A
/// name without a value has that of the environment, or none.
pub(super) fn raw_env_file(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> EnvFile {
    let mut file = EnvFile::default();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for line in text.lines().map(str::trim_start) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = match line.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (line.trim_end(), lookup(line.trim_end())),
        };
        file.pairs
            .extend(value.map(|value| (name.to_owned(), value)));
    }
    file
}

/// A value up to the end of its line or of its quotes: what it says, its quote, and what follows.
fn env_value(text: &str) -> Result<(String, Option<char>, &str), String> {
    let start = text.trim_start_matches([' ', '\t']);
    let quote = start.chars().next().filter(|c| matches!(c, '"' | '\''));
    let Some(quote) = quote else {
        let (line, after) = start.split_once('\n').unwrap_or((start, ""));
        // A value may begin with the letter.
        let end = line.find(" #").unwrap_or(line.len());
        return Ok((line[..end].trim().to_owned(), None, after));
    };
    let mut value = String::new();
    let mut escaped = false;
    for (at, c) in start.char_indices().skip(1) {
        if escaped {
            escaped = false;
            if quote == '\'' {
                value.push(c);
                continue;
            }
            match c {
                'n' => value.push('\n'),
                't' => value.push('\t'),
                'r' => value.push('\r'),
                '$' => value.push_str("$$"),
                '"' | '\\' => value.push(c),
                other => value.extend(['\\', other]),
            }
        } else if c == '\\' && (quote == '"' || start[at + 1..].starts_with('\'')) {
            escaped = true;
        } else if c == quote {
            let rest = &start[at + 1..];
            return Ok((
                value,
                Some(quote),
                rest.split_once('\n').map_or("", |(_, after)| after),
            ));
        } else {
            value.push(c);
        }
    }
    Err(format!("a value has no closing {quote}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(name: &str) -> Option<String> {
        match name {
            "A" => Some("a".into()),
            "EMPTY" => Some(String::new()),
            "BIG" => Some("x".repeat(1 << 20)),
            _ => None,
        }
    }

    #[test]
    fn variables_are_replaced_as_compose_does() {
        for (given, expected) in [
            ("x$A-${A}y", "xa-ay"),
            ("$$A $${A}", "$A ${A}"),
            ("${B}", ""),
            ("${B:-d}${EMPTY:-e}${EMPTY-f}", "de"),
            ("${A:+set}${B:+set}${EMPTY+set}${EMPTY:+no}", "setset"),
            ("${B:-${C:-${A}}}", "a"),
            ("${B:-http://x/{y}}", "http://x/{y}"),
            ("${A:?no}", "a"),
            ("50%", "50%"),
            ("a $ b, ^c$, $1, $}", "a $ b, ^c$, $1, $}"),
            ("${A:-{\"b\":1}}", "a"),
            ("${B:-{\"b\":1}}", "{\"b\":1}"),
            ("${B:-{}", "{"),
        ] {
            assert_eq!(
                Variables::new(&lookup).replace(given).as_deref(),
                Ok(expected),
                "{given}"
            );
        }
        let big = "$BIG".repeat(20);
        for (given, error) in [
            ("${B:?needed}", "the variable `B` is not set: needed"),
            ("${B?}", "the variable `B` is not set"),
            ("${A", "`${` without `}` in `${A`"),
            ("${}", "`${}` has no name"),
            ("${A/b}", "`${A/b}` is no form that compose knows"),
            (&*big, "variables make more than 10 MiB of text"),
        ] {
            assert_eq!(
                Variables::new(&lookup).replace(given),
                Err(error.to_owned())
            );
        }
        let deep = format!("{}{}", "${B:-".repeat(20), "}".repeat(20));
        assert!(Variables::new(&lookup).replace(&deep).is_err());
    }

    #[test]
    fn files_of_variables_are_read_as_compose_does() {
        let text = "\u{feff}# note\nONE=1 # one\nexport TWO = two words\nTHREE='$A # x'\r\nFOUR=\"${ONE}-$A\\n\\$x\"\n\n\
                    FIVE=\"two\nlines\"\nA\nNONE\nSIX=#x\nSIXTH= #x #y\nSEVEN=a#b\nEIGHT: b=c\nNINE='it\\'s \\n'";
        let expected = [
            ("ONE", "1"),
            ("TWO", "two words"),
            ("THREE", "$A # x"),
            ("FOUR", "1-a\n$x"),
            ("FIVE", "two\nlines"),
            ("A", "a"),
            ("SIX", "#x"),
            ("SIXTH", "#x"),
            ("SEVEN", "a#b"),
            ("EIGHT", "b=c"),
            ("NINE", "it's \\n"),
        ];
        let found = env_file(text, &lookup).unwrap();
        let pairs: Vec<_> = found.pairs.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert_eq!(pairs, expected);
        assert_eq!(found.missing, [""; 0]);
        assert_eq!(env_file("A=pa$sword", &lookup).unwrap().missing, ["sword"]);
        assert!(env_file("A=\"b", &lookup).is_err());
    }
}
