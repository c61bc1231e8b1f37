//! mbarriers in shared memory (PTX manual, "Parallel Synchronization: mbarrier").

use crate::kernel::Kernel;
use crate::memory::{ClusterShared, Shared};
use crate::target::Needs;
use crate::value::{Arg, Pred, U32};

/// A barrier object in shared memory: 8 bytes, 8-byte aligned.
///
/// A phase ends when the expected arrivals have come and no transaction bytes are outstanding.
/// Waits name the parity of the phase they wait for: 0 for the first phase, 1 for the second, and so on.
/// A fresh barrier's wait on parity 1 returns at once: "the phase before the first has ended".
#[derive(Clone, Copy)]
pub struct MBarrier<'k>(pub Shared<'k>);

/// A barrier of some block of the cluster, known by its cluster address: it can be arrived at, not waited for.
#[derive(Clone, Copy)]
pub struct RemoteMBarrier<'k>(pub ClusterShared<'k>);

impl<'k> MBarrier<'k> {
    /// Bytes of one barrier object.
    pub const BYTES: u32 = 8;

    fn kernel(self) -> &'k Kernel {
        self.0.at(0).address().kernel()
    }

    /// Sets the number of arrivals that end a phase.
    #[track_caller]
    pub fn init(self, arrivals: impl Arg<'k, u32>) {
        let k = self.kernel();
        let count = arrivals.val(k).operand();
        k.emit(Needs::SM90, format_args!("mbarrier.init.shared::cta.b64 {}, {count};", self.0));
    }

    /// Ends the barrier's life, so that its memory can be used for something else.
    #[track_caller]
    pub fn invalidate(self) {
        self.kernel().emit(Needs::SM90, format_args!("mbarrier.inval.shared::cta.b64 {};", self.0));
    }

    /// Arrives once, with release order in the block.
    #[track_caller]
    pub fn arrive(self) {
        self.kernel().emit(Needs::SM90, format_args!("mbarrier.arrive.shared::cta.b64 _, {};", self.0));
    }

    /// Arrives once and expects this many bytes of asynchronous copies in the current phase.
    #[track_caller]
    pub fn arrive_expecting(self, bytes: impl Arg<'k, u32>) {
        let k = self.kernel();
        let bytes = bytes.val(k).operand();
        k.emit(
            Needs::SM90,
            format_args!("mbarrier.arrive.expect_tx.shared::cta.b64 _, {}, {bytes};", self.0),
        );
    }

    /// Expects bytes without arriving.
    #[track_caller]
    pub fn expect(self, bytes: impl Arg<'k, u32>) {
        let k = self.kernel();
        let bytes = bytes.val(k).operand();
        k.emit(
            Needs::SM90,
            format_args!("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 {}, {bytes};", self.0),
        );
    }

    /// Arrives once, when every [`copy_async`](Shared::copy_async) that this thread has issued has landed.
    #[track_caller]
    pub fn arrive_after_copies(self) {
        self.kernel()
            .emit(Needs::SM90, format_args!("cp.async.mbarrier.arrive.noinc.shared::cta.b64 {};", self.0));
    }

    /// Whether the phase of this parity has ended; may sleep for a bounded time first.
    #[track_caller]
    pub fn try_wait(self, parity: impl Arg<'k, u32>) -> Pred<'k> {
        self.emit_try_wait("", parity)
    }

    #[track_caller]
    fn emit_try_wait(self, order: &str, parity: impl Arg<'k, u32>) -> Pred<'k> {
        let k = self.kernel();
        let (out, parity) = (k.fresh::<bool>(), parity.val(k).operand());
        let dst = out.operand();
        k.emit(
            Needs::SM90,
            format_args!("mbarrier.try_wait.parity{order}.shared::cta.b64 {dst}, {}, {parity};", self.0),
        );
        out
    }

    /// Whether the phase of this parity has ended, at once.
    #[track_caller]
    pub fn test_wait(self, parity: impl Arg<'k, u32>) -> Pred<'k> {
        let k = self.kernel();
        let (out, parity) = (k.fresh::<bool>(), parity.val(k).operand());
        let dst = out.operand();
        k.emit(
            Needs::SM90,
            format_args!("mbarrier.test_wait.parity.shared::cta.b64 {dst}, {}, {parity};", self.0),
        );
        out
    }

    /// Waits until the phase of this parity has ended.
    #[track_caller]
    pub fn wait(self, parity: impl Arg<'k, u32>) {
        self.emit_wait("", parity);
    }

    /// The same with acquire order in the cluster: what other blocks did before they
    /// [arrived](RemoteMBarrier::arrive_release) has been done.
    #[track_caller]
    pub fn wait_for_cluster(self, parity: impl Arg<'k, u32>) {
        self.emit_wait(".acquire.cluster", parity);
    }

    #[track_caller]
    fn emit_wait(self, order: &str, parity: impl Arg<'k, u32>) {
        let k = self.kernel();
        let parity: U32<'k> = parity.val(k);
        let again = k.label();
        k.place(again);
        let done = self.emit_try_wait(order, parity);
        k.branch_unless(done, again);
    }

    /// The same barrier of another block of the cluster.
    #[track_caller]
    pub fn in_block(self, rank: impl Arg<'k, u32>) -> RemoteMBarrier<'k> {
        RemoteMBarrier(self.0.in_block(rank))
    }
}

impl<'k> RemoteMBarrier<'k> {
    /// Arrives once.
    ///
    /// Release order reaches the block only. That is enough to hand back a buffer that the tensor cores have
    /// finished reading, and the `.release.cluster` form costs a third of a GEMM's speed.
    #[track_caller]
    pub fn arrive(self) {
        let k = self.0.address().kernel();
        k.emit(Needs::SM90, format_args!("mbarrier.arrive.shared::cluster.b64 _, {};", self.0));
    }

    /// Arrives once, with release order in the cluster: what this thread wrote before is seen by the waiter.
    #[track_caller]
    pub fn arrive_release(self) {
        let k = self.0.address().kernel();
        k.emit(
            Needs::SM90,
            format_args!("mbarrier.arrive.release.cluster.shared::cluster.b64 _, {};", self.0),
        );
    }
}
