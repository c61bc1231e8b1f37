//! `ldmatrix`, `stmatrix`, `movmatrix` and `mma.sync`.

use super::Next;
use super::loads::{address, check_alignment};
use crate::context::{Access, Cx};
use crate::error::Fault;
use crate::isa::Op;
use crate::tma::word;
use crate::warp::{LANES, Warp};

/// The fragment of an 8x8 matrix of 16-bit elements: lane `4r + c` holds row r, columns 2c and 2c + 1.
fn fragment(matrix: &[[u16; 8]; 8], lane: usize, trans: bool) -> u64 {
    let (r, c) = (lane / 4, lane % 4 * 2);
    let at = |r: usize, c: usize| u64::from(if trans { matrix[c][r] } else { matrix[r][c] });
    at(r, c) | at(r, c + 1) << 16
}

fn matrix_of(words: &[u64; LANES], trans: bool) -> [[u16; 8]; 8] {
    let mut m = [[0u16; 8]; 8];
    for (lane, w) in words.iter().enumerate() {
        let (r, c) = (lane / 4, lane % 4 * 2);
        for i in 0..2 {
            let v = (w >> (16 * i)) as u16;
            if trans { m[c + i][r] = v } else { m[r][c + i] = v }
        }
    }
    m
}

pub(super) fn matrix(warp: &mut Warp, cx: &mut Cx<'_>, op: &Op, pc: u32) -> Result<Next, Fault> {
    match op {
        Op::LdMatrix { addr, space, dst, trans } => {
            let mut access = Access::new(warp.index, pc, None);
            for (i, &r) in dst.iter().enumerate() {
                let mut m = [[0u16; 8]; 8];
                for (row, values) in m.iter_mut().enumerate() {
                    let lane = i * 8 + row;
                    let a = address(warp, addr, *space, lane);
                    check_alignment(a, 16)?;
                    let location = cx.resolve(warp, *space, a)?;
                    let mut bytes = [0; 16];
                    cx.read(warp, lane, &mut access, location, &mut bytes)?;
                    for (v, b) in values.iter_mut().zip(bytes.chunks_exact(2)) {
                        *v = word(b) as u16;
                    }
                }
                for lane in 0..LANES {
                    warp.set(r, lane, fragment(&m, lane, *trans));
                }
            }
        }
        Op::StMatrix { addr, space, src, trans } => {
            let mut access = Access::new(warp.index, pc, None);
            for (i, s) in src.iter().enumerate() {
                let words = std::array::from_fn(|l| warp.value(*s, l));
                let m = matrix_of(&words, *trans);
                for (row, values) in m.iter().enumerate() {
                    let lane = i * 8 + row;
                    let a = address(warp, addr, *space, lane);
                    check_alignment(a, 16)?;
                    let location = cx.resolve(warp, *space, a)?;
                    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                    cx.write(warp, lane, &mut access, location, &bytes)?;
                }
            }
        }
        Op::MovMatrix { dst, src } => {
            let words = std::array::from_fn(|l| warp.value(*src, l));
            let m = matrix_of(&words, false);
            for lane in 0..LANES {
                warp.set(*dst, lane, fragment(&m, lane, true));
            }
        }
        Op::Mma(m) => cx.report.macs += crate::mma::mma(warp, m, &mut cx.cluster.scratch),
        _ => {}
    }
    Ok(Next::Step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storing_undoes_loading() {
        let m: [[u16; 8]; 8] = std::array::from_fn(|r| std::array::from_fn(|c| (r * 8 + c) as u16));
        for trans in [false, true] {
            let words = std::array::from_fn(|l| fragment(&m, l, trans));
            assert_eq!(matrix_of(&words, trans), m);
        }
        assert_eq!(fragment(&m, 5, false), 10 | 11 << 16);
        assert_eq!(fragment(&m, 5, true), (2 * 8 + 1) | (3 * 8 + 1) << 16);
    }
}
