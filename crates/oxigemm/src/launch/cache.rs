//! Calls that a GPU remembers whole: arguments that were checked and planned before need a comparison and a launch.

use std::sync::Arc;

use crate::call::{Addresses, KernelArgs, PlanKey};
use crate::check::{Fp8GemmNt, GroupedFp8GemmNt, GroupedHalfGemm, HalfGemm, SummedHalfGemm};
use crate::error::Result;
use crate::fused;
use crate::fused_grouped;
use crate::gemm::GemmOptions;
use crate::memo::{self, Memo};
use crate::plan::GemmConfig;
use crate::prepared::Prepared;
use crate::runtime::Cuda;

/// The arguments of some function that launches one planned kernel: equal ones are the same call.
pub(crate) trait CallArguments: Copy + PartialEq {
    /// Where the operands are.
    fn addresses(&self) -> Addresses;
    /// Where calls of the function are remembered.
    fn remembered(calls: &RememberedCalls) -> &Memo<Call<Self>, Ready>;
}

/// All that decides what is launched.
pub(crate) struct Call<A> {
    arguments: A,
    choice: Option<GemmConfig>,
    num_sms: Option<u32>,
    batch_invariant: bool,
}

/// A call that was checked and planned.
pub(crate) struct Ready {
    prepared: Arc<Prepared>,
    args: KernelArgs,
}

/// The calls that a GPU remembers, of each function.
#[derive(Default)]
pub(crate) struct RememberedCalls {
    pub fp8: Memo<Call<Fp8GemmNt>, Ready>,
    pub grouped_fp8: Memo<Call<GroupedFp8GemmNt>, Ready>,
    pub half: Memo<Call<HalfGemm>, Ready>,
    pub grouped_half: Memo<Call<GroupedHalfGemm>, Ready>,
    pub summed_half: Memo<Call<SummedHalfGemm>, Ready>,
    pub fused_fp8: Memo<Call<fused::Arguments<Fp8GemmNt>>, Ready>,
    pub fused_half: Memo<Call<fused::Arguments<HalfGemm>>, Ready>,
    pub fused_grouped_fp8: Memo<Call<fused_grouped::Arguments<GroupedFp8GemmNt>>, Ready>,
    pub fused_grouped_half: Memo<Call<fused_grouped::Arguments<GroupedHalfGemm>>, Ready>,
}

/// Launches a call that is remembered, or one that `plan` gives the plan of; without one there is nothing to launch.
///
/// # Safety
/// The operands must be as `plan` has checked them, and stay where they are until the kernel is done or, where the
/// stream is being captured, whenever the graph is launched.
#[inline]
pub(crate) unsafe fn launch<A: CallArguments>(
    cuda: &Cuda,
    arguments: &A,
    stream: &oxigemm_cuda::Stream,
    options: &GemmOptions,
    plan: impl FnOnce() -> Result<Option<PlanKey>>,
) -> Result<()> {
    let at = arguments.addresses();
    let memo = A::remembered(cuda.calls());
    let GemmOptions { choice, num_sms, programmatic, batch_invariant, .. } = *options;
    let is = |call: &Call<A>| {
        call.arguments == *arguments
            && call.choice == choice
            && call.num_sms == num_sms
            && call.batch_invariant == batch_invariant
    };
    let hash = memo::mix([at.a, at.sfa, at.b, at.sfb, at.c, at.d, at.groups]);
    // SAFETY: equal arguments were checked before; the caller keeps the operands.
    let known = memo
        .recall(hash, is, |ready| unsafe { ready.prepared.launch(cuda, &ready.args, stream, programmatic) });
    if let Some(result) = known {
        return result;
    }
    let Some(key) = plan()? else { return Ok(()) };
    let prepared = cuda.prepared(&key)?;
    let args = prepared.arguments(&at)?;
    // SAFETY: the check has compared the operands with the problem; the caller keeps them.
    unsafe { prepared.launch(cuda, &args, stream, programmatic)? };
    let call = Call { arguments: *arguments, choice, num_sms, batch_invariant };
    memo.remember(hash, call, Ready { prepared, args });
    Ok(())
}
