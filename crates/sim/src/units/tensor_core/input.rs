//! Inputs of the tensor core: types, and operands decoded for the inner loop.

use super::COLUMNS;
use crate::arith::minifloat::{self, Format, power};
use crate::text::types::Ty;

/// An input type of a matrix instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub(crate) enum Input {
    E4m3,
    E5m2,
    F16,
    Bf16,
    Tf32,
    E2m3,
    E3m2,
    E2m1,
}

impl Input {
    pub(crate) fn of(ty: Ty) -> Option<Input> {
        Some(match ty {
            Ty::E4m3 => Input::E4m3,
            Ty::E5m2 => Input::E5m2,
            Ty::F16 => Input::F16,
            Ty::Bf16 => Input::Bf16,
            Ty::Tf32 => Input::Tf32,
            _ => return None,
        })
    }

    /// Width of one element.
    pub fn bits(self) -> u32 {
        match self {
            Input::E4m3 | Input::E5m2 => 8,
            Input::F16 | Input::Bf16 => 16,
            Input::Tf32 => 32,
            Input::E2m3 | Input::E3m2 => 6,
            Input::E2m1 => 4,
        }
    }

    pub(super) fn format(self) -> Format {
        match self {
            Input::E4m3 => minifloat::E4M3,
            Input::E5m2 => minifloat::E5M2,
            Input::F16 => minifloat::F16,
            Input::Bf16 => minifloat::BF16,
            Input::Tf32 => minifloat::TF32,
            Input::E2m3 => minifloat::E2M3,
            Input::E3m2 => minifloat::E3M2,
            Input::E2m1 => minifloat::E2M1,
        }
    }

    /// The value of an element.
    pub(crate) fn value(self, code: u32) -> f64 {
        self.decode(code).0
    }

    /// The value of an element and its exponent as a power of two (zero for a zero value).
    pub(super) fn decode(self, code: u32) -> (f64, f64) {
        let format = self.format();
        // A tensor core reads the upper 19 bits of a TF32 register.
        let code = if self == Input::Tf32 { code >> 13 } else { code };
        let value = format.decode(u64::from(code));
        if value == 0.0 || !value.is_finite() {
            return (value, 0.0);
        }
        let smallest = 2 - (1 << (format.exponent - 1));
        let exponent = ((value.abs().to_bits() >> 52) as i32 - 1023).max(smallest);
        (value, power(exponent))
    }
}

/// One operand, decoded: `rows` rows of `k` elements.
#[derive(Clone, Debug, Default)]
pub(crate) struct Decoded {
    pub(super) value: Vec<f32>,
    pub(super) power: Vec<f32>,
    /// Rows that hold an infinity or a NaN.
    pub(super) special: Vec<bool>,
    pub(super) any_special: bool,
}

/// Value and power of every code of one input type.
type Table = std::sync::LazyLock<Vec<(f32, f32)>>;

fn fill_table(input: Input) -> Vec<(f32, f32)> {
    let both = |code| {
        let (v, p) = input.decode(code);
        (v as f32, p as f32)
    };
    (0..1u32 << input.bits()).map(both).collect()
}

/// The table of an input of at most 16 bits.
fn table(input: Input) -> Option<&'static [(f32, f32)]> {
    static E4M3: Table = Table::new(|| fill_table(Input::E4m3));
    static E5M2: Table = Table::new(|| fill_table(Input::E5m2));
    static F16: Table = Table::new(|| fill_table(Input::F16));
    static BF16: Table = Table::new(|| fill_table(Input::Bf16));
    static E2M3: Table = Table::new(|| fill_table(Input::E2m3));
    static E3M2: Table = Table::new(|| fill_table(Input::E3m2));
    static E2M1: Table = Table::new(|| fill_table(Input::E2m1));
    match input {
        Input::E4m3 => Some(&E4M3),
        Input::E5m2 => Some(&E5M2),
        Input::F16 => Some(&F16),
        Input::Bf16 => Some(&BF16),
        Input::E2m3 => Some(&E2M3),
        Input::E3m2 => Some(&E3M2),
        Input::E2m1 => Some(&E2M1),
        Input::Tf32 => None,
    }
}

impl Decoded {
    /// Decodes `codes` (row-major, `k` per row). With `lanes`, stores eight rows side by side so that the
    /// inner loop runs over columns.
    pub(super) fn fill(&mut self, codes: &[u32], k: usize, input: Input, negate: bool, lanes: bool) {
        let rows = codes.len() / k;
        let padded = if lanes { rows.div_ceil(COLUMNS) * COLUMNS } else { rows };
        self.value.clear();
        self.value.resize(padded * k, 0.0);
        self.power.clear();
        self.power.resize(padded * k, 0.0);
        self.special.clear();
        self.special.resize(rows, false);
        self.any_special = false;
        let table = table(input);
        for row in 0..rows {
            for i in 0..k {
                let code = codes[row * k + i];
                let (value, power) = match table {
                    Some(t) => t[code as usize],
                    None => {
                        let (v, p) = input.decode(code);
                        (v as f32, p as f32)
                    }
                };
                let at = if lanes { (row / COLUMNS * k + i) * COLUMNS + row % COLUMNS } else { row * k + i };
                self.value[at] = if negate { -value } else { value };
                self.power[at] = power;
                if !value.is_finite() {
                    self.special[row] = true;
                    self.any_special = true;
                }
            }
        }
    }
}
