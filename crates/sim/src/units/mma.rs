//! Register fragments of matrix instructions, and `mma.sync`.
//!
//! All fragments follow one pattern. With `e` elements per register, lane `4g + t` holds rows `g` and
//! `g + 8` of A at depths `e*t ..` (and `4e` further for the next pair of registers), column `g` of B at the
//! same depths, and of C rows `g` and `g + 8` at columns `2t` and `2t + 1`. Shapes of eight rows lack the
//! second row.
//!
//! FP8 inputs are what Hopper makes of them: it widens both operands to f16, multiplies the elements at
//! depths 0 and 1 of every four, then those at depths 2 and 3 on top, and adds C in f32.

use super::integer_core::{IntInput, IntProduct, Term};
use super::tensor_core::{Input, Product, Scratch, Widths};
use super::wgmma::Buffers;
use crate::arith::minifloat::{F16, Round};
use crate::lanes::{LANES, Row};

/// Element types of A and B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elements {
    Float(Input, Input),
    Integer(IntInput, IntInput, Term),
    /// f64, one per 64-bit register.
    Double,
}

impl Elements {
    /// Width of an element of A, which is that of B.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Elements::Float(a, _) => a.bits(),
            Elements::Integer(a, ..) => a.bits(),
            Elements::Double => 64,
        }
    }

    /// Elements in one register of a fragment.
    pub(crate) fn per_register(self) -> u32 {
        (32 / self.bits()).max(1)
    }
}

/// Type of the accumulators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accumulator {
    F32,
    /// Two to a register.
    F16,
    S32 {
        saturate: bool,
    },
    F64,
}

/// The shape and types of an `mma.sync`; N is always 8.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MmaShape {
    /// 8 or 16.
    pub(crate) rows: u32,
    pub(crate) k: u32,
    pub(crate) elements: Elements,
    pub(crate) accumulator: Accumulator,
}

impl MmaShape {
    /// Multiply-adds of one product.
    pub(crate) fn macs(self) -> u64 {
        u64::from(self.rows * 8 * self.k)
    }
}

fn scatter(word: u64, bits: u32, row: &mut [u32]) {
    let mask = if bits == 32 { u64::from(u32::MAX) } else { (1 << bits) - 1 };
    for (i, x) in row.iter_mut().enumerate() {
        *x = (word >> (i as u32 * bits) & mask) as u32;
    }
}

/// Row and depth of the first element of register `i` of a lane's A.
fn a_place(i: usize, lane: usize, rows: usize, per: usize) -> (usize, usize) {
    let halves = rows / 8;
    (lane / 4 + 8 * (i % halves), per * (lane % 4) + i / halves * 4 * per)
}

/// A in registers as row-major codes.
pub(crate) fn a_codes(words: &[Row], bits: u32, rows: usize, k: usize, out: &mut Vec<u32>) {
    let per = 32 / bits as usize;
    out.clear();
    out.resize(rows * k, 0);
    for (i, word) in words.iter().enumerate() {
        for (lane, w) in word.iter().enumerate() {
            let (row, at) = a_place(i, lane, rows, per);
            scatter(*w, bits, &mut out[row * k + at..][..per]);
        }
    }
}

/// Element `i` of a lane's C: its place in a row-major `rows x 8` matrix.
fn c_place(i: usize, lane: usize) -> usize {
    (lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2
}

/// Rounds to f16 as the tensor core does with the accumulators it keeps in f32.
pub(crate) fn to_f16(x: f32) -> u64 {
    F16.encode(f64::from(x), Round::Nearest, false)
}

fn from_f16(code: u64) -> f32 {
    F16.decode(code & 0xffff) as f32
}

/// Reads a fragment of float accumulators; `place` gives the place of element `i` of a lane.
pub(crate) fn load_floats(
    from: impl Iterator<Item = Row>,
    accumulator: Accumulator,
    place: impl Fn(usize, usize) -> usize,
    d: &mut [f32],
) {
    for (r, row) in from.enumerate() {
        for (lane, word) in row.iter().enumerate() {
            if accumulator == Accumulator::F16 {
                d[place(2 * r, lane)] = from_f16(*word);
                d[place(2 * r + 1, lane)] = from_f16(word >> 16);
            } else {
                d[place(r, lane)] = f32::from_bits(*word as u32);
            }
        }
    }
}

/// The registers of a fragment of float accumulators, one after the other.
pub(crate) fn store_floats(
    accumulator: Accumulator,
    place: impl Fn(usize, usize) -> usize,
    d: &[f32],
) -> impl Iterator<Item = Row> {
    let word = move |r: usize, lane: usize| {
        if accumulator == Accumulator::F16 {
            to_f16(d[place(2 * r, lane)]) | to_f16(d[place(2 * r + 1, lane)]) << 16
        } else {
            u64::from(d[place(r, lane)].to_bits())
        }
    };
    rows_of(word)
}

/// Fragments of A, B and C in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragments<'a> {
    pub(crate) a: &'a [Row],
    pub(crate) b: &'a [Row],
    pub(crate) c: &'a [Row],
}

/// D of an `mma.sync`, in as many registers as C has.
pub(crate) fn mma(shape: MmaShape, m: Fragments<'_>, buffers: &mut Buffers) -> Vec<Row> {
    let MmaShape { rows, k, elements, accumulator } = shape;
    let (rows, k) = (rows as usize, k as usize);
    let bits = elements.bits();
    if elements == Elements::Double {
        return double(m, rows, k);
    }
    let Buffers { a, b, d, scratch } = buffers;
    a_codes(m.a, bits, rows, k, a);
    let per = elements.per_register() as usize;
    b.clear();
    b.resize(8 * k, 0);
    for (i, row) in m.b.iter().enumerate() {
        for (lane, word) in row.iter().enumerate() {
            let at = per * (lane % 4) + i * 4 * per;
            scatter(*word, bits, &mut b[lane / 4 * k + at..][..per]);
        }
    }
    match elements {
        Elements::Integer(a_type, b_type, term) => {
            let saturate = accumulator == Accumulator::S32 { saturate: true };
            let mut sums = vec![0i32; rows * 8];
            for (i, row) in m.c.iter().enumerate() {
                row.iter().enumerate().for_each(|(lane, word)| sums[c_place(i, lane)] = *word as i32);
            }
            IntProduct { a, b, k, a_type, b_type, term, saturate }.accumulate(&mut sums);
            rows_of(|i, lane| u64::from(sums[c_place(i, lane)] as u32)).take(m.c.len()).collect()
        }
        Elements::Float(a_type, b_type) => {
            d.clear();
            d.resize(rows * 8, 0.0);
            load_floats(m.c.iter().copied(), accumulator, c_place, d);
            if bits == 8 {
                fp8(a, b, k, (a_type, b_type), d, scratch);
            } else {
                let widths = Widths::hopper(a_type);
                Product { a, b, k, a_type, b_type, negate_a: false, negate_b: false, widths }
                    .accumulate(d, scratch);
            }
            store_floats(accumulator, c_place, d).take(m.c.len()).collect()
        }
        Elements::Double => Vec::new(),
    }
}

/// Rows without end, from the word of a register and a lane.
fn rows_of(word: impl Fn(usize, usize) -> u64) -> impl Iterator<Item = Row> {
    (0..).map(move |i| {
        let mut row = [0; LANES];
        for (lane, w) in row.iter_mut().enumerate() {
            *w = word(i, lane);
        }
        row
    })
}

/// FP8 through f16 (see the head of this file).
fn fp8(a: &[u32], b: &[u32], k: usize, types: (Input, Input), d: &mut [f32], scratch: &mut Scratch) {
    let mut sums = vec![0f32; d.len()];
    for pair in 0..2 {
        let half = |codes: &[u32], ty: Input| -> Vec<u32> {
            let chosen = codes.chunks(4).flat_map(|four| &four[2 * pair..2 * pair + 2]);
            chosen.map(|c| F16.encode(ty.value(*c), Round::Nearest, false) as u32).collect()
        };
        let product = Product {
            a: &half(a, types.0),
            b: &half(b, types.1),
            k: k / 2,
            a_type: Input::F16,
            b_type: Input::F16,
            negate_a: false,
            negate_b: false,
            widths: Widths::hopper(Input::F16),
        };
        product.accumulate(&mut sums, scratch);
    }
    for (out, s) in d.iter_mut().zip(sums) {
        let sum = *out + s;
        *out = if sum.is_nan() { f32::from_bits(0x7fff_ffff) } else { sum };
    }
}

/// f64: a chain of fused multiply-adds along K.
fn double(m: Fragments<'_>, rows: usize, k: usize) -> Vec<Row> {
    let (mut a, mut b, mut d) = (vec![0f64; rows * k], vec![0f64; 8 * k], vec![0f64; rows * 8]);
    for lane in 0..LANES {
        for (i, row) in m.a.iter().enumerate() {
            let (r, at) = a_place(i, lane, rows, 1);
            a[r * k + at] = f64::from_bits(row[lane]);
        }
        let column = |i: usize| lane / 4 * k + lane % 4 + 4 * i;
        m.b.iter().enumerate().for_each(|(i, row)| b[column(i)] = f64::from_bits(row[lane]));
        m.c.iter().enumerate().for_each(|(i, row)| d[c_place(i, lane)] = f64::from_bits(row[lane]));
    }
    for (i, out) in d.iter_mut().enumerate() {
        *out = (0..k).fold(*out, |s, x| a[i / 8 * k + x].mul_add(b[i % 8 * k + x], s));
    }
    rows_of(|i, lane| d[c_place(i, lane)].to_bits()).take(m.c.len()).collect()
}
