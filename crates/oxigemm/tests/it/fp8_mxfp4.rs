//! FP8 by MXFP4 GEMMs on Hopper, in the simulator: whatever the schedule, the same bits, no hazard, and the product; the bits
//! of the FP8 kernels where scales allow.

use crate::common::{
    AddendKind, Case, EpilogueSpec, GPT_OSS, GroupedCase, PLAIN, ScaleOrder, ends, ids, in_turn, policies,
};
use crate::fused_grouped::{CODES, SWIGLU, every_output};
use oxigemm::cast::ScaleFormat;
use oxigemm::plan::{self, GemmConfig, GemmShape, Limits, MGroupedShape, OperandKind, PlanRequest};
use oxigemm::{
    Activation, Addend, DType, Device, Error, Gate, GemmOptions, Sim, Tensor, fp4_gemm_nt, fp8_fp4_bgemm_nt,
    fp8_fp4_gemm_nt, fp8_gemm_nt, nvfp4_gemm_nt, random,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_testkit::FP8_FP4;

const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

fn choices(kernels: impl Iterator<Item = GemmKernel>) -> impl Iterator<Item = GemmConfig> {
    kernels.filter(|kernel| kernel.operands() == OperandKind::FP8_MXFP4).map(GemmConfig::of)
}

/// A K of more stages than the pipeline has, whose last one ends inside a block of scales.
fn depth(choice: &GemmConfig) -> usize {
    (choice.stages as usize + 1) * 128 + 48
}

#[test]
fn every_dense_kernel_by_schedules_in_turn() {
    let sim = Sim::new();
    let all: Vec<GemmConfig> = choices(GemmKernel::dense(Arch::Sm90a)).collect();
    assert!(all.len() >= 4);
    for (nth, choice) in all.into_iter().enumerate() {
        let block_m = choice.tile()[0] as usize;
        let case = Case { types: FP8_FP4, dims: [block_m + 5, 136, depth(&choice)], ..PLAIN };
        case.simulated(&sim).every_schedule_gives_the_same_bits(Some(choice), in_turn(nth, 2), &sim);
    }
}

#[test]
fn every_output_addend_and_scale_layout() {
    let sim = Sim::new();
    let kernels: Vec<GemmConfig> = choices(GemmKernel::dense(Arch::Sm90a)).collect();
    let mut turn = 0;
    for d_type in [DType::Bf16, DType::F32] {
        for c in [AddendKind::None, AddendKind::Inplace, AddendKind::Other] {
            for scales in [ScaleOrder::Row, ScaleOrder::Mn, ScaleOrder::RowOdd] {
                let gaps = [[0, 0], [1, 3], [4, 4], [0, 8]][turn % 4];
                let choice = kernels.iter().cycle().nth(turn).copied();
                // More tiles than blocks: each walks several.
                let dims = [70, 267, [256, 640, 202][turn % 3]];
                let case = Case { types: FP8_FP4, dims, d_type, c, scales, gaps, num_sms: Some(2), ..PLAIN };
                case.simulated(&sim).every_schedule_gives_the_same_bits(choice, policies(turn).take(2), &sim);
                turn += 1;
            }
        }
    }
}

#[test]
fn small_shapes_with_every_tail() {
    let sim = Sim::new();
    let shapes =
        [[1, 1, 2], [1, 2, 30], [3, 33, 32], [2, 129, 34], [65, 64, 96], [7, 40, 128], [64, 31, 160]];
    for (turn, dims) in shapes.into_iter().enumerate() {
        let case = Case { types: FP8_FP4, dims, scales: ScaleOrder::Row, ..PLAIN };
        case.simulated(&sim).every_schedule_gives_the_same_bits(None, policies(turn).take(2), &sim);
    }
}

#[test]
fn m_grouped_kernels_with_every_group_layout() {
    let sim = Sim::new();
    let all: Vec<GemmConfig> = choices(GemmKernel::m_grouped(Arch::Sm90a)).collect();
    assert!(all.len() >= 4);
    for (turn, choice) in all.into_iter().enumerate() {
        let (block_m, n, k) = (choice.tile()[0] as usize, 136, depth(&choice) - 128);
        for case in GroupedCase::in_every_layout(FP8_FP4, block_m, [n, k], turn) {
            let case = case.simulated(&sim);
            case.every_schedule_gives_the_same_bits(Some(choice), policies(turn).take(2), &sim);
        }
    }
}

#[test]
fn every_fused_dense_kernel_with_every_output() {
    let sim = Sim::new();
    let run = |case: Case, what: EpilogueSpec, choice, nth| {
        let case = Case { epilogue: Some(what.beside(&FP8_FP4)), ..case };
        case.simulated(&sim).every_schedule_gives_the_same_bits(Some(choice), in_turn(nth, 2), &sim);
    };
    for (i, choice) in choices(GemmKernel::fused(Arch::Sm90a)).enumerate() {
        let gated = choice.kernel.fusion() == Fusion::Gated;
        let m = choice.tile()[0] as usize + 3;
        let case = Case { types: FP8_FP4, dims: [m, if gated { 512 } else { 120 }, 272], ..PLAIN };
        let bias = Some(DType::Bf16);
        let what = EpilogueSpec { activation: Activation::Silu, gated, bias, ..EpilogueSpec::NONE };
        run(case, what, choice, i);
        let gate = if gated { GPT_OSS } else { Gate::PLAIN };
        let what = EpilogueSpec { gate, alpha: 0.5, beta: -2.0, bias: Some(DType::F32), ..what };
        run(Case { gaps: [1, 3], c: AddendKind::Other, ..case }, what, choice, i + 1);
        let quantized = EpilogueSpec { quantized: Some((ScaleOrder::RowPadded, ScaleFormat::F32)), ..what };
        run(Case { dims: [m, if gated { 768 } else { 272 }, 272], ..case }, quantized, choice, i + 2);
    }
}

#[test]
fn every_fused_m_grouped_kernel_with_every_output() {
    let sim = Sim::new();
    for (i, choice) in choices(GemmKernel::fused_m_grouped(Arch::Sm90a)).enumerate() {
        let gated = choice.kernel.fusion() == Fusion::Gated;
        let some = choice.tile()[0] as usize + 5;
        let sizes = [some, 0, 1];
        let (n, k) = (if gated { 512 } else { 144 }, 272);
        let masked = GroupedCase::masked(&sizes.map(|x| x as i32), [some + 2, n, k]);
        let alignment = [1, 16, 64][i % 3];
        let contiguous = GroupedCase::ids(&ids(&sizes, alignment), 3, alignment, [n, k]);
        let cases = [masked, contiguous].map(|case| GroupedCase { types: FP8_FP4, ..case });
        every_output(cases, gated, (i, Some(choice)), &sim);
    }
}

/// The planned kernels for an epilogue, as [`moe_forward`](oxigemm::moe_forward) calls them.
#[test]
fn planned_kernels_quantize_what_a_gate_leaves() {
    let sim = Sim::new();
    for (nth, what) in [CODES, SWIGLU].into_iter().enumerate() {
        let case = GroupedCase::ends(&ends(&[9, 40, 0, 17], 16), 16, [112, 512, 384]);
        let case = GroupedCase { types: FP8_FP4, ..case }.with(what);
        case.simulated(&sim).every_schedule_gives_the_same_bits(None, in_turn(nth, 2), &sim);
    }
}

/// MXFP4 weights with given exponents of scales.
struct Weights {
    /// Packed, `[n, k / 2]`.
    codes: Vec<u8>,
    exponents: Vec<u8>,
    n: usize,
    k: usize,
}

impl Weights {
    fn new([n, k]: [usize; 2], positive: bool, exponent: impl Fn(usize, usize) -> u8) -> Weights {
        let mask = if positive { 0x77 } else { 0xff };
        let codes = (0..(n * k / 2) as u64).map(|i| random::bits(3, i) as u8 & mask).collect();
        let blocks = k / 32;
        let exponents = (0..n * blocks).map(|i| exponent(i / blocks, i % blocks)).collect();
        Weights { codes, exponents, n, k }
    }

    fn element(&self, i: usize) -> f32 {
        let code = self.codes[i / 2] >> (4 * (i % 2));
        let magnitude = E2M1[usize::from(code & 7)];
        if code & 8 == 0 { magnitude } else { -magnitude }
    }

    fn exponent(&self, i: usize) -> i32 {
        i32::from(self.exponents[i / self.k * (self.k / 32) + i % self.k / 32]) - 127
    }

    fn values(&self) -> Vec<f64> {
        (0..self.n * self.k).map(|i| f64::from(self.element(i)) * 2f64.powi(self.exponent(i))).collect()
    }

    fn codes(&self, device: &Device) -> Tensor {
        Tensor::from_bytes(DType::U8, &self.codes, &[self.n, self.k / 2], device).unwrap()
    }

    /// Scales as bytes, as words, as words along N, and as f32.
    fn scales(&self, device: &Device) -> [Tensor; 4] {
        let (n, blocks) = (self.n, self.k / 32);
        let words: Vec<u8> = self
            .exponents
            .chunks(blocks)
            .flat_map(|row| [row, &vec![0; blocks.next_multiple_of(4) - blocks]].concat())
            .collect();
        let words = Tensor::from_bytes(DType::I32, &words, &[n, blocks.div_ceil(4)], device).unwrap();
        let mut along_n = Tensor::zeros(DType::I32, &[blocks.div_ceil(4), n], device).unwrap();
        along_n.copy_from(&words.transpose(0, 1).unwrap()).unwrap();
        let f32s: Vec<f32> = self.exponents.iter().map(|e| f32::from_bits(u32::from(*e) << 23)).collect();
        [
            Tensor::from_bytes(DType::U8, &self.exponents, &[n, blocks], device).unwrap(),
            words,
            along_n.transpose(0, 1).unwrap(),
            Tensor::from_slice(&f32s, &[n, blocks], device).unwrap(),
        ]
    }

    /// The same weights as e4m3 with scales of 1x128, each 2 to the least exponent of its block of 128, or 2^`all`.
    fn widened(&self, all: Option<i32>, device: &Device) -> (Tensor, Tensor) {
        let blocks = self.k.div_ceil(128);
        let least = |row: usize, block: usize| {
            let own = block * 128..self.k.min(block * 128 + 128);
            own.map(|column| self.exponent(row * self.k + column)).min().expect("a block has columns")
        };
        let power = |i: usize| all.unwrap_or_else(|| least(i / self.k, i % self.k / 128));
        let values: Vec<f32> = (0..self.n * self.k)
            .map(|i| self.element(i) * 2f32.powi(self.exponent(i) - power(i) - 5))
            .collect();
        let codes = Tensor::from_f32(DType::E4m3, &values, &[self.n, self.k], device).unwrap();
        assert_eq!(codes.to_vec_f32().unwrap(), values, "e4m3 holds all of them");
        let scale = |row: usize, block: usize| 2f32.powi(all.unwrap_or_else(|| least(row, block)) + 5);
        let rows = if all.is_some() { 1 } else { self.n };
        let scales: Vec<f32> = (0..rows * blocks).map(|i| scale(i / blocks, i % blocks)).collect();
        let rows_of_scales = if all.is_some() { self.n.div_ceil(128) } else { self.n };
        let scales: Vec<f32> = scales.iter().copied().cycle().take(rows_of_scales * blocks).collect();
        (codes, Tensor::from_slice(&scales, &[rows_of_scales, blocks], device).unwrap())
    }
}

/// Tokens in e4m3, with scales of all 24 bits or of few.
fn tokens([m, k]: [usize; 2], positive: bool, few_bits: bool, device: &Device) -> (Tensor, Tensor) {
    let values: Vec<f32> =
        random::normals(5, m * k).iter().map(|x| if positive { x.abs() + 0.5 } else { *x * 8.0 }).collect();
    let scale = |x: f32| if few_bits { 1.0 + (x.abs() * 8.0).trunc() / 64.0 } else { 0.1 + x.abs() };
    let scales: Vec<f32> = random::normals(6, m * k.div_ceil(128)).into_iter().map(scale).collect();
    (
        Tensor::from_f32(DType::E4m3, &values, &[m, k], device).unwrap(),
        Tensor::from_slice(&scales, &[m, k.div_ceil(128)], device).unwrap(),
    )
}

fn product((a, sfa): (&Tensor, &Tensor), (b, sfb): (&Tensor, &Tensor), options: &GemmOptions) -> Vec<f32> {
    let mut d = Tensor::zeros(DType::F32, &[a.dims()[0], b.dims()[0]], a.device()).unwrap();
    fp8_fp4_gemm_nt((a, sfa), (b, sfb), Addend::None, &mut d, options).unwrap();
    d.to_vec_f32().unwrap()
}

/// The scales of each 128 of K lie within 2^11, so the bits are those of the FP8 kernels for the same weights in e4m3: of
/// 1D1D ones with a scale for each row and 128 of K, and of 1D2D ones where one exponent holds for all.
#[test]
fn the_bits_are_those_of_the_fp8_kernels_for_widened_weights() {
    let ([m, n, k], device) = ([37, 200, 640], Device::sim());
    let spread = |row: usize, block: usize| {
        let of_block = random::bits(7, (row * 100 + block / 4) as u64) % 60;
        (90 + of_block + random::bits(8, (row * 100 + block) as u64) % 12) as u8
    };
    let weights = Weights::new([n, k], false, spread);
    // 1D1D kernels multiply scales in TF32: exactly, where they have few bits.
    let (a, sfa) = tokens([m, k], false, true, &device);
    let (b, sfb) = weights.widened(None, &device);
    let run_fp8 = |(a, sfa): (&Tensor, &Tensor), (b, sfb): (&Tensor, &Tensor), name: &str| {
        let mut d = Tensor::zeros(DType::F32, &[m, n], &device).unwrap();
        let config = plan::parse(name).expect("the name of a configuration");
        let options = GemmOptions { config: Some(config), batch_invariant: true, ..Default::default() };
        fp8_gemm_nt((a, sfa), (b, sfb), Addend::None, &mut d, &options).unwrap();
        d.to_vec_f32().unwrap()
    };
    let fp8 = run_fp8((&a, &sfa), (&b, &sfb), "sm90_fp8_persistent_1d1d_64x128_s6_c1x1");
    let codes = weights.codes(&device);
    for choice in choices(GemmKernel::dense(Arch::Sm90a)) {
        let options = GemmOptions { config: Some(choice), ..Default::default() };
        let found = product((&a, &sfa), (&codes, &weights.scales(&device)[1]), &options);
        assert_eq!(found, fp8, "{}", plan::name(&choice));
    }

    // The exponents of all weights lie that near, and scales of A have all bits.
    let weights = Weights::new([n, k], false, |row, block| 120 + ((row * 5 + block * 3) % 12) as u8);
    let (a, sfa) = tokens([m, k], false, false, &device);
    let (b, sfb) = weights.widened(Some(120 - 127), &device);
    let found = product((&a, &sfa), (&codes, &weights.scales(&device)[0]), &GemmOptions::default());
    for name in ["sm90_fp8_persistent_64x128_s8_c1x1", "sm90_fp8_split_k_64x128_k1_s2"] {
        assert_eq!(run_fp8((&a, &sfa), (&b, &sfb), name), found, "{name}");
    }
}

/// Scales of any exponents, also far apart within 128 of K: no product is lost beside another, and none is rounded.
#[test]
fn scales_of_any_exponent_are_applied_exactly() {
    let ([m, n, k], device) = ([21, 200, 512], Device::sim());
    type Exponent = fn(usize, usize) -> u8;
    // The tensor core truncates terms 13 bits below the largest: of codes with folds, those of the smaller scales.
    let (apart, folded) = (2f64.powi(-11), 2f64.powi(-9));
    let cases: [(&str, Exponent, f32, f64); 6] = [
        (
            "far apart",
            |row, block| 100 + (random::bits(9, (row * 64 + block) as u64) % 50) as u8,
            1.0,
            folded,
        ),
        ("one of them", |row, block| if (row, block) == (70, 5) { 60 } else { 127 }, 1.0, apart),
        ("just within", |_, block| [100, 111, 105, 108][block % 4], 1.0, folded),
        ("just beyond", |_, block| [100, 112, 105, 108][block % 4], 1.0, apart),
        ("the least", |row, block| ((row + block) % 3) as u8, 2f32.powi(120), folded),
        ("the largest", |row, block| 254 - ((row + block) % 8) as u8, 2f32.powi(-60), folded),
    ];
    for (name, exponent, factor, limit) in cases {
        let weights = Weights::new([n, k], true, exponent);
        let (a, sfa) = tokens([m, k], true, false, &device);
        let scales: Vec<f32> = sfa.to_vec_f32().unwrap().iter().map(|x| x * factor).collect();
        let sfa = Tensor::from_slice(&scales, sfa.dims(), &device).unwrap();
        let (x, w) = (a.to_vec_f32().unwrap(), weights.values());
        let mut first = None;
        for (form, sfb) in weights.scales(&device).iter().enumerate() {
            // The exponent of 2^-127 is none of FP32's normal numbers.
            if form == 3 && weights.exponents.contains(&0) {
                continue;
            }
            let found = product((&a, &sfa), (&weights.codes(&device), sfb), &GemmOptions::default());
            for (i, found) in found.iter().enumerate() {
                let (row, column) = (i / n, i % n);
                let exact: f64 = (0..k)
                    .map(|at| {
                        let scale = f64::from(scales[row * (k / 128) + at / 128]);
                        f64::from(x[row * k + at]) * scale * w[column * k + at]
                    })
                    .sum();
                let lost = (f64::from(*found) - exact).abs() / exact;
                assert!(lost < limit, "{name}, form {form}: {found} {exact}: {lost:e}");
            }
            assert_eq!(first.get_or_insert_with(|| found.clone()), &found, "{name}, form {form}");
        }
    }
}

/// A scale of NaN is that of its row of B alone.
#[test]
fn a_scale_that_is_no_number_is_that_of_its_row_alone() {
    let ([m, n, k], device) = ([9, 200, 512], Device::sim());
    let spreads: [fn(usize) -> u8; 2] = [|_| 127, |block| if block == 2 { 90 } else { 127 }];
    for spread in spreads {
        let weights = Weights::new(
            [n, k],
            true,
            |row, block| if (row, block) == (70, 9) { 255 } else { spread(block) },
        );
        let (a, sfa) = tokens([m, k], true, false, &device);
        let (codes, [sfb, ..]) = (weights.codes(&device), weights.scales(&device));
        let found = product((&a, &sfa), (&codes, &sfb), &GemmOptions::default());
        for (i, found) in found.iter().enumerate() {
            assert_eq!(found.is_nan(), i % n == 70, "element {i} is {found}");
        }
    }
}

/// Scales of A as codes give the bits of the same in FP32, with any scales of B.
#[test]
fn scales_of_a_may_be_codes() {
    let ([m, n, k], device) = ([21, 136, 512], Device::sim());
    let weights = Weights::new([n, k], false, |row, block| 120 + ((row + block) % 9) as u8);
    let (a, _) = tokens([m, k], false, false, &device);
    let codes: Vec<u8> = (0..m * 4).map(|i| 120 + (i % 11) as u8).collect();
    let values: Vec<f32> = codes.iter().map(|e| f32::from_bits(u32::from(*e) << 23)).collect();
    let forms = [
        Tensor::from_slice(&values, &[m, 4], &device).unwrap(),
        Tensor::from_bytes(DType::U8, &codes, &[m, 4], &device).unwrap(),
        Tensor::from_bytes(DType::I32, &codes, &[m, 1], &device).unwrap(),
    ];
    let b = weights.codes(&device);
    let mut first = None;
    for sfa in &forms {
        for sfb in &weights.scales(&device) {
            let found = product((&a, sfa), (&b, sfb), &GemmOptions::default());
            assert_eq!(first.get_or_insert_with(|| found.clone()), &found, "{} {}", sfa.dtype(), sfb.dtype());
        }
    }
}

#[test]
fn every_shape_has_a_plan_by_its_name() {
    let operands = OperandKind::FP8_MXFP4;
    for [m, n, k] in [[1, 2, 2], [64, 7168, 2048], [4096, 7168, 4096], [100_003, 24, 640]] {
        let dense = PlanRequest::dense(operands, GemmShape { m, n, k });
        let groups = MGroupedShape { groups: 8, slabs: 1, rows: m, expected: m.div_ceil(8), n, k };
        for request in [dense, PlanRequest::m_grouped(operands, groups)] {
            for fusion in [Fusion::None, Fusion::Elementwise, Fusion::Gated] {
                let request = PlanRequest { fusion, ..request };
                let plan = plan::plan(&request, &Limits::h200()).unwrap();
                assert_eq!(plan::parse(&plan.name()), Some(plan.config));
                // Persistent kernels split no K, so a row never depends on its batch.
                let invariant = PlanRequest { batch_invariant: true, ..request };
                assert_eq!(plan::plan(&invariant, &Limits::h200()).unwrap().config, plan.config);
            }
        }
    }
    let tile = |expected: u32| {
        let groups = MGroupedShape { groups: 32, slabs: 32, rows: 4 * expected, expected, n: 4096, k: 7168 };
        let request = PlanRequest::m_grouped(operands, groups);
        plan::plan(&request, &Limits::h200()).unwrap().config.tile()[0]
    };
    assert_eq!([tile(4), tile(256)], [16, 128]);
}

/// What kernels for Hopper do not have is named.
#[test]
fn what_is_refused_is_named() {
    let device = Device::sim();
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
    let options = GemmOptions::default();
    let (a, sfa) = (new(DType::E4m3, &[8, 256]), new(DType::F32, &[8, 2]));
    let (b, sfb) = (new(DType::U8, &[64, 128]), new(DType::U8, &[64, 8]));
    let mut d = new(DType::Bf16, &[8, 64]);
    let mut run =
        |a: (&Tensor, &Tensor), b: (&Tensor, &Tensor)| fp8_fp4_gemm_nt(a, b, Addend::None, &mut d, &options);
    run((&a, &sfa), (&b, &sfb)).unwrap();
    let of_32 = new(DType::F32, &[8, 8]);
    let error = run((&a, &of_32), (&b, &sfb)).unwrap_err();
    assert!(matches!(error, Error::ScaleShape { argument: "sfa", .. }), "{error}");
    let error = run((&a, &sfa), (&b, &new(DType::F32, &[64, 2]))).unwrap_err();
    assert!(matches!(error, Error::ScaleShape { argument: "sfb", .. }), "{error}");
    // FP4 as A, and of both.
    let a4 = new(DType::U8, &[8, 128]);
    let error = run((&a4, &of_32), (&new(DType::E4m3, &[64, 256]), &new(DType::F32, &[64, 8]))).unwrap_err();
    assert!(matches!(error, Error::DType { argument: "a", .. }), "{error}");
    let error = fp4_gemm_nt((&a4, &of_32), (&b, &sfb), Addend::None, &mut d, &options).unwrap_err();
    assert!(error.to_string().contains("sm_90a"), "{error}");
    let (nv_a, nv_b) = (new(DType::E4m3, &[8, 16]), new(DType::E4m3, &[64, 16]));
    let error = nvfp4_gemm_nt((&a4, &nv_a), (&b, &nv_b), Addend::None, &mut d, [1.0; 2], &options);
    assert!(error.as_ref().is_err_and(|error| error.to_string().contains("sm_90a")), "{error:?}");
    // Batches.
    let slab = |x: &Tensor| x.view(&[1, x.dims()[0], x.dims()[1]]).unwrap();
    let (a, sfa, b, sfb, mut d) = (slab(&a), slab(&sfa), slab(&b), slab(&sfb), slab(&d));
    let error = fp8_fp4_bgemm_nt((&a, &sfa), (&b, &sfb), &mut d, &options).unwrap_err();
    assert!(matches!(error, Error::DType { argument: "b", .. }), "{error}");
}
