//! One scale for the whole matrix, in two kernels; small ones have [one](super::per_tensor_single).
//!
//! The first finds it. A scale grows with the magnitude, so the scale of all is the largest of the blocks' own scales: an
//! atomic maximum in memory, which starts as 0, and whose order does not matter. The second converts.

use oxigemm_ptx::memory::AtomicOp;
use oxigemm_ptx::tma::CachePolicy;
use oxigemm_ptx::{Kernel, Scope, U32};

use super::block_128x128::{self, block_max};
use super::params::{Args, Launch, Params, by_access};
use super::scale::{Scale, ScaleLayout, TensorScale};
use super::vec8::{Access, Code, Input, Mask, VEC8, Vec8, bits, store_codes};
use crate::common::fast_divmod::FastDivmod;

/// Threads of a block.
pub const THREADS: u32 = block_128x128::THREADS;
/// Chunks that a thread has in flight.
const VECS: u32 = 4;
/// Bytes at the beginning of the matrix that the kernel that converts should find in the cache.
const KEPT: u32 = 20 << 20;

/// The kernel that finds the scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaleConfig {
    /// What is quantized.
    pub input: Input,
    /// What it becomes; of e2m1, whose blocks have scales too, the scale is that of these.
    pub code: Code,
}

/// The kernel that converts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodesConfig {
    /// What is quantized.
    pub input: Input,
    /// What it becomes.
    pub code: Code,
}

/// Chunks of a matrix, row after row.
pub(super) struct VecLoader<'k> {
    pub input: Input,
    pub access: Access,
    pub policy: Option<CachePolicy<'k>>,
}

impl<'k> VecLoader<'k> {
    /// The chunk of a number: its row, its column, what there is of it, and its numbers.
    #[track_caller]
    pub fn load(
        &self,
        k: &'k Kernel,
        p: &Params<'k>,
        index: U32<'k>,
    ) -> (U32<'k>, U32<'k>, Mask<'k>, Vec8<'k>) {
        let [row, vec] = p.divmod(index);
        let column = vec * VEC8;
        let mask = Mask::of(self.access, row.lt(p.rows), column, p.columns);
        let vec = Vec8::load(k, self.input, p.x_at(row, column, self.input.bytes()), &mask, self.policy);
        (row, column, mask, vec)
    }
}

/// How many chunks there are, and the arguments by which they are found. The number fits in 31 bits.
pub(super) fn split_by_rows(args: &Args) -> (u64, Args) {
    let across = args.dims[1].div_ceil(VEC8);
    let vecs = u64::from(args.dims[0]) * u64::from(across);
    (vecs, Args { items_per_row: FastDivmod::new(across), ..*args })
}

/// Blocks for all chunks, and the arguments by which these are found.
fn blocks(args: &Args) -> (u32, Args) {
    let (vecs, args) = split_by_rows(args);
    (vecs.div_ceil(u64::from(THREADS * VECS)) as u32, args)
}

impl ScaleConfig {
    pub(super) fn name(&self) -> String {
        format!("quantize_whole_scale_{}_{}", self.input.name(), self.code.name())
    }

    /// Blocks that a multiprocessor has at a time, which are all that there are.
    pub(super) const fn resident(&self) -> u32 {
        match self.input {
            Input::Bf16 | Input::F16 => 6,
            Input::F32 => 5,
        }
    }

    /// The launch on `sms` multiprocessors, and the arguments that go with it.
    pub fn launch(&self, args: &Args, sms: u32) -> (Launch, Args) {
        let (blocks, args) = blocks(args);
        let grid = [blocks.min(sms * self.resident()), 1];
        (Launch { grid, threads: THREADS, shared_bytes: 4 * THREADS / 32 }, args)
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        by_access(k, p, |access| {
            let (found, all) = (k.var(0u32), p.rows * p.columns.div_ceil(VEC8));
            let step = k.grid_blocks(0) * (THREADS * VECS);
            let first = k.block_index(0) * (THREADS * VECS) + k.thread_index();
            k.for_(first, all, step, |index| {
                let late = (index + KEPT / (VEC8 * self.input.bytes())).ge(all);
                let policy = Some(p.evict_last.when(late, p.evict_first));
                // From the end, so that the kernel that converts finds its first ones in the cache.
                let last = all - 1 - index;
                let vecs = VecLoader { input: self.input, access, policy };
                let loaded: Vec<_> = (0..VECS).map(|i| vecs.load(k, p, last - i * THREADS)).collect();
                let words = loaded.iter().map(|(_, _, _, vec)| vec.amax_word());
                let word = words.reduce(|a, b| self.input.larger(a, b)).expect("there are vecs");
                found.set(found.live().max(self.input.widen_larger(k, word)));
            });
            // Here, and not behind both kinds of access, so that its instructions follow the loop's.
            self.add_scale(k, p, found.get());
        });
    }

    /// Makes the scale at least that of the largest magnitude that a thread of the block has `found`.
    fn add_scale<'k>(&self, k: &'k Kernel, p: &Params<'k>, found: U32<'k>) {
        let largest = match self.code {
            Code::E4m3 | Code::E5m2 => self.code.max_finite(),
            Code::E2m1 => TensorScale::AMAX_DIVISOR,
        };
        let scale = Scale::up_to(p, largest, block_max(k, found));
        k.guard(k.thread_index().eq(0), || p.scales.reduce(AtomicOp::Max, bits(scale.scale), Scope::Gpu));
    }
}

impl CodesConfig {
    pub(super) fn name(&self) -> String {
        format!("quantize_whole_{}_{}", self.input.name(), self.code.name())
    }

    /// The launch, and the arguments that go with it.
    pub fn launch(&self, args: &Args) -> (Launch, Args) {
        let (blocks, args) = blocks(args);
        (Launch { grid: [blocks, 1], threads: THREADS, shared_bytes: 0 }, args)
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        by_access(k, p, |access| {
            let vecs = VecLoader { input: self.input, access, policy: Some(p.evict_first) };
            let first = k.block_index(0) * (THREADS * VECS) + k.thread_index();
            let loaded: Vec<_> = (0..VECS).map(|i| vecs.load(k, p, first + i * THREADS)).collect();
            // Only now: the scale is looked at when it comes, and loads behind that would wait.
            let scale = Scale::given(ScaleLayout::new(p).load(p.scales, k.constant(true)));
            for (row, column, mask, vec) in &loaded {
                let codes = scale.encode(k, self.code, &vec.values());
                store_codes(k, &codes, p.codes_at(*row, *column, self.code), mask, p.evict_last);
            }
        });
    }
}
