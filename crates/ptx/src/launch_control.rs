//! Cluster launch control (PTX manual, "clusterlaunchcontrol"): a running cluster takes over another one of its grid that
//! has not begun.

use crate::kernel::Kernel;
use crate::mbarrier::MBarrier;
use crate::memory::Shared;
use crate::target::Needs;
use crate::value::U32;

/// A response to a claim: 16 bytes of shared memory, 16-byte aligned.
#[derive(Clone, Copy)]
pub struct ClaimResponse<'k>(pub Shared<'k>);

/// Block of a failed claim.
pub const NO_BLOCK: u32 = u32::MAX;

impl<'k> ClaimResponse<'k> {
    /// Bytes of a response.
    pub const BYTES: u32 = 16;

    fn kernel(self) -> &'k Kernel {
        self.0.at(0).address().kernel()
    }

    /// Claims a cluster that has not begun. One thread asks, and not again once it has seen a claim fail.
    ///
    /// The response comes by the async proxy and counts its bytes at the barrier: those of this block or, where
    /// `everywhere` holds, those at the same place in every block of the cluster.
    #[track_caller]
    pub fn claim(self, barrier: MBarrier<'k>, everywhere: bool) {
        let all = if everywhere { ".multicast::cluster::all" } else { "" };
        self.kernel().emit(
            Needs::TCGEN05,
            format_args!(
                "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{all}.b128 {}, {};",
                self.0, barrier.0
            ),
        );
    }

    /// The first block, along x, of the cluster that was claimed; [`NO_BLOCK`] if there is none.
    #[track_caller]
    pub fn first_block(self) -> U32<'k> {
        let k = self.kernel();
        let [low, high] = self.0.load_vec::<u64, 2>();
        let out = k.fresh::<u32>();
        let (dst, low, high) = (out.operand(), low.operand(), high.operand());
        k.emit(
            Needs::TCGEN05,
            format_args!(
                "{{ .reg .b128 %response; .reg .pred %claimed; mov.b128 %response, {{{low}, {high}}}; \
                 clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %claimed, %response; \
                 mov.u32 {dst}, {NO_BLOCK}; \
                 @%claimed clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 {dst}, %response; }}"
            ),
        );
        out
    }
}
