//! Register fragments of matrix instructions, and `mma.sync`.
//!
//! All fragments follow one pattern. With `e` elements per 32-bit register, lane `4g + t` holds rows `g`
//! and `g + 8` of A at depths `e*t ..` (and `4e` further for the next pair of registers), column `g` of B
//! at the same depths, and of C rows `g` and `g + 8` at columns `2t` and `2t + 1`.

use crate::isa::{Mma, Reg};
use crate::tensor_core::{Input, Product, Widths};
use crate::warp::{LANES, Warp};
use crate::wgmma::Buffers;

/// The shape and input types of an `mma.sync`; M and N are always 16 and 8.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MmaShape {
    pub(crate) k: u32,
    pub(crate) a_type: Input,
    pub(crate) b_type: Input,
}

fn scatter(word: u64, bits: u32, row: &mut [u32]) {
    let mask = if bits == 32 { u64::from(u32::MAX) } else { (1 << bits) - 1 };
    for (i, x) in row.iter_mut().enumerate() {
        *x = (word >> (i as u32 * bits) & mask) as u32;
    }
}

/// A in registers as row-major codes.
pub(crate) fn gather_a(warp: &Warp, regs: &[Reg], ty: Input, k: usize, out: &mut Vec<u32>) {
    let words: Vec<[u64; LANES]> = regs.iter().map(|r| std::array::from_fn(|l| warp.get(*r, l))).collect();
    a_codes(&words, ty, k, out);
}

fn a_codes(words: &[[u64; LANES]], ty: Input, k: usize, out: &mut Vec<u32>) {
    let per = 32 / ty.bits() as usize;
    out.clear();
    out.resize(16 * k, 0);
    for (i, word) in words.iter().enumerate() {
        for (lane, w) in word.iter().enumerate() {
            let row = lane / 4 + 8 * (i % 2);
            let at = per * (lane % 4) + i / 2 * 4 * per;
            scatter(*w, ty.bits(), &mut out[row * k + at..][..per]);
        }
    }
}

/// Runs `mma.sync` for a warp.
pub(crate) fn mma(warp: &mut Warp, m: &Mma, buffers: &mut Buffers) -> u64 {
    let MmaShape { k, a_type, b_type } = m.shape;
    let k = k as usize;
    let Buffers { a, b, d, scratch } = buffers;
    let words: Vec<[u64; LANES]> = m.a.iter().map(|s| std::array::from_fn(|l| warp.value(*s, l))).collect();
    a_codes(&words, a_type, k, a);
    let per = 32 / b_type.bits() as usize;
    b.clear();
    b.resize(8 * k, 0);
    for (i, s) in m.b.iter().enumerate() {
        for lane in 0..LANES {
            let at = per * (lane % 4) + i * 4 * per;
            scatter(warp.value(*s, lane), b_type.bits(), &mut b[lane / 4 * k + at..][..per]);
        }
    }
    let place = |i: usize, lane: usize| (lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2;
    d.clear();
    d.resize(16 * 8, 0.0);
    for (i, s) in m.c.iter().enumerate() {
        for lane in 0..LANES {
            d[place(i, lane)] = f32::from_bits(warp.value(*s, lane) as u32);
        }
    }
    let widths = Widths::hopper(a_type);
    Product { a, b, k, a_type, b_type, negate_a: false, negate_b: false, widths }.accumulate(d, scratch);
    for (i, &r) in m.d.iter().enumerate() {
        for lane in 0..LANES {
            warp.set(r, lane, u64::from(d[place(i, lane)].to_bits()));
        }
    }
    16 * 8 * k as u64
}
