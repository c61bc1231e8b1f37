//! Scales as GEMM kernels read them: of UE8M0 exponents, one in a byte or four in a word, or of FP32 scales that TMA
//! cannot address.
//!
//! The result is MN-major with columns that TMA can address, whatever the strides of the source are. A thread has a row
//! and four columns, so a packed word; a block has 256 rows of the same columns, and stores of a warp are neighbours.

use crate::arch::Arch;
use crate::common::params::kernel_params;
use crate::gemm::Launch;
use oxigemm_ptx::{BuildError, F32, Kernel, Module, U32};

/// The kernel's name, behind that of its architecture.
pub const NAME: &str = "unpack_ue8m0_scales";
const THREADS: u32 = 256;
/// Columns of a thread: the exponents of a packed word.
pub const COLUMNS: u32 = 4;

/// Scales of one operand: `[slabs, rows, columns]` exponents, rows along M or N and columns along K.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Job {
    /// Address of the exponents.
    pub from: u64,
    /// Address of the FP32 scales.
    pub to: u64,
    /// From one slab of the source to the next, in elements of the source.
    pub from_slab: u64,
    /// Rows of a slab.
    pub rows: u32,
    /// Columns of a slab.
    pub columns: u32,
    /// From one row of the source to the next, in elements of the source.
    pub row_stride: u32,
    /// From four columns of the source to the next four, in elements of the source.
    pub word_stride: u32,
    /// From one column of the source to the next inside of four, in bytes.
    pub byte_stride: u32,
    /// Bytes of an element of the source, as a shift: 0 for bytes, 2 for packed words.
    pub shift: u32,
    /// From one column of the result to the next, in scales; slabs follow each other.
    pub pitch: u32,
    /// Blocks of all slabs; 0 where there is nothing to do.
    pub blocks: u32,
    /// Whether the source is FP32, and copied.
    pub is_f32: u32,
}

kernel_params! {
    /// A job inside the kernel.
    struct JobParams from Job {
        from: Pointer = from,
        to: Pointer = to,
        from_slab: U64 = from_slab,
        rows: U32 = rows,
        columns: U32 = columns,
        row_stride: U32 = row_stride,
        word_stride: U32 = word_stride,
        byte_stride: U32 = byte_stride,
        shift: U32 = shift,
        pitch: U32 = pitch,
        blocks: U32 = blocks,
        is_f32: U32 = is_f32,
    }
}

/// Blocks for so many slabs, rows and columns.
pub fn blocks(slabs: u64, rows: u32, columns: u32) -> u64 {
    slabs * u64::from(columns.div_ceil(COLUMNS)) * u64::from(rows.div_ceil(THREADS))
}

/// Launch of two jobs, of which the second may be empty.
pub fn launch(jobs: &[Job; 2]) -> Launch {
    let grid = [jobs[0].blocks + jobs[1].blocks, 1];
    Launch { grid, threads: THREADS, cluster: 1, shared_bytes: 0, ..Launch::default() }
}

/// The FP32 scale of an exponent: 2^(e - 127), and NaN for 255.
///
/// ```
/// use oxigemm_kernels::gemm::unpack_scales::scale;
///
/// assert_eq!((scale(127), scale(130), scale(0)), (1.0, 8.0, f32::from_bits(0x0040_0000)));
/// assert!(scale(255).is_nan());
/// ```
pub fn scale(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 => SMALLEST,
        255 => NAN,
        e => u32::from(e) << 23,
    })
}

/// 2^-127, a subnormal.
const SMALLEST: u32 = 0x0040_0000;
const NAN: u32 = 0x7fff_ffff;

/// Builds the kernel for an architecture.
pub fn build(arch: Arch) -> Result<Module, BuildError> {
    let k = &arch.kernel(NAME).threads(THREADS);
    let [first, second] = ["a_", "b_"].map(|job| JobParams::declare(k, job));
    let block = k.block_index(0);
    k.grid_dependency_wait();
    // The next kernel waits for all of this, and may set itself up meanwhile.
    k.launch_dependents();
    k.if_else(
        block.lt(first.blocks),
        || unpack(k, &first, block),
        || unpack(k, &second, block - first.blocks),
    );
    k.finish()
}

/// Four columns of 256 rows of a job.
fn unpack<'k>(k: &'k Kernel, job: &JobParams<'k>, index: U32<'k>) {
    let (down, across) = (job.rows.div_ceil(THREADS), job.columns.div_ceil(COLUMNS));
    let strip = index / down;
    let slab = strip / across;
    let (quad, row) = (strip - slab * across, (index - strip * down) * THREADS + k.thread_index());
    let element =
        job.from_slab * slab.to_u64() + row.widening_mul(job.row_stride) + quad.widening_mul(job.word_stride);
    let from = job.from.at(element << job.shift);
    let column = quad * COLUMNS;
    let of_slab = slab.widening_mul(job.columns) + column.to_u64();
    let to = job.to.at((of_slab * job.pitch.to_u64() + row.to_u64()) << 2);
    let inside = |i: u32| row.lt(job.rows) & (column + i).lt(job.columns);
    let at = |i: u32| from.at(job.byte_stride.widening_mul(i));
    let store = |i: u32, scale: F32<'k>| {
        k.guard(inside(i), || to.at(job.pitch.widening_mul(4 * i)).store(scale));
    };
    k.if_else(
        job.is_f32.ne(0),
        || {
            let scales: Vec<F32> = (0..COLUMNS).map(|i| at(i).load_if(inside(i), 0.0)).collect();
            (0..COLUMNS).zip(scales).for_each(|(i, scale)| store(i, scale));
        },
        || {
            let exponents: Vec<U32> = (0..COLUMNS).map(|i| at(i).load_readonly_byte_if(inside(i))).collect();
            for (i, exponent) in (0..COLUMNS).zip(exponents) {
                let bits = exponent.eq(0).select(SMALLEST, exponent.eq(255).select(NAN, exponent << 23));
                store(i, bits.bitcast());
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_declares_the_parameters_of_two_jobs() {
        let declared = build(Arch::Sm90a).expect("it builds").text.matches(".param .").count();
        assert_eq!(declared, 2 * Job::COUNT);
    }

    #[test]
    fn blocks_cover_all_rows_and_columns() {
        assert_eq!(blocks(1, 1, 1), 1);
        assert_eq!(blocks(3, 257, 9), 3 * 2 * 3);
        let jobs = [Job { blocks: 5, ..Job::default() }, Job { blocks: 2, ..Job::default() }];
        assert_eq!(launch(&jobs).grid, [7, 1]);
    }
}
