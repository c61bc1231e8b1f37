//! L2 prefetch: threads request the first lines of an operand before the pipeline can.
//!
//! TMA loads nothing until barriers exist and a tensor map has been read. Meanwhile threads prefetch the beginning of
//! the rows into the L2 cache. They do not prefetch much: that would evict what other blocks have there.

use oxigemm_ptx::{Global, Kernel, U32};

/// Bytes of a row that are a K block, of elements of any width.
const LINE: u32 = 128;
/// Bytes that a block prefetches of each part of its rows, at most: with more, blocks that run side by side were slower
/// on an H200.
const BYTES: u32 = 16 << 10;

/// K-major operand as it lies in memory.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'k> {
    pub at: Global<'k>,
    /// Bytes from one row to the next; 0 where that is not known.
    pub pitch: U32<'k>,
    /// How many there are.
    pub count: U32<'k>,
}

impl<'k> Rows<'k> {
    /// Prefetches the `rows` of a tile, from row `first` on, by the first threads of the block: the first of the K
    /// blocks `blocks[0]` to before `blocks[1]`. The tile has rows of `parts` parts of the operand, each
    /// [`count`](Self::count) rows behind the one before: gates and ups.
    pub fn prefetch(&self, k: &'k Kernel, (first, rows): (U32<'k>, u32), parts: u32, blocks: [U32<'k>; 2]) {
        let (count, rows) = (self.count, rows / parts);
        for part in 0..parts {
            let rows_of_part = Rows { count: count * (part + 1), ..*self };
            let (first, lines) = (first + count * part, (BYTES / (rows * LINE)).max(1));
            rows_of_part.prefetch_lines(k, k.thread_index(), (first, rows), blocks, lines);
        }
    }

    /// Prefetches `lines` K blocks of a tile's rows, by threads of which this is the `thread`-th.
    pub fn prefetch_lines(
        &self,
        k: &'k Kernel,
        thread: U32<'k>,
        (first, rows): (U32<'k>, u32),
        blocks: [U32<'k>; 2],
        lines: u32,
    ) {
        let row = first + thread;
        let exists = thread.lt(rows) & row.lt(self.count) & self.pitch.ne(0);
        let line = self.at.at(row.widening_mul(self.pitch)).at(blocks[0].widening_mul(LINE));
        for nth in 0..lines {
            let line = line.at(u64::from(nth * LINE));
            k.guard(exists & (blocks[0] + nth).lt(blocks[1]), || line.prefetch());
        }
    }
}
