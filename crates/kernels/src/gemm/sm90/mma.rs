//! One stage of the two-level accumulation that FP8 needs.
//!
//! The tensor core keeps few bits of an FP8 sum, so it only ever sums the 128 of K that one stage holds and
//! that share their scales; the kernels add `scale * product` to FP32 registers after each stage.

use crate::BLOCK_K;
use oxigemm_ptx::wgmma::{Descriptor, Major, MatrixA, MmaType};
use oxigemm_ptx::{Fp8, Kernel, Var};

/// Issues `products = A · Bᵀ` over the 128 of K in one stage, for operands of these types. (The caller fences, commits
/// and waits.)
pub fn multiply_stage<'k>(
    k: &'k Kernel,
    [a_type, b_type]: [Fp8; 2],
    products: &[Var<'k, f32>],
    a: Descriptor<'k>,
    b: Descriptor<'k>,
) {
    let types = MmaType::Fp8(a_type, b_type);
    for step in (0..BLOCK_K).step_by(types.k() as usize) {
        let (a, b) = (MatrixA::Shared(a.advance(step)), b.advance(step));
        k.wgmma(types, products, a, b, (Major::K, Major::K), k.constant(step > 0));
    }
}
