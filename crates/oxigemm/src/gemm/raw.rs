//! Products whose rows are grouped and whose sums are finished before they are stored: the first layer of experts.

use oxigemm_kernels::gemm::epilogue::Activation;

use crate::call::{Addresses, FusedAt, PlanKey};
use crate::cast::ScaleFormat;
use crate::check::int;
use crate::check::{CheckedGroupedFused, EpilogueArguments, GroupedFp8GemmNt, Groups, HeadSplits, Operand};
use crate::device::{Device, DeviceId};
use crate::dtype::DType;
use crate::error::Result;
use crate::fused::{Epilogue, FusedOutput};
use crate::gemm::{Addend, GemmOptions, key, refuse_stream};
use crate::grouped::{GroupedArguments, RawGroupedFp8Gemm, RowGroups, launch, run_raw, simulate};
use crate::memo::Memo;
use crate::plan::Limits;
use crate::reference;
use crate::remembered::{Call, CallArguments, Ready, RememberedCalls};
use crate::tensor::Tensor;

/// [`m_grouped_fp8_gemm_nt_masked`](crate::m_grouped_fp8_gemm_nt_masked) and
/// [`m_grouped_fp8_gemm_nt_contiguous`](crate::m_grouped_fp8_gemm_nt_contiguous) with more done to the sums than to round
/// them: see [`Epilogue`] for what, and in which order.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a`, `b`, their scales and `groups` | | | as for those functions; of gates and ups 128 rows each, or a multiple |
/// | `c` | as `d` | as `d` | rows of any pitch, groups as many rows apart as those of `d`; none where D is quantized |
/// | `d` | `[M, N]`, masked `[G, M, N]`; N/2 with a gate; wider by what heads skip | bf16, f32 or e4m3 | as for those functions |
/// | scales of an e4m3 `d` | `[M, ceil(N/128)]`, masked `[G, M, ceil(N/128)]` | f32 | any strides that share no element; groups one behind another |
/// | [`bias`](Epilogue::bias) | `[G, N]`, or `[N]` for all groups | bf16 or f32 | rows of any pitch |
///
/// What is quantized is what either function reads as A, with the same groups. Rows of no group are left as they are, in D,
/// and in its scales.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
/// use oxigemm::{
///     Activation, Addend, DType, Device, Epilogue, FusedOutput, GemmOptions, RowGroups, Tensor,
///     m_grouped_fp8_gemm_nt_fused, m_grouped_fp8_gemm_nt_masked, random,
/// };
///
/// // Two experts: gate and up projections, SwiGLU, and the projection back. Nothing is read or written in between but e4m3.
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (groups, m, hidden, k) = (2, 8, 128, 256);
/// let x = per_token_cast_to_fp8(&random::normals(1, groups * m * k), groups * m, k, ScaleFormat::F32)?;
/// let weights = |seed, rows: usize, k: usize| {
///     per_block_cast_to_fp8(&random::normals(seed, groups * rows * k), groups * rows, k, ScaleFormat::F32)
/// };
/// let (w1, w2) = (weights(2, 2 * hidden, k)?, weights(3, k, hidden)?);
/// let ((a, sfa), (b, sfb), (b2, sfb2)) =
///     (x.to_tensors(&device)?, w1.to_tensors(&device)?, w2.to_tensors(&device)?);
/// let (a, sfa) = (a.view(&[groups, m, k])?, sfa.view(&[groups, m, k / 128])?);
/// let (b, sfb) = (b.view(&[groups, 2 * hidden, k])?, sfb.view(&[groups, 2, k / 128])?);
/// let (b2, sfb2) = (b2.view(&[groups, k, hidden])?, sfb2.view(&[groups, k / 128, 1])?);
/// let masked_m = Tensor::from_slice(&[3i32, 8], &[groups], &device)?;
///
/// let mut h = Tensor::zeros(DType::E4m3, &[groups, m, hidden], &device)?;
/// let mut sfh = Tensor::zeros(DType::F32, &[groups, m, hidden / 128], &device)?;
/// let swiglu = Epilogue { activation: Activation::Silu, gated: true, ..Default::default() };
/// let output = FusedOutput::Fp8 { d: &mut h, scales: &mut sfh, format: ScaleFormat::F32 };
/// let (rows, options) = (RowGroups::Masked { masked_m: &masked_m, expected_m: 4 }, GemmOptions::default());
/// m_grouped_fp8_gemm_nt_fused((&a, &sfa), (&b, &sfb), Addend::None, output, rows, &swiglu, &options)?;
/// let mut d = Tensor::zeros(DType::Bf16, &[groups, m, k], &device)?;
/// m_grouped_fp8_gemm_nt_masked((&h, &sfh), (&b2, &sfb2), &mut d, &masked_m, 4, &options)?;
///
/// let written = d.to_vec_f32()?.chunks(k).map(|row| row.iter().any(|x| *x != 0.0)).collect::<Vec<_>>();
/// assert_eq!(written.iter().filter(|row| **row).count(), 3 + 8);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn m_grouped_fp8_gemm_nt_fused(
    (a, sfa): (&Tensor, &Tensor),
    (b, sfb): (&Tensor, &Tensor),
    c: Addend<'_>,
    d: FusedOutput<'_>,
    groups: RowGroups<'_>,
    epilogue: &Epilogue<'_>,
    options: &GemmOptions,
) -> Result<()> {
    let (argument, numbers) = groups.describe();
    let gemm = GroupedFp8GemmNt {
        a: a.describe("a"),
        sfa: sfa.describe("sfa"),
        b: b.describe("b"),
        sfb: sfb.describe("sfb"),
        d: d.d().describe("d"),
        groups: Some(argument),
    };
    let (alpha, beta) = (epilogue.alpha, epilogue.beta);
    let arguments = Arguments { gemm, c: c.describe(d.d()), epilogue: epilogue.describe(&d), alpha, beta };
    let on_cpu = |groups: &Groups| {
        let groups = (groups, numbers);
        reference::m_grouped_fp8_gemm_nt_fused_tensors((a, sfa), (b, sfb), c, &d, groups, epilogue)
    };
    // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
    unsafe { arguments.run(a.device(), options, on_cpu) }
}

/// What is done with the sums of a product, as addresses; strides are in elements. See [`Epilogue`] and [`FusedOutput`].
#[derive(Clone, Copy, Debug)]
pub struct RawEpilogue {
    /// The factor of the product.
    pub alpha: f32,
    /// The factor of C.
    pub beta: f32,
    /// Address of the bias, or 0.
    pub bias: u64,
    /// The type of the bias: the 16-bit type of the product (bf16 for FP8) or f32.
    pub bias_type: DType,
    /// From the bias of one group to that of the next; 0 where all have the same, and where there are none.
    pub bias_stride: usize,
    /// What a sum, or a gate, becomes.
    pub activation: Activation,
    /// Whether the first half of B's rows are gates.
    pub gated: bool,
    /// Columns of D that are skipped.
    pub heads: Option<HeadSplits>,
    /// Address of the scales of a quantized D; not looked at elsewhere.
    pub d_scales: u64,
    /// Strides of those scales: along the groups, which counts only where they are masked, along M and along N.
    pub d_scales_strides: [usize; 3],
    /// What those scales may be.
    pub d_scales_format: ScaleFormat,
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
            heads: None,
            d_scales: 0,
            d_scales_strides: [0; 3],
            d_scales_format: ScaleFormat::F32,
        }
    }
}

impl RawEpilogue {
    /// Columns that are computed of `n` rows of B, and those of D.
    pub(crate) fn columns(&self, n: i64) -> [i64; 2] {
        let columns = if self.gated { n / 2 } else { n };
        let skipped = self.heads.map_or(0, |heads| {
            let count = columns.checked_div(heads.computed() as i64).unwrap_or(0);
            count.saturating_mul(heads.mid.into())
        });
        [columns, columns.saturating_add(skipped)]
    }

    /// It as arguments, for products with `n` rows of B for each of so many groups, and D of these slabs and rows, of which
    /// only the rows count unless they are masked.
    pub(crate) fn describe(
        &self,
        [groups, n]: [i64; 2],
        (masked, rows): (bool, i64),
        quantized: bool,
        device: DeviceId,
    ) -> EpilogueArguments {
        let bias = match self.bias_stride {
            0 => Operand::new(("bias", self.bias_type), &[n], &[1], (self.bias, device)),
            stride => {
                let strides = [int(stride), 1];
                Operand::new(("bias", self.bias_type), &[groups, n], &strides, (self.bias, device))
            }
        };
        let from = usize::from(!masked);
        let columns = self.columns(n)[0];
        let dims = [groups, rows, columns / 128 + i64::from(columns % 128 != 0)];
        let strides = self.d_scales_strides.map(int);
        let at = (self.d_scales, device);
        let scales = Operand::new(("d_scales", DType::F32), &dims[from..], &strides[from..], at);
        EpilogueArguments {
            activation: self.activation,
            gated: self.gated,
            bias: (self.bias != 0).then_some(bias),
            heads: self.heads,
            scales: quantized.then_some((scales, self.d_scales_format)),
        }
    }
}

/// The operands of a product whose rows are grouped and whose sums are finished, as addresses, for engines that own their
/// memory. Strides are in elements.
///
/// What the fields mean and how they are checked is told at [`m_grouped_fp8_gemm_nt_fused`].
#[derive(Clone, Copy, Debug)]
pub struct RawFusedGroupedFp8Gemm {
    /// The product; its `n` is that of B's rows, its `d_type` e4m3 where D is quantized.
    pub gemm: RawGroupedFp8Gemm,
    /// Address of C: 0 for none, that of D to add to D.
    pub c: u64,
    /// As those of D.
    pub c_strides: [usize; 2],
    /// What is done with the sums.
    pub epilogue: RawEpilogue,
}

impl RawFusedGroupedFp8Gemm {
    fn describe(&self, device: DeviceId) -> Arguments<GroupedFp8GemmNt> {
        let mut gemm = self.gemm.describe(device);
        let [groups, n] = [gemm.b.dims[0], gemm.b.dims[1]];
        let masked = self.gemm.rows.are_masked();
        let RawEpilogue { alpha, beta, .. } = self.epilogue;
        let quantized = self.gemm.d_type == DType::E4m3;
        let rows = (masked, int(self.gemm.m));
        let epilogue = self.epilogue.describe([groups, n], rows, quantized, device);
        gemm.d.dims[gemm.d.rank - 1] = self.epilogue.columns(n)[1];
        let [slab, row] = self.c_strides.map(int);
        let c_strides = &[slab, row, 1][usize::from(!masked)..];
        let c = Operand::new(("c", self.gemm.d_type), gemm.d.dims(), c_strides, (self.c, device));
        let c = (self.c != 0).then_some(c);
        Arguments { gemm, c, epilogue, alpha, beta }
    }
}

/// [`m_grouped_fp8_gemm_nt_fused`] on memory that the caller owns, on the stream of the options. The device is a GPU or
/// the simulator, whose addresses are those of its tensors.
///
/// # Safety
/// As for [`m_grouped_fp8_gemm_nt_raw`](crate::m_grouped_fp8_gemm_nt_raw); the scales of D are as D is.
///
/// # Errors
/// As [`m_grouped_fp8_gemm_nt_fused`]. The CPU is refused: it has tensors only.
///
/// ```no_run
/// use oxigemm::{
///     Activation, Cuda, DType, Device, GemmOptions, RawEpilogue, RawFusedGroupedFp8Gemm, RawGroupedFp8Gemm, RawGroups,
///     m_grouped_fp8_gemm_nt_fused_raw,
/// };
///
/// # let (a, sfa, b, sfb, d, masked_m, d_scales) = (0, 0, 0, 0, 0, 0, 0);
/// let (groups, m, n, k) = (32, 4096, 4096, 7168); // 2048 gates and as many ups
/// let gemm = RawGroupedFp8Gemm {
///     groups, m, n, k,
///     a, a_strides: [m * k, k],
///     sfa, sfa_strides: [m * k / 128, 1, m], // MN-major
///     b, b_strides: [n * k, k],
///     sfb, sfb_strides: [n / 128 * k / 128, k / 128, 1],
///     d, d_strides: [m * n / 2, n / 2], d_type: DType::E4m3,
///     rows: RawGroups::Masked { masked_m, expected_m: 20 },
/// };
/// let epilogue = RawEpilogue {
///     activation: Activation::Silu, gated: true,
///     d_scales, d_scales_strides: [m * n / 256, 1, m], // as the next product reads them
///     ..Default::default()
/// };
/// let gemm = RawFusedGroupedFp8Gemm { gemm, c: 0, c_strides: [0, 0], epilogue };
/// // SAFETY: the engine's buffers outlive the call and what it started.
/// unsafe { m_grouped_fp8_gemm_nt_fused_raw(&Device::Cuda(Cuda::open(0)?), &gemm, &GemmOptions::default())? };
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub unsafe fn m_grouped_fp8_gemm_nt_fused_raw(
    device: &Device,
    gemm: &RawFusedGroupedFp8Gemm,
    options: &GemmOptions,
) -> Result<()> {
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_raw(device, &gemm.describe(device.id()), options) }
}

/// A product whose rows are grouped and whose sums can be finished, not yet checked.
pub(crate) trait FusedGroupedGemm: CallArguments {
    /// Checks every rule of the call where `c` is added.
    fn check_fused(&self, c: Option<&Operand>, epilogue: &EpilogueArguments) -> Result<CheckedGroupedFused>;
    /// Where calls of the function are remembered.
    fn remembered_fused(calls: &RememberedCalls) -> &Memo<Call<Arguments<Self>>, Ready>;
}

impl FusedGroupedGemm for GroupedFp8GemmNt {
    fn check_fused(&self, c: Option<&Operand>, epilogue: &EpilogueArguments) -> Result<CheckedGroupedFused> {
        GroupedFp8GemmNt::check_fused(self, c, epilogue)
    }

    fn remembered_fused(calls: &RememberedCalls) -> &Memo<Call<Arguments<Self>>, Ready> {
        &calls.fused_grouped_fp8
    }
}

/// The arguments of a product whose rows are grouped and whose sums are finished, not yet checked.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Arguments<G> {
    pub gemm: G,
    pub c: Option<Operand>,
    pub epilogue: EpilogueArguments,
    pub alpha: f32,
    pub beta: f32,
}

impl<G: FusedGroupedGemm> Arguments<G> {
    /// Checks, plans and launches, or simulates, or does what is done on the CPU for checked groups.
    ///
    /// # Safety
    /// As for [`m_grouped_fp8_gemm_nt_fused_raw`].
    pub unsafe fn run(
        &self,
        device: &Device,
        options: &GemmOptions,
        on_cpu: impl FnOnce(&Groups) -> Result<()>,
    ) -> Result<()> {
        match device {
            // SAFETY: the caller keeps the operands.
            Device::Cuda(cuda) => unsafe { launch(cuda, self, options) },
            Device::Sim(sim) => simulate(sim, self, options),
            Device::Cpu => {
                refuse_stream(device, options)?;
                match self.gemm.check_fused(self.c.as_ref(), &self.epilogue)? {
                    CheckedGroupedFused::Nothing => Ok(()),
                    CheckedGroupedFused::Launch(_, groups, _) => on_cpu(&groups),
                }
            }
        }
    }
}

impl<G: FusedGroupedGemm> GroupedArguments for Arguments<G> {
    fn key(&self, limits: &Limits, options: &GemmOptions) -> Result<Option<PlanKey>> {
        let checked = self.gemm.check_fused(self.c.as_ref(), &self.epilogue)?;
        let CheckedGroupedFused::Launch(problem, groups, fused) = checked else { return Ok(None) };
        Ok(Some(PlanKey { fused: Some(fused), ..key(limits, problem, Some(groups), options) }))
    }
}

impl<G: FusedGroupedGemm> CallArguments for Arguments<G> {
    fn remembered(calls: &RememberedCalls) -> &Memo<Call<Self>, Ready> {
        G::remembered_fused(calls)
    }

    fn addresses(&self) -> Addresses {
        let fused = FusedAt::of(&self.epilogue, self.alpha, self.beta);
        Addresses { c: self.c.map_or(0, |c| c.address), fused, ..self.gemm.addresses() }
    }
}
