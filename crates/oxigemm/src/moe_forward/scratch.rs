//! Scratch memory of a mixture: where its lists and rows lie.

use crate::check::Operand;
use crate::error::{Error, Result};
use crate::moe::{PermutedRows, moe_rows};
use crate::moe_experts::{ALIGNMENT, BLOCK, Dims, SortedRows};
use crate::tensor::{DType, Tensor};

/// Where parts begin, from the start on.
const PART: usize = 256;
/// Where the memory may begin.
const ALIGNED: u64 = 16;

/// Where everything lies in the scratch memory.
pub(super) struct Plan {
    dims: Dims,
    is_half: bool,
    choices: [usize; 2],
    /// Rows of all experts, padding included.
    m: usize,
    /// The start of each part: lists, rows that go into the GEMMs with their scales, and rows that come out.
    starts: [usize; Plan::PARTS],
    /// All of it.
    pub bytes: usize,
}

impl Plan {
    const PARTS: usize = 9;

    /// For tokens with choices each.
    pub fn new(dims: Dims, is_half: bool, choices: [usize; 2]) -> Plan {
        let [tokens, topk] = choices;
        Plan::with_rows(dims, is_half, choices, moe_rows(tokens, topk, dims.experts, ALIGNMENT))
    }

    /// With room for so many rows.
    pub fn with_rows(dims: Dims, is_half: bool, choices: [usize; 2], m: usize) -> Plan {
        let (Dims { experts, inner, outer }, [tokens, topk]) = (dims, choices);
        let (size, scales) = if is_half { (2, 0) } else { (1, 4) };
        // What does not fit into memory does not fit into a number either.
        let parts: [[usize; 3]; Plan::PARTS] = [
            [4, m, 1],
            [4, m, 1],
            [4, experts, 1],
            [4, tokens, topk],
            [size, m, outer],
            [scales, m, outer.div_ceil(BLOCK)],
            [size, m, inner],
            [scales, m, inner.div_ceil(BLOCK)],
            [2, m, outer],
        ];
        let mut bytes = 0usize;
        let starts = parts.map(|[size, rows, columns]| {
            let part = size.saturating_mul(rows).saturating_mul(columns);
            let start = bytes;
            bytes = bytes.saturating_add(part.saturating_add(PART - 1) / PART * PART);
            start
        });
        Plan { dims, is_half, choices, m, starts, bytes }
    }

    /// The parts of scratch memory that was checked. Scales of tokens are of this type.
    pub fn rows(&self, scratch: &Tensor, scales: DType) -> Result<Rows> {
        let [tokens, groups, ends, places, a, sfa, h, sfh, out] = self.starts;
        let (Dims { experts, inner, outer }, m) = (self.dims, self.m);
        let list = |start, length| scratch.part(start, DType::I32, &[length]);
        let half = |start, columns| scratch.part(start, DType::Bf16, &[m, columns]);
        Ok(Rows {
            tokens: list(tokens, m)?,
            groups: list(groups, m)?,
            ends: list(ends, experts)?,
            places: scratch.part(places, DType::I32, &self.choices)?,
            sorted: match self.is_half {
                true => SortedRows::Half { x: half(a, outer)?, hidden: half(h, inner)? },
                false => {
                    let mut starts = [a, sfa, h, sfh].into_iter();
                    SortedRows::fp8(m, [inner, outer], scales, |dtype, dims| {
                        scratch.part(starts.next().expect("four parts"), dtype, &dims)
                    })?
                }
            },
            out: half(out, outer)?,
        })
    }
}

/// Memory for so many bytes, beside other operands, as the kernels take it: TMA and vectors read its parts.
pub(super) fn expect_scratch(scratch: &Tensor, bytes: usize, by: &str, beside: &Operand) -> Result<()> {
    let found = scratch.describe("scratch");
    found.expect_dtype(&[DType::U8])?;
    found.expect_device(beside)?;
    if scratch.len() < bytes {
        return Err(Error::Shape {
            argument: "scratch",
            expected: format!("{bytes} bytes or more, by `{by}`"),
            found: format!("{} bytes", scratch.len()),
        });
    }
    found.expect_contiguous()?;
    found.expect_aligned(ALIGNED)
}

/// Rows of all experts.
pub(super) struct Rows {
    pub tokens: Tensor,
    pub groups: Tensor,
    pub ends: Tensor,
    pub places: Tensor,
    /// What goes into the GEMMs.
    pub sorted: SortedRows,
    /// What comes out.
    pub out: Tensor,
}

impl Rows {
    /// The lists that a permutation writes.
    pub fn lists(&mut self) -> PermutedRows<'_> {
        PermutedRows {
            tokens: &mut self.tokens,
            groups: &mut self.groups,
            ends: &mut self.ends,
            places: &mut self.places,
        }
    }
}
