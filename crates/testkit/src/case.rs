//! One GEMM of any operation: its size, layouts, groups, addend and epilogue.

use std::fmt;

use oxigemm::{DType, GemmLayout, Granularity};

use crate::E5m2;
use crate::GroupLayout;
use crate::epilogue::EpilogueSpec;
use crate::groups::MGroups;
use crate::memory::{Fill, ScaleOrder};
use crate::op::{FP8, OperandTypes, named};

named! {
    /// What is added to the product.
    pub enum AddendKind {
        /// Nothing
        None = "none",
        /// The old content of D
        Inplace = "inplace",
        /// Another matrix
        Other = "other",
    }
}

named! {
    /// Scale granularity of FP8 operands.
    pub enum ScaleMode {
        /// 1x128 for A, 128x128 for B (1x128 for 1D1D), or what the operation is named after
        Fine = "fine",
        /// Per token for A, per tensor for B
        Row = "row",
        /// Per tensor for A and for B
        Tensor = "tensor",
    }
}

impl ScaleMode {
    /// Rows and columns that share a scale, of one of the operands (0 is A) with so many rows and columns.
    pub(crate) fn block(self, types: &OperandTypes, operand: usize, [rows, k]: [usize; 2]) -> [usize; 2] {
        let granularity = match (self, types.scale_blocks) {
            (ScaleMode::Fine, Some(blocks)) => return blocks[operand],
            (ScaleMode::Row, _) if operand == 0 => Granularity::PerRow,
            _ => Granularity::PerTensor,
        };
        granularity.block(rows, k)
    }
}

/// The groups of a case.
#[derive(Clone, Debug)]
pub enum Grouping {
    /// One GEMM.
    Dense,
    /// So many GEMMs of 16-bit operands, summed: each has an equal part of K.
    Summed(usize),
    /// Groups of rows, or a batch.
    M(MGroups),
    /// k-grouped: the K of each group.
    K(Vec<usize>),
}

/// One GEMM, or one call for many. The default is what `bench` runs: nothing added, no gaps.
#[derive(Clone, Debug)]
pub struct GemmCase {
    /// Types of A and B.
    pub types: OperandTypes,
    /// Which FP8 operands are e5m2, if any is.
    pub e5m2: Option<E5m2>,
    /// How A and B lie in memory.
    pub layout: GemmLayout,
    /// Rows of A and D; of m-grouped GEMMs, rows that a group is expected to have.
    pub m: usize,
    /// Rows of B.
    pub n: usize,
    /// Columns of A and B; of summed GEMMs, of all together.
    pub k: usize,
    /// Its groups.
    pub grouping: Grouping,
    /// The fused epilogue, where the function has one.
    pub epilogue: Option<EpilogueSpec>,
    /// What is added.
    pub addend: AddendKind,
    /// The type of D and C, where the epilogue does not quantize.
    pub d_type: DType,
    /// Scale granularity.
    pub scales: ScaleMode,
    /// How the scales of A lie in memory.
    pub sfa: ScaleOrder,
    /// How the scales of B lie in memory.
    pub sfb: ScaleOrder,
    /// 16-byte units behind each row of A and of B beyond what alignment needs.
    pub ab_padding: usize,
    /// Elements behind each row of D and C.
    pub d_padding: usize,
    /// Rows behind each group of D and C, of k-grouped GEMMs.
    pub d_row_padding: usize,
    /// Elements before D, by which its address is off.
    pub d_offset: usize,
    /// Whether A and B end where their allocation ends.
    pub at_end: bool,
    /// What memory holds beside operands and results.
    pub fill: Fill,
    /// What the operands are drawn from.
    pub seed: u64,
}

impl GemmCase {
    /// A dense GEMM without gaps.
    pub fn dense(types: OperandTypes, layout: GemmLayout, [m, n, k]: [usize; 3]) -> GemmCase {
        GemmCase {
            types,
            e5m2: None,
            layout,
            m,
            n,
            k,
            grouping: Grouping::Dense,
            epilogue: None,
            addend: AddendKind::None,
            d_type: types.d_types[0],
            scales: ScaleMode::Fine,
            sfa: ScaleOrder::Row,
            sfb: ScaleOrder::Row,
            ab_padding: 0,
            d_padding: 0,
            d_row_padding: 0,
            d_offset: 0,
            at_end: false,
            fill: Fill::Poison,
            seed: 0,
        }
    }

    /// A dense FP8 GEMM with K-major operands, without gaps.
    pub fn fp8(m: usize, n: usize, k: usize) -> GemmCase {
        GemmCase::dense(FP8, GemmLayout::Nt, [m, n, k])
    }

    /// So many GEMMs of `[m, n, k]`, summed.
    pub fn summed(types: OperandTypes, gemms: usize, [m, n, k]: [usize; 3]) -> GemmCase {
        let grouping = Grouping::Summed(gemms);
        GemmCase { grouping, ..GemmCase::dense(types, GemmLayout::Nt, [m, n, gemms * k]) }
    }

    /// A GEMM for each of some groups of rows, or for each of a batch, without gaps.
    pub fn m_grouped(types: OperandTypes, groups: MGroups, [n, k]: [usize; 2]) -> GemmCase {
        let m = groups.sizes.iter().sum::<usize>() / groups.sizes.len().max(1);
        GemmCase { grouping: Grouping::M(groups), ..GemmCase::dense(types, GemmLayout::Nt, [m, n, k]) }
    }

    /// A GEMM for each of some ranges of K, without gaps. D is FP32. Ranges of FP4 are of whole bytes.
    pub fn k_grouped(
        types: OperandTypes,
        layout: GemmLayout,
        ks: Vec<usize>,
        [m, n]: [usize; 2],
    ) -> GemmCase {
        let unit = if types.has_fp4() { 2 } else { 1 };
        let ks: Vec<usize> = ks.into_iter().map(|k| k.next_multiple_of(unit)).collect();
        let k = ks.iter().sum::<usize>() / ks.len().max(1);
        GemmCase {
            grouping: Grouping::K(ks),
            d_type: types.d_types[1],
            ..GemmCase::dense(types, layout, [m, n, k])
        }
    }

    /// The same with other groups of rows.
    pub fn with_groups(self, change: impl FnOnce(MGroups) -> MGroups) -> GemmCase {
        let grouping = match self.grouping {
            Grouping::M(groups) => Grouping::M(change(groups)),
            other => other,
        };
        GemmCase { grouping, ..self }
    }

    /// The groups of rows, if there are some.
    pub fn m_groups(&self) -> Option<&MGroups> {
        match &self.grouping {
            Grouping::M(groups) => Some(groups),
            _ => None,
        }
    }

    /// How many groups there are, where there are some.
    pub fn groups(&self) -> Option<usize> {
        match &self.grouping {
            Grouping::Dense | Grouping::Summed(_) => None,
            Grouping::M(groups) => Some(groups.sizes.len()),
            Grouping::K(ks) => Some(ks.len()),
        }
    }

    /// Whether it is a batch.
    pub fn is_batch(&self) -> bool {
        self.m_groups().is_some_and(MGroups::is_batch)
    }

    /// The epilogue, or one that does nothing.
    pub fn fused(&self) -> EpilogueSpec {
        self.epilogue.unwrap_or(EpilogueSpec::NONE)
    }

    /// The type of A and that of B; u8 is FP4, two codes each.
    pub fn ab_types(&self) -> [DType; 2] {
        match self.e5m2 {
            None => self.types.fp4.map(|fp4| if fp4 { DType::U8 } else { self.types.ab }),
            Some(e5m2) => e5m2.operands().map(|e5m2| if e5m2 { DType::E5m2 } else { DType::E4m3 }),
        }
    }

    /// The type of D.
    pub fn output_type(&self) -> DType {
        if self.fused().quantized.is_some() { DType::E4m3 } else { self.d_type }
    }

    /// M, N and K of the GEMM of each group.
    pub fn gemms(&self) -> Vec<[usize; 3]> {
        match &self.grouping {
            Grouping::Dense | Grouping::Summed(_) => vec![[self.m, self.n, self.k]],
            Grouping::M(groups) => groups.sizes.iter().map(|&rows| [rows, self.n, self.k]).collect(),
            Grouping::K(ks) => ks.iter().map(|&k| [self.m, self.n, k]).collect(),
        }
    }

    /// Slabs of D, and rows of each.
    pub fn slabs(&self) -> [usize; 2] {
        match &self.grouping {
            Grouping::Dense | Grouping::Summed(_) => [1, self.m],
            Grouping::M(groups) => groups.slabs(),
            Grouping::K(ks) => [ks.len(), self.m],
        }
    }

    /// Whether nothing is multiplied, and so nothing planned.
    pub fn is_empty(&self) -> bool {
        match &self.grouping {
            Grouping::Dense | Grouping::Summed(_) => self.m == 0 || self.n == 0 || self.k == 0,
            Grouping::M(groups) => groups.sizes.is_empty() || groups.slabs()[1] == 0 || self.n == 0,
            Grouping::K(ks) => self.m == 0 || self.n == 0 || ks.iter().all(|k| *k == 0),
        }
    }

    /// Rows of the result that are computed.
    pub fn rows(&self) -> usize {
        self.gemms().iter().map(|[m, ..]| m).sum()
    }

    /// Multiplications and additions.
    pub fn flops(&self) -> f64 {
        self.gemms().iter().map(|&dims| 2.0 * dims.map(|x| x as f64).iter().product::<f64>()).sum()
    }

    /// Bytes that cross the memory bus at least once: A, B of groups with rows, their scales, D, and C where there is
    /// one.
    pub fn bytes(&self) -> f64 {
        let size = |dtype: DType| if dtype == DType::U8 { 0.5 } else { dtype.size() as f64 };
        let [of_a, of_b] = self.ab_types().map(size);
        let scale = if self.types.scale_type == DType::F32 { 4.0 } else { 1.0 };
        let of_operands = |&[m, n, k]: &[usize; 3]| {
            let scales = self.types.scale_blocks.map_or(0, |[block_a, block_b]| {
                let count =
                    |rows: usize, [down, across]: [usize; 2]| rows.div_ceil(down) * k.div_ceil(across);
                count(m, block_a) + count(n, block_b)
            });
            (m as f64 * of_a + n as f64 * of_b) * k as f64 + scale * scales as f64
        };
        let operands: f64 = self.gemms().iter().filter(|[m, ..]| *m > 0).map(of_operands).sum();
        let outputs = if self.addend == AddendKind::None { 1.0 } else { 2.0 };
        let output = match self.fused().quantized {
            Some(_) => 1.0 + 4.0 / 128.0,
            None => self.d_type.size() as f64,
        };
        operands + outputs * (self.rows() * self.fused().columns(self.n)) as f64 * output
    }
}

impl fmt::Display for GemmCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GemmCase { types, layout, m, n, k, d_type, addend, sfa, sfb, seed, .. } = self;
        let list = |f: &mut fmt::Formatter<'_>, sizes: &[usize]| match sizes.len() {
            0..=8 => write!(f, "{sizes:?}"),
            _ => write!(f, "{} in all", sizes.iter().sum::<usize>()),
        };
        write!(f, "{types} {layout} ")?;
        match &self.grouping {
            Grouping::Dense => write!(f, "{m}x{n}x{k}")?,
            Grouping::Summed(gemms) => write!(f, "{m}x{n}x{k} as the sum of {gemms}")?,
            Grouping::M(groups) => {
                let kind = match groups.layout {
                    GroupLayout::All => "batch",
                    GroupLayout::Counts => "m-grouped masked",
                    GroupLayout::Ids => "m-grouped contiguous by ids",
                    GroupLayout::Ends => "m-grouped contiguous by ends",
                };
                write!(f, "{kind}, {} groups of ", groups.sizes.len())?;
                list(f, &groups.sizes)?;
                let [_, rows] = groups.slabs();
                write!(f, " at {} in {rows} rows, n {n}, k {k}", groups.alignment)?;
            }
            Grouping::K(ks) => {
                write!(f, "k-grouped {m}x{n}, {} groups of K ", ks.len())?;
                list(f, ks)?;
            }
        }
        write!(f, ", {d_type}, c {addend:?}")?;
        if let Some(e5m2) = self.e5m2 {
            write!(f, ", {}", e5m2.name())?;
        }
        if types.has_scales() {
            write!(f, ", scales {:?} {sfa:?}/{sfb:?}", self.scales)?;
        }
        let GemmCase { ab_padding, d_padding, d_row_padding, d_offset, .. } = self;
        if ab_padding + d_padding + d_row_padding + d_offset > 0 {
            write!(f, ", gaps {ab_padding}/{d_row_padding}/{d_padding}, d off by {d_offset}")?;
        }
        if self.at_end {
            write!(f, ", at the end of memory")?;
        }
        if let Some(epilogue) = &self.epilogue {
            write!(f, ", fused epilogue {epilogue:?}")?;
        }
        write!(f, ", seed {seed}")
    }
}
