//! The arguments of every kernel of this family, and its launches.

use oxigemm_ptx::tma::{CachePolicy, Eviction};
use oxigemm_ptx::{F32, Global, Kernel, Pred, U32, U64};

use super::vec8::Code;
pub use crate::common::fast_divmod::Divisor;
use crate::common::params::KernelArg;

/// Where the shift of [`Args::across`] is in the parameter that flags are in.
const SHIFT_OF_ACROSS: u32 = 16;

/// What the bits of [`Args::flags`] mean.
#[derive(Clone, Copy, Debug)]
pub struct Flags;

impl Flags {
    /// Matrices begin at, and have rows of, whole vectors.
    pub const VECTORS: u32 = 1;
    /// Scales are rounded up to powers of two.
    pub const POWER_OF_TWO: u32 = 2;
    /// Scales are stored as their exponents, a byte each.
    pub const BYTES: u32 = 4;
    /// 128 rows of scales by 4 are 512 bytes in the order in which tensor memory holds them.
    pub const BLOCKED: u32 = 8;
    /// The transpose begins at, and has rows of, whole vectors.
    pub const TRANSPOSED_VECTORS: u32 = 16;
    /// Scales that a lane finds one after another are vectors in memory.
    pub const RUNS: u32 = 32;
    /// Every tile of every warp is whole.
    pub const WHOLE: u32 = 64;
}

/// The arguments of a launch. Which of them count, and what they mean to it, each kernel says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Args {
    /// The matrix of numbers.
    pub x: u64,
    /// The codes.
    pub codes: u64,
    /// The scales.
    pub scales: u64,
    /// Where each row comes from, for kernels that gather; weights, for those that normalize; scales that are read, for
    /// those that transform them; the scale of all, for NVFP4; the codes of the transpose, for those that write it; where blocks meet, for those that do.
    pub from: u64,
    /// Rows and columns of the matrix of codes.
    pub dims: [u32; 2],
    /// Elements from a row of `x` to the next.
    pub x_pitch: u32,
    /// Bytes from a row of `codes` to the next.
    pub codes_pitch: u32,
    /// Rows and columns of scales that are stored, with those that only fill a layout up.
    pub scale_dims: [u32; 2],
    /// Bytes from a row of scales to the next (of 128, where they are blocked), from four of a row to the next four,
    /// and from one of these to the next.
    pub scale_strides: [u32; 3],
    /// See [`Flags`].
    pub flags: u32,
    /// Powers of two of rows and columns that share a scale, or of the shape of a warp's tile, or of the tiles that a block has
    /// one after another. Of kernels that normalize: rows that a block has at most, and how many of these are in runs.
    pub shifts: [u32; 2],
    /// Tiles of a row, or chunks.
    pub across: Divisor,
    /// Strides, in elements, of scales that are read to be transformed: of a group, a row, a column. Of the transpose: of a
    /// row of its codes, of a row of its scales, of a column of these. Of groups: rows and groups from a chunk of a lane to its
    /// next. Of kernels that normalize: columns from a chunk of a thread to its next, bytes of a row of shared memory.
    pub from_strides: [u32; 3],
    /// Bytes from a group of scales to the next; the address of the scales of the transpose, for kernels that write it.
    pub group_stride: u64,
    /// Rows that a row may come from; blocks that have a row more than others, for kernels that normalize.
    pub source_rows: u32,
    /// What is added to the mean of squares: the bits of an `f32`.
    pub epsilon: u32,
}

impl Args {
    /// How many parameters they are.
    pub const COUNT: usize = 24;

    /// All of them, in the order of the kernels' parameters: that in which kernels want them. A multiprocessor fetches 64 bytes of
    /// parameters at a time when it first needs one of them, for which a small matrix waits 0.07 us; the first such line has room for
    /// the 48 bytes that loads of a matrix wait for, the next one for the rest but the last.
    pub fn list(&self) -> [KernelArg; Self::COUNT] {
        let Args { dims, scale_dims, scale_strides, shifts, across, from_strides, .. } = *self;
        [
            KernelArg::U64(self.x),
            KernelArg::U32(dims[0]),
            KernelArg::U32(dims[1]),
            KernelArg::U32(self.x_pitch),
            KernelArg::U32(self.flags | across.shift << SHIFT_OF_ACROSS),
            KernelArg::U32(across.value),
            KernelArg::U32(across.factor),
            KernelArg::U32(shifts[0]),
            KernelArg::U32(shifts[1]),
            KernelArg::U32(from_strides[0]),
            KernelArg::U32(from_strides[1]),
            KernelArg::U64(self.from),
            KernelArg::U64(self.codes),
            KernelArg::U64(self.scales),
            KernelArg::U32(self.codes_pitch),
            KernelArg::U32(scale_dims[0]),
            KernelArg::U32(scale_dims[1]),
            KernelArg::U32(scale_strides[0]),
            KernelArg::U32(scale_strides[1]),
            KernelArg::U32(scale_strides[2]),
            KernelArg::U32(self.source_rows),
            KernelArg::U32(from_strides[2]),
            KernelArg::U32(self.epsilon),
            KernelArg::U64(self.group_stride),
        ]
    }
}

/// How a kernel is launched: blocks along x, and along y where there are groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// Blocks.
    pub grid: [u32; 2],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
}

/// [`Args`] in a kernel.
pub(crate) struct Params<'k> {
    pub x: Global<'k>,
    pub codes: Global<'k>,
    pub scales: Global<'k>,
    pub from: Global<'k>,
    pub group_stride: U64<'k>,
    pub rows: U32<'k>,
    pub columns: U32<'k>,
    pub x_pitch: U32<'k>,
    pub codes_pitch: U32<'k>,
    pub scale_dims: [U32<'k>; 2],
    pub scale_strides: [U32<'k>; 3],
    flags: U32<'k>,
    pub shifts: [U32<'k>; 2],
    across: [U32<'k>; 2],
    pub from_strides: [U32<'k>; 3],
    pub source_rows: U32<'k>,
    pub epsilon: F32<'k>,
    /// For what nobody reads a second time: it leaves the cache before anything else does.
    pub read_once: CachePolicy<'k>,
    /// For results: who reads them comes next, and the cache should have them until then.
    pub kept: CachePolicy<'k>,
}

impl<'k> Params<'k> {
    pub fn declare(k: &'k Kernel) -> Params<'k> {
        let number = |name: &str| k.param::<u32>(name);
        // In the order of `Args::list`.
        let x = k.param_pointer("x");
        let [rows, columns, x_pitch, flags] = ["rows", "columns", "x_pitch", "flags"].map(number);
        let [value, factor] = ["across", "across_factor"].map(number);
        let shifts = ["shift_rows", "shift_columns"].map(number);
        let [from_group, from_row] = ["from_group", "from_row"].map(number);
        let [from, codes, scales] = ["from", "codes", "scales"].map(|name| k.param_pointer(name));
        let codes_pitch = number("codes_pitch");
        let scale_dims = ["scale_rows", "scale_columns"].map(number);
        let scale_strides = ["scale_row", "scale_four", "scale_one"].map(number);
        let [source_rows, from_column] = ["source_rows", "from_column"].map(number);
        let epsilon = k.param("epsilon");
        let group_stride = k.param("group_stride");
        Params {
            x,
            codes,
            scales,
            from,
            group_stride,
            rows,
            columns,
            x_pitch,
            codes_pitch,
            scale_dims,
            scale_strides,
            flags,
            shifts,
            across: [value, factor],
            from_strides: [from_group, from_row, from_column],
            source_rows,
            epsilon,
            read_once: k.cache_policy(Eviction::First),
            kept: k.cache_policy(Eviction::Last),
        }
    }

    /// Whether a flag is set.
    #[track_caller]
    pub fn has(&self, flag: u32) -> Pred<'k> {
        (self.flags & flag).ne(0)
    }

    /// The quotient and the rest of a division by [`Args::across`].
    #[track_caller]
    pub fn split(&self, position: U32<'k>) -> [U32<'k>; 2] {
        let [value, factor] = self.across;
        let shift = self.flags >> SHIFT_OF_ACROSS;
        let quotient = (position.widening_mul(factor) >> shift).to_u32();
        [quotient, position - quotient * value]
    }

    /// A place in the matrix of numbers.
    #[track_caller]
    pub fn x_at(&self, row: U32<'k>, column: U32<'k>, bytes: u32) -> Global<'k> {
        self.x.at((row.widening_mul(self.x_pitch) + column.to_u64()) * u64::from(bytes))
    }

    /// A place in the matrix of codes.
    #[track_caller]
    pub fn codes_at(&self, row: U32<'k>, column: U32<'k>, code: Code) -> Global<'k> {
        let bytes = column / code.per_byte();
        self.codes.at(row.widening_mul(self.codes_pitch) + bytes.to_u64())
    }
}

/// The larger of some magnitudes.
#[track_caller]
pub(crate) fn largest<'k>(magnitudes: impl IntoIterator<Item = U32<'k>>) -> U32<'k> {
    magnitudes.into_iter().reduce(|a, b| a.max(b)).expect("there is one at least")
}

/// The bits of a number.
#[track_caller]
pub(crate) fn bits(value: F32<'_>) -> U32<'_> {
    value.bitcast()
}
