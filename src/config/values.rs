//! Formats of single values: durations, sizes, addresses and names, parsed and printed as Go and Kubernetes do.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::types::InOrder;
use crate::types::quantity::{Quantity, QuantityError};

/// A duration in Go's format: `1m30s`, `100ms`, `-1s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct GoDuration {
    /// Nanoseconds; the type gives the same limit as in Go, 292 years.
    pub(crate) nanos: i64,
}

const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl GoDuration {
    /// Parses `1m30s`, `1.5h`, `0`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (sign, mut rest) = match text.as_bytes().first()? {
            b'-' => (-1, &text[1..]),
            b'+' => (1, &text[1..]),
            _ => (1, text),
        };
        if rest == "0" {
            return Some(Self::default());
        }
        let mut total: i128 = 0;
        if rest.is_empty() {
            return None;
        }
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
            let (number, tail) = rest.split_at(end);
            let end = tail.find(|c: char| c.is_ascii_digit() || c == '.');
            let (unit, next) = tail.split_at(end.unwrap_or(tail.len()));
            let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
            total = total.checked_add(amount(number, *scale)?)?;
            rest = next;
        }
        let nanos = i64::try_from(sign * total).ok()?;
        Some(Self { nanos })
    }

    /// Returns whole milliseconds; 0 if negative.
    pub(crate) fn ms(self) -> u64 {
        u64::try_from(self.nanos / 1_000_000).unwrap_or(0)
    }

    /// Returns whole seconds, truncated.
    pub(crate) fn seconds(self) -> i64 {
        self.nanos / 1_000_000_000
    }
}

/// Returns `number` units of `scale` nanoseconds, truncated to nanoseconds.
fn amount(number: &str, scale: i64) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || number.len() > 40 {
        return None;
    }
    let scale = i128::from(scale);
    let whole: i128 = match whole {
        "" => 0,
        digits => digits.parse().ok()?,
    };
    // Further digits are less than a nanosecond, even of an hour.
    let fraction = &fraction[..fraction.len().min(15)];
    let part = match fraction {
        "" => 0,
        digits => {
            let places = u32::try_from(digits.len()).ok()?;
            digits.parse::<i128>().ok()? * scale / 10_i128.pow(places)
        }
    };
    whole.checked_mul(scale)?.checked_add(part)
}

impl fmt::Display for GoDuration {
    /// Formats like Go's `Duration.String`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0s");
        }
        if self.nanos < 0 {
            f.write_str("-")?;
        }
        let nanos = self.nanos.unsigned_abs();
        for (unit, scale) in [("ns", 1), ("\u{b5}s", 1_000), ("ms", 1_000_000)] {
            if nanos < scale * 1000 {
                return write!(f, "{}{unit}", decimal(nanos, scale));
            }
        }
        let seconds = nanos / 1_000_000_000;
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if seconds >= 60 {
            write!(f, "{minutes}m")?;
        }
        write!(f, "{}s", decimal(nanos % 60_000_000_000, 1_000_000_000))
    }
}

/// Formats `value` in units of `scale`, with as many decimals as necessary.
fn decimal(value: u64, scale: u64) -> String {
    let (whole, rest) = (value / scale, value % scale);
    if rest == 0 {
        return whole.to_string();
    }
    let places = scale.ilog10() as usize;
    let text = format!("{whole}.{rest:0places$}");
    text.trim_end_matches('0').to_owned()
}

/// An eviction threshold's amount.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// Number of bytes, inodes or processes.
    Count(u64),
    /// Fraction of the capacity, 0.1 for 10 %.
    Share(f64),
}

impl Amount {
    /// Returns the amount on a resource of this capacity.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "the kubelet's figure is a float64 that is cut off; it lies between 0 and the capacity"
    )]
    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Count(count) => count,
            Self::Share(share) => (capacity as f64 * share) as u64,
        }
    }
}

/// Parses a size, which may be negative.
pub(crate) fn quantity(text: &str) -> Result<i128, QuantityError> {
    Quantity::parse(text).map(Quantity::ceil)
}

/// Returns the number of CPUs in a list like `0-3,8`.
pub(crate) fn cpu_count(list: &str) -> Result<u32, String> {
    let mut cpus = std::collections::BTreeSet::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            let parsed = text.trim().parse::<u32>().ok().filter(|n| *n < 8192);
            parsed.ok_or_else(|| format!("`{}` is not a processor's number", text.trim()))
        };
        let (first, last) = (number(first)?, number(last)?);
        if last < first {
            return Err(format!("`{part}` ends before it begins"));
        }
        cpus.extend(first..=last);
    }
    Ok(u32::try_from(cpus.len()).unwrap_or(u32::MAX))
}

/// Parses a list like `10.77.0.0/20,fd00:77::/64`: at most one range a family, each of a minimum size.
pub fn cidrs(list: &str) -> Result<Vec<IpNet>, String> {
    let mut found: Vec<IpNet> = Vec::new();
    for text in list.split(',').map(str::trim).filter(|t| !t.is_empty()) {
        let range: IpNet = text
            .parse()
            .map_err(|_| format!("`{text}` is not a range like 10.77.0.0/20"))?;
        if range.max_prefix_len() - range.prefix_len() < 2 {
            return Err(format!("`{text}` has no room for pods"));
        }
        let same_family = |other: &IpNet| other.addr().is_ipv4() == range.addr().is_ipv4();
        if let Some(other) = found.iter().find(|other| same_family(other)) {
            return Err(format!(
                "`{other}` and `{text}` are of one family, and only one range a family is possible"
            ));
        }
        found.push(range.trunc());
    }
    found.order_by_key(|range| range.addr().is_ipv6());
    Ok(found)
}

/// Parses an IP address.
pub fn ip_address(text: &str) -> Result<IpAddr, String> {
    let trimmed = text.trim();
    trimmed
        .parse()
        .map_err(|_| format!("`{trimmed}` is not an IP address"))
}

/// Checks that a name is a valid interface name and needs no quotes in packet rules.
pub fn bridge_name(name: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if starts_well && name.len() <= 15 && name.chars().all(plain) {
        Ok(name.to_owned())
    } else {
        Err(format!(
            "`{name}` is no name for a bridge: a letter, then letters, digits, `-` and `_`, 15 characters at most"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_as_go_does() {
        for (text, shown) in [
            ("0", Some("0s")),
            ("0s", Some("0s")),
            ("30s", Some("30s")),
            ("90s", Some("1m30s")),
            ("1m30s", Some("1m30s")),
            ("5m", Some("5m0s")),
            ("1h", Some("1h0m0s")),
            ("1.5h", Some("1h30m0s")),
            (".5s", Some("500ms")),
            ("1.25s", Some("1.25s")),
            ("100ms", Some("100ms")),
            ("999us", Some("999\u{b5}s")),
            ("1ns", Some("1ns")),
            ("-1s", Some("-1s")),
            ("2540400h", Some("2540400h0m0s")),
            ("", None),
            ("-", None),
            (".s", None),
            ("30", None),
            ("s", None),
            ("1 s", None),
            ("1d", None),
            ("1.2.3s", None),
            ("9999999999999h", None),
        ] {
            let found = GoDuration::parse(text).map(|duration| duration.to_string());
            assert_eq!(found.as_deref(), shown, "{text}");
        }
    }

    #[test]
    fn processors_are_counted_once() {
        for (list, count) in [
            ("0", Some(1)),
            ("0-3", Some(4)),
            ("0-3,2,8", Some(5)),
            ("3-0", None),
            ("a", None),
            ("", None),
            ("0-99999", None),
        ] {
            assert_eq!(cpu_count(list).ok(), count, "{list}");
        }
    }

    #[test]
    fn ranges_are_a_list_with_one_range_a_family() {
        let ranges = |text| cidrs(text).map(|list| list.iter().map(IpNet::to_string).collect());
        for (text, result) in [
            ("", Ok(vec![])),
            (
                "fd00::1/64, 10.9.8.7/20",
                Ok(vec!["10.9.0.0/20".to_owned(), "fd00::/64".to_owned()]),
            ),
            (
                "10.0.0.0",
                Err("`10.0.0.0` is not a range like 10.77.0.0/20".to_owned()),
            ),
            (
                "10.0.0.0/31",
                Err("`10.0.0.0/31` has no room for pods".to_owned()),
            ),
            (
                "10.0.0.0/24,10.1.0.0/24",
                Err(
                    "`10.0.0.0/24` and `10.1.0.0/24` are of one family, and only one range a family is possible"
                        .to_owned(),
                ),
            ),
        ] {
            assert_eq!(ranges(text), result, "{text}");
        }
    }

    #[test]
    fn a_bridge_has_a_name_that_is_plain_everywhere() {
        for (name, fine) in [
            ("coracle0", true),
            ("br-lan_1", true),
            ("", false),
            ("0br", false),
            ("br.7", false),
            ("a b", false),
            ("sixteencharacter", false),
        ] {
            assert_eq!(bridge_name(name).is_ok(), fine, "{name}");
        }
    }
}
