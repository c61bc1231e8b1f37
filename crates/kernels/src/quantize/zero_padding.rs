//! Zero padding: rows that belong to no group become zero.
//!
//! A warp has a few rows: it reads their groups all at once, and clears the rows without one. The rows of a warp are
//! far apart: padding rows are neighbours, and so all SMs clear some.

use oxigemm_ptx::{Kernel, U32};

use super::params::{Args, Launch, Params, by_access};
use super::vec8::Access;
use crate::common::WARP;

pub(super) const NAME: &str = "zero_padding_rows";
/// Threads of a CTA.
pub const THREADS: u32 = 256;
/// Rows of a warp.
const ROWS: u32 = 4;
const CTA_ROWS: u32 = ROWS * (THREADS / WARP);
/// Bytes of a vector access, and of the smallest element.
const VECTOR_BYTES: u32 = 16;
const ELEMENT: u32 = 2;

/// Launch shape, and its arguments: `aux` are the groups of the rows, of which `source_rows` exist, and `codes` the
/// rows, whose columns are bytes.
pub fn launch(args: &Args) -> (Launch, Args) {
    (Launch { grid: [args.dims[0].div_ceil(CTA_ROWS), 1], threads: THREADS, shared_bytes: 0 }, *args)
}

pub(super) fn write<'k>(k: &'k Kernel, p: &Params<'k>) {
    let first = k.block_index(0) * (THREADS / WARP) + (k.thread_index() >> 5);
    let warps = p.rows.div_ceil(CTA_ROWS) * (THREADS / WARP);
    let rows: Vec<(U32, U32)> = (0..ROWS)
        .map(|i| {
            let row = first + warps * i;
            // Rows behind the last count as rows of a group.
            (row, p.aux.at(row.widening_mul(4)).load_readonly_if(row.lt(p.rows), 0u32))
        })
        .collect();
    by_access(k, p, |access| {
        for &(row, group) in &rows {
            // As an unsigned number, a negative group is too large.
            k.if_(group.ge(p.source_rows), || zero(k, p, row, access));
        }
    });
}

/// Clears a row.
fn zero<'k>(k: &'k Kernel, p: &Params<'k>, row: U32<'k>, access: Access) {
    let unit = match access {
        Access::Vectors => VECTOR_BYTES,
        Access::Elements => ELEMENT,
    };
    let start = p.codes.at(row.widening_mul(p.codes_pitch));
    k.for_(k.lane() * unit, p.columns, WARP * unit, |byte| match access {
        Access::Vectors => start.at(byte.to_u64()).store_vec([k.constant(0); 4]),
        Access::Elements => start.at(byte.to_u64()).store(k.constant(0u16)),
    });
    k.sync_warp();
}
