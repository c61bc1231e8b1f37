//! Scales as the kernels of an architecture read them: the one place that knows.
//!
//! | architecture | kernels read | given otherwise |
//! |---|---|---|
//! | `sm_90a` | FP32, and multiply sums with them | UE8M0 is [unpacked](super::unpack) |
//! | `sm_90a`, MXFP4 beside FP8 | words of four exponents along K, which are added to codes | anything else is [packed](super::pack) |
//! | `sm_100a` | words of four bytes along K, which the tensor core applies | anything else is [packed](super::pack) |

use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::operand::f16::Major;
use oxigemm_kernels::gemm::scheduler::m_grouped::GroupLayout;
use oxigemm_kernels::gemm::{ElementType, OperandKind};

use super::pack::Packing;
use super::unpack::Unpacking;
use crate::check::gemm::scale_codes::Unpacked;
use crate::check::{GemmDesc, GroupingDesc, KGroupedDesc, Problem};
use crate::device::backend::Backend;
use crate::error::{Error, Result};
use crate::launch::args::Addresses;
use crate::tensor::desc::Operand;
use crate::tensor::dtype::DType;

/// Scales that a kernel rewrites into a workspace of the stream before the GEMM reads them.
#[derive(Clone, Copy, Debug)]
pub(super) enum RewrittenScales {
    /// To FP32.
    Unpacked(Unpacking),
    /// To words.
    Packed(Packing),
    /// Those of A to FP32, and behind them those of B to words.
    Both(Unpacking, Packing),
}

/// The GEMM as kernels of an architecture see its scales, and the scales that are rewritten for it. `as_f32` is the same
/// GEMM with FP32 scales, which was checked; `codes` are its scales that are none.
pub(super) fn rewritten(
    arch: Arch,
    desc: &GemmDesc,
    as_f32: &GemmDesc,
    codes: Option<&Unpacked>,
    problem: Problem,
) -> Result<(Problem, Option<RewrittenScales>)> {
    if arch == Arch::Sm100a {
        let words = match problem.k_groups {
            Some(_) => desc.k_grouped_scale_words(as_f32, &problem),
            None => desc.scale_words(as_f32)?,
        };
        let Some(words) = words else { return Ok((problem, None)) };
        expect_loadable(desc, &problem)?;
        let (mut problem, packing) = Packing::new(&problem, words)?;
        read_as_they_lie(&mut problem);
        return Ok((problem, packing.map(RewrittenScales::Packed)));
    }
    expect_f32_output(arch, desc)?;
    if desc.sfa.is_some() && [desc.a.dtype, desc.b.dtype] == [DType::E4m3, DType::U8] {
        return widened(arch, desc, as_f32, codes, &problem);
    }
    expect_f32(arch, desc, as_f32, &problem)?;
    let unpacking = codes.map(Unpacking::new).transpose()?;
    Ok((problem, unpacking.map(RewrittenScales::Unpacked)))
}

/// The GEMM of FP8 by MXFP4 where kernels widen the codes: FP32 scales of A, words of B.
fn widened(
    arch: Arch,
    desc: &GemmDesc,
    as_f32: &GemmDesc,
    codes: Option<&Unpacked>,
    problem: &Problem,
) -> Result<(Problem, Option<RewrittenScales>)> {
    let refuse = |argument, expected: &str, [rows, k]: [u32; 2]| {
        let expected = format!("{expected}, as kernels for FP8 beside FP4 have on {arch}");
        Err(Error::ScaleShape { argument, expected, found: format!("one per {rows} rows and {k} of K") })
    };
    let [of_a, of_b] = as_f32.scale_granularity()?.unwrap_or_default();
    // So few of K are one block of either.
    let one_block = problem.k <= 32;
    if of_b != [1, 32] && !(one_block && of_b == [1, 128]) {
        return refuse("sfb", "one per row of `b` and 32 of K", of_b);
    }
    if of_a != [1, 128] && !(one_block && of_a == [1, 32]) {
        return refuse("sfa", "one per row of `a` and 128 of K", of_a);
    }
    if problem.groups.is_some_and(|groups| groups.layout == GroupLayout::All) {
        return Err(Error::DType {
            argument: desc.b.name,
            expected: format!("e4m3, as {arch} has no kernels for batches with FP4"),
            found: format!("{}, which is FP4", desc.b.dtype),
        });
    }
    let Some((_, [_, words])) = desc.scale_words(as_f32)? else { return Ok((*problem, None)) };
    let (problem, packing) = Packing::of_b(problem, (OperandKind::FP8_MXFP4, words))?;
    let unpacking = codes.and_then(Unpacked::of_a).as_ref().map(Unpacking::new).transpose()?;
    let rewritten = match (unpacking, packing) {
        (Some(unpacking), Some(packing)) => Some(RewrittenScales::Both(unpacking, packing)),
        (Some(unpacking), None) => Some(RewrittenScales::Unpacked(unpacking)),
        (None, packing) => packing.map(RewrittenScales::Packed),
    };
    Ok((problem, rewritten))
}

/// Has kernels read operands that are not K-major as they lie, where there are some: k-grouped GEMMs, whose family says
/// so already, and dense ones of e4m3.
fn read_as_they_lie(problem: &mut Problem) {
    let majors = problem.transpose.map(|is_mn| if is_mn { Major::MN } else { Major::K });
    let family = problem.family.with_majors(majors);
    let is_dense = problem.groups.is_none() && problem.summed.is_none() && problem.fused.is_none();
    if problem.k_groups.is_none() {
        let elements = [family.a, family.b].map(|operand| operand.element);
        if !is_dense || elements != [ElementType::E4m3; 2] {
            return;
        }
        problem.family = family;
    }
    problem.transpose = [false; 2];
}

/// Refuses an output with scales of bytes where kernels write FP32 ones.
fn expect_f32_output(arch: Arch, desc: &GemmDesc) -> Result<()> {
    match desc.epilogue.and_then(|epilogue| epilogue.block_format()) {
        None => Ok(()),
        Some(format) => Err(Error::DType {
            argument: "d_scales",
            expected: format!("f32 scales of 1x128, as kernels write on {arch}"),
            found: format!("those of {}, which are bytes", format.name()),
        }),
    }
}

/// Refuses operands that kernels with FP32 scales have not.
fn expect_f32(arch: Arch, desc: &GemmDesc, as_f32: &GemmDesc, problem: &Problem) -> Result<()> {
    if let Some(fp4) = fp4(desc) {
        return Err(Error::DType {
            argument: fp4.name,
            expected: format!("e4m3 or e5m2, as the tensor core of {arch} has no FP4"),
            found: format!("{}, which is FP4", fp4.dtype),
        });
    }
    let is_batch = problem.groups.is_some_and(|groups| groups.layout == GroupLayout::All);
    let (family, fused) = (problem.family, problem.fused.is_some());
    let refuse = |argument, expected: &str, found: String| {
        let expected = format!("{expected}, as kernels for this GEMM have on {arch}");
        Err(Error::ScaleShape { argument, expected, found })
    };
    if family.is_block_scaled() {
        let found = as_f32.scale_granularity()?.unwrap_or_default().map(|[_, k]| k);
        return refuse("sfa", "as many along K as those of `b`", format!("one per {found:?} of K"));
    }
    if let GroupingDesc::KGrouped(KGroupedDesc { ks, ends: Some(_), .. }) = &desc.grouping
        && problem.transpose != [false; 2]
    {
        return Err(Error::Shape {
            argument: ks.name,
            expected: format!("the K of each group, as FP8 operands in tn are transposed on {arch}"),
            found: "the ends of groups".to_owned(),
        });
    }
    if family.has_scales_of_32() && (is_batch || fused || problem.k_groups.is_some()) {
        return refuse("sfa", "one per row of `a` and 128 of K", "one per 32 of K".to_owned());
    }
    if family.is_1d1d() && (problem.groups.is_some() || fused) {
        return refuse("sfb", "one per 128 rows of `b` and 128 of K", "one per row".to_owned());
    }
    Ok(())
}

/// An FP4 operand beside an FP8 one is unpacked to bytes by TMA, which takes it in units of 64 elements of memory and 128
/// of K (CUDA driver API, `CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B`).
fn expect_loadable(desc: &GemmDesc, problem: &Problem) -> Result<()> {
    let Some(fp4) = fp4(desc).filter(|_| desc.a.dtype != desc.b.dtype) else { return Ok(()) };
    let of_a = desc.a.dtype == DType::U8;
    let [pitch, slab] = match (of_a, &problem.groups) {
        (true, groups) => [problem.a_pitch, groups.map_or(0, |groups| groups.a_slab)],
        (false, groups) => [problem.b_pitch, groups.map_or(0, |groups| groups.b_group)],
    };
    let reason = if !problem.k.is_multiple_of(128) {
        format!("the K of FP4 beside FP8 must be a multiple of 128, found {}", problem.k)
    } else if [pitch, slab, fp4.address].iter().any(|x| !x.is_multiple_of(32)) {
        format!(
            "the address, row pitch and groups of FP4 beside FP8 must be multiples of 32 bytes, found {:#x}, {pitch} and \
             {slab}",
            fp4.address
        )
    } else {
        return Ok(());
    };
    Err(fp4.not_tma(reason))
}

/// An operand that is FP4.
fn fp4(desc: &GemmDesc) -> Option<&Operand> {
    let scaled = desc.sfa.is_some();
    [&desc.a, &desc.b].into_iter().find(|operand| scaled && operand.dtype == DType::U8)
}

impl RewrittenScales {
    /// The copy of A's FP32 scales to where TMA can address them: see [`Unpacking::of_unaligned`].
    pub fn of_unaligned(problem: &Problem, sfa: u64) -> Option<(Problem, RewrittenScales)> {
        let (problem, copy) = Unpacking::of_unaligned(problem, sfa)?;
        Some((problem, RewrittenScales::Unpacked(copy)))
    }

    /// Whether the GEMM could read its scales as they are.
    #[inline]
    pub fn is_optional(&self) -> bool {
        match self {
            RewrittenScales::Unpacked(unpacking) => unpacking.is_optional(),
            RewrittenScales::Packed(_) | RewrittenScales::Both(..) => false,
        }
    }

    /// Bytes of the workspace.
    #[inline]
    pub fn bytes(&self) -> u64 {
        match self {
            RewrittenScales::Unpacked(unpacking) => unpacking.bytes(),
            RewrittenScales::Packed(packing) => packing.bytes(),
            RewrittenScales::Both(unpacking, packing) => unpacking.bytes() + packing.bytes(),
        }
    }

    /// Addresses of the GEMM, once scales are rewritten.
    pub fn addresses(&self, own: Addresses, workspace: u64) -> Addresses {
        let offsets = match self {
            RewrittenScales::Unpacked(unpacking) => unpacking.offsets(),
            RewrittenScales::Packed(packing) => packing.offsets(),
            RewrittenScales::Both(unpacking, packing) => {
                let [sfa, sfb] = [unpacking.offsets()[0], packing.offsets()[1]];
                [sfa, sfb.map(|sfb| unpacking.bytes() + sfb)]
            }
        };
        let [sfa, sfb] = offsets.map(|offset| offset.map(|offset| workspace + offset));
        Addresses { sfa: sfa.unwrap_or(own.sfa), sfb: sfb.unwrap_or(own.sfb), ..own }
    }

    /// Puts the kernel that rewrites into a stream.
    ///
    /// # Safety
    /// The scales must be memory of this device as they were checked, and the workspace as large as it is said to be,
    /// until the kernel is done or, where the stream is being captured, whenever the graph is launched.
    pub unsafe fn launch<B: Backend>(
        &self,
        backend: &B,
        workspace: u64,
        stream: B::Stream<'_>,
        programmatic: bool,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                RewrittenScales::Unpacked(unpacking) => {
                    unpacking.launch(backend, workspace, stream, programmatic)
                }
                RewrittenScales::Packed(packing) => packing.launch(backend, workspace, stream, programmatic),
                RewrittenScales::Both(unpacking, packing) => {
                    unpacking.launch(backend, workspace, stream, programmatic)?;
                    packing.launch(backend, workspace + unpacking.bytes(), stream, true)
                }
            }
        }
    }
}
