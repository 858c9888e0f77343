//! `Retry-After`: how long a registry asks its clients to stay away (RFC 9110, section 10.2.3).

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;

/// The wait after an answer without this header.
const DEFAULT: Duration = Duration::from_secs(1);

/// The wait that a header asks for: seconds, or a date.
pub(super) fn wait(header: Option<&str>, now: Timestamp) -> Duration {
    let Some(header) = header.map(str::trim) else {
        return DEFAULT;
    };
    if let Ok(seconds) = header.parse() {
        return Duration::from_secs(seconds);
    }
    match DateTimeParser::new().parse_timestamp(header) {
        Ok(then) => then
            .duration_since(now)
            .try_into()
            .unwrap_or(Duration::ZERO),
        Err(_) => DEFAULT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_given_in_seconds_or_as_a_date() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (header, seconds) in [
            (None, 1),
            (Some("0"), 0),
            (Some(" 120 "), 120),
            (Some("Thu, 01 Jan 2026 00:00:30 GMT"), 30),
            (Some("Thu, 01 Jan 2015 00:00:30 GMT"), 0),
            (Some("soon"), 1),
            (Some("-5"), 1),
            (Some("18446744073709551615"), u64::MAX),
        ] {
            assert_eq!(wait(header, now).as_secs(), seconds, "{header:?}");
        }
    }
}
