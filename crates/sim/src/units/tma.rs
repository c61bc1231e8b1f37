//! Moving the box of a tensor map between global memory and bytes in shared-memory order.

use super::atomic::AtomFn;
use super::tensormap::{Element, Swizzle, TensorMap};
use crate::error::{Fault, FaultKind};
use crate::memory::{Memory, word};
use crate::text::types::Ty;

/// One row (innermost dimension) of a box: the bytes of it that lie inside the tensor.
struct Row {
    /// Place of the row in the dense box.
    at: usize,
    /// First byte inside the tensor and its global address, and how many bytes follow; none when the row
    /// is outside.
    inside: Option<(usize, u64, usize)>,
}

fn rows(map: &TensorMap, coords: [i32; 5]) -> impl Iterator<Item = Row> + '_ {
    let size = map.element.bytes();
    let inner = i64::from(map.box_dims[0]);
    let count: u32 = (1..map.rank).map(|i| map.box_dims[i]).product();
    (0..count).map(move |r| {
        let at = r as usize * (inner as u64 * size) as usize;
        let mut rest = r;
        let mut address = map.address;
        for (i, first) in coords.iter().enumerate().take(map.rank).skip(1) {
            let c = i64::from(*first) + i64::from(rest % map.box_dims[i]);
            rest /= map.box_dims[i];
            if c < 0 || c as u64 >= map.dims[i] {
                return Row { at, inside: None };
            }
            address = address.wrapping_add((c as u64).wrapping_mul(map.strides[i]));
        }
        let first = i64::from(coords[0]);
        let low = first.max(0);
        let high = (first + inner).min(map.dims[0].min(i64::MAX as u64) as i64);
        if low >= high {
            return Row { at, inside: None };
        }
        let skip = (low - first) as u64 * size;
        let first = address.wrapping_add(low as u64 * size);
        let inside = (at + skip as usize, first, ((high - low) as u64 * size) as usize);
        Row { at, inside: Some(inside) }
    })
}

/// Addresses and lengths of the parts of a box that lie inside the tensor.
pub(crate) fn ranges(map: &TensorMap, coords: [i32; 5]) -> impl Iterator<Item = (u64, u64)> + '_ {
    rows(map, coords).filter_map(|row| row.inside.map(|(_, address, len)| (address, len as u64)))
}

/// The box at `coords`, dense, with the map's fill outside of the tensor.
pub(crate) fn read_box(
    memory: &mut Memory,
    map: &TensorMap,
    coords: [i32; 5],
    check: bool,
) -> Result<Vec<u8>, Fault> {
    let pattern = map.fill.pattern(map.element);
    let mut bytes: Vec<u8> = pattern.iter().copied().cycle().take(map.box_bytes() as usize).collect();
    for row in rows(map, coords) {
        if let Some((at, address, len)) = row.inside {
            bytes[at..at + len].copy_from_slice(memory.load(address, len, check)?);
        }
    }
    Ok(bytes)
}

/// Writes (or reduces) the part of a dense box that lies inside the tensor.
pub(crate) fn write_box(
    memory: &mut Memory,
    map: &TensorMap,
    coords: [i32; 5],
    bytes: &[u8],
    reduce: Option<AtomFn>,
) -> Result<(), Fault> {
    for row in rows(map, coords) {
        debug_assert!(row.at < bytes.len());
        let Some((at, address, len)) = row.inside else { continue };
        match reduce {
            None => memory.write(address, &bytes[at..at + len])?,
            Some(op) => reduce_bytes(memory, address, &bytes[at..at + len], op, element_type(map.element))?,
        }
    }
    Ok(())
}

fn element_type(e: Element) -> Ty {
    match e {
        Element::U8 => Ty::U8,
        Element::U16 => Ty::U16,
        Element::U32 => Ty::U32,
        Element::S32 => Ty::S32,
        Element::U64 => Ty::U64,
        Element::S64 => Ty::S64,
        Element::F16 => Ty::F16,
        Element::F32 => Ty::F32,
        Element::F64 => Ty::F64,
        Element::Bf16 => Ty::Bf16,
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
            return Err(Fault::new(
                FaultKind::BadOperand,
                "this reduction does not exist for the element type",
            ));
        };
        new.copy_from_slice(&value.to_le_bytes()[..size]);
    }
    Ok(())
}

/// Copies a dense box to where `swizzle` puts it: calls `put(offset, piece)` for every 16-byte piece, or
/// once for all bytes when nothing moves.
pub(crate) fn pieces(swizzle: Swizzle, offset: u32, len: u32) -> impl Iterator<Item = (u32, u32, u32)> {
    let step = if swizzle == Swizzle::None { len.max(1) } else { 16 };
    (0..len).step_by(step as usize).map(move |at| (swizzle.apply(offset + at), at, step.min(len - at)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::tensormap::TensorMapSpec;

    #[test]
    fn a_box_over_the_edge_is_filled_with_zeros() {
        let mut memory = Memory::new();
        let contents: Vec<u8> = (0..5 * 32).map(|i| i as u8).collect();
        let address = memory.allocate_with(&contents);
        let spec = TensorMapSpec {
            address,
            element: Element::U8,
            dims: vec![20, 5],
            strides: vec![32],
            box_dims: vec![16, 4],
            swizzle: Swizzle::None,
        };
        let map = TensorMap::decode(&spec.encode().unwrap()).unwrap();
        let b = read_box(&mut memory, &map, [-2, 3, 0, 0, 0], true).unwrap();
        assert_eq!(&b[..4], &[0, 0, 96, 97]);
        assert_eq!(&b[16..20], &[0, 0, 128, 129]);
        assert!(b[32..].iter().all(|x| *x == 0));
        let b = read_box(&mut memory, &map, [16, 0, 0, 0, 0], true).unwrap();
        assert_eq!(&b[..6], &[16, 17, 18, 19, 0, 0]);

        write_box(&mut memory, &map, [16, 4, 0, 0, 0], &[7; 64], None).unwrap();
        let after = memory.read(address, 160).unwrap();
        assert_eq!(&after[4 * 32 + 14..4 * 32 + 22], &[142, 143, 7, 7, 7, 7, 148, 149]);
    }

    #[test]
    fn rank_three_walks_both_outer_dimensions() {
        let mut memory = Memory::new();
        let contents: Vec<u8> = (0..4 * 3 * 16).map(|i| i as u8).collect();
        let address = memory.allocate_with(&contents);
        let spec = TensorMapSpec {
            address,
            element: Element::U8,
            dims: vec![16, 3, 4],
            strides: vec![16, 48],
            box_dims: vec![16, 2, 2],
            swizzle: Swizzle::None,
        };
        let map = TensorMap::decode(&spec.encode().unwrap()).unwrap();
        let b = read_box(&mut memory, &map, [0, 1, 2, 0, 0], true).unwrap();
        let firsts: Vec<u8> = b.chunks(16).map(|r| r[0]).collect();
        assert_eq!(firsts, [2 * 48 + 16, 2 * 48 + 32, 3 * 48 + 16, 3 * 48 + 32].map(|x| x as u8));
    }
}
