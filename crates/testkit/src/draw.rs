//! Random numbers for cases: which shape, layout and type comes next.

use oxigemm::random;

/// Random numbers of a seed, one after another.
pub struct Draw {
    seed: u64,
    next: u64,
}

impl Draw {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Draw {
        Draw { seed, next: 0 }
    }

    /// The next number, below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.next += 1;
        (random::bits(self.seed, self.next) % end as u64) as usize
    }

    /// One of a list.
    pub fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A size from a list, or any up to its last.
    pub fn size(&mut self, from: &[usize]) -> usize {
        if self.below(4) == 0 { 1 + self.below(from[from.len() - 1]) } else { self.of(from) }
    }
}

/// Sizes of groups, evenly from 0.7 to 1.3 times `expected`.
pub fn spread(groups: usize, expected: usize, seed: u64) -> Vec<usize> {
    let part = |i: usize| random::bits(seed ^ 0x6d, i as u64) as f64 / 2f64.powi(64);
    (0..groups).map(|i| (expected as f64 * (0.7 + 0.6 * part(i))) as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_spread_around_what_is_expected() {
        let sizes = spread(1000, 200, 1);
        assert!(sizes.iter().all(|rows| (140..=260).contains(rows)));
        let mean = sizes.iter().sum::<usize>() as f64 / 1000.0;
        assert!((195.0..205.0).contains(&mean), "{mean}");
    }
}
