//! Schedules as tables.

use super::*;

fn seconds(text: &str) -> i64 {
    text.parse::<Timestamp>().expect(text).as_second()
}

/// Central Europe, by its rule: the last Sundays of March and October.
fn berlin() -> TimeZone {
    TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a rule")
}

#[test]
fn the_next_time_is_that_of_the_parser_of_upstream() {
    for (schedule, after, expected) in [
        ("* * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"),
        ("* * * * *", "2026-01-01T00:00:59Z", "2026-01-01T00:01:00Z"),
        (
            "*/15 * * * *",
            "2026-01-01T00:46:00Z",
            "2026-01-01T01:00:00Z",
        ),
        (
            "5/15 * * * *",
            "2026-01-01T00:21:00Z",
            "2026-01-01T00:35:00Z",
        ),
        (
            "20-35/15 * * * *",
            "2026-01-01T00:21:00Z",
            "2026-01-01T00:35:00Z",
        ),
        ("0 3 * * *", "2026-12-31T03:00:00Z", "2027-01-01T03:00:00Z"),
        (
            "0,30 8-17 ? * MON-FRI",
            "2026-01-02T17:30:00Z",
            "2026-01-05T08:00:00Z",
        ),
        (
            "0 0 1 JAN,jul *",
            "2026-01-01T00:00:00Z",
            "2026-07-01T00:00:00Z",
        ),
        // Both days are limited: either fits.
        ("0 0 13 * 5", "2026-01-09T00:00:00Z", "2026-01-13T00:00:00Z"),
        ("0 0 13 * 5", "2026-01-13T00:00:00Z", "2026-01-16T00:00:00Z"),
        // `*/2` limits the day, as upstream.
        (
            "0 0 */2 * 1",
            "2026-01-05T00:00:00Z",
            "2026-01-07T00:00:00Z",
        ),
        ("0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("0 0 29 2 *", "2097-01-01T00:00:00Z", "2104-02-29T00:00:00Z"),
        ("@yearly", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("@annually", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("@monthly", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"),
        ("@weekly", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"),
        ("@daily", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
        ("@midnight", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
        ("@hourly", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"),
        (
            "@every 1h30m",
            "2026-01-01T00:00:07Z",
            "2026-01-01T01:30:07Z",
        ),
        ("@every 1s", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"),
    ] {
        let parsed = Schedule::parse(schedule).expect(schedule);
        let next = parsed.next(seconds(after), &TimeZone::UTC);
        assert_eq!(next, Some(seconds(expected)), "{schedule} after {after}");
    }
    let never = Schedule::parse("0 0 30 2 *").unwrap();
    assert_eq!(
        never.next(seconds("2026-01-01T00:00:00Z"), &TimeZone::UTC),
        None
    );
}

#[test]
fn a_change_of_the_offset_leaves_times_out_and_repeats_none() {
    for (schedule, after, expected) in [
        ("30 2 * * *", "2026-07-01T00:00:00Z", "2026-07-01T00:30:00Z"),
        ("30 2 * * *", "2026-12-01T00:00:00Z", "2026-12-01T01:30:00Z"),
        // There is no 02:30 on 29 March.
        ("30 2 * * *", "2026-03-28T12:00:00Z", "2026-03-30T00:30:00Z"),
        ("0 3 * * *", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z"),
        // On 25 October there are two.
        ("30 2 * * *", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"),
        ("30 2 * * *", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"),
        ("30 * * * *", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"),
    ] {
        let parsed = Schedule::parse(schedule).expect(schedule);
        let next = parsed.next(seconds(after), &berlin());
        assert_eq!(next, Some(seconds(expected)), "{schedule} after {after}");
    }
}

#[test]
fn the_latest_time_is_found_over_years() {
    for (schedule, after, until, expected) in [
        (
            "* * * * *",
            "2020-01-01T00:00:00Z",
            "2026-01-01T00:00:30Z",
            Some("2026-01-01T00:00:00Z"),
        ),
        (
            "* * * * 1",
            "2020-01-01T00:00:00Z",
            "2026-01-11T12:00:00Z",
            Some("2026-01-05T23:59:00Z"),
        ),
        (
            "0 0 29 2 *",
            "2020-01-01T00:00:00Z",
            "2026-01-01T00:00:00Z",
            Some("2024-02-29T00:00:00Z"),
        ),
        (
            "0 3 * * *",
            "2026-01-01T03:00:00Z",
            "2026-01-02T02:59:59Z",
            None,
        ),
        (
            "0 3 * * *",
            "2026-01-01T03:00:00Z",
            "2026-01-02T03:00:00Z",
            Some("2026-01-02T03:00:00Z"),
        ),
        (
            "@every 1h",
            "2026-01-01T00:10:00Z",
            "2026-01-02T00:00:00Z",
            Some("2026-01-01T23:10:00Z"),
        ),
    ] {
        let parsed = Schedule::parse(schedule).expect(schedule);
        let latest = parsed.latest(seconds(after), seconds(until), &TimeZone::UTC);
        assert_eq!(latest, expected.map(seconds), "{schedule} until {until}");
    }
}

#[test]
fn errors_are_those_of_the_parser_of_upstream() {
    for (schedule, expected) in [
        ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
        (
            "0 * * * * *",
            "expected exactly 5 fields, found 6: [0 * * * * *]",
        ),
        ("60 * * * *", "end of range (60) above maximum (59): 60"),
        ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
        ("* * * * 7", "end of range (7) above maximum (6): 7"),
        (
            "9-5 * * * *",
            "beginning of range (9) beyond end of range (5): 9-5",
        ),
        (
            "*/0 * * * *",
            "step of range should be a positive number: */0",
        ),
        ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
        ("1/2/3 * * * *", "too many slashes: 1/2/3"),
        ("x * * * *", "failed to parse int from x: invalid syntax"),
        ("@noon", "unrecognized descriptor: @noon"),
        (
            "@every soon",
            "failed to parse duration @every soon: invalid duration \"soon\"",
        ),
    ] {
        assert_eq!(Schedule::parse(schedule), Err(expected.to_owned()));
    }
}
