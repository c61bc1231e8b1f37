//! Scales of FP8 and FP4 operands: which elements share one, which kernels such operands have, and the words that a
//! tensor core reads which applies scales itself.

use oxigemm_kernels::gemm::params::{ScaleBlock, ScalesOfB};
use oxigemm_kernels::gemm::{ElementType, OperandKind};

use super::desc::{GemmDesc, GroupingDesc};
use super::{FP8, Shape, blocks, fp8_kind};
use crate::error::{Error, Result};
use crate::tensor::desc::Operand;
use crate::tensor::dtype::DType;
use crate::tensor::layout::MAX_RANK;

/// Scales of A and B with the dimensions that they stand for.
pub(super) struct Scales {
    pub sfa: Operand,
    pub sfb: Operand,
    /// Rows and elements of K that share a scale, of A and of B.
    pub granularity: [[u32; 2]; 2],
    /// Kernels for operands with these scales.
    pub kind: OperandKind,
}

/// Scales of one operand where the tensor core applies them: words of four bytes along K.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScaleWords {
    /// The argument, in the layout `nt`; strides are 0 where one scale holds for all.
    pub from: Operand,
    pub slabs: u64,
    /// Rows of words, of one slab.
    pub rows: u32,
    /// Scales of a row, four to a word.
    pub columns: u32,
    /// Rows that share a row of the argument, as a shift.
    pub row_shift: u32,
    /// Scales of a row that share one of the argument, as a shift.
    pub column_shift: u32,
}

/// Elements of K in one element of an operand: two of FP4.
pub(super) fn elements(operand: &Operand) -> i64 {
    if operand.dtype == DType::U8 { 2 } else { 1 }
}

impl GemmDesc {
    /// Whether an operand is FP4.
    pub(super) fn has_fp4(&self) -> bool {
        [&self.a, &self.b].iter().any(|operand| operand.dtype == DType::U8)
    }

    /// Rows and elements of K that share a scale, of A and of B, where the operands have FP32 scales.
    pub(crate) fn scale_granularity(&self) -> Result<Option<[[u32; 2]; 2]>> {
        let nt = self.as_nt();
        Ok(nt.expect_scales(&nt.shape()?)?.map(|scales| scales.granularity))
    }

    /// The scales as words, with the kind of kernels that read those. `as_f32` is the same GEMM with FP32 scales, which
    /// was checked.
    pub(crate) fn scale_words(&self, as_f32: &GemmDesc) -> Result<Option<(OperandKind, [ScaleWords; 2])>> {
        let (own, as_f32) = (self.as_nt(), as_f32.as_nt());
        let shape = as_f32.shape()?;
        let Some(scales) = as_f32.expect_scales(&shape)? else { return Ok(None) };
        let (Some(sfa), Some(sfb)) = (&own.sfa, &own.sfb) else { return Ok(None) };
        let kind = block_scaled([&self.a, &self.b], scales.granularity);
        let (a_slabs, _, b_slabs) = self.leading();
        let block = kind.scale_block;
        let columns = blocks(shape.k, block) as u32;
        let words = |own: &Operand,
                     checked: &Operand,
                     slabs: i64,
                     several: bool,
                     [rows, row_shift]: [i64; 2],
                     of_k: u32| {
            ScaleWords {
                from: like(own, checked, several),
                slabs: slabs as u64,
                rows: rows as u32,
                columns,
                row_shift: row_shift as u32,
                column_shift: (of_k / block.size()).ilog2(),
            }
        };
        let [[_, k_of_a], [rows_of_b, k_of_b]] = scales.granularity;
        let rows_of_b = match kind.scales {
            Some(ScalesOfB::Blocks) => [blocks(shape.n, block), 0],
            _ => [shape.n, rows_of_b.ilog2().into()],
        };
        Ok(Some((
            kind,
            [
                words(sfa, &scales.sfa, shape.slabs, a_slabs, [shape.m, 0], k_of_a),
                words(sfb, &scales.sfb, shape.count, b_slabs, rows_of_b, k_of_b),
            ],
        )))
    }

    /// The scales of FP8 and FP4 operands, which are FP32 here.
    pub(super) fn expect_scales(&self, shape: &Shape) -> Result<Option<Scales>> {
        let (GemmDesc { a, b, .. }, &Shape { slabs, count, m, n, k }) = (self, shape);
        let (Some(sfa), Some(sfb)) = (&self.sfa, &self.sfb) else { return Ok(None) };
        let (a_slabs, _, b_slabs) = self.leading();
        self.expect_scales_of_16()?;
        let [block_a, block_b] = self.scale_blocks(sfa, sfb, shape);
        let of_a = match block_a {
            ScaleBlock::Of128 => "one per row of `a` and 128 of K",
            ScaleBlock::Of32 => "one per row of `a` and 32 of K",
            ScaleBlock::Of16 => "one per row of `a` and 16 of K",
        };
        let sfa = sfa.expect_slab_scales(a_slabs, [slabs, m, blocks(k, block_a)], of_a)?;
        // One row has one scale either way. FP4 has no blocks of 32 rows.
        let only_rows = block_b == ScaleBlock::Of16 || (block_b == ScaleBlock::Of32 && self.has_fp4());
        let each_row = only_rows || (n > 1 && rows_of(sfb) == Some(n));
        let along_n = if each_row { n } else { blocks(n, block_b) };
        let dense = self.grouping == GroupingDesc::Dense;
        let meaning = match (block_b, only_rows, dense) {
            (ScaleBlock::Of16, ..) => "one per row of `b` and 16 of K",
            (ScaleBlock::Of32, true, _) => "one per row of `b` and 32 of K",
            (ScaleBlock::Of32, false, true) => "one per 32 rows, or each row, of `b` and 32 of K",
            (ScaleBlock::Of32, false, false) => "one per group, 32 rows, or each row, of `b` and 32 of K",
            (ScaleBlock::Of128, _, true) => "one per 128 rows, or each row, of `b` and 128 of K",
            (ScaleBlock::Of128, _, false) => "one per group, 128 rows, or each row, of `b` and 128 of K",
        };
        let sfb = sfb.expect_slab_scales(b_slabs, [count, along_n, blocks(k, block_b)], meaning)?;
        let rows_of_b = if each_row { 1 } else { block_b.size() };
        let granularity = [[1, block_a.size()], [rows_of_b, block_b.size()]];
        let kind = match self.has_fp4() || block_a != block_b {
            true => block_scaled([a, b], granularity),
            false => {
                let scales = Some(if each_row { ScalesOfB::Rows } else { ScalesOfB::Blocks });
                match (OperandKind { scales, scale_block: block_b, ..OperandKind::FP8 }) {
                    OperandKind::FP8 => fp8_kind([a.dtype, b.dtype]),
                    kind => {
                        a.expect_dtype(&FP8[..1])?;
                        b.expect_dtype(&FP8[..1])?;
                        kind
                    }
                }
            }
        };
        Ok(Some(Scales { sfa, sfb, granularity, kind }))
    }

    /// Scales of 16 are those of both operands, which are FP4.
    fn expect_scales_of_16(&self) -> Result<()> {
        let of_16 = self.scale_blocks.map(|block| block == Some(ScaleBlock::Of16));
        if of_16 == [false; 2] {
            return Ok(());
        }
        for (operand, of_16) in [&self.a, &self.b].into_iter().zip(of_16) {
            operand.expect_dtype(&[DType::U8])?;
            if !of_16 {
                return Err(Error::Shape {
                    argument: "scale_blocks",
                    expected: "16 of K for both operands, or for none".to_owned(),
                    found: format!("{:?}", self.scale_blocks),
                });
            }
        }
        Ok(())
    }

    /// Elements of K that share a scale, of A and of B: those that the caller knows, else what shapes tell.
    fn scale_blocks(&self, sfa: &Operand, sfb: &Operand, &Shape { n, k, .. }: &Shape) -> [ScaleBlock; 2] {
        let dense = self.grouping == GroupingDesc::Dense;
        let [few, many] = [ScaleBlock::Of128, ScaleBlock::Of32].map(|block| blocks(k, block));
        let along_k = [sfa, sfb].map(|scales| scales.dims().last().copied());
        let by_shape = match self.has_fp4() {
            // Either granularity goes with any of the other operand. Where K does not tell, the rows of B do.
            true => {
                let in_blocks =
                    rows_of(sfb).is_some_and(|rows| rows != n && rows == blocks(n, ScaleBlock::Of128));
                [0, 1].map(|i| {
                    match if few == many { i == 1 && in_blocks } else { along_k[i] == Some(few) } {
                        true => ScaleBlock::Of128,
                        false => ScaleBlock::Of32,
                    }
                })
            }
            false => {
                // A K of at most 32 is one block either way, and the rows of B tell.
                let by_rows = rows_of(sfb).is_some_and(|rows| {
                    let of_32 = rows == blocks(n, ScaleBlock::Of32) || (!dense && rows == n);
                    of_32 && rows != blocks(n, ScaleBlock::Of128)
                });
                let of_32 = if few == many { by_rows } else { along_k.contains(&Some(many)) };
                [if of_32 { ScaleBlock::Of32 } else { ScaleBlock::Of128 }; 2]
            }
        };
        [0, 1].map(|i| self.scale_blocks[i].unwrap_or(by_shape[i]))
    }
}

/// Kernels whose tensor core applies scales of these granularities: all of them as the finest along K.
fn block_scaled(operands: [&Operand; 2], [[_, k_of_a], [rows_of_b, k_of_b]]: [[u32; 2]; 2]) -> OperandKind {
    let block = match k_of_a.min(k_of_b) {
        16 => ScaleBlock::Of16,
        32 => ScaleBlock::Of32,
        _ => ScaleBlock::Of128,
    };
    let blocks = rows_of_b == ScaleBlock::Of128.size() && block == ScaleBlock::Of128;
    let elements = operands.map(|operand| match operand.dtype {
        DType::U8 => ElementType::E2m1,
        DType::E5m2 => ElementType::E5m2,
        _ => ElementType::E4m3,
    });
    OperandKind::block_scaled(elements, if blocks { ScalesOfB::Blocks } else { ScalesOfB::Rows }, block)
}

/// Scales as they were given, in the shape of the checked ones: four of a row are one word where they are packed.
pub(super) fn like(own: &Operand, checked: &Operand, several: bool) -> Operand {
    let rank = if several { 3 } else { 2 };
    let all = if own.rank < rank { Operand { rank, dims: [1; MAX_RANK], ..*own } } else { *own };
    let mut dims = checked.dims;
    if own.dtype == DType::I32 {
        dims[rank - 1] = (dims[rank - 1] + 3) / 4;
    }
    all.repeated_to(&dims[..rank])
}

/// Rows of a matrix of scales, or of each of several.
fn rows_of(scales: &Operand) -> Option<i64> {
    scales.dims().iter().rev().nth(1).copied()
}
