//! Things in a row, shared out to parts as evenly as whole things can be.

use std::ops::Add;

use crate::gemm::scheduler::order::Index;

/// The first `more` parts have one more than `each`, which is at least 1. One function of the host and of
/// kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shares<T> {
    /// Things of a part.
    pub each: T,
    /// Parts that have one more.
    pub more: T,
}

impl Shares<u32> {
    /// Shares out to no more parts than there are things.
    #[must_use]
    pub fn of(things: u32, parts: u32) -> Shares<u32> {
        assert!((1..=things).contains(&parts), "{things} to {parts} parts");
        Shares { each: things / parts, more: things % parts }
    }
}

impl<T: Index + Add<u32, Output = T>> Shares<T> {
    /// The first thing of a part.
    #[must_use]
    pub fn begin(&self, part: T) -> T {
        part * self.each + part.smaller(self.more)
    }

    /// The part that has a thing.
    #[must_use]
    pub fn part_with(&self, thing: T) -> T {
        let larger = self.each + 1u32;
        let among_larger = thing.smaller(self.more * larger);
        among_larger / larger + (thing - among_larger) / self.each
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thing_is_in_the_part_that_has_it() {
        for (things, parts) in [(1, 1), (7, 7), (112, 4), (113, 4), (3584, 132), (5, 3)] {
            let shares = Shares::of(things, parts);
            assert_eq!((shares.begin(0), shares.begin(parts)), (0, things));
            for part in 0..parts {
                let [begin, end] = [part, part + 1].map(|part| shares.begin(part));
                assert!((things / parts..=things.div_ceil(parts)).contains(&(end - begin)));
                assert!(
                    (begin..end).all(|thing| shares.part_with(thing) == part),
                    "{part} of {things}/{parts}"
                );
            }
        }
    }
}
