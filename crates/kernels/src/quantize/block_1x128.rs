//! A scale for 128, 32 or 16 neighbours of a row.
//!
//! `scale = max(amax, 1e-4) / largest`, `code = x / scale`. A group is the chunks of a few lanes, so that shuffles find
//! its largest magnitude. A warp has some chunks a lane in flight, and what they cover is a tile of some rows by some groups
//! whose shape the launch chooses: along a row where scales are row-major, along the rows where they are MN-major, and every
//! 32nd of four rows where they are blocked. So the scales of a warp are neighbours in memory, and stored together.
//!
//! Groups of 16 are those of NVFP4: their scales are e4m3, below one scale of the whole matrix.

use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Global, Kernel, Pred, U32};

use super::params::{Args, Divisor, Launch, Params};
use super::scale::{Scale, ScalePlaces, TensorScale};
use super::vec8::{Access, CHUNK, Chunk, Code, Input, Part, every, magnitude_of, store_codes};
use super::{by_access, params};
use crate::common::WARP;

/// Threads of a block: few, so that a small matrix reaches every multiprocessor.
pub const THREADS: u32 = 128;
/// Neighbours that share a scale of NVFP4.
pub const NVFP4_WIDTH: u32 = 16;
/// Rows of a block of scales whose scales are neighbours.
const BLOCKED_ROWS: u32 = 4;
/// log2(e), for the exponential of SwiGLU.
const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// Where the numbers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The matrix.
    Plain,
    /// `silu(gate) * up`: each row has the gates and behind them the ups.
    SwiGlu,
    /// Rows of the matrix that a list names; none where it names none, and then nothing is stored.
    Gather,
}

/// A kernel of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// What is quantized.
    pub input: Input,
    /// What it becomes.
    pub code: Code,
    /// Neighbours that share a scale: 128, 32 or 16.
    pub width: u32,
    /// Where the numbers come from.
    pub source: Source,
}

impl Config {
    pub(super) fn all() -> impl Iterator<Item = Config> {
        let plain = Input::ALL.into_iter().flat_map(|input| {
            Code::FP8.into_iter().flat_map(move |code| {
                [128, 32].map(|width| Config { input, code, width, source: Source::Plain })
            })
        });
        let fused = [Source::SwiGlu, Source::Gather].into_iter().flat_map(|source| {
            Input::ALL.map(|input| Config { input, code: Code::E4m3, width: 128, source })
        });
        let fp4 = [32, NVFP4_WIDTH].into_iter().flat_map(|width| {
            Input::ALL.map(|input| Config { input, code: Code::E2m1, width, source: Source::Plain })
        });
        plain.chain(fp4).chain(fused)
    }

    pub(super) fn name(&self) -> String {
        let source = match self.source {
            Source::Plain => "",
            Source::SwiGlu => "_swiglu",
            Source::Gather => "_gather",
        };
        format!("quantize_1x{}{source}_{}_{}", self.width, self.input.name(), self.code.name())
    }

    /// Blocks that a multiprocessor should have at a time.
    pub(super) const fn resident(&self) -> u32 {
        match (self.source, self.input) {
            (_, Input::F16 | Input::F32) if self.width == NVFP4_WIDTH => 7,
            (Source::SwiGlu, Input::F32) => 7,
            (Source::SwiGlu, _) => 10,
            (Source::Plain, Input::Bf16) => 9,
            _ => 8,
        }
    }

    /// The type of the magnitudes that scales are made of.
    const fn magnitudes(&self) -> Input {
        match self.source {
            Source::SwiGlu => Input::F32,
            Source::Plain | Source::Gather => self.input,
        }
    }

    /// Lanes that share a scale.
    const fn lanes(&self) -> u32 {
        self.width / CHUNK
    }

    /// Groups from a chunk of a lane to its next.
    const fn apart(&self) -> u32 {
        WARP / self.lanes()
    }

    /// Groups that the chunks of a warp cover.
    const fn groups(&self) -> u32 {
        self.chunks() * WARP / self.lanes()
    }

    /// Chunks that a lane has in flight.
    const fn chunks(&self) -> u32 {
        match self.source {
            Source::Plain | Source::Gather => 4,
            // Of two vectors each.
            Source::SwiGlu => 2,
        }
    }

    /// The launch, where scales are stored along the rows (`mn_major`) or along a row, and the arguments that go with it.
    pub fn launch(&self, args: &Args, mn_major: bool) -> (Launch, Args) {
        let [rows, columns] = args.scale_dims;
        let has = |flag| args.flags & flag != 0;
        let blocked = has(params::Flags::BLOCKED);
        let wanted = match (mn_major, blocked) {
            (true, _) => 8,
            (_, true) => BLOCKED_ROWS,
            (false, false) => 1,
        };
        let across = (self.groups() / wanted).max(1);
        // Groups that a row does not have would leave lanes idle.
        let across = if blocked { across } else { across.min(columns.next_power_of_two()).max(1) };
        // Four exponents are one word; and the chunks of a lane follow each other along a row, or down a column.
        let across = if has(params::Flags::BYTES) || across > 1 { across.max(self.chunks()) } else { across };
        let down = self.groups() / across;
        let apart = self.apart();
        let row_step = if blocked { WARP } else { 1 };
        let chunk_step = [apart % down * row_step, apart / down, 0];
        let row_tiles = rows.div_ceil(down);
        let column_tiles = columns.div_ceil(across);
        let warps = u64::from(row_tiles) * u64::from(column_tiles);
        let blocks = warps.div_ceil(u64::from(THREADS / WARP)) as u32;
        let shifts = [down.trailing_zeros(), across.trailing_zeros()];
        let rows_of_tiles = if blocked { BLOCKED_ROWS * WARP } else { down };
        let whole = has(params::Flags::VECTORS)
            && args.dims[0].is_multiple_of(rows_of_tiles)
            && args.dims[1].is_multiple_of(across * self.width)
            && warps.is_multiple_of(u64::from(THREADS / WARP))
            && args.scale_dims == [args.dims[0], args.dims[1] / self.width];
        let flags = args.flags | if whole { params::Flags::WHOLE } else { 0 };
        let across = Divisor::new(column_tiles);
        let args = Args { shifts, across, from_strides: chunk_step, flags, ..*args };
        (Launch { grid: [blocks, 1], threads: THREADS, shared_bytes: 0 }, args)
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        let parts = || by_access(k, p, |access| self.tile(k, p, Tiles::Parts(access)));
        match self.code {
            Code::E4m3 | Code::E5m2 => parts(),
            // These are limited by instructions as much as by memory.
            Code::E2m1 => k.if_else(p.has(params::Flags::WHOLE), || self.tile(k, p, Tiles::Whole), parts),
        }
    }

    /// One warp's tile.
    fn tile<'k>(&self, k: &'k Kernel, p: &Params<'k>, tiles: Tiles) {
        let (lanes, lane) = (self.lanes(), k.lane());
        let warp = k.block_index(0) * (THREADS / WARP) + (k.thread_index() >> 5);
        let [tile_row, tile_column] = p.split(warp);
        let [down, across] = p.shifts;
        let (first_row, step) = rows_of_tile(p, tile_row << down);
        let among = lane / lanes;
        let [row_step, group_step, _] = p.from_strides;
        let places = Places {
            row: first_row + (among & ((k.constant(1) << down) - 1)) * step,
            group: (tile_column << across) + (among >> down),
            row_step,
            group_step,
        };
        let pieces = self.pieces(k, p, &places, tiles);
        let tensor = (self.width == NVFP4_WIDTH).then(|| TensorScale::load(p));
        let (values, magnitudes): (Vec<_>, Vec<_>) = pieces.iter().map(Piece::values).unzip();
        let found = LaneMagnitudes::new(k, lanes, self.magnitudes(), magnitudes);
        let scales = found.scales(|magnitude| match &tensor {
            None => Scale::of(p, self.code, magnitude).parts(),
            Some(tensor) => tensor.of_block(k, magnitude),
        });
        let code_step = row_step.widening_mul(p.codes_pitch)
            + (group_step * (self.width / self.code.per_byte())).to_u64();
        let codes_at = every(self.chunks(), p.codes_at(places.row, pieces[0].column, self.code), code_step);
        for (((i, piece), values), at) in (0..).zip(&pieces).zip(&values).zip(codes_at) {
            let factor = scales.factor(k, i);
            let codes = match self.code {
                Code::E4m3 | Code::E5m2 => {
                    self.code.encode(k, &values.iter().map(|value| *value * factor).collect::<Vec<_>>())
                }
                Code::E2m1 => piece.loaded[0].encode_e2m1(factor),
            };
            store_codes(k, &codes, at, &piece.part, p.kept);
        }
        let [scale_rows, scale_columns] = p.scale_dims;
        let scale_places = ScalePlaces::new(p);
        for (chunk, scale, mine) in scales.own(k) {
            let [row, group] = places.of(chunk);
            let real = row.lt(p.rows) & (group * self.width).lt(p.columns);
            let wanted = mine & row.lt(scale_rows) & group.lt(scale_columns);
            let (real, wanted) = match tiles {
                Tiles::Whole => (k.constant(true), mine),
                Tiles::Parts(_) => (real, wanted),
            };
            // A scale of rows that come from nowhere is as welcome as their codes.
            let wanted = match self.source {
                Source::Plain | Source::SwiGlu => wanted,
                Source::Gather => {
                    let presence: Vec<F32> = pieces.iter().map(Piece::presence).collect();
                    wanted & pick(chunk, &presence).gt(0.0)
                }
            };
            let at = p.scales.at(scale_places.offset(row, group));
            match tensor {
                None => scale_places.store(k, at, real.select(scale, 0u32).bitcast(), wanted),
                Some(_) => k.guard(wanted, || at.store_byte(real.select(scale, 0u32))),
            }
        }
    }

    /// What a lane has of its warp's tile.
    fn pieces<'k>(&self, k: &'k Kernel, p: &Params<'k>, places: &Places<'k>, tiles: Tiles) -> Vec<Piece<'k>> {
        let column = places.group * self.width + k.lane() % self.lanes() * CHUNK;
        let bytes = self.input.bytes();
        let apart = places.row_step.widening_mul(p.x_pitch) + (places.group_step * self.width).to_u64();
        let x = every(self.chunks(), p.x_at(places.row, column, bytes), apart * u64::from(bytes));
        let policy = match self.source {
            Source::Plain | Source::SwiGlu => Some(p.read_once),
            // Several experts may want it.
            Source::Gather => None,
        };
        let piece = |(i, at): (u32, Global<'k>)| {
            let row = places.row + places.row_step * i;
            let column = column + places.group_step * (i * self.width);
            let inside = match tiles {
                Tiles::Whole => k.constant(true),
                Tiles::Parts(_) => row.lt(p.rows),
            };
            let (at, exists) = match self.source {
                Source::Plain | Source::SwiGlu => (at, inside),
                Source::Gather => {
                    let named: U32 = p.from.at(row.widening_mul(4)).load_readonly_if(inside, u32::MAX);
                    // A negative number is a large one.
                    (p.x_at(named, column, bytes), named.lt(p.source_rows))
                }
            };
            let part = match tiles {
                Tiles::Whole => Part::Vector { inside: exists },
                Tiles::Parts(access) => Part::of(access, exists, column, p.columns),
            };
            let mut loaded = vec![Chunk::load(k, self.input, at, &part, policy)];
            if self.source == Source::SwiGlu {
                let up = at.at(p.columns.widening_mul(bytes));
                loaded.push(Chunk::load(k, self.input, up, &part, policy));
            }
            Piece { column, exists, part, loaded }
        };
        (0..).zip(x).map(piece).collect()
    }
}

/// One of some values.
#[track_caller]
fn pick<'k>(index: U32<'k>, values: &[F32<'k>]) -> F32<'k> {
    let (first, rest) = values.split_first().expect("there are values");
    rest.iter().zip(1u32..).fold(*first, |picked, (value, i)| index.eq(i).select(*value, picked))
}

/// The first row of a tile, and from one row of it to the next: those with blocked scales are neighbours where their
/// scales are, and these rows are 32 apart.
#[track_caller]
fn rows_of_tile<'k>(p: &Params<'k>, first: U32<'k>) -> (U32<'k>, U32<'k>) {
    let blocked = p.has(params::Flags::BLOCKED);
    let in_block = ((first & (BLOCKED_ROWS - 1)) << 5) | ((first >> 2) & 31);
    (blocked.select((first & !127) | in_block, first), blocked.select(32u32, 1u32))
}

/// What is known of the tiles of a launch.
#[derive(Clone, Copy)]
enum Tiles {
    /// All of them are whole, and there is one for each warp.
    Whole,
    /// Some may be in part outside of the matrix.
    Parts(Access),
}

/// Where the groups are that a lane has a chunk of each of.
struct Places<'k> {
    row: U32<'k>,
    group: U32<'k>,
    row_step: U32<'k>,
    group_step: U32<'k>,
}

impl<'k> Places<'k> {
    /// The row and the group of a chunk.
    #[track_caller]
    fn of(&self, chunk: U32<'k>) -> [U32<'k>; 2] {
        [self.row + chunk * self.row_step, self.group + chunk * self.group_step]
    }
}

/// Eight numbers and where they are in their row.
struct Piece<'k> {
    column: U32<'k>,
    exists: Pred<'k>,
    part: Part<'k>,
    loaded: Vec<Chunk<'k>>,
}

impl<'k> Piece<'k> {
    /// 1 where the row comes from somewhere, else 0.
    #[track_caller]
    fn presence(&self) -> F32<'k> {
        self.exists.select(1f32, 0f32)
    }

    /// The numbers, and their largest magnitudes, as a chunk has them or of FP32.
    #[track_caller]
    fn values(&self) -> (Vec<F32<'k>>, U32<'k>) {
        match &self.loaded[..] {
            [gate, up] => {
                let values: Vec<F32> =
                    gate.values().into_iter().zip(up.values()).map(|(gate, up)| silu(gate) * up).collect();
                let magnitude = magnitude_of(&values);
                (values, magnitude)
            }
            [chunk, ..] => (chunk.values(), chunk.magnitude_word()),
            [] => unreachable!("a piece has loaded something"),
        }
    }
}

/// `x / (1 + exp(-x))`.
#[track_caller]
fn silu(x: F32<'_>) -> F32<'_> {
    let falling = (x * -LOG2_E).exp2_approx();
    x * (falling + 1.0).reciprocal_approx()
}

/// The largest magnitudes of a lane's chunks, each of which some neighbouring lanes share. Every lane keeps its part of them:
/// the first lane has that of the first chunk, the next lane of the next, and so on around.
pub(super) struct LaneMagnitudes<'k> {
    lanes: u32,
    chunks: u32,
    /// As the bits of an `f32`.
    found: Vec<U32<'k>>,
}

impl<'k> LaneMagnitudes<'k> {
    /// Of each lane's largest magnitudes of each chunk, in words of a type.
    #[track_caller]
    pub fn new(k: &'k Kernel, lanes: u32, input: Input, words: Vec<U32<'k>>) -> LaneMagnitudes<'k> {
        let chunks = words.len() as u32;
        let found = match input {
            Input::Bf16 | Input::F16 if chunks.is_power_of_two() && chunks > 1 => {
                halves_shared_out(k, lanes, input, &words)
            }
            _ => {
                let own = shared_out(k, lanes, input, words);
                own.into_iter().map(|word| input.widen_larger(k, word)).collect()
            }
        };
        LaneMagnitudes { lanes, chunks, found }
    }

    /// Their scales; `scale` has what is stored of a scale, and the factor.
    #[track_caller]
    pub fn scales(self, scale: impl Fn(U32<'k>) -> (U32<'k>, F32<'k>)) -> LaneScales<'k> {
        let LaneMagnitudes { lanes, chunks, found } = self;
        LaneScales { lanes, chunks, scales: found.into_iter().map(scale).collect() }
    }
}

/// The scales of a lane's chunks, shared out as [`LaneMagnitudes`] are: none is computed twice.
pub(super) struct LaneScales<'k> {
    lanes: u32,
    chunks: u32,
    scales: Vec<(U32<'k>, F32<'k>)>,
}

impl<'k> LaneScales<'k> {
    /// What the numbers of a chunk are multiplied with.
    #[track_caller]
    pub fn factor(&self, k: &'k Kernel, chunk: u32) -> F32<'k> {
        let first = k.lane() - k.lane() % self.lanes;
        let (_, held) = self.scales[(chunk / self.lanes) as usize];
        k.shuffle(Shuffle::Index, held, first + chunk % self.lanes)
    }

    /// The scales to store: of which chunk, what, and whether it is this lane that stores it.
    #[track_caller]
    pub fn own(&self, k: &'k Kernel) -> Vec<(U32<'k>, U32<'k>, Pred<'k>)> {
        let mine = (k.lane() % self.lanes).lt(self.chunks);
        let chunk = |round: u32| k.lane() % self.lanes.min(self.chunks) + round * self.lanes;
        self.scales.iter().zip(0..).map(|((stored, _), round)| (chunk(round), *stored, mine)).collect()
    }
}

/// The largest of some neighbouring lanes' magnitudes of several chunks, shared out as [`LaneScales`] are.
#[track_caller]
fn shared_out<'k>(k: &'k Kernel, lanes: u32, input: Input, chunks: Vec<U32<'k>>) -> Vec<U32<'k>> {
    let steps = (0..lanes.trailing_zeros()).map(|bit| 1u32 << bit);
    steps.fold(chunks, |chunks, step| {
        let second = (k.lane() & step).ne(0);
        let kept = chunks.chunks(2).map(|pair| match *pair {
            // Each of two lanes keeps one of two chunks and gives the other away.
            [even, odd] => {
                let (kept, given) = (second.select(odd, even), second.select(even, odd));
                input.larger(kept, k.shuffle(Shuffle::Xor, given, step))
            }
            [only, ..] => input.larger(only, k.shuffle(Shuffle::Xor, only, step)),
            [] => unreachable!("chunks are not empty"),
        });
        kept.collect()
    })
}

/// The same of magnitudes of 16 bits, of which two chunks share a word: each lane has half as many to exchange.
#[track_caller]
fn halves_shared_out<'k>(k: &'k Kernel, lanes: u32, input: Input, chunks: &[U32<'k>]) -> Vec<U32<'k>> {
    let (first, second) = chunks.split_at(chunks.len() / 2);
    let pairs = first.iter().zip(second).map(|(a, b)| {
        let [low, high] = [0x5410u32, 0x7632].map(|order| a.permute_bytes(*b, order));
        input.larger(low, high)
    });
    let words = shared_out(k, lanes, input, pairs.collect());
    let [low, high] =
        [false, true].map(|high| words.iter().map(move |word| input.widen_half(k, *word, high)));
    let words_before = chunks.len() as u32 / 2;
    if lanes <= words_before {
        return low.chain(high).collect();
    }
    let second = (k.lane() & words_before).ne(0);
    low.zip(high).map(|(low, high)| second.select(high, low)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantize::Flags;

    #[test]
    fn tiles_are_whole_where_nothing_is_left_over() {
        let whole = |dims: [u32; 2], scale_rows, flags| {
            let config = Config { input: Input::Bf16, code: Code::E2m1, width: 16, source: Source::Plain };
            let scale_dims = [scale_rows, dims[1].div_ceil(16)];
            let (_, args) = config.launch(&Args { dims, scale_dims, flags, ..Args::default() }, false);
            args.flags & Flags::WHOLE != 0
        };
        let blocked = Flags::VECTORS | Flags::BLOCKED;
        assert!(whole([4736, 7168], 4736, blocked));
        assert!(whole([4, 1024], 4, Flags::VECTORS), "a warp has a row");
        assert!(!whole([3, 1024], 3, Flags::VECTORS), "a block has four warps");
        assert!(!whole([4, 1024], 4, 0), "not as vectors");
        assert!(!whole([4, 1008], 4, Flags::VECTORS), "columns are left over");
        assert!(!whole([132, 7168], 256, blocked), "rows are left over");
    }
}
