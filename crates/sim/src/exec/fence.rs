//! Fences.

use super::access::Location;
use super::context::Cx;
use super::memory::{acquire, address, send_before};
use super::warp::Warp;
use super::{Issue, Next};
use crate::decode::fence::FenceOp;
use crate::error::Fault;
use crate::hazard::Scope;
use crate::lanes::lanes;
use crate::record::Deed;
use crate::text::ast::Space;

pub(super) fn execute(warp: &mut Warp, cx: &mut Cx<'_>, op: &FenceOp, at: Issue) -> Result<Next, Fault> {
    if let FenceOp::TensorMapAcquire { sem, addr, .. } = op {
        for l in lanes(at.active) {
            let a = address(warp, addr, Space::Generic, l);
            let location = cx.resolve(warp, Space::Generic, a)?;
            acquire(warp, cx, location, sem);
            if let Location::Global(a) = location {
                cx.acquire_map(warp, at.pc, a);
            }
        }
    }
    if let FenceOp::Thread { sem } = op {
        send_before(warp, cx, sem)?;
    }
    if let FenceOp::ProxyAsync { shared, global } = op {
        cx.record(warp.index, at.active, Deed::FenceProxy { shared: *shared, global: *global });
    }
    if let FenceOp::MbarrierInit = op {
        cx.record(warp.index, at.active, Deed::FenceInit);
    }
    if let Some(h) = &mut cx.cluster.hazards {
        if let FenceOp::TensorMapRelease { .. } = op {
            h.fence_maps(warp.index);
        }
        match op {
            FenceOp::Thread { sem } | FenceOp::TensorMapRelease { sem } => {
                h.fence_thread(warp.index, sem.acquire, sem.release, sem.strong.unwrap_or(Scope::Gpu));
            }
            FenceOp::ProxyAsync { shared, global } => h.fence_proxy(warp.index, *shared, *global),
            FenceOp::MbarrierInit => h.fence_mbarrier_init(warp.index),
            FenceOp::TensorMapAcquire { .. } | FenceOp::Nothing => {}
        }
        if matches!(op, FenceOp::ProxyAsync { shared: true, .. } | FenceOp::MbarrierInit) {
            for m in cx.cluster.ctas.iter_mut().flat_map(|c| c.mbars.values_mut()) {
                m.fenced |= m.init_warp == warp.index;
            }
        }
    }
    Ok(Next::Step)
}
