//! Timestamps of log records, in UTC. Written without a library, because every piece of output has one.

use crate::sys::clock;

/// A moment in the notation of logs.
pub(super) struct Stamp {
    pub(super) text: String,
}

impl Stamp {
    /// The current time.
    pub(super) fn now() -> Self {
        let (seconds, nanos) = clock::wall_ns();
        Self {
            text: rfc3339_nano(seconds, nanos),
        }
    }
}

/// `2026-01-02T03:04:05.000000006Z`.
pub(super) fn rfc3339_nano(seconds: i64, nanos: u32) -> String {
    let [year, month, day, hour, minute, second] = civil(seconds);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

/// Year, month, day, hour, minute, second of a UTC time (Howard Hinnant's `civil_from_days`).
pub(super) fn civil(seconds: i64) -> [i64; 6] {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    [year, month, day, rest / 3600, rest / 60 % 60, rest % 60]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_in_other_runtimes() {
        assert_eq!(rfc3339_nano(0, 0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(
            rfc3339_nano(951_782_399, 5),
            "2000-02-28T23:59:59.000000005Z"
        );
        assert_eq!(
            rfc3339_nano(1_709_210_096, 120),
            "2024-02-29T12:34:56.000000120Z"
        );
    }
}
