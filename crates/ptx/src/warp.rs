//! Thread and warp indices, and warp collectives: shuffles, votes, election.

use crate::kernel::Kernel;
use crate::target::Needs;
use crate::value::{Arg, Pred, Type, U32, U64, Val};

/// Every lane of a warp.
pub const FULL_WARP: u32 = 0xffff_ffff;

/// How a shuffle chooses the lane it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shuffle {
    /// The lane with this index.
    Index,
    /// This lane's index xor the operand.
    Xor,
    /// This many lanes below.
    Up,
    /// This many lanes above.
    Down,
}

impl Kernel {
    #[track_caller]
    fn special(&self, name: &str) -> U32<'_> {
        let out = self.fresh::<u32>();
        self.op(format_args!("mov.u32 {}, %{name};", out.operand()));
        out
    }

    #[track_caller]
    fn cluster_special(&self, name: &str) -> U32<'_> {
        let out = self.fresh::<u32>();
        self.emit(Needs::from_sm(90, 7, 8), format_args!("mov.u32 {}, %{name};", out.operand()));
        out
    }

    /// The thread's index in its block (x).
    #[track_caller]
    pub fn thread_index(&self) -> U32<'_> {
        self.special("tid.x")
    }

    /// The lane's index in its warp.
    #[track_caller]
    pub fn lane(&self) -> U32<'_> {
        self.special("laneid")
    }

    /// The warp's index in its block, known to the assembler to be the same in all lanes.
    #[track_caller]
    pub fn warp_index(&self) -> U32<'_> {
        let warp = self.thread_index() >> 5;
        self.shuffle(Shuffle::Index, warp, 0)
    }

    /// The block's index in the grid, along axis 0 to 2.
    #[track_caller]
    pub fn block_index(&self, axis: usize) -> U32<'_> {
        self.special(["ctaid.x", "ctaid.y", "ctaid.z"][axis])
    }

    /// The number of blocks in the grid, along axis 0 to 2.
    #[track_caller]
    pub fn grid_blocks(&self, axis: usize) -> U32<'_> {
        self.special(["nctaid.x", "nctaid.y", "nctaid.z"][axis])
    }

    /// The block's rank in its cluster.
    #[track_caller]
    pub fn cluster_rank(&self) -> U32<'_> {
        self.cluster_special("cluster_ctarank")
    }

    /// The number of blocks in the cluster.
    #[track_caller]
    pub fn cluster_blocks(&self) -> U32<'_> {
        self.cluster_special("cluster_nctarank")
    }

    /// The cluster's index in the grid (x).
    #[track_caller]
    pub fn cluster_index(&self) -> U32<'_> {
        self.cluster_special("clusterid.x")
    }

    /// The number of clusters in the grid (x).
    #[track_caller]
    pub fn grid_clusters(&self) -> U32<'_> {
        self.cluster_special("nclusterid.x")
    }

    /// Cycle counter of this SM, low 32 bits.
    #[track_caller]
    pub fn clock(&self) -> U32<'_> {
        self.special("clock")
    }

    /// Nanoseconds of the clock that all SMs share.
    #[track_caller]
    pub fn global_timer(&self) -> U64<'_> {
        let out = self.fresh::<u64>();
        self.op(format_args!("mov.u64 {}, %globaltimer;", out.operand()));
        out
    }

    /// True in exactly one lane of the full warp.
    #[track_caller]
    pub fn elect(&self) -> Pred<'_> {
        let out = self.fresh::<bool>();
        self.emit(Needs::SM90, format_args!("elect.sync _|{}, {FULL_WARP};", out.operand()));
        out
    }

    /// Waits for every lane of the warp; their writes before are visible after.
    #[track_caller]
    pub fn sync_warp(&self) {
        self.op(format_args!("bar.warp.sync {FULL_WARP};"));
    }

    /// Reads `value` of another lane; all lanes take part.
    #[track_caller]
    pub fn shuffle<'k, T: Type>(
        &'k self,
        mode: Shuffle,
        value: Val<'k, T>,
        lane: impl Arg<'k, u32>,
    ) -> Val<'k, T> {
        const { assert!(T::BYTES == 4) };
        let (name, bound) = match mode {
            Shuffle::Index => ("idx", 31),
            Shuffle::Xor => ("bfly", 31),
            Shuffle::Up => ("up", 0),
            Shuffle::Down => ("down", 31),
        };
        let out = self.fresh::<T>();
        let (dst, value, lane) = (out.operand(), value.in_register().operand(), lane.val(self).operand());
        self.op(format_args!("shfl.sync.{name}.b32 {dst}, {value}, {lane}, {bound}, {FULL_WARP};"));
        out
    }

    /// A bit for each lane in which the predicate holds.
    #[track_caller]
    pub fn ballot<'k>(&'k self, predicate: Pred<'k>) -> U32<'k> {
        let out = self.fresh::<u32>();
        let (dst, p) = (out.operand(), predicate.operand());
        self.op(format_args!("vote.sync.ballot.b32 {dst}, {p}, {FULL_WARP};"));
        out
    }

    /// Whether the predicate holds in some lane.
    #[track_caller]
    pub fn any<'k>(&'k self, predicate: Pred<'k>) -> Pred<'k> {
        self.vote("any", predicate)
    }

    /// Whether the predicate holds in every lane.
    #[track_caller]
    pub fn all<'k>(&'k self, predicate: Pred<'k>) -> Pred<'k> {
        self.vote("all", predicate)
    }

    #[track_caller]
    fn vote<'k>(&'k self, mode: &str, predicate: Pred<'k>) -> Pred<'k> {
        let out = self.fresh::<bool>();
        let (dst, p) = (out.operand(), predicate.operand());
        self.op(format_args!("vote.sync.{mode}.pred {dst}, {p}, {FULL_WARP};"));
        out
    }

    /// Spreads the largest of the lanes' values to all of them.
    #[track_caller]
    pub fn warp_max<'k>(&'k self, value: U32<'k>) -> U32<'k> {
        let out = self.fresh::<u32>();
        let (dst, value) = (out.operand(), value.in_register().operand());
        self.op(format_args!("redux.sync.max.u32 {dst}, {value}, {FULL_WARP};"));
        out
    }

    /// Spreads the sum of the lanes' values to all of them.
    #[track_caller]
    pub fn warp_sum<'k>(&'k self, value: U32<'k>) -> U32<'k> {
        let out = self.fresh::<u32>();
        let (dst, value) = (out.operand(), value.in_register().operand());
        self.op(format_args!("redux.sync.add.u32 {dst}, {value}, {FULL_WARP};"));
        out
    }
}
