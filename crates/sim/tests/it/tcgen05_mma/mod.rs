//! `tcgen05.mma`: every kind, shape, layout and source of operands, end to end.

mod case;
mod refused;

use crate::common::mxfp8_pair::MxFp8;
use case::*;
use oxigemm_sim::*;

fn schedules() -> [Options; 3] {
    let random = Options { policy: Policy::Random, seed: 3, ..Options::default() };
    [Options::default(), Options { policy: Policy::Lazy, ..Options::default() }, random]
}

/// Runs a case under three schedules; `keep` tells whether an element of D is checked, and its value.
fn check_by(case: &Case, expected: impl Fn(usize, usize) -> f64) {
    let text = case.ptx();
    for options in schedules() {
        let (words, report) = case.run_text(&text, &options).unwrap_or_else(|f| panic!("{case:?}\n{f}"));
        assert_eq!(report.macs as usize, case.m * case.n * case.depth(), "{case:?}");
        for (row, column) in (0..case.m).flat_map(|r| (0..case.n).map(move |c| (r, c))) {
            let (got, want) = (case.result(&words, row, column), expected(row, column));
            assert_eq!(got, want, "{case:?} row {row} column {column}");
        }
    }
}

fn check(case: Case) {
    check_by(&case, |row, column| case.expected(row, column));
}

#[test]
fn kinds_and_types() {
    check(Case::new("f16", 128, 64, F16));
    check(Case { d: 0, ..Case::new("f16", 128, 16, F16) });
    check(Case::new("f16", 128, 64, BF16));
    check(Case::new("tf32", 128, 32, TF32));
    for (a, b) in [(E4M3, E4M3), (E5M2, E4M3), (E2M3, E3M2), (E2M1, E5M2), (E3M2, E2M1)] {
        check(Case { b, ..Case::new("f8f6f4", 128, 32, a) });
        check(Case { b, ..Case::new("mxf8f6f4", 128, 32, a) });
    }
    check(Case { d: 0, ..Case::new("f8f6f4", 64, 32, E4M3) });
    check(Case { b: U8, ..Case::new("i8", 128, 32, S8) });
    check(Case::new("mxf4", 128, 64, FP4));
    check(Case::new("mxf4nvf4", 128, 64, FP4));
    let ue8m0 = Case { block: Some((16, false)), ..Case::new("mxf4nvf4", 128, 40, FP4) };
    check(ue8m0.clone());
    check(Case { block: Some((32, false)), suffix: ".block_scale.scale_vec::2X".into(), ..ue8m0 });
}

#[test]
fn shapes_and_groups() {
    for (m, n, pair, ws) in [
        (64, 8, false, false),
        (64, 256, false, false),
        (128, 256, false, false),
        (128, 48, false, false),
        (128, 64, true, false),
        (256, 32, true, false),
        (256, 256, true, false),
        (32, 64, false, true),
        (64, 128, false, true),
        (128, 64, false, true),
    ] {
        check(Case { pair, ws, accumulate: n < 256 || m == 64, ..Case::new("f16", m, n, F16) });
    }
    check(Case { d_lane: 16, ..Case::new("f16", 64, 32, F16) });
    for kind in ["mxf8f6f4", "mxf4", "mxf4nvf4"] {
        let ty = if kind == "mxf8f6f4" { E4M3 } else { FP4 };
        check(Case { pair: true, ..Case::new(kind, 256, 64, ty) });
        check(Case { pair: true, ..Case::new(kind, 128, 96, ty) });
        check(Case::new(kind, 128, 200, ty));
    }
    check(Case { pair: true, ..Case::new("i8", 256, 64, S8) });
    check(Case { pair: true, ..Case::new("tf32", 128, 32, TF32) });
}

#[test]
fn majors_and_swizzles() {
    for swizzle in [0, 1, 2, 4, 6] {
        let steps = if swizzle == 6 { 1 } else { 2 };
        for ty in [F16, E4M3, E2M1] {
            let kind = if ty == F16 { "f16" } else { "f8f6f4" };
            let k_major = Case { swizzle: [swizzle, swizzle], steps, ..Case::new(kind, 128, 64, ty) };
            check(k_major.clone());
            if swizzle != 1 {
                check(Case { a_mn: true, swizzle: [swizzle, 2], ..k_major.clone() });
                check(Case { b_mn: true, swizzle: [2, swizzle], ..k_major.clone() });
                check(Case { b_mn: true, a_mn: true, pair: true, m: 256, ..k_major });
            }
        }
        check(Case { swizzle: [swizzle, swizzle], steps, ..Case::new("mxf4", 128, 32, FP4) });
        check(Case { swizzle: [swizzle, 2], steps, ..Case::new("tf32", 128, 32, TF32) });
    }
    check(Case { a_mn: true, b_mn: true, swizzle: [1, 1], ..Case::new("tf32", 128, 64, TF32) });
}

#[test]
fn a_in_tensor_memory() {
    check(Case { a_in_tensor: true, ..Case::new("f16", 128, 64, F16) });
    check(Case { a_in_tensor: true, d_lane: 16, ..Case::new("f16", 64, 64, BF16) });
    check(Case { a_in_tensor: true, pair: true, ..Case::new("f16", 128, 64, F16) });
    check(Case { a_in_tensor: true, pair: true, ..Case::new("tf32", 256, 32, TF32) });
    check(Case { a_in_tensor: true, ws: true, ..Case::new("f16", 32, 64, F16) });
    check(Case { a_in_tensor: true, ws: true, ..Case::new("i8", 64, 64, S8) });
    for ty in [E4M3, E2M3, E2M1] {
        check(Case { a_in_tensor: true, ..Case::new("mxf8f6f4", 128, 32, ty) });
    }
    check(Case { a_in_tensor: true, ..Case::new("mxf4nvf4", 128, 32, FP4) });
}

#[test]
fn scale_ids_select_bytes() {
    for ids in [[1, 2], [3, 0], [2, 3]] {
        check(Case { ids, ..Case::new("mxf8f6f4", 128, 32, E4M3) });
    }
    check(Case { ids: [2, 0], ..Case::new("mxf4", 128, 32, FP4) });
    check(Case { ids: [0, 2], suffix: ".block_scale".into(), ..Case::new("mxf4", 128, 32, FP4) });
}

#[test]
fn negated_operands_and_a_scaled_accumulator() {
    check(Case { negate: [true, false], ..Case::new("f16", 128, 32, F16) });
    check(Case { negate: [true, true], ..Case::new("f8f6f4", 128, 32, E4M3) });
    check(Case { negate: [false, true], ..Case::new("mxf4", 128, 32, FP4) });
    check(Case { last: Some(3), ..Case::new("f16", 128, 32, F16) });
    check(Case { last: Some(1), ..Case::new("tf32", 128, 32, TF32) });
    check(Case { last: Some(0), ..Case::new("f16", 128, 32, F16) });
}

#[test]
fn disabled_lanes_stay_as_they_are() {
    let masks = [0x8000_0001u32, 0xffff, 0, 0xdead_beef];
    for pair in [false, true] {
        let disabled = if pair { [masks, [7, 0, 0xff00, 1]].concat() } else { masks.to_vec() };
        let m = if pair { 256 } else { 128 };
        let case = Case { pair, disabled: disabled.clone(), ..Case::new("f16", m, 32, F16) };
        check_by(&case, |row, column| {
            let (cta, lane, _) = case.place(row, column);
            if disabled[cta * 4 + lane / 32] >> (lane % 32) & 1 == 1 {
                Case { steps: 0, ..case.clone() }.expected(row, column)
            } else {
                case.expected(row, column)
            }
        });
    }
}

/// Rows of A move down by one; the first stays and the last is dropped.
#[test]
fn a_shifted_by_a_row() {
    for pair in [false, true] {
        let m = if pair { 256 } else { 128 };
        let plain =
            Case { a_in_tensor: true, pair, steps: 1, accumulate: false, ..Case::new("f16", m, 32, F16) };
        let case = Case { suffix: ".ashift".into(), ..plain };
        check_by(&case, |row, column| {
            // Each CTA shifts the 128 rows of its own.
            case.expected(if row % 128 == 0 { row } else { row - 1 }, column)
        });
    }
}

/// Three columns of zeros, then four of B, from column 0 on.
#[test]
fn zero_columns_of_a_stationary_b() {
    let mask = 1u64 << 39 | 2 << 40 | 3 << 48 | 1 << 32;
    let case = Case { ws: true, last: Some(mask), ..Case::new("f16", 128, 64, F16) };
    check_by(&case, |row, column| {
        let steps = if column % 7 < 3 { 0 } else { case.steps };
        Case { steps, ..case.clone() }.expected(row, column)
    });
}

#[test]
fn collector_buffers() {
    let plain = Case { steps: 1, ..Case::new("f16", 128, 32, F16) };
    for suffix in [".collector::a::fill", ".collector::a::discard"] {
        check(Case { suffix: suffix.into(), ..plain.clone() });
    }
    let stationary = Case { ws: true, n: 64, ..plain.clone() };
    check(Case { suffix: ".collector::b3::fill".into(), ..stationary });
    let used = Case { suffix: ".collector::a::use".into(), ..plain };
    let fault = used.run_text(&used.ptx(), &Options::default()).unwrap_err();
    assert_eq!(fault.kind, FaultKind::BadOperand);
    assert!(fault.to_string().contains("nothing was filled"), "{fault}");
}

/// A pipelined main loop of a CTA pair, with scales by copies.
#[test]
fn an_mxfp8_gemm_of_a_pair() {
    let problem = MxFp8::new(512);
    for options in schedules() {
        let (d, report) = problem.run(&options).unwrap_or_else(|f| panic!("{f}"));
        assert_eq!(report.macs, 256 * 256 * 512);
        for (at, got) in d.iter().enumerate() {
            let (row, column) = (at / 256, at % 256);
            let want: i32 = (0..problem.k)
                .map(|i| {
                    let scale = MxFp8::exponent(false, row, i / 32) + MxFp8::exponent(true, column, i / 32);
                    (MxFp8::value(false, row, i) * MxFp8::value(true, column, i)) << scale
                })
                .sum();
            assert_eq!(*got, want as f32, "row {row} column {column}");
        }
    }
}
