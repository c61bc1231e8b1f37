//! Moving a part of a tensor between global memory and bytes in shared-memory order.
//!
//! A part consists of rows along the innermost dimension: those of a box, four rows of a matrix (`tile::gather4`), or
//! the channels of pixels that follow each other in a bounding box (`im2col`).

use super::atomic::AtomFn;
use super::tensormap::{Element, Swizzle, TensorMap, Window};
use crate::error::{Fault, FaultKind};
use crate::memory::{Memory, word};
use crate::text::types::Ty;

/// Where in a tensor a copy begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Corner {
    /// The first element of a box.
    Tile([i32; 5]),
    /// A column, and four rows of a matrix.
    Rows(i32, [i32; 4]),
    /// The first element of the first pixel, and the offset of the filter's tap along W, H and D.
    Im2col([i32; 5], [u16; 3]),
}

/// The part of a tensor that a copy moves.
#[derive(Clone, Debug)]
pub(crate) struct TensorPart {
    pub(crate) map: TensorMap,
    corner: Corner,
}

/// One row of a part: the elements of it that lie inside the tensor.
struct Row {
    /// Place of the row in the part, in bytes of shared memory.
    at: usize,
    /// Elements of the row before the tensor begins, the global address of the first one inside, and how many are
    /// inside; none when the row is outside.
    inside: Option<(u64, u64, u64)>,
}

fn bad(message: String) -> Fault {
    Fault::new(FaultKind::BadOperand, message)
}

impl TensorPart {
    /// The part of `map`'s tensor at `corner`, after the checks that go for loads and stores.
    pub(crate) fn new(map: TensorMap, corner: Corner) -> Result<TensorPart, Fault> {
        let other = |what: &str| Err(Fault::new(FaultKind::TensorMap, format!("the map is {what}")));
        let first = match (corner, map.window) {
            (Corner::Tile(c), None) => c[0],
            (Corner::Rows(column, _), None) => {
                if map.rank != 2 || map.box_dims[1] != 1 {
                    return other("not one for four rows: its rank is 2 and the outer extent of its box 1");
                }
                column
            }
            (Corner::Im2col(c, offsets), Some(window)) => {
                check_pixel(&map, window, c, offsets)?;
                c[0]
            }
            (Corner::Im2col(..), None) => return other("one for tiles, and the instruction is im2col"),
            (_, Some(_)) => return other("one for im2col, and the instruction is for tiles"),
        };
        if map.element.padded() {
            if first % 128 != 0 {
                let message =
                    format!("the first coordinate {first} is not a multiple of 128, as padded elements");
                return Err(Fault::new(FaultKind::Misaligned, format!("{message} need it")));
            }
        } else if i64::from(first) * map.element.bits() as i64 % 128 != 0 {
            let bytes = i64::from(first) * map.element.bits() as i64 / 8;
            return Err(Fault::new(
                FaultKind::Misaligned,
                format!("the box begins {bytes} bytes into a row: TMA requires a multiple of 16"),
            ));
        }
        Ok(TensorPart { map, corner })
    }

    /// What a store or a reduction must not do (PTX "Restriction on Tensor Copy instructions").
    pub(crate) fn check_store(&self, reduce: Option<AtomFn>) -> Result<(), Fault> {
        let element = self.map.element;
        if element == Element::U4Padded {
            return Err(bad("a store to a map of padded 4-bit elements: they can only be loaded".into()));
        }
        if reduce.is_some() && element.arithmetic().is_none() {
            return Err(bad(format!("a reduction to elements of {element:?}")));
        }
        if self.map.swizzle == Swizzle::B128Atom32Flip8 {
            return Err(bad("a store with a swizzle that flips 8 bytes: it exists for loads only".into()));
        }
        let coords = match &self.corner {
            Corner::Tile(c) | Corner::Im2col(c, _) => &c[..],
            Corner::Rows(_, rows) => &rows[..],
        };
        let column = if let Corner::Rows(column, _) = self.corner { column } else { 0 };
        if let Some(c) = coords.iter().chain([&column]).find(|c| **c < 0) {
            return Err(bad(format!(
                "a store at coordinate {c}: the coordinates of stores are not negative"
            )));
        }
        match self.map.window {
            Some(w) if w.lower.iter().any(|c| *c < 0) || w.upper.iter().any(|c| *c > 0) => {
                Err(bad("a store of im2col whose bounding box reaches out of the tensor".into()))
            }
            _ => Ok(()),
        }
    }

    /// Elements of a row.
    fn inner(&self) -> u64 {
        self.map.box_dims[0].into()
    }

    /// How many rows the part has.
    fn height(&self) -> u32 {
        match self.corner {
            Corner::Tile(_) => {
                (1..self.map.rank).fold(1u32, |n, i| n.saturating_mul(box_count(&self.map, i)))
            }
            Corner::Rows(..) => 4,
            Corner::Im2col(..) => self.map.box_dims[1],
        }
    }

    /// Bytes that the part takes in shared memory; one that no shared memory holds counts as the largest number.
    pub(crate) fn bytes(&self) -> u32 {
        (self.map.element.shared_bytes(self.inner()) as u32).saturating_mul(self.height())
    }

    /// Bytes that an mbarrier counts: those that come from global memory, without padding.
    pub(crate) fn counted(&self) -> u32 {
        (self.map.element.global_bytes(self.inner()) as u32).saturating_mul(self.height())
    }

    fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        let mut pixel = match (self.corner, self.map.window) {
            (Corner::Im2col(c, offsets), Some(window)) => Some(Pixel { at: c, offsets, window }),
            _ => None,
        };
        let pitch = self.map.element.shared_bytes(self.inner()) as usize;
        (0..self.height()).map(move |r| {
            let coords = match &mut pixel {
                Some(pixel) => pixel.step(&self.map),
                None => self.coords(r),
            };
            self.row(r as usize * pitch, coords)
        })
    }

    /// Coordinates of row `r` of a box or of four rows.
    fn coords(&self, r: u32) -> [i64; 5] {
        let (map, mut rest) = (&self.map, r);
        match self.corner {
            Corner::Rows(column, rows) => [column.into(), rows[r as usize % 4].into(), 0, 0, 0],
            Corner::Tile(first) | Corner::Im2col(first, _) => std::array::from_fn(|i| {
                if i == 0 || i >= map.rank {
                    return first[i].into();
                }
                let count = box_count(map, i);
                let step = i64::from(rest % count * map.steps[i]);
                rest /= count;
                i64::from(first[i]) + step
            }),
        }
    }

    /// The row at `coords`.
    fn row(&self, at: usize, coords: [i64; 5]) -> Row {
        let map = &self.map;
        let mut address = map.address;
        for (i, &c) in coords.iter().enumerate().take(map.rank).skip(1) {
            if c < 0 || c as u64 >= map.dims[i] {
                return Row { at, inside: None };
            }
            address = address.wrapping_add((c as u64).wrapping_mul(map.strides[i]));
        }
        let low = coords[0].max(0);
        let high = (coords[0] + self.inner() as i64).min(map.dims[0].min(i64::MAX as u64) as i64);
        if low >= high {
            return Row { at, inside: None };
        }
        // Elements of 4 and 6 bits begin at whole bytes: the first coordinate is a multiple of 32.
        let address = address.wrapping_add(map.element.global_bytes(low as u64));
        Row { at, inside: Some(((low - coords[0]) as u64, address, (high - low) as u64)) }
    }

    /// Addresses and lengths of what lies inside the tensor.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let bytes = |(_, address, count): (u64, u64, u64)| (address, self.map.element.global_bytes(count));
        self.rows().filter_map(move |row| row.inside.map(bytes))
    }

    /// The part as it lies in shared memory before it is swizzled, with the map's fill outside of the tensor.
    pub(crate) fn read(&self, memory: &mut Memory, check: bool) -> Result<Vec<u8>, Fault> {
        let element = self.map.element;
        let pattern = self.map.fill.pattern(element);
        let mut bytes: Vec<u8> = pattern.iter().copied().cycle().take(self.bytes() as usize).collect();
        for row in self.rows() {
            let Some((skip, address, count)) = row.inside else { continue };
            let from = memory.load(address, element.global_bytes(count) as usize, check)?;
            let to = row.at + element.shared_bytes(skip) as usize;
            let to = &mut bytes[to..][..element.shared_bytes(count) as usize];
            if element.padded() {
                element.spread(from, to);
            } else {
                to.copy_from_slice(from);
                element.convert(to);
            }
        }
        Ok(bytes)
    }

    /// Writes (or reduces) what of the part lies inside the tensor.
    pub(crate) fn write(
        &self,
        memory: &mut Memory,
        bytes: &[u8],
        reduce: Option<AtomFn>,
    ) -> Result<(), Fault> {
        let element = self.map.element;
        for row in self.rows() {
            let Some((skip, address, count)) = row.inside else { continue };
            let from = row.at + element.shared_bytes(skip) as usize;
            let from = &bytes[from..][..element.shared_bytes(count) as usize];
            match (reduce, element.arithmetic()) {
                (None, _) if element.padded() => memory.write(address, &element.pack(from))?,
                (None, _) => memory.write(address, from)?,
                (Some(op), Some(ty)) => {
                    let mut new = from.to_vec();
                    combine(memory.load(address, from.len(), true)?, &mut new, op, ty)?;
                    element.convert(&mut new);
                    memory.write(address, &new)?;
                }
                (Some(_), None) => return Err(bad(format!("a reduction to elements of {element:?}"))),
            }
        }
        Ok(())
    }
}

/// How many elements of a box a copy moves along dimension `i`.
fn box_count(map: &TensorMap, i: usize) -> u32 {
    map.box_dims[i].div_ceil(map.steps[i])
}

/// The first pixel of a copy in `im2col` mode lies in the bounding box; offsets have few bits.
fn check_pixel(map: &TensorMap, window: Window, c: [i32; 5], offsets: [u16; 3]) -> Result<(), Fault> {
    let most = match map.rank {
        3 => u16::MAX,
        4 => 255,
        _ => 31,
    };
    for i in 0..map.rank - 2 {
        let (first, last) = (i64::from(window.lower[i]), map.last_pixel(window, i));
        if !(first..=last).contains(&i64::from(c[i + 1])) {
            return Err(bad(format!(
                "coordinate {} of dimension {} is outside of the bounding box, {first} to {last}",
                c[i + 1],
                i + 1
            )));
        }
        if offsets[i] > most {
            return Err(bad(format!(
                "an im2col offset of rank {} is at most {most}, not {}",
                map.rank, offsets[i]
            )));
        }
    }
    Ok(())
}

/// The pixels of a copy in `im2col` mode, one after the other: along W, then H, then D, then N.
struct Pixel {
    at: [i32; 5],
    offsets: [u16; 3],
    window: Window,
}

impl Pixel {
    /// The coordinates that the filter's tap reads for this pixel; then goes on to the next one.
    fn step(&mut self, map: &TensorMap) -> [i64; 5] {
        let space = map.rank - 2;
        let tap = std::array::from_fn(|i| {
            let offset = if (1..=space).contains(&i) { self.offsets[i - 1] } else { 0 };
            i64::from(self.at[i]) + i64::from(offset)
        });
        for i in 0..space {
            self.at[i + 1] = self.at[i + 1].saturating_add(map.steps[i + 1] as i32);
            if i64::from(self.at[i + 1]) <= map.last_pixel(self.window, i) {
                return tap;
            }
            self.at[i + 1] = self.window.lower[i];
        }
        self.at[space + 1] = self.at[space + 1].saturating_add(1);
        tap
    }
}

/// Applies a reduction to global memory, element by element.
pub(crate) fn reduce_bytes(
    memory: &mut Memory,
    address: u64,
    bytes: &[u8],
    op: AtomFn,
    ty: Ty,
) -> Result<(), Fault> {
    let mut new = bytes.to_vec();
    combine(memory.load(address, bytes.len(), true)?, &mut new, op, ty)?;
    memory.write(address, &new)
}

/// Reduces `old` and `new`, element by element, into `new`.
pub(crate) fn combine(old: &[u8], new: &mut [u8], op: AtomFn, ty: Ty) -> Result<(), Fault> {
    let size = ty.bytes() as usize;
    for (old, new) in old.chunks_exact(size).zip(new.chunks_exact_mut(size)) {
        let Some(value) = super::atomic::apply(op, ty, word(old), word(new), 0) else {
            return Err(bad("this reduction does not exist for the element type".into()));
        };
        new.copy_from_slice(&value.to_le_bytes()[..size]);
    }
    Ok(())
}

/// Where the pieces of bytes at `offset` of shared memory go: the place of each, where it is in the bytes, and its
/// length. All bytes are one piece where nothing moves and nothing is padding.
pub(crate) fn pieces(
    swizzle: Swizzle,
    padded: bool,
    offset: u32,
    len: u32,
) -> impl Iterator<Item = (u32, u32, u32)> {
    let step = if swizzle == Swizzle::None && !padded { len.max(1) } else { swizzle.piece() };
    (0..len).step_by(step as usize).map(move |at| (swizzle.apply(offset + at), at, step.min(len - at)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::tensormap::{Im2col, TensorMapDetails, TensorMapSpec};

    fn spec(address: u64, element: Element, dims: &[u64], strides: &[u64], boxes: &[u32]) -> TensorMapSpec {
        TensorMapSpec {
            address,
            element,
            dims: dims.to_vec(),
            strides: strides.to_vec(),
            box_dims: boxes.to_vec(),
            swizzle: Swizzle::None,
        }
    }

    fn part(spec: &TensorMapSpec, details: &TensorMapDetails, corner: Corner) -> Result<TensorPart, Fault> {
        TensorPart::new(TensorMap::decode(&spec.encode_with(details).unwrap()).unwrap(), corner)
    }

    fn tile(spec: &TensorMapSpec, corner: [i32; 5]) -> TensorPart {
        part(spec, &TensorMapDetails::default(), Corner::Tile(corner)).unwrap()
    }

    #[test]
    fn a_box_over_the_edge_is_filled_with_zeros() {
        let mut memory = Memory::new();
        let contents: Vec<u8> = (0..5 * 32).map(|i| i as u8).collect();
        let address = memory.allocate_with(&contents);
        let spec = spec(address, Element::U8, &[20, 5], &[32], &[16, 4]);
        let b = tile(&spec, [-16, 3, 0, 0, 0]).read(&mut memory, true).unwrap();
        assert!(b.iter().all(|x| *x == 0));
        let b = tile(&spec, [16, 3, 0, 0, 0]).read(&mut memory, true).unwrap();
        assert_eq!((&b[..6], &b[16..20]), (&[112, 113, 114, 115, 0, 0][..], &[144, 145, 146, 147][..]));
        assert!(b[32..].iter().all(|x| *x == 0));

        tile(&spec, [16, 4, 0, 0, 0]).write(&mut memory, &[7; 64], None).unwrap();
        let after = memory.read(address, 160).unwrap();
        assert_eq!(&after[4 * 32 + 14..4 * 32 + 22], &[142, 143, 7, 7, 7, 7, 148, 149]);
    }

    #[test]
    fn rank_three_walks_both_outer_dimensions() {
        let mut memory = Memory::new();
        let contents: Vec<u8> = (0..4 * 3 * 16).map(|i| i as u8).collect();
        let address = memory.allocate_with(&contents);
        let spec = spec(address, Element::U8, &[16, 3, 4], &[16, 48], &[16, 2, 2]);
        let b = tile(&spec, [0, 1, 2, 0, 0]).read(&mut memory, true).unwrap();
        let firsts: Vec<u8> = b.chunks(16).map(|r| r[0]).collect();
        assert_eq!(firsts, [2 * 48 + 16, 2 * 48 + 32, 3 * 48 + 16, 3 * 48 + 32].map(|x| x as u8));
    }

    #[test]
    fn element_strides_leave_rows_out() {
        let mut memory = Memory::new();
        let contents: Vec<u8> = (0..8 * 16).map(|i| i as u8 / 16).collect();
        let address = memory.allocate_with(&contents);
        let spec = spec(address, Element::U8, &[16, 8], &[16], &[16, 7]);
        let details = TensorMapDetails { element_strides: vec![1, 3], ..TensorMapDetails::default() };
        let part = part(&spec, &details, Corner::Tile([0, 1, 0, 0, 0])).unwrap();
        assert_eq!((part.bytes(), part.counted()), (48, 48));
        let b = part.read(&mut memory, true).unwrap();
        assert_eq!(b.chunks(16).map(|r| r[0]).collect::<Vec<u8>>(), [1, 4, 7]);
    }

    #[test]
    fn four_rows_are_gathered_and_scattered() {
        let mut memory = Memory::new();
        let contents: Vec<u8> = (0..8 * 64).map(|i| (i / 32) as u8).collect();
        let address = memory.allocate_with(&contents);
        let spec = spec(address, Element::U16, &[32, 8], &[64], &[16, 1]);
        let rows = |rows| part(&spec, &TensorMapDetails::default(), Corner::Rows(16, rows)).unwrap();
        let four = rows([5, 0, 9, 7]);
        assert_eq!(four.bytes(), 128);
        let b = four.read(&mut memory, true).unwrap();
        assert_eq!(b.chunks(32).map(|r| r[0]).collect::<Vec<u8>>(), [11, 1, 0, 15]);
        let new: Vec<u8> = (0..128).map(|i| 100 + i / 32).collect();
        rows([1, 2, 8, 0]).write(&mut memory, &new, None).unwrap();
        let after = memory.read(address, 256).unwrap();
        let halves: Vec<u8> = after.chunks(32).map(|r| r[0]).collect();
        assert_eq!(halves, [0, 103, 2, 100, 4, 101, 6, 7]);
        assert_eq!(rows([0, -1, 0, 0]).check_store(None).unwrap_err().kind, FaultKind::BadOperand);
        let tall = TensorMapSpec { box_dims: vec![16, 2], ..spec.clone() };
        let wrong = part(&tall, &TensorMapDetails::default(), Corner::Rows(0, [0; 4]));
        assert_eq!(wrong.unwrap_err().kind, FaultKind::TensorMap);
    }

    #[test]
    fn padded_elements_take_sixteen_bytes_a_group() {
        let mut memory = Memory::new();
        let contents: Vec<u8> = (0..=255).collect();
        let address = memory.allocate_with(&contents);
        let four = spec(address, Element::U4Padded, &[128, 2], &[64], &[128, 2]);
        let loaded = tile(&four, [0, 1, 0, 0, 0]);
        assert_eq!((loaded.bytes(), loaded.counted()), (256, 128));
        let b = loaded.read(&mut memory, true).unwrap();
        assert_eq!((&b[..8], &b[16..24]), (&contents[64..72], &contents[72..80]));
        assert!(b[128..].iter().all(|x| *x == 0));
        assert_eq!(loaded.check_store(None).unwrap_err().kind, FaultKind::BadOperand);
        let six = spec(address, Element::U6Padded, &[128, 2], &[96], &[128, 1]);
        let part = tile(&six, [0, 0, 0, 0, 0]);
        assert_eq!((part.bytes(), part.counted()), (128, 96));
        let b = part.read(&mut memory, true).unwrap();
        assert_eq!((&b[..12], &b[16..28]), (&contents[..12], &contents[12..24]));
        part.write(&mut memory, &[0x3f; 128], None).unwrap();
        assert_eq!(memory.read(address, 97).unwrap()[94..], [0xff, 0xff, 96]);
        let packed = spec(address, Element::U4, &[64, 4], &[32], &[64, 2]);
        let part = tile(&packed, [32, 0, 0, 0, 0]);
        assert_eq!((part.bytes(), part.counted()), (64, 64));
        let b = part.read(&mut memory, true).unwrap();
        assert_eq!((&b[..3], &b[16..18], &b[32..34]), (&[255, 255, 255][..], &[0, 0][..], &[255, 255][..]));
    }

    /// `im2col` against loops over the positions of a filter.
    #[test]
    fn pixels_of_im2col_are_those_that_a_convolution_reads() {
        let (c, w, h, d, n) = (16usize, 5usize, 4usize, 3usize, 2usize);
        let contents: Vec<u8> = (0..c * w * h * d * n).map(|i| (i / c) as u8 ^ (i % c) as u8).collect();
        let mut memory = Memory::new();
        let address = memory.allocate_with(&contents);
        let strides = [c, c * w, c * w * h, c * w * h * d].map(|s| s as u64);
        let spec = spec(address, Element::U8, &[c, w, h, d, n].map(|x| x as u64), &strides, &[]);
        for (lower, upper, steps) in [
            ([0, 0, 0], [0, 0, 0], [1, 1, 1]),
            ([-1, -1, -1], [-1, -1, -1], [1, 1, 1]),
            ([-1, 0, -2], [1, -1, 0], [2, 1, 3]),
        ] {
            // Every position of the filter's corner, in order.
            let along = |i: usize, extent: usize| {
                (lower[i]..=extent as i32 - 1 + upper[i]).step_by(steps[i]).collect::<Vec<i32>>()
            };
            let mut corners = Vec::new();
            for image in 0..n as i32 + 1 {
                for z in along(2, d) {
                    for y in along(1, h) {
                        corners.extend(along(0, w).into_iter().map(|x| [x, y, z, image]));
                    }
                }
            }
            let element_strides = vec![1, steps[0] as u32, steps[1] as u32, steps[2] as u32, 1];
            let im2col = Im2col { lower: lower.to_vec(), upper: upper.to_vec(), channels: 16, pixels: 7 };
            let details =
                TensorMapDetails { element_strides, im2col: Some(im2col), ..TensorMapDetails::default() };
            for start in 0..corners.len() - 7 {
                for offsets in [[0, 0, 0], [1, 2, 0], [3, 0, 1]] {
                    let [x, y, z, image] = corners[start];
                    let corner = Corner::Im2col([0, x, y, z, image], offsets);
                    let got = part(&spec, &details, corner).unwrap().read(&mut memory, true).unwrap();
                    for (i, pixel) in got.chunks(16).enumerate() {
                        let [x, y, z, image] = corners[start + i];
                        let tap = [x + offsets[0] as i32, y + offsets[1] as i32, z + offsets[2] as i32];
                        let extents = [w as i32, h as i32, d as i32];
                        let inside = image < n as i32 && (0..3).all(|i| (0..extents[i]).contains(&tap[i]));
                        let at = ((image * 3 + tap[2]) * 4 + tap[1]) * 5 + tap[0];
                        let want: Vec<u8> =
                            (0..16).map(|ch| if inside { at as u8 ^ ch } else { 0 }).collect();
                        assert_eq!(pixel, want, "{lower:?} {upper:?} {steps:?} from {start}, pixel {i}");
                    }
                }
            }
            let outside = Corner::Im2col([0, lower[0] - 1, 0, 0, 0], [0; 3]);
            assert_eq!(part(&spec, &details, outside).unwrap_err().kind, FaultKind::BadOperand);
            let far = Corner::Im2col([0, lower[0], lower[1], lower[2], 0], [32, 0, 0]);
            assert_eq!(part(&spec, &details, far).unwrap_err().kind, FaultKind::BadOperand);
            let tiled = part(&spec, &details, Corner::Tile([0; 5]));
            assert_eq!(tiled.unwrap_err().kind, FaultKind::TensorMap);
        }
    }
}
