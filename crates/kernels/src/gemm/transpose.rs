//! Byte transpose: makes FP8 operands K-major, as the tensor core needs them.
//!
//! One launch serves one operand or two, each with all of its groups. A block takes a tile of 128 by 128 bytes. It
//! comes as 16-byte vectors into shared memory, where each thread finds 16 lines of four bytes; exchanged within
//! registers, they are four vectors along K. Eight lanes write 128 bytes of a row.

use oxigemm_ptx::{BuildError, Global, Kernel, Module, Shared, U32};
use std::ffi::c_void;

use crate::arch::Arch;
use crate::common::params::{ArgRef, kernel_params};
use crate::gemm::launch::Launch;

/// Bytes of a tile along either dimension.
pub const TILE: u32 = 128;
pub(crate) const THREADS: u32 = 256;
/// Bytes that a thread loads, and stores, at a time.
pub(crate) const VECTOR: u32 = 16;

/// Transpose of one operand: `[slabs, lines, columns]` to `[slabs, columns, lines]`, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Job {
    /// Address of the source, a multiple of 16.
    pub from: u64,
    /// Address of the result, a multiple of 16.
    pub to: u64,
    /// Lines of the source, bytes of a row of the result.
    pub lines: u32,
    /// Bytes of a line of the source, rows of the result.
    pub columns: u32,
    /// From one line of the source to the next, a multiple of 16.
    pub from_pitch: u32,
    /// From one row of the result to the next, a multiple of 128: rows are written to the end, with zeros.
    pub to_pitch: u32,
    /// From one slab of the source to the next, in vectors of 16 bytes.
    pub from_slab: u32,
    /// From one slab of the result to the next, in vectors of 16 bytes.
    pub to_slab: u32,
    /// Tiles of all slabs; 0 where there is nothing to do.
    pub tiles: u32,
}

kernel_params! {
    /// A job inside the kernel.
    struct JobParams from Job {
        from: Pointer = from,
        to: Pointer = to,
        lines: U32 = lines,
        columns: U32 = columns,
        from_pitch: U32 = from_pitch,
        to_pitch: U32 = to_pitch,
        from_slab: U32 = from_slab,
        to_slab: U32 = to_slab,
        tiles: U32 = tiles,
    }
}

/// Arguments of the transpose: the second job may be empty.
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// The operands.
    pub jobs: [Job; 2],
}

impl Args {
    /// A pointer to each argument, as a launch takes them.
    pub fn pointers(&self) -> [*mut c_void; 2 * Job::COUNT] {
        let mut all = [std::ptr::null_mut(); 2 * Job::COUNT];
        for (to, arg) in all.iter_mut().zip(self.args()) {
            *to = arg.pointer();
        }
        all
    }

    /// The arguments in the order of the kernel's parameters.
    pub fn args(&self) -> impl Iterator<Item = ArgRef<'_>> {
        self.jobs.iter().flat_map(Job::args)
    }

    /// A block for each tile.
    pub fn launch(&self) -> Launch {
        Launch {
            grid: [self.jobs[0].tiles + self.jobs[1].tiles, 1],
            threads: THREADS,
            cluster: 1,
            shared_bytes: TILE * TILE,
            ..Launch::default()
        }
    }
}

/// The kernel's name, behind that of its architecture.
pub const NAME: &str = "fp8_transpose";

/// Builds the kernel for an architecture.
pub fn build(arch: Arch) -> Result<Module, BuildError> {
    let k = &arch.kernel(NAME).threads(THREADS);
    let [first, second] = ["a_", "b_"].map(|job| JobParams::declare(k, job));
    let tile = k.dynamic_shared();
    k.name_shared("tile", 0, TILE * TILE, 1);
    let block = k.block_index(0);
    k.grid_dependency_wait();
    // The next kernel waits for all of this, and may set itself up meanwhile.
    k.launch_dependents();
    k.if_else(
        block.lt(first.tiles),
        || transpose(k, &first, block, tile),
        || transpose(k, &second, block - first.tiles, tile),
    );
    k.finish()
}

/// One tile of a job.
fn transpose<'k>(k: &'k Kernel, job: &JobParams<'k>, index: U32<'k>, tile: Shared<'k>) {
    let (line_tiles, column_tiles) = (job.lines.div_ceil(TILE), job.columns.div_ceil(TILE));
    let per_slab = line_tiles * column_tiles;
    let slab = index / per_slab;
    let within = index - slab * per_slab;
    let column_tile = within / line_tiles;
    let (line, column) = ((within - column_tile * line_tiles) * TILE, column_tile * TILE);
    let from = job.from.at(slab.widening_mul(job.from_slab) << 4);
    let to = job.to.at(slab.widening_mul(job.to_slab) << 4);

    let from = SourceMatrix { from, pitch: job.from_pitch, lines: job.lines, columns: job.columns };
    let to = ResultMatrix { to, pitch: job.to_pitch, rows: job.columns, end: None };
    transpose_tile(k, &from, &to, [line, column], tile);
}

/// Source of a tile: lines of bytes.
pub(crate) struct SourceMatrix<'k> {
    pub from: Global<'k>,
    /// From one line to the next.
    pub pitch: U32<'k>,
    pub lines: U32<'k>,
    /// Bytes of a line.
    pub columns: U32<'k>,
}

/// Result of a tile: a row for each byte of a line.
pub(crate) struct ResultMatrix<'k> {
    pub to: Global<'k>,
    /// From one row to the next.
    pub pitch: U32<'k>,
    pub rows: U32<'k>,
    /// Bytes of a row that are written, in vectors; all of the last tile where it fits.
    pub end: Option<U32<'k>>,
}

/// Transposes the tile at a line and a column; what is not there becomes 0. All threads of the block take part.
pub(crate) fn transpose_tile<'k>(
    k: &'k Kernel,
    from: &SourceMatrix<'k>,
    to: &ResultMatrix<'k>,
    at: [U32<'k>; 2],
    tile: Shared<'k>,
) {
    load(k, from, at, tile);
    k.copies_wait();
    k.sync_threads();
    store(k, to, at, tile);
}

/// Address of a vector of a line: vectors are swizzled so that neither writing lines nor reading columns has bank
/// conflicts.
pub(crate) fn vector_at<'k>(tile: Shared<'k>, line: U32<'k>, vector: U32<'k>) -> Shared<'k> {
    tile.at(line * TILE + (vector ^ (line / VECTOR)) * VECTOR)
}

fn load<'k>(k: &'k Kernel, matrix: &SourceMatrix<'k>, [line, column]: [U32<'k>; 2], tile: Shared<'k>) {
    let thread = k.thread_index();
    let (vector, first) = (thread % (TILE / VECTOR), thread / (TILE / VECTOR));
    let at = column + vector * VECTOR;
    let left = at.lt(matrix.columns).select(matrix.columns - at, 0).min(VECTOR);
    for later in (0..TILE).step_by((THREADS / (TILE / VECTOR)) as usize) {
        let line_of_tile = first + later;
        let source = line + line_of_tile;
        let present = source.lt(matrix.lines).select(left, 0);
        let from = matrix.from.at(source.widening_mul(matrix.pitch)).at(at.to_u64());
        vector_at(tile, line_of_tile, vector).copy_async_part(from, VECTOR, present);
    }
}

fn store<'k>(k: &'k Kernel, matrix: &ResultMatrix<'k>, [line, column]: [U32<'k>; 2], tile: Shared<'k>) {
    let Transposed { lines, column, vectors } = transposed(k, tile, column);
    for later in 0..4u32 {
        let row = column + later;
        let to = matrix.to.at(row.widening_mul(matrix.pitch)).at((line + lines * VECTOR).to_u64());
        let exists = row.lt(matrix.rows);
        let exists = matrix.end.map_or(exists, |end| exists & (line + lines * VECTOR).lt(end));
        k.guard(exists, || to.store_vec(vectors[later as usize]));
    }
}

/// Part of a transposed tile that a thread has: 16 lines of each of four columns.
pub(crate) struct Transposed<'k> {
    /// Which 16 lines.
    pub lines: U32<'k>,
    /// The first of the columns.
    pub column: U32<'k>,
    /// The lines of each column.
    pub vectors: [[U32<'k>; 4]; 4],
}

/// Reads a thread's part of a tile whose first column is `column`, for a block of 256 threads. The tile lies as
/// [`vector_at`] says.
pub(crate) fn transposed<'k>(k: &'k Kernel, tile: Shared<'k>, column: U32<'k>) -> Transposed<'k> {
    let (warp, lane) = (k.thread_index() / 32, k.lane());
    // A warp has 16 columns: a lane four of them, and 16 lines.
    let (lines, word) = (lane % 8, lane / 8);
    let from = vector_at(tile, lines * VECTOR, warp).at(word * 4);
    let quads = [0, 1, 2, 3]
        .map(|quad: u32| exchange([0, 1, 2, 3].map(|i| from.at((quad * 4 + i) * TILE).load::<u32>())));
    let vectors = [0, 1, 2, 3].map(|later: usize| [0, 1, 2, 3].map(|quad: usize| quads[quad][later]));
    Transposed { lines, column: column + warp * VECTOR + word * 4, vectors }
}

/// Four words of four bytes, transposed.
fn exchange<'k>([a, b, c, d]: [U32<'k>; 4]) -> [U32<'k>; 4] {
    let pairs = |low: U32<'k>, high: U32<'k>| [0x5140, 0x7362].map(|order| low.permute_bytes(high, order));
    let [ab, cd] = [pairs(a, b), pairs(c, d)];
    let both = |half: usize, order: u32| ab[half].permute_bytes(cd[half], order);
    [both(0, 0x5410), both(0, 0x7632), both(1, 0x5410), both(1, 0x7632)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::params::KernelArg;

    /// A GPU is given pointers, the simulator values: both must mean the same parameters.
    #[test]
    fn pointers_and_values_are_the_same_parameters() {
        let job = |i: u32| Job {
            from: u64::from(i),
            to: u64::from(i + 1),
            lines: i + 2,
            columns: i + 3,
            from_pitch: i + 4,
            to_pitch: i + 5,
            from_slab: i + 6,
            to_slab: i + 7,
            tiles: i + 8,
        };
        let args = Args { jobs: [job(1), job(10)] };
        let pointers = args.pointers();
        let values: Vec<KernelArg> = args.args().map(ArgRef::value).collect();
        assert_eq!(values.len(), pointers.len());
        assert_eq!(values[0], KernelArg::U64(1), "the first job comes first");
        assert_eq!(values[Job::COUNT..], args.jobs[1].values(), "then the second");
        let declared = build(Arch::Sm90a).expect("it builds").text.matches(".param .").count();
        assert_eq!(declared, pointers.len());
        assert_eq!(args.launch().grid, [9 + 18, 1]);
    }
}
