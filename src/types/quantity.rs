//! Kubernetes quantities such as `1.5Gi`: exact to a billionth, without floating point.

use std::fmt;

/// An amount in billionths of a unit (core, byte, thing), with the family of its suffix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantity {
    nano: i128,
    family: Family,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// n, u, m, k, M, G, …
    Decimal,
    /// Ki, Mi, Gi, …
    Binary,
    /// e3, E-2, …
    Exponent,
}

/// A text that is not a valid quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The syntax is wrong.
    #[error("must be a quantity such as 500m, 1.5, 128Mi or 2e6")]
    Syntax,
    /// The amount is too large.
    #[error("must be a quantity below 2^63")]
    TooLarge,
}

const NANO: i128 = 1_000_000_000;

impl Quantity {
    /// Whether it has no fraction.
    pub fn is_whole(self) -> bool {
        self.nano % NANO == 0
    }

    /// Parses `500m`, `1.5`, `128Mi`, `2e6`. Digits below a billionth are rounded up, away from zero.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let end = unsigned
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
            return Err(QuantityError::Syntax);
        }
        let (family, scale) = Scale::of(suffix).ok_or(QuantityError::Syntax)?;
        let amount = scale.apply(whole, fraction)?;
        // Kubernetes keeps amounts below 2^63 units.
        if amount / NANO > i128::from(i64::MAX) {
            return Err(QuantityError::TooLarge);
        }
        Ok(Self {
            nano: if negative { -amount } else { amount },
            family,
        })
    }

    /// Creates a number of bytes, formatted as `1Gi`.
    pub fn bytes(bytes: u64) -> Self {
        Self {
            nano: i128::from(bytes) * NANO,
            family: Family::Binary,
        }
    }

    /// Creates a number of things, formatted as `1k`.
    pub fn count(count: u64) -> Self {
        Self {
            nano: i128::from(count) * NANO,
            family: Family::Decimal,
        }
    }

    /// Returns whole units, rounded up.
    pub fn ceil(self) -> i128 {
        ceil_div(self.nano, NANO)
    }

    /// Returns thousandths, rounded up.
    pub fn ceil_milli(self) -> i128 {
        ceil_div(self.nano, NANO / 1000)
    }

    /// Adds two quantities; the result has the format of the first that is not zero.
    pub fn plus(self, other: Self) -> Self {
        let family = if self.nano == 0 { other } else { self }.family;
        Self {
            nano: self.nano.saturating_add(other.nano),
            family,
        }
    }

    /// Whether it is negative.
    pub fn is_negative(self) -> bool {
        self.nano < 0
    }

    /// Returns billionths, for comparisons.
    pub fn nano(self) -> i128 {
        self.nano
    }
}

impl fmt::Display for Quantity {
    /// Formats the API server's canonical form: `0.5` is `500m`, `1024Mi` is `1Gi`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nano == 0 {
            return f.write_str("0");
        }
        let whole = self.is_whole();
        if self.family == Family::Binary && whole && self.nano.abs() >= 1024 * NANO {
            return self.binary(f);
        }
        let (mut mantissa, mut exponent) = (self.nano, -9_i32);
        while mantissa % 1000 == 0 && exponent < 18 {
            mantissa /= 1000;
            exponent += 3;
        }
        match (self.family, exponent) {
            (_, 0) => write!(f, "{mantissa}"),
            (Family::Exponent, _) => write!(f, "{mantissa}e{exponent}"),
            _ => {
                let suffix = DECIMAL.iter().find(|(_, e)| *e == exponent);
                write!(f, "{mantissa}{}", suffix.map_or("", |(s, _)| s))
            }
        }
    }
}

impl Quantity {
    fn binary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut mantissa, mut step) = (self.nano / NANO, 0);
        while mantissa % 1024 == 0 && step < BINARY.len() {
            mantissa /= 1024;
            step += 1;
        }
        let suffix = step.checked_sub(1).map_or("", |i| BINARY[i]);
        write!(f, "{mantissa}{suffix}")
    }
}

const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// The factor of a suffix.
enum Scale {
    /// A power of ten.
    Ten(i32),
    /// A power of 1024.
    Kibi(u32),
}

impl Scale {
    fn of(suffix: &str) -> Option<(Family, Self)> {
        if let Some((_, exponent)) = DECIMAL.iter().find(|(s, _)| *s == suffix) {
            return Some((Family::Decimal, Self::Ten(*exponent)));
        }
        if let Some(step) = BINARY.iter().position(|s| *s == suffix) {
            let power = u32::try_from(step + 1).ok()?;
            return Some((Family::Binary, Self::Kibi(power)));
        }
        let exponent = suffix.strip_prefix(['e', 'E'])?;
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        // With more than three digits the value is zero or too large in any case.
        let exponent =
            exponent
                .parse()
                .unwrap_or(if exponent.starts_with('-') { -999 } else { 999 });
        Some((Family::Exponent, Self::Ten(exponent)))
    }

    fn apply(self, whole: &str, fraction: &str) -> Result<i128, QuantityError> {
        match self {
            Self::Ten(exponent) => shifted(whole, fraction, i64::from(exponent) + 9),
            Self::Kibi(power) => {
                // Exact as long as the digits fit; a fraction of more than 18 digits is rounded up first.
                let unit = 1024_i128.pow(power);
                let digits = shifted(whole, fraction, 18)?;
                if digits > i128::MAX / unit {
                    return coarse(whole, fraction, unit);
                }
                Ok(ceil_div(digits * unit, NANO))
            }
        }
    }
}

/// Parses large amounts, for which a billionth of the suffix is precise enough.
fn coarse(whole: &str, fraction: &str, unit: i128) -> Result<i128, QuantityError> {
    shifted(whole, fraction, 9)?
        .checked_mul(unit)
        .ok_or(QuantityError::TooLarge)
}

/// Returns the digits of `whole.fraction` with the point moved `places` to the right, rounded up.
fn shifted(whole: &str, fraction: &str, places: i64) -> Result<i128, QuantityError> {
    let mut amount: i128 = 0;
    let mut rest = false;
    let point = i64::try_from(whole.len()).unwrap_or(i64::MAX);
    let wanted = point.saturating_add(places);
    let mut at = 0_i64;
    for digit in whole.bytes().chain(fraction.bytes()) {
        if at < wanted {
            amount = amount
                .checked_mul(10)
                .and_then(|a| a.checked_add(i128::from(digit - b'0')))
                .ok_or(QuantityError::TooLarge)?;
        } else {
            rest |= digit != b'0';
        }
        at += 1;
    }
    while at < wanted && amount != 0 {
        amount = amount.checked_mul(10).ok_or(QuantityError::TooLarge)?;
        at += 1;
    }
    amount
        .checked_add(i128::from(rest))
        .ok_or(QuantityError::TooLarge)
}

fn ceil_div(amount: i128, by: i128) -> i128 {
    amount.div_euclid(by) + i128::from(amount.rem_euclid(by) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_written_as_what_it_is_made_of() {
        for (one, other, expected) in [
            ("100m", "1", "1100m"),
            ("512Mi", "512Mi", "1Gi"),
            ("0", "64Mi", "64Mi"),
            ("64Mi", "0", "64Mi"),
        ] {
            let of = |text| Quantity::parse(text).unwrap();
            assert_eq!(of(one).plus(of(other)).to_string(), expected);
        }
    }

    #[test]
    fn quantities_have_exact_values_and_one_canonical_form() {
        for (text, nano, canonical) in [
            ("0", 0, "0"),
            ("1", NANO, "1"),
            ("+1", NANO, "1"),
            ("-1", -NANO, "-1"),
            ("0.5", NANO / 2, "500m"),
            (".5", NANO / 2, "500m"),
            ("5.", 5 * NANO, "5"),
            ("100m", NANO / 10, "100m"),
            ("1500m", NANO * 3 / 2, "1500m"),
            ("1000m", NANO, "1"),
            ("250u", 250_000, "250u"),
            ("7n", 7, "7n"),
            ("1.0000000001", NANO + 1, "1000000001n"),
            ("0.1n", 1, "1n"),
            ("1k", 1000 * NANO, "1k"),
            ("1000", 1000 * NANO, "1k"),
            ("1024", 1024 * NANO, "1024"),
            ("12M", 12_000_000 * NANO, "12M"),
            ("1E", 1_000_000_000_000_000_000 * NANO, "1E"),
            ("1e3", 1000 * NANO, "1e3"),
            ("1E3", 1000 * NANO, "1e3"),
            ("5e0", 5 * NANO, "5"),
            ("123e-2", 1_230_000_000, "1230e-3"),
            ("1Ki", 1024 * NANO, "1Ki"),
            ("1024Mi", 1024 * 1024 * 1024 * NANO, "1Gi"),
            ("1.5Gi", 1_610_612_736 * NANO, "1536Mi"),
            ("0.5Mi", 524_288 * NANO, "512Ki"),
            ("512Ki", 524_288 * NANO, "512Ki"),
            (
                "9223372036854775807",
                i128::from(i64::MAX) * NANO,
                "9223372036854775807",
            ),
            ("0.9765625Ki", 1000 * NANO, "1k"),
            ("7Ei", 8_070_450_532_247_928_832 * NANO, "7Ei"),
            ("0.001Ki", 1_024_000_000, "1024m"),
        ] {
            let quantity = Quantity::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(quantity.nano(), nano, "{text}");
            assert_eq!(quantity.to_string(), canonical, "{text}");
            let again = Quantity::parse(canonical).unwrap();
            assert_eq!(again.nano(), nano, "{canonical} read again");
        }
    }

    #[test]
    fn sums_may_be_larger_than_what_can_be_written() {
        let add = |one: Quantity, times| (1..times).fold(one, |sum, _| sum.plus(one));
        for (sum, shown) in [
            (add(Quantity::bytes(1 << 50), 1024), "1Ei"),
            (add(Quantity::bytes(1 << 60), 1024), "1024Ei"),
            (add(Quantity::count(1_000_000_000_000_000), 1000), "1E"),
            (
                add(Quantity::count(1_000_000_000_000_000_000), 1000),
                "1000E",
            ),
        ] {
            assert_eq!(sum.to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in [
            "", " ", ".", "1.2.3", "1K", "1ki", "1mi", "1KI", "Mi", "e3", "1e", "1e+", "1ee3",
            "1 Gi", "1Gi ", "--1", "1Zi", "0x10", "1,5", "ten", "1e3k", "١",
        ] {
            assert_eq!(
                Quantity::parse(text),
                Err(QuantityError::Syntax),
                "{text:?}"
            );
        }
        for text in [
            "1e999",
            "99999999999999999999999999999999999999999",
            "999999999Ei",
        ] {
            assert_eq!(
                Quantity::parse(text),
                Err(QuantityError::TooLarge),
                "{text:?}"
            );
        }
    }

    #[test]
    fn rounding_is_up_to_the_unit_asked_for() {
        for (text, milli, whole) in [
            ("1", 1000, 1),
            ("0.0001", 1, 1),
            ("1.0001", 1001, 2),
            ("250m", 250, 1),
            ("-0.5", -500, 0),
        ] {
            let quantity = Quantity::parse(text).unwrap();
            assert_eq!(quantity.ceil_milli(), milli, "{text}");
            assert_eq!(quantity.ceil(), whole, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[-+]?[0-9.]{0,40}[a-zA-Z]{0,3}[-+]?[0-9]{0,5}") {
            if let Ok(quantity) = Quantity::parse(&text) {
                let canonical = quantity.to_string();
                proptest::prop_assert_eq!(
                    Quantity::parse(&canonical).map(Quantity::nano), Ok(quantity.nano())
                );
            }
        }
    }
}
