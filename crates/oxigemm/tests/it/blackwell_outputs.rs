//! Outputs with scales of bytes, which the epilogue of Blackwell's GEMMs writes: the codes and scales of the quantizers, to
//! the bit, for what the same kernel writes in FP32, whatever the schedule; and a GEMM reads them as they are.

use crate::blackwell_scaled::operand;
use crate::common::blackwell::blackwell;
use crate::common::{policies, schedules};
use oxigemm::cast::ScaleFormat;
use oxigemm::plan::{self, GemmConfig, OperandKind};
use oxigemm::sim::Options;
use oxigemm::{
    Activation, Addend, BlockFormat, DType, Device, Epilogue, Error, FusedOutput, GemmOptions, Granularity,
    LaunchOptions, Tensor, TensorScale, fp8_fp4_gemm_nt_fused, half_gemm_nt_fused, packed_scales, quantize,
    quantize_nvfp4, random,
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
    /// Room for rows; scales are MN-major.
    fn room(format: BlockFormat, [rows, columns]: [usize; 2], device: &Device) -> Blocks {
        let (width, per_byte) = shape_of(format);
        let dtype = if per_byte == 2 { DType::U8 } else { DType::E4m3 };
        let mut d = Tensor::empty(dtype, &[rows, columns / per_byte], device).unwrap();
        let mut scales = packed_scales(rows, columns.div_ceil(width), device).unwrap();
        for tensor in [&mut d, &mut scales] {
            tensor.write_bytes(&vec![UNTOUCHED; tensor.len() * tensor.dtype().size()]).unwrap();
        }
        Blocks { d, scales, format }
    }

    /// What the quantizers make of FP32 rows.
    fn quantized(format: BlockFormat, rows: &Tensor) -> Blocks {
        let [m, n] = [rows.dims()[0], rows.dims()[1]];
        let mut to = Blocks::room(format, [m, n], rows.device());
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
        let rows = self.scales.dims()[0];
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
    /// Rows and columns are more than a tile, and no multiple of one. Some rows are 0.
    fn new(kernel: GemmKernel, device: &Device) -> Dense {
        let (kind, gated) = (kernel.operands(), kernel.fusion() == Fusion::Gated);
        let config = GemmConfig::of(kernel);
        let (m, k) = (kernel.tile()[0] as usize * config.cluster[0] as usize + 9, 384);
        let n = if gated { 512 } else { 288 };
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
            let mut found = Blocks::room(format, [self.m, self.columns()], &self.device);
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

#[test]
fn every_dense_kernel_quantizes_as_the_quantizers_do() {
    let (device, _) = blackwell();
    for (nth, kernel) in kernels(Grouping::Dense).enumerate() {
        Dense::new(kernel, &device).check(FORMATS[nth % 4], nth % 3 != 0, policies(nth).step_by(2));
    }
}

#[test]
fn every_format_of_one_kernel_of_each_kind_under_more_schedules() {
    let (device, _) = blackwell();
    for name in
        ["sm100_mxfp8_persistent_fused_nt_256x128_s6_c2x1", "sm100_bf16_persistent_gated_nt_256x256_s4_c1x1"]
    {
        let config = plan::parse(name).unwrap_or_else(|| panic!("{name}"));
        let dense = Dense::new(config.kernel, &device);
        for (nth, format) in FORMATS.into_iter().enumerate() {
            dense.check(format, nth % 2 == 0, schedules().skip(nth % 2).step_by(3));
        }
    }
}

#[test]
fn what_no_kernel_writes_is_refused_by_name() {
    let hopper = Device::sim();
    let bf16 = |dims: &[usize], device: &Device| Tensor::zeros(DType::Bf16, dims, device).unwrap();
    let run = |format, columns: usize, device: &Device, change: &dyn Fn(&mut Blocks)| {
        let mut to = Blocks::room(format, [8, columns], device);
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
        let mut to = Blocks::room(format, [5, 160], &device);
        run(to.output());
        assert_eq!(to.rows(), Blocks::quantized(format, &whole).rows(), "{format:?}");
    }
}
