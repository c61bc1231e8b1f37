//! `x = code * scale`, rounded once: for scales of any granularity and layout.

use oxigemm_ptx::{F32, Kernel, U32};

use super::block_128x128::{ACROSS, ROWS, SIDE, every_chunk};
use super::by_access;
use super::params::{Args, Divisor, Launch, Params};
use super::scale::{ScalePlaces, TensorScale};
use super::vec8::{Access, CHUNK, Code, Input, Part, load_codes};

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Chunks that a thread has in flight.
const CHUNKS: u32 = 4;

/// Whose scales there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scales {
    /// Neighbours of a chunk share one.
    PerChunk,
    /// Every column has one of its own.
    PerColumn,
    /// Neighbours of a chunk share one of e4m3, and all share another: NVFP4.
    TwoLevels,
}

/// A kernel of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// What the codes are.
    pub code: Code,
    /// What they become.
    pub output: Input,
    /// Whose scales there are.
    pub scales: Scales,
}

impl Config {
    pub(super) fn name(&self) -> String {
        let scales = match self.scales {
            Scales::PerChunk => "",
            Scales::PerColumn => "_columns",
            Scales::TwoLevels => "_1x16",
        };
        format!("sm90_dequantize{scales}_{}_{}", self.code.name(), self.output.name())
    }

    /// The launch, and the arguments that go with it.
    pub fn launch(&self, args: &Args) -> (Launch, Args) {
        if self.scales == Scales::PerColumn {
            let [down, across] = args.dims.map(|x| x.div_ceil(SIDE));
            let launch = Launch { grid: [down * across, 1], threads: THREADS, shared_bytes: 0 };
            return (launch, Args { across: Divisor::new(across), ..*args });
        }
        let across = args.dims[1].div_ceil(CHUNK);
        let chunks = u64::from(args.dims[0]) * u64::from(across);
        let blocks = chunks.div_ceil(u64::from(THREADS * CHUNKS)) as u32;
        let launch = Launch { grid: [blocks, 1], threads: THREADS, shared_bytes: 0 };
        (launch, Args { across: Divisor::new(across), ..*args })
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        by_access(k, p, |access| match self.scales {
            Scales::PerColumn => self.tile(k, p, access),
            Scales::PerChunk | Scales::TwoLevels => self.chunks(k, p, access),
        });
    }

    /// A tile of 128 rows, so that a thread has the scales of its columns only once.
    fn tile<'k>(&self, k: &'k Kernel, p: &Params<'k>, access: Access) {
        let [tile_row, tile_column] = p.split(k.block_index(0));
        let thread = k.thread_index();
        let column = tile_column * SIDE + thread % ACROSS * CHUNK;
        let first = tile_row * SIDE + thread / ACROSS;
        let codes = every_chunk(p.codes_at(first, column, self.code), p.codes_pitch.widening_mul(ROWS));
        let loaded: Vec<(Part, Vec<U32>)> = codes
            .enumerate()
            .map(|(i, at)| {
                let exists = (first + i as u32 * ROWS).lt(p.rows);
                let part = Part::of(access, exists, column, p.columns);
                (part, load_codes(self.code, at, &part, p.read_once))
            })
            .collect();
        let scales = self.scales(k, p, &ScalePlaces::new(p), None, [tile_row * SIDE, column]);
        let bytes = self.output.bytes();
        let x = every_chunk(p.x_at(first, column, bytes), p.x_pitch.widening_mul(ROWS * bytes));
        for ((part, codes), at) in loaded.iter().zip(x) {
            let values = self.code.decode(k, codes);
            let values: Vec<F32> = values.iter().zip(&scales).map(|(value, scale)| *value * *scale).collect();
            self.output.store(k, &values, at, part, p.kept);
        }
    }

    fn chunks<'k>(&self, k: &'k Kernel, p: &Params<'k>, access: Access) {
        let places = ScalePlaces::new(p);
        let tensor = (self.scales == Scales::TwoLevels).then(|| TensorScale::load(p).scale);
        let first = k.block_index(0) * (THREADS * CHUNKS) + k.thread_index();
        let loaded: Vec<_> = (0..CHUNKS)
            .map(|i| {
                let [row, chunk] = p.split(first + i * THREADS);
                let column = chunk * CHUNK;
                let part = Part::of(access, row.lt(p.rows), column, p.columns);
                let codes = load_codes(self.code, p.codes_at(row, column, self.code), &part, p.read_once);
                (row, column, part, codes, self.scales(k, p, &places, tensor, [row, column]))
            })
            .collect();
        for (row, column, part, codes, scales) in loaded {
            let values = self.code.decode(k, &codes);
            let values: Vec<F32> = values.iter().zip(&scales).map(|(value, scale)| *value * *scale).collect();
            self.output.store(k, &values, p.x_at(row, column, self.output.bytes()), &part, p.kept);
        }
    }

    /// The scales of the eight columns of a chunk.
    #[track_caller]
    fn scales<'k>(
        &self,
        k: &'k Kernel,
        p: &Params<'k>,
        places: &ScalePlaces<'k>,
        tensor: Option<F32<'k>>,
        [row, column]: [U32<'k>; 2],
    ) -> Vec<F32<'k>> {
        let [row_shift, column_shift] = p.shifts;
        let exists = row.lt(p.rows);
        let first = p.scales.at(places.offset(row >> row_shift, column >> column_shift));
        let wanted = exists & column.lt(p.columns);
        let shared = match (self.scales, tensor) {
            // These are never bytes, and as far from each other as from the first to the second.
            (Scales::PerColumn, _) => {
                let [_, _, one] = p.scale_strides;
                let inside = |i: u32| exists & (column + i).lt(p.columns);
                return (0..CHUNK)
                    .map(|i| first.at(one.widening_mul(i)).load_readonly_if(inside(i), 0f32))
                    .collect();
            }
            (_, None) => places.load(first, wanted),
            (_, Some(tensor)) => places.load_e4m3(k, first, wanted) * tensor,
        };
        vec![shared; CHUNK as usize]
    }
}
