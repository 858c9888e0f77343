//! `successPolicy` of a Job: some of its indexes are enough (KEP-3998; `validateSuccessPolicy` in
//! `pkg/apis/batch/validation`).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::check::not_negative;
use crate::spec::error::{Path, Report};

/// Limit of rules, and of the text that lists indexes.
const MAX_RULES: usize = 20;
const MAX_TEXT: usize = 65_536;

/// A rule of `successPolicy`: the Job is complete if one of them is met.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SuccessRule {
    /// Only these indexes count: the first and the last of each range. `None`: all count.
    indexes: Option<Vec<(u32, u32)>>,
    /// So many have to succeed; `None`: all of `indexes`.
    count: Option<u32>,
}

impl SuccessRule {
    /// Whether these indexes are enough.
    pub fn is_met(&self, succeeded: &BTreeSet<u32>) -> bool {
        let Some(ranges) = &self.indexes else {
            return self.count.is_some_and(|n| succeeded.len() >= n as usize);
        };
        let have = |(first, last): &(u32, u32)| succeeded.range(first..=last).count();
        let have: usize = ranges.iter().map(have).sum();
        have >= self.count.unwrap_or_else(|| total(ranges)) as usize
    }
}

fn total(ranges: &[(u32, u32)]) -> u32 {
    ranges.iter().map(|(first, last)| last - first + 1).sum()
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Policy {
    rules: Vec<Written>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Written {
    succeeded_indexes: Option<String>,
    succeeded_count: Option<i32>,
}

/// Checks the policy of a Job with so many completions; `None`: it is not indexed.
pub(super) fn rules(
    policy: Option<&Policy>,
    completions: Option<u32>,
    path: &Path<'_>,
    report: &Report,
) -> Vec<SuccessRule> {
    let Some(policy) = policy else {
        return Vec::new();
    };
    let Some(completions) = completions else {
        let message = "Invalid value: requires indexed completion mode";
        report.error(path, message);
        return Vec::new();
    };
    let list = path.field("rules");
    if policy.rules.is_empty() {
        let message = "Required value: at least one rules must be specified when the successPolicy is specified";
        report.error(&list, message);
    }
    if policy.rules.len() > MAX_RULES {
        let given = policy.rules.len();
        let message = format_args!("Too many: {given}: must have at most {MAX_RULES} items");
        report.error(&list, message);
    }
    let rules = policy.rules.iter().enumerate();
    rules
        .map(|(index, rule)| one(rule, completions, &list.index(index), report))
        .collect()
}

fn one(rule: &Written, completions: u32, path: &Path<'_>, report: &Report) -> SuccessRule {
    let (at_count, at_indexes) = (path.field("succeededCount"), path.field("succeededIndexes"));
    if rule.succeeded_count.is_none() && rule.succeeded_indexes.is_none() {
        let message =
            "Required value: at least one of succeededCount or succeededIndexes must be specified";
        report.error(path, message);
    }
    let indexes = rule.succeeded_indexes.as_ref().map(|text| {
        if text.len() > MAX_TEXT {
            let message = format_args!("Too long: may not be more than {MAX_TEXT} bytes");
            report.error(&at_indexes, message);
            return Vec::new();
        }
        ranges(text, completions).unwrap_or_else(|problem| {
            let detail = format_args!("error parsing succeededIndexes: {problem}");
            report.invalid(&at_indexes, text, detail);
            Vec::new()
        })
    });
    let count = rule.succeeded_count.and_then(|count| {
        not_negative(count, &at_count, report);
        u32::try_from(count).ok()
    });
    if let Some(count) = count {
        let most = |most: u32, of: &str| {
            if count > most {
                let detail =
                    format_args!("must be less than or equal to {most} (the number of {of})");
                report.invalid(&at_count, count, detail);
            }
        };
        most(completions, "specified completions");
        if let Some(ranges) = &indexes {
            most(
                total(ranges),
                "indexes in the specified succeededIndexes field",
            );
        }
    }
    SuccessRule { indexes, count }
}

/// Reads `1,3-5,7`. Each number is less than `completions`, and greater than the one before it.
fn ranges(text: &str, completions: u32) -> Result<Vec<(u32, u32)>, String> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    let number = |text: &str| match text.parse::<u32>() {
        Ok(number) if number < completions => Ok(number),
        Ok(_) => Err(format!("too large index: {text:?}")),
        Err(_) => Err(format!(
            "cannot convert string to integer for index: {text:?}"
        )),
    };
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = match part.split_once('-') {
            Some((_, last)) if last.contains('-') => {
                return Err(format!(
                    "the fragment {part:?} violates the requirement that an index interval can have at most two parts separated by '-'"
                ));
            }
            Some((first, last)) => (number(first)?, Some(number(last)?)),
            None => (number(part)?, None),
        };
        let before = ranges.last().map(|(_, last)| *last);
        for (before, next) in [(before, Some(first)), (Some(first), last)] {
            if let (Some(before), Some(next)) = (before, next)
                && before >= next
            {
                return Err(format!(
                    "non-increasing order, previous: {before}, current: {next}"
                ));
            }
        }
        ranges.push((first, last.unwrap_or(first)));
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_read_as_the_api_server_reads_them() {
        for (text, wanted) in [
            ("", Ok(vec![])),
            ("3", Ok(vec![(3, 3)])),
            ("0,2-4,9", Ok(vec![(0, 0), (2, 4), (9, 9)])),
            ("10", Err("too large index: \"10\"")),
            ("1-10", Err("too large index: \"10\"")),
            (
                "a",
                Err("cannot convert string to integer for index: \"a\""),
            ),
            (
                "1,",
                Err("cannot convert string to integer for index: \"\""),
            ),
            (
                "-1",
                Err("cannot convert string to integer for index: \"\""),
            ),
            ("3,2", Err("non-increasing order, previous: 3, current: 2")),
            ("3-3", Err("non-increasing order, previous: 3, current: 3")),
            (
                "1-2-3",
                Err(
                    "the fragment \"1-2-3\" violates the requirement that an index interval can have at most two parts separated by '-'",
                ),
            ),
        ] {
            assert_eq!(ranges(text, 10), wanted.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn a_rule_counts_its_own_indexes_only() {
        let met = |indexes: Option<&str>, count, succeeded: &[u32]| {
            let indexes = indexes.map(|text| ranges(text, 10).expect("indexes"));
            SuccessRule { indexes, count }.is_met(&succeeded.iter().copied().collect())
        };
        assert!(met(None, Some(2), &[4, 7]) && !met(None, Some(2), &[4]));
        assert!(met(Some("0,2-3"), None, &[0, 2, 3, 9]) && !met(Some("0,2-3"), None, &[0, 2, 9]));
        assert!(met(Some("0,2-3"), Some(1), &[3]) && !met(Some("0,2-3"), Some(1), &[1, 4]));
        assert!(met(None, Some(0), &[]));
    }
}
