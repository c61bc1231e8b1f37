//! Element types of tensors, and what lies outside of one.

use crate::arith::minifloat::{Round, TF32};
use crate::text::types::Ty;

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Element {
    U8,
    U16,
    U32,
    S32,
    U64,
    S64,
    F16,
    F32,
    F64,
    Bf16,
    /// f32 of which a copy makes zeros where they are subnormal.
    F32Ftz,
    /// f32 that a load rounds to TF32.
    Tf32,
    /// Both.
    Tf32Ftz,
    /// 4 bits, packed in global and in shared memory (`CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B`).
    U4,
    /// 4 bits, packed in global memory; in shared memory sixteen of them take 16 bytes, of which they fill the first 8
    /// (`CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B`).
    U4Padded,
    /// 6 bits, packed in global memory; a load puts sixteen of them into the first 12 of 16 bytes, a store takes each
    /// from a byte of its own (`CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B`).
    U6Padded,
}

/// In the order of `CUtensorMapDataType`.
pub(super) const ELEMENTS: [Element; 16] = [
    Element::U8,
    Element::U16,
    Element::U32,
    Element::S32,
    Element::U64,
    Element::S64,
    Element::F16,
    Element::F32,
    Element::F64,
    Element::Bf16,
    Element::F32Ftz,
    Element::Tf32,
    Element::Tf32Ftz,
    Element::U4,
    Element::U4Padded,
    Element::U6Padded,
];

impl Element {
    /// Bits of an element in global memory.
    pub fn bits(self) -> u64 {
        match self {
            Element::U4 | Element::U4Padded => 4,
            Element::U6Padded => 6,
            Element::U8 => 8,
            Element::U16 | Element::F16 | Element::Bf16 => 16,
            Element::U32 | Element::S32 | Element::F32 => 32,
            Element::F32Ftz | Element::Tf32 | Element::Tf32Ftz => 32,
            Element::U64 | Element::S64 | Element::F64 => 64,
        }
    }

    /// Bytes of a row of elements in global memory.
    pub(crate) fn global_bytes(self, elements: u64) -> u64 {
        // At most 2^32 elements, or a number that no memory holds.
        elements.saturating_mul(self.bits()).div_ceil(8)
    }

    /// Bytes of a row of elements in shared memory.
    pub(crate) fn shared_bytes(self, elements: u64) -> u64 {
        if self.padded() { elements } else { self.global_bytes(elements) }
    }

    /// Whether elements are further apart in shared memory than in global memory.
    pub(crate) fn padded(self) -> bool {
        matches!(self, Element::U4Padded | Element::U6Padded)
    }

    /// The bytes of every sixteen in shared memory that a load writes; the others are undefined behind it.
    pub(crate) fn filled(self) -> u32 {
        match self {
            Element::U4Padded => 8,
            Element::U6Padded => 12,
            _ => 16,
        }
    }

    /// The element type that `tensormap.replace.elemtype` names by a number, which counts otherwise than
    /// `CUtensorMapDataType`.
    pub(super) fn by_number(number: u64) -> Option<Element> {
        Some(match number {
            0..=7 | 13..=15 => ELEMENTS[number as usize],
            8 => Element::F32Ftz,
            9 => Element::F64,
            10 => Element::Bf16,
            11 => Element::Tf32,
            12 => Element::Tf32Ftz,
            _ => return None,
        })
    }

    /// The type in which a reduction computes; elements of a few bits have none.
    pub(crate) fn arithmetic(self) -> Option<Ty> {
        Some(match self {
            Element::U8 => Ty::U8,
            Element::U16 => Ty::U16,
            Element::U32 => Ty::U32,
            Element::S32 => Ty::S32,
            Element::U64 => Ty::U64,
            Element::S64 => Ty::S64,
            Element::F16 => Ty::F16,
            Element::F32 | Element::F32Ftz => Ty::F32,
            Element::F64 => Ty::F64,
            Element::Bf16 => Ty::Bf16,
            Element::Tf32 | Element::Tf32Ftz | Element::U4 | Element::U4Padded | Element::U6Padded => {
                return None;
            }
        })
    }

    /// What a load makes of elements: TF32 rounds to nearest even, `.ftz` flushes subnormals.
    pub(crate) fn convert(self, bytes: &mut [u8]) {
        let (round, flush) = match self {
            Element::F32Ftz => (false, true),
            Element::Tf32 => (true, false),
            Element::Tf32Ftz => (true, true),
            _ => return,
        };
        for word in bytes.chunks_exact_mut(4) {
            let x = f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            let x = if flush && x.is_subnormal() { 0f32.copysign(x) } else { x };
            let bits = if round {
                (TF32.encode(f64::from(x), Round::Nearest, false) << 13) as u32
            } else {
                x.to_bits()
            };
            word.copy_from_slice(&bits.to_le_bytes());
        }
    }

    /// Spreads packed elements, in groups of sixteen, as a load does; what is padding in `to` stays as it is.
    pub(crate) fn spread(self, packed: &[u8], to: &mut [u8]) {
        let filled = self.filled() as usize;
        for (from, to) in packed.chunks_exact(filled).zip(to.chunks_exact_mut(16)) {
            to[..filled].copy_from_slice(from);
        }
    }

    /// Packs elements, in groups of sixteen, as a store does: the low six bits of every byte.
    pub(crate) fn pack(self, from: &[u8]) -> Vec<u8> {
        let group = |sixteen: &[u8]| {
            let packed = sixteen.iter().rev().fold(0u128, |p, b| p << 6 | u128::from(b & 0x3f));
            packed.to_le_bytes().into_iter().take(12)
        };
        from.chunks_exact(16).flat_map(group).collect()
    }
}

/// What a load puts where a box lies outside of the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fill {
    /// Zeros.
    #[default]
    Zeros,
    /// NaN, for elements of floating point.
    Nan,
}

impl Fill {
    /// The bytes of one element outside of the tensor.
    pub(crate) fn pattern(self, element: Element) -> &'static [u8] {
        use Element::{Bf16, F16, F32, F32Ftz, F64, Tf32, Tf32Ftz};
        match (self, element) {
            (Fill::Nan, F16 | Bf16) => &[0xff, 0x7f],
            (Fill::Nan, F32 | F32Ftz | Tf32 | Tf32Ftz) => &[0xff, 0xff, 0xff, 0x7f],
            (Fill::Nan, F64) => &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
            _ => &[0],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_bits_are_packed_and_four_are_spread() {
        let bytes: Vec<u8> = (0..16).map(|i| 0xc0 | i).collect();
        let packed = Element::U6Padded.pack(&bytes);
        assert_eq!(packed.len(), 12);
        // 0b000011_000010_000001_000000, low byte first.
        assert_eq!(packed[..3], [0x40, 0x20, 0x0c]);
        let mut to = [0xee; 32];
        Element::U4Padded.spread(&(1..=16).collect::<Vec<u8>>(), &mut to);
        assert_eq!(to[..10], [1, 2, 3, 4, 5, 6, 7, 8, 0xee, 0xee]);
        assert_eq!(to[16..18], [9, 10]);
    }

    #[test]
    fn loads_round_and_flush() {
        let run = |element: Element, x: f32| {
            let mut bytes = x.to_le_bytes();
            element.convert(&mut bytes);
            f32::from_le_bytes(bytes)
        };
        // Half of the last bit of TF32 goes to even, more goes up.
        assert_eq!(run(Element::Tf32, 1.0 + 2f32.powi(-11)), 1.0);
        assert_eq!(run(Element::Tf32, 1.0 + 3.0 * 2f32.powi(-11)), 1.0 + 2f32.powi(-9));
        assert_eq!(run(Element::Tf32, 1.0 + 2f32.powi(-11) + 2f32.powi(-20)), 1.0 + 2f32.powi(-10));
        assert_eq!(run(Element::F32, 1.0 + 2f32.powi(-11)), 1.0 + 2f32.powi(-11));
        let tiny = f32::from_bits(0x0040_0000);
        assert_eq!(run(Element::F32Ftz, -tiny).to_bits(), 0x8000_0000);
        assert_eq!(run(Element::Tf32, tiny), tiny);
        assert_eq!(run(Element::Tf32Ftz, tiny), 0.0);
        assert!(run(Element::Tf32, f32::NAN).is_nan());
    }
}
