//! The launch caches of the GEMM functions.

use crate::call::{Addresses, PlanKey};
use crate::check::{Fp8GemmNt, GroupedFp8GemmNt, GroupedHalfGemm, HalfGemm, SummedHalfGemm};
use crate::device::backend::Backend;
use crate::error::Result;
use crate::fused;
use crate::fused_grouped;
use crate::gemm::GemmOptions;
use crate::launch::cache::{LaunchCache, Target};
use crate::plan::GemmConfig;

/// The arguments of some function that launches one planned kernel: equal ones are the same call.
pub(crate) trait CallArguments: Copy + PartialEq {
    /// Where the operands are.
    fn addresses(&self) -> Addresses;
    /// The launch cache of the function.
    fn cache<B: Backend>(caches: &LaunchCaches<B>) -> &LaunchCache<Call<Self>, B>;
}

/// All that decides what is launched.
pub(crate) struct Call<A> {
    arguments: A,
    choice: Option<GemmConfig>,
    num_sms: Option<u32>,
    batch_invariant: bool,
}

/// The launch cache of each function.
pub(crate) struct LaunchCaches<B: Backend> {
    pub fp8: LaunchCache<Call<Fp8GemmNt>, B>,
    pub grouped_fp8: LaunchCache<Call<GroupedFp8GemmNt>, B>,
    pub half: LaunchCache<Call<HalfGemm>, B>,
    pub grouped_half: LaunchCache<Call<GroupedHalfGemm>, B>,
    pub summed_half: LaunchCache<Call<SummedHalfGemm>, B>,
    pub fused_fp8: LaunchCache<Call<fused::Arguments<Fp8GemmNt>>, B>,
    pub fused_half: LaunchCache<Call<fused::Arguments<HalfGemm>>, B>,
    pub fused_grouped_fp8: LaunchCache<Call<fused_grouped::Arguments<GroupedFp8GemmNt>>, B>,
    pub fused_grouped_half: LaunchCache<Call<fused_grouped::Arguments<GroupedHalfGemm>>, B>,
}

impl<B: Backend> Default for LaunchCaches<B> {
    fn default() -> Self {
        LaunchCaches {
            fp8: LaunchCache::default(),
            grouped_fp8: LaunchCache::default(),
            half: LaunchCache::default(),
            grouped_half: LaunchCache::default(),
            summed_half: LaunchCache::default(),
            fused_fp8: LaunchCache::default(),
            fused_half: LaunchCache::default(),
            fused_grouped_fp8: LaunchCache::default(),
            fused_grouped_half: LaunchCache::default(),
        }
    }
}

/// Launches a call that is cached, or one that `plan` gives the plan of; without one there is nothing to launch.
///
/// # Safety
/// The operands must be as `plan` has checked them, and stay where they are until the kernel is done or, where the
/// stream is being captured, whenever the graph is launched.
#[inline]
pub(crate) unsafe fn launch<'a, A: CallArguments, B: Backend>(
    backend: &'a B,
    arguments: &A,
    options: &GemmOptions,
    stream: B::Stream<'a>,
    plan: impl FnOnce() -> Result<Option<PlanKey>>,
) -> Result<()> {
    let GemmOptions { choice, num_sms, programmatic, batch_invariant, .. } = *options;
    let is = |call: &Call<A>| {
        call.arguments == *arguments
            && call.choice == choice
            && call.num_sms == num_sms
            && call.batch_invariant == batch_invariant
    };
    let key = || Call { arguments: *arguments, choice, num_sms, batch_invariant };
    let cache = A::cache(backend.extensions().get::<LaunchCaches<B>>());
    // SAFETY: the caller keeps the same contract.
    unsafe { cache.launch(Target { backend, stream, programmatic }, &arguments.addresses(), is, key, plan) }
}
