//! Outputs with scales of bytes, which the epilogue of Blackwell's GEMMs writes: the codes and scales of the quantizers, to
//! the bit, for what the same kernel writes in FP32, whatever the schedule; and a GEMM reads them as they are.

use crate::blackwell_scaled::operand;
use crate::common::blackwell::blackwell;
use crate::common::policies;
use oxigemm::cast::ScaleFormat;
use oxigemm::metrics::calc_diff;
use oxigemm::plan::{self, GemmConfig, OperandKind};
use oxigemm::sim::Options;
use oxigemm::{
    Activation, Addend, BlockFormat, DType, Device, Epilogue, Error, FusedOutput, GemmOptions, Granularity,
    GroupedRows, LaunchOptions, RowGroups, Tensor, TensorScale, fp8_fp4_gemm_nt, fp8_fp4_gemm_nt_fused,
    half_gemm_nt_fused, m_grouped_fp8_fp4_gemm_nt_fused, m_grouped_half_gemm_nt_fused,
    m_grouped_nvfp4_gemm_nt, quantize, quantize_nvfp4, random,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::params::ScaleBlock;
use oxigemm_kernels::gemm::scheduler::m_grouped::Grouping;

const FORMATS: [BlockFormat; 4] =
    [BlockFormat::Fp8, BlockFormat::Mxfp8, BlockFormat::Mxfp4, BlockFormat::Nvfp4 { tensor_scale: 0.37 }];

/// Columns that share a scale, and codes in a byte.
fn shape_of(format: BlockFormat) -> (usize, usize) {
    match format {
        BlockFormat::Fp8 => (128, 1),
        BlockFormat::Mxfp8 => (32, 1),
        BlockFormat::Mxfp4 => (32, 2),
        BlockFormat::Nvfp4 { .. } => (16, 2),
    }
}

/// Codes and scales of a quantized matrix, or of several.
struct Blocks {
    d: Tensor,
    scales: Tensor,
    format: BlockFormat,
}

/// What a matrix holds before it is written.
const UNTOUCHED: u8 = 0xa5;

impl Blocks {
    /// Room for rows, or for slabs of them; scales are MN-major.
    fn room(format: BlockFormat, dims: &[usize], device: &Device) -> Blocks {
        let (width, per_byte) = shape_of(format);
        let (dtype, rank) = (if per_byte == 2 { DType::U8 } else { DType::E4m3 }, dims.len());
        let (rows, columns) = (dims[rank - 2], dims[rank - 1]);
        let with_last = |last: [usize; 2]| [&dims[..rank - 2], &last].concat();
        let d = Tensor::empty(dtype, &with_last([rows, columns / per_byte]), device).unwrap();
        let words = columns.div_ceil(width).div_ceil(4);
        let scales = Tensor::empty(DType::I32, &with_last([words, rows]), device).unwrap();
        let mut to = Blocks { d, scales: scales.transpose(rank - 2, rank - 1).unwrap(), format };
        for tensor in [&mut to.d, &mut to.scales] {
            tensor.write_bytes(&vec![UNTOUCHED; tensor.len() * tensor.dtype().size()]).unwrap();
        }
        to
    }

    /// What the quantizers make of FP32 rows.
    fn quantized(format: BlockFormat, rows: &Tensor) -> Blocks {
        let [m, n] = [rows.dims()[0], rows.dims()[1]];
        let mut to = Blocks::room(format, &[m, n], rows.device());
        let (options, power) = (LaunchOptions::default(), ScaleFormat::PowerOfTwo);
        let granularity = match format {
            BlockFormat::Nvfp4 { tensor_scale } => {
                let scale = Tensor::from_slice(&[tensor_scale], &[1], rows.device()).unwrap();
                let given = TensorScale::Given(&scale);
                quantize_nvfp4(rows, &mut to.d, &mut to.scales, given, &options).unwrap();
                return to;
            }
            BlockFormat::Fp8 => Granularity::PerToken,
            BlockFormat::Mxfp8 | BlockFormat::Mxfp4 => Granularity::PerGroup32,
        };
        quantize(rows, &mut to.d, &mut to.scales, granularity, power, &options).unwrap();
        to
    }

    fn output(&mut self) -> FusedOutput<'_> {
        FusedOutput::BlockScaled { d: &mut self.d, scales: &mut self.scales, format: self.format }
    }

    /// Bytes of each row: codes, then scales.
    fn rows(&self) -> Vec<[Vec<u8>; 2]> {
        let (codes, scales) = (self.d.to_bytes().unwrap(), self.scales.to_bytes().unwrap());
        let rows = self.d.len() / self.d.dims().last().unwrap();
        let each = [codes.len() / rows, scales.len() / rows];
        codes.chunks(each[0]).zip(scales.chunks(each[1])).map(|(c, s)| [c.to_vec(), s.to_vec()]).collect()
    }
}

/// A bias with numbers that make scales of every kind: tiny ones, huge ones, an infinity and NaN.
fn special_bias(columns: usize) -> Vec<f32> {
    let mut bias = random::normals(9, columns);
    for (column, value) in [(40, 3e38), (70, f32::INFINITY), (100, f32::NAN), (101, -1e30), (130, -0.0)] {
        bias[column] = value;
    }
    bias
}

/// A dense GEMM of a kernel with a fused epilogue.
struct Dense {
    config: GemmConfig,
    a: (Tensor, Option<Tensor>),
    b: (Tensor, Option<Tensor>),
    bias: Tensor,
    m: usize,
    n: usize,
    device: Device,
}

impl Dense {
    /// Rows and columns are no multiple of a tile. A row is 0.
    fn new(kernel: GemmKernel, device: &Device) -> Dense {
        let (kind, gated) = (kernel.operands(), kernel.fusion() == Fusion::Gated);
        let config = GemmConfig::of(kernel);
        let (m, k) = (kernel.tile()[0] as usize + 9, 128);
        let n = if gated { 512 } else { 160 };
        let matrix = |seed, rows, is_b| -> (Tensor, Option<Tensor>) {
            match kind.as_f16() {
                Some(_) => {
                    let values = random::normals(seed, rows * k);
                    (Tensor::from_f32(half_type(kind), &values, &[rows, k], device).unwrap(), None)
                }
                None => {
                    let (codes, scales) = operand(seed, kind, (rows, k, is_b), device);
                    (codes, Some(scales))
                }
            }
        };
        let (a, b) = (matrix(1, m, false), matrix(3, n, true));
        let mut zero = a.0.narrow(0, 3, 1).unwrap();
        zero.write_bytes(&vec![0; zero.len() * zero.dtype().size()]).unwrap();
        let bias = Tensor::from_slice(&special_bias(n), &[n], device).unwrap();
        Dense { config, a, b, bias, m, n, device: device.clone() }
    }

    fn columns(&self) -> usize {
        if self.config.kernel.fusion() == Fusion::Gated { self.n / 2 } else { self.n }
    }

    /// Runs it. Without a bias, blocks are of 0, else of anything.
    fn run(&self, d: FusedOutput<'_>, with_bias: bool) {
        let kind = self.config.kernel.operands();
        let of_16 = kind.scale_block == ScaleBlock::Of16 && self.a.1.is_some();
        let scale_blocks = if of_16 { [Some(ScaleBlock::Of16); 2] } else { [None; 2] };
        // More tiles than CTAs.
        let options =
            GemmOptions { config: Some(self.config), num_sms: Some(2), scale_blocks, ..Default::default() };
        let gated = self.config.kernel.fusion() == Fusion::Gated;
        let bias = with_bias.then_some(&self.bias);
        let epilogue =
            Epilogue { alpha: 0.25, activation: Activation::Silu, gated, bias, ..Default::default() };
        let result = match (&self.a, &self.b) {
            ((a, Some(sfa)), (b, Some(sfb))) => {
                fp8_fp4_gemm_nt_fused((a, sfa), (b, sfb), Addend::None, d, &epilogue, &options)
            }
            ((a, _), (b, _)) => half_gemm_nt_fused(a, b, Addend::None, d, &epilogue, &options),
        };
        result.unwrap_or_else(|error| panic!("{}: {error}", plan::name(&self.config)));
    }

    /// Compares an output with what the quantizers make of the FP32 output, under some schedules.
    fn check(&self, format: BlockFormat, with_bias: bool, schedules: impl Iterator<Item = Options>) {
        let sim = self.device.as_sim().expect("a simulated device");
        let mut whole = Tensor::zeros(DType::F32, &[self.m, self.columns()], &self.device).unwrap();
        self.run(FusedOutput::Matrix(&mut whole), with_bias);
        let expected = Blocks::quantized(format, &whole).rows();
        for schedule in schedules {
            let about = format!(
                "{} to {format:?}, {:?} {}",
                plan::name(&self.config),
                schedule.policy,
                schedule.seed
            );
            sim.set_options(schedule);
            let mut found = Blocks::room(format, &[self.m, self.columns()], &self.device);
            self.run(found.output(), with_bias);
            for (row, (found, expected)) in found.rows().iter().zip(&expected).enumerate() {
                assert_eq!(found[1], expected[1], "{about}: scales of row {row}");
                assert_eq!(found[0], expected[0], "{about}: codes of row {row}");
            }
        }
    }
}

fn half_type(kind: OperandKind) -> DType {
    match kind.a.element {
        oxigemm_kernels::gemm::ElementType::F16 => DType::F16,
        _ => DType::Bf16,
    }
}

/// Kernels that quantize D to blocks.
fn kernels(grouping: Grouping) -> impl Iterator<Item = GemmKernel> {
    GemmKernel::all(Arch::Sm100a)
        .filter(move |kernel| kernel.spec().quantizes_to_blocks() && kernel.grouping() == grouping)
}

/// The first kernel of such operands.
fn kernel_of(operands: &str, grouping: Grouping, fusion: Fusion) -> GemmKernel {
    let is_wanted = |kernel: &GemmKernel| kernel.fusion() == fusion && kernel.name().starts_with(operands);
    kernels(grouping).find(is_wanted).expect("there is one")
}

/// Half of the dense kernels; of the others the m-grouped ones run.
#[test]
fn dense_kernels_quantize_as_the_quantizers_do() {
    let (device, _) = blackwell();
    for (nth, kernel) in kernels(Grouping::Dense).step_by(2).enumerate() {
        Dense::new(kernel, &device).check(
            FORMATS[nth % 4],
            nth % 3 != 0,
            policies(nth).skip(nth % 3).take(1),
        );
    }
}

#[test]
fn every_format_of_a_kernel_of_each_kind_under_all_policies() {
    let (device, _) = blackwell();
    for (operands, fusion) in [("sm100_mxfp8", Fusion::Elementwise), ("sm100_bf16", Fusion::Gated)] {
        let kernel = kernel_of(operands, Grouping::Dense, fusion);
        let dense = Dense::new(kernel, &device);
        for (nth, format) in FORMATS.into_iter().enumerate() {
            dense.check(format, nth % 2 == 0, policies(nth));
        }
    }
}

#[test]
fn what_no_kernel_writes_is_refused_by_name() {
    let hopper = Device::sim();
    let bf16 = |dims: &[usize], device: &Device| Tensor::zeros(DType::Bf16, dims, device).unwrap();
    let run = |format, columns: usize, device: &Device, change: &dyn Fn(&mut Blocks)| {
        let mut to = Blocks::room(format, &[8, columns], device);
        change(&mut to);
        let (a, b) = (bf16(&[8, 64], device), bf16(&[columns, 64], device));
        let options = GemmOptions::default();
        half_gemm_nt_fused(&a, &b, Addend::None, to.output(), &Epilogue::default(), &options).unwrap_err()
    };
    let refused = run(BlockFormat::Mxfp4, 64, &hopper, &|_| ());
    assert!(refused.to_string().contains("as kernels write on sm_90a, found those of mxfp4"), "{refused}");
    for device in [Device::cpu(), blackwell().0] {
        let refused = run(BlockFormat::Mxfp4, 48, &device, &|_| ());
        assert!(refused.to_string().contains("a multiple of 32 columns"), "{refused}");
        let refused = run(BlockFormat::Mxfp8, 64, &device, &|to| {
            to.scales = Tensor::zeros(DType::F32, &[8, 2], to.d.device()).unwrap();
        });
        assert!(matches!(refused, Error::DType { argument: "d_scales", .. }), "{refused}");
        let refused = run(BlockFormat::Mxfp8, 256, &device, &|to| {
            to.scales = to.scales.narrow(1, 0, 1).unwrap();
        });
        assert!(matches!(refused, Error::ScaleShape { argument: "d_scales", .. }), "{refused}");
        let refused = run(BlockFormat::Mxfp4, 64, &device, &|to| {
            to.d = Tensor::zeros(DType::U8, &[8, 40], to.d.device()).unwrap().narrow(1, 0, 32).unwrap();
        });
        assert!(matches!(refused, Error::Tma { argument: "d", .. }), "{refused}");
        let refused = run(BlockFormat::Nvfp4 { tensor_scale: 0.0 }, 64, &device, &|_| ());
        assert!(matches!(refused, Error::Shape { argument: "tensor_scale", .. }), "{refused}");
    }
}

#[test]
fn the_cpu_writes_what_its_quantizers_do() {
    let device = Device::cpu();
    let matrix =
        |seed, rows| Tensor::from_f32(DType::Bf16, &random::normals(seed, rows * 40), &[rows, 40], &device);
    let (a, b, options) = (matrix(1, 5).unwrap(), matrix(2, 160).unwrap(), GemmOptions::default());
    let run = |d: FusedOutput<'_>| {
        half_gemm_nt_fused(&a, &b, Addend::None, d, &Epilogue::default(), &options).unwrap();
    };
    let mut whole = Tensor::zeros(DType::F32, &[5, 160], &device).unwrap();
    run(FusedOutput::Matrix(&mut whole));
    for format in FORMATS {
        let mut to = Blocks::room(format, &[5, 160], &device);
        run(to.output());
        assert_eq!(to.rows(), Blocks::quantized(format, &whole).rows(), "{format:?}");
    }
}

/// Groups of rows, in one matrix or in slabs, and an m-grouped GEMM of a kernel.
struct Grouped {
    config: GemmConfig,
    masked: bool,
    numbers: Tensor,
    a: (Tensor, Option<Tensor>),
    b: (Tensor, Option<Tensor>),
    columns: usize,
    device: Device,
}

/// Rows of the groups: they end inside a tile, inside the rows of a warp; one is empty.
const ROWS: [usize; 4] = [130, 0, 1, 67];
/// Rows of a slab of a masked GEMM.
const SLAB: usize = 152;
/// Where groups of a contiguous GEMM begin.
const ALIGNMENT: usize = 16;

impl Grouped {
    fn new(kernel: GemmKernel, masked: bool, device: &Device) -> Grouped {
        let (kind, groups, k) = (kernel.operands(), ROWS.len(), 128);
        let gated = kernel.fusion() == Fusion::Gated;
        let n: usize = if gated { 256 } else { 160 };
        let n = if kind.scale_block == ScaleBlock::Of128 { n.next_multiple_of(128) } else { n };
        let mut end = 0usize;
        let ends = ROWS.map(|rows| {
            end = end.max(if rows > 0 { end.next_multiple_of(ALIGNMENT) + rows } else { 0 });
            end as i32
        });
        let (numbers, m) = match masked {
            true => (ROWS.map(|rows| rows as i32), groups * SLAB),
            false => (ends, end + 5),
        };
        let matrix = |seed, rows: usize, is_b: bool, several: bool| -> (Tensor, Option<Tensor>) {
            let view = |x: Tensor| match several {
                true => x.view(&[groups, x.dims()[0] / groups, x.dims()[1]]).unwrap(),
                false => x,
            };
            match kind.as_f16() {
                Some(_) => {
                    let values = random::normals(seed, rows * k);
                    (view(Tensor::from_f32(half_type(kind), &values, &[rows, k], device).unwrap()), None)
                }
                None => {
                    let (codes, scales) = operand(seed, kind, (rows, k, is_b), device);
                    (view(codes), Some(view(scales)))
                }
            }
        };
        Grouped {
            config: GemmConfig::of(kernel),
            masked,
            numbers: Tensor::from_slice(&numbers, &[groups], device).unwrap(),
            a: matrix(1, m, false, masked),
            b: matrix(3, groups * n, true, true),
            columns: if gated { n / 2 } else { n },
            device: device.clone(),
        }
    }

    /// The dimensions of an FP32 D.
    fn dims(&self) -> Vec<usize> {
        let a = self.a.0.dims();
        [&a[..a.len() - 1], &[self.columns]].concat()
    }

    fn groups(&self) -> RowGroups<'_> {
        match self.masked {
            true => RowGroups::Masked { masked_m: &self.numbers, expected_m: 60 },
            false => RowGroups::Contiguous {
                rows: GroupedRows::Ends(&self.numbers),
                alignment: ALIGNMENT,
                expected_m: None,
            },
        }
    }

    fn run(&self, d: FusedOutput<'_>) {
        let kind = self.config.kernel.operands();
        let of_16 = kind.scale_block == ScaleBlock::Of16 && self.a.1.is_some();
        let scale_blocks = if of_16 { [Some(ScaleBlock::Of16); 2] } else { [None; 2] };
        let options =
            GemmOptions { config: Some(self.config), num_sms: Some(2), scale_blocks, ..Default::default() };
        let gated = self.config.kernel.fusion() == Fusion::Gated;
        let epilogue = Epilogue { alpha: 0.25, activation: Activation::Silu, gated, ..Default::default() };
        let (c, rows) = (Addend::None, self.groups());
        let result = match (&self.a, &self.b) {
            ((a, Some(sfa)), (b, Some(sfb))) => {
                m_grouped_fp8_fp4_gemm_nt_fused((a, sfa), (b, sfb), c, d, rows, &epilogue, &options)
            }
            ((a, _), (b, _)) => m_grouped_half_gemm_nt_fused(a, b, c, d, rows, &epilogue, &options),
        };
        result.unwrap_or_else(|error| panic!("{}: {error}", plan::name(&self.config)));
    }
}

impl Grouped {
    /// As [`Dense::check`], for the rows of all groups; no other row changes.
    fn check(&self, format: BlockFormat, schedules: impl Iterator<Item = Options>) {
        let sim = self.device.as_sim().expect("a simulated device");
        let dims = self.dims();
        let nowhere = vec![UNTOUCHED; dims.iter().product::<usize>() * 4];
        let mut whole = Tensor::from_bytes(DType::F32, &nowhere, &dims, &self.device).unwrap();
        self.run(FusedOutput::Matrix(&mut whole));
        let rows = whole.view(&[whole.len() / self.columns, self.columns]).unwrap();
        let untouched: Vec<bool> = rows
            .to_bytes()
            .unwrap()
            .chunks(4 * self.columns)
            .map(|row| row.iter().all(|x| *x == UNTOUCHED))
            .collect();
        assert_eq!(untouched.iter().filter(|x| !**x).count(), ROWS.iter().sum::<usize>());
        let quantized = Blocks::quantized(format, &rows).rows();
        for schedule in schedules {
            let about = format!(
                "{} to {format:?}, {:?} {}",
                plan::name(&self.config),
                schedule.policy,
                schedule.seed
            );
            sim.set_options(schedule);
            let mut found = Blocks::room(format, &dims, &self.device);
            self.run(found.output());
            for (row, found) in found.rows().iter().enumerate() {
                for (found, expected) in found.iter().zip(&quantized[row]) {
                    match untouched[row] {
                        true => assert!(found.iter().all(|x| *x == UNTOUCHED), "{about}: wrote row {row}"),
                        false => assert_eq!(found, expected, "{about}: row {row}"),
                    }
                }
            }
        }
    }
}

#[test]
fn m_grouped_kernels_quantize_as_the_quantizers_do() {
    let (device, _) = blackwell();
    for (nth, kernel) in kernels(Grouping::Rows).skip(1).step_by(2).enumerate() {
        let grouped = Grouped::new(kernel, nth % 2 == 0, &device);
        grouped.check(FORMATS[(nth + nth / 4) % 4], policies(nth).skip(nth % 3).take(1));
    }
}

#[test]
fn slabs_and_one_matrix_of_groups_in_every_format() {
    let (device, _) = blackwell();
    let kernel = kernel_of("sm100_mxfp8", Grouping::Rows, Fusion::Gated);
    for (nth, format) in FORMATS.into_iter().enumerate() {
        for masked in [false, true] {
            let one = policies(nth).skip((nth + usize::from(masked)) % 3).take(1);
            Grouped::new(kernel, masked, &device).check(format, one);
        }
    }
}

/// An FP8 D with FP32 scales in slabs, some of which end inside a tile.
#[test]
fn slabs_of_fp8_with_fp32_scales() {
    let (device, _) = blackwell();
    let kernel = kernels(Grouping::Rows).find(|kernel| kernel.fusion() == Fusion::Elementwise).unwrap();
    let grouped = Grouped::new(kernel, true, &device);
    let dims = grouped.dims();
    let mut whole = Tensor::zeros(DType::F32, &dims, &device).unwrap();
    grouped.run(FusedOutput::Matrix(&mut whole));
    let mut d = Tensor::zeros(DType::E4m3, &dims, &device).unwrap();
    let blocks = grouped.columns.div_ceil(128);
    let mut scales = Tensor::zeros(DType::F32, &[dims[0], dims[1], blocks], &device).unwrap();
    grouped.run(FusedOutput::Fp8 { d: &mut d, scales: &mut scales, format: ScaleFormat::F32 });
    let rows = whole.view(&[dims[0] * dims[1], grouped.columns]).unwrap();
    let mut codes = Tensor::zeros(DType::E4m3, rows.dims(), &device).unwrap();
    let mut expected = Tensor::zeros(DType::F32, &[dims[0] * dims[1], blocks], &device).unwrap();
    let (token, options) = (Granularity::PerToken, LaunchOptions::default());
    quantize(&rows, &mut codes, &mut expected, token, ScaleFormat::F32, &options).unwrap();
    assert_eq!(d.to_bytes().unwrap(), codes.to_bytes().unwrap());
    let (found, expected) = (scales.to_vec_f32().unwrap(), expected.to_vec_f32().unwrap());
    assert!(found.iter().zip(&expected).all(|(found, expected)| *found == 0.0 || found == expected));
}

/// NVFP4 operands and a factor of 1, which takes no fused epilogue.
#[test]
fn m_grouped_nvfp4_without_a_factor() {
    let (device, sim) = blackwell();
    let of_16 = |kernel: &GemmKernel| {
        let kind = kernel.operands();
        kind.scale_block == ScaleBlock::Of16
            && kernel.grouping() == Grouping::Rows
            && kernel.fusion() == Fusion::None
    };
    let mut count = 0;
    for (nth, kernel) in GemmKernel::all(Arch::Sm100a).filter(of_16).enumerate() {
        let config = GemmConfig::of(kernel);
        for masked in [false, true] {
            let product = |device: &Device, options: &GemmOptions| {
                let grouped = Grouped::new(kernel, masked, device);
                let mut d = Tensor::zeros(DType::F32, &grouped.dims(), device).unwrap();
                let ((a, Some(sfa)), (b, Some(sfb))) = (&grouped.a, &grouped.b) else { panic!("no scales") };
                let (groups, ones) = (grouped.groups(), [1.0, 1.0]);
                m_grouped_nvfp4_gemm_nt((a, sfa), (b, sfb), &mut d, groups, ones, options).unwrap();
                d.to_vec_f32().unwrap()
            };
            let expected = product(&Device::cpu(), &GemmOptions::default());
            for schedule in policies(nth) {
                let about = format!("{}, {:?}", plan::name(&config), schedule.policy);
                sim.set_options(schedule);
                let options = GemmOptions { config: Some(config), num_sms: Some(2), ..Default::default() };
                let difference = calc_diff(&product(&device, &options), &expected);
                assert!(difference < 1e-12, "{about}: {difference}");
                count += 1;
            }
        }
    }
    assert!(count > 0);
}

/// The output of one GEMM is the operand of the next, without a kernel between them.
#[test]
fn a_gemm_reads_what_another_wrote() {
    let (device, sim) = blackwell();
    sim.set_options(Options::default());
    let (m, n, k) = (37, 256, 128);
    let bf16 =
        |seed, rows, k| Tensor::from_f32(DType::Bf16, &random::normals(seed, rows * k), &[rows, k], &device);
    let (a, b) = (bf16(1, m, k).unwrap(), bf16(2, n, k).unwrap());
    let weights = bf16(3, 96, n).unwrap();
    let mut whole = Tensor::zeros(DType::F32, &[m, n], &device).unwrap();
    let (none, options) = (Epilogue::default(), GemmOptions::default());
    half_gemm_nt_fused(&a, &b, Addend::None, FusedOutput::Matrix(&mut whole), &none, &options).unwrap();
    for format in FORMATS {
        let mut first = Blocks::room(format, &[m, n], &device);
        half_gemm_nt_fused(&a, &b, Addend::None, first.output(), &none, &options).unwrap();
        let (one_step, second) = (Blocks::quantized(format, &whole), Blocks::quantized(format, &weights));
        let scale_blocks = match format {
            BlockFormat::Fp8 => [Some(ScaleBlock::Of128); 2],
            BlockFormat::Mxfp8 | BlockFormat::Mxfp4 => [Some(ScaleBlock::Of32); 2],
            BlockFormat::Nvfp4 { .. } => [Some(ScaleBlock::Of16); 2],
        };
        let options = GemmOptions { scale_blocks, ..Default::default() };
        let product = |x: &Blocks| {
            let mut d = Tensor::zeros(DType::F32, &[m, 96], &device).unwrap();
            let (a, b) = ((&x.d, &x.scales), (&second.d, &second.scales));
            fp8_fp4_gemm_nt(a, b, Addend::None, &mut d, &options).unwrap();
            d.to_bytes().unwrap()
        };
        assert_eq!(product(&first), product(&one_step), "{format:?}");
    }
}
