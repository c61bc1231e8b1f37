//! The rules of a fused epilogue: the shape of D, bias, skipped columns, and the scales of a quantized D.

use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::epilogue::{Activation, Gate};

use super::desc::EpilogueDesc;
use super::problem::{Fused, QuantizedRows};
use crate::error::{Error, Result};
use crate::tensor::desc::{Footprint, Operand};
use crate::tensor::dtype::DType;

impl EpilogueDesc {
    fn fusion(&self) -> Fusion {
        if self.gated { Fusion::Gated } else { Fusion::Elementwise }
    }

    /// D is quantized with scales, of the 16-bit type that goes with A, or f32.
    pub(super) fn expect_type_of_d(&self, d: &Operand, a: &Operand) -> Result<()> {
        match self.scales {
            Some((_, format)) => d.expect_dtype(&[format.dtype()]),
            None if a.dtype == DType::F32 => d.expect_dtype(&[DType::F32]),
            None => d.expect_dtype(&[half_beside(a), DType::F32]),
        }
    }

    /// Parameters of a gate are for gates, are numbers, and a slope is that of SiLU.
    fn check_gate(&self) -> Result<()> {
        let Gate { slope, limit, up_offset } = self.gate;
        let wrong = |expected: &str| Error::Value {
            argument: "gate",
            expected: expected.to_owned(),
            found: format!("{:?}", self.gate),
        };
        if self.gate == Gate::default() {
            return Ok(());
        }
        if !self.gated {
            return Err(wrong("the default where nothing is gated"));
        }
        if !slope.is_finite() || limit.is_nan() || limit <= 0.0 || !up_offset.is_finite() {
            return Err(wrong("a finite slope and offset, and a limit above 0"));
        }
        if slope != 1.0 && self.activation != Activation::Silu {
            return Err(wrong("a slope of 1, as only SiLU has another"));
        }
        Ok(())
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

    /// The columns of D, of FP4 bytes of two, where these are computed.
    pub(super) fn columns_of_d(&self, columns: i64) -> i64 {
        let columns = columns / self.scales.map_or(1, |(_, format)| format.codes_per_byte());
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

    /// Checks the bias and the scales of D, for `n` rows of B, or of each of so many groups. `rows` are the dimensions
    /// that are computed, columns last.
    pub(super) fn check_shapes(
        &self,
        (groups, n): (Option<i64>, i64),
        rows: &[i64],
        a: &Operand,
        c: Option<&Operand>,
    ) -> Result<()> {
        self.check_gate()?;
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
        let Some((scales, format)) = &self.scales else { return Ok(()) };
        let (columns, above) = rows.split_last().map_or((0, rows), |(last, above)| (*last, above));
        format.check_shapes(scales, columns, above)?;
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

    /// Checks where D, the bias and the scales of D lie, beside what is read.
    pub(super) fn check_memory<'a>(
        &self,
        d: &Operand,
        d_memory: &Footprint,
        inputs: impl Iterator<Item = (&'a Operand, &'a Footprint)>,
    ) -> Result<Fused> {
        // The next GEMM reads what is quantized.
        if self.scales.is_some() {
            let (pitch, memory) = d.slab().tma_rows()?;
            d.tma_slabs(pitch, memory)?;
        }
        let mut bias_group = 0;
        if let Some(bias) = &self.bias {
            let (pitch, memory) = rows_of_bias(bias)?;
            d.expect_apart(d_memory, bias, &memory)?;
            // `plain_rows` has bounded the pitch.
            bias_group = if bias.rank == 1 { 0 } else { pitch as u32 };
        }
        Ok(Fused {
            fusion: self.fusion(),
            activation: self.activation,
            bias: self.bias.map(|bias| bias.dtype),
            bias_group,
            heads: self.heads,
            quantized: self.check_scales((d, d_memory), inputs)?,
        })
    }

    /// Checks where the scales of a quantized D lie: they are written, so nothing else may lie there.
    fn check_scales<'a>(
        &self,
        (d, d_memory): (&Operand, &Footprint),
        inputs: impl Iterator<Item = (&'a Operand, &'a Footprint)>,
    ) -> Result<Option<QuantizedRows>> {
        let Some((scales, format)) = &self.scales else { return Ok(None) };
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
        scales.expect_apart(&memory, d, d_memory)?;
        for (input, input_memory) in inputs {
            scales.expect_apart(&memory, input, input_memory)?;
        }
        if let Some(bias) = &self.bias {
            scales.expect_apart(&memory, bias, &rows_of_bias(bias)?.1)?;
        }
        let slab = if scales.rank == 3 { slab } else { 0 };
        Ok(Some(format.rows([strides.mn, strides.k], slab)))
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
