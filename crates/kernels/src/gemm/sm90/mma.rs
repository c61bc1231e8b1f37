//! MMA of one FP8 stage: the first level of the two-level accumulation that FP8 needs.
//!
//! The tensor core keeps few bits of an FP8 accumulator, so it only ever accumulates the 128 of K that one stage holds
//! and that share their scales; the kernels add `scale * product` to FP32 accumulators after each stage.

use crate::common::BLOCK_K;
use oxigemm_ptx::wgmma::{Descriptor, DescriptorVar, Major, MatrixA, MmaType};
use oxigemm_ptx::{Fp8, Kernel, U32, Var};

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

/// Operand in the first stage, and in the one that is multiplied next.
#[derive(Clone, Copy)]
pub(crate) struct StageOperand<'k> {
    first: Descriptor<'k>,
    next: DescriptorVar<'k>,
    stage_bytes: u32,
    advance: fn(Descriptor<'k>, U32<'k>) -> Descriptor<'k>,
}

impl<'k> StageOperand<'k> {
    /// Operand of so many bytes in each stage.
    pub fn new(first: Descriptor<'k>, stage_bytes: u32) -> Self {
        StageOperand { first, next: first.var(), stage_bytes, advance: Descriptor::advance }
    }

    /// Operand of scales.
    pub fn of_scales(first: Descriptor<'k>, stage_bytes: u32) -> Self {
        StageOperand { advance: Descriptor::advance_start, ..Self::new(first, stage_bytes) }
    }

    /// Moves to a stage.
    pub fn set_stage(&self, stage: U32<'k>) {
        self.next.set((self.advance)(self.first, stage * self.stage_bytes));
    }

    /// The operand in that stage.
    pub fn get(self) -> Descriptor<'k> {
        self.next.get()
    }
}
