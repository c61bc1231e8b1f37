//! The reference against the sum that defines it, one value at a time.

use oxigemm::cast::{Quantized, ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
use oxigemm::metrics::{calc_diff, max_rel_error};
use oxigemm::reference::{self, Fp8Matrix};
use oxigemm::{DType, Device, Error, F8E4M3, Tensor, random};
use proptest::prelude::*;

fn operands(m: usize, n: usize, k: usize, seed: u64) -> (Quantized, Quantized) {
    let a = per_token_cast_to_fp8(&random::normals(seed, m * k), m, k, ScaleFormat::F32).unwrap();
    let b = per_block_cast_to_fp8(&random::normals(seed + 1, n * k), n, k, ScaleFormat::F32).unwrap();
    (a, b)
}

/// D[i,j] = sum over K of (code of A · scale of A) · (code of B · scale of B), in f64.
fn by_definition(a: &Fp8Matrix<'_>, b: &Fp8Matrix<'_>) -> Vec<f64> {
    let value = |x: &Fp8Matrix<'_>, row: usize, k: usize| {
        let [group, block] = x.scale_strides;
        let scale = x.scales[row / x.rows_per_scale * group + k / 128 * block];
        F8E4M3::from_bits(x.codes[row * x.pitch + k]).to_f64() * f64::from(scale)
    };
    let mut product = Vec::new();
    for i in 0..a.rows {
        for j in 0..b.rows {
            product.push((0..a.k).map(|k| value(a, i, k) * value(b, j, k)).sum());
        }
    }
    product
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn it_is_the_sum_that_defines_it(
        (m, n, k) in (0..140usize, 0..140usize, 0..300usize), seed in any::<u32>(),
    ) {
        let (a, b) = operands(m, n, k, seed.into());
        let product = reference::fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None).unwrap();
        prop_assert_eq!(product.len(), m * n);
        prop_assert!(calc_diff(&product, &by_definition(&a.as_matrix(), &b.as_matrix())) < 1e-28);
    }

    #[test]
    fn strides_do_not_change_the_result(
        (m, n, k) in (1..40usize, 1..200usize, 1..400usize), pad in 0..20usize, seed in any::<u32>(),
    ) {
        let (a, b) = operands(m, n, k, seed.into());
        let pitched = |x: &Quantized| -> Vec<u8> {
            x.codes.chunks(k).flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(0x7f, pad))).collect()
        };
        // MN-major scales, with padding too.
        let transposed = |x: &Quantized| -> Vec<f32> {
            let [groups, blocks] = x.scale_dims();
            let column = |block| (0..groups).map(move |group| (group, block));
            (0..blocks)
                .flat_map(|block| {
                    column(block)
                        .map(|(group, block)| x.scales[group * blocks + block])
                        .chain(std::iter::repeat_n(f32::NAN, pad))
                        .collect::<Vec<_>>()
                })
                .collect()
        };
        let (a_codes, b_codes, a_scales, b_scales) = (pitched(&a), pitched(&b), transposed(&a), transposed(&b));
        let a_view = Fp8Matrix {
            codes: &a_codes, scales: &a_scales, pitch: k + pad,
            scale_strides: [1, a.scale_dims()[0] + pad], ..a.as_matrix()
        };
        let b_view = Fp8Matrix {
            codes: &b_codes, scales: &b_scales, pitch: k + pad,
            scale_strides: [1, b.scale_dims()[0] + pad], ..b.as_matrix()
        };
        prop_assert_eq!(
            reference::fp8_gemm_nt(&a_view, &b_view, None).unwrap(),
            reference::fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None).unwrap()
        );
    }
}

#[test]
fn selected_rows_are_the_rows_of_the_whole() {
    let (a, b) = operands(300, 50, 260, 3);
    let whole = reference::fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None).unwrap();
    let rows = [299, 0, 0, 128, 131];
    let some = reference::fp8_gemm_nt_rows(&a.as_matrix(), &b.as_matrix(), &rows).unwrap();
    for (row, values) in rows.into_iter().zip(some.chunks(50)) {
        assert_eq!(values, &whole[row * 50..][..50]);
    }
    let error = reference::fp8_gemm_nt_rows(&a.as_matrix(), &b.as_matrix(), &[300]).unwrap_err();
    assert!(matches!(error, Error::Shape { argument: "rows", .. }));
}

#[test]
fn quantization_costs_what_the_peer_measures() {
    let (m, n, k) = (128, 256, 1024);
    let (x, y) = (random::normals(1, m * k), random::normals(2, n * k));
    let a = per_token_cast_to_fp8(&x, m, k, ScaleFormat::F32).unwrap();
    let b = per_block_cast_to_fp8(&y, n, k, ScaleFormat::F32).unwrap();
    let product = reference::fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None).unwrap();
    let unquantized: Vec<f32> = x
        .chunks(k)
        .flat_map(|x| y.chunks(k).map(move |y| x.iter().zip(y).map(|(x, y)| x * y).sum::<f32>()))
        .collect();
    let diff = calc_diff(&product, &unquantized);
    assert!((5e-4..1e-3).contains(&diff), "{diff}");
}

#[test]
fn operands_that_are_too_short_are_refused() {
    let (a, b) = operands(4, 4, 200, 5);
    let (a, b) = (a.as_matrix(), b.as_matrix());
    let codes = Fp8Matrix { codes: &a.codes[1..], ..a };
    assert!(matches!(reference::fp8_gemm_nt(&codes, &b, None), Err(Error::Shape { argument: "a", .. })));
    let scales = Fp8Matrix { scales: &b.scales[1..], ..b };
    assert!(matches!(
        reference::fp8_gemm_nt(&a, &scales, None),
        Err(Error::ScaleShape { argument: "b", .. })
    ));
    let no_rows = Fp8Matrix { rows_per_scale: 0, ..b };
    assert!(matches!(
        reference::fp8_gemm_nt(&a, &no_rows, None),
        Err(Error::ScaleShape { argument: "b", .. })
    ));
    let far = Fp8Matrix { pitch: usize::MAX, ..b };
    assert!(matches!(reference::fp8_gemm_nt(&a, &far, None), Err(Error::Shape { argument: "b", .. })));
    let wider = Fp8Matrix { k: 199, ..b };
    assert!(matches!(reference::fp8_gemm_nt(&a, &wider, None), Err(Error::Shape { argument: "b", .. })));
    assert!(matches!(
        reference::fp8_gemm_nt(&a, &b, Some(&[0.0; 15])),
        Err(Error::Shape { argument: "c", .. })
    ));
}

/// Tensors of the problem on the CPU, the scales of A in MN-major order.
fn tensors(m: usize, n: usize, k: usize) -> [Tensor; 4] {
    let (a, b) = operands(m, n, k, 11);
    let cpu = &Device::Cpu;
    let scales = |x: &Quantized| Tensor::from_slice(&x.scales, &x.scale_dims(), cpu).unwrap();
    let mut sfa = Tensor::zeros(DType::F32, &[k.div_ceil(128), m], cpu).unwrap().transpose(0, 1).unwrap();
    sfa.copy_from(&scales(&a)).unwrap();
    [
        Tensor::from_bytes(DType::E4m3, &a.codes, &[m, k], cpu).unwrap(),
        sfa,
        Tensor::from_bytes(DType::E4m3, &b.codes, &[n, k], cpu).unwrap(),
        scales(&b),
    ]
}

#[test]
fn tensors_give_the_rounded_product_with_and_without_c() {
    let (m, n, k) = (33, 136, 304);
    let [a, sfa, b, sfb] = tensors(m, n, k);
    let (qa, qb) = operands(m, n, k, 11);
    let values = random::normals(9, m * n);
    for dtype in [DType::Bf16, DType::F32] {
        let c = Tensor::from_f32(dtype, &values, &[m, n], &Device::Cpu).unwrap();
        let exact = |c: Option<&[f32]>| reference::fp8_gemm_nt(&qa.as_matrix(), &qb.as_matrix(), c).unwrap();
        let mut d = Tensor::empty(dtype, &[m, n], &Device::Cpu).unwrap();
        reference::fp8_gemm_nt_tensors(&a, &sfa, &b, &sfb, None, &mut d).unwrap();
        let ulp = if dtype == DType::Bf16 { 0.0040 } else { 6e-8 };
        assert!(max_rel_error(&d.to_vec_f32().unwrap(), &exact(None)) < ulp);
        reference::fp8_gemm_nt_tensors(&a, &sfa, &b, &sfb, Some(&c), &mut d).unwrap();
        let sum = exact(Some(&c.to_vec_f32().unwrap()));
        assert!(max_rel_error(&d.to_vec_f32().unwrap(), &sum) < ulp);
        // In place: C and D are the same memory.
        let mut in_place = c.contiguous().unwrap();
        let same = in_place.clone();
        reference::fp8_gemm_nt_tensors(&a, &sfa, &b, &sfb, Some(&same), &mut in_place).unwrap();
        assert_eq!(in_place.to_bytes().unwrap(), d.to_bytes().unwrap());
    }
}

#[test]
fn without_k_d_becomes_c_or_zero() {
    let cpu = &Device::Cpu;
    let [a, sfa, b, sfb] = tensors(3, 8, 0);
    let c = Tensor::from_f32(DType::F32, &[2.5; 24], &[3, 8], cpu).unwrap();
    let mut d = Tensor::from_f32(DType::F32, &[7.0; 24], &[3, 8], cpu).unwrap();
    reference::fp8_gemm_nt_tensors(&a, &sfa, &b, &sfb, Some(&c), &mut d).unwrap();
    assert_eq!(d.to_vec_f32().unwrap(), [2.5; 24]);
    reference::fp8_gemm_nt_tensors(&a, &sfa, &b, &sfb, None, &mut d).unwrap();
    assert_eq!(d.to_vec_f32().unwrap(), [0.0; 24]);
    let [a, sfa, b, sfb] = tensors(0, 8, 512);
    let mut d = Tensor::empty(DType::F32, &[0, 8], cpu).unwrap();
    reference::fp8_gemm_nt_tensors(&a, &sfa, &b, &sfb, None, &mut d).unwrap();
}
