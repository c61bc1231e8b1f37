//! Layout of a symmetric buffer: a header, a rank's tokens with their choices, and sums for the tokens of all ranks.

use oxigemm_ptx::{Global, Pred, Ptr, Scope, U32};

/// Most ranks: a lane of the barrier's warp for each.
pub const MAX_RANKS: u32 = 32;
/// Parts begin at multiples of this.
const ALIGNMENT: u64 = 256;
/// Offset of the number of barriers so far.
const EPOCH: u64 = 8 * MAX_RANKS as u64;
/// Offset of [`Trouble`].
pub const STATUS: u64 = EPOCH + 4;
/// Offset of the lines that others write, one for each.
const LINES: u64 = 512;
/// Bytes of a line: no two ranks write to the same.
const LINE: u32 = 128;
/// Bytes of the header.
pub const HEADER: u64 = LINES + (MAX_RANKS * LINE) as u64;
/// Value of the status where nothing is wrong.
pub const FINE: u32 = u32::MAX;

/// What ranks have to agree about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Number of ranks.
    pub ranks: u32,
    /// Most tokens of a rank.
    pub tokens: u32,
    /// Choices of a token.
    pub top_k: u32,
    /// Experts of a rank.
    pub experts: u32,
    /// Columns of a token.
    pub columns: u32,
    /// Bytes of a column: 1 for codes with scales, 2 for BF16.
    pub element: u32,
    /// Scales of a token.
    pub scales: u32,
}

impl Shape {
    /// Tokens of all ranks.
    pub fn all_tokens(&self) -> u64 {
        u64::from(self.ranks) * u64::from(self.tokens)
    }

    /// Where everything lies.
    ///
    /// ```
    /// use oxigemm_kernels::exchange::buffer::Shape;
    ///
    /// let shape = Shape { ranks: 4, tokens: 8, top_k: 2, experts: 16, columns: 256, element: 1, scales: 2 };
    /// let layout = shape.layout();
    /// assert_eq!(layout.scales - layout.x, 8 * 256);
    /// assert_eq!(layout.bytes - layout.sums, 4 * 8 * 256 * 2);
    /// ```
    pub fn layout(&self) -> Layout {
        let mut bytes = HEADER;
        let mut place = |sizes: [u32; 3]| {
            let start = bytes;
            let part = sizes.into_iter().fold(1u64, |product, size| product.saturating_mul(u64::from(size)));
            bytes = bytes.saturating_add(part.saturating_add(ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
            start
        };
        let x = place([self.tokens, self.columns, self.element]);
        let scales = place([self.tokens, self.scales, 4]);
        let ids = place([self.tokens, self.top_k, 8]);
        let weights = place([self.tokens, self.top_k, 4]);
        let rows = place([self.tokens, self.scales.min(1), 4]);
        let sums = place([self.tokens.saturating_mul(self.ranks), self.columns, 2]);
        Layout { x, scales, ids, weights, rows, sums, bytes }
    }

    /// A number that differs where shapes do, but for accidents.
    pub fn digest(&self) -> u32 {
        let Shape { ranks, tokens, top_k, experts, columns, element, scales } = *self;
        // FNV-1a, by words.
        let words = [ranks, tokens, top_k, experts, columns, element, scales];
        words.into_iter().fold(0x811c_9dc5, |hash: u32, word| (hash ^ word).wrapping_mul(0x0100_0193))
    }
}

/// Offsets of the parts of a buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// `[tokens, columns]`: tokens.
    pub x: u64,
    /// `[tokens, scales]` FP32: their scales.
    pub scales: u64,
    /// `[tokens, top_k]` i64: experts of all ranks.
    pub ids: u64,
    /// `[tokens, top_k]` FP32: their weights.
    pub weights: u64,
    /// `[tokens]` i32, where tokens are quantized: those that may be written, for this rank alone.
    pub rows: u64,
    /// `[ranks, tokens, columns]` BF16: sums over this rank's experts.
    pub sums: u64,
    /// All of it.
    pub bytes: u64,
}

/// What went wrong in a call: the status of a buffer, whose lower half is the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A rank failed between the barriers of a call.
    Failed(u32),
    /// A rank did not come to a barrier in time.
    Missing(u32),
    /// A rank has another shape.
    Disagrees(u32),
    /// There were more rows than there is room for; this rank's choices behind them were dropped.
    Full,
}

impl Trouble {
    const RANK: u32 = 0xffff;
    // The smallest stays: what is told to all ranks, the cause first; what each finds by itself; what breaks nothing.
    pub(super) const FAILED: u32 = 1 << 16;
    pub(super) const MISSING: u32 = 2 << 16;
    pub(super) const DISAGREES: u32 = 3 << 16;
    pub(super) const FULL: u32 = 4 << 16;

    /// The trouble that a status stands for.
    ///
    /// ```
    /// use oxigemm_kernels::exchange::buffer::{FINE, Trouble};
    ///
    /// assert_eq!(Trouble::of(FINE), None);
    /// assert_eq!(Trouble::of(0x1_0003), Some(Trouble::Failed(3)));
    /// ```
    pub fn of(status: u32) -> Option<Trouble> {
        let rank = status & Trouble::RANK;
        match status & !Trouble::RANK {
            Trouble::FAILED => Some(Trouble::Failed(rank)),
            Trouble::MISSING => Some(Trouble::Missing(rank)),
            Trouble::DISAGREES => Some(Trouble::Disagrees(rank)),
            Trouble::FULL => Some(Trouble::Full),
            _ => None,
        }
    }
}

/// The first bytes of a buffer before its first call: addresses of the buffers of all ranks, no barriers, nothing wrong.
pub fn header(buffers: &[u64]) -> Vec<u8> {
    let mut bytes: Vec<u8> = buffers.iter().flat_map(|address| address.to_le_bytes()).collect();
    bytes.resize(HEADER as usize, 0);
    bytes[STATUS as usize..][..4].copy_from_slice(&FINE.to_le_bytes());
    bytes
}

/// A symmetric buffer in a kernel.
#[derive(Clone, Copy)]
pub(super) struct Buffer<'k>(pub Global<'k>);

impl<'k> Buffer<'k> {
    /// The buffer of a rank, as the header says.
    #[track_caller]
    pub fn of(self, rank: U32<'k>) -> Buffer<'k> {
        Buffer(Ptr::new(self.0.at(rank.widening_mul(8)).load_readonly::<u64>()))
    }

    /// The number of barriers so far: odd between the two of a call.
    pub fn epoch(self) -> Global<'k> {
        self.0.at(EPOCH)
    }

    /// What went wrong.
    pub fn status(self) -> Global<'k> {
        self.0.at(STATUS)
    }

    /// Whether ranks cannot go on together. Then nothing of another rank is read.
    #[track_caller]
    pub fn is_broken(self) -> Pred<'k> {
        self.status().load_relaxed::<u32>(Scope::Sys).lt(Trouble::FULL)
    }

    /// Whether this rank may write its tokens: it is between two calls, and all ranks have read those of the last one.
    /// Behind the first barrier of a call that never came to its second, others may be reading.
    #[track_caller]
    pub fn may_publish(self) -> Pred<'k> {
        (self.epoch().load::<u32>() & 1).eq(0) & !self.is_broken()
    }

    /// The last barrier that a rank came to.
    #[track_caller]
    pub fn arrival(self, rank: U32<'k>) -> Global<'k> {
        self.0.at(LINES).at(rank.widening_mul(LINE))
    }

    /// How many tokens a rank has.
    #[track_caller]
    pub fn tokens(self, rank: U32<'k>) -> Global<'k> {
        self.arrival(rank).at(4)
    }

    /// The digest of its shape.
    #[track_caller]
    pub fn digest(self, rank: U32<'k>) -> Global<'k> {
        self.arrival(rank).at(8)
    }
}
