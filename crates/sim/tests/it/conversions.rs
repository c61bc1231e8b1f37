//! Every `cvt` between floats against a slow reference.

use crate::kernel::formats::*;
use crate::kernel::*;

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

/// Small formats and S2F6 to bf16, times a power of two each: rounded once, NaN of either is NaN.
#[test]
fn scaled_conversions_to_bf16() {
    let scales: Vec<u32> = vec![0, 1, 2, 60, 120, 126, 127, 128, 200, 246, 250, 253, 254, 255];
    let power = |s: u32| if s == 255 { f64::NAN } else { 2f64.powi(s as i32 - 127) };
    let s2f6 = format("s2f6", 0, 7, Top::Numbers);
    for small in [E4M3, E5M2, E2M3, E3M2, E2M1, s2f6] {
        let codes = if small.name == "s2f6" { 256 } else { 2 * small.sign() };
        let value = |code: u32| {
            if small.name == "s2f6" { f64::from(code as u8 as i8) / 64.0 } else { small.value(code) }
        };
        let words: Vec<u32> = (0..codes).flat_map(|c| scales.iter().map(move |s| s << 16 | c)).collect();
        for (flags, relu, satfinite) in
            [("", false, false), (".satfinite", false, true), (".relu", true, false)]
        {
            let opcode = format!("cvt.rn{flags}.scaled::n2::ue8m0.bf16x2.{}x2", small.name);
            // The code under test is the upper one, its scale too; below are code 5 and the scale 2.
            let scale = "shr.u32 r1, r0, 8; and.b32 r1, r1, 0xff00; or.b32 r1, r1, 128; cvt.u16.u32 h1, r1;";
            let body = if small.name == "e2m1" {
                format!(
                    "{scale} {{ .reg .b8 q, z; and.b32 r0, r0, 15; mad.lo.u32 r0, r0, 16, 5; cvt.u16.u32 h0, r0; mov.b16 {{q, z}}, h0; {opcode} o, q, h1; }}"
                )
            } else {
                format!(
                    "{scale} and.b32 r0, r0, 255; mad.lo.u32 r0, r0, 256, 5; cvt.u16.u32 h0, r0; {opcode} o, h0, h1;"
                )
            };
            for (word, got) in words.iter().zip(convert(&body, &words)) {
                let expect = |x: f64| {
                    let x = if relu && x.is_sign_negative() && !x.is_nan() { 0.0 } else { x };
                    BF16.round(x, "rn", satfinite)
                };
                let x = value(word & 0xffff) * power(word >> 16);
                assert_codes(&opcode, BF16, x, got >> 16, expect(x));
                assert_codes(&opcode, BF16, value(5) * 2.0, got & 0xffff, expect(value(5) * 2.0));
            }
        }
    }
}

/// To S2F6: divided by the scale, to the nearest 64th, kept from -2 to 127/64; NaN is the largest.
#[test]
fn conversions_to_fixed_point() {
    let inputs = inputs();
    let expect = |x: f64, scale: f64, relu: bool| {
        let x = x / scale;
        if x.is_nan() {
            return 127;
        }
        let x = if relu { x.max(0.0) } else { x };
        u32::from((x * 64.0).round_ties_even().clamp(-128.0, 127.0) as i8 as u8)
    };
    for (relu, flag) in [(false, ""), (true, ".relu")] {
        let opcode = format!("cvt.rn.satfinite{flag}.scaled::n2::ue8m0.s2f6x2.f32");
        let body = format!("mov.b16 h1, 0x857d; {opcode} h0, f0, f1, h1; cvt.u32.u16 o, h0;");
        for (x, got) in inputs.iter().zip(convert(&body, &inputs)) {
            let x = f32_of(*x);
            let want = expect(x, 64.0, relu) << 8 | expect(-x, 0.25, relu);
            assert_eq!(got, want, "{opcode} of {x:e}");
        }
        let opcode = format!("cvt.rn.satfinite{flag}.s2f6x2.bf16x2");
        let body = format!("{opcode} h0, r0; cvt.u32.u16 o, h0;");
        for (x, got) in inputs.iter().zip(convert(&body, &inputs)) {
            let want =
                expect(BF16.value(x >> 16), 1.0, relu) << 8 | expect(BF16.value(x & 0xffff), 1.0, relu);
            assert_eq!(got, want, "{opcode} of {x:#x}");
        }
    }
    // A scale that is NaN makes every value NaN.
    assert_eq!(
        one(
            "mov.b16 h1, 0xff7f; cvt.rn.satfinite.scaled::n2::ue8m0.s2f6x2.f32 h0, 1.0, 1.0, h1; cvt.u32.u16 o, h0;"
        ),
        0x7f40
    );
}
