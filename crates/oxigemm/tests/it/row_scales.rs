//! `fp8_gemm_nt` with a scale for each row of B, in the simulator: every kernel, launch, output and layout of scales.

use crate::common;
use oxigemm::cast::{Quantized, ScaleFormat, per_token_cast_to_fp8};
use oxigemm::plan::{self, GemmConfig, GemmShape, Limits, OperandKind, PlanRequest};
use oxigemm::sim::{Options, Policy};
use oxigemm::{
    Addend, DType, Device, GemmOptions, RawGemm, RawMatrix, RawScaleFactors, ScalesOfB, Sim, Tensor,
    fp8_gemm_nt, gemm_raw, random, reference,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;

/// Operands of a product.
struct Data {
    a: Quantized,
    b: Quantized,
    c: Vec<f32>,
    exact: Vec<f64>,
}

impl Data {
    fn new([m, n, k]: [usize; 3]) -> Data {
        let a = per_token_cast_to_fp8(&random::normals(1, m * k), m, k, ScaleFormat::F32).unwrap();
        let b = per_token_cast_to_fp8(&random::normals(2, n * k), n, k, ScaleFormat::F32).unwrap();
        let exact = reference::fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None).unwrap();
        let c = DType::Bf16.decode(&DType::Bf16.encode(&random::normals(3, m * n)));
        Data { a, b, c, exact }
    }
}

/// Scales in row-major order, or along M with a pitch and, where that is odd, an odd address.
fn scales(x: &Quantized, pitch: Option<usize>, device: &Device) -> Tensor {
    let [rows, blocks] = x.scale_dims();
    let Some(pitch) = pitch else { return Tensor::from_slice(&x.scales, &[rows, blocks], device).unwrap() };
    let first = pitch % 2;
    let mut values = vec![f32::NAN; first + blocks * pitch];
    for (i, scale) in x.scales.iter().enumerate() {
        values[first + i % blocks * pitch + i / blocks] = *scale;
    }
    let memory = Tensor::from_slice(&values, &[values.len()], device).unwrap();
    let columns = memory.narrow(0, first, blocks * pitch).unwrap().view(&[blocks, pitch]).unwrap();
    columns.narrow(1, 0, rows).unwrap().transpose(0, 1).unwrap()
}

/// What is added: nothing, D itself, another matrix.
const ADDENDS: [usize; 3] = [0, 1, 2];

fn run(data: &Data, device: &Device, [d_type, addend, layout]: [usize; 3], options: &GemmOptions) -> Tensor {
    let d_type = [DType::F32, DType::Bf16][d_type];
    let (m, n) = (data.a.rows, data.b.rows);
    let pitch = |rows: usize| [None, Some(rows.next_multiple_of(4)), Some(rows | 1)][layout];
    let (sfa, sfb) = (scales(&data.a, pitch(m), device), scales(&data.b, pitch(n), device));
    let (a, b) = (common::codes(&data.a, device), common::codes(&data.b, device));
    let c = Tensor::from_f32(d_type, &data.c, &[m, n], device).unwrap();
    let mut d = Tensor::from_f32(d_type, &data.c, &[m, n], device).unwrap();
    let addend = match addend {
        0 => Addend::None,
        1 => Addend::InPlace,
        _ => Addend::From(&c),
    };
    fp8_gemm_nt((&a, &sfa), (&b, &sfb), addend, &mut d, options).unwrap();
    d
}

fn expect_right(data: &Data, d: &Tensor, addend: usize, about: &str) {
    let k = data.a.k as f64;
    for (i, (found, exact)) in d.to_vec_f32().unwrap().iter().zip(&data.exact).enumerate() {
        let expected = exact + if addend == 0 { 0.0 } else { f64::from(data.c[i]) };
        let allowed = expected.abs() / 256.0 + 0.03 * k.sqrt();
        assert!((f64::from(*found) - expected).abs() <= allowed, "{about}: element {i}: {found} {expected}");
    }
}

fn kernels() -> impl Iterator<Item = GemmKernel> {
    GemmKernel::dense(Arch::Sm90a).filter(|kernel| kernel.operands() == OperandKind::FP8_1D1D)
}

fn launches(config: GemmKernel) -> [GemmConfig; 3] {
    config.with_clusters([[1, 1], [1, 2], [2, 1]])
}

#[test]
fn every_output_and_layout_of_scales_is_right_under_every_schedule() {
    let mut turn = 0;
    for config in kernels() {
        // Tails along every dimension, more tiles than blocks, more blocks of K than a group of scales.
        let [block_m, block_n] = config.tile().map(|dim| dim as usize);
        let data = Data::new([block_m + 5, 2 * block_n - 12, 1200]);
        for addend in ADDENDS {
            for d_type in [0, 1] {
                turn += 1;
                let policy = [Policy::Eager, Policy::Lazy, Policy::Random][turn % 3];
                let sim = Sim::with_options(Options { policy, seed: turn as u64, ..Options::default() });
                let choice = launches(config)[turn % 3];
                let options = GemmOptions { config: Some(choice), num_sms: Some(2), ..Default::default() };
                let case = [d_type, addend, (turn + turn / 3) % 3];
                let d = run(&data, &Device::Sim(sim), case, &options);
                expect_right(&data, &d, addend, &format!("{} {case:?} {policy:?}", plan::name(&choice)));
            }
        }
    }
}

#[test]
fn schedules_kernels_and_layouts_give_the_same_bits() {
    let data = Data::new([70, 136, 700]);
    let mut bits = None;
    for (turn, choice) in kernels().flat_map(launches).enumerate() {
        let policy = [Policy::Eager, Policy::Lazy, Policy::Random][turn % 3];
        let sim = Sim::with_options(Options { policy, seed: 3, ..Options::default() });
        let options = GemmOptions { config: Some(choice), ..Default::default() };
        let found = run(&data, &Device::Sim(sim), [0, 1, turn % 3], &options).to_bytes().unwrap();
        assert_eq!(*bits.get_or_insert_with(|| found.clone()), found, "{}", plan::name(&choice));
    }
}

/// Ones, each 128 of a row with a scale of all 24 bits.
fn scaled_ones(seed: u64, [rows, k]: [usize; 2]) -> Quantized {
    let ones = vec![1.0; rows * k];
    let mut x = per_token_cast_to_fp8(&ones, rows, k, ScaleFormat::F32).unwrap();
    let one = DType::E4m3.encode(&[1.0])[0];
    x.codes.fill(one);
    // Of many magnitudes, and all positive: so what is lost of one is not lost beside another.
    let scales = random::normals(seed, x.scales.len());
    x.scales = scales.iter().map(|x| (x.abs() + 0.01) * 2f32.powi((x * 1e4) as i32 % 20)).collect();
    x
}

#[test]
fn all_bits_of_scales_count() {
    let (a, b) = (scaled_ones(5, [70, 384]), scaled_ones(6, [136, 384]));
    let exact = reference::fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None).unwrap();
    let data = Data { a, b, c: vec![0.0; 70 * 136], exact };
    let d = run(&data, &Device::Sim(Sim::new()), [0, 0, 0], &GemmOptions::default());
    for (found, exact) in d.to_vec_f32().unwrap().iter().zip(&data.exact) {
        let lost = (f64::from(*found) - exact).abs() / exact;
        assert!(lost < 2f64.powi(-21), "{found} {exact}: {lost:e}");
    }
}

#[test]
fn a_scale_that_is_no_number_is_that_of_its_row_or_column_alone() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut data = Data::new([70, 136, 300]);
        let blocks = data.a.scale_dims()[1];
        data.a.scales[3 * blocks + 1] = bad;
        data.b.scales[135 * blocks] = bad;
        let d = run(&data, &Device::Sim(Sim::new()), [0, 0, 0], &GemmOptions::default());
        for (i, found) in d.to_vec_f32().unwrap().iter().enumerate() {
            let touched = i / 136 == 3 || i % 136 == 135;
            assert_eq!(found.is_nan(), touched, "{bad}: element {i} is {found}");
        }
    }
}

#[test]
fn raw_operands_say_what_shares_a_scale() {
    let data = Data::new([20, 130, 300]);
    let device = Device::Sim(Sim::new());
    let expected = run(&data, &device, [0, 0, 0], &GemmOptions::default());
    let (a, b) = (common::codes(&data.a, &device), common::codes(&data.b, &device));
    let (sfa, sfb) = (scales(&data.a, None, &device), scales(&data.b, None, &device));
    let d = Tensor::zeros(DType::F32, &[20, 130], &device).unwrap();
    let [a, b] = [&a, &b].map(|x| RawMatrix::new(x.address(), DType::E4m3, x.strides()[0]));
    let [sfa, sfb] = [&sfa, &sfb].map(|x| RawScaleFactors::new(x.address(), [3, 1]));
    let d_matrix = RawMatrix::new(d.address(), DType::F32, 130);
    let gemm = RawGemm {
        scales_of_b: ScalesOfB::Rows,
        ..RawGemm::new([20, 130, 300], a, b, d_matrix).with_scales(sfa, sfb)
    };
    // SAFETY: the tensors outlive the call, which in the simulator ends when the kernel does.
    unsafe { gemm_raw(&device, &gemm, &GemmOptions::default()).unwrap() };
    assert_eq!(d.to_bytes().unwrap(), expected.to_bytes().unwrap());
}

#[test]
fn every_shape_has_a_plan_and_other_kernels_are_refused() {
    for (m, n, k) in [(1, 2, 1), (64, 7168, 2048), (4096, 7168, 4096), (100_003, 24, 640)] {
        let request = PlanRequest::dense(OperandKind::FP8_1D1D, GemmShape { m, n, k });
        let plan = plan::plan(&request, &Limits::h200()).unwrap();
        assert!(plan.name().starts_with("sm90_fp8_persistent_1d1d_"), "{}", plan.name());
        assert_eq!(plan::parse(&plan.name()), Some(plan.config));
    }
    let data = Data::new([5, 40, 128]);
    let device = Device::Sim(Sim::new());
    let choice = plan::parse("sm90_fp8_persistent_128x128_s5_c1x1");
    let (sfa, sfb) = (scales(&data.a, None, &device), scales(&data.b, None, &device));
    let (a, b) = (common::codes(&data.a, &device), common::codes(&data.b, &device));
    let mut d = Tensor::zeros(DType::F32, &[5, 40], &device).unwrap();
    let options = GemmOptions { config: choice, ..Default::default() };
    let result = fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &options);
    assert!(matches!(result, Err(oxigemm::Error::ConfigOperands { .. })), "{result:?}");
}
