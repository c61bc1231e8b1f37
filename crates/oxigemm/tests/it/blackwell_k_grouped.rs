//! Blackwell's k-grouped GEMM kernels in the simulator: whatever the schedule, the same bits, no hazard, and the product of
//! every group.

use crate::common::blackwell::{blackwell, every_schedule_gives_the_same_bits};
use crate::common::{AddendKind, one_policy, some_schedules};
use oxigemm::plan::{self, GemmConfig, OperandKind};
use oxigemm::sim::Options;
use oxigemm::{
    Addend, DType, Device, GemmOptions, KGroupNumbers, Result, ScaleBlock, Sim, Tensor,
    k_grouped_fp4_gemm_nt_contiguous, k_grouped_fp8_gemm_nt_contiguous, k_grouped_fp8_gemm_tn_contiguous,
    random,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::operand::f16::Major;
use oxigemm_kernels::gemm::{ElementType, GemmKernel};
use oxigemm_testkit::GemmCase;
use oxigemm_testkit::plan::operands_of;

/// M and N of a case of a kernel: one tile along M, of which a pair's second CTA has rows, and more than one along N.
fn dims_of(kernel: &GemmKernel) -> [usize; 2] {
    let rows = kernel.tile()[0] * GemmConfig::of(*kernel).cluster[0];
    [rows as usize - 61, kernel.tile_columns() as usize + 8]
}

/// More tiles than CTAs, but where the grid has a CTA for each tile.
fn few_sms(config: Option<GemmConfig>) -> Option<u32> {
    config.is_none_or(|config| !config.covers_d()).then_some(2)
}

/// Runs the `nth` case of a set by a kernel of 16-bit operands: tails along M, N and K, its own output and addend; groups
/// without K, of one step, of whole stages, with a tail, and of more stages than a pipeline has.
fn product_of_16_bits(kernel: &GemmKernel, nth: usize, schedules: impl Iterator<Item = Options>) {
    let (types, layout) = operands_of(kernel);
    let config = GemmConfig::of(*kernel);
    let (d_type, addend) = [
        (types.d_types[1], AddendKind::Inplace),
        (types.d_types[0], AddendKind::None),
        (types.d_types[1], AddendKind::None),
        (types.d_types[0], AddendKind::Other),
    ][nth % 4];
    let case = GemmCase::k_grouped(types, layout, vec![0, 1, 128, 72, 0, 389], dims_of(kernel));
    let case = GemmCase { d_type, addend, d_padding: 8 * (nth % 2), d_row_padding: nth % 3, ..case };
    every_schedule_gives_the_same_bits(&case, config, schedules);
}

#[test]
fn every_second_kernel_of_16_bit_operands() {
    let kernels = GemmKernel::k_grouped(Arch::Sm100a).filter(|kernel| kernel.operands().as_f16().is_some());
    for (nth, kernel) in kernels.step_by(2).enumerate() {
        product_of_16_bits(&kernel, nth, one_policy(nth));
    }
}

/// An encoding of scales, and whether they are MN-major.
#[derive(Clone, Copy, Debug)]
struct Encoding {
    dtype: DType,
    mn_major: bool,
}

const ENCODINGS: [Encoding; 4] = [
    Encoding { dtype: DType::I32, mn_major: true },
    Encoding { dtype: DType::F32, mn_major: false },
    Encoding { dtype: DType::U8, mn_major: false },
    Encoding { dtype: DType::F32, mn_major: true },
];

/// Groups of a GEMM with scales.
#[derive(Clone, Debug)]
struct Case {
    kind: OperandKind,
    dims: [usize; 2],
    ks: Vec<usize>,
    encoding: Encoding,
    /// Ends of groups instead of their K, with this alignment.
    ends: Option<usize>,
    d_type: DType,
    addend: AddendKind,
}

/// The operands of a case on a device.
struct Operands {
    a: (Tensor, Tensor),
    b: (Tensor, Tensor),
    c: Tensor,
    d: Tensor,
    numbers: Tensor,
}

impl Case {
    fn new(kind: OperandKind, dims: [usize; 2], ks: &[usize]) -> Case {
        // FP4 has two elements to a byte.
        let unit = if kind.a.element == ElementType::E2m1 { 2 } else { 1 };
        let ks = ks.iter().map(|k| k.next_multiple_of(unit)).collect();
        let (encoding, ends) = (ENCODINGS[0], None);
        Case { kind, dims, ks, encoding, ends, d_type: DType::F32, addend: AddendKind::None }
    }

    fn k_first(&self) -> bool {
        self.kind.a.major == Major::MN
    }

    fn is_fp4(&self) -> bool {
        self.kind.a.element == ElementType::E2m1
    }

    /// Where each group begins along K, and the end of all.
    fn starts(&self) -> (Vec<usize>, usize) {
        let unit = match (self.k_first(), self.is_fp4()) {
            (true, _) => 1,
            (false, true) => 32,
            (false, false) => 16,
        };
        let unit = self.ends.unwrap_or(1).max(unit);
        let mut end = 0;
        let mut next = |k: &usize| {
            let start = end;
            end = (end + k).next_multiple_of(unit);
            start
        };
        (self.ks.iter().map(&mut next).collect(), end)
    }

    /// Random codes of all groups, with NaN between them, and random scales within 16 powers of two.
    fn operand(&self, seed: u64, rows: usize, device: &Device) -> (Tensor, Tensor) {
        let per_byte = if self.is_fp4() { 2 } else { 1 };
        let (starts, extent) = self.starts();
        let (dtype, nan) = if self.is_fp4() { (DType::U8, 0x77) } else { (DType::E4m3, 0x7f) };
        // Something behind every row.
        let pitch = (rows + 1).next_multiple_of(16);
        let mut codes = vec![nan; extent / per_byte * if self.k_first() { pitch } else { rows }];
        for (group, (start, k)) in starts.into_iter().zip(&self.ks).enumerate() {
            let (start, k, seed) = (start / per_byte, k / per_byte, seed + 10 * group as u64);
            let of_group = match self.is_fp4() {
                true => (0..(rows * k) as u64).map(|i| random::bits(seed, i) as u8).collect(),
                false => DType::E4m3.encode(&random::normals(seed, rows * k)),
            };
            let own_pitch = k.next_multiple_of(16);
            for (i, code) in of_group.into_iter().enumerate() {
                let (row, depth) = (i / k, i % k);
                let at = match self.k_first() {
                    true => (start + depth) * pitch + row,
                    false => start * rows + row * own_pitch + depth,
                };
                codes[at] = code;
            }
        }
        let codes = match self.k_first() {
            true => {
                let memory = Tensor::from_bytes(dtype, &codes, &[extent, pitch], device).expect("codes");
                memory.narrow(1, 0, rows).expect("rows")
            }
            false => Tensor::from_bytes(dtype, &codes, &[codes.len()], device).expect("codes"),
        };
        (codes, self.scales(seed + 1, rows, device))
    }

    fn scales(&self, seed: u64, rows: usize, device: &Device) -> Tensor {
        let block = self.kind.scale_block.size() as usize;
        let blocks: usize = self.ks.iter().map(|k| k.div_ceil(block)).sum();
        let code =
            |row: usize, column: usize| 120 + random::bits(seed, (row * blocks + column) as u64) as u8 % 16;
        let Encoding { dtype, mn_major } = self.encoding;
        let (columns, size) = match dtype {
            DType::I32 => (blocks.div_ceil(4), 4),
            DType::F32 => (blocks, 4),
            _ => (blocks, 1),
        };
        let bytes = |row: usize, column: usize| -> Vec<u8> {
            match dtype {
                DType::I32 => {
                    let byte = |i| if 4 * column + i < blocks { code(row, 4 * column + i) } else { 0 };
                    (0..4).map(byte).collect()
                }
                DType::F32 => f32::from_bits(u32::from(code(row, column)) << 23).to_le_bytes().to_vec(),
                _ => vec![code(row, column)],
            }
        };
        let at = |i: usize| if mn_major { (i % rows, i / rows) } else { (i / columns, i % columns) };
        let memory: Vec<u8> = (0..rows * columns)
            .flat_map(|i| {
                let (row, column) = at(i);
                bytes(row, column)
            })
            .collect();
        assert_eq!(memory.len(), rows * columns * size);
        let dims = if mn_major { [columns, rows] } else { [rows, columns] };
        let scales = Tensor::from_bytes(dtype, &memory, &dims, device).expect("scales");
        // `[rows, blocks]`, or `[blocks, rows]` where K is first.
        if mn_major == self.k_first() { scales } else { scales.transpose(0, 1).expect("two dimensions") }
    }

    fn on(&self, device: &Device) -> Operands {
        let [m, n] = self.dims;
        let matrix = |seed| {
            let values = random::normals(seed, self.ks.len() * m * n);
            Tensor::from_f32(self.d_type, &values, &[self.ks.len(), m, n], device).expect("a matrix")
        };
        let numbers: Vec<i32> = match self.ends {
            None => self.ks.iter().map(|k| *k as i32).collect(),
            Some(_) => self.starts().0.iter().zip(&self.ks).map(|(start, k)| (start + k) as i32).collect(),
        };
        Operands {
            a: self.operand(1000, m, device),
            b: self.operand(5000, n, device),
            c: matrix(3),
            d: matrix(4),
            numbers: Tensor::from_slice(&numbers, &[numbers.len()], device).expect("numbers"),
        }
    }

    /// The product, in D.
    fn run(&self, device: &Device, options: &GemmOptions) -> Result<Tensor> {
        let Operands { a, b, c, mut d, numbers } = self.on(device);
        let addend = match self.addend {
            AddendKind::None => Addend::None,
            AddendKind::Inplace => Addend::InPlace,
            AddendKind::Other => Addend::From(&c),
        };
        let numbers = match self.ends {
            None => KGroupNumbers::Ks(&numbers),
            Some(alignment) => KGroupNumbers::Ends { ends: &numbers, alignment },
        };
        let host = (self.ends.is_none()).then_some(&self.ks[..]);
        self.multiply(&a, &b, addend, &mut d, (numbers, host), options)?;
        Ok(d)
    }

    /// Calls the function of its operands.
    fn multiply(
        &self,
        (a, sfa): &(Tensor, Tensor),
        (b, sfb): &(Tensor, Tensor),
        addend: Addend<'_>,
        d: &mut Tensor,
        (numbers, host): (KGroupNumbers<'_>, Option<&[usize]>),
        options: &GemmOptions,
    ) -> Result<()> {
        let (a, b) = ((a, sfa), (b, sfb));
        let options = &GemmOptions { scale_blocks: [Some(self.kind.scale_block); 2], ..options.clone() };
        match (self.is_fp4(), self.k_first()) {
            (true, _) => k_grouped_fp4_gemm_nt_contiguous(a, b, addend, d, numbers, host, options),
            (_, true) => k_grouped_fp8_gemm_tn_contiguous(a, b, addend, d, numbers, host, options),
            (_, false) => k_grouped_fp8_gemm_nt_contiguous(a, b, addend, d, numbers, host, options),
        }
    }

    /// Runs it on Blackwell under some schedules, which must all give the same bits, those of the product.
    fn expect_right(&self, config: Option<GemmConfig>, schedules: impl Iterator<Item = Options>) {
        let (device, sim) = blackwell();
        let options = GemmOptions { config, num_sms: few_sms(config), ..Default::default() };
        let name = config.map_or_else(String::new, |config| plan::name(&config));
        let expected = self.run(&Device::Cpu, &GemmOptions::default()).expect("a product");
        let expected = expected.to_vec_f32().expect("D");
        let mut first: Option<Vec<u8>> = None;
        for schedule in schedules {
            let about = format!("{name} {self:?}, {:?} {}", schedule.policy, schedule.seed);
            sim.set_options(schedule);
            let d = self.run(&device, &options).unwrap_or_else(|error| panic!("{about}: {error}"));
            let allowed = if self.d_type == DType::F32 { 1e-6 } else { 3e-3 };
            let (found, size) = (d.to_vec_f32().expect("D"), self.dims[0] * self.dims[1]);
            for (group, (found, expected)) in found.chunks(size).zip(expected.chunks(size)).enumerate() {
                let error = relative_error(found, expected);
                assert!(error < allowed, "{about}: group {group} is off by {error:e}");
            }
            let bits = d.to_bytes().expect("D");
            assert_eq!(*first.get_or_insert_with(|| bits.clone()), bits, "{about}: other bits");
        }
    }
}

fn relative_error(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let (error, size) = found.iter().zip(expected).fold((0.0, 0.0), |(error, size), (x, y)| {
        (error + square(f64::from(*x) - f64::from(*y)), size + square(f64::from(*y)))
    });
    if error == 0.0 { 0.0 } else { (error / size).sqrt() }
}

/// Groups without K, of one step, of whole stages, with a tail; scales begin at every byte of a word.
const KS: [usize; 7] = [0, 1, 256, 40, 65, 0, 700];

/// Kernels whose tensor core applies scales.
fn scaled_kernels() -> impl Iterator<Item = GemmKernel> {
    GemmKernel::k_grouped(Arch::Sm100a).filter(|kernel| kernel.operands().is_block_scaled())
}

/// One of each kind of operands.
fn one_of_each_kind() -> impl Iterator<Item = GemmKernel> {
    scaled_kernels().filter(|kernel| kernel.spec().claims_tiles())
}

#[test]
fn every_second_kernel_with_scales() {
    for (nth, kernel) in scaled_kernels().step_by(2).enumerate() {
        let case = Case::new(kernel.operands(), dims_of(&kernel), &KS);
        let (d_type, addend) = [
            (DType::F32, AddendKind::Inplace),
            (DType::Bf16, AddendKind::None),
            (DType::F32, AddendKind::None),
            (DType::F32, AddendKind::Other),
        ][nth % 4];
        let case = Case { encoding: ENCODINGS[nth / 2 % 4], d_type, addend, ..case };
        case.expect_right(Some(GemmConfig::of(kernel)), one_policy(nth));
    }
}

#[test]
fn one_kernel_of_each_kind_under_five_schedules() {
    let config = |name| plan::parse(name).expect("the name of a configuration");
    let kernel = config("sm100_bf16_persistent_k_grouped_tn_256x256_s5_c2x1").kernel;
    product_of_16_bits(&kernel, 0, some_schedules());
    for name in [
        "sm100_mxfp8_persistent_k_grouped_nt_256x256_s5_c2x1",
        "sm100_mxfp8_persistent_clc_k_grouped_nt_256x256_s5_c2x1",
        "sm100_ue8m0_e4m3_persistent_k_grouped_tn_128x128_s5_c1x1",
    ] {
        let kernel = config(name).kernel;
        let case = Case::new(kernel.operands(), dims_of(&kernel), &[40, 0, 300]);
        case.expect_right(Some(GemmConfig::of(kernel)), some_schedules());
    }
}

#[test]
fn planned_kernels_of_every_encoding_with_and_without_ends() {
    let kinds: Vec<OperandKind> = one_of_each_kind().map(|kernel| kernel.operands()).collect();
    assert_eq!(kinds.len(), 5);
    for (nth, kind) in kinds.into_iter().enumerate() {
        for (turn, encoding) in ENCODINGS.into_iter().enumerate() {
            let ends = [None, Some(if kind.a.element == ElementType::E2m1 { 32 } else { 16 })][turn % 2];
            let case = Case { encoding, ends, ..Case::new(kind, [36, 72], &[130, 0, 33, 64]) };
            case.expect_right(None, one_policy(nth + turn));
        }
    }
}

#[test]
fn many_small_groups_take_turns_with_the_maps() {
    let ks: Vec<usize> = (0..128).map(|i| [16, 0, 144, 2][i % 4]).collect();
    for (nth, kernel) in one_of_each_kind().enumerate() {
        let case = Case::new(kernel.operands(), [20, 24], &ks);
        case.expect_right(None, one_policy(nth).take(1));
    }
}

#[test]
fn an_empty_group_leaves_d_as_it_is_or_clears_it() {
    let kind = scaled_kernels().next().expect("a kernel").operands();
    let (device, _) = blackwell();
    for (addend, expected) in [(AddendKind::None, 0.0f32), (AddendKind::Inplace, -0.0)] {
        for ks in [&[0, 128][..], &[0, 0]] {
            let case = Case::new(kind, [8, 16], ks);
            let Operands { a, b, mut d, numbers, .. } = case.on(&device);
            d.write_f32(&vec![-0.0; ks.len() * 8 * 16]).expect("D");
            let addend = if addend == AddendKind::None { Addend::None } else { Addend::InPlace };
            let (a, b, options) = ((&a.0, &a.1), (&b.0, &b.1), GemmOptions::default());
            k_grouped_fp8_gemm_nt_contiguous(a, b, addend, &mut d, &numbers, None, &options).expect("D");
            let found = d.select(0).expect("a group").to_vec_f32().expect("D");
            assert!(found.iter().all(|x| x.to_bits() == expected.to_bits()), "{ks:?}: {found:?}");
        }
    }
}

#[test]
fn numbers_that_do_not_fit_are_cut_off() {
    let (device, _) = blackwell();
    for kernel in scaled_kernels().step_by(2) {
        let case = Case::new(kernel.operands(), [20, 40], &[200, 100, 128]);
        for numbers in [[i32::MAX, 6, 6], [-8, 200, 1000], [0, 0, 0], [384, 2, -2]] {
            let found = [device.clone(), Device::Cpu].map(|device| {
                let mut operands = case.on(&device);
                operands.numbers = Tensor::from_slice(&numbers, &[3], &device).expect("numbers");
                let Operands { a, b, mut d, numbers, .. } = operands;
                let numbers_only = (KGroupNumbers::Ks(&numbers), None);
                case.multiply(&a, &b, Addend::None, &mut d, numbers_only, &GemmOptions::default())
                    .unwrap_or_else(|error| panic!("{case:?}: {error}"));
                d.to_vec_f32().expect("D")
            });
            for (found, expected) in found[0].iter().zip(&found[1]) {
                // What lies between rows is NaN, and may be part of a product now.
                let same = (found - expected).abs() <= 1e-4 * expected.abs().max(1e4);
                assert!(
                    same || (found.is_nan() && expected.is_nan()),
                    "{case:?} {numbers:?}: {found} {expected}"
                );
            }
        }
    }
}

#[test]
fn what_does_not_exist_is_refused_by_name() {
    let (blackwell, _) = blackwell();
    let hopper = Device::Sim(Sim::new());
    let kinds: Vec<OperandKind> = scaled_kernels().step_by(2).map(|kernel| kernel.operands()).collect();
    let refusal = |case: &Case, device: &Device, options: GemmOptions| {
        let found = case.run(device, &options).expect_err("a refusal").to_string();
        assert!(found.ends_with(|c: char| c != '.') && !found.contains('\n'), "{found}");
        found
    };
    let of = |block, fp4: bool, k_first: bool| {
        let is = |kind: &&OperandKind| {
            kind.scale_block == block
                && (kind.a.element == ElementType::E2m1) == fp4
                && (kind.a.major == Major::MN) == k_first
        };
        Case::new(*kinds.iter().find(is).expect("a kind"), [16, 16], &[64, 32])
    };
    let default = GemmOptions::default;
    let fp4 = of(ScaleBlock::Of32, true, false);
    assert!(refusal(&fp4, &hopper, default()).contains("the tensor core of sm_90a has no FP4"));
    let mxfp8 = of(ScaleBlock::Of32, false, false);
    assert!(refusal(&mxfp8, &hopper, default()).contains("one per row of `a` and 128 of K"));
    let ends = Case { ends: Some(16), ..of(ScaleBlock::Of128, false, true) };
    assert!(refusal(&ends, &hopper, default()).contains("the K of each group, as FP8 operands in tn"));
    // Granularities that no kernel has, by the caller's word.
    let Operands { a, b, mut d, numbers, .. } = mxfp8.on(&blackwell);
    let mut run = |scale_blocks| {
        let options = GemmOptions { scale_blocks, ..Default::default() };
        let (a, b) = ((&a.0, &a.1), (&b.0, &b.1));
        let result = k_grouped_fp8_gemm_nt_contiguous(a, b, Addend::None, &mut d, &numbers, None, &options);
        result.expect_err("a refusal").to_string()
    };
    let [of_32, of_128] = [ScaleBlock::Of32, ScaleBlock::Of128].map(Some);
    assert!(run([of_32, of_128]).contains("as many of K for both operands"));
    assert!(run([Some(ScaleBlock::Of16); 2]).contains("128 or 32 of K"));
    let Operands { a, b, mut d, numbers, .. } = fp4.on(&blackwell);
    let mut run = |ks: &[usize], scale_blocks| {
        let options = GemmOptions { scale_blocks, ..Default::default() };
        let (a, b) = ((&a.0, &a.1), (&b.0, &b.1));
        let none = Addend::None;
        let result = k_grouped_fp4_gemm_nt_contiguous(a, b, none, &mut d, &numbers, Some(ks), &options);
        result.expect_err("a refusal").to_string()
    };
    assert!(run(&[63, 32], [None; 2]).contains("even numbers, as operands are FP4"));
    assert!(run(&[64, 32], [of_128; 2]).contains("32 of K, as operands are FP4"));
}
