//! Plain values, sorted, so that many of them cost a long text little: four bytes of it say whether any value can be
//! there, and a binary search which.

use std::collections::HashSet;

use super::MIN_SECRET;
use super::plain::Plain;
use crate::types::InOrder;

/// What may be left of an escaped character whose beginning was cut off.
const MAX_SKIPPED: usize = 5;

/// The values to look for; none is shorter than [`MIN_SECRET`].
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Sorted, each once.
    values: Vec<Vec<u8>>,
    /// The index of the longest other value that a value begins with.
    within: Vec<Option<usize>>,
    /// What values begin with.
    heads: HashSet<[u8; MIN_SECRET]>,
    /// The values from end to start, sorted.
    reversed: Vec<Vec<u8>>,
    /// What values end with, from end to start.
    tails: HashSet<[u8; MIN_SECRET]>,
    /// The length of the longest value.
    longest: usize,
}

impl Index {
    pub(super) fn new(mut values: Vec<Vec<u8>>) -> Self {
        let sort = |values: &mut Vec<Vec<u8>>| {
            values.order();
            values.dedup();
        };
        let reverse = |value: &Vec<u8>| value.iter().rev().copied().collect();
        sort(&mut values);
        let mut reversed: Vec<Vec<u8>> = values.iter().map(reverse).collect();
        sort(&mut reversed);
        let mut within: Vec<Option<usize>> = Vec::with_capacity(values.len());
        for (index, value) in values.iter().enumerate() {
            let mut shorter = index.checked_sub(1);
            while let Some(other) = shorter.filter(|other| !value.starts_with(&values[*other])) {
                shorter = within[other];
            }
            within.push(shorter);
        }
        let first = |values: &[Vec<u8>]| {
            let each = values.iter();
            each.filter_map(|value| value.first_chunk().copied())
                .collect()
        };
        Self {
            heads: first(&values),
            tails: first(&reversed),
            longest: values.iter().map(Vec::len).max().unwrap_or_default(),
            values,
            within,
            reversed,
        }
    }

    /// Places in the text that are to be masked, ordered by their beginnings. `start`: the start may have been cut.
    pub(super) fn places(&self, plain: &Plain, start: bool) -> Vec<(usize, usize)> {
        let rest = start.then(|| self.rest(plain)).flatten();
        let first = rest.map(|end| plain.place(0, end));
        let all = plain.bytes.windows(MIN_SECRET).enumerate();
        let likely = all.filter(|(_, head)| self.heads.contains(*head));
        let others = likely.filter_map(|(at, _)| Some(plain.place(at, at + self.at(plain, at)?)));
        first.into_iter().chain(others).collect()
    }

    /// The length of the longest value that is at this place, or of what a cut has left of one.
    fn at(&self, plain: &Plain, at: usize) -> Option<usize> {
        let text = &plain.bytes[at..];
        let next = self.values.partition_point(|value| &**value <= text);
        let cut = self.cut(plain, at, next);
        let mut whole = next.checked_sub(1);
        while let Some(index) = whole.filter(|index| !text.starts_with(&self.values[*index])) {
            whole = self.within[index];
        }
        cut.max(whole.map(|index| self.values[index].len()))
    }

    /// The length of the longest beginning of a value that is at this place and ends where the text may have been cut.
    /// `next`: the first value after the text, which has most in common with it, or else the one before has.
    fn cut(&self, plain: &Plain, at: usize, next: usize) -> Option<usize> {
        let (nearest, farthest) = (at + MIN_SECRET, at + self.longest);
        let near = plain.cuts.partition_point(|cut| *cut < nearest);
        if *plain.cuts.get(near)? > farthest {
            return None;
        }
        let around = [next.checked_sub(1), Some(next)].into_iter().flatten();
        let around = around.filter_map(|index| self.values.get(index));
        let common = around.map(|value| {
            let both = value.iter().zip(&plain.bytes[at..]);
            both.take_while(|(one, other)| one == other).count()
        });
        let end = at + common.max()?;
        let beyond = plain.cuts.partition_point(|cut| *cut <= end);
        let last = plain.cuts[near..]
            .get(..beyond.checked_sub(near)?)?
            .last()?;
        Some(last - at)
    }

    /// Where the rest of a value ends that the text begins with, or the middle of one that is cut at both ends.
    fn rest(&self, plain: &Plain) -> Option<usize> {
        let text = &plain.bytes[..plain.bytes.len().min(self.longest + MAX_SKIPPED)];
        let reversed: Vec<u8> = text.iter().rev().copied().collect();
        let is_rest = |from: usize, end: usize| {
            let rest = &reversed[text.len() - end..text.len() - from];
            let at = self.reversed.partition_point(|value| &**value < rest);
            let is_there = |value: &Vec<u8>| value.starts_with(rest);
            rest.first_chunk()
                .is_some_and(|tail| self.tails.contains(tail))
                && self.reversed.get(at).is_some_and(is_there)
        };
        let of_escape = |byte: &&u8| byte.is_ascii_hexdigit() || b"utnrx{}\"'/".contains(byte);
        let skipped = text.iter().take(MAX_SKIPPED).take_while(of_escape).count();
        let rests = (0..=skipped).filter_map(|from| {
            let mut ends = (from + MIN_SECRET..=text.len()).rev();
            ends.find(|end| is_rest(from, *end))
        });
        let middle = plain.cuts.iter().find(|cut| **cut >= MIN_SECRET).copied();
        let middle = middle.filter(|cut| {
            let middle = &plain.bytes[..*cut];
            let mut values = self.values.iter();
            values.any(|value| value.windows(*cut).any(|part| part == middle))
        });
        rests.max().max(middle)
    }
}
