//! `cvt.rs`: stochastic rounding with the random bits of an operand.

use crate::kernel::formats::*;
use crate::kernel::*;

/// The random bits of a, b, e and f, from the bytes of `rbits`, highest first.
fn random_of(format: Format, rbits: u32) -> [u32; 4] {
    let [b3, b2, b1, b0] = rbits.to_be_bytes().map(u32::from);
    let (ab, ef) = match format.name {
        "f16" => return [(b3 & 0x1f) << 8 | b2, (b1 & 0x1f) << 8 | b0, 0, 0],
        "bf16" => return [b3 << 8 | b2, b1 << 8 | b0, 0, 0],
        "e2m1" => (b3 << 8 | b1, b2 << 8 | b0),
        _ => (b3 << 8 | b2, b1 << 8 | b0),
    };
    let reversed = |x: u32| x.reverse_bits() >> 16;
    [reversed(ab), ab, reversed(ef), ef]
}

/// `cvt.rs` of x and -x, as the halves of a pair or as a, b, b, a of four.
fn body_of(opcode: &str, format: Format, x: &str, minus: &str, rbits: &str) -> String {
    match format.name {
        "f16" | "bf16" => format!("{opcode} o, {x}, {minus}, {rbits};"),
        "e2m1" => format!("{opcode} h0, {{{x}, {minus}, {minus}, {x}}}, {rbits}; cvt.u32.u16 o, h0;"),
        _ => format!("{opcode} o, {{{x}, {minus}, {minus}, {x}}}, {rbits};"),
    }
}

/// Bits of one result of `cvt.rs`, and how many results there are.
fn shape_of(format: Format) -> (u32, usize) {
    match format.name {
        "f16" | "bf16" => (16, 2),
        "e2m1" => (4, 4),
        _ => (8, 4),
    }
}

const FORMATS: [Format; 7] = [F16, BF16, E4M3, E5M2, E2M3, E3M2, E2M1];

/// Every result is the neighbour that the carry chooses, with each source's own random bits.
#[test]
fn the_carry_decides() {
    let inputs: Vec<u32> =
        inputs().into_iter().enumerate().filter(|(i, _)| i % 3 == 0 || *i < 400).map(|x| x.1).collect();
    for format in FORMATS {
        let (width, count) = shape_of(format);
        let random_bits = if format.name == "f16" { 13 } else { 16 };
        for (relu, satfinite) in [(false, true), (true, true), (false, false), (true, false)] {
            if count == 4 && !satfinite {
                continue;
            }
            let flags = [(relu, ".relu"), (satfinite, ".satfinite")];
            let flags: String = flags.iter().filter(|f| f.0).map(|f| f.1).collect();
            let opcode = format!("cvt.rs{flags}.{}x{count}.f32", format.name);
            for rbits in [0, u32::MAX, 0x1234_5678, 0x9e37_79b9, 0x8000_0001] {
                let body = body_of(&opcode, format, "f0", "f1", "r1");
                let body = format!("mov.b32 r1, {rbits}; {body}");
                let random = random_of(format, rbits);
                for (x, got) in inputs.iter().zip(convert(&body, &inputs)) {
                    let x = f32_of(*x);
                    let negated = if x.is_nan() { x } else { -x };
                    for (i, x) in [x, negated, negated, x].into_iter().take(count).enumerate() {
                        let clamped = if relu && x.is_sign_negative() && !x.is_nan() { 0.0 } else { x };
                        let want = format.stochastic(clamped, random[i], random_bits, satfinite);
                        let got = got >> (width * (count - 1 - i) as u32) & ((1 << width) - 1);
                        assert_codes(&format!("{opcode} with {rbits:#x}, source {i}"), format, x, got, want);
                        let truncated = format.round(clamped, "rz", true);
                        if rbits == 0 && satfinite {
                            assert_eq!(want, truncated, "no random bits truncate");
                        }
                        // bf16 has a random bit for every discarded one.
                        if rbits == u32::MAX && format.name == "bf16" && clamped.is_finite() && !satfinite {
                            let inexact = format.value(truncated) != clamped;
                            assert_eq!(want, truncated + u32::from(inexact), "all ones round up");
                        }
                    }
                }
            }
        }
    }
}

/// Over all random bits the mean of the results is the source, and the more frequent one is the nearest.
#[test]
fn the_mean_is_the_source() {
    // Sources with nothing below the random bits of their format.
    for (format, x) in [
        (F16, 1.0 + 1234.0 / 8388608.0),
        (F16, 3.0 / 67108864.0 + 5.0 / 536870912.0),
        (BF16, 1.0 + 65535.0 / 8388608.0),
        (BF16, 100.0 + 0.12109375),
        (E4M3, 17.0 + 0.359375),
        (E4M3, 0.00244140625),
        (E5M2, 9.21875),
        (E2M3, 0.30078125),
        (E3M2, 5.4375),
        (E2M1, 2.203125),
    ] {
        let (width, count) = shape_of(format);
        let bits = if format.name == "f16" { 13 } else { 16 };
        // The same bits for all, so that every source sees every value once.
        let words: Vec<u32> = (0..1u32 << bits)
            .map(|i| {
                if format.name == "e2m1" {
                    ((i >> 8) * 0x0101_0000) | ((i & 0xff) * 0x0101)
                } else {
                    i << 16 | i
                }
            })
            .collect();
        let x32 = x as f32;
        assert_eq!(f64::from(x32), x);
        let constant = |x: f32| format!("0f{:08X}", x.to_bits());
        let opcode = format!("cvt.rs.satfinite.{}x{count}.f32", format.name);
        let body = body_of(&opcode, format, &constant(x32), &constant(-x32), "r0");
        let results = convert(&body, &words);
        for i in 0..count {
            let x = if i == 1 || i == 2 { -x } else { x };
            let shift = width * (count - 1 - i) as u32;
            let codes: Vec<u32> = results.iter().map(|r| r >> shift & ((1 << width) - 1)).collect();
            let sum: f64 = codes.iter().map(|c| format.value(*c)).sum();
            assert_eq!(sum / words.len() as f64, x, "{opcode}, source {i}");
            let nearest = format.round(x, "rn", true);
            let often = codes.iter().filter(|c| **c == nearest).count();
            assert!(2 * often >= codes.len(), "{opcode}, source {i}: {often} of {}", codes.len());
        }
    }
}

/// One bit of `rbits` moves one source: the halves' own, and the two ends of what a pair shares.
#[test]
fn random_bits_belong_to_sources() {
    let e4m3 = |rbits: u32| {
        let x = "0f3F880000"; // 1 + 1/16, half way to 1 + 1/8
        one(&format!("mov.b32 r0, {rbits}; cvt.rs.satfinite.e4m3x4.f32 o, {{{x}, {x}, {x}, {x}}}, r0;"))
    };
    let bits = [1 << 16, 1 << 31, 1, 1 << 15];
    assert_eq!(bits.map(e4m3), [0x3938_3838, 0x3839_3838, 0x3838_3938, 0x3838_3839]);
    let e2m1 = |rbits: u32| {
        let x = "0f3FA00000"; // 1.25, half way to 1.5
        one(&format!(
            "mov.b32 r0, {rbits}; cvt.rs.satfinite.e2m1x4.f32 h0, {{{x}, {x}, {x}, {x}}}, r0; cvt.u32.u16 o, h0;"
        ))
    };
    let bits = [1 << 8, 1 << 31, 1, 1 << 23];
    assert_eq!(bits.map(e2m1), [0x3222, 0x2322, 0x2232, 0x2223]);
    let pair = |ty: &str, x: &str, rbits: u32| {
        one(&format!("mov.b32 r0, {rbits}; cvt.rs.{ty}.f32 o, {x}, {x}, r0;"))
    };
    // Half way, so that the highest of 13 or 16 bits decides; those above the 13 mean nothing.
    let f16 = |rbits| pair("f16x2", "0f3F801000", rbits);
    assert_eq!([1 << 28, 1 << 12, 0xefff_efff].map(f16), [0x3c01_3c00, 0x3c00_3c01, 0x3c00_3c00]);
    let bf16 = |rbits| pair("bf16x2", "0f3F808000", rbits);
    assert_eq!([1 << 31, 1 << 15, 0x7fff_7fff].map(bf16), [0x3f81_3f80, 0x3f80_3f81, 0x3f80_3f80]);
}

/// Ends of the ranges, under any random bits.
#[test]
fn nan_and_what_is_too_large() {
    let (nan, inf, minus_inf, large) = ("0f7FC00000", "0f7F800000", "0fFF800000", "0f7F7FFFFF");
    for rbits in [0, u32::MAX, 0x1234_5678] {
        let pair =
            |opcode: &str, a: &str, b: &str| one(&format!("mov.b32 r0, {rbits}; {opcode} o, {a}, {b}, r0;"));
        assert_eq!(pair("cvt.rs.f16x2.f32", nan, inf), 0x7fff_7c00);
        assert_eq!(pair("cvt.rs.f16x2.f32", minus_inf, large), 0xfc00_7c00);
        assert_eq!(pair("cvt.rs.satfinite.f16x2.f32", minus_inf, large), 0xfbff_7bff);
        assert_eq!(pair("cvt.rs.relu.bf16x2.f32", nan, minus_inf), 0x7fff_0000);
        assert_eq!(pair("cvt.rs.relu.satfinite.bf16x2.f32", inf, large), 0x7f7f_7f7f);
        for (format, want) in
            [("e4m3", 0x7f7e_fe7e), ("e5m2", 0x7f7b_fb7b), ("e2m3", 0x1f1f_3f1f), ("e3m2", 0x1f1f_3f1f)]
        {
            let body =
                format!("cvt.rs.satfinite.{format}x4.f32 o, {{{nan}, {inf}, {minus_inf}, {large}}}, r0;");
            assert_eq!(one(&format!("mov.b32 r0, {rbits}; {body}")), want, "{format}");
        }
        let body =
            format!("cvt.rs.relu.satfinite.e2m1x4.f32 h0, {{{nan}, {inf}, {minus_inf}, {large}}}, r0;");
        assert_eq!(one(&format!("mov.b32 r0, {rbits}; {body} cvt.u32.u16 o, h0;")), 0x7707);
    }
    // The largest finite bf16 and half a step: only the carry reaches infinity.
    let edge = |rbits: u32, flag: &str| {
        one(&format!("mov.b32 r0, {rbits}; cvt.rs{flag}.bf16x2.f32 o, 0f7F7F8000, 0fFF7F8000, r0;"))
    };
    assert_eq!(edge(0x7fff_8000, ""), 0x7f7f_ff80);
    assert_eq!(edge(0xffff_ffff, ".satfinite"), 0x7f7f_ff7f);
}
