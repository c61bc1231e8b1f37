//! Every `cvt` between floats against a slow reference: the list of all values of a format, searched for the
//! neighbours of the exact input.

mod kernel;

use kernel::*;

/// A small format: exponent and mantissa bits, and what its highest codes mean.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Top {
    /// The highest exponent is infinity and NaN.
    Ieee,
    /// Only the all-ones code is NaN.
    OneNan,
    /// Every code is a number.
    Numbers,
}

#[derive(Clone, Copy, Debug)]
struct Format {
    name: &'static str,
    exponent: u32,
    mantissa: u32,
    top: Top,
}

const fn format(name: &'static str, exponent: u32, mantissa: u32, top: Top) -> Format {
    Format { name, exponent, mantissa, top }
}

const F16: Format = format("f16", 5, 10, Top::Ieee);
const BF16: Format = format("bf16", 8, 7, Top::Ieee);
const E4M3: Format = format("e4m3", 4, 3, Top::OneNan);
const E5M2: Format = format("e5m2", 5, 2, Top::Ieee);
const E2M1: Format = format("e2m1", 2, 1, Top::Numbers);
const E2M3: Format = format("e2m3", 2, 3, Top::Numbers);
const E3M2: Format = format("e3m2", 3, 2, Top::Numbers);

impl Format {
    fn sign(self) -> u32 {
        1 << (self.exponent + self.mantissa)
    }

    /// The value of a code without its sign, by the definition of the format.
    fn magnitude(self, code: u32) -> f64 {
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

    fn value(self, code: u32) -> f64 {
        let v = self.magnitude(code & (self.sign() - 1));
        if code & self.sign() != 0 { -v } else { v }
    }

    /// The largest finite code.
    fn largest(self) -> u32 {
        (0..self.sign()).rev().find(|c| self.magnitude(*c).is_finite()).expect("a format has numbers")
    }

    fn nan(self) -> u32 {
        if self.top == Top::Numbers { self.largest() } else { self.sign() - 1 }
    }

    /// Rounds by looking at the two neighbours of the exact value.
    fn round(self, x: f64, mode: &str, satfinite: bool) -> u32 {
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
        let up = match mode {
            _ if x.is_infinite() => true,
            "rz" => false,
            "rn" if x - below == above - x => low % 2 == 1,
            "rn" => x - below > above - x,
            "rna" => x - below >= above - x,
            _ => unreachable!(),
        };
        let code = low + u32::from(up);
        let finite = mode == "rz" && x.is_finite();
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
fn inputs() -> Vec<u32> {
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
fn convert(instruction: &str, inputs: &[u32]) -> Vec<u32> {
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

fn f32_of(bits: u32) -> f64 {
    f64::from(f32::from_bits(bits))
}

/// Numerically equal results, and the same code for everything else.
fn assert_codes(text: &str, format: Format, x: f64, got: u32, want: u32) {
    assert_eq!(got, want, "{text}: {x:e} gives {:e}, not {:e}", format.value(got), format.value(want));
}

#[test]
fn f32_to_pairs_of_small_floats() {
    let inputs = inputs();
    for format in [E4M3, E5M2, E2M1, E2M3, E3M2, F16, BF16] {
        let wide = matches!(format.name, "f16" | "bf16");
        let bits = match format.name {
            "e2m1" => 4,
            _ if wide => 16,
            _ => 8,
        };
        let modes: &[&str] = if wide { &["rn", "rz"] } else { &["rn"] };
        for mode in modes {
            for relu in [false, true] {
                for satfinite in [false, true] {
                    if !wide && !satfinite {
                        continue;
                    }
                    let flags = [(relu, ".relu"), (satfinite, ".satfinite")];
                    let flags: String = flags.iter().filter(|f| f.0).map(|f| f.1).collect();
                    let opcode = format!("cvt.{mode}{flags}.{}x2.f32", format.name);
                    // The first source goes to the upper half.
                    let body = match bits {
                        16 => format!("{opcode} o, f0, f1;"),
                        8 => format!("{opcode} h0, f0, f1; cvt.u32.u16 o, h0;"),
                        _ => format!(
                            "{{ .reg .b8 q; {opcode} q, f0, f1; mov.b16 h0, {{q, 0}}; cvt.u32.u16 o, h0; }}"
                        ),
                    };
                    for (x, got) in inputs.iter().zip(convert(&body, &inputs)) {
                        let expect = |x: f64| {
                            let x = if relu && x.is_sign_negative() && !x.is_nan() { 0.0 } else { x };
                            format.round(x, mode, satfinite)
                        };
                        let (x, mask) = (f32_of(*x), (1u32 << bits) - 1);
                        assert_codes(&opcode, format, x, got >> bits & mask, expect(x));
                        let negated = if x.is_nan() { x } else { -x };
                        assert_codes(&opcode, format, -x, got & mask, expect(negated));
                    }
                }
            }
        }
    }
}

#[test]
fn f32_to_single_halves_and_tf32() {
    let inputs = inputs();
    for format in [F16, BF16] {
        for (mode, satfinite) in [("rn", false), ("rz", false), ("rn", true), ("rz", true)] {
            let flag = if satfinite { ".satfinite" } else { "" };
            let opcode = format!("cvt.{mode}{flag}.{}.f32", format.name);
            let body = format!("{opcode} h0, f0; cvt.u32.u16 o, h0;");
            for (x, got) in inputs.iter().zip(convert(&body, &inputs)) {
                let x = f32_of(*x);
                assert_codes(&opcode, format, x, got, format.round(x, mode, satfinite));
            }
        }
    }
    // TF32 is f32 with a mantissa of ten bits.
    let tf32 = format("tf32", 8, 10, Top::Ieee);
    for (mode, satfinite) in [("rna", false), ("rn", false), ("rz", false), ("rna", true), ("rn", true)] {
        let flag = if satfinite { ".satfinite" } else { "" };
        let opcode = format!("cvt.{mode}{flag}.tf32.f32");
        for (x, got) in inputs.iter().zip(convert(&format!("{opcode} o, f0;"), &inputs)) {
            let x = f32_of(*x);
            assert_codes(&opcode, tf32, x, got >> 13, tf32.round(x, mode, satfinite));
            assert_eq!(got & 0x1fff, 0, "{opcode}");
        }
    }
}

/// Every code of a small format becomes the half that is nearest, which is exact but for NaN.
#[test]
fn small_floats_to_halves() {
    for small in [E4M3, E5M2, E2M1, E2M3, E3M2] {
        let codes: Vec<u32> = (0..2 * small.sign()).collect();
        let opcode = format!("cvt.rn.f16x2.{}x2", small.name);
        let body = if small.name == "e2m1" {
            // Two codes in one byte.
            format!(
                "{{ .reg .b8 q, z; mad.lo.u32 r0, r0, 16, 5; cvt.u16.u32 h0, r0; mov.b16 {{q, z}}, h0; {opcode} o, q; }}"
            )
        } else {
            format!("mad.lo.u32 r0, r0, 256, 5; cvt.u16.u32 h0, r0; {opcode} o, h0;")
        };
        for (code, got) in codes.iter().zip(convert(&body, &codes)) {
            for (code, got) in [(*code, got >> 16), (5, got & 0xffff)] {
                let want = F16.round(small.value(code), "rn", false);
                assert_codes(&opcode, F16, small.value(code), got, want);
            }
        }
    }
}

/// f16 pairs to FP8, against the same reference.
#[test]
fn halves_to_small_floats() {
    let codes: Vec<u32> = (0..1 << 16).collect();
    for small in [E4M3, E5M2] {
        let opcode = format!("cvt.rn.satfinite.{}x2.f16x2", small.name);
        let body = format!("mad.lo.u32 r0, r0, 65536, 0x3c00; {opcode} h0, r0; cvt.u32.u16 o, h0;");
        for (code, got) in codes.iter().zip(convert(&body, &codes)) {
            let x = F16.value(*code);
            assert_codes(&opcode, small, x, got >> 8, small.round(x, "rn", true));
            assert_codes(&opcode, small, 1.0, got & 0xff, small.round(1.0, "rn", true));
        }
    }
}

/// Powers of two: the exponent of the value, up when asked to and inexact.
#[test]
fn scales_are_powers_of_two() {
    let inputs = inputs();
    for (mode, up) in [("rz", false), ("rp", true)] {
        let opcode = format!("cvt.{mode}.satfinite.ue8m0x2.f32");
        let body = format!("{opcode} h0, f0, f0; cvt.u32.u16 o, h0;");
        for (bits, got) in inputs.iter().zip(convert(&body, &inputs)) {
            let x = f32_of(*bits).abs();
            let power = |e: i32| 2f64.powi(e - 127);
            let below = (0..=254).rev().find(|e| power(*e) <= x).unwrap_or(0);
            let want = match () {
                () if x.is_nan() => 255,
                () if up && x.is_finite() && power(below) < x => (below + 1).min(254),
                () => below,
            };
            assert_eq!(got, (want << 8 | want) as u32, "{opcode} of {x:e}");
        }
    }
    let codes: Vec<u32> = (0..256).collect();
    let body = "cvt.u16.u32 h0, r0; cvt.rn.bf16x2.ue8m0x2 o, h0;";
    for (code, got) in codes.iter().zip(convert(body, &codes)) {
        let want = if *code == 255 { f64::NAN } else { 2f64.powi(*code as i32 - 127) };
        assert_codes("ue8m0", BF16, want, got & 0xffff, BF16.round(want, "rn", false));
    }
}

/// Integers: rounded in the asked direction, then clamped to the range of the destination.
#[test]
fn floats_to_integers() {
    let inputs = inputs();
    type Rule = (&'static str, fn(f64) -> f64);
    let modes: [Rule; 4] =
        [("rni", f64::round_ties_even), ("rzi", f64::trunc), ("rmi", f64::floor), ("rpi", f64::ceil)];
    for (mode, rule) in modes {
        for (ty, low, high) in [
            ("s32", i32::MIN as f64, i32::MAX as f64),
            ("u32", 0.0, u32::MAX as f64),
            ("s16", -32768.0, 32767.0),
        ] {
            let opcode = format!("cvt.{mode}.{ty}.f32");
            let body = if ty == "s16" {
                format!("{opcode} h0, f0; cvt.s32.s16 o, h0;")
            } else {
                format!("{opcode} o, f0;")
            };
            for (bits, got) in inputs.iter().zip(convert(&body, &inputs)) {
                let x = f32_of(*bits);
                let want = if x.is_nan() { 0 } else { rule(x).clamp(low, high) as i64 as u32 };
                assert_eq!(got, want, "{opcode} of {x:e}");
            }
        }
    }
}
