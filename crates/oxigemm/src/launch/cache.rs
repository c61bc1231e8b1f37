//! Table of a launch cache: values of fixed number, looked up without waiting and without allocation.

use std::sync::{OnceLock, RwLock};

/// How many values a table has.
const SLOTS: usize = 128;

/// Table of fixed size with the last value of each hash. Memory is allocated once, for the first value.
pub(crate) struct Memo<K, V> {
    slots: OnceLock<Box<[Slot<K, V>]>>,
}

type Slot<K, V> = RwLock<Option<(K, V)>>;

impl<K, V> Default for Memo<K, V> {
    fn default() -> Self {
        Memo { slots: OnceLock::new() }
    }
}

impl<K, V> Memo<K, V> {
    /// Passes the value of the key that `is` accepts to `then`, if it is cached. A value that another thread changes at
    /// this moment counts as missing, so that nobody waits.
    #[inline]
    pub fn recall<R>(&self, hash: u64, is: impl Fn(&K) -> bool, then: impl FnOnce(&V) -> R) -> Option<R> {
        let slot = self.slots.get()?[hash as usize % SLOTS].try_read().ok()?;
        slot.as_ref().filter(|(key, _)| is(key)).map(|(_, value)| then(value))
    }

    /// Caches a value in place of the one that its hash had before.
    pub fn insert(&self, hash: u64, key: K, value: V) {
        let slots = self.slots.get_or_init(|| (0..SLOTS).map(|_| RwLock::default()).collect());
        if let Ok(mut slot) = slots[hash as usize % SLOTS].try_write() {
            *slot = Some((key, value));
        }
    }
}

/// Hash of some numbers whose low bits are as good as any.
#[inline]
pub(crate) fn mix<const N: usize>(numbers: [u64; N]) -> u64 {
    let fold = |hash: u64, number: u64| (hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    numbers.into_iter().fold(0, fold) >> 7
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_cached_value_is_found_until_its_slot_is_taken() {
        let memo = Memo::default();
        assert_eq!(memo.recall(1, |key| *key == "a", |value: &u32| *value), None);
        memo.insert(1, "a", 10);
        memo.insert(2, "b", 20);
        assert_eq!(memo.recall(1, |key| *key == "a", |value| *value), Some(10));
        assert_eq!(memo.recall(2, |key| *key == "b", |value| *value), Some(20));
        assert_eq!(
            memo.recall(1, |key| *key == "b", |value| *value),
            None,
            "the same hash does not make another key"
        );
        memo.insert(1 + SLOTS as u64, "c", 30);
        assert_eq!(memo.recall(1, |key| *key == "a", |value| *value), None);
        assert_eq!(memo.recall(1 + SLOTS as u64, |key| *key == "c", |value| *value), Some(30));
    }

    #[test]
    fn a_lookup_inside_of_a_lookup_does_not_wait() {
        let memo = Memo::default();
        memo.insert(3, 3, 30);
        let nested = memo.recall(
            3,
            |key| *key == 3,
            |_| {
                memo.insert(3, 3, 31);
                memo.recall(3, |key| *key == 3, |value| *value)
            },
        );
        assert_eq!(nested, Some(Some(30)), "a value that is being read is not changed");
    }

    #[test]
    fn addresses_of_many_layers_take_many_slots() {
        let slots: HashSet<u64> = (0..SLOTS as u64)
            .map(|i| mix([0x7f00_0000_0000, 0x7f00_0020_0000 + i * (1 << 21), 512]) % 128)
            .collect();
        assert!(slots.len() > SLOTS / 2, "{}", slots.len());
    }
}
