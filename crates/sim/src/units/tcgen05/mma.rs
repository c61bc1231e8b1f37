//! `tcgen05.mma`: what an MMA takes with it when it is issued.

use super::descriptor::MatrixDescriptor;
use super::instruction::{Form, Instruction};
use super::layout::Layout;
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

#[cfg(test)]
mod tests {
    use super::*;

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
