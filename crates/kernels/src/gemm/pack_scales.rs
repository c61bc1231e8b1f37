//! Scales as the tensor core of Blackwell reads them: words of four bytes along K, of FP32 scales, of bytes, or of words
//! in which a scale holds for more of K or for more rows.
//!
//! FP32 scales become UE8M0 by their exponent: what is no power of two is rounded down to one, and the sign is dropped.
//! Bytes, of UE8M0 or of E4M3, stay as they are. The result is MN-major, whatever the strides of the source are. A
//! thread has a word; a block has 256 rows of the same word, and stores of a warp are neighbours.

use crate::arch::Arch;
use crate::common::params::kernel_params;
use crate::gemm::Launch;
use oxigemm_ptx::{BuildError, F32, Kernel, Module, U32};

/// The kernel's name, behind that of its architecture.
pub const NAME: &str = "pack_scales";
const THREADS: u32 = 256;
/// Scales of a word.
pub const COLUMNS: u32 = 4;

/// Scales of one operand: `[slabs, rows, columns]`, rows along M or N and columns along K.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Job {
    /// Address of the source.
    pub from: u64,
    /// Address of the words.
    pub to: u64,
    /// From one slab of the source to the next, in elements of the source.
    pub from_slab: u64,
    /// Rows of a slab of the result.
    pub rows: u32,
    /// Scales of a row of the result. What is left of its last word is 0.
    pub columns: u32,
    /// From one row of the source to the next, in elements of the source.
    pub row_stride: u32,
    /// From four columns of the source to the next four, in elements of the source.
    pub word_stride: u32,
    /// From one column of the source to the next inside of four, in bytes.
    pub byte_stride: u32,
    /// Bytes of an element of the source, as a shift: 0 for bytes, 2 for packed words and FP32.
    pub shift: u32,
    /// Rows of the result that share a row of the source, as a shift.
    pub row_shift: u32,
    /// Columns of the result that share a column of the source, as a shift.
    pub column_shift: u32,
    /// From one word of a row of the result to the next, in words; slabs follow each other.
    pub pitch: u32,
    /// Blocks of all slabs; 0 where there is nothing to do.
    pub blocks: u32,
    /// Whether the source is FP32.
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
        row_shift: U32 = row_shift,
        column_shift: U32 = column_shift,
        pitch: U32 = pitch,
        blocks: U32 = blocks,
        is_f32: U32 = is_f32,
    }
}

/// Blocks for so many slabs, rows and columns of the result.
pub fn blocks(slabs: u64, rows: u32, columns: u32) -> u64 {
    slabs * u64::from(columns.div_ceil(COLUMNS)) * u64::from(rows.div_ceil(THREADS))
}

/// Launch of two jobs, each of which may be empty.
pub fn launch(jobs: &[Job; 2]) -> Launch {
    let grid = [jobs[0].blocks + jobs[1].blocks, 1];
    Launch { grid, threads: THREADS, cluster: 1, shared_bytes: 0, ..Launch::default() }
}

/// The UE8M0 code of an FP32 scale: its exponent, so that of the next power of two towards zero; 255, which is NaN, of an
/// infinity and of NaN.
///
/// ```
/// use oxigemm_kernels::gemm::pack_scales::exponent;
///
/// assert_eq!((exponent(1.0), exponent(0.75), exponent(-8.0)), (127, 126, 130));
/// assert_eq!((exponent(0.0), exponent(f32::NAN)), (0, 255));
/// ```
pub fn exponent(scale: f32) -> u8 {
    (scale.to_bits() >> 23) as u8
}

/// Builds the kernel for an architecture.
pub fn build(arch: Arch) -> Result<Module, BuildError> {
    let k = &arch.kernel(NAME).threads(THREADS);
    let [first, second] = ["a_", "b_"].map(|job| JobParams::declare(k, job));
    let block = k.block_index(0);
    k.grid_dependency_wait();
    // The next kernel waits for all of this, and may set itself up meanwhile.
    k.launch_dependents();
    k.if_else(block.lt(first.blocks), || pack(k, &first, block), || pack(k, &second, block - first.blocks));
    k.finish()
}

/// One word of 256 rows of a job.
fn pack<'k>(k: &'k Kernel, job: &JobParams<'k>, index: U32<'k>) {
    let (down, words) = (job.rows.div_ceil(THREADS), job.columns.div_ceil(COLUMNS));
    let strip = index / down;
    let slab = strip / words;
    let (word, row) = (strip - slab * words, (index - strip * down) * THREADS + k.thread_index());
    let of_row = job.from_slab * slab.to_u64() + (row >> job.row_shift).widening_mul(job.row_stride);
    let inside = |i: u32| row.lt(job.rows) & (word * COLUMNS + i).lt(job.columns);
    let at = |i: u32| {
        let column = (word * COLUMNS + i) >> job.column_shift;
        let element = of_row + (column >> 2).widening_mul(job.word_stride);
        job.from.at((element << job.shift) + (column & 3).widening_mul(job.byte_stride))
    };
    let to = slab.widening_mul(words) + word.to_u64();
    let to = job.to.at((to * job.pitch.to_u64() + row.to_u64()) << 2);
    let store = |bytes: Vec<U32<'k>>| {
        let word = (1..COLUMNS).zip(&bytes[1..]).fold(bytes[0], |word, (i, byte)| word | (*byte << (8 * i)));
        k.guard(row.lt(job.rows), || to.store(word));
    };
    k.if_else(
        job.is_f32.ne(0),
        || {
            let scales: Vec<F32> = (0..COLUMNS).map(|i| at(i).load_if(inside(i), 0.0)).collect();
            store(scales.into_iter().map(|scale| (scale.bitcast::<u32>() >> 23) & 0xff).collect());
        },
        || store((0..COLUMNS).map(|i| at(i).load_readonly_byte_if(inside(i))).collect()),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_declares_the_parameters_of_two_jobs() {
        for arch in Arch::ALL {
            let declared = build(arch).expect("it builds").text.matches(".param .").count();
            assert_eq!(declared, 2 * Job::COUNT);
        }
    }

    #[test]
    fn blocks_cover_all_rows_and_words() {
        assert_eq!(blocks(1, 1, 1), 1);
        assert_eq!(blocks(3, 257, 9), 3 * 2 * 3);
        let jobs = [Job { blocks: 5, ..Job::default() }, Job { blocks: 2, ..Job::default() }];
        assert_eq!(launch(&jobs).grid, [7, 1]);
    }
}
