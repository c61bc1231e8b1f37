//! Who computes which keys of which sequence in a decode step: all blocks of the grid as many tiles of keys.
//!
//! Only the device knows how long sequences are, so this is a kernel too: its schedule is right whenever a captured call
//! is replayed.

use crate::attention::TILE_KEYS;
use crate::common::WARP;
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{BuildError, Global, I32, Kernel, Module, Pred, Shared, SharedLayout, Target, U32};

const WARPS: u32 = 16;
const THREADS: u32 = WARPS * WARP;

/// The lengths of sequences, as parameters: one of each, which its last query sees whole and every query before it one key less
/// than the next; or one of each query.
#[derive(Clone, Copy)]
pub(crate) struct Lengths<'k> {
    at: Global<'k>,
    pub sequences: U32<'k>,
    /// Queries of a sequence.
    pub next: U32<'k>,
    /// 1 where every query has a length.
    per_query: U32<'k>,
    /// What a length may be at most: anything above counts as this.
    pub limit: U32<'k>,
}

impl<'k> Lengths<'k> {
    pub fn declare(k: &'k Kernel) -> Self {
        Lengths {
            at: k.param_pointer("lengths"),
            sequences: k.param("sequences"),
            next: k.param("next"),
            per_query: k.param("per_query"),
            limit: k.param("limit"),
        }
    }

    fn each_has_one(&self) -> Pred<'k> {
        self.per_query.ne(0)
    }

    fn load_if(&self, condition: Pred<'k>, index: U32<'k>) -> I32<'k> {
        self.at.at(index.widening_mul(4)).load_readonly_if(condition, 0)
    }

    fn clamped(&self, length: I32<'k>) -> U32<'k> {
        length.max(0).bitcast::<u32>().min(self.limit)
    }

    /// How many keys a query of a sequence sees, where the condition holds.
    pub fn of_query_if(&self, condition: Pred<'k>, sequence: U32<'k>, query: U32<'k>) -> U32<'k> {
        let index: U32<'k> = self.each_has_one().select(sequence * self.next + query, sequence);
        let behind: U32<'k> = self.each_has_one().select(0u32, self.next - 1 - query);
        // Before it is clamped: a query sees less than the sequence has, not less than the limit.
        self.clamped(self.load_if(condition, index) - behind.bitcast::<i32>())
    }

    /// How many keys some query of a sequence sees.
    pub fn longest(&self, sequence: U32<'k>) -> U32<'k> {
        self.longest_if(sequence.kernel().constant(true), sequence)
    }

    /// The same where the condition holds, else 0.
    fn longest_if(&self, condition: Pred<'k>, sequence: U32<'k>) -> U32<'k> {
        let lengths = (0..crate::attention::paged_mqa_logits::MAX_NEXT).map(|query| {
            // One length of each sequence is that of the last query, and the longest.
            let (index, wanted) = match query {
                0 => (self.each_has_one().select(sequence * self.next, sequence), condition),
                _ => (sequence * self.next + query, condition & self.each_has_one() & self.next.gt(query)),
            };
            self.load_if(wanted, index)
        });
        let longest = lengths.reduce(|longest, length| longest.max(length)).expect("there are several");
        self.clamped(longest)
    }
}

/// The kernel; nothing is compiled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config;

impl Config {
    /// The kernel's name, unique in the closed set.
    pub fn name(&self) -> String {
        "paged_mqa_schedule".to_owned()
    }

    /// Threads of its only block.
    pub fn threads(&self) -> u32 {
        THREADS
    }

    /// Bytes of dynamic shared memory.
    pub fn shared_bytes(&self) -> u32 {
        SharedMap::new().bytes
    }

    /// What a length counts as at most, so that the tiles of so many sequences are counted in 32 bits. Logits of more keys than
    /// that would take a terabyte.
    pub fn longest(&self, sequences: u32) -> u32 {
        let tiles = u32::MAX / sequences.max(1);
        tiles.saturating_mul(TILE_KEYS).min(i32::MAX as u32)
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        build(self)
    }
}

struct SharedMap {
    /// A sum of each warp.
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

/// `schedule[s]` is the sequence and the tile where part s begins: `s * tiles / parts` tiles after the first of all.
fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = Kernel::new(&cfg.name(), Target::Sm90a).threads(THREADS);
    write(&k);
    k.finish()
}

fn write<'k>(k: &'k Kernel) {
    let schedule = k.param_pointer("schedule");
    let lengths = Lengths::declare(k);
    let parts = k.param::<u32>("parts");
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
    let (_, total) = scan.before(own.get());

    let entry = |part: U32<'k>, at: [U32<'k>; 2]| {
        let to = schedule.at(part.widening_mul(8));
        to.store(at[0]);
        to.at(4).store(at[1]);
    };
    // Where there is nothing to do, all parts are at the end.
    let first: U32<'k> = total.eq(0).select(0u32, parts);
    k.for_(first + thread, parts + 1, THREADS, |part| entry(part, [lengths.sequences, k.constant(0)]));

    let passed = k.var(0u32);
    let wide_parts = parts.to_u64();
    k.if_(total.ne(0), || {
        k.for_(0, lengths.sequences, THREADS, |strip| {
            let sequence = strip + thread;
            let tiles = tiles_of(sequence);
            let (before, all) = scan.before(tiles);
            let before = before + passed.get();
            let wide_total = total.to_u64();
            let end = (before + tiles).to_u64();
            let begins_at = |part: U32<'k>| (part.to_u64() * wide_total) / wide_parts;
            let part = k.var_from((before.to_u64() * wide_parts).div_ceil(wide_total).to_u32());
            k.while_(
                || part.live().lt(parts) & begins_at(part.live()).lt(end),
                || {
                    let tile = begins_at(part.live()).to_u32() - before;
                    entry(part.get(), [sequence, tile]);
                    part.set(part.live() + 1);
                },
            );
            passed.set(passed.live() + all);
        });
    });
    k.launch_dependents();
}

/// Sums over the block.
struct Scan<'k> {
    k: &'k Kernel,
    sums: Shared<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
}

impl<'k> Scan<'k> {
    /// The sum of what the threads before this one have, and that of all.
    fn before(&self, own: U32<'k>) -> (U32<'k>, U32<'k>) {
        let k = self.k;
        // What came before may have parted the lanes.
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
    fn tiles_are_counted_in_32_bits_and_those_of_any_logits_are_all_counted() {
        for sequences in [0, 1, 2, 255, 256, 257, 300, 1 << 20, i32::MAX as u32] {
            let longest = Config.longest(sequences);
            let tiles = u64::from(sequences) * u64::from(longest.div_ceil(TILE_KEYS));
            assert!(tiles <= u32::MAX.into(), "{sequences} sequences");
            // A key more of each, in BF16.
            let bytes = u64::from(sequences) * (u64::from(longest) + 1) * 2;
            assert!(longest == i32::MAX as u32 || bytes > 1 << 39, "{sequences} sequences");
        }
    }
}
