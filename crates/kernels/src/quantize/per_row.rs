//! Per-row (per-token) scales: one CTA for each row.
//!
//! The beginning of a row stays in registers; the rest of a longer row is read again, from the cache.

use oxigemm_ptx::{Kernel, U32};

use super::block_128x128::{self, cta_max};
use super::params::{Args, Launch, Params, by_access};
use super::scale::{Scale, ScaleLayout};
use super::vec8::{Access, Code, Input, Mask, VEC8, Vec8, store_codes};

/// Threads of a CTA.
pub const THREADS: u32 = block_128x128::THREADS;
/// `Vec8`s that a thread holds.
const VECS: u32 = 4;
/// Columns of one `Vec8` of each thread.
const STEP_COLUMNS: u32 = THREADS * VEC8;

/// Configuration of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Input type.
    pub input: Input,
    /// Output type.
    pub code: Code,
}

impl Config {
    pub(super) fn name(&self) -> String {
        format!("quantize_per_row_{}_{}", self.input.name(), self.code.name())
    }

    /// Launch shape, and its arguments.
    pub fn launch(&self, args: &Args) -> (Launch, Args) {
        (Launch { grid: [args.dims[0], 1], threads: THREADS, shared_bytes: 4 * THREADS / 32 }, *args)
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        by_access(k, p, |access| self.row(k, p, access));
    }

    fn row<'k>(&self, k: &'k Kernel, p: &Params<'k>, access: Access) {
        let (row, first) = (k.block_index(0), k.thread_index() * VEC8);
        let load = |column: U32<'k>| {
            let mask = Mask::of(access, k.constant(true), column, p.columns);
            (
                column,
                mask,
                Vec8::load(
                    k,
                    self.input,
                    p.x_at(row, column, self.input.bytes()),
                    &mask,
                    Some(p.evict_first),
                ),
            )
        };
        let held: Vec<_> = (0..VECS).map(|i| load(first + i * STEP_COLUMNS)).collect();
        let of_held = held.iter().map(|(_, _, vec)| vec.amax_word());
        let of_held = of_held.reduce(|a, b| self.input.larger(a, b)).expect("a thread holds some");
        let found = k.var_from(self.input.widen_larger(k, of_held));
        let rest = first + VECS * STEP_COLUMNS;
        k.for_(rest, p.columns, STEP_COLUMNS, |column| {
            let (_, _, vec) = load(column);
            found.set(found.live().max(vec.amax()));
        });
        let scale = Scale::of(p, self.code, cta_max(k, found.get()));
        let store = |(column, mask, vec): &(U32<'k>, Mask<'k>, Vec8<'k>)| {
            let codes = scale.encode(k, self.code, &vec.values());
            store_codes(k, &codes, p.codes_at(row, *column, self.code), mask, p.evict_last);
        };
        held.iter().for_each(store);
        k.for_(rest, p.columns, STEP_COLUMNS, |column| store(&load(column)));
        let layout = ScaleLayout::new(p);
        let at = p.scales.at(layout.offset(row, k.constant(0)));
        layout.store(k, at, scale.scale, k.thread_index().eq(0));
    }
}
