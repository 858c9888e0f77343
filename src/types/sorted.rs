//! A map as one sorted list. It takes half the memory of a `BTreeMap` that was filled in order, whose nodes are half
//! empty; an insertion between others moves what follows, so it is for maps that are mostly filled in order.

use crate::types::Gather;

/// A map whose entries lie side by side, in the order of their keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortedMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    fn find(&self, key: &K) -> Result<usize, usize> {
        // Most are filled in order.
        match self.0.last() {
            Some((last, _)) if last < key => Err(self.0.len()),
            _ => self.0.binary_search_by(|(own, _)| own.cmp(key)),
        }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        let at = self.find(key).ok()?;
        Some(&self.0[at].1)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = self.find(key).ok()?;
        Some(&mut self.0[at].1)
    }

    /// Whether the key has a value.
    pub fn contains_key(&self, key: &K) -> bool {
        self.find(key).is_ok()
    }

    /// The value of a key, which is the default value if it had none.
    pub fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let at = self.find(&key).unwrap_or_else(|at| {
            self.0.insert(at, (key, V::default()));
            at
        });
        &mut self.0[at].1
    }

    /// Sets the value of a key.
    pub fn insert(&mut self, key: K, value: V) {
        match self.find(&key) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (key, value)),
        }
    }

    /// Gives spare room back.
    pub fn shrink_to_fit(&mut self) {
        self.0.shrink_to_fit();
    }

    /// Takes a key and its value out.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.find(key).ok()?;
        Some(self.0.remove(at).1)
    }

    /// Keeps the entries that `keep` wants, without spare room.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.0.retain_mut(|(key, value)| keep(key, value));
        self.0.shrink_to_fit();
    }

    /// The entries by key.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> + Clone {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// The keys in their order.
    pub fn keys(&self) -> impl Iterator<Item = &K> + Clone {
        self.0.iter().map(|(key, _)| key)
    }

    /// The values by key.
    pub fn values(&self) -> impl Iterator<Item = &V> + Clone {
        self.0.iter().map(|(_, value)| value)
    }

    /// The same, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }
}

impl<K: Ord, V> Extend<(K, V)> for SortedMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
        self.0.shrink_to_fit();
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        entries.into_iter().gather()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn it_is_like_a_map_of_the_standard_library() {
        let (mut map, mut model) = (SortedMap::default(), BTreeMap::new());
        // Each key comes, changes and goes several times, in an order without pattern.
        for number in 0..2_000_u32 {
            let key = number.wrapping_mul(2_654_435_761) >> 27;
            match number % 5 {
                0 => assert_eq!(map.remove(&key), model.remove(&key)),
                1 => assert_eq!(map.get_or_default(key), model.entry(key).or_default()),
                2 if number % 7 == 0 => {
                    map.retain(|key, _| key % 3 > 0);
                    model.retain(|key, _| key % 3 > 0);
                }
                _ => {
                    map.insert(key, number);
                    model.insert(key, number);
                }
            }
            assert!(map.iter().eq(model.iter()), "{number}");
            assert!(map.keys().eq(model.keys()) && map.values().eq(model.values()));
            assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
            assert_eq!(map.get(&key), model.get(&key));
            assert_eq!(map.get_mut(&key), model.get_mut(&key));
            assert_eq!(map.contains_key(&key), model.contains_key(&key));
        }
        let again: SortedMap<u32, u32> = model.into_iter().rev().collect();
        assert_eq!(again, map);
    }
}
