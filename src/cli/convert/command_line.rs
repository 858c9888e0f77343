//! The words of a command that is one string, as compose splits it: without a shell, and not as one would.
//!
//! The rules are those of <https://github.com/mattn/go-shellwords>, which compose-go uses for `command`, `entrypoint` and
//! the programs of hooks.

use super::tree::{entries, items};
use crate::spec::value::Value;

/// A command's words.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Words<'t> {
    pub(super) words: Vec<String>,
    /// What compose leaves out: everything from the first letter that a shell would take as the end of a command.
    pub(super) left_out: Option<&'t str>,
}

/// The letters that a text is between.
#[derive(Default)]
struct Inside {
    single: bool,
    double: bool,
    back: bool,
    /// After `$(`.
    dollar: bool,
}

impl Inside {
    fn any(&self) -> bool {
        self.single || self.double || self.back || self.dollar
    }
}

pub(super) fn split(text: &str) -> Result<Words<'_>, String> {
    let failed = || {
        format!("`{text}`: compose can split it only if quotes are closed and brackets are in them")
    };
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut inside = Inside::default();
    let mut left_out = None;
    let mut letters = text.char_indices();
    while let Some((at, c)) = letters.next() {
        match c {
            '\\' if !inside.single => {
                let (_, escaped) = letters.next().ok_or_else(failed)?;
                word.get_or_insert_default().push(escaped);
                continue;
            }
            ' ' | '\t' | '\r' | '\n' if !inside.any() => {
                words.extend(word.take());
                continue;
            }
            '`' if !inside.single && !inside.double && !inside.dollar => inside.back = !inside.back,
            ')' if !inside.single && !inside.double && !inside.back => {
                inside.dollar = !inside.dollar;
            }
            '(' if !inside.single && !inside.double && !inside.back => {
                let follows = word.as_ref().is_some_and(|word| word.ends_with('$'));
                if inside.dollar || !follows {
                    return Err(failed());
                }
                inside.dollar = true;
            }
            '"' if !inside.single && !inside.dollar => {
                inside.double = !inside.double;
                word.get_or_insert_default();
                continue;
            }
            '\'' if !inside.double && !inside.dollar => {
                inside.single = !inside.single;
                word.get_or_insert_default();
                continue;
            }
            ';' | '&' | '|' | '<' | '>' if !inside.any() => {
                // The number of a stream.
                word.take_if(|word| c == '>' && word.starts_with(|c: char| c.is_ascii_digit()));
                left_out = Some(&text[at..]);
                break;
            }
            _ => {}
        }
        word.get_or_insert_default().push(c);
    }
    words.extend(word);
    match inside.any() {
        true => Err(failed()),
        false => Ok(Words { words, left_out }),
    }
}

/// Refuses commands of a service that cannot be split.
pub(super) fn check(name: &str, service: &Value) -> Result<(), String> {
    let of = |key: &str, value: Option<&Value>| match value {
        Some(Value::String(line)) => {
            let split = split(line).map(|_| ());
            split.map_err(|why| format!("{key} of `{name}`: {why}"))
        }
        _ => Ok(()),
    };
    for (key, value) in entries(Some(service)) {
        match &**key {
            "command" | "entrypoint" => of(key, Some(value))?,
            "post_start" | "pre_stop" => {
                let mut hooks = items(Some(value)).iter();
                hooks.try_for_each(|hook| of(key, hook.get("command")))?;
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_split_as_compose_does() {
        for (text, words, left_out) in [
            ("a  b\n c", &["a", "b", "c"][..], None),
            (r#"sh -c "a\nb""#, &["sh", "-c", "anb"], None),
            (r#""\\$\x\"" 'a\b' a\b"#, &["\\$x\"", "a\\b", "ab"], None),
            ("a\\\nb c\nd", &["a\nb", "c", "d"], None),
            (r#"a""b "" ''"#, &["ab", "", ""], None),
            ("echo a && echo b", &["echo", "a"], Some("&& echo b")),
            ("echo a;b", &["echo", "a"], Some(";b")),
            ("a 2>b c", &["a"], Some(">b c")),
            ("a2>b c", &["a2"], Some(">b c")),
            ("a >b", &["a"], Some(">b")),
            ("; a", &[], Some("; a")),
            (r#"a";b|c"d"#, &["a;b|cd"], None),
            ("a `b; c` d #e", &["a", "`b; c`", "d", "#e"], None),
            ("a $(b; \"c) d", &["a", "$(b; \"c)", "d"], None),
            ("a`(`b \"(\" '('", &["a`(`b", "(", "("], None),
        ] {
            let words = words.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(split(text), Ok(Words { words, left_out }), "{text}");
        }
        for text in ["a (b)", "a \"b", "a 'b", "a `b", "a )b", "a\\", "$(a $(b))"] {
            let why = split(text).unwrap_err();
            assert!(why.contains(&format!("`{text}`")), "{why}");
        }
    }
}
