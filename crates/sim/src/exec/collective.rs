//! Warp collectives: shuffles, votes, matches, reductions, election and `bar.warp.sync`.

use super::aligned::{converge, converged};
use super::context::Cx;
use super::warp::Warp;
use super::{Issue, Next, together};
use crate::decode::collective::{CollectiveOp, Shuffle, Vote};
use crate::decode::isa::Src;
use crate::error::{Fault, FaultKind};
use crate::lanes::{LANES, lanes};
use crate::record::Deed;
use crate::units::atomic::{self, AtomFn};

pub(super) fn execute(warp: &mut Warp, cx: &mut Cx<'_>, op: &CollectiveOp, at: Issue) -> Result<Next, Fault> {
    let next = exchange(warp, op, at.mask, at.active)?;
    if matches!(next, Next::Step) {
        match op {
            CollectiveOp::ActiveMask { .. } => {}
            CollectiveOp::WarpSync { .. } => converged(warp, cx, at.active),
            // They have converged; their memory accesses are not ordered.
            _ => {
                cx.record(warp.index, at.active, Deed::Met);
                warp.convergence.converge(at.active | warp.exited);
            }
        }
    }
    Ok(next)
}

/// The member mask of an instruction, the same in all its lanes; every running lane must be in it.
fn members(warp: &Warp, mask: Src, active: u32) -> Result<u32, Fault> {
    let Some(members) = warp.uniform(mask, active) else {
        return Err(Fault::new(FaultKind::Divergence, "the lanes give different member masks"));
    };
    let members = members as u32;
    if active & !members != 0 {
        return Err(Fault::new(
            FaultKind::Divergence,
            format!(
                "lanes {:#010x} run this instruction and are not in its member mask {members:#010x}",
                active & !members
            ),
        ));
    }
    Ok(members)
}

fn exchange(warp: &mut Warp, op: &CollectiveOp, mask: u32, active: u32) -> Result<Next, Fault> {
    let member_mask = match op {
        CollectiveOp::Shfl { mask, .. } | CollectiveOp::Vote { mask, .. } => *mask,
        CollectiveOp::Match { mask, .. }
        | CollectiveOp::Redux { mask, .. }
        | CollectiveOp::Elect { mask, .. }
        | CollectiveOp::WarpSync { mask } => Some(*mask),
        CollectiveOp::ActiveMask { .. } => None,
    };
    if let Some(m) = member_mask {
        let members = members(warp, m, active)?;
        // Lanes of the group that are predicated off do not take part; if they are members, that is an error.
        if members & mask & !active != 0 {
            return Err(Fault::new(
                FaultKind::Divergence,
                format!("lanes {:#010x} are members and predicated off", members & mask & !active),
            ));
        }
        together!(converge(warp, active, members));
    }
    match op {
        CollectiveOp::Shfl { mode, dst, p, a, b, c, .. } => {
            let before: Vec<u64> = (0..LANES).map(|l| warp.value(*a, l)).collect();
            for l in lanes(active) {
                let (b, c) = (warp.value(*b, l) as u32, warp.value(*c, l) as u32);
                let (source, valid) = shuffle(*mode, l as u32, b & 31, c);
                let v = if valid { before[source as usize] } else { before[l] };
                warp.set(*dst, l, v & 0xffff_ffff);
                if let Some(p) = p {
                    warp.set(*p, l, u64::from(valid));
                }
            }
        }
        CollectiveOp::Vote { kind, dst, src, .. } => {
            let set = lanes(active).fold(0u32, |m, l| m | (warp.value(*src, l) as u32 & 1) << l);
            let result = match kind {
                Vote::All => u64::from(set == active),
                Vote::Any => u64::from(set != 0),
                Vote::Uni => u64::from(set == 0 || set == active),
                Vote::Ballot => u64::from(set),
            };
            lanes(active).for_each(|l| warp.set(*dst, l, result));
        }
        CollectiveOp::Match { all, dst, p, a, .. } => {
            let values: Vec<u64> = (0..LANES).map(|l| warp.value(*a, l)).collect();
            for l in lanes(active) {
                let same = lanes(active).filter(|m| values[*m] == values[l]).fold(0u32, |m, x| m | 1 << x);
                let result = if !*all {
                    same
                } else if same == active {
                    active
                } else {
                    0
                };
                warp.set(*dst, l, u64::from(result));
                if let Some(p) = p {
                    warp.set(*p, l, u64::from(same == active));
                }
            }
        }
        CollectiveOp::Redux { float: Some((f, magnitude)), dst, a, .. } => {
            let sign = if *magnitude { 1 << 31 } else { 0 };
            let values = lanes(active).map(|l| warp.value(*a, l) & !sign);
            let total = values.reduce(|x, y| f(x, y, 0)).unwrap_or(0);
            lanes(active).for_each(|l| warp.set(*dst, l, total));
        }
        CollectiveOp::Redux { op, ty, dst, a, .. } => {
            let mut values = lanes(active).map(|l| warp.value(*a, l));
            let first = values.next().unwrap_or(0);
            let total = values.try_fold(first, |t, v| atomic::apply(*op, *ty, t, v, 0));
            let Some(total) = total.filter(|_| !matches!(op, AtomFn::Cas | AtomFn::Exch)) else {
                return Err(Fault::new(FaultKind::BadOperand, "this reduction does not exist"));
            };
            lanes(active).for_each(|l| warp.set(*dst, l, total & 0xffff_ffff));
        }
        CollectiveOp::Elect { dst, p, .. } => {
            let leader = active.trailing_zeros();
            for l in lanes(active) {
                warp.set(*p, l, u64::from(l as u32 == leader));
                if let Some(d) = dst {
                    warp.set(*d, l, u64::from(leader));
                }
            }
        }
        CollectiveOp::ActiveMask { dst } => lanes(active).for_each(|l| warp.set(*dst, l, u64::from(active))),
        CollectiveOp::WarpSync { .. } => {}
    }
    Ok(Next::Step)
}

/// The source lane of a shuffle, and whether it is in range.
fn shuffle(mode: Shuffle, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (clamp, segment) = (c & 31, c >> 8 & 31);
    let max = lane & segment | clamp & !segment;
    let min = lane & segment;
    let (j, ok) = match mode {
        Shuffle::Up => {
            let j = lane.wrapping_sub(b);
            (j, j as i32 >= max as i32)
        }
        Shuffle::Down => {
            let j = lane + b;
            (j, j <= max)
        }
        Shuffle::Bfly => {
            let j = lane ^ b;
            (j, j <= max)
        }
        Shuffle::Idx => {
            let j = min | b & !segment;
            (j, j <= max)
        }
    };
    (if ok { j & 31 } else { lane }, ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffles_stay_in_their_segment() {
        assert_eq!(shuffle(Shuffle::Idx, 7, 0, 31), (0, true));
        assert_eq!(shuffle(Shuffle::Down, 30, 4, 31), (30, false));
        assert_eq!(shuffle(Shuffle::Up, 3, 4, 0), (3, false));
        assert_eq!(shuffle(Shuffle::Up, 5, 4, 0), (1, true));
        assert_eq!(shuffle(Shuffle::Bfly, 5, 1, 31), (4, true));
        // Width 8: segment mask 0x18, as the toolkit's __shfl_sync encodes it.
        let c = (32 - 8) << 8 | 31;
        assert_eq!(shuffle(Shuffle::Idx, 13, 2, c), (10, true));
        assert_eq!(shuffle(Shuffle::Down, 14, 4, c), (14, false));
    }
}
