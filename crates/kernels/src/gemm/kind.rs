//! Operand kinds: element types, majors and scale granularity of A and B.

use crate::common::BLOCK_K;
use crate::gemm::operand::f16::{self, Half, Major, Operands};
use crate::gemm::operand::fp8::E5m2;
use crate::gemm::params::ScalesOfB;

/// The element type of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// FP8 with 4 bits of exponent.
    E4m3,
    /// FP8 with 5 bits of exponent.
    E5m2,
    /// BF16.
    Bf16,
    /// FP16.
    F16,
}

impl ElementType {
    const fn fp8(e5m2: bool) -> ElementType {
        if e5m2 { ElementType::E5m2 } else { ElementType::E4m3 }
    }

    /// Bytes of an element.
    pub const fn bytes(self) -> u32 {
        match self {
            ElementType::E4m3 | ElementType::E5m2 => 1,
            ElementType::Bf16 | ElementType::F16 => 2,
        }
    }
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
    /// Granularity of the scales along K blocks of 128, where the operands have scales: 1x128 for A, and this for B.
    pub scales: Option<ScalesOfB>,
}

impl OperandKind {
    /// FP8, e4m3, both K-major, with 1x128 scales for A and 128x128 scales for B (1D2D).
    pub const FP8: OperandKind = OperandKind::fp8([ElementType::E4m3; 2], ScalesOfB::Blocks);
    /// The same with 1x128 scales for both (1D1D).
    pub const FP8_1D1D: OperandKind = OperandKind::fp8([ElementType::E4m3; 2], ScalesOfB::Rows);

    const fn fp8([a, b]: [ElementType; 2], scales: ScalesOfB) -> OperandKind {
        let (a, b) = (Operand::k_major(a), Operand::k_major(b));
        OperandKind { a, b, scales: Some(scales) }
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
        }
    }

    /// The 16-bit operands, where they are of 16 bits.
    pub const fn as_f16(self) -> Option<Operands> {
        let element = match self.a.element {
            ElementType::Bf16 => Half::Bf16,
            ElementType::F16 => Half::F16,
            ElementType::E4m3 | ElementType::E5m2 => return None,
        };
        Some(Operands { element, a: self.a.major, b: self.b.major })
    }

    /// Which operands are e5m2, where any is.
    pub fn e5m2(self) -> Option<E5m2> {
        E5m2::of([self.a, self.b].map(|operand| operand.element == ElementType::E5m2))
    }

    /// Elements of K in one stage.
    pub const fn block_k(self) -> u32 {
        if self.is_fp8() { BLOCK_K } else { f16::BLOCK_K }
    }

    /// Bytes of an element of A or B.
    pub const fn element_bytes(self) -> u32 {
        self.a.element.bytes()
    }

    /// Whether both operands are FP8.
    pub const fn is_fp8(self) -> bool {
        self.element_bytes() == 1
    }

    /// Whether the operands have scales.
    pub const fn has_scales(self) -> bool {
        self.scales.is_some()
    }

    /// Whether both operands have 1x128 scales.
    pub fn is_1d1d(self) -> bool {
        self.scales == Some(ScalesOfB::Rows)
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
    }
}
