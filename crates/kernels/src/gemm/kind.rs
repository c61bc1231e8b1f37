//! Operand kinds: element types, majors and scale granularity of A and B.

use crate::common::BLOCK_K;
use crate::gemm::operand::f16::{Half, Major, Operands};
use crate::gemm::operand::fp8::E5m2;
use crate::gemm::params::{ScaleBlock, ScalesOfB};
use oxigemm_ptx::wgmma::Swizzle;

/// The element type of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// FP8 with 4 bits of exponent.
    E4m3,
    /// FP8 with 5 bits of exponent.
    E5m2,
    /// FP4, two to a byte.
    E2m1,
    /// BF16.
    Bf16,
    /// FP16.
    F16,
    /// FP32, of which the tensor core reads the upper 19 bits: TF32, truncated.
    Tf32,
}

impl ElementType {
    const fn fp8(e5m2: bool) -> ElementType {
        if e5m2 { ElementType::E5m2 } else { ElementType::E4m3 }
    }

    /// Bits of an element in memory.
    pub const fn bits(self) -> u32 {
        match self {
            ElementType::E2m1 => 4,
            ElementType::E4m3 | ElementType::E5m2 => 8,
            ElementType::Bf16 | ElementType::F16 => 16,
            ElementType::Tf32 => 32,
        }
    }

    /// Its part of a kernel's name.
    pub const fn name(self) -> &'static str {
        match self {
            ElementType::E4m3 => "e4m3",
            ElementType::E5m2 => "e5m2",
            ElementType::E2m1 => "e2m1",
            ElementType::Bf16 => "bf16",
            ElementType::F16 => "fp16",
            ElementType::Tf32 => "tf32",
        }
    }
}

/// How a scale is encoded where a kernel reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScaleType {
    /// FP32, which a kernel multiplies sums with.
    #[default]
    F32,
    /// Powers of two in a byte, four of a row to a 32-bit word: the tensor core applies them.
    Ue8m0,
    /// Unsigned E4M3, four of a row to a 32-bit word: the tensor core applies them.
    Ue4m3,
}

/// One operand: its element type and its contiguous dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// The element type.
    pub element: ElementType,
    /// The contiguous dimension: K, or M of A and N of B.
    pub major: Major,
}

impl Operand {
    const fn k_major(element: ElementType) -> Operand {
        Operand { element, major: Major::K }
    }

    /// How TMA lays out lines of 128 bytes for the tensor core. 32-bit elements that are contiguous along M or N are read
    /// in units of 32 bytes alone (PTX manual, "tcgen05 shared memory layout", and CUTLASS).
    pub const fn swizzle(self) -> Swizzle {
        match (self.element, self.major) {
            (ElementType::Tf32, Major::MN) => Swizzle::B128Atom32,
            _ => Swizzle::B128,
        }
    }
}

/// Operands of a GEMM: element types, majors and scale granularity.
///
/// ```
/// use oxigemm_kernels::gemm::OperandKind;
///
/// assert!(OperandKind::FP8.has_scales());
/// assert_eq!(OperandKind::FP8.block_k(), 128);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OperandKind {
    /// A.
    pub a: Operand,
    /// B.
    pub b: Operand,
    /// Granularity of B's scales along N, where the operands have scales. A has one for each row.
    pub scales: Option<ScalesOfB>,
    /// Elements of K that share a scale, and rows of B where its scales are blocks.
    pub scale_block: ScaleBlock,
    /// Encoding of the scales.
    pub scale_type: ScaleType,
}

impl OperandKind {
    /// FP8, e4m3, both K-major, with 1x128 scales for A and 128x128 scales for B (1D2D).
    pub const FP8: OperandKind = OperandKind::fp8([ElementType::E4m3; 2], ScalesOfB::Blocks);
    /// The same with 1x128 scales for both (1D1D).
    pub const FP8_1D1D: OperandKind = OperandKind::fp8([ElementType::E4m3; 2], ScalesOfB::Rows);

    /// FP8, e4m3, both K-major, with 1x32 scales for both: those of MXFP8.
    pub const FP8_1X32: OperandKind = OperandKind::FP8_1D1D.with_scales_of_32();
    /// The same with 32x32 scales for B.
    pub const FP8_32X32: OperandKind = OperandKind::FP8.with_scales_of_32();

    /// A of e4m3 with 1x128 scales, in FP32, and B of MXFP4, which a kernel widens to e4m3: words of four UE8M0 scales of
    /// 1x32.
    pub const FP8_MXFP4: OperandKind =
        OperandKind::fp8([ElementType::E4m3, ElementType::E2m1], ScalesOfB::Rows);

    const fn fp8([a, b]: [ElementType; 2], scales: ScalesOfB) -> OperandKind {
        let (a, b) = (Operand::k_major(a), Operand::k_major(b));
        let (scale_block, scale_type) = (ScaleBlock::Of128, ScaleType::F32);
        OperandKind { a, b, scales: Some(scales), scale_block, scale_type }
    }

    /// Operands whose scales the tensor core applies: MXFP8, MXFP4, FP8 with 128-wide UE8M0 scales and mixes of them, or
    /// NVFP4 where the scales are of 16. Scales are for each row, unless they are blocks of B.
    pub const fn block_scaled(
        [a, b]: [ElementType; 2],
        scales: ScalesOfB,
        scale_block: ScaleBlock,
    ) -> OperandKind {
        let (a, b) = (Operand::k_major(a), Operand::k_major(b));
        let scale_type = match scale_block {
            ScaleBlock::Of16 => ScaleType::Ue4m3,
            ScaleBlock::Of32 | ScaleBlock::Of128 => ScaleType::Ue8m0,
        };
        OperandKind { a, b, scales: Some(scales), scale_block, scale_type }
    }

    const fn with_scales_of_32(self) -> OperandKind {
        OperandKind { scale_block: ScaleBlock::Of32, ..self }
    }

    /// The same with both operands as they lie in memory with K first: A `[K, M]` and B `[K, N]`.
    pub const fn with_k_first(self) -> OperandKind {
        self.with_majors([Major::MN; 2])
    }

    /// The same with other contiguous dimensions of A and B.
    pub const fn with_majors(self, [a, b]: [Major; 2]) -> OperandKind {
        let a = Operand { major: a, ..self.a };
        let b = Operand { major: b, ..self.b };
        OperandKind { a, b, ..self }
    }

    /// FP8 with 1D2D scales, where these operands are e5m2.
    pub const fn fp8_e5m2(e5m2: E5m2) -> OperandKind {
        let [a, b] = e5m2.operands();
        OperandKind::fp8([ElementType::fp8(a), ElementType::fp8(b)], ScalesOfB::Blocks)
    }

    /// BF16 or FP16 operands, without scales.
    pub const fn f16(operands: Operands) -> OperandKind {
        let element = match operands.element {
            Half::Bf16 => ElementType::Bf16,
            Half::F16 => ElementType::F16,
        };
        OperandKind {
            a: Operand { element, major: operands.a },
            b: Operand { element, major: operands.b },
            scales: None,
            scale_block: ScaleBlock::Of128,
            scale_type: ScaleType::F32,
        }
    }

    /// FP32 operands that are multiplied as TF32, with these contiguous dimensions.
    pub const fn tf32(majors: [Major; 2]) -> OperandKind {
        let operand = Operand::k_major(ElementType::Tf32);
        let kind = OperandKind {
            a: operand,
            b: operand,
            scales: None,
            scale_block: ScaleBlock::Of128,
            scale_type: ScaleType::F32,
        };
        kind.with_majors(majors)
    }

    /// The 16-bit operands, where they are of 16 bits.
    pub const fn as_f16(self) -> Option<Operands> {
        let element = match self.a.element {
            ElementType::Bf16 => Half::Bf16,
            ElementType::F16 => Half::F16,
            ElementType::E4m3 | ElementType::E5m2 | ElementType::E2m1 | ElementType::Tf32 => return None,
        };
        Some(Operands { element, a: self.a.major, b: self.b.major })
    }

    /// Which operands are e5m2, where any is.
    pub fn e5m2(self) -> Option<E5m2> {
        E5m2::of([self.a, self.b].map(|operand| operand.element == ElementType::E5m2))
    }

    /// Elements of K in one stage: 128 bytes of the wider operand.
    pub const fn block_k(self) -> u32 {
        let (a, b) = (self.a.element.bits(), self.b.element.bits());
        BLOCK_K * 8 / if a > b { a } else { b }
    }

    /// Bytes of an element of A, where it has whole ones.
    pub const fn element_bytes(self) -> u32 {
        self.a.element.bits().div_ceil(8)
    }

    /// Whether the operands are of at most 8 bits, with scales.
    pub const fn is_fp8(self) -> bool {
        self.a.element.bits() <= 8
    }

    /// Whether the tensor core applies the scales.
    pub const fn is_block_scaled(self) -> bool {
        self.has_scales() && !matches!(self.scale_type, ScaleType::F32)
    }

    /// Whether the operands have scales.
    pub const fn has_scales(self) -> bool {
        self.scales.is_some()
    }

    /// Whether both operands have 1x128 scales.
    pub fn is_1d1d(self) -> bool {
        self.scales == Some(ScalesOfB::Rows)
            && !self.has_scales_of_32()
            && !self.is_block_scaled()
            && !self.widens_b()
    }

    /// Whether B is FP4 that a kernel widens to the type of A. Its scales are words of four along K.
    pub const fn widens_b(self) -> bool {
        matches!((self.b.element, self.scale_type), (ElementType::E2m1, ScaleType::F32)) && self.has_scales()
    }

    /// Whether the operands have scales for 32 elements of K.
    pub const fn has_scales_of_32(self) -> bool {
        self.has_scales() && matches!((self.scale_block, self.scale_type), (ScaleBlock::Of32, ScaleType::F32))
    }

    /// Whether TMA may load scales: 1x128 of A, 128x128 of B. Warps load others.
    pub fn scales_by_tma(self) -> bool {
        self.scales == Some(ScalesOfB::Blocks) && !self.has_scales_of_32() && !self.is_block_scaled()
    }

    /// Blocks of K that a kernel is told: those that share scales, or stages where there are none.
    pub const fn scale_blocks(self, k: u32) -> u32 {
        if self.has_scales() { k.div_ceil(self.scale_block.size()) } else { self.k_blocks(k) }
    }

    /// Stages that K takes, the remainder included.
    pub const fn k_blocks(self, k: u32) -> u32 {
        k.div_ceil(self.block_k())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constructors_and_accessors_agree() {
        for operands in Operands::all() {
            let kind = OperandKind::f16(operands);
            assert_eq!((kind.as_f16(), kind.e5m2(), kind.is_fp8()), (Some(operands), None, false));
        }
        for e5m2 in E5m2::ALL {
            let kind = OperandKind::fp8_e5m2(e5m2);
            assert_eq!((kind.as_f16(), kind.e5m2(), kind.is_fp8()), (None, Some(e5m2), true));
        }
        assert_eq!([OperandKind::FP8, OperandKind::FP8_1D1D].map(OperandKind::is_1d1d), [false, true]);
        assert_eq!(OperandKind::FP8.e5m2(), None);
        for (kind, blocks) in [(OperandKind::FP8, 3), (OperandKind::FP8_1X32, 9), (OperandKind::FP8_32X32, 9)]
        {
            assert_eq!((kind.k_blocks(260), kind.scale_blocks(260)), (3, blocks), "{kind:?}");
            assert!(kind.is_fp8() && !kind.is_1d1d());
        }
    }
}
