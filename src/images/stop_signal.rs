//! The stop signal in an image's config.

use crate::spec::StopSignalName;

/// The signal; `None` if no signal has that name or number.
pub fn stop_signal(text: &str) -> Option<StopSignalName> {
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let known = StopSignalName::parse(&format!("SIG{name}"));
    known.or_else(|| StopSignalName::of(number(text)?))
}

/// `SIGTERM`, `TERM` or `15`.
fn number(text: &str) -> Option<i32> {
    if let Ok(number) = text.parse::<i32>() {
        return (1..=64).contains(&number).then_some(number);
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name).to_owned();
    if let Some(rest) = name.strip_prefix("RTMIN") {
        return rest
            .trim_start_matches('+')
            .parse()
            .ok()
            .or(rest.is_empty().then_some(0))
            .map(|n: i32| 34 + n);
    }
    format!("SIG{name}")
        .parse::<nix::sys::signal::Signal>()
        .ok()
        .map(|signal| signal as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_signals_are_understood_in_every_spelling() {
        for (text, expected) in [
            ("SIGTERM", Some(15)),
            ("TERM", Some(15)),
            ("sigquit", Some(3)),
            ("9", Some(9)),
            ("SIGRTMIN+3", Some(37)),
            ("SIGRTMIN", Some(34)),
            ("99", None),
            ("nonsense", None),
        ] {
            assert_eq!(number(text), expected, "{text}");
            let named = stop_signal(text).is_some();
            assert_eq!(named, expected.is_some(), "{text}");
        }
    }
}
