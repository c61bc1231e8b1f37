//! FP8 GEMMs with scales of 32 in the simulator: 1x32 scales of A, 1x32 or 32x32 scales of B. Whatever the schedule,
//! the same bits, no hazard, and the product.

use crate::common::{self, AddendKind, Case, GroupedCase, PLAIN, ScaleOrder, in_turn, policies};
use oxigemm::cast::{Quantized, ScaleFormat, cast_blocks_to_fp8};
use oxigemm::check::{Checked, GemmDesc};
use oxigemm::plan::{self, GemmConfig, GemmShape, Limits, MGroupedShape, OperandKind, PlanRequest};
use oxigemm::{
    Addend, DType, Device, Epilogue, Error, FusedOutput, GemmLayout, GemmOptions, GroupedRows, RawGemm,
    ScaleBlock, ScalesOfB, Sim, Tensor, fp8_bgemm_nt, fp8_gemm, fp8_gemm_nt, fp8_gemm_nt_fused, gemm_raw,
    m_grouped_fp8_gemm_nt_contiguous, random, reference,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_testkit::plan::operands_of;
use oxigemm_testkit::{FP8_1X32, FP8_32X32};

const TYPES: [oxigemm_testkit::OperandTypes; 2] = [FP8_1X32, FP8_32X32];
/// Rows and columns of B that share a scale.
const BLOCKS_OF_B: [[usize; 2]; 2] = [[1, 32], [32, 32]];

/// Kernels with scales of 32, each with a cluster; over the set all clusters occur.
fn choices(kernels: impl Iterator<Item = GemmKernel>) -> impl Iterator<Item = GemmConfig> {
    let of_32 = kernels.filter(|kernel| kernel.operands().has_scales_of_32());
    of_32
        .enumerate()
        .map(|(i, kernel)| GemmConfig { cluster: [[1, 1], [1, 2], [2, 1]][i % 3], ..GemmConfig::of(kernel) })
}

/// A K of more stages than the pipeline has, whose last one has scales for half of it and then a half of a block.
fn depth(stages: u32) -> usize {
    (stages as usize + 1) * 128 + 48
}

#[test]
fn every_dense_kernel_by_schedules_in_turn() {
    let sim = Sim::new();
    for (nth, choice) in choices(GemmKernel::dense(Arch::Sm90a)).enumerate() {
        let ([block_m, block_n], types) = (choice.tile().map(|x| x as usize), operands_of(&choice.kernel).0);
        let [cluster_m, cluster_n] = choice.cluster.map(|x| x as usize);
        let dims = [block_m * cluster_m - 3, block_n * cluster_n - 8, depth(choice.stages)];
        let case = Case { types, dims, ..PLAIN };
        case.simulated(&sim).every_schedule_gives_the_same_bits(Some(choice), in_turn(nth, 2), &sim);
    }
}

#[test]
fn every_output_addend_and_scale_layout() {
    let sim = Sim::new();
    let kernels: Vec<GemmConfig> = choices(GemmKernel::dense(Arch::Sm90a)).collect();
    let mut turn = 0;
    for types in TYPES {
        for d_type in [DType::Bf16, DType::F32] {
            for c in [AddendKind::None, AddendKind::Inplace, AddendKind::Other] {
                // Over both granularities, every layout of scales goes with every addend.
                let scales = [ScaleOrder::Row, ScaleOrder::Mn, ScaleOrder::RowOdd, ScaleOrder::Odd][turn % 4];
                let gaps = [[0, 0], [1, 3], [4, 4], [0, 8]][turn % 4];
                let of_types = kernels.iter().filter(|choice| operands_of(&choice.kernel).0 == types);
                let choice = of_types.cycle().nth(turn).copied();
                // More tiles than blocks: each walks several. K is whole stages, and one that ends inside a block.
                let dims = [130, 137, [256, 200][turn % 2]];
                let case = Case { types, dims, d_type, c, scales, gaps, num_sms: Some(2), ..PLAIN };
                case.simulated(&sim).every_schedule_gives_the_same_bits(choice, policies(turn), &sim);
                turn += 1;
            }
        }
    }
}

#[test]
fn small_shapes_with_every_tail() {
    let sim = Sim::new();
    for (turn, dims) in
        [[1, 1, 1], [1, 2, 31], [3, 33, 32], [2, 129, 33], [65, 64, 96], [7, 40, 128], [64, 31, 160]]
            .into_iter()
            .enumerate()
    {
        for types in TYPES {
            let case = Case { types, dims, scales: ScaleOrder::Row, ..PLAIN };
            case.simulated(&sim).every_schedule_gives_the_same_bits(None, policies(turn).take(2), &sim);
        }
    }
}

#[test]
fn m_grouped_kernels_with_every_group_layout() {
    let sim = Sim::new();
    for (turn, choice) in choices(GemmKernel::m_grouped(Arch::Sm90a)).enumerate() {
        let ([block_m, block_n], types) = (choice.tile().map(|x| x as usize), operands_of(&choice.kernel).0);
        let (n, k) = (block_n + 8, depth(choice.stages) - 128);
        for case in GroupedCase::in_every_layout(types, block_m, [n, k], turn) {
            case.simulated(&sim).every_schedule_gives_the_same_bits(Some(choice), policies(turn), &sim);
        }
    }
}

/// Positive codes, with scales of all 24 bits over a range of exponents. What is lost of one product is not lost beside
/// another.
fn wide([rows, k]: [usize; 2], block: [usize; 2], seed: u64) -> Quantized {
    let values: Vec<f32> = random::normals(seed, rows * k).iter().map(|x| x.abs() + 0.5).collect();
    let mut x = cast_blocks_to_fp8(&values, rows, k, DType::E4m3, block, ScaleFormat::F32).unwrap();
    let drawn = random::normals(seed + 1, x.scales.len());
    x.scales = drawn.iter().map(|x| (1.0 + x.abs()) * 2f32.powi((x * 1e4) as i32 % 40)).collect();
    x
}

/// Scales row-major, or MN-major with a pitch of whole vectors.
fn scales_of(x: &Quantized, mn_major: bool, device: &Device) -> Tensor {
    let [rows, blocks] = x.scale_dims();
    let tensor = Tensor::from_slice(&x.scales, &[rows, blocks], device).unwrap();
    if !mn_major {
        return tensor;
    }
    let pitch = rows.next_multiple_of(4);
    let memory = Tensor::from_slice(&vec![f32::NAN; blocks * pitch], &[blocks, pitch], device).unwrap();
    let mut columns = memory.narrow(1, 0, rows).unwrap().transpose(0, 1).unwrap();
    columns.copy_from(&tensor).unwrap();
    columns
}

/// Operands with scales on a device.
fn on(x: &Quantized, mn_major: bool, device: &Device) -> (Tensor, Tensor) {
    (common::codes(x, device), scales_of(x, mn_major, device))
}

/// D of the device with the planned kernel.
fn product(a: &Quantized, b: &Quantized, mn_major: bool, device: &Device) -> Vec<f32> {
    let ((a, sfa), (b, sfb)) = (on(a, mn_major, device), on(b, mn_major, device));
    let mut d = Tensor::zeros(DType::F32, &[a.dims()[0], b.dims()[0]], device).unwrap();
    let options = GemmOptions::default();
    fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &options).unwrap();
    d.to_vec_f32().unwrap()
}

#[test]
fn scales_of_any_value_are_never_rounded() {
    let [m, n, k] = [70, 136, 416];
    for block in BLOCKS_OF_B {
        let (a, b) = (wide([m, k], [1, 32], 3), wide([n, k], block, 5));
        let exact = reference::fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None).unwrap();
        for (device, most) in [(Device::cpu(), -24), (Device::sim(), -12)] {
            for mn_major in [false, true] {
                for (found, exact) in product(&a, &b, mn_major, &device).iter().zip(&exact) {
                    let lost = (f64::from(*found) - exact).abs() / exact;
                    assert!(lost <= 2f64.powi(most), "{block:?} {device:?}: {found} {exact}: {lost:e}");
                }
            }
        }
        // Codes of one, whose sums the tensor core does not round: all bits of the scales count.
        let ones = |x: &Quantized| Quantized { codes: vec![0x38; x.codes.len()], ..x.clone() };
        let (a, b) = (ones(&a), ones(&b));
        let exact = reference::fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None).unwrap();
        for (found, exact) in product(&a, &b, true, &Device::sim()).iter().zip(&exact) {
            let lost = (f64::from(*found) - exact).abs() / exact;
            assert!(lost < 2f64.powi(-21), "{block:?}: {found} {exact}: {lost:e}");
        }
    }
}

#[test]
fn the_reference_is_the_sum_of_dequantized_products() {
    let [m, n, k] = [5, 70, 100];
    for block in BLOCKS_OF_B {
        let (a, b) = (wide([m, k], [1, 32], 7), wide([n, k], block, 9));
        let dequantized = |x: &Quantized| -> Vec<f64> {
            let ([_, blocks], values) = (x.scale_dims(), x.dtype.decode(&x.codes));
            let scale = |i: usize| x.scales[i / x.k / x.rows_per_scale * blocks + i % x.k / x.k_per_scale];
            values.iter().enumerate().map(|(i, value)| f64::from(*value) * f64::from(scale(i))).collect()
        };
        let (rows, columns) = (dequantized(&a), dequantized(&b));
        let found = reference::fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None).unwrap();
        for (i, found) in found.iter().enumerate() {
            let (row, column) = (&rows[i / n * k..][..k], &columns[i % n * k..][..k]);
            let expected: f64 = row.iter().zip(column).map(|(a, b)| a * b).sum();
            assert!((found - expected).abs() <= 1e-12 * expected, "{block:?}: {found} {expected}");
        }
    }
}

#[test]
fn a_scale_that_is_no_number_is_that_of_its_rows_or_columns_alone() {
    let [m, n, k] = [70, 136, 320];
    for (block, [first, last]) in BLOCKS_OF_B.into_iter().zip([[135, 135], [128, 135]]) {
        let (mut a, mut b) = (wide([m, k], [1, 32], 11), wide([n, k], block, 13));
        a.scales[3 * 10 + 9] = f32::NAN;
        *b.scales.last_mut().unwrap() = f32::INFINITY;
        for (i, found) in product(&a, &b, false, &Device::sim()).iter().enumerate() {
            let touched = i / n == 3 || (first..=last).contains(&(i % n));
            assert_eq!(!found.is_finite(), touched, "{block:?}: element {i} is {found}");
        }
    }
}

#[test]
fn scales_that_broadcast_and_operands_that_are_not_k_major() {
    let [m, n, k] = [20, 48, 160];
    for (block, device) in BLOCKS_OF_B.into_iter().flat_map(|b| [(b, Device::cpu()), (b, Device::sim())]) {
        let (mut a, b) = (wide([m, k], [1, 32], 15), wide([n, k], block, 17));
        // One scale for each row of A, and 32 of K of B.
        let per_row: Vec<f32> = a.scales.iter().step_by(5).copied().collect();
        a.scales = per_row.iter().flat_map(|scale| [*scale; 5]).collect();
        let expected = product(&a, &b, false, &device);
        let ((a, _), (b, sfb)) = (on(&a, false, &device), on(&b, false, &device));
        let sfa = Tensor::from_slice(&per_row, &[m, 1], &device).unwrap();
        let mut d = Tensor::zeros(DType::F32, &[m, n], &device).unwrap();
        let options = GemmOptions::default();
        fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &options).unwrap();
        assert_eq!(d.to_vec_f32().unwrap(), expected, "{block:?} {device:?}");
        // B as [K, N], of which N is contiguous.
        let mut along_n = Tensor::zeros(DType::E4m3, &[k, n], &device).unwrap();
        along_n.copy_from(&b.transpose(0, 1).unwrap()).unwrap();
        let sfb = sfb.transpose(0, 1).unwrap();
        let mut d = Tensor::zeros(DType::F32, &[m, n], &device).unwrap();
        let b = (&along_n, &sfb);
        fp8_gemm(GemmLayout::Nn, (&a, &sfa), b, Addend::None, &mut d, &options).unwrap();
        assert_eq!(d.to_vec_f32().unwrap(), expected, "{block:?} {device:?}, nn");
    }
}

#[test]
fn gemms_without_rows_or_k() {
    for (device, block) in [Device::cpu(), Device::sim()].into_iter().zip(BLOCKS_OF_B) {
        let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
        for [m, n, k] in [[0, 64, 64], [4, 0, 64], [4, 64, 0]] {
            let (a, sfa) = (new(DType::E4m3, &[m, k]), new(DType::F32, &[m, k.div_ceil(32)]));
            let sfb = new(DType::F32, &[n.div_ceil(block[0]), k.div_ceil(32)]);
            let b = new(DType::E4m3, &[n, k]);
            let c = Tensor::from_f32(DType::F32, &vec![3.0; m * n], &[m, n], &device).unwrap();
            let mut d = Tensor::from_f32(DType::F32, &vec![7.0; m * n], &[m, n], &device).unwrap();
            let options = GemmOptions::default();
            fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::From(&c), &mut d, &options).unwrap();
            assert!(d.to_vec_f32().unwrap().iter().all(|x| *x == 3.0), "{m} {n} {k}");
        }
    }
}

#[test]
fn raw_operands_say_what_shares_a_scale() {
    let device = Device::sim();
    let [m, n, k] = [20, 70, 304];
    for (block, scales_of_b) in BLOCKS_OF_B.into_iter().zip([ScalesOfB::Rows, ScalesOfB::Blocks]) {
        let (a, b) = (wide([m, k], [1, 32], 19), wide([n, k], block, 21));
        let expected = product(&a, &b, false, &device);
        let ((a, sfa), (b, sfb)) = (on(&a, true, &device), on(&b, true, &device));
        let d = Tensor::zeros(DType::F32, &[m, n], &device).unwrap();
        let gemm = RawGemm::new([m, n, k], (&a).into(), (&b).into(), (&d).into());
        let gemm = RawGemm { scales_of_b, scale_block: ScaleBlock::Of32, ..gemm }
            .with_scales((&sfa).into(), (&sfb).into());
        // SAFETY: the tensors outlive the call, which in the simulator ends when the kernel does.
        unsafe { gemm_raw(&device, &gemm, &GemmOptions::default()).unwrap() };
        assert_eq!(d.to_vec_f32().unwrap(), expected, "{block:?}");
    }
}

#[test]
fn every_shape_has_a_plan_by_its_name() {
    for operands in [OperandKind::FP8_1X32, OperandKind::FP8_32X32] {
        for [m, n, k] in [[1, 2, 1], [64, 7168, 2048], [4096, 7168, 4096], [100_003, 24, 640]] {
            let dense = PlanRequest::dense(operands, GemmShape { m, n, k });
            let groups = MGroupedShape { groups: 8, slabs: 1, rows: m, expected: m.div_ceil(8), n, k };
            for request in [dense, PlanRequest::m_grouped(operands, groups)] {
                let plan = plan::plan(&request, &Limits::h200()).unwrap();
                assert_eq!(plan::parse(&plan.name()), Some(plan.config));
                let scales = if operands == OperandKind::FP8_1X32 { "_1x32_" } else { "_32x32_" };
                assert!(plan.name().contains(scales), "{}", plan.name());
                // Persistent kernels split no K, so a row never depends on its batch.
                let invariant = PlanRequest { batch_invariant: true, ..request };
                assert_eq!(plan::plan(&invariant, &Limits::h200()).unwrap().config, plan.config);
            }
        }
    }
}

/// The kernels of scales with these shapes, for A `[M, K]` and B `[N, K]`.
fn kind([m, n, k]: [usize; 3], sfa: [usize; 2], sfb: [usize; 2]) -> oxigemm::Result<OperandKind> {
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &Device::cpu()).unwrap();
    let (a, b) = (new(DType::E4m3, &[m, k]), new(DType::E4m3, &[n, k]));
    let (sfa, sfb, d) = (new(DType::F32, &sfa), new(DType::F32, &sfb), new(DType::Bf16, &[m, n]));
    let desc = GemmDesc {
        sfa: Some(sfa.describe("sfa")),
        sfb: Some(sfb.describe("sfb")),
        ..GemmDesc::new(a.describe("a"), b.describe("b"), d.describe("d"))
    };
    match desc.check()? {
        Checked::Launch(problem) => Ok(problem.family),
        other => panic!("{other:?}"),
    }
}

#[test]
fn shapes_of_scales_tell_the_granularity() {
    for (dims, sfa, sfb, expected) in [
        ([64, 256, 512], [64, 16], [256, 16], OperandKind::FP8_1X32),
        ([64, 256, 512], [64, 16], [8, 16], OperandKind::FP8_32X32),
        ([64, 256, 512], [64, 4], [256, 4], OperandKind::FP8_1D1D),
        ([64, 256, 512], [64, 4], [2, 4], OperandKind::FP8),
        ([64, 256, 512], [64, 1], [256, 16], OperandKind::FP8_1X32),
        ([64, 256, 512], [1, 1], [1, 1], OperandKind::FP8),
        // One block of K, which the rows of B tell.
        ([64, 96, 32], [64, 1], [3, 1], OperandKind::FP8_32X32),
        ([64, 96, 32], [64, 1], [96, 1], OperandKind::FP8_1D1D),
        ([64, 32, 32], [64, 1], [1, 1], OperandKind::FP8),
    ] {
        assert_eq!(kind(dims, sfa, sfb).unwrap(), expected, "{dims:?} {sfa:?} {sfb:?}");
    }
    // One of both, of 128 and of 32, and scales of B for 128 rows and 32 of K.
    let dims = [64, 256, 512];
    for (sfa, sfb, argument) in
        [([64, 4], [256, 16], "sfa"), ([64, 16], [256, 4], "sfb"), ([64, 16], [2, 16], "sfb")]
    {
        let error = kind(dims, sfa, sfb).unwrap_err();
        assert!(matches!(error, Error::ScaleShape { argument: found, .. } if found == argument), "{error}");
        assert!(error.to_string().contains("32 of K"), "{error}");
    }
}

#[test]
fn other_functions_and_types_have_no_scales_of_32() {
    let device = Device::sim();
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
    let options = GemmOptions::default();
    let (a, sfa) = (new(DType::E4m3, &[8, 128]), new(DType::F32, &[8, 4]));
    let (b, sfb) = (new(DType::E4m3, &[64, 128]), new(DType::F32, &[64, 4]));
    let mut d = new(DType::Bf16, &[8, 64]);
    let fused = FusedOutput::Matrix(&mut d);
    let result =
        fp8_gemm_nt_fused((&a, &sfa), (&b, &sfb), Addend::None, fused, &Epilogue::default(), &options);
    assert!(matches!(result, Err(Error::ScaleShape { argument: "sfa", .. })), "{result:?}");
    let slab = |x: &Tensor| x.view(&[1, x.dims()[0], x.dims()[1]]).unwrap();
    let ((a3, sfa3), (b3, sfb3), mut d3) = ((slab(&a), slab(&sfa)), (slab(&b), slab(&sfb)), slab(&d));
    let result = fp8_bgemm_nt((&a3, &sfa3), (&b3, &sfb3), &mut d3, &options);
    assert!(matches!(result, Err(Error::ScaleShape { argument: "sfa", .. })), "{result:?}");
    let e5m2 = new(DType::E5m2, &[8, 128]);
    let result = fp8_gemm_nt((&e5m2, &sfa), (&b, &sfb), Addend::None, &mut d, &options);
    assert!(matches!(result, Err(Error::DType { argument: "a", .. })), "{result:?}");
    let config = plan::parse("sm90_fp8_persistent_128x128_s5_c1x1");
    let other = GemmOptions { config, ..Default::default() };
    let result = fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &other);
    assert!(matches!(result, Err(Error::ConfigOperands { .. })), "{result:?}");
    // m-grouped GEMMs take both granularities, and a single K block too.
    for (k, rows) in [(128, 64), (128, 2), (32, 64), (32, 2)] {
        let (a, sfa) = (new(DType::E4m3, &[8, k]), new(DType::F32, &[8, k / 32]));
        let (b, sfb) = (new(DType::E4m3, &[2, 64, k]), new(DType::F32, &[2, rows, k / 32]));
        let ends = Tensor::from_slice(&[4i32, 8], &[2], &device).unwrap();
        let (mut d, ends) = (new(DType::Bf16, &[8, 64]), GroupedRows::Ends(&ends));
        m_grouped_fp8_gemm_nt_contiguous((&a, &sfa), (&b, &sfb), &mut d, ends, 1, None, &options).unwrap();
    }
}
