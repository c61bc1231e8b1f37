//! The record of a run, where it is asked for.

use super::context::Cx;
use crate::hazard::{Event, Proxy};
use crate::record::{Deed, Step, Store, Way};
use crate::units::tcgen05::queue::TensorUse;
use crate::units::tensor_memory::TENSOR_LANES;

impl Cx<'_> {
    /// Records what lanes of a warp do at an instruction.
    pub(super) fn record_at(&mut self, (warp, pc): (u32, u32), lanes: u32, deed: Deed) {
        if self.options.record {
            let (cluster, line) = (self.cluster.ctas[0].index, self.kernel.code[pc as usize].line);
            self.report.record.push(Step { cluster, warp, lanes, line, deed });
        }
    }

    /// The same at the instruction that runs.
    pub(super) fn record(&mut self, warp: u32, lanes: u32, deed: Deed) {
        self.record_at((warp, self.at.1), lanes, deed);
    }

    /// Records accesses of a thread.
    pub(super) fn record_access(
        &mut self,
        by: (u32, u32),
        lane: usize,
        store: Store,
        (at, count): (u64, u64),
        [write, same, strong]: [bool; 3],
    ) {
        let way = if strong { Way::Strong } else { Way::Plain };
        self.record_at(by, 1 << lane, Deed::Access { store, at, count, write, same, way });
    }

    /// Records accesses of asynchronous work, by the lane that issues it.
    pub(super) fn record_work_access(
        &mut self,
        event: Event,
        lane: Option<usize>,
        store: Store,
        ranges: &[(u64, u64)],
        write: bool,
    ) {
        let lanes = 1 << lane.unwrap_or(0);
        let way = match event.proxy {
            Proxy::Generic => Way::Generic,
            Proxy::Async => Way::Async,
            Proxy::Any => Way::Address,
        };
        for &(at, count) in ranges {
            let deed = Deed::Access { store, at, count, write, same: false, way };
            self.record_at((event.warp, event.pc), lanes, deed);
        }
    }

    /// Records an access to tensor memory.
    pub(super) fn record_tensor(&mut self, (warp, pc): (u32, u32), lane: u32, way: Way, u: &TensorUse) {
        if !self.options.record {
            return;
        }
        let store = Store::Tensor(u.cta as u32);
        for column in u.area.column..u.area.column + u.area.columns {
            let mut rest = u.area.lanes;
            while rest != 0 {
                let first = rest.trailing_zeros();
                let count = (rest >> first).trailing_ones();
                let at = u64::from(column * TENSOR_LANES + first);
                let (write, lanes) = (u.role.writes(), u64::from(count));
                let deed = Deed::Access { store, at, count: lanes, write, same: false, way };
                self.record_at((warp, pc), 1 << lane, deed);
                rest = if first + count >= 128 { 0 } else { rest >> (first + count) << (first + count) };
            }
        }
    }

    /// Phases that an mbarrier has completed.
    pub(super) fn phase_of(&self, cta: usize, at: u32) -> u32 {
        self.cluster.ctas[cta].mbars.get(&at).map_or(0, |m| m.phase)
    }
}
