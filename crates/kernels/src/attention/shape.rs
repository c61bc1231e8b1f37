//! Shapes and flags of the MQA logits that kernels of every architecture share.

use oxigemm_ptx::wgmma::Swizzle;

/// Numbers of heads that there are kernels for.
pub const HEADS: [u32; 4] = [8, 16, 32, 64];
/// Head dimensions that there are kernels for.
pub const DIMS: [u32; 3] = [32, 64, 128];
/// Keys of a tile: the unit in which work is split.
pub const TILE_KEYS: u32 = 128;
/// Most queries of a sequence in a decode step (DeepGEMM's `next_n`).
pub const MAX_NEXT: u32 = 4;
/// Keys of a page of the KV cache.
pub const PAGE_SIZES: [u32; 4] = [16, 32, 64, 128];

/// Flags of the logits: bits of a kernel argument.
pub struct LogitFlags;

impl LogitFlags {
    /// Logits outside of a query's range become -inf; else they are not written.
    pub const CLEAN: u32 = 1;
    /// BF16 logits, else FP32.
    pub const BF16: u32 = 2;
    /// Compressed logits: the first column of a query is the first key of its range.
    pub const COMPRESSED: u32 = 4;
}

/// Heads of a query: what is compiled into a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Number of heads: one of [`HEADS`].
    pub heads: u32,
    /// Head dimension: one of [`DIMS`].
    pub dim: u32,
}

impl Heads {
    /// All that there are kernels for.
    pub fn all() -> impl Iterator<Item = Heads> {
        HEADS.into_iter().flat_map(|heads| DIMS.map(|dim| Heads { heads, dim }))
    }

    /// Swizzle of rows in shared memory: as wide as a row.
    pub fn swizzle(&self) -> Swizzle {
        match self.dim {
            32 => Swizzle::B32,
            64 => Swizzle::B64,
            _ => Swizzle::B128,
        }
    }
}
