//! Block scales on their way to the tensor core.
//!
//! Memory has words of four scales along K, of any strides. The tensor core wants 32 rows of 16 bytes for each 128 rows
//! of an operand: the words of rows `l`, `l + 32`, `l + 64` and `l + 96` in row `l`. So lane `l` of a warp loads those and
//! stores them as one vector.

use crate::common::WARP;
use crate::gemm::kind::OperandKind;
use crate::gemm::params::{ScaleBlock, ScaleParams, ScalesOfB};
use crate::gemm::sm100::operand::scale_words;
use oxigemm_ptx::tcgen05::{CopyShape, CtaGroup, TensorMemory};
use oxigemm_ptx::wgmma::{Descriptor, Swizzle};
use oxigemm_ptx::{Pred, Shared, U32};

/// Rows whose scales are copied to tensor memory at a time.
pub(crate) const GROUP_ROWS: u32 = 128;
/// Bytes of the scales of so many rows: a word each.
pub(crate) const GROUP_BYTES: u32 = GROUP_ROWS * 4;
/// Columns of tensor memory that those take.
pub(crate) const GROUP_COLUMNS: u32 = 4;

/// A lane's words of a group of 128 rows.
pub(crate) type LaneWords<'k> = [U32<'k>; 4];

/// Scales of one operand in memory.
#[derive(Clone, Copy)]
pub(super) struct BlockScales<'k> {
    pub operands: OperandKind,
    pub params: ScaleParams<'k>,
    /// Whether this is B, whose scales may be of blocks of rows.
    pub is_b: bool,
    /// The first scale of a row where groups are along K: it is any byte of a word.
    pub first: Option<U32<'k>>,
    /// Scales of a row along K.
    pub blocks: U32<'k>,
}

impl<'k> BlockScales<'k> {
    /// The rows of a group that a lane has the words of.
    pub fn rows_of_lane(group: u32, lane: U32<'k>) -> [U32<'k>; 4] {
        [0, 1, 2, 3].map(|nth| lane + (group * GROUP_ROWS + nth * WARP))
    }

    /// The `word`-th word of a row in a stage: 0 behind the end of K, and where the row does not exist.
    pub fn word(&self, (row, exists): (U32<'k>, Pred<'k>), (stage, word): (U32<'k>, u32)) -> U32<'k> {
        let block = self.operands.scale_block;
        let row = match self.operands.scales {
            Some(ScalesOfB::Blocks) if self.is_b => row / block.size(),
            _ => row,
        };
        match block {
            ScaleBlock::Of128 => {
                // One scale for the whole stage, in each byte.
                let at = self.first.map_or(stage, |first| first + stage);
                let exists = exists & stage.lt(self.blocks);
                let loaded: U32<'k> = self.params.at(row, at >> 2).load_if(exists, 0u32);
                loaded.permute_bytes(loaded, (at & 3) * 0x1111u32)
            }
            ScaleBlock::Of32 | ScaleBlock::Of16 => {
                let index = stage * scale_words(self.operands) + word;
                match self.first {
                    None => {
                        let exists = exists & index.lt(self.blocks.div_ceil(4));
                        self.params.at(row, index).load_if(exists, 0u32)
                    }
                    Some(first) => self.word_of_range((row, exists), first, index * 4),
                }
            }
        }
    }

    /// Four scales of a row from `block` of its group on, which may lie in two words; 0 behind the group's end, where the
    /// scales of another group follow.
    fn word_of_range(&self, (row, exists): (U32<'k>, Pred<'k>), first: U32<'k>, block: U32<'k>) -> U32<'k> {
        let k = block.kernel();
        let (index, byte) = ((first + block) >> 2, (first + block) & 3);
        let load = |index: U32<'k>, exists: Pred<'k>| -> U32<'k> {
            self.params.at(row, index).load_if(exists, 0u32)
        };
        let low = load(index, exists & block.lt(self.blocks));
        let high = load(index + 1, exists & byte.ne(0) & (block + 4 - byte).lt(self.blocks));
        let four = low.permute_bytes(high, byte * 0x1111u32 + 0x3210u32);
        let behind = self.blocks - block.min(self.blocks);
        let kept = (k.constant(1u32) << (behind.min(3) * 8)) - 1u32;
        four & behind.ge(4).select(u32::MAX, kept)
    }
}

/// Stores a lane's words of some groups as the tensor core wants them.
pub(crate) fn store_words<'k>(to: Shared<'k>, lane: U32<'k>, groups: &[LaneWords<'k>]) {
    let row = to.at(lane * 16);
    for (group, words) in (0u32..).zip(groups) {
        row.at(group * GROUP_BYTES).store_vec(*words);
    }
}

/// Copies the scales of some groups to tensor memory, in order with the MMAs before and after; one thread executes it.
pub(crate) fn copy_groups<'k>(group: CtaGroup, from: Shared<'k>, to: TensorMemory<'k>, count: u32) {
    for nth in 0..count {
        // 32 rows of 16 bytes, one after another.
        let rows = Descriptor::new(from.at(nth * GROUP_BYTES), Swizzle::None, 16, 128);
        to.column(nth * GROUP_COLUMNS).copy_from(group, CopyShape::Scales, rows);
    }
}
