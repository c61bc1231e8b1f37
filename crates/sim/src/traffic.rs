//! Bytes that a run has moved, by path: what a cost model on paper can be compared with.

/// Bytes by path. What the schedule decides is not among them: every schedule gives the same numbers, unless the kernel
/// itself hands out work as it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bulk and tensor loads out of global memory, once for all receivers of a multicast.
    pub read: u64,
    /// The same as they arrive in shared memory, in every receiver.
    pub loaded: u64,
    /// Bulk and tensor stores, out of shared memory.
    pub stored: u64,
    /// `ld.global` of all lanes.
    pub global_loads: u64,
    /// Operands that the tensor core takes from shared memory: `tcgen05.mma` and `tcgen05.cp`.
    pub operands: u64,
    /// Accumulators in tensor memory that `tcgen05.mma` reads.
    pub accumulators_read: u64,
    /// Accumulators in tensor memory that `tcgen05.mma` writes.
    pub accumulators_written: u64,
    /// What `tcgen05.cp` writes to tensor memory, every copy of a row.
    pub tensor_copies: u64,
    /// What `tcgen05.ld` reads of tensor memory.
    pub tensor_loads: u64,
}
