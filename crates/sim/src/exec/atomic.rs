//! Atomics and reductions of threads.

use super::access::{Access, Location};
use super::context::Cx;
use super::memory::{acquire, address, check_alignment, published, release, send_before};
use super::warp::Warp;
use super::{Issue, Next};
use crate::decode::atomic::{AtomicOp, AtomicWide};
use crate::decode::isa::Src;
use crate::error::{Fault, FaultKind};
use crate::lanes::lanes;
use crate::memory::word;
use crate::text::types::Ty;
use crate::units::atomic::{self, AtomFn};

pub(super) fn execute(warp: &mut Warp, cx: &mut Cx<'_>, op: &AtomicOp, at: Issue) -> Result<Next, Fault> {
    match op {
        AtomicOp::Scalar { .. } => scalar(warp, cx, op, at),
        AtomicOp::Wide(op) => wide(warp, cx, op, at),
        AtomicOp::Vector { .. } => vector(warp, cx, op, at),
    }
}

fn scalar(warp: &mut Warp, cx: &mut Cx<'_>, op: &AtomicOp, at: Issue) -> Result<Next, Fault> {
    let Issue { pc, active, .. } = at;
    let AtomicOp::Scalar { op, ty, space, dst, addr, b, c, sem } = op else { return Ok(Next::Step) };
    let bytes = ty.bytes() as usize;
    let mut access = Access::new(warp.index, pc, sem.strong);
    for l in lanes(active) {
        let a = address(warp, addr, *space, l);
        check_alignment(a, bytes as u32)?;
        let location = cx.resolve(warp, *space, a)?;
        send_before(warp, cx, sem)?;
        acquire(warp, cx, location, sem);
        let mut old = [0; 8];
        cx.read(warp, l, &mut access, location, &mut old[..bytes])?;
        let old = word(&old[..bytes]);
        let operand = c.map_or(0, |c| warp.value(c, l));
        let new = apply(*op, *ty, old, warp.value(*b, l), operand)?;
        let progress = *cx.progress;
        cx.write(warp, l, &mut access, location, &new.to_le_bytes()[..bytes])?;
        if new == old {
            // Nothing has changed: this is how a lock is polled.
            *cx.progress = progress;
            *cx.polls += 1;
            if let Location::Global(a) = location {
                warp.polled = Some((a, old));
            }
        }
        release(warp, cx, location, sem);
        if let Some(d) = dst {
            warp.set(*d, l, old);
        }
    }
    Ok(if published(cx, sem) { Next::Yield } else { Next::Step })
}

fn apply(op: AtomFn, ty: Ty, old: u64, b: u64, c: u64) -> Result<u64, Fault> {
    atomic::apply(op, ty, old, b, c)
        .ok_or_else(|| Fault::new(FaultKind::BadOperand, "this atomic does not exist for the type"))
}

/// Vectors: the elements are atomic one by one, in any order.
fn vector(warp: &mut Warp, cx: &mut Cx<'_>, op: &AtomicOp, at: Issue) -> Result<Next, Fault> {
    let Issue { pc, active, .. } = at;
    let AtomicOp::Vector { op, ty, space, dst, addr, b, sem } = op else { return Ok(Next::Step) };
    let bytes = ty.bytes() as usize;
    let mut access = Access::new(warp.index, pc, sem.strong);
    for l in lanes(active) {
        let a = address(warp, addr, *space, l);
        check_alignment(a, (bytes * b.len()) as u32)?;
        let location = cx.resolve(warp, *space, a)?;
        send_before(warp, cx, sem)?;
        acquire(warp, cx, location, sem);
        for (i, s) in b.iter().enumerate() {
            let element = location.plus((i * bytes) as u32);
            let mut old = [0; 8];
            cx.read(warp, l, &mut access, element, &mut old[..bytes])?;
            let old = word(&old[..bytes]);
            let new = apply(*op, *ty, old, warp.value(*s, l), 0)?;
            cx.write(warp, l, &mut access, element, &new.to_le_bytes()[..bytes])?;
            if let Some(Some(d)) = dst.get(i) {
                warp.set(*d, l, old);
            }
        }
        release(warp, cx, location, sem);
    }
    Ok(Next::Step)
}

/// Exchange and compare-and-swap of 128 bits.
fn wide(warp: &mut Warp, cx: &mut Cx<'_>, op: &AtomicWide, at: Issue) -> Result<Next, Fault> {
    let Issue { pc, active, .. } = at;
    let AtomicWide { space, dst, addr, b, c, sem } = op;
    let pair = |warp: &Warp, words: &[Src; 2], l: usize| words.map(|s| warp.value(s, l));
    let mut access = Access::new(warp.index, pc, sem.strong);
    for l in lanes(active) {
        let a = address(warp, addr, *space, l);
        check_alignment(a, 16)?;
        let location = cx.resolve(warp, *space, a)?;
        send_before(warp, cx, sem)?;
        acquire(warp, cx, location, sem);
        let mut bytes = [0; 16];
        cx.read(warp, l, &mut access, location, &mut bytes)?;
        let old = [word(&bytes[..8]), word(&bytes[8..])];
        let new = match c {
            Some(c) if old == pair(warp, b, l) => pair(warp, c, l),
            Some(_) => old,
            None => pair(warp, b, l),
        };
        let progress = *cx.progress;
        cx.write(warp, l, &mut access, location, &new.map(u64::to_le_bytes).concat())?;
        if new == old {
            *cx.progress = progress;
            *cx.polls += 1;
        }
        release(warp, cx, location, sem);
        if let Some([low, high]) = dst {
            warp.set(*low, l, old[0]);
            warp.set(*high, l, old[1]);
        }
    }
    Ok(Next::Step)
}
