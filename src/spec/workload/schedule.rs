//! Schedules of CronJobs, as robfig/cron's standard parser takes them, with its messages: five fields, or a descriptor.
//!
//! Times are seconds of the wall clock since 1970. An hour that a change to summer time leaves out has no times; of an hour
//! that a change back repeats, only the first has, unless the schedule is for every hour.

use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::civil::{DateTime, date};
use k8s_openapi::jiff::tz::TimeZone;

use crate::types::duration_ms;

/// Names of months and days of the week, in threes.
const MONTHS: &str = "janfebmaraprmayjunjulaugsepoctnovdec";
const DAYS: &str = "sunmontuewedthufrisat";

/// Bounds of the fields, and the names of their values.
const FIELDS: [(u32, u32, &str); 5] = [
    (0, 59, ""),
    (0, 23, ""),
    (1, 31, ""),
    (1, 12, MONTHS),
    (0, 6, DAYS),
];

/// A leap day is at most so many years away. A day that is not found until then (30 February) does not exist.
const MAX_YEARS: i16 = 8;

/// The shortest time between two runs: their Jobs are named by the minute.
const MIN_EVERY_S: i64 = 60;

/// When a CronJob runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    /// At these minutes, hours, days, months and days of the week.
    At([Field; 5]),
    /// So many seconds after the time before.
    Every(i64),
}

/// The values of one field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    bits: u64,
    /// It is `*` or `?`.
    star: bool,
}

impl Field {
    fn has<N: Into<i64>>(self, value: N) -> bool {
        let bit = u32::try_from(value.into()).ok();
        bit.and_then(|bit| 1u64.checked_shl(bit))
            .is_some_and(|bit| self.bits & bit != 0)
    }
}

impl Schedule {
    /// Parses a schedule.
    ///
    /// # Errors
    /// What robfig/cron says.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(descriptor) = text.strip_prefix('@') {
            return described(text, descriptor);
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        let Ok(words) = <[&str; 5]>::try_from(words.as_slice()) else {
            let (found, words) = (words.len(), words.join(" "));
            return Err(format!(
                "expected exactly 5 fields, found {found}: [{words}]"
            ));
        };
        let mut fields = [Field {
            bits: 0,
            star: false,
        }; 5];
        for ((field, word), bounds) in fields.iter_mut().zip(words).zip(FIELDS) {
            for part in word.split(',').filter(|part| !part.is_empty()) {
                let range = range(part, bounds)?;
                field.bits |= range.bits;
                field.star |= range.star;
            }
        }
        Ok(Self::At(fields))
    }

    /// The first time after this one; `None`: there is none.
    pub fn next(&self, after: i64, zone: &TimeZone) -> Option<i64> {
        match self {
            Self::Every(seconds) => after.checked_add(*seconds),
            Self::At(fields) => next(fields, after, zone),
        }
    }

    /// The last time after the one and not after the other.
    pub fn latest(&self, after: i64, until: i64, zone: &TimeZone) -> Option<i64> {
        let first = self.next(after, zone).filter(|first| *first <= until)?;
        if let Self::Every(seconds) = self {
            return Some(until - (until - first) % seconds);
        }
        // The time before which the next one is the wanted one.
        let (mut before, mut behind) = (after, until);
        while behind - before > 1 {
            let middle = before + (behind - before) / 2;
            match self.next(middle, zone).is_some_and(|at| at <= until) {
                true => before = middle,
                false => behind = middle,
            }
        }
        self.next(before, zone)
    }
}

/// Whether a schedule asks for more runs than it gets.
pub(super) fn is_too_often(text: &str) -> bool {
    let every = text.strip_prefix("@every ").and_then(duration_ms);
    every.is_some_and(|ms| i64::try_from(ms / 1000).is_ok_and(|s| s < MIN_EVERY_S))
}

fn described(text: &str, descriptor: &str) -> Result<Schedule, String> {
    if let Some(duration) = descriptor.strip_prefix("every ") {
        let ms = duration_ms(duration).ok_or_else(|| {
            format!("failed to parse duration {text}: invalid duration {duration:?}")
        })?;
        let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
        return Ok(Schedule::Every(seconds.max(MIN_EVERY_S)));
    }
    Schedule::parse(match descriptor {
        "yearly" | "annually" => "0 0 1 1 *",
        "monthly" => "0 0 1 * *",
        "weekly" => "0 0 * * 0",
        "daily" | "midnight" => "0 0 * * *",
        "hourly" => "0 * * * *",
        _ => return Err(format!("unrecognized descriptor: {text}")),
    })
}

/// `*`, `5`, `mon-fri`, `*/10`, `5/15`, `8-18/2`.
fn range(text: &str, (least, most, names): (u32, u32, &str)) -> Result<Field, String> {
    let mut parts = text.split('/');
    let ends: Vec<&str> = parts.next().unwrap_or_default().split('-').collect();
    let step = parts.next();
    let single = ends.len() == 1;
    let (start, mut end, mut star) = match ends.as_slice() {
        ["*" | "?", ..] => (least, most, true),
        [one] => (value(one, names)?, value(one, names)?, false),
        [one, other] => (value(one, names)?, value(other, names)?, false),
        _ => return Err(format!("too many hyphens: {text}")),
    };
    let step = match step {
        None => 1,
        Some(_) if parts.next().is_some() => return Err(format!("too many slashes: {text}")),
        Some(step) => {
            let step = value(step, "")?;
            if single {
                end = most;
            }
            star &= step <= 1;
            step
        }
    };
    if start < least {
        return Err(format!(
            "beginning of range ({start}) below minimum ({least}): {text}"
        ));
    }
    if end > most {
        return Err(format!(
            "end of range ({end}) above maximum ({most}): {text}"
        ));
    }
    if start > end {
        return Err(format!(
            "beginning of range ({start}) beyond end of range ({end}): {text}"
        ));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    let mut bits = 0;
    let mut at = start;
    while at <= end {
        bits |= 1u64 << at;
        at = at.saturating_add(step);
    }
    Ok(Field { bits, star })
}

/// A number, or the name of one.
fn value(text: &str, names: &str) -> Result<u32, String> {
    let word = text.to_ascii_lowercase();
    let of_name = names
        .as_bytes()
        .chunks(3)
        .position(|name| name == word.as_bytes());
    if let Some(place) = of_name {
        // January is 1, Sunday 0.
        let first = usize::from(names == MONTHS);
        return Ok(u32::try_from(place + first).unwrap_or(0));
    }
    match text.parse::<i64>() {
        Ok(number) if number < 0 => Err(format!("negative number ({number}) not allowed: {text}")),
        Ok(number) => Ok(u32::try_from(number).unwrap_or(u32::MAX)),
        Err(_) => Err(format!("failed to parse int from {text}: invalid syntax")),
    }
}

fn next(fields: &[Field; 5], after: i64, zone: &TimeZone) -> Option<i64> {
    let [minutes, hours, days, months, weekdays] = fields;
    let local = |at: i64| Some(zone.to_datetime(Timestamp::from_second(at).ok()?));
    let mut at = after - after.rem_euclid(60) + 60;
    let last = local(at)?.year().saturating_add(MAX_YEARS);
    loop {
        let now = local(at)?;
        if now.year() > last {
            return None;
        }
        if !months.has(now.month()) {
            let first = match now.month() {
                12 => date(now.year().checked_add(1)?, 1, 1),
                month => date(now.year(), month + 1, 1),
            };
            at = begin(first.to_datetime(Default::default()), at, zone)?;
            continue;
        }
        let weekday = now.weekday().to_sunday_zero_offset();
        let (day, weekday) = (days.has(now.day()), weekdays.has(weekday));
        let fits = match days.star || weekdays.star {
            true => day && weekday,
            false => day || weekday,
        };
        if !fits {
            let tomorrow = now.date().tomorrow().ok()?;
            at = begin(tomorrow.to_datetime(Default::default()), at, zone)?;
            continue;
        }
        if !hours.has(now.hour()) {
            at += i64::from(60 - now.minute()) * 60;
            continue;
        }
        if !minutes.has(now.minute()) || !hours.star && is_repeated(now, at, zone) {
            at += 60;
            continue;
        }
        return Some(at);
    }
}

/// When this local time begins, in any case after `at`.
fn begin(local: DateTime, at: i64, zone: &TimeZone) -> Option<i64> {
    let begins = zone.to_timestamp(local).ok()?.as_second();
    Some(begins.max(at + 60))
}

/// Whether it was this local time before.
fn is_repeated(local: DateTime, at: i64, zone: &TimeZone) -> bool {
    let first = zone.to_ambiguous_timestamp(local).earlier();
    first.is_ok_and(|first| first.as_second() < at)
}

#[cfg(test)]
#[path = "schedule_test.rs"]
mod tests;
