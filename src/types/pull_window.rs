//! The times of day in which images may be pulled (`coracle.pullWindows`).

use std::fmt;

const MINUTE_MS: u64 = 60_000;

/// Minutes of a day.
const DAY: u32 = 24 * 60;

/// A time of day, `01:00-05:00`. One that ends before it begins goes past midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullWindow {
    /// Minutes since midnight.
    from: u32,
    /// The first minute after it.
    to: u32,
}

/// Whether images may be pulled now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullHours {
    /// They may. `None`: at any time.
    Open {
        /// Until then, in milliseconds.
        closes_in_ms: Option<u64>,
    },
    /// They may not.
    Closed {
        /// Until then, in milliseconds.
        opens_in_ms: u64,
        /// The window that opens next.
        next: PullWindow,
    },
}

impl PullWindow {
    /// Parses `01:00-05:00`; both are local times of day. A window of the whole day is `00:00-24:00`.
    pub fn parse(text: &str) -> Option<Self> {
        let (from, to) = text.split_once('-')?;
        let (from, to) = (minutes(from)?, minutes(to)?);
        (from != to && from < DAY).then_some(Self { from, to })
    }

    /// How many milliseconds it stays open, at this time of day.
    fn closes_in(self, now_ms: u64) -> Option<u64> {
        let (from, to) = (u64::from(self.from), u64::from(self.to));
        let (from, to, day) = (from * MINUTE_MS, to * MINUTE_MS, u64::from(DAY) * MINUTE_MS);
        match from < to {
            true => (from..to).contains(&now_ms).then(|| to - now_ms),
            false if now_ms >= from => Some(day - now_ms + to),
            false => (now_ms < to).then(|| to - now_ms),
        }
    }

    /// How many milliseconds remain until it opens.
    fn opens_in(self, now_ms: u64) -> u64 {
        let (from, day) = (u64::from(self.from) * MINUTE_MS, u64::from(DAY) * MINUTE_MS);
        match now_ms <= from {
            true => from - now_ms,
            false => (day - now_ms).saturating_add(from),
        }
    }
}

/// `HH:MM`, up to 24:00.
fn minutes(text: &str) -> Option<u32> {
    let (hours, minutes) = text.trim().split_once(':')?;
    let number = |text: &str| {
        let digits = text.len() <= 2 && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse::<u32>().ok())?
    };
    if minutes.len() != 2 {
        return None;
    }
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    (minutes < 60 && hours * 60 + minutes <= DAY).then_some(hours * 60 + minutes)
}

impl fmt::Display for PullWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |of: u32| (of / 60, of % 60);
        let ((from_h, from_m), (to_h, to_m)) = (time(self.from), time(self.to));
        write!(f, "{from_h:02}:{from_m:02}-{to_h:02}:{to_m:02}")
    }
}

impl PullHours {
    /// Looks at this local time of day, in milliseconds since midnight. `None`, while the clock is not set: then no
    /// window is open, and the first is the next.
    pub fn look(windows: &[PullWindow], now_ms: Option<u64>) -> Self {
        let Some(first) = windows.first() else {
            return Self::Open { closes_in_ms: None };
        };
        let Some(now) = now_ms else {
            return Self::Closed {
                opens_in_ms: MINUTE_MS,
                next: *first,
            };
        };
        // Windows may meet or overlap: the last that is open decides.
        let closes = windows.iter().filter_map(|window| window.closes_in(now));
        if let Some(closes_in_ms) = closes.max() {
            return Self::Open {
                closes_in_ms: Some(closes_in_ms),
            };
        }
        let next = windows.iter().min_by_key(|window| window.opens_in(now));
        let next = *next.unwrap_or(first);
        Self::Closed {
            opens_in_ms: next.opens_in(now),
            next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 60 * MINUTE_MS;

    #[test]
    fn a_window_is_two_times_of_day() {
        for (text, expected) in [
            ("01:00-05:00", Some("01:00-05:00")),
            ("1:00 - 5:30", Some("01:00-05:30")),
            ("22:00-06:00", Some("22:00-06:00")),
            ("00:00-24:00", Some("00:00-24:00")),
            ("24:00-05:00", None),
            ("05:00-05:00", None),
            ("01:00-24:01", None),
            ("01:60-02:00", None),
            ("01:0-02:00", None),
            ("+1:00-02:00", None),
            ("001:00-02:00", None),
            ("01:00", None),
            ("", None),
        ] {
            let parsed = PullWindow::parse(text).map(|window| window.to_string());
            assert_eq!(parsed.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn pulls_are_made_within_windows() {
        let windows: Vec<_> = ["01:00-05:00", "22:30-00:30", "04:00-06:00"]
            .iter()
            .filter_map(|text| PullWindow::parse(text))
            .collect();
        let open = |ms: u64| PullHours::Open {
            closes_in_ms: Some(ms),
        };
        let closed = |ms: u64, next: usize| PullHours::Closed {
            opens_in_ms: ms,
            next: windows[next],
        };
        for (now, expected) in [
            (0, open(HOUR / 2)),
            (HOUR / 2, closed(HOUR / 2, 0)),
            (HOUR - 1, closed(1, 0)),
            (HOUR, open(4 * HOUR)),
            (4 * HOUR, open(2 * HOUR)),
            (6 * HOUR, closed(16 * HOUR + HOUR / 2, 1)),
            (23 * HOUR, open(HOUR + HOUR / 2)),
        ] {
            assert_eq!(PullHours::look(&windows, Some(now)), expected, "at {now}");
        }
        let unset = PullHours::look(&windows, None);
        assert_eq!(unset, closed(MINUTE_MS, 0));
        let none = PullHours::look(&[], None);
        assert_eq!(none, PullHours::Open { closes_in_ms: None });
        let late = PullWindow::parse("00:10-00:20").into_iter();
        let late: Vec<_> = late.collect();
        assert_eq!(
            PullHours::look(&late, Some(24 * HOUR - MINUTE_MS)),
            PullHours::Closed {
                opens_in_ms: 11 * MINUTE_MS,
                next: late[0],
            }
        );
    }
}
