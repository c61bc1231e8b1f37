//! Parameters and launch shape of the quantization kernels: one list for all of them.

use oxigemm_ptx::tma::{CachePolicy, Eviction};
use oxigemm_ptx::{Global, Kernel, Pred, U32};
use std::ops::Deref;

use super::vec8::{Access, Code};
use crate::common::fast_divmod::FastDivmod;
use crate::common::params::{KernelArg, kernel_params};

/// Position of the shift of [`Args::items_per_row`] in the parameter that holds the flags.
const DIVISOR_SHIFT: u32 = 16;

/// Bits of [`Args::flags`].
#[derive(Clone, Copy, Debug)]
pub struct Flags;

impl Flags {
    /// Addresses and pitches of the matrices allow 16-byte vectors.
    pub const VECTORS: u32 = 1;
    /// Scales are rounded up to powers of two.
    pub const POWER_OF_TWO: u32 = 2;
    /// Scales are stored as biased exponents of a byte each (UE8M0).
    pub const BYTES: u32 = 4;
    /// Scales are blocked: 128 rows by 4 are 512 bytes in the order in which tensor memory holds them.
    pub const BLOCKED: u32 = 8;
    /// Address and pitch of the transpose allow 16-byte vectors.
    pub const TRANSPOSED_VECTORS: u32 = 16;
    /// Scales that a lane finds in turn are 16-byte vectors in memory.
    pub const SCALE_RUNS: u32 = 32;
    /// Every tile of every warp is full.
    pub const FULL_TILES: u32 = 64;
    /// An unpermutation has no weights: rows are added as they are.
    pub const UNWEIGHTED: u32 = 128;
    /// An unpermutation leaves tokens without rows as they are.
    pub const CHOSEN_ONLY: u32 = 256;
}

/// Arguments of a launch. Each kernel says which of them it reads, and what they mean to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Args {
    /// Address of the matrix of numbers.
    pub x: u64,
    /// Address of the codes.
    pub codes: u64,
    /// Address of the scales.
    pub scales: u64,
    /// Address of the second input or output: source rows of a gather, weights of RMSNorm, scales to be transformed,
    /// the per-tensor scale of NVFP4, codes of the transpose, or the workspace of a grid barrier.
    pub aux: u64,
    /// Rows and columns of the matrix of codes.
    pub dims: [u32; 2],
    /// Pitch of `x` in elements.
    pub x_pitch: u32,
    /// Pitch of `codes` in bytes.
    pub codes_pitch: u32,
    /// Rows and columns of scales that are stored, with the padding of their layout.
    pub scale_dims: [u32; 2],
    /// Strides of scales in bytes: from a row to the next (from 128 rows to the next where scales are blocked), from
    /// four scales of a row to the next four, and from one of these to the next.
    pub scale_strides: [u32; 3],
    /// See [`Flags`].
    pub flags: u32,
    /// Powers of two: rows and columns that share a scale, or the shape of a warp's tile, or the contiguous tiles of a
    /// CTA. For RMSNorm, not powers: the most rows of a CTA, and how many of these are in runs of scales.
    pub shifts: [u32; 2],
    /// Work items of a row: tiles, or `Vec8`s.
    pub items_per_row: FastDivmod,
    /// Strides that go with `aux`, in elements. Scales to be transformed: of a group, a row, a column. Transpose: of a
    /// row of its codes, of a row of its scales, of a column of these. 1x128: rows and blocks from a `Vec8` of a lane
    /// to its next. RMSNorm: columns from a `Vec8` of a thread to its next, bytes of a row of shared memory.
    pub aux_strides: [u32; 3],
    /// Bytes from a group of scales to the next; for dual output, the address of the scales of the transpose.
    pub group_stride: u64,
    /// Source rows of a gather; for RMSNorm, the CTAs that have a row more than others.
    pub source_rows: u32,
    /// Epsilon of RMSNorm: the bits of an `f32`.
    pub epsilon: u32,
}

impl Args {
    /// Number of kernel parameters.
    pub const COUNT: usize = PackedArgs::COUNT;

    /// Values of the kernel's parameters, in order.
    pub fn list(&self) -> [KernelArg; Self::COUNT] {
        PackedArgs {
            args: *self,
            flags: self.flags | self.items_per_row.shift << DIVISOR_SHIFT,
            epsilon: f32::from_bits(self.epsilon),
        }
        .values()
    }
}

/// [`Args`] as kernels read them.
#[derive(Clone, Copy, Debug)]
pub struct PackedArgs {
    args: Args,
    /// Flags, and the shift of the division.
    flags: u32,
    epsilon: f32,
}

// The order is that in which kernels need the parameters. An SM fetches 64 bytes of parameters when it first needs one
// of them, which costs a small matrix 0.07 us. The first line holds the 48 bytes that the loads of a matrix wait for,
// the next one the rest but the last.
kernel_params! {
    pub(crate) struct Declared from PackedArgs {
        x: Pointer = args.x,
        rows: U32 = args.dims[0],
        columns: U32 = args.dims[1],
        x_pitch: U32 = args.x_pitch,
        flags: U32 = flags,
        items_per_row: U32 = args.items_per_row.value,
        items_factor: U32 = args.items_per_row.factor,
        shift_rows: U32 = args.shifts[0],
        shift_columns: U32 = args.shifts[1],
        aux_group: U32 = args.aux_strides[0],
        aux_row: U32 = args.aux_strides[1],
        aux: Pointer = args.aux,
        codes: Pointer = args.codes,
        scales: Pointer = args.scales,
        codes_pitch: U32 = args.codes_pitch,
        scale_rows: U32 = args.scale_dims[0],
        scale_columns: U32 = args.scale_dims[1],
        scale_row: U32 = args.scale_strides[0],
        scale_four: U32 = args.scale_strides[1],
        scale_one: U32 = args.scale_strides[2],
        source_rows: U32 = args.source_rows,
        aux_column: U32 = args.aux_strides[2],
        epsilon: F32 = epsilon,
        group_stride: U64 = args.group_stride,
    }
}

/// Launch shape: CTAs along x, and along y where there are groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// CTAs.
    pub grid: [u32; 2],
    /// Threads of a CTA.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
}

/// [`Args`] in a kernel, and the L2 policies of its accesses.
pub(crate) struct Params<'k> {
    declared: Declared<'k>,
    /// L2 policy for data that is read once.
    pub evict_first: CachePolicy<'k>,
    /// L2 policy for results: the next kernel reads them.
    pub evict_last: CachePolicy<'k>,
}

impl<'k> Deref for Params<'k> {
    type Target = Declared<'k>;

    fn deref(&self) -> &Declared<'k> {
        &self.declared
    }
}

impl<'k> Params<'k> {
    pub fn declare(k: &'k Kernel) -> Params<'k> {
        Params {
            declared: Declared::declare(k, ""),
            evict_first: k.cache_policy(Eviction::First),
            evict_last: k.cache_policy(Eviction::Last),
        }
    }

    /// [`Args::scale_dims`].
    pub fn scale_dims(&self) -> [U32<'k>; 2] {
        [self.scale_rows, self.scale_columns]
    }

    /// [`Args::scale_strides`].
    pub fn scale_strides(&self) -> [U32<'k>; 3] {
        [self.scale_row, self.scale_four, self.scale_one]
    }

    /// [`Args::shifts`].
    pub fn shifts(&self) -> [U32<'k>; 2] {
        [self.shift_rows, self.shift_columns]
    }

    /// [`Args::aux_strides`].
    pub fn aux_strides(&self) -> [U32<'k>; 3] {
        [self.aux_group, self.aux_row, self.aux_column]
    }

    /// Whether a flag is set.
    #[track_caller]
    pub fn has(&self, flag: u32) -> Pred<'k> {
        (self.flags & flag).ne(0)
    }

    /// Quotient and remainder of a work item's index by [`Args::items_per_row`].
    #[track_caller]
    pub fn divmod(&self, index: U32<'k>) -> [U32<'k>; 2] {
        let shift = self.flags >> DIVISOR_SHIFT;
        let quotient = (index.widening_mul(self.items_factor) >> shift).to_u32();
        [quotient, index - quotient * self.items_per_row]
    }

    /// Address in the matrix of numbers.
    #[track_caller]
    pub fn x_at(&self, row: U32<'k>, column: U32<'k>, bytes: u32) -> Global<'k> {
        self.x.at((row.widening_mul(self.x_pitch) + column.to_u64()) * u64::from(bytes))
    }

    /// Address in the matrix of codes.
    #[track_caller]
    pub fn codes_at(&self, row: U32<'k>, column: U32<'k>, code: Code) -> Global<'k> {
        let bytes = column / code.per_byte();
        self.codes.at(row.widening_mul(self.codes_pitch) + bytes.to_u64())
    }
}

/// Emits `body` for both kinds of access; which one runs is the same for all of a launch.
#[track_caller]
pub(super) fn by_access<'k>(k: &'k Kernel, p: &Params<'k>, body: impl Fn(Access)) {
    k.if_else(p.has(Flags::VECTORS), || body(Access::Vectors), || body(Access::Elements));
}
