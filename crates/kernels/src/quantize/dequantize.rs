//! Dequantization, `x = code * scale`, rounded once: for scales of any granularity and layout.

use oxigemm_ptx::{F32, Kernel, U32};

use super::block_128x128::{ACROSS, ROWS, SIDE, vec_addresses};
use super::params::{Args, Launch, Params, by_access};
use super::scale::{ScaleLayout, TensorScale};
use super::vec8::{Access, Code, Input, Mask, VEC8, load_codes};
use crate::common::fast_divmod::FastDivmod;

/// Threads of a CTA.
pub const THREADS: u32 = 256;
/// `Vec8`s that a thread has in flight.
const VECS: u32 = 4;

/// Scale granularity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scales {
    /// The elements of a `Vec8` share a scale.
    PerBlock,
    /// Every column has a scale.
    PerChannel,
    /// NVFP4: e4m3 block scales, and a per-tensor scale.
    TwoLevels,
}

/// Configuration of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Input type.
    pub code: Code,
    /// Output type.
    pub output: Input,
    /// Scale granularity.
    pub scales: Scales,
}

impl Config {
    pub(super) fn name(&self) -> String {
        let scales = match self.scales {
            Scales::PerBlock => "",
            Scales::PerChannel => "_per_channel",
            Scales::TwoLevels => "_1x16",
        };
        format!("dequantize{scales}_{}_{}", self.code.name(), self.output.name())
    }

    /// Launch shape, and its arguments.
    pub fn launch(&self, args: &Args) -> (Launch, Args) {
        if self.scales == Scales::PerChannel {
            let [down, across] = args.dims.map(|x| x.div_ceil(SIDE));
            let launch = Launch { grid: [down * across, 1], threads: THREADS, shared_bytes: 0 };
            return (launch, Args { items_per_row: FastDivmod::new(across), ..*args });
        }
        let across = args.dims[1].div_ceil(VEC8);
        let vecs = u64::from(args.dims[0]) * u64::from(across);
        let ctas = vecs.div_ceil(u64::from(THREADS * VECS)) as u32;
        let launch = Launch { grid: [ctas, 1], threads: THREADS, shared_bytes: 0 };
        (launch, Args { items_per_row: FastDivmod::new(across), ..*args })
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        by_access(k, p, |access| match self.scales {
            Scales::PerChannel => self.tile(k, p, access),
            Scales::PerBlock | Scales::TwoLevels => self.vecs(k, p, access),
        });
    }

    /// Per-channel scales: a 128x128 tile, so that a thread loads the scales of its columns once.
    fn tile<'k>(&self, k: &'k Kernel, p: &Params<'k>, access: Access) {
        let [tile_row, tile_column] = p.divmod(k.block_index(0));
        let thread = k.thread_index();
        let column = tile_column * SIDE + thread % ACROSS * VEC8;
        let first = tile_row * SIDE + thread / ACROSS;
        let codes = vec_addresses(p.codes_at(first, column, self.code), p.codes_pitch.widening_mul(ROWS));
        let loaded: Vec<(Mask, Vec<U32>)> = codes
            .enumerate()
            .map(|(i, at)| {
                let exists = (first + i as u32 * ROWS).lt(p.rows);
                let mask = Mask::of(access, exists, column, p.columns);
                (mask, load_codes(self.code, at, &mask, p.evict_first))
            })
            .collect();
        let scales = self.scales(k, p, &ScaleLayout::new(p), None, [tile_row * SIDE, column]);
        let bytes = self.output.bytes();
        let x = vec_addresses(p.x_at(first, column, bytes), p.x_pitch.widening_mul(ROWS * bytes));
        for ((mask, codes), at) in loaded.iter().zip(x) {
            let values = self.code.decode(k, codes);
            let values: Vec<F32> = values.iter().zip(&scales).map(|(value, scale)| *value * *scale).collect();
            self.output.store(k, &values, at, mask, p.evict_last);
        }
    }

    fn vecs<'k>(&self, k: &'k Kernel, p: &Params<'k>, access: Access) {
        let layout = ScaleLayout::new(p);
        let tensor = (self.scales == Scales::TwoLevels).then(|| TensorScale::load(p).scale);
        let first = k.block_index(0) * (THREADS * VECS) + k.thread_index();
        let loaded: Vec<_> = (0..VECS)
            .map(|i| {
                let [row, vec] = p.divmod(first + i * THREADS);
                let column = vec * VEC8;
                let mask = Mask::of(access, row.lt(p.rows), column, p.columns);
                let codes = load_codes(self.code, p.codes_at(row, column, self.code), &mask, p.evict_first);
                (row, column, mask, codes, self.scales(k, p, &layout, tensor, [row, column]))
            })
            .collect();
        for (row, column, mask, codes, scales) in loaded {
            let values = self.code.decode(k, &codes);
            let values: Vec<F32> = values.iter().zip(&scales).map(|(value, scale)| *value * *scale).collect();
            self.output.store(k, &values, p.x_at(row, column, self.output.bytes()), &mask, p.evict_last);
        }
    }

    /// Scales of the eight columns of a `Vec8`.
    #[track_caller]
    fn scales<'k>(
        &self,
        k: &'k Kernel,
        p: &Params<'k>,
        layout: &ScaleLayout<'k>,
        tensor: Option<F32<'k>>,
        [row, column]: [U32<'k>; 2],
    ) -> Vec<F32<'k>> {
        let [row_shift, column_shift] = p.shifts();
        let exists = row.lt(p.rows);
        let first = p.scales.at(layout.offset(row >> row_shift, column >> column_shift));
        let wanted = exists & column.lt(p.columns);
        let shared = match (self.scales, tensor) {
            // Never UE8M0, and with a constant stride.
            (Scales::PerChannel, _) => {
                let [_, _, one] = p.scale_strides();
                let inside = |i: u32| exists & (column + i).lt(p.columns);
                return (0..VEC8)
                    .map(|i| first.at(one.widening_mul(i)).load_readonly_if(inside(i), 0f32))
                    .collect();
            }
            (_, None) => layout.load(first, wanted),
            (_, Some(tensor)) => layout.load_e4m3(k, first, wanted) * tensor,
        };
        vec![shared; VEC8 as usize]
    }
}
