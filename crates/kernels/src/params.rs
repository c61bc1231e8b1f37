//! The arguments of the FP8 GEMM kernels: as the host passes them and as the kernels declare them.

use crate::epilogue::OutputParams;
use oxigemm_ptx::tma::TensorMap;
use oxigemm_ptx::{Global, Kernel, U32};
use std::ffi::c_void;

/// What the host passes, in the order of the parameters.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Args {
    /// Tensor map of A: `[m, k]` bytes, tiles as [`crate::launch::Launch::tile_a`] says.
    pub a: [u64; 16],
    /// Tensor map of B: `[n, k]` bytes.
    pub b: [u64; 16],
    /// Address of A's scales.
    pub sfa: u64,
    /// Address of B's scales.
    pub sfb: u64,
    /// Address of D.
    pub d: u64,
    /// Address of C, or null.
    pub c: u64,
    /// Elements from one row of D to the next.
    pub d_pitch: u32,
    /// Elements from one row of C to the next.
    pub c_pitch: u32,
    /// Rows of A and D.
    pub m: u32,
    /// Rows of B, columns of D.
    pub n: u32,
    /// See [`crate::epilogue::OutputFlags`].
    pub output_flags: u32,
    /// 128-wide blocks of K.
    pub k_blocks: u32,
    /// Strides of A's scales, in elements: along M and along K.
    pub sfa_strides: [u32; 2],
    /// Strides of B's scales, in elements: along N and along K.
    pub sfb_strides: [u32; 2],
    /// What the kernel family makes of them: see [`crate::launch::Launch::tuning`].
    pub tuning: [u32; 3],
}

impl Args {
    /// How many parameters a kernel has.
    pub const COUNT: usize = 19;

    /// A pointer to each argument, as a launch takes them.
    pub fn pointers(&self) -> [*mut c_void; Self::COUNT] {
        fn to<T>(value: &T) -> *mut c_void {
            std::ptr::from_ref(value).cast_mut().cast()
        }
        [
            to(&self.a),
            to(&self.b),
            to(&self.sfa),
            to(&self.sfb),
            to(&self.d),
            to(&self.c),
            to(&self.d_pitch),
            to(&self.c_pitch),
            to(&self.m),
            to(&self.n),
            to(&self.output_flags),
            to(&self.k_blocks),
            to(&self.sfa_strides[0]),
            to(&self.sfa_strides[1]),
            to(&self.sfb_strides[0]),
            to(&self.sfb_strides[1]),
            to(&self.tuning[0]),
            to(&self.tuning[1]),
            to(&self.tuning[2]),
        ]
    }
}

/// The same arguments inside a kernel.
pub(crate) struct Params<'k> {
    pub a: TensorMap<'k>,
    pub b: TensorMap<'k>,
    pub sfa: ScaleParams<'k>,
    pub sfb: ScaleParams<'k>,
    pub output: OutputParams<'k>,
    pub k_blocks: U32<'k>,
    pub tuning: [U32<'k>; 3],
}

/// A matrix of scales in memory, in any layout.
#[derive(Clone, Copy)]
pub(crate) struct ScaleParams<'k> {
    base: Global<'k>,
    stride_mn: U32<'k>,
    stride_k: U32<'k>,
}

impl<'k> ScaleParams<'k> {
    /// The scales of one row of A, or of one 128 rows of B.
    pub fn row(&self, row: U32<'k>) -> ScaleRow<'k> {
        ScaleRow { first: self.base.at(row.widening_mul(self.stride_mn) << 2), stride_k: self.stride_k }
    }
}

/// One row of a matrix of scales.
#[derive(Clone, Copy)]
pub(crate) struct ScaleRow<'k> {
    first: Global<'k>,
    stride_k: U32<'k>,
}

impl<'k> ScaleRow<'k> {
    /// The scale of one 128-wide block of K.
    pub fn at(&self, block: U32<'k>) -> Global<'k> {
        self.first.at(block.widening_mul(self.stride_k) << 2)
    }
}

impl<'k> Params<'k> {
    /// Declares them in the order of [`Args`].
    pub fn declare(k: &'k Kernel) -> Self {
        let (a, b) = (k.param_tensor_map("a"), k.param_tensor_map("b"));
        let (sfa, sfb) = (k.param_pointer("sfa"), k.param_pointer("sfb"));
        let output = OutputParams::declare(k);
        let k_blocks = k.param("k_blocks");
        let scales = |base, name: &str| ScaleParams {
            base,
            stride_mn: k.param(&format!("{name}_stride_mn")),
            stride_k: k.param(&format!("{name}_stride_k")),
        };
        let (sfa, sfb) = (scales(sfa, "sfa"), scales(sfb, "sfb"));
        let tuning = [k.param("tuning_0"), k.param("tuning_1"), k.param("tuning_2")];
        Params { a, b, sfa, sfb, output, k_blocks, tuning }
    }
}
