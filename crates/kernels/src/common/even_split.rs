//! Even split: items in a row, divided into parts whose sizes differ by one at most.

use std::ops::Add;

use crate::common::index::Index;

/// Even split of items into parts: the first `more` parts have one more than `each`, which is at least 1. The host and
/// kernels share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shares<T> {
    /// Items of a part.
    pub each: T,
    /// How many parts have one more.
    pub more: T,
}

impl Shares<u32> {
    /// The split of `items` into `parts`, of which there are no more than items.
    #[must_use]
    pub fn of(items: u32, parts: u32) -> Shares<u32> {
        assert!((1..=items).contains(&parts), "{items} to {parts} parts");
        Shares { each: items / parts, more: items % parts }
    }
}

impl<T: Index + Add<u32, Output = T>> Shares<T> {
    /// The first item of a part.
    #[must_use]
    pub fn begin(&self, part: T) -> T {
        part * self.each + part.smaller(self.more)
    }

    /// The part that has an item.
    #[must_use]
    pub fn part_with(&self, item: T) -> T {
        let larger = self.each + 1u32;
        let among_larger = item.smaller(self.more * larger);
        among_larger / larger + (item - among_larger) / self.each
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_in_the_part_that_has_it() {
        for (items, parts) in [(1, 1), (7, 7), (112, 4), (113, 4), (3584, 132), (5, 3)] {
            let shares = Shares::of(items, parts);
            assert_eq!((shares.begin(0), shares.begin(parts)), (0, items));
            for part in 0..parts {
                let [begin, end] = [part, part + 1].map(|part| shares.begin(part));
                assert!((items / parts..=items.div_ceil(parts)).contains(&(end - begin)));
                assert!((begin..end).all(|item| shares.part_with(item) == part), "{part} of {items}/{parts}");
            }
        }
    }
}
