//! Raw GEMMs: operands as addresses, for engines that own their memory.

use oxigemm_kernels::gemm::epilogue::{Activation, Gate};
use oxigemm_kernels::gemm::params::{ScaleBlock, ScalesOfB};

use super::{GemmOptions, run};
use crate::cast::ScaleFormat;
use crate::check::gemm::tensors::groups::RawGroups;
use crate::check::{BlockFormat, OutputFormat};
use crate::check::{EpilogueDesc, GemmDesc, GemmLayout, GroupingDesc, HeadSplits, HostKs, KGroupedDesc};
use crate::device::{Device, DeviceId};
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::tensor::desc::{Operand, int};
use crate::tensor::dtype::DType;

/// A GEMM as addresses: every dtype, layout, grouping and epilogue of the library. Strides are in elements.
///
/// The rules are those of the function of the same GEMM on tensors: [`fp8_gemm`](crate::fp8_gemm),
/// [`half_gemm`](crate::half_gemm), [`m_grouped_half_gemm`](crate::m_grouped_half_gemm),
/// [`k_grouped_half_gemm`](crate::k_grouped_half_gemm), [`half_bgemm`](crate::half_bgemm) and their like. See
/// [`gemm_raw`] for an example.
#[derive(Clone, Copy, Debug)]
pub struct RawGemm<'a> {
    /// Layout of A and B. FP8 operands that are not `nt` are transposed into a workspace first, unless strides say that
    /// they are K-major, or the tensor core takes them as they are: dense e4m3 on `sm_100a`.
    pub layout: GemmLayout,
    /// Rows of A and D: of each group where groups have rows of their own, else of all together.
    pub m: usize,
    /// Rows of B, and columns of D unless there is an epilogue that changes them.
    pub n: usize,
    /// Columns of A and B; of a k-grouped GEMM the K of all groups, each at a multiple of what its layout asks for.
    pub k: usize,
    /// A: `[M, K]`, or `[K, M]` where the layout begins with `t`. F32 is multiplied as TF32:
    /// [`tf32_gemm`](crate::tf32_gemm).
    pub a: RawMatrix,
    /// B: `[N, K]`, or `[K, N]` where the layout ends with `n`.
    pub b: RawMatrix,
    /// Scales of A. FP8 and FP4 operands have scales, 16-bit operands have none.
    pub sfa: Option<RawScaleFactors>,
    /// Scales of B.
    pub sfb: Option<RawScaleFactors>,
    /// Granularity of B's scales: 128 (or 32) rows share one (1D2D), or each row has its own (1D1D). Scales of FP4 for 32
    /// or 16 of K are for each row.
    pub scales_of_b: ScalesOfB,
    /// Elements of K that share a scale: 128, 32, or 16 of NVFP4.
    pub scale_block: ScaleBlock,
    /// The same of A, where it has other scales than B, as FP8 beside FP4 may.
    pub scale_block_of_a: Option<ScaleBlock>,
    /// Addend; that of the address of D adds to D.
    pub c: Option<RawMatrix>,
    /// Output; its dtype is e4m3 where an epilogue quantizes it.
    pub d: RawMatrix,
    /// Grouping.
    pub grouping: RawGrouping<'a>,
    /// Fused epilogue.
    pub epilogue: Option<RawEpilogue>,
}

/// A matrix, or several of them, as an address. Strides are in elements; those of FP4 in bytes, of two codes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawMatrix {
    /// Address of the first element.
    pub address: u64,
    /// Element type. U8 is FP4, e2m1, two to a byte along K, the first in the low half.
    pub dtype: DType,
    /// From one group to the next, from one row to the next, and from one column to the next. The first counts only
    /// where the operand has a matrix for each group.
    pub strides: [usize; 3],
}

impl RawMatrix {
    /// A matrix with rows of this pitch and contiguous columns.
    #[must_use]
    pub const fn new(address: u64, dtype: DType, pitch: usize) -> RawMatrix {
        RawMatrix { address, dtype, strides: [0, pitch, 1] }
    }

    /// The same with a matrix for each group, so many elements apart.
    #[must_use]
    pub const fn groups_apart(self, stride: usize) -> RawMatrix {
        let [_, row, column] = self.strides;
        RawMatrix { strides: [stride, row, column], ..self }
    }
}

/// The matrix, or the matrices, of a tensor of at most three dimensions.
impl From<&Tensor> for RawMatrix {
    fn from(tensor: &Tensor) -> RawMatrix {
        RawMatrix { address: tensor.address(), dtype: tensor.dtype(), strides: strides_of(tensor) }
    }
}

/// Scales of an FP8 or FP4 operand. Strides are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawScaleFactors {
    /// Address of the first scale.
    pub address: u64,
    /// Type: f32, u8 of codes (also e4m3 of scales of 16), or i32 of four codes of a row in each.
    pub dtype: DType,
    /// Strides along the groups, along M or N, and along K, whatever the layout of the operand is; 0 where one scale
    /// holds for all. The first counts only where the operand has a matrix for each group.
    pub strides: [usize; 3],
}

impl RawScaleFactors {
    /// FP32 scales with these strides along M or N, and along K.
    #[must_use]
    pub const fn new(address: u64, [mn, k]: [usize; 2]) -> RawScaleFactors {
        RawScaleFactors { address, dtype: DType::F32, strides: [0, mn, k] }
    }

    /// The same of another type.
    #[must_use]
    pub const fn of_type(self, dtype: DType) -> RawScaleFactors {
        RawScaleFactors { dtype, ..self }
    }

    /// The same with a matrix for each group, so many elements apart.
    #[must_use]
    pub const fn groups_apart(self, stride: usize) -> RawScaleFactors {
        let [_, mn, k] = self.strides;
        RawScaleFactors { strides: [stride, mn, k], ..self }
    }
}

/// The scales of a tensor of at most three dimensions, which ends with M or N, and K.
impl From<&Tensor> for RawScaleFactors {
    fn from(tensor: &Tensor) -> RawScaleFactors {
        RawScaleFactors { address: tensor.address(), dtype: tensor.dtype(), strides: strides_of(tensor) }
    }
}

/// The last three strides of a tensor, 0 where it has fewer dimensions.
fn strides_of(tensor: &Tensor) -> [usize; 3] {
    let mut last = tensor.strides().iter().rev();
    let [column, row, group] = std::array::from_fn(|_| last.next().copied().unwrap_or(0));
    [group, row, column]
}

/// Grouping of a raw GEMM.
#[derive(Clone, Copy, Debug, Default)]
pub enum RawGrouping<'a> {
    /// One GEMM.
    #[default]
    Dense,
    /// A batch of GEMMs.
    Batched {
        /// Number of GEMMs.
        count: usize,
    },
    /// A batch of GEMMs that are added up into one D.
    Summed {
        /// Number of GEMMs.
        count: usize,
    },
    /// m-grouped: groups of rows, each with its own B.
    MGrouped {
        /// Number of groups.
        groups: usize,
        /// Rows of each group.
        rows: RawGroups,
    },
    /// k-grouped: ranges of K, each with its own D.
    KGrouped {
        /// Number of groups.
        groups: usize,
        /// Scale blocks of all groups; not looked at where there are no scales.
        blocks: usize,
        /// Address of the K of each group, of type i32.
        ks: u64,
        /// The same numbers, as far as the host knows them.
        ks_host: Option<&'a [usize]>,
    },
}

/// Fused epilogue as addresses; strides are in elements. See [`Epilogue`](crate::Epilogue) and
/// [`FusedOutput`](crate::FusedOutput).
#[derive(Clone, Copy, Debug)]
pub struct RawEpilogue {
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of C.
    pub beta: f32,
    /// Address of the bias, or 0.
    pub bias: u64,
    /// Type of the bias: the 16-bit type of the operands (bf16 for FP8) or f32.
    pub bias_type: DType,
    /// From the bias of one group to that of the next; 0 where all share one, and where there are no groups.
    pub bias_stride: usize,
    /// Activation of an accumulator, or of a gate.
    pub activation: Activation,
    /// Whether the first half of B's rows are gates.
    pub gated: bool,
    /// What is done with gates and ups.
    pub gate: Gate,
    /// Columns of D that are skipped.
    pub heads: Option<HeadSplits>,
    /// Address of the scales of a quantized D; not looked at elsewhere.
    pub d_scales: u64,
    /// Strides of those scales: along the groups, which counts only where they are masked, along M and along N.
    pub d_scales_strides: [usize; 3],
    /// Format of those scales where they are f32.
    pub d_scales_format: ScaleFormat,
    /// What D is quantized to where its scales are words of four bytes: see
    /// [`FusedOutput::BlockScaled`](crate::FusedOutput::BlockScaled).
    pub d_block_format: Option<BlockFormat>,
}

impl Default for RawEpilogue {
    fn default() -> Self {
        RawEpilogue {
            alpha: 1.0,
            beta: 1.0,
            bias: 0,
            bias_type: DType::Bf16,
            bias_stride: 0,
            activation: Activation::None,
            gated: false,
            gate: Gate::default(),
            heads: None,
            d_scales: 0,
            d_scales_strides: [0; 3],
            d_scales_format: ScaleFormat::F32,
            d_block_format: None,
        }
    }
}

impl RawEpilogue {
    /// Columns that are computed of `n` rows of B, and those of D, of FP4 bytes of two.
    fn columns(&self, n: i64) -> [i64; 2] {
        let columns = if self.gated { n / 2 } else { n };
        let skipped = self.heads.map_or(0, |heads| {
            let count = columns.checked_div(heads.computed() as i64).unwrap_or(0);
            count.saturating_mul(heads.mid.into())
        });
        let per_byte = self.d_block_format.map_or(1, BlockFormat::codes_per_byte);
        [columns, columns.saturating_add(skipped) / per_byte]
    }

    /// The description, for `n` rows of B for each of so many groups, and D of these rows, with slabs or without.
    fn describe(
        &self,
        [groups, n]: [i64; 2],
        (slabs, rows): (bool, i64),
        quantized: bool,
        device: DeviceId,
    ) -> EpilogueDesc {
        let bias = match self.bias_stride {
            0 => Operand::new(("bias", self.bias_type), &[n], &[1], (self.bias, device)),
            stride => {
                let strides = [int(stride), 1];
                Operand::new(("bias", self.bias_type), &[groups, n], &strides, (self.bias, device))
            }
        };
        let from = usize::from(!slabs);
        let columns = self.columns(n)[0];
        let (dtype, across, format) = match self.d_block_format {
            None => {
                let format = OutputFormat::Fp8(self.d_scales_format);
                (DType::F32, blocks(columns, ScaleBlock::Of128), format)
            }
            Some(format) => (DType::I32, format.words(columns), OutputFormat::Blocks(format)),
        };
        let dims = [groups, rows, across];
        let strides = self.d_scales_strides.map(int);
        let at = (self.d_scales, device);
        let scales = Operand::new(("d_scales", dtype), &dims[from..], &strides[from..], at);
        EpilogueDesc {
            alpha: self.alpha,
            beta: self.beta,
            activation: self.activation,
            gated: self.gated,
            gate: self.gate,
            bias: (self.bias != 0).then_some(bias),
            heads: self.heads,
            scales: quantized.then_some((scales, format)),
        }
    }
}

impl<'a> RawGemm<'a> {
    /// A dense GEMM `D = A·Bᵀ` of 16-bit operands: M, N and K, A, B and D.
    #[must_use]
    pub const fn new([m, n, k]: [usize; 3], a: RawMatrix, b: RawMatrix, d: RawMatrix) -> RawGemm<'a> {
        RawGemm {
            layout: GemmLayout::Nt,
            m,
            n,
            k,
            a,
            b,
            sfa: None,
            sfb: None,
            scales_of_b: ScalesOfB::Blocks,
            scale_block: ScaleBlock::Of128,
            scale_block_of_a: None,
            c: None,
            d,
            grouping: RawGrouping::Dense,
            epilogue: None,
        }
    }

    /// The same of FP8 or FP4 operands with scales of A and B.
    #[must_use]
    pub const fn with_scales(self, sfa: RawScaleFactors, sfb: RawScaleFactors) -> RawGemm<'a> {
        RawGemm { sfa: Some(sfa), sfb: Some(sfb), ..self }
    }

    /// The description of the call.
    pub(crate) fn describe(&self, device: DeviceId) -> GemmDesc {
        let [m, n, k] = [self.m, self.n, self.k].map(int);
        let scaled = self.sfa.is_some() || self.sfb.is_some();
        let (a_first, b_first) = (self.layout.a_begins_with_k(), self.layout.b_begins_with_k());
        // Groups, and whether A, B and D have a matrix for each.
        let (groups, a_slabs, b_slabs, d_slabs) = match &self.grouping {
            RawGrouping::Dense => (1, false, false, false),
            RawGrouping::Batched { count } => (int(*count), true, true, true),
            RawGrouping::Summed { count } => (int(*count), true, true, false),
            RawGrouping::MGrouped { groups, rows } => {
                (int(*groups), rows.are_masked(), true, rows.are_masked())
            }
            RawGrouping::KGrouped { groups, .. } => (int(*groups), false, false, true),
        };
        let scale_blocks = [self.scale_block_of_a.unwrap_or(self.scale_block), self.scale_block];
        let [blocks_of_a, blocks_of_b] = scale_blocks.map(|block| match &self.grouping {
            RawGrouping::KGrouped { blocks, .. } => int(*blocks),
            _ => blocks(k, block),
        });
        let matrix = |name, slabs: bool, dims: [i64; 2], matrix: &RawMatrix| {
            let ([rows, columns], from) = (dims, usize::from(!slabs));
            let (dims, strides) = ([groups, rows, columns], matrix.strides.map(int));
            Operand::new((name, matrix.dtype), &dims[from..], &strides[from..], (matrix.address, device))
        };
        // FP8 and FP4 operands of a k-grouped GEMM in nt are lists of all elements.
        let packed = matches!(self.grouping, RawGrouping::KGrouped { .. }) && scaled && !a_first;
        let operand = |name, slabs: bool, rows: i64, k_first: bool, operand: &RawMatrix| match packed {
            true => {
                let bytes = if operand.dtype == DType::U8 { k / 2 } else { k };
                let length = rows.saturating_mul(bytes);
                Operand::new((name, operand.dtype), &[length], &[1], (operand.address, device))
            }
            false => {
                let k = if scaled && operand.dtype == DType::U8 { k / 2 } else { k };
                matrix(name, slabs, if k_first { [k, rows] } else { [rows, k] }, operand)
            }
        };
        let scales = |name, slabs, [rows, k_blocks]: [i64; 2], k_first: bool, scales: RawScaleFactors| {
            let RawScaleFactors { address, dtype, strides: [group, mn, k] } = scales;
            let k_blocks =
                if dtype == DType::I32 { k_blocks / 4 + i64::from(k_blocks % 4 != 0) } else { k_blocks };
            let (dims, strides) = match k_first {
                true => ([k_blocks, rows], [group, k, mn]),
                false => ([rows, k_blocks], [group, mn, k]),
            };
            matrix(name, slabs, dims, &RawMatrix { address, dtype, strides })
        };
        let k_grouped = matches!(self.grouping, RawGrouping::KGrouped { .. });
        let rows_of_sfb = match self.scales_of_b {
            ScalesOfB::Rows => n,
            ScalesOfB::Blocks if k_grouped => n,
            ScalesOfB::Blocks => blocks(n, self.scale_block),
        };
        let columns = self.epilogue.map_or(n, |epilogue| epilogue.columns(n)[1]);
        GemmDesc {
            layout: self.layout,
            transpose: self.layout != GemmLayout::Nt,
            a: operand("a", a_slabs, m, a_first, &self.a),
            b: operand("b", b_slabs, n, b_first, &self.b),
            sfa: self.sfa.map(|sfa| scales("sfa", a_slabs, [m, blocks_of_a], a_first, sfa)),
            sfb: self.sfb.map(|sfb| scales("sfb", b_slabs, [rows_of_sfb, blocks_of_b], b_first, sfb)),
            scale_blocks: if scaled { scale_blocks.map(Some) } else { [None; 2] },
            c: self.c.map(|c| matrix("c", d_slabs, [m, columns], &c)),
            d: matrix("d", d_slabs, [m, columns], &self.d),
            grouping: match &self.grouping {
                RawGrouping::Dense => GroupingDesc::Dense,
                RawGrouping::Batched { .. } => GroupingDesc::Batched,
                RawGrouping::Summed { .. } => GroupingDesc::Summed,
                RawGrouping::MGrouped { rows, .. } => {
                    GroupingDesc::MGrouped(rows.describe([groups, m], device))
                }
                RawGrouping::KGrouped { ks, ks_host, .. } => {
                    let unit = GemmDesc::k_unit(self.layout, self.a.dtype) as usize;
                    GroupingDesc::KGrouped(KGroupedDesc {
                        ks: Operand::new(("ks", DType::I32), &[groups], &[1], (*ks, device)),
                        ends: None,
                        host: ks_host.map(|ks| HostKs::new(ks, unit)),
                    })
                }
            },
            epilogue: self.epilogue.map(|epilogue| {
                let quantized = self.d.dtype == DType::E4m3 || epilogue.d_block_format.is_some();
                epilogue.describe([groups, n], (d_slabs, m), quantized, device)
            }),
        }
    }
}

/// Scale blocks along a dimension.
fn blocks(length: i64, block: ScaleBlock) -> i64 {
    let size = i64::from(block.size());
    length / size + i64::from(length % size != 0)
}

/// Any GEMM on memory that the caller owns, on the stream of the options. The device is a GPU or the simulator, whose
/// addresses are those of its tensors.
///
/// The stream of another library is wrapped by [`Cuda::stream_from_raw`](crate::Cuda::stream_from_raw).
///
/// # Safety
/// Every operand must be memory of this device, as large as its shape and strides say. It must stay alive, and not be
/// written elsewhere (D and its scales also not be read), from the call until the stream has passed the kernel; where
/// the stream is being captured, whenever the graph runs.
///
/// # Errors
/// As the function of the same GEMM on tensors. The CPU is refused: it has tensors only.
///
/// A dense FP8 GEMM on a stream of another library:
///
/// ```no_run
/// use oxigemm::{
///     Cuda, DType, Device, GemmOptions, RawGemm, RawMatrix, RawScaleFactors, gemm_raw,
/// };
///
/// # let (raw_stream, a, sfa, b, sfb, d) = (std::ptr::null_mut(), 0, 0, 0, 0, 0);
/// let cuda = Cuda::open(0)?;
/// let (m, n, k) = (64, 7168, 2048);
/// let [a, b] = [a, b].map(|address| RawMatrix::new(address, DType::E4m3, k));
/// let [sfa, sfb] = [sfa, sfb].map(|address| RawScaleFactors::new(address, [k / 128, 1]));
/// let gemm = RawGemm::new([m, n, k], a, b, RawMatrix::new(d, DType::Bf16, n)).with_scales(sfa, sfb);
/// // SAFETY: the engine's stream and buffers outlive the call and what it started.
/// unsafe {
///     let stream = cuda.stream_from_raw(raw_stream);
///     let options = GemmOptions { stream: Some(stream.into()), ..Default::default() };
///     gemm_raw(&Device::Cuda(cuda), &gemm, &options)?;
/// }
/// # Ok::<(), oxigemm::Error>(())
/// ```
///
/// An N-major B of 16 bits:
///
/// ```
/// use oxigemm::{DType, Device, GemmLayout, GemmOptions, RawGemm, Tensor, gemm_raw};
///
/// let device = Device::sim();
/// let (m, n, k) = (4, 64, 16);
/// let a = Tensor::from_f32(DType::F16, &vec![0.5; m * k], &[m, k], &device)?;
/// let b = Tensor::from_f32(DType::F16, &vec![2.0; k * n], &[k, n], &device)?; // N-major
/// let d = Tensor::empty(DType::F16, &[m, n], &device)?;
/// let gemm = RawGemm { layout: GemmLayout::Nn, ..RawGemm::new([m, n, k], (&a).into(), (&b).into(), (&d).into()) };
/// // SAFETY: the tensors live on, and nobody else uses them.
/// unsafe { gemm_raw(&device, &gemm, &GemmOptions::default())? };
/// assert_eq!(d.to_vec_f32()?, vec![16.0; m * n]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
///
/// An m-grouped masked GEMM:
///
/// ```
/// use oxigemm::{DType, Device, GemmOptions, RawGemm, RawGrouping, RawGroups, Tensor, gemm_raw};
///
/// let device = Device::sim();
/// let (groups, m, n, k) = (2, 8, 64, 32);
/// let a = Tensor::from_f32(DType::Bf16, &vec![0.5; groups * m * k], &[groups, m, k], &device)?;
/// let b = Tensor::from_f32(DType::Bf16, &vec![2.0; groups * n * k], &[groups, n, k], &device)?;
/// let d = Tensor::zeros(DType::Bf16, &[groups, m, n], &device)?;
/// let masked_m = Tensor::from_slice(&[3i32, 0], &[groups], &device)?;
/// let rows = RawGroups::Masked { masked_m: masked_m.address(), expected_m: 2 };
/// let gemm = RawGemm {
///     grouping: RawGrouping::MGrouped { groups, rows },
///     ..RawGemm::new([m, n, k], (&a).into(), (&b).into(), (&d).into())
/// };
/// // SAFETY: the tensors live on, and nobody else uses them.
/// unsafe { gemm_raw(&device, &gemm, &GemmOptions::default())? };
/// assert_eq!(d.to_vec_f32()?.iter().filter(|x| **x == 32.0).count(), 3 * n);
/// # Ok::<(), oxigemm::Error>(())
/// ```
///
/// A gated epilogue:
///
/// ```
/// use oxigemm::{
///     Activation, DType, Device, GemmOptions, RawEpilogue, RawGemm, Tensor, gemm_raw,
/// };
///
/// let device = Device::sim();
/// let (m, n, k) = (4, 64, 16); // 32 gates and as many ups
/// let a = Tensor::from_f32(DType::Bf16, &vec![0.5; m * k], &[m, k], &device)?;
/// let b = Tensor::from_f32(DType::Bf16, &vec![2.0; n * k], &[n, k], &device)?;
/// let d = Tensor::empty(DType::Bf16, &[m, n / 2], &device)?;
/// let gemm = RawGemm {
///     epilogue: Some(RawEpilogue { activation: Activation::Relu, gated: true, ..Default::default() }),
///     ..RawGemm::new([m, n, k], (&a).into(), (&b).into(), (&d).into())
/// };
/// // SAFETY: the tensors live on, and nobody else uses them.
/// unsafe { gemm_raw(&device, &gemm, &GemmOptions::default())? };
/// assert_eq!(d.to_vec_f32()?, vec![16.0 * 16.0; m * n / 2]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
///
/// The first layer of experts, quantized for the second one:
///
/// ```no_run
/// use oxigemm::{
///     Activation, Cuda, DType, Device, GemmOptions, RawEpilogue, RawGemm, RawGrouping, RawGroups, RawMatrix,
///     RawScaleFactors, gemm_raw,
/// };
///
/// # let (a, sfa, b, sfb, d, masked_m, d_scales) = (0, 0, 0, 0, 0, 0, 0);
/// let (groups, m, n, k) = (32, 4096, 4096, 7168); // 2048 gates and as many ups
/// let a = RawMatrix::new(a, DType::E4m3, k).groups_apart(m * k);
/// let b = RawMatrix::new(b, DType::E4m3, k).groups_apart(n * k);
/// let d = RawMatrix::new(d, DType::E4m3, n / 2).groups_apart(m * n / 2);
/// let sfa = RawScaleFactors::new(sfa, [1, m]).groups_apart(m * k / 128); // MN-major
/// let sfb = RawScaleFactors::new(sfb, [k / 128, 1]).groups_apart(n / 128 * k / 128);
/// let gemm = RawGemm {
///     grouping: RawGrouping::MGrouped { groups, rows: RawGroups::Masked { masked_m, expected_m: 20 } },
///     epilogue: Some(RawEpilogue {
///         activation: Activation::Silu,
///         gated: true,
///         d_scales,
///         d_scales_strides: [m * n / 256, 1, m], // as the next GEMM reads them
///         ..Default::default()
///     }),
///     ..RawGemm::new([m, n, k], a, b, d).with_scales(sfa, sfb)
/// };
/// // SAFETY: the engine's buffers outlive the call and what it started.
/// unsafe { gemm_raw(&Device::Cuda(Cuda::open(0)?), &gemm, &GemmOptions::default())? };
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub unsafe fn gemm_raw(device: &Device, gemm: &RawGemm<'_>, options: &GemmOptions) -> Result<()> {
    let fp4 = [&gemm.a, &gemm.b].iter().any(|operand| operand.dtype == DType::U8);
    if fp4 && !gemm.k.is_multiple_of(2) {
        let expected = "an even number, as FP4 operands have two of K in a byte".to_owned();
        return Err(Error::Shape { argument: "k", expected, found: gemm.k.to_string() });
    }
    // SAFETY: the caller keeps the operands as described.
    unsafe { run::run(device, &gemm.describe(device.id()), None, options) }
}
