//! Sorting and collecting with little code. The standard library's sort, which also makes maps and sets of iterators,
//! takes four kilobytes of the program for each type.

use std::cmp::Ordering;
use std::collections::{BTreeMap, btree_map};
use std::iter::Peekable;
use std::mem;

/// Stable sorting, by an algorithm that is in the program once.
pub trait InOrder<T> {
    /// Sorts.
    fn order(&mut self)
    where
        T: Ord;

    /// Sorts as `compare` says.
    fn order_by(&mut self, compare: impl Fn(&T, &T) -> Ordering);

    /// Sorts by a key. Each comparison computes it again.
    fn order_by_key<K: Ord>(&mut self, key: impl Fn(&T) -> K);
}

impl<T> InOrder<T> for [T] {
    fn order(&mut self)
    where
        T: Ord,
    {
        self.order_by(T::cmp);
    }

    fn order_by(&mut self, compare: impl Fn(&T, &T) -> Ordering) {
        let mut order = ordered(self.len(), &|one, other| compare(&self[one], &self[other]));
        // Along each cycle of the permutation; what is in its place refers to itself.
        for start in 0..order.len() {
            let mut place = start;
            loop {
                let from = mem::replace(&mut order[place], place);
                if from == start {
                    break;
                }
                self.swap(place, from);
                place = from;
            }
        }
    }

    fn order_by_key<K: Ord>(&mut self, key: impl Fn(&T) -> K) {
        self.order_by(|one, other| key(one).cmp(&key(other)));
    }
}

/// The indices of items in their order.
fn ordered(length: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut order: Vec<usize> = (0..length).collect();
    order.sort_by(|one, other| compare(*one, *other));
    order
}

/// Collecting into maps and sets by inserting, one after the other.
pub trait Gather: Iterator + Sized {
    /// As `collect`; of equal keys the last one stays.
    fn gather<C: Default + Extend<Self::Item>>(self) -> C {
        let mut all = C::default();
        all.extend(self);
        all
    }
}

impl<I: Iterator> Gather for I {}

/// Looks up ascending keys in a map, in one pass over it: for many keys that costs far less than as many searches.
#[derive(Debug)]
pub struct Ascending<'m, K, V> {
    rest: Peekable<btree_map::Iter<'m, K, V>>,
}

impl<'m, K: Ord, V> Ascending<'m, K, V> {
    /// A pass over this map.
    pub fn of(map: &'m BTreeMap<K, V>) -> Self {
        let rest = map.iter().peekable();
        Self { rest }
    }

    /// The value of this key, which is not less than the one before.
    pub fn get(&mut self, key: &K) -> Option<&'m V> {
        loop {
            let (next, value) = self.rest.peek()?;
            match (*next).cmp(key) {
                Ordering::Less => drop(self.rest.next()),
                Ordering::Equal => return Some(value),
                Ordering::Greater => return None,
            }
        }
    }
}

/// Adds ascending items to a list that ascends without repetition, and stays so.
pub fn merge<T: Ord>(into: &mut Vec<T>, items: impl Iterator<Item = T>) {
    let mut before = mem::take(into).into_iter().peekable();
    for item in items {
        while let Some(less) = before.next_if(|before| *before < item) {
            into.push(less);
        }
        before.next_if_eq(&item);
        into.push(item);
    }
    into.extend(before);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_small_list_is_ordered_as_by_a_stable_sort() {
        // All lists of up to six items with four keys; the second part tells equal keys apart.
        for length in 0..=6_u32 {
            for number in 0..4_u32.pow(length) {
                let item = |at: u32| (number / 4_u32.pow(at) % 4, at);
                let mut list: Vec<(u32, u32)> = (0..length).map(item).collect();
                let mut stable = list.clone();
                list.order_by_key(|(key, _)| *key);
                stable.sort_by_key(|(key, _)| *key);
                assert_eq!(list, stable);
            }
        }
        let mut names = vec!["b".to_owned(), "c".to_owned(), "a".to_owned()];
        names.order();
        assert_eq!(names, ["a", "b", "c"]);
    }

    #[test]
    fn the_last_of_equal_keys_stays() {
        let map: BTreeMap<_, _> = [(1, 'a'), (2, 'b'), (1, 'c')].into_iter().gather();
        assert_eq!(map, BTreeMap::from([(1, 'c'), (2, 'b')]));
    }

    /// All sets of numbers below five.
    fn sets() -> impl Iterator<Item = BTreeSet<u32>> {
        let some = |bits: u32| (0..5).filter(|at| bits >> at & 1 == 1).collect();
        (0..1_u32 << 5).map(some)
    }

    #[test]
    fn ascending_keys_are_found_as_by_a_search() {
        for here in sets() {
            let map: BTreeMap<u32, u32> = here.iter().map(|key| (*key, key * 10)).collect();
            for asked in sets() {
                let mut pass = Ascending::of(&map);
                for key in asked {
                    // Also twice.
                    assert_eq!(pass.get(&key), map.get(&key), "{here:?}: {key}");
                    assert_eq!(pass.get(&key), map.get(&key), "{here:?}: {key}");
                }
            }
        }
    }

    #[test]
    fn merged_lists_are_ordered_without_repetition() {
        for one in sets() {
            for other in sets() {
                let mut list: Vec<u32> = one.iter().copied().collect();
                merge(&mut list, other.iter().copied());
                let both: Vec<u32> = one.union(&other).copied().collect();
                assert_eq!(list, both, "{one:?} and {other:?}");
            }
        }
    }
}
