//! Form of the cost model: what every architecture's estimate is made of.
//!
//! A kernel keeps several units busy at once: the tensor cores, the memory, the L2 cache, and the path from there into
//! an SM. It takes about as long as the busiest unit, a little more where others are nearly as busy. Launch, pipeline
//! fill, split-K reduction and the output of tiles overlap with nothing and are added.

/// An estimated time and its terms, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// The whole.
    pub us: f64,
    /// Tensor cores of the busiest SM.
    pub tensor: f64,
    /// Memory.
    pub memory: f64,
    /// L2 cache.
    pub l2: f64,
    /// Path from the L2 cache into the busiest SM.
    pub feed: f64,
    /// Output of the busiest SM.
    pub output: f64,
    /// Launch and pipeline fill.
    pub start: f64,
}

impl Cost {
    /// The terms by name: the first four overlap, the others add up.
    #[must_use]
    pub fn terms(&self) -> [(&'static str, f64); 6] {
        [
            ("tensor", self.tensor),
            ("memory", self.memory),
            ("l2", self.l2),
            ("feed", self.feed),
            ("output", self.output),
            ("start", self.start),
        ]
    }

    /// The cost with its total. Units overlap the better the higher `sharpness` is: with 1 not at all, with a very high
    /// one only the busiest counts.
    pub(super) fn overlapped(self, sharpness: f64) -> Cost {
        let units = [self.tensor, self.memory, self.l2, self.feed];
        let busy: f64 = units.iter().map(|unit| unit.powf(sharpness)).sum();
        Cost { us: busy.powf(1.0 / sharpness) + self.output + self.start, ..self }
    }

    /// The same cost with a start that is this much shorter.
    pub(super) fn sooner(self, us: f64) -> Cost {
        Cost { us: self.us - us, start: self.start - us, ..self }
    }

    /// The same cost with a start that is this much longer.
    pub(super) fn later(self, us: f64) -> Cost {
        Cost { us: self.us + us, start: self.start + us, ..self }
    }
}
