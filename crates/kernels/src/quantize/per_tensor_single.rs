//! One scale for the whole matrix, in one kernel whose blocks meet.
//!
//! All of a small matrix is in the registers of one grid. Each block leaves the largest magnitude that it has in a word of its own, and
//! waits for the words of all others; so all of them have to run at one time. Which of two bits makes a word one of this launch
//! is in memory too, and block 0 changes it when it has seen all words: by then all blocks have read it. Every launch on a device has
//! as many blocks, also where some have nothing to do, so that no word is older than the last launch.

use oxigemm_ptx::{Global, Kernel, Scope, Shared, U32};

use super::params::{Args, Flags, Launch, Params, largest};
use super::per_tensor::{Chunks, split_by_rows};
use super::scale::Scale;
use super::vec8::{Access, CHUNK, Code, Input, store_codes};
use crate::common::WARP;

/// Threads of a block at most.
pub const THREADS: u32 = 1024;
/// Chunks that a thread holds.
const CHUNKS: u32 = 4;
/// Blocks at most: words that a warp can look at.
const BLOCKS: u32 = WORDS * WARP;
/// Words that a lane looks at.
const WORDS: u32 = 4;
/// Bytes from a block's word to the next: what the L2 cache reads and writes at a time, so that who asks for one holds no other up.
const APART: u32 = 32;
/// Where the bit of the last launch is, behind the words.
const LAST: u64 = (BLOCKS * APART) as u64;
/// How long blocks wait before they ask for words, in nanoseconds. Who asks sooner holds up those who have not come yet.
const PATIENCE: u32 = 200;
/// Where the largest magnitude of all is in shared memory, behind those of the warps.
const OF_ALL: u32 = 4 * THREADS / WARP;

/// Numbers that a grid of as many blocks can hold.
pub const MOST_NUMBERS: usize = (BLOCKS * THREADS * CHUNKS * CHUNK) as usize;

/// Bytes of room for words. It begins as zeros, and is the next launch's as this one leaves it.
pub const ROOM_BYTES: u64 = LAST + 128;

/// A kernel of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// What is quantized.
    pub input: Input,
    /// What it becomes.
    pub code: Code,
}

impl Config {
    pub(super) fn name(&self) -> String {
        format!("quantize_whole_meeting_{}_{}", self.input.name(), self.code.name())
    }

    /// The launch on `sms` multiprocessors, and the arguments that go with it but [`Args::from`], the address of the room. There is
    /// none for a matrix that one grid cannot hold, or cannot move as vectors.
    pub fn launch(&self, args: &Args, sms: u32) -> Option<(Launch, Args)> {
        let (chunks, args) = split_by_rows(args);
        let most = sms.min(BLOCKS);
        let held = u64::from(most * THREADS * CHUNKS);
        if args.flags & Flags::VECTORS == 0 || chunks > held {
            return None;
        }
        let threads = (chunks.div_ceil(u64::from(most * CHUNKS)) as u32).next_multiple_of(WARP);
        let args = Args { from_strides: [threads, 0, 0], ..args };
        let shared_bytes = OF_ALL + 4;
        Some((Launch { grid: [most, 1], threads, shared_bytes }, args))
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        let threads = p.from_strides[0];
        let chunks = Chunks { input: self.input, access: Access::Vectors, policy: Some(p.read_once) };
        let first = k.block_index(0) * threads * CHUNKS + k.thread_index();
        let loaded: Vec<_> = (0..CHUNKS).map(|i| chunks.load(k, p, first + threads * i)).collect();
        let meeting = Meeting { k, room: p.from, threads };
        let bit = meeting.begin();
        let words = loaded.iter().map(|(_, _, _, chunk)| chunk.magnitude_word());
        let word = words.reduce(|a, b| self.input.larger(a, b)).expect("there are chunks");
        let magnitude = meeting.largest_of_all(bit, self.input.widen_larger(k, word));
        let scale = Scale::of(p, self.code, magnitude);
        for (row, column, part, chunk) in &loaded {
            let codes = scale.encode(k, self.code, &chunk.values());
            store_codes(k, &codes, p.codes_at(*row, *column, self.code), part, p.kept);
        }
        k.guard((k.block_index(0) | k.thread_index()).eq(0), || p.scales.store(scale.scale));
    }
}

/// Where the blocks of a grid meet.
struct Meeting<'k> {
    k: &'k Kernel,
    room: Global<'k>,
    /// Threads of a block.
    threads: U32<'k>,
}

impl<'k> Meeting<'k> {
    /// The bit of this launch. The L2 cache is asked for the words, too; but the assembler puts that behind the wait for numbers.
    fn begin(&self) -> U32<'k> {
        const LINE: u32 = 128;
        let k = self.k;
        let bit = self.last().load_relaxed::<u32>(Scope::Gpu) ^ 1;
        let line = self.room.at(k.thread_index().widening_mul(LINE));
        k.guard(k.thread_index().lt(BLOCKS * APART / LINE), || line.prefetch());
        bit
    }

    /// The largest of all threads' magnitudes, in all of them.
    #[track_caller]
    fn largest_of_all(&self, bit: U32<'k>, magnitude: U32<'k>) -> U32<'k> {
        let (k, shared) = (self.k, self.k.dynamic_shared());
        let of_warp = k.warp_max(magnitude);
        let place = |warp: U32<'k>| shared.at(warp * 4);
        let (lane, warp) = (k.lane(), k.thread_index() / WARP);
        k.guard(lane.eq(0), || place(warp).store(of_warp));
        k.sync_threads();
        let of_all: Shared = shared.at(OF_ALL);
        k.if_(warp.eq(0), || {
            // Warps that a block does not have are as the last that it has.
            let of_block = k.warp_max(place(lane.min(self.threads / WARP - 1)).load());
            let of_all_blocks = self.exchange(bit, of_block);
            k.guard(lane.eq(0), || of_all.store(of_all_blocks));
        });
        k.sync_threads();
        of_all.load()
    }

    /// One warp leaves the magnitude of its block, and waits for those of all blocks: the largest.
    #[track_caller]
    fn exchange(&self, bit: U32<'k>, magnitude: U32<'k>) -> U32<'k> {
        let (k, first_lane) = (self.k, self.k.lane().eq(0));
        let (block, blocks) = (k.block_index(0), k.grid_blocks(0));
        k.guard(first_lane, || self.word(block).store_relaxed((magnitude << 1) | bit, Scope::Gpu));
        k.sleep(PATIENCE);
        // Blocks that there are not are as the last that there is.
        let places: Vec<Global> =
            (0..WORDS).map(|i| self.word((k.lane() + i * WARP).min(blocks - 1))).collect();
        let (found, missing) = (k.var(0u32), k.var(1u32));
        k.while_(
            || missing.live().ne(0),
            || {
                let words: Vec<U32> = places.iter().map(|place| place.load_relaxed(Scope::Gpu)).collect();
                let others = words.iter().map(|word| (*word ^ bit) & 1);
                missing.set(k.warp_max(others.reduce(|a, b| a | b).expect("there are words")));
                found.set(largest(words));
            },
        );
        k.guard(first_lane & block.eq(0), || self.last().store_relaxed(bit, Scope::Gpu));
        k.warp_max(found.get()) >> 1
    }

    fn word(&self, block: U32<'k>) -> Global<'k> {
        self.room.at(block.widening_mul(APART))
    }

    fn last(&self) -> Global<'k> {
        self.room.at(LAST)
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
    fn a_grid_holds_a_small_matrix_and_runs_at_one_time() {
        let shape = |dims, sms| launch(dims, Flags::VECTORS, sms).map(|it| (it.grid[0], it.threads));
        assert_eq!(shape([128, 7168], 132), Some((128, 224)));
        assert_eq!(shape([1, 8], 132), Some((128, 32)), "always as many blocks");
        assert_eq!(shape([585, 7168], 132), Some((128, 1024)));
        assert_eq!(shape([586, 7168], 132), None, "it is too large");
        assert_eq!(shape([128, 7168], 8), None, "these are too few");
        assert!(launch([128, 7168], 0, 132).is_none(), "not as vectors");
    }

    #[test]
    fn every_chunk_has_a_thread() {
        for rows in 1..600 {
            for columns in [8, 1000, 1024, 7168] {
                let chunks = rows * u32::div_ceil(columns, CHUNK);
                let Some(Launch { grid: [blocks, _], threads, .. }) =
                    launch([rows, columns], Flags::VECTORS, 132)
                else {
                    continue;
                };
                assert!(blocks * threads * CHUNKS >= chunks && threads <= THREADS && blocks == BLOCKS);
            }
        }
    }
}
