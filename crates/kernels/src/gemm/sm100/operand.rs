//! Operand tiles in shared memory, of every element size, as `tcgen05.mma` reads them.

use crate::gemm::kind::{ElementType, Operand, OperandKind, ScaleType};
use crate::gemm::operand::f16::Major;
use crate::gemm::params::{ScaleBlock, ScalesOfB};
use oxigemm_ptx::tcgen05::{BlockScale, Element, Kind};
use oxigemm_ptx::wgmma::{Descriptor, Swizzle};
use oxigemm_ptx::{Shared, U32};

/// Bytes of a line of a tile: the pattern of the 128-byte swizzle.
pub(super) const LINE_BYTES: u32 = Swizzle::B128.bytes();
/// Bytes of K of a K-major row that one MMA multiplies.
const MMA_BYTES: u32 = 32;

/// An operand's part of a stage, in lines of 128 bytes.
///
/// K-major, a line is a row. MN-major, a line is as many rows as fit at one depth of K, and the lines of all depths of a
/// stage make a panel.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperandTile {
    pub operand: Operand,
    /// Rows of M or N: a multiple of 8, of [`line_rows`](Self::line_rows) where the tile is MN-major.
    pub rows: u32,
    /// Elements of K of a stage.
    pub block_k: u32,
}

impl OperandTile {
    /// Bytes of the tile in shared memory.
    pub const fn bytes(&self) -> u32 {
        self.rows * LINE_BYTES
    }

    /// Bytes that TMA counts when it loads the tile: FP4 that is spread to a byte each counts as half of them.
    pub const fn loaded_bytes(&self) -> u32 {
        self.rows * self.block_k * self.operand.element.bits() / 8
    }

    /// Rows of a line of an MN-major tile.
    pub const fn line_rows(&self) -> u32 {
        LINE_BYTES * 8 / self.operand.element.bits()
    }

    /// Lines of one tensor load.
    pub const fn lines(&self) -> u32 {
        match self.operand.major {
            Major::K => self.rows,
            Major::MN => self.block_k,
        }
    }

    /// The dimension of its tensor map that is K.
    pub const fn k_dimension(&self) -> u32 {
        match self.operand.major {
            Major::K => 0,
            Major::MN => 1,
        }
    }

    /// A depth of K as its tensor map counts it: FP4 beside FP4 is copied as bytes of two.
    pub fn depth_in_map<'k>(&self, depth: U32<'k>) -> U32<'k> {
        let is_packed = self.block_k * self.operand.element.bits() == LINE_BYTES * 8;
        if self.operand.element == ElementType::E2m1 && is_packed { depth / 2 } else { depth }
    }

    /// The tensor loads of a tile that begins at `row` of M or N and at `depth` of K: the coordinates of each, and where
    /// it goes.
    pub fn boxes<'k>(
        &self,
        [row, depth]: [U32<'k>; 2],
        tile: Shared<'k>,
    ) -> impl Iterator<Item = ([U32<'k>; 2], Shared<'k>)> {
        let (major, width, panel_bytes) = (self.operand.major, self.line_rows(), self.block_k * LINE_BYTES);
        let depth = self.depth_in_map(depth);
        let count = if major == Major::K { 1 } else { self.rows / width };
        (0..count).map(move |panel| match major {
            Major::K => ([depth, row], tile),
            Major::MN => ([row + panel * width, depth], tile.at(panel * panel_bytes)),
        })
    }

    /// The tile as the tensor core sees it.
    pub fn descriptor<'k>(&self, tile: Shared<'k>) -> Descriptor<'k> {
        let swizzle = self.operand.swizzle();
        match self.operand.major {
            Major::K => Descriptor::k_major(tile, swizzle),
            Major::MN => Descriptor::mn_major(tile, swizzle, self.block_k * LINE_BYTES),
        }
    }

    /// Bytes from the beginning of a tile to the K of its `nth` MMA, which multiplies so many elements of K.
    pub const fn step_offset(&self, nth: u32, mma_k: u32) -> u32 {
        match self.operand.major {
            Major::K => nth * MMA_BYTES,
            Major::MN => nth * mma_k * LINE_BYTES,
        }
    }
}

/// The kind of MMA for operands, with `block_scaled` ones as the tensor core's own.
pub(super) const fn mma_kind(operands: OperandKind) -> Kind {
    let (a, b) = (operands.a.element, operands.b.element);
    match (a, operands.scale_type) {
        (ElementType::Bf16, _) => Kind::Bf16,
        (ElementType::F16, _) => Kind::F16,
        (ElementType::Tf32, _) => Kind::Tf32,
        (ElementType::E2m1, ScaleType::Ue4m3) => Kind::Mxf4(BlockScale::Ue4m3Of16),
        (ElementType::E2m1, _) if matches!(b, ElementType::E2m1) => Kind::Mxf4(BlockScale::Ue8m0Of32),
        _ => Kind::Mxf8f6f4(element(a), element(b)),
    }
}

const fn element(element: ElementType) -> Element {
    match element {
        ElementType::E5m2 => Element::E5m2,
        ElementType::E2m1 => Element::E2m1,
        _ => Element::E4m3,
    }
}

/// Words of four scales that a row has in a stage.
pub(super) const fn scale_words(operands: OperandKind) -> u32 {
    match (operands.is_block_scaled(), operands.scale_block) {
        (false, _) => 0,
        // One byte of a word that four stages share, in each of the word's bytes.
        (true, ScaleBlock::Of128) => 1,
        (true, block) => operands.block_k() / (4 * block.size()),
    }
}

/// The part of a kernel's name that says what its operands are.
pub(super) fn operands_name(operands: OperandKind) -> String {
    let (a, b) = (operands.a.element, operands.b.element);
    let pair = || if a == b { a.name().to_owned() } else { format!("{}_{}", a.name(), b.name()) };
    if !operands.is_block_scaled() {
        return a.name().to_owned();
    }
    let blocks = match operands.scales {
        Some(ScalesOfB::Blocks) => "_blocks",
        _ => "",
    };
    match (operands.scale_block, a, b) {
        (ScaleBlock::Of32, ElementType::E4m3, ElementType::E4m3) => format!("mxfp8{blocks}"),
        (ScaleBlock::Of32, ElementType::E2m1, ElementType::E2m1) => format!("mxfp4{blocks}"),
        (ScaleBlock::Of16, ..) => "nvfp4".to_owned(),
        (ScaleBlock::Of32, ..) => format!("mx_{}{blocks}", pair()),
        (ScaleBlock::Of128, ..) => format!("ue8m0_{}{blocks}", pair()),
    }
}

/// The layout of the operands, as BLAS has it.
pub(super) fn layout_name(operands: OperandKind) -> &'static str {
    match (operands.a.major, operands.b.major) {
        (Major::K, Major::K) => "nt",
        (Major::K, Major::MN) => "nn",
        (Major::MN, Major::MN) => "tn",
        (Major::MN, Major::K) => "tt",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MXFP4: OperandKind =
        OperandKind::block_scaled([ElementType::E2m1; 2], ScalesOfB::Rows, ScaleBlock::Of32);
    const NVFP4: OperandKind =
        OperandKind::block_scaled([ElementType::E2m1; 2], ScalesOfB::Rows, ScaleBlock::Of16);
    const MXFP8: OperandKind =
        OperandKind::block_scaled([ElementType::E4m3; 2], ScalesOfB::Rows, ScaleBlock::Of32);
    const MIXED: OperandKind =
        OperandKind::block_scaled([ElementType::E4m3, ElementType::E2m1], ScalesOfB::Rows, ScaleBlock::Of32);

    #[test]
    fn a_stage_is_four_mmas_deep_whatever_the_operands_are() {
        for operands in [MXFP4, NVFP4, MXFP8, MIXED] {
            assert_eq!(operands.block_k(), 4 * mma_kind(operands).k(), "{operands:?}");
            assert_eq!(scale_words(operands) * 4, mma_kind(operands).scales() * 4, "{operands:?}");
        }
        assert_eq!([MXFP8, MIXED, MXFP4, NVFP4].map(scale_words), [1, 1, 2, 4]);
    }

    #[test]
    fn names_tell_operands_apart() {
        assert_eq!(
            [MXFP8, MIXED, MXFP4, NVFP4].map(operands_name),
            ["mxfp8", "mx_e4m3_e2m1", "mxfp4", "nvfp4"]
        );
    }
}
