//! The rules of what is done with sums before they are stored.

use oxigemm_kernels::gemm::epilogue::Activation;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;

use super::operand::Footprint;
use super::{
    Checked, CheckedGroups, Fp8GemmNt, GroupedFp8GemmNt, GroupedHalfGemm, Groups, HalfGemm, Operand, Problem,
    blocks,
};
use crate::cast::ScaleFormat;
use crate::dtype::DType;
use crate::error::{Error, Result};

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

/// What is done with the sums of a product, as arguments that are not yet checked; the default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EpilogueArguments {
    /// What a sum, or a gate, becomes.
    pub activation: Activation,
    /// Whether the first half of the rows of B are gates, and D has half as many columns.
    pub gated: bool,
    /// What is added to the product before that: one for each row of B, f32 or of 16 bits.
    pub bias: Option<Operand>,
    /// Columns of D that are skipped.
    pub heads: Option<HeadSplits>,
    /// The scales of a quantized D, one for each row and 128 columns, and what they may be.
    pub scales: Option<(Operand, ScaleFormat)>,
}

/// What is done with the sums of a checked product. Equal ones take the same plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fused {
    /// How many sums become an element of D.
    pub fusion: Fusion,
    /// What a sum, or a gate, becomes.
    pub activation: Activation,
    /// The type of the bias, if there is one.
    pub bias: Option<DType>,
    /// From the bias of one group to that of the next, in elements; 0 where there are no groups, or all have the same.
    pub bias_group: u32,
    /// Columns of D that are skipped.
    pub heads: Option<HeadSplits>,
    /// The scales of a quantized D.
    pub quantized: Option<QuantizedRows>,
}

/// The scales of a quantized D.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantizedRows {
    /// What they may be.
    pub format: ScaleFormat,
    /// From one row to the next, and from one 128 columns to the next, in elements.
    pub strides: [u32; 2],
    /// From those of one slab of D to the next, in elements; 0 where there is one.
    pub slab: u32,
}

/// What a call with good arguments has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckedFused {
    /// Run a kernel.
    Launch(Problem, Fused),
    /// Nothing: D has no elements.
    Nothing,
}

/// What a call with good arguments has to do whose rows are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckedGroupedFused {
    /// Run a kernel. The problem is that of a slab, as in [`CheckedGroups`].
    Launch(Problem, Groups, Fused),
    /// Nothing: there are no groups, no rows or no columns.
    Nothing,
}

impl GroupedFp8GemmNt {
    /// Checks every rule of the call where sums are finished before they are stored, and `c` is added.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check_fused(
        &self,
        c: Option<&Operand>,
        epilogue: &EpilogueArguments,
    ) -> Result<CheckedGroupedFused> {
        let CheckedGroups::Launch(problem, groups) = self.check_finished(c, epilogue)? else {
            return Ok(CheckedGroupedFused::Nothing);
        };
        let GroupedFp8GemmNt { a, sfa, b, sfb, d, groups: argument } = self;
        let numbers = argument.as_ref().map(|groups| &groups.numbers);
        let fused = epilogue.check_memory(d, [a, sfa, b, sfb].into_iter().chain(numbers))?;
        Ok(CheckedGroupedFused::Launch(problem, groups, fused))
    }
}

impl Fp8GemmNt {
    /// Checks every rule of the call where sums are finished before they are stored.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check_fused(&self, epilogue: &EpilogueArguments) -> Result<CheckedFused> {
        let problem = match self.check_k_major(Some(epilogue))? {
            Checked::Launch(problem) => problem,
            Checked::Trivial(_) if self.d.dims().contains(&0) => return Ok(CheckedFused::Nothing),
            // What sums of nothing become may be anything.
            Checked::Trivial(_) => return Err(self.b.wrong_shape([self.b.dims[0], 1], "or more along K")),
        };
        let inputs = [&self.a, &self.sfa, &self.b, &self.sfb];
        Ok(CheckedFused::Launch(problem, epilogue.check_memory(&self.d, inputs.into_iter())?))
    }
}

impl HalfGemm {
    /// Checks every rule of the call where sums are finished before they are stored. Both operands are K-major.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check_fused(&self, epilogue: &EpilogueArguments) -> Result<CheckedFused> {
        let [a, b] = self.along_k();
        let problem = match self.check_finished(Some(epilogue))? {
            Checked::Launch(problem) => problem,
            Checked::Trivial(_) if self.d.dims().contains(&0) => return Ok(CheckedFused::Nothing),
            Checked::Trivial(_) => return Err(b.wrong_shape([b.dims[0], 1], "or more along K")),
        };
        Ok(CheckedFused::Launch(problem, epilogue.check_memory(&self.d, [&a, &b].into_iter())?))
    }
}

impl GroupedHalfGemm {
    /// Checks every rule of the call where sums are finished before they are stored. B is `[G, N, K]`, K-major.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check_fused(&self, epilogue: &EpilogueArguments) -> Result<CheckedGroupedFused> {
        let CheckedGroups::Launch(problem, groups) = self.check_finished(Some(epilogue))? else {
            return Ok(CheckedGroupedFused::Nothing);
        };
        let numbers = self.groups.as_ref().map(|groups| &groups.numbers);
        let fused = epilogue.check_memory(&self.d, [&self.a, &self.b].into_iter().chain(numbers))?;
        Ok(CheckedGroupedFused::Launch(problem, groups, fused))
    }
}

impl EpilogueArguments {
    fn fusion(&self) -> Fusion {
        if self.gated { Fusion::Gated } else { Fusion::Elementwise }
    }

    /// D is e4m3 with scales, of the 16-bit type that goes with A, or f32.
    pub(super) fn expect_type_of_d(&self, d: &Operand, a: &Operand) -> Result<()> {
        match self.scales {
            Some(_) => d.expect_dtype(&[DType::E4m3]),
            None => d.expect_dtype(&[half_beside(a), DType::F32]),
        }
    }

    /// The columns that are computed of `n` rows of B; half of them are a multiple of `unit`.
    pub(super) fn columns(&self, b: &Operand, n: i64, unit: i64) -> Result<i64> {
        if self.gated && n % (2 * unit) != 0 {
            return Err(Error::Shape {
                argument: b.name,
                expected: format!("gates and as many ups, each a multiple of {unit} rows"),
                found: format!("{n} rows"),
            });
        }
        if let Some(heads) = self.heads {
            let computed = heads.computed() as i64;
            if computed == 0 || n % computed != 0 {
                return Err(Error::Shape {
                    argument: "heads",
                    expected: format!("heads whose computed columns are {} rows of `{}` together", n, b.name),
                    found: format!("heads of {} and {} columns", heads.left, heads.right),
                });
            }
            if self.gated || self.scales.is_some() {
                return Err(Error::Shape {
                    argument: "heads",
                    expected: "none, as D is gated or quantized".to_owned(),
                    found: format!("{heads:?}"),
                });
            }
        }
        Ok(if self.gated { n / 2 } else { n })
    }

    /// The columns of D where these are computed.
    pub(super) fn columns_of_d(&self, columns: i64) -> i64 {
        self.heads.map_or(columns, |heads| {
            let count = columns / heads.computed() as i64;
            columns.saturating_add(count.saturating_mul(heads.mid.into()))
        })
    }

    /// What the dimensions of D are, for errors.
    pub(super) fn meaning_of_d(&self) -> &'static str {
        match (self.gated, self.heads) {
            (true, _) => "the rows of `a` by half of the rows of `b`",
            (false, Some(_)) => "the rows of `a` by the rows of `b` and what heads skip",
            (false, None) => "the rows of `a` by the rows of `b`",
        }
    }

    /// Checks the operands beside a product with `n` rows of B, or of each of so many groups, which computes `rows` (a
    /// list of dimensions, the last that of the columns).
    pub(super) fn check_shapes(
        &self,
        (groups, n): (Option<i64>, i64),
        rows: &[i64],
        a: &Operand,
        c: Option<&Operand>,
    ) -> Result<()> {
        if let Some(bias) = &self.bias {
            bias.expect_dtype(&[half_beside(a), DType::F32])?;
            match groups {
                Some(count) if bias.rank != 1 => {
                    bias.expect_shape(&[count, n], "one for each group and row of its `b`")?;
                }
                _ => bias.expect_list(n)?,
            }
            bias.expect_device(a)?;
        }
        let Some((scales, _)) = &self.scales else { return Ok(()) };
        let (columns, above) = rows.split_last().map_or((0, rows), |(last, above)| (*last, above));
        if columns % 16 != 0 {
            return Err(Error::Shape {
                argument: "d",
                expected: "a multiple of 16 columns where it is quantized".to_owned(),
                found: format!("{columns} columns"),
            });
        }
        scales.expect_dtype(&[DType::F32])?;
        let mut expected = [blocks(columns); 3];
        expected[..above.len()].copy_from_slice(above);
        scales.expect_every_scale(&expected[..rows.len()], "one per row of `d` and 128 columns")?;
        scales.expect_device(a)?;
        match c {
            None => Ok(()),
            Some(c) => Err(Error::Shape {
                argument: c.name,
                expected: "nothing to add where `d` is quantized".to_owned(),
                found: format!("{:?}", &c.dims[..c.rank]),
            }),
        }
    }

    /// Checks where the operands beside a product lie.
    fn check_memory<'a>(&self, d: &Operand, inputs: impl Iterator<Item = &'a Operand>) -> Result<Fused> {
        let d_memory = self.memory_of_d(d)?;
        let mut bias_group = 0;
        if let Some(bias) = &self.bias {
            let (pitch, memory) = rows_of_bias(bias)?;
            d.expect_apart(&d_memory, bias, &memory)?;
            // Rows are at most that far apart: `plain_rows` has seen to it.
            bias_group = if bias.rank == 1 { 0 } else { pitch as u32 };
        }
        let quantized = match &self.scales {
            None => None,
            Some((scales, format)) => {
                let (strides, first) = scales.slab().scale_strides()?;
                let in_itself = || Error::ScaleLayout {
                    argument: scales.name,
                    expected: "rows or columns that do not share elements, as they are written to".to_owned(),
                    found: format!("strides {:?} for {:?}", &scales.strides[..scales.rank], scales.dims()),
                };
                if first.overlaps_itself(scales.slab().dims()) {
                    return Err(in_itself());
                }
                let length = first.length();
                let (slab, memory) = scales.scale_slabs(strides, first)?;
                if scales.rank == 3 && scales.dims[0] > 1 && u64::from(slab) * 4 < length {
                    return Err(in_itself());
                }
                self.expect_scales_apart(scales, &memory, (d, &d_memory), inputs)?;
                let slab = if scales.rank == 3 { slab } else { 0 };
                Some(QuantizedRows { format: *format, strides: [strides.mn, strides.k], slab })
            }
        };
        let (fusion, activation, heads) = (self.fusion(), self.activation, self.heads);
        let bias = self.bias.map(|bias| bias.dtype);
        Ok(Fused { fusion, activation, bias, bias_group, heads, quantized })
    }

    /// The bytes of D, once its layout was checked.
    fn memory_of_d(&self, d: &Operand) -> Result<Footprint> {
        // The next product reads what is quantized.
        if self.scales.is_some() {
            let (pitch, memory) = d.slab().tma_rows()?;
            return Ok(d.tma_slabs(pitch, memory)?.1);
        }
        Ok(d.plain_slabs()?.2)
    }

    /// The scales are written to: nothing else may lie there.
    fn expect_scales_apart<'a>(
        &self,
        scales: &Operand,
        memory: &Footprint,
        (d, d_memory): (&Operand, &Footprint),
        inputs: impl Iterator<Item = &'a Operand>,
    ) -> Result<()> {
        scales.expect_apart(memory, d, d_memory)?;
        for input in inputs {
            scales.expect_apart(memory, input, &memory_of_input(input)?)?;
        }
        if let Some(bias) = &self.bias {
            scales.expect_apart(memory, bias, &rows_of_bias(bias)?.1)?;
        }
        Ok(())
    }
}

/// The 16-bit type of what goes with A: its own, or bf16.
fn half_beside(a: &Operand) -> DType {
    if a.dtype == DType::F16 { DType::F16 } else { DType::Bf16 }
}

/// From one row of a bias to the next, and its bytes.
fn rows_of_bias(bias: &Operand) -> Result<(u64, Footprint)> {
    if bias.rank == 1 { bias.list().plain_rows() } else { bias.plain_rows() }
}

/// The bytes of an operand, of scales, or of the numbers that tell where groups are.
fn memory_of_input(input: &Operand) -> Result<Footprint> {
    match input.dtype {
        DType::I32 => Ok(input.list().plain_rows()?.1),
        DType::F32 => {
            let (strides, first) = input.slab().scale_strides()?;
            Ok(input.scale_slabs(strides, first)?.1)
        }
        _ => {
            let (pitch, first) = input.slab().tma_rows()?;
            Ok(input.tma_slabs(pitch, first)?.1)
        }
    }
}
