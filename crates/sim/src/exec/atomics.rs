//! Atomics and reductions of threads.

use super::Next;
use super::loads::{acquire, address, check_alignment, release};
use crate::context::{Access, Cx};
use crate::error::{Fault, FaultKind};
use crate::isa::Op;
use crate::tma::word;
use crate::warp::{Warp, lanes};

pub(super) fn atom(warp: &mut Warp, cx: &mut Cx<'_>, op: &Op, pc: u32, active: u32) -> Result<Next, Fault> {
    let Op::Atom { op, ty, space, dst, addr, b, c, sem } = op else { return Ok(Next::Step) };
    let bytes = ty.bytes() as usize;
    let mut access = Access::new(warp.index, pc, true);
    for l in lanes(active) {
        let a = address(warp, addr, *space, l);
        check_alignment(a, bytes as u32)?;
        let location = cx.resolve(warp, *space, a)?;
        acquire(warp, cx, location, sem.acquire);
        let mut old = [0; 8];
        cx.read(warp, l, &mut access, location, &mut old[..bytes])?;
        let old = word(&old[..bytes]);
        let operand = c.map_or(0, |c| warp.value(c, l));
        let Some(new) = crate::atomic::apply(*op, *ty, old, warp.value(*b, l), operand) else {
            return Err(Fault::new(FaultKind::BadOperand, "this atomic does not exist for the type"));
        };
        let progress = *cx.progress;
        cx.write(warp, l, &mut access, location, &new.to_le_bytes()[..bytes])?;
        if new == old {
            // Nothing has changed: this is how a lock is polled.
            *cx.progress = progress;
            *cx.polls += 1;
        }
        release(warp, cx, location, sem.release);
        if let Some(d) = dst {
            warp.set(*d, l, old);
        }
    }
    Ok(Next::Step)
}
