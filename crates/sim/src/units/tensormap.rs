//! Tensor maps: how the host describes a tensor, and the 128-byte block that a kernel passes around.
//!
//! The block's encoding is this simulator's own (NVIDIA's is not documented). Every field that
//! `tensormap.replace` can change has its own place.

use crate::error::{Fault, FaultKind};
use crate::memory::Memory;

/// Bytes of an encoded tensor map.
pub const TENSOR_MAP_BYTES: usize = 128;

const MAGIC: u32 = 0x4d54_584f;

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
}

/// In the order of `CUtensorMapDataType`.
const ELEMENTS: [Element; 10] = [
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
];

impl Element {
    /// Size in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Element::U8 => 1,
            Element::U16 | Element::F16 | Element::Bf16 => 2,
            Element::U32 | Element::S32 | Element::F32 => 4,
            Element::U64 | Element::S64 | Element::F64 => 8,
        }
    }
}

/// The element type that `tensormap.replace.elemtype` names by a number, which counts otherwise than
/// `CUtensorMapDataType`.
fn element_by_number(number: u64) -> Option<Element> {
    Some(match number {
        0..=7 => ELEMENTS[number as usize],
        9 => Element::F64,
        10 => Element::Bf16,
        // 8, 11 and 12 are f32.ftz, tf32 and tf32.ftz.
        _ => return None,
    })
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
        match (self, element) {
            (Fill::Nan, Element::F16 | Element::Bf16) => &[0xff, 0x7f],
            (Fill::Nan, Element::F32) => &[0xff, 0xff, 0xff, 0x7f],
            (Fill::Nan, Element::F64) => &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
            _ => &[0],
        }
    }
}

/// How 16-byte pieces are permuted in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Swizzle {
    /// Not at all.
    #[default]
    None,
    /// Within 32 bytes.
    B32,
    /// Within 64 bytes.
    B64,
    /// Within 128 bytes.
    B128,
}

impl Swizzle {
    /// Bytes of the span in which pieces move.
    pub fn span(self) -> u32 {
        match self {
            Swizzle::None => 16,
            Swizzle::B32 => 32,
            Swizzle::B64 => 64,
            Swizzle::B128 => 128,
        }
    }

    /// The place of the byte at shared address `address`: bits from 7 up are added (xor) to bits from 4 up.
    pub fn apply(self, address: u32) -> u32 {
        address ^ (address >> 3 & (self.span() - 1) & !15)
    }
}

/// A tensor as the host describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMapSpec {
    /// Address of the first element, a multiple of 16.
    pub address: u64,
    /// Element type.
    pub element: Element,
    /// Extent of each dimension, innermost first.
    pub dims: Vec<u64>,
    /// Distance in bytes between elements of dimensions 1 and up (one fewer than `dims`).
    pub strides: Vec<u64>,
    /// Extent of the box that one copy moves.
    pub box_dims: Vec<u32>,
    /// Permutation in shared memory.
    pub swizzle: Swizzle,
}

impl TensorMapSpec {
    /// Encodes the map, after the checks that `cuTensorMapEncodeTiled` does; zeros outside of the tensor.
    pub fn encode(&self) -> Result<[u8; TENSOR_MAP_BYTES], Fault> {
        self.encode_with_fill(Fill::Zeros)
    }

    /// Encodes the map with a choice of what loads find outside of the tensor.
    pub fn encode_with_fill(&self, fill: Fill) -> Result<[u8; TENSOR_MAP_BYTES], Fault> {
        let refuse = |m: String| Err(Fault::new(FaultKind::Launch, format!("tensor map: {m}")));
        let rank = self.dims.len();
        if !(1..=5).contains(&rank) {
            return refuse(format!("the rank is 1 to 5, not {rank}"));
        }
        if self.strides.len() != rank - 1 || self.box_dims.len() != rank {
            return refuse(format!("rank {rank} takes {} strides and {rank} box extents", rank - 1));
        }
        if !self.address.is_multiple_of(16) {
            return refuse(format!("the address {:#x} is not a multiple of 16", self.address));
        }
        if let Some(d) = self.dims.iter().find(|d| **d == 0 || **d > 1 << 32) {
            return refuse(format!("a dimension is 1 to 2^32, not {d}"));
        }
        if let Some(s) = self.strides.iter().find(|s| **s % 16 != 0 || **s >= 1 << 40) {
            return refuse(format!("a stride is a multiple of 16 below 2^40, not {s}"));
        }
        if let Some(b) = self.box_dims.iter().find(|b| !(1..=256).contains(*b)) {
            return refuse(format!("a box extent is 1 to 256, not {b}"));
        }
        let inner = u64::from(self.box_dims[0]) * self.element.bytes();
        if !inner.is_multiple_of(16) {
            return refuse(format!("the inner extent of the box is {inner} bytes, not a multiple of 16"));
        }
        if self.swizzle != Swizzle::None && inner > u64::from(self.swizzle.span()) {
            return refuse(format!("the inner extent of the box ({inner} bytes) exceeds the swizzle span"));
        }
        if fill == Fill::Nan && fill.pattern(self.element).len() == 1 {
            return refuse(format!("a fill of NaN for elements of {:?}", self.element));
        }
        let mut map = TensorMap {
            address: self.address,
            element: self.element,
            fill,
            rank,
            dims: [1; 5],
            strides: [0; 5],
            box_dims: [1; 5],
            swizzle: self.swizzle,
        };
        map.dims[..rank].copy_from_slice(&self.dims);
        map.strides[1..rank].copy_from_slice(&self.strides);
        map.box_dims[..rank].copy_from_slice(&self.box_dims);
        Ok(map.encode())
    }

    /// The bytes from the first element to the end of the last one.
    pub fn extent(&self) -> u64 {
        let inner = self.dims.first().copied().unwrap_or(0).saturating_mul(self.element.bytes());
        self.strides
            .iter()
            .zip(self.dims.iter().skip(1))
            .fold(inner, |e, (s, d)| e.saturating_add(s.saturating_mul(d.saturating_sub(1))))
    }
}

/// A decoded tensor map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorMap {
    pub(crate) address: u64,
    pub(crate) element: Element,
    pub(crate) rank: usize,
    pub(crate) dims: [u64; 5],
    /// Bytes; the first is unused.
    pub(crate) strides: [u64; 5],
    pub(crate) box_dims: [u32; 5],
    pub(crate) swizzle: Swizzle,
    pub(crate) fill: Fill,
}

const AT_FILL: usize = 7;
const AT_ADDRESS: usize = 8;
const AT_DIMS: usize = 16;
const AT_STRIDES: usize = 56;
const AT_BOX: usize = 96;

impl TensorMap {
    fn encode(&self) -> [u8; TENSOR_MAP_BYTES] {
        let mut b = [0; TENSOR_MAP_BYTES];
        b[..4].copy_from_slice(&MAGIC.to_le_bytes());
        b[4] = self.element as u8;
        b[5] = self.rank as u8;
        b[6] = self.swizzle as u8;
        b[AT_FILL] = self.fill as u8;
        b[AT_ADDRESS..][..8].copy_from_slice(&self.address.to_le_bytes());
        for i in 0..5 {
            b[AT_DIMS + 8 * i..][..8].copy_from_slice(&self.dims[i].to_le_bytes());
            b[AT_STRIDES + 8 * i..][..8].copy_from_slice(&self.strides[i].to_le_bytes());
            b[AT_BOX + 4 * i..][..4].copy_from_slice(&self.box_dims[i].to_le_bytes());
        }
        b
    }

    pub(crate) fn decode(b: &[u8]) -> Result<TensorMap, Fault> {
        let bad = |m: &str| Fault::new(FaultKind::TensorMap, format!("the tensor map {m}"));
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| b[at + i]));
        if b.len() != TENSOR_MAP_BYTES || word(0) as u32 != MAGIC {
            return Err(bad("is not one that the host encoded"));
        }
        let swizzle = match b[6] {
            0 => Swizzle::None,
            1 => Swizzle::B32,
            2 => Swizzle::B64,
            3 => Swizzle::B128,
            _ => return Err(bad("has an unknown swizzle")),
        };
        let fill = match b[AT_FILL] {
            0 => Fill::Zeros,
            1 => Fill::Nan,
            _ => return Err(bad("has an unknown fill")),
        };
        let Some(element) = ELEMENTS.get(usize::from(b[4])) else {
            return Err(bad("has an unknown element type"));
        };
        let map = TensorMap {
            address: word(AT_ADDRESS),
            element: *element,
            rank: usize::from(b[5]),
            dims: std::array::from_fn(|i| word(AT_DIMS + 8 * i)),
            strides: std::array::from_fn(|i| word(AT_STRIDES + 8 * i)),
            box_dims: std::array::from_fn(|i| word(AT_BOX + 4 * i) as u32),
            swizzle,
            fill,
        };
        if !(1..=5).contains(&map.rank) || map.box_dims.iter().any(|d| !(1..=256).contains(d)) {
            return Err(bad("has a rank or box out of range"));
        }
        Ok(map)
    }

    /// Bytes that one box occupies in shared memory; a box that no shared memory holds counts as the largest
    /// number.
    pub(crate) fn box_bytes(&self) -> u32 {
        (0..self.rank).fold(self.element.bytes() as u32, |p, i| p.saturating_mul(self.box_dims[i]))
    }
}

/// Fields that `tensormap.replace` can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapField {
    GlobalAddress,
    Rank,
    BoxDim(u32),
    GlobalDim(u32),
    GlobalStride(u32),
    ElementStride(u32),
    ElementType,
    Swizzle,
    SwizzleAtom,
    Interleave,
    Fill,
}

/// The bytes of an encoded map that a `tensormap.replace` of `field` writes, and their place.
pub(crate) fn replacement(field: MapField, value: u64) -> Result<(usize, Vec<u8>), Fault> {
    let bad = |m: String| Err(Fault::new(FaultKind::BadOperand, m));
    Ok(match field {
        MapField::GlobalAddress => (AT_ADDRESS, value.to_le_bytes().to_vec()),
        // The instruction counts ranks from zero.
        MapField::Rank => (5, vec![(value as u8).wrapping_add(1)]),
        MapField::BoxDim(i) => (AT_BOX + 4 * i as usize, (value as u32).to_le_bytes().to_vec()),
        MapField::GlobalDim(i) => (AT_DIMS + 8 * i as usize, (value & 0xffff_ffff).to_le_bytes().to_vec()),
        // Strides are counted from dimension 1 and given in bytes.
        MapField::GlobalStride(i) if i < 4 => {
            (AT_STRIDES + 8 * (i as usize + 1), value.to_le_bytes().to_vec())
        }
        MapField::GlobalStride(i) => return bad(format!("stride {i} does not exist")),
        // What only one value is modelled of stays as it is.
        MapField::ElementStride(_) if value == 1 => (0, Vec::new()),
        MapField::Interleave | MapField::SwizzleAtom if value == 0 => (0, Vec::new()),
        MapField::ElementStride(_) => return bad(format!("element stride {value} is not modelled")),
        MapField::Interleave => return bad(format!("interleaved layout {value} is not modelled")),
        MapField::SwizzleAtom => return bad(format!("swizzle atomicity {value} is not modelled")),
        MapField::ElementType => match element_by_number(value) {
            Some(element) => (4, vec![element as u8]),
            None => return bad(format!("element type {value} is not modelled")),
        },
        MapField::Swizzle if value < 4 => (6, vec![value as u8]),
        MapField::Swizzle => return bad(format!("swizzle mode {value} is not modelled")),
        MapField::Fill if value < 2 => (AT_FILL, vec![value as u8]),
        MapField::Fill => return bad(format!("fill mode {value} does not exist")),
    })
}

impl Memory {
    /// Encodes a tensor map, after the check that its tensor lies inside one allocation.
    pub fn tensor_map(&mut self, spec: &TensorMapSpec) -> Result<[u8; TENSOR_MAP_BYTES], Fault> {
        let encoded = spec.encode()?;
        let extent = spec.extent();
        if !self.contains(spec.address, usize::try_from(extent).unwrap_or(usize::MAX)) {
            return Err(Fault::new(
                FaultKind::Launch,
                format!(
                    "tensor map: the tensor takes {extent} bytes from {:#x}, more than its buffer has",
                    spec.address
                ),
            ));
        }
        Ok(encoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> TensorMapSpec {
        TensorMapSpec {
            address: 0x1000,
            element: Element::Bf16,
            dims: vec![100, 7],
            strides: vec![208],
            box_dims: vec![64, 8],
            swizzle: Swizzle::B128,
        }
    }

    #[test]
    fn encoding_round_trips() {
        let map = TensorMap::decode(&spec().encode().unwrap()).unwrap();
        assert_eq!(map.dims[..2], [100, 7]);
        assert_eq!(map.strides[1], 208);
        assert_eq!(map.box_bytes(), 64 * 8 * 2);
        assert_eq!(map.swizzle, Swizzle::B128);
        assert_eq!(spec().extent(), 200 + 6 * 208);
    }

    #[test]
    fn fields_are_replaced_by_the_numbers_of_the_manual() {
        let replace = |field, value| {
            let mut bytes = spec().encode().unwrap();
            let (at, new) = replacement(field, value)?;
            bytes[at..at + new.len()].copy_from_slice(&new);
            TensorMap::decode(&bytes)
        };
        let types = [
            (0, Element::U8),
            (3, Element::S32),
            (6, Element::F16),
            (7, Element::F32),
            (9, Element::F64),
            (10, Element::Bf16),
        ];
        for (number, element) in types {
            assert_eq!(replace(MapField::ElementType, number).unwrap().element, element);
        }
        assert_eq!(replace(MapField::Rank, 2).unwrap().rank, 3);
        assert_eq!(replace(MapField::Fill, 1).unwrap().fill, Fill::Nan);
        assert_eq!(replace(MapField::Swizzle, 2).unwrap().swizzle, Swizzle::B64);
        assert_eq!(replace(MapField::GlobalDim(1), 9).unwrap().dims[1], 9);
        assert_eq!(replace(MapField::GlobalStride(0), 512).unwrap().strides[1], 512);
        assert_eq!(replace(MapField::Interleave, 0).unwrap().dims[..2], [100, 7]);
        for (field, value) in [
            (MapField::ElementType, 8),
            (MapField::Interleave, 1),
            (MapField::ElementStride(0), 2),
            (MapField::Swizzle, 4),
            (MapField::Fill, 2),
        ] {
            assert_eq!(replace(field, value).unwrap_err().kind, FaultKind::BadOperand, "{field:?} {value}");
        }
    }

    #[test]
    fn what_the_driver_refuses_is_refused() {
        for broken in [
            TensorMapSpec { address: 0x1008, ..spec() },
            TensorMapSpec { strides: vec![200], ..spec() },
            TensorMapSpec { strides: vec![], ..spec() },
            TensorMapSpec { box_dims: vec![128, 8], ..spec() },
            TensorMapSpec { box_dims: vec![4, 8], ..spec() },
            TensorMapSpec { box_dims: vec![64, 257], ..spec() },
            TensorMapSpec { dims: vec![0, 7], ..spec() },
        ] {
            assert_eq!(broken.encode().unwrap_err().kind, FaultKind::Launch, "{broken:?}");
        }
        assert!(TensorMap::decode(&[0; 128]).is_err());
        let bytes = TensorMapSpec { element: Element::U16, ..spec() };
        assert_eq!(bytes.encode_with_fill(Fill::Nan).unwrap_err().kind, FaultKind::Launch);
        let huge = TensorMapSpec { dims: vec![1 << 32; 5], strides: vec![1 << 39; 4], ..spec() };
        assert_eq!(huge.extent(), u64::MAX);
    }

    #[test]
    fn swizzles_permute_within_their_span() {
        for (swizzle, period) in [(Swizzle::B32, 256), (Swizzle::B64, 512), (Swizzle::B128, 1024)] {
            let mut seen: Vec<u32> = (0..period).map(|a| swizzle.apply(a)).collect();
            assert!(seen.iter().enumerate().all(|(a, s)| a as u32 / swizzle.span() == s / swizzle.span()));
            seen.sort_unstable();
            assert_eq!(seen, (0..period).collect::<Vec<_>>());
        }
        assert_eq!(Swizzle::B128.apply(0x80), 0x90);
        assert_eq!(Swizzle::B64.apply(0x80), 0x90);
        assert_eq!(Swizzle::B32.apply(0x80), 0x90);
        assert_eq!(Swizzle::B32.apply(0x100), 0x100);
        assert_eq!(Swizzle::None.apply(0x3f0), 0x3f0);
    }
}
