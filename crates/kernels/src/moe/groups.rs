//! Group-limited choice: experts are in groups of neighbours, and those of the best groups remain.
//!
//! A lane has a group, and reads its keys from shared memory.

use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{Kernel, U32, Var};

use super::key;
use super::params::{Flags, Params};
use super::top_k::SmemToken;
use crate::common::WARP;

/// Keys that a lane reads at once.
const AT_ONCE: u32 = 8;

/// Makes the experts absent that are in none of the best groups.
pub(super) fn keep_best<'k>(
    k: &'k Kernel,
    p: &Params<'k>,
    smem: &SmemToken<'k>,
    experts: &[U32<'k>],
    keys: &[Var<'k, u32>],
) {
    for (expert, key) in experts.iter().zip(keys) {
        smem.key(*expert).store(key.get());
    }
    k.sync_warp();
    let kept = best(k, p, group_key(k, p, smem));
    for (expert, key) in experts.iter().zip(keys) {
        let is_kept = ((kept >> p.group_of(*expert)) & 1).ne(0);
        key.set(is_kept.select(key.live(), key::ABSENT));
    }
}

/// Key of the lane's group.
fn group_key<'k>(k: &'k Kernel, p: &Params<'k>, smem: &SmemToken<'k>) -> U32<'k> {
    let (best, second) = (k.var(key::ABSENT), k.var(key::ABSENT));
    let is_one = k.lane().lt(p.groups);
    let first = k.lane() * p.group_size;
    k.for_(0, p.group_size, AT_ONCE, |start| {
        let keys: Vec<U32> = (0..AT_ONCE)
            .map(|i| {
                let exists = is_one & (start + i).lt(p.group_size);
                smem.key(first + start + i).load_if(exists, key::ABSENT)
            })
            .collect();
        for key in keys {
            second.set(second.live().max(best.live().min(key)));
            best.set(best.live().max(key));
        }
    });
    let (best, second) = (best.get(), second.get());
    // What is not a number adds nothing.
    let adds = p.has(Flags::SUM_OF_TWO) & second.gt(key::NAN);
    adds.select(key::of(key::number(best) + key::number(second)), best)
}

/// Mask of the groups that are kept: those that few enough others come before.
fn best<'k>(k: &'k Kernel, p: &Params<'k>, own: U32<'k>) -> U32<'k> {
    let lane = k.lane();
    let before = (0..WARP).fold(k.constant(0), |before, index| {
        let other = k.shuffle(Shuffle::Index, own, index);
        let is_before = other.gt(own) | (other.eq(own) & lane.gt(index));
        before + is_before.select(1u32, 0u32)
    });
    k.ballot(before.lt(p.kept_groups) & lane.lt(p.groups))
}
