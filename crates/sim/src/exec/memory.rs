//! Loads, stores and conversions of addresses.

use super::access::{Access, Location};
use super::context::Cx;
use super::warp::Warp;
use super::{Issue, Next};
use crate::decode::isa::{Addr, Sem};
use crate::decode::memory::MemoryOp;
use crate::error::{Fault, FaultKind};
use crate::hazard::Scope;
use crate::lanes::lanes;
use crate::memory::{LOCAL_WINDOW, MAX_SHARED_BYTES, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES, word};
use crate::options::Policy;
use crate::text::ast::Space;
use crate::text::types::{low_mask, sign_extend};

pub(super) fn execute(warp: &mut Warp, cx: &mut Cx<'_>, op: &MemoryOp, at: Issue) -> Result<Next, Fault> {
    match op {
        MemoryOp::Load { .. } => load(warp, cx, op, at),
        MemoryOp::Store { .. } => store(warp, cx, op, at),
        MemoryOp::StoreZeros { .. } | MemoryOp::Discard { .. } => clear(warp, cx, op, at),
        MemoryOp::CvtaTo { .. }
        | MemoryOp::CvtaFrom { .. }
        | MemoryOp::Mapa { .. }
        | MemoryOp::GetCtaRank { .. }
        | MemoryOp::IsSpace { .. } => convert(warp, cx, op, at),
    }
}

/// The address of one lane. Shared, local and parameter addresses are 32 bits wide.
pub(super) fn address(warp: &Warp, addr: &Addr, space: Space, lane: usize) -> u64 {
    let a = warp.value(addr.base, lane).wrapping_add(addr.offset as u64);
    match space {
        Space::Global | Space::Generic | Space::Const => a,
        _ => a & 0xffff_ffff,
    }
}

pub(super) fn check_alignment(address: u64, bytes: u32) -> Result<(), Fault> {
    if !address.is_multiple_of(u64::from(bytes)) {
        return Err(Fault::new(
            FaultKind::Misaligned,
            format!("address {address:#x} is not a multiple of the access size, {bytes}"),
        ));
    }
    Ok(())
}

fn load(warp: &mut Warp, cx: &mut Cx<'_>, op: &MemoryOp, at: Issue) -> Result<Next, Fault> {
    let Issue { pc, active, .. } = at;
    let MemoryOp::Load { space, bytes, sign, dst, addr, sem } = op else { return Ok(Next::Step) };
    let mut buffer = [0u8; 64];
    let mut access = Access::new(warp.index, pc, sem.strong);
    let total = *bytes as usize * dst.len();
    *cx.polls += u64::from(sem.strong.is_some());
    if *space == Space::Global {
        cx.report.traffic.global_loads += u64::from(active.count_ones()) * total as u64;
    }
    for l in lanes(active) {
        let a = address(warp, addr, *space, l);
        check_alignment(a, total as u32)?;
        let location = cx.resolve(warp, *space, a)?;
        acquire(warp, cx, location, sem);
        cx.peek(warp, l, &mut access, location, &mut buffer[..total])?;
        if let (Location::Global(a), true) = (location, sem.strong.is_some()) {
            warp.polled = Some((a, word(&buffer[..total.min(8)])));
        }
        // A vector load may include padding that nothing uses: what was never written is an error
        // only when its register is used.
        let whole = !cx.options.hazards || cx.defined(location, total);
        for (i, (d, piece)) in dst.iter().zip(buffer.chunks(*bytes as usize)).enumerate() {
            if let Some((r, width)) = d {
                if !whole && !cx.defined(location.plus(i as u32 * bytes), *bytes as usize) {
                    warp.written[r.index()] &= !(1 << l);
                    warp.undefined.insert(*r, pc);
                }
                let raw = word(piece);
                let v = if *sign > 0 { sign_extend(raw, *sign) & low_mask(*width) } else { raw };
                warp.set(*r, l, v);
            }
        }
    }
    // What others may store at the same time may be waited for: they run first.
    Ok(if sem.strong.is_some() { Next::Yield } else { Next::Step })
}

fn store(warp: &mut Warp, cx: &mut Cx<'_>, op: &MemoryOp, at: Issue) -> Result<Next, Fault> {
    let Issue { pc, active, .. } = at;
    let MemoryOp::Store { space, bytes, src, addr, sem } = op else { return Ok(Next::Step) };
    let mut buffer = [0u8; 64];
    let mut access = Access::new(warp.index, pc, sem.strong);
    let total = *bytes as usize * src.len();
    for l in lanes(active) {
        let a = address(warp, addr, *space, l);
        check_alignment(a, total as u32)?;
        for (s, piece) in src.iter().zip(buffer.chunks_mut(*bytes as usize)) {
            let len = piece.len();
            piece.copy_from_slice(&warp.value(*s, l).to_le_bytes()[..len]);
        }
        let location = cx.resolve(warp, *space, a)?;
        if let (Location::Global(a), true) = (location, cx.stays_out(location, sem)) {
            cx.write_later(warp, l, &mut access, (a, &buffer[..total]), sem)?;
            continue;
        }
        send_before(warp, cx, sem)?;
        cx.write(warp, l, &mut access, location, &buffer[..total])?;
        release(warp, cx, location, sem);
    }
    Ok(if published(cx, sem) { Next::Yield } else { Next::Step })
}

/// A release of system scope: the stores to other devices that it comes after are seen before it.
pub(super) fn send_before(warp: &Warp, cx: &mut Cx<'_>, sem: &Sem) -> Result<(), Fault> {
    if sem.release && sem.strong == Some(Scope::Sys) { cx.send_before(warp.index) } else { Ok(()) }
}

/// Whether the other devices run, after what they may wait for.
pub(super) fn published(cx: &mut Cx<'_>, sem: &Sem) -> bool {
    cx.peers.is_some()
        && sem.strong == Some(Scope::Sys)
        && match cx.options.policy {
            Policy::Eager => false,
            Policy::Lazy => true,
            Policy::Random => cx.rng.once_in(2),
        }
}

/// `st.bulk` and `discard`.
fn clear(warp: &mut Warp, cx: &mut Cx<'_>, op: &MemoryOp, at: Issue) -> Result<Next, Fault> {
    let Issue { pc, active, .. } = at;
    for l in lanes(active) {
        match op {
            MemoryOp::StoreZeros { space, addr, bytes } => {
                let (a, bytes) = (address(warp, addr, *space, l), warp.value(*bytes, l));
                check_alignment(a, 8)?;
                let Location::Shared(cta, offset) = cx.resolve(warp, *space, a)? else {
                    return Err(Fault::new(FaultKind::BadOperand, format!("{a:#x} is not a shared address")));
                };
                if bytes % 8 != 0 || bytes > u64::from(MAX_SHARED_BYTES) {
                    return Err(Fault::new(FaultKind::BadOperand, format!("a bulk store of {bytes} bytes")));
                }
                let mut access = Access::new(warp.index, pc, None);
                let zeros = vec![0; bytes as usize];
                cx.write(warp, l, &mut access, Location::Shared(cta, offset), &zeros)?;
            }
            MemoryOp::Discard { addr } => {
                let a = address(warp, addr, Space::Generic, l);
                check_alignment(a, 128)?;
                cx.memory.forget(a, 128)?;
            }
            _ => {}
        }
    }
    Ok(Next::Step)
}

/// The key of a shared-memory location in the table of released views.
fn key(cta: usize, offset: u32) -> u64 {
    ((cta as u64) << 24) + u64::from(offset)
}

/// A strong access of the selected lanes takes what was released to the location.
pub(super) fn acquire(warp: &Warp, cx: &mut Cx<'_>, location: Location, sem: &Sem) {
    let (Some(h), Some(scope)) = (&mut cx.cluster.hazards, sem.strong) else { return };
    match location {
        Location::Global(a) => cx.global.acquire(h, warp.index, a, sem.acquire, scope),
        Location::Shared(cta, offset) => {
            h.acquire_location(warp.index, key(cta, offset), sem.acquire, scope);
        }
        _ => {}
    }
}

/// A strong access of the selected lanes releases to the location.
pub(super) fn release(warp: &Warp, cx: &mut Cx<'_>, location: Location, sem: &Sem) {
    let (Some(h), Some(scope)) = (&mut cx.cluster.hazards, sem.strong) else { return };
    match location {
        Location::Global(a) => cx.global.release(h, warp.index, a, sem.release, scope),
        Location::Shared(cta, offset) => {
            h.release_location(warp.index, key(cta, offset), sem.release, scope);
        }
        _ => {}
    }
}

fn window(space: Space) -> u64 {
    match space {
        Space::Shared | Space::Cluster => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        Space::Param => PARAM_WINDOW,
        _ => 0,
    }
}

fn convert(warp: &mut Warp, cx: &mut Cx<'_>, op: &MemoryOp, at: Issue) -> Result<Next, Fault> {
    for l in lanes(at.active) {
        let (dst, v) = match op {
            MemoryOp::CvtaFrom { dst, src, space } => {
                (*dst, warp.value(*src, l).wrapping_add(window(*space)))
            }
            MemoryOp::CvtaTo { dst, src, space } => (*dst, warp.value(*src, l).wrapping_sub(window(*space))),
            MemoryOp::Mapa { dst, src, rank, generic } => {
                let rank = warp.value(*rank, l) as u32;
                if rank as usize >= cx.cluster.ctas.len() {
                    return Err(Fault::new(
                        FaultKind::BadOperand,
                        format!("rank {rank} of a cluster of {}", cx.cluster.ctas.len()),
                    ));
                }
                let base = if *generic { SHARED_WINDOW } else { 0 };
                let offset = warp.value(*src, l).wrapping_sub(base) & 0xff_ffff;
                (*dst, base + (u64::from(rank) << 24) + offset)
            }
            MemoryOp::GetCtaRank { dst, src, generic } => {
                let base = if *generic { SHARED_WINDOW } else { 0 };
                (*dst, warp.value(*src, l).wrapping_sub(base) >> 24 & 0xff)
            }
            MemoryOp::IsSpace { dst, src, space } => {
                let a = warp.value(*src, l);
                let inside = |w: u64| (w..w + WINDOW_BYTES).contains(&a);
                let is = match space {
                    Space::Shared => {
                        inside(SHARED_WINDOW) && (a - SHARED_WINDOW) >> 24 == u64::from(warp.env.rank)
                    }
                    Space::Cluster => inside(SHARED_WINDOW),
                    Space::Local => inside(LOCAL_WINDOW),
                    Space::Param => inside(PARAM_WINDOW),
                    _ => !inside(SHARED_WINDOW) && !inside(LOCAL_WINDOW) && !inside(PARAM_WINDOW),
                };
                (*dst, u64::from(is))
            }
            _ => continue,
        };
        warp.set(dst, l, v);
    }
    Ok(Next::Step)
}
