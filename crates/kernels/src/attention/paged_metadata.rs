//! Schedule metadata of the paged MQA logits: the tiles of keys of a decode step, split evenly over the CTAs.
//!
//! Only the device knows how long sequences are, so this is a kernel too: its schedule is right whenever a captured
//! call is replayed. It is plain PTX, for every architecture.

use crate::arch::Arch;
use crate::attention::context_lens::ContextLens;
use crate::attention::shape::{DEDICATED_NEXT, TILE_KEYS};
use crate::common::WARP;
use crate::common::params::kernel_params;
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{BuildError, Kernel, Module, Shared, SharedLayout, U32};

const WARPS: u32 = 16;
const THREADS: u32 = WARPS * WARP;

/// Compile-time configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The architecture it is for.
    pub arch: Arch,
    /// Whether a sequence may have more lengths than [`DEDICATED_NEXT`].
    pub any_next: bool,
}

impl Config {
    /// The kernel for this many lengths of a sequence.
    pub fn of(arch: Arch, next: u32) -> Config {
        Config { arch, any_next: next > DEDICATED_NEXT }
    }

    /// Name of the kernel, unique in the registry.
    pub fn name(&self) -> String {
        let any_next = if self.any_next { "_any_next" } else { "" };
        self.arch.kernel_name(&format!("paged_mqa_logits_metadata{any_next}"))
    }

    /// Threads of its only CTA.
    pub fn threads(&self) -> u32 {
        THREADS
    }

    /// Bytes of dynamic shared memory.
    pub fn shared_bytes(&self) -> u32 {
        SharedMap::new().bytes
    }

    /// Upper bound of a length, so that the tiles of all sequences are counted in 32 bits. Logits of more keys would
    /// take a terabyte.
    pub fn max_length(sequences: u32) -> u32 {
        let tiles = u32::MAX / sequences.max(1);
        tiles.saturating_mul(TILE_KEYS).min(i32::MAX as u32)
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        build(self)
    }
}

/// Arguments of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Args {
    /// Address of the schedule: two words for each split, and for the end.
    pub schedule: u64,
    /// Address of the context lengths.
    pub lengths: u64,
    /// Number of sequences.
    pub sequences: u32,
    /// Queries of a sequence.
    pub next: u32,
    /// 1 where every query has a length of its own, else 0.
    pub per_query: u32,
    /// Upper bound of a length: see [`Config::max_length`].
    pub limit: u32,
    /// CTAs that the tiles are split over.
    pub splits: u32,
}

kernel_params! {
    struct Params from Args {
        schedule: Pointer = schedule,
        lengths: Pointer = lengths,
        sequences: U32 = sequences,
        next: U32 = next,
        per_query: U32 = per_query,
        limit: U32 = limit,
        splits: U32 = splits,
    }
}

struct SharedMap {
    /// A sum for each warp.
    sums: u32,
    bytes: u32,
}

impl SharedMap {
    fn new() -> Self {
        let mut layout = SharedLayout::default();
        let sums = layout.place(WARPS * 4, 16);
        SharedMap { sums, bytes: layout.bytes() }
    }
}

/// `schedule[s]` is the sequence and the tile where split s begins: `s * tiles / splits` tiles after the first of all.
fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = Kernel::new(&cfg.name(), cfg.arch.target()).threads(THREADS);
    write(&k, cfg);
    k.finish()
}

fn write<'k>(k: &'k Kernel, cfg: &Config) {
    let Params { schedule, lengths, sequences, next, per_query, limit, splits } = Params::declare(k, "");
    let lengths = ContextLens { at: lengths, sequences, next, per_query, limit, any_next: cfg.any_next };
    let map = SharedMap::new();
    let shared = k.dynamic_shared();
    k.name_shared("sums", map.sums, 4, WARPS);
    let scan = Scan { k, sums: shared.at(map.sums), warp: k.warp_index(), lane: k.lane() };
    k.grid_dependency_wait();

    let tiles_of =
        |sequence: U32<'k>| lengths.longest_if(sequence.lt(lengths.sequences), sequence).div_ceil(TILE_KEYS);
    let thread = k.thread_index();
    let own = k.var(0u32);
    k.for_(thread, lengths.sequences, THREADS, |sequence| own.set(own.live() + tiles_of(sequence)));
    let (_, total) = scan.exclusive(own.get());

    let entry = |split: U32<'k>, at: [U32<'k>; 2]| {
        let to = schedule.at(split.widening_mul(8));
        to.store(at[0]);
        to.at(4).store(at[1]);
    };
    // Without any tiles, all splits begin at the end.
    let first: U32<'k> = total.eq(0).select(0u32, splits);
    k.for_(first + thread, splits + 1, THREADS, |split| entry(split, [lengths.sequences, k.constant(0)]));

    let passed = k.var(0u32);
    let wide_splits = splits.to_u64();
    k.if_(total.ne(0), || {
        k.for_(0, lengths.sequences, THREADS, |first| {
            let sequence = first + thread;
            let tiles = tiles_of(sequence);
            let (before, all) = scan.exclusive(tiles);
            let before = before + passed.get();
            let wide_total = total.to_u64();
            let end = (before + tiles).to_u64();
            let begins_at = |split: U32<'k>| (split.to_u64() * wide_total) / wide_splits;
            let split = k.var_from((before.to_u64() * wide_splits).div_ceil(wide_total).to_u32());
            k.while_(
                || split.live().lt(splits) & begins_at(split.live()).lt(end),
                || {
                    let tile = begins_at(split.live()).to_u32() - before;
                    entry(split.get(), [sequence, tile]);
                    split.set(split.live() + 1);
                },
            );
            passed.set(passed.live() + all);
        });
    });
    k.launch_dependents();
}

/// Prefix sum over the CTA.
struct Scan<'k> {
    k: &'k Kernel,
    sums: Shared<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
}

impl<'k> Scan<'k> {
    /// Exclusive prefix sum, and the total.
    fn exclusive(&self, own: U32<'k>) -> (U32<'k>, U32<'k>) {
        let k = self.k;
        // Lanes may have diverged before.
        k.sync_warp();
        let mut up_to = own;
        for distance in [1u32, 2, 4, 8, 16] {
            let lower = k.shuffle(Shuffle::Up, up_to, distance);
            up_to = up_to + self.lane.ge(distance).select(lower, 0u32);
        }
        let to = self.sums.at(self.warp * 4);
        k.guard(self.lane.eq(WARP - 1), || to.store(up_to));
        k.sync_threads();
        let zero = k.constant(0u32);
        let (mut before, mut all) = (zero, zero);
        for warp in 0..WARPS {
            let sum: U32<'k> = self.sums.at(warp * 4).load();
            before = before + self.warp.gt(warp).select(sum, 0u32);
            all = all + sum;
        }
        k.sync_threads();
        (before + up_to - own, all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_of_all_sequences_are_counted_in_32_bits() {
        for sequences in [0, 1, 2, 255, 256, 257, 300, 1 << 20, i32::MAX as u32] {
            let longest = Config::max_length(sequences);
            let tiles = u64::from(sequences) * u64::from(longest.div_ceil(TILE_KEYS));
            assert!(tiles <= u32::MAX.into(), "{sequences} sequences");
            // One more key for each, in BF16.
            let bytes = u64::from(sequences) * (u64::from(longest) + 1) * 2;
            assert!(longest == i32::MAX as u32 || bytes > 1 << 39, "{sequences} sequences");
        }
    }
}
