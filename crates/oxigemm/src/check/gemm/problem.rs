//! A checked GEMM: what planning and launching need to know of a call.

use oxigemm_kernels::gemm::OperandKind;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::epilogue::{Activation, BlockOutput};
use oxigemm_kernels::gemm::params::ScalesOfB;
use oxigemm_kernels::gemm::scheduler::m_grouped::GroupLayout;

use super::desc::HeadSplits;
use crate::cast::ScaleFormat;
use crate::tensor::desc::ScaleStrides;
use crate::tensor::dtype::DType;

/// Work of a call whose arguments are good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "a check allocates nothing, and nearly every one gives a launch"
)]
pub enum Checked {
    /// Launch of a kernel.
    Launch(Problem),
    /// An update of D without a GEMM, as K is 0.
    Trivial(Trivial),
    /// Nothing: D has no elements, or it keeps what it holds.
    Nothing,
}

/// Update of D where K is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trivial {
    /// D becomes 0: there is no C.
    Zero,
    /// D becomes C.
    CopyC,
}

/// A checked GEMM. Equal problems take the same plan.
///
/// Pitches and strides are in elements, those of FP4 operands in bytes of two. Where a dimension is 1 its stride has no
/// meaning and is normalized: a pitch to the row length rounded up to 16 bytes, the stride of a scale to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Types, majors and scale granularities of the operands.
    pub family: OperandKind,
    /// Rows of A and D, of one slab where there are several; at most `i32::MAX`, like `n` and `k`.
    pub m: u32,
    /// Columns that are computed: the rows of B, or half of them where there is a gate.
    pub n: u32,
    /// Columns of A and B; of all groups together where the GEMM is k-grouped.
    pub k: u32,
    /// From one row of A to the next; from one column where it is M-major.
    pub a_pitch: u64,
    /// From one row of B to the next; from one column where it is N-major.
    pub b_pitch: u64,
    /// From one row of D to the next.
    pub d_pitch: u64,
    /// Addend.
    pub c: Accumulate,
    /// Strides of A's scales; [`ScaleStrides::NONE`] where there are none. Of a problem that is launched, where the tensor
    /// core applies scales, they are from one 32-bit word to the next: along K, a word has four scales.
    pub sfa: ScaleStrides,
    /// Strides of B's scales.
    pub sfb: ScaleStrides,
    /// Element type of D (and C): f32, 16 bits wide, or e4m3 or u8 (FP4) where it is quantized.
    pub d_type: DType,
    /// Which of A and B are FP8 and not K-major, and so are transposed first.
    pub transpose: [bool; 2],
    /// Groups of rows, or the GEMMs of a batch.
    pub groups: Option<Groups>,
    /// Groups of a k-grouped GEMM.
    pub k_groups: Option<KGroups>,
    /// Batch whose GEMMs are added up.
    pub summed: Option<Summed>,
    /// Fused epilogue.
    pub fused: Option<Fused>,
}

/// Addend of a checked GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accumulate {
    /// None.
    None,
    /// The old content of D.
    InPlace,
    /// Another matrix, apart from D.
    From {
        /// From one row of C to the next, in elements.
        pitch: u64,
    },
}

/// Groups of rows of a checked GEMM, or the GEMMs of a batch. Equal ones take the same plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Groups {
    /// Meaning of the numbers that only the device knows.
    pub layout: GroupLayout,
    /// Number of groups.
    pub count: u32,
    /// Alignment of the first row of a group.
    pub alignment: u32,
    /// Rows that a group is expected to have.
    pub expected: u32,
    /// From one slab of A to the next, in elements.
    pub a_slab: u64,
    /// From the B of one group to the next, in elements.
    pub b_group: u64,
    /// From one slab of D to the next, in elements; 0 where there is one.
    pub d_slab: u32,
    /// From one slab of A's scales to the next, in elements.
    pub sfa_slab: u32,
    /// From the scales of one group's B to the next, in elements.
    pub sfb_group: u32,
}

impl Groups {
    /// Number of slabs of A and D.
    #[must_use]
    pub fn slabs(&self) -> u32 {
        if self.layout.has_slabs() { self.count } else { 1 }
    }

    /// From one slab of D to the next, in rows of this pitch, where they are whole rows apart.
    pub(crate) fn d_slab_rows(&self, pitch: u64) -> u32 {
        (u64::from(self.d_slab) / pitch) as u32
    }
}

/// Groups of a checked k-grouped GEMM. Equal ones take the same plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KGroups {
    /// Number of groups.
    pub count: u32,
    /// Scale blocks of all groups; 0 where there are no scales.
    pub blocks: u32,
    /// From one group of D, and of C, to the next, in rows.
    pub d_slab: u32,
    /// Alignment of the first K of every group, where its end is given; 0 where its K is.
    pub alignment: u32,
}

/// Batch of a checked GEMM that adds it up. Equal ones take the same plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Summed {
    /// Number of GEMMs that are added.
    pub slabs: u32,
    /// From one A to the next, in elements.
    pub a_slab: u64,
    /// From one B to the next, in elements.
    pub b_slab: u64,
}

/// Fused epilogue of a checked GEMM. Equal ones take the same plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fused {
    /// Accumulators of an element of D.
    pub fusion: Fusion,
    /// Activation of an accumulator, or of a gate.
    pub activation: Activation,
    /// Type of the bias, if there is one.
    pub bias: Option<DType>,
    /// From the bias of one group to that of the next, in elements; 0 where all share one.
    pub bias_group: u32,
    /// Columns of D that are skipped.
    pub heads: Option<HeadSplits>,
    /// Scales of a quantized D.
    pub quantized: Option<QuantizedRows>,
}

/// Scales of a quantized D.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantizedRows {
    /// Format of FP32 scales.
    pub format: ScaleFormat,
    /// What D is quantized to where its scales are bytes: words of four.
    pub blocks: Option<BlockOutput>,
    /// From one row to the next, and from one 128 columns or word to the next, in elements.
    pub strides: [u32; 2],
    /// From those of one slab of D to the next, in elements; 0 where there is one.
    pub slab: u32,
}

impl Problem {
    /// Pipeline stages along K, the tail included.
    #[must_use]
    pub const fn k_blocks(&self) -> u32 {
        self.family.k_blocks(self.k)
    }

    /// Blocks of K that share scales; stages where there are no scales.
    #[must_use]
    pub const fn scale_blocks(&self) -> u32 {
        self.family.scale_blocks(self.k)
    }

    /// Multiplications and additions of the GEMM.
    #[must_use]
    pub fn flops(&self) -> f64 {
        2.0 * f64::from(self.m) * f64::from(self.n) * f64::from(self.k)
    }

    /// Bytes that must cross the memory bus at least once: A, B, their scales, D, and C where there is one.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        let [m, n, k] = [self.m, self.n, self.k].map(f64::from);
        let scales = match self.family.scales {
            Some(ScalesOfB::Blocks) => {
                let of_b = self.n.div_ceil(self.family.scale_block.size());
                f64::from(self.scale_blocks()) * (m + f64::from(of_b))
            }
            Some(ScalesOfB::Rows) => f64::from(self.scale_blocks()) * (m + n),
            None => 0.0,
        };
        let outputs = if self.c == Accumulate::None { 1.0 } else { 2.0 };
        let [a, b] = [self.family.a, self.family.b].map(|operand| f64::from(operand.element.bits()) / 8.0);
        let scale = if self.family.is_block_scaled() { 1.0 } else { 4.0 };
        let operands = (m * a + n * b) * k;
        operands + scale * scales + outputs * m * n * self.d_type.size() as f64
    }
}

impl Checked {
    /// Update of D where the product is 0.
    pub(super) fn without_product(accumulate: Accumulate) -> Checked {
        match accumulate {
            Accumulate::None => Checked::Trivial(Trivial::Zero),
            Accumulate::InPlace => Checked::Nothing,
            Accumulate::From { .. } => Checked::Trivial(Trivial::CopyC),
        }
    }
}
