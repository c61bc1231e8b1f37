//! Table of operations: a row says everything that code asks about one.

use std::fmt;

use oxigemm::cast::ScaleFormat;
use oxigemm::{DType, GemmLayout};

/// Something that users name, with a sentence about it.
pub trait Named: Copy + Send + Sync + 'static {
    /// All there are; the first is the default.
    fn all() -> Vec<Self>;
    /// The name that users type.
    fn name(&self) -> &'static str;
    /// One sentence for a help text.
    fn about(&self) -> &'static str;

    /// The one with this name.
    fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|one| one.name() == name)
    }
}

/// An enum whose variants have names and sentences.
macro_rules! named {
    ($(#[$meta:meta])* $vis:vis enum $type:ident { $($(#[doc = $about:literal])+ $variant:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $type { $($(#[doc = $about])+ $variant,)+ }

        impl Default for $type {
            fn default() -> Self {
                [$($type::$variant),+][0]
            }
        }

        impl $crate::Named for $type {
            fn all() -> Vec<Self> {
                vec![$($type::$variant),+]
            }

            fn name(&self) -> &'static str {
                match self { $($type::$variant => $name),+ }
            }

            fn about(&self) -> &'static str {
                match self { $($type::$variant => concat!($($about),+).trim_start()),+ }
            }
        }
    };
}
pub(crate) use named;

/// Types of A and B, and what shares a scale where they have some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperandTypes {
    /// The name of the dense operation.
    pub name: &'static str,
    /// The type of A and B, where no e5m2 is asked for.
    pub ab: DType,
    /// Which of A and B are FP4 instead.
    pub fp4: [bool; 2],
    /// Rows and columns that share a scale, of A and of B. None where operands have no scales.
    pub scale_blocks: Option<[[usize; 2]; 2]>,
    /// Which scales are drawn.
    pub scale_format: ScaleFormat,
    /// The type of the tensors of scales: f32, bytes (u8, e4m3), or i32 with four of a row in each.
    pub scale_type: DType,
    /// The type that random operands are rounded to, before they are quantized.
    pub rounding: DType,
    /// The types that D may have.
    pub d_types: [DType; 2],
}

/// FP8 with 1x128 scales for A and 128x128 scales for B (1D2D).
pub const FP8: OperandTypes = OperandTypes {
    name: "fp8",
    ab: DType::E4m3,
    fp4: [false; 2],
    scale_blocks: Some([[1, 128], [128, 128]]),
    scale_format: ScaleFormat::F32,
    scale_type: DType::F32,
    rounding: DType::Bf16,
    d_types: [DType::Bf16, DType::F32],
};
/// FP8 with 1x128 scales for A and for B (1D1D).
pub const FP8_1D1D: OperandTypes =
    OperandTypes { name: "fp8-1d1d", scale_blocks: Some([[1, 128]; 2]), ..FP8 };
/// FP8 with 1x32 scales for A and for B: those of MXFP8.
pub const FP8_1X32: OperandTypes = OperandTypes { name: "fp8-1x32", scale_blocks: Some([[1, 32]; 2]), ..FP8 };
/// FP8 with 1x32 scales for A and 32x32 scales for B.
pub const FP8_32X32: OperandTypes =
    OperandTypes { name: "fp8-32x32", scale_blocks: Some([[1, 32], [32, 32]]), ..FP8 };
/// FP8 with 1x128 scales for A and 128x128 scales for B, all UE8M0, four in a word.
pub const FP8_UE8M0: OperandTypes =
    OperandTypes { name: "fp8-ue8m0", scale_format: ScaleFormat::PowerOfTwo, scale_type: DType::I32, ..FP8 };
/// FP8 with 1x32 scales, bytes of UE8M0.
pub const MXFP8: OperandTypes =
    OperandTypes { name: "mxfp8", scale_blocks: Some([[1, 32]; 2]), scale_type: DType::U8, ..FP8_UE8M0 };
/// FP4 with 1x32 scales, UE8M0, four in a word.
pub const MXFP4: OperandTypes =
    OperandTypes { name: "mxfp4", fp4: [true; 2], scale_type: DType::I32, ..MXFP8 };
/// FP4 with 1x16 scales of E4M3, and a scale of each tensor.
pub const NVFP4: OperandTypes =
    OperandTypes { name: "nvfp4", scale_blocks: Some([[1, 16]; 2]), scale_type: DType::E4m3, ..MXFP4 };
/// FP8 with 1x128 scales beside FP4 with 1x32 scales, FP32 scales that are powers of two.
pub const FP8_FP4: OperandTypes = OperandTypes {
    name: "fp8-fp4",
    fp4: [false, true],
    scale_blocks: Some([[1, 128], [1, 32]]),
    scale_type: DType::F32,
    ..FP8_UE8M0
};
/// FP4 beside FP8, both with 1x32 scales, bytes of UE8M0.
pub const FP4_FP8: OperandTypes = OperandTypes { name: "fp4-fp8", fp4: [true, false], ..MXFP8 };
/// BF16.
pub const BF16: OperandTypes = OperandTypes { name: "bf16", ab: DType::Bf16, scale_blocks: None, ..FP8 };
/// FP16.
pub const FP16: OperandTypes = OperandTypes {
    name: "fp16",
    ab: DType::F16,
    rounding: DType::F16,
    d_types: [DType::F16, DType::F32],
    ..BF16
};

/// FP32 that is multiplied as TF32.
pub const TF32: OperandTypes = OperandTypes {
    name: "tf32",
    ab: DType::F32,
    rounding: DType::F32,
    d_types: [DType::F32, DType::F32],
    ..BF16
};

impl OperandTypes {
    /// Whether A and B have scales.
    pub fn has_scales(&self) -> bool {
        self.scale_blocks.is_some()
    }

    /// Whether an operand is FP4.
    pub fn has_fp4(&self) -> bool {
        self.fp4 != [false; 2]
    }

    /// Whether the operands are NVFP4, whose tensors have scales as well.
    pub fn is_nvfp4(&self) -> bool {
        self.scale_type == DType::E4m3
    }

    /// Number by which random draws for different operand types differ.
    pub fn salt(&self) -> u64 {
        OPS.iter().position(|op| op.name == self.name).unwrap_or(0) as u64
    }
}

impl fmt::Display for OperandTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// How the problems of one call are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupingKind {
    /// One GEMM.
    Dense,
    /// GEMMs of the same shape.
    Batched,
    /// GEMMs of the same shape whose results are summed.
    Summed,
    /// Groups of rows of one A, contiguous.
    MGroupedContiguous,
    /// Groups of rows, each in a slab of the same size.
    MGroupedMasked,
    /// Groups with the same M and N, each with a range of K.
    KGrouped,
}

/// An operation: a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// The name that users type.
    pub name: &'static str,
    /// What it computes, and the function that does.
    pub about: &'static str,
    /// Types of its operands.
    pub types: OperandTypes,
    /// How its problems are arranged.
    pub grouping: GroupingKind,
    /// Layouts of A and B that can be named, the default first; none where it is always `nt`.
    pub layouts: &'static [GemmLayout],
    /// Whether it has a variant with a fused epilogue.
    pub fuses: bool,
}

use GemmLayout::{Nn, Nt, Tn};
use GroupingKind::{Batched, Dense, KGrouped, MGroupedContiguous, MGroupedMasked, Summed};

const fn row(
    name: &'static str,
    about: &'static str,
    types: OperandTypes,
    grouping: GroupingKind,
    layouts: &'static [GemmLayout],
) -> Op {
    let fuses = matches!(grouping, Dense | MGroupedContiguous | MGroupedMasked);
    Op { name, about, types, grouping, layouts, fuses }
}

/// A row of an operation without fused epilogues.
const fn unfused(
    name: &'static str,
    about: &'static str,
    types: OperandTypes,
    grouping: GroupingKind,
    layouts: &'static [GemmLayout],
) -> Op {
    Op { fuses: false, ..row(name, about, types, grouping, layouts) }
}

/// All operations; the first is the default.
#[rustfmt::skip]
const OPS: [Op; 45] = [
    row("fp8", "Dense FP8 GEMM, 1D2D scales: fp8_gemm_nt", FP8, Dense, &GemmLayout::ALL),
    unfused("fp8-1d1d", "Dense FP8 GEMM, 1D1D scales: fp8_gemm_nt", FP8_1D1D, Dense, &[Nt]),
    row("fp8-contiguous", "m-grouped contiguous FP8 GEMM: m_grouped_fp8_gemm_nt_contiguous", FP8, MGroupedContiguous, &[]),
    row("fp8-masked", "m-grouped masked FP8 GEMM: m_grouped_fp8_gemm_nt_masked", FP8, MGroupedMasked, &[]),
    row("fp8-batched", "Batched FP8 GEMM: fp8_bgemm_nt", FP8, Batched, &[Nt]),
    row("fp8-kgrouped", "k-grouped FP8 GEMM, 1D1D scales: k_grouped_fp8_gemm_nt_contiguous and _tn_", FP8_1D1D, KGrouped, &[Nt, Tn]),
    row("bf16-kgrouped", "k-grouped BF16 GEMM: k_grouped_bf16_gemm_tn_contiguous and _nt_", BF16, KGrouped, &[Tn, Nt]),
    row("fp16-kgrouped", "k-grouped FP16 GEMM: k_grouped_fp16_gemm_tn_contiguous and _nt_", FP16, KGrouped, &[Tn, Nt]),
    row("bf16", "Dense BF16 GEMM: bf16_gemm_nt, _nn, _tn and _tt", BF16, Dense, &GemmLayout::ALL),
    row("fp16", "Dense FP16 GEMM: fp16_gemm_nt, _nn, _tn and _tt", FP16, Dense, &GemmLayout::ALL),
    row("bf16-contiguous", "m-grouped contiguous BF16 GEMM: m_grouped_bf16_gemm_nt_contiguous and _nn_", BF16, MGroupedContiguous, &[Nt, Nn]),
    row("bf16-masked", "m-grouped masked BF16 GEMM: m_grouped_bf16_gemm_nt_masked and _nn_", BF16, MGroupedMasked, &[Nt, Nn]),
    row("fp16-contiguous", "m-grouped contiguous FP16 GEMM: m_grouped_fp16_gemm_nt_contiguous and _nn_", FP16, MGroupedContiguous, &[Nt, Nn]),
    row("fp16-masked", "m-grouped masked FP16 GEMM: m_grouped_fp16_gemm_nt_masked and _nn_", FP16, MGroupedMasked, &[Nt, Nn]),
    row("bf16-batched", "Batched BF16 GEMM: bf16_bgemm_nt and _nn", BF16, Batched, &[Nt, Nn]),
    row("fp16-batched", "Batched FP16 GEMM: fp16_bgemm_nt and _nn", FP16, Batched, &[Nt, Nn]),
    row("bf16-summed", "Sum of a batch of BF16 GEMMs: einsum bmk,bnk->mn, --groups of them", BF16, Summed, &[Nt]),
    row("fp16-summed", "Sum of a batch of FP16 GEMMs: einsum bmk,bnk->mn, --groups of them", FP16, Summed, &[Nt]),
    unfused("fp8-1x32", "Dense FP8 GEMM, 1x32 scales (MXFP8): fp8_gemm_nt", FP8_1X32, Dense, &GemmLayout::ALL),
    unfused("fp8-1x32-contiguous", "m-grouped contiguous FP8 GEMM, 1x32 scales: m_grouped_fp8_gemm_nt_contiguous", FP8_1X32, MGroupedContiguous, &[]),
    unfused("fp8-1x32-masked", "m-grouped masked FP8 GEMM, 1x32 scales: m_grouped_fp8_gemm_nt_masked", FP8_1X32, MGroupedMasked, &[]),
    unfused("fp8-32x32", "Dense FP8 GEMM, 1x32 and 32x32 scales: fp8_gemm_nt", FP8_32X32, Dense, &GemmLayout::ALL),
    unfused("fp8-32x32-contiguous", "m-grouped contiguous FP8 GEMM, 1x32 and 32x32 scales: m_grouped_fp8_gemm_nt_contiguous", FP8_32X32, MGroupedContiguous, &[]),
    unfused("fp8-32x32-masked", "m-grouped masked FP8 GEMM, 1x32 and 32x32 scales: m_grouped_fp8_gemm_nt_masked", FP8_32X32, MGroupedMasked, &[]),
    row("mxfp8", "Dense MXFP8 GEMM, UE8M0 scales of 32: fp8_fp4_gemm_nt", MXFP8, Dense, &GemmLayout::ALL),
    row("mxfp8-contiguous", "m-grouped contiguous MXFP8 GEMM, UE8M0 scales of 32: m_grouped_fp8_fp4_gemm_nt_contiguous", MXFP8, MGroupedContiguous, &[]),
    row("mxfp8-masked", "m-grouped masked MXFP8 GEMM, UE8M0 scales of 32: m_grouped_fp8_fp4_gemm_nt_masked", MXFP8, MGroupedMasked, &[]),
    unfused("mxfp8-kgrouped", "k-grouped MXFP8 GEMM, UE8M0 scales of 32: k_grouped_fp8_gemm_nt_contiguous and _tn_", MXFP8, KGrouped, &[Nt, Tn]),
    row("mxfp4", "Dense MXFP4 GEMM, UE8M0 scales of 32: fp4_gemm_nt", MXFP4, Dense, &GemmLayout::ALL),
    row("mxfp4-contiguous", "m-grouped contiguous MXFP4 GEMM, UE8M0 scales of 32: m_grouped_fp4_gemm_nt_contiguous", MXFP4, MGroupedContiguous, &[]),
    row("mxfp4-masked", "m-grouped masked MXFP4 GEMM, UE8M0 scales of 32: m_grouped_fp4_gemm_nt_masked", MXFP4, MGroupedMasked, &[]),
    unfused("mxfp4-kgrouped", "k-grouped MXFP4 GEMM, UE8M0 scales of 32: k_grouped_fp4_gemm_nt_contiguous", MXFP4, KGrouped, &[Nt]),
    unfused("nvfp4", "Dense NVFP4 GEMM, E4M3 scales of 16: nvfp4_gemm_nt", NVFP4, Dense, &[Nt]),
    unfused("nvfp4-contiguous", "m-grouped contiguous NVFP4 GEMM, E4M3 scales of 16: m_grouped_nvfp4_gemm_nt", NVFP4, MGroupedContiguous, &[]),
    unfused("nvfp4-masked", "m-grouped masked NVFP4 GEMM, E4M3 scales of 16: m_grouped_nvfp4_gemm_nt", NVFP4, MGroupedMasked, &[]),
    row("fp8-fp4", "Dense FP8 by FP4 GEMM, scales of 128 and 32: fp8_fp4_gemm_nt", FP8_FP4, Dense, &GemmLayout::ALL),
    row("fp8-fp4-contiguous", "m-grouped contiguous FP8 by FP4 GEMM, scales of 128 and 32: m_grouped_fp8_fp4_gemm_nt_contiguous", FP8_FP4, MGroupedContiguous, &[]),
    row("fp8-fp4-masked", "m-grouped masked FP8 by FP4 GEMM, scales of 128 and 32: m_grouped_fp8_fp4_gemm_nt_masked", FP8_FP4, MGroupedMasked, &[]),
    row("fp4-fp8", "Dense FP4 by FP8 GEMM, UE8M0 scales of 32: fp8_fp4_gemm_nt", FP4_FP8, Dense, &GemmLayout::ALL),
    row("fp4-fp8-contiguous", "m-grouped contiguous FP4 by FP8 GEMM, UE8M0 scales of 32: m_grouped_fp8_fp4_gemm_nt_contiguous", FP4_FP8, MGroupedContiguous, &[]),
    row("fp4-fp8-masked", "m-grouped masked FP4 by FP8 GEMM, UE8M0 scales of 32: m_grouped_fp8_fp4_gemm_nt_masked", FP4_FP8, MGroupedMasked, &[]),
    row("fp8-ue8m0", "Dense FP8 GEMM, UE8M0 scales of 128: fp8_fp4_gemm_nt", FP8_UE8M0, Dense, &GemmLayout::ALL),
    row("fp8-ue8m0-contiguous", "m-grouped contiguous FP8 GEMM, UE8M0 scales of 128: m_grouped_fp8_fp4_gemm_nt_contiguous", FP8_UE8M0, MGroupedContiguous, &[]),
    row("fp8-ue8m0-masked", "m-grouped masked FP8 GEMM, UE8M0 scales of 128: m_grouped_fp8_fp4_gemm_nt_masked", FP8_UE8M0, MGroupedMasked, &[]),
    unfused("tf32", "Dense GEMM of f32 that is multiplied as TF32: tf32_gemm_nt, _nn, _tn and _tt", TF32, Dense, &GemmLayout::ALL),
];

impl Op {
    /// The layout of A and B where none is named.
    pub fn default_layout(&self) -> GemmLayout {
        self.layouts.first().copied().unwrap_or(Nt)
    }

    /// The types that D may have; the first is the usual one.
    pub fn d_types(&self) -> [DType; 2] {
        let [narrow, wide] = self.types.d_types;
        if self.grouping == KGrouped { [wide, narrow] } else { [narrow, wide] }
    }

    /// Rows of the table with this grouping.
    pub fn with(grouping: GroupingKind) -> impl Iterator<Item = Op> {
        OPS.into_iter().filter(move |op| op.grouping == grouping)
    }

    /// Operand types and layouts of every k-grouped operation.
    pub fn k_grouped_forms() -> Vec<(OperandTypes, GemmLayout)> {
        Op::with(KGrouped).flat_map(|op| op.layouts.iter().map(move |layout| (op.types, *layout))).collect()
    }
}

impl Named for Op {
    fn all() -> Vec<Op> {
        OPS.to_vec()
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }
}

impl Default for Op {
    fn default() -> Op {
        OPS[0]
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_operand_types_and_grouping() {
        for op in Op::all() {
            assert_eq!(Op::named(op.name), Some(op));
            assert_eq!(op.name == op.types.name, op.grouping == Dense, "{op}");
        }
        assert_eq!((FP8.salt(), BF16.salt(), FP16.salt()), (0, 8, 9));
        assert!(Op::all().iter().all(|op| op.types.scale_type == DType::F32 || op.types.has_scales()));
        assert_eq!(Op::k_grouped_forms().len(), 9);
    }
}
