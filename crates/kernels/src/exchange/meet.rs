//! Barrier of all ranks. A lane for each: it writes to that rank's buffer and waits for what that one writes here.
//!
//! A rank that does not come in time is written down, also in the buffers of all others, and so is one that has other
//! sizes, which each rank finds by itself. From then on nobody waits: every kernel ends, results are zeros, and hosts name
//! the rank.

use oxigemm_ptx::memory::AtomicOp;
use oxigemm_ptx::{Kernel, Scope, U32};

use super::buffer::{Buffer, Trouble};
use crate::common::params::kernel_params;

/// Arguments of the barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Args {
    /// Address of this rank's buffer.
    pub own: u64,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// This rank's tokens.
    pub tokens: u32,
    /// Digest of the shape.
    pub digest: u32,
    /// 1 where tokens and digest are said and compared: at the first barrier of a call.
    pub first: u32,
    /// Nanoseconds after which a rank counts as missing.
    pub timeout: u64,
}

kernel_params! {
    struct Params from Args {
        own: Pointer = own,
        rank: U32 = rank,
        ranks: U32 = ranks,
        tokens: U32 = tokens,
        digest: U32 = digest,
        first: U32 = first,
        timeout: U64 = timeout,
    }
}

/// A CTA has one warp.
pub(super) fn write(k: &Kernel) {
    let p = &Params::declare(k, "");
    let (own, peer) = (Buffer(p.own), k.thread_index());
    let epoch = own.epoch().load::<u32>() + 1;
    k.sync_warp();
    k.guard(peer.eq(0), || own.epoch().store(epoch));
    k.if_(peer.lt(p.ranks), || {
        arrive(k, p, [own, own.of(peer)], epoch);
        k.if_(!own.is_broken(), || wait(k, p, own, peer, epoch));
    });
    k.sync_warp();
    let status = own.status().load_relaxed::<u32>(Scope::Sys);
    k.if_(peer.lt(p.ranks) & status.lt(Trouble::DISAGREES), || {
        own.of(peer).status().reduce(AtomicOp::Min, status, Scope::Sys);
    });
}

/// Tells another rank that this one is here. What this device wrote before is visible to who sees that.
fn arrive<'k>(k: &'k Kernel, p: &Params<'k>, [own, theirs]: [Buffer<'k>; 2], epoch: U32<'k>) {
    // Where something is wrong nobody waits, and another rank may be reading what was said before.
    k.if_(p.first.ne(0) & !own.is_broken(), || {
        theirs.tokens(p.rank).store(p.tokens);
        theirs.digest(p.rank).store(p.digest);
    });
    theirs.arrival(p.rank).store_release(epoch, Scope::Sys);
}

/// Waits for another rank, and compares what it says.
fn wait<'k>(k: &'k Kernel, p: &Params<'k>, own: Buffer<'k>, peer: U32<'k>, epoch: U32<'k>) {
    // It may be a barrier ahead.
    let is_there = |arrival: U32<'k>| (arrival - epoch).lt(1 << 31);
    let arrival = k.var(0u32);
    let start = k.global_timer();
    k.do_while(|| {
        arrival.set(own.arrival(peer).load_acquire::<u32>(Scope::Sys));
        !is_there(arrival.live()) & (k.global_timer() - start).lt(p.timeout)
    });
    let report = |trouble: u32| own.status().reduce(AtomicOp::Min, peer | trouble, Scope::Sys);
    k.if_else(
        is_there(arrival.get()),
        || {
            // At another barrier it may be writing the next.
            k.if_(p.first.ne(0), || {
                let differs = own.digest(peer).load::<u32>().ne(p.digest);
                k.if_(differs, || report(Trouble::DISAGREES));
            });
        },
        || report(Trouble::MISSING),
    );
}
