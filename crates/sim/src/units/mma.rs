//! Register fragments of matrix instructions, and `mma.sync`.
//!
//! All fragments follow one pattern. With `e` elements per register, lane `4g + t` holds rows `g` and
//! `g + 8` of A at depths `e*t ..` (and `4e` further for the next pair of registers), column `g` of B at the
//! same depths, and of C rows `g` and `g + 8` at columns `2t` and `2t + 1`. Shapes of eight rows lack the
//! second row.
//!
//! FP6 and FP4 of the kinds `f8f6f4` and `mxf8f6f4` take a byte each: FP6 its low six bits, FP4 bits 2 to 5. Block
//! scales come from the lanes that a selector names (see [`BlockScales`]).

use super::integer_core::{IntInput, IntProduct, Term};
use super::tensor_core::Input;
use super::tensor_core::fused::{ScaleType, Scales};
use super::warp_product::{Generation, WarpProduct};
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
    /// Width of an element in registers.
    pub(crate) bits: u32,
    pub(crate) accumulator: Accumulator,
    pub(crate) generation: Generation,
}

/// The block scales of an `mma.sync`: how many each row of A and column of B has, one byte each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScaleShape {
    pub(crate) ty: ScaleType,
    /// 1, 2 or 4.
    pub(crate) count: u32,
}

impl ScaleShape {
    /// Whether scales may begin with this byte of a register.
    pub(crate) fn has_byte(self, byte: u64) -> bool {
        byte < 4 && byte.is_multiple_of(self.count.into())
    }
}

/// Registers with block scales, and which of their bytes and lanes count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockScales<'a> {
    pub(crate) shape: ScaleShape,
    /// The scales of A and of B, with the first byte and the lane of every four.
    pub(crate) a: (&'a Row, [u32; 2]),
    pub(crate) b: (&'a Row, [u32; 2]),
}

impl BlockScales<'_> {
    /// Codes of the scales of A's rows and of B's columns. Two lanes of every four have those of A, for rows `g` and
    /// `g + 8`, and one has those of B.
    fn codes(&self) -> [Vec<u8>; 2] {
        let bytes = |(row, [first, _]): (&Row, [u32; 2]), lane: usize| -> Vec<u8> {
            (0..self.shape.count).map(|j| (row[lane] >> (8 * (first + j))) as u8).collect()
        };
        let a = (0..16).flat_map(|r| bytes(self.a, 4 * (r % 8) + 2 * self.a.1[1] as usize + r / 8));
        let b = (0..8).flat_map(|c| bytes(self.b, 4 * c + self.b.1[1] as usize));
        [a.collect(), b.collect()]
    }
}

/// The code of an element in a register of the kinds with elements of different width.
fn narrow(ty: Input, code: u32) -> u32 {
    match ty {
        Input::E2m1 => code >> 2 & 0xf,
        Input::E2m3 | Input::E3m2 => code & 0x3f,
        _ => code,
    }
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
pub(crate) fn mma(
    shape: MmaShape,
    m: Fragments<'_>,
    scales: Option<BlockScales<'_>>,
    buffers: &mut Buffers,
) -> Vec<Row> {
    let MmaShape { rows, k, elements, bits, accumulator, generation } = shape;
    let (rows, k) = (rows as usize, k as usize);
    if elements == Elements::Double {
        return double(m, rows, k);
    }
    let Buffers { a, b, d, scratch } = buffers;
    a_codes(m.a, bits, rows, k, a);
    let per = (32 / bits) as usize;
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
                a.iter_mut().for_each(|c| *c = narrow(a_type, *c));
                b.iter_mut().for_each(|c| *c = narrow(b_type, *c));
            }
            let half = accumulator == Accumulator::F16;
            let codes = scales.map(|s| s.codes());
            let scales = scales.zip(codes.as_ref()).map(|(s, [a, b])| {
                let ScaleShape { ty, count } = s.shape;
                Scales { ty, block: k / count as usize, a, b }
            });
            WarpProduct { generation, a, b, k, a_type, b_type, half, scales }.accumulate(d, scratch);
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
