//! Shapes and flags of the MQA logits that kernels of every architecture share.

use oxigemm_ptx::F32;
use oxigemm_ptx::wgmma::Swizzle;

/// Numbers of heads that there are dedicated kernels for.
pub const HEADS: [u32; 4] = [8, 16, 32, 64];
/// Numbers of heads that padded kernels have: a query of fewer heads is padded to the next of them.
pub const PADDED_HEADS: [u32; 5] = [32, 48, 64, 96, 128];
/// Unit of the heads of a query, and most of them.
pub const HEAD_STEP: u32 = 8;
/// Most heads of a query.
pub const MAX_HEADS: u32 = 128;
/// Head dimensions that there are kernels for.
pub const DIMS: [u32; 3] = [32, 64, 128];
/// Keys of a tile: the unit in which work is split.
pub const TILE_KEYS: u32 = 128;
/// Most queries of a sequence in a decode step (DeepGEMM's `next_n`) that there are dedicated kernels for.
pub const DEDICATED_NEXT: u32 = 4;
/// Keys of a page of the KV cache. Dedicated kernels have pages up to a tile.
pub const PAGE_SIZES: [u32; 5] = [16, 32, 64, 128, 256];

/// Flags of the logits: bits of a kernel argument.
pub struct LogitFlags;

impl LogitFlags {
    /// Logits outside of a query's range become -inf; else they are not written.
    pub const CLEAN: u32 = 1;
    /// BF16 logits, else FP32.
    pub const BF16: u32 = 2;
    /// Compressed logits: the first column of a query is the first key of its range.
    pub const COMPRESSED: u32 = 4;
    /// First bit of the number of heads, which padded kernels read.
    pub const HEADS_SHIFT: u32 = 8;
}

/// Element types of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// e4m3, with an FP32 scale for each key.
    Fp8,
    /// e2m1, two to a byte, with UE8M0 scales for 32 elements of queries and keys, four to a word.
    Fp4,
}

impl Format {
    /// Bytes of a head of this dimension.
    pub const fn row_bytes(self, dim: u32) -> u32 {
        match self {
            Format::Fp8 => dim,
            Format::Fp4 => dim / 2,
        }
    }

    /// Head dimensions that there are kernels for: one MMA of FP4 takes 64 elements.
    pub const fn dims(self) -> &'static [u32] {
        match self {
            Format::Fp8 => &DIMS,
            Format::Fp4 => &[64, 128],
        }
    }
}

/// Heads of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Number of heads: a multiple of [`HEAD_STEP`] up to [`MAX_HEADS`].
    pub heads: u32,
    /// Head dimension: one of [`DIMS`].
    pub dim: u32,
}

/// Heads that are compiled into a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadTile {
    /// Heads of a query, those that it is padded with included.
    pub heads: Heads,
    /// Whether the kernel pads queries of fewer heads. Zeros take the place of the heads that a query lacks, in Q and
    /// in the weights, so they add nothing to a logit.
    pub padded: bool,
}

impl HeadTile {
    /// All that there are kernels for.
    pub fn all() -> impl Iterator<Item = HeadTile> {
        let tiles = |heads: &'static [u32], padded| {
            heads
                .iter()
                .flat_map(move |&heads| DIMS.map(|dim| HeadTile { heads: Heads { heads, dim }, padded }))
        };
        tiles(&HEADS, false).chain(tiles(&PADDED_HEADS, true))
    }

    /// The dedicated tile for the heads of a query, else the padded one.
    pub fn of(heads: Heads) -> HeadTile {
        match HEADS.contains(&heads.heads) {
            true => HeadTile { heads, padded: false },
            false => HeadTile::padded(heads),
        }
    }

    /// The padded tile for the heads of a query.
    ///
    /// # Panics
    /// Where there are more heads than [`MAX_HEADS`].
    pub fn padded(heads: Heads) -> HeadTile {
        let Heads { heads, dim } = heads;
        let most = PADDED_HEADS.into_iter().find(|&most| most >= heads).expect("at most MAX_HEADS");
        HeadTile { heads: Heads { heads: most, dim }, padded: true }
    }

    /// Name of the tile in the names of kernels.
    pub(crate) fn name(&self) -> String {
        let Heads { heads, dim } = self.heads;
        let padded = if self.padded { "padded_" } else { "" };
        format!("{padded}h{heads}_d{dim}")
    }
}

impl Heads {
    /// All that a query may have.
    pub fn all() -> impl Iterator<Item = Heads> {
        let heads = (HEAD_STEP..=MAX_HEADS).step_by(HEAD_STEP as usize);
        heads.flat_map(|heads| DIMS.map(|dim| Heads { heads, dim }))
    }

    /// Swizzle of rows in shared memory: as wide as a row.
    pub fn swizzle(&self) -> Swizzle {
        match self.dim {
            32 => Swizzle::B32,
            64 => Swizzle::B64,
            _ => Swizzle::B128,
        }
    }

    /// A weight as the kernels take it: `x + |x|` is exactly `2 relu(x)`, and additions are twice as fast as maxima.
    pub(crate) fn halved(weight: F32<'_>) -> F32<'_> {
        weight * 0.5
    }
}
