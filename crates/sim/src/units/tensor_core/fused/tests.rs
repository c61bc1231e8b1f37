//! The arithmetic beside a slow model: rational numbers with big integers, written as the definition reads.

use super::*;
use crate::rng::Rng;

/// An exact number `m * 2^e`.
#[derive(Clone, Copy, Debug)]
struct Exact {
    m: i128,
    e: i32,
}

/// A term: its value and the exponent by which terms are aligned.
type Term = (Exact, i32);

fn exact(x: f64) -> Exact {
    if x == 0.0 {
        return Exact { m: 0, e: 0 };
    }
    let bits = x.to_bits();
    let field = (bits >> 52 & 0x7ff) as i32;
    let m = i128::from(bits & ((1 << 52) - 1)) | if field == 0 { 0 } else { 1 << 52 };
    // The last set bit becomes the unit, so that products stay small.
    let zeros = m.trailing_zeros() as i32;
    let m = m >> zeros;
    Exact { m: if x < 0.0 { -m } else { m }, e: field.max(1) - 1075 + zeros }
}

fn times(x: Exact, y: Exact) -> Exact {
    Exact { m: x.m * y.m, e: x.e + y.e }
}

/// The exponent of a number in a format whose least normal exponent is `least`.
fn exponent(x: f64, least: i32) -> i32 {
    ((x.abs().to_bits() >> 52) as i32 - 1023).max(least)
}

fn least(input: Input) -> i32 {
    2 - (1 << (input.format().exponent - 1))
}

/// The truncated sum of terms, at `fraction` bits below the largest exponent: its value.
fn fused_sum(terms: &[Term], fraction: i32) -> Exact {
    let top = terms.iter().filter(|(x, _)| x.m != 0).map(|t| t.1).max().unwrap_or(-126).max(-126);
    let unit = top - fraction;
    let sum = terms
        .iter()
        .filter(|(x, _)| x.m != 0)
        .map(|(x, _)| {
            let shift = x.e - unit;
            let magnitude = x.m.unsigned_abs();
            let cut = if shift >= 0 {
                assert!(shift < 100, "{x:?}");
                magnitude << shift
            } else {
                magnitude.checked_shr(-shift as u32).unwrap_or(0)
            };
            cut as i128 * x.m.signum()
        })
        .sum();
    Exact { m: sum, e: unit }
}

/// Rounds to a format of `precision` bits with the least exponent `least`, by comparing with both neighbours.
fn round(x: Exact, precision: i32, least: i32, nearest: bool) -> f64 {
    if x.m == 0 {
        return 0.0;
    }
    let magnitude = x.m.unsigned_abs();
    let top = 127 - magnitude.leading_zeros() as i32 + x.e;
    let drop = (top.max(least) - (precision - 1) - x.e).max(0);
    let kept = magnitude.checked_shr(drop as u32).unwrap_or(0);
    let rest = if drop > 127 { magnitude } else { magnitude - (kept << drop) };
    let up = nearest && drop > 0 && drop <= 127 && {
        let half = 1u128 << (drop - 1);
        rest > half || (rest == half && kept & 1 == 1)
    };
    let value = (kept + u128::from(up)) as f64 * 2f64.powi(x.e + drop);
    if x.m < 0 { -value } else { value }
}

fn model(f: &Fused<'_>, m: usize, n: usize, acc: f32) -> f32 {
    let k = f.k;
    let value = |input: Input, code: u32, negate: bool| {
        let x = input.value(code);
        if negate { -x } else { x }
    };
    let a: Vec<f64> = f.a[m * k..][..k].iter().map(|c| value(f.a_type, *c, f.negate_a)).collect();
    let b: Vec<f64> = f.b[n * k..][..k].iter().map(|c| value(f.b_type, *c, f.negate_b)).collect();
    let scale = |codes: &[u8], row: usize, at: usize| -> f64 {
        let s = f.scales.unwrap();
        let code = codes[row * (k / s.block) + at / s.block];
        match s.ty {
            ScaleType::Ue8m0 => minifloat::decode_ue8m0(u64::from(code)),
            ScaleType::Ue4m3 => minifloat::E4M3.decode(u64::from(code & 0x7f)),
        }
    };
    let scales: Vec<(f64, f64)> =
        (0..k).map(|i| f.scales.map_or((1.0, 1.0), |s| (scale(s.a, m, i), scale(s.b, n, i)))).collect();
    let plain = a.iter().zip(&b).zip(&scales).fold(f64::from(acc), |s, ((x, y), z)| s + x * y * z.0 * z.1);
    if plain.is_nan() {
        return f32::from_bits(NAN);
    }
    if plain.is_infinite() {
        return plain as f32;
    }
    let acc_least = if f.output == Output::F16 { -14 } else { -126 };
    let shift = f.input_shift as i32;
    let shifted = Exact { e: exact(f64::from(acc)).e - shift, ..exact(f64::from(acc)) };
    let mut terms: Vec<Term> = vec![(shifted, exponent(f64::from(acc), acc_least) - shift)];
    let grouped = f.scales.is_some_and(|s| s.block < k);
    if grouped {
        let s = f.scales.unwrap();
        let least = if s.ty == ScaleType::Ue8m0 { -127 } else { -6 };
        for g in (0..k).step_by(16) {
            let sum: f64 = (g..g + 16).map(|i| a[i] * b[i]).sum();
            let (x, y) = scales[g];
            let value = times(times(exact(sum), exact(x)), exact(y));
            terms.push((value, exponent(x, least) + exponent(y, least)));
        }
    } else {
        for i in 0..k {
            let (x, y) = scales[i];
            let value = times(times(exact(a[i]), exact(b[i])), times(exact(x), exact(y)));
            let e = exponent(a[i], least(f.a_type)) + exponent(b[i], least(f.b_type));
            terms.push((value, e + exponent(x, -127) + exponent(y, -127)));
        }
    }
    let sum = fused_sum(&terms, if grouped { 35 } else { 25 });
    match f.output {
        Output::F32 => round(sum, 24, -126, false) as f32,
        Output::F16 => {
            let x = round(sum, 11, -14, true);
            (if x.abs() > 65504.0 { f64::INFINITY.copysign(x) } else { x }) as f32
        }
    }
}

/// Inputs of one comparison.
struct Case {
    a: Vec<u32>,
    b: Vec<u32>,
    scale_a: Vec<u8>,
    scale_b: Vec<u8>,
    d: Vec<f32>,
}

const ROWS: usize = 5;
const WIDTH: usize = 19;

fn draw(rng: &mut Rng, f: &Fused<'_>, round: u32, block: usize, ty: ScaleType) -> Case {
    let mut code = |input: Input| -> u32 {
        let all = rng.next() as u32;
        let bits = input.bits();
        let mut code = if bits == 32 { all } else { all & ((1 << bits) - 1) };
        let mantissa = input.format().mantissa + if bits == 32 { 13 } else { 0 };
        match round % 4 {
            // Numbers near one.
            1 if bits > 8 => {
                let one = ((1u32 << (input.format().exponent - 1)) - 1) << mantissa;
                let spread = (all >> 20 & 7) << mantissa;
                code = code & ((1 << mantissa) - 1)
                    | (one + spread - (4 << mantissa))
                    | (all >> 31) << (bits - 1);
            }
            // Subnormal numbers and zeros.
            2 if all >> 24 & 3 != 0 => code &= (1 << mantissa) - 1 | 1 << (bits - 1),
            _ => {}
        }
        // Infinities and NaNs only now and then.
        let keep = round % 8 == 7 && all >> 16 & 63 == 0;
        if input.value(code).is_finite() || keep { code } else { 0 }
    };
    let a: Vec<u32> = (0..ROWS * f.k).map(|_| code(f.a_type)).collect();
    let b: Vec<u32> = (0..WIDTH * f.k).map(|_| code(f.b_type)).collect();
    let mut scale = |_| match (ty, round % 3) {
        (ScaleType::Ue8m0, 0) => 120 + (rng.next() % 16) as u8,
        (ScaleType::Ue8m0, 1) => 60 + (rng.next() % 130) as u8,
        _ => rng.next() as u8,
    };
    let scale_a = (0..ROWS * f.k / block).map(&mut scale).collect();
    let scale_b = (0..WIDTH * f.k / block).map(&mut scale).collect();
    let acc = |i: usize| -> f32 {
        let bits = rng.next() as u32;
        if f.output == Output::F16 {
            return minifloat::F16.decode(u64::from(bits & if i % 3 == 0 { 0x83ff } else { 0xffff })) as f32;
        }
        match i % 5 {
            0 => 0.0,
            1 => f32::from_bits(bits & 0x807f_ffff),
            2 => f32::from_bits(bits & 0x83ff_ffff | 0x3e00_0000),
            3 => f32::from_bits(bits & 0x8fff_ffff | 0x3000_0000),
            _ => f32::from_bits(bits),
        }
    };
    Case { a, b, scale_a, scale_b, d: (0..ROWS * WIDTH).map(acc).collect() }
}

fn compare(f: Fused<'_>, scales: Option<(ScaleType, usize)>, rounds: u32) {
    let mut rng = Rng::new(u64::from(f.a_type.bits()) << 8 | u64::from(f.b_type.bits()));
    let mut scratch = FusedScratch::default();
    for round in 0..rounds {
        let (ty, block) = scales.unwrap_or((ScaleType::Ue8m0, f.k));
        let case = draw(&mut rng, &f, round, block, ty);
        let scales = scales.map(|_| Scales { ty, block, a: &case.scale_a, b: &case.scale_b });
        let negate = round % 5 == 0;
        let f = Fused { a: &case.a, b: &case.b, negate_a: negate, negate_b: round % 7 == 0, scales, ..f };
        let mut d = case.d.clone();
        f.accumulate(&mut d, &mut scratch);
        let mut anywhere = case.d.clone();
        for (m, row) in anywhere.chunks_mut(WIDTH).enumerate() {
            f.row(&scratch.a, &scratch.b, m, row);
        }
        for (i, (got, again)) in d.iter().zip(&anywhere).enumerate() {
            assert_eq!(got.to_bits(), again.to_bits(), "wider vectors give other bits");
            let want = model(&f, i / WIDTH, i % WIDTH, case.d[i]);
            assert!(
                got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                "{:?} x {:?} round {round} output {i}: {got:e}, model {want:e}, accumulator {:e}",
                f.a_type,
                f.b_type,
                case.d[i]
            );
        }
    }
}

fn plain(a_type: Input, b_type: Input, k: usize) -> Fused<'static> {
    Fused {
        a: &[],
        b: &[],
        k,
        a_type,
        b_type,
        negate_a: false,
        negate_b: false,
        output: Output::F32,
        input_shift: 0,
        scales: None,
    }
}

const NARROW: [Input; 5] = [Input::E4m3, Input::E5m2, Input::E2m3, Input::E3m2, Input::E2m1];

#[test]
fn plain_kinds_match_the_exact_model() {
    for (input, k) in [(Input::F16, 16), (Input::Bf16, 16), (Input::Tf32, 8)] {
        compare(plain(input, input, k), None, 120);
    }
    for a in NARROW {
        for b in NARROW {
            compare(plain(a, b, 32), None, 24);
        }
    }
}

#[test]
fn f16_accumulators_round_to_nearest() {
    compare(Fused { output: Output::F16, ..plain(Input::F16, Input::F16, 16) }, None, 120);
    compare(Fused { output: Output::F16, ..plain(Input::E5m2, Input::E4m3, 32) }, None, 120);
}

#[test]
fn a_scaled_accumulator_keeps_its_bits() {
    for input_shift in [1, 7, 15] {
        compare(Fused { input_shift, ..plain(Input::F16, Input::F16, 16) }, None, 40);
        compare(Fused { input_shift, ..plain(Input::Tf32, Input::Tf32, 8) }, None, 40);
        let half = Fused { input_shift, output: Output::F16, ..plain(Input::F16, Input::F16, 16) };
        compare(half, None, 40);
    }
}

#[test]
fn block_scales_match_the_exact_model() {
    for a in NARROW {
        for b in NARROW {
            compare(plain(a, b, 32), Some((ScaleType::Ue8m0, 32)), 30);
        }
    }
    let fp4 = plain(Input::E2m1, Input::E2m1, 64);
    for (ty, block) in [(ScaleType::Ue8m0, 32), (ScaleType::Ue8m0, 16), (ScaleType::Ue4m3, 16)] {
        compare(fp4, Some((ty, block)), 200);
    }
}

#[test]
fn infinities_nans_and_overflow() {
    let dot = |a: u32, b: u32, acc: f32, scale: Option<u8>| {
        let (mut av, mut bv) = (vec![0u32; 32], vec![0u32; 32]);
        (av[3], bv[3]) = (a, b);
        let codes = [scale.unwrap_or(127)];
        let scales = scale.map(|_| Scales { ty: ScaleType::Ue8m0, block: 32, a: &codes, b: &codes });
        let f = Fused { a: &av, b: &bv, scales, ..plain(Input::E5m2, Input::E5m2, 32) };
        let mut d = vec![acc];
        f.accumulate(&mut d, &mut FusedScratch::default());
        d[0]
    };
    assert_eq!(dot(0x7c, 0x3c, 0.0, None), f32::INFINITY);
    assert_eq!(dot(0x7c, 0x00, 0.0, None).to_bits(), NAN);
    assert_eq!(dot(0xfc, 0x3c, f32::INFINITY, None).to_bits(), NAN);
    assert_eq!(dot(0x3c, 0x3c, f32::NAN, None).to_bits(), NAN);
    assert_eq!(dot(0x3c, 0x3c, 1.0, None), 2.0);
    assert_eq!(dot(0x3c, 0x3c, 1.0, Some(128)), 5.0);
    assert_eq!(dot(0x3c, 0x3c, 1.0, Some(0xff)).to_bits(), NAN);
    assert_eq!(dot(0x3c, 0x3c, 0.0, Some(200)), f32::INFINITY, "2^146 is no FP32 number");
    assert_eq!(dot(0x3c, 0x3c, 0.0, Some(40)), 0.0, "2^-174 rounds to zero");
}

#[test]
fn fp4_groups_are_exact_and_use_both_significands() {
    // 16 x 6 x 6 with scales 1.875 and 1.5, beside an accumulator 2^24 times smaller: no bit is lost.
    let (a, b) = (vec![7u32; 64], vec![7u32; 64]);
    let (sa, sb) = ([0x3f, 0, 0, 0], [0x3c, 0x38, 0x38, 0x38]);
    let scales = Some(Scales { ty: ScaleType::Ue4m3, block: 16, a: &sa, b: &sb });
    let f = Fused { a: &a, b: &b, scales, ..plain(Input::E2m1, Input::E2m1, 64) };
    let mut d = vec![0.25];
    f.accumulate(&mut d, &mut FusedScratch::default());
    assert_eq!(d[0], 576.0 * 1.875 * 1.5 + 0.25);
}
