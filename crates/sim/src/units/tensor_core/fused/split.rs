//! Operands of a fused sum as significands and exponents.

use super::ScaleType;
use crate::arith::minifloat::{E4M3, Format};
use crate::units::tensor_core::{COLUMNS, Input};
use std::sync::LazyLock;

/// Exponent of a zero element: below that of every product, also after a scale.
const ZERO: i32 = -4096;

/// One operand: `rows` rows of `k` elements, each `significand * 2^(exponent - mantissa bits)`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Split {
    pub(super) significand: Vec<i32>,
    pub(super) exponent: Vec<i32>,
    /// Rows that hold an infinity or a NaN, or have a NaN for a scale.
    pub(super) special: Vec<bool>,
    pub(super) any_special: bool,
    /// Scales of each row.
    pub(super) scales: Vec<ScaleRow>,
}

/// The scales of one row, at most eight along K: `significand * 2^(exponent - mantissa bits)`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScaleRow {
    pub(super) significand: [i32; 8],
    pub(super) exponent: [i32; 8],
    pub(super) nan: bool,
}

/// Signed significand and exponent of a finite code; infinities and NaNs are told apart by the caller.
fn split(format: Format, code: u32) -> (i32, i32) {
    let bias = (1 << (format.exponent - 1)) - 1;
    let field = (code >> format.mantissa & ((1 << format.exponent) - 1)) as i32;
    let fraction = (code & ((1 << format.mantissa) - 1)) as i32;
    let significand = if field == 0 { fraction } else { fraction | 1 << format.mantissa };
    if significand == 0 {
        return (0, ZERO);
    }
    let negative = code >> (format.exponent + format.mantissa) & 1 == 1;
    (if negative { -significand } else { significand }, field.max(1) - bias)
}

/// Significand, exponent and whether the code is an infinity or a NaN.
type Entry = (i32, i32, bool);
type Table = LazyLock<Vec<Entry>>;

fn entry(input: Input, code: u32) -> Entry {
    // A tensor core reads the upper 19 bits of a TF32 word.
    let code = if input == Input::Tf32 { code >> 13 } else { code };
    let format = input.format();
    let (significand, exponent) = split(format, code);
    if format.decode(u64::from(code)).is_finite() { (significand, exponent, false) } else { (0, ZERO, true) }
}

fn table(input: Input) -> Option<&'static [Entry]> {
    macro_rules! tables {
        ($($input:ident),*) => {
            match input {
                $(Input::$input => {
                    static TABLE: Table = Table::new(|| {
                        (0..1u32 << Input::$input.bits()).map(|c| entry(Input::$input, c)).collect()
                    });
                    Some(&TABLE)
                })*
                Input::Tf32 => None,
            }
        };
    }
    tables!(E4m3, E5m2, F16, Bf16, E2m3, E3m2, E2m1)
}

impl Split {
    /// Splits `codes` (row-major, `k` a row). With `lanes`, eight rows lie side by side, so that the inner loop runs
    /// over columns.
    pub(super) fn fill(&mut self, codes: &[u32], k: usize, input: Input, negate: bool, lanes: bool) {
        let rows = codes.len() / k;
        let padded = if lanes { rows.div_ceil(COLUMNS) * COLUMNS } else { rows };
        self.significand.clear();
        self.significand.resize(padded * k, 0);
        self.exponent.clear();
        self.exponent.resize(padded * k, ZERO);
        self.special.clear();
        self.special.resize(rows, false);
        self.any_special = false;
        self.scales.clear();
        let table = table(input);
        for (row, codes) in codes.chunks_exact(k).enumerate() {
            let (first, step) =
                if lanes { (row / COLUMNS * k * COLUMNS + row % COLUMNS, COLUMNS) } else { (row * k, 1) };
            for (i, code) in codes.iter().enumerate() {
                let (significand, exponent, special) = match table {
                    Some(t) => t[*code as usize],
                    None => entry(input, *code),
                };
                let at = first + i * step;
                self.significand[at] = if negate { -significand } else { significand };
                self.exponent[at] = exponent;
                self.special[row] |= special;
            }
            self.any_special |= self.special[row];
        }
    }

    /// Turns E2M1 elements into integers, in halves.
    pub(super) fn whole(&mut self) {
        for (significand, exponent) in self.significand.iter_mut().zip(&self.exponent) {
            *significand <<= (*exponent).max(0);
        }
    }

    /// Gives each row its scales, `count` of them.
    pub(super) fn scale(&mut self, ty: ScaleType, codes: &[u8], count: usize) {
        for (row, codes) in codes.chunks_exact(count).enumerate() {
            let mut scales = ScaleRow::default();
            for (i, code) in codes.iter().enumerate() {
                let nan;
                (scales.significand[i], scales.exponent[i], nan) = ty.split(*code);
                scales.nan |= nan;
            }
            self.special[row] |= scales.nan;
            self.any_special |= scales.nan;
            self.scales.push(scales);
        }
    }
}

impl ScaleType {
    /// Fractional bits of a scale's significand.
    pub(super) fn mantissa(self) -> u32 {
        match self {
            ScaleType::Ue8m0 => 0,
            ScaleType::Ue4m3 => 3,
        }
    }

    fn split(self, code: u8) -> (i32, i32, bool) {
        match self {
            ScaleType::Ue8m0 => (1, i32::from(code) - 127, code == 0xff),
            ScaleType::Ue4m3 => {
                let code = u32::from(code & 0x7f);
                let (significand, exponent) = split(E4M3, code);
                (significand, exponent, code == 0x7f)
            }
        }
    }
}
