//! Parts of tensors against plain loops.

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
                    let want: Vec<u8> = (0..16).map(|ch| if inside { at as u8 ^ ch } else { 0 }).collect();
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
