//! Scale layout transform: scales of any strides to the layout of a GEMM: row-major, MN-major, packed UE8M0, or 128x4
//! blocks.
//!
//! A warp has 32 rows by 8 columns, a lane a row. Whatever the layouts are, the loads of a lane or the stores of a warp
//! are neighbours in memory.

use oxigemm_ptx::{F32, Kernel, Ptr};

use super::params::{Args, Flags, Launch, Params};
use super::scale::{ScaleLayout, exponent};
use super::vec8::bits;
use crate::common::WARP;
use crate::common::fast_divmod::FastDivmod;

pub(super) const NAME: &str = "transform_scales";
/// Threads of a CTA.
pub const THREADS: u32 = 128;
/// Columns of a warp.
const COLUMNS: u32 = 8;

/// Launch shape for some groups of scales, and its arguments.
pub fn launch(args: &Args, groups: u32) -> (Launch, Args) {
    let [down, across] = [args.scale_dims[0].div_ceil(WARP), args.scale_dims[1].div_ceil(COLUMNS)];
    let ctas = (u64::from(down) * u64::from(across)).div_ceil(u64::from(THREADS / WARP)) as u32;
    let launch = Launch { grid: [ctas, groups], threads: THREADS, shared_bytes: 0 };
    (launch, Args { items_per_row: FastDivmod::new(across), ..*args })
}

pub(super) fn write<'k>(k: &'k Kernel, p: &Params<'k>) {
    let warp = k.block_index(0) * (THREADS / WARP) + (k.thread_index() >> 5);
    let [tile_row, tile_column] = p.divmod(warp);
    let (row, first) = (tile_row * WARP + k.lane(), tile_column * COLUMNS);
    let group = k.block_index(1);
    let [of_group, of_row, of_column] = p.aux_strides();
    let [scale_rows, scale_columns] = p.scale_dims();
    let from = p.aux.at((group.widening_mul(of_group) + row.widening_mul(of_row)) * 4u64);
    let loaded: Vec<F32> = (0..COLUMNS)
        .map(|i| {
            let column = first + i;
            let inside = row.lt(p.rows) & column.lt(p.columns);
            from.at(column.widening_mul(of_column) * 4u64).load_readonly_if(inside, 0f32)
        })
        .collect();
    let layout = ScaleLayout::new(p);
    let to = Ptr::new(p.scales.address() + p.group_stride * group.to_u64());
    for (i, scale) in loaded.into_iter().enumerate() {
        let column = first + i as u32;
        let real = row.lt(p.rows) & column.lt(p.columns);
        // A caller's scale may be any number, also a negative NaN.
        let amax: F32 = (bits(scale) & 0x7fff_ffff).bitcast();
        let rounded: F32 = (real.select(exponent(amax), 0u32) << 23).bitcast();
        let scale = p.has(Flags::POWER_OF_TWO).select(rounded, scale);
        let wanted = row.lt(scale_rows) & column.lt(scale_columns);
        layout.store(k, to.at(layout.offset(row, column)), scale, wanted);
    }
}
