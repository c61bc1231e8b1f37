//! How operands lie in memory: D with its addend, and what TMA reads.

use oxigemm_kernels::gemm::operand::f16::Major;

use super::problem::Accumulate;
use crate::error::{Error, Result};
use crate::tensor::desc::{Footprint, Operand};

/// Layout of D in memory, and its addend.
pub(super) struct Output {
    /// From one row to the next, in elements.
    pub pitch: u64,
    /// From one slab to the next, in elements; 0 where there is one.
    pub slab: u32,
    pub memory: Footprint,
    pub c: Accumulate,
}

/// Layout of an operand that TMA reads.
pub(super) struct TmaOperand {
    pub major: Major,
    pub pitch: u64,
    /// From one slab to the next, in elements.
    pub slab: u64,
    pub memory: Footprint,
}

impl Output {
    /// D with `c` added. Slabs of both are the same distance apart, which is whole rows where `whole_rows`. Rows of `c`
    /// may be one and the same where `one_row`.
    pub fn new(d: &Operand, c: Option<&Operand>, whole_rows: bool, one_row: bool) -> Result<Output> {
        let layout = |operand: &Operand| match whole_rows {
            false => operand.plain_slabs(),
            true => {
                let (pitch, memory) = operand.slab().plain_rows()?;
                operand.whole_rows_apart(pitch, memory)
            }
        };
        let (pitch, slab, memory) = layout(d)?;
        let Some(c) = c else { return Ok(Output { pitch, slab, memory, c: Accumulate::None }) };
        if one_row && c.is_one_row() {
            let (_, memory_of_row) = c.first_row().plain_rows()?;
            d.expect_apart(&memory, c, &memory_of_row)?;
            return Ok(Output { pitch, slab, memory, c: Accumulate::From { pitch: 0 } });
        }
        let (c_pitch, c_slab, c_memory) = layout(c)?;
        let (unit, [c_distance, distance]) = match whole_rows {
            true => ("rows", [u64::from(c_slab) / c_pitch, u64::from(slab) / pitch]),
            false => ("elements", [c_slab.into(), slab.into()]),
        };
        if c_distance != distance {
            return Err(Error::Stride {
                argument: c.name,
                expected: format!("groups {distance} {unit} apart, as those of `d`"),
                found: format!("groups {c_distance} {unit} apart"),
            });
        }
        if c.address == d.address && c_pitch == pitch {
            return Ok(Output { pitch, slab, memory, c: Accumulate::InPlace });
        }
        d.expect_apart(&memory, c, &c_memory)?;
        Ok(Output { pitch, slab, memory, c: Accumulate::From { pitch: c_pitch } })
    }
}

impl TmaOperand {
    /// An operand whose matrices begin with K or not, and may be contiguous along either dimension or only along K.
    pub fn new(operand: &Operand, k_first: bool, either_major: bool) -> Result<TmaOperand> {
        let matrix = if k_first { operand.slab().transposed() } else { operand.slab() };
        let (major, pitch, memory) = match (either_major, k_first) {
            (false, _) => matrix.tma_rows().map(|(pitch, memory)| (Major::K, pitch, memory))?,
            (true, false) => matrix.tma_either_major(Major::K)?,
            (true, true) => matrix.tma_either_major(Major::MN)?,
        };
        let (slab, memory) = operand.tma_slabs(pitch, memory)?;
        Ok(TmaOperand { major, pitch, slab, memory })
    }
}
