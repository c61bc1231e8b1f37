//! One scale for a row, for a matrix, or for a group: the product is that of the same scales written out, bit for bit.

use crate::common::{self, same_bits, schedules};
use oxigemm::Granularity;
use oxigemm::cast::{Quantized, ScaleFormat, cast_to_fp8};
use oxigemm::metrics::calc_diff;
use oxigemm::plan::{self, GemmConfig};
use oxigemm::{
    Addend, DType, Device, GemmOptions, GroupedRows, RawGemm, RawMatrix, RawScaleFactors, Sim, Tensor,
    fp8_gemm_nt, gemm_raw, m_grouped_fp8_gemm_nt_contiguous, m_grouped_fp8_gemm_nt_masked, random, reference,
};

/// The granularities of A and of B.
const MODES: [[Granularity; 2]; 4] = [
    [Granularity::PerRow, Granularity::PerTensor],
    [Granularity::PerTensor, Granularity::PerTensor],
    [Granularity::PerRow, Granularity::PerBlock],
    [Granularity::PerToken, Granularity::PerTensor],
];

fn cast(seed: u64, rows: usize, k: usize, granularity: Granularity) -> Quantized {
    let values = random::normals(seed, rows * k);
    cast_to_fp8(&values, rows, k, DType::E4m3, granularity, ScaleFormat::F32).unwrap()
}

fn scales(x: &Quantized, device: &Device) -> Tensor {
    Tensor::from_slice(&x.scales, &x.scale_dims(), device).unwrap()
}

/// One scale for each `rows_per_scale` rows and 128 of K, whatever they share.
fn written_out(x: &Quantized, rows_per_scale: usize, device: &Device) -> Tensor {
    let (rows, blocks) = (x.rows.div_ceil(rows_per_scale), x.k.div_ceil(128));
    let columns = x.scale_dims()[1];
    let scale = |i: usize| {
        let (row, block) = (i / blocks * rows_per_scale / x.rows_per_scale, i % blocks * 128 / x.k_per_scale);
        x.scales[row * columns + block]
    };
    let values: Vec<f32> = (0..rows * blocks).map(scale).collect();
    Tensor::from_slice(&values, &[rows, blocks], device).unwrap()
}

fn product(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    [m, n]: [usize; 2],
    choice: Option<GemmConfig>,
) -> Tensor {
    let mut d = Tensor::empty(DType::F32, &[m, n], a.0.device()).unwrap();
    let options = GemmOptions { config: choice, ..Default::default() };
    fp8_gemm_nt(a, b, Addend::None, &mut d, &options).unwrap_or_else(|error| panic!("{choice:?}: {error}"));
    d
}

#[test]
fn shared_scales_are_as_those_written_out_in_every_kernel_family() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    for (i, name) in [
        "sm90_fp8_persistent_128x144_s4_c1x2",
        "sm90_fp8_persistent_64x64_s12_c2x1",
        "sm90_fp8_split_k_8x64_k2_s3",
        "sm90_fp8_split_k_64x64_k1_s2",
    ]
    .into_iter()
    .enumerate()
    {
        let choice = plan::parse(name);
        let [m, n, k] = [if i < 2 { 133 } else { 9 }, 150, 128 * 9 + 16];
        for [of_a, of_b] in MODES {
            let (a, b) = (cast(1, m, k, of_a), cast(2, n, k, of_b));
            let (a_codes, b_codes) = (common::codes(&a, &device), common::codes(&b, &device));
            let (sfa, sfb) = (scales(&a, &device), scales(&b, &device));
            let exact = reference::fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None).unwrap();
            let (full_a, full_b) = (written_out(&a, 1, &device), written_out(&b, 128, &device));
            let full = product((&a_codes, &full_a), (&b_codes, &full_b), [m, n], choice).to_bytes().unwrap();
            same_bits(name, schedules().skip(i % 3).step_by(3), &sim, |about| {
                let d = product((&a_codes, &sfa), (&b_codes, &sfb), [m, n], choice);
                let diff = calc_diff(&d.to_vec_f32().unwrap(), &exact);
                assert!(diff < 1e-6, "{about} {of_a:?} {of_b:?}: {diff}");
                let bytes = d.to_bytes().unwrap();
                assert_eq!(bytes, full, "{about} {of_a:?} {of_b:?}: not as written out");
                bytes
            });
        }
    }
}

#[test]
fn a_single_number_is_a_scale_for_all() {
    for device in [Device::cpu(), Device::sim()] {
        let (m, n, k) = (5, 130, 300);
        let (a, b) = (cast(3, m, k, Granularity::PerTensor), cast(4, n, k, Granularity::PerTensor));
        let (a_codes, b_codes) = (common::codes(&a, &device), common::codes(&b, &device));
        let exact = reference::fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None).unwrap();
        let number = |x: &Quantized| Tensor::from_slice(&x.scales, &[1], &device).unwrap();
        let (sfa, sfb) = (number(&a), number(&b));
        let d = product((&a_codes, &sfa), (&b_codes, &sfb), [m, n], None);
        let diff = calc_diff(&d.to_vec_f32().unwrap(), &exact);
        assert!(diff < 1e-6, "{diff}");
        if !matches!(device, Device::Cpu) {
            let raw_d = Tensor::empty(DType::F32, &[m, n], &device).unwrap();
            let pitched = |x: &Tensor| RawMatrix::new(x.address(), DType::E4m3, x.strides()[0]);
            let [of_a, of_b] = [&sfa, &sfb].map(|x| RawScaleFactors::new(x.address(), [0, 0]));
            let to = RawMatrix::new(raw_d.address(), DType::F32, n);
            let gemm =
                RawGemm::new([m, n, k], pitched(&a_codes), pitched(&b_codes), to).with_scales(of_a, of_b);
            // SAFETY: the tensors live on, and nobody else uses them.
            unsafe { gemm_raw(&device, &gemm, &GemmOptions::default()).unwrap() };
            assert_eq!(raw_d.to_bytes().unwrap(), d.to_bytes().unwrap());
        }
    }
}

#[test]
fn groups_have_a_scale_each_or_one_for_all() {
    let (groups, m, n, k) = (3, 20, 72, 300usize);
    let rows = groups * m;
    let pitch = k.next_multiple_of(16);
    let padded = |x: &Quantized, device: &Device| -> Tensor {
        let rows = x.rows;
        let mut bytes = vec![0; rows * pitch];
        x.codes.chunks(k).enumerate().for_each(|(i, row)| bytes[i * pitch..][..k].copy_from_slice(row));
        Tensor::from_bytes(DType::E4m3, &bytes, &[rows, pitch], device).unwrap()
    };
    let a = cast(5, rows, k, Granularity::PerRow);
    let b = cast(6, groups * n, k, Granularity::PerTensor);
    let group_scales = [b.scales[0], 2.0 * b.scales[0], 0.5 * b.scales[0]];
    let mut results: Vec<Vec<f32>> = Vec::new();
    for device in [Device::cpu(), Device::sim()] {
        let a_codes = padded(&a, &device).narrow(1, 0, k).unwrap();
        let cube = |rows: usize, x: &Quantized| {
            padded(x, &device).view(&[groups, rows, pitch]).unwrap().narrow(2, 0, k).unwrap()
        };
        let (a_cube, b_cube) = (cube(m, &a), cube(n, &b));
        let per_row = Tensor::from_slice(&a.scales, &[rows, 1], &device).unwrap();
        let per_row_cube = per_row.view(&[groups, m, 1]).unwrap();
        let per_group = Tensor::from_slice(&group_scales, &[groups, 1, 1], &device).unwrap();
        let single = Tensor::from_slice(&[b.scales[0]], &[1], &device).unwrap();
        let counts = Tensor::from_slice(&[20, 0, 7], &[groups], &device).unwrap();
        let ends = Tensor::from_slice(&[20, 20, 59], &[groups], &device).unwrap();
        let options = GemmOptions::default();
        for sfb in [&per_group, &single] {
            let mut d = Tensor::zeros(DType::F32, &[groups, m, n], &device).unwrap();
            m_grouped_fp8_gemm_nt_masked(
                (&a_cube, &per_row_cube),
                (&b_cube, sfb),
                &mut d,
                &counts,
                9,
                &options,
            )
            .unwrap();
            results.push(d.to_vec_f32().unwrap());
            let mut d = Tensor::zeros(DType::F32, &[rows, n], &device).unwrap();
            let rows = GroupedRows::Ends(&ends);
            m_grouped_fp8_gemm_nt_contiguous(
                (&a_codes, &per_row),
                (&b_cube, sfb),
                &mut d,
                rows,
                1,
                None,
                &options,
            )
            .unwrap();
            results.push(d.to_vec_f32().unwrap());
        }
        // A single number for both operands of all groups.
        let mut d = Tensor::zeros(DType::F32, &[groups, m, n], &device).unwrap();
        m_grouped_fp8_gemm_nt_masked((&a_cube, &single), (&b_cube, &single), &mut d, &counts, 9, &options)
            .unwrap();
        results.push(d.to_vec_f32().unwrap());
    }
    let (exact, found) = results.split_at(5);
    for (i, (exact, found)) in exact.iter().zip(found).enumerate() {
        let diff = calc_diff(found, exact);
        assert!(diff < 1e-6 && exact.iter().any(|x| *x != 0.0), "{i}: {diff}");
    }
    assert_ne!(exact[0], exact[2], "the scale of a group counts");
}
