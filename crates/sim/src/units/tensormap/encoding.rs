//! The 128 bytes of a tensor map: what the host encodes, copies decode and `tensormap.replace` changes.
//!
//! Every field that `tensormap.replace` can change has its own place, and a block of zeros in which a kernel has set
//! every field is a map like one of the host.

use super::element::ELEMENTS;
use super::{Element, Fill, Swizzle, TENSOR_MAP_BYTES};
use crate::error::{Fault, FaultKind};

const MAGIC: u32 = 0x4d54_584f;

/// The bounding box of `im2col` mode along W, H and D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) lower: [i32; 3],
    pub(crate) upper: [i32; 3],
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
    /// Extent of a box; for `im2col` its channels and its pixels.
    pub(crate) box_dims: [u32; 5],
    /// Element strides.
    pub(crate) steps: [u32; 5],
    pub(crate) swizzle: Swizzle,
    pub(crate) fill: Fill,
    /// Set for `im2col`.
    pub(crate) window: Option<Window>,
}

const AT_ELEMENT: usize = 4;
const AT_RANK: usize = 5;
const AT_SWIZZLE: usize = 6;
const AT_FILL: usize = 7;
const AT_ADDRESS: usize = 8;
const AT_DIMS: usize = 16;
const AT_STRIDES: usize = 56;
/// Where the stride of the innermost dimension would be.
const AT_STEPS: usize = 56;
const AT_MODE: usize = 61;
const AT_ATOMICITY: usize = 62;
const AT_BOX: usize = 96;
/// Lower and upper corner, 16 bits each.
const AT_WINDOW: usize = 116;

impl TensorMap {
    pub(super) fn encode(&self) -> [u8; TENSOR_MAP_BYTES] {
        let mut b = [0; TENSOR_MAP_BYTES];
        b[..4].copy_from_slice(&MAGIC.to_le_bytes());
        let (mode, atomicity) = self.swizzle.numbers();
        b[AT_ELEMENT] = self.element as u8;
        b[AT_RANK] = self.rank as u8;
        b[AT_SWIZZLE] = mode;
        b[AT_FILL] = self.fill as u8;
        b[AT_ADDRESS..][..8].copy_from_slice(&self.address.to_le_bytes());
        for i in 0..5 {
            b[AT_DIMS + 8 * i..][..8].copy_from_slice(&self.dims[i].to_le_bytes());
            if i > 0 {
                b[AT_STRIDES + 8 * i..][..8].copy_from_slice(&self.strides[i].to_le_bytes());
            }
            b[AT_BOX + 4 * i..][..4].copy_from_slice(&self.box_dims[i].to_le_bytes());
            b[AT_STEPS + i] = self.steps[i] as u8;
        }
        b[AT_ATOMICITY] = atomicity;
        if let Some(w) = self.window {
            b[AT_MODE] = 1;
            for (i, corner) in w.lower.iter().chain(&w.upper).enumerate() {
                b[AT_WINDOW + 2 * i..][..2].copy_from_slice(&(*corner as i16).to_le_bytes());
            }
        }
        b
    }

    pub(crate) fn decode(b: &[u8]) -> Result<TensorMap, Fault> {
        let bad = |m: String| Fault::new(FaultKind::TensorMap, format!("the tensor map {m}"));
        if b.len() != TENSOR_MAP_BYTES {
            return Err(bad(format!("has {} bytes", b.len())));
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| b[at + i]));
        let rank = usize::from(b[AT_RANK]);
        match word(0) as u32 {
            MAGIC => {}
            // Zeros in which `tensormap.replace` has set what it must.
            0 if rank > 0 => {
                let unset = |name: &str, i: usize| {
                    Err(bad(format!("is not one of the host, and nothing has set its {name} {i}")))
                };
                for i in 0..rank.min(5) {
                    if b[AT_BOX + 4 * i..][..4] == [0; 4] {
                        return unset("box_dim", i);
                    }
                    if word(AT_DIMS + 8 * i) == 0 {
                        return unset("global_dim", i);
                    }
                    if b[AT_STEPS + i] == 0 {
                        return unset("element_stride", i);
                    }
                }
            }
            _ => return Err(bad("is not one that the host encoded".into())),
        }
        if !(1..=5).contains(&rank) {
            return Err(bad(format!("has rank {rank}")));
        }
        let Some(swizzle) = Swizzle::of_numbers(b[AT_SWIZZLE], b[AT_ATOMICITY]) else {
            return Err(bad(format!(
                "has swizzle mode {} with swizzle atomicity {}, which do not go together",
                b[AT_SWIZZLE], b[AT_ATOMICITY]
            )));
        };
        let fill = match b[AT_FILL] {
            0 => Fill::Zeros,
            1 => Fill::Nan,
            n => return Err(bad(format!("has the unknown fill mode {n}"))),
        };
        let Some(element) = ELEMENTS.get(usize::from(b[AT_ELEMENT])) else {
            return Err(bad(format!("has the unknown element type {}", b[AT_ELEMENT])));
        };
        let corner = |i: usize| {
            let at = AT_WINDOW + 2 * i;
            i32::from(i16::from_le_bytes([b[at], b[at + 1]]))
        };
        let window = (b[AT_MODE] != 0).then(|| Window {
            lower: std::array::from_fn(corner),
            upper: std::array::from_fn(|i| corner(3 + i)),
        });
        let extents = if window.is_some() { 2 } else { rank };
        let map = TensorMap {
            address: word(AT_ADDRESS),
            element: *element,
            rank,
            dims: std::array::from_fn(|i| if i < rank { word(AT_DIMS + 8 * i) } else { 1 }),
            strides: std::array::from_fn(
                |i| if (1..rank).contains(&i) { word(AT_STRIDES + 8 * i) } else { 0 },
            ),
            box_dims: std::array::from_fn(|i| if i < extents { word(AT_BOX + 4 * i) as u32 } else { 1 }),
            steps: std::array::from_fn(|i| if i < rank { u32::from(b[AT_STEPS + i]) } else { 1 }),
            swizzle,
            fill,
            window,
        };
        match map.problem() {
            Some(problem) => Err(bad(format!("is not valid: {problem}"))),
            None => Ok(map),
        }
    }

    /// What the driver's encoder would refuse.
    pub(super) fn problem(&self) -> Option<String> {
        let (element, rank) = (self.element, self.rank);
        let align = if element.padded() { 32 } else { 16 };
        if !self.address.is_multiple_of(align) {
            return Some(format!("the address {:#x} is not a multiple of {align}", self.address));
        }
        if let Some(d) = self.dims[..rank].iter().find(|d| **d == 0 || **d > 1 << 32) {
            return Some(format!("a dimension is 1 to 2^32, not {d}"));
        }
        let whole = match element {
            Element::U4 => 2,
            Element::U4Padded | Element::U6Padded => 128,
            _ => 1,
        };
        if !self.dims[0].is_multiple_of(whole) {
            let d = self.dims[0];
            return Some(format!("the inner dimension of {element:?} is a multiple of {whole}, not {d}"));
        }
        if let Some(s) = self.strides[1..rank.max(1)].iter().find(|s| **s % align != 0 || **s >= 1 << 40) {
            return Some(format!("a stride is a multiple of {align} below 2^40, not {s}"));
        }
        // Without interleaving, the step of the innermost dimension is not looked at.
        if let Some(s) = self.steps[1..rank.max(1)].iter().find(|s| !(1..=8).contains(*s)) {
            return Some(format!("an element stride is 1 to 8, not {s}"));
        }
        let (extents, most) = if self.window.is_some() { (2, 1024) } else { (rank, 256) };
        if let Some(b) = self.box_dims[1..extents.max(1)].iter().find(|b| !(1..=most).contains(*b)) {
            return Some(format!("a box extent is 1 to {most}, not {b}"));
        }
        let inner = self.box_dims[0];
        if !(1..=256).contains(&inner) {
            return Some(format!("a box extent is 1 to 256, not {inner}"));
        }
        if element.padded() && inner != 128 {
            return Some(format!("the inner extent of a box of {element:?} is 128, not {inner}"));
        }
        let bytes = element.global_bytes(u64::from(inner));
        if !bytes.is_multiple_of(16) {
            return Some(format!("the inner extent of the box is {bytes} bytes, not a multiple of 16"));
        }
        if self.swizzle != Swizzle::None
            && element.shared_bytes(u64::from(inner)) > self.swizzle.span().into()
        {
            return Some(format!("the inner extent of the box ({bytes} bytes) exceeds the swizzle span"));
        }
        let swizzles = match element {
            Element::U4Padded => &[Swizzle::None, Swizzle::B128, Swizzle::B128Atom32][..],
            Element::U6Padded => &[Swizzle::None, Swizzle::B128, Swizzle::B128Atom32, Swizzle::B128Atom64],
            _ => &[],
        };
        if !swizzles.is_empty() && !swizzles.contains(&self.swizzle) {
            return Some(format!("swizzle {:?} for elements of {element:?}", self.swizzle));
        }
        if self.fill == Fill::Nan && self.fill.pattern(element).len() == 1 {
            return Some(format!("a fill of NaN for elements of {element:?}"));
        }
        self.window.and_then(|w| self.window_problem(w))
    }

    fn window_problem(&self, w: Window) -> Option<String> {
        let limit = match self.rank {
            3 => 1 << 15,
            4 => 1 << 7,
            5 => 1 << 4,
            rank => return Some(format!("the rank of a map for im2col is 3 to 5, not {rank}")),
        };
        for i in 0..self.rank - 2 {
            for corner in [w.lower[i], w.upper[i]] {
                if !(-limit..limit).contains(&corner) {
                    return Some(format!("a corner of im2col is {} to {}, not {corner}", -limit, limit - 1));
                }
            }
            if self.last_pixel(w, i) < i64::from(w.lower[i]) {
                return Some(format!("the bounding box of im2col is empty along dimension {}", i + 1));
            }
        }
        None
    }

    /// The last pixel of the bounding box of `im2col` along W, H or D.
    pub(crate) fn last_pixel(&self, window: Window, i: usize) -> i64 {
        self.dims[i + 1] as i64 - 1 + i64::from(window.upper[i])
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
        MapField::Rank => (AT_RANK, vec![(value as u8).wrapping_add(1)]),
        MapField::BoxDim(i) => (AT_BOX + 4 * i as usize, (value as u32).to_le_bytes().to_vec()),
        MapField::GlobalDim(i) => (AT_DIMS + 8 * i as usize, (value & 0xffff_ffff).to_le_bytes().to_vec()),
        // Strides are counted from dimension 1 and given in bytes.
        MapField::GlobalStride(i) if i < 4 => {
            (AT_STRIDES + 8 * (i as usize + 1), value.to_le_bytes().to_vec())
        }
        MapField::GlobalStride(i) => return bad(format!("stride {i} does not exist")),
        MapField::ElementStride(i) if (1..=8).contains(&value) => (AT_STEPS + i as usize, vec![value as u8]),
        MapField::ElementStride(_) => return bad(format!("an element stride is 1 to 8, not {value}")),
        // The only one that is modelled.
        MapField::Interleave if value == 0 => (0, Vec::new()),
        MapField::Interleave => return bad(format!("interleaved layout {value} is not modelled")),
        MapField::SwizzleAtom if value < 4 => (AT_ATOMICITY, vec![value as u8]),
        MapField::SwizzleAtom => return bad(format!("swizzle atomicity {value} does not exist")),
        MapField::ElementType => match Element::by_number(value) {
            Some(element) => (AT_ELEMENT, vec![element as u8]),
            None => return bad(format!("element type {value} does not exist")),
        },
        MapField::Swizzle if value < 4 => (AT_SWIZZLE, vec![value as u8]),
        MapField::Swizzle if value == 4 => return bad("swizzling of 96 bytes is not modelled".into()),
        MapField::Swizzle => return bad(format!("swizzle mode {value} does not exist")),
        MapField::Fill if value < 2 => (AT_FILL, vec![value as u8]),
        MapField::Fill => return bad(format!("fill mode {value} does not exist")),
    })
}
