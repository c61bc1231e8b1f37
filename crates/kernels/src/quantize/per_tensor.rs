//! Per-tensor scale with two kernels; small matrices take [one](super::per_tensor_single).
//!
//! The first kernel finds the scale. A scale grows with the amax, so the scale of the tensor is the maximum of the
//! CTAs' scales: an atomic maximum in memory, which starts as 0 and does not depend on the order. The second kernel
//! converts.

use oxigemm_ptx::memory::AtomicOp;
use oxigemm_ptx::tma::CachePolicy;
use oxigemm_ptx::{Kernel, Scope, U32};

use super::block_128x128::{self, cta_max};
use super::params::{Args, Launch, Params, by_access};
use super::scale::{Scale, ScaleLayout, TensorScale};
use super::vec8::{Access, Code, Input, Mask, VEC8, Vec8, bits, store_codes};
use crate::common::fast_divmod::FastDivmod;

/// Threads of a CTA.
pub const THREADS: u32 = block_128x128::THREADS;
/// `Vec8`s that a thread has in flight.
const VECS: u32 = 4;
/// Bytes at the beginning of the matrix that stay in L2 for the second kernel.
const L2_BYTES: u32 = 20 << 20;

/// First kernel: the scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaleConfig {
    /// Input type.
    pub input: Input,
    /// Output type. For e2m1, it is the per-tensor scale of NVFP4, above the scales of the blocks.
    pub code: Code,
}

/// Second kernel: the codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodesConfig {
    /// Input type.
    pub input: Input,
    /// Output type.
    pub code: Code,
}

/// Loader of a matrix's `Vec8`s in row-major order.
pub(super) struct VecLoader<'k> {
    pub input: Input,
    pub access: Access,
    pub policy: Option<CachePolicy<'k>>,
}

impl<'k> VecLoader<'k> {
    /// `Vec8` of an index: its row, its column, its mask, and its numbers.
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

/// Number of `Vec8`s, and arguments with their number per row. It fits in 31 bits.
pub(super) fn split_by_rows(args: &Args) -> (u64, Args) {
    let across = args.dims[1].div_ceil(VEC8);
    let vecs = u64::from(args.dims[0]) * u64::from(across);
    (vecs, Args { items_per_row: FastDivmod::new(across), ..*args })
}

/// CTAs for all `Vec8`s, and arguments with their number per row.
fn ctas(args: &Args) -> (u32, Args) {
    let (vecs, args) = split_by_rows(args);
    (vecs.div_ceil(u64::from(THREADS * VECS)) as u32, args)
}

impl ScaleConfig {
    pub(super) fn name(&self) -> String {
        format!("quantize_per_tensor_scale_{}_{}", self.input.name(), self.code.name())
    }

    /// CTAs per SM. The grid has no more: they loop.
    pub(super) const fn resident(&self) -> u32 {
        match self.input {
            Input::Bf16 | Input::F16 => 6,
            Input::F32 => 5,
        }
    }

    /// Launch shape on `sms` SMs, and its arguments.
    pub fn launch(&self, args: &Args, sms: u32) -> (Launch, Args) {
        let (ctas, args) = ctas(args);
        let grid = [ctas.min(sms * self.resident()), 1];
        (Launch { grid, threads: THREADS, shared_bytes: 4 * THREADS / 32 }, args)
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        by_access(k, p, |access| {
            let (found, all) = (k.var(0u32), p.rows * p.columns.div_ceil(VEC8));
            let step = k.grid_blocks(0) * (THREADS * VECS);
            let first = k.block_index(0) * (THREADS * VECS) + k.thread_index();
            k.for_(first, all, step, |index| {
                let late = (index + L2_BYTES / (VEC8 * self.input.bytes())).ge(all);
                let policy = Some(p.evict_last.when(late, p.evict_first));
                // Backwards, so that the second kernel finds the beginning of the matrix in L2.
                let last = all - 1 - index;
                let vecs = VecLoader { input: self.input, access, policy };
                let loaded: Vec<_> = (0..VECS).map(|i| vecs.load(k, p, last - i * THREADS)).collect();
                let words = loaded.iter().map(|(_, _, _, vec)| vec.amax_word());
                let word = words.reduce(|a, b| self.input.larger(a, b)).expect("a thread has some");
                found.set(found.live().max(self.input.widen_larger(k, word)));
            });
            // Once for each kind of access, so that its instructions follow the loop's.
            self.reduce_scale(k, p, found.get());
        });
    }

    /// Atomic maximum of the scale with that of the CTA's amax.
    fn reduce_scale<'k>(&self, k: &'k Kernel, p: &Params<'k>, found: U32<'k>) {
        let max_finite = match self.code {
            Code::E4m3 | Code::E5m2 => self.code.max_finite(),
            Code::E2m1 => TensorScale::AMAX_DIVISOR,
        };
        let scale = Scale::up_to(p, max_finite, cta_max(k, found));
        k.guard(k.thread_index().eq(0), || p.scales.reduce(AtomicOp::Max, bits(scale.scale), Scope::Gpu));
    }
}

impl CodesConfig {
    pub(super) fn name(&self) -> String {
        format!("quantize_per_tensor_{}_{}", self.input.name(), self.code.name())
    }

    /// Launch shape, and its arguments.
    pub fn launch(&self, args: &Args) -> (Launch, Args) {
        let (ctas, args) = ctas(args);
        (Launch { grid: [ctas, 1], threads: THREADS, shared_bytes: 0 }, args)
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        by_access(k, p, |access| {
            let vecs = VecLoader { input: self.input, access, policy: Some(p.evict_first) };
            let first = k.block_index(0) * (THREADS * VECS) + k.thread_index();
            let loaded: Vec<_> = (0..VECS).map(|i| vecs.load(k, p, first + i * THREADS)).collect();
            // After the loads of the matrix, which would wait for the use of the scale.
            let scale = Scale::given(ScaleLayout::new(p).load(p.scales, k.constant(true)));
            for (row, column, mask, vec) in &loaded {
                let codes = scale.encode(k, self.code, &vec.values());
                store_codes(k, &codes, p.codes_at(*row, *column, self.code), mask, p.evict_last);
            }
        });
    }
}
