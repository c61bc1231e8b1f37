//! Barrier of all ranks. A lane for each: it writes to that rank's buffer and waits for what that one writes here.
//!
//! A rank that does not come in time is written down, also in the buffers of all others, and so is one that has other
//! sizes, which each rank finds by itself. From then on nobody waits: every kernel ends, results are zeros, and hosts name
//! the rank.
//!
//! A call has two barriers, so the parity of their number tells which one is next. A rank that is at the other one has
//! failed between them in an earlier call, and without its sums: it tells all ranks before it arrives, so that none takes
//! what it did not write for its sums. A host that sees a failure says so at once ([`Barrier::Failed`]).

use oxigemm_ptx::memory::AtomicOp;
use oxigemm_ptx::{Kernel, Pred, Scope, U32};

use super::buffer::{Buffer, Trouble};
use crate::common::params::kernel_params;

/// Which barrier of a call it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// All ranks have published: the odd ones. Tokens and digest are said and compared.
    Published,
    /// All sums are there: the even ones.
    Added,
    /// Instead of the second, where a rank has failed behind the first: it tells so.
    Failed,
}

impl Barrier {
    /// The parity of its number; none where the rank has failed.
    pub const fn parity(self) -> u32 {
        match self {
            Barrier::Published => PUBLISHED,
            Barrier::Added => 0,
            Barrier::Failed => 2,
        }
    }
}

/// Parity of the first barrier of a call.
const PUBLISHED: u32 = 1;

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
    /// Which barrier of a call it is: [`Barrier::parity`].
    pub parity: u32,
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
        parity: U32 = parity,
        timeout: U64 = timeout,
    }
}

/// A CTA has one warp.
pub(super) fn write(k: &Kernel) {
    let p = &Params::declare(k, "");
    let (own, peer) = (Buffer(p.own), k.thread_index());
    let epoch = own.epoch().load::<u32>() + 1;
    let has_failed = (epoch & 1).ne(p.parity);
    k.sync_warp();
    k.guard(peer.eq(0), || own.epoch().store(epoch));
    k.if_(peer.lt(p.ranks), || {
        let theirs = own.of(peer);
        k.if_(has_failed, || {
            theirs.status().reduce(AtomicOp::Min, p.rank | Trouble::FAILED, Scope::Sys);
        });
        arrive(k, p, [own, theirs], epoch, has_failed);
        k.if_(!has_failed & !own.is_broken(), || wait(k, p, own, peer, epoch));
    });
    k.sync_warp();
    let status = own.status().load_relaxed::<u32>(Scope::Sys);
    k.if_(peer.lt(p.ranks) & status.lt(Trouble::DISAGREES), || {
        own.of(peer).status().reduce(AtomicOp::Min, status, Scope::Sys);
    });
}

/// Tells another rank that this one is here. What this device wrote before is visible to who sees that.
fn arrive<'k>(
    k: &'k Kernel,
    p: &Params<'k>,
    [own, theirs]: [Buffer<'k>; 2],
    epoch: U32<'k>,
    has_failed: Pred<'k>,
) {
    // Where something is wrong nobody waits, and another rank may be reading what was said before.
    k.if_(p.parity.eq(PUBLISHED) & !has_failed & !own.is_broken(), || {
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
            k.if_(p.parity.eq(PUBLISHED), || {
                let differs = own.digest(peer).load::<u32>().ne(p.digest);
                k.if_(differs, || report(Trouble::DISAGREES));
            });
        },
        || report(Trouble::MISSING),
    );
}
