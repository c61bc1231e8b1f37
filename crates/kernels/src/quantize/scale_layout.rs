//! Scales from any strides to the layout that a product wants: row-major, MN-major, packed exponents, or blocks of 128
//! by 4.
//!
//! A warp has 32 rows by 8 columns, a lane a row: whatever the layouts are, what a lane reads or what a warp stores
//! together is neighbours in memory.

use oxigemm_ptx::{F32, Kernel, Ptr};

use super::params::{Args, Divisor, Flags, Launch, Params, bits};
use super::scale::{ScalePlaces, exponent};
use crate::common::WARP;

pub(super) const NAME: &str = "transform_scales";
/// Threads of a block.
pub const THREADS: u32 = 128;
/// Columns of a warp.
const COLUMNS: u32 = 8;

/// The launch for some groups of scales, and the arguments that go with it.
pub fn launch(args: &Args, groups: u32) -> (Launch, Args) {
    let [down, across] = [args.scale_dims[0].div_ceil(WARP), args.scale_dims[1].div_ceil(COLUMNS)];
    let blocks = (u64::from(down) * u64::from(across)).div_ceil(u64::from(THREADS / WARP)) as u32;
    let launch = Launch { grid: [blocks, groups], threads: THREADS, shared_bytes: 0 };
    (launch, Args { across: Divisor::new(across), ..*args })
}

pub(super) fn write<'k>(k: &'k Kernel, p: &Params<'k>) {
    let warp = k.block_index(0) * (THREADS / WARP) + (k.thread_index() >> 5);
    let [tile_row, tile_column] = p.split(warp);
    let (row, first) = (tile_row * WARP + k.lane(), tile_column * COLUMNS);
    let group = k.block_index(1);
    let [of_group, of_row, of_column] = p.from_strides;
    let [scale_rows, scale_columns] = p.scale_dims;
    let from = p.from.at((group.widening_mul(of_group) + row.widening_mul(of_row)) * 4u64);
    let loaded: Vec<F32> = (0..COLUMNS)
        .map(|i| {
            let column = first + i;
            let inside = row.lt(p.rows) & column.lt(p.columns);
            from.at(column.widening_mul(of_column) * 4u64).load_readonly_if(inside, 0f32)
        })
        .collect();
    let places = ScalePlaces::new(p);
    let to = Ptr::new(p.scales.address() + p.group_stride * group.to_u64());
    for (i, scale) in loaded.into_iter().enumerate() {
        let column = first + i as u32;
        let real = row.lt(p.rows) & column.lt(p.columns);
        // Callers may have any number for a scale, also NaN with a sign.
        let magnitude: F32 = (bits(scale) & 0x7fff_ffff).bitcast();
        let rounded: F32 = (real.select(exponent(magnitude), 0u32) << 23).bitcast();
        let scale = p.has(Flags::POWER_OF_TWO).select(rounded, scale);
        let wanted = row.lt(scale_rows) & column.lt(scale_columns);
        places.store(k, to.at(places.offset(row, column)), scale, wanted);
    }
}
