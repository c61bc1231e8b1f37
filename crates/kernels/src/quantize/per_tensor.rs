//! One scale for the whole matrix, in two kernels; small ones have [one](super::per_tensor_single).
//!
//! The first finds it. A scale grows with the magnitude, so the scale of all is the largest of the blocks' own scales: an
//! atomic maximum in memory, which starts as 0, and whose order does not matter. The second converts.

use oxigemm_ptx::memory::AtomicOp;
use oxigemm_ptx::tma::CachePolicy;
use oxigemm_ptx::{Kernel, Scope, U32};

use super::block_128x128::{self, of_block};
use super::by_access;
use super::params::{Args, Divisor, Launch, Params, bits};
use super::scale::{Scale, ScalePlaces, TensorScale};
use super::vec8::{Access, CHUNK, Chunk, Code, Input, Part, store_codes};

/// Threads of a block.
pub const THREADS: u32 = block_128x128::THREADS;
/// Chunks that a thread has in flight.
const CHUNKS: u32 = 4;
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
pub(super) struct Chunks<'k> {
    pub input: Input,
    pub access: Access,
    pub policy: Option<CachePolicy<'k>>,
}

impl<'k> Chunks<'k> {
    /// The chunk of a number: its row, its column, what there is of it, and its numbers.
    #[track_caller]
    pub fn load(
        &self,
        k: &'k Kernel,
        p: &Params<'k>,
        index: U32<'k>,
    ) -> (U32<'k>, U32<'k>, Part<'k>, Chunk<'k>) {
        let [row, chunk] = p.split(index);
        let column = chunk * CHUNK;
        let part = Part::of(self.access, row.lt(p.rows), column, p.columns);
        let chunk = Chunk::load(k, self.input, p.x_at(row, column, self.input.bytes()), &part, self.policy);
        (row, column, part, chunk)
    }
}

/// How many chunks there are, and the arguments by which they are found. The number fits in 31 bits.
pub(super) fn split_by_rows(args: &Args) -> (u64, Args) {
    let across = args.dims[1].div_ceil(CHUNK);
    let chunks = u64::from(args.dims[0]) * u64::from(across);
    (chunks, Args { across: Divisor::new(across), ..*args })
}

/// Blocks for all chunks, and the arguments by which these are found.
fn blocks(args: &Args) -> (u32, Args) {
    let (chunks, args) = split_by_rows(args);
    (chunks.div_ceil(u64::from(THREADS * CHUNKS)) as u32, args)
}

impl ScaleConfig {
    pub(super) fn name(&self) -> String {
        format!("sm90_quantize_per_tensor_scale_{}_{}", self.input.name(), self.code.name())
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
            let (found, all) = (k.var(0u32), p.rows * p.columns.div_ceil(CHUNK));
            let step = k.grid_blocks(0) * (THREADS * CHUNKS);
            let first = k.block_index(0) * (THREADS * CHUNKS) + k.thread_index();
            k.for_(first, all, step, |index| {
                let late = (index + KEPT / (CHUNK * self.input.bytes())).ge(all);
                let policy = Some(p.kept.when(late, p.read_once));
                // From the end, so that the kernel that converts finds its first ones in the cache.
                let last = all - 1 - index;
                let chunks = Chunks { input: self.input, access, policy };
                let loaded: Vec<_> = (0..CHUNKS).map(|i| chunks.load(k, p, last - i * THREADS)).collect();
                let words = loaded.iter().map(|(_, _, _, chunk)| chunk.magnitude_word());
                let word = words.reduce(|a, b| self.input.larger(a, b)).expect("there are chunks");
                found.set(found.live().max(self.input.widen_larger(k, word)));
            });
            // Here, and not behind both kinds of access, so that its instructions follow the loop's.
            self.add_scale(k, p, found.get());
        });
    }

    /// Makes the scale at least that of the largest magnitude that a thread of the block has `found`.
    fn add_scale<'k>(&self, k: &'k Kernel, p: &Params<'k>, found: U32<'k>) {
        let largest = match self.code {
            Code::E4m3 | Code::E5m2 => self.code.largest(),
            Code::E2m1 => TensorScale::LARGEST,
        };
        let scale = Scale::up_to(p, largest, of_block(k, found));
        k.guard(k.thread_index().eq(0), || p.scales.reduce(AtomicOp::Max, bits(scale.scale), Scope::Gpu));
    }
}

impl CodesConfig {
    pub(super) fn name(&self) -> String {
        format!("sm90_quantize_per_tensor_{}_{}", self.input.name(), self.code.name())
    }

    /// The launch, and the arguments that go with it.
    pub fn launch(&self, args: &Args) -> (Launch, Args) {
        let (blocks, args) = blocks(args);
        (Launch { grid: [blocks, 1], threads: THREADS, shared_bytes: 0 }, args)
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        by_access(k, p, |access| {
            let chunks = Chunks { input: self.input, access, policy: Some(p.read_once) };
            let first = k.block_index(0) * (THREADS * CHUNKS) + k.thread_index();
            let loaded: Vec<_> = (0..CHUNKS).map(|i| chunks.load(k, p, first + i * THREADS)).collect();
            // Only now: the scale is looked at when it comes, and loads behind that would wait.
            let scale = Scale::given(ScalePlaces::new(p).load(p.scales, k.constant(true)));
            for (row, column, part, chunk) in &loaded {
                let codes = scale.encode(k, self.code, &chunk.values());
                store_codes(k, &codes, p.codes_at(*row, *column, self.code), part, p.kept);
            }
        });
    }
}
