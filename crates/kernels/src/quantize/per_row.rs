//! A scale for a row.
//!
//! A block has one row. What its threads hold of it stays in registers; a longer row is read again, from the cache.

use oxigemm_ptx::{Kernel, U32};

use super::block_128x128::{self, of_block};
use super::by_access;
use super::params::{Args, Launch, Params};
use super::scale::{Scale, ScalePlaces};
use super::vec8::{Access, CHUNK, Chunk, Code, Input, Part, store_codes};

/// Threads of a block.
pub const THREADS: u32 = block_128x128::THREADS;
/// Chunks that a thread holds.
const CHUNKS: u32 = 4;
/// Columns that a block has one chunk of each thread for.
const ROUND: u32 = THREADS * CHUNK;

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
        format!("sm90_quantize_per_row_{}_{}", self.input.name(), self.code.name())
    }

    /// The launch, and the arguments that go with it.
    pub fn launch(&self, args: &Args) -> (Launch, Args) {
        (Launch { grid: [args.dims[0], 1], threads: THREADS, shared_bytes: 4 * THREADS / 32 }, *args)
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        by_access(k, p, |access| self.row(k, p, access));
    }

    fn row<'k>(&self, k: &'k Kernel, p: &Params<'k>, access: Access) {
        let (row, first) = (k.block_index(0), k.thread_index() * CHUNK);
        let load = |column: U32<'k>| {
            let part = Part::of(access, k.constant(true), column, p.columns);
            (
                column,
                part,
                Chunk::load(k, self.input, p.x_at(row, column, self.input.bytes()), &part, Some(p.read_once)),
            )
        };
        let held: Vec<_> = (0..CHUNKS).map(|i| load(first + i * ROUND)).collect();
        let of_held = held.iter().map(|(_, _, chunk)| chunk.magnitude_word());
        let of_held = of_held.reduce(|a, b| self.input.larger(a, b)).expect("some are held");
        let found = k.var_from(self.input.widen_larger(k, of_held));
        let rest = first + CHUNKS * ROUND;
        k.for_(rest, p.columns, ROUND, |column| {
            let (_, _, chunk) = load(column);
            found.set(found.live().max(chunk.magnitude()));
        });
        let scale = Scale::of(p, self.code, of_block(k, found.get()));
        let store = |(column, part, chunk): &(U32<'k>, Part<'k>, Chunk<'k>)| {
            let codes = scale.encode(k, self.code, &chunk.values());
            store_codes(k, &codes, p.codes_at(row, *column, self.code), part, p.kept);
        };
        held.iter().for_each(store);
        k.for_(rest, p.columns, ROUND, |column| store(&load(column)));
        let places = ScalePlaces::new(p);
        let at = p.scales.at(places.offset(row, k.constant(0)));
        places.store(k, at, scale.scale, k.thread_index().eq(0));
    }
}
