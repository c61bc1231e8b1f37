//! `tcgen05.mma`: what an MMA takes with it when it is issued.

use super::descriptor::{MatrixDescriptor, Packing};
use super::instruction::{Accumulators, Element, Form, Instruction, Kind};
use super::layout::Layout;
use crate::arith::minifloat::{F16, Round};
use crate::units::integer_core::{IntProduct, Term};
use crate::units::tensor_core::fused::{Fused, FusedScratch, Output, Scales};
use crate::units::tensor_memory::TensorAddress;

/// Where A comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceA {
    Shared(MatrixDescriptor),
    Tensor(TensorAddress),
}

/// An MMA that was issued.
#[derive(Clone, Debug)]
pub(crate) struct MmaWork {
    pub(crate) form: Form,
    pub(crate) instruction: Instruction,
    pub(crate) layout: Layout,
    pub(crate) d: TensorAddress,
    pub(crate) a: SourceA,
    pub(crate) b: MatrixDescriptor,
    /// Scales of A and B.
    pub(crate) scales: Option<(TensorAddress, TensorAddress)>,
    /// D is added to the product, divided by this power of two.
    pub(crate) accumulate: Option<u32>,
    /// Lanes of D that stay as they are, for the even and the odd CTA.
    pub(crate) disabled: [u128; 2],
    /// Columns of B that count as zero, and how many columns further B begins.
    pub(crate) zero_columns: ZeroColumns,
    /// Rows of A are taken from one row above (`.ashift`).
    pub(crate) shift_a: bool,
}

/// Operands on their way to the tensor core, reused between MMAs.
#[derive(Clone, Debug, Default)]
pub(crate) struct MmaBuffers {
    /// Codes of A and B, row-major.
    pub(crate) a: Vec<u32>,
    pub(crate) b: Vec<u32>,
    /// Scales of A and B.
    pub(crate) scale_a: Vec<u8>,
    pub(crate) scale_b: Vec<u8>,
    /// Words of D, row-major.
    pub(crate) d: Vec<u32>,
    floats: Vec<f32>,
    scratch: FusedScratch,
}

impl MmaWork {
    /// Words of a row of A in tensor memory: 32 bytes.
    pub(crate) const A_COLUMNS: u32 = 8;

    /// The elements of one row of A in tensor memory, as codes. FP6 and FP4 in bytes lie in bits 0 to 5 and 2 to 5.
    pub(crate) fn unpack_a(&self, words: [u32; 8], out: &mut Vec<u32>) {
        let bits = match self.instruction.packing(self.instruction.a) {
            Packing::Whole(bits) => bits,
            Packing::Packed4 => 4,
            Packing::Padded(_) => 8,
        };
        let (shift, mask) = match self.instruction.packing(self.instruction.a) {
            Packing::Padded(4) => (2, 0xf),
            Packing::Padded(_) => (0, 0x3f),
            _ => (0, u32::MAX >> (32 - bits)),
        };
        for word in words {
            out.extend((0..32 / bits).map(|i| (word >> (i * bits + shift)) & mask));
        }
    }

    /// The product of the operands in `buffers`, added to the words of D there if the MMA accumulates; `columns` are
    /// those of B that take part.
    pub(crate) fn multiply(&self, buffers: &mut MmaBuffers, columns: std::ops::Range<u32>) {
        let i = &self.instruction;
        let MmaBuffers { a, b, scale_a, scale_b, d, floats, scratch } = buffers;
        let k = i.k as usize;
        let b = &b[columns.start as usize * k..columns.end as usize * k];
        let (a_type, b_type) = match (i.a, i.b) {
            (Element::Float(a), Element::Float(b)) => (a, b),
            (Element::Integer(a_type), Element::Integer(b_type)) => {
                let saturate = i.d == Accumulators::S32 { saturate: true };
                let mut sums: Vec<i32> = d.iter().map(|x| *x as i32).collect();
                IntProduct { a, b, k, a_type, b_type, term: Term::Product, saturate }.accumulate(&mut sums);
                d.iter_mut().zip(sums).for_each(|(d, s)| *d = s as u32);
                return;
            }
            _ => return,
        };
        let half = i.d == Accumulators::F16;
        floats.clear();
        let value =
            |x: &u32| if half { F16.decode(u64::from(x & 0xffff)) as f32 } else { f32::from_bits(*x) };
        floats.extend(d.iter().map(value));
        let scales = i.scales.map(|s| Scales { ty: s.ty, block: s.block as usize, a: scale_a, b: scale_b });
        let product = Fused {
            a,
            b,
            k,
            a_type,
            b_type,
            negate_a: i.negate_a,
            negate_b: i.negate_b,
            output: if half { Output::F16 } else { Output::F32 },
            input_shift: self.accumulate.unwrap_or(0),
            scales,
        };
        product.accumulate(floats, scratch);
        let word = |x: &f32| {
            if half { F16.encode(f64::from(*x), Round::Nearest, false) as u32 } else { x.to_bits() }
        };
        d.iter_mut().zip(floats.iter()).for_each(|(d, x)| *d = word(x));
    }
}

/// The columns of B that a zero-column mask turns into zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ZeroColumns {
    /// Bit `n`: column `n` is zero.
    mask: [u128; 2],
    /// B begins this many columns further.
    pub(crate) shift: u32,
}

impl ZeroColumns {
    /// Takes a zero-column mask descriptor apart, for an MMA of M rows and N columns.
    ///
    /// | bits | field |
    /// |---|---|
    /// | 0-31 | columns that each of four sub-masks skips, 8 bits each |
    /// | 32-35 | what each sub-mask begins with: used (0) or zero (1) columns |
    /// | 39 | there is a mask |
    /// | 40-47 | zero columns in a row, less one |
    /// | 48-55 | used columns in a row, less one |
    /// | 56-61 | column shift |
    pub(crate) fn decode(d: u64, m: u32, n: u32) -> Result<ZeroColumns, String> {
        let shift = (d >> 56 & 0x3f) as u32;
        let most = if m == 32 { 16 } else { 32 };
        if shift > most {
            return Err(format!("zero-column mask {d:#x} shifts by {shift} columns; M = {m} allows {most}"));
        }
        let mut mask = [0u128; 2];
        if d >> 39 & 1 == 1 {
            let (zeros, used) = ((d >> 40 & 0xff) as u32 + 1, (d >> 48 & 0xff) as u32 + 1);
            let masks = 128 / m;
            for column in 0..n {
                let sub = column / (n / masks);
                let (skip, first) = (d >> (8 * sub) & 0xff, d >> (32 + sub) & 1 == 1);
                let at = (column % (n / masks) + skip as u32) % (zeros + used);
                let zero = if first { at < zeros } else { at >= used };
                mask[column as usize / 128] |= u128::from(zero) << (column % 128);
            }
        }
        Ok(ZeroColumns { mask, shift })
    }

    pub(crate) fn is_zero(&self, column: u32) -> bool {
        self.mask[column as usize / 128] >> (column % 128) & 1 == 1
    }
}

/// What an MMA does with a collector buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CollectorOp {
    Fill,
    Use,
    LastUse,
    Discard,
}

/// The use of a collector buffer: 0 is that of A, 1 to 4 are those of B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collector {
    pub(crate) buffer: usize,
    pub(crate) op: CollectorOp,
}

/// A matrix that a collector buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) source: SourceA,
    pub(crate) kind: Kind,
    pub(crate) rows: u32,
    pub(crate) mn_major: bool,
}

/// The collector buffers of a CTA. Reuse is a permission: a matrix is read again, but one that the buffer does not
/// hold would be another on the GPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Collectors([Option<Held>; 5]);

impl Collectors {
    /// Uses a buffer for a matrix; an error says why it cannot be used.
    pub(crate) fn apply(&mut self, collector: Collector, matrix: Held) -> Result<(), &'static str> {
        let held = &mut self.0[collector.buffer];
        if matches!(collector.op, CollectorOp::Use | CollectorOp::LastUse) {
            match held {
                None => return Err("nothing was filled into it"),
                Some(held) if *held != matrix => return Err("another matrix was filled into it"),
                Some(_) => {}
            }
        }
        *held = match collector.op {
            CollectorOp::Fill | CollectorOp::Use => Some(matrix),
            CollectorOp::LastUse | CollectorOp::Discard => None,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_buffer_holds_what_was_filled() {
        let matrix = |column| Held {
            source: SourceA::Tensor(TensorAddress { lane: 0, column }),
            kind: Kind::F16,
            rows: 128,
            mn_major: false,
        };
        let with = |op| Collector { buffer: 0, op };
        let mut c = Collectors::default();
        assert!(c.apply(with(CollectorOp::Use), matrix(0)).is_err());
        c.apply(with(CollectorOp::Fill), matrix(0)).unwrap();
        c.apply(with(CollectorOp::Use), matrix(0)).unwrap();
        assert!(c.apply(with(CollectorOp::Use), matrix(8)).is_err());
        assert!(c.apply(Collector { buffer: 1, op: CollectorOp::Use }, matrix(0)).is_err());
        c.apply(with(CollectorOp::LastUse), matrix(0)).unwrap();
        assert!(c.apply(with(CollectorOp::Use), matrix(0)).is_err());
        c.apply(with(CollectorOp::Fill), matrix(0)).unwrap();
        c.apply(with(CollectorOp::Discard), matrix(8)).unwrap();
        assert!(c.apply(with(CollectorOp::LastUse), matrix(0)).is_err());
    }

    /// The examples of the manual: skip span 2 and use span 3 give 111 and 0000.
    #[test]
    fn zero_column_masks() {
        let descriptor = |start: [u64; 4], first: [u64; 4], present: u64, shift: u64| {
            let four = |x: [u64; 4], bits: u32| (0..4).fold(0, |d, i| d | x[i] << (bits * i as u32));
            four(start, 8) | four(first, 1) << 32 | present << 39 | 2 << 40 | 3 << 48 | shift << 56
        };
        let text = |z: &ZeroColumns, first: u32, count: u32| -> String {
            (first..first + count).rev().map(|c| if z.is_zero(c) { '1' } else { '0' }).collect()
        };
        let z = ZeroColumns::decode(descriptor([0; 4], [0; 4], 0, 0), 128, 64).unwrap();
        assert_eq!(text(&z, 0, 64), "0".repeat(64));
        let z = ZeroColumns::decode(descriptor([0; 4], [0; 4], 1, 0), 128, 64).unwrap();
        assert_eq!(text(&z, 0, 14), "11100001110000");
        let z = ZeroColumns::decode(descriptor([0; 4], [1, 0, 0, 0], 1, 0), 64, 64).unwrap();
        assert_eq!(
            (text(&z, 0, 17), text(&z, 32, 14)),
            ("11100001110000111".into(), "11100001110000".into())
        );
        let z = ZeroColumns::decode(descriptor([0, 1, 2, 1], [1, 1, 0, 0], 1, 2), 32, 128).unwrap();
        assert_eq!(z.shift, 2);
        assert_eq!((text(&z, 0, 14), text(&z, 32, 13)), ("00001110000111".into(), "0000111000011".into()));
        assert_eq!((text(&z, 64, 12), text(&z, 96, 13)), ("111000011100".into(), "1110000111000".into()));
        let e = ZeroColumns::decode(descriptor([0; 4], [0; 4], 1, 17), 32, 128).unwrap_err();
        assert!(e.contains("allows 16"), "{e}");
    }
}
