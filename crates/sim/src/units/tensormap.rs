//! Tensor maps: how the host describes a tensor, and the 128-byte block that a kernel passes around.
//!
//! The block's encoding is this simulator's own (NVIDIA's is not documented). Every field that
//! `tensormap.replace` can change has its own place, and a block of zeros in which a kernel has set every field is a
//! map like one of the host.

mod element;
mod swizzle;

use crate::error::{Fault, FaultKind};
use crate::memory::Memory;
use element::ELEMENTS;
pub use element::{Element, Fill};
pub use swizzle::Swizzle;

/// Bytes of an encoded tensor map.
pub const TENSOR_MAP_BYTES: usize = 128;

const MAGIC: u32 = 0x4d54_584f;

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
    /// Extent of the box that one copy moves; not read where the map is one for `im2col`.
    pub box_dims: Vec<u32>,
    /// Permutation in shared memory.
    pub swizzle: Swizzle,
}

/// What few maps have beside a [`TensorMapSpec`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TensorMapDetails {
    /// What loads find outside of the tensor.
    pub fill: Fill,
    /// The step of a copy along each dimension, innermost first; one in all where the list is empty.
    pub element_strides: Vec<u32>,
    /// For copies in `im2col` mode.
    pub im2col: Option<Im2col>,
}

/// The pixels that a copy in `im2col` mode goes through (`cuTensorMapEncodeIm2col`). The tensor has channels as its
/// innermost dimension, then W (and H, and D), then N.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Im2col {
    /// The first pixel of the bounding box along W, H and D.
    pub lower: Vec<i32>,
    /// The last pixel of the bounding box, counted from the last of the tensor.
    pub upper: Vec<i32>,
    /// Channels of a pixel that one copy moves.
    pub channels: u32,
    /// Pixels that one copy moves.
    pub pixels: u32,
}

impl TensorMapSpec {
    /// Encodes the map, after the checks that `cuTensorMapEncodeTiled` does; zeros outside of the tensor.
    pub fn encode(&self) -> Result<[u8; TENSOR_MAP_BYTES], Fault> {
        self.encode_with(&TensorMapDetails::default())
    }

    /// Encodes the map with a choice of what loads find outside of the tensor.
    pub fn encode_with_fill(&self, fill: Fill) -> Result<[u8; TENSOR_MAP_BYTES], Fault> {
        self.encode_with(&TensorMapDetails { fill, ..TensorMapDetails::default() })
    }

    /// Encodes the map, after the checks that `cuTensorMapEncodeTiled` or `cuTensorMapEncodeIm2col` does.
    ///
    /// ```
    /// use oxigemm_sim::{Element, Im2col, Swizzle, TensorMapDetails, TensorMapSpec};
    ///
    /// // 2 images of 8x8 pixels with 16 channels, for a filter of 3x3 with a border of one pixel.
    /// let tensor = TensorMapSpec {
    ///     address: 0x1_0000_0000,
    ///     element: Element::Bf16,
    ///     dims: vec![16, 8, 8, 2],
    ///     strides: vec![32, 256, 2048],
    ///     box_dims: vec![],
    ///     swizzle: Swizzle::B32,
    /// };
    /// let im2col = Im2col { lower: vec![-1, -1], upper: vec![-1, -1], channels: 16, pixels: 64 };
    /// assert!(tensor.encode_with(&TensorMapDetails { im2col: Some(im2col), ..Default::default() }).is_ok());
    /// ```
    pub fn encode_with(&self, details: &TensorMapDetails) -> Result<[u8; TENSOR_MAP_BYTES], Fault> {
        let refuse = |m: String| Err(Fault::new(FaultKind::Launch, format!("tensor map: {m}")));
        let rank = self.dims.len();
        if !(1..=5).contains(&rank) {
            return refuse(format!("the rank is 1 to 5, not {rank}"));
        }
        let boxes = if details.im2col.is_some() { self.box_dims.len() } else { rank };
        if self.strides.len() != rank - 1 || self.box_dims.len() != boxes {
            return refuse(format!("rank {rank} takes {} strides and {rank} box extents", rank - 1));
        }
        let steps = &details.element_strides;
        if !steps.is_empty() && steps.len() != rank {
            return refuse(format!("rank {rank} takes {rank} element strides, not {}", steps.len()));
        }
        let mut map = TensorMap {
            address: self.address,
            element: self.element,
            fill: details.fill,
            rank,
            dims: [1; 5],
            strides: [0; 5],
            box_dims: [1; 5],
            steps: [1; 5],
            swizzle: self.swizzle,
            window: None,
        };
        map.dims[..rank].copy_from_slice(&self.dims);
        map.strides[1..rank].copy_from_slice(&self.strides);
        map.steps[..steps.len()].copy_from_slice(steps);
        match &details.im2col {
            None => map.box_dims[..rank].copy_from_slice(&self.box_dims),
            Some(im2col) => {
                let space = rank.saturating_sub(2);
                if im2col.lower.len() != space || im2col.upper.len() != space {
                    return refuse(format!("im2col of rank {rank} has corners of {space} coordinates"));
                }
                let mut window = Window { lower: [0; 3], upper: [0; 3] };
                window.lower[..space].copy_from_slice(&im2col.lower);
                window.upper[..space].copy_from_slice(&im2col.upper);
                map.window = Some(window);
                map.box_dims[..2].copy_from_slice(&[im2col.channels, im2col.pixels]);
            }
        }
        match map.problem() {
            Some(problem) => refuse(problem),
            None => Ok(map.encode()),
        }
    }

    /// The bytes from the first element to the end of the last one.
    pub fn extent(&self) -> u64 {
        let inner = self.element.global_bytes(self.dims.first().copied().unwrap_or(0));
        self.strides
            .iter()
            .zip(self.dims.iter().skip(1))
            .fold(inner, |e, (s, d)| e.saturating_add(s.saturating_mul(d.saturating_sub(1))))
    }
}

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
    fn encode(&self) -> [u8; TENSOR_MAP_BYTES] {
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
    fn problem(&self) -> Option<String> {
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
        if self.dims[0] % whole != 0 {
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

impl Memory {
    /// Encodes a tensor map, after the check that its tensor lies inside one allocation.
    pub fn tensor_map(&mut self, spec: &TensorMapSpec) -> Result<[u8; TENSOR_MAP_BYTES], Fault> {
        self.tensor_map_with(spec, &TensorMapDetails::default())
    }

    /// The same for a map with more than a [`TensorMapSpec`] says.
    pub fn tensor_map_with(
        &mut self,
        spec: &TensorMapSpec,
        details: &TensorMapDetails,
    ) -> Result<[u8; TENSOR_MAP_BYTES], Fault> {
        let encoded = spec.encode_with(details)?;
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

    fn padded() -> TensorMapSpec {
        TensorMapSpec {
            element: Element::U4Padded,
            dims: vec![256, 7],
            strides: vec![128],
            box_dims: vec![128, 8],
            ..spec()
        }
    }

    fn images() -> (TensorMapSpec, Im2col) {
        let tensor = TensorMapSpec {
            dims: vec![64, 9, 14, 3],
            strides: vec![128, 1152, 16128],
            box_dims: vec![],
            ..spec()
        };
        (tensor, Im2col { lower: vec![-1, -1], upper: vec![-1, -1], channels: 64, pixels: 64 })
    }

    #[test]
    fn encoding_round_trips() {
        let map = TensorMap::decode(&spec().encode().unwrap()).unwrap();
        assert_eq!(map.dims[..2], [100, 7]);
        assert_eq!(map.strides[1], 208);
        assert_eq!(map.swizzle, Swizzle::B128);
        assert_eq!(map.steps, [1; 5]);
        assert_eq!(spec().extent(), 200 + 6 * 208);
        assert_eq!(padded().extent(), 128 + 6 * 128);
        let (tensor, im2col) = images();
        let details = TensorMapDetails {
            element_strides: vec![1, 2, 3, 1],
            im2col: Some(im2col),
            ..TensorMapDetails::default()
        };
        let map = TensorMap::decode(&tensor.encode_with(&details).unwrap()).unwrap();
        assert_eq!(map.window, Some(Window { lower: [-1, -1, 0], upper: [-1, -1, 0] }));
        assert_eq!((map.box_dims[0], map.box_dims[1], map.steps), (64, 64, [1, 2, 3, 1, 1]));
    }

    fn replaced(mut bytes: [u8; 128], changes: &[(MapField, u64)]) -> Result<TensorMap, Fault> {
        for (field, value) in changes {
            let (at, new) = replacement(*field, *value)?;
            bytes[at..at + new.len()].copy_from_slice(&new);
        }
        TensorMap::decode(&bytes)
    }

    #[test]
    fn fields_are_replaced_by_the_numbers_of_the_manual() {
        let plain = TensorMapSpec { swizzle: Swizzle::None, dims: vec![128, 7], ..padded() };
        let replace = |field, value| replaced(plain.encode().unwrap(), &[(field, value)]);
        let types = [
            (0, Element::U8),
            (3, Element::S32),
            (6, Element::F16),
            (7, Element::F32),
            (8, Element::F32Ftz),
            (9, Element::F64),
            (10, Element::Bf16),
            (11, Element::Tf32),
            (12, Element::Tf32Ftz),
            (13, Element::U4),
            (14, Element::U4Padded),
            (15, Element::U6Padded),
        ];
        for (number, element) in types {
            assert_eq!(replace(MapField::ElementType, number).unwrap().element, element);
        }
        let replace = |field, value| replaced(spec().encode().unwrap(), &[(field, value)]);
        assert_eq!(replace(MapField::Rank, 0).unwrap().rank, 1);
        assert_eq!(replace(MapField::Fill, 1).unwrap().fill, Fill::Nan);
        assert_eq!(replace(MapField::Swizzle, 0).unwrap().swizzle, Swizzle::None);
        assert_eq!(replace(MapField::SwizzleAtom, 1).unwrap().swizzle, Swizzle::B128Atom32);
        assert_eq!(replace(MapField::SwizzleAtom, 2).unwrap().swizzle, Swizzle::B128Atom32Flip8);
        assert_eq!(replace(MapField::SwizzleAtom, 3).unwrap().swizzle, Swizzle::B128Atom64);
        assert_eq!(replace(MapField::GlobalDim(1), 9).unwrap().dims[1], 9);
        assert_eq!(replace(MapField::GlobalStride(0), 512).unwrap().strides[1], 512);
        assert_eq!(replace(MapField::ElementStride(1), 3).unwrap().steps[1], 3);
        assert_eq!(replace(MapField::Interleave, 0).unwrap().dims[..2], [100, 7]);
        for (field, value) in [
            (MapField::ElementType, 16),
            (MapField::Interleave, 1),
            (MapField::ElementStride(0), 9),
            (MapField::Swizzle, 4),
            (MapField::Swizzle, 5),
            (MapField::SwizzleAtom, 4),
            (MapField::Fill, 2),
        ] {
            assert_eq!(replace(field, value).unwrap_err().kind, FaultKind::BadOperand, "{field:?} {value}");
        }
        // What no encoder would make is found when the map is used.
        for (field, value) in [
            (MapField::Swizzle, 1),
            (MapField::ElementType, 9),
            (MapField::GlobalStride(0), 8),
            (MapField::BoxDim(0), 4),
            (MapField::GlobalAddress, 8),
        ] {
            assert_eq!(replace(field, value).unwrap_err().kind, FaultKind::TensorMap, "{field:?} {value}");
        }
    }

    #[test]
    fn zeros_become_a_map_when_every_field_is_set() {
        let fields = [
            (MapField::GlobalAddress, 0x1000),
            (MapField::Rank, 1),
            (MapField::BoxDim(0), 64),
            (MapField::BoxDim(1), 8),
            (MapField::GlobalDim(0), 100),
            (MapField::GlobalDim(1), 7),
            (MapField::GlobalStride(0), 208),
            (MapField::ElementStride(0), 1),
            (MapField::ElementStride(1), 1),
            (MapField::ElementType, 10),
            (MapField::Swizzle, 3),
        ];
        let host = TensorMap::decode(&spec().encode().unwrap()).unwrap();
        assert_eq!(replaced([0; 128], &fields).unwrap(), host);
        for missing in [1, 2, 3, 4, 5, 7, 8] {
            let rest: Vec<_> =
                fields.iter().enumerate().filter(|(i, _)| *i != missing).map(|f| *f.1).collect();
            assert_eq!(replaced([0; 128], &rest).unwrap_err().kind, FaultKind::TensorMap, "{missing}");
        }
        assert_eq!(replaced([7; 128], &fields).unwrap_err().kind, FaultKind::TensorMap);
    }

    #[test]
    fn what_the_driver_refuses_is_refused() {
        let (tensor, im2col) = images();
        let with = |im2col: Im2col| {
            tensor.encode_with(&TensorMapDetails { im2col: Some(im2col), ..TensorMapDetails::default() })
        };
        assert!(with(im2col.clone()).is_ok());
        for broken in [
            Im2col { lower: vec![-129, -1], ..im2col.clone() },
            Im2col { upper: vec![-1, 128], ..im2col.clone() },
            Im2col { upper: vec![-1], ..im2col.clone() },
            Im2col { upper: vec![-10, -1], ..im2col.clone() },
            Im2col { channels: 128, ..im2col.clone() },
            Im2col { channels: 4, ..im2col.clone() },
            Im2col { pixels: 1025, ..im2col.clone() },
        ] {
            assert_eq!(with(broken.clone()).unwrap_err().kind, FaultKind::Launch, "{broken:?}");
        }
        for broken in [
            TensorMapSpec { address: 0x1008, ..spec() },
            TensorMapSpec { strides: vec![200], ..spec() },
            TensorMapSpec { strides: vec![], ..spec() },
            TensorMapSpec { box_dims: vec![128, 8], ..spec() },
            TensorMapSpec { box_dims: vec![4, 8], ..spec() },
            TensorMapSpec { box_dims: vec![64, 257], ..spec() },
            TensorMapSpec { dims: vec![0, 7], ..spec() },
            TensorMapSpec { address: 0x1010, ..padded() },
            TensorMapSpec { dims: vec![192, 7], ..padded() },
            TensorMapSpec { strides: vec![144], ..padded() },
            TensorMapSpec { box_dims: vec![64, 8], ..padded() },
            TensorMapSpec { swizzle: Swizzle::B64, ..padded() },
            TensorMapSpec { swizzle: Swizzle::B128Atom64, ..padded() },
            TensorMapSpec { swizzle: Swizzle::B128Atom32Flip8, element: Element::U6Padded, ..padded() },
            TensorMapSpec { element: Element::U4, dims: vec![63, 7], box_dims: vec![32, 8], ..padded() },
            TensorMapSpec { element: Element::U4, box_dims: vec![16, 8], ..padded() },
        ] {
            assert_eq!(broken.encode().unwrap_err().kind, FaultKind::Launch, "{broken:?}");
        }
        assert!(padded().encode().is_ok());
        assert!(TensorMapSpec { element: Element::U4, box_dims: vec![256, 8], ..padded() }.encode().is_ok());
        assert!(TensorMap::decode(&[0; 128]).is_err());
        let bytes = TensorMapSpec { element: Element::U16, ..spec() };
        assert_eq!(bytes.encode_with_fill(Fill::Nan).unwrap_err().kind, FaultKind::Launch);
        assert_eq!(padded().encode_with_fill(Fill::Nan).unwrap_err().kind, FaultKind::Launch);
        let steps = |element_strides| TensorMapDetails { element_strides, ..TensorMapDetails::default() };
        assert!(spec().encode_with(&steps(vec![1, 8])).is_ok());
        assert_eq!(spec().encode_with(&steps(vec![1, 9])).unwrap_err().kind, FaultKind::Launch);
        assert_eq!(spec().encode_with(&steps(vec![1])).unwrap_err().kind, FaultKind::Launch);
        let huge = TensorMapSpec { dims: vec![1 << 32; 5], strides: vec![1 << 39; 4], ..spec() };
        assert_eq!(huge.extent(), u64::MAX);
    }
}
