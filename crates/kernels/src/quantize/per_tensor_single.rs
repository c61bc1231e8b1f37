//! Per-tensor scale with a grid barrier: one cooperative kernel for a matrix that fits the registers of one grid.
//!
//! Every thread loads its part of the matrix once. The CTAs exchange their amax through a
//! [grid barrier](crate::common::grid_barrier), and convert what they still hold. Larger matrices take
//! [two kernels](super::per_tensor).

use oxigemm_ptx::Kernel;

use super::params::{Args, Flags, Launch, Params};
use super::per_tensor::{VecLoader, split_by_rows};
use super::scale::Scale;
use super::vec8::{Access, Code, Input, VEC8, store_codes};
use crate::common::WARP;
use crate::common::grid_barrier::{GridBarrier, MAX_CTAS};

/// Maximum number of threads of a CTA.
pub const THREADS: u32 = 1024;
/// `Vec8`s that a thread holds.
const VECS: u32 = 4;

/// Most elements of a matrix: those that the registers of a grid can hold.
pub const MAX_ELEMENTS: usize = (MAX_CTAS * THREADS * VECS * VEC8) as usize;

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
        format!("quantize_per_tensor_single_{}_{}", self.input.name(), self.code.name())
    }

    /// Launch shape on `sms` SMs, and its arguments without [`Args::aux`], the address of the barrier's
    /// [workspace](crate::common::grid_barrier::WORKSPACE_BYTES). `None` for a matrix that one grid cannot hold, or
    /// that does not allow vectors.
    pub fn launch(&self, args: &Args, sms: u32) -> Option<(Launch, Args)> {
        let (vecs, args) = split_by_rows(args);
        let most = sms.min(MAX_CTAS);
        let held = u64::from(most * THREADS * VECS);
        if args.flags & Flags::VECTORS == 0 || vecs > held {
            return None;
        }
        let threads = (vecs.div_ceil(u64::from(most * VECS)) as u32).next_multiple_of(WARP);
        let args = Args { aux_strides: [threads, 0, 0], ..args };
        Some((Launch { grid: [most, 1], threads, shared_bytes: GridBarrier::SHARED_BYTES }, args))
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        let threads = p.aux_strides()[0];
        let loader = VecLoader { input: self.input, access: Access::Vectors, policy: Some(p.evict_first) };
        let first = k.block_index(0) * threads * VECS + k.thread_index();
        let loaded: Vec<_> = (0..VECS).map(|i| loader.load(k, p, first + threads * i)).collect();
        let barrier = GridBarrier { k, workspace: p.aux, threads };
        let phase = barrier.begin();
        let words = loaded.iter().map(|(_, _, _, vec)| vec.amax_word());
        let word = words.reduce(|a, b| self.input.larger(a, b)).expect("a thread has some");
        let amax = barrier.all_reduce_max(phase, self.input.widen_larger(k, word));
        let scale = Scale::of(p, self.code, amax);
        for (row, column, mask, vec) in &loaded {
            let codes = scale.encode(k, self.code, &vec.values());
            store_codes(k, &codes, p.codes_at(*row, *column, self.code), mask, p.evict_last);
        }
        k.guard((k.block_index(0) | k.thread_index()).eq(0), || p.scales.store(scale.scale));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch([rows, columns]: [u32; 2], flags: u32, sms: u32) -> Option<Launch> {
        let args = Args { dims: [rows, columns], flags, ..Args::default() };
        Config { input: Input::Bf16, code: Code::E4m3 }.launch(&args, sms).map(|(launch, _)| launch)
    }

    #[test]
    fn a_resident_grid_holds_a_small_matrix() {
        let shape = |dims, sms| launch(dims, Flags::VECTORS, sms).map(|it| (it.grid[0], it.threads));
        assert_eq!(shape([128, 7168], 132), Some((128, 224)));
        assert_eq!(shape([1, 8], 132), Some((128, 32)), "always as many CTAs");
        assert_eq!(shape([585, 7168], 132), Some((128, 1024)));
        assert_eq!(shape([586, 7168], 132), None, "it is too large");
        assert_eq!(shape([128, 7168], 8), None, "too few SMs");
        assert!(launch([128, 7168], 0, 132).is_none(), "not as vectors");
    }

    #[test]
    fn every_vec8_has_a_thread() {
        for rows in 1..600 {
            for columns in [8, 1000, 1024, 7168] {
                let vecs = rows * u32::div_ceil(columns, VEC8);
                let Some(Launch { grid: [ctas, _], threads, .. }) =
                    launch([rows, columns], Flags::VECTORS, 132)
                else {
                    continue;
                };
                assert!(ctas * threads * VECS >= vecs && threads <= THREADS && ctas == MAX_CTAS);
            }
        }
    }
}
