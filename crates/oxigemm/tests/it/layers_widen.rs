//! MXFP4 as FP8: exact wherever it can be, element by element, and counted where it cannot.

use oxigemm::layers::{QuantizedWeight, Recipe, WeightScales, widen_mxfp4};
use oxigemm::{DType, random};
use proptest::prelude::*;

/// The value of an e2m1 code by its definition.
fn e2m1(code: u8) -> f64 {
    let magnitude = match (code >> 1 & 3, code & 1) {
        (0, m) => f64::from(m) / 2.0,
        (e, m) => (1.0 + f64::from(m) / 2.0) * 2f64.powi(i32::from(e) - 1),
    };
    if code & 8 == 0 { magnitude } else { -magnitude }
}

fn weight(dims: [usize; 3], codes: Vec<u8>, exponents: Vec<u8>) -> QuantizedWeight {
    let scales = WeightScales::E8m0 { block: [1, 32], values: exponents };
    QuantizedWeight::from_parts(Recipe::Mxfp4, dims, codes, scales).unwrap()
}

/// Compares each FP8 value with that of MXFP4 in f64; gives how many differ.
fn differences(
    [groups, n, k]: [usize; 3],
    codes: &[u8],
    exponents: &[u8],
    source: &QuantizedWeight,
    block: [usize; 2],
) -> usize {
    let wide = widen_mxfp4(source, block).unwrap();
    let values = DType::E4m3.decode(&wide.codes);
    let (bands, across) = (n.div_ceil(block[0]), k.div_ceil(block[1]));
    assert_eq!(wide.scales.len(), groups * bands * across);
    for scale in &wide.scales {
        assert!(scale.is_normal() && scale.to_bits() & 0x7f_ffff == 0, "a normal power of two: {scale}");
    }
    let mut different = 0;
    for row in 0..groups * n {
        for column in 0..k {
            let at = row * k + column;
            let exponent = exponents[row * k.div_ceil(32) + column / 32];
            let scale = if exponent == 255 { f64::NAN } else { 2f64.powi(i32::from(exponent) - 127) };
            let exact = e2m1(codes[at / 2] >> (at % 2 * 4) & 15) * scale;
            let (group, row) = (row / n, row % n);
            let scale = wide.scales[(group * bands + row / block[0]) * across + column / block[1]];
            let found = f64::from(values[at]) * f64::from(scale);
            let same = found == exact || (found.is_nan() && exact.is_nan());
            different += usize::from(!same);
            if same && exact == 0.0 {
                assert_eq!(found.is_sign_negative(), exact.is_sign_negative(), "the sign of 0");
            }
            if !same {
                // The nearest code: off by at most half of the smallest one.
                assert!((found - exact).abs() <= f64::from(scale) * 2f64.powi(-10), "{found} for {exact}");
            }
        }
    }
    assert_eq!(wide.changed, different, "what was rounded is counted");
    assert_eq!(wide.lossy_blocks > 0, different > 0, "a block that loses something is counted");
    different
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any codes and any exponents, also those of NaN and of the smallest scales.
    #[test]
    fn scales_of_32_are_always_exact(
        (groups, n, half) in (1..3usize, 1..40usize, 1..100usize), seed: u64, narrow: bool,
    ) {
        let k = 2 * half;
        // The low bits of normal numbers are as good as any.
        let draw = |seed: u64, count: usize| {
            random::normals(seed, count).into_iter().map(|x| x.to_bits() as u8).collect::<Vec<u8>>()
        };
        let codes = draw(seed, groups * n * half);
        let mut exponents = draw(!seed, groups * n * k.div_ceil(32));
        if narrow {
            exponents.iter_mut().for_each(|exponent| *exponent = 120 + *exponent % 12);
        }
        let source = weight([groups, n, k], codes.clone(), exponents.clone());
        prop_assert_eq!(differences([groups, n, k], &codes, &exponents, &source, [1, 32]), 0);
        let lost = differences([groups, n, k], &codes, &exponents, &source, [128, 128]);
        if narrow {
            prop_assert_eq!(lost, 0, "12 binades fit in a block, whatever the codes are");
        }
    }
}

/// 0.5 of one 32 and 6 of another, so many binades apart: exact up to 14, rounded from 15 on.
#[test]
fn a_block_holds_scales_that_are_14_binades_apart() {
    for apart in 0..=20u8 {
        for [low, high] in [[0x11u8, 0x77], [0x99, 0xff], [0x33, 0x77]] {
            let codes = [[high; 16], [low; 16]].concat();
            let exponents = vec![100 + apart, 100];
            let source = weight([1, 1, 64], codes.clone(), exponents.clone());
            let lost = differences([1, 1, 64], &codes, &exponents, &source, [128, 128]);
            assert_eq!(lost, if apart <= 14 { 0 } else { 32 }, "{apart} binades");
        }
    }
}

/// What decides is which codes there are, not the exponents: zeros have any, and powers of two need one bit.
#[test]
fn codes_that_are_not_there_do_not_count() {
    let only = |codes: [u8; 2], exponents: [u8; 2]| {
        let codes = codes.map(|code| [code; 16]).concat();
        let source = weight([1, 1, 64], codes.clone(), exponents.to_vec());
        differences([1, 1, 64], &codes, &exponents, &source, [128, 128])
    };
    assert_eq!(only([0x00, 0x77], [0, 254]), 0, "zeros with the smallest scale");
    assert_eq!(only([0x88, 0x77], [254, 1]), 0, "zeros with the largest scale");
    assert_eq!(only([0x66, 0x44], [127, 127 - 16]), 0, "4 and 2 · 2^-16: 2^2 is 2^8 here, 2^-15 is 2^-9");
    assert_eq!(only([0x66, 0x44], [127, 127 - 17]), 0x20, "2 · 2^-17 is below the last bit");
    assert_eq!(only([0x77, 0x77], [255, 130]), 0, "NaN has no magnitude");
}

#[test]
fn other_weights_and_blocks_are_refused() {
    let fp8 = QuantizedWeight::quantize(&[1.0f32; 64], [1, 2, 32], Recipe::Mxfp8).unwrap();
    let error = widen_mxfp4(&fp8, [1, 32]).unwrap_err().to_string();
    assert!(error.contains("expected mxfp4 weights, found mxfp8 weights"), "{error}");
    let mxfp4 = QuantizedWeight::quantize(&[1.0f32; 64], [1, 2, 32], Recipe::Mxfp4).unwrap();
    for block in [[0, 32], [1, 0], [1, 48]] {
        let error = widen_mxfp4(&mxfp4, block).unwrap_err();
        assert_eq!(error.argument(), Some("block"));
    }
}
