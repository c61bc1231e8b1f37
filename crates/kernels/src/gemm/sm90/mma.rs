//! MMA of one FP8 stage, the first level of the two-level accumulation that FP8 needs.
//!
//! The tensor core keeps few bits of an FP8 accumulator, so it only ever accumulates the 128 of K that one stage holds
//! and that share their scales; the kernels add `scale * product` to FP32 accumulators after each stage.

use crate::common::BLOCK_K;
use oxigemm_ptx::wgmma::{Descriptor, Major, MatrixA, MmaType};
use oxigemm_ptx::{Fp8, Kernel, Var};

/// Issues `products = A · Bᵀ` over the 128 of K in one stage, for operands of these types, as one `wgmma` group.
/// `operands` is called behind the fence. (The caller waits.)
pub(crate) fn issue_stage<'k>(
    k: &'k Kernel,
    [a_type, b_type]: [Fp8; 2],
    products: &[Var<'k, f32>],
    operands: impl FnOnce() -> [Descriptor<'k>; 2],
) {
    let types = MmaType::Fp8(a_type, b_type);
    k.wgmma_fence();
    let [a, b] = operands();
    for step in (0..BLOCK_K).step_by(types.k() as usize) {
        let (a, b) = (MatrixA::Shared(a.advance(step)), b.advance(step));
        k.wgmma(types, products, a, b, (Major::K, Major::K), k.constant(step > 0));
    }
    k.wgmma_commit();
}
