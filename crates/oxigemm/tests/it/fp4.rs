//! FP4 operands, and FP4 beside FP8: the reference against plain sums of what the codes stand for, forms of scales, groups,
//! and what is refused.

use oxigemm::{
    Addend, DType, Device, Epilogue, FusedOutput, GemmLayout, GemmOptions, GroupedRows, RowGroups, Tensor,
    fp4_gemm_nt, fp8_fp4_bgemm_nt, fp8_fp4_gemm, fp8_fp4_gemm_nt, fp8_fp4_gemm_nt_fused, fp8_gemm_nt,
    m_grouped_fp4_gemm_nt_masked, m_grouped_fp8_fp4_gemm_nt_contiguous, m_grouped_fp8_fp4_gemm_nt_masked,
    m_grouped_nvfp4_gemm_nt, nvfp4_gemm_nt, random,
};
use proptest::prelude::*;

const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// A matrix `[rows, k]` with its scales: what it stands for, and tensors of it.
struct Matrix {
    values: Vec<f64>,
    codes: Tensor,
    /// Scales as f32, as bytes and as words.
    scales: [Tensor; 3],
}

/// Which numbers an operand has.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    E4m3,
    Fp4,
}

/// How scales are coded.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Codes {
    Ue8m0,
    E4m3,
}

fn bytes(seed: u64, count: usize) -> Vec<u8> {
    (0..count as u64).map(|i| random::bits(seed, i) as u8).collect()
}

impl Matrix {
    /// Random codes, `block` rows and columns with a scale.
    fn new(
        seed: u64,
        kind: Kind,
        [rows, k]: [usize; 2],
        block: [usize; 2],
        code: Codes,
        device: &Device,
    ) -> Matrix {
        let (elements, memory, dtype): (Vec<f64>, Vec<u8>, DType) = match kind {
            Kind::E4m3 => {
                let codes = DType::E4m3.encode(&random::normals(seed, rows * k));
                (DType::E4m3.decode(&codes).into_iter().map(f64::from).collect(), codes, DType::E4m3)
            }
            Kind::Fp4 => {
                let pairs = bytes(seed, rows * k / 2);
                let value = |code: u8| {
                    let magnitude = E2M1[usize::from(code & 7)];
                    if code & 8 == 0 { magnitude } else { -magnitude }
                };
                (pairs.iter().flat_map(|pair| [value(*pair), value(pair >> 4)]).collect(), pairs, DType::U8)
            }
        };
        let [down, across] = [rows.div_ceil(block[0]), k.div_ceil(block[1])];
        let (scale_codes, scales): (Vec<u8>, Vec<f32>) = match code {
            Codes::Ue8m0 => {
                let codes: Vec<u8> = bytes(seed + 1, down * across).iter().map(|x| 122 + x % 10).collect();
                let scales = codes.iter().map(|code| 2f32.powi(i32::from(*code) - 127)).collect();
                (codes, scales)
            }
            Codes::E4m3 => {
                let codes: Vec<u8> = bytes(seed + 1, down * across).iter().map(|x| x % 0x7f).collect();
                let scales = DType::E4m3.decode(&codes);
                (codes, scales)
            }
        };
        let values = elements
            .iter()
            .enumerate()
            .map(|(i, x)| x * f64::from(scales[i / k / block[0] * across + i % k / block[1]]))
            .collect();
        let words: Vec<u8> = scale_codes
            .chunks(across.max(1))
            .flat_map(|row| [row, &vec![0; across.next_multiple_of(4) - across]].concat())
            .collect();
        let byte_type = if code == Codes::E4m3 { DType::E4m3 } else { DType::U8 };
        let columns = if kind == Kind::Fp4 { k / 2 } else { k };
        Matrix {
            values,
            codes: padded(&memory, [rows, columns], dtype, device),
            scales: [
                Tensor::from_slice(&scales, &[down, across], device).unwrap(),
                Tensor::from_bytes(byte_type, &scale_codes, &[down, across], device).unwrap(),
                Tensor::from_bytes(DType::I32, &words, &[down, across.div_ceil(4)], device).unwrap(),
            ],
        }
    }
}

/// Rows of bytes that begin at multiples of 16 bytes.
fn padded(memory: &[u8], [rows, columns]: [usize; 2], dtype: DType, device: &Device) -> Tensor {
    let pitch = (columns + 1).next_multiple_of(32);
    let mut all = vec![0xff; rows * pitch];
    for (row, elements) in memory.chunks(columns.max(1)).enumerate() {
        all[row * pitch..][..columns].copy_from_slice(elements);
    }
    Tensor::from_bytes(dtype, &all, &[rows, pitch], device).unwrap().narrow(1, 0, columns).unwrap()
}

/// `A·Bᵀ`, and the sum of magnitudes.
fn product(a: &[f64], b: &[f64], [m, n, k]: [usize; 3]) -> Vec<(f64, f64)> {
    let dot = |i: usize, j: usize| {
        let pairs = a[i * k..(i + 1) * k].iter().zip(&b[j * k..(j + 1) * k]);
        pairs.fold((0.0, 0.0), |(sum, all), (x, y)| (sum + x * y, all + (x * y).abs()))
    };
    (0..m * n).map(|i| dot(i / n, i % n)).collect()
}

fn expect_close(found: &Tensor, expected: &[(f64, f64)], factor: f64, about: &str) {
    let found = found.to_vec_f32().unwrap();
    assert_eq!(found.len(), expected.len(), "{about}");
    for (i, (found, (sum, all))) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - factor * sum).abs();
        assert!(error <= 2e-7 * factor.abs() * all, "{about}: element {i} is {found} and not {sum}");
    }
}

fn none() -> GemmOptions {
    GemmOptions::default()
}

/// Every pair of types with every granularity.
fn forms() -> Vec<([Kind; 2], usize, [usize; 2])> {
    let kinds =
        [[Kind::Fp4, Kind::Fp4], [Kind::E4m3, Kind::Fp4], [Kind::Fp4, Kind::E4m3], [Kind::E4m3, Kind::E4m3]];
    let of_b = [[1, 32], [1, 128], [128, 128]];
    let all = kinds.into_iter().flat_map(|kinds| {
        [32, 128].into_iter().flat_map(move |a| of_b.into_iter().map(move |b| (kinds, a, b)))
    });
    // FP8 has the same granularity for both, where shapes tell it.
    all.filter(|(kinds, a, [_, b])| kinds.contains(&Kind::Fp4) || a == b).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn the_reference_is_the_sum_of_products(
        form in 0..forms().len(),
        m in prop::sample::select(vec![0usize, 1, 2, 7, 33]),
        n in prop::sample::select(vec![0usize, 1, 5, 127, 128, 129, 257]),
        half_k in prop::sample::select(vec![0usize, 1, 8, 16, 17, 61, 64, 65, 97, 160]),
        seed in 0u64..1000,
    ) {
        let (kinds, block_a, block_b) = forms()[form];
        let (k, device) = (2 * half_k, Device::cpu());
        let a = Matrix::new(seed, kinds[0], [m, k], [1, block_a], Codes::Ue8m0, &device);
        let b = Matrix::new(seed + 7, kinds[1], [n, k], block_b, Codes::Ue8m0, &device);
        let expected = product(&a.values, &b.values, [m, n, k]);
        let mut first = None;
        for form in 0..3 {
            let about = format!("{kinds:?} {block_a} {block_b:?} {m}x{n}x{k}, form {form}");
            // The words of up to 128 of K do not tell what they are of.
            let told = kinds.contains(&Kind::Fp4) && (block_a == 128 || block_b[1] == 128);
            if form == 2 && k <= 128 && (told || block_a == 32 && !kinds.contains(&Kind::Fp4)) {
                continue;
            }
            let mut d = Tensor::zeros(DType::F32, &[m, n], &device).unwrap();
            let (a, b) = ((&a.codes, &a.scales[form]), (&b.codes, &b.scales[form]));
            fp8_fp4_gemm_nt(a, b, Addend::None, &mut d, &none()).unwrap_or_else(|error| panic!("{about}: {error}"));
            expect_close(&d, &expected, 1.0, &about);
            let bits = d.to_bytes().unwrap();
            prop_assert!(first.get_or_insert_with(|| bits.clone()) == &bits, "{}", about);
        }
    }

    #[test]
    fn nvfp4_is_the_sum_of_products(
        m in prop::sample::select(vec![0usize, 1, 7, 33]),
        n in prop::sample::select(vec![0usize, 1, 5, 129]),
        half_k in prop::sample::select(vec![1usize, 7, 8, 9, 31, 32, 33, 101]),
        seed in 0u64..1000,
        scale in prop::sample::select(vec![1f32, 0.37]),
    ) {
        let (k, device) = (2 * half_k, Device::cpu());
        let a = Matrix::new(seed, Kind::Fp4, [m, k], [1, 16], Codes::E4m3, &device);
        let b = Matrix::new(seed + 7, Kind::Fp4, [n, k], [1, 16], Codes::E4m3, &device);
        let expected = product(&a.values, &b.values, [m, n, k]);
        for form in 1..3 {
            let about = format!("{m}x{n}x{k}, form {form}");
            let mut d = Tensor::zeros(DType::F32, &[m, n], &device).unwrap();
            let (a, b) = ((&a.codes, &a.scales[form]), (&b.codes, &b.scales[form]));
            nvfp4_gemm_nt(a, b, Addend::None, &mut d, [scale, 2.0 / scale], &none()).unwrap();
            expect_close(&d, &expected, f64::from(scale * (2.0 / scale)), &about);
            nvfp4_gemm_nt(a, b, Addend::None, &mut d, [1.0, 1.0], &none()).unwrap();
            expect_close(&d, &expected, 1.0, &about);
        }
    }
}

/// Groups and batches are dense GEMMs of each.
#[test]
fn groups_are_gemms_of_their_own() {
    let (groups, m, n, k, device) = (3, 6, 130, 192, Device::cpu());
    for (kinds, block_a, block_b) in forms() {
        let all_a = Matrix::new(1, kinds[0], [groups * m, k], [1, block_a], Codes::Ue8m0, &device);
        let all_b: Vec<Matrix> = (0..groups as u64)
            .map(|group| Matrix::new(10 + group, kinds[1], [n, k], block_b, Codes::Ue8m0, &device))
            .collect();
        let stacked = |tensors: Vec<&Tensor>| {
            let dims = [&[groups], tensors[0].dims()].concat();
            let bytes: Vec<u8> = tensors.iter().flat_map(|x| x.to_bytes().unwrap()).collect();
            Tensor::from_bytes(tensors[0].dtype(), &bytes, &dims, &device).unwrap()
        };
        for form in 0..3 {
            let about = format!("{kinds:?} {block_a} {block_b:?}, form {form}");
            let b = stacked(all_b.iter().map(|b| &b.codes).collect());
            let sfb = stacked(all_b.iter().map(|b| &b.scales[form]).collect());
            let (a, sfa) = (all_a.codes.contiguous().unwrap(), &all_a.scales[form]);
            let slabs = |x: &Tensor| x.view(&[groups, m, x.dims()[1]]).unwrap();
            let (a3, sfa3) = (slabs(&a), slabs(sfa));
            let expected: Vec<Vec<(f64, f64)>> = (0..groups)
                .map(|g| product(&all_a.values[g * m * k..][..m * k], &all_b[g].values, [m, n, k]))
                .collect();
            let zeros = |dims: &[usize]| Tensor::zeros(DType::F32, dims, &device).unwrap();
            let mut d = zeros(&[groups, m, n]);
            fp8_fp4_bgemm_nt((&a3, &sfa3), (&b, &sfb), &mut d, &none()).unwrap();
            expect_close(&d, &expected.concat(), 1.0, &about);

            let counts = [m, 0, 2];
            let numbers = Tensor::from_slice(&counts.map(|x| x as i32), &[groups], &device).unwrap();
            let mut d = zeros(&[groups, m, n]);
            m_grouped_fp8_fp4_gemm_nt_masked((&a3, &sfa3), (&b, &sfb), &mut d, &numbers, 4, &none()).unwrap();
            let masked: Vec<_> = (0..groups)
                .flat_map(|g| expected[g].iter().enumerate().map(move |(i, x)| (g, i, *x)))
                .map(|(g, i, x)| if i / n < counts[g] { x } else { (0.0, 0.0) })
                .collect();
            expect_close(&d, &masked, 1.0, &about);

            let ids: Vec<i32> = (0..groups * m).map(|row| (row / m) as i32).collect();
            let ends: Vec<i32> = (1..=groups).map(|g| (g * m) as i32).collect();
            let [ids, ends] = [ids, ends].map(|x| Tensor::from_slice(&x, &[x.len()], &device).unwrap());
            for rows in [GroupedRows::Ids(&ids), GroupedRows::Ends(&ends)] {
                let mut d = zeros(&[groups * m, n]);
                let (a, b) = ((&a, sfa), (&b, &sfb));
                m_grouped_fp8_fp4_gemm_nt_contiguous(a, b, &mut d, rows, 1, None, &none()).unwrap();
                expect_close(&d, &expected.concat(), 1.0, &about);
            }
        }
    }
}

/// Operands that begin with K are views, C is added, and an epilogue is fused.
#[test]
fn layouts_addends_and_epilogues() {
    let (m, n, k, device) = (5, 9, 96, Device::cpu());
    let a = Matrix::new(1, Kind::E4m3, [m, k], [1, 32], Codes::Ue8m0, &device);
    let b = Matrix::new(2, Kind::Fp4, [n, k], [1, 32], Codes::Ue8m0, &device);
    let expected = product(&a.values, &b.values, [m, n, k]);
    let flip = |x: &Tensor, flip: bool| if flip { x.transpose(0, 1).unwrap() } else { x.clone() };
    for layout in GemmLayout::ALL {
        let (a_first, b_first) = (layout.a_begins_with_k(), layout.b_begins_with_k());
        for form in 0..3 {
            let (codes_a, sfa) = (flip(&a.codes, a_first), flip(&a.scales[form], a_first));
            let (codes_b, sfb) = (flip(&b.codes, b_first), flip(&b.scales[form], b_first));
            if form == 2 {
                continue; // words of 96 of K are taken as those of 32: as in the other forms
            }
            let mut d = Tensor::zeros(DType::F32, &[m, n], &device).unwrap();
            let (a, b) = ((&codes_a, &sfa), (&codes_b, &sfb));
            fp8_fp4_gemm(layout, a, b, Addend::None, &mut d, &none()).unwrap();
            expect_close(&d, &expected, 1.0, &format!("{layout}"));
            fp8_fp4_gemm(layout, a, b, Addend::InPlace, &mut d, &none()).unwrap();
            expect_close(&d, &expected, 2.0, &format!("{layout} twice"));
        }
    }
    let mut d = Tensor::zeros(DType::F32, &[m, n], &device).unwrap();
    let epilogue = Epilogue { alpha: -3.0, ..Default::default() };
    let (a, b) = ((&a.codes, &a.scales[2]), (&b.codes, &b.scales[2]));
    fp8_fp4_gemm_nt_fused(a, b, Addend::None, FusedOutput::Matrix(&mut d), &epilogue, &none()).unwrap();
    expect_close(&d, &expected, -3.0, "alpha");
}

#[test]
fn grouped_nvfp4() {
    let (groups, m, n, k, device) = (2, 3, 4, 48, Device::cpu());
    let a = Matrix::new(1, Kind::Fp4, [groups * m, k], [1, 16], Codes::E4m3, &device);
    let b = Matrix::new(2, Kind::Fp4, [groups * n, k], [1, 16], Codes::E4m3, &device);
    let view = |x: &Tensor| {
        let x = x.contiguous().unwrap();
        x.view(&[groups, x.dims()[0] / groups, x.dims()[1]]).unwrap()
    };
    let aligned = |x: &Matrix| {
        let [rows, columns] = [x.codes.dims()[0], 32];
        let mut wide = Tensor::zeros(DType::U8, &[rows, columns], &device).unwrap();
        wide.narrow(1, 0, k / 2).unwrap().copy_from(&x.codes).unwrap();
        wide = wide.view(&[groups, rows / groups, columns]).unwrap();
        wide.narrow(2, 0, k / 2).unwrap()
    };
    let ends = Tensor::from_slice(&[m as i32, (groups * m) as i32], &[groups], &device).unwrap();
    let groups_of_rows =
        RowGroups::Contiguous { rows: GroupedRows::Ends(&ends), alignment: 1, expected_m: None };
    let mut d = Tensor::zeros(DType::F32, &[groups * m, n], &device).unwrap();
    let (b_codes, sfb) = (aligned(&b), view(&b.scales[1]));
    let operands = ((&a.codes, &a.scales[1]), (&b_codes, &sfb));
    m_grouped_nvfp4_gemm_nt(operands.0, operands.1, &mut d, groups_of_rows, [0.5, 3.0], &none()).unwrap();
    let expected: Vec<_> = (0..groups)
        .flat_map(|g| product(&a.values[g * m * k..][..m * k], &b.values[g * n * k..][..n * k], [m, n, k]))
        .collect();
    expect_close(&d, &expected, 1.5, "nvfp4 in groups");
}

#[test]
fn what_is_refused_is_named() {
    let (m, n, k, device) = (16, 128, 256, Device::cpu());
    let fp4 = |rows: usize| Tensor::zeros(DType::U8, &[rows, k / 2], &device).unwrap();
    let fp8 = |rows: usize| Tensor::zeros(DType::E4m3, &[rows, k], &device).unwrap();
    let of = |dtype, rows: usize, columns: usize| Tensor::zeros(dtype, &[rows, columns], &device).unwrap();
    let scales = |rows: usize| of(DType::F32, rows, k / 32);
    let d = || of(DType::F32, m, n);
    let refuse = |result: oxigemm::Result<()>, argument: &str, words: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.argument(), Some(argument), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    let both = |a: &Tensor, sfa: &Tensor, b: &Tensor, sfb: &Tensor| {
        fp8_fp4_gemm_nt((a, sfa), (b, sfb), Addend::None, &mut d(), &none())
    };
    let (a, b) = (fp4(m), fp4(n));
    let fp8_only = fp8_gemm_nt((&a, &scales(m)), (&b, &scales(n)), Addend::None, &mut d(), &none());
    refuse(fp8_only, "a", "the functions for FP4");
    let wrong = fp4_gemm_nt((&fp8(m), &scales(m)), (&b, &scales(n)), Addend::None, &mut d(), &none());
    refuse(wrong, "a", "two e2m1 codes each");
    let e5m2 = of(DType::E5m2, m, k);
    refuse(both(&e5m2, &scales(m), &b, &scales(n)), "a", "e4m3 or u8");
    refuse(both(&a, &of(DType::F32, m, 7), &b, &scales(n)), "sfa", "one per row of `a` and 32 of K");
    refuse(both(&a, &scales(m), &b, &of(DType::F32, 4, 8)), "sfb", "one per row of `b` and 32 of K");
    refuse(both(&fp8(m), &scales(m), &fp4(n).narrow(1, 0, 64).unwrap(), &scales(n)), "b", "[128, 128]");
    refuse(both(&of(DType::E4m3, m, 15), &of(DType::F32, m, 1), &b, &scales(n)), "a", "an even K");
    refuse(both(&a, &of(DType::I32, m, 3), &b, &scales(n)), "sfa", "of four scales each");
    let flat = of(DType::U8, k / 2, n);
    let n_major = fp8_fp4_gemm(
        GemmLayout::Nn,
        (&a, &scales(m)),
        (&flat, &scales(n).transpose(0, 1).unwrap()),
        Addend::None,
        &mut d(),
        &none(),
    );
    refuse(n_major, "b", "a stride of 1 along the first dimension");
    let nv = |sfa: &Tensor, sfb: &Tensor| {
        nvfp4_gemm_nt((&a, sfa), (&b, sfb), Addend::None, &mut d(), [1.0; 2], &none())
    };
    refuse(nv(&of(DType::F32, m, 16), &of(DType::E4m3, n, 16)), "sfa", "e4m3 or u8 or i32");
    refuse(nv(&of(DType::E4m3, m, 16), &of(DType::E4m3, n, 8)), "sfb", "one per row of `b` and 16 of K");
    let masked = Tensor::zeros(DType::I32, &[2], &device).unwrap();
    let slabs = |x: &Tensor| x.view(&[2, x.dims()[0] / 2, x.dims()[1]]).unwrap();
    let grouped = m_grouped_fp4_gemm_nt_masked(
        (&slabs(&fp8(m)), &slabs(&scales(m))),
        (&slabs(&b), &slabs(&scales(n))),
        &mut slabs(&d()),
        &masked,
        4,
        &none(),
    );
    refuse(grouped, "a", "two e2m1 codes each");
}

/// Hopper has no FP4 beside FP4; Blackwell's kernels are asked for by name.
#[test]
fn what_an_architecture_lacks_is_named() {
    for (name, words) in [("sim", "of sm_90a has no FP4"), ("sim:sm_100a", "on sm_100a")] {
        let device: Device = name.parse().unwrap();
        let a = Tensor::zeros(DType::U8, &[16, 128], &device).unwrap();
        let scales = Tensor::zeros(DType::U8, &[16, 8], &device).unwrap();
        let mut d = Tensor::zeros(DType::Bf16, &[16, 16], &device).unwrap();
        let refused = fp4_gemm_nt((&a, &scales), (&a, &scales), Addend::None, &mut d, &none());
        if let Err(error) = refused {
            assert!(error.to_string().contains(words), "{error}");
        } else {
            assert_eq!(name, "sim:sm_100a");
        }
    }
}
