//! The description of a GEMM: everything that a call says, before any rule is checked.

use std::fmt;
use std::str::FromStr;

use oxigemm_kernels::gemm::epilogue::{Activation, Gate};
use oxigemm_kernels::gemm::operand::f16::{Half, Major, Operands};
use oxigemm_kernels::gemm::params::ScaleBlock;
use oxigemm_kernels::gemm::scheduler::k_grouped::PITCH_UNIT;
use oxigemm_kernels::gemm::scheduler::m_grouped::GroupLayout;

use super::output_format::OutputFormat;
use crate::tensor::desc::Operand;
use crate::tensor::dtype::DType;
use crate::tensor::granularity::BLOCK;

/// Layout of A and B in a GEMM: `n` as they stand in `D = A·B`, `t` transposed.
///
/// ```
/// use oxigemm::GemmLayout;
///
/// assert_eq!("nt".parse(), Ok(GemmLayout::Nt));
/// assert_eq!(GemmLayout::Tn.to_string(), "tn");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GemmLayout {
    /// A is `[M, K]`, B is `[N, K]`: D = A·Bᵀ.
    #[default]
    Nt,
    /// A is `[M, K]`, B is `[K, N]`: D = A·B.
    Nn,
    /// A is `[K, M]`, B is `[K, N]`: D = Aᵀ·B.
    Tn,
    /// A is `[K, M]`, B is `[N, K]`: D = Aᵀ·Bᵀ.
    Tt,
}

impl GemmLayout {
    /// All four.
    pub const ALL: [GemmLayout; 4] = [GemmLayout::Nt, GemmLayout::Nn, GemmLayout::Tn, GemmLayout::Tt];

    /// The name that users type and read.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            GemmLayout::Nt => "nt",
            GemmLayout::Nn => "nn",
            GemmLayout::Tn => "tn",
            GemmLayout::Tt => "tt",
        }
    }

    /// Whether A is `[K, M]`.
    #[must_use]
    pub const fn a_begins_with_k(self) -> bool {
        matches!(self, GemmLayout::Tn | GemmLayout::Tt)
    }

    /// Whether B is `[K, N]`.
    #[must_use]
    pub const fn b_begins_with_k(self) -> bool {
        matches!(self, GemmLayout::Nn | GemmLayout::Tn)
    }

    /// The 16-bit operands of this layout, each contiguous along its last dimension.
    #[must_use]
    pub fn operands(self, element: Half) -> Operands {
        let major = |k_first| if k_first { Major::MN } else { Major::K };
        Operands { element, a: major(self.a_begins_with_k()), b: major(self.b_begins_with_k()) }
    }
}

impl fmt::Display for GemmLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for GemmLayout {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<GemmLayout, String> {
        let found = GemmLayout::ALL.into_iter().find(|layout| layout.name() == name);
        found.ok_or_else(|| format!("`{name}` is no layout: expected nt, nn, tn or tt"))
    }
}

/// Description of a GEMM: operands, scales, grouping, addend, epilogue and output.
///
/// Every public GEMM function builds one, from tensors or from raw addresses. [`check`](GemmDesc::check) turns it into
/// a [`Problem`](crate::check::Problem). Equal descriptions are the same call, so it is also the key of the launch
/// cache.
///
/// ```
/// use oxigemm::check::{Accumulate, Checked, GemmDesc};
/// use oxigemm::{DType, Device, Tensor};
///
/// let cpu = Device::Cpu;
/// let a = Tensor::zeros(DType::E4m3, &[64, 512], &cpu)?;
/// let sfa = Tensor::zeros(DType::F32, &[64, 4], &cpu)?;
/// let b = Tensor::zeros(DType::E4m3, &[256, 512], &cpu)?;
/// let sfb = Tensor::zeros(DType::F32, &[2, 4], &cpu)?;
/// let d = Tensor::zeros(DType::Bf16, &[64, 256], &cpu)?;
///
/// let desc = GemmDesc {
///     sfa: Some(sfa.describe("sfa")),
///     sfb: Some(sfb.describe("sfb")),
///     c: Some(d.describe("c")),
///     ..GemmDesc::new(a.describe("a"), b.describe("b"), d.describe("d"))
/// };
/// let Checked::Launch(problem) = desc.check()? else { panic!("there is work to do") };
/// assert_eq!((problem.m, problem.n, problem.k), (64, 256, 512));
/// assert_eq!(problem.c, Accumulate::InPlace);
/// # Ok::<(), oxigemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GemmDesc {
    /// Layout of A and B. It names their dimensions; strides say which one is contiguous.
    pub layout: GemmLayout,
    /// Whether FP8 operands that are not K-major are transposed into a workspace first. They are refused otherwise.
    /// 16-bit operands are read in either major.
    pub transpose: bool,
    /// `[M, K]` or `[K, M]`, with a leading dimension for groups that have rows of their own. FP8, FP4, 16 bits, or f32,
    /// which is multiplied as TF32.
    ///
    /// FP4 are two e2m1 codes in a u8, the first in the low half. They are contiguous along K, which is twice as long as
    /// that dimension.
    pub a: Operand,
    /// `[N, K]` or `[K, N]`, with a leading dimension for groups.
    pub b: Operand,
    /// Scales of A: `[M, ceil(K/128)]` f32, or 1 along a dimension for all. There are some exactly for FP8 and FP4
    /// operands. With 32 in place of 128, here and for B, scales are 1x32 and 32x32 (of FP4 1x32).
    ///
    /// Scales may also be codes: u8 in the same shape, or i32 with four of a row in each along K.
    pub sfa: Option<Operand>,
    /// Scales of B: `[ceil(N/128), ceil(K/128)]` (1D2D) or `[N, ceil(K/128)]` (1D1D), or 1 along a dimension for all.
    pub sfb: Option<Operand>,
    /// Elements of K that share a scale of A, and of B, where the caller knows; shapes tell where there is none. Codes of
    /// 16 are E4M3 (e4m3, u8, or i32 with four in each), as those of NVFP4: both operands are then FP4. All others are
    /// UE8M0.
    pub scale_blocks: [Option<ScaleBlock>; 2],
    /// Addend: like D. It may be D itself.
    pub c: Option<Operand>,
    /// Output: `[M, N]` row-major, with a leading dimension for groups that have rows of their own.
    pub d: Operand,
    /// Grouping of the GEMM.
    pub grouping: GroupingDesc,
    /// Fused epilogue, if there is one.
    pub epilogue: Option<EpilogueDesc>,
}

/// Grouping of a GEMM, not yet checked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GroupingDesc {
    /// One GEMM.
    Dense,
    /// A batch of GEMMs: every operand has a leading dimension.
    Batched,
    /// A batch of GEMMs that are added up into one D: `bmk,bnk->mn`.
    Summed,
    /// Groups of rows of A, each with its own B.
    MGrouped(MGroupedDesc),
    /// k-grouped: ranges of K, each with its own D.
    KGrouped(KGroupedDesc),
}

/// Groups of rows: m-grouped contiguous or m-grouped masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MGroupedDesc {
    /// Meaning of the numbers. With `Counts` (masked) A, C and D have a leading dimension for groups.
    pub layout: GroupLayout,
    /// Numbers that say where groups are: `[G]` or, for `Ids`, `[M]` i32, contiguous.
    pub numbers: Operand,
    /// Alignment of the first row of every group: 1, 16, 32, 64 or 128.
    pub alignment: i64,
    /// Rows that a group is expected to have, for planning only; an equal share of all rows without it.
    pub expected_m: Option<i64>,
}

/// Groups of a k-grouped GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KGroupedDesc {
    /// K of each group, or its end: `[G]` i32, which only the device reads.
    pub ks: Operand,
    /// Alignment of the first K of every group, where the numbers are ends: 1, 16, 32, 64 or 128.
    pub ends: Option<i64>,
    /// What the host knows of the same numbers.
    pub host: Option<HostKs>,
}

/// Digest of the K of each group as the host knows them: all that a check needs of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostKs {
    /// Number of groups.
    pub groups: usize,
    /// End of the last group, where each begins at a multiple of [`GemmDesc::k_unit`], or of the alignment of ends.
    pub end: usize,
    /// The same, rounded up to that multiple.
    pub padded_end: usize,
    /// Scale blocks of all groups: 128 of K each, or what is left of a group.
    pub blocks: usize,
    /// The same of 32 of K each.
    pub blocks_of_32: usize,
    /// Whether all numbers are even.
    pub all_even: bool,
}

impl HostKs {
    /// Digest of these numbers, for groups that begin at multiples of `unit`.
    #[must_use]
    pub fn new(ks: &[usize], unit: usize) -> HostKs {
        let padded = |end: usize| end.checked_next_multiple_of(unit).unwrap_or(usize::MAX);
        let end = ks.iter().filter(|k| **k > 0).fold(0usize, |end, k| padded(end).saturating_add(*k));
        let blocks = |size: usize| ks.iter().fold(0usize, |sum, k| sum.saturating_add(k.div_ceil(size)));
        let (blocks, blocks_of_32) = (blocks(BLOCK as usize), blocks(ScaleBlock::Of32.size() as usize));
        let all_even = ks.iter().all(|k| k % 2 == 0);
        HostKs { groups: ks.len(), end, padded_end: padded(end), blocks, blocks_of_32, all_even }
    }

    /// Scale blocks of all groups of so many elements of K.
    pub(super) fn blocks_of(&self, block: ScaleBlock) -> usize {
        match block {
            ScaleBlock::Of32 => self.blocks_of_32,
            _ => self.blocks,
        }
    }
}

/// Fused epilogue, not yet checked; the default does nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EpilogueDesc {
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of C.
    pub beta: f32,
    /// Activation of an accumulator, or of a gate.
    pub activation: Activation,
    /// Whether the first half of the rows of B are gates, and D has half as many columns.
    pub gated: bool,
    /// What is done with gates and ups.
    pub gate: Gate,
    /// Bias, added before the activation: one for each row of B, f32 or 16 bits.
    pub bias: Option<Operand>,
    /// Columns of D that are skipped.
    pub heads: Option<HeadSplits>,
    /// Scales of a quantized D, and what it is quantized to.
    pub scales: Option<(Operand, OutputFormat)>,
}

impl Default for EpilogueDesc {
    fn default() -> Self {
        EpilogueDesc {
            alpha: 1.0,
            beta: 1.0,
            activation: Activation::None,
            gated: false,
            gate: Gate::default(),
            bias: None,
            heads: None,
            scales: None,
        }
    }
}

/// Columns of D that are skipped: `mid` of them in every head, behind the first `left` and before the last `right`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadSplits {
    /// Columns that are computed before those that are skipped.
    pub left: u32,
    /// Columns that are left as they are.
    pub mid: u32,
    /// Columns that are computed behind them.
    pub right: u32,
}

impl HeadSplits {
    /// Columns of a head that are computed.
    #[must_use]
    pub const fn computed(&self) -> u64 {
        self.left as u64 + self.right as u64
    }
}

impl GemmDesc {
    /// A dense GEMM `D = A·Bᵀ` without scales, addend and epilogue.
    #[must_use]
    pub const fn new(a: Operand, b: Operand, d: Operand) -> GemmDesc {
        GemmDesc {
            layout: GemmLayout::Nt,
            transpose: false,
            a,
            b,
            sfa: None,
            sfb: None,
            scale_blocks: [None; 2],
            c: None,
            d,
            grouping: GroupingDesc::Dense,
            epilogue: None,
        }
    }

    /// Alignment of the first K of a group, of the operands of a k-grouped GEMM in this layout, of which A has such
    /// elements.
    #[must_use]
    pub fn k_unit(layout: GemmLayout, a: DType) -> u32 {
        match (a, layout) {
            // Both types of 16 bits have the same.
            (DType::Bf16 | DType::F16, layout) => layout.operands(Half::Bf16).k_unit(),
            (_, GemmLayout::Tn) => 1,
            // Two FP4 to a byte.
            (DType::U8, _) => 2 * PITCH_UNIT,
            _ => PITCH_UNIT,
        }
    }
}
