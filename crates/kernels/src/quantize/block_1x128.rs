//! 1x128, 1x32 and 1x16 block scales: one scale for 128, 32 or 16 neighbours of a row.
//!
//! `scale = max(amax, 1e-4) / max_finite`, `code = x / scale`. A block is the `Vec8`s of a few lanes, so that shuffles
//! reduce its amax. The `Vec8`s that a warp has in flight are a tile of some rows by some blocks. The launch chooses
//! its shape: along a row where scales are row-major, along the rows where they are MN-major, and every 32nd of four
//! rows where they are blocked. So the scales of a warp are neighbours in memory, and their stores coalesce.
//!
//! 1x16 blocks are those of NVFP4: their scales are e4m3, below one per-tensor scale.

use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Global, Kernel, Pred, U32};

use super::params::{Args, Flags, Launch, Params, by_access};
use super::scale::{Scale, ScaleLayout, TensorScale};
use super::vec8::{Access, Code, Input, Mask, VEC8, Vec8, amax_of, store_codes, strided_addresses};
use crate::common::WARP;
use crate::common::fast_divmod::FastDivmod;

/// Threads of a CTA: few, so that a small matrix reaches every SM.
pub const THREADS: u32 = 128;
/// Elements of an NVFP4 block.
pub const NVFP4_WIDTH: u32 = 16;
/// Rows whose scales are neighbours in the blocked layout.
const BLOCKED_ROWS: u32 = 4;
/// log2(e), for the exponential of SwiGLU.
const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// Source of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The matrix.
    Plain,
    /// SwiGLU, `silu(gate) * up`: each row has the gates, then the ups.
    SwiGlu,
    /// Gather: rows of the matrix that a list names. Where it names none, nothing is stored.
    Gather,
}

/// Configuration of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Input type.
    pub input: Input,
    /// Output type.
    pub code: Code,
    /// Elements of a block: 128, 32 or 16.
    pub width: u32,
    /// Source of the numbers.
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
        // Tokens of experts whose weights have scales of 32.
        let gather_32 =
            Input::ALL.map(|input| Config { input, code: Code::E4m3, width: 32, source: Source::Gather });
        plain.chain(fp4).chain(fused).chain(gather_32)
    }

    pub(super) fn name(&self) -> String {
        let source = match self.source {
            Source::Plain => "",
            Source::SwiGlu => "_swiglu",
            Source::Gather => "_gather",
        };
        format!("quantize_1x{}{source}_{}_{}", self.width, self.input.name(), self.code.name())
    }

    /// CTAs per SM.
    pub(super) const fn resident(&self) -> u32 {
        match (self.source, self.input) {
            (_, Input::F16 | Input::F32) if self.width == NVFP4_WIDTH => 7,
            (Source::SwiGlu, Input::F32) => 7,
            (Source::SwiGlu, _) => 10,
            (Source::Plain, Input::Bf16) => 9,
            _ => 8,
        }
    }

    /// Type of the values whose amax is taken.
    const fn amax_type(&self) -> Input {
        match self.source {
            Source::SwiGlu => Input::F32,
            Source::Plain | Source::Gather => self.input,
        }
    }

    /// Lanes of a block.
    const fn lanes(&self) -> u32 {
        self.width / VEC8
    }

    /// Blocks from a `Vec8` of a lane to its next.
    const fn blocks_per_warp(&self) -> u32 {
        WARP / self.lanes()
    }

    /// Blocks of a warp's tile.
    const fn tile_blocks(&self) -> u32 {
        self.vecs() * WARP / self.lanes()
    }

    /// `Vec8`s that a lane has in flight.
    const fn vecs(&self) -> u32 {
        match self.source {
            Source::Plain | Source::Gather => 4,
            // A gate and an up each.
            Source::SwiGlu => 2,
        }
    }

    /// Launch shape for scales that are contiguous along M (`mn_major`) or along K, and its arguments.
    pub fn launch(&self, args: &Args, mn_major: bool) -> (Launch, Args) {
        let [rows, columns] = args.scale_dims;
        let has = |flag| args.flags & flag != 0;
        let blocked = has(Flags::BLOCKED);
        let wanted = match (mn_major, blocked) {
            (true, _) => 8,
            (_, true) => BLOCKED_ROWS,
            (false, false) => 1,
        };
        let across = (self.tile_blocks() / wanted).max(1);
        // Blocks that a row does not have would leave lanes idle.
        let across = if blocked { across } else { across.min(columns.next_power_of_two()).max(1) };
        // Four exponents are one word; and the `Vec8`s of a lane follow each other along a row, or down a column.
        let across = if has(Flags::BYTES) || across > 1 { across.max(self.vecs()) } else { across };
        let down = self.tile_blocks() / across;
        let apart = self.blocks_per_warp();
        let row_step = if blocked { WARP } else { 1 };
        let vec_step = [apart % down * row_step, apart / down, 0];
        let row_tiles = rows.div_ceil(down);
        let column_tiles = columns.div_ceil(across);
        let warps = u64::from(row_tiles) * u64::from(column_tiles);
        let ctas = warps.div_ceil(u64::from(THREADS / WARP)) as u32;
        let shifts = [down.trailing_zeros(), across.trailing_zeros()];
        let rows_of_tiles = if blocked { BLOCKED_ROWS * WARP } else { down };
        let full = has(Flags::VECTORS)
            && args.dims[0].is_multiple_of(rows_of_tiles)
            && args.dims[1].is_multiple_of(across * self.width)
            && warps.is_multiple_of(u64::from(THREADS / WARP))
            && args.scale_dims == [args.dims[0], args.dims[1] / self.width];
        let flags = args.flags | if full { Flags::FULL_TILES } else { 0 };
        let items_per_row = FastDivmod::new(column_tiles);
        let args = Args { shifts, items_per_row, aux_strides: vec_step, flags, ..*args };
        (Launch { grid: [ctas, 1], threads: THREADS, shared_bytes: 0 }, args)
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        let partial = || by_access(k, p, |access| self.tile(k, p, Tiles::Partial(access)));
        match self.code {
            Code::E4m3 | Code::E5m2 => partial(),
            // FP4 is limited by instructions as much as by memory, and full tiles need no bounds checks.
            Code::E2m1 => k.if_else(p.has(Flags::FULL_TILES), || self.tile(k, p, Tiles::Full), partial),
        }
    }

    /// One warp's tile.
    fn tile<'k>(&self, k: &'k Kernel, p: &Params<'k>, tiles: Tiles) {
        let (lanes, lane) = (self.lanes(), k.lane());
        let warp = k.block_index(0) * (THREADS / WARP) + (k.thread_index() >> 5);
        let [tile_row, tile_column] = p.divmod(warp);
        let [down, across] = p.shifts();
        let (first_row, step) = rows_of_tile(p, tile_row << down);
        let block_of_warp = lane / lanes;
        let [row_step, block_step, _] = p.aux_strides();
        let positions = LanePositions {
            row: first_row + (block_of_warp & ((k.constant(1) << down) - 1)) * step,
            block: (tile_column << across) + (block_of_warp >> down),
            row_step,
            block_step,
        };
        let fragments = self.fragments(k, p, &positions, tiles);
        let tensor = (self.width == NVFP4_WIDTH).then(|| TensorScale::load(p));
        let (values, amaxes): (Vec<_>, Vec<_>) = fragments.iter().map(Fragment::values).unzip();
        let found = LaneAmax::new(k, lanes, self.amax_type(), amaxes);
        let scales = found.scales(|amax| match &tensor {
            None => Scale::of(p, self.code, amax).bits_and_factor(),
            Some(tensor) => tensor.block_scale(k, amax),
        });
        let code_step = row_step.widening_mul(p.codes_pitch)
            + (block_step * (self.width / self.code.per_byte())).to_u64();
        let codes_at = strided_addresses(
            self.vecs(),
            p.codes_at(positions.row, fragments[0].column, self.code),
            code_step,
        );
        for (((i, fragment), values), at) in (0..).zip(&fragments).zip(&values).zip(codes_at) {
            let factor = scales.factor(k, i);
            let codes = match self.code {
                Code::E4m3 | Code::E5m2 => {
                    self.code.encode(k, &values.iter().map(|value| *value * factor).collect::<Vec<_>>())
                }
                Code::E2m1 => fragment.loaded[0].encode_e2m1(factor),
            };
            store_codes(k, &codes, at, &fragment.mask, p.evict_last);
        }
        let [scale_rows, scale_columns] = p.scale_dims();
        let layout = ScaleLayout::new(p);
        for (vec, scale, is_owner) in scales.owned(k) {
            let [row, block] = positions.of(vec);
            let real = row.lt(p.rows) & (block * self.width).lt(p.columns);
            let wanted = is_owner & row.lt(scale_rows) & block.lt(scale_columns);
            let (real, wanted) = match tiles {
                Tiles::Full => (k.constant(true), is_owner),
                Tiles::Partial(_) => (real, wanted),
            };
            // Rows without a source have no scales, as they have no codes.
            let wanted = match self.source {
                Source::Plain | Source::SwiGlu => wanted,
                Source::Gather => {
                    let presence: Vec<F32> = fragments.iter().map(Fragment::presence).collect();
                    wanted & pick(vec, &presence).gt(0.0)
                }
            };
            let at = p.scales.at(layout.offset(row, block));
            match tensor {
                None => layout.store(k, at, real.select(scale, 0u32).bitcast(), wanted),
                Some(_) => k.guard(wanted, || at.store_byte(real.select(scale, 0u32))),
            }
        }
    }

    /// Fragments of a lane in its warp's tile.
    fn fragments<'k>(
        &self,
        k: &'k Kernel,
        p: &Params<'k>,
        positions: &LanePositions<'k>,
        tiles: Tiles,
    ) -> Vec<Fragment<'k>> {
        let column = positions.block * self.width + k.lane() % self.lanes() * VEC8;
        let bytes = self.input.bytes();
        let apart = positions.row_step.widening_mul(p.x_pitch) + (positions.block_step * self.width).to_u64();
        let x =
            strided_addresses(self.vecs(), p.x_at(positions.row, column, bytes), apart * u64::from(bytes));
        let policy = match self.source {
            Source::Plain | Source::SwiGlu => Some(p.evict_first),
            // Several experts may read the row.
            Source::Gather => None,
        };
        let fragment = |(i, at): (u32, Global<'k>)| {
            let row = positions.row + positions.row_step * i;
            let column = column + positions.block_step * (i * self.width);
            let inside = match tiles {
                Tiles::Full => k.constant(true),
                Tiles::Partial(_) => row.lt(p.rows),
            };
            let (at, exists) = match self.source {
                Source::Plain | Source::SwiGlu => (at, inside),
                Source::Gather => {
                    let named: U32 = p.aux.at(row.widening_mul(4)).load_readonly_if(inside, u32::MAX);
                    // As an unsigned number, a negative index is too large.
                    (p.x_at(named, column, bytes), named.lt(p.source_rows))
                }
            };
            let mask = match tiles {
                Tiles::Full => Mask::Vector { inside: exists },
                Tiles::Partial(access) => Mask::of(access, exists, column, p.columns),
            };
            let mut loaded = vec![Vec8::load(k, self.input, at, &mask, policy)];
            if self.source == Source::SwiGlu {
                let up = at.at(p.columns.widening_mul(bytes));
                loaded.push(Vec8::load(k, self.input, up, &mask, policy));
            }
            Fragment { column, exists, mask, loaded }
        };
        (0..).zip(x).map(fragment).collect()
    }
}

/// Selects one of some values.
#[track_caller]
fn pick<'k>(index: U32<'k>, values: &[F32<'k>]) -> F32<'k> {
    let (first, rest) = values.split_first().expect("there are values");
    rest.iter().zip(1u32..).fold(*first, |picked, (value, i)| index.eq(i).select(*value, picked))
}

/// First row of a tile, and the step between its rows. With blocked scales, rows that are 32 apart have neighbouring
/// scales.
#[track_caller]
fn rows_of_tile<'k>(p: &Params<'k>, first: U32<'k>) -> (U32<'k>, U32<'k>) {
    let blocked = p.has(Flags::BLOCKED);
    let in_block = ((first & (BLOCKED_ROWS - 1)) << 5) | ((first >> 2) & 31);
    (blocked.select((first & !127) | in_block, first), blocked.select(32u32, 1u32))
}

/// Tiles of a launch.
#[derive(Clone, Copy)]
enum Tiles {
    /// All are full, and every warp has one.
    Full,
    /// Some may be partly outside of the matrix.
    Partial(Access),
}

/// Positions of a lane's `Vec8`s: row and block of the first, and the steps to the next.
struct LanePositions<'k> {
    row: U32<'k>,
    block: U32<'k>,
    row_step: U32<'k>,
    block_step: U32<'k>,
}

impl<'k> LanePositions<'k> {
    /// Row and block of a `Vec8`.
    #[track_caller]
    fn of(&self, vec: U32<'k>) -> [U32<'k>; 2] {
        [self.row + vec * self.row_step, self.block + vec * self.block_step]
    }
}

/// `Vec8`s of a lane at one position: one, or gate and up.
struct Fragment<'k> {
    column: U32<'k>,
    exists: Pred<'k>,
    mask: Mask<'k>,
    loaded: Vec<Vec8<'k>>,
}

impl<'k> Fragment<'k> {
    /// 1 where the row has a source, else 0.
    #[track_caller]
    fn presence(&self) -> F32<'k> {
        self.exists.select(1f32, 0f32)
    }

    /// Values, and a word with their amax: of the input type, or FP32 after SwiGLU.
    #[track_caller]
    fn values(&self) -> (Vec<F32<'k>>, U32<'k>) {
        match &self.loaded[..] {
            [gate, up] => {
                let values: Vec<F32> =
                    gate.values().into_iter().zip(up.values()).map(|(gate, up)| silu(gate) * up).collect();
                let amax = amax_of(&values);
                (values, amax)
            }
            [vec, ..] => (vec.values(), vec.amax_word()),
            [] => unreachable!("a fragment has loaded something"),
        }
    }
}

/// `x / (1 + exp(-x))`.
#[track_caller]
fn silu(x: F32<'_>) -> F32<'_> {
    let falling = (x * -LOG2_E).exp2_approx();
    x * (falling + 1.0).reciprocal_approx()
}

/// Amax of the blocks that some neighbouring lanes have in common, scattered over these lanes: the first lane has that
/// of the first `Vec8`, the next lane that of the next, and so on around.
pub(super) struct LaneAmax<'k> {
    lanes: u32,
    vecs: u32,
    /// Bits of an `f32`.
    found: Vec<U32<'k>>,
}

impl<'k> LaneAmax<'k> {
    /// Reduces each lane's amax of each `Vec8`, given as words of the input type.
    #[track_caller]
    pub fn new(k: &'k Kernel, lanes: u32, input: Input, words: Vec<U32<'k>>) -> LaneAmax<'k> {
        let vecs = words.len() as u32;
        let found = match input {
            Input::Bf16 | Input::F16 if vecs.is_power_of_two() && vecs > 1 => {
                reduce_scatter_halves(k, lanes, input, &words)
            }
            _ => {
                let own = reduce_scatter(k, lanes, input, words);
                own.into_iter().map(|word| input.widen_larger(k, word)).collect()
            }
        };
        LaneAmax { lanes, vecs, found }
    }

    /// Scales of the blocks; `scale` returns the bits to store, and the factor.
    #[track_caller]
    pub fn scales(self, scale: impl Fn(U32<'k>) -> (U32<'k>, F32<'k>)) -> LaneScales<'k> {
        let LaneAmax { lanes, vecs, found } = self;
        LaneScales { lanes, vecs, scales: found.into_iter().map(scale).collect() }
    }
}

/// Scales of the blocks, scattered as [`LaneAmax`] is: none is computed twice.
pub(super) struct LaneScales<'k> {
    lanes: u32,
    vecs: u32,
    scales: Vec<(U32<'k>, F32<'k>)>,
}

impl<'k> LaneScales<'k> {
    /// Factor of a `Vec8`.
    #[track_caller]
    pub fn factor(&self, k: &'k Kernel, vec: u32) -> F32<'k> {
        let first = k.lane() - k.lane() % self.lanes;
        let (_, held) = self.scales[(vec / self.lanes) as usize];
        k.shuffle(Shuffle::Index, held, first + vec % self.lanes)
    }

    /// Scales that this lane may store: index of the `Vec8`, bits, and whether the lane owns it.
    #[track_caller]
    pub fn owned(&self, k: &'k Kernel) -> Vec<(U32<'k>, U32<'k>, Pred<'k>)> {
        let is_owner = (k.lane() % self.lanes).lt(self.vecs);
        let vec = |nth: u32| k.lane() % self.lanes.min(self.vecs) + nth * self.lanes;
        self.scales.iter().zip(0..).map(|((stored, _), nth)| (vec(nth), *stored, is_owner)).collect()
    }
}

/// Reduce-scatter (maximum) of several values over some neighbouring lanes.
#[track_caller]
fn reduce_scatter<'k>(k: &'k Kernel, lanes: u32, input: Input, vecs: Vec<U32<'k>>) -> Vec<U32<'k>> {
    let steps = (0..lanes.trailing_zeros()).map(|bit| 1u32 << bit);
    steps.fold(vecs, |vecs, step| {
        let second = (k.lane() & step).ne(0);
        let kept = vecs.chunks(2).map(|pair| match *pair {
            // Each of two lanes keeps one of two values and sends the other.
            [even, odd] => {
                let (kept, sent) = (second.select(odd, even), second.select(even, odd));
                input.larger(kept, k.shuffle(Shuffle::Xor, sent, step))
            }
            [only, ..] => input.larger(only, k.shuffle(Shuffle::Xor, only, step)),
            [] => unreachable!("a pair is not empty"),
        });
        kept.collect()
    })
}

/// The same for 16-bit values, two in a word: each lane exchanges half as many.
#[track_caller]
fn reduce_scatter_halves<'k>(k: &'k Kernel, lanes: u32, input: Input, vecs: &[U32<'k>]) -> Vec<U32<'k>> {
    let (first, second) = vecs.split_at(vecs.len() / 2);
    let pairs = first.iter().zip(second).map(|(a, b)| {
        let [low, high] = [0x5410u32, 0x7632].map(|order| a.permute_bytes(*b, order));
        input.larger(low, high)
    });
    let words = reduce_scatter(k, lanes, input, pairs.collect());
    let [low, high] =
        [false, true].map(|high| words.iter().map(move |word| input.widen_half(k, *word, high)));
    let words_before = vecs.len() as u32 / 2;
    if lanes <= words_before {
        return low.chain(high).collect();
    }
    let second = (k.lane() & words_before).ne(0);
    low.zip(high).map(|(low, high)| second.select(high, low)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_full_where_nothing_is_left_over() {
        let is_full = |dims: [u32; 2], scale_rows, flags| {
            let config = Config { input: Input::Bf16, code: Code::E2m1, width: 16, source: Source::Plain };
            let scale_dims = [scale_rows, dims[1].div_ceil(16)];
            let (_, args) = config.launch(&Args { dims, scale_dims, flags, ..Args::default() }, false);
            args.flags & Flags::FULL_TILES != 0
        };
        let blocked = Flags::VECTORS | Flags::BLOCKED;
        assert!(is_full([4736, 7168], 4736, blocked));
        assert!(is_full([4, 1024], 4, Flags::VECTORS), "a warp has a row");
        assert!(!is_full([3, 1024], 3, Flags::VECTORS), "a CTA has four warps");
        assert!(!is_full([4, 1024], 4, 0), "not as vectors");
        assert!(!is_full([4, 1008], 4, Flags::VECTORS), "columns are left over");
        assert!(!is_full([132, 7168], 256, blocked), "rows are left over");
    }
}
