//! One scale for the whole matrix.
//!
//! Where the multiprocessors hold the matrix among them, one kernel reads it once: its blocks [meet](super::meeting) to find the scale,
//! and convert. A larger one is read twice, by two kernels. The first finds the scale. A scale grows with the magnitude, so the scale of all is the largest of the blocks' own scales: an
//! atomic maximum in memory, which starts as 0, and whose order does not matter. The second converts.

use oxigemm_ptx::memory::AtomicOp;
use oxigemm_ptx::tma::CachePolicy;
use oxigemm_ptx::{F32, Kernel, Ptr, Scope, U32};

use super::by_access;
use super::chunk::{Access, CHUNK, Chunk, Code, Input, Part, store_codes};
use super::meeting::{self, Meeting};
use super::params::{Args, Divisor, Flags, Launch, Params, bits};
use super::scale::{Scale, ScalePlaces, TensorScale};
use super::tiles::{self, of_block};

/// Threads of a block.
pub const THREADS: u32 = tiles::THREADS;
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

/// Chunks: row, column, what there is, and the numbers.
type Loaded<'k> = Vec<(U32<'k>, U32<'k>, Part<'k>, Chunk<'k>)>;

/// Chunks of a matrix, row after row.
struct Chunks<'k> {
    input: Input,
    access: Access,
    policy: Option<CachePolicy<'k>>,
}

impl<'k> Chunks<'k> {
    /// The chunk of a number: its row, its column, what there is of it, and its numbers.
    #[track_caller]
    fn load(&self, k: &'k Kernel, p: &Params<'k>, index: U32<'k>) -> (U32<'k>, U32<'k>, Part<'k>, Chunk<'k>) {
        let [row, chunk] = p.split(index);
        let column = chunk * CHUNK;
        let part = Part::of(self.access, row.lt(p.rows), column, p.columns);
        let chunk = Chunk::load(k, self.input, p.x_at(row, column, self.input.bytes()), &part, self.policy);
        (row, column, part, chunk)
    }
}

/// Blocks that are enough if each has so many chunks, and the arguments that go with them. How many chunks there are fits in 31 bits.
fn blocks(args: &Args, chunks_each: u32) -> (u32, Args) {
    let across = args.dims[1].div_ceil(CHUNK);
    let chunks = u64::from(args.dims[0]) * u64::from(across);
    (chunks.div_ceil(u64::from(chunks_each)) as u32, Args { across: Divisor::new(across), ..*args })
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
        let (blocks, args) = blocks(args, THREADS * CHUNKS);
        let grid = [blocks.min(sms * self.resident()), 1];
        (Launch { grid, threads: THREADS, shared_bytes: 4 * THREADS / 32 }, args)
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        let found = k.var(0u32);
        by_access(k, p, |access| {
            let all = p.rows * p.columns.div_ceil(CHUNK);
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
        });
        let largest = match self.code {
            Code::E4m3 | Code::E5m2 => self.code.largest(),
            Code::E2m1 => TensorScale::LARGEST,
        };
        let scale = Scale::up_to(p, largest, of_block(k, found.get()));
        k.guard(k.thread_index().eq(0), || p.scales.reduce(AtomicOp::Max, bits(scale.scale), Scope::Gpu));
    }
}

impl CodesConfig {
    pub(super) fn name(&self) -> String {
        format!("quantize_whole_{}_{}", self.input.name(), self.code.name())
    }

    /// The launch, and the arguments that go with it.
    pub fn launch(&self, args: &Args) -> (Launch, Args) {
        let (blocks, args) = blocks(args, THREADS * CHUNKS);
        (Launch { grid: [blocks, 1], threads: THREADS, shared_bytes: 0 }, args)
    }

    /// The launch on `sms` multiprocessors that finds the scale too, where they hold the matrix and it is made of vectors, and the
    /// arguments that go with it; but for the room of [`ROOM_BYTES`](meeting::ROOM_BYTES) where the blocks meet, whose address is `group_stride`.
    pub fn launch_alone(&self, args: &Args, sms: u32) -> Option<(Launch, Args)> {
        let (blocks, args) = blocks(args, THREADS);
        let most = sms.min(meeting::MOST_BLOCKS);
        let launch =
            Launch { grid: [blocks.min(most), 1], threads: THREADS, shared_bytes: meeting::SHARED_BYTES };
        let args = Args { flags: args.flags | Flags::MEETING, ..args };
        let held = args.flags & Flags::VECTORS != 0 && blocks <= most * CHUNKS;
        held.then_some((launch, args))
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        let meets = p.has(Flags::MEETING);
        k.if_else(meets, || self.meet(k, p), || by_access(k, p, |access| self.convert(k, p, access)));
    }

    /// What a thread has, by a scale that is there.
    fn convert<'k>(&self, k: &'k Kernel, p: &Params<'k>, access: Access) {
        let first = k.block_index(0) * (THREADS * CHUNKS) + k.thread_index();
        let loaded = self.load(k, p, access, first, k.constant(THREADS));
        let scale = ScalePlaces::new(p).load(p.scales, k.constant(true));
        self.store(k, p, &loaded, scale);
    }

    /// What a thread has, by a scale that the blocks find.
    fn meet<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        let meeting = Meeting { k, room: Ptr::new(p.group_stride) };
        let turn = meeting.turn();
        let first = k.block_index(0) * THREADS + k.thread_index();
        let loaded = self.load(k, p, Access::Vectors, first, k.grid_blocks(0) * THREADS);
        let words = loaded.iter().map(|(_, _, _, chunk)| chunk.magnitude_word());
        let word = words.reduce(|a, b| self.input.larger(a, b)).expect("a thread has chunks");
        let own = meeting.tell(turn, self.input.widen_larger(k, word));
        let scale = k.var_from(Scale::of(p, self.code, own).scale);
        // Before a block hears the others it converts by its own scale: then codes have their places in the cache, and instructions too,
        // when they are waited for.
        k.for_(0, 2, 1, |pass| {
            self.store(k, p, &loaded, scale.get());
            k.if_(pass.eq(0), || {
                let of_all = Scale::of(p, self.code, meeting.hear(turn)).scale;
                k.guard((k.thread_index() | k.block_index(0)).eq(0), || p.scales.store(of_all));
                scale.set(of_all);
            });
        });
    }

    #[track_caller]
    fn load<'k>(
        &self,
        k: &'k Kernel,
        p: &Params<'k>,
        access: Access,
        first: U32<'k>,
        step: U32<'k>,
    ) -> Loaded<'k> {
        let chunks = Chunks { input: self.input, access, policy: Some(p.read_once) };
        (0..CHUNKS).map(|i| chunks.load(k, p, first + step * i)).collect()
    }

    #[track_caller]
    fn store<'k>(&self, k: &'k Kernel, p: &Params<'k>, loaded: &Loaded<'k>, scale: F32<'k>) {
        let scale = Scale::given(scale);
        for (row, column, part, chunk) in loaded {
            let codes = scale.encode(k, self.code, &chunk.values());
            store_codes(k, &codes, p.codes_at(*row, *column, self.code), part, p.kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_meet_where_multiprocessors_hold_the_matrix() {
        let config = CodesConfig { input: Input::Bf16, code: Code::E4m3 };
        let blocks = |dims, sms| {
            let args = Args { dims, flags: Flags::VECTORS, ..Args::default() };
            let launch = config.launch_alone(&args, sms);
            launch.map(|(launch, _)| launch.grid[0])
        };
        assert_eq!([blocks([1, 8], 132), blocks([3, 2048], 132)], [Some(1), Some(3)]);
        assert_eq!([blocks([128, 7168], 132), blocks([132, 8192], 132)], [Some(132); 2]);
        assert_eq!([blocks([132, 8193], 132), blocks([128, 7168], 100)], [None; 2]);
        assert_eq!([blocks([256, 8192], 300), blocks([257, 8192], 300)], [Some(256), None]);
    }
}
