//! Rows that belong to no group become zero.
//!
//! A warp has a few rows: it reads whose they are, all at once, and writes those that are nobody's. They lie far apart, because
//! such rows are neighbours: all multiprocessors share them.

use oxigemm_ptx::{Kernel, U32};

use super::by_access;
use super::params::{Args, Launch, Params};
use super::vec8::Access;
use crate::common::WARP;

pub(super) const NAME: &str = "zero_padding_rows";
/// Threads of a block.
pub const THREADS: u32 = 256;
/// Rows of a warp.
const ROWS: u32 = 4;
const BLOCK_ROWS: u32 = ROWS * (THREADS / WARP);
/// Bytes that a vector has, and those of the smallest element.
const VECTOR: u32 = 16;
const ELEMENT: u32 = 2;

/// The launch, and the arguments that go with it: `from` are the groups of the rows, of which `source_rows` exist, and `codes` the
/// rows, whose columns are bytes.
pub fn launch(args: &Args) -> (Launch, Args) {
    (Launch { grid: [args.dims[0].div_ceil(BLOCK_ROWS), 1], threads: THREADS, shared_bytes: 0 }, *args)
}

pub(super) fn write<'k>(k: &'k Kernel, p: &Params<'k>) {
    let first = k.block_index(0) * (THREADS / WARP) + (k.thread_index() >> 5);
    let warps = p.rows.div_ceil(BLOCK_ROWS) * (THREADS / WARP);
    let rows: Vec<(U32, U32)> = (0..ROWS)
        .map(|i| {
            let row = first + warps * i;
            // Behind the last row all are of a group.
            (row, p.from.at(row.widening_mul(4)).load_readonly_if(row.lt(p.rows), 0u32))
        })
        .collect();
    by_access(k, p, |access| {
        for &(row, group) in &rows {
            // A negative number is a large one.
            k.if_(group.ge(p.source_rows), || zero(k, p, row, access));
        }
    });
}

/// Writes a row.
fn zero<'k>(k: &'k Kernel, p: &Params<'k>, row: U32<'k>, access: Access) {
    let unit = match access {
        Access::Vectors => VECTOR,
        Access::Elements => ELEMENT,
    };
    let start = p.codes.at(row.widening_mul(p.codes_pitch));
    k.for_(k.lane() * unit, p.columns, WARP * unit, |byte| match access {
        Access::Vectors => start.at(byte.to_u64()).store_vec([k.constant(0); 4]),
        Access::Elements => start.at(byte.to_u64()).store(k.constant(0u16)),
    });
    k.sync_warp();
}
