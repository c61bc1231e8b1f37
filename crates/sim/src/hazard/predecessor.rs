//! The kernel before: what it touches, and who has waited for it.
//!
//! A kernel that is launched as a dependent may start while the one before it in the stream still runs. Until a thread
//! has waited (`griddepcontrol.wait`), or has synchronized with one that has, it must leave alone what the other
//! writes, and must not write what the other reads.

use super::Hazards;
use super::global::PAGE;
use std::collections::HashMap;

/// The words of global memory that kernels have touched.
#[derive(Clone, Debug, Default)]
pub(crate) struct Footprint {
    kernels: Vec<String>,
    pages: HashMap<u64, Touched>,
}

/// The words of a page, as bits.
#[derive(Clone, Copy, Debug, Default)]
struct Touched {
    written: [u64; PAGE as usize / 64],
    read: [u64; PAGE as usize / 64],
}

/// An access that may meet one of the kernel before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overlap {
    pub(crate) address: u64,
    /// Whether the kernel before writes there.
    pub(crate) other_writes: bool,
}

impl Footprint {
    pub(super) fn new(kernel: &str) -> Footprint {
        Footprint { kernels: vec![kernel.to_owned()], pages: HashMap::new() }
    }

    /// Adds a page: of each word, whether it was written and whether it was read.
    pub(super) fn touch(&mut self, page: u64, words: impl Iterator<Item = (bool, bool)>) {
        let page = self.pages.entry(page).or_default();
        for (word, (written, read)) in words.enumerate() {
            page.written[word / 64] |= u64::from(written) << (word % 64);
            page.read[word / 64] |= u64::from(read) << (word % 64);
        }
    }

    /// Adds what others have touched.
    pub(super) fn join(&mut self, other: &Footprint) {
        self.kernels.extend(other.kernels.iter().cloned());
        for (at, page) in &other.pages {
            let own = self.pages.entry(*at).or_default();
            own.written.iter_mut().zip(page.written).for_each(|(own, other)| *own |= other);
            own.read.iter_mut().zip(page.read).for_each(|(own, other)| *own |= other);
        }
    }

    /// Whether there is no kernel before, or it has touched nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The kernels, in words.
    pub(crate) fn names(&self) -> String {
        self.kernels.iter().map(|kernel| format!("`{kernel}`")).collect::<Vec<_>>().join(", ")
    }

    /// The first word of a range that the kernels write, or read where the access `writes`.
    pub(crate) fn meets(&self, (start, bytes): (u64, u64), writes: bool) -> Option<Overlap> {
        (start / 4..(start + bytes).div_ceil(4)).find_map(|word| {
            let page = self.pages.get(&(word / PAGE))?;
            let (i, bit) = ((word % PAGE / 64) as usize, word % 64);
            let other_writes = page.written[i] >> bit & 1 == 1;
            let meets = other_writes || writes && page.read[i] >> bit & 1 == 1;
            meets.then_some(Overlap { address: word * 4, other_writes })
        })
    }
}

impl Hazards {
    /// The agent that stands for the kernel before; its only tick is its end.
    fn predecessor(&self) -> u32 {
        self.clocks.len() as u32 * super::UNITS
    }

    /// The selected lanes have waited for the kernel before.
    pub(crate) fn predecessor_done(&mut self, warp: u32) {
        self.completed(warp, self.predecessor(), 1);
    }

    /// Whether a lane knows that the kernel before has ended: it or another thread has waited for it.
    pub(crate) fn knows_predecessor_done(&mut self, warp: u32, lane: u8) -> bool {
        let agent = self.predecessor();
        let view = &self.class(warp, lane).now;
        let knows = |ticks: &super::view::Ticks| super::view::get(&ticks.seen, agent) >= 1;
        view.has(agent, 1) || view.others.range(self.origin.clusters.clone()).any(|other| knows(other.1))
    }
}
