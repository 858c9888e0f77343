//! Sorting and collecting with little code. The standard library's sort, which also makes maps and sets of iterators,
//! takes four kilobytes of the program for each type.

use std::cmp::Ordering;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

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
}
