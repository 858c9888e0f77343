//! What a shell, systemd or compose splits into words, and the units of durations and sizes.

/// Splits like a POSIX shell that replaces nothing: quotes and backslashes.
pub(super) fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = text.chars().peekable();
    while let Some(c) = letters.next() {
        match c {
            '\'' => loop {
                match letters.next() {
                    Some('\'') => break word.get_or_insert_default().push_str(""),
                    Some(c) => word.get_or_insert_default().push(c),
                    None => return Err(format!("no closing ' in `{text}`")),
                }
            },
            '"' => loop {
                match letters.next() {
                    Some('"') => break word.get_or_insert_default().push_str(""),
                    Some('\\') if letters.peek().is_some_and(|c| "\"\\$`\n".contains(*c)) => {
                        let next = letters.next().filter(|c| *c != '\n');
                        word.get_or_insert_default().extend(next);
                    }
                    Some(c) => word.get_or_insert_default().push(c),
                    None => return Err(format!("no closing \" in `{text}`")),
                }
            },
            '\\' => match letters.next() {
                // A line that goes on.
                Some('\n') | None => {}
                Some('\r') if letters.peek() == Some(&'\n') => _ = letters.next(),
                Some(c) => word.get_or_insert_default().push(c),
            },
            c if c.is_whitespace() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Splits like podman does for programs and variables in units: quotes, of which the last one may be left open, and the
/// escapes of C (systemd.syntax(7)).
pub(super) fn split_unit(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = text.chars();
    while let Some(c) = letters.next() {
        match (quote, c) {
            (_, '\\') => {
                let (meant, rest) = escape(letters.as_str());
                word.get_or_insert_default().push_str(&meant);
                letters = rest.chars();
            }
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// The options of a line of CSV: quotes around one hold its commas, and two of them in it stand for one.
pub(super) fn fields(line: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut field = String::new();
    let mut is_quoted = false;
    let mut letters = line.chars().peekable();
    while let Some(c) = letters.next() {
        match c {
            '"' if is_quoted && letters.next_if_eq(&'"').is_some() => field.push(c),
            '"' if is_quoted || field.is_empty() => is_quoted = !is_quoted,
            ',' if !is_quoted => all.push(std::mem::take(&mut field)),
            c => field.push(c),
        }
    }
    all.push(field);
    all
}

/// What the text after a backslash means, and what follows. An unknown letter stays, with its backslash.
fn escape(text: &str) -> (String, &str) {
    let Some(first) = text.chars().next() else {
        return ("\\".to_owned(), "");
    };
    let rest = &text[first.len_utf8()..];
    let single = match first {
        'a' => '\u{7}',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\u{b}',
        's' | ' ' => ' ',
        '\\' | '"' | '\'' => first,
        'x' | 'u' | 'U' | '0'..='7' => {
            let (digits, radix, rest) = match first {
                'x' => (2, 16, rest),
                'u' => (4, 16, rest),
                'U' => (8, 16, rest),
                _ => (3, 8, text),
            };
            let number = rest
                .get(..digits)
                .filter(|d| d.chars().all(|c| c.is_digit(radix)));
            let number = number.and_then(|digits| u32::from_str_radix(digits, radix).ok());
            return match number.and_then(char::from_u32) {
                Some(c) => (c.to_string(), &rest[digits..]),
                None => (format!("\\{first}"), &text[first.len_utf8()..]),
            };
        }
        _ => return (format!("\\{first}"), rest),
    };
    (single.to_string(), rest)
}

/// Units of time, in seconds.
const TIMES: [(&str, f64); 10] = [
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("sec", 1.0),
    ("m", 60.0),
    ("min", 60.0),
    ("h", 3600.0),
    ("hr", 3600.0),
    ("d", 86_400.0),
];

/// A duration such as `1m30s`, `500ms` or `20` (seconds), in whole seconds, rounded up.
pub(super) fn seconds(text: &str) -> Option<u32> {
    let mut total = 0.0;
    let mut rest = text.trim();
    if let Ok(plain) = rest.parse::<f64>() {
        return whole(plain);
    }
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let value: f64 = rest[..unit_at].parse().ok()?;
        let unit = &rest[unit_at..];
        let unit_end = unit
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(unit.len());
        let name = unit[..unit_end].trim();
        let (_, seconds) = TIMES.iter().find(|(known, _)| *known == name)?;
        total += value * seconds;
        rest = &unit[unit_end..];
    }
    whole(total)
}

fn whole(seconds: f64) -> Option<u32> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the bounds are checked"
    )]
    (seconds >= 0.0 && seconds <= f64::from(i32::MAX)).then_some(seconds.ceil() as u32)
}

/// The names of a unit, the suffix that Kubernetes has for it, and its bytes.
const SIZES: [(&[&str], &str, f64); 5] = [
    (&["", "b"], "", 1.0),
    (&["k", "kb", "ki", "kib"], "Ki", 1024.0),
    (&["m", "mb", "mi", "mib"], "Mi", 1_048_576.0),
    (&["g", "gb", "gi", "gib"], "Gi", 1_073_741_824.0),
    (&["t", "tb", "ti", "tib"], "Ti", 1_099_511_627_776.0),
];

/// A size in docker's words (`512m`, `1gb`, `100`), whose units are powers of 1024, as a Kubernetes quantity.
pub(super) fn size(text: &str) -> Option<String> {
    let lower = text.trim().to_ascii_lowercase();
    let unit_at = lower.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (value, unit) = lower.split_at(unit_at.unwrap_or(lower.len()));
    let (_, suffix, factor) = SIZES
        .iter()
        .find(|(names, ..)| names.contains(&unit.trim()))?;
    if let Ok(whole) = value.parse::<u64>() {
        return Some(format!("{whole}{suffix}"));
    }
    let bytes: f64 = value.parse().ok()?;
    Some(format!("{:.0}", bytes * factor))
}

/// A name as Kubernetes allows it for pods and services: letters, digits and `-`, a letter first.
pub(super) fn object_name(written: &str) -> String {
    let letter = |c: char| match c.to_ascii_lowercase() {
        c if c.is_ascii_alphanumeric() => c,
        _ => '-',
    };
    let name: String = written.chars().map(letter).take(50).collect();
    match name.trim_matches('-') {
        "" => "app".to_owned(),
        name if name.starts_with(|c: char| c.is_ascii_digit()) => format!("s-{name}"),
        name => name.to_owned(),
    }
}

/// The first of `wish`, `wish-2`, `wish-3` … that is free.
pub(super) fn first_free(wish: &str, is_free: &mut dyn FnMut(&str) -> bool) -> String {
    let mut name = wish.to_owned();
    let mut number = 2;
    while !is_free(&name) {
        name = format!("{wish}-{number}");
        number += 1;
    }
    name
}

/// Text that Kubernetes is to take as it is: it replaces `$(NAME)`, and makes `$` of `$$`.
pub(super) fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(c) = letters.next() {
        out.push(c);
        if c == '$' && matches!(letters.peek(), Some('$' | '(')) {
            out.push('$');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_a_shell_does() {
        for (text, expected) in [
            ("a  b\n c", &["a", "b", "c"][..]),
            ("'a b' \"c \\\" d\" e\\ f", &["a b", "c \" d", "e f"]),
            ("a''b '' \"\"", &["ab", "", ""]),
            (
                "sh -c 'echo \"$X\" && x'",
                &["sh", "-c", "echo \"$X\" && x"],
            ),
            ("docker run \\\n  -d x\\\r\n", &["docker", "run", "-d", "x"]),
            ("\"a\\nb\"", &["a\\nb"]),
            ("", &[]),
        ] {
            assert_eq!(
                split(text).as_deref(),
                Ok(&*expected.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>())
            );
        }
        assert!(split("'a").is_err() && split("\"a").is_err());
    }

    #[test]
    fn units_of_systemd_are_split_with_the_escapes_of_c() {
        for (text, expected) in [
            (
                r#"/some/path "a;b\nc" a;b\nc '\110ello' x\x20y \u00e4 \\ \q"#,
                &[
                    "/some/path",
                    "a;b\nc",
                    "a;b\nc",
                    "Hello",
                    "x y",
                    "ä",
                    "\\",
                    "\\q",
                ][..],
            ),
            ("D=a\\x20b '' \"\"", &["D=a b", "", ""]),
            (
                "a\\ b 'c\"d' \\x2 \\ud800",
                &["a b", "c\"d", "\\x2", "\\ud800"],
            ),
            ("", &[]),
            ("end\\", &["end\\"]),
            ("it's open", &["its open"]),
        ] {
            let expected: Vec<_> = expected.iter().map(|w| (*w).to_owned()).collect();
            assert_eq!(split_unit(text), expected, "{text}");
        }
    }

    #[test]
    fn quotes_hold_the_commas_of_options() {
        for (line, expected) in [
            ("a=b,c", &["a=b", "c"][..]),
            ("\"src=/a,b\",dst=/c", &["src=/a,b", "dst=/c"]),
            ("\"a\"\"b\",c\"d", &["a\"b", "c\"d"]),
            ("", &[""]),
        ] {
            assert_eq!(fields(line), expected, "{line}");
        }
    }

    #[test]
    fn units_are_read() {
        for (text, expected) in [
            ("30s", Some(30)),
            ("1m30s", Some(90)),
            ("500ms", Some(1)),
            ("1.5m", Some(90)),
            ("20", Some(20)),
            ("1h", Some(3600)),
            ("5 min", Some(300)),
            ("", Some(0)),
            ("x", None),
            ("-1", None),
            ("1e300s", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
        for (text, expected) in [
            ("512m", Some("512Mi")),
            ("1gb", Some("1Gi")),
            ("64K", Some("64Ki")),
            ("100", Some("100")),
            ("0.5g", Some("536870912")),
            ("1 MiB", Some("1Mi")),
            ("x", None),
            ("1x", None),
            ("-1", None),
        ] {
            assert_eq!(size(text).as_deref(), expected, "{text}");
        }
        for (given, expected) in [
            ("my_db", "my-db"),
            ("Web.1", "web-1"),
            ("-", "app"),
            ("4g", "s-4g"),
            ("ÄÖ", "app"),
        ] {
            assert_eq!(object_name(given), expected);
        }
        for (given, expected) in [
            ("a$b", "a$b"),
            ("$(x)", "$$(x)"),
            ("$$", "$$$"),
            ("$$(x)", "$$$$(x)"),
            ("$", "$"),
        ] {
            assert_eq!(literal(given), expected);
        }
    }
}
