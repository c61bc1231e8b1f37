//! Moving a part of a tensor between global memory and bytes in shared-memory order.
//!
//! A part consists of rows along the innermost dimension: those of a box, four rows of a matrix (`tile::gather4`), or
//! the channels of pixels that follow each other in a bounding box (`im2col`).

#[cfg(test)]
mod tests;

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
