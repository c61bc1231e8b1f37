//! Parameters, the same for every architecture.

use crate::common::even_split::Shares;
use crate::common::params::kernel_params;
use oxigemm_ptx::U32;

/// Arguments of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Args {
    /// Tensor map of X.
    pub x: [u64; 16],
    /// Tensor map of W.
    pub w: [u64; 16],
    /// Address of D.
    pub d: u64,
    /// Address of the sums of squares.
    pub squares: u64,
    /// Address of the workspace, where CTAs share rows.
    pub workspace: u64,
    /// Elements from one split of D to the next.
    pub d_split_pitch: u64,
    /// Pitch of D in elements.
    pub d_pitch: u32,
    /// M.
    pub rows: u32,
    /// K in blocks.
    pub k_blocks: u32,
    /// Splits of D.
    pub d_splits: u32,
    /// K blocks of each split of D that has any.
    pub d_split_blocks: Shares<u32>,
    /// Interleaved K splits.
    pub k_splits: u32,
    /// K blocks of each K split.
    pub k_split_blocks: Shares<u32>,
    /// K splits of a CTA, where it has whole ones and operands are prefetched.
    pub k_splits_per_cta: u32,
    /// Stages of the rows that some CTAs share.
    pub shared_stages: u32,
    /// Number of these CTAs.
    pub sharing_ctas: u32,
    /// Stages of each of these CTAs.
    pub cta_stages: Shares<u32>,
    /// Address of X, for prefetches.
    pub x_rows: u64,
    /// Pitch of X in bytes; 0 for no prefetch.
    pub x_pitch: u32,
    /// Address of W, for prefetches.
    pub w_rows: u64,
    /// Pitch of W in bytes; 0 for no prefetch.
    pub w_pitch: u32,
}

kernel_params! {
    pub(super) struct Params from Args {
        x: TensorMap = x,
        w: TensorMap = w,
        d: Pointer = d,
        squares: Pointer = squares,
        workspace: Pointer = workspace,
        d_split_pitch: U64 = d_split_pitch,
        d_pitch: U32 = d_pitch,
        rows: U32 = rows,
        k_blocks: U32 = k_blocks,
        d_splits: U32 = d_splits,
        d_split_each: U32 = d_split_blocks.each,
        d_split_more: U32 = d_split_blocks.more,
        k_splits: U32 = k_splits,
        k_split_each: U32 = k_split_blocks.each,
        k_split_more: U32 = k_split_blocks.more,
        k_splits_per_cta: U32 = k_splits_per_cta,
        shared_stages: U32 = shared_stages,
        sharing_ctas: U32 = sharing_ctas,
        cta_each: U32 = cta_stages.each,
        cta_more: U32 = cta_stages.more,
        x_rows: Pointer = x_rows,
        x_pitch: U32 = x_pitch,
        w_rows: Pointer = w_rows,
        w_pitch: U32 = w_pitch,
    }
}

impl<'k> Params<'k> {
    /// [`Args::d_split_blocks`].
    pub fn d_split_blocks(&self) -> Shares<U32<'k>> {
        Shares { each: self.d_split_each, more: self.d_split_more }
    }

    /// [`Args::k_split_blocks`].
    pub fn k_split_blocks(&self) -> Shares<U32<'k>> {
        Shares { each: self.k_split_each, more: self.k_split_more }
    }

    /// [`Args::cta_stages`].
    pub fn cta_stages(&self) -> Shares<U32<'k>> {
        Shares { each: self.cta_each, more: self.cta_more }
    }
}
