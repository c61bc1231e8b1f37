//! Tensor copies: what a thread asks of the TMA.

use super::context::Cx;
use super::copy::{Load, Report, Store as Outgoing, receivers, send, shared_at, store};
use super::memory::{address, check_alignment};
use super::warp::Warp;
use crate::decode::copy::{CopyMode, TensorCopy};
use crate::error::{Fault, FaultKind};
use crate::record::{Deed, Store, Way};
use crate::text::ast::Space;
use crate::units::copy::{Source, Target};
use crate::units::tensormap::TENSOR_MAP_BYTES;
use crate::units::tma::{Corner, TensorPart};

/// Issues one lane's tensor copy.
pub(super) fn issue(
    warp: &mut Warp,
    cx: &mut Cx<'_>,
    t: &TensorCopy,
    pc: u32,
    l: usize,
) -> Result<(), Fault> {
    let (map, map_at) = cx.load_map(warp, address(warp, &t.map, Space::Generic, l))?;
    let read_map = |cx: &mut Cx<'_>, warp: &Warp, way: Way| {
        let (store, write) = (Store::Global, false);
        if let Some(at) = map_at {
            let deed = Deed::Access { store, at, count: TENSOR_MAP_BYTES as u64, write, same: write, way };
            cx.record(warp.index, 1 << l, deed);
        }
    };
    read_map(cx, warp, Way::Plain);
    if map.rank != t.rank {
        return Err(Fault::new(
            FaultKind::TensorMap,
            format!("the map has rank {} and the instruction rank {}", map.rank, t.rank),
        ));
    }
    let mut coords = [0i32; 5];
    for (c, s) in coords.iter_mut().zip(&t.coords) {
        *c = warp.value(*s, l) as i32;
    }
    let corner = match t.mode {
        CopyMode::Tile => Corner::Tile(coords),
        CopyMode::Rows => Corner::Rows(coords[0], [coords[1], coords[2], coords[3], coords[4]]),
        CopyMode::Im2col => {
            let mut offsets = [0; 3];
            for (o, s) in offsets.iter_mut().zip(&t.offsets) {
                *o = warp.value(*s, l) as u16;
            }
            Corner::Im2col(coords, offsets)
        }
    };
    let part = Box::new(TensorPart::new(map, corner)?);
    let (bytes, swizzle) = (part.bytes(), part.map.swizzle);
    let Some(mbar) = &t.mbar else {
        part.check_store(t.reduce)?;
        let (cta, offset) = shared_at(warp, cx, &t.shared, Space::Shared, l)?;
        check_alignment(u64::from(offset), 128)?;
        cx.shared_range(cta, offset, bytes)?;
        let target = Target::Tensor(part, t.reduce);
        store(warp, cx, pc, l, Outgoing { map: map_at, swizzle, cta, offset, bytes, target })?;
        read_map(cx, warp, Way::Generic);
        return Ok(());
    };
    let (cta, offset) = shared_at(warp, cx, &t.shared, Space::Cluster, l)?;
    check_alignment(u64::from(offset), 128)?;
    let (mbar_cta, mbar) = shared_at(warp, cx, mbar, Space::Cluster, l)?;
    check_alignment(u64::from(mbar), 8)?;
    let ranks = receivers(warp, cx, t.multicast, cta, l)?;
    let report = report(warp, t, cta, mbar_cta)?;
    let source = &Source::Tensor(part);
    let load = Load {
        lane: l,
        map: map_at,
        source,
        swizzle,
        ranks: &ranks,
        offset,
        bytes,
        mbar,
        report,
        reduce: None,
    };
    send(warp, cx, pc, load)?;
    read_map(cx, warp, Way::Generic);
    Ok(())
}

/// The mbarriers that a load reports to, and the rules for the place of the one that the instruction names.
fn report(warp: &Warp, t: &TensorCopy, cta: usize, mbar: usize) -> Result<Report, Fault> {
    let bad = |m: String| Err(Fault::new(FaultKind::BadOperand, m));
    let own = warp.env.rank as usize;
    if t.own && (cta != own || mbar != own) {
        return bad(format!(
            "the destination is in CTA {cta} and the mbarrier in CTA {mbar} of the cluster: with `.shared::cta` both \
             are in the CTA of the thread, {own}"
        ));
    }
    match (t.multicast.is_some(), t.pair) {
        (true, true) => Ok(Report::Pair(mbar & 1)),
        (true, false) => Ok(Report::Receiver),
        (false, true) if mbar & !1 == cta & !1 => Ok(Report::To(mbar)),
        (false, false) if mbar == cta => Ok(Report::To(mbar)),
        (false, pair) => bad(format!(
            "the destination is in CTA {cta} of the cluster and the mbarrier in CTA {mbar}: it must be in the same {}",
            if pair { "pair of CTAs" } else { "CTA, or in its peer with `.cta_group::2`" }
        )),
    }
}
