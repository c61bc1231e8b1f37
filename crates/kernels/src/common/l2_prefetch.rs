//! What a block needs first, asked for before anything else.
//!
//! The copy engine brings nothing until barriers exist and it has read a tensor map. Threads have the L2 cache fetch the
//! beginning of the rows meanwhile. It does not take many of them: what is fetched like this drives out what others have there.

use crate::gemm::epilogue::fusion::Fusion;
use oxigemm_ptx::{Global, Kernel, U32};

/// Bytes of a row that are a block of K, of numbers of any width.
const LINE: u32 = 128;
/// Bytes that a block asks for of each part of its rows, at most: where others run beside it an H200 was slower with more.
const BYTES: u32 = 16 << 10;

/// An operand as it lies in memory, K-major.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'k> {
    pub at: Global<'k>,
    /// Bytes from one row to the next; 0 where that is not known.
    pub pitch: U32<'k>,
    /// How many there are.
    pub count: U32<'k>,
}

impl<'k> Rows<'k> {
    /// The first threads of the block ask for the `rows` of a tile, from row `first` on: for the first of their blocks of K,
    /// `blocks[0]` to before `blocks[1]`.
    pub fn fetch(&self, k: &'k Kernel, tile: (U32<'k>, u32), blocks: [U32<'k>; 2]) {
        self.prefetch_lines(k, k.thread_index(), tile, blocks, (BYTES / (tile.1 * LINE)).max(1));
    }

    /// The same where each sum of a column of D has a part of the tile's rows: `columns` of B's rows lie between those of its parts.
    pub fn prefetch_parts(
        &self,
        k: &'k Kernel,
        (first, rows): (U32<'k>, u32),
        fusion: Fusion,
        blocks: [U32<'k>; 2],
    ) {
        let (parts, columns) = (fusion.sums(), self.count);
        for part in 0..parts {
            let rows_of_parts = Rows { count: columns * (part + 1), ..*self };
            rows_of_parts.fetch(k, (first + columns * part, rows / parts), blocks);
        }
    }

    /// The same for a number of blocks of K, by other threads: `thread` is which of them this is.
    pub fn prefetch_lines(
        &self,
        k: &'k Kernel,
        thread: U32<'k>,
        (first, rows): (U32<'k>, u32),
        blocks: [U32<'k>; 2],
        lines: u32,
    ) {
        let row = first + thread;
        let asks = thread.lt(rows) & row.lt(self.count) & self.pitch.ne(0);
        let line = self.at.at(row.widening_mul(self.pitch)).at(blocks[0].widening_mul(LINE));
        for nth in 0..lines {
            let line = line.at(u64::from(nth * LINE));
            k.guard(asks & (blocks[0] + nth).lt(blocks[1]), || line.prefetch());
        }
    }
}
