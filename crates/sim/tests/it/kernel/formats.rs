//! A slow reference of the small formats: the list of all values of a format, searched for the neighbours of
//! the exact input.

use super::*;

/// A small format: exponent and mantissa bits, and what its highest codes mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Top {
    /// The highest exponent is infinity and NaN.
    Ieee,
    /// Only the all-ones code is NaN.
    OneNan,
    /// Every code is a number.
    Numbers,
}

#[derive(Clone, Copy, Debug)]
pub struct Format {
    pub name: &'static str,
    pub exponent: u32,
    pub mantissa: u32,
    pub top: Top,
}

pub const fn format(name: &'static str, exponent: u32, mantissa: u32, top: Top) -> Format {
    Format { name, exponent, mantissa, top }
}

pub const F16: Format = format("f16", 5, 10, Top::Ieee);
pub const BF16: Format = format("bf16", 8, 7, Top::Ieee);
pub const E4M3: Format = format("e4m3", 4, 3, Top::OneNan);
pub const E5M2: Format = format("e5m2", 5, 2, Top::Ieee);
pub const E2M1: Format = format("e2m1", 2, 1, Top::Numbers);
pub const E2M3: Format = format("e2m3", 2, 3, Top::Numbers);
pub const E3M2: Format = format("e3m2", 3, 2, Top::Numbers);

impl Format {
    pub fn sign(self) -> u32 {
        1 << (self.exponent + self.mantissa)
    }

    /// The value of a code without its sign, by the definition of the format.
    pub fn magnitude(self, code: u32) -> f64 {
        let (e, m) = (code >> self.mantissa, code & ((1 << self.mantissa) - 1));
        let last = (1 << self.exponent) - 1;
        match self.top {
            Top::Ieee if e == last => return if m == 0 { f64::INFINITY } else { f64::NAN },
            Top::OneNan if code == self.sign() - 1 => return f64::NAN,
            _ => {}
        }
        let bias = (1 << (self.exponent - 1)) - 1;
        let fraction = f64::from(m) / f64::from(1 << self.mantissa);
        let (lead, power) = if e == 0 { (0.0, 1 - bias) } else { (1.0, e as i32 - bias) };
        (lead + fraction) * 2f64.powi(power)
    }

    pub fn value(self, code: u32) -> f64 {
        let v = self.magnitude(code & (self.sign() - 1));
        if code & self.sign() != 0 { -v } else { v }
    }

    /// The largest finite code.
    pub fn largest(self) -> u32 {
        (0..self.sign()).rev().find(|c| self.magnitude(*c).is_finite()).expect("a format has numbers")
    }

    pub fn nan(self) -> u32 {
        if self.top == Top::Numbers { self.largest() } else { self.sign() - 1 }
    }

    /// Rounds by looking at the two neighbours of the exact value.
    pub fn round(self, x: f64, mode: &str, satfinite: bool) -> u32 {
        self.round_by(x, satfinite, mode == "rz", |low, fraction| match mode {
            "rz" => false,
            "rn" if fraction == 0.5 => low % 2 == 1,
            "rn" => fraction > 0.5,
            "rna" => fraction >= 0.5,
            _ => unreachable!(),
        })
    }

    /// `.rs`: up where the random bits, added to as many of the highest discarded ones, carry.
    pub fn stochastic(self, x: f64, random: u32, bits: u32, satfinite: bool) -> u32 {
        let whole = f64::from(1 << bits);
        self.round_by(x, satfinite, false, |_, fraction| {
            (fraction * whole).floor() + f64::from(random) >= whole
        })
    }

    /// `up` sees the lower neighbour and how far x is on the way to the upper one. `finite`: a number out of
    /// range gives the largest one.
    pub fn round_by(self, x: f64, satfinite: bool, finite: bool, up: impl Fn(u32, f64) -> bool) -> u32 {
        if x.is_nan() {
            return self.nan();
        }
        let sign = if x.is_sign_negative() { self.sign() } else { 0 };
        let (x, largest) = (x.abs(), self.largest());
        // Codes grow with their values: the last one that is not above x.
        let (mut low, mut high) = (0, largest);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if self.magnitude(middle) <= x { low = middle } else { high = middle - 1 }
        }
        let below = self.magnitude(low);
        if below == x {
            return sign | low;
        }
        // Above the largest number the next step up is where infinity begins.
        let step = self.magnitude(largest) - self.magnitude(largest - 1);
        let above = if low == largest { below + step } else { self.magnitude(low + 1) };
        let up = x.is_infinite() || up(low, (x - below) / (above - below));
        let code = low + u32::from(up);
        let finite = finite && x.is_finite();
        if code <= largest || satfinite || self.top == Top::Numbers || finite {
            sign | code.min(largest)
        } else if self.top == Top::Ieee {
            sign | (largest + 1)
        } else {
            sign | self.nan()
        }
    }
}

/// f32 bits that matter: every exponent with a few mantissas around ties, and the ends of the range.
pub fn inputs() -> Vec<u32> {
    let mut list = vec![0, 1, 0x7f_ffff, 0x7f80_0000, 0x7fc0_0000, 0x7f7f_ffff, 0x3f80_0000];
    for e in 90..160u32 {
        for m in [
            0, 1, 0x1000, 0x1fff, 0x8000, 0x8001, 0x18000, 0x10_0000, 0x30_0000, 0x37_ffff, 0x38_0000,
            0x60_0000, 0x70_0000, 0x7f_f000,
        ] {
            list.push(e << 23 | m);
        }
    }
    list.extend((0..2000u32).map(|i| 0x3000_0000 + i.wrapping_mul(0x9e37_79b9) % 0x2000_0000));
    let negative: Vec<u32> = list.iter().map(|x| x | 1 << 31).collect();
    list.extend(negative);
    list
}

/// Runs `cvt` for every input, in pairs of (value, negated value): one word each.
pub fn convert(instruction: &str, inputs: &[u32]) -> Vec<u32> {
    let mut results = Vec::new();
    for chunk in inputs.chunks(1024) {
        let mut words = chunk.to_vec();
        words.resize(1024, 0);
        let body = format!(
            "mul.wide.u32 d0, t, 4; add.u64 d0, d0, inp; ld.global.f32 f0, [d0]; neg.f32 f1, f0; mov.b32 r0, f0; {instruction}"
        );
        let block = Shape { grid: 1, cluster: 1, block: 1024 };
        let out = launch(&body, &words, &block, &oxigemm_sim::Options::default());
        let out = out.unwrap_or_else(|f| panic!("{instruction}: {f}"));
        results.extend(out[..chunk.len()].iter().map(|o| o[0]));
    }
    results
}

pub fn f32_of(bits: u32) -> f64 {
    f64::from(f32::from_bits(bits))
}

/// Numerically equal results, and the same code for everything else.
pub fn assert_codes(text: &str, format: Format, x: f64, got: u32, want: u32) {
    assert_eq!(got, want, "{text}: {x:e} gives {:e}, not {:e}", format.value(got), format.value(want));
}
